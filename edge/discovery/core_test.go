// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/rawgrpc"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/wire"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// testCore is a node's broker, with the rules of the core for what discoverers publish.
type testCore struct {
	b *broker.Broker

	mu        sync.Mutex
	values    map[string][]byte
	publishes int
	refuse    string
	changed   chan struct{}
}

// Publish implements broker.Tree.
func (c *testCore) Publish(m broker.Message, done func(error)) {
	a, err := topics.Parse(m.Topic)
	if err == nil && len(m.Payload) > 0 && a.Kind != topics.KindDiscovererState {
		var normal []byte
		if normal, err = resource.NormalizeDiscovered(a, m.Payload); err == nil && !bytes.Equal(normal, m.Payload) {
			err = resource.Errorf(resource.Invalid, "", "not in the normal form: %s", m.Payload)
		}
	}
	c.mu.Lock()
	if c.refuse != "" && a.Kind == topics.KindInstance && len(m.Payload) > 0 {
		err = resource.Errorf(resource.Quota, "", "%s", c.refuse)
	}
	c.publishes++
	c.mu.Unlock()
	if err == nil {
		c.put(m.Topic, m.Payload)
	}
	done(err)
}

// Retained implements broker.Tree.
func (c *testCore) Retained(filter string) func(int) []broker.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []broker.Message
	for topic, payload := range c.values {
		if topics.Match(filter, topic) {
			list = append(list, broker.Message{Topic: topic, Payload: payload, QoS: 1, Retain: true})
		}
	}
	return func(most int) (some []broker.Message) {
		n := min(most, len(list))
		some, list = list[:n], list[n:]
		return some
	}
}

func (c *testCore) put(topic string, payload []byte) {
	c.mu.Lock()
	if c.values[topic] = payload; len(payload) == 0 {
		delete(c.values, topic)
	}
	close(c.changed)
	c.changed = make(chan struct{})
	c.mu.Unlock()
	c.b.Publish(broker.Message{Topic: topic, Payload: payload, QoS: 1, Retain: true})
}

// set is what the cloud says.
func (c *testCore) set(key string, v any) {
	var payload []byte
	if v != nil {
		payload, _ = json.Marshal(v)
	}
	c.put("v1/nodes/n1/"+key, payload)
}

// below are the payloads of the keys that begin with a prefix.
func (c *testCore) below(prefix string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	got := map[string]string{}
	for topic, payload := range c.values {
		if key, ok := strings.CutPrefix(topic, "v1/nodes/n1/"+prefix); ok {
			got[key] = string(payload)
		}
	}
	return got
}

func startTestCore(t *testing.T, dir string) *testCore {
	t.Helper()
	c := &testCore{values: map[string][]byte{}, changed: make(chan struct{})}
	var err error
	c.b, err = broker.New(broker.Options{
		Node: "n1", Tree: c, Log: zerolog.Nop(),
		Listeners: []broker.Listener{{Name: "unix", Address: "unix:" + filepath.Join(dir, "mqtt.sock")}},
		Auth:      broker.Auth{Users: []broker.User{{Name: "me", Role: topics.RoleDiscoverer, Local: strconv.Itoa(os.Getuid())}}},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.b.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		closing, stop := context.WithTimeout(context.Background(), 30*time.Second)
		defer stop()
		_ = c.b.Close(closing)
		<-done
	})
	c.set("status", map[string]string{})
	return c
}

// testDiscovery is a core with an edgediscovery.
type testDiscovery struct {
	*testing.T
	*testCore
	dir  string
	o    Options
	stop func()
}

func newTestDiscovery(t *testing.T, change func(*Options)) *testDiscovery {
	t.Helper()
	dir, err := os.MkdirTemp("", "eb") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &testDiscovery{T: t, dir: dir, testCore: startTestCore(t, dir), stop: func() {}}
	r.o = Options{
		Config: configs.Discovery{
			MQTT: configs.AgentMQTT{Socket: filepath.Join(dir, "mqtt.sock")}, Data: configs.Data{Dir: filepath.Join(dir, "data")},
			Handlers: configs.DiscoveryHandlers{Dir: filepath.Join(dir, "h"), Grace: time.Minute}, Limits: configs.DiscoveryLimits{Devices: 10_000},
		},
		Log: zerolog.Nop(), Timing: Timing{Retry: backoff.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond}, Settle: 50 * time.Millisecond},
	}
	if testing.Verbose() {
		r.o.Log = zerolog.New(zerolog.NewTestWriter(t))
	}
	if change != nil {
		change(&r.o)
	}
	t.Cleanup(func() { r.stop() })
	r.start()
	return r
}

