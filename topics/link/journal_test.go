// SPDX-License-Identifier: Apache-2.0

package link

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func journalKeys(j JournalChanges) (keys []string) {
	for _, e := range j.Entries {
		keys = append(keys, e.Key+"="+string(e.Value))
	}
	return keys
}

// A journal has the last word on each key, in the order in which the keys came up.
func TestAJournalIsTheLastWord(t *testing.T) {
	var l changeLog
	put := func(key, value string, seq uint64) { l.put(Entry{Key: key, Value: []byte(value), Seq: seq}) }
	l.dirty = true
	put("b", "1", 1)
	put("a", "1", 2)
	l.drop("c")
	put("b", "2", 3)
	l.drop("a")
	l.drop("a")
	put("d", "1", 4)
	l.drop("d")
	put("d", "2", 5) // it is there again
	j := l.take(MapState{})
	require.Equal(t, []string{"b=2", "d=2"}, journalKeys(j))
	require.Equal(t, []string{"a", "c"}, j.Dropped)

	l.drop("d")
	require.False(t, l.take(MapState{}).Dirty, "what may wait does")
	l.dirty = true
	put("e", "1", 6)
	j = l.take(MapState{})
	require.Equal(t, []string{"e=1"}, journalKeys(j))
	require.Equal(t, []string{"d"}, j.Dropped)

	l.dirty, l.reset = true, true
	l.drop("e")
	put("f", "1", 7)
	j = l.take(MapState{})
	require.Equal(t, []string{"f=1"}, journalKeys(j))
	require.Empty(t, j.Dropped, "the store forgets everything before")
	require.Empty(t, l.entries)
	require.Empty(t, l.at)
}
