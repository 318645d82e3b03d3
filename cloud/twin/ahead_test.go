package twin

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPrepareInOrderKeepsTheOrder(t *testing.T) {
	for _, n := range []int{0, 1, chunkSize, chunkSize + 1, 10*chunkSize + 7} {
		items := make([]int, n)
		for i := range items {
			items[i] = i
		}
		used := 0
		prepareInOrder(items, strconv.Itoa, func(item int, text string) {
			require.Equal(t, used, item)
			require.Equal(t, strconv.Itoa(item), text)
			used++
		})
		require.Equal(t, n, used)
	}
}
