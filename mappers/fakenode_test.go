// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	testNode     = "n1"
	testTimeout  = 30 * time.Second // a busy machine must not fail a test
	pollInterval = 2 * time.Millisecond
)

// fakeNode is a node's broker with as much of the core's rules as a mapper can notice.
type fakeNode struct {
	commands []resource.DeviceCommand // of devices that are attached
	t        *testing.T
	b        *broker.Broker
	addr     string
	limits   broker.Limits
	stop     func()

	mu      sync.Mutex
	kept    map[string]broker.Message
	ver     map[string]uint64
	from    uint64 // what versions are counted from
	devices map[string]resource.Bundle
	history []broker.Message // what clients published
}

func newNode(t *testing.T) *fakeNode {
	n := &fakeNode{
		t: t, addr: "127.0.0.1:0",
		kept: map[string]broker.Message{}, ver: map[string]uint64{}, devices: map[string]resource.Bundle{},
	}
	n.keep(broker.Message{Topic: "v1/nodes/n1/status", Payload: []byte("{}"), QoS: 1, Retain: true})
	n.start()
	t.Cleanup(func() { n.stop() })
	return n
}

// start serves on the same address as before; the tree is kept, as on disk.
func (n *fakeNode) start() {
	b, err := broker.New(broker.Options{
		Node: testNode, Listeners: []broker.Listener{{Address: n.addr}}, Tree: n, Limits: n.limits,
		Auth: broker.Auth{Anonymous: []topics.Role{topics.RoleOperator, topics.RoleMapper}}, Log: zerolog.Nop(),
	})
	require.NoError(n.t, err)
	n.mu.Lock()
	n.b = b
	n.mu.Unlock()
	n.addr = b.Addrs()[0].String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.Serve(ctx)
	}()
	var once sync.Once
	n.stop = func() {
		once.Do(func() {
			cancel()
			closing, cancel := context.WithTimeout(context.Background(), testTimeout)
			defer cancel()
			_ = b.Close(closing)
			<-done
		})
	}
}

func (n *fakeNode) url() string { return "mqtt://" + n.addr }

func (n *fakeNode) Publish(m broker.Message, done func(error)) {
	a, err := topics.Parse(m.Topic)
	if err != nil {
		done(err)
		return
	}
	n.mu.Lock()
	_, known := n.devices[a.Device]
	n.history = append(n.history, m)
	n.mu.Unlock()
	switch {
	case a.Kind != topics.KindMapperState && a.Kind != topics.KindMapperProtocols && !known:
		done(resource.Errorf(resource.NotFound, "", "no device %s", a.Device))
	case a.Kind == topics.KindGet:
		done(nil)
		n.b.Publish(n.twin(a.Device, m))
	case a.Kind == topics.KindCommand:
		done(nil)
		n.b.Publish(m)
	case a.Kind == topics.KindDesired:
		n.want(a.Device, a.Name, string(m.Payload))
		done(nil)
	default:
		n.keep(m)
		done(nil)
	}
}

func (n *fakeNode) keep(m broker.Message) {
	n.mu.Lock()
	m.Retain, m.QoS = true, 1
	if len(m.Payload) == 0 {
		delete(n.kept, m.Topic)
	} else {
		n.kept[m.Topic] = m
	}
	b := n.b
	n.mu.Unlock()
	if b != nil {
		b.Publish(m)
	}
}

func (n *fakeNode) Retained(filter string) func(int) []broker.Message {
	n.mu.Lock()
	var keys []string
	for topic := range n.kept {
		if topics.Match(filter, topic) {
			keys = append(keys, topic)
		}
	}
	n.mu.Unlock()
	return func(most int) []broker.Message {
		n.mu.Lock()
		defer n.mu.Unlock()
		var out []broker.Message
		for len(keys) > 0 && len(out) < most {
			if m, ok := n.kept[keys[0]]; ok {
				out = append(out, m)
			}
			keys = keys[1:]
		}
		return out
	}
}

func (n *fakeNode) twin(device string, ask broker.Message) broker.Message {
	n.mu.Lock()
	defer n.mu.Unlock()
	twin := resource.Twin(n.devices[device].Model, func(branch, property string) (s resource.StoredValue, ok bool) {
		m, ok := n.kept["v1/nodes/n1/devices/"+device+"/"+branch+"/"+property]
		s.Value = m.Payload
		for _, u := range m.Props.User {
			_ = s.SetProp(u.Key, u.Value)
		}
		return s, ok
	})
	payload, err := json.Marshal(twin)
	require.NoError(n.t, err)
	return broker.Message{
		Topic: ask.Props.ResponseTopic, Payload: payload, QoS: 1,
		Props: broker.Properties{Correlation: ask.Props.Correlation},
	}
}

