// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/sealed"
)

// silentLog is one whose servers have no quorum.
type silentLog struct{ ordered.Log }

func (silentLog) ID() ordered.LogID { return 1 }

func (silentLog) Append(context.Context, ordered.Position, ...[]byte) (ordered.Position, error) {
	return 0, ordered.ErrUnknown
}

func (silentLog) Bounds(context.Context) (ordered.Position, ordered.Position, error) {
	return 0, 0, ordered.ErrUnknown
}

func (silentLog) Read(ctx context.Context, _ ordered.Position) iter.Seq2[ordered.Frame, error] {
	return func(func(ordered.Frame, error) bool) { <-ctx.Done() }
}

// That the log doesn't answer is said each minute, however often it is tried.
func TestALogThatDoesNotAnswerIsSaidEachMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		began := time.Now()
		m := New(Options{Clock: func() time.Duration { return time.Since(began) }, Logger: zerolog.New(&said)})
		m.log = sealed.New(silentLog{}, sealed.NewKey(), sealed.Mark{})
		ended := make(chan error)
		go func() { ended <- m.put(kindIdle, nil) }()
		time.Sleep(5 * time.Minute) // by the clock of the test, which nobody waits for
		require.NoError(t, m.Close())
		require.Error(t, <-ended)
		require.Equal(t, 5, strings.Count(said.String(), "the log doesn't answer"), said.String())
	})
}
