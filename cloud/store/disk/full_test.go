// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	testdisk "github.com/edgebus/edgebus/test/disk"
)

// Who deletes objects on a full disk gets room by it, and nothing of the others is lost.
func TestObjectsCanBeDeletedOnAFullDisk(t *testing.T) {
	ctx, path := context.Background(), testdisk.New(t, 8).Dir+"/log"
	s, err := Open(Options{Path: path})
	require.NoError(t, err)
	data := `{"text":"` + strings.Repeat("x", 10_000) + `"}`
	n := 0
	for err == nil {
		_, err = s.Create(ctx, device(fmt.Sprint("d", n), data))
		n++
	}
	require.ErrorContains(t, err, "no space left on device")
	n--
	require.Greater(t, n, 100)
	for i := range n - 1 {
		_, err := s.Delete(ctx, store.Key{Kind: "Device", Namespace: "default", Name: fmt.Sprint("d", i)}, 0)
		require.NoError(t, err, i)
	}
	require.Eventually(t, func() bool { _, err := s.Create(ctx, device("new", data)); return err == nil }, time.Minute, 10*time.Millisecond)
	require.NoError(t, s.Check())
	require.NoError(t, s.Close())
	s, err = Open(Options{Path: path})
	require.NoError(t, err)
	counts, _ := s.Counts()
	require.Equal(t, map[string]int{"Device": 2}, counts)
	require.NoError(t, s.Close())
}

// A store opens on a disk that is full to the last byte, again and again, though others take what its reserve gives up; no revision is given twice, and what
// clients write is refused.
func TestAStoreOpensOnADiskThatIsFullToTheLastByte(t *testing.T) {
	ctx, small := context.Background(), testdisk.New(t, 8)
	path := small.Dir + "/log"
	var last uint64
	for round := range 60 { // the block that the last frame ends in has room for some of them
		s, err := Open(Options{Path: path})
		require.NoError(t, err, round)
		t.Cleanup(func() { _ = s.Close() })
		rev, err := s.DeriveStatuses("Device", func(store.Object) []byte { return []byte(`{}`) })
		require.NoError(t, err, round)
		if round == 0 {
			_, err = s.Create(ctx, device("a", `{}`))
			require.NoError(t, err)
		} else {
			require.Greater(t, rev, last, round)
			_, err = s.Create(ctx, device("b", `{"text":"`+strings.Repeat("x", 100<<10)+`"}`))
			require.ErrorContains(t, err, "no space left on device", round)
		}
		last = rev
		require.NoError(t, s.Close())
		require.NoError(t, small.Fill()) // and so with what is given up now
	}
	require.NoError(t, small.Free())
	s, err := Open(Options{Path: path})
	require.NoError(t, err)
	_, err = s.Create(ctx, device("b", `{}`))
	require.NoError(t, err)
	require.NoError(t, s.Close())
}
