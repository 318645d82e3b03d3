// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/seal"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

const testTimeout = 30 * time.Second // a busy machine must not fail a test

// rig is a twin on a real store, with what it published, and a hub's end of the link that a test holds in its hands.
type rig struct {
	kept  atomic.Pointer[chan func(error)] // takes the outcomes of values in durable sessions; nil: there are no such sessions
	t     *testing.T
	dir   string
	store *flaky
	twin  *Twin
	stop  func()
	clock atomic.Int64 // milliseconds

	mu     sync.Mutex
	out    []broker.Message
	during func(broker.Message) // called while a message is being published

	hub       sync.Mutex
	down      *link.Owner
	up        *link.Replica
	entries   atomic.Int64 // entries that came over the link, upwards
	connected atomic.Bool
	cut       func()        // ends the connection
	nap       time.Duration // how long a jump of the clock may go unnoticed

	epoch   uint32         // of a new store
	secrets store.Sealer   // of the store
	log     zerolog.Logger // of the store
	history HistoryRecorder
}

// flaky is a store whose commits can be made to fail.
type flaky struct {
	*store.Store
	broken, takesProbes atomic.Bool
	loads, probes       atomic.Int64
	probed              atomic.Pointer[func()] // called by each probe
}

func (f *flaky) Load() (store.Snapshot, error) {
	f.loads.Add(1)
	return f.Store.Load()
}

func (f *flaky) Probe() error {
	f.probes.Add(1)
	if probed := f.probed.Load(); probed != nil {
		(*probed)()
	}
	if f.broken.Load() && !f.takesProbes.Load() {
		return errors.New("no space left on device")
	}
	return f.Store.Probe()
}

func (f *flaky) Commit(b store.Batch) error {
	if f.broken.Load() {
		return errors.New("no space left on device")
	}
	return f.Store.Commit(b)
}

func newRig(t *testing.T) *rig { return newRigOf(t, 0) }

// newRigOf is a rig whose new store has an epoch.
func newRigOf(t *testing.T, epoch uint32) *rig {
	r := &rig{t: t, epoch: epoch, dir: t.TempDir(), down: link.NewOwner(link.Down, rand.Uint64), up: link.NewReplica(link.Up)}
	r.clock.Store(1_700_000_000_000)
	r.newKey()
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

// newKey has the store encrypt with another key than before, from the next start on.
func (r *rig) newKey() {
	key, err := seal.NewInMemory()
	require.NoError(r.t, err)
	r.secrets = key
}

func (r *rig) start() {
	s, err := store.Open(store.Options{Dir: r.dir, Rand: rand.Uint64, Secrets: r.secrets, Log: r.log})
	require.NoError(r.t, err)
	r.store = &flaky{Store: s}
	r.twin, err = New(Options{
		Node: "n1", Store: r.store, History: r.history, Epoch: func() uint32 { return r.epoch }, Options: tree.Options{
			Log: zerolog.Nop(), Timeout: 200 * time.Millisecond, Publish: r.publish,
			Kept: func(string) bool { return r.kept.Load() != nil },
			Pass: func(m broker.Message, done func(error)) { r.publish(m); *r.kept.Load() <- done },
			Now:  func() time.Time { return time.UnixMilli(r.clock.Load()) },
		},
	})
	require.NoError(r.t, err)
	if r.nap > 0 {
		r.twin.ends.maxSleep = r.nap
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.twin.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(r.t, <-ended)
		require.NoError(r.t, s.Check())
		require.NoError(r.t, s.Close())
	})
}

func (r *rig) publish(m broker.Message) {
	r.mu.Lock()
	r.out = append(r.out, m)
	during := r.during
	r.mu.Unlock()
	if during != nil {
		during(m)
	}
}

// restart stops the twin and starts it on the same files.
func (r *rig) restart() {
	r.stop()
	r.connected.Store(false)
	if r.cut != nil {
		r.cut() // what the hub says is for the twin that is there
	}
	r.start()
}

