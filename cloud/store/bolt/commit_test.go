package bolt

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
	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

var errInjected = errors.New("injected")

// failCommits makes the next commits fail, before or after they reached the file.
func failCommits(s *Store, after bool, times int) {
	var mu sync.Mutex
	s.commit = func(tx *bbolt.Tx) error {
		mu.Lock()
		defer mu.Unlock()
		if times == 0 {
			return tx.Commit()
		}
		times--
		if after {
			if err := tx.Commit(); err != nil {
				return err
			}
		}
		return errInjected
	}
}

func TestCommitFails(t *testing.T) {
	s := openStore(t, Options{Path: filepath.Join(t.TempDir(), "hub.db")})
	made, err := s.Create(ctx, device("lamp", "{1}"))
	require.NoError(t, err)
	failCommits(s, false, 1)
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

// A commit that reports failure may have reached the file. The index follows it.
func TestCommitFailsLate(t *testing.T) {
	s := openStore(t, Options{Path: filepath.Join(t.TempDir(), "hub.db")})
	made, err := s.Create(ctx, device("lamp", "{1}"))
	require.NoError(t, err)
	failCommits(s, true, 1)
	_, err = s.Update(ctx, device("lamp", "{2}"), made.Rev)
	require.ErrorIs(t, err, store.ErrUnknown)
	got, err := s.Get(ctx, made.Key)
	require.NoError(t, err)
	require.Equal(t, "{2}", string(got.Data), "read again and compare")
	_, err = s.Update(ctx, device("lamp", "{3}"), made.Rev)
	require.ErrorIs(t, err, resource.Conflict)
	_, err = s.Update(ctx, device("lamp", "{3}"), got.Rev)
	require.NoError(t, err)
	require.NoError(t, s.Check())
}

// Everybody whose write was in the failed commit is told, replicas' too.
func TestCommitFailsForAll(t *testing.T) {
	s := openStore(t, Options{Path: filepath.Join(t.TempDir(), "hub.db")})
	hold := make(chan struct{})
	s.commit = func(*bbolt.Tx) error { <-hold; return errInjected }
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
	s.commit = (*bbolt.Tx).Commit // the committer is idle: all were answered
	page, err := s.List(ctx, "Device", store.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, page.Items)
	require.NoError(t, s.Check())
}

// The real thing: the file may not grow any more, and then may again.
func TestDiskFull(t *testing.T) {
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	path := filepath.Join(t.TempDir(), "hub.db")
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
