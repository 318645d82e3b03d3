// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

// fakeHub is a hub that can be reached as long as it listens, and a core that has lost it or not.
type fakeHub struct {
	net.Listener
	lost atomic.Bool
}

func newFakeHub(t *testing.T) *fakeHub {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("x"))
			_ = c.Close()
		}
	}()
	return &fakeHub{Listener: l}
}

// link is what the core says.
func (h *fakeHub) link() string {
	state := `"online","inStep":true`
	if h.lost.Load() {
		state = `"offline","lastError":"too many retries"`
	}
	return fmt.Sprintf(`{"peer":"mqtt://%s","state":%s}`, h.Addr(), state)
}

// newHostOnProbation is a host whose core was given another level of its log, and is on probation.
func newHostOnProbation(t *testing.T, setting configs.AgentProbation) (h *settingsHost, hub *fakeHub, u *Upgrader, now *time.Time) {
	t.Helper()
	hub = newFakeHub(t)
	h = newSettingsHost(t)
	h.testHost = newTestHostWith(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"version":"v1.0.0","links":[%s]}`, hub.link())
	}))
	require.NoError(t, os.WriteFile(versionDir{h.o.Config.Dir}.path("v1.0.0")+"/"+programCore, []byte(checkerScript), 0o755))
	h.o.Config.Trial.Timeout, h.o.Config.Probation = time.Minute, setting
	h.o.Config.Core.Config, h.o.Config.Settings = h.file, []string{"log.*"}
	h.o.Order = func() (*resource.UpgradeOrder, error) { return h.order, nil }
	clock := time.Now()
	now, h.o.Now = &clock, func() time.Time { return clock }
	require.NoError(t, h.s.Restart(t.Context()))
	u = h.open()
	r := h.gives(u, "1", map[string]string{"log.level": "debug"})
	require.Equal(t, resource.UpgradeSuccess, r.Result, "%+v", r)
	require.NotNil(t, u.state.Probation)
	return h, hub, u, now
}

// passTime has the node run for some time, with an agent that looks at the core.
func passTime(t *testing.T, u *Upgrader, now *time.Time, d time.Duration) resource.UpgradeReport {
	t.Helper()
	for end := now.Add(d); now.Before(end) && u.state.Probation != nil; *now = now.Add(u.probation.interval()) {
		again, err := u.do(t.Context())
		require.NoError(t, err)
		require.True(t, again <= u.probation.interval() || u.state.Probation == nil, again)
	}
	_, err := u.do(t.Context())
	require.NoError(t, err)
	return u.Report()
}

var hourProbation = configs.AgentProbation{Time: time.Hour, Away: 10 * time.Minute}

// A core that drops the hub after its trial is replaced by what was before, although the agent is started again meanwhile, and the outcome says so.
func TestACoreThatDropsTheHubOnProbationIsPutBack(t *testing.T) {
	h, hub, u, now := newHostOnProbation(t, hourProbation)
	require.Equal(t, resource.UpgradeSuccess, passTime(t, u, now, 10*time.Minute).Result)
	hub.lost.Store(true)
	require.Equal(t, resource.UpgradeSuccess, passTime(t, u, now, 5*time.Minute).Result)
	u = h.open()
	require.InDelta(t, 5, u.state.Probation.HubMissed.Minutes(), 2, "at most what was not written is counted again")
	r := passTime(t, u, now, 8*time.Minute)
	require.Equal(t, "1 "+resource.UpgradeRolledBack+" "+resource.UpgradeFailedConnection, r.Order+" "+r.Result+" "+r.Reason, "%+v", r)
	require.Equal(t, "the core with the new settings lost the hub after it was committed: for 10m0s it has no connection to the hub: too many retries, though mqtt://"+
		hub.Addr().String()+" could be reached", r.Message)
	require.Equal(t, coreSettings, h.text())
	require.Nil(t, u.state.Probation)
	require.Equal(t, resource.UpgradeRolledBack, h.open().Report().Result)
}

// A hub that can't be reached, a core that somebody has stopped, and time in which the agent does not run are counted neither for nor against the core.
func TestWhatAProbationDoesNotCount(t *testing.T) {
	h, hub, u, now := newHostOnProbation(t, hourProbation)
	hub.lost.Store(true)
	require.NoError(t, hub.Close())
	require.Equal(t, resource.UpgradeSuccess, passTime(t, u, now, 2*time.Hour).Result)
	require.Equal(t, time.Hour, u.state.Probation.Remaining)
	require.NoError(t, h.s.Stop(t.Context()))
	require.Equal(t, resource.UpgradeSuccess, passTime(t, u, now, 2*time.Hour).Result)
	*now = now.Add(24 * time.Hour)
	u = h.open()
	require.Equal(t, resource.UpgradeSuccess, passTime(t, u, now, time.Minute).Result)
	require.Equal(t, time.Hour, u.state.Probation.Remaining)
}

// An agent whose settings name no core any more runs, and finds nothing out about one.
func TestAProbationOfACoreThatIsNotTheAgentsAnyMore(t *testing.T) {
	h, hub, _, now := newHostOnProbation(t, hourProbation)
	hub.lost.Store(true)
	h.o.Unit, h.o.Config.Core.Run = nil, nil
	u := h.open()
	require.Nil(t, u.core.core)
	for range 3 {
		_, err := u.do(t.Context())
		require.NoError(t, err)
		*now = now.Add(time.Hour)
	}
	require.NotNil(t, u.state.Probation)
}

// A core that loses the hub for a shorter time each passes. What was kept for it is removed then, and not before.
func TestAProbationIsPassed(t *testing.T) {
	h, hub, u, now := newHostOnProbation(t, hourProbation)
	require.NoError(t, os.WriteFile(u.file(backupName), nil, 0o600))
	for range 5 {
		hub.lost.Store(true)
		passTime(t, u, now, 9*time.Minute)
		hub.lost.Store(false)
		passTime(t, u, now, 2*time.Minute)
		require.FileExists(t, u.file(backupName))
	}
	r := passTime(t, u, now, 10*time.Minute)
	require.Nil(t, u.state.Probation)
	require.NoFileExists(t, u.file(backupName))
	require.Equal(t, resource.UpgradeSuccess, r.Result)
	hub.lost.Store(true)
	_, err := u.do(t.Context())
	require.NoError(t, err)
	require.Contains(t, h.text(), "debug")
}

// Another order, somebody who changes the core's settings by hand, and the agent's settings that want none, end a probation.
func TestWhatEndsAProbation(t *testing.T) {
	h, hub, u, now := newHostOnProbation(t, hourProbation)
	text := strings.Replace(h.text(), "this node", "my node", 1)
	require.NoError(t, os.WriteFile(h.file, []byte(text), 0o600))
	hub.lost.Store(true)
	require.Equal(t, resource.UpgradeSuccess, passTime(t, u, now, 20*time.Minute).Result)
	require.Equal(t, text, h.text())
	require.Nil(t, u.state.Probation)

	hub.lost.Store(false)
	require.Equal(t, resource.UpgradeSuccess, h.gives(u, "2", map[string]string{"log.level": "warn"}).Result)
	require.Equal(t, "2", u.state.Probation.Upgrade.Order.ID)
	require.Equal(t, resource.UpgradeSuccess, h.gives(u, "3", map[string]string{"log.level": "info"}).Result)
	require.Equal(t, "3", u.state.Probation.Upgrade.Order.ID, "that of the last one")

	require.NoError(t, os.WriteFile(u.file(backupName), nil, 0o600))
	h.o.Config.Probation.Time = 0
	u = h.open()
	_, err := u.do(t.Context())
	require.NoError(t, err)
	require.Nil(t, u.state.Probation, "none is wanted any more")
	require.NoFileExists(t, u.file(backupName))
	require.Equal(t, resource.UpgradeSuccess, h.gives(u, "4", map[string]string{"log.level": "warn"}).Result)
	require.Nil(t, u.state.Probation)
}

// A hub can be reached when somebody takes a connection and keeps it, or says something. What only forwards connections to a hub that is away is no hub.
func TestWhenAHubCanBeReached(t *testing.T) {
	hub := newFakeHub(t)
	require.True(t, isReachable(t.Context(), "mqtt://"+hub.Addr().String()))
	forwards, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer forwards.Close()
	go func() {
		for c, err := forwards.Accept(); err == nil; c, err = forwards.Accept() {
			_ = c.Close()
		}
	}()
	require.False(t, isReachable(t.Context(), "mqtt://"+forwards.Addr().String()))
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.True(t, isReachable(t.Context(), "wss://"+silent.Addr().String()+"/mqtt"))
	require.NoError(t, silent.Close())
	for _, address := range []string{"mqtt://" + silent.Addr().String(), "", "unix:///run/hub", "mqtt://%"} {
		require.False(t, isReachable(t.Context(), address), address)
	}
}
