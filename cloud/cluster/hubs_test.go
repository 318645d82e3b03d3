// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/ordered"
)

func tellHubs(h *Hubs, now time.Time, hub Hub) bool {
	hub.Instance = cmp.Or(hub.Instance, 1)
	text, _ := json.Marshal(hub)
	return h.Hear(text, now)
}

func TestHubsThatNobodyKnowsFillNoMemory(t *testing.T) {
	var h Hubs
	now := time.Now()
	for i := range 3 * maxHubs {
		now = now.Add(time.Millisecond)
		tellHubs(&h, now, Hub{Name: fmt.Sprint("forged-", i), At: 1})
		tellHubs(&h, now, Hub{Name: "hub", At: ordered.Position(i)})
	}
	tellHubs(&h, now, Hub{Name: strings.Repeat("x", 1<<20)})
	h.Hear([]byte("no JSON"), now)
	list := h.List(now)
	require.LessOrEqual(t, len(list), maxHubs)
	names := map[string]bool{}
	for _, hub := range list {
		names[hub.Name] = true
	}
	require.True(t, names["hub"])
	require.True(t, names[fmt.Sprint("forged-", 3*maxHubs-1)])
	require.LessOrEqual(t, len(h.ends), maxEnds)
}

func TestAHubThatIsAwayIsForgottenAfterADay(t *testing.T) {
	var h Hubs
	now := time.Now()
	tellHubs(&h, now, Hub{Name: "gone"})
	require.Len(t, h.List(now.Add(ForgottenAfter)), 1)
	require.Empty(t, h.List(now.Add(ForgottenAfter+time.Second)))
}

func TestACommandThatAsksIsNoHub(t *testing.T) {
	var h Hubs
	now := time.Now()
	require.True(t, h.Hear([]byte(`{"name":"cloudhub cluster","asks":true}`), now))
	require.Empty(t, h.List(now))
}

func TestTwoHubsOfOneNameAreToldFromOneThatWasStartedAgain(t *testing.T) {
	var h Hubs
	now := time.Now()
	for _, instance := range []uint64{1, 1, 2, 2, 3} {
		tellHubs(&h, now, Hub{Name: "a", Instance: instance})
	}
	require.Zero(t, h.List(now)[0].Twice)
	tellHubs(&h, now, Hub{Name: "a", Instance: 2})
	require.Equal(t, now, h.List(now)[0].Twice)
}

func TestHowFarAHubIsBehind(t *testing.T) {
	var h Hubs
	now := time.Now()
	for i := range 10 {
		tellHubs(&h, now.Add(time.Duration(i)*time.Second), Hub{Name: "owner", At: ordered.Position(10 * i)})
	}
	now = now.Add(9 * time.Second)
	frames, since := h.Behind(90, now, now)
	require.Zero(t, frames)
	require.Zero(t, since)
	frames, since = h.Behind(55, now, now)
	require.EqualValues(t, 35, frames)
	require.Equal(t, 3*time.Second, since, "there was more since the end was 60")
	frames, _ = h.Behind(80, now.Add(-time.Second), now)
	require.Zero(t, frames, "what was told since it was heard may be new")
	frames, since = h.Behind(75, now.Add(-time.Second), now)
	require.EqualValues(t, 5, frames)
	require.Equal(t, time.Second, since)
}
