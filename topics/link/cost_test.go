// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"fmt"
	"maps"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOneEntryPerKeyHoweverOftenItChanged(t *testing.T) {
	p := newPair(t)
	p.o.limits.entries = 3 // several chunks
	for i := range 20 {
		p.put(fmt.Sprint("k", i), "0")
	}
	p.connect().run()
	p.requireInStep()
	p.o.Disconnect()
	p.forget()
	for i := range 1000 {
		p.put(fmt.Sprint("k", i%10), fmt.Sprint(i))
	}
	require.Equal(t, 10, p.o.Dirty())
	p.connect().run()
	p.requireInStep()
	require.Len(t, p.entries, 10)
	for k, n := range p.entries {
		require.Equal(t, 1, n, k)
	}
	require.Equal(t, 1, p.count[TypeHello])
	require.Equal(t, 4, p.count[TypeDelta])
	require.Len(t, p.changes, 10)
}

// Nothing is sent twice while writes and acknowledgements interleave, whenever
// the replica gets round to answering.
func TestNothingTwiceOnAGoodChannel(t *testing.T) {
	p := newPair(t)
	p.o.limits = sendLimits{bytes: 1 << 20, entries: 2, window: 4}
	p.connect().run()
	p.forget()
	var back []Message
	for i := range 500 {
		p.put(fmt.Sprint("key", i), "x")
		for _, m := range p.o.Messages() {
			p.r.Step(p.wire(m))
			if i%3 == 0 {
				back = append(back, p.r.Messages()...)
			}
		}
		if i%7 == 0 && len(back) > 0 { // answers come late, in order
			require.NoError(t, p.o.Step(back[0]))
			back = back[1:]
		}
	}
	for _, m := range back {
		require.NoError(t, p.o.Step(m))
	}
	p.run()
	p.requireInStep()
	require.Len(t, p.entries, 500)
	for k, n := range p.entries {
		require.Equal(t, 1, n, k)
	}
	require.Zero(t, p.count[TypeFull])
}

// A key that changes while chunks are under way moves behind them, and nothing
// else is disturbed.
func TestRewritesBetweenChunks(t *testing.T) {
	p := newPair(t)
	p.o.limits = sendLimits{bytes: 1 << 20, entries: 1, window: 1}
	p.connect().run()
	for round := range 200 {
		p.put(fmt.Sprint("k", round%5), fmt.Sprint(round))
		p.put(fmt.Sprint("k", round*3%7), fmt.Sprint("x", round))
		for _, m := range p.o.Messages() {
			p.r.Step(p.wire(m))
		}
		if round%2 == 0 {
			p.o.Delete(fmt.Sprint("k", round%7), 0, "")
		}
		for _, m := range p.r.Messages() {
			require.NoError(t, p.o.Step(p.wire(m)))
		}
	}
	p.run()
	p.requireInStep()
	require.Zero(t, p.count[TypeFull])
	require.Equal(t, 1, p.count[TypeAdopt], "of the empty map, at the beginning")
}

// Rule 1: with no word from the replica, nothing but HELLO is sent. An owner
// that guesses sends what the replica has already.
func TestNoDeltaBeforeSeen(t *testing.T) {
	sent := map[bool]int{}
	for _, eager := range []bool{false, true} {
		p := newPair(t)
		p.connect().run()
		for i := range 50 {
			p.put(fmt.Sprint("k", i), "v")
		}
		for _, m := range p.o.Messages() { // the replica has it, the SEEN is lost
			p.r.Step(m)
		}
		p.r.Messages()
		p.connect()
		p.forget()
		if eager {
			p.o.startDeltas(p.o.acked)
		} else {
			require.Equal(t, phaseGreeting, p.o.connection.phase)
		}
		p.run()
		p.requireInStep()
		sent[eager] = p.bytes
		require.Equal(t, eager, len(p.entries) > 0)
	}
	require.Less(t, sent[false]*3, sent[true])
}

// Rule 5: acknowledged tombstones go, from memory and, with the next commit,
// from the store.
func TestTombstonesAreDropped(t *testing.T) {
	p := newPair(t)
	p.connect().run()
	for i := range 1000 {
		key := fmt.Sprint("k", i)
		p.put(key, "v")
		p.run()
		_, ok := p.o.Delete(key, 1, "me")
		require.True(t, ok)
		p.run()
		require.Zero(t, p.o.order.len)
		require.Empty(t, p.o.keys)
	}
	p.put("last", "v")
	p.run()
	stored := newDisk()
	for _, j := range p.ownerLog {
		stored.commit(j)
	}
	require.Len(t, stored.entries, 1)
	require.Greater(t, p.put("k0", "v").Ver, uint64(2), "versions don't fall when their tombstone is forgotten")
}

