// SPDX-License-Identifier: Apache-2.0

package sealed_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/broker/wal"
	"github.com/edgebus/edgebus/test/orderedtest"
)

var testKey = sealed.Key{1, 2, 3}

// A log of sealed frames keeps the contract of the engine below it.
func TestALogOfSealedFramesIsOrdered(t *testing.T) {
	sealedOpen := func(below orderedtest.Open) orderedtest.Open {
		return func(t *testing.T, dir string) orderedtest.Engine { return sealedEngine(t, below(t, dir)) }
	}
	t.Run("above files", func(t *testing.T) { orderedtest.Run(t, sealedOpen(openFiles(1000))) })
	t.Run("above a file", func(t *testing.T) {
		last := func(dir string) string { return filepath.Join(dir, "000000000001.log") }
		orderedtest.Run(t, orderedtest.WithCrashes(sealedOpen(openFiles(1<<20)), last))
	})
	t.Run("above memory", func(t *testing.T) { orderedtest.Run(t, sealedOpen(orderedtest.OpenMemory())) })
	t.Run("above what others share", func(t *testing.T) { orderedtest.Run(t, sealedOpen(orderedtest.OpenSharedMemory())) })
}

func openFiles(segment int) orderedtest.Open {
	return func(t *testing.T, dir string) orderedtest.Engine {
		l, err := wal.Open(wal.Options{Dir: dir, Name: "the log", Keeps: "the frames", Segment: segment, Log: zerolog.Nop()})
		require.NoError(t, err)
		require.NoError(t, l.Scan(0, func(wal.Position, []byte) error { return nil }))
		require.NoError(t, l.Begin(0))
		o := wal.NewOrdered(l)
		return orderedtest.Engine{Log: o, Close: l.Close, Cut: l.Cut, Renew: o.Renew, Size: l.Size}
	}
}

// sealedEngine seals the frames of an engine. A log that is made anew gets its frames sealed anew.
func sealedEngine(t *testing.T, below orderedtest.Engine) orderedtest.Engine {
	log := sealed.New(below.Log, testKey, sealed.Mark{})
	e := below
	e.Log = log
	e.Renew = func() error {
		floor, end, err := log.Bounds(t.Context())
		require.NoError(t, err)
		bodies := readTo(t, log, floor, end)
		require.NoError(t, below.Renew())
		first, err := log.Append(t.Context(), end, bodies...)
		require.NoError(t, err)
		return below.Trim(first)
	}
	return e
}

// readTo reads the frames between two positions.
func readTo(t *testing.T, l ordered.Log, after, to ordered.Position) (bodies [][]byte) {
	t.Helper()
	if after == to {
		return nil
	}
	for f, err := range l.Read(t.Context(), after) {
		require.NoError(t, err)
		bodies = append(bodies, bytes.Clone(f.Body))
		if f.At >= to {
			break
		}
	}
	return bodies
}

// filledLog appends frames, each with a call of its own, to a log in memory.
func filledLog(t *testing.T, bodies ...string) (*orderedtest.MemoryLog, *sealed.Log, []ordered.Position) {
	t.Helper()
	m := orderedtest.NewMemory()
	l := sealed.New(m, testKey, sealed.Mark{})
	return m, l, appendAll(t, l, bodies...)
}

func appendAll(t *testing.T, l ordered.Log, bodies ...string) (at []ordered.Position) {
	t.Helper()
	_, end, err := l.Bounds(t.Context())
	require.NoError(t, err)
	for _, body := range bodies {
		end, err = l.Append(t.Context(), end, []byte(body))
		require.NoError(t, err)
		at = append(at, end)
	}
	return at
}

