// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	testdisk "github.com/edgebus/edgebus/test/disk"
)

const fullReserve = 1 << 20

// startOn opens a log on a small disk.
func startOn(t *testing.T, disk *testdisk.Disk) (l *Log, found []string, err error) {
	t.Helper()
	l, err = Open(Options{Dir: filepath.Join(disk.Dir, "log"), Name: "the log", Segment: 1 << 30, Reserve: fullReserve})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	require.NoError(t, l.Scan(0, func(_ Position, body []byte) error { found = append(found, string(body[:1])); return nil }))
	return l, found, l.Begin(0)
}

// A first start on a full disk says so, and one with room finds nothing in its way.
func TestAFirstStartOnAFullDiskIsAnError(t *testing.T) {
	disk := testdisk.New(t, 8)
	require.NoError(t, os.Mkdir(filepath.Join(disk.Dir, "log"), 0o700))
	require.NoError(t, disk.Fill())
	l, _, err := startOn(t, disk)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, l.Path(1))
	require.NoError(t, l.Close())
	require.NoError(t, disk.Free())
	l, found, err := startOn(t, disk)
	require.NoError(t, err)
	require.Empty(t, found)
	appendFrames(t, l, "a")
}

// A log of which the record of its end is missing opens on a full disk, without.
func TestALogOpensOnAFullDiskWithoutTheRecordOfItsEnd(t *testing.T) {
	disk := testdisk.New(t, 8)
	l, _, err := startOn(t, disk)
	require.NoError(t, err)
	appendFrames(t, l, "a")
	require.NoError(t, l.Close())
	require.NoError(t, os.Remove(l.confirmedPath()))
	require.NoError(t, disk.Fill())
	l, found, err := startOn(t, disk)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, found)
	require.NoError(t, disk.Free())
	appendFrames(t, l, "b")
	require.NoError(t, l.Close())
	_, found, err = startOn(t, disk)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, found)
}

// What is left of the reserve on a full disk is there after a restart, and others who fill the disk meanwhile don't get it.
func TestWhatIsLeftOfTheReserveOutlivesARestart(t *testing.T) {
	disk := testdisk.New(t, 8)
	l, _, err := startOn(t, disk)
	require.NoError(t, err)
	large := string(make([]byte, 200<<10))
	require.NoError(t, disk.Fill())
	_, err = l.AppendReserved(newFrame("a"+large), 0)
	require.NoError(t, err)
	left := l.Reserved()
	require.Less(t, left, int64(fullReserve))
	require.Positive(t, left)
	require.NoError(t, l.Close())
	require.NoError(t, disk.Fill())
	l, found, err := startOn(t, disk)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, found)
	require.Equal(t, left, l.Reserved())
	_, err = l.Append(newFrame("b" + large))
	require.ErrorIs(t, err, syscall.ENOSPC)
	_, err = l.AppendReserved(newFrame("b"+large), 0)
	require.NoError(t, err)
	require.Less(t, l.Reserved(), left)
	require.NoError(t, disk.Free())
	appendFrames(t, l, "c")
	require.EqualValues(t, fullReserve, l.Reserved())
}