// connect gives the twin a hub. Messages pass in order, in both directions.
func (r *rig) connect() {
	r.connected.Store(true)
	tw := r.twin
	toHub := make(chan []byte, 1000)
	tw.Connected(rand.Uint64(), func(b []byte, _ []string) { toHub <- b }, func() {})
	r.hub.Lock()
	r.down.Connect(rand.Uint64())
	r.hub.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	var pump sync.WaitGroup
	pump.Go(func() {
		for ctx.Err() == nil {
			r.say(tw)
			select {
			case b := <-toHub:
				r.hear(b)
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	r.cut = func() { cancel(); pump.Wait() }
	r.t.Cleanup(r.cut)
}

func (r *rig) say(tw *Twin) {
	r.hub.Lock()
	msgs := append(r.up.Messages(), r.down.Messages()...)
	r.hub.Unlock()
	for _, m := range msgs {
		b, err := link.Encode(m)
		if err != nil {
			panic(err)
		}
		tw.Receive(b, nil)
	}
}

func (r *rig) hear(b []byte) {
	m, err := link.Decode(b)
	if err != nil {
		panic(err)
	}
	r.hub.Lock()
	defer r.hub.Unlock()
	if m.Map == link.Up {
		r.entries.Add(int64(len(m.Entries)))
		r.up.Step(m)
		return
	}
	_ = r.down.Step(m)
}

// want lets the cloud change its map; it is said whenever there is a connection.
func (r *rig) want(key, value string, ver uint64) {
	r.hub.Lock()
	defer r.hub.Unlock()
	if value == "" {
		r.down.Delete(key, r.clock.Load(), "")
		return
	}
	_, _, err := r.down.Put(link.Entry{Key: key, Value: []byte(value), Ver: ver, TS: r.clock.Load()})
	require.NoError(r.t, err)
}

var thermostat = resource.DeviceModel{
	Metadata: resource.Meta{Name: "thermostat"},
	Spec: resource.DeviceModelSpec{Properties: []resource.Property{
		{Name: "setpoint", Type: resource.TypeFloat, AccessMode: resource.ReadWrite, Minimum: float64Pointer(5), Maximum: float64Pointer(35)},
		{Name: "mode", AccessMode: resource.ReadWrite, Conflict: resource.ConflictEdge},
		{Name: "temperature", Type: resource.TypeFloat},
		{Name: "profile", Type: resource.TypeObject, AccessMode: resource.ReadWrite},
	}},
}

func float64Pointer(f float64) *float64 { return &f }

// add binds a device to the node.
func (r *rig) add(name, uid string, m resource.DeviceModel) {
	r.bind(resource.Device{Metadata: resource.Meta{Name: name, UID: uid}, Spec: resource.DeviceSpec{NodeName: "n1", Protocol: resource.Protocol{Type: "virtual"}}}, m)
}

func (r *rig) bind(d resource.Device, m resource.DeviceModel) {
	name := d.Metadata.Name
	doc, err := json.Marshal(resource.NewBundle(d, m))
	require.NoError(r.t, err)
	value, parts := topics.SplitDocument(doc)
	for i, p := range parts {
		r.want(topics.PartKey("devices/"+name, i), string(p), 1)
	}
	r.want("devices/"+name, string(value), 1)
}

// newJoinedRig is a rig with a thermostat, in step with its hub.
func newJoinedRig(t *testing.T) *rig {
	r := newRig(t)
	r.add("hall", "u1", thermostat)
	r.connect()
	r.shows("devices/hall", func(m broker.Message) bool { return len(m.Payload) > 0 })
	return r
}

// send publishes as a local client does, and waits for the answer.
func (r *rig) send(key, payload string, props ...broker.UserProperty) error {
	return r.await(r.publishAs(&broker.Identity{ClientID: "tester"}, key, payload, broker.Properties{User: props}))
}

// sendAs publishes as a user of the node's broker, over a connection of its own.
func (r *rig) sendAs(user, client, key, payload string) error {
	return r.await(r.publishAs(&broker.Identity{ClientID: client, User: user}, key, payload, broker.Properties{}))
}

// publishAs publishes; the answer is in the channel.
func (r *rig) publishAs(as *broker.Identity, key, payload string, props broker.Properties) <-chan error {
	answer := make(chan error, 1)
	m := broker.Message{Topic: topics.TopicOf("n1", key), Payload: []byte(payload), QoS: 1, Props: props, Publisher: as}
	r.twin.Publish(m, func(err error) { answer <- err })
	return answer
}

func (r *rig) await(answer <-chan error) error {
	r.t.Helper()
	select {
	case err := <-answer:
		return err
	case <-time.After(testTimeout):
		r.t.Fatal("no answer to a publish")
		return nil
	}
}

// until ends an override so many milliseconds from now.
func (r *rig) until(ms int64) broker.UserProperty {
	return broker.UserProperty{Key: "until", Value: resource.FormatMillis(r.clock.Load() + ms)}
}

// holdSteps lets no more steps be taken until release is called.
func (r *rig) holdSteps() (release func()) {
	held, gate := make(chan struct{}), make(chan struct{})
	release = sync.OnceFunc(func() { close(gate) })
	r.t.Cleanup(release)
	r.twin.host.Put("", 0, func(*batch) { close(held); <-gate })
	<-held
	return release
}

// probeOften has a store that has failed be probed every millisecond.
func (r *rig) probeOften() {
	r.twin.host.Put("", 0, func(*batch) { r.twin.outage.Every = time.Millisecond })
}

// wantShown has the cloud desire a value, and waits until it is in force.
func (r *rig) wantShown(key, value string, ver uint64) broker.Message {
	r.t.Helper()
	r.want(key, value, ver)
	return r.value(key, value)
}

func forVersion(ver string) broker.UserProperty { return broker.UserProperty{Key: "for", Value: ver} }

// retained is what the node's broker shows.
func (r *rig) retained() map[string]broker.Message {
	pull := r.twin.Retained("#")
	all := make(map[string]broker.Message)
	for list := pull(7); len(list) > 0; list = pull(7) {
		for _, m := range list {
			all[strings.TrimPrefix(m.Topic, "v1/nodes/n1/")] = m
		}
	}
	return all
}

func (r *rig) shows(key string, ok func(broker.Message) bool) broker.Message {
	r.t.Helper()
	var m broker.Message
	require.Eventually(r.t, func() bool { m = r.retained()[key]; return ok(m) }, testTimeout, 2*time.Millisecond, "%s; tree: %v", key, r.retained())
	return m
}

func (r *rig) value(key, want string) broker.Message {
	r.t.Helper()
	return r.shows(key, func(m broker.Message) bool { return string(m.Payload) == want })
}

func userProperty(m broker.Message, key string) string {
	for _, p := range m.Props.User {
		if p.Key == key {
			return p.Value
		}
	}
	return ""
}

// said are the payloads published on a key, in order.
func (r *rig) said(key string) (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.out {
		if m.Topic == topics.TopicOf("n1", key) {
			list = append(list, string(m.Payload))
		}
	}
	return list
}

// inStep waits until the hub has everything.
func (r *rig) inStep() {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		r.hub.Lock()
		defer r.hub.Unlock()
		return r.twin.Stats().InStep && r.down.InStep()
	}, testTimeout, 2*time.Millisecond)
}

func (r *rig) atHub(key string) string {
	r.hub.Lock()
	defer r.hub.Unlock()
	e, _ := r.up.Get(key)
	return string(e.Value)
}
