// SPDX-License-Identifier: Apache-2.0

// Package stand is what tests in Go put around the programs that package harness
// runs: MQTT clients that go with the test, watchers that know what a broker shows,
// figures from /metrics, and a wire tap on the link.
//
// Like harness it never links hub, core or mappers.
package stand

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/harness"
)

// WaitTimeout is how long a test waits for what should come at once. It is long, for a
// busy machine must not fail a test; nobody waits for it who needn't.
const WaitTimeout = 30 * time.Second

// Stand is a world for one test.
type Stand struct {
	*harness.World
	t testing.TB
}

// New makes a world and takes it down with the test. When the test fails it shows
// the ends of the programs' logs; a program that ended by itself fails it.
// EDGEBUS_BIN names a directory of programs to use, such as those built with -race.
func New(t testing.TB, seed uint64) *Stand {
	t.Helper()
	w, err := harness.NewWorld(t.TempDir(), seed)
	require.NoError(t, err)
	if bin := os.Getenv("EDGEBUS_BIN"); bin != "" {
		w.Bin = bin
	}
	s := &Stand{World: w, t: t}
	t.Cleanup(func() {
		died := w.Died()
		w.Close()
		if len(died) > 0 {
			t.Errorf("ended by themselves: %s", strings.Join(died, ", "))
		}
		if t.Failed() {
			t.Log(w.Logs(40))
		}
	})
	return s
}

// RequirePrograms ends a test that misses programs of the system: with a failure in CI, where
// nobody would notice that it was skipped.
func RequirePrograms(t testing.TB, programs ...string) {
	t.Helper()
	missing := harness.Missing(programs...)
	if len(missing) == 0 {
		return
	}
	text := "missing: " + strings.Join(missing, ", ") + "; `make needs` installs them"
	if os.Getenv("CI") != "" {
		t.Fatal(text)
	}
	t.Skip(text)
}

// Up starts programs and waits until they are ready.
func (s *Stand) Up(names ...string) {
	s.t.Helper()
	for _, name := range names {
		require.NoError(s.t, s.Start(s.t.Context(), name))
	}
}

// Core is the MQTT address of n1's core.
func (s *Stand) Core() string { return s.Node("n1").MQTT }

// Create applies a YAML text at the hub.
func (s *Stand) Create(text string) {
	s.t.Helper()
	require.NoError(s.t, s.Apply(s.t.Context(), []byte(text)))
}

// Eventually waits until check has no error.
func (s *Stand) Eventually(within time.Duration, check func() error) {
	s.t.Helper()
	err := harness.Eventually(s.t.Context(), within, func(context.Context) error { return check() })
	require.NoError(s.t, err)
}

var clientCount atomic.Uint64

// Client connects to a broker, host:port or a URL, and stays so until the test ends, as often as it takes.
func (s *Stand) Client(broker string, change func(*client.Options)) *client.Client {
	s.t.Helper()
	if !strings.Contains(broker, "://") {
		broker = "mqtt://" + broker
	}
	o := client.Options{
		Servers: []string{broker}, ClientID: "test-" + strconv.FormatUint(clientCount.Add(1), 10), CleanStart: true,
		Backoff: client.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond}, Log: zerolog.Nop(),
	}
	if change != nil {
		change(&o)
	}
	c, err := client.New(o)
	require.NoError(s.t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	s.t.Cleanup(func() {
		stop()
		<-ended
	})
	s.Eventually(WaitTimeout, func() error {
		if !c.Connected() {
			return fmt.Errorf("%s is not connected to %s", o.ClientID, broker)
		}
		return nil
	})
	return c
}

// Publish publishes at QoS 1 and returns the broker's verdict.
func (s *Stand) Publish(c *client.Client, topic, value string, user ...client.UserProperty) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), WaitTimeout)
	defer cancel()
	return c.Publish(ctx, client.Message{Topic: topic, Payload: []byte(value), QoS: 1, User: user})
}

// ModelManifest is a DeviceModel as a YAML document. Properties are flow maps, such as
// {name: a, accessMode: ReadWrite}.
func ModelManifest(name string, properties ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: edgebus.io/v1alpha1\nkind: DeviceModel\nmetadata: {name: %s}\nspec:\n  properties:\n", name)
	for _, p := range properties {
		fmt.Fprintf(&b, "  - %s\n", p)
	}
	return b.String() + "---\n"
}

// DeviceManifests is Devices of a model on node n1, as YAML documents.
func DeviceManifests(model, protocol string, names ...string) string {
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "apiVersion: edgebus.io/v1alpha1\nkind: Device\nmetadata: {name: %s}\n"+
			"spec: {deviceModelRef: {name: %s}, nodeName: n1, protocol: {type: %s}}\n---\n", name, model, protocol)
	}
	return b.String()
}
