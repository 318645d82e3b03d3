// SPDX-License-Identifier: Apache-2.0

package flood_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/flood"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
)

// boundSettings is what hub and core may take of memory under any flood, in MB: the limits
// that they are started with, twice for the collector's sake, and what they always need.
const boundSettings = 128

// tightLimits are limits that a flood reaches soon.
var tightLimits = []string{
	"--limits-retained-bytes", "8MiB", "--limits-session-bytes", "4MiB", "--limits-connections", "400", "--limits-connect-rate", "100",
	"--limits-sessions", "100", "--limits-session-all", "16MiB",
}

// damageSigns are what a program says of each flood, and by how much at least: without that it wasn't one.
var damageSigns = map[string]map[string]float64{
	"qos0":          {"received_messages_total": 10_000, "read_pauses_total": 10},
	"qos1":          {"received_messages_total": 10_000, "read_pauses_total": 10},
	"topics":        {"received_messages_total": 300, "read_pauses_total": 10},
	"tree":          {"received_messages_total": 3000, "read_pauses_total": 10},
	"refused":       {`refused_messages_total{kind="forbidden"`: 5000},
	"stalled":       {`dropped_messages_total{reason="qos0_queue_full"`: 10},
	"deaf":          {"connections": 150, "unacknowledged_messages": 150 * 20},
	"served":        {"sent_messages_total": 20 * keptBytes},
	"subscriptions": {"subscriptions": 1000, "read_pauses_total": 10},
	"connects":      {"held_connections_total": 50},
	"takeovers":     {"takeovers_total": 50},
	"halves":        {"rejected_connections_total": 200},
	"passwords":     {`rejected_connections_total{reason="too_many_wrong_passwords`: 1},
	"retained":      {`refused_messages_total{kind="quota"`: 1},
	"offline":       {`dropped_messages_total{reason="queue_full"`: 100},
	"hoards":        {`dropped_messages_total{reason="queue_full"`: 100, "held_bytes": offlineLimit},
	"malformed":     {`closed_connections_total{reason="malformed_packet"`: 100},
	"announced":     {"connections": 150}, // and see TestAPacketThatNeverEnds
	"pings":         {"read_pauses_total": 100},
	"fragments":     {"read_pauses_total": 100},
	"watches":       {"http_connections": 50},
	"sessions":      {`rejected_connections_total{reason="too_many_sessions`: 50},
}

// offlineLimit is what 30 sessions of anonymous clients hold for certain with tight limits. The session of "offline" has up to
// 4 MiB (limits.session.bytes) of the 16 MiB (limits.session.all). One more message is kept for a session while twice what it
// holds is less than what is left of those 16 MiB less what all anonymous sessions hold: S = 30h and 2h >= 16 MiB - 2(4 MiB + S) make
// S at least 15/31 of 8 MiB, which is 3.87 MiB; other messages that wait just then take a little of it.
const offlineLimit = 15 << 18

// users are somebody whose password can be guessed at.
const users = `auth:
  anonymous: loopback
  users:
    - name: root
      role: operator
      nodes: ["*"]
      passwordHash: $7$101$MDEyMzQ1Njc4OWFi$EO/lLlkeUgIiBaS8G8UK0ZMP1u508TA7Tl+AdJ1cEsmlbGyEPAERErpfq84j1kepISs0UzmcdL4ucgZ2uodxfQ==
`

