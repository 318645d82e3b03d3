package watch

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTurnsAreTakenOneAfterTheOther: no more at once than there are processors, and the next when the rest after
// one of them is over.
func TestTurnsAreTakenOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rest = turnMost / 2
		turns := NewTurns(func(time.Duration) time.Duration { return rest })
		var held []func()
		for range runtime.GOMAXPROCS(0) {
			held = append(held, turns.Take())
		}
		began := time.Now()
		next := make(chan time.Duration, 1)
		go func() {
			defer turns.Take()()
			next <- time.Since(began)
		}()
		synctest.Wait()
		require.Empty(t, next)
		held[0]()
		require.Equal(t, rest, <-next)
		for _, leave := range held[1:] {
			leave()
		}
		synctest.Wait()
		time.Sleep(rest) // a bubble's clock: the test takes no time
		synctest.Wait()
		require.Empty(t, turns.places)
	})
}

// TestWhoTakesLongKeepsNobody: a client that doesn't read what is written has its watcher wait, and no other.
func TestWhoTakesLongKeepsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(func(time.Duration) time.Duration { return 0 })
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
		require.Empty(t, turns.places)
	})
}

// TestWithoutPaceThereAreNoTurns: they are all at once.
func TestWithoutPaceThereAreNoTurns(t *testing.T) {
	turns := NewTurns(nil)
	for range 1000 {
		_ = turns.Take()
	}
}