// readOpened reads a log from a mark on, up to its end or to a frame that doesn't open.
func readOpened(t *testing.T, m ordered.Log, key sealed.Key, from sealed.Mark) (bodies []string, err error) {
	t.Helper()
	_, end, err := m.Bounds(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	next := &endOfLog{Log: m, end: end, cancel: cancel}
	for f, err := range sealed.New(next, key, from).Follow(ctx, from) {
		if errors.Is(err, context.Canceled) {
			return bodies, nil
		}
		if err != nil {
			return bodies, err
		}
		bodies = append(bodies, string(f.Body))
	}
	return bodies, nil
}

// endOfLog is a log whose reading ends at its present end.
type endOfLog struct {
	ordered.Log
	end    ordered.Position
	cancel func()
}

func (l *endOfLog) Read(ctx context.Context, after ordered.Position) iter.Seq2[ordered.Frame, error] {
	return func(yield func(ordered.Frame, error) bool) {
		if after == l.end {
			l.cancel()
		}
		for f, err := range l.Log.Read(ctx, after) {
			if !yield(f, err) {
				return
			}
			if f.At == l.end {
				l.cancel()
			}
		}
	}
}

// A frame that was changed, moved, repeated, left out, or comes from elsewhere doesn't open, and the error says where it is. Nothing of it, and
// nothing after it, is handed over.
func TestAForeignFrameIsNeverHandedOver(t *testing.T) {
	m, _, _ := filledLog(t, "one", "two", "three", "four")
	otherLog := orderedtest.NewMemory()
	require.NoError(t, otherLog.Renew())
	appendAll(t, sealed.New(otherLog, testKey, sealed.Mark{}), "one", "two", "three", "four")
	otherKey := orderedtest.NewMemory()
	appendAll(t, sealed.New(otherKey, sealed.Key{9}, sealed.Mark{}), "one", "two")
	foreign := func(l *orderedtest.MemoryLog, i int) (frame []byte) {
		l.Change(func(frames [][]byte) [][]byte { frame = frames[i]; return frames })
		return frame
	}
	for what, c := range map[string]struct {
		change func([][]byte) [][]byte
		opens  int
	}{
		"left out":        {func(f [][]byte) [][]byte { return slices.Delete(f, 1, 2) }, 1},
		"first left out":  {func(f [][]byte) [][]byte { return f[1:] }, 0},
		"swapped":         {func(f [][]byte) [][]byte { f[1], f[2] = f[2], f[1]; return f }, 1},
		"repeated":        {func(f [][]byte) [][]byte { return slices.Insert(f, 2, f[1]) }, 2},
		"of another log":  {func(f [][]byte) [][]byte { f[1] = foreign(otherLog, 1); return f }, 1},
		"the first too":   {func(f [][]byte) [][]byte { f[0] = foreign(otherLog, 0); return f }, 0},
		"of another key":  {func(f [][]byte) [][]byte { f[0] = foreign(otherKey, 0); return f }, 0},
		"in clear":        {func(f [][]byte) [][]byte { f[2] = []byte("three"); return f }, 2},
		"empty":           {func(f [][]byte) [][]byte { f[2] = nil; return f }, 2},
		"one cut short":   {func(f [][]byte) [][]byte { f[3] = f[3][:len(f[3])-1]; return f }, 3},
		"one with a tail": {func(f [][]byte) [][]byte { f[3] = append(f[3], 0); return f }, 3},
		"of a later time": {func(f [][]byte) [][]byte { binary.LittleEndian.PutUint64(f[3][1:], 7); return f }, 3},
	} {
		t.Run(what, func(t *testing.T) {
			var was [][]byte
			m.Change(func(frames [][]byte) [][]byte { was = frames; return frames })
			m.Change(c.change)
			defer m.Change(func([][]byte) [][]byte { return was })
			bodies, err := readOpened(t, m, testKey, sealed.Mark{})
			var broken *sealed.BrokenError
			require.ErrorAs(t, err, &broken)
			require.EqualValues(t, c.opens+1, broken.At)
			require.ErrorContains(t, err, "position")
			require.Equal(t, []string{"one", "two", "three", "four"}[:c.opens], append([]string{}, bodies...))
		})
	}
	bodies, err := readOpened(t, m, testKey, sealed.Mark{})
	require.NoError(t, err)
	require.Len(t, bodies, 4)
}

// Each bit of a frame that is turned over is found.
func TestEachBitOfAFrameIsSealed(t *testing.T) {
	m, _, _ := filledLog(t, "one", "two")
	size := 0
	m.Change(func(f [][]byte) [][]byte { size = len(f[1]); return f })
	for bit := range size * 8 {
		flip := func(f [][]byte) [][]byte { f[1][bit/8] ^= 1 << (bit % 8); return f }
		m.Change(flip)
		bodies, err := readOpened(t, m, testKey, sealed.Mark{})
		require.ErrorAs(t, err, new(*sealed.BrokenError), "bit %d", bit)
		require.Equal(t, []string{"one"}, bodies)
		m.Change(flip)
	}
}

// No frame shows what is in it, and two of the same body differ.
func TestFramesDontShowWhatIsInThem(t *testing.T) {
	m, _, _ := filledLog(t, strings.Repeat("secret", 10), strings.Repeat("secret", 10))
	m.Change(func(f [][]byte) [][]byte {
		require.NotContains(t, string(f[0]), "secret")
		require.NotEqual(t, f[0][len(f[0])-76:], f[1][len(f[1])-76:])
		return f
	})
}

// A number is used once with a key: by frames that were refused, lost or late, by another process with the same key, after a restart, and in another epoch.
func TestNoNonceIsUsedTwice(t *testing.T) {
	m := orderedtest.NewMemory()
	seen := make(map[string]bool)
	fault := orderedtest.None
	m.Inject(func(frames [][]byte) orderedtest.AppendFault {
		for _, f := range frames {
			nonce := string(f[1:33]) // epoch, writer, count
			require.False(t, seen[nonce], "%x", nonce)
			seen[nonce] = true
		}
		return fault
	})
	appends := 0
	for start := range 4 {
		l := sealed.New(m, testKey, sealed.Mark{})
		for epoch := range 3 {
			l.SetEpoch(uint64(start*3 + epoch))
			for _, fault = range []orderedtest.AppendFault{orderedtest.None, orderedtest.Refused, orderedtest.LostAnswer, orderedtest.LostRequest, orderedtest.LateRequest} {
				_, end, err := m.Bounds(t.Context())
				require.NoError(t, err)
				_, err = l.Append(t.Context(), end, []byte("the same"), []byte("the same"))
				require.Equal(t, fault == orderedtest.None, err == nil)
				if fault == orderedtest.LostAnswer { // who doesn't know it tries again, and is told
					fault = orderedtest.None
					var moved *ordered.MovedError
					_, err = l.Append(t.Context(), end, []byte("the same"))
					require.ErrorAs(t, err, &moved)
					appends++
				}
				appends += 2
			}
			m.Deliver()
		}
	}
	require.GreaterOrEqual(t, len(seen), appends)
}

// What is longer than a frame is one all the same: nothing of it is read without its end, whoever dies between which parts, and who wrote it can't end it
// after others have gone on.
func TestWhatIsCutIntoPartsIsReadWholeOrNotAtAll(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 3*sealed.MaxFrame/16+1)
	m, l, _ := filledLog(t, "one")
	largest := 0
	m.Inject(func(frames [][]byte) orderedtest.AppendFault {
		for _, f := range frames {
			largest = max(largest, len(f))
		}
		return orderedtest.None
	})
	appendAll(t, l, long, "three")
	require.Equal(t, sealed.MaxFrame, largest)
	bodies, err := readOpened(t, m, testKey, sealed.Mark{})
	require.NoError(t, err)
	require.True(t, slices.Equal([]string{"one", long, "three"}, bodies))
	var whole [][]byte
	m.Change(func(f [][]byte) [][]byte { whole = f; return f })
	require.Len(t, whole, 6)

	for parts := range 4 {
		m.Change(func([][]byte) [][]byte { return slices.Clone(whole[:1+parts]) })
		bodies, err := readOpened(t, m, testKey, sealed.Mark{})
		require.NoError(t, err)
		require.Equal(t, []string{"one"}, bodies)

		after := sealed.New(m, testKey, sealed.Mark{}) // another process, which has read what is whole
		at, err := after.Append(t.Context(), 1, []byte("next"))
		require.NoError(t, err, "parts without an end are none")
		_, end, err := after.Bounds(t.Context())
		require.NoError(t, err)
		require.Equal(t, at, end)
		bodies, err = readOpened(t, m, testKey, sealed.Mark{})
		require.NoError(t, err)
		require.Equal(t, []string{"one", "next"}, bodies)

		m.Change(func(f [][]byte) [][]byte { return append(f, whole[1+parts:]...) })
		bodies, err = readOpened(t, m, testKey, sealed.Mark{})
		require.ErrorAs(t, err, new(*sealed.BrokenError))
		require.Equal(t, []string{"one", "next"}, bodies)
	}
}

