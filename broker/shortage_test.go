package broker

import (
	"bytes"
	"encoding/json"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// Who receives can't stop who sends, whatever the topic and the version of either.
func testFullSessionGoesWithout(t *testing.T, at place) {
	b := at.start(t, func(o *Options) { o.Limits.Session.Bytes = roomFor(numbers(0, 10)...) })
	gone, live := open(t, b, "gone", persistent), open(t, b, "live", persistent)
	gone.sub("#", 1)
	live.sub("#", 1)
	gone.leave(b, "gone")
	pub, three := open(t, b, "pub"), open(t, b, "three", v3)
	three.sub("v1/refused/three", 0)
	pub.burst("a", 0, 10)
	require.Equal(t, numbers(0, 10), live.collect(10))
	for i := range 5 {
		require.Equal(t, byte(0), pub.publish1("a", "five "+strconv.Itoa(i)).ReasonCode)
		three.publish1("a", "three "+strconv.Itoa(i))
		pub.publish("a", "two "+strconv.Itoa(i), 2, 9)
		require.Equal(t, byte(0), pub.expect(packets.Pubrec).ReasonCode)
		pub.ack(packets.Pubrel, 9)
		require.Equal(t, byte(0), pub.expect(packets.Pubcomp).ReasonCode)
		require.Equal(t, []string{"five " + strconv.Itoa(i), "three " + strconv.Itoa(i), "two " + strconv.Itoa(i)}, live.collect(3))
	}
	three.nothing() // it was refused nothing
	require.Equal(t, int64(15), b.Stats().Dropped["queue_full"])
	require.Zero(t, b.Stats().Refused["Quota"])
	require.Equal(t, "gone", b.Queues().FullestOf)

	gone = open(t, b, "gone", persistent)
	require.Equal(t, numbers(0, 10), gone.collect(10), "the oldest are kept")
	gone.nothing()
	require.Equal(t, byte(0), pub.publish1("a", "room again").ReasonCode)
	require.Equal(t, []string{"room again"}, gone.collect(1))
}

// A stream has many listeners, and so has what a node sends over the link.
func TestAListenerThatNeverComesBackStopsNothing(t *testing.T) {
	b, _ := kept(t, t.TempDir(), func(o *Options) { o.Limits.Session.Bytes = 1000 })
	gone, live := open(t, b, "gone", persistent), open(t, b, "live")
	gone.sub("#", 1)
	live.sub("#", 1)
	gone.leave(b, "gone")
	for range 3 {
		for _, topic := range []string{"v1/nodes/n1/devices/lamp/telemetry/t", "own"} {
			done := make(chan error, 1)
			b.Pass(Message{Topic: topic, Payload: []byte("x"), QoS: 1, Publisher: Identity{Version: 5}}, func(err error) { done <- err })
			require.NoError(t, <-done)
			live.ack(packets.Puback, live.expect(packets.Publish).PacketID)
		}
	}
	require.Equal(t, int64(4), b.Stats().Dropped["queue_full"])
	require.Zero(t, b.Stats().Refused[string(resource.Quota)])
}

// A member that is away and full is passed over for one that has room, there or not.
func testSharedGroupLeavesOutWhoIsFull(t *testing.T, at place) {
	b := at.start(t, func(o *Options) { o.Limits.Session.Bytes = roomFor(numbers(0, 10)...) })
	first, second, pub := open(t, b, "first", persistent), open(t, b, "second", persistent), open(t, b, "pub")
	for _, c := range []*tc{first, second} {
		c.sub("$share/g/a", 1)
	}
	first.sub("b", 1)
	first.leave(b, "first")
	second.leave(b, "second")
	pub.burst("b", 0, 10)
	pub.burst("a", 0, 10)
	require.Zero(t, b.Stats().Dropped["queue_full"])
	pub.burst("a", 10, 1)
	require.Equal(t, int64(1), b.Stats().Dropped["queue_full"], "now nobody has room")
	require.Equal(t, numbers(0, 10), open(t, b, "second", persistent).collect(10))
}

// lines is a log that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// about lists the lines that say how many messages a client goes without.
func (l *lines) about(t *testing.T, client string) (all []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.buf.Bytes()) {
		var fields map[string]any
		require.NoError(t, json.Unmarshal(line, &fields))
		if fields["client"] == client && fields["messages"] != nil {
			all = append(all, fields)
		}
	}
	return all
}

// Each session without room is named, once a minute, and no other flood hides it.
func TestSessionsWithoutRoomAreNamed(t *testing.T) {
	log, now := &lines{}, &clock{now: time.Now()}
	b, _ := kept(t, t.TempDir(), func(o *Options) {
		o.Limits.Session.Bytes, o.Log, o.Now = 1, zerolog.New(log), now.read
	})
	for _, id := range []string{"one", "two"} {
		c := open(t, b, id, persistent)
		c.sub("a", 1)
		c.leave(b, id)
	}
	pub := open(t, b, "pub")
	for range 100 {
		require.NotZero(t, pub.publish1("v1/nodes/n1/spec", "refused, which is logged as well").ReasonCode)
	}
	pub.burst("a", 0, 101)
	now.add(2 * time.Minute)
	pub.burst("a", 0, 50)
	for _, id := range []string{"one", "two"} {
		said := log.about(t, id)
		require.Len(t, said, 2)
		for i, soFar := range []float64{1, 101} {
			require.Equal(t, "warn", said[i]["level"])
			require.Equal(t, "a", said[i]["topic"])
			require.Equal(t, soFar, said[i]["messages"])
		}
	}
}
