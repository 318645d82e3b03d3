// SPDX-License-Identifier: Apache-2.0

// Package orderedtest has the tests that each engine of package ordered must pass.
package orderedtest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/ordered"
)

// Engine is a log under test.
type Engine struct {
	ordered.Log
	Close func() error
	// Cut makes a frame that is appended next one that Trim can tell from those before.
	Cut func() error
	// Renew makes the log anew, with what is in it. It goes on at positions that the one before didn't have.
	Renew func() error

	// What an engine has only some of has further tests.

	// Unknown has the outcome of the next append be unknown: its answer is lost, or it is late, and comes into the log, if it still can, with
	// deliver.
	Unknown func(late bool) (deliver func())
	// CutBack has the log end at a frame, as when an older copy of it was put back. It is called between Close and Open.
	CutBack func(end ordered.Position) error
	// Size is how many bytes are on disk. Tear takes so many from their end, or makes them zero, as a crash leaves what was not answered yet; it is
	// called for a copy of the directory that is not open.
	Size func() int64
	Tear func(dir string, bytes int64, zeros bool) error
	// Shared says that other processes can open the same log at the same time, by the same dir.
	Shared bool
}

// Open opens the log that lives in dir. Closing and opening again is a restart.
type Open func(t *testing.T, dir string) Engine

// Run runs the suite.
func Run(t *testing.T, open Open) {
	if dir := os.Getenv(writerDir); dir != "" {
		beWriter(t, open, dir)
		return
	}
	for name, test := range map[string]func(*testing.T, *logEnv){
		"frames are in order":                    testOrder,
		"who is behind appends nothing":          testMoved,
		"several frames at once":                 testSeveral,
		"each of many writers is heard once":     testRacingWriters,
		"who reads waits for more":               testWaiting,
		"who gives up appends nothing":           testCancelled,
		"what was trimmed is gone":               testTrimmed,
		"who reads the end goes on over a trim":  testTailOverTrim,
		"who is behind a trim misses no frame":   testBehindTrim,
		"what is not there yet":                  testBack,
		"a restart":                              testRestart,
		"a reader goes on over segments":         testReaderAcrossCuts,
		"a log that is made anew is another one": testAnew,
		"frames of any size":                     testSizes,
		"an outcome that nobody knows":           testUnknown,
		"a log that was cut back":                testCutBack,
		"a crash at each byte":                   testCrash,
		"a process that was stopped":             testStopped,
	} {
		t.Run(name, func(t *testing.T) {
			e := &logEnv{t: t, open: open, dir: t.TempDir()}
			e.start()
			if has := furtherTests[name]; has != nil && !has(e.Engine) {
				e.stop()
				t.Skip("not of this engine")
			}
			test(t, e)
			e.stop()
		})
	}
}

// furtherTests says which engines a test is for that is not for all of them.
var furtherTests = map[string]func(Engine) bool{
	"an outcome that nobody knows": func(e Engine) bool { return e.Unknown != nil },
	"a log that was cut back":      func(e Engine) bool { return e.CutBack != nil },
	"a crash at each byte":         func(e Engine) bool { return e.Tear != nil },
	"a process that was stopped":   func(e Engine) bool { return e.Shared },
}

type logEnv struct {
	Engine
	t    *testing.T
	open Open
	dir  string
}

func (e *logEnv) start() { e.Engine = e.open(e.t, e.dir) }

func (e *logEnv) stop() { require.NoError(e.t, e.Close()) }

func (e *logEnv) bounds() (floor, end ordered.Position) {
	e.t.Helper()
	floor, end, err := e.Bounds(e.t.Context())
	for until := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(until); { // servers may be choosing another leader
		time.Sleep(20 * time.Millisecond) // a pause between attempts
		floor, end, err = e.Bounds(e.t.Context())
	}
	require.NoError(e.t, err)
	return floor, end
}

