// SPDX-License-Identifier: Apache-2.0

package orderedtest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/ordered"
)

// testTailOverTrim: who has read all waits for more over a trim of all that.
func testTailOverTrim(t *testing.T, e *logEnv) {
	last := e.append("one", "two")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	next, stop := iter.Pull2(e.Read(ctx, last))
	defer stop()
	for i := range 3 {
		require.NoError(t, e.Cut())
		body := fmt.Sprint("after trim ", i)
		at := e.append(body)
		f, err, _ := next()
		require.NoError(t, err)
		require.Equal(t, body, string(f.Body))
		require.Equal(t, at, f.At)
		require.NoError(t, e.Trim(at))
		_, end := e.bounds()
		require.Equal(t, at, end, "the last frame stays")
	}
}

// testBehindTrim: whose next frames are trimmed reads them all the same, or is told. There is never a hole.
func testBehindTrim(t *testing.T, e *logEnv) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	next, stop := iter.Pull2(e.Read(ctx, 0))
	defer stop()
	var want []string
	read := func() bool {
		f, err, _ := next()
		if err != nil {
			require.ErrorIs(t, err, ordered.ErrGone)
			return false
		}
		require.Equal(t, want[0], string(f.Body))
		want = want[1:]
		return true
	}
	for i := range 8 {
		want = append(want, fmt.Sprint("frame ", i))
		at := e.append(want[len(want)-1])
		require.NoError(t, e.Cut())
		if i == 0 {
			require.True(t, read())
		}
		if i == 4 {
			require.NoError(t, e.Trim(at))
		}
	}
	for len(want) > 0 && read() {
		continue
	}
}

// testUnknown: an outcome that nobody knows is settled by another append in the same place, and in no other way: that is taken, and then the first one never
// comes into the log, or it is refused, and then the first one is there, once.
func testUnknown(t *testing.T, e *logEnv) {
	want := []string{"one"}
	end := e.append("one")
	for i := range 6 {
		late := i%2 == 0
		deliver := e.Unknown(late)
		body, barrier := fmt.Sprint("unknown ", i), fmt.Sprint("barrier ", i)
		_, err := e.Append(t.Context(), end, []byte(body))
		require.ErrorIs(t, err, ordered.ErrUnknown)
		if i >= 4 {
			deliver() // before the barrier
		}
		at, err := e.Append(t.Context(), end, []byte(barrier))
		var moved *ordered.MovedError
		switch {
		case err == nil:
			want = append(want, barrier)
		case errors.As(err, &moved):
			at, want = moved.Last, append(want, body)
		default:
			require.NoError(t, err)
		}
		deliver()
		end = e.append(fmt.Sprint("after ", i))
		require.Greater(t, end, at)
		want = append(want, fmt.Sprint("after ", i))
		require.Equal(t, want, e.rest(0))
	}
	e.stop()
	e.start()
	require.Equal(t, want, e.rest(0))
}

// testCutBack: who has read more than there is any more is told, whether he reads or appends. So is he when the log has grown again, as long as it is shorter.
func testCutBack(t *testing.T, e *logEnv) {
	first := e.append("one")
	e.append("two")
	last := e.append("three")
	e.stop()
	require.NoError(t, e.CutBack(first))
	e.start()
	_, end := e.bounds()
	require.Equal(t, first, end)
	require.ErrorIs(t, e.readError(last), ordered.ErrBack)
	_, err := e.Append(t.Context(), last, []byte("none"))
	var moved *ordered.MovedError
	require.ErrorAs(t, err, &moved)
	require.Equal(t, first, moved.Last)
	e.append("2")
	require.ErrorIs(t, e.readError(last), ordered.ErrBack)
	require.Equal(t, []string{"one", "2"}, e.rest(0))
}

// WithCrashes has an engine in files, whose last one that is, be torn and cut back. What it has beside, "confirmed", a crash leaves as it was before.
func WithCrashes(open Open, last func(dir string) string) Open {
	return func(t *testing.T, dir string) Engine {
		e := open(t, dir)
		_, end, err := e.Bounds(t.Context())
		require.NoError(t, err)
		sizes := map[ordered.Position]int64{end: e.Size()}
		e.Log = &sizedLog{Log: e.Log, size: e.Size, sizes: sizes}
		truncate := func(dir string, size int64) error {
			return errors.Join(os.Truncate(last(dir), size), os.RemoveAll(filepath.Join(dir, "confirmed")))
		}
		e.CutBack = func(end ordered.Position) error { return truncate(dir, sizes[end]) }
		e.Tear = func(dir string, bytes int64, zeros bool) error {
			info, err := os.Stat(last(dir))
			if err == nil {
				err = truncate(dir, info.Size()-bytes)
			}
			if err == nil && zeros {
				err = os.Truncate(last(dir), info.Size())
			}
			return err
		}
		return e
	}
}

// sizedLog notes how many bytes there are with each position.
type sizedLog struct {
	ordered.Log
	size func() int64

	mu    sync.Mutex
	sizes map[ordered.Position]int64
}

func (l *sizedLog) Append(ctx context.Context, after ordered.Position, frames ...[]byte) (ordered.Position, error) {
	at, err := l.Log.Append(ctx, after, frames...)
	if err == nil && len(frames) == 1 {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.sizes[at] = l.size()
	}
	return at, err
}

// testCrash: wherever a crash ends an append that was not answered, what was answered is there, of the append the first frames or none, each whole, and the
// log goes on.
func testCrash(t *testing.T, e *logEnv) {
	last := []string{"one", "", strings.Repeat("two", 20)}
	e.append("kept")
	before := e.Size()
	e.append(last...)
	added := e.Size() - before
	e.stop()
	whole := e.dir
	for n := int64(1); n <= 2*added; n += 1 + added/100 {
		cut, zeros := (n+1)/2, n%2 == 0 // the bytes are missing, or are zero
		e.dir = filepath.Join(t.TempDir(), "left")
		require.NoError(t, os.CopyFS(e.dir, os.DirFS(whole)))
		require.NoError(t, e.Tear(e.dir, cut, zeros))
		e.start()
		found := e.rest(0)
		require.NotEmpty(t, found, "%d bytes", n)
		require.Equal(t, append([]string{"kept"}, last...)[:len(found)], found)
		require.Less(t, len(found), 1+len(last), "%d bytes", n)
		want := append(found, "next")
		e.append("next")
		e.stop()
		e.start()
		require.Equal(t, want, e.rest(0))
		e.stop()
		require.NoError(t, os.RemoveAll(e.dir))
	}
	e.dir = whole
	e.start()
	require.True(t, slices.Equal(append([]string{"kept"}, last...), e.rest(0)))
}
