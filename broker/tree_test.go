package broker

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// fakeTree stores what it is given, at once or when it is let go.
type fakeTree struct {
	publishing sync.RWMutex

	mu      sync.Mutex
	publish func(Message) // to the broker, when stored
	values  map[string]Message
	refuse  map[string]error
	got     []Message
	holding bool
	waiting []func()
	pulls   int
}

func newFakeTree() *fakeTree {
	return &fakeTree{values: make(map[string]Message), refuse: make(map[string]error)}
}

func (f *fakeTree) Publish(m Message, done func(error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.got = append(f.got, m)
	err := f.refuse[m.Topic]
	finish := func() {
		if err == nil && f.publish != nil {
			m.Retain = true
			f.tell(m, f.publish)
		}
		done(err)
	}
	if f.holding {
		f.waiting = append(f.waiting, finish)
		return
	}
	f.mu.Unlock()
	finish()
	f.mu.Lock()
}

func (f *fakeTree) set(m Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.values[m.Topic] = m
}

// tell sets a value and publishes it: nobody reads it in between.
func (f *fakeTree) tell(m Message, publish func(Message)) {
	f.publishing.Lock()
	defer f.publishing.Unlock()
	f.set(m)
	publish(m)
}

func (f *fakeTree) Retained(filter string) func(max int) []Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for topic := range f.values {
		if topics.Match(filter, topic) {
			names = append(names, topic)
		}
	}
	slices.Sort(names)
	return func(max int) (out []Message) {
		f.publishing.RLock()
		defer f.publishing.RUnlock()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.pulls++
		for len(names) > 0 && len(out) < max {
			if m, ok := f.values[names[0]]; ok {
				out = append(out, m)
			}
			names = names[1:]
		}
		return out
	}
}

func (f *fakeTree) hold() { f.mu.Lock(); f.holding = true; f.mu.Unlock() }

func (f *fakeTree) held() int { f.mu.Lock(); defer f.mu.Unlock(); return len(f.waiting) }

// letGo finishes what is held, newest first.
func (f *fakeTree) letGo() {
	f.mu.Lock()
	waiting := f.waiting
	f.waiting, f.holding = nil, false
	f.mu.Unlock()
	for _, finish := range slices.Backward(waiting) {
		finish()
	}
}

const (
	desired  = "v1/nodes/n1/devices/lamp/desired/power"
	reported = "v1/nodes/n1/devices/lamp/reported/power"
)

func withTree(f *fakeTree) func(*Options) { return func(o *Options) { o.Tree = f } }

func TestPubackMeansStored(t *testing.T) {
	tree := newFakeTree()
	b := start(t, withTree(tree))
	pub := open(t, b, "pub")
	tree.hold()
	pub.publish(desired, "ON", 1, 1)
	pub.publish(desired, "OFF", 2, 2)
	pub.publish("users/own", "x", 1, 3)
	pub.nothing()
	require.Equal(t, 2, tree.held())
	tree.letGo() // in the wrong order: the acknowledgements are in the right one
	require.Equal(t, uint16(1), pub.expect(packets.Puback).PacketID)
	require.Equal(t, uint16(2), pub.expect(packets.Pubrec).PacketID)
	require.Equal(t, uint16(3), pub.expect(packets.Puback).PacketID)
	require.Equal(t, "pub", tree.got[0].Publisher.ClientID)
	require.Equal(t, []topics.Role{topics.RoleOperator, topics.RoleMapper}, tree.got[0].Publisher.Roles)
}

func TestQoS2OfTheTreeOverAReconnect(t *testing.T) {
	tree := newFakeTree()
	b := start(t, withTree(tree))
	pub := open(t, b, "pub", persistent)
	tree.hold()
	pub.publish(desired, "ON", 2, 2)
	pub.nothing()
	pub.leave(b, "pub")
	pub = open(t, b, "pub", persistent)
	pub.publish(desired, "ON", 2, 2, dup)
	pub.nothing()
	tree.letGo()
	require.Equal(t, uint16(2), pub.expect(packets.Pubrec).PacketID)
	require.Len(t, tree.got, 1)
	pub.ack(packets.Pubrel, 2)
	pub.expect(packets.Pubcomp)
	pub.nothing()
}

