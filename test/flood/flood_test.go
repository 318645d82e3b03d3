package flood_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
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

// bound is what hub and core may take of memory under any flood, in MB: the limits
// that they are started with, twice for the collector's sake, and what they always need.
const bound = 128

// tight are limits that a flood reaches soon.
var tight = []string{
	"--limits-retained-bytes", "8MiB", "--limits-session-bytes", "4MiB", "--limits-connections", "400", "--limits-connectRate", "100",
	"--limits-sessions", "100",
}

// told are the counters in which a flood is seen.
var told = map[string]string{
	"qos0": "rests_total", "qos1": "rests_total", "topics": "rests_total", "tree": "rests_total", "refused": "refused_messages_total", "stalled": "rests_total",
	"deaf": "connects_total", "subscriptions": "rests_total", "connects": "held_connections_total", "takeovers": "held_connections_total", "halves": "rejected_connections_total",
	"passwords": `rejected_connections_total{reason="too many wrong passwords`, "retained": "refused_messages_total",
	"offline": `dropped_messages_total{reason="queue_full"}`, "malformed": `closed_connections_total{reason="malformed packet"}`, "announced": "connects_total",
	"pings": "rests_total", "fragments": "rests_total",
	"sessions": `rejected_connections_total{reason="too many sessions`,
}

// TestFloods lets each flood loose on hub and core at once, with limits that it reaches.
// Neighbours' messages go on, memory stays bounded, what was done is counted, and who is away
// the whole time finds what he is owed.
func TestFloods(t *testing.T) {
	s := stand.New(t, 1)
	require.NoError(t, s.Start(t.Context(), "hub", append(tight, "--mqtt-websocket-listen", s.WS)...))
	require.NoError(t, s.Start(t.Context(), "core", append(tight, "--mqtt-websocket-listen", s.TLS)...))
	s.Create(stand.Model("m", "{name: a, accessMode: ReadWrite, dataType: Int}", "{name: b, accessMode: ReadWrite, dataType: Int}") +
		stand.Device("m", "virtual", "d"))
	s.InStep()
	const device = "v1/nodes/n1/devices/d/"
	places := []*place{
		{Stand: s, name: "hub", target: flood.Target{MQTT: s.Hub.MQTT, WebSocket: s.WS, HTTP: s.Hub.HTTP, Tree: device + "desired/b"}, tree: device + "desired/a"},
		{Stand: s, name: "core", target: flood.Target{MQTT: s.Core(), WebSocket: s.TLS, HTTP: s.Node("n1").HTTP, Tree: device + "reported/b"}, tree: device + "reported/a"},
	}
	for _, p := range places {
		p.neighbour = s.Client(p.target.MQTT, nil)
		s.Eventually(stand.Soon, func() error { return s.Publish(p.neighbour, p.tree, "1") })
		p.visit(t, nil, func(ctx context.Context, c *client.Client) error {
			return c.Subscribe(ctx, client.Subscription{Filter: "owed", QoS: 1})
		})
		require.NoError(t, s.Publish(p.neighbour, "owed", "x"))
	}
	for _, f := range flood.All() {
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

// place is a program with a neighbour who behaves.
type place struct {
	*stand.Stand
	name      string
	target    flood.Target
	tree      string
	neighbour *client.Client
}

// visit has a client come whose session outlives its connections, and go when do returns.
func (p *place) visit(t *testing.T, heard func(client.Message), do func(context.Context, *client.Client) error) {
	t.Helper()
	c, err := client.New(client.Options{
		Servers: []string{"mqtt://" + p.target.MQTT}, ClientID: "visitor", SessionExpiry: time.Hour, OnMessage: heard, Log: zerolog.Nop(),
	})
	require.NoError(t, err)
	ctx, end := context.WithTimeout(t.Context(), 3*stand.Soon)
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
	trips = 10 // of the neighbour, at least
	least = time.Second
)

func (p *place) bear(t *testing.T, f flood.Flood) {
	t.Helper()
	before := p.count(t, told[f.Name])
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
		require.Less(t, most, bound, "MB of memory, %s", p.name)
		seen := told[f.Name] == "" || p.count(t, told[f.Name]) > before
		if n >= trips && seen && time.Since(began) > least {
			break
		}
		require.Less(t, time.Since(began), 3*stand.Soon, "%s did not count %s", p.name, told[f.Name])
	}
	require.True(t, p.Running(p.name))
	t.Logf("%s had %d MB at most", p.name, most)
}

// count sums up a counter of the broker's.
func (p *place) count(t *testing.T, counter string) (sum float64) {
	t.Helper()
	if counter == "" {
		return 0
	}
	text, err := harness.Call(t.Context(), http.MethodGet, "http://"+p.target.HTTP+"/metrics", nil)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "edgebus_broker_"+counter) {
			n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			require.NoError(t, err, line)
			sum += n
		}
	}
	return sum
}

// resident is the program's memory in MB.
func (p *place) resident(t *testing.T) (mb int) {
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