// append appends a frame at the end.
func (e *logEnv) append(bodies ...string) ordered.Position {
	e.t.Helper()
	_, end := e.bounds()
	frames := make([][]byte, len(bodies))
	for i, b := range bodies {
		frames[i] = []byte(b)
	}
	at, err := e.Append(e.t.Context(), end, frames...)
	// Servers may be choosing another leader: then nobody knows, and another attempt at the same place settles it.
	for until := time.Now().Add(30 * time.Second); errors.Is(err, ordered.ErrUnknown) && time.Now().Before(until); {
		var moved *ordered.MovedError
		time.Sleep(20 * time.Millisecond) // a pause between attempts
		if at, err = e.Append(e.t.Context(), end, frames...); errors.As(err, &moved) && moved.Last > end {
			at, err = moved.Last, nil
		}
	}
	require.NoError(e.t, err)
	require.Greater(e.t, at, end)
	_, now := e.bounds()
	require.Equal(e.t, at, now)
	return at
}

// rest reads up to the present end.
func (e *logEnv) rest(after ordered.Position) (bodies []string) {
	e.t.Helper()
	_, end := e.bounds()
	if after == end {
		return nil
	}
	last := after
	for f, err := range e.Read(e.t.Context(), after) {
		require.NoError(e.t, err)
		require.Greater(e.t, f.At, last)
		bodies, last = append(bodies, string(f.Body)), f.At
		if last == end {
			return bodies
		}
	}
	e.t.Fatal("reading ended by itself")
	return nil
}

func (e *logEnv) readError(after ordered.Position) error {
	for _, err := range e.Read(e.t.Context(), after) {
		return err
	}
	return errors.New("reading ended by itself")
}

func testOrder(t *testing.T, e *logEnv) {
	floor, end := e.bounds()
	require.Zero(t, floor)
	require.Zero(t, end, "0 is before the first")
	var at []ordered.Position
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprint("frame ", i))
		at = append(at, e.append(want[i]))
	}
	require.Equal(t, want, e.rest(0))
	for i, p := range at {
		require.Equal(t, want[i+1:], append([]string{}, e.rest(p)...))
	}
}

func testMoved(t *testing.T, e *logEnv) {
	first := e.append("one")
	second := e.append("two")
	for _, after := range []ordered.Position{0, first, second + 1, second << 1} {
		_, err := e.Append(t.Context(), after, []byte("none"))
		var moved *ordered.MovedError
		require.ErrorAs(t, err, &moved, after)
		require.Equal(t, second, moved.Last)
	}
	require.Equal(t, []string{"one", "two"}, e.rest(0))
}

func testSeveral(t *testing.T, e *logEnv) {
	e.append("one")
	e.append("two", "", "three")
	e.append("four")
	require.Equal(t, []string{"one", "two", "", "three", "four"}, e.rest(0))
	_, end := e.bounds()
	same, err := e.Append(t.Context(), end)
	require.NoError(t, err)
	require.Equal(t, end, same, "nothing")
}

