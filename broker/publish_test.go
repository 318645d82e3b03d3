// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/quota"
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
	desiredTopic  = "v1/nodes/n1/devices/lamp/desired/power"
	reportedTopic = "v1/nodes/n1/devices/lamp/reported/power"
)

func withTree(f *fakeTree) func(*Options) { return func(o *Options) { o.Tree = f } }

func TestPubackMeansStored(t *testing.T) {
	tree := newFakeTree()
	b := startBroker(t, withTree(tree))
	pub := openClient(t, b, "pub")
	tree.hold()
	pub.publish(desiredTopic, "ON", 1, 1)
	pub.publish(desiredTopic, "OFF", 2, 2)
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
	b := startBroker(t, withTree(tree))
	pub := openClient(t, b, "pub", persistentSession)
	tree.hold()
	pub.publish(desiredTopic, "ON", 2, 2)
	pub.nothing()
	pub.leave(b, "pub")
	pub = openClient(t, b, "pub", persistentSession)
	pub.publish(desiredTopic, "ON", 2, 2, markDup)
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
	b := startBroker(t, withTree(tree))
	pub := openClient(t, b, "pub")
	for _, c := range []struct {
		topic string
		err   error
		code  byte
	}{
		{desiredTopic + "1", resource.Errorf(resource.Invalid, "power", "not a number"), 0x99},
		{desiredTopic + "2", resource.Errorf(resource.NotFound, "power", "no such property"), 0x90},
		{desiredTopic + "3", resource.Errorf(resource.Forbidden, "power", "read-only"), 0x87},
		{desiredTopic + "4", resource.Errorf(resource.Quota, "power", "too many"), 0x97},
		{desiredTopic + "5", resource.Errorf(resource.TooLarge, "power", "too large"), 0x97},
		{desiredTopic + "6", resource.Errorf(resource.Unavailable, "power", "later"), 0x83},
	} {
		tree.refuse[c.topic] = c.err
		ack := pub.publish1(c.topic, "x")
		require.Equal(t, c.code, ack.ReasonCode, c.topic)
		require.Equal(t, c.err.Error(), ack.Properties.ReasonString)
	}
	tree.refuse[desiredTopic] = errors.New("disk on fire at /dev/sda")
	ack := pub.publish1(desiredTopic, "x")
	require.Equal(t, byte(0x80), ack.ReasonCode)
	require.Equal(t, "internal error", ack.Properties.ReasonString)

	pub.publish(desiredTopic+"1", "x", 2, 3)
	require.Equal(t, byte(0x99), pub.expect(packets.Pubrec).ReasonCode)
	delete(tree.refuse, desiredTopic+"1")
	pub.publish(desiredTopic+"1", "x", 2, 3)
	require.Equal(t, byte(0), pub.expect(packets.Pubrec).ReasonCode, "a refused QoS 2 publish leaves its id free")

	quiet := openClient(t, b, "quiet", func(pk *packets.Packet) {
		pk.Properties.RequestProblemInfo, pk.Properties.RequestProblemInfoFlag = 0, true
	})
	ack = quiet.publish1(desiredTopic+"2", "x")
	require.Equal(t, byte(0x90), ack.ReasonCode)
	require.Empty(t, ack.Properties.ReasonString)
	small := openClient(t, b, "small", maximumPacket(20))
	require.Equal(t, byte(0x90), small.publish1(desiredTopic+"2", "x").ReasonCode)
}

func TestRefusalOfV3IsToldOnATopic(t *testing.T) {
	tree := newFakeTree()
	b := startBroker(t, withTree(tree))
	tree.refuse[desiredTopic] = resource.Errorf(resource.Invalid, "power", "not one of ON, OFF")
	pub, other := openClient(t, b, "pub", version311), openClient(t, b, "other")
	other.sub("v1/refused/pub", 1)
	pub.sub("v1/refused/pub", 0)
	pub.publish(desiredTopic, "MAYBE", 1, 1)
	told := pub.answered(packets.Puback)
	require.Equal(t, "v1/refused/pub", told.TopicName)
	require.False(t, told.FixedHeader.Retain)
	var r refusedPublish
	require.NoError(t, json.Unmarshal(told.Payload, &r))
	require.Equal(t, refusedPublish{Topic: desiredTopic, Reason: "power: not one of ON, OFF", Kind: resource.Invalid, Code: 0x99}, r)
	require.Equal(t, told.Payload, other.expect(packets.Publish).Payload)
	require.Equal(t, int64(1), b.Stats().Refused[daemon.Label("Invalid")])
	late := openClient(t, b, "late")
	late.sub("v1/refused/pub", 1)
	late.nothing()
}

