// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	testdisk "github.com/edgebus/edgebus/test/disk"
)

// fillDisk writes records until the disk is full.
func fillDisk(t *testing.T, j *Journal, from uint64) (ids []uint64) {
	t.Helper()
	value := make([]byte, 256)
	for id := from; ; {
		var batch []RecordChange
		for range 100 {
			batch = append(batch, RecordChange{id, value})
			id++
		}
		if err := j.Sync(batch); err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			return ids
		}
		for _, c := range batch {
			ids = append(ids, c.ID)
		}
	}
}

// A journal that has filled its disk gives it back as its records are deleted, again and again, without help from outside.
func TestAJournalOnAFullDiskMakesRoomByWhatIsDeleted(t *testing.T) {
	for _, size := range []int{8, 48} {
		t.Run(fmt.Sprint(size, " MB"), func(t *testing.T) {
			dir := testdisk.New(t, size).Dir + "/journal"
			j, err := Open(Options{Dir: dir})
			require.NoError(t, err)
			kept := RecordChange{1, []byte("stays")}
			j.now(t, kept)
			from := uint64(FirstSequenced)
			for round := range 3 {
				ids := fillDisk(t, j, from)
				require.Greater(t, len(ids), 1000)
				require.True(t, j.Stats().Full)
				require.NoError(t, j.Sync([]RecordChange{{ID: ids[0]}}), "what only deletes is stored")
				if round == 1 { // and after a restart on the full disk
					require.NoError(t, j.Close())
					j, err = Open(Options{Dir: dir})
					require.NoError(t, err)
				}
				for _, id := range ids[1:] {
					j.Commit([]RecordChange{{ID: id}}, nil)
				}
				from = ids[len(ids)-1] + 1000
				require.Eventually(t, func() bool { return j.Sync([]RecordChange{{from, []byte("x")}}) == nil }, time.Minute, 10*time.Millisecond)
				require.Eventually(t, func() bool { return j.Sync([]RecordChange{{ID: from}}) == nil && !j.Stats().Full }, time.Minute, 10*time.Millisecond)
				require.Equal(t, map[uint64]string{1: "stays"}, readRecords(t, j))
			}
			require.NoError(t, j.Close())
			j, err = Open(Options{Dir: dir})
			require.NoError(t, err)
			require.Equal(t, map[uint64]string{1: "stays"}, readRecords(t, j))
			require.NoError(t, j.Close())
		})
	}
}

// Records that stay, between others that are deleted, are copied together, and nothing of them is lost.
func TestAJournalOnAFullDiskKeepsWhatStays(t *testing.T) {
	j, err := Open(Options{Dir: testdisk.New(t, 24).Dir + "/journal"})
	require.NoError(t, err)
	ids := fillDisk(t, j, 1)
	want := 0
	for i, id := range ids {
		if i%3 == 0 {
			want++
			continue
		}
		j.Commit([]RecordChange{{ID: id}}, nil)
	}
	require.Eventually(t, func() bool { return j.Sync([]RecordChange{putChange(1<<40, "x")}) == nil }, time.Minute, 10*time.Millisecond)
	require.Len(t, readRecords(t, j), want+1)
	require.NoError(t, j.Close())
}

// What nobody waits for, and what only deletes, has an outcome of its own on a full disk: the others of its group are refused.
func TestOnAFullDiskWhatMakesRoomIsNotRefusedWithTheRest(t *testing.T) {
	dir := testdisk.New(t, 8).Dir
	j, err := Open(Options{Dir: dir + "/journal"})
	require.NoError(t, err)
	ids := fillDisk(t, j, 1)
	var puts, deletes, most, little, empty error
	all := make(chan struct{})
	j.committing.Lock() // so that all are one group
	j.Commit([]RecordChange{putChange(1<<40, "lazy")}, nil)
	j.Commit([]RecordChange{putChange(1<<30, string(make([]byte, 1<<20)))}, func(err error) { puts = err })
	j.Commit([]RecordChange{{ID: ids[0]}, {ID: ids[1]}}, func(err error) { deletes = err })
	j.Commit([]RecordChange{{ID: ids[2]}, putChange(1<<31, "notes it")}, func(err error) { most = err })
	j.Commit([]RecordChange{{ID: ids[3]}, putChange(1<<32, string(make([]byte, 200)))}, func(err error) { little = err })
	j.Commit(nil, func(err error) { empty = err; close(all) })
	j.committing.Unlock()
	<-all
	require.True(t, datadir.IsFull(puts), puts)
	require.NoError(t, deletes)
	require.NoError(t, most, "it frees more than it takes")
	require.True(t, datadir.IsFull(little), little)
	require.True(t, datadir.IsFull(empty), empty)
	require.Len(t, readRecords(t, j), len(ids)-3+2)
	require.NoError(t, j.Close())
}
