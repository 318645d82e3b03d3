package twin

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAheadKeepsTheOrder(t *testing.T) {
	for _, n := range []int{0, 1, piece, piece + 1, 10*piece + 7} {
		items := make([]int, n)
		for i := range items {
			items[i] = i
		}
		used := 0
		ahead(items, strconv.Itoa, func(item int, text string) {
			require.Equal(t, used, item)
			require.Equal(t, strconv.Itoa(item), text)
			used++
		})
		require.Equal(t, n, used)
	}
}