// A writer that fails amid the parts goes on after them, and its reader has nothing of them.
func TestAWriterThatFailsAmidPartsGoesOn(t *testing.T) {
	long := strings.Repeat("x", sealed.MaxFrame)
	m, l, at := filledLog(t, "one")
	m.Inject(func([][]byte) orderedtest.AppendFault { return orderedtest.TornAnswer })
	_, err := l.Append(t.Context(), at[0], []byte(long))
	require.ErrorIs(t, err, ordered.ErrUnknown)
	m.Inject(nil)
	end, err := l.Append(t.Context(), at[0], []byte("two"))
	require.NoError(t, err)
	require.Equal(t, [][]byte{[]byte("one"), []byte("two")}, readTo(t, l, 0, end))
	_, err = l.Append(t.Context(), at[0], []byte("none"))
	var moved *ordered.MovedError
	require.ErrorAs(t, err, &moved)
	require.Equal(t, end, moved.Last)
}

// Who goes on from a mark finds out that the log up to there is another one, also where the positions are the same.
func TestAMarkFindsALogThatWasReplaced(t *testing.T) {
	m, l, _ := filledLog(t, "one", "two")
	mark := l.Last()
	appendAll(t, l, "three")
	bodies, err := readOpened(t, m, testKey, mark)
	require.NoError(t, err)
	require.Equal(t, []string{"three"}, bodies)

	m.Change(func(f [][]byte) [][]byte { return f[:1] })
	appendAll(t, sealed.New(m, testKey, sealed.Mark{}), "another two", "another three")
	_, err = readOpened(t, m, testKey, mark)
	require.ErrorAs(t, err, new(*sealed.BrokenError))
	_, err = sealed.New(m, testKey, mark).Append(t.Context(), 3, []byte("none"))
	require.ErrorAs(t, err, new(*sealed.BrokenError))

	m.Change(func(f [][]byte) [][]byte { return f[:1] })
	_, err = readOpened(t, m, testKey, mark)
	require.ErrorIs(t, err, ordered.ErrBack)
}

