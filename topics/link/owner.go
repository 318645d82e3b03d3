// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"
	"iter"
	"slices"
)

// Owner is the writing side of a map.
type Owner struct {
	dir      MapDirection
	rand     func() uint64
	lineage  Lineage
	seq      uint64
	acked    uint64
	gcFloor  uint64
	verFloor uint64

	ownerEntries
	unacked *ownerEntry // first in order with seq > acked
	dirty   int         // how many from there on
	changes changeLog

	limits     sendLimits
	connection ownerConnection
}

// NewOwner begins an empty map under a lineage of its own. rand must be
// unpredictable enough that two owners never draw the same number.
func NewOwner(dir MapDirection, rand func() uint64) *Owner {
	o := newOwner(dir, rand)
	o.lineage = Lineage{N: 1, Nonce: rand()}
	o.changes = changeLog{dirty: true, reset: true}
	return o
}

// NewProjection begins an empty map without a journal: its host derives the entries from another store, again after each
// restart.
func NewProjection(dir MapDirection, rand func() uint64) *Owner {
	o := newOwner(dir, rand)
	o.lineage = Lineage{N: 1, Nonce: rand()}
	o.changes.disabled = true
	return o
}

func newOwner(dir MapDirection, rand func() uint64) *Owner {
	return &Owner{dir: dir, rand: rand, ownerEntries: ownerEntries{keys: make(map[string]*ownerEntry)}, limits: defaultSendLimits()}
}

// RestoreOwner continues from what was committed. It fails if the content of the store can't have come from journals.
func RestoreOwner(dir MapDirection, s MapState, entries iter.Seq[Entry], rand func() uint64) (*Owner, error) {
	if s.Lineage.N == 0 {
		return nil, fmt.Errorf("restore owner of %v: no lineage", dir)
	}
	o := newOwner(dir, rand)
	o.lineage, o.seq, o.gcFloor, o.verFloor = s.Lineage, s.Seq, s.GCFloor, s.VerFloor
	var nodes []*ownerEntry
	for e := range entries {
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("restore owner of %v: %w", dir, err)
		}
		nodes = append(nodes, &ownerEntry{Entry: e})
	}
	slices.SortFunc(nodes, func(a, b *ownerEntry) int {
		if a.Seq < b.Seq {
			return -1
		}
		return 1
	})
	var last uint64
	for _, n := range nodes {
		if _, twice := o.keys[n.Key]; twice || n.Seq <= last || n.Seq > s.Seq {
			return nil, fmt.Errorf("restore owner of %v: key %s has seq %d after %d of %d", dir, n.Key, n.Seq, last, s.Seq)
		}
		last = n.Seq
		o.keys[n.Key] = n
		o.sorted.put(n.Key, nil)
		o.append(n)
	}
	o.setAcked(min(s.Acked, s.Seq))
	return o, nil
}

// Put writes a key. It returns the entry as stored, and whether anything was written: the value and Meta that the key has
// already are not written again.
//
// With Ver 0 the owner counts the key's versions, which never fall, even after the key was deleted and its tombstone
// dropped. Otherwise Ver is taken as given, and the caller makes sure that it rises.
func (o *Owner) Put(e Entry) (Entry, bool, error) { return o.PutShared(e, "") }

// PutShared is Put for a value whose end, tail, is common to many entries. The owner keeps the string that it is given, so
// that it is in memory once; readers get whole values.
func (o *Owner) PutShared(e Entry, tail string) (Entry, bool, error) {
	e.Deleted = false
	if head := len(e.Value) - len(tail); head < 0 || string(e.Value[head:]) != tail {
		tail = ""
	}
	if err := e.check(); err != nil {
		return Entry{}, false, err
	}
	e.Origin = cutOrigin(e.Origin)
	old := o.keys[e.Key]
	if old != nil && !old.Deleted && old.Meta == e.Meta && (e.Ver == 0 || e.Ver == old.Ver) && old.holds(e.Value) {
		return old.entry(), false, nil
	}
	if e.Ver == 0 {
		e.Ver = o.nextVer(old)
	}
	return o.write(old, e, tail), true, nil
}

// Delete removes a key and returns its tombstone; false if the key does not exist.
func (o *Owner) Delete(key string, ts int64, origin string) (Entry, bool) {
	old := o.keys[key]
	if old == nil || old.Deleted {
		return Entry{}, false
	}
	e := Entry{Key: key, Ver: old.Ver + 1, TS: ts, Origin: cutOrigin(origin), Deleted: true}
	return o.write(old, e, ""), true
}

