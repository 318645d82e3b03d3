// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// TestTwoRequestsForOneBlobBothGetItsAnswer: an upgrade and a spec may want the same content.
func TestTwoRequestsForOneBlobBothGetItsAnswer(t *testing.T) {
	b, err := newBus(clientID, []string{"unix:/nowhere"}, zerolog.Nop(), func() {})
	require.NoError(t, err)
	first, second := make(chan resource.BlobAnswer, 1), make(chan resource.BlobAnswer, 1)
	b.blobs["d"] = []chan resource.BlobAnswer{first, second}
	for _, answer := range []string{`{"digest":"d","received":1,"size":2}`, `{"digest":"d","path":"/x","received":2,"size":2}`} {
		b.blobAnswer([]byte(answer))
	}
	require.EqualValues(t, 2, (<-first).Received)
	require.EqualValues(t, 2, (<-second).Received)
}
