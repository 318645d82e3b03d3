// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
)

// A table has what a map would have, whatever is put and taken out at once.
func TestATableOfItemsIsWhatAMapWouldBe(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var have itemTable
	want := make(map[itemKey]recordID)
	for round := range 300 {
		edits := make(map[itemKey]recordID)
		for range random.IntN(40) {
			key, record := keyOf(fmt.Sprint("key-", random.IntN(200))), recordID(0)
			if random.IntN(3) > 0 {
				record = recordID(1 + random.IntN(1000))
			}
			edits[key] = record
		}
		if round%50 == 49 { // all go
			for key := range want {
				edits[key] = 0
			}
		}
		maps.Copy(want, edits)
		maps.DeleteFunc(want, func(_ itemKey, record recordID) bool { return record == 0 })
		have = have.apply(edits)
		require.Len(t, have, len(want))
		require.True(t, slices.IsSortedFunc(have, compareItems))
		for i := range 200 {
			key := keyOf(fmt.Sprint("key-", i))
			require.Equal(t, want[key], have.get(key))
		}
	}
}

// What one commit puts, deletes and puts again is what is there, also after a restart and after a commit that failed.
func TestReportsThatChangeTwiceInOneCommit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	s := openStore(t, Options{Path: path})
	put := func(key, value string) []store.ReplicaItem {
		return []store.ReplicaItem{{Key: key, Value: []byte(value)}}
	}
	commit := func(changes ...store.NodeChange) error { return s.Commit(ctx, changes) }
	requireItems := func(want ...string) {
		t.Helper()
		r, err := s.Load(ctx, "n1")
		require.NoError(t, err)
		var have []string
		for _, item := range r.Items {
			have = append(have, item.Key+"="+string(item.Value))
		}
		require.Equal(t, want, have)
		require.NoError(t, s.Check())
	}
	require.NoError(t, commit(store.NodeChange{Node: "n1", Put: append(put("a", "1"), put("b", "1")...)}))
	require.NoError(t, commit(
		store.NodeChange{Node: "n1", Delete: []string{"a"}},
		store.NodeChange{Node: "n1", Put: append(put("a", "2"), put("c", "2")...)},
		store.NodeChange{Node: "n1", Delete: []string{"c"}, Put: put("d", "2")},
	))
	requireItems("a=2", "b=1", "d=2")

	failCommits(s, 2)
	require.Error(t, commit(store.NodeChange{Node: "n1", Delete: []string{"a", "b"}, Put: put("e", "3")}))
	require.Error(t, commit(store.NodeChange{Node: "n1", Reset: true, Put: put("e", "3")}))
	requireItems("a=2", "b=1", "d=2")

	require.NoError(t, s.Close())
	s = openStore(t, Options{Path: path})
	require.NoError(t, commit(store.NodeChange{Node: "n1", Delete: []string{"b"}, Put: put("c", "4")}))
	requireItems("a=2", "c=4", "d=2")
	require.NoError(t, commit(store.NodeChange{Node: "n1", Reset: true, Put: put("a", "5")}))
	requireItems("a=5")
}

// What was read of reports when the store was opened is in memory only until somebody has asked for it.
func TestReportsThatWereAskedForAreNotKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	s := openStore(t, Options{Path: path})
	value := []byte(strings.Repeat("long", 100))
	require.NoError(t, s.Commit(ctx, []store.NodeChange{{Node: "n1", Put: []store.ReplicaItem{{Key: "k", Value: value}}}}))
	require.NoError(t, s.Close())
	s = openStore(t, Options{Path: path})
	asked := func() (p weak.Pointer[byte]) {
		for r, err := range s.All(ctx) {
			require.NoError(t, err)
			p = weak.Make(&r.Items[0].Value[0])
		}
		return p
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		return asked.Value() == nil
	}, 10*time.Second, time.Millisecond)
	runtime.KeepAlive(s)
}
