package broker

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
)

func TestSessionsThatEndWithTheConnectionCostNoDisk(t *testing.T) {
	j, err := journal.Open(journal.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	b := start(t, func(o *Options) { o.Journal = j })
	sub, pub := open(t, b, "sub"), open(t, b, "pub", v3)
	sub.sub("a", 2)
	pub.burst("a", 0, 100)
	require.Equal(t, numbers(0, 100), sub.collect(100))
	pub.publish("a", "two", 2, 9)
	pub.expect(packets.Pubrec)
	pub.ack(packets.Pubrel, 9)
	pub.expect(packets.Pubcomp)
	require.Equal(t, byte(2), sub.expect(packets.Publish).FixedHeader.Qos)
	sub.disconnect()
	pub.leave(b, "pub")
	require.NoError(t, b.Close(t.Context()))
	require.NoError(t, j.Close())
	require.Zero(t, j.Stats().Commits)
	require.Zero(t, j.Stats().Records)
}

// failing is a journal that can be made to fail, and to wait.
type failing struct {
	*journal.Journal
	broken atomic.Bool
}

func (f *failing) Commit(changes []journal.Change, done func(error)) {
	if f.broken.Load() && done != nil {
		go done(errors.New("no space left on device"))
		return
	}
	f.Journal.Commit(changes, done)
}

func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	j, err := journal.Open(journal.Options{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	f := &failing{Journal: j}
	b := start(t, func(o *Options) { o.Journal = f })
	sub, away, pub := open(t, b, "sub", persistent), open(t, b, "away", persistent), open(t, b, "pub", persistent)
	sub.sub("a", 1)
	away.sub("a", 2)
	away.leave(b, "away")
	pub.publish1("r", "stored", retain)
	pub.publish1("a", "1")
	require.Equal(t, []string{"1"}, sub.collect(1))
	pub.publish("q", "two", 2, 50)
	pub.expect(packets.Pubrec)

	f.broken.Store(true)
	ack := pub.publish1("a", "refused")
	require.Equal(t, byte(0x83), ack.ReasonCode)
	require.Contains(t, ack.Properties.ReasonString, "no space left")
	require.Equal(t, byte(0x83), pub.publish1("r", "refused", retain).ReasonCode)
	require.Equal(t, byte(0x83), pub.publish1("r", "", retain).ReasonCode)
	require.Equal(t, byte(0x83), pub.publish1("s", "refused", retain).ReasonCode)
	pub.publish("a", "refused", 2, 60)
	require.Equal(t, byte(0x83), pub.expect(packets.Pubrec).ReasonCode)
	require.Equal(t, []byte{0x83}, pub.subscribe("b", 1).ReasonCodes)
	require.Equal(t, byte(0), pub.publish1("nobody", "needs the disk").ReasonCode)
	require.Equal(t, byte(0x88), dial(t, b).connect("new", persistent))
	require.Equal(t, byte(0), dial(t, b).connect("clean"), "what needs no disk goes on")
	reader := open(t, b, "reader")
	reader.sub("r", 0)
	require.Equal(t, "stored", string(reader.expect(packets.Publish).Payload), "what is on disk is retained")
	reader.sub("s", 0)
	reader.nothing()
	pub.ack(packets.Pubrel, 50)
	_, n := pub.ended()
	require.LessOrEqual(t, n, 1, "the answer to a PUBREL can't be no")

	f.broken.Store(false)
	pub = open(t, b, "pub", persistent)
	pub.ack(packets.Pubrel, 50)
	require.Equal(t, byte(0), pub.expect(packets.Pubcomp).ReasonCode)
	require.Equal(t, byte(0), pub.publish1("a", "2").ReasonCode)
	b, _ = restarted(t, dir, nil)
	away = open(t, b, "away", persistent)
	require.Equal(t, []string{"1", "2"}, away.collect(2))
	away.nothing()
	require.Equal(t, 1, b.Stats().Retained)
}

func TestJournalOfAnotherBroker(t *testing.T) {
	dir := t.TempDir()
	j, err := journal.Open(journal.Options{Dir: dir})
	require.NoError(t, err)
	defer j.Close()
	j.Commit([]journal.Change{{ID: 1, Value: []byte{200}}}, nil)
	done := make(chan struct{})
	j.Commit(nil, func(error) { close(done) })
	<-done
	_, err = New(Options{Journal: j})
	require.ErrorContains(t, err, dir)
	require.ErrorContains(t, err, "unknown kind")
}

// Nothing of a session stays behind: not on disk, and not in the journal's memory.
func TestEndedSessionsLeaveNothing(t *testing.T) {
	dir := t.TempDir()
	b, stop := kept(t, dir, nil)
	pub := open(t, b, "pub")
	for _, id := range []string{"one", "two"} {
		sub := open(t, b, id, persistent)
		sub.sub("a", 2)
		sub.sub("r/#", 1)
		sub.publish("q", "x", 2, 77)
		sub.expect(packets.Pubrec)
	}
	pub.burst("a", 0, 100)
	pub.publish("a", strings.Repeat("x", 1000), 2, 900)
	pub.expect(packets.Pubrec)
	for _, id := range []string{"one", "two"} {
		open(t, b, id).disconnect()
	}
	stop()
	j, err := journal.Open(journal.Options{Dir: dir})
	require.NoError(t, err)
	defer j.Close()
	require.Zero(t, j.Stats().Records)
}

// slow is a journal whose disk can be stopped.
type slow struct {
	*journal.Journal
	mu   sync.Mutex
	held bool
	wait []func()
}

func (s *slow) Commit(changes []journal.Change, done func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held {
		s.wait = append(s.wait, func() { s.Journal.Commit(changes, done) })
		return
	}
	s.Journal.Commit(changes, done)
}

func (s *slow) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = true
}

func (s *slow) letGo() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = false
	for _, commit := range s.wait {
		commit()
	}
	s.wait = nil
}