func TestRefusalsCarryReasons(t *testing.T) {
	tree := newFakeTree()
	b := start(t, withTree(tree))
	pub := open(t, b, "pub")
	for _, c := range []struct {
		topic string
		err   error
		code  byte
	}{
		{desired + "1", resource.Errorf(resource.Invalid, "power", "not a number"), 0x99},
		{desired + "2", resource.Errorf(resource.NotFound, "power", "no such property"), 0x90},
		{desired + "3", resource.Errorf(resource.Forbidden, "power", "read-only"), 0x87},
		{desired + "4", resource.Errorf(resource.Quota, "power", "too many"), 0x97},
		{desired + "5", resource.Errorf(resource.TooLarge, "power", "too large"), 0x97},
		{desired + "6", resource.Errorf(resource.Unavailable, "power", "later"), 0x83},
	} {
		tree.refuse[c.topic] = c.err
		ack := pub.publish1(c.topic, "x")
		require.Equal(t, c.code, ack.ReasonCode, c.topic)
		require.Equal(t, c.err.Error(), ack.Properties.ReasonString)
	}
	tree.refuse[desired] = errors.New("disk on fire at /dev/sda")
	ack := pub.publish1(desired, "x")
	require.Equal(t, byte(0x80), ack.ReasonCode)
	require.Equal(t, "internal error", ack.Properties.ReasonString)

	pub.publish(desired+"1", "x", 2, 3)
	require.Equal(t, byte(0x99), pub.expect(packets.Pubrec).ReasonCode)
	delete(tree.refuse, desired+"1")
	pub.publish(desired+"1", "x", 2, 3)
	require.Equal(t, byte(0), pub.expect(packets.Pubrec).ReasonCode, "a refused QoS 2 publish leaves its id free")

	quiet := open(t, b, "quiet", func(pk *packets.Packet) {
		pk.Properties.RequestProblemInfo, pk.Properties.RequestProblemInfoFlag = 0, true
	})
	ack = quiet.publish1(desired+"2", "x")
	require.Equal(t, byte(0x90), ack.ReasonCode)
	require.Empty(t, ack.Properties.ReasonString)
	small := open(t, b, "small", maximumPacket(20))
	require.Equal(t, byte(0x90), small.publish1(desired+"2", "x").ReasonCode)
}

func TestRefusalOfV3IsToldOnATopic(t *testing.T) {
	tree := newFakeTree()
	b := start(t, withTree(tree))
	tree.refuse[desired] = resource.Errorf(resource.Invalid, "power", "not one of ON, OFF")
	pub, other := open(t, b, "pub", v3), open(t, b, "other")
	other.sub("v1/refused/pub", 1)
	pub.sub("v1/refused/pub", 0)
	pub.publish(desired, "MAYBE", 1, 1)
	told := pub.answered(packets.Puback)
	require.Equal(t, "v1/refused/pub", told.TopicName)
	require.False(t, told.FixedHeader.Retain)
	var r refusal
	require.NoError(t, json.Unmarshal(told.Payload, &r))
	require.Equal(t, refusal{Topic: desired, Reason: "power: not one of ON, OFF", Kind: resource.Invalid, Code: 0x99}, r)
	require.Equal(t, told.Payload, other.expect(packets.Publish).Payload)
	require.Equal(t, int64(1), b.Stats().Refused["Invalid"])
	late := open(t, b, "late")
	late.sub("v1/refused/pub", 1)
	late.nothing()
}

func TestARefusedRequestIsAnsweredWhereItsSenderListens(t *testing.T) {
	tree := newFakeTree()
	b := start(t, withTree(tree))
	const get = "v1/nodes/n1/devices/attic/get"
	tree.refuse[get] = resource.Errorf(resource.NotFound, "", "device attic does not belong to node n1")
	ask := open(t, b, "ask")
	ask.sub("my/reply", 1)
	for topic, reason := range map[string]string{get: "device attic does not belong to node n1", get + "/power": "no such topic below a device"} {
		ask.publish(topic, "", 1, 1, props(packets.Properties{ResponseTopic: "my/reply", CorrelationData: []byte("7")}))
		answer := ask.answered(packets.Puback)
		require.Equal(t, "my/reply", answer.TopicName)
		require.Equal(t, "7", string(answer.Properties.CorrelationData))
		var r refusal
		require.NoError(t, json.Unmarshal(answer.Payload, &r))
		require.Equal(t, topic, r.Topic)
		require.Contains(t, r.Reason, reason)
		require.Equal(t, []packets.UserProperty{{Key: "code", Val: "Refused"}, {Key: "error", Val: r.Reason}}, answer.Properties.User)
	}
	// Nobody is sent anything below v1/ by it, and who makes no request gets no answer.
	ask.sub("v1/nodes/n1/#", 1)
	for _, reply := range []string{"", "v1/nodes/n1/devices/lamp/get"} {
		ask.publish(get, "", 1, 1, props(packets.Properties{ResponseTopic: reply}))
		require.NotZero(t, ask.expect(packets.Puback).ReasonCode)
	}
	ask.nothing()
}

func TestImpossibleTopics(t *testing.T) {
	b := start(t, withTree(newFakeTree()))
	sub, pub, three := open(t, b, "sub"), open(t, b, "pub"), open(t, b, "three", v3)
	for _, filter := range []string{"a/#", "$other", "v1/nodes", "v1/refused", "v1/nodes/#"} {
		sub.subscribe(filter, 1)
	}
	for _, topic := range []string{"a/+", "a/#", "$SYS/x", "$other", "v1/nodes", "v1/refused", "v1/refused/x", "v1/nodes/n1", "v1/nodes/N/state", "v1/nodes/n1/nonsense", strings.Repeat("/", 300)} {
		ack := pub.publish1(topic, "x")
		require.Equal(t, byte(0x90), ack.ReasonCode, topic)
		require.NotEmpty(t, ack.Properties.ReasonString)
		pub.publish(topic, "x", 0, 0)
		require.Equal(t, uint16(7), three.publish1(topic, "x").PacketID)
	}
	pub.nothing()
	sub.nothing()

	pub.raw(encode(t, publishPacket("a\x00b", "x", 1, 1), 5)) // not even UTF-8 as MQTT has it
	code, _ := pub.ended()
	require.Equal(t, byte(0x81), code)
	three.nothing()
}

