// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func newFrame(body string) []byte { return append(make([]byte, HeadSize), body...) }

func openLog(t *testing.T, dir string, base uint64) (l *Log, found []string) {
	t.Helper()
	l, err := Open(Options{Dir: dir, Name: "the log", Keeps: "the frames", Segment: 72})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	require.NoError(t, l.Scan(base, func(_ Position, body []byte) error {
		found = append(found, string(body))
		return nil
	}))
	require.NoError(t, l.Begin(base))
	return l, found
}

func appendFrames(t *testing.T, l *Log, bodies ...string) {
	t.Helper()
	for _, b := range bodies {
		_, err := l.Append(newFrame(b))
		require.NoError(t, err)
	}
}

func TestFramesAreThereUntilTheirSegmentIsRetired(t *testing.T) {
	dir := t.TempDir()
	l, found := openLog(t, dir, 0)
	require.Empty(t, found)
	appendFrames(t, l, "one", "two")
	require.NoError(t, l.Cut())
	require.NoError(t, l.Cut(), "an empty segment is not cut")
	appendFrames(t, l, "three")
	oldest, newest := l.Segments()
	require.Equal(t, []uint64{1, 2}, []uint64{oldest, newest})
	r, err := l.Read(1, nil)
	require.NoError(t, err)
	for _, want := range []string{"one", "two"} {
		body, _, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, want, string(body))
	}
	_, _, err = r.Next()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, l.Retire(2))
	require.NoError(t, l.Retire(99), "what is written to stays")
	require.Equal(t, int64(1), l.Count())
	require.NoError(t, l.Close())
	info, err := os.Stat(l.Path(2))
	require.NoError(t, err)
	require.Equal(t, info.Size(), l.Size())
	_, found = openLog(t, dir, 2)
	require.Equal(t, []string{"three"}, found)
}

// A power cut can bring some of the removed segments back; one that is needed must be there.
// Parts of any segments are read at a time, and a segment that is retired is not held open: its file would take its room.
func TestPartsOfSegmentsAreRead(t *testing.T) {
	dir := t.TempDir()
	l, _ := openLog(t, dir, 0)
	places := make(map[string]Position)
	for i := range 40 {
		body := fmt.Sprintf("frame %02d", i)
		at, err := l.Append(newFrame(body))
		require.NoError(t, err)
		places[body] = at
	}
	_, newest := l.Segments()
	require.Greater(t, newest, uint64(5))
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for body, at := range places { // in no order
				b := make([]byte, len(body))
				at.At += HeadSize
				if err := l.ReadAt(b, at); err != nil || string(b) != body {
					t.Errorf("%q is read as %q: %v", body, b, err)
				}
			}
		})
	}
	readers.Wait()
	require.Error(t, l.ReadAt(make([]byte, 1), Position{newest + 1, 0}))
	require.NoError(t, l.ReadAt(make([]byte, 1), Position{newest - 1, HeaderSize}))
	require.Equal(t, l.Path(newest-1), l.readFrom.file.Name())
	require.NoError(t, l.Retire(newest))
	require.Nil(t, l.readFrom.file)
	require.Error(t, l.ReadAt(make([]byte, 1), Position{newest - 1, HeaderSize}))
}

func TestOnlyWhatIsNeededMustBeThere(t *testing.T) {
	dir := t.TempDir()
	l, _ := openLog(t, dir, 0)
	for _, body := range []string{"1", "2", "3", "4"} {
		appendFrames(t, l, body)
		require.NoError(t, l.Cut())
	}
	require.NoError(t, l.Close())
	require.NoError(t, os.Remove(l.Path(2)))
	for base, missing := range map[uint64]uint64{0: 2, 1: 2, 2: 2, 9: 9} {
		again, err := Open(Options{Dir: dir, ReadOnly: true})
		require.NoError(t, err)
		require.NoError(t, again.Scan(base, func(Position, []byte) error { return nil }))
		require.ErrorContains(t, again.Begin(base), l.Path(missing)+" is missing", base)
	}
	l, found := openLog(t, dir, 3)
	require.Equal(t, []string{"3", "4"}, found)
	require.NoFileExists(t, l.Path(1))
}

func TestAFrameThatItsReaderRefuses(t *testing.T) {
	dir := t.TempDir()
	l, _ := openLog(t, dir, 0)
	appendFrames(t, l, "x")
	require.NoError(t, l.Close())
	l, err := Open(Options{Dir: dir})
	require.NoError(t, err)
	defer l.Close()
	err = l.Scan(0, func(Position, []byte) error { return errors.New("no such kind") })
	require.ErrorContains(t, err, l.Path(1))
	require.ErrorContains(t, err, "no such kind")
}