// Rule 7: what is there already costs nothing.
func TestSameValueIsNoWrite(t *testing.T) {
	p := newPair(t)
	e := p.put("k", "v")
	p.connect().run()
	p.forget()
	for _, again := range []Entry{{Key: "k", Value: []byte("v"), TS: 7, Origin: "x"}, {Key: "k", Value: []byte("v"), Ver: e.Ver}} {
		stored, wrote, err := p.o.Put(again)
		require.NoError(t, err)
		require.False(t, wrote)
		require.Equal(t, e, stored)
	}
	require.False(t, p.o.TakeChanges().Dirty)
	require.Empty(t, p.o.Messages())
	p.requireInStep()
	for _, other := range []Entry{{Key: "k", Value: []byte("v"), Ver: 9}, {Key: "k", Value: []byte("v"), Meta: Meta{Until: 5}}, {Key: "k", Value: nil}} {
		_, wrote, err := p.o.Put(other)
		require.NoError(t, err)
		require.True(t, wrote)
		p.run()
		p.requireInStep()
	}
	require.Len(t, p.changes, 3)
}

// A lineage begun anew over the same values costs four small messages, and
// nothing is stored but numbers.
func TestAdoptIsCheap(t *testing.T) {
	p := newPair(t)
	for i := range 1000 {
		p.put(fmt.Sprint("k", i), "value")
	}
	p.connect().run()
	p.projectAnew()
	p.forget()
	p.repLog = nil
	p.run()
	p.requireInStep()
	require.Equal(t, map[Type]int{TypeHello: 1, TypeSeen: 2, TypeAdopt: 1}, p.count)
	require.Less(t, p.bytes, 400)
	require.Empty(t, p.changes)
	for _, j := range p.repLog {
		require.Empty(t, j.Entries)
		require.Empty(t, j.Dropped)
	}
	p.put("k1", "other")
	p.run()
	p.requireInStep()
	require.Len(t, p.entries, 1)
}

// A new lineage over a map that differs sends all of it once, and the replica
// stores and tells only what differs.
func TestFullTellsOnlyDifferences(t *testing.T) {
	p := newPair(t)
	p.o.limits.entries = 7
	for i := range 100 {
		p.put(fmt.Sprint("k", i), "value")
	}
	p.connect().run()
	p.projectAnew()
	p.put("k5", "other")
	p.o.Delete("k6", 0, "")
	p.forget()
	p.repLog = nil
	p.run()
	p.requireInStep()
	require.Equal(t, 15, p.count[TypeFull])
	require.Len(t, p.changes, 2)
	require.True(t, p.changes[0].Deleted)
	require.Equal(t, "k6", p.changes[0].Key)
	require.Equal(t, "other", string(p.changes[1].Value))
	d := newDisk()
	for _, j := range p.repLog {
		require.LessOrEqual(t, len(j.Entries), 1)
		d.commit(j)
	}
	require.Equal(t, MapState{Lineage: p.o.Lineage(), Applied: p.o.Seq()}, d.state)
}

// The timer asks; it doesn't repeat. What arrived meanwhile is not sent again,
// and a FULL goes on where it was.
func TestResendGoesOnWhereTheReplicaIs(t *testing.T) {
	p := newPair(t)
	p.o.limits = sendLimits{bytes: 1 << 20, entries: 1, window: 2}
	for i := range 6 {
		p.put(fmt.Sprint("k", i), "v")
	}
	p.connect()
	p.r.Step(p.wire(p.o.Messages()[0]))
	require.NoError(t, p.o.Step(p.wire(p.r.Messages()[0])))
	parts := p.o.Messages()
	require.Len(t, parts, 2)
	p.r.Step(p.wire(parts[0])) // the second is lost
	p.r.Messages()             // and so is the answer
	require.True(t, p.o.Waiting())
	require.Empty(t, p.o.Messages())
	p.o.Resend()
	p.run()
	p.requireInStep()
	require.Equal(t, 6, p.count[TypeFull])
	for k, n := range p.entries {
		require.Equal(t, 1, n, k)
	}
}

