// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Records of a version that a program doesn't know are opened by none, and the version outlasts compaction, a copy and the copy's end.
func TestRecordsOfAnUnknownVersionAreRefused(t *testing.T) {
	open := func(dir string, version uint32) (*Journal, error) {
		j, err := Open(Options{Dir: dir, Segment: 4 << 10, Version: version})
		if err == nil {
			t.Cleanup(func() { _ = j.Close() })
		}
		return j, err
	}
	dir := t.TempDir()
	j, err := open(dir, 2)
	require.NoError(t, err)
	require.EqualValues(t, 1, VersionOf(j))
	var unknown *VersionError
	require.ErrorAs(t, SetVersion(j, 3), &unknown)
	require.NoError(t, SetVersion(j, 2))
	for range 100 { // the segment that has the version is compacted
		require.NoError(t, j.Sync([]RecordChange{{ID: 1, Value: make([]byte, 1<<10)}}))
	}
	require.NoError(t, j.Close())
	_, err = open(dir, 1)
	require.ErrorAs(t, err, &unknown)
	require.Equal(t, VersionError{Needed: 2, Known: 1}, *unknown)
	j, err = open(dir, 3)
	require.NoError(t, err)
	require.EqualValues(t, 2, VersionOf(j))

	body := newCommitGroup()
	body.add(RecordChange{ID: 7, Value: []byte("before")})
	next := newCommitGroup()
	next.add(RecordChange{ID: versionRecord, Value: []byte{2, 0, 0, 0}})
	next.add(RecordChange{ID: 7, Value: []byte("of version 2")})
	frames := func(groups ...*commitGroup) (bodies [][]byte) {
		for _, g := range groups {
			bodies = append(bodies, g.buf[len(newCommitGroup().buf):])
		}
		return bodies
	}
	value := func(j *Journal) (text string) {
		require.NoError(t, j.Read([]uint64{7}, func(_ int, b []byte) error { text = string(b); return nil }))
		return text
	}
	old, err := open(t.TempDir(), 1)
	require.NoError(t, err)
	require.NoError(t, CopyIn(old).Apply(Origin{Log: 5, At: 1}, frames(body)...))
	require.ErrorAs(t, CopyIn(old).Apply(Origin{Log: 5, At: 2}, frames(next)...), &unknown)
	require.Equal(t, "before", value(old))

	copied := t.TempDir()
	own, err := open(copied, 2)
	require.NoError(t, err)
	require.NoError(t, CopyIn(own).Apply(Origin{Log: 5, At: 2}, frames(body, next)...))
	require.EqualValues(t, 2, VersionOf(own))
	require.NoError(t, CopyIn(own).Detach())
	require.NoError(t, own.Close())
	_, err = open(copied, 1)
	require.ErrorAs(t, err, &unknown)
	own, err = open(copied, 2)
	require.NoError(t, err)
	require.Equal(t, "of version 2", value(own))
}
