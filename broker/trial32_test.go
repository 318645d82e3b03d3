package broker

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
)

func roomyOutlet(o *Options) {
	o.Outlet = &OutletOptions{Keep: []string{"kept/#"}, Pass: []string{"passed/#"}, Bytes: 32 << 20, Age: time.Hour}
}

// passed publishes numbered messages, and waits until all are stored.
func passed(t *testing.T, b *Broker, first, last int) {
	t.Helper()
	told := make(chan error, last-first)
	for i := first; i < last; i++ {
		b.Pass(Message{Topic: "kept/a", Payload: []byte(strconv.Itoa(i)), QoS: 1}, func(err error) { told <- err })
	}
	for range last - first {
		require.NoError(t, <-told)
	}
}

// taken takes messages out until there are none, and lets go of each.
func taken(t *testing.T, o *Outlet, n int) (payloads []int) {
	t.Helper()
	for len(payloads) < n {
		p, ok := o.Next()
		if !ok {
			select {
			case <-o.Ready():
			case <-time.After(patience):
				t.Fatalf("nothing after %d", len(payloads))
			}
			continue
		}
		i, err := strconv.Atoi(string(p.Payload))
		require.NoError(t, err)
		payloads = append(payloads, i)
		o.Done(p.ID)
	}
	return payloads
}

func from(first, last int) (all []int) {
	for i := first; i < last; i++ {
		all = append(all, i)
	}
	return all
}

const plenty = 20_000 // messages: several times what is in memory

func TestTrial32WhatWaitsIsOnDisk(t *testing.T) {
	dir := t.TempDir()
	b, stop := kept(t, dir, roomyOutlet)
	passed(t, b, 0, plenty)
	s := b.OutletStats()
	require.Equal(t, plenty, s.Messages)
	require.Less(t, b.outlet.sess.InMemory(), plenty/2)
	stop()

	b, _ = kept(t, dir, roomyOutlet)
	again := b.OutletStats()
	require.Equal(t, s.Messages, again.Messages)
	require.Equal(t, s.Bytes, again.Bytes, "as it was counted")
	require.Zero(t, b.outlet.sess.InMemory(), "nothing is loaded before somebody takes it")
	o := b.OpenOutlet(64)
	require.Equal(t, from(0, 5000), taken(t, o, 5000))
	require.Less(t, b.outlet.sess.InMemory(), plenty/2)
	passed(t, b, plenty, plenty+100)
	require.Equal(t, from(5000, plenty+100), taken(t, o, plenty-4900), "what came meanwhile is behind")
	require.Zero(t, b.OutletStats().Messages)
	require.Zero(t, b.OutletStats().Bytes)
	passed(t, b, 0, 10)
	require.Equal(t, from(0, 10), taken(t, o, 10), "and it goes on in memory")
}

// What was let go of in any order is gone, and what was not is given again after a restart.
func TestTrial32DoneInAnyOrder(t *testing.T) {
	dir := t.TempDir()
	b, stop := kept(t, dir, roomyOutlet)
	passed(t, b, 0, plenty)
	o := b.OpenOutlet(64)
	require.Len(t, taken(t, o, plenty-1000), plenty-1000)
	list, _ := next(t, o, 64)
	for i, p := range list {
		if i%2 == 0 {
			o.Done(p.ID)
		}
	}
	stop()
	b, _ = kept(t, dir, roomyOutlet)
	got := taken(t, b.OpenOutlet(64), 1000-32)
	var want []int
	for i := range 1000 {
		if i >= 64 || i%2 == 1 {
			want = append(want, plenty-1000+i)
		}
	}
	require.Equal(t, want, got)
}

func TestTrial32TheOldestGivesWayOnDisk(t *testing.T) {
	dir := t.TempDir()
	now := &clock{now: time.Now()}
	b, stop := kept(t, dir, func(o *Options) {
		roomyOutlet(o)
		o.Outlet.Bytes, o.Now = 1<<20, now.read
	})
	passed(t, b, 0, plenty)
	s := b.OutletStats()
	require.LessOrEqual(t, s.Bytes, 1<<20)
	require.EqualValues(t, plenty-s.Messages, s.Dropped["full"])
	require.Equal(t, from(plenty-s.Messages, plenty), taken(t, b.OpenOutlet(64), s.Messages))
	passed(t, b, 0, plenty/2)
	stop()
	b, stop = kept(t, dir, func(o *Options) {
		roomyOutlet(o)
		o.Now = now.read
	})
	waiting := b.OutletStats().Messages
	require.Equal(t, plenty/2, waiting)
	now.add(2 * time.Hour)
	passed(t, b, 0, 1)
	require.EqualValues(t, waiting, b.OutletStats().Dropped["too_old"])
	require.Equal(t, []int{0}, taken(t, b.OpenOutlet(64), 1))
	stop()
	b, _ = kept(t, dir, roomyOutlet)
	require.Zero(t, b.OutletStats().Messages, "on disk they are gone, too")
}

// A place on the disk that goes bad costs the messages there, which is counted and told, and no others.
func TestTrial32WhatCannotBeReadIsCounted(t *testing.T) {
	dir := t.TempDir()
	b, _ := kept(t, dir, roomyOutlet)
	j := b.store.journal.(*journal.Journal)
	passed(t, b, 0, plenty)
	log := filepath.Join(dir, "000000000001.log")
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	at := strings.Index(string(text), strconv.Itoa(plenty-1000))
	require.Positive(t, at)
	f, err := os.OpenFile(log, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("7"), int64(at))
	require.NoError(t, errors.Join(err, f.Close()))
	got := taken(t, b.OpenOutlet(64), plenty-1)
	require.NotContains(t, got, plenty-1000)
	require.IsIncreasing(t, got)
	require.EqualValues(t, 1, b.OutletStats().Dropped["damaged"])
	require.Zero(t, b.OutletStats().Messages)
	require.ErrorContains(t, j.Damage(), log)
}

// What is passed only has a bounded place in memory, and doesn't wait for all that is on disk.
func TestTrial32WhatIsOnlyPassedHasRoom(t *testing.T) {
	b, _ := kept(t, t.TempDir(), roomyOutlet)
	o := b.OpenOutlet(64)
	passed(t, b, 0, plenty)
	big := strings.Repeat("x", 10_000)
	for range 1000 {
		b.Publish(Message{Topic: "passed/a", Payload: []byte(big)})
	}
	require.Less(t, b.OutletStats().Bytes, 5<<20)
	require.Positive(t, b.OutletStats().Dropped["full_unstored"])
	seen, stored := 0, 0
	for stored < plenty {
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
		o.Done(p.ID)
	}
	require.Positive(t, seen)
}

// A message that several durable sessions get is stored for the outlet by itself, and one that
// can't be stored is not kept.
func TestTrial32OneCommitForAll(t *testing.T) {
	dir := t.TempDir()
	b, stop := kept(t, dir, roomyOutlet)
	for _, id := range []string{"one", "two"} {
		c := open(t, b, id, persistent)
		c.sub("kept/#", 1)
		c.leave(b, id)
	}
	passed(t, b, 0, plenty/4)
	stop()
	b, _ = kept(t, dir, roomyOutlet)
	require.Equal(t, plenty/4, b.OutletStats().Messages)
	require.Equal(t, from(0, plenty/4), taken(t, b.OpenOutlet(64), plenty/4))
	require.EqualValues(t, 2*plenty/4, b.counters.Queued.Load(), "the others' are there")
}
