// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"errors"
	"fmt"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

var errInjected = errors.New("injected")

// failCommits makes the next commits fail.
func failCommits(s *Store, times int) {
	commit := s.commit
	s.commit = func(changes []journal.RecordChange) error {
		if times == 0 {
			return commit(changes)
		}
		times--
		return errInjected
	}
}

func TestCommitFails(t *testing.T) {
	s := openStore(t, Options{Path: filepath.Join(t.TempDir(), "log")})
	made, err := s.Create(ctx, device("lamp", "{1}"))
	require.NoError(t, err)
	failCommits(s, 1)
	w, err := s.Watch(ctx, store.Key{Kind: "Device"}, made.Rev)
	require.NoError(t, err)
	_, err = s.Update(ctx, device("lamp", "{2}"), made.Rev)
	require.ErrorIs(t, err, store.ErrUnknown)
	require.ErrorIs(t, err, resource.Unavailable)
	require.ErrorIs(t, err, errInjected)
	got, err := s.Get(ctx, made.Key)
	require.NoError(t, err)
	require.Equal(t, made, got, "the index is unchanged")

	third, err := s.Update(ctx, device("lamp", "{3}"), made.Rev)
	require.NoError(t, err, "later writes work again")
	events, err := w.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, []store.Event{{Type: store.Modified, Object: third, Old: &made}}, events, "nothing was heard of the one that failed")
	require.NoError(t, s.Check())
}

// What is planned for a commit that fails leaves nothing behind: no number of a record is lost, none is given twice.
func TestACommitThatFailsLeavesNothing(t *testing.T) {
	s := openStore(t, Options{Path: filepath.Join(t.TempDir(), "log")})
	lamp := device("lamp", "{1}")
	lamp.Status = []byte("{}")
	made, err := s.Create(ctx, lamp)
	require.NoError(t, err)
	up := store.NodeChange{Node: "n1", Meta: []byte("m"), Put: []store.ReplicaItem{{Key: "a", Value: []byte("1")}, {Key: "b", Value: []byte("2")}}}
	require.NoError(t, s.Commit(ctx, []store.NodeChange{up}))
	failing := map[string]func() error{
		"create": func() error { _, err := s.Create(ctx, device("other", "{}")); return err },
		"remove the status": func() error {
			_, err := s.Update(ctx, store.Object{Key: made.Key, Status: []byte{}}, made.Rev)
			return err
		},
		"delete": func() error { _, err := s.Delete(ctx, made.Key, made.Rev); return err },
		"reset": func() error {
			return s.Commit(ctx, []store.NodeChange{{Node: "n1", Reset: true, Put: []store.ReplicaItem{{Key: "c", Value: []byte("3")}}}})
		},
		"drop": func() error { return s.Commit(ctx, []store.NodeChange{{Node: "n1", Drop: true}, {Node: "n2"}}) },
	}
	for name, do := range failing {
		failCommits(s, 1)
		require.ErrorIs(t, do(), store.ErrUnknown, name)
		got, err := s.Get(ctx, made.Key)
		require.NoError(t, err, name)
		require.Equal(t, made, got, name)
		r, err := s.Load(ctx, "n1")
		require.NoError(t, err, name)
		require.Equal(t, store.Replica{Node: "n1", Meta: up.Meta, Items: up.Put}, r, name)
		require.NoError(t, s.Check(), name)
	}
}

// Several changes of one node in one commit are as if one came after the other.
func TestChangesOfANodeInOneCommitFollowEachOther(t *testing.T) {
	put := func(key, value string) []store.ReplicaItem {
		return []store.ReplicaItem{{Key: key, Value: []byte(value)}}
	}
	steps := []store.NodeChange{
		{Node: "n", Meta: []byte("1"), Put: put("a", "1")},
		{Node: "n", Put: put("b", "2"), Delete: []string{"a"}},
		{Node: "n", Put: put("a", "3")},
		{Node: "n", Reset: true, Put: put("c", "4")},
		{Node: "n", Put: put("a", "5"), Delete: []string{"c"}},
		{Node: "n", Drop: true},
		{Node: "n", Put: put("d", "6")},
		{Node: "n", Meta: []byte("2"), Put: put("a", "7")},
	}
	for n := range len(steps) + 1 {
		one, each := openStore(t, Options{Path: filepath.Join(t.TempDir(), "log")}), openStore(t, Options{Path: filepath.Join(t.TempDir(), "log")})
		for begin := range 3 { // on what is stored, too
			require.NoError(t, one.Commit(ctx, steps[min(begin, n):n]))
			for _, c := range steps[min(begin, n):n] {
				require.NoError(t, each.Commit(ctx, []store.NodeChange{c}))
			}
			want, err := each.Load(ctx, "n")
			require.NoError(t, err)
			got, err := one.Load(ctx, "n")
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.NoError(t, one.Check())
			require.NoError(t, each.Check())
		}
	}
}

// Everybody whose write was in the failed commit is told, replicas' too.
func TestCommitFailsForAll(t *testing.T) {
	s := openStore(t, Options{Path: filepath.Join(t.TempDir(), "log")})
	hold := make(chan struct{})
	commit := s.commit
	s.commit = func([]journal.RecordChange) error { <-hold; return errInjected }
	var wg sync.WaitGroup
	errs := make(chan error, 40)
	for i := range 20 {
		wg.Go(func() {
			_, err := s.Create(ctx, device(fmt.Sprint("d", i), "{}"))
			errs <- err
		})
		wg.Go(func() {
			errs <- s.Commit(ctx, []store.NodeChange{{Node: fmt.Sprint("n", i)}})
		})
	}
	close(hold)
	wg.Wait()
	for range 40 {
		require.ErrorIs(t, <-errs, store.ErrUnknown)
	}
	s.commit = commit // the committer is idle: all were answered
	page, err := s.List(ctx, "Device", store.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, page.Items)
	require.NoError(t, s.Check())
}

// The real thing: the file may not grow any more, and then may again.
func TestDiskFull(t *testing.T) {
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	path := filepath.Join(t.TempDir(), "log")
	s := openStore(t, Options{Path: path})
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before))
	lower := before
	lower.Cur = 8 << 20 // the limit is the whole process', and go test keeps a log of the files that tests open, of some MiB
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &lower))
	raise := sync.OnceFunc(func() { _ = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before) })
	defer raise()

	big := `{"` + string(bytes.Repeat([]byte("x"), 256<<10)) + `"}`
	made := map[string]bool{}
	var failed error
	for i := 0; failed == nil && i < 100; i++ {
		name := fmt.Sprint("d", i)
		if _, failed = s.Create(ctx, device(name, big)); failed == nil {
			made[name] = true
		}
	}
	require.ErrorIs(t, failed, store.ErrUnknown)
	require.NotEmpty(t, made)
	raise()
	_, err := s.Create(ctx, device("after", big))
	require.NoError(t, err)
	made["after"] = true
	require.NoError(t, s.Check())
	require.NoError(t, s.Close())
	s = openStore(t, Options{Path: path})
	page, err := s.List(ctx, "Device", store.ListOptions{})
	require.NoError(t, err)
	require.Len(t, page.Items, len(made))
	require.NoError(t, s.Check())
}
