// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/test/orderedtest"
)

// A hub that stands by with a program of an earlier version stops where the log is of one that it doesn't know, and has nothing of what follows. One that knows
// the version takes over, and knows which it is.
func TestAnOldProgramStopsWhereTheLogIsOfAnotherVersion(t *testing.T) {
	memory, key := orderedtest.NewMemory(), sealed.NewKey()
	open := func(h *testHub, version uint32) (*Member, *journal.Journal) {
		m := New(Options{Log: memory, Key: key, Name: h.name, Silence: testSilence, Logger: zerolog.Nop(), Lost: func(error) {}})
		j, err := journal.Open(journal.Options{Dir: h.dir, Log: zerolog.Nop(), Shared: m.Commit, Version: version})
		require.NoError(t, err)
		t.Cleanup(func() { _ = m.Close(); _ = j.Close() })
		return m, j
	}
	const known = 7
	owner, records := open(newHub(t, memory, key, "owner"), known)
	require.ErrorIs(t, owner.SetRecords(known), ErrLost)
	require.NoError(t, owner.Stand(t.Context(), records))
	require.EqualValues(t, 1, owner.Records())
	put := func(value string) {
		require.NoError(t, records.Sync([]journal.RecordChange{{ID: 1, Value: []byte(value)}}))
	}
	oldHub, nextHub := newHub(t, memory, key, "old"), newHub(t, memory, key, "next")
	old, olds := open(oldHub, known-1)
	stopped := make(chan error, 1)
	go func() { stopped <- old.Stand(t.Context(), olds) }()
	next, nexts := open(nextHub, known)
	took := make(chan error, 1)
	go func() { took <- next.Stand(t.Context(), nexts) }()

	put("before")
	at := owner.At()
	require.Eventually(t, func() bool { return old.At() >= at && next.At() >= at }, 30*time.Second, time.Millisecond)
	require.NoError(t, owner.SetRecords(known))
	put("after")
	var unknown *journal.VersionError
	require.ErrorAs(t, <-stopped, &unknown)
	require.EqualValues(t, known, unknown.Needed)
	require.NoError(t, olds.Close())
	require.Equal(t, "before", oldHub.values()[1])

	owner.Release(t.Context())
	require.NoError(t, <-took)
	require.EqualValues(t, known, next.Records())
	again, agains := open(oldHub, known-1)
	require.ErrorAs(t, again.Stand(t.Context(), agains), &unknown)
}
