package broker

import (
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
	// Read hands over the values of records, in order, each valid during the call.
	Read(ids []uint64, each func(i int, value []byte) error) error
}

// store is a journal as sessions use it.
type store struct {
	journal Journal
	last    atomic.Uint64 // record
	backlog               // of what is not yet on disk
}

func newStore(j Journal) *store {
	s := &store{journal: j}
	s.init()
	return s
}

// ID names a new record.
func (s *store) ID() uint64 { return s.last.Add(1) }

// Read reads records.
func (s *store) Read(ids []uint64, each func(i int, value []byte) error) error {
	return s.journal.Read(ids, each)
}

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
	s.add(n)
	return awaited{changes, n, done}
}

func (o awaited) commit(s *store) {
	s.journal.Commit(o.changes, func(err error) { o.tell(s, cantStore(err)) })
}

func (o awaited) tell(s *store, err error) {
	s.settle(o.bytes)
	o.done(err)
}

func cantStore(err error) error {
	if err == nil {
		return nil
	}
	return resource.Errorf(resource.Unavailable, "", "the broker can't store it now: %v", err)
}

// along commits changes, if there are any, and tells the outcome.
func (s *store) along(changes []journal.Change, done func(error)) {
	if len(changes) == 0 {
		done(nil)
		return
	}
	s.Commit(changes, done)
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

// now commits changes and waits for it, which only a client's own reading may do.
func (s *store) now(changes []journal.Change) error {
	done := make(chan error, 1)
	s.Commit(changes, func(err error) { done <- err })
	return <-done
}
