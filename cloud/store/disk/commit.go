// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	maxBatch      = 1024    // requests in one commit, and waiting for it
	maxBatchBytes = 8 << 20 // bytes in one commit, but for the last request
)

// request is one write that waits for the committer.
type request struct {
	apply func(*batch) error // plans it; runs on the committer
	size  int
	taken atomic.Bool // by the committer, or by a caller that gave up before that
	done  chan error  // buffered: the committer never waits for a caller
}

// submit has the committer plan and commit a write.
func (s *Store) submit(ctx context.Context, size int, apply func(*batch) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r := &request{apply: apply, size: size, done: make(chan error, 1)}
	select {
	case <-s.closing:
		return store.ClosedError("the store")
	default:
	}
	select {
	case s.requests <- r:
	case <-s.closing:
		return store.ClosedError("the store")
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.done:
		return err
	case <-s.done:
		return s.finalAnswer(r)
	case <-ctx.Done():
		if r.taken.CompareAndSwap(false, true) {
			return ctx.Err() // the committer never takes it
		}
		return store.UnknownOutcome(ctx.Err())
	}
}

// finalAnswer is the answer to a request after the committer has ended.
func (s *Store) finalAnswer(r *request) error {
	select {
	case err := <-r.done:
		return err
	default:
		return store.ClosedError("the store")
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

// gather takes all requests that wait. Callers that the last commit answered often send their next request at once: yielding to them
// twice puts all callers into one batch, instead of two halves that alternate.
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
	b := s.newBatch()
	answers := make([]error, len(requests))
	for i, r := range requests {
		if !r.taken.CompareAndSwap(false, true) {
			continue // its caller has given up
		}
		answers[i] = r.apply(b)
	}
	if b.empty() && b.next.rev <= s.reserved {
		if len(b.ownTables) > 0 {
			b.compact(s.opts.Tombstones)
			s.publish(&b.next, b.events)
		}
	} else {
		began := time.Now()
		err := s.commitBatch(b)
		if s.opts.Committed != nil {
			s.opts.Committed(time.Since(began), len(requests), err)
		}
		if err != nil {
			if !s.failing { // logged once: each refused caller gets the error
				s.opts.Log.Error().Err(err).Int("writes", len(requests)).Msg("nothing can be stored: writes are refused until this is mended")
			}
			s.failing = true
			for i := range answers { // also refused ones: they may have been refused because of writes that failed
				answers[i] = store.UnknownOutcome(err)
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
	reserved := b.next.rev
	if s.derives.Load() {
		reserved += revReserve
	}
	b.noteLastDeletes()
	commit := s.commit
	if b.empty() { // revisions are reserved for what is not stored: a start does that, on a full disk, too
		commit = s.journal.SyncReserved
	}
	b.putRecord(stateRecord, storeState{s.identity, reserved}.encode())
	if err := commit(b.journalChanges()); err != nil {
		s.ids.free = append(s.ids.free, b.taken...)
		return err
	}
	s.ids.free = append(s.ids.free, b.freed()...)
	s.reserved = reserved
	maps.Copy(s.lastDeletes, b.lastDeletes)
	s.applyNodes(b.nodes)
	s.publish(&b.next, b.events)
	return nil
}

// Create adds an object.
func (s *Store) Create(ctx context.Context, o store.Object) (out store.Object, err error) {
	if err := s.check(o); err != nil {
		return out, err
	}
	if len(o.Data) == 0 {
		return out, resource.Errorf(resource.Invalid, "", "%s has no data", o.Key)
	}
	// The committer writes planned before it answers; it is read after the answer.
	var planned store.Object
	err = s.submit(ctx, objectSize(o), func(b *batch) (err error) {
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
	return s.update(ctx, o, expect, true)
}

// UpdateDerived replaces an object's records in memory.
func (s *Store) UpdateDerived(ctx context.Context, o store.Object, expect uint64) (out store.Object, err error) {
	return s.update(ctx, o, expect, false)
}

func (s *Store) update(ctx context.Context, o store.Object, expect uint64, stored bool) (out store.Object, err error) {
	if err := s.check(o); err != nil {
		return out, err
	}
	if o.Data != nil && len(o.Data) == 0 {
		return out, resource.Errorf(resource.Invalid, "", "%s has no data", o.Key)
	}
	var planned store.Object
	err = s.submit(ctx, objectSize(o), func(b *batch) (err error) {
		planned, err = b.update(o, expect, stored)
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
	err = s.submit(ctx, 0, func(b *batch) (err error) {
		planned, err = b.delete(key, expect)
		return err
	})
	if err != nil {
		return store.Object{}, err
	}
	return planned, nil
}

// revReserve is how many revisions may be given between two commits for what is not written. The state has the last of them, from
// which revisions go on after a restart: none is given twice.
const revReserve = 1 << 20

// DeriveStatuses has the statuses of a kind derived when they are read, of all that was read from the file. Each of the objects may have
// had any of the revisions that are not in the file, and gets another one.
func (s *Store) DeriveStatuses(kind string, status func(store.Object) []byte) (rev uint64, err error) {
	s.derives.Store(true)
	err = s.submit(context.Background(), 0, func(b *batch) error {
		t := b.edit(kind)
		t.derives = true
		for _, e := range t.log {
			if !e.deleted && e.rev <= s.opened {
				b.next.rev++
				e.derived, e.status, e.rev = &derivedStatus{of: status, status: e.status}, packedText{}, b.next.rev
			}
		}
		rev = b.next.rev
		return nil
	})
	return rev, err
}

func objectSize(o store.Object) int { return len(o.Data) + len(o.Status) }

func (s *Store) check(o store.Object) error {
	if err := checkKey(o.Key); err != nil {
		return err
	}
	if n := max(len(o.Data), len(o.Status)); n > s.opts.MaxObject {
		return resource.Errorf(resource.TooLarge, "", "%s has %d bytes; at most %d can be stored", o.Key, n, s.opts.MaxObject)
	}
	return nil
}

// batch plans what one commit does. Planning touches nothing that readers see.
type batch struct {
	store     *Store
	from      uint64 // revision of the snapshot that it builds on
	next      snapshot
	ownTables map[string]*table   // the tables of next that this batch made
	records   map[recordID][]byte // what becomes of records in the end; nil: they are deleted
	taken     []recordID          // new numbers
	events    []*store.Event      // each by itself: a stream that is slow keeps one, and not those of a batch
	nodes     map[string]*nodeEdit

	lastDeletes map[string]recordID // new records
}

func (s *Store) newBatch() *batch {
	now := s.snap.Load()
	return &batch{
		store: s, from: now.rev,
		next:      snapshot{rev: now.rev, tables: maps.Clone(now.tables), replaced: now.replaced},
		ownTables: make(map[string]*table),
		records:   make(map[recordID][]byte),
		nodes:     make(map[string]*nodeEdit),

		lastDeletes: make(map[string]recordID),
	}
}

func (b *batch) empty() bool { return len(b.records) == 0 }

// newID is the number of a new record.
func (b *batch) newID() recordID {
	id := b.store.ids.take()
	b.taken = append(b.taken, id)
	return id
}

func (b *batch) putRecord(id recordID, value []byte) { b.records[id] = value }

func (b *batch) remove(id recordID) { b.records[id] = nil }

// freed are the numbers that no record has after the batch.
func (b *batch) freed() (ids []recordID) {
	for id, value := range b.records {
		if value == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// journalChanges are the changes of the batch for the journal, in the order of records: what is made together is read together then, and
// without being sorted when the store is opened.
func (b *batch) journalChanges() []journal.RecordChange {
	changes := make([]journal.RecordChange, 0, len(b.records))
	for id, value := range b.records {
		changes = append(changes, journal.RecordChange{ID: journalID(id), Value: value})
	}
	slices.SortFunc(changes, func(a, b journal.RecordChange) int { return cmp.Compare(a.ID, b.ID) })
	return changes
}

// noteLastDeletes notes when something of a kind was deleted last: after a restart, which forgets what that was, a
// watch can't go on from before.
func (b *batch) noteLastDeletes() {
	for kind, t := range b.ownTables {
		if t.lastDelete <= b.from {
			continue
		}
		id := b.store.lastDeletes[kind]
		if id == 0 {
			id = b.newID()
			b.lastDeletes[kind] = id
		}
		b.putRecord(id, encodeLastDelete(kind, t.lastDelete))
	}
}

// edit is the kind's table in a form that this batch may change.
func (b *batch) edit(kind string) *table {
	if t := b.ownTables[kind]; t != nil {
		return t
	}
	t := *b.next.table(kind)
	t.index = t.index.edit()
	b.ownTables[kind], b.next.tables[kind] = &t, &t
	return &t
}

// put makes e, which is now, the newest version of its key, after old, which is the object before; nil: there is none.
func (b *batch) put(key store.Key, e, old *objectVersion, now store.Object, before *store.Object, data, status bool) store.Object {
	t := b.edit(key.Kind)
	t.set(e)
	t.log = append(t.log, e)
	if data {
		b.putRecord(e.record, e.encodeObject(key.Kind))
	}
	if status {
		b.putStatus(e)
	}
	event := &store.Event{Type: store.Added, Object: now}
	if old != nil {
		b.next.replaced += old.size()
		event.Type, event.Old = store.Modified, before
	}
	b.events = append(b.events, event)
	return event.Object
}

// putStatus plans the status of a version, which is not yet in the table.
func (b *batch) putStatus(e *objectVersion) {
	switch {
	case e.status.form == noForm && e.statusRecord != 0:
		b.remove(e.statusRecord)
		e.statusRecord = 0
	case e.status.form != noForm && e.statusRecord == 0:
		e.statusRecord = b.newID()
		fallthrough
	case e.status.form != noForm:
		b.putRecord(e.statusRecord, e.encodeStatus())
	}
}

func (b *batch) create(o store.Object) (store.Object, error) {
	if b.next.table(o.Kind).get(o.Namespace, o.Name) != nil {
		return store.Object{}, store.AlreadyExists(o.Key)
	}
	b.next.rev++
	e := &objectVersion{
		namespace: strings.Clone(o.Namespace), name: strings.Clone(o.Name),
		rev: b.next.rev, created: b.next.rev, record: b.newID(),
		data: bytes.Clone(o.Data), status: packText(o.Status),
	}
	return b.put(o.Key, e, nil, e.object(o.Kind), nil, true, true), nil
}

// current is the version that a write is to replace, if it is the expected one.
func (b *batch) current(key store.Key, expect uint64) (*objectVersion, error) {
	old := b.next.table(key.Kind).get(key.Namespace, key.Name)
	if old == nil {
		return nil, store.NotFound(key)
	}
	if expect != 0 && expect != old.rev {
		return nil, store.Conflict(key, expect, old.rev)
	}
	return old, nil
}

// update replaces an object's records. What is derived is not stored. A status that was derived when it was read is not what is stored: writing
// it alone is a change in any case. With the object it is what its writer has read.
func (b *batch) update(o store.Object, expect uint64, stored bool) (store.Object, error) {
	old, err := b.current(o.Key, expect)
	if err != nil {
		return store.Object{}, err
	}
	was := old.object(o.Kind)
	data := o.Data != nil && !bytes.Equal(o.Data, was.Data)
	status := o.Status != nil && (old.derived != nil && o.Data == nil || !bytes.Equal(o.Status, was.Status))
	if !data && !status {
		return was, nil
	}
	b.next.rev++
	e := *old
	e.rev = b.next.rev
	if data {
		e.data = bytes.Clone(o.Data)
		e.derived = old.derived.again()
	}
	if status {
		e.status, e.derived = packText(o.Status), nil
		data = data || len(o.Status) == 0 // the data record then holds the revision
	}
	if data {
		e.unstored = !stored
	}
	now := e.dataOnly(o.Kind)
	switch {
	case e.derived != nil:
		now = e.object(o.Kind)
	case !status:
		now.Status = was.Status
	case len(o.Status) > 0:
		now.Status = o.Status
	}
	return b.put(o.Key, &e, old, now, &was, data && stored, status && stored), nil
}

func (b *batch) delete(key store.Key, expect uint64) (store.Object, error) {
	old, err := b.current(key, expect)
	if err != nil {
		return store.Object{}, err
	}
	b.next.rev++
	t := b.edit(key.Kind)
	t.remove(key.Namespace, key.Name)
	b.next.replaced += old.size()
	gone := *old
	gone.rev, gone.deleted = b.next.rev, true
	t.log = append(t.log, &gone)
	t.tombs = append(t.tombs, &gone)
	t.lastDelete = gone.rev
	b.remove(old.record)
	if old.statusRecord != 0 {
		b.remove(old.statusRecord)
	}

	before, last := old.object(key.Kind), old.object(key.Kind)
	last.Rev = gone.rev
	b.events = append(b.events, &store.Event{Type: store.Deleted, Object: last, Old: &before})
	return last, nil
}

// compact drops what the tables that this batch changed need no more.
func (b *batch) compact(limit int) {
	for _, t := range b.ownTables {
		t.compact(limit)
	}
}

// checkKey refuses names that no object has.
func checkKey(key store.Key) error {
	const longest = 1024
	for _, part := range []string{key.Kind, key.Namespace, key.Name} {
		if len(part) > longest || strings.ContainsRune(part, 0) {
			return resource.Errorf(resource.Invalid, "", "a key's parts have at most %d bytes and no NUL", longest)
		}
	}
	if key.Kind == "" || key.Name == "" {
		return resource.Errorf(resource.Invalid, "", "a key needs a kind and a name")
	}
	return nil
}