// want sets what is in force, with the next version.
func (n *fakeNode) want(device, property, value string, user ...broker.UserProperty) uint64 {
	n.mu.Lock()
	key := device + "/" + property
	n.ver[key]++
	ver := n.from + n.ver[key]
	n.mu.Unlock()
	m := broker.Message{Topic: "v1/nodes/n1/devices/" + device + "/desired/" + property, Payload: []byte(value)}
	m.Props.User = append(user, broker.UserProperty{Key: "ver", Value: strconv.FormatUint(ver, 10)})
	n.keep(m)
	return ver
}

// count begins to count versions anew, as a new store does.
func (n *fakeNode) count(from uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.ver)
	n.from = from
}

// attach makes a device of the node's; a nil model takes it away.
func (n *fakeNode) attach(name, protocol string, config map[string]string, m *resource.DeviceModel) {
	topic := "v1/nodes/n1/devices/" + name
	if m == nil {
		n.mu.Lock()
		delete(n.devices, name)
		n.mu.Unlock()
		n.keep(broker.Message{Topic: topic})
		return
	}
	var d resource.Device
	d.Metadata.Name, d.Spec.NodeName = name, testNode
	d.Spec.Protocol = resource.Protocol{Type: protocol, Config: map[string]resource.Value{}}
	for key, text := range config {
		d.Spec.Protocol.Config[key] = resource.Value(text)
	}
	d.Spec.Commands = n.commands
	b := resource.NewBundle(d, *m)
	payload, err := json.Marshal(b)
	require.NoError(n.t, err)
	n.mu.Lock()
	n.devices[name] = b
	n.mu.Unlock()
	n.keep(broker.Message{Topic: topic, Payload: payload})
}

// at is the retained payload of a key below n1, and its version in the property "for".
func (n *fakeNode) at(key string) (value string, answers string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.kept["v1/nodes/n1/"+key]
	for _, u := range m.Props.User {
		if u.Key == "for" {
			answers = u.Value
		}
	}
	return string(m.Payload), answers
}

func (n *fakeNode) eventually(key, value string) {
	n.t.Helper()
	require.Eventually(n.t, func() bool {
		v, _ := n.at(key)
		return v == value
	}, testTimeout, pollInterval, "%s did not become %q, it is %s", key, value, n.shown(key))
}

func (n *fakeNode) applied(device, property, value string, ver uint64) {
	n.t.Helper()
	key := "devices/" + device + "/reported/" + property
	require.Eventually(n.t, func() bool {
		v, answers := n.at(key)
		return v == value && answers == fmt.Sprint(ver)
	}, testTimeout, pollInterval, "%s did not become %q for %d", key, value, ver)
}

func (n *fakeNode) refused(device, property string, ver uint64, code string) resource.Refusal {
	n.t.Helper()
	var r resource.Refusal
	require.Eventually(n.t, func() bool {
		v, _ := n.at("devices/" + device + "/refused/" + property)
		return json.Unmarshal([]byte(v), &r) == nil && r.For == ver
	}, testTimeout, pollInterval)
	require.Equal(n.t, code, r.Code, r.Message)
	return r
}

func (n *fakeNode) shown(key string) string {
	v, f := n.at(key)
	return fmt.Sprintf("%q for %s", v, f)
}

// published counts what clients published to a key.
func (n *fakeNode) published(key string) (payloads []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.history {
		if strings.TrimPrefix(m.Topic, "v1/nodes/n1/") == key {
			payloads = append(payloads, string(m.Payload))
		}
	}
	return payloads
}

// run starts a mapper and returns what stops it: politely, or as if it was killed.
func (n *fakeNode) run(d Driver, change func(*Options)) (stop func()) {
	n.t.Helper()
	o := Options{
		Name: "m1", Servers: []string{n.url()}, Collect: 20 * time.Millisecond,
		Backoff:      client.Backoff{Min: 10 * time.Millisecond, Max: 40 * time.Millisecond},
		Reconnect:    client.Backoff{Min: 5 * time.Millisecond, Max: 20 * time.Millisecond},
		OfflineAfter: 30 * time.Millisecond, ConfirmWithin: 100 * time.Millisecond,
	}
	if change != nil {
		change(&o)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o, d) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				require.NoError(n.t, err)
			case <-time.After(testTimeout):
				require.Fail(n.t, "Run did not end")
			}
		})
	}
	n.t.Cleanup(stop)
	return stop
}

