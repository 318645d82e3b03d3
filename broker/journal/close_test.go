// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A journal that is closed while it is being compacted has no file open any more: its disk can be unmounted.
func TestACloseAmidCompactionLeavesNoFileOpen(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	dir := t.TempDir()
	j, err := Open(Options{Dir: dir, Segment: 4 << 20})
	require.NoError(t, err)
	value := make([]byte, 1<<10)
	const records = 16 << 10
	for id := uint64(1); id <= records; id += 1024 {
		var batch []RecordChange
		for i := range uint64(1024) {
			batch = append(batch, RecordChange{id + i, value})
		}
		require.NoError(t, j.Sync(batch))
	}
	j.committing.Lock()
	for id := range uint64(records) {
		if id%8 > 0 {
			j.Commit([]RecordChange{{ID: id}}, nil)
		}
	}
	g := j.filling
	j.filling = newCommitGroup()
	require.NoError(t, j.commit(g))
	require.True(t, j.compact())
	require.True(t, j.compaction != nil)
	closed := make(chan error)
	go func() { closed <- j.Close() }()
	for closing := false; !closing; runtime.Gosched() {
		j.mu.Lock()
		closing = j.closing
		j.mu.Unlock()
	}
	j.committing.Unlock()
	require.NoError(t, <-closed)
	require.True(t, j.compaction == nil)
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range open {
		if path, err := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())); err == nil {
			require.False(t, strings.HasPrefix(path, dir), path)
		}
	}
}
