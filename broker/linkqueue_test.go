// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

func linkQueueOf(keep, pass []string) func(*Options) {
	return func(o *Options) {
		o.LinkQueue = &LinkQueueOptions{Keep: keep, Pass: pass, Bytes: 1 << 20, Age: time.Hour}
	}
}

// nextLinkMessages takes n messages out.
func nextLinkMessages(t *testing.T, o *LinkConsumer, n int) (list []LinkMessage, payloads []string) {
	t.Helper()
	for range n {
		p, ok := o.Next()
		require.True(t, ok, "after %v", payloads)
		list, payloads = append(list, p), append(payloads, string(p.Payload))
	}
	return list, payloads
}

func noLinkMessage(t *testing.T, o *LinkConsumer) {
	t.Helper()
	p, ok := o.Next()
	require.False(t, ok, "%v", p.Message)
}

func TestTheLinkQueueKeepsMessagesUntilTheyAreDone(t *testing.T) {
	dir := t.TempDir()
	options := linkQueueOf([]string{"kept/#"}, nil)
	b, _ := startKept(t, dir, options)
	c := openClient(t, b, "c")
	for i := range 3 {
		require.Zero(t, c.publish1("kept/a", fmt.Sprint(i)).ReasonCode)
	}
	c.publish("kept/b", "3", 0, 0) // the publisher's QoS is that of its own way
	require.Zero(t, c.publish1("other", "x").ReasonCode)
	o := b.LinkQueue().Open(3)
	list, got := nextLinkMessages(t, o, 3)
	require.Equal(t, []string{"0", "1", "2"}, got)
	noLinkMessage(t, o) // the window
	o.Acknowledge(list[0].ID)
	last, got := nextLinkMessages(t, o, 1)
	require.Equal(t, []string{"3"}, got)
	o.Acknowledge(last[0].ID)
	require.Equal(t, 2, b.LinkQueue().Stats().Messages)

	again := b.LinkQueue().Open(10) // a new connection: what nobody answered comes again, first
	_, got = nextLinkMessages(t, again, 2)
	require.Equal(t, []string{"1", "2"}, got)
	noLinkMessage(t, again)
	noLinkMessage(t, o)
	require.Zero(t, c.publish1("kept/a", "4").ReasonCode)

	b, _ = restartCrashed(t, dir, options)
	o = b.LinkQueue().Open(10)
	list, got = nextLinkMessages(t, o, 1)
	for got[len(got)-1] != "4" {
		more, text := nextLinkMessages(t, o, 1)
		list, got = append(list, more...), append(got, text...)
	}
	require.Subset(t, got, []string{"1", "2", "4"}) // what was done shortly before a crash may come again
	require.IsIncreasing(t, got)
	for _, p := range list {
		o.Acknowledge(p.ID)
	}
	require.Zero(t, b.LinkQueue().Stats().Messages)
}

func TestWhatIsOnlyPassedIsTakenWhileTheLinkQueueIsConsumed(t *testing.T) {
	b := startBroker(t, linkQueueOf([]string{"both/kept"}, []string{"both/+"}))
	c := openClient(t, b, "c")
	require.Zero(t, c.publish1("both/passed", "early").ReasonCode)
	o := b.LinkQueue().Open(10)
	require.Zero(t, c.publish1("both/passed", "now", markRetain).ReasonCode)
	require.Zero(t, c.publish1("both/kept", "once").ReasonCode)
	list, got := nextLinkMessages(t, o, 2)
	require.Equal(t, []string{"now", "once"}, got)
	require.Zero(t, list[0].ID)
	require.True(t, list[0].Retain)
	require.NotZero(t, list[1].ID)
	o.Acknowledge(list[1].ID)
	noLinkMessage(t, o)
	require.Zero(t, c.publish1("both/passed", "unread").ReasonCode)
	o.Close()
	require.EqualValues(t, 1, b.LinkQueue().Stats().Dropped["not_linked"])
	noLinkMessage(t, b.LinkQueue().Open(10))
}

