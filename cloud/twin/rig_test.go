// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"cmp"
	"context"
	"encoding/json"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	registry "github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

const testTimeout = 30 * time.Second // a busy machine must not fail a test

// rig is the hub's twins on a real store, with what they published, and the nodes' ends of the links.
type rig struct {
	t     *testing.T
	path  string
	store *disk.Store
	fault storeFaults
	twins *Twins
	stop  func()

	mu     sync.Mutex
	out    []broker.Message
	during func(broker.Message) // called while a message is being published
	nodes  map[string]*core
	deaf   bool // nodes hear nothing

	happened []resource.Occurrence
	commits  atomic.Int64 // of the store

	ahead        atomic.Int64                     // of this machine's clock, the hub's is, in ns
	wanted       func(topic string) bool          // nil: everything is
	kept         atomic.Pointer[chan func(error)] // takes the outcomes of values in durable sessions; nil: there are no such sessions
	awayAfter    time.Duration
	statusEvery  time.Duration // 0: 5 ms
	httpPresence time.Duration
	noteVersion  func(store.Object, resource.NodeStatus) []byte
	hub          Hub // ID is the store's

	projections []Projection
}

// core is a node's end of its link.
type core struct {
	rig   *rig
	name  string
	sends sync.Mutex // held from taking messages to publishing them: a connection keeps their order
	mu    sync.Mutex
	twins *Twins // those of the hub that it connected to
	up    *link.Owner
	down  *link.Replica
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "log"), nodes: make(map[string]*core)}
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *rig) start() {
	s, err := disk.Open(disk.Options{Path: r.path, Committed: func(time.Duration, int, error) { r.commits.Add(1) }})
	require.NoError(r.t, err)
	r.store = s
	r.hub.ID = resource.HubID(s.Identity())
	r.twins, err = New(context.Background(), Options{
		CreateNode: createNode(s),
		Reader:     s, Writer: faultyWriter{s, s, &r.fault}, Watcher: s, Replicas: faultyReplicas{s, &r.fault}, Derived: faultyWriter{s, s, &r.fault}, Rand: rand.Uint64,
		Managed: setManager, NoteVersion: r.noteVersion,
		Record: r.record, StatusEvery: cmp.Or(r.statusEvery, 5*time.Millisecond), AwayAfter: r.awayAfter, HTTPPresence: r.httpPresence, Hub: r.hub, Projections: r.projections,
		Options: tree.Options{
			Log: zerolog.Nop(), Publish: r.publish, Wanted: r.wanted, Kept: func(topic string) bool { return r.kept.Load() != nil && strings.HasPrefix(topic, lampDesired) },
			Pass:    func(m broker.Message, done func(error)) { r.publish(m); *r.kept.Load() <- done },
			Timeout: 200 * time.Millisecond,
			Now:     func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) },
		},
	})
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.twins.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(r.t, <-ended)
		require.NoError(r.t, s.Check())
		require.NoError(r.t, s.Close())
	})
}