func (o *Owner) nextVer(old *ownerEntry) uint64 {
	if old != nil {
		return old.Ver + 1
	}
	return o.verFloor + 1
}

func (o *Owner) write(old *ownerEntry, e Entry, tail string) Entry {
	if old != nil {
		e.Key = old.Key // one copy of the text for map and entry
		o.unlink(old)
	}
	o.seq++
	e.Seq = o.seq
	n := old
	if n == nil || o.connection.full != nil { // a FULL that is being sent holds the old node
		n = new(ownerEntry)
		o.keys[e.Key] = n
	}
	if old == nil {
		o.sorted.put(e.Key, nil)
	}
	n.set(e, tail)
	o.append(n)
	o.changes.dirty = true
	o.changes.put(e)
	o.connection.inStep = false
	return e
}

// append puts a node, whose seq is the highest, at the end of the order.
func (o *Owner) append(n *ownerEntry) {
	o.order.push(n)
	if o.unacked == nil {
		o.unacked = n
	}
	if o.connection.next == nil {
		o.connection.next = n
	}
	o.dirty++
	o.count(n)
}

// unlink removes a node from the order and the counters. The map of keys still has it: the caller replaces or deletes it.
func (o *Owner) unlink(n *ownerEntry) {
	if o.unacked == n {
		o.unacked = n.next
	}
	if o.connection.next == n {
		o.connection.next = n.next
	}
	if n.Seq > o.acked {
		o.dirty--
	}
	o.uncount(n)
	o.order.remove(n)
}

// forget drops a tombstone. It does not make the journal dirty: a tombstone that is restored after a crash is dropped again.
func (o *Owner) forget(n *ownerEntry) {
	o.unlink(n)
	delete(o.keys, n.Key)
	o.sorted.del(n.Key)
	o.gcFloor = max(o.gcFloor, n.Seq)
	o.verFloor = max(o.verFloor, n.Ver)
	o.changes.drop(n.Key)
}

// setAcked sets up to which seq the replica has the map. Raising it drops the tombstones that it passes (rule 5). It is
// lowered when the replica was rolled back.
func (o *Owner) setAcked(a uint64) {
	for n := o.unacked; n != nil && n.Seq <= a; n = o.unacked {
		o.unacked = n.next
		o.dirty--
		if n.Deleted {
			o.acked = n.Seq // unlink counts it as acknowledged
			o.forget(n)
		}
	}
	for n := o.before(o.unacked); n != nil && n.Seq > a; n = n.prev {
		o.unacked = n
		o.dirty++
	}
	o.acked = a
}

// newLineage begins a lineage that is later than both the owner's and seen. Sequence numbers continue: the replica enters
// the lineage by ADOPT or FULL only, so at this seq or later, and never asks for what is below. So entries are not
// renumbered, and tombstones are dropped.
func (o *Owner) newLineage(seen Lineage) {
	if !seen.after(o.lineage) {
		seen = o.lineage
	}
	o.lineage = Lineage{N: seen.next(), Nonce: o.rand()}
	o.setAcked(o.seq)
	o.setAcked(0)
	o.connection.full = nil
	o.connection.inStep = false
	o.changes.dirty = true
}

// TakeChanges returns what is to be committed before Messages are sent.
func (o *Owner) TakeChanges() JournalChanges {
	return o.changes.take(o.state())
}

func (o *Owner) state() MapState {
	return MapState{Lineage: o.lineage, Seq: o.seq, Acked: o.acked, GCFloor: o.gcFloor, VerFloor: o.verFloor}
}

// Dirty counts the keys, deleted ones included, that the replica is not known
// to have as they are.
func (o *Owner) Dirty() int { return o.dirty }

// Oldest is the time of the oldest of them; false if there is none.
func (o *Owner) Oldest() (ts int64, ok bool) {
	if o.unacked == nil {
		return 0, false
	}
	return o.unacked.TS, true
}

// Lineage under which the map is numbered.
func (o *Owner) Lineage() Lineage { return o.lineage }

// Seq is the number of the last write.
func (o *Owner) Seq() uint64 { return o.seq }

// Acked is the number up to which the replica has the map.
func (o *Owner) Acked() uint64 { return o.acked }

// Refused says why the replica applies nothing from this owner; empty: it applies everything.
func (o *Owner) Refused() string { return o.connection.refused }

// Lost says what the replica has shown, in this connection, to have been lost of this map since it was acknowledged: the map was replaced
// by an older copy. Empty: nothing.
func (o *Owner) Lost() string { return o.connection.lost }
