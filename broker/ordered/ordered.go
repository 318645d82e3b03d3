// SPDX-License-Identifier: Apache-2.0

// Package ordered is the port of the log that a hub's state is in: one order of frames that all who read it see. Engines are package wal,
// which keeps it in files, and whatever replicates it.
//
// It knows nothing of what is in a frame.
package ordered

import (
	"context"
	"errors"
	"fmt"
	"iter"
)

// Position is where a frame is in the log: a later one has a higher position, and it says nothing else. 0 is before the first.
type Position uint64

// Frame is what was appended at once.
type Frame struct {
	At   Position
	Body []byte
}

// LogID tells a log from one that was made anew in its place, as from a backup.
type LogID uint64

// Log is the log. Package test/orderedtest has the tests that each engine must pass.
type Log interface {
	Reader
	// Append appends frames if the log ends after that position, and returns the position of the last of them: then all are there, for good.
	// A MovedError: others have appended, and none is there. ErrUnknown: nobody knows. With any other error none is there.
	Append(ctx context.Context, after Position, frames ...[]byte) (Position, error)
	// Trim gives up frames before a position, as many as the engine can easily remove.
	Trim(before Position) error
}

// Reader is what of a log is there for who only reads it.
type Reader interface {
	// Read hands over the frames after a position, each valid until the next, and waits for more until ctx ends. ErrGone: the first of
	// them are trimmed; ErrBack: the log ends before that position.
	Read(ctx context.Context, after Position) iter.Seq2[Frame, error]
	// Bounds are a position from which the log can be read, the first of all, and that of the last frame. Only Append decides: others
	// may have appended since.
	Bounds(ctx context.Context) (floor, end Position, err error)
	// ID changes when the log is made anew.
	ID() LogID
}

// ErrUnknown is in the chain of an error of Append when the frames may be in the log, or may come into it later.
var ErrUnknown = errors.New("nobody knows whether it was appended")

// ErrGone and ErrBack are why a log can't be read from a position.
var (
	ErrGone = errors.New("what follows is no longer in the log")
	ErrBack = errors.New("the log ends before that")
)

// MovedError is the error of Append for a log that ends elsewhere.
type MovedError struct{ Last Position }

func (e *MovedError) Error() string { return fmt.Sprintf("others have appended up to %d", e.Last) }
