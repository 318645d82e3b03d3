// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"context"
	"slices"
	"time"

	"github.com/edgebus/edgebus/cloud/store"
)

// List returns a kind's objects in order, all as of one revision.
func (s *view) List(ctx context.Context, kind string, opts store.ListOptions) (store.Page, error) {
	if err := ctx.Err(); err != nil {
		return store.Page{}, err
	}
	snap, err := s.snapshotAt(kind, opts.Rev)
	if err != nil {
		return store.Page{}, err
	}
	page := snap.table(kind).page(kind, opts)
	page.Rev = snap.rev
	if page.More > 0 {
		s.pin(snap, opts.Reader)
	}
	return page, nil
}

func (t *table) page(kind string, opts store.ListOptions) (p store.Page) {
	object := func(e *objectVersion) store.Object {
		if o := e.dataOnly(kind); opts.DataOnly || opts.StatusOf != nil && !opts.StatusOf(o) {
			return o
		}
		return e.objectInto(kind, opts.Buffer)
	}
	if opts.Name != "" {
		if e := t.get(opts.Namespace, opts.Name); e != nil {
			p.Items = []store.Object{object(e)}
		}
		return p
	}
	first, name := opts.Namespace, ""
	if opts.After != (store.Key{}) {
		first, name = opts.After.Namespace, opts.After.Name+"\x00" // the next name there could be
	}
	begin, end := t.rank(first, name), t.n
	if opts.Namespace != "" {
		end = t.rank(opts.Namespace+"\x00", "")
	}
	n := max(end-begin, 0)
	if opts.Limit > 0 {
		n = min(n, opts.Limit)
	}
	p.More = max(end-begin-n, 0)
	if n == 0 {
		return p
	}
	p.Items = make([]store.Object, 0, n)
	t.from(first, name, func(e *objectVersion) bool {
		p.Items = append(p.Items, object(e))
		return len(p.Items) < n
	})
	return p
}

// A pin keeps a snapshot that somebody reads page by page.
type pinnedSnapshot struct {
	snap   *snapshot
	reader string
	used   time.Time
}

const (
	maxPins          = 64 // of all readers
	maxPinsPerReader = 4  // of one reader
	maxPinAge        = 5 * time.Minute
)

func (s *view) pin(snap *snapshot, reader string) {
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	s.pins = slices.DeleteFunc(s.pins, func(p pinnedSnapshot) bool { return p.snap.rev == snap.rev && p.reader == reader })
	s.pins = append(s.pins, pinnedSnapshot{snap, reader, s.opts.Now()}) // the least recently used is first
	s.unpin()
}

// unpin drops snapshots that were not used for maxPinAge, and while there are too many, or they keep too much in memory, the oldest of the
// reader that has most. pinMu is held.
func (s *view) unpin() {
	old := s.opts.Now().Add(-maxPinAge)
	s.pins = slices.DeleteFunc(s.pins, func(p pinnedSnapshot) bool { return p.used.Before(old) })
	for len(s.pins) > 0 {
		owned := make(map[string]int)
		most := "" // the hub's own, which are bounded with all others only
		oldest := s.pins[0].snap
		for _, p := range s.pins {
			if owned[p.reader]++; p.reader != "" && (most == "" || owned[p.reader] > owned[most]) {
				most = p.reader
			}
			if p.snap.replaced < oldest.replaced {
				oldest = p.snap
			}
		}
		tooMuch := s.snap.Load().replaced-oldest.replaced > s.opts.MaxPinned
		switch {
		case tooMuch:
			s.pins = slices.DeleteFunc(s.pins, func(p pinnedSnapshot) bool { return p.snap == oldest })
		case len(s.pins) > maxPins, most != "" && owned[most] > maxPinsPerReader:
			i := slices.IndexFunc(s.pins, func(p pinnedSnapshot) bool { return p.reader == most })
			s.pins = slices.Delete(s.pins, i, i+1)
		default:
			return
		}
	}
}

// snapshotAt is the snapshot of a revision; 0 is the newest.
func (s *view) snapshotAt(kind string, rev uint64) (*snapshot, error) {
	now := s.snap.Load()
	if rev == 0 || rev == now.rev {
		return now, nil
	}
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	s.unpin()
	for _, p := range s.pins {
		if p.snap.rev == rev {
			return p.snap, nil
		}
	}
	return nil, store.Gone(kind, rev, now.rev)
}
