// SPDX-License-Identifier: Apache-2.0

package sealed

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/edgebus/edgebus/broker/ordered"
)

// Mark is a frame that was read or appended: where it is, the epoch it was written in, its hash. Who stores it can go on from there, and finds out
// if the log up to there isn't the one that was read. The zero Mark is before the first frame. One with a position alone stands for whatever is there.
type Mark struct {
	At    ordered.Position
	Epoch uint64
	Hash  Hash
}

// Frame is a frame that was opened.
type Frame struct {
	Mark
	Body []byte
}

// Log is a log of sealed frames. It has an engine's methods; what was appended as one frame is read as one, whatever its length, and positions are
// those of whole ones. Its methods may be called from any goroutine.
type Log struct {
	engine ordered.Log
	key    Key

	writing sync.Mutex // held while frames are appended
	epoch   uint64
	writer  frameWriter

	mu   sync.Mutex
	tail logEnd
}

// logEnd is what is known of the log's end.
type logEnd struct {
	last  Mark
	whole Mark // of what is whole: frames between that and last are parts without their end
}

var _ ordered.Log = (*Log)(nil)

// New makes a log of sealed frames above an engine, whose end is known as far as a mark: the zero one, or one that was stored. It writes in the
// mark's epoch.
func New(engine ordered.Log, key Key, known Mark) *Log {
	return &Log{engine: engine, key: key, epoch: known.Epoch, tail: logEnd{known, known}}
}

// SetEpoch has frames be written in an epoch from now on. None of an epoch before the log's last one can be appended.
func (l *Log) SetEpoch(epoch uint64) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.epoch = epoch
}

// Last is the last whole frame that was read or appended, by anybody who uses this Log.
func (l *Log) Last() Mark { return l.known().whole }

func (l *Log) known() logEnd {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tail
}

func (l *Log) know(t logEnd) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.last.At > l.tail.last.At {
		l.tail = t
	}
}

// Follow is Read that goes on from a mark, and has the mark of each frame. A BrokenError ends it.
func (l *Log) Follow(ctx context.Context, from Mark) iter.Seq2[Frame, error] {
	return func(yield func(Frame, error) bool) {
		l.open(ctx, newChain(from), func(c *frameChain, body []byte, whole bool, err error) bool {
			if err != nil {
				yield(Frame{}, err)
				return false
			}
			return !whole || yield(Frame{c.last, body}, nil)
		})
	}
}

// open opens what follows a mark, until ctx ends, a frame doesn't open or each has enough.
func (l *Log) open(ctx context.Context, c *frameChain, each func(c *frameChain, body []byte, whole bool, err error) bool) {
	for f, err := range l.engine.Read(ctx, c.last.At) {
		var body []byte
		var whole bool
		if err == nil {
			if body, whole, err = c.open(l.key, l.engine.ID(), f); err != nil {
				err = &BrokenError{f.At, err}
			}
		}
		if err == nil {
			l.know(logEnd{c.last, c.whole})
		}
		if !each(c, body, whole, err) || err != nil {
			return
		}
	}
}

// Read hands over the frames after a position. If that is the last one known, or 0, the first of them must follow it.
func (l *Log) Read(ctx context.Context, after ordered.Position) iter.Seq2[ordered.Frame, error] {
	from := Mark{At: after}
	if known := l.Last(); known.At == after {
		from = known
	}
	return func(yield func(ordered.Frame, error) bool) {
		for f, err := range l.Follow(ctx, from) {
			if !yield(ordered.Frame{At: f.At, Body: f.Body}, err) {
				return
			}
		}
	}
}

// Append appends frames if the last whole one is at a position. Parts without their end that follow it are none, and who wrote them can't end them
// any more. Frames that nobody has read yet are read first, for the new ones have the hash of the last.
func (l *Log) Append(ctx context.Context, after ordered.Position, bodies ...[]byte) (ordered.Position, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	t, err := l.readTo(ctx, after)
	for err == nil {
		if after < t.whole.At || after > t.last.At {
			return 0, &ordered.MovedError{Last: t.whole.At}
		}
		if l.epoch < t.last.Epoch {
			return 0, fmt.Errorf("epoch %d is over: the log is in epoch %d", l.epoch, t.last.Epoch)
		}
		frames, mark, failed := l.writer.seal(l.key, l.engine.ID(), l.epoch, t.last, bodies)
		if failed != nil {
			return 0, failed
		}
		mark.At, err = l.engine.Append(ctx, t.last.At, frames...)
		var moved *ordered.MovedError
		switch {
		case err == nil && len(frames) > 0:
			l.know(logEnd{mark, mark})
			return mark.At, nil
		case err == nil:
			return after, nil
		case !errors.As(err, &moved) || moved.Last <= t.last.At:
			return 0, err
		}
		t, err = l.readTo(ctx, moved.Last)
	}
	return 0, err
}

// readTo reads up to a position, if the log goes as far.
func (l *Log) readTo(ctx context.Context, at ordered.Position) (logEnd, error) {
	t := l.known()
	if at <= t.last.At {
		return t, nil
	}
	floor, end, err := l.engine.Bounds(ctx)
	if err != nil {
		return t, err
	}
	from := t.whole
	if from.At == 0 { // nothing is known
		from.At = floor
	}
	if end = min(end, at); from.At >= end {
		return t, nil
	}
	l.open(ctx, newChain(from), func(c *frameChain, _ []byte, _ bool, failed error) bool {
		err = failed
		return c.last.At < end
	})
	return l.known(), err
}

// Bounds are the engine's. Parts without their end are not counted, as far as they are known.
func (l *Log) Bounds(ctx context.Context) (floor, end ordered.Position, err error) {
	floor, end, err = l.engine.Bounds(ctx)
	if t := l.known(); end == t.last.At {
		end = t.whole.At
	}
	return floor, end, err
}

// Trim is the engine's.
func (l *Log) Trim(before ordered.Position) error { return l.engine.Trim(before) }

// ID is the engine's.
func (l *Log) ID() ordered.LogID { return l.engine.ID() }