func TestMessagesStayWithinTheLimit(t *testing.T) {
	p := newPair(t)
	for i := range 40 {
		_, _, err := p.o.Put(Entry{
			Key: fmt.Sprint(i, "/", string(bytes.Repeat([]byte("k"), MaxKey-10))), Value: bytes.Repeat([]byte{byte(i)}, MaxValue-i*3000),
			Origin: string(bytes.Repeat([]byte("o"), 2*MaxOrigin)), TS: -1 << 62, Ver: 1<<64 - 1, Meta: Meta{For: 1<<64 - 1, BasedOn: 1<<64 - 1, Until: -1 << 62},
		})
		require.NoError(t, err)
	}
	p.connect().run() // Encode fails above the limit
	p.requireInStep()
	require.Less(t, p.count[TypeFull], 40)
	for i := range 5000 {
		p.put(fmt.Sprint("small/", i), "v")
	}
	p.forget()
	p.run()
	p.requireInStep()
	require.LessOrEqual(t, p.count[TypeDelta], 4)
}

func TestFullIsOneMapThoughWritesGoOn(t *testing.T) {
	p := newPair(t)
	p.o.limits = sendLimits{bytes: 1 << 20, entries: 1, window: 1}
	for i := range 10 {
		p.put(fmt.Sprint("k", i), "old")
	}
	want := mapContent(p.o.Range)
	p.connect()
	for i := 0; p.r.Len() == 0; i++ {
		for _, m := range p.o.Messages() {
			p.r.Step(p.wire(m))
		}
		for _, m := range p.r.Messages() {
			require.NoError(t, p.o.Step(p.wire(m)))
		}
		if i > 0 {
			p.put(fmt.Sprint("k", i%10), fmt.Sprint("new", i))
			p.o.Delete(fmt.Sprint("k", (i+5)%10), 0, "")
		}
	}
	require.Equal(t, want, mapContent(p.r.Range))
	p.run()
	p.requireInStep()
}

func BenchmarkMemory(b *testing.B) {
	const keys = 1_000_000
	for b.Loop() {
		before := heapBytes()
		o := NewOwner(Up, countFrom(0))
		for i := range keys {
			_, _, _ = o.Put(Entry{Key: fmt.Sprintf("devices/lamp-%07d/reported/power", i), Value: []byte("ON"), Origin: "mapper"})
			if i%1000 == 0 {
				o.TakeChanges() // as hosts do
			}
		}
		o.TakeChanges()
		owner := heapBytes()
		b.ReportMetric(float64(owner-before)/keys, "owner-B/key")
		r, err := RestoreReplica(Up, MapState{}, func(yield func(Entry) bool) {
			o.Range("", func(e Entry) bool {
				e.Key, e.Value = string([]byte(e.Key)), bytes.Clone(e.Value)
				return yield(e)
			})
		})
		require.NoError(b, err)
		b.ReportMetric(float64(heapBytes()-owner)/keys, "replica-B/key")
		runtime.KeepAlive(o)
		runtime.KeepAlive(r)
	}
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func BenchmarkPut(b *testing.B) {
	o := NewOwner(Up, countFrom(0))
	keys := make([]string, 10_000)
	for i := range keys {
		keys[i] = fmt.Sprintf("devices/lamp-%07d/reported/power", i)
	}
	values := [][]byte{[]byte("ON"), []byte("OFF")}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		_, _, _ = o.Put(Entry{Key: keys[i%len(keys)], Value: values[i/len(keys)%2]})
		if i++; i%256 == 0 {
			o.TakeChanges()
		}
	}
}

// Restoring what was journaled gives the same machine.
func TestJournalsMakeTheStore(t *testing.T) {
	p := newPair(t)
	p.o.limits.entries = 3
	for i := range 30 {
		p.put(fmt.Sprint("k", i%11), fmt.Sprint(i))
		p.o.Delete(fmt.Sprint("k", (i*7)%11), 0, "")
		if i%4 == 0 {
			p.connect().run()
		}
	}
	p.run()
	p.put("after", "v")
	p.ownerLog = append(p.ownerLog, p.o.TakeChanges())
	od, rd := newDisk(), newDisk()
	for _, j := range p.ownerLog {
		od.commit(j)
	}
	for _, j := range p.repLog {
		rd.commit(j)
	}
	o, err := RestoreOwner(Up, od.state, maps.Values(od.entries), countFrom(9))
	require.NoError(t, err)
	r, err := RestoreReplica(Up, rd.state, maps.Values(rd.entries))
	require.NoError(t, err)
	require.Equal(t, p.o.Digest(), o.Digest())
	require.Equal(t, p.o.state(), o.state())
	require.Equal(t, p.o.Dirty(), o.Dirty())
	require.Equal(t, p.r.Digest(), r.Digest())
	p.o, p.r = o, r
	p.forget()
	p.connect().run()
	p.requireInStep()
	require.Len(t, p.entries, 1)
}