func testRacingWriters(t *testing.T, e *logEnv) {
	const writers, each = 8, 10
	var work sync.WaitGroup
	for w := range writers {
		work.Go(func() {
			for i, after := 0, ordered.Position(0); i < each; {
				at, err := e.Append(t.Context(), after, fmt.Append(nil, w, "-", i))
				var moved *ordered.MovedError
				switch {
				case err == nil:
					i, after = i+1, at
				case errors.As(err, &moved):
					after = moved.Last
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	next := make(map[int]int)
	for _, body := range e.rest(0) {
		var w, i int
		_, err := fmt.Sscanf(body, "%d-%d", &w, &i)
		require.NoError(t, err)
		require.Equal(t, next[w], i, "of writer %d", w)
		next[w]++
	}
	require.Len(t, next, writers)
	for w, n := range next {
		require.Equal(t, each, n, "of writer %d", w)
	}
}

func testWaiting(t *testing.T, e *logEnv) {
	first := e.append("one")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	next, stop := iter.Pull2(e.Read(ctx, first))
	defer stop()
	for _, body := range []string{"two", "three"} {
		go func() {
			_, end, err := e.Bounds(ctx)
			if err == nil {
				_, err = e.Append(ctx, end, []byte(body))
			}
			if err != nil {
				t.Error(err)
			}
		}()
		f, err, ok := next()
		require.True(t, ok)
		require.NoError(t, err)
		require.Equal(t, body, string(f.Body))
	}
	cancel()
	_, err, _ := next()
	require.ErrorIs(t, err, context.Canceled)
	_, _, ok := next()
	require.False(t, ok)
}

func testCancelled(t *testing.T, e *logEnv) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := e.Append(ctx, 0, []byte("none"))
	require.ErrorIs(t, err, context.Canceled)
	if !errors.Is(err, ordered.ErrUnknown) {
		_, end := e.bounds()
		require.Zero(t, end)
	}
}

func testTrimmed(t *testing.T, e *logEnv) {
	first := e.append("one")
	e.append("two")
	require.NoError(t, e.Cut())
	third := e.append("three")
	require.NoError(t, e.Cut())
	fourth := e.append("four")
	require.NoError(t, e.Trim(third))
	floor, end := e.bounds()
	require.Equal(t, fourth, end)
	require.GreaterOrEqual(t, floor, first)
	require.Less(t, floor, third)
	require.Equal(t, []string{"three", "four"}, e.rest(floor))
	require.ErrorIs(t, e.readError(0), ordered.ErrGone)
	require.ErrorIs(t, e.readError(first), ordered.ErrGone)
	e.append("five")
	require.NoError(t, e.Trim(end), "more than can be removed stays")
	require.Equal(t, []string{"four", "five"}, e.rest(third))
	e.stop()
	e.start()
	require.Equal(t, []string{"four", "five"}, e.rest(third))
	require.ErrorIs(t, e.readError(first), ordered.ErrGone)
}

func testBack(t *testing.T, e *logEnv) {
	require.ErrorIs(t, e.readError(1<<40), ordered.ErrBack)
	end := e.append("one")
	require.ErrorIs(t, e.readError(end+1), ordered.ErrBack)
}

func testRestart(t *testing.T, e *logEnv) {
	id := e.ID()
	require.NotZero(t, id)
	e.stop()
	e.start()
	require.Equal(t, id, e.ID(), "of an empty one")
	e.append("one", "two")
	require.NoError(t, e.Cut())
	_, end := e.bounds()
	e.stop()
	e.start()
	_, now := e.bounds()
	require.Equal(t, end, now)
	require.Equal(t, id, e.ID())
	e.append("three")
	require.Equal(t, []string{"one", "two", "three"}, e.rest(0))
}

func testReaderAcrossCuts(t *testing.T, e *logEnv) {
	next, stop := iter.Pull2(e.Read(t.Context(), 0))
	defer stop()
	for i := range 6 {
		body := fmt.Sprint("frame ", i)
		e.append(body)
		if i%2 == 0 {
			require.NoError(t, e.Cut())
		}
		f, err, _ := next()
		require.NoError(t, err)
		require.Equal(t, body, string(f.Body))
	}
}

func testAnew(t *testing.T, e *logEnv) {
	first := e.append("one")
	id := e.ID()
	for range 2 {
		require.NoError(t, e.Renew())
		require.NotEqual(t, id, e.ID())
		id = e.ID()
	}
	_, end := e.bounds()
	require.GreaterOrEqual(t, end, first, "it goes on where the one before ended")
	e.append("two")
	floor, _ := e.bounds()
	require.Equal(t, []string{"one", "two"}, e.rest(floor))
	e.stop()
	e.start()
	require.Equal(t, id, e.ID())
	require.Equal(t, []string{"one", "two"}, e.rest(floor))
}

func testSizes(t *testing.T, e *logEnv) {
	var want []string
	for _, n := range []int{0, 1, 4, 4095, 4096, 65535, 65536, 512 << 10} {
		want = append(want, string(make([]byte, n)))
	}
	e.append(want...)
	e.append(want[len(want)-1])
	require.Equal(t, append(want, want[len(want)-1]), e.rest(0))
}