func TestReadOnlyWritesNothing(t *testing.T) {
	dir := t.TempDir()
	l, _ := openLog(t, dir, 0)
	require.NoError(t, l.Close())
	l, err := Open(Options{Dir: dir, ReadOnly: true})
	require.NoError(t, err)
	require.NoError(t, l.Scan(0, nil))
	require.NoError(t, l.Begin(0))
	_, err = l.Append(newFrame("x"))
	require.ErrorIs(t, err, errReadOnly)
	require.NoError(t, l.Close())
}

// readSnapshots writes a snapshot into another directory, and reads what is there.
func readSnapshots(t *testing.T, base uint64, pieces []SegmentSnapshot) (found []string) {
	t.Helper()
	dir := t.TempDir()
	for _, p := range pieces {
		var b bytes.Buffer
		require.NoError(t, p.Copy(&b))
		require.EqualValues(t, p.Size(), b.Len())
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(p.Path())), b.Bytes(), 0o600))
	}
	_, found = openLog(t, dir, base)
	return found
}

func noChange() error { return nil }

// A snapshot has what was appended before it, whatever happens to the log until it is copied.
func TestASnapshotStaysAsItIs(t *testing.T) {
	l, _ := openLog(t, t.TempDir(), 0)
	appendFrames(t, l, "one")
	require.NoError(t, l.Cut())
	appendFrames(t, l, "two")
	pieces, release, err := l.Snapshot(noChange)
	require.NoError(t, err)
	appendFrames(t, l, "three")
	require.NoError(t, l.Cut())
	require.NoError(t, l.Retire(3))
	require.Equal(t, int64(1), l.Count())
	later, releaseLater, err := l.Snapshot(noChange)
	require.NoError(t, err)
	require.Equal(t, []string{"one", "two"}, readSnapshots(t, 0, pieces))
	release()
	require.FileExists(t, l.Path(1), "somebody else may need it")
	require.Empty(t, readSnapshots(t, 3, later), "what was retired is not in it")
	releaseLater()
	require.NoFileExists(t, l.Path(1))
	require.NoFileExists(t, l.Path(2))
	appendFrames(t, l, "four")
}