// An epoch that is over stays so: its writer appends nothing.
func TestAnEpochThatIsOverIsOver(t *testing.T) {
	_, l, _ := filledLog(t, "one")
	l.SetEpoch(2)
	at := appendAll(t, l, "two")
	require.EqualValues(t, 2, l.Last().Epoch)
	l.SetEpoch(1)
	_, err := l.Append(t.Context(), at[0], []byte("none"))
	require.ErrorContains(t, err, "epoch 1 is over: the log is in epoch 2")
}

// What was trimmed isn't needed to read on, nor to append.
func TestATrimmedLogOpensFromItsFloor(t *testing.T) {
	m, l, at := filledLog(t, "one", "two", "three")
	require.NoError(t, l.Trim(at[2]))
	fresh := sealed.New(m, testKey, sealed.Mark{})
	floor, end, err := fresh.Bounds(t.Context())
	require.NoError(t, err)
	require.Equal(t, [][]byte{[]byte("three")}, readTo(t, fresh, floor, end))
	fresh = sealed.New(m, testKey, sealed.Mark{})
	appendAll(t, fresh, "four")
	require.Equal(t, [][]byte{[]byte("three"), []byte("four")}, readTo(t, l, floor, end+1))
}

// The key is a file, which only its owner reads.
func TestTheKeysFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log.key")
	_, err := sealed.LoadKey(path)
	require.ErrorIs(t, err, fs.ErrNotExist)
	key := sealed.NewKey()
	require.NotEqual(t, key, sealed.NewKey())
	require.NoError(t, key.Write(path))
	require.ErrorIs(t, sealed.NewKey().Write(path), fs.ErrExist)
	got, err := sealed.LoadKey(path)
	require.NoError(t, err)
	require.Equal(t, key, got)
	require.NoError(t, os.Chmod(path, 0o644))
	_, err = sealed.LoadKey(path)
	require.ErrorContains(t, err, "chmod 600")
	require.NoError(t, os.WriteFile(path, []byte("edgebus log key 1 AAAA\n"), 0o600))
	require.NoError(t, os.Chmod(path, 0o600))
	_, err = sealed.LoadKey(path)
	require.ErrorContains(t, err, "not the key of a log")
}