func TestBrokerPublishIsInOrder(t *testing.T) {
	tree := newFakeTree()
	b := start(t, withTree(tree))
	sub := open(t, b, "sub")
	sub.sub("v1/nodes/+/devices/#", 1)
	for i := range 300 {
		b.Publish(Message{Topic: reported, Payload: []byte(strconv.Itoa(i)), QoS: 1, Retain: true})
	}
	require.Equal(t, numbers(0, 300), sub.collect(300))
}

// Whoever subscribes while values change sees them rise, the last one, and none twice.
func TestRetainedAndLiveNeverGoBack(t *testing.T) {
	tree := newFakeTree()
	b := start(t, withTree(tree))
	const keys, rounds = 200, 60
	topic := func(k int) string { return "v1/nodes/n1/devices/d" + strconv.Itoa(k) + "/reported/p" }
	write := func(k, v int) {
		m := Message{Topic: topic(k), Payload: []byte(strconv.Itoa(v)), QoS: 1, Retain: true}
		tree.tell(m, b.Publish)
	}
	for k := range keys {
		write(k, 0)
	}
	var writing sync.WaitGroup
	writing.Go(func() {
		for v := 1; v <= rounds; v++ {
			for k := range keys {
				write(k, v)
			}
		}
	})
	var reading sync.WaitGroup
	for n := range 8 {
		c := open(t, b, "sub"+strconv.Itoa(n), receiveMaximum(20))
		reading.Go(func() {
			c.send(packets.Packet{
				FixedHeader: packets.FixedHeader{Type: packets.Subscribe}, PacketID: 1,
				Filters: packets.Subscriptions{{Filter: "v1/nodes/n1/#", Qos: 1}},
			})
			last, finished := make(map[string]int), 0
			for finished < keys {
				pk, err := c.read(patience)
				if err != nil {
					t.Errorf("%d of %d: %v", finished, keys, err)
					return
				}
				if pk.FixedHeader.Type != packets.Publish {
					continue
				}
				c.ack(packets.Puback, pk.PacketID)
				v, _ := strconv.Atoi(string(pk.Payload))
				before, known := last[pk.TopicName]
				if known && v <= before {
					t.Errorf("%s went from %d to %d (retained: %v)", pk.TopicName, before, v, pk.FixedHeader.Retain)
					return
				}
				if v == rounds && (!known || before < rounds) {
					finished++
				}
				last[pk.TopicName] = v
			}
		})
		time.Sleep(time.Millisecond) // spread over the writing; nothing depends on it
	}
	writing.Wait()
	reading.Wait()
}

// A tree that publishes to the broker under its own lock, which Retained takes too,
// must not lock up.
func TestTreeMayPublishUnderItsLock(t *testing.T) {
	tree := newFakeTree()
	b := start(t, withTree(tree))
	for k := range 1000 {
		tree.set(Message{Topic: "v1/nodes/n1/devices/d" + strconv.Itoa(k), Payload: []byte("x"), QoS: 1, Retain: true})
	}
	sub := open(t, b, "sub")
	sub.sub("v1/#", 0)
	for i := range 2000 {
		tree.mu.Lock()
		b.Publish(Message{Topic: reported, Payload: []byte(strconv.Itoa(i))})
		tree.mu.Unlock()
	}
	last := ""
	for last != "1999" {
		if pk := sub.expect(packets.Publish); pk.TopicName == reported {
			last = string(pk.Payload)
		}
	}
}

// A client that doesn't take a large tree makes nobody else wait, and the broker
// hold no more than a few of its values.
func TestLargeTreeIsPulledAsItIsTaken(t *testing.T) {
	tree := newFakeTree()
	b := start(t, withTree(tree))
	const n = 20_000
	for k := range n {
		tree.values["v1/nodes/n1/devices/d"+strconv.Itoa(k)] = Message{Topic: "v1/nodes/n1/devices/d" + strconv.Itoa(k), Payload: []byte("x"), QoS: 1}
	}
	slow, other := open(t, b, "slow", receiveMaximum(1)), open(t, b, "other")
	slow.sub("v1/#", 1)
	slow.expect(packets.Publish)
	other.sub(reported, 1)
	b.Publish(Message{Topic: reported, Payload: []byte("live"), QoS: 1})
	require.Equal(t, []string{"live"}, other.collect(1))
	require.Less(t, b.Stats().Queued, int64(200))

	fast := open(t, b, "fast")
	fast.sub("#", 1)
	topics := make(map[string]bool)
	for range n {
		pk := fast.expect(packets.Publish)
		require.True(t, pk.FixedHeader.Retain)
		topics[pk.TopicName] = true
		fast.ack(packets.Puback, pk.PacketID)
	}
	require.Len(t, topics, n)
	fast.nothing()
}
