// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPutRefuses(t *testing.T) {
	o := NewOwner(Up, countFrom(0))
	for _, c := range []struct {
		e    Entry
		want error
	}{
		{Entry{Key: "k", Value: make([]byte, MaxValue+1)}, ErrValueTooLarge},
		{Entry{Key: ""}, ErrBadKey},
		{Entry{Key: strings.Repeat("k", MaxKey+1)}, ErrBadKey},
		{Entry{Key: "\xff"}, ErrBadKey},
	} {
		_, wrote, err := o.Put(c.e)
		require.ErrorIs(t, err, c.want)
		require.False(t, wrote)
	}
	require.Zero(t, o.Seq())
	_, wrote, err := o.Put(Entry{Key: "k", Value: make([]byte, MaxValue), Origin: strings.Repeat("é", MaxOrigin)})
	require.NoError(t, err)
	require.True(t, wrote)
}

func TestReading(t *testing.T) {
	p := newPair(t)
	for _, k := range []string{"b/2", "a/1", "b/1", "b/3"} {
		p.put(k, k)
	}
	_, ok := p.o.Delete("b/3", 5, "me")
	require.True(t, ok)
	_, ok = p.o.Delete("b/3", 5, "me")
	require.False(t, ok, "it is gone already")
	_, ok = p.o.Delete("never", 5, "me")
	require.False(t, ok)
	p.connect().run()
	for _, m := range []interface {
		Keys(string) []string
		Get(string) (Entry, bool)
		Len() int
	}{p.o, p.r} {
		require.Equal(t, []string{"b/1", "b/2"}, m.Keys("b/"))
		require.Equal(t, 3, m.Len())
		e, ok := m.Get("b/1")
		require.True(t, ok)
		require.Equal(t, "b/1", string(e.Value))
		_, ok = m.Get("b/3")
		require.False(t, ok)
	}
	n := 0
	p.o.Range("", func(Entry) bool { n++; return false })
	p.r.Range("", func(Entry) bool { n++; return false })
	require.Equal(t, 2, n)
}

func TestStepRefuses(t *testing.T) {
	p := newPair(t)
	p.connect().run()
	p.put("k", "v")
	d := Digest{}
	good := Message{V: Version, Map: Up, Type: TypeSeen, N: p.n, Digest: &d}
	for _, change := range []func(*Message){
		func(m *Message) { m.Type = TypeHello },
		func(m *Message) { m.Map = Down },
		func(m *Message) { m.Digest = nil },
		func(m *Message) { m.V = 0 },
	} {
		m := good
		change(&m)
		require.ErrorIs(t, p.o.Step(m), ErrMalformed)
	}
	stale := good
	stale.N++
	require.NoError(t, p.o.Step(stale))
	require.Equal(t, phaseSendingDeltas, p.o.connection.phase, "of another connection")
	p.o.Disconnect()
	require.NoError(t, p.o.Step(good))
	require.False(t, p.o.InStep())
	require.Empty(t, p.o.Messages())
	p.o.Resend()
	require.Empty(t, p.o.Messages())
	require.Empty(t, p.r.Step(Message{}), "not even an answer")
	require.Empty(t, p.r.Messages())
}

func TestRestoreRefuses(t *testing.T) {
	s := MapState{Lineage: Lineage{N: 1, Nonce: 2}, Seq: 5}
	seq := func(e ...Entry) iter.Seq[Entry] { return slices.Values(e) }
	for name, entries := range map[string]iter.Seq[Entry]{
		"seq twice":    seq(Entry{Key: "a", Seq: 1}, Entry{Key: "b", Seq: 1}),
		"key twice":    seq(Entry{Key: "a", Seq: 1}, Entry{Key: "a", Seq: 2}),
		"beyond seq":   seq(Entry{Key: "a", Seq: 6}),
		"no seq":       seq(Entry{Key: "a"}),
		"key":          seq(Entry{Seq: 1}),
		"large value":  seq(Entry{Key: "a", Seq: 1, Value: make([]byte, MaxValue+1)}),
		"and the rest": nil,
	} {
		if entries == nil {
			_, err := RestoreOwner(Up, MapState{}, seq(), countFrom(0))
			require.Error(t, err, "no lineage")
			continue
		}
		_, err := RestoreOwner(Up, s, entries, countFrom(0))
		require.Error(t, err, name)
	}
	_, err := RestoreReplica(Up, s, seq(Entry{Key: "a"}, Entry{Key: "a"}))
	require.Error(t, err)
	_, err = RestoreReplica(Up, s, seq(Entry{Key: "a", Deleted: true}))
	require.Error(t, err)
}

