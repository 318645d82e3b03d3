// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// nodeTable has what is on disk of each node.
type nodeTable map[string]*nodeRecords

type nodeRecords struct {
	record recordID
	meta   []byte
	items  itemTable
}

// itemKey stands for a key that a node reported: the keys themselves are on disk, and twice as long. A node that knew how could give two of its
// keys the same hash, but not without the seeds, which each process draws anew. As bytes it needs no padding beside a record's number.
type itemKey [16]byte

var itemSeeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func keyOf(key string) (k itemKey) {
	binary.NativeEndian.PutUint64(k[:8], maphash.String(itemSeeds[0], key))
	binary.NativeEndian.PutUint64(k[8:], maphash.String(itemSeeds[1], key))
	return k
}

// itemTable has the records of a node's keys, in the order of the hashes: a map takes two and a half times the memory.
type itemTable []tableItem

type tableItem struct {
	key    itemKey
	record recordID
}

func compareItems(a, b tableItem) int { return bytes.Compare(a.key[:], b.key[:]) }

func (t itemTable) find(key itemKey) (int, bool) {
	return slices.BinarySearchFunc(t, tableItem{key: key}, compareItems)
}

// get is the record of a key; 0: there is none.
func (t itemTable) get(key itemKey) recordID {
	if i, ok := t.find(key); ok {
		return t[i].record
	}
	return 0
}

// apply puts records into the table, and takes out the keys that have 0. The time for many keys grows with the table, not with the
// table for each of them.
func (t itemTable) apply(edits map[itemKey]recordID) itemTable {
	var added []tableItem
	removed := false
	for key, record := range edits {
		if i, ok := t.find(key); ok {
			t[i].record = record
			removed = removed || record == 0
		} else if record != 0 {
			added = append(added, tableItem{key, record})
		}
	}
	if removed {
		t = slices.DeleteFunc(t, func(item tableItem) bool { return item.record == 0 })
	}
	slices.SortFunc(added, compareItems)
	end := len(t) // of those that are still to be moved, the last ones first
	t = slices.Grow(t, len(added))[:end+len(added)]
	for i, item := range slices.Backward(added) {
		at, _ := t[:end].find(item.key)
		copy(t[at+i+1:], t[at:end])
		t[at+i], end = item, at
	}
	return t
}

// Commit makes changes of several nodes' replicas durable, together with
// whatever else waits for the committer.
func (s *Store) Commit(ctx context.Context, changes []store.NodeChange) error {
	size := 0
	for _, c := range changes {
		n, err := s.checkNode(c)
		if err != nil {
			return err
		}
		size += n
	}
	if len(changes) == 0 {
		return nil
	}
	return s.submit(ctx, size, func(b *batch) error {
		for _, c := range changes {
			b.changeNode(c)
		}
		return nil
	})
}

func (s *Store) checkNode(c store.NodeChange) (size int, err error) {
	const longest = 16 << 10
	if c.Node == "" || len(c.Node) > 1024 || strings.ContainsRune(c.Node, 0) {
		return 0, resource.Errorf(resource.Invalid, "", "bad node name %.80q", c.Node)
	}
	for _, item := range c.Put {
		if len(item.Key) > longest || item.Key == "" {
			return 0, resource.Errorf(resource.Invalid, "", "node %s: a key has %d bytes; it must have 1 to %d", c.Node, len(item.Key), longest)
		}
		if len(item.Value) > s.opts.MaxObject {
			return 0, resource.Errorf(resource.TooLarge, "", "node %s: %s has %d bytes; at most %d can be stored",
				c.Node, item.Key, len(item.Value), s.opts.MaxObject)
		}
		size += len(item.Key) + len(item.Value)
	}
	return size + len(c.Meta), nil
}

// nodeEdit is what a batch does to one node's records. It is planned without touching what readers see.
type nodeEdit struct {
	old    *nodeRecords // nil: there is none
	record recordID     // 0: the node is forgotten
	meta   []byte
	reset  bool                 // nothing of old is left but what is in items
	items  map[itemKey]recordID // that are put, and with 0 that are deleted
}

func (n *nodeEdit) item(key itemKey) recordID {
	if id, ok := n.items[key]; ok || n.reset || n.old == nil {
		return id
	}
	return n.old.items.get(key)
}

// node is the plan for a node.
func (b *batch) node(name string) *nodeEdit {
	n := b.nodes[name]
	if n == nil {
		n = &nodeEdit{old: b.store.nodes[name], items: make(map[itemKey]recordID)}
		if n.old != nil {
			n.record, n.meta = n.old.record, n.old.meta
		}
		b.nodes[name] = n
	}
	return n
}

