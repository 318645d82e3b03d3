// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	testdisk "github.com/edgebus/edgebus/test/disk"
)

// A probe says whether a frame would fit on the disk, and leaves nothing behind, neither for the next frame nor after a restart.
func TestAProbeOnAFullDiskSaysThatItIsFull(t *testing.T) {
	disk := testdisk.New(t, 8).Dir
	dir := filepath.Join(disk, "log")
	open := func() (l *Log, found []string) {
		l, err := Open(Options{Dir: dir, Name: "the log", Segment: 1 << 30})
		require.NoError(t, err)
		require.NoError(t, l.Scan(0, func(_ Position, body []byte) error { found = append(found, string(body[:1])); return nil }))
		require.NoError(t, l.Begin(0))
		return l, found
	}
	l, _ := open()
	appendFrames(t, l, "a")
	size := l.Size()
	require.NoError(t, l.Probe(1<<20))
	require.Error(t, l.Probe(64<<20), "more than the disk has")
	require.Equal(t, size, l.Size())

	large := make([]byte, 1<<20)
	ballast := filepath.Join(disk, "ballast")
	f, err := os.Create(ballast)
	require.NoError(t, err)
	for err == nil {
		_, err = f.Write(large)
	}
	require.NoError(t, f.Close())
	require.True(t, datadir.IsFull(l.Probe(len(large))), "others have filled the disk")
	require.NoError(t, os.Remove(ballast))
	require.Eventually(t, func() bool { return l.Probe(len(large)) == nil }, time.Minute, 10*time.Millisecond)
	appendFrames(t, l, "b"+string(large))
	require.NoError(t, l.Probe(100)) // and a crash follows
	require.NoError(t, l.Close())
	l, found := open()
	require.Equal(t, []string{"a", "b"}, found)
	appendFrames(t, l, "c")
	require.NoError(t, l.Close())
}
