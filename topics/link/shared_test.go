// SPDX-License-Identifier: Apache-2.0

package link

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// An owner of values with a common end does in every respect what one that holds them whole does.
func TestAValueWithASharedEndIsLikeAnyOther(t *testing.T) {
	tail := strings.Repeat("and all the rest", 4)
	shared, whole := newPair(t), newPair(t)
	put := func(key, value, tail string) (written bool) {
		e := Entry{Key: key, Value: []byte(value)}
		got, written, err := shared.o.PutShared(e, tail)
		require.NoError(t, err)
		want, also, err := whole.o.Put(e)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, also, written)
		require.Equal(t, whole.o.Digest(), shared.o.Digest())
		require.Equal(t, whole.o.Bytes(), shared.o.Bytes())
		return written
	}
	agree := func() {
		t.Helper()
		shared.run()
		whole.run()
		shared.requireInStep()
		require.Equal(t, mapContent(whole.r.Range), mapContent(shared.r.Range))
		require.Len(t, shared.ownerLog, len(whole.ownerLog))
		for i, j := range shared.ownerLog {
			require.ElementsMatch(t, whole.ownerLog[i].Entries, j.Entries)
		}
		require.Equal(t, whole.bytes, shared.bytes)
	}
	require.True(t, put("a", "one "+tail, tail))
	require.True(t, put("b", "two "+tail, tail))
	shared.connect()
	whole.connect()
	agree() // by a FULL
	require.False(t, put("a", "one "+tail, tail))
	require.False(t, put("a", "one "+tail, ""), "the same value, however it is held")
	require.True(t, put("a", "another "+tail, tail))
	require.True(t, put("b", "short", tail), "a value that has not that end is held as it is")
	require.True(t, put("c", tail, tail), "nor need it have a beginning")
	agree() // by a DELTA
	require.True(t, put("c", "no end", ""))
	_, there := shared.o.Delete("a", 0, "")
	require.True(t, there)
	whole.o.Delete("a", 0, "")
	agree()
}

func TestASharedEndIsHeldOnce(t *testing.T) {
	o := NewOwner(Down, countFrom(0))
	tail := strings.Repeat("x", 1000)
	for _, key := range []string{"a", "b"} {
		_, _, err := o.PutShared(Entry{Key: key, Value: []byte(key + tail)}, tail)
		require.NoError(t, err)
		require.Equal(t, key, string(o.keys[key].Value))
		require.Less(t, cap(o.keys[key].Value), 10)
		require.Same(t, unsafe.StringData(tail), unsafe.StringData(o.keys[key].tail))
	}
}

// What FULL is sent of stays as it was, shared ends and all.
func TestASharedEndThatChangesDuringAFull(t *testing.T) {
	p := newPair(t)
	p.o.limits.entries, p.o.limits.window = 1, 1
	for _, key := range []string{"a", "b", "c"} {
		_, _, err := p.o.PutShared(Entry{Key: key, Value: []byte(key + " old")}, " old")
		require.NoError(t, err)
	}
	p.connect()
	p.r.Step(p.wire(p.o.Messages()[0]))
	require.NoError(t, p.o.Step(p.wire(p.r.Messages()[0])))
	p.r.Step(p.wire(p.o.Messages()[0])) // the first part
	for _, key := range []string{"a", "b", "c"} {
		_, _, err := p.o.PutShared(Entry{Key: key, Value: []byte(key + " new")}, " new")
		require.NoError(t, err)
	}
	p.run()
	p.requireInStep()
	e, _ := p.r.Get("b")
	require.Equal(t, "b new", string(e.Value))
}

func TestAProjectionHasNoJournal(t *testing.T) {
	o := NewProjection(Down, countFrom(0))
	_, _, err := o.Put(Entry{Key: "k", Value: []byte("v")})
	require.NoError(t, err)
	require.Equal(t, JournalChanges{}, o.TakeChanges())
	require.Empty(t, o.changes.entries)
}