func TestARefusedRequestIsAnsweredWhereItsSenderListens(t *testing.T) {
	tree := newFakeTree()
	b := startBroker(t, withTree(tree))
	const get = "v1/nodes/n1/devices/attic/get"
	tree.refuse[get] = resource.Errorf(resource.NotFound, "", "device attic does not belong to node n1")
	ask := openClient(t, b, "ask")
	ask.sub("my/reply", 1)
	for topic, reason := range map[string]string{get: "device attic does not belong to node n1", get + "/power": "no such topic below a device"} {
		ask.publish(topic, "", 1, 1, withProperties(packets.Properties{ResponseTopic: "my/reply", CorrelationData: []byte("7")}))
		answer := ask.answered(packets.Puback)
		require.Equal(t, "my/reply", answer.TopicName)
		require.Equal(t, "7", string(answer.Properties.CorrelationData))
		var r refusedPublish
		require.NoError(t, json.Unmarshal(answer.Payload, &r))
		require.Equal(t, topic, r.Topic)
		require.Contains(t, r.Reason, reason)
		require.Equal(t, []packets.UserProperty{{Key: "code", Val: "Refused"}, {Key: "error", Val: r.Reason}}, answer.Properties.User)
	}
	// Nobody is sent anything below v1/ by it, and who makes no request gets no answer.
	ask.sub("v1/nodes/n1/#", 1)
	for _, reply := range []string{"", "v1/nodes/n1/devices/lamp/get"} {
		ask.publish(get, "", 1, 1, withProperties(packets.Properties{ResponseTopic: reply}))
		require.NotZero(t, ask.expect(packets.Puback).ReasonCode)
	}
	ask.nothing()
}

func TestImpossibleTopics(t *testing.T) {
	b := startBroker(t, withTree(newFakeTree()))
	sub, pub, three := openClient(t, b, "sub"), openClient(t, b, "pub"), openClient(t, b, "three", version311)
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

	pub.raw(encodePacket(t, publishPacket("a\x00b", "x", 1, 1), 5)) // not even UTF-8 as MQTT has it
	code, _ := pub.ended()
	require.Equal(t, byte(0x81), code)
	three.nothing()
}

func TestBrokerPublishIsInOrder(t *testing.T) {
	tree := newFakeTree()
	b := startBroker(t, withTree(tree))
	sub := openClient(t, b, "sub")
	sub.sub("v1/nodes/+/devices/#", 1)
	for i := range 300 {
		b.Publish(Message{Topic: reportedTopic, Payload: []byte(strconv.Itoa(i)), QoS: 1, Retain: true})
	}
	require.Equal(t, numberedPayloads(0, 300), sub.collect(300))
}