// TestFloods lets each flood loose on hub and core at once, with limits that it reaches.
// Neighbours' messages go on, memory stays bounded, what was done is counted, and who is away
// the whole time finds what he is owed.
func TestFloods(t *testing.T) {
	s := stand.New(t, 1)
	for _, program := range []string{"hub", "core"} {
		require.NoError(t, os.WriteFile(filepath.Join(s.Dir, program+".yaml"), []byte(users), 0o600))
	}
	require.NoError(t, s.Start(t.Context(), "hub", append(tightLimits, "--mqtt-websocket-listen", s.WS)...))
	require.NoError(t, s.Start(t.Context(), "core", append(tightLimits, "--mqtt-websocket-listen", s.TLS)...))
	s.Create(stand.ModelManifest("m", "{name: a, accessMode: ReadWrite, dataType: Int}", "{name: b, accessMode: ReadWrite, dataType: Int}") +
		stand.DeviceManifests("m", "virtual", "d"))
	s.InStep()
	const device = "v1/nodes/n1/devices/d/"
	places := []*floodPlace{
		{Stand: s, name: "hub", target: flood.Target{MQTT: s.Hub.MQTT, WebSocket: s.WS, HTTP: s.Hub.HTTP, Tree: device + "desired/b"}, tree: device + "desired/a"},
		{Stand: s, name: "core", target: flood.Target{MQTT: s.Core(), WebSocket: s.TLS, HTTP: s.Node("n1").HTTP, Tree: device + "reported/b"}, tree: device + "reported/a"},
	}
	for _, p := range places {
		p.neighbour = s.Client(p.target.MQTT, nil)
		s.Eventually(stand.WaitTimeout, func() error { return s.Publish(p.neighbour, p.tree, "1") })
		p.quiet = p.count(t, "connections")
		p.visit(t, nil, func(ctx context.Context, c *client.Client) error {
			return c.Subscribe(ctx, client.Subscription{Filter: "owed", QoS: 1})
		})
		require.NoError(t, s.Publish(p.neighbour, "owed", "x"))
		for i := range keptBytes {
			require.NoError(t, p.neighbour.Publish(t.Context(), client.Message{Topic: fmt.Sprintf("kept/%d", i), Payload: []byte("x"), Retain: true, QoS: 1}))
		}
	}
	for _, f := range flood.Floods() {
		t.Run(f.Name, func(t *testing.T) {
			for _, p := range places {
				p.bear(t, f)
			}
		})
	}
	for _, p := range places {
		heard := make(chan client.Message, 1)
		p.visit(t, func(m client.Message) { heard <- m }, func(ctx context.Context, _ *client.Client) error {
			select {
			case <-heard:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}
}

// TestAPacketThatNeverEnds shows that the flood of announced packets is one of packets that were begun: its
// clients send a byte now and then, and are disconnected because none of that ends a packet.
func TestAPacketThatNeverEnds(t *testing.T) {
	s := stand.New(t, 1)
	require.NoError(t, s.Start(t.Context(), "hub", "--limits-keep-alive", "1s"))
	announced, err := flood.Find("announced")
	require.NoError(t, err)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		announced.Run(ctx, flood.Target{MQTT: s.Hub.MQTT})
	}()
	defer func() { end(); <-ended }()
	p := &floodPlace{Stand: s, name: "hub", target: flood.Target{HTTP: s.Hub.HTTP}}
	s.Eventually(stand.WaitTimeout, func() error {
		if n := p.count(t, `closed_connections_total{reason="keep_alive`); n < 150 {
			return fmt.Errorf("%.0f connections were closed because no packet of theirs came to an end", n)
		}
		return nil
	})
	require.Zero(t, p.count(t, "received_messages_total")+p.count(t, "malformed_packets_total"))
}

// floodPlace is a program with a neighbour who behaves.
type floodPlace struct {
	*stand.Stand
	name      string
	target    flood.Target
	tree      string
	neighbour *client.Client
	quiet     float64 // connections that are there without a flood
}

// visit has a client come whose session outlives its connections, and go when do returns.
func (p *floodPlace) visit(t *testing.T, heard func(client.Message), do func(context.Context, *client.Client) error) {
	t.Helper()
	c, err := client.New(client.Options{
		Servers: []string{"mqtt://" + p.target.MQTT}, ClientID: "visitor", SessionExpiry: time.Hour, OnMessage: heard, Log: zerolog.Nop(),
	})
	require.NoError(t, err)
	ctx, end := context.WithTimeout(t.Context(), 3*stand.WaitTimeout)
	defer end()
	run, leave := context.WithCancel(ctx)
	gone := make(chan error, 1)
	go func() { gone <- c.Run(run) }()
	err = do(ctx, c)
	leave()
	<-gone
	require.NoError(t, err, p.name)
}

const (
	tripCount = 20  // of the neighbour, at least
	keptBytes = 100 // retained messages, for those who ask for all there is
)

// bear lets a flood loose until the program has said that it is there. It waits until all that
// the one before has sent is dealt with, so that the signs are its own.
func (p *floodPlace) bear(t *testing.T, f flood.Flood) {
	t.Helper()
	require.NotEmpty(t, damageSigns[f.Name], "nothing tells whether it was one")
	p.Eventually(3*stand.WaitTimeout, func() error {
		if n := p.count(t, "connections"); n > p.quiet {
			return fmt.Errorf("%s has %.0f connections, and %.0f without a flood", p.name, n, p.quiet)
		}
		return nil
	})
	before := p.figures(t, f)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.Run(ctx, p.target)
	}()
	defer func() { end(); <-ended }()
	most := 0
	for began, n := time.Now(), 0; ; n++ {
		require.NoError(t, p.Publish(p.neighbour, "neighbour", "x"), p.name)
		require.NoError(t, p.Publish(p.neighbour, p.tree, strconv.Itoa(n)), p.name)
		most = max(most, p.resident(t))
		missing := p.unseen(t, f, before)
		require.Less(t, most, boundSettings, "MB of memory, %s; %s", p.name, missing)
		if n >= tripCount && missing == "" {
			break
		}
		require.Less(t, time.Since(began), 3*stand.WaitTimeout, "%s: %s", p.name, missing)
	}
	require.True(t, p.Running(p.name))
	t.Logf("%s had %d MB at most", p.name, most)
}

func (p *floodPlace) figures(t *testing.T, f flood.Flood) map[string]float64 {
	t.Helper()
	now := map[string]float64{}
	for figure := range damageSigns[f.Name] {
		now[figure] = p.count(t, figure)
	}
	return now
}

// unseen names a figure that doesn't tell of the flood yet.
func (p *floodPlace) unseen(t *testing.T, f flood.Flood, before map[string]float64) string {
	t.Helper()
	for figure, now := range p.figures(t, f) {
		if least := damageSigns[f.Name][figure]; now-before[figure] < least {
			return fmt.Sprintf("%s grew by %.0f, and has to by %.0f", figure, now-before[figure], least)
		}
	}
	return ""
}

// count sums up a figure of the broker's, or of the HTTP API.
func (p *floodPlace) count(t *testing.T, figure string) (sum float64) {
	t.Helper()
	text, err := harness.Call(t.Context(), http.MethodGet, "http://"+p.target.HTTP+"/metrics", nil)
	require.NoError(t, err)
	if !strings.HasPrefix(figure, "http_") {
		figure = "broker_" + figure
	}
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "edgebus_"+figure)
		if ok && (strings.ContainsAny(figure, "{") || strings.IndexAny(rest, " {") == 0) {
			n, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
			require.NoError(t, err, line)
			sum += n
		}
	}
	return sum
}

// resident is the program's memory in MB.
func (p *floodPlace) resident(t *testing.T) (mb int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid(p.name)))
	if os.IsNotExist(err) {
		t.Skip("this system doesn't tell a process's memory")
	}
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &mb); err == nil {
			return mb >> 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
