// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"sync"

	"github.com/edgebus/edgebus/cloud/store"
)

// KindMirror is a kind's objects in memory as another store has them, with its revisions: what that one's list has, and then what its watch returns. Watches of it
// go on from no revision before the list. It is a store.Reader and a store.Watcher of that kind.
type KindMirror struct {
	view
	kind    string
	writing sync.Mutex
}

// NewKindMirror makes a KindMirror of which nothing is known yet. Of the options those count that say how much is kept.
func NewKindMirror(kind string, o Options) *KindMirror {
	o.setLimits()
	m := &KindMirror{view: view{opts: o, streams: make(map[store.Key]map[*stream]struct{})}, kind: kind}
	m.snap.Store(new(snapshot))
	return m
}

// Extent is from which revision of the other store on there are watches, and up to which there is everything.
func (m *KindMirror) Extent() (since, rev uint64) {
	snap := m.snap.Load()
	return snap.table(m.kind).floor, snap.rev
}

// Counts are how many objects there are, and how many watches.
func (m *KindMirror) Counts() (objects, watches int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.snap.Load().table(m.kind).n, m.watches
}

// Reset replaces everything by a list of the other store. Watches end with Gone, as what was deleted since isn't known.
func (m *KindMirror) Reset(objects []store.Object, rev uint64) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	t := &table{floor: rev, log: make([]*objectVersion, 0, len(objects))}
	for _, o := range objects {
		t.log = append(t.log, mirroredVersion(o))
	}
	if err := t.build(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.snap.Store(&snapshot{rev: rev, tables: map[string]*table{m.kind: t}})
	for _, streams := range m.streams {
		for st := range streams {
			st.closeWith(store.Gone(m.kind, st.rev, rev))
		}
	}
	return nil
}

func mirroredVersion(o store.Object) *objectVersion {
	return &objectVersion{namespace: o.Namespace, name: o.Name, rev: o.Rev, data: o.Data, status: packText(o.Status)}
}

// Apply does what the other store's watch returned, after which there is everything up to rev. What an object was before isn't known of what that watch has merged:
// who has it from elsewhere may be told that it was added, as well as who never had it that it was deleted.
func (m *KindMirror) Apply(events []store.Event, rev uint64) {
	m.writing.Lock()
	defer m.writing.Unlock()
	now := m.snap.Load()
	if len(events) == 0 && rev <= now.rev {
		return
	}
	t := *now.table(m.kind)
	t.index = t.index.edit()
	next := &snapshot{rev: now.rev, tables: map[string]*table{m.kind: &t}, replaced: now.replaced}
	var changes []*store.Event
	for _, change := range events {
		version, old := mirroredVersion(change.Object), t.get(change.Object.Namespace, change.Object.Name)
		if version.rev <= next.rev {
			continue
		}
		next.rev, version.created = version.rev, version.rev
		if old != nil {
			before := old.object(m.kind)
			change.Old, version.created = &before, old.created
			next.replaced += old.size()
		}
		switch {
		case change.Type == store.Deleted:
			version.deleted = true
			t.remove(version.namespace, version.name)
			t.tombs = append(t.tombs, version)
		case old != nil:
			change.Type = store.Modified
			t.set(version)
		default:
			change.Type = store.Added
			t.set(version)
		}
		t.log = append(t.log, version)
		changes = append(changes, &change)
	}
	t.compact(m.opts.Tombstones)
	next.rev = max(next.rev, rev)
	m.publish(next, changes)
}

// Close ends all watches.
func (m *KindMirror) Close() { m.endStreams() }
