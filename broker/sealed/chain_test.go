// SPDX-License-Identifier: Apache-2.0

package sealed

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/ordered"
)

// It is the chain that finds frames that are missing, moved or repeated: without it each of them opens, as it was sealed.
func TestWithoutTheChainFramesThatWereMovedWouldOpen(t *testing.T) {
	const log = ordered.LogID(1)
	key := NewKey()
	var w frameWriter
	frames, _, err := w.seal(key, log, 1, Mark{}, [][]byte{[]byte("one"), []byte("two"), []byte("three"), []byte("four")})
	require.NoError(t, err)
	open := func(frames [][]byte, chained bool) (bodies []string, err error) {
		c := newChain(Mark{})
		for i, f := range frames {
			c.anywhere = !chained
			body, _, err := c.open(key, log, ordered.Frame{At: ordered.Position(i + 1), Body: f})
			if err != nil {
				return bodies, err
			}
			bodies = append(bodies, string(body))
		}
		return bodies, nil
	}
	bodies, err := open(frames, true)
	require.NoError(t, err)
	require.Len(t, bodies, 4)
	for what, order := range map[string][]int{"left out": {0, 2, 3}, "the first left out": {1, 2, 3}, "swapped": {0, 2, 1, 3}, "repeated": {0, 1, 1, 2, 3}} {
		var moved [][]byte
		for _, i := range order {
			moved = append(moved, slices.Clone(frames[i]))
		}
		_, err := open(moved, true)
		require.ErrorIs(t, err, errLink, what)
		bodies, err := open(moved, false)
		require.NoError(t, err, what)
		require.Len(t, bodies, len(order), what)
	}
}
