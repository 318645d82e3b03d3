// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// countingRecorder is an answer whose writes and flushes are counted.
type countingRecorder struct {
	*httptest.ResponseRecorder
	writes, flushes int
	deadline        time.Time
}

func (c *countingRecorder) Write(p []byte) (int, error) {
	c.writes++
	return c.ResponseRecorder.Write(p)
}

func (c *countingRecorder) FlushError() error {
	c.flushes++
	return nil
}

func (c *countingRecorder) SetWriteDeadline(at time.Time) error {
	c.deadline = at
	return nil
}

func TestWhatIsAddedIsOneWrite(t *testing.T) {
	w := &countingRecorder{ResponseRecorder: httptest.NewRecorder()}
	l := BeginWatch(w)
	require.NoError(t, l.Flush())
	require.Equal(t, 1, w.flushes, "the client is told that it watches")
	require.Zero(t, w.writes)
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.Equal(t, http.StatusOK, w.Code)

	require.NoError(t, l.Add("ADDED", []byte(`{"a":1}`)))
	require.NoError(t, l.Add("DELETED", []byte(`{}`)))
	require.Zero(t, w.writes)
	require.NoError(t, l.Flush())
	require.Equal(t, 1, w.writes)
	require.Equal(t, 2, w.flushes)
	require.Equal(t, `{"type":"ADDED","object":{"a":1}}`+"\n"+`{"type":"DELETED","object":{}}`+"\n", w.Body.String())

	require.NoError(t, l.Flush())
	require.Equal(t, 1, w.writes)
	require.Equal(t, 2, w.flushes, "there was nothing")
	l.Allow(time.Minute)
	require.WithinDuration(t, time.Now().Add(time.Minute), w.deadline, 30*time.Second)
}

// What is too much to be held comes in pieces, which are flushed as well.
func TestMuchIsWrittenInPieces(t *testing.T) {
	w := &countingRecorder{ResponseRecorder: httptest.NewRecorder()}
	l := BeginWatch(w)
	object := []byte(strconv.Quote(strings.Repeat("x", flushSize/3)))
	for range 9 {
		require.NoError(t, l.Add("ADDED", object))
	}
	require.Equal(t, 3, w.writes)
	require.Zero(t, w.flushes)
	require.NoError(t, l.Flush())
	require.Equal(t, 3, w.writes)
	require.Equal(t, 1, w.flushes)
	require.Equal(t, 9, strings.Count(w.Body.String(), "\n"))
}

// slowRecorder is a client that takes its time for each write.
type slowRecorder struct {
	countingRecorder
	takes time.Duration
}

func (s *slowRecorder) Write(p []byte) (int, error) {
	time.Sleep(min(s.takes, time.Until(s.deadline))) // a bubble's clock: the test takes no time
	if !time.Now().Before(s.deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	return s.countingRecorder.Write(p)
}

// Who reads slowly gets all of what is much, however long that takes; who reads nothing is waited for once.
func TestTheSlowAreGivenTime(t *testing.T) {
	for takes, got := range map[time.Duration]int{time.Second: 100, 50 * time.Second: 100, time.Hour: 0} {
		synctest.Test(t, func(t *testing.T) {
			w := &slowRecorder{countingRecorder{ResponseRecorder: httptest.NewRecorder()}, takes}
			l := BeginWatch(w)
			l.Allow(time.Minute)
			begun, object, err := time.Now(), []byte(strconv.Quote(strings.Repeat("x", flushSize/2))), error(nil)
			for range 100 {
				if err == nil {
					err = l.Add("ADDED", object)
				}
				if err == nil && takes == time.Second { // in small writes, too
					err = l.Flush()
				}
			}
			require.Equal(t, got, strings.Count(w.Body.String(), "\n"))
			if got == 0 {
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				require.Equal(t, time.Minute, time.Since(begun))
				return
			}
			require.NoError(t, err)
			require.Greater(t, time.Since(begun), time.Minute)
		})
	}
}

func TestWhatIsSharedIsMadeOnce(t *testing.T) {
	s := NewVersionCache[string, int, int](1 << 20)
	var made atomic.Int64
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for i := range 100 {
				v := s.Get(strconv.Itoa(i), 1, func() (int, int) {
					made.Add(1)
					return i, 1
				})
				if v != i {
					t.Errorf("%d for %d", v, i)
				}
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 100, made.Load())
}

// Of one thing there is one version, however often it changes.
func TestWhatIsSharedIsTheLastVersion(t *testing.T) {
	const each = 1000
	s := NewVersionCache[string, int, int](20 * (entrySize + each))
	of := func(key string, version int) int {
		return s.Get(key, version, func() (int, int) { return version, each })
	}
	of("other", 1)
	for i := range 1000 {
		require.Equal(t, i, of("busy", i))
		require.Equal(t, i, of("busy", i))
	}
	require.Len(t, s.recent, 2)
	require.Equal(t, 2*(entrySize+each), s.size)
	require.Equal(t, 5, of("busy", 5), "whoever is behind gets what was asked for")
	late := s.Get("busy", 6, func() (int, int) {
		of("busy", 7) // somebody asks while it is being made
		return 6, each
	})
	require.Equal(t, 6, late)
	require.Equal(t, 2*(entrySize+each), s.size)
}

func TestWhatIsSharedIsBounded(t *testing.T) {
	const most, each = 100 * (entrySize + 1000), 1000
	s := NewVersionCache[int, int, int](most)
	for i := range 10000 {
		require.Equal(t, i, s.Get(i, 1, func() (int, int) { return i, each }))
		require.LessOrEqual(t, len(s.recent)+len(s.older), most/(entrySize+each)+1)
	}
	last := func() (int, int) { panic("it is still there") }
	for i := range most / (entrySize + each) / 2 {
		require.Equal(t, 9999-i, s.Get(9999-i, 1, last), "what came last stays")
	}
	require.Equal(t, -1, s.Get(-1, 1, func() (int, int) { return -1, 2 * most }), "too large to keep")
}

// TestTurnsAreBounded: no more at once than there are processors.
func TestTurnsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewWatchTurns()
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
		turns := NewWatchTurns()
		var stuck []func()
		for range runtime.GOMAXPROCS(0) {
			stuck = append(stuck, turns.Take())
		}
		began := time.Now()
		turns.Take()()
		require.Equal(t, longestTurn, time.Since(began))
		for _, leave := range stuck {
			leave()
		}
		synctest.Wait()
		require.Empty(t, turns.taken)
	})
}