// toyDriver is a driver whose devices are in the test's hand.
type toyDriver struct {
	mu     sync.Mutex
	toys   map[string]*toyDevice
	opened int
}

type toyDevice struct {
	mu     sync.Mutex
	values map[string]string
	writes []string
	dead   error         // every call fails
	wfail  error         // the next write fails, but the device takes it
	refuse *Refusal      // of writes
	block  chan struct{} // calls wait for it
	stuck  chan struct{} // gets what tells that one does
	closed int
}

func newToys(names ...string) *toyDriver {
	d := &toyDriver{toys: map[string]*toyDevice{}}
	for _, n := range names {
		d.toys[n] = &toyDevice{values: map[string]string{"power": "OFF", "level": "0", "temp": "20"}}
	}
	return d
}

func (d *toyDriver) Protocols() []string { return []string{"toy", "playthings"} }

func (d *toyDriver) Open(_ context.Context, dev Device) (Session, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened++
	if dev.Config["bad"] != "" {
		return nil, BadConfig("spec.protocol.config.bad", "must not be set")
	}
	t := d.toys[dev.Name]
	if t == nil {
		return nil, fmt.Errorf("no toy %s", dev.Name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t, t.dead
}

// busDriver shares one bus.
type busDriver struct{ *toyDriver }

func (busDriver) Bus(Device) string { return "bus" }

func (t *toyDevice) wait(ctx context.Context) error {
	t.mu.Lock()
	block, dead := t.block, t.dead
	t.mu.Unlock()
	if block != nil {
		select {
		case t.stuck <- struct{}{}:
		default:
		}
		select {
		case <-block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return dead
}

func (t *toyDevice) Read(ctx context.Context, property string) (string, error) {
	if err := t.wait(ctx); err != nil {
		return "", err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok := t.values[property]
	if !ok {
		return "", Refuse(NotReachable, "no %s", property)
	}
	return v, nil
}

func (t *toyDevice) Write(ctx context.Context, property, value string) error {
	if err := t.wait(ctx); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refuse != nil {
		return t.refuse
	}
	t.values[property] = value
	t.writes = append(t.writes, property+"="+value)
	err := t.wfail
	t.wfail = nil
	return err
}

func (t *toyDevice) Command(_ context.Context, name string, payload []byte) ([]byte, error) {
	if name != "beep" {
		return nil, Refuse(Rejected, "no command %s", name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writes = append(t.writes, name+" "+string(payload))
	return append([]byte("beep "), payload...), t.dead
}

func (t *toyDevice) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed++
	return nil
}

func (t *toyDevice) set(property, value string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.values[property] = value
}

func (t *toyDevice) die(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dead = err
}

func (t *toyDevice) log() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.writes...)
}

// closedOnce says whether a device was closed.
func (d *toyDriver) closedOnce(name string) bool {
	t := d.toys[name]
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed > 0
}

// driven waits until a toy was written to as told.
func (n *fakeNode) driven(toy *toyDevice, writes ...string) {
	n.t.Helper()
	if !assert.Eventually(n.t, func() bool { return slices.Equal(writes, toy.log()) }, testTimeout, pollInterval) {
		require.Equal(n.t, writes, toy.log(), "what was written")
	}
}

func toyModel(change func(*resource.DeviceModel)) *resource.DeviceModel {
	low, high := 0.0, 100.0
	m := &resource.DeviceModel{}
	m.Metadata.Name = "toy"
	m.Spec.Properties = []resource.Property{
		{Name: "power", Type: resource.TypeString, AccessMode: resource.ReadWrite, Enum: []resource.Value{"ON", "OFF"}},
		{Name: "level", Type: resource.TypeInt, AccessMode: resource.ReadWrite, Minimum: &low, Maximum: &high},
		{Name: "temp", Type: resource.TypeFloat},
	}
	m.Spec.PropertyVisitors = []resource.ProtocolVisitors{{Protocol: "Play-Things", Visitors: []resource.Visitor{
		{PropertyName: "power"}, {PropertyName: "level"}, {PropertyName: "temp", Deadband: 0.5},
	}}}
	if change != nil {
		change(m)
	}
	return m
}