func TestInTheLinkQueueTheOldestGivesWay(t *testing.T) {
	now := &testClock{now: time.Now()}
	b, _ := startKept(t, t.TempDir(), func(o *Options) {
		o.LinkQueue = &LinkQueueOptions{Keep: []string{"#"}, Bytes: 10_000, Age: time.Hour}
		o.Now = now.read
	})
	c := openClient(t, b, "c")
	payload := make([]byte, 900)
	for range 50 {
		require.Zero(t, c.publish1("a", string(payload)).ReasonCode)
	}
	s := b.LinkQueue().Stats()
	require.LessOrEqual(t, s.Bytes, 10_000)
	require.Equal(t, 10, s.Messages)
	require.EqualValues(t, 40, s.Dropped["full"])
	now.add(2 * time.Hour)
	o := b.LinkQueue().Open(20)
	noLinkMessage(t, o) // even if nothing new has come
	require.EqualValues(t, 10, b.LinkQueue().Stats().Dropped["too_old"])

	require.Zero(t, c.publish1("a", "stale").ReasonCode)
	now.add(2 * time.Hour)
	require.Zero(t, c.publish1("a", "fresh").ReasonCode)
	require.EqualValues(t, 11, b.LinkQueue().Stats().Dropped["too_old"], "with nobody looking")
	_, got := nextLinkMessages(t, o, 1)
	require.Equal(t, []string{"fresh"}, got)
}

// A rule in both directions for one filter: what came down doesn't go up again.
func TestWhatCameOverTheLinkDoesNotGoBack(t *testing.T) {
	b, _ := startKept(t, t.TempDir(), linkQueueOf([]string{"site/#"}, []string{"#"}))
	o := b.LinkQueue().Open(10)
	local := openClient(t, b, "local")
	local.sub("site/#", 1)
	done := make(chan error, 1)
	b.PublishFromLink(Message{Topic: "site/door", Payload: []byte("open"), QoS: 1, Retain: true}, func(err error) { done <- err })
	require.NoError(t, <-done)
	require.Equal(t, "open", string(local.expect(packets.Publish).Payload))
	noLinkMessage(t, o)
	require.Zero(t, openClient(t, b, "another").publish1("site/door", "shut").ReasonCode)
	_, got := nextLinkMessages(t, o, 1)
	require.Equal(t, []string{"shut"}, got)

	b.PublishFromLink(Message{Topic: "v1/nodes/n1/spec", QoS: 1}, func(err error) { done <- err })
	require.Error(t, <-done)
	require.NotZero(t, dialBroker(t, b).connect(linkQueueID), "nobody else can be the link")
}

func TestLinkQueueFiltersFollowTheConfiguration(t *testing.T) {
	dir := t.TempDir()
	b, stop := startKept(t, dir, linkQueueOf([]string{"a"}, nil))
	require.Zero(t, openClient(t, b, "c").publish1("a", "1").ReasonCode)
	stop()
	b, stop = startKept(t, dir, linkQueueOf([]string{"b"}, nil))
	c := openClient(t, b, "c")
	require.Zero(t, c.publish1("a", "2").ReasonCode)
	require.Zero(t, c.publish1("b", "3").ReasonCode)
	_, got := nextLinkMessages(t, b.LinkQueue().Open(10), 2)
	require.Equal(t, []string{"1", "3"}, got, "what was kept is still owed")
	stop()
	b, stop = startKept(t, dir, nil) // no link any more
	require.Zero(t, openClient(t, b, "c").publish1("b", "4").ReasonCode)
	require.Zero(t, b.LinkQueue().Stats().Messages)
	stop()
	b, _ = startKept(t, dir, linkQueueOf([]string{"b"}, nil))
	noLinkMessage(t, b.LinkQueue().Open(10))
}

