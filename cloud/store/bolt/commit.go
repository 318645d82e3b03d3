package bolt

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	maxBatch      = 1024    // requests in one transaction, and waiting for it
	maxBatchBytes = 8 << 20 // bytes in one transaction, but for the last request
)

// request is one write that waits for the committer.
type request struct {
	apply func(*batch) error // plans it; runs on the committer
	size  int
	taken atomic.Bool // by the committer, or by a caller who gave up before that
	done  chan error  // buffered: the committer never waits for a caller
}

// do has the committer plan and commit a write.
func (s *Store) do(ctx context.Context, size int, apply func(*batch) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r := &request{apply: apply, size: size, done: make(chan error, 1)}
	select {
	case <-s.closing:
		return store.Closed("the store")
	default:
	}
	select {
	case s.requests <- r:
	case <-s.closing:
		return store.Closed("the store")
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.done:
		return err
	case <-s.done:
		return s.lastWord(r)
	case <-ctx.Done():
		if r.taken.CompareAndSwap(false, true) {
			return ctx.Err() // it never was begun
		}
		return store.Unknown(ctx.Err())
	}
}

// lastWord answers a request that met the end of the committer.
func (s *Store) lastWord(r *request) error {
	select {
	case err := <-r.done:
		return err
	default:
		return store.Closed("the store")
	}
}

// run is the committer: the only one that writes. It ends when the store closes
// and nothing waits.
func (s *Store) run() {
	defer close(s.done)
	for {
		select {
		case r := <-s.requests:
			s.process(s.gather(r))
		case <-s.closing:
			select {
			case r := <-s.requests:
				s.process(s.gather(r))
			default:
				return
			}
		}
	}
}

// gather takes all that waits. Those whom the last commit answered are about to
// come back: giving way to them twice makes groups of all instead of two halves.
func (s *Store) gather(first *request) []*request {
	batch, size := []*request{first}, first.size
	for idle := 0; idle < 2 && len(batch) < maxBatch && size < maxBatchBytes; {
		select {
		case r := <-s.requests:
			batch = append(batch, r)
			size += r.size
			idle = 0
		default:
			idle++
			runtime.Gosched()
		}
	}
	return batch
}

// process plans, commits and publishes what the requests ask for, then answers them.
func (s *Store) process(requests []*request) {
	if err := s.resolve(); err != nil {
		for _, r := range requests {
			r.done <- err // nothing was begun
		}
		return
	}
	b := newBatch(s.snap.Load())
	answers := make([]error, len(requests))
	for i, r := range requests {
		if !r.taken.CompareAndSwap(false, true) {
			continue // nobody waits for it any more
		}
		answers[i] = r.apply(b)
	}
	if !b.empty() {
		began := time.Now()
		err := s.commitBatch(b)
		if s.opts.Committed != nil {
			s.opts.Committed(time.Since(began), len(requests), err)
		}
		if err != nil {
			if !s.failing { // said once: everybody whose write is refused is told why
				s.opts.Log.Error().Err(err).Int("writes", len(requests)).Msg("nothing can be stored: writes are refused until this is mended")
			}
			s.failing = true
			for i := range answers { // also those refused: they may have been refused for what is not there
				answers[i] = store.Unknown(err)
			}
		} else if s.failing {
			s.failing = false
			s.opts.Log.Info().Msg("the store can be written again")
		}
	}
	for i, r := range requests {
		r.done <- answers[i]
	}
}

func (s *Store) commitBatch(b *batch) error {
	b.compact(s.opts.Tombstones)
	if err := s.writeBatch(b); err != nil {
		s.inDoubt = b
		_ = s.resolve() // or before the next batch
		return err
	}
	s.publish(b)
	return nil
}

func (s *Store) writeBatch(b *batch) error {
	return file(s.opts.Path).Safely(func() error { return s.transact(b) })
}

func (s *Store) transact(b *batch) error {
	if err := s.InPlace(); err != nil {
		return err
	}
	tx, err := s.db.Begin(true)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if err := b.write(tx); err != nil {
		return err
	}
	return s.commit(tx)
}

// resolve finds out what became of a commit that failed. It may have reached
// the file all the same (the sync failed, not the write): then the next
// transaction would build on it, and so must the index.
func (s *Store) resolve() error {
	b := s.inDoubt
	if b == nil {
		return nil
	}
	var seq uint64
	err := s.view(func(tx *bbolt.Tx) error {
		now, err := readState(tx)
		seq = now.seq
		return err
	})
	if err != nil {
		return resource.Errorf(resource.Unavailable, "", "the store can't be read after a failed commit: %v", err)
	}
	if seq == b.next.seq {
		s.publish(b)
	}
	s.inDoubt = nil
	return nil
}

// view reads the file. What it returns must be copied out of the transaction.
func (s *Store) view(read func(*bbolt.Tx) error) error {
	return file(s.opts.Path).Safely(func() error { return s.db.View(read) })
}

// publish shows a committed batch to readers and watchers.
func (s *Store) publish(b *batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snap.Store(&b.next)
	for _, event := range b.events {
		for st := range s.streams[store.Key{Kind: event.Object.Kind}] {
			st.offer(event)
		}
		for st := range s.streams[event.Object.Key] {
			st.offer(event)
		}
	}
}

// Create adds an object.
func (s *Store) Create(ctx context.Context, o store.Object) (out store.Object, err error) {
	if err := s.check(o); err != nil {
		return out, err
	}
	if len(o.Data) == 0 {
		return out, resource.Errorf(resource.Invalid, "", "%s has no data", o.Key)
	}
	// The planned result is handed over with the answer, and only then read.
	var planned store.Object
	err = s.do(ctx, size(o), func(b *batch) (err error) {
		planned, err = b.create(o)
		return err
	})
	if err != nil {
		return store.Object{}, err
	}
	return planned, nil
}

// Update replaces an object's records.
func (s *Store) Update(ctx context.Context, o store.Object, expect uint64) (out store.Object, err error) {
	if err := s.check(o); err != nil {
		return out, err
	}
	if o.Data != nil && len(o.Data) == 0 {
		return out, resource.Errorf(resource.Invalid, "", "%s has no data", o.Key)
	}
	var planned store.Object
	err = s.do(ctx, size(o), func(b *batch) (err error) {
		planned, err = b.update(o, expect)
		return err
	})
	if err != nil {
		return store.Object{}, err
	}
	return planned, nil
}

// Delete removes an object.
func (s *Store) Delete(ctx context.Context, key store.Key, expect uint64) (out store.Object, err error) {
	if err := checkKey(key); err != nil {
		return out, err
	}
	var planned store.Object
	err = s.do(ctx, 0, func(b *batch) (err error) {
		planned, err = b.delete(key, expect)
		return err
	})
	if err != nil {
		return store.Object{}, err
	}
	return planned, nil
}

func size(o store.Object) int { return len(o.Data) + len(o.Status) }

func (s *Store) check(o store.Object) error {
	if err := checkKey(o.Key); err != nil {
		return err
	}
	if n := max(len(o.Data), len(o.Status)); n > s.opts.MaxObject {
		return resource.Errorf(resource.TooLarge, "", "%s has %d bytes, at most %d are kept", o.Key, n, s.opts.MaxObject)
	}
	return nil
}
