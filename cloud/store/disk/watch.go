// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"context"
	"slices"
	"sync"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	maxEvents  = 256            // Next returns at once when it catches up
	maxBacklog = 16 * maxEvents // versions that a stream which catches up holds: very many may do so after a restart, each with all objects to come
)

// stream is one watcher. The committer puts events into its queue, where events of one object coalesce. If the queue is full it is
// dropped, and the stream catches up from the index, which has the latest version of each object.
type stream struct {
	s    *view
	of   store.Key     // what is watched: a kind, or one object
	wake chan struct{} // holds one: there is something new

	mu      sync.Mutex // taken after view.mu
	rev     uint64     // everything up to here was returned by Next
	backlog []*objectVersion
	since   uint64            // what was known when the backlog was made
	upto    uint64            // rev once backlog was returned
	behind  bool              // the queue overflowed, or more is to come than the backlog
	queue   []*store.Event    // other streams have them, too
	latest  map[store.Key]int // into queue
	waiting int               // events in queue, without those that were merged into later ones (nil)
	closed  error
}

// publish has readers and watchers see another snapshot, and what has become of objects since the one before.
func (s *view) publish(next *snapshot, events []*store.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snap.Store(next)
	for _, event := range events {
		for st := range s.streams[store.Key{Kind: event.Object.Kind}] {
			st.offer(event)
		}
		for st := range s.streams[event.Object.Key] {
			st.offer(event)
		}
	}
}

// Watch streams what changes after a revision.
func (s *view) Watch(ctx context.Context, of store.Key, from uint64) (store.Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	st := &stream{
		s: s, of: of, rev: from,
		wake: make(chan struct{}, 1),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, store.ClosedError("the store")
	}
	if s.watches >= s.opts.MaxWatchers {
		return nil, resource.Errorf(resource.Quota, "", "more than %d watchers", s.opts.MaxWatchers)
	}
	if err := st.catchUp(s.snap.Load()); err != nil {
		return nil, err
	}
	if s.streams[of] == nil {
		s.streams[of] = make(map[*stream]struct{})
	}
	s.streams[of][st] = struct{}{}
	s.watches++
	return st, nil
}

// catchUp makes the backlog of what a snapshot holds beyond st.rev.
func (st *stream) catchUp(snap *snapshot) error {
	t := snap.table(st.of.Kind)
	if st.rev < t.floor || st.rev > snap.rev {
		return store.Gone(st.of.Kind, st.rev, t.floor)
	}
	st.backlog, st.since, st.upto, st.behind = t.changes(st.of, st.rev, maxBacklog), st.rev, snap.rev, false
	if n := len(st.backlog); n == maxBacklog {
		st.upto, st.behind = st.backlog[n-1].rev, true
	}
	return nil
}

// backlogEvents are the events of versions. Nothing is locked: their statuses may have to be derived.
func (st *stream) backlogEvents(versions []*objectVersion, since uint64) (events []store.Event) {
	for _, e := range versions {
		event := store.Event{Type: store.Modified, Object: e.object(st.of.Kind)}
		switch {
		case e.deleted:
			event.Type = store.Deleted
		case e.created > since:
			event.Type = store.Added
		}
		events = append(events, event)
	}
	return events
}

// offer queues an event. view.mu is held.
func (st *stream) offer(event *store.Event) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.behind || st.closed != nil {
		return
	}
	if at, ok := st.latest[event.Object.Key]; ok && st.queue[at].Type != store.Deleted {
		event = mergeEvents(st.queue[at], event)
		st.queue[at] = nil
		st.waiting--
	}
	if st.latest == nil {
		st.latest = make(map[store.Key]int)
	}
	st.latest[event.Object.Key] = len(st.queue)
	st.queue = append(st.queue, event)
	st.waiting++
	switch {
	case st.waiting > st.s.opts.WatchBuffer:
		st.behind = true
		st.drop()
	case len(st.queue) > 2*st.s.opts.WatchBuffer:
		st.squeeze()
	}
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// mergeEvents makes one event of two that follow each other on one object.
func mergeEvents(first, second *store.Event) *store.Event {
	merged := *second
	if first.Type == store.Added && second.Type == store.Modified {
		merged.Type = store.Added
	}
	merged.Old = first.Old
	return &merged
}

func (st *stream) drop() {
	st.queue, st.waiting, st.latest = nil, 0, nil // most queues are empty most of the time: free the memory
}

// squeeze removes merged events from the queue.
func (st *stream) squeeze() {
	events := slices.DeleteFunc(st.queue, func(e *store.Event) bool { return e == nil })
	st.queue, st.latest = events, make(map[store.Key]int, len(events))
	for i, e := range events {
		st.latest[e.Object.Key] = i
	}
}

func (st *stream) live() []store.Event {
	events := make([]store.Event, 0, st.waiting)
	for _, e := range st.queue {
		if e != nil {
			events = append(events, *e)
		}
	}
	return events
}

// Next waits for changes.
func (st *stream) Next(ctx context.Context) ([]store.Event, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		events, versions, since, err := st.take()
		if err != nil {
			st.end(err)
			return nil, err
		}
		if len(versions) > 0 {
			return st.backlogEvents(versions, since), nil
		}
		if len(events) > 0 {
			return events, nil
		}
		select {
		case <-st.wake:
		case <-ctx.Done():
		}
	}
}

// take returns what waits, without waiting: events, or versions of the backlog.
func (st *stream) take() (events []store.Event, versions []*objectVersion, since uint64, err error) {
	st.s.mu.Lock() // nothing may be published between the snapshot and the queue
	defer st.s.mu.Unlock()
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed != nil {
		return nil, nil, 0, st.closed
	}
	if len(st.backlog) == 0 {
		st.backlog, st.rev = nil, max(st.rev, st.upto)
	}
	if st.behind && len(st.backlog) == 0 {
		if err := st.catchUp(st.s.snap.Load()); err != nil {
			return nil, nil, 0, err
		}
	}
	if n := min(len(st.backlog), maxEvents); n > 0 {
		versions = st.backlog[:n:n]
		st.backlog = st.backlog[n:]
		st.rev = versions[n-1].rev
		return nil, versions, st.since, nil
	}
	if st.waiting == 0 {
		return nil, nil, 0, nil
	}
	events = st.live()
	st.drop()
	st.rev = events[len(events)-1].Object.Rev
	return events, nil, 0, nil
}

// Rev is where to resume from.
func (st *stream) Rev() uint64 {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.backlog) > 0 || st.waiting > 0 || st.behind || st.closed != nil {
		return st.rev
	}
	return st.s.snap.Load().rev
}

// Close ends the stream.
func (st *stream) Close() { st.end(store.ClosedError("the watch")) }

func (st *stream) end(err error) {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	if _, ok := st.s.streams[st.of][st]; ok {
		delete(st.s.streams[st.of], st)
		st.s.watches--
	}
	if len(st.s.streams[st.of]) == 0 {
		delete(st.s.streams, st.of)
	}
	st.closeWith(err)
}

func (st *stream) closeWith(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed == nil {
		st.closed = err
	}
	st.backlog = nil
	st.drop()
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// endStreams ends all watches, because the store is closed.
func (s *view) endStreams() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, streams := range s.streams {
		for st := range streams {
			st.closeWith(store.ClosedError("the store"))
		}
	}
	clear(s.streams)
}