func TestNodesAskOnlyForWhatBridgesDown(t *testing.T) {
	a := newAccessControl(Options{Down: []string{"site/#", "orders/{node}/+"}})
	n1 := &Identity{Roles: []topics.Role{topics.RoleNode}, Node: "n1"}
	for filter, allowed := range map[string]bool{
		"site/#": true, "site/a": true, "site/+/b": true, "orders/n1/+": true, "orders/n1/x": true,
		"#": false, "+/a": false, "orders/#": false, "orders/n2/x": false, "orders/n1/#": false, "other": false,
	} {
		require.Equal(t, allowed, a.subscribe(n1, filter) == nil, filter)
	}
	require.True(t, a.read(n1, "orders/n1/x"))
	require.False(t, a.read(n1, "orders/n2/x"))
	require.False(t, a.read(n1, "orders/n1/x/y"))
}

// The forwarder of a node drops what the hub answers with 0x97, quota exceeded, for it
// takes it for the limit of retained messages, which doesn't go away by itself. So nothing
// else that a stream or a bridged topic meets there may be that.
func TestOnlyTheRetainedLimitIsAQuotaToWhatANodeSends(t *testing.T) {
	b, _ := startKept(t, t.TempDir(), func(o *Options) { o.Limits.Session.Bytes, o.Limits.Retained.Bytes = 1, 600 })
	openClient(t, b, "full", persistentSession).sub("#", 1)
	b.clients.connected("full").disconnect(0, errDisconnected)
	require.Eventually(t, func() bool { return b.clients.connected("full") == nil }, testTimeout, time.Millisecond)
	node := &Identity{Version: 5, Node: "n1", Roles: []topics.Role{topics.RoleNode}, ClientID: "core"}
	pass := func(topic string, markRetain bool) error {
		done := make(chan error, 1)
		b.Pass(Message{Topic: topic, Payload: []byte("x"), QoS: 1, Retain: markRetain, Publisher: node}, func(err error) { done <- err })
		return <-done
	}
	require.NoError(t, pass("v1/nodes/n1/bridge/a", true), "the one that is retained")
	for range 3 {
		for _, topic := range []string{"v1/nodes/n1/devices/d/telemetry/t", "v1/nodes/n1/devices/d/events/e", "v1/nodes/n1/bridge/a", "v1/nodes/n1/bridge/b"} {
			require.NoError(t, pass(topic, false), topic)
		}
		require.NoError(t, pass("v1/nodes/n1/bridge/a", true))
	}
	require.ErrorIs(t, pass("v1/nodes/n1/bridge/b", true), resource.Quota)
}

func roomyLinkQueue(o *Options) {
	o.LinkQueue = &LinkQueueOptions{Keep: []string{"kept/#"}, Pass: []string{"passed/#"}, Bytes: 32 << 20, Age: time.Hour}
}

// passMessages publishes numbered messages, and waits until all are stored.
func passMessages(t *testing.T, b *Broker, first, last int) {
	t.Helper()
	told := make(chan error, last-first)
	for i := first; i < last; i++ {
		b.Pass(Message{Topic: "kept/a", Payload: []byte(strconv.Itoa(i)), QoS: 1}, func(err error) { told <- err })
	}
	for range last - first {
		require.NoError(t, <-told)
	}
}

// takePayloads takes messages out until there are none, and lets go of each.
func takePayloads(t *testing.T, o *LinkConsumer, n int) (payloads []int) {
	t.Helper()
	for len(payloads) < n {
		p, ok := o.Next()
		if !ok {
			select {
			case <-o.Ready():
			case <-time.After(testTimeout):
				t.Fatalf("nothing after %d", len(payloads))
			}
			continue
		}
		i, err := strconv.Atoi(string(p.Payload))
		require.NoError(t, err)
		payloads = append(payloads, i)
		o.Acknowledge(p.ID)
	}
	return payloads
}

func countFrom(first, last int) (all []int) {
	for i := first; i < last; i++ {
		all = append(all, i)
	}
	return all
}

const manyMessages = 20_000 // messages: several times what is in memory

