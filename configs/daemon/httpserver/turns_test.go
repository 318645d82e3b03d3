package httpserver

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTurnsAreBounded: no more at once than there are processors.
func TestTurnsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns()
		var held []func()
		for range runtime.GOMAXPROCS(0) {
			held = append(held, turns.Take())
		}
		next := make(chan bool, 1)
		go func() {
			defer turns.Take()()
			next <- true
		}()
		synctest.Wait()
		require.Empty(t, next)
		held[0]()
		<-next
		for _, leave := range held[1:] {
			leave()
		}
		synctest.Wait()
		require.Empty(t, turns.taken)
	})
}

// TestSlowWatcherKeepsNobody: a watcher whose client doesn't read loses its turn to the next one.
func TestSlowWatcherKeepsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns()
		var stuck []func()
		for range runtime.GOMAXPROCS(0) {
			stuck = append(stuck, turns.Take())
		}
		began := time.Now()
		turns.Take()()
		require.Equal(t, turnMost, time.Since(began))
		for _, leave := range stuck {
			leave()
		}
		synctest.Wait()
		require.Empty(t, turns.taken)
	})
}
