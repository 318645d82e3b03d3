package enroll

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store/bolt"
)

// A watch ends once a minute, and a request that is deleted before the next one begins has no event.
func TestARequestThatIsDeletedBetweenTwoWatchesCountsNoMore(t *testing.T) {
	st, err := bolt.Open(bolt.Options{Path: filepath.Join(t.TempDir(), "hub.db")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	s := New(Options{Reader: st, Writer: st, Watcher: st, Log: zerolog.Nop()})
	s.pending["n1-0123456789ab"] = pending{"192.0.2.1"}
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	require.NoError(t, s.followOnce(ctx))
	require.Empty(t, s.pending)
}
