// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/cloud/store"
)

// loadedRecords are all that a store has on disk.
type loadedRecords struct {
	snap        snapshot
	state       storeState
	ids         idSource
	lastDeletes map[string]recordID
	nodes       nodeTable
	reported    map[string][]store.ReplicaItem // by node, in the order of keys
}

// loadRecords reads all records of the store. found is false if there are none.
func loadRecords(t journal.Table) (l *loadedRecords, found bool, err error) {
	if err := checkFormat(t); err != nil {
		return nil, true, err
	}
	r := newRecordLoader()
	if err := t.Load(func(id uint64, value []byte) error { return r.record(recordID(id), value) }); err != nil {
		return nil, false, err
	}
	if r.ids.last == 0 {
		return &r.loadedRecords, false, nil
	}
	if err := r.join(); err != nil {
		return nil, true, t.Damaged(err)
	}
	return &r.loadedRecords, true, nil
}

// checkFormat is the error for records of another format: they are not read, or they would pass for damaged. Whatever else is wrong with
// the state is found by who reads all.
func checkFormat(t journal.Table) error {
	var other *formatError
	_ = t.Read([]uint64{journalID(stateRecord)}, func(_ int, value []byte) error {
		r := &recordReader{rest: value}
		if r.kind() == recordState {
			r.state()
		}
		_ = errors.As(r.err, &other)
		return nil
	})
	if other == nil {
		return nil
	}
	return other
}

// recordLoader takes records in any order, and joins them when all are there.
type recordLoader struct {
	loadedRecords
	objects  map[recordID]loadedObject
	statuses []loadedStatus
	names    map[recordID]string       // of nodes
	items    map[recordID]*loadedItems // by the record of the node
	used     []recordID
}

func newRecordLoader() *recordLoader {
	return &recordLoader{
		loadedRecords: loadedRecords{
			snap:        snapshot{tables: make(map[string]*table)},
			lastDeletes: make(map[string]recordID), nodes: make(nodeTable), reported: make(map[string][]store.ReplicaItem),
		},
		objects: make(map[recordID]loadedObject), names: make(map[recordID]string), items: make(map[recordID]*loadedItems),
	}
}

type loadedObject struct {
	kind string
	e    *objectVersion
}

type loadedStatus struct {
	of, record recordID
	rev        uint64
	status     packedText
}

// loadedItems are what a node reported.
type loadedItems struct {
	items   []store.ReplicaItem
	records itemTable // of the same items
}

func (n *loadedItems) add(record recordID, item store.ReplicaItem) {
	n.items = append(n.items, item)
	n.records = append(n.records, tableItem{keyOf(item.Key), record})
}

func (l *recordLoader) record(id recordID, value []byte) error {
	l.used = append(l.used, id)
	l.ids.last = max(l.ids.last, id)
	r := &recordReader{rest: value}
	switch kind := r.kind(); kind {
	case recordState:
		l.state = r.state()
	case recordLastDelete:
		rev := r.number()
		kind := string(r.rest)
		t := l.table(kind)
		t.lastDelete, t.floor = rev, rev
		l.lastDeletes[kind] = id
	case recordObject:
		e := &objectVersion{created: r.number(), rev: r.number(), record: id}
		kind := r.text()
		e.namespace, e.name, e.data = r.text(), r.text(), bytes.Clone(r.rest)
		l.objects[id] = loadedObject{kind, e}
	case recordStatus:
		s := loadedStatus{record: id, rev: r.number(), of: r.id()}
		s.status = packText(r.rest)
		l.statuses = append(l.statuses, s)
	case recordNode:
		name := r.text()
		if l.nodes[name] != nil {
			return fmt.Errorf("of node %s, which has another one", name)
		}
		l.names[id], l.nodes[name] = name, &nodeRecords{record: id, meta: bytes.Clone(r.rest)}
	case recordReported:
		of := r.id()
		n := l.items[of]
		if n == nil {
			n = new(loadedItems)
			l.items[of] = n
		}
		n.add(id, store.ReplicaItem{Key: r.text(), Value: bytes.Clone(r.rest)})
	default:
		return fmt.Errorf("of the unknown kind %d", kind)
	}
	return r.err
}

func (l *recordLoader) table(kind string) *table {
	t := l.snap.tables[kind]
	if t == nil {
		t = new(table)
		l.snap.tables[kind] = t
	}
	return t
}

// join puts together what belongs together. Whatever lacks its other part is damage.
func (l *recordLoader) join() error {
	if l.state.identity == 0 {
		return errors.New("the record of the store as a whole is missing")
	}
	l.snap.rev = l.state.rev
	for _, s := range l.statuses {
		o, ok := l.objects[s.of]
		if !ok || o.e.statusRecord != 0 {
			return fmt.Errorf("a status (record %d) belongs to no object, or is one of two", s.record)
		}
		o.e.rev, o.e.status, o.e.statusRecord = max(o.e.rev, s.rev), s.status, s.record
	}
	for _, o := range l.objects {
		key := store.Key{Kind: o.kind, Namespace: o.e.namespace, Name: o.e.name}
		if o.e.rev > l.state.rev {
			return fmt.Errorf("%s has a revision beyond the newest", key)
		}
		t := l.table(o.kind)
		t.log = append(t.log, o.e)
	}
	for kind, t := range l.snap.tables {
		if err := t.build(); err != nil {
			return fmt.Errorf("%s %w", kind, err)
		}
	}
	l.ids.free = freeIDs(l.used)
	return l.joinItems()
}

// joinItems gives the nodes what they reported.
func (l *recordLoader) joinItems() error {
	for of, n := range l.items {
		name, ok := l.names[of]
		if !ok {
			return fmt.Errorf("%s was reported by no node", n.items[0].Key)
		}
		slices.SortFunc(n.items, compareKeys)
		for i := 1; i < len(n.items); i++ {
			if key := n.items[i].Key; key == n.items[i-1].Key {
				return fmt.Errorf("node %s reported %s twice", name, key)
			}
		}
		records := slices.Clone(n.records) // without room to grow, which most never need
		slices.SortFunc(records, compareItems)
		l.nodes[name].items, l.reported[name] = records, n.items
	}
	return nil
}

func compareKeys(a, b store.ReplicaItem) int { return strings.Compare(a.Key, b.Key) }

// build makes the index of a kind of the versions in its log, which it brings into the order of revisions.
func (t *table) build() error {
	t.log = slices.Clip(t.log)
	slices.SortFunc(t.log, func(a, b *objectVersion) int { return a.compare(b.namespace, b.name) })
	for i, e := range t.log {
		if i > 0 && e.compare(t.log[i-1].namespace, t.log[i-1].name) == 0 {
			return fmt.Errorf("%s/%s is there twice", e.namespace, e.name)
		}
	}
	t.index = makeIndex(t.log)
	slices.SortFunc(t.log, func(a, b *objectVersion) int { return cmp.Compare(a.rev, b.rev) })
	return nil
}

// freeIDs are the numbers below the highest that no record has, the highest of them first.
func freeIDs(used []recordID) (free []recordID) {
	slices.Sort(used)
	for i := len(used) - 1; i > 0; i-- {
		for id := used[i] - 1; id > used[i-1]; id-- {
			free = append(free, id)
		}
	}
	return free
}
