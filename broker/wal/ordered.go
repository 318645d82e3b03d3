// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"sync"

	"github.com/edgebus/edgebus/broker/ordered"
)

// OrderedLog is a log as an engine of the port. A frame's position is where it ends, so that the place of the next one follows from it: the
// segment in the upper half, the byte in the lower one.
type OrderedLog struct {
	log     *Log
	scratch []byte // of Append; of who holds writing
}

var _ ordered.Log = (*OrderedLog)(nil)

// NewOrdered makes an engine of an open log.
func NewOrdered(l *Log) *OrderedLog { return &OrderedLog{log: l} }

func orderedAt(end Position) ordered.Position {
	return ordered.Position(end.Segment<<32 | uint64(end.At))
}

// StartOf is where a frame begins that ends at a position and has a body of n bytes.
func StartOf(end ordered.Position, n int) Position {
	return Position{uint64(end >> 32), int64(uint32(end)) - int64(n) - HeadSize - markSize}
}

// logTail is where the log ends, for those who don't wait for an append.
type logTail struct {
	mu       sync.Mutex
	last     Position      // where the last frame ends; zero: there was none
	grown    chan struct{} // closed when a frame is appended; nil: nobody waits
	identity ordered.LogID
}

func (t *logTail) advance(end Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = end
	if t.grown != nil {
		close(t.grown)
		t.grown = nil
	}
}

// found notes what the header of a segment says.
func (t *logTail) found(before Position, id ordered.LogID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.identity = id; t.last == (Position{}) && before.At > 0 {
		t.last = before
	}
}

func (t *logTail) end() ordered.Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return orderedAt(t.last)
}

// id is the log's identity, which a new log gets.
func (t *logTail) id() ordered.LogID {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.identity == 0 {
		t.identity = newLogID()
	}
	return t.identity
}

func (t *logTail) renew(id ordered.LogID) (was ordered.LogID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was, t.identity = t.identity, id
	return was
}

func newLogID() (id ordered.LogID) {
	for id == 0 {
		var b [8]byte
		_, _ = rand.Read(b[:]) // crypto/rand never fails
		id = ordered.LogID(binary.LittleEndian.Uint64(b[:]))
	}
	return id
}

// Append appends frames if the log ends after a position.
func (o *OrderedLog) Append(ctx context.Context, after ordered.Position, frames ...[]byte) (ordered.Position, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	o.log.writing.Lock()
	defer o.log.writing.Unlock()
	if last := o.log.tail.end(); last != after {
		return 0, &ordered.MovedError{Last: last}
	}
	if len(frames) == 0 {
		return after, nil
	}
	if o.log.opts.ReadOnly {
		return 0, errReadOnly
	}
	if err := o.log.restock(); err != nil {
		return 0, err
	}
	if _, err := o.log.append(o.withRoom(frames)...); err != nil {
		return 0, err
	}
	return o.log.tail.end(), nil
}

const maxKeptScratch = 4 << 20

// withRoom copies bodies of frames, with room for heads and marks.
func (o *OrderedLog) withRoom(bodies [][]byte) [][]byte {
	var room [HeadSize]byte
	b := o.scratch[:0]
	for _, body := range bodies {
		b = append(append(append(b, room[:]...), body...), room[:markSize]...)
	}
	if o.scratch = b; cap(b) > maxKeptScratch {
		o.scratch = nil
	}
	frames := make([][]byte, len(bodies))
	for i, body := range bodies {
		n := HeadSize + len(body)
		frames[i], b = b[:n:n+markSize], b[n+markSize:]
	}
	return frames
}

// Bounds are where the oldest segment begins, and the last frame.
func (o *OrderedLog) Bounds(ctx context.Context) (floor, end ordered.Position, err error) {
	return o.floor(), o.log.tail.end(), ctx.Err()
}

func (o *OrderedLog) floor() ordered.Position {
	s := o.log.segments.first()
	if s.before == 0 {
		return 0
	}
	return orderedAt(Position{s.number - 1, s.before})
}

// Hold keeps the frames that there are until release is called, for who reads them from the first one on.
func (o *OrderedLog) Hold() (release func()) {
	o.log.segments.pin()
	return o.log.unpin
}