func TestJournalWaitsForSomethingToSay(t *testing.T) {
	p := newPair(t)
	j := p.o.TakeChanges()
	require.True(t, j.Dirty && j.Reset, "the lineage is stored before anybody hears of it")
	require.False(t, p.o.TakeChanges().Dirty)
	require.False(t, p.r.TakeChanges().Dirty)

	p.put("k", "v")
	p.connect().run()
	p.o.Delete("k", 0, "")
	p.run()
	require.Zero(t, p.o.order.len)
	require.Equal(t, JournalChanges{}, p.o.TakeChanges(), "an acknowledgement may wait")
	p.put("other", "v")
	j = p.o.TakeChanges()
	require.Equal(t, []string{"k"}, j.Dropped)
	require.Equal(t, "other", j.Entries[0].Key)
	require.Len(t, j.Entries, 1)
	require.Equal(t, p.o.state(), j.State)

	p.run()
	p.repLog = nil
	p.connect().run()
	for _, j := range p.repLog {
		require.False(t, j.Dirty, "HELLO and SEEN need no commit")
	}
	require.True(t, func() bool { j := NewReplica(Up); j.changes.dirty = true; return j.TakeChanges().Reset }())
}

// A value written between the decision to ADOPT and its sending belongs to a
// DELTA after it.
func TestWriteDuringAdopt(t *testing.T) {
	p := newPair(t)
	p.put("a", "1")
	p.connect().run()
	p.projectAnew()
	p.r.Step(p.wire(p.o.Messages()[0]))
	require.NoError(t, p.o.Step(p.wire(p.r.Messages()[0])))
	p.put("a", "2")
	p.forget()
	p.run()
	p.requireInStep()
	require.Equal(t, 1, p.count[TypeAdopt])
	require.Equal(t, 1, p.count[TypeDelta])
	require.Zero(t, p.count[TypeFull])
}

// A replica that was put back to an older state is caught up from there, or,
// when a tombstone that it would need is gone, given everything.
func TestReplicaRolledBack(t *testing.T) {
	p := newPair(t)
	p.put("a", "1")
	p.put("b", "1")
	p.connect().run()
	old := newDisk()
	for _, j := range p.repLog {
		old.commit(j)
	}
	for _, deleted := range []bool{false, true} {
		if deleted {
			p.o.Delete("b", 0, "")
		} else {
			p.put("a", "2")
		}
		p.run()
		r, err := RestoreReplica(Up, old.state, maps.Values(old.entries))
		require.NoError(t, err)
		p.r = r
		p.forget()
		p.connect().run()
		p.requireInStep()
		require.Equal(t, deleted, p.count[TypeFull] == 1)
		require.Equal(t, !deleted, p.count[TypeDelta] == 1)
	}
}

// A fault inside the replica shows when the owner hears the digest of a place
// that it knows, though it has written on since.
func TestDivergenceIsSeenUnderWrites(t *testing.T) {
	p := newPair(t)
	p.put("a", "1")
	p.put("b", "1")
	p.connect().run()
	e, _ := p.r.Get("a")
	e.Value = []byte("flipped")
	p.r.set(&e)
	p.put("b", "2")
	for _, m := range p.o.Messages() {
		p.r.Step(p.wire(m))
	}
	p.put("b", "3")
	require.NoError(t, p.o.Step(p.wire(p.r.Messages()[0])))
	require.Equal(t, phaseSendingFull, p.o.connection.phase)
	p.run()
	p.requireInStep()
}

func TestForeignReplicaCostsOneFull(t *testing.T) {
	p := newPair(t)
	p.put("a", "1")
	p.r.lineage = Lineage{N: 40, Nonce: 1}
	p.connect().run()
	p.requireInStep()
	require.Equal(t, Lineage{N: 41, Nonce: p.o.Lineage().Nonce}, p.o.Lineage())
	require.Equal(t, 1, p.count[TypeFull])
}

func TestAdoptNeverGoesBack(t *testing.T) {
	p := newPair(t)
	p.put("a", "1")
	p.connect().run()
	var late []Message
	for range 2 {
		p.projectAnew()
		p.r.Step(p.o.Messages()[0])
		require.NoError(t, p.o.Step(p.r.Messages()[0]))
		late = append(late, p.o.Messages()...)
		p.r.Step(late[len(late)-1])
		require.NoError(t, p.o.Step(p.r.Messages()[0]))
		p.requireInStep()
	}
	require.Equal(t, []Type{TypeAdopt, TypeAdopt}, []Type{late[0].Type, late[1].Type})
	p.r.Step(late[0])
	require.Equal(t, p.o.Lineage(), p.r.Lineage())
}

// fullParts brings a fresh pair to where a FULL of three parts is under way.
func fullParts(t *testing.T) (*testPair, []Message) {
	p := newPair(t)
	p.o.limits.entries = 1
	for _, k := range []string{"a", "b", "c"} {
		p.put(k, k)
	}
	p.connect()
	p.r.Step(p.o.Messages()[0])
	require.NoError(t, p.o.Step(p.r.Messages()[0]))
	parts := p.o.Messages()
	require.Len(t, parts, 3)
	return p, parts
}

