// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/wal"
)

// recordedFrame is a frame of a log, and what lived in it then.
type recordedFrame struct {
	ordered.Frame
	lives map[uint64]string
}

// writeAndRecord writes a journal that is compacted on the way, and returns its frames.
func writeAndRecord(t *testing.T, source *Journal, rnd *rand.Rand, commits int) (frames []recordedFrame) {
	t.Helper()
	lives, committed := make(map[uint64]string), make(map[uint64]string)
	var at ordered.Position
	for n := range commits {
		var changes []RecordChange
		for range rnd.IntN(3) + 1 {
			id := uint64(rnd.IntN(20))
			if rnd.IntN(2) == 0 {
				id += FirstSequenced
			}
			if rnd.IntN(4) == 0 {
				changes = append(changes, RecordChange{ID: id})
				delete(committed, id)
				continue
			}
			committed[id] = strings.Repeat(fmt.Sprint(n, "."), rnd.IntN(20))
			changes = append(changes, putChange(id, committed[id]))
		}
		source.now(t, changes...)
		_, end, err := SourceOf(source).Bounds(context.Background())
		require.NoError(t, err)
		for at < end {
			for f, err := range SourceOf(source).Read(context.Background(), at) {
				require.NoError(t, err)
				f.Body = append([]byte(nil), f.Body...)
				changeRecords(t, lives, f.Body)
				frames = append(frames, recordedFrame{f, maps.Clone(lives)})
				if at = f.At; at >= end {
					break
				}
			}
		}
		require.Equal(t, committed, lives)
	}
	return frames
}

// changeRecords does what a frame says.
func changeRecords(t *testing.T, records map[uint64]string, body []byte) {
	t.Helper()
	for len(body) > 0 {
		op, err := nextOp(body)
		require.NoError(t, err)
		switch op.kind {
		case opPut:
			records[op.id] = string(op.value)
		case opDelete:
			delete(records, op.id)
		}
		body = body[op.size:]
	}
}

// tornFile is a file of a process that is killed, or of a machine whose power goes, after so many bytes.
type tornFile struct {
	*os.File
	left *int
}

var errKilled = errors.New("killed")

func (f tornFile) WriteAt(b []byte, at int64) (int, error) {
	if *f.left < 0 {
		return 0, errKilled
	}
	if len(b) > *f.left {
		n, _ := f.File.WriteAt(b[:*f.left], at)
		*f.left = -1
		return n, errKilled
	}
	*f.left -= len(b)
	return f.File.WriteAt(b, at)
}

func (f tornFile) alive() error {
	if *f.left < 0 {
		return errKilled
	}
	return nil
}

func (f tornFile) Sync() error { return f.alive() }

func (f tornFile) Truncate(n int64) error {
	if err := f.alive(); err != nil {
		return err
	}
	return f.File.Truncate(n)
}

func withoutOrigin(all map[uint64]string) map[uint64]string {
	delete(all, originRecord)
	return all
}

func TestACopyThatIsKilledAnywhereGoesOnWhereItWas(t *testing.T) {
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
	source := openJournal(t, t.TempDir(), smallSegment)
	frames := writeAndRecord(t, source, rnd, 400)
	require.Positive(t, source.Stats().Compacted, "copies are in it")
	dir, kills, next := t.TempDir(), 0, 0
	for next < len(frames) {
		left := rnd.IntN(2000)
		if kills >= 50 {
			left = 1 << 30
		}
		c, err := open(Options{Dir: dir, Segment: smallSegment}, func(f *os.File) wal.File { return tornFile{f, &left} })
		if err != nil { // killed in its start
			require.ErrorIs(t, err, errKilled)
			kills++
			continue
		}
		o, is, err := CopyIn(c).Origin()
		require.NoError(t, err)
		if is {
			require.Equal(t, SourceOf(source).ID(), o.Log)
			for next = 0; next < len(frames) && frames[next].At <= o.At; next++ {
			}
			require.Equal(t, frames[next-1].At, o.At)
			require.Equal(t, frames[next-1].lives, withoutOrigin(readRecords(t, c)), "nothing is missing, nothing is ahead")
		}
		for next < len(frames) && err == nil {
			n := min(len(frames)-next, 1+rnd.IntN(3))
			var bodies [][]byte
			for _, f := range frames[next : next+n] {
				bodies = append(bodies, f.Body)
			}
			if err = CopyIn(c).Apply(Origin{Log: SourceOf(source).ID(), At: frames[next+n-1].At}, bodies...); err == nil {
				next += n
			}
		}
		_ = c.Close()
		kills++
	}
	require.Greater(t, kills, 50)
	c := openJournal(t, dir, smallSegment)
	require.Equal(t, readRecords(t, source), withoutOrigin(readRecords(t, c)))
	require.Positive(t, c.Stats().Segments)
}

