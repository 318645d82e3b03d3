package enroll

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/store/bolt"
)

// A watch ends once a minute, and a request that is deleted before the next one begins has no event.
func TestARequestThatIsDeletedBetweenTwoWatchesCountsNoMore(t *testing.T) {
	st, err := bolt.Open(bolt.Options{Path: filepath.Join(t.TempDir(), "hub.db")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	s := New(Options{Reader: st, Writer: st, Watcher: st, Log: zerolog.Nop()})
	s.pending["n1-0123456789ab"] = pendingRequest{"192.0.2.1"}
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	require.NoError(t, s.followRequestsOnce(ctx))
	require.Empty(t, s.pending)
}

// Anybody may ask to be a node, as often as the broker lets them.
func TestRefusedJoinsAreLoggedSampled(t *testing.T) {
	var log bytes.Buffer
	s := New(Options{Log: zerolog.New(&log)})
	for range 1000 {
		s.answer(t.Context(), joinJob{m: broker.Message{Payload: []byte("{"), Publisher: &broker.Identity{}}, done: func(err error) { require.Error(t, err) }})
	}
	require.Contains(t, log.String(), "a node was not enrolled")
	require.Less(t, bytes.Count(log.Bytes(), []byte("\n")), 100)
}
