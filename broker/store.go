package broker

import (
	"sync"
	"sync/atomic"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/topics/resource"
)

// Journal keeps records on disk. Package journal has one.
type Journal interface {
	// Load goes through all records, before the first Commit.
	Load(each func(id uint64, value []byte) error) error
	// Commit makes changes durable, all or none and in the order of the calls. It never
	// blocks. done is called once they are durable or can't be made so, in order, but
	// not before Commit returns. With done nil nobody waits, and it is tried until it
	// succeeds.
	Commit(changes []journal.Change, done func(error))
}

// store is a journal as sessions use it.
type store struct {
	journal Journal
	last    atomic.Uint64 // record

	mu    sync.Mutex
	room  sync.Cond
	bytes int // handed over, and not yet on disk
}

// storeBytes is how much may wait for the disk before publishers are read no further.
const storeBytes = 64 << 20

func newStore(j Journal) *store {
	s := &store{journal: j}
	s.room.L = &s.mu
	return s
}

// ID names a new record.
func (s *store) ID() uint64 { return s.last.Add(1) }

// Commit makes changes durable.
func (s *store) Commit(changes []journal.Change, done func(error)) {
	if done == nil {
		s.journal.Commit(changes, nil)
		return
	}
	s.begin(changes, done).commit(s)
}

// awaited are changes whose outcome somebody waits for.
type awaited struct {
	changes []journal.Change
	bytes   int
	done    func(error)
}

// begin counts the bytes until the outcome is told.
func (s *store) begin(changes []journal.Change, done func(error)) awaited {
	n := 64
	for _, c := range changes {
		n += len(c.Value)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes += n
	return awaited{changes, n, done}
}

func (o awaited) commit(s *store) {
	s.journal.Commit(o.changes, func(err error) { o.tell(s, cantStore(err)) })
}

func (o awaited) tell(s *store, err error) {
	s.mu.Lock()
	s.bytes -= o.bytes
	s.room.Broadcast()
	s.mu.Unlock()
	o.done(err)
}

func cantStore(err error) error {
	if err == nil {
		return nil
	}
	return resource.Errorf(resource.Unavailable, "", "the broker can't store it now: %v", err)
}

// Forget deletes records some time soon.
func (s *store) Forget(records ...uint64) {
	changes := make([]journal.Change, 0, len(records))
	for _, id := range records {
		if id > 0 {
			changes = append(changes, journal.Change{ID: id})
		}
	}
	if len(changes) > 0 {
		s.journal.Commit(changes, nil)
	}
}

// behind says whether so much waits for the disk that nobody should add to it.
func (s *store) behind() bool { return s.waiting() > storeBytes }

// wait makes a publisher wait while the disk is behind. before is done first.
func (s *store) wait(before func()) {
	before()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.bytes > storeBytes {
		s.room.Wait()
	}
}

// waiting is how many bytes are handed over and not yet on disk.
func (s *store) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// now commits changes and waits for it, which only a client's own reading may do.
func (s *store) now(changes []journal.Change) error {
	done := make(chan error, 1)
	s.Commit(changes, func(err error) { done <- err })
	return <-done
}
