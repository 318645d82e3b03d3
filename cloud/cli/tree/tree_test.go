// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
)

func topicMessage(topic, payload string, properties ...client.UserProperty) client.Message {
	return client.Message{Topic: topic, Payload: []byte(payload), User: properties}
}

func TestOnlyStateIsShown(t *testing.T) {
	now := time.Unix(1000, 0)
	c, ok := changeOfMessage(topicMessage("v1/nodes/n1/devices/lamp/desired/power", "ON",
		client.UserProperty{Key: "ver", Value: "42"}, client.UserProperty{Key: "ts", Value: "2026-11-21T10:00:00.123Z"},
		client.UserProperty{Key: "origin", Value: "ann"}), now)
	require.True(t, ok)
	require.Equal(t, "devices/lamp/desired/power", c.Key)
	require.EqualValues(t, 42, c.Ver)
	require.Equal(t, "ann", c.Origin)
	require.Equal(t, 123, c.TS.Nanosecond()/1e6)
	require.Equal(t, "devices/lamp/desired/power = ON  (ver 42)", c.String())
	for _, other := range []string{"v1/nodes/n1/devices/lamp/telemetry/x", "v1/nodes/n1/devices/lamp/commands/blink", "v1/nodes/n1/sync/up", "other"} {
		_, ok := changeOfMessage(topicMessage(other, "x"), now)
		require.False(t, ok, other)
	}
	_, ok = changeOfMessage(topicMessage("v1/nodes/n1/devices/lamp/reported/power", "", client.UserProperty{Key: "ver", Value: "x"}), now)
	require.True(t, ok)
}

func sampleTree(now time.Time) *View {
	v := NewView("n1")
	for key, val := range map[string]TopicValue{
		"state":                        {Value: "online", receivedAt: now},
		"devices/lamp":                 {Value: `{"device":{}}`, Ver: 1, TS: now.Add(-2 * time.Hour)},
		"devices/lamp/desired/power":   {Value: "ON", Ver: 3, TS: now.Add(-5 * time.Second)},
		"devices/lamp/reported/power":  {Value: "OFF", Ver: 9, TS: now.Add(-3 * time.Minute)},
		"devices/lamp/reported/colour": {Value: "\x1b[2J\nred", Ver: 1, TS: now.Add(-72 * time.Hour)},
	} {
		v.Apply(Change{Key: key, TopicValue: val})
	}
	return v
}

func TestTreeIsDrawn(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	require.Equal(t, `n1
├─ devices
│  └─ lamp          {"device":{}}  ver 1, 2h
│     ├─ desired
│     │  └─ power   ON             ver 3, 5s
│     └─ reported
│        ├─ colour  ·[2J·red       ver 1, 3d
│        └─ power   OFF            ver 9, 3m
└─ state            online         now
`, sampleTree(now).Text(now, 0), "no value may steer a terminal")
	for _, line := range strings.Split(sampleTree(now).Text(now, 20), "\n") {
		require.LessOrEqual(t, len([]rune(line)), 20)
	}
}

func TestClearedTopicsAreNotShown(t *testing.T) {
	v := sampleTree(time.Now())
	v.Apply(Change{Key: "devices/lamp/desired/power"})
	require.NotContains(t, v.Text(time.Now(), 0), "desired")
	v.Apply(Change{Up: true})
	require.Empty(t, v.Values)
}

func TestATreeIsPrintedAsJSON(t *testing.T) {
	now := time.Unix(1_000_000, 0).UTC()
	text, err := json.Marshal(sampleTree(now).Document())
	require.NoError(t, err)
	var back struct {
		Node   string
		Topics map[string]struct {
			Value string
			Ver   uint64
			TS    time.Time
		}
	}
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, "n1", back.Node)
	require.Equal(t, "ON", back.Topics["devices/lamp/desired/power"].Value)
	require.EqualValues(t, 3, back.Topics["devices/lamp/desired/power"].Ver)
	require.NotContains(t, string(text), "0001-01-01")
}

func TestFrameFitsTheScreen(t *testing.T) {
	text := sampleTree(time.Now()).Text(time.Now(), 80)
	for height := 1; height < 20; height++ {
		shown := fitFrame(text, []string{"", "a footer that is wider than the screen"}, 10, height)
		if height > 4 {
			require.LessOrEqual(t, strings.Count(shown, "\n"), height-1, "height %d", height)
		}
		require.Contains(t, shown, "a footer …")
	}
	require.Contains(t, fitFrame(text, nil, 80, 4), "… 7 more")
	require.NotContains(t, fitFrame(text, nil, 80, 40), "more")
}

func TestScreenIsDrawnAndEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	changes := make(chan Change, 1)
	var out syncBuffer
	ended := make(chan error, 1)
	go func() {
		ended <- Watch(ctx, NewView("n1"), changes, &out, func() (int, int) { return 80, 24 })
	}()
	changes <- Change{Key: "state", TopicValue: TopicValue{Value: "online"}}
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "online") }, 30*time.Second, time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	require.Contains(t, out.String(), "\x1b[?25h", "the cursor is back")

	changes <- Change{Err: errors.New("refused")}
	require.ErrorContains(t, Watch(context.Background(), NewView("n1"), changes, &out, func() (int, int) { return 80, 24 }), "refused")
}

// syncBuffer can be read while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
