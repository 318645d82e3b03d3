// SPDX-License-Identifier: Apache-2.0

package session

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A client that reads steadily but slowly gets a packet that takes much longer than the write timeout; one that reads nothing is cut.
func TestASlowReaderIsNotTakenForOneThatReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 300_000
		ours, theirs := net.Pipe()
		w := NewWriter(ours, 20*time.Second)
		w.Start(nil)
		w.Control(make([]byte, size), nil)
		part := make([]byte, 1000)
		for range size / len(part) {
			time.Sleep(time.Second) // the test's own clock
			_, err := io.ReadFull(theirs, part)
			require.NoError(t, err)
		}
		require.False(t, w.Stalled())
		w.Control(make([]byte, size), nil)
		<-w.Done()
		require.True(t, w.Stalled())
	})
}