// Behind is how many bytes of segments there are after a position.
func (o *OrderedLog) Behind(at ordered.Position) int64 {
	return o.log.segments.after(Position{uint64(at >> 32), int64(uint32(at))})
}

// Trim removes the segments before the one that a frame is in. The header of a new one says that they are not needed.
func (o *OrderedLog) Trim(before ordered.Position) error {
	needed := uint64(min(before, o.log.tail.end()) >> 32)
	if needed <= o.log.Base() {
		return nil
	}
	o.log.segments.need(needed)
	if err := o.beginNext(); err != nil {
		return err
	}
	return o.log.Retire(needed)
}

// beginNext begins another segment, although this one may be empty.
func (o *OrderedLog) beginNext() error {
	o.log.writing.Lock()
	defer o.log.writing.Unlock()
	if err := o.log.truncateSuspect(); err != nil {
		return err
	}
	return o.log.begin(o.log.segments.end().Segment + 1)
}

// ID is the identity of the segment that is written to.
func (o *OrderedLog) ID() ordered.LogID { return o.log.tail.id() }

// Renew makes the log another one, that goes on where this one ends: who has read this one doesn't take it for the same.
func (o *OrderedLog) Renew() error {
	was := o.log.tail.renew(newLogID())
	err := o.beginNext()
	if err != nil {
		o.log.tail.renew(was)
	}
	return err
}

// Read reads frames, and waits for more.
func (o *OrderedLog) Read(ctx context.Context, after ordered.Position) iter.Seq2[ordered.Frame, error] {
	return func(yield func(ordered.Frame, error) bool) {
		r := &Reader{}
		defer r.Close()
		for {
			body, err := o.next(ctx, r, after)
			if errors.Is(err, io.EOF) { // of what there was when the file was opened
				continue
			}
			if err != nil {
				yield(ordered.Frame{}, err)
				return
			}
			after = orderedAt(r.at)
			if !yield(ordered.Frame{At: after, Body: body}, nil) {
				return
			}
		}
	}
}

// next reads the frame after a position. The reader is there, or has no file.
func (o *OrderedLog) next(ctx context.Context, r *Reader, after ordered.Position) (body []byte, err error) {
	if r.file == nil {
		at, err := o.following(ctx, after)
		if err == nil {
			err = o.seek(r, at)
		}
		if err != nil {
			return nil, err
		}
	}
	body, _, err = r.Next()
	return body, err
}

// following is the place of the frame after a position, for which it waits.
func (o *OrderedLog) following(ctx context.Context, after ordered.Position) (at Position, err error) {
	for {
		floor, last, grown := o.floor(), o.log.tail.end(), o.log.tail.waitAfter(after)
		switch {
		case after < floor:
			return at, fmt.Errorf("%w: it begins after %d", ordered.ErrGone, floor)
		case after > last:
			return at, fmt.Errorf("%w: its last frame is at %d", ordered.ErrBack, last)
		case grown == nil:
			at = Position{uint64(after >> 32), int64(uint32(after))}
			for next, ok := o.log.segments.find(at.Segment + 1); ok && at.At >= next.before; next, ok = o.log.segments.find(at.Segment + 1) {
				at = Position{next.number, HeaderSize}
			}
			return at, nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return at, ctx.Err()
		}
	}
}

// waitAfter is a channel that is closed when there is more than up to a position; nil: there is.
func (t *logTail) waitAfter(after ordered.Position) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if orderedAt(t.last) != after {
		return nil
	}
	if t.grown == nil {
		t.grown = make(chan struct{})
	}
	return t.grown
}

// seek opens a segment at a frame, which follows the one that the reader has read last, if it has read any.
func (o *OrderedLog) seek(r *Reader, at Position) error {
	last, known := r.last, r.chained
	if _, err := o.log.Read(at.Segment, r); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %w", ordered.ErrGone, err) // it was trimmed meanwhile
	} else if err != nil {
		return err
	}
	if known {
		r.startAfter(last)
	} else {
		r.chained = at.At == HeaderSize
	}
	_, err := io.CopyN(io.Discard, r.in, at.At-HeaderSize)
	r.at = at
	return err
}