// changeNode plans one change. A node without meta gets an empty one, so that the node is listed.
func (b *batch) changeNode(c store.NodeChange) {
	n := b.node(c.Node)
	if c.Reset || c.Drop {
		b.emptyNode(n)
	}
	if c.Drop {
		if n.record != 0 {
			b.remove(n.record)
		}
		n.record, n.meta = 0, nil
		return
	}
	isNew := n.record == 0
	if isNew {
		n.record = b.newID()
	}
	if c.Meta != nil || isNew || c.Reset {
		n.meta = slices.Clone(c.Meta)
		b.putRecord(n.record, encodeNode(c.Node, n.meta))
	}
	for _, key := range c.Delete {
		if id := n.item(keyOf(key)); id != 0 {
			b.remove(id)
			n.items[keyOf(key)] = 0
		}
	}
	for _, item := range c.Put {
		key := keyOf(item.Key)
		id := n.item(key)
		if id == 0 {
			id = b.newID()
			n.items[key] = id
		}
		b.putRecord(id, encodeReported(n.record, item))
	}
}

// emptyNode plans that all items of a node are removed.
func (b *batch) emptyNode(n *nodeEdit) {
	if n.old != nil && !n.reset {
		for _, item := range n.old.items {
			if _, edited := n.items[item.key]; !edited {
				b.remove(item.record)
			}
		}
	}
	for _, id := range n.items {
		if id != 0 {
			b.remove(id)
		}
	}
	n.reset = true
	clear(n.items)
}

// applyNodes makes what was planned, and is on disk, what is read.
func (s *Store) applyNodes(edits map[string]*nodeEdit) {
	for name, n := range edits {
		delete(s.reported, name)
		if n.record == 0 {
			delete(s.nodes, name)
			continue
		}
		now := n.old
		if now == nil || n.reset {
			now = new(nodeRecords)
			s.nodes[strings.Clone(name)] = now
		}
		now.record, now.meta = n.record, n.meta
		now.items = now.items.apply(n.items)
	}
}

// between calls fn between two commits, with no writer beside it.
func (s *Store) between(ctx context.Context, fn func()) error {
	if s.opts.ReadOnly {
		fn()
		return ctx.Err()
	}
	ran := false
	err := s.submit(ctx, 0, func(*batch) error {
		fn()
		ran = true
		return nil
	})
	if errors.Is(err, store.ErrUnknown) && ctx.Err() == nil && ran { // of others' writes
		return nil
	}
	return err
}

// Load reads one node's replica.
func (s *Store) Load(ctx context.Context, node string) (store.Replica, error) {
	r, failed := store.Replica{Node: node}, error(nil)
	err := s.between(ctx, func() { r, failed = s.replica(node) })
	return r, errors.Join(err, failed)
}

// replica reads a node's replica.
func (s *Store) replica(node string) (r store.Replica, err error) {
	r.Node = node
	n := s.nodes[node]
	if n == nil {
		return r, nil
	}
	if len(n.meta) > 0 {
		r.Meta = slices.Clone(n.meta)
	}
	if items, ok := s.reported[node]; ok || len(n.items) == 0 {
		r.Items = items
		return r, nil
	}
	records := make([]recordID, len(n.items))
	for i, item := range n.items {
		records[i] = item.record
	}
	slices.Sort(records)
	r.Items = make([]store.ReplicaItem, len(records))
	err = s.journal.Read(journalIDs(records), func(i int, value []byte) error {
		rr := &recordReader{rest: value}
		if rr.kind() != recordReported || rr.id() != n.record {
			return errRecord
		}
		r.Items[i] = store.ReplicaItem{Key: rr.text(), Value: slices.Clone(rr.rest)}
		return rr.err
	})
	slices.SortFunc(r.Items, compareKeys)
	return r, err
}

// All reads every replica. What was read when the store was opened is in memory until it is asked for, or is no longer what is stored.
func (s *Store) All(ctx context.Context) iter.Seq2[store.Replica, error] {
	return func(yield func(store.Replica, error) bool) {
		var names []string
		if err := s.between(ctx, func() { names = slices.Sorted(maps.Keys(s.nodes)) }); err != nil {
			yield(store.Replica{}, err)
			return
		}
		for len(names) > 0 {
			var some []store.Replica
			var failed error
			n := min(len(names), 64)
			err := s.between(ctx, func() { some, failed = s.takeReplicas(names[:n]) })
			names = names[n:]
			for _, r := range some {
				if !yield(r, nil) {
					return
				}
			}
			if err := errors.Join(err, failed); err != nil {
				yield(store.Replica{}, err)
				return
			}
		}
	}
}

// takeReplicas reads the replicas of those nodes that are still there.
func (s *Store) takeReplicas(names []string) (list []store.Replica, err error) {
	for _, name := range names {
		if s.nodes[name] == nil {
			continue
		}
		r, err := s.replica(name)
		if err != nil {
			return list, err
		}
		delete(s.reported, name)
		list = append(list, r)
	}
	return list, nil
}
