package twin

import (
	"context"
	"sync"
)

// deliveryWaits have desired writes wait until durable sessions have what follows from them on disk. What it knows of a device is in the
// device, guarded by mu.
type deliveryWaits struct {
	mu     sync.Mutex
	change sync.Cond
	closed bool
}

// deliveryState is up to which revision of a Device the messages are settled, and the last outcome.
type deliveryState struct {
	rev     uint64
	err     error
	removed bool
}

func newDeliveryWaits() *deliveryWaits {
	s := new(deliveryWaits)
	s.change.L = &s.mu
	return s
}

// note notes that the messages of Devices of these revisions have an outcome.
func (s *deliveryWaits) note(revs map[*device]uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, rev := range revs {
		d.delivery = deliveryState{max(rev, d.delivery.rev), err, d.delivery.removed}
	}
	s.change.Broadcast()
}

// remove ends waiting for a device that was removed.
func (s *deliveryWaits) remove(d *device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.delivery.removed = true
	s.change.Broadcast()
}

// wait waits for the outcome of the messages of a Device's revision.
func (s *deliveryWaits) wait(ctx context.Context, d *device, rev uint64) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.change.Broadcast()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for d.delivery.rev < rev && !d.delivery.removed && !s.closed && ctx.Err() == nil {
		s.change.Wait()
	}
	switch {
	case d.delivery.rev >= rev:
		return d.delivery.err
	case d.delivery.removed:
		return nil
	case s.closed:
		return errStopped
	}
	return ctx.Err()
}

func (s *deliveryWaits) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.change.Broadcast()
}
