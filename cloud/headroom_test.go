package cloud

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHeadroomFallsAsTheHubGrows(t *testing.T) {
	for inUse, percent := range map[uint64]int{
		0: 100, 10 << 20: 100, 32 << 20: 100, 40 << 20: 80, 64 << 20: 50, 400 << 20: 50, 64 << 30: 50,
	} {
		require.Equal(t, percent, headroom(inUse), "%d bytes", inUse)
	}
}

func TestWhatIsInUseIsKnown(t *testing.T) {
	held := make([]byte, 8<<20)
	runtime.GC()
	require.Greater(t, inUse(), uint64(len(held)))
	runtime.KeepAlive(held)
}
