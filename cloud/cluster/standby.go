// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/sealed"
)

const (
	applyBytes  = 1 << 20 // that are applied at once
	applyFrames = 1024
	idleFrames  = 256 // that are applied as one, since they say nothing
)

// Stand follows the log into a journal, until this hub owns it. The journal then has all that is in the log, and the others hear of this hub from then on,
// however long it takes until it serves. An error is why this hub can't be a member as it is.
func (m *Member) Stand(ctx context.Context, j *journal.Journal) error {
	s, err := m.begin(j)
	if err == nil {
		err = s.run(ctx)
	}
	if err != nil {
		return err
	}
	go m.keepHeard()
	return nil
}

// CatchUp follows the log into a journal up to where it ends now, and owns nothing.
func (m *Member) CatchUp(ctx context.Context, j *journal.Journal) error {
	s, err := m.begin(j)
	if err != nil {
		return err
	}
	_, end, err := m.o.Log.Bounds(ctx)
	if err != nil || m.At() >= end {
		return err
	}
	reading, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	defer func() { stop(); <-ended }()
	go func() {
		defer close(ended)
		s.read(reading)
	}()
	for m.At() < end && err == nil {
		select {
		case f := <-s.frames:
			err = s.apply(f)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return err
}

// begin has a journal go on where it is in the log.
func (m *Member) begin(j *journal.Journal) (*standbyRun, error) {
	into := journal.CopyIn(j)
	origin, is, err := into.Origin()
	switch {
	case err != nil:
		return nil, err
	case !is:
		return nil, ErrNoMember
	case origin.Log != m.o.Log.ID():
		return nil, fmt.Errorf("the log was made anew: this hub has a part of log %x, and it is %x. Join again: `cloudhub cluster join --force` moves its data away", uint64(origin.Log), uint64(m.o.Log.ID()))
	}
	mark, err := markOf(origin)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.reach(mark)
	m.into, m.log = into, sealed.New(m.o.Log, m.o.Key, mark)
	m.mu.Unlock()
	m.copy.Store(j)
	m.heard.Store(int64(m.o.Clock()))
	return &standbyRun{m: m, into: into, frames: make(chan received, applyFrames)}, nil
}

// standbyRun is a member that stands by.
type standbyRun struct {
	m      *Member
	into   journal.LogCopy
	frames chan received
	idle   int           // frames that were read and say nothing
	hurry  bool          // the owner has said that it stops
	barred string        // why this hub may not take the log
	again  time.Duration // by the clock: not before that is it asked anew
}

type received struct {
	sealed.Frame
	err error
}

func (s *standbyRun) run(ctx context.Context) error {
	reading, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	defer func() { stop(); <-ended }()
	defer context.AfterFunc(ctx, s.m.cancel)()
	go func() {
		defer close(ended)
		s.read(reading)
	}()
	for {
		left := s.m.o.Silence - s.m.Silent()
		if s.hurry {
			left = 0
		}
		if left = max(left, s.again-s.m.o.Clock()); left <= 0 {
			if s.isBarred() {
				s.again = s.m.o.Clock() + min(s.m.o.Silence/4, barredMost)
				continue
			}
			if took, err := s.take(); took || err != nil {
				return err
			}
			s.hurry = false
			s.m.heard.Store(int64(s.m.o.Clock())) // others have appended
			continue
		}
		timer := time.NewTimer(left)
		select {
		case f := <-s.frames:
			timer.Stop()
			if err := s.apply(f); err != nil {
				return err
			}
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-s.m.ctx.Done():
			timer.Stop()
			return s.m.ctx.Err()
		}
	}
}

func (s *standbyRun) read(ctx context.Context) {
	for f, err := range s.m.log.Follow(ctx, s.m.mark) {
		f.Body = slices.Clone(f.Body)
		select {
		case s.frames <- received{f, err}:
		case <-ctx.Done():
			return
		}
	}
}

// apply applies a frame, and those that have been read as well.
func (s *standbyRun) apply(f received) error {
	var bodies [][]byte
	mark, size, idle := s.m.mark, 0, s.idle
	var failed error
	for more := true; more; {
		if f.err != nil {
			failed = explainReadError(f.err)
			break
		}
		one, err := decodeFrame(f.Body)
		if err != nil { // what is before it may say which version it is of
			failed = err
			break
		}
		s.hurry = false
		s.m.noteTime(one.time)
		switch one.kind {
		case kindTake, kindIdle, kindNext:
			name, address, says := decodeWriter(one.body)
			s.m.said.Store(&says)
			if s.m.noteOwner(name, address, f.Epoch) {
				s.m.o.Logger.Info().Str("owner", name).Uint64("epoch", f.Epoch).Msg("another hub owns the log; this one stands by")
			}
		case kindCommit:
			bodies, size = append(bodies, one.body), size+len(one.body)
		case kindRelease:
			s.hurry = true
		}
		mark, idle = f.Mark, idle+1
		more = false
		if size < applyBytes && len(bodies) < applyFrames {
			select {
			case f = <-s.frames:
				more = true
			default:
			}
		}
	}
	if mark == s.m.mark {
		return failed
	}
	s.m.heard.Store(int64(s.m.o.Clock()))
	if s.idle = idle; bodies != nil || idle >= idleFrames {
		s.idle = 0
		s.m.applying = originOf(s.m.o.Log.ID(), mark)
		if err := s.into.Apply(s.m.applying, bodies...); err != nil {
			return fmt.Errorf("what is in the log can't be stored here: %w", err)
		}
	}
	s.m.mu.Lock()
	s.m.reach(mark)
	s.m.mu.Unlock()
	return failed
}

// explainReadError says what to do if the log can't be read on.
func explainReadError(err error) error {
	var broken *sealed.BrokenError
	switch {
	case errors.Is(err, ordered.ErrGone):
		return fmt.Errorf("this hub was away for so long that the log doesn't have what it lacks (%w). Join again, with a backup of a hub that has it: `cloudhub cluster join --force` moves its data away", err)
	case errors.Is(err, ordered.ErrBack):
		return fmt.Errorf("the log lacks what this hub has read (%w): the servers have lost frames that were acknowledged, or were set up anew. Nothing is served from it. "+
			"Make a backup of the hub that has most, and begin a cluster with that (`cloudhub cluster restore`)", err)
	case errors.As(err, &broken):
		return fmt.Errorf("%w. Nothing is served from it. If the other hubs say so too, begin a cluster with a backup of one of them (`cloudhub cluster restore`)", err)
	}
	return err
}

// take takes the log if nobody has appended since.
func (s *standbyRun) take() (took bool, err error) {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.o.ablation == takesUnread {
		if _, end, err := m.o.Log.Bounds(m.ctx); err == nil {
			m.reach(sealed.Mark{At: end})
		}
	}
	m.awaitTime(m.ctx)
	m.log.SetEpoch(m.log.Last().Epoch + 1)
	had := m.said.Load()
	err = m.put(kindTake, m.encodeSelf())
	if err != nil {
		m.said.Store(had)
	}
	var taken *takenError
	if errors.As(err, &taken) {
		return false, nil
	}
	if err != nil {
		return false, explainReadError(err)
	}
	m.noteOwner(m.o.Name, m.o.Address, m.mark.Epoch)
	m.state.Store(int32(stateOwner))
	m.o.Logger.Info().Uint64("epoch", m.mark.Epoch).Uint64("position", uint64(m.mark.At)).Msg("this hub owns the log")
	return true, nil
}

// barredMost is after how long a hub that may not take the log asks again whether it may: a server that answered late is no reason to leave the log without an
// owner for another silence.
const barredMost = 500 * time.Millisecond

// isBarred asks whether this hub may own the log, and logs why not, once for each reason.
func (s *standbyRun) isBarred() bool {
	why := ""
	if err := s.m.MayTake(s.m.ctx); err != nil {
		why = err.Error()
	}
	if why != "" && why != s.barred {
		s.m.o.Logger.Error().Str("why", why).Msg("nobody owns the log, and this hub can't: it stands by until that is mended")
	}
	s.barred = why
	return why != ""
}