func TestACopyRefusesFramesThatDoNotFollow(t *testing.T) {
	source, c := openJournal(t, t.TempDir(), 0), openJournal(t, t.TempDir(), 0)
	frames := writeAndRecord(t, source, rand.New(rand.NewPCG(1, 2)), 3)
	_, is, err := CopyIn(c).Origin()
	require.NoError(t, err)
	require.False(t, is)
	at := Origin{Log: 7, At: frames[1].At, Whole: frames[2].At, Hash: []byte("hash")}
	require.NoError(t, CopyIn(c).Apply(at, frames[0].Body, frames[1].Body))
	o, is, err := CopyIn(c).Origin()
	require.NoError(t, err)
	require.True(t, is)
	require.Equal(t, at, o)
	require.False(t, o.IsWhole())

	require.ErrorIs(t, CopyIn(c).Apply(at, frames[1].Body), ErrOrder, "once more")
	require.ErrorIs(t, CopyIn(c).Apply(Origin{Log: 7, At: frames[0].At}), ErrOrder, "back")
	require.ErrorIs(t, CopyIn(c).Apply(Origin{Log: 8, At: frames[2].At}, frames[2].Body), ErrOrder, "of another log")
	require.ErrorIs(t, CopyIn(c).Apply(Origin{Log: 7, At: frames[2].At}, frames[2].Body, []byte{opPut, 1, 99}), errOperation)
	require.Equal(t, frames[1].lives, withoutOrigin(readRecords(t, c)), "and has nothing of them")

	require.NoError(t, CopyIn(c).Apply(Origin{Log: 7, At: frames[2].At, Whole: frames[2].At}, frames[2].Body))
	o, _, _ = CopyIn(c).Origin()
	require.True(t, o.IsWhole())

	// A copy of the copy doesn't take its origin for its own.
	second := openJournal(t, t.TempDir(), 0)
	for f, err := range SourceOf(c).Read(context.Background(), 0) {
		require.NoError(t, err)
		require.NoError(t, CopyIn(second).Apply(Origin{Log: SourceOf(c).ID(), At: f.At}, f.Body))
		if _, end, _ := SourceOf(c).Bounds(context.Background()); f.At == end {
			break
		}
	}
	o, _, _ = CopyIn(second).Origin()
	require.Equal(t, SourceOf(c).ID(), o.Log)
	require.Equal(t, frames[2].lives, withoutOrigin(readRecords(t, second)))

	require.NoError(t, CopyIn(second).Detach())
	_, is, err = CopyIn(second).Origin()
	require.NoError(t, err)
	require.False(t, is)
	require.Equal(t, frames[2].lives, readRecords(t, second))
}

// Who begins to copy reads the first frames although compaction has retired them meanwhile.
func TestFramesThatAreHeldCanBeReadAfterTheyWereRetired(t *testing.T) {
	source := openJournal(t, t.TempDir(), smallSegment)
	source.now(t, putChange(1, "first"))
	release := SourceOf(source).Hold()
	for n := range 300 {
		source.now(t, putChange(2, strings.Repeat("x", n%100)))
	}
	require.NoError(t, source.Close()) // compaction has ended
	require.Less(t, source.Stats().Segments, int64(30))
	floor, end, err := SourceOf(source).Bounds(context.Background())
	require.NoError(t, err)
	require.Zero(t, floor)
	c := openJournal(t, t.TempDir(), smallSegment)
	for f, err := range SourceOf(source).Read(context.Background(), floor) {
		require.NoError(t, err)
		require.NoError(t, CopyIn(c).Apply(Origin{Log: 1, At: f.At, Whole: end}, f.Body))
		if f.At == end {
			break
		}
	}
	require.Equal(t, map[uint64]string{1: "first", 2: strings.Repeat("x", 299%100)}, withoutOrigin(readRecords(t, c)))
	release()
	_, err = os.Stat(source.log.Path(1))
	require.ErrorIs(t, err, os.ErrNotExist)
	floor, _, _ = SourceOf(source).Bounds(context.Background())
	require.Positive(t, floor)
	for _, err := range SourceOf(source).Read(context.Background(), 0) {
		require.ErrorIs(t, err, ordered.ErrGone)
		break
	}
}

func TestACommitIsInTheSharedLogFirstAndNotHereIfItIsNotThere(t *testing.T) {
	shared := openJournal(t, t.TempDir(), smallSegment)
	var refuse error
	appended := func(ctx context.Context, body []byte) (Origin, error) {
		if refuse != nil {
			return Origin{}, refuse
		}
		source := SourceOf(shared)
		_, end, err := source.Bounds(ctx)
		require.NoError(t, err)
		end, err = shared.order.Append(ctx, end, body)
		return Origin{Log: source.ID(), At: end}, err
	}
	dir, left := t.TempDir(), 1<<30
	j, err := open(Options{Dir: dir, Segment: smallSegment, Shared: appended}, func(f *os.File) wal.File { return tornFile{f, &left} })
	require.NoError(t, err)
	for n := range 100 {
		j.now(t, putChange(uint64(n%7), strings.Repeat("x", n)), putChange(99, fmt.Sprint(n)))
	}
	refuse = syscall.ENOSPC
	require.ErrorIs(t, j.try(RecordChange{ID: 99}), refuse, "also what the reserve would be for")
	require.Equal(t, "99", readRecords(t, j)[99])
	refuse = ordered.ErrUnknown
	require.ErrorIs(t, j.try(putChange(99, "perhaps")), refuse)
	refuse = nil
	j.now(t, putChange(99, "last"))
	want := withoutOrigin(readRecords(t, j))
	o, is, err := CopyIn(j).Origin()
	require.NoError(t, err)
	require.True(t, is)
	_, end, _ := SourceOf(shared).Bounds(context.Background())
	require.Equal(t, end, o.At)

	left = 10 // what is in the shared log can't be stored here
	require.ErrorIs(t, j.try(putChange(98, "elsewhere")), ordered.ErrUnknown)
	left = 1 << 30
	require.ErrorIs(t, j.try(putChange(97, "after it")), ordered.ErrUnknown, "nothing is stored over a hole")
	_ = j.Close()
	j = openJournal(t, dir, smallSegment)
	require.Equal(t, want, withoutOrigin(readRecords(t, j)))
	for f, err := range SourceOf(shared).Read(context.Background(), o.At) {
		require.NoError(t, err)
		require.NoError(t, CopyIn(j).Apply(Origin{Log: o.Log, At: f.At}, f.Body))
		if _, end, _ := SourceOf(shared).Bounds(context.Background()); f.At == end {
			break
		}
	}
	want[98] = "elsewhere"
	require.Equal(t, want, withoutOrigin(readRecords(t, j)))
}