func (r *testDiscovery) start() {
	r.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	o := r.o
	o.Ready = func() { close(ready) }
	go func() { done <- Run(ctx, o) }()
	r.stop = func() {
		r.stop = func() {} // also if it ended with an error: the clean-up must not wait for it again
		cancel()
		require.NoError(r, <-done)
	}
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		require.NoError(r, err)
	}
}

// await waits until ok.
func (r *testDiscovery) await(what string, ok func() bool) {
	r.Helper()
	late := time.After(60 * time.Second)
	for {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		if ok() {
			return
		}
		select {
		case <-changed:
			sleepUnless(r.Context(), 5*time.Millisecond, nil) // many changes are one
		case <-late:
			text := fmt.Sprint(r.below("discovery/"))
			require.FailNow(r, "it never came to this: "+what[:min(len(what), 200)], text[:min(len(text), 2000)])
		}
	}
}

// awaitFound waits until exactly these ids are found for a Configuration.
func (r *testDiscovery) awaitFound(configuration string, ids ...string) {
	r.Helper()
	r.await(fmt.Sprint(configuration, " has ", ids), func() bool {
		found := r.below("discovery/" + configuration + "/instances/")
		if len(found) != len(ids) {
			return false
		}
		for _, id := range ids {
			if found[resource.DiscoveredName(id)] == "" {
				return false
			}
		}
		return true
	})
}

// awaitReport waits until the report of a Configuration's handler has a text in it.
func (r *testDiscovery) awaitReport(configuration, text string) {
	r.Helper()
	r.await(configuration+"'s handler is "+text, func() bool { return strings.Contains(r.below("discovery/" + configuration + "/")["handler"], text) })
}

func discoveryRequest(handler, version, details string) resource.DiscoveryRequest {
	return resource.DiscoveryRequest{Version: version, Handler: handler, Details: map[string]string{resource.OnlyDetail: details}}
}

// fakeHandler is a handler in a process of its own, as far as edgediscovery can tell. It finds what it is told to.
type fakeHandler struct {
	r        *testDiscovery
	path     string
	asked    chan wire.Request
	discover func(ctx context.Context, q wire.Request, send func(wire.Devices, string) error) error
	server   *grpc.Server

	mu      sync.Mutex
	devices wire.Devices
	told    string
	changed chan struct{}
}

func (r *testDiscovery) newFake(name string, ids ...string) *fakeHandler {
	f := &fakeHandler{r: r, path: filepath.Join(r.o.Config.Handlers.Dir, name), asked: make(chan wire.Request, 1000), changed: make(chan struct{})}
	f.discover = f.say
	f.find(ids...)
	return f
}

func (f *fakeHandler) find(ids ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices = nil
	for _, id := range ids {
		f.devices = append(f.devices, wire.Device{ID: id})
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

// say sends what is found, whenever it changes.
func (f *fakeHandler) say(ctx context.Context, _ wire.Request, send func(wire.Devices, string) error) error {
	for {
		f.mu.Lock()
		devices, told, changed := f.devices, f.told, f.changed
		f.mu.Unlock()
		if err := send(devices, told); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func (f *fakeHandler) start() *fakeHandler {
	f.r.Helper()
	l, err := rawgrpc.ListenUnix(f.path)
	require.NoError(f.r, err)
	f.serve(l)
	return f
}

func (f *fakeHandler) serve(l net.Listener, options ...grpc.ServerOption) {
	f.server = rawgrpc.NewServer(options...)
	wire.ServeHandler(f.server, func(ctx context.Context, q wire.Request, _ wire.Contract, send func(wire.Devices, string) error) error {
		f.asked <- q
		return f.discover(ctx, q, send)
	})
	go func() { _ = f.server.Serve(l) }()
	f.r.Cleanup(f.server.Stop)
}

// register registers it once.
func (f *fakeHandler) register(as wire.Registration) *fakeHandler {
	f.r.Helper()
	as.Endpoint = f.path
	require.NoError(f.r, f.r.register(as))
	return f
}

func (r *testDiscovery) register(as wire.Registration) error {
	conn, err := wire.Dial("unix://"+filepath.Join(r.o.Config.Handlers.Dir, handler.RegistrationSocket), nil)
	require.NoError(r, err)
	defer func() { _ = conn.Close() }()
	if as.Contract == "" {
		as.Contract = wire.ContractV0
	}
	ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
	defer cancel()
	return wire.Register(ctx, conn, as)
}

func (f *fakeHandler) nextAsked() wire.Request {
	f.r.Helper()
	select {
	case q := <-f.asked:
		return q
	case <-time.After(60 * time.Second):
		require.FailNow(f.r, "the handler was not asked")
		return wire.Request{}
	}
}