func TestWhatWaitsInTheLinkQueueIsOnDisk(t *testing.T) {
	dir := t.TempDir()
	b, stop := startKept(t, dir, roomyLinkQueue)
	passMessages(t, b, 0, manyMessages)
	s := b.LinkQueue().Stats()
	require.Equal(t, manyMessages, s.Messages)
	require.Less(t, b.linkQueue.sess.InMemory(), manyMessages/2)
	stop()

	b, _ = startKept(t, dir, roomyLinkQueue)
	again := b.LinkQueue().Stats()
	require.Equal(t, s.Messages, again.Messages)
	require.Equal(t, s.Bytes, again.Bytes, "as it was counted")
	require.Zero(t, b.linkQueue.sess.InMemory(), "nothing is loaded before somebody takes it")
	o := b.LinkQueue().Open(64)
	require.Equal(t, countFrom(0, 5000), takePayloads(t, o, 5000))
	require.Less(t, b.linkQueue.sess.InMemory(), manyMessages/2)
	passMessages(t, b, manyMessages, manyMessages+100)
	require.Equal(t, countFrom(5000, manyMessages+100), takePayloads(t, o, manyMessages-4900), "what came meanwhile is behind")
	require.Zero(t, b.LinkQueue().Stats().Messages)
	require.Zero(t, b.LinkQueue().Stats().Bytes)
	passMessages(t, b, 0, 10)
	require.Equal(t, countFrom(0, 10), takePayloads(t, o, 10), "and it goes on in memory")
}

// What was let go of in any order is gone, and what was not is given again after a restart.
func TestLinkQueueMessagesAreDoneInAnyOrder(t *testing.T) {
	dir := t.TempDir()
	b, stop := startKept(t, dir, roomyLinkQueue)
	passMessages(t, b, 0, manyMessages)
	o := b.LinkQueue().Open(64)
	require.Len(t, takePayloads(t, o, manyMessages-1000), manyMessages-1000)
	list, _ := nextLinkMessages(t, o, 64)
	for i, p := range list {
		if i%2 == 0 {
			o.Acknowledge(p.ID)
		}
	}
	stop()
	b, _ = startKept(t, dir, roomyLinkQueue)
	got := takePayloads(t, b.LinkQueue().Open(64), 1000-32)
	var want []int
	for i := range 1000 {
		if i >= 64 || i%2 == 1 {
			want = append(want, manyMessages-1000+i)
		}
	}
	require.Equal(t, want, got)
}

func TestTheOldestGivesWayOnDisk(t *testing.T) {
	dir := t.TempDir()
	now := &testClock{now: time.Now()}
	b, stop := startKept(t, dir, func(o *Options) {
		roomyLinkQueue(o)
		o.LinkQueue.Bytes, o.Now = 1<<20, now.read
	})
	passMessages(t, b, 0, manyMessages)
	s := b.LinkQueue().Stats()
	require.LessOrEqual(t, s.Bytes, 1<<20)
	require.EqualValues(t, manyMessages-s.Messages, s.Dropped["full"])
	require.Equal(t, countFrom(manyMessages-s.Messages, manyMessages), takePayloads(t, b.LinkQueue().Open(64), s.Messages))
	passMessages(t, b, 0, manyMessages/2)
	stop()
	b, stop = startKept(t, dir, func(o *Options) {
		roomyLinkQueue(o)
		o.Now = now.read
	})
	waiting := b.LinkQueue().Stats().Messages
	require.Equal(t, manyMessages/2, waiting)
	now.add(2 * time.Hour)
	passMessages(t, b, 0, 1)
	require.EqualValues(t, waiting, b.LinkQueue().Stats().Dropped["too_old"])
	require.Equal(t, []int{0}, takePayloads(t, b.LinkQueue().Open(64), 1))
	stop()
	b, _ = startKept(t, dir, roomyLinkQueue)
	require.Zero(t, b.LinkQueue().Stats().Messages, "on disk they are gone, too")
}

// A place on the disk that goes bad costs the messages there, which is counted and told, and no others.
func TestWhatCannotBeReadIsCounted(t *testing.T) {
	dir := t.TempDir()
	b, _ := startKept(t, dir, roomyLinkQueue)
	j := b.store.journal.(*journal.Journal)
	passMessages(t, b, 0, manyMessages)
	log := filepath.Join(dir, "000000000001.log")
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	at := strings.Index(string(text), strconv.Itoa(manyMessages-1000))
	require.Positive(t, at)
	f, err := os.OpenFile(log, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("7"), int64(at))
	require.NoError(t, errors.Join(err, f.Close()))
	got := takePayloads(t, b.LinkQueue().Open(64), manyMessages-1)
	require.NotContains(t, got, manyMessages-1000)
	require.IsIncreasing(t, got)
	require.EqualValues(t, 1, b.LinkQueue().Stats().Dropped["damaged"])
	require.Zero(t, b.LinkQueue().Stats().Messages)
	require.ErrorContains(t, j.Damage(), log)
}