// Stores are cut at one moment: what is done at it sees none of what is appended after it.
func TestNothingIsAppendedAtTheMomentOfASnapshot(t *testing.T) {
	l, _ := openLog(t, t.TempDir(), 0)
	done := make(chan error)
	pieces, release, err := l.Snapshot(func() error {
		go func() {
			_, err := l.Append(newFrame("later"))
			done <- err
		}()
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.Empty(t, readSnapshots(t, 0, pieces))
	release()
	_, _, err = l.Snapshot(func() error { return errors.New("not now") })
	require.ErrorContains(t, err, "not now")
	appendFrames(t, l, "more")
}

// What a snapshot has kept when the program is killed, the next start removes.
func TestSegmentsThatASnapshotKeptAreRemovedAtTheNextStart(t *testing.T) {
	dir := t.TempDir()
	l, _ := openLog(t, dir, 0)
	appendFrames(t, l, "one")
	require.NoError(t, l.Cut())
	appendFrames(t, l, "two")
	_, _, err := l.Snapshot(noChange)
	require.NoError(t, err)
	require.NoError(t, l.Retire(2))
	require.FileExists(t, l.Path(1))
	require.NoError(t, l.Close())
	l, found := openLog(t, dir, 2)
	require.Equal(t, []string{"two"}, found)
	require.NoFileExists(t, l.Path(1))
}

// writtenLog makes a log with frames in its last segment, and one segment before that.
func writtenLog(t *testing.T) (string, *Log) {
	t.Helper()
	dir := t.TempDir()
	l, err := Open(Options{Dir: dir, Segment: 1 << 20})
	require.NoError(t, err)
	require.NoError(t, l.Scan(0, nil))
	require.NoError(t, l.Begin(0))
	appendFrames(t, l, "one", "two")
	require.NoError(t, l.Cut())
	appendFrames(t, l, "three", "four")
	require.NoError(t, l.Close())
	return dir, l
}

// reopenLog opens what is left, and returns what the log says of it.
func reopenLog(t *testing.T, dir string, readOnly bool) (found []string, said string, err error) {
	t.Helper()
	var log bytes.Buffer
	l, err := Open(Options{Dir: dir, Name: "the log", Keeps: "the frames", Segment: 72, Log: zerolog.New(&log), ReadOnly: readOnly})
	require.NoError(t, err)
	defer l.Close()
	err = l.Scan(0, func(_ Position, body []byte) error {
		found = append(found, string(body))
		return nil
	})
	if err == nil {
		err = l.Begin(0)
	}
	return found, log.String(), err
}

// Where the record of the log's end names an earlier one, as after a power cut: whatever byte of the last frame is flipped, it is said at
// error level that it was whole; who only looks refuses it. Cut short anywhere, it is called what a crash leaves.
func TestADamagedLastFrameIsToldFromOneThatWasCutShort(t *testing.T) {
	dir, l := writtenLog(t)
	path := l.Path(2)
	confirmedUpTo(t, l, Position{2, HeaderSize})
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	last := len(text) - HeadSize - len("four") - markSize
	for at := last; at < len(text)-markSize; at++ {
		bad := bytes.Clone(text)
		bad[at] ^= 4
		bad = append(bad, make([]byte, at%2*100)...) // the file has grown by more than the frame, or not
		require.NoError(t, os.WriteFile(path, bad, 0o600))
		confirmedUpTo(t, l, Position{2, HeaderSize})
		_, _, err = reopenLog(t, dir, true)
		require.ErrorContains(t, err, path+" is damaged")
		require.ErrorIs(t, err, errEnd)
		found, said, err := reopenLog(t, dir, false)
		require.NoError(t, err)
		require.Equal(t, []string{"one", "two", "three"}, found)
		require.Contains(t, said, `"level":"error"`)
		require.Contains(t, said, path)
		require.Contains(t, said, "unless power was cut")
	}
	for size := last + 1; size < len(text); size++ {
		require.NoError(t, os.WriteFile(path, text[:size], 0o600))
		confirmedUpTo(t, l, Position{2, HeaderSize})
		_, _, err = reopenLog(t, dir, true)
		require.NoError(t, err)
		found, said, err := reopenLog(t, dir, false)
		require.NoError(t, err)
		require.Equal(t, []string{"one", "two", "three"}, found)
		require.NotContains(t, said, `"level":"error"`)
		require.Contains(t, said, "as a crash leaves it")
	}
}

// Whichever file is missing is missed, the last one too.
func TestWhicheverFileIsMissingIsMissed(t *testing.T) {
	for number := range uint64(2) {
		dir, l := writtenLog(t)
		require.NoError(t, os.Remove(l.Path(number+1)))
		for _, readOnly := range []bool{true, false} {
			_, _, err := reopenLog(t, dir, readOnly)
			require.ErrorContains(t, err, l.Path(number+1)+" is missing")
		}
	}
	dir, l := writtenLog(t)
	require.NoError(t, os.Remove(l.Path(1)))
	require.NoError(t, os.Remove(l.Path(2)))
	for _, readOnly := range []bool{true, false} {
		_, _, err := reopenLog(t, dir, readOnly)
		require.ErrorContains(t, err, l.Path(2)+" is missing")
	}
	require.NoError(t, os.Remove(l.confirmedPath()))
	_, _, err := reopenLog(t, dir, true)
	require.ErrorContains(t, err, "no file of the log is in "+dir)
	_, said, err := reopenLog(t, dir, false)
	require.NoError(t, err)
	require.Contains(t, said, `"level":"error"`)
	require.Contains(t, said, "its first start was ended by a crash")
	_, said, err = reopenLog(t, t.TempDir(), false)
	require.NoError(t, err)
	require.Empty(t, said, "of a new directory there is nothing to say")
}

// Another format is told from damage by the checksum of the header, which every format has.
func TestALogOfAnotherFormatIsRefusedByName(t *testing.T) {
	dir, l := writtenLog(t)
	text, err := os.ReadFile(l.Path(1))
	require.NoError(t, err)
	text[len(fileMagic)]++
	for checksum, want := range map[bool]string{
		true:  l.Path(1) + ": its format is '2', this program reads '1': start the version that wrote it, or move the directory " + dir + " away",
		false: l.Path(1) + " is damaged at byte 0",
	} {
		if checksum {
			other := binary.LittleEndian.AppendUint32(slices.Clone(text[:HeaderSize-4]), crc32.Checksum(text[:HeaderSize-4], castagnoli))
			require.NoError(t, os.WriteFile(l.Path(1), append(other, text[HeaderSize:]...), 0o600))
		} else {
			require.NoError(t, os.WriteFile(l.Path(1), text, 0o600))
		}
		for _, readOnly := range []bool{true, false} {
			_, _, err := reopenLog(t, dir, readOnly)
			require.ErrorContains(t, err, want)
		}
	}
}

// A crash while the mark is written that another segment follows is none of the log's damages.
func TestAMarkThatWasBegunIsNoDamage(t *testing.T) {
	dir, l := writtenLog(t)
	path := l.Path(1)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	frames := len(text) - HeadSize
	for size := frames; size <= len(text); size++ {
		for _, zero := range []bool{false, true} {
			left := bytes.Clone(text[:size])
			if zero {
				clear(left[frames:])
			}
			require.NoError(t, os.WriteFile(path, left, 0o600))
			found, said, err := reopenLog(t, dir, false)
			require.NoError(t, err, size)
			require.Equal(t, []string{"one", "two", "three", "four"}, found)
			require.Empty(t, said)
		}
	}
	require.NoError(t, os.WriteFile(path, text[:frames-1], 0o600))
	_, _, err = reopenLog(t, dir, false)
	require.ErrorContains(t, err, path+" is damaged")
}