// Whoever subscribes while values change sees them rise, the last one, and none twice.
func TestRetainedAndLiveNeverGoBack(t *testing.T) {
	tree := newFakeTree()
	b := startBroker(t, withTree(tree))
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
		c := openClient(t, b, "sub"+strconv.Itoa(n), receiveMaximum(20))
		reading.Go(func() {
			c.send(packets.Packet{
				FixedHeader: packets.FixedHeader{Type: packets.Subscribe}, PacketID: 1,
				Filters: packets.Subscriptions{{Filter: "v1/nodes/n1/#", Qos: 1}},
			})
			last, finished := make(map[string]int), 0
			for finished < keys {
				pk, err := c.read(testTimeout)
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
	b := startBroker(t, withTree(tree))
	for k := range 1000 {
		tree.set(Message{Topic: "v1/nodes/n1/devices/d" + strconv.Itoa(k), Payload: []byte("x"), QoS: 1, Retain: true})
	}
	sub := openClient(t, b, "sub")
	sub.sub("v1/#", 0)
	for i := range 2000 {
		tree.mu.Lock()
		b.Publish(Message{Topic: reportedTopic, Payload: []byte(strconv.Itoa(i))})
		tree.mu.Unlock()
	}
	last := ""
	for last != "1999" {
		if pk := sub.expect(packets.Publish); pk.TopicName == reportedTopic {
			last = string(pk.Payload)
		}
	}
}

// A client that doesn't take a large tree makes nobody else wait, and the broker
// hold no more than a few of its values.
func TestLargeTreeIsPulledAsItIsTaken(t *testing.T) {
	tree := newFakeTree()
	b := startBroker(t, withTree(tree))
	const n = 20_000
	for k := range n {
		tree.values["v1/nodes/n1/devices/d"+strconv.Itoa(k)] = Message{Topic: "v1/nodes/n1/devices/d" + strconv.Itoa(k), Payload: []byte("x"), QoS: 1}
	}
	slow, other := openClient(t, b, "slow", receiveMaximum(1)), openClient(t, b, "other")
	slow.sub("v1/#", 1)
	slow.expect(packets.Publish)
	other.sub(reportedTopic, 1)
	b.Publish(Message{Topic: reportedTopic, Payload: []byte("live"), QoS: 1})
	require.Equal(t, []string{"live"}, other.collect(1))
	require.Less(t, b.Stats().Queued, int64(200))

	fast := openClient(t, b, "fast")
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

// While more waits for the disk than may, those wait who would add to it, and nobody else.
func TestOnlyWhoStoresWaitsForTheDisk(t *testing.T) {
	b, _ := startKept(t, t.TempDir(), func(o *Options) { o.Tree = newFakeTree() })
	away, live, pub := openClient(t, b, "away", persistentSession), openClient(t, b, "live"), openClient(t, b, "pub")
	stored := []*testClient{openClient(t, b, "one"), openClient(t, b, "two"), openClient(t, b, "three", persistentSession)}
	away.sub("kept", 1)
	away.leave(b, "away")
	live.sub("#", 1)

	b.store.backlog.Add("", backlogBytes()+1)
	caughtUp := sync.OnceFunc(func() { b.store.backlog.Add("", -backlogBytes()-1) })
	t.Cleanup(caughtUp) // or the broker can't stop
	require.True(t, b.store.backlog.Full(""))

	require.Equal(t, byte(0), pub.publish1("live", "1", withProperties(packets.Properties{ContentType: "x"})).ReasonCode)
	pub.publish("kept", "2", 0, 0, withProperties(packets.Properties{ContentType: "x"}))
	require.Equal(t, []string{"1", "2"}, live.collect(2))
	require.Equal(t, byte(0), pub.publish1("v1/nodes/n1/devices/d/reported/a", "3").ReasonCode)
	require.Equal(t, byte(0x87), pub.publish1("v1/nodes/n1/sync/up", "4").ReasonCode)

	stored[0].publish("kept", "5", 1, 1)
	stored[1].publish("live", "6", 1, 1, markRetain)
	stored[2].publish("live", "7", 2, 1)
	for _, c := range stored {
		_ = c.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := c.r.Peek(1)
		require.Error(t, err, "it waits")
	}
	live.nothing()
	caughtUp()
	stored[0].expect(packets.Puback)
	stored[1].expect(packets.Puback)
	stored[2].expect(packets.Pubrec)
	require.ElementsMatch(t, []string{"5", "6", "7"}, live.collect(3))
}

// A tree that can't commit holds up who publishes much into it, and not who publishes little.
func TestTheTreesBacklogIsBounded(t *testing.T) {
	tree := newFakeTree()
	b, _ := startKept(t, t.TempDir(), func(o *Options) { o.Tree = tree })
	tree.hold()
	b.admission.treeBacklog = quota.NewBacklog(2 << 20)
	const value, most = 100 << 10, 1<<20/(100<<10) + 1
	many, few := openClient(t, b, "many"), openClient(t, b, "few")
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range 2 * most {
			many.publish("v1/nodes/n1/devices/d/reported/a", strings.Repeat("x", value), 1, uint16(i+1))
		}
	}()
	got := func() int { tree.mu.Lock(); defer tree.mu.Unlock(); return len(tree.got) }
	require.Eventually(t, func() bool { return got() == most }, 30*time.Second, time.Millisecond)
	few.publish("v1/nodes/n1/devices/d/reported/b", "1", 1, 1)
	require.Eventually(t, func() bool { return got() == most+1 }, 30*time.Second, time.Millisecond)
	time.Sleep(20 * time.Millisecond) // for what must not happen
	require.Equal(t, most+1, got())
	tree.letGo()
	few.expect(packets.Puback)
	for range 2 * most {
		many.expect(packets.Puback)
	}
	<-sent
	require.Zero(t, b.admission.treeBacklog.Held())
}

// Whose connection is over waits no longer for room: its place is another's.
func TestNobodyWaitsBeyondTheEndOfTheConnection(t *testing.T) {
	tree := newFakeTree()
	b, _ := startKept(t, t.TempDir(), func(o *Options) { o.Tree = tree })
	tree.hold()
	t.Cleanup(tree.letGo)
	b.admission.treeBacklog = quota.NewBacklog(1 << 10)
	c := openClient(t, b, "writer")
	for id := range uint16(2) {
		c.publish("v1/nodes/n1/devices/d/reported/a", strings.Repeat("x", largeMessage), 1, id+1)
	}
	require.Eventually(t, func() bool { return tree.held() == 1 }, 30*time.Second, time.Millisecond)
	openClient(t, b, "writer")
	require.Eventually(t, func() bool {
		b.clients.mu.Lock()
		defer b.clients.mu.Unlock()
		return len(b.clients.conns) == 1
	}, 30*time.Second, time.Millisecond)
	require.Equal(t, 1, tree.held())
}

// failOnceJournal is a journal one of whose commits fails: that which a test has it fail, once all that came before it is done.
type failOnceJournal struct {
	Journal
	fail atomic.Bool // the next commit that somebody waits for
}

func (f *failOnceJournal) Commit(changes []journal.RecordChange, done func(error)) {
	if done == nil || !f.fail.CompareAndSwap(true, false) {
		f.Journal.Commit(changes, done)
		return
	}
	f.Journal.Commit(nil, func(error) { done(errors.New("no space left on device")) })
}

// A node's message that can't be stored ends the node's connection, and none that the node sent after it counts as
// stored, though the disk is well again: the node sends all of them again, and a subscriber gets them in order.
func TestANodeIsDisconnectedWhenItsMessageCannotBeStored(t *testing.T) {
	disk := &failOnceJournal{}
	hub := func(o *Options) {
		disk.Journal = o.Journal
		o.Journal, o.Tree, o.Auth.LoopbackNodes = disk, &streamTree{fakeTree: newFakeTree()}, true
	}
	dir := t.TempDir()
	b, stop := startKept(t, dir, hub)
	b.opts.Tree.(*streamTree).pass = b.Pass
	const bridged = "v1/nodes/n1/bridge/a"
	sub := openClient(t, b, "sub", persistentSession)
	sub.sub("v1/#", 1)
	node := openClient(t, b, "node/n1", credentialsOf("node/n1", ""), func(pk *packets.Packet) { pk.Connect.PasswordFlag = false })
	node.publish1(bridged, "0")
	require.Equal(t, []string{"0"}, sub.collect(1))
	disk.fail.Store(true)
	var all []byte
	for i := range 20 {
		all = append(all, encodePacket(t, publishPacket(bridged, strconv.Itoa(1+i), 1, uint16(10+i)), 5)...)
	}
	node.raw(all)
	code, disconnects := node.ended()
	require.Equal(t, 1, disconnects)
	require.EqualValues(t, codeImplementation, code)
	require.EqualValues(t, 1, b.Stats().Closed[daemon.Label(closeReasons[codeImplementation])])
	require.Empty(t, b.Stats().Refused[daemon.Label(string(resource.Unavailable))], "it is not refused: it comes again")
	sub.nothing()

	node = openClient(t, b, "node/n1", credentialsOf("node/n1", ""), func(pk *packets.Packet) { pk.Connect.PasswordFlag = false })
	node.raw(all)
	require.Equal(t, numberedPayloads(1, 20), sub.collect(20))
	sub.leave(b, "sub")
	stop()
	require.Equal(t, 3, recordsIn(t, dir), "the session, its subscription, how far it was sent: nothing is left of what did not count as stored")
}

// streamTree passes everything on, as a node's tree does with telemetry.
type streamTree struct {
	*fakeTree
	pass func(Message, func(error))
}

func (s *streamTree) Publish(m Message, done func(error)) { s.pass(m, done) }

// stepwiseJournal is a journal that keeps what a crash after each of its commits would leave.
type stepwiseJournal struct {
	Journal
	copy func()
}

func (s *stepwiseJournal) Commit(changes []journal.RecordChange, done func(error)) {
	s.Journal.Commit(changes, func(err error) {
		if s.copy(); done != nil {
			done(err)
		}
	})
}

// Telemetry at QoS 2 is taken once: at whatever commit the broker is killed, when its client repeats itself the
// queue that it waits in has it once.
func TestTelemetryIsTakenOnce(t *testing.T) {
	const telemetry = "v1/nodes/n1/devices/lamp/telemetry/power"
	dir := t.TempDir()
	var copies []string
	var recording atomic.Bool
	streams := func(change func(*Options)) func(*Options) {
		return func(o *Options) {
			o.Tree = &streamTree{fakeTree: newFakeTree()}
			if change != nil {
				change(o)
			}
		}
	}
	pass := func(b *Broker) { b.opts.Tree.(*streamTree).pass = b.Pass }
	b, stop := startKept(t, dir, streams(func(o *Options) {
		o.Journal = &stepwiseJournal{o.Journal, func() {
			if recording.Load() {
				copies = append(copies, copyCrashed(t, dir))
			}
		}}
	}))
	pass(b)
	sub, pub := openClient(t, b, "sub", persistentSession), openClient(t, b, "pub", persistentSession)
	sub.sub("v1/#", 1)
	sub.leave(b, "sub")
	recording.Store(true)
	pub.publish(telemetry, "x", 2, 5)
	require.Zero(t, pub.expect(packets.Pubrec).ReasonCode)
	stop()

	require.NotEmpty(t, copies)
	for i, left := range copies {
		b, _ := startKept(t, left, streams(nil))
		pass(b)
		pub := openClient(t, b, "pub", persistentSession)
		pub.publish(telemetry, "x", 2, 5, markDup)
		require.Zero(t, pub.expect(packets.Pubrec).ReasonCode)
		sub := openClient(t, b, "sub", persistentSession)
		require.Equal(t, []string{"x"}, sub.collect(1), "commit %d", i)
		sub.nothing()
	}
}

// unreadableTexts are texts at which clients with libmosquitto end their connection.
var unreadableTexts = []string{"a\u0001", "\u001fb", "a\nb", "\u007f", "\u0085", "a\u009f", "\ufdd0", "\ufdef", "\ufffe", "\uffff", "\U0001fffe", "\U0010ffff"}

// What some clients take for malformed is refused, so that no publisher ends other clients' connections, and the publisher's stays.
func TestControlCharactersAreRefusedWithoutClosing(t *testing.T) {
	b := startBroker(t, nil)
	reader := openClient(t, b, "reader")
	reader.sub("t/#", 1)
	for _, version := range []connectOption{version311, func(*packets.Packet) {}} {
		c := openClient(t, b, "c", version)
		for _, bad := range unreadableTexts {
			answer := c.publish1("t/"+bad, "x")
			if c.version < 5 {
				require.Equal(t, byte(codeUnspecified), c.subscribe("t/"+bad, 0).ReasonCodes[0])
				continue
			}
			require.Equal(t, byte(codeBadTopic), answer.ReasonCode, "%q", bad)
			require.Equal(t, byte(codeBadFilter), c.subscribe("t/"+bad, 0).ReasonCodes[0])
			for what, p := range map[string]packets.Properties{
				"content type": {ContentType: bad}, "response topic": {ResponseTopic: bad}, "user properties": {User: []packets.UserProperty{{Key: "k", Val: bad}}},
			} {
				answer := c.publish1("t", "x", withProperties(p))
				require.Equal(t, byte(codeBadPayload), answer.ReasonCode, "%q", bad)
				require.Contains(t, answer.Properties.ReasonString, what)
				require.True(t, topics.IsReadable(answer.Properties.ReasonString))
			}
			require.Equal(t, byte(codeBadPayload), c.publish1("t", "x", withProperties(packets.Properties{User: []packets.UserProperty{{Key: bad, Val: "v"}}})).ReasonCode)
			for code, will := range map[byte]connectOption{
				codeBadTopic:   withWill("t/"+bad, "x", 0),
				codeBadPayload: withWill("t", "x", 0, func(pk *packets.Packet) { pk.Connect.WillProperties.ContentType = bad }),
			} {
				require.Equal(t, code, dialBroker(t, b).connect("w", will), "%q", bad)
			}
		}
		c.publish1("t/é\u00a0\ufffd\U0001f600", "x")
		require.Equal(t, "t/é\u00a0\ufffd\U0001f600", reader.expect(packets.Publish).TopicName, "the connection stays, and all else is passed on")
	}
	require.Equal(t, byte(codeBadClientID), dialBroker(t, b).connect("c\u0001"))
}

// Clients of QoS 0, and of libraries that show no reason string, learn of a refusal on their own topic, whatever version they speak.
func TestRefusalsArePublishedForAllVersions(t *testing.T) {
	b := startBroker(t, withUsers)
	for _, version := range []connectOption{version311, func(*packets.Packet) {}} {
		c := openClient(t, b, "c", credentialsOf("op", "secret"), version)
		c.sub("v1/refused/c", 0)
		c.publish("$not/mine", "x", 0, 0)
		m := c.expect(packets.Publish)
		require.Equal(t, "v1/refused/c", m.TopicName)
		var got refusedPublish
		require.NoError(t, json.Unmarshal(m.Payload, &got))
		require.Equal(t, "$not/mine", got.Topic)
		require.Equal(t, byte(codeBadTopic), got.Code)
		c.disconnect()
	}
}
