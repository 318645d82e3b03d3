// SPDX-License-Identifier: Apache-2.0

package orderedtest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/edgebus/edgebus/broker/ordered"
)

// MemoryLog is an engine in memory, whose answers get lost and come late as a test wants it. Its frames can be looked at and changed.
type MemoryLog struct {
	mu      sync.Mutex
	id      ordered.LogID
	trimmed int      // frames that are gone
	frames  [][]byte // the others
	grown   chan struct{}

	fault func(frames [][]byte) AppendFault
	late  []func() // appends whose answer was an error, and that are still on their way
}

// AppendFault is what becomes of an append.
type AppendFault int

// Faults.
const (
	None        AppendFault = iota
	LostAnswer              // the frames are in the log, and nobody says so
	LostRequest             // they are not, and nobody says so
	LateRequest             // they come into it with MemoryLog.Deliver, if it ends where it did
	Refused                 // they are not, and that is said
	TornAnswer              // all but the last one are in the log, as when the writer ends amid them
)

var _ ordered.Log = (*MemoryLog)(nil)

// NewMemory makes an empty log.
func NewMemory() *MemoryLog { return &MemoryLog{id: 1, grown: make(chan struct{})} }

// Inject has a function say what becomes of each append from now on; nil: all is well.
func (m *MemoryLog) Inject(fault func(frames [][]byte) AppendFault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
}

// Deliver delivers the appends that are on their way.
func (m *MemoryLog) Deliver() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, deliver := range m.late {
		deliver()
	}
	m.late = nil
}

// Change gives a function the frames, to change them as it likes.
func (m *MemoryLog) Change(change func([][]byte) [][]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	frames := make([][]byte, len(m.frames))
	for i, f := range m.frames {
		frames[i] = slices.Clone(f)
	}
	m.frames = change(frames)
	m.wake()
}

// Renew makes the log another one, with what is in it.
func (m *MemoryLog) Renew() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.id++
	return nil
}

// wake wakes who waits. The caller holds mu.
func (m *MemoryLog) wake() {
	close(m.grown)
	m.grown = make(chan struct{})
}

// end is the position of the last frame. The caller holds mu.
func (m *MemoryLog) end() ordered.Position { return ordered.Position(m.trimmed + len(m.frames)) }

func (m *MemoryLog) store(frames [][]byte) {
	for _, f := range frames {
		m.frames = append(m.frames, slices.Clone(f))
	}
	m.wake()
}

// Append appends frames, or does as the fault says.
func (m *MemoryLog) Append(ctx context.Context, after ordered.Position, frames ...[]byte) (ordered.Position, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	fault := None
	if m.fault != nil {
		fault = m.fault(frames)
	}
	switch fault {
	case LostRequest:
		return 0, fmt.Errorf("no answer: %w", ordered.ErrUnknown)
	case Refused:
		return 0, errors.New("refused")
	case LateRequest:
		var kept [][]byte
		for _, f := range frames {
			kept = append(kept, slices.Clone(f))
		}
		m.late = append(m.late, func() {
			if m.end() == after {
				m.store(kept)
			}
		})
		return 0, fmt.Errorf("no answer yet: %w", ordered.ErrUnknown)
	}
	if after != m.end() {
		return 0, &ordered.MovedError{Last: m.end()}
	}
	switch fault {
	case LostAnswer:
		m.store(frames)
		return 0, fmt.Errorf("no answer: %w", ordered.ErrUnknown)
	case TornAnswer:
		m.store(frames[:len(frames)-1])
		return 0, fmt.Errorf("no answer: %w", ordered.ErrUnknown)
	}
	m.store(frames)
	return m.end(), nil
}

// Read reads frames, and waits for more.
func (m *MemoryLog) Read(ctx context.Context, after ordered.Position) iter.Seq2[ordered.Frame, error] {
	return func(yield func(ordered.Frame, error) bool) {
		for {
			f, grown, err := m.next(after)
			if err != nil {
				yield(ordered.Frame{}, err)
				return
			}
			if grown == nil {
				after = f.At
				if !yield(f, nil) {
					return
				}
				continue
			}
			select {
			case <-grown:
			case <-ctx.Done():
				yield(ordered.Frame{}, ctx.Err())
				return
			}
		}
	}
}

func (m *MemoryLog) next(after ordered.Position) (f ordered.Frame, grown <-chan struct{}, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case after < ordered.Position(m.trimmed):
		return f, nil, ordered.ErrGone
	case after > m.end():
		return f, nil, ordered.ErrBack
	case after == m.end():
		return f, m.grown, nil
	}
	return ordered.Frame{At: after + 1, Body: slices.Clone(m.frames[int(after)-m.trimmed])}, nil, nil
}

// Bounds are the frames that there are.
func (m *MemoryLog) Bounds(ctx context.Context) (floor, end ordered.Position, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return ordered.Position(m.trimmed), m.end(), ctx.Err()
}

// Trim gives up all frames before one.
func (m *MemoryLog) Trim(before ordered.Position) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := int(min(before, m.end())) - 1 - m.trimmed; n > 0 {
		m.frames, m.trimmed = m.frames[n:], m.trimmed+n
	}
	return nil
}

// ID is the log's identity.
func (m *MemoryLog) ID() ordered.LogID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id
}

// OpenMemory opens logs in memory, one in each directory.
func OpenMemory() Open {
	logs := make(map[string]*MemoryLog)
	return func(_ *testing.T, dir string) Engine {
		if logs[dir] == nil {
			logs[dir] = NewMemory()
		}
		return logs[dir].engine()
	}
}

// OpenSharedMemory opens logs in memory that other processes can open, one in each directory.
func OpenSharedMemory() Open {
	logs := make(map[string]*MemoryLog)
	return func(t *testing.T, dir string) Engine {
		if logs[dir] == nil && os.Getenv(writerDir) == "" {
			logs[dir] = NewMemory()
			ShareMemory(t, logs[dir], dir)
		}
		shared := OpenShared(t, dir)
		if m := logs[dir]; m != nil {
			e := m.engine()
			e.Log, e.Close, e.Shared = shared.Log, shared.Close, true
			return e
		}
		return shared
	}
}

// engine is the log with all its faults.
func (m *MemoryLog) engine() Engine {
	nothing := func() error { return nil }
	return Engine{
		Log: m, Close: nothing, Cut: nothing, Renew: m.Renew,
		Unknown: func(late bool) func() {
			fault := LostAnswer
			if late {
				fault = LateRequest
			}
			m.Inject(func([][]byte) AppendFault {
				was := fault
				fault = None
				return was
			})
			return m.Deliver
		},
		CutBack: func(end ordered.Position) error {
			m.Change(func(frames [][]byte) [][]byte { return frames[:int(end)-m.trimmed] })
			return nil
		},
	}
}