// While the disk takes its time nothing is acknowledged, nothing is sent at QoS 2, and
// nobody else waits; then the acknowledgements come in order.
func testAcknowledgementsFollowTheDisk(t *testing.T, at place) {
	j, err := journal.Open(journal.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	s := &slow{Journal: j}
	b := at.start(t, func(o *Options) { o.Journal = s })
	one, two, clean := open(t, b, "one", persistent), open(t, b, "two", persistent), open(t, b, "clean")
	one.sub("a", 1)
	two.sub("a", 2)
	clean.sub("#", 0)
	pub := open(t, b, "pub")
	s.hold()
	for i := range 100 {
		pub.publish("a", strconv.Itoa(i), byte(2-i%2), uint16(i)+1)
	}
	pub.publish("elsewhere", "needs no disk, but comes after", 1, 101)
	pub.nothing()
	require.Equal(t, numbers(0, 100), one.collect(100), "a second copy after a crash is allowed")
	two.nothing()
	clean.collect(101)
	s.letGo()
	for i := range 101 {
		kind := packets.Puback
		if i%2 == 0 && i < 100 {
			kind = packets.Pubrec
		}
		require.Equal(t, uint16(i)+1, pub.expect(kind).PacketID)
	}
	var got []string
	for released := 0; len(got) < 100 || released < 50; {
		if two.takeAny(func(pk packets.Packet) { got = append(got, string(pk.Payload)) }) == packets.Pubrel {
			released++
		}
	}
	require.Equal(t, numbers(0, 100), got)
	one.disconnect()
	two.disconnect()
	const left = 3 * 2 // of each: the session, its subscription, how far it was sent
	require.Eventually(t, func() bool { return j.Stats().Records == left }, patience, time.Millisecond, "%d", j.Stats().Records)
}

// Of a publish that is repeated again and again some repetitions are answered, and what
// comes behind them is, too.
func TestRepetitionsWhileTheDiskTakesItsTime(t *testing.T) {
	j, err := journal.Open(journal.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	s := &slow{Journal: j}
	b := start(t, func(o *Options) { o.Journal = s })
	for _, version := range []connectOption{v3, func(*packets.Packet) {}} {
		c := open(t, b, "c", version, persistent)
		s.hold()
		c.publish("own", "x", 2, 1)
		for range 40 {
			c.publish("own", "x", 2, 1, dup)
		}
		c.publish("own", "y", 1, 2)
		c.nothing()
		s.letGo()
		for range 16 {
			c.expect(packets.Pubrec)
		}
		c.expect(packets.Puback)
		c.ack(packets.Pubrel, 1)
		c.expect(packets.Pubcomp)
		c.leave(b, "c")
	}
}

// fickle fails a commit when the one after it is there.
type fickle struct {
	*journal.Journal
	fail bool
	held func()
}

func (f *fickle) Commit(changes []journal.Change, done func(error)) {
	switch {
	case f.fail && done != nil && f.held == nil:
		f.held = func() { done(errors.New("no space left on device")) }
	case f.held != nil && done != nil:
		held := f.held
		f.held, f.fail = nil, false
		go held()
		f.Journal.Commit(changes, done)
	default:
		f.Journal.Commit(changes, done)
	}
}

func TestARetainedMessageIsOneRecordWhateverFails(t *testing.T) {
	dir := t.TempDir()
	j, err := journal.Open(journal.Options{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	f := &fickle{Journal: j}
	b := start(t, func(o *Options) { o.Journal = f })
	pub := func(payload string) chan error {
		done := make(chan error, 1)
		b.Pass(Message{Topic: "a", Payload: []byte(payload), QoS: 1, Retain: true, Publisher: Identity{Version: 5}}, func(err error) { done <- err })
		return done
	}
	require.NoError(t, <-pub("old"))
	f.fail = true
	cleared := pub("")
	set := pub("new")
	require.Error(t, <-cleared)
	require.NoError(t, <-set)
	again, _ := restarted(t, dir, nil)
	require.Equal(t, "new", string(again.retained.get("a").Payload))
	require.NoError(t, <-pub("")) // or the old one would be back
	again, _ = restarted(t, dir, nil)
	require.Nil(t, again.retained.get("a"))
}
