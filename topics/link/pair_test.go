// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// countFrom is a source of nonces that tests can repeat.
func countFrom(from uint64) func() uint64 {
	return func() uint64 {
		from += 1000
		return from
	}
}

// testPair is an owner and a replica with a perfect channel between them, through
// the encoding and with a commit before each send.
type testPair struct {
	t                testing.TB
	o                *Owner
	r                *Replica
	n                uint64
	count            map[Type]int
	entries          map[string]int // how often each key was sent
	bytes            int
	changes          []Entry
	ownerLog, repLog []JournalChanges
}

func newPair(t testing.TB) *testPair {
	return &testPair{t: t, o: NewOwner(Up, countFrom(0)), r: NewReplica(Up), count: map[Type]int{}, entries: map[string]int{}}
}

func (p *testPair) connect() *testPair {
	p.n++
	p.o.Connect(p.n)
	return p
}

func (p *testPair) wire(m Message) Message {
	b, err := Encode(m)
	require.NoError(p.t, err)
	m, err = Decode(b)
	require.NoError(p.t, err)
	p.count[m.Type]++
	p.bytes += len(b)
	for _, e := range m.Entries {
		p.entries[e.Key]++
	}
	return m
}

// run exchanges messages until nobody has anything to say.
func (p *testPair) run() *testPair {
	for {
		p.ownerLog = append(p.ownerLog, p.o.TakeChanges())
		out := p.o.Messages()
		for _, m := range out {
			p.changes = append(p.changes, p.r.Step(p.wire(m))...)
		}
		p.repLog = append(p.repLog, p.r.TakeChanges())
		back := p.r.Messages()
		for _, m := range back {
			require.NoError(p.t, p.o.Step(p.wire(m)))
		}
		if len(out)+len(back) == 0 {
			return p
		}
	}
}

func (p *testPair) put(key, value string) Entry {
	e, _, err := p.o.Put(Entry{Key: key, Value: []byte(value)})
	require.NoError(p.t, err)
	return e
}

func (p *testPair) forget() { clear(p.count); clear(p.entries); p.bytes = 0; p.changes = nil }

func mapContent(rng func(string, func(Entry) bool)) map[string]string {
	out := map[string]string{}
	rng("", func(e Entry) bool {
		out[e.Key] = fmt.Sprintf("%d:%s:%v", e.Ver, e.Value, e.Meta)
		return true
	})
	return out
}

func (p *testPair) requireInStep() {
	p.t.Helper()
	require.True(p.t, p.o.InStep())
	require.False(p.t, p.o.Waiting())
	require.Zero(p.t, p.o.Dirty())
	require.Equal(p.t, mapContent(p.o.Range), mapContent(p.r.Range))
	require.Equal(p.t, p.o.Lineage(), p.r.Lineage())
	require.Equal(p.t, p.o.Digest(), p.r.Digest())
}

// projectAnew replaces the owner by one that has the same values, as a hub
// does at its start.
func (p *testPair) projectAnew() {
	old := p.o
	p.o = NewOwner(Up, countFrom(p.n<<32+7))
	p.o.limits = old.limits
	for _, k := range old.Keys("") {
		e, _ := old.Get(k)
		_, _, err := p.o.Put(e)
		require.NoError(p.t, err)
	}
	p.connect()
}

func TestOldest(t *testing.T) {
	p := NewOwner(Up, func() uint64 { return 1 })
	_, any := p.Oldest()
	require.False(t, any)
	for i, key := range []string{"a", "b", "a"} { // writing a key again makes it the newest
		_, _, err := p.Put(Entry{Key: key, Value: []byte{byte(i)}, TS: int64(10 + i)})
		require.NoError(t, err)
	}
	ts, any := p.Oldest()
	require.True(t, any)
	require.Equal(t, int64(11), ts)
}
