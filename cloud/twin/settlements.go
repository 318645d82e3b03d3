package twin

import (
	"context"
	"sync"
)

// settlements have desired writes wait until durable sessions have what follows from them on disk. What it knows of a device is in the
// device, guarded by mu.
type settlements struct {
	mu     sync.Mutex
	change sync.Cond
	closed bool
}

// settling is up to which revision of a Device the messages are settled, and the last outcome.
type settling struct {
	rev  uint64
	err  error
	gone bool
}

func (s *settlements) init() { s.change.L = &s.mu }

// note notes that the messages of Devices of these revisions have an outcome.
func (s *settlements) note(revs map[*device]uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, rev := range revs {
		d.settling = settling{max(rev, d.settling.rev), err, d.settling.gone}
	}
	s.change.Broadcast()
}

// gone ends waiting for a device that was removed.
func (s *settlements) gone(d *device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.settling.gone = true
	s.change.Broadcast()
}

// wait waits for the outcome of the messages of a Device's revision.
func (s *settlements) wait(ctx context.Context, d *device, rev uint64) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.change.Broadcast()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for d.settling.rev < rev && !d.settling.gone && !s.closed && ctx.Err() == nil {
		s.change.Wait()
	}
	switch {
	case d.settling.rev >= rev:
		return d.settling.err
	case d.settling.gone:
		return nil
	case s.closed:
		return errStopped
	}
	return ctx.Err()
}

func (s *settlements) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.change.Broadcast()
}