// What is passed only has a bounded place in memory, and doesn't wait for all that is on disk.
func TestWhatIsOnlyPassedHasRoom(t *testing.T) {
	b, _ := startKept(t, t.TempDir(), roomyLinkQueue)
	o := b.LinkQueue().Open(64)
	passMessages(t, b, 0, manyMessages)
	big := strings.Repeat("x", 10_000)
	for range 1000 {
		b.Publish(Message{Topic: "passed/a", Payload: []byte(big)})
	}
	require.Less(t, b.LinkQueue().Stats().Bytes, 5<<20)
	require.Positive(t, b.LinkQueue().Stats().Dropped["full_unstored"])
	seen, stored := 0, 0
	for stored < manyMessages {
		p, ok := o.Next()
		if !ok {
			<-o.Ready()
			continue
		}
		if p.ID == 0 {
			seen++
			continue
		}
		require.Equal(t, strconv.Itoa(stored), string(p.Payload))
		stored++
		o.Acknowledge(p.ID)
	}
	require.Positive(t, seen)
}

// A message that several durable sessions get is stored for the link queue by itself, and one that
// can't be stored is not kept.
func TestLinkQueueMessagesShareACommit(t *testing.T) {
	dir := t.TempDir()
	b, stop := startKept(t, dir, roomyLinkQueue)
	for _, id := range []string{"one", "two"} {
		c := openClient(t, b, id, persistentSession)
		c.sub("kept/#", 1)
		c.leave(b, id)
	}
	passMessages(t, b, 0, manyMessages/4)
	stop()
	b, _ = startKept(t, dir, roomyLinkQueue)
	require.Equal(t, manyMessages/4, b.LinkQueue().Stats().Messages)
	require.Equal(t, countFrom(0, manyMessages/4), takePayloads(t, b.LinkQueue().Open(64), manyMessages/4))
	require.EqualValues(t, 2*manyMessages/4, b.Stats().Queued, "the others' are there")
}

// The filters of KeepForLink come and go while messages arrive; what was kept is still owed, and those of the options stay.
func TestTheLinkQueueKeepsWhatTheProgramNamesLater(t *testing.T) {
	dir := t.TempDir()
	b, stop := startKept(t, dir, linkQueueOf([]string{"a"}, nil))
	c := openClient(t, b, "c")
	require.Zero(t, c.publish1("b", "0").ReasonCode)
	require.NoError(t, b.LinkQueue().Keep([]string{"b", "a"}))
	require.Zero(t, c.publish1("a", "1").ReasonCode)
	require.Zero(t, c.publish1("b", "2").ReasonCode)
	require.NoError(t, b.LinkQueue().Keep([]string{"c"}))
	require.Zero(t, c.publish1("b", "3").ReasonCode)
	require.Zero(t, c.publish1("c", "4").ReasonCode)
	require.Zero(t, c.publish1("a", "5").ReasonCode)
	require.Error(t, b.LinkQueue().Keep([]string{"a/#/b"}))
	stop()
	b, _ = startKept(t, dir, linkQueueOf([]string{"a"}, nil))
	require.NoError(t, b.LinkQueue().Keep([]string{"c"}))
	require.Zero(t, openClient(t, b, "c").publish1("c", "6").ReasonCode)
	o := b.LinkQueue().Open(10)
	_, got := nextLinkMessages(t, o, 5)
	require.Equal(t, []string{"1", "2", "4", "5", "6"}, got)
	noLinkMessage(t, o)

	b, _ = startKept(t, t.TempDir(), nil)
	require.ErrorContains(t, b.LinkQueue().Keep(nil), "no link queue")
}