func TestFullIsAppliedOnlyWhole(t *testing.T) {
	p, parts := fullParts(t)
	for _, i := range []int{0, 0, 2, 2, 0} { // the second part is missing
		require.Empty(t, p.r.Step(parts[i]))
		seen := p.r.Messages()[0]
		require.Equal(t, parts[0].ID, seen.ID)
		require.Equal(t, uint32(1), seen.Part)
	}
	require.Empty(t, p.r.Step(parts[1]))
	other := parts[0]
	other.ID++
	require.Empty(t, p.r.Step(other), "a new one discards what there was of the old one")
	require.Empty(t, p.r.Step(parts[2]))
	require.Equal(t, 1, p.r.partial.Len())
	require.False(t, p.r.TakeChanges().Dirty)
	require.Zero(t, p.r.Len())
	p.o.Resend()
	p.run()
	p.requireInStep()
}

func TestFullWithAnotherDigestIsNotApplied(t *testing.T) {
	p, parts := fullParts(t)
	parts[2].Digest = &Digest{}
	for _, m := range parts {
		require.Empty(t, p.r.Step(m))
	}
	require.Zero(t, p.r.Len())
	p.o.Resend()
	p.run()
	p.requireInStep()
}

func TestDeltaOfAnotherLineageIsIgnored(t *testing.T) {
	p := newPair(t)
	p.put("a", "1")
	p.connect().run()
	p.put("a", "2")
	m := p.o.Messages()[0]
	m.Lineage.Nonce++
	require.Empty(t, p.r.Step(m))
	require.False(t, p.r.TakeChanges().Dirty)
	require.Equal(t, p.o.Acked(), p.r.Messages()[0].Applied, "but it is answered")
}

func TestFork(t *testing.T) {
	s := MapState{Lineage: Lineage{N: 4, Nonce: 1}, Seq: 9, Acked: 3, GCFloor: 2, VerFloor: 6}
	require.Equal(t, MapState{Lineage: Lineage{N: 5, Nonce: 1000}, Seq: 9, GCFloor: 2, VerFloor: 7<<32 | 6}, s.Fork(countFrom(0), 7))
	require.Equal(t, uint64(1<<32|5), Entry{Ver: 5}.Fork(0).Ver)
	require.Equal(t, uint64(8<<32|5), Entry{Ver: 7<<32 | 5}.Fork(7).Ver, "at least 2^32 more")
}

func TestText(t *testing.T) {
	require.Equal(t, "down up direction(7)", Down.String()+" "+Up.String()+" "+MapDirection(7).String())
	require.Equal(t, "HELLO FULL type(0)", TypeHello.String()+" "+TypeFull.String()+" "+Type(0).String())
	require.True(t, errors.Is(new(Digest).UnmarshalCBOR([]byte{1}), ErrMalformed))
}

func TestDigestDependsOnContentOnly(t *testing.T) {
	a, b := NewOwner(Up, countFrom(0)), NewOwner(Down, countFrom(5))
	require.Equal(t, Digest{}, a.Digest())
	for _, k := range []string{"x", "y", "z"} {
		_, _, _ = a.Put(Entry{Key: k, Value: []byte(k), Ver: 3})
	}
	for _, k := range []string{"z", "q", "y", "x"} {
		_, _, _ = b.Put(Entry{Key: k, Value: []byte(k), Ver: 3, TS: 9, Origin: "else"})
	}
	require.NotEqual(t, a.Digest(), b.Digest())
	b.Delete("q", 0, "")
	require.Equal(t, a.Digest(), b.Digest())
	split := func(key, value string) Digest {
		o := NewOwner(Up, countFrom(0))
		_, _, _ = o.Put(Entry{Key: key, Value: []byte(value), Ver: 1})
		return o.Digest()
	}
	require.NotEqual(t, split("ab", "c"), split("a", "bc"))
	long := strings.Repeat("v", 1000)
	require.NotEqual(t, split("a", long), split("a", long+"v"))
}

// Somebody who writes before each answer is never in step, and yet the replica has caught up.
func TestCaughtUpWhileWritingGoesOn(t *testing.T) {
	p := newPair(t)
	p.put("a", "1")
	p.connect()
	require.False(t, p.o.CaughtUp())
	for i := range 10 {
		p.put("b", fmt.Sprint(i))
		for _, m := range p.o.Messages() {
			p.r.Step(p.wire(m))
		}
		p.put("b", fmt.Sprint(i, "again"))
		for _, m := range p.r.Messages() {
			require.NoError(t, p.o.Step(p.wire(m)))
		}
		require.False(t, p.o.InStep())
	}
	require.True(t, p.o.CaughtUp())
	p.o.Disconnect()
	require.False(t, p.o.CaughtUp())
	p.connect()
	require.False(t, p.o.CaughtUp(), "what was written meanwhile was not said yet")
}