// setManager has all fields be the manager's.
func setManager(_ store.Object, data []byte, manager string) ([]byte, error) {
	var d resource.Device
	err := json.Unmarshal(data, &d)
	if err == nil {
		d.Metadata.ManagedFields, err = json.Marshal([]string{manager})
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(d)
}

func (r *rig) restart() {
	r.stop()
	r.mu.Lock()
	r.nodes = make(map[string]*core)
	r.mu.Unlock()
	r.start()
}

func (r *rig) publish(m broker.Message) {
	a, err := topics.Parse(m.Topic)
	r.mu.Lock()
	r.out = append(r.out, m)
	during := r.during
	n := r.nodes[a.Node]
	if r.deaf {
		n = nil
	}
	r.mu.Unlock()
	if during != nil {
		during(m)
	}
	if err == nil && a.Kind == topics.KindSyncDown && n != nil {
		n.hear(m.Payload)
	}
}

func (r *rig) record(h resource.Occurrence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.happened = append(r.happened, h)
}

func (r *rig) said(topic string) (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.out {
		if m.Topic == topic {
			list = append(list, string(m.Payload))
		}
	}
	return list
}

func nodeIdentity(node string) *broker.Identity {
	return &broker.Identity{ClientID: "node/" + node, Roles: []topics.Role{topics.RoleNode}, Node: node}
}

// connect brings a node's core, with whatever it holds, to the hub.
func (r *rig) connect(c *core) *core {
	c.rig = r
	r.mu.Lock()
	r.nodes[c.name] = c
	r.mu.Unlock()
	r.twins.Connected(nodeIdentity(c.name))
	_, down := topics.SyncTopics(c.name)
	c.mu.Lock()
	c.twins = r.twins
	c.up.Connect(rand.Uint64())
	c.mu.Unlock()
	r.twins.Subscribed(nodeIdentity(c.name), down)
	c.talk()
	return c
}

func (r *rig) disconnect(c *core) {
	r.mu.Lock()
	delete(r.nodes, c.name)
	r.mu.Unlock()
	r.twins.Disconnected(nodeIdentity(c.name), nil)
}

func newCore(name string) *core {
	return &core{name: name, up: link.NewOwner(link.Up, rand.Uint64), down: link.NewReplica(link.Down)}
}

// hear is called from the hub's goroutine: answers go their own way.
func (c *core) hear(b []byte) {
	m, err := link.Decode(b)
	if err != nil {
		panic(err)
	}
	c.mu.Lock()
	if m.Map == link.Up {
		_ = c.up.Step(m)
	} else {
		c.down.Step(m)
	}
	c.mu.Unlock()
	go c.talk()
}

func (c *core) talk() {
	c.sends.Lock()
	defer c.sends.Unlock()
	c.mu.Lock()
	twins, msgs := c.twins, append(c.down.Messages(), c.up.Messages()...)
	c.mu.Unlock()
	up, _ := topics.SyncTopics(c.name)
	for _, m := range msgs {
		b, err := link.Encode(m)
		if err != nil {
			panic(err)
		}
		twins.Publish(broker.Message{Topic: up, Payload: b, Publisher: nodeIdentity(c.name)}, func(error) {})
	}
}

func (c *core) report(key, value string) {
	c.mu.Lock()
	_, _, err := c.up.Put(link.Entry{Key: key, Value: []byte(value), TS: time.Now().UnixMilli(), Origin: "mapper"})
	c.mu.Unlock()
	require.NoError(c.rig.t, err)
	c.talk()
}

func (c *core) has(key string) (string, link.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, _ := c.down.Get(key)
	return string(e.Value), e
}

func (c *core) gets(key, want string) link.Entry {
	c.rig.t.Helper()
	require.Eventually(c.rig.t, func() bool { got, _ := c.has(key); return got == want }, testTimeout, time.Millisecond, "%s should be %q", key, want)
	_, e := c.has(key)
	return e
}

func (r *rig) create(kind, name string, v any) {
	data, err := json.Marshal(v)
	require.NoError(r.t, err)
	_, err = r.store.Create(context.Background(), store.Object{Key: store.Key{Kind: kind, Namespace: "default", Name: name}, Data: data})
	require.NoError(r.t, err)
}

func (r *rig) device(name string) (d resource.Device, o store.Object) {
	o, err := r.store.Get(context.Background(), store.Key{Kind: resource.KindDevice, Namespace: "default", Name: name})
	require.NoError(r.t, err)
	require.NoError(r.t, json.Unmarshal(o.Data, &d))
	if len(o.Status) > 0 {
		require.NoError(r.t, json.Unmarshal(o.Status, &d.Status))
	}
	return d, o
}

func (r *rig) edit(name string, change func(*resource.Device)) {
	d, o := r.device(name)
	change(&d)
	d.Status = resource.DeviceStatus{}
	data, err := json.Marshal(d)
	require.NoError(r.t, err)
	_, err = r.store.Update(context.Background(), store.Object{Key: o.Key, Data: data}, 0)
	require.NoError(r.t, err)
}

func lampModel(adopt bool) resource.DeviceModel {
	low, high := 0.0, 100.0
	return resource.DeviceModel{
		Metadata: resource.Meta{Name: "lamp", Namespace: "default"},
		Spec: resource.DeviceModelSpec{Properties: []resource.Property{
			{Name: "power", AccessMode: resource.ReadWrite, Enum: []resource.Value{"ON", "OFF"}, Adopt: adopt},
			{Name: "brightness", Type: resource.TypeInt, AccessMode: resource.ReadWrite, Minimum: &low, Maximum: &high},
			{Name: "temperature", Type: resource.TypeFloat},
		}},
	}
}

func lampOn(node string) resource.Device {
	return resource.Device{
		Metadata: resource.Meta{Name: "lamp", Namespace: "default", UID: "u1"},
		Spec:     resource.DeviceSpec{NodeName: node, DeviceModelRef: resource.ObjectRef{Name: "lamp"}, Protocol: resource.Protocol{Type: "virtual"}},
	}
}

// newJoinedRig is a rig with a lamp on the connected node n1.
func newJoinedRig(t *testing.T) (*rig, *core) {
	r := newRig(t)
	r.create(resource.KindDeviceModel, "lamp", lampModel(false))
	r.create(resource.KindDevice, "lamp", lampOn("n1"))
	c := r.connect(newCore("n1"))
	c.gets("membership", `{"devices":["lamp"]}`)
	return r, c
}

func (r *rig) send(topic, payload string) error {
	return r.await(r.publishAs(operator, topic, payload, broker.Properties{}))
}

var operator = &broker.Identity{ClientID: "ops"}

// publishAs publishes; the answer is in the channel.
func (r *rig) publishAs(as *broker.Identity, topic, payload string, props broker.Properties) <-chan error {
	answer := make(chan error, 1)
	r.twins.Publish(broker.Message{Topic: topic, Payload: []byte(payload), Props: props, Publisher: as}, func(err error) { answer <- err })
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

const lampDesired = "v1/nodes/n1/devices/lamp/desired"

func createNode(s *disk.Store) func(context.Context, string) error {
	as := registry.New(registry.Options{Reader: s, Writer: s, Log: zerolog.Nop()}).Controller("twins")
	return func(ctx context.Context, name string) error {
		_, err := registry.Create(ctx, as, &resource.Node{Metadata: resource.Meta{Name: name}})
		return err
	}
}
