package bolt

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/test/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t testing.TB, dir string, limits storetest.Limits) store.Store {
		return openStore(t, Options{
			Path:       filepath.Join(dir, "hub.db"),
			Tombstones: limits.Tombstones, WatchBuffer: limits.WatchBuffer,
		})
	})
}

func openStore(t testing.TB, opts Options) *Store {
	t.Helper()
	opts.Log = zerolog.New(zerolog.NewTestWriter(t))
	opts.LockTimeout = 30 * time.Second
	s, err := Open(opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}
