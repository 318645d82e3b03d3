package link

import (
	"bytes"
	"fmt"
	"iter"
	"slices"
)

// Owner is the writing side of a map.
type Owner struct {
	dir      Direction
	rand     func() uint64
	lineage  Lineage
	seq      uint64
	acked    uint64
	gcFloor  uint64
	verFloor uint64

	keys    map[string]*node
	sorted  table // the same keys, in order
	order   list
	unacked *node // first in order with seq > acked
	dirty   int   // how many from there on
	live    int
	size    int // bytes of live entries
	sum     sum
	log     ledger

	limits limits
	talk   talk
}

// limits of what is sent at once. Tests make them small.
type limits struct {
	bytes   int // of a message's entries
	entries int // in a message
	window  int // messages sent and not answered
}

func defaultLimits() limits {
	return limits{bytes: MaxMessage - messageOverhead, entries: 1 << 14, window: 4}
}

// NewOwner begins an empty map under a lineage of its own. rand must be
// unpredictable enough that two owners never draw the same number.
func NewOwner(dir Direction, rand func() uint64) *Owner {
	o := newOwner(dir, rand)
	o.lineage = Lineage{N: 1, Nonce: rand()}
	o.log = ledger{dirty: true, reset: true}
	return o
}

// NewProjection begins an empty map that its host derives from what is stored elsewhere, and derives
// again when it is restarted: it has no journal.
func NewProjection(dir Direction, rand func() uint64) *Owner {
	o := newOwner(dir, rand)
	o.lineage = Lineage{N: 1, Nonce: rand()}
	o.log.none = true
	return o
}

func newOwner(dir Direction, rand func() uint64) *Owner {
	return &Owner{dir: dir, rand: rand, keys: make(map[string]*node), limits: defaultLimits()}
}

// RestoreOwner goes on from what was committed. The error says that the store's
// content can't have come from journals.
func RestoreOwner(dir Direction, s State, entries iter.Seq[Entry], rand func() uint64) (*Owner, error) {
	if s.Lineage.N == 0 {
		return nil, fmt.Errorf("restore owner of %v: no lineage", dir)
	}
	o := newOwner(dir, rand)
	o.lineage, o.seq, o.gcFloor, o.verFloor = s.Lineage, s.Seq, s.GCFloor, s.VerFloor
	var nodes []*node
	for e := range entries {
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("restore owner of %v: %w", dir, err)
		}
		nodes = append(nodes, &node{Entry: e})
	}
	slices.SortFunc(nodes, func(a, b *node) int {
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

// Put writes a key. It returns the entry as stored, and whether that was a
// write: a value that the key has already, with the same Meta, is none.
//
// With Ver 0 the owner counts the key's versions itself, and they never fall,
// not even after the key was deleted and forgotten. Otherwise Ver is the
// caller's word, and so is that it rises.
func (o *Owner) Put(e Entry) (Entry, bool, error) { return o.PutShared(e, "") }

// PutShared is Put of a value of which many have the end in common. The owner holds that
// as it is given, and so once for all of them; readers get whole values.
func (o *Owner) PutShared(e Entry, tail string) (Entry, bool, error) {
	e.Deleted = false
	if head := len(e.Value) - len(tail); head < 0 || string(e.Value[head:]) != tail {
		tail = ""
	}
	if err := e.check(); err != nil {
		return Entry{}, false, err
	}
	e.Origin = cut(e.Origin)
	old := o.keys[e.Key]
	if old != nil && !old.Deleted && old.Meta == e.Meta && (e.Ver == 0 || e.Ver == old.Ver) && old.has(e.Value) {
		return old.entry(), false, nil
	}
	if e.Ver == 0 {
		e.Ver = o.nextVer(old)
	}
	return o.write(old, e, tail), true, nil
}

// Delete removes a key and returns its tombstone; false if there was no such
// key.
func (o *Owner) Delete(key string, ts int64, origin string) (Entry, bool) {
	old := o.keys[key]
	if old == nil || old.Deleted {
		return Entry{}, false
	}
	e := Entry{Key: key, Ver: old.Ver + 1, TS: ts, Origin: cut(origin), Deleted: true}
	return o.write(old, e, ""), true
}

func (o *Owner) nextVer(old *node) uint64 {
	if old != nil {
		return old.Ver + 1
	}
	return o.verFloor + 1
}

func (o *Owner) write(old *node, e Entry, tail string) Entry {
	if old != nil {
		e.Key = old.Key // one copy of the text for map and entry
		o.unlink(old)
	}
	o.seq++
	e.Seq = o.seq
	n := old
	if n == nil || o.talk.full != nil { // what a FULL is being made of stays as it is
		n = new(node)
		o.keys[e.Key] = n
	}
	if old == nil {
		o.sorted.put(e.Key, nil)
	}
	n.keep(e, tail)
	o.append(n)
	o.log.dirty = true
	o.log.put(e)
	o.talk.inStep = false
	return e
}

// append puts a node, whose seq is the highest, at the end of the order.
func (o *Owner) append(n *node) {
	o.order.push(n)
	if o.unacked == nil {
		o.unacked = n
	}
	if o.talk.next == nil {
		o.talk.next = n
	}
	o.dirty++
	if !n.Deleted {
		o.live++
		o.size += n.weight()
		o.sum.add(n.hash())
	}
}

// unlink takes a node out of everything but the map, where its successor will
// take its place.
func (o *Owner) unlink(n *node) {
	if o.unacked == n {
		o.unacked = n.next
	}
	if o.talk.next == n {
		o.talk.next = n.next
	}
	if n.Seq > o.acked {
		o.dirty--
	}
	if !n.Deleted {
		o.live--
		o.size -= n.weight()
		o.sum.sub(n.hash())
	}
	o.order.remove(n)
}

// forget drops a tombstone. That may wait for a commit that has other reasons:
// a tombstone that comes back after a crash is dropped again.
func (o *Owner) forget(n *node) {
	o.unlink(n)
	delete(o.keys, n.Key)
	o.sorted.del(n.Key)
	o.gcFloor = max(o.gcFloor, n.Seq)
	o.verFloor = max(o.verFloor, n.Ver)
	o.log.drop(n.Key)
}

// setAcked moves the mark of what the replica has. Upwards it drops the
// tombstones on its way (rule 5); downwards the replica was rolled back.
func (o *Owner) setAcked(a uint64) {
	for n := o.unacked; n != nil && n.Seq <= a; n = o.unacked {
		o.unacked = n.next
		o.dirty--
		if n.Deleted {
			o.acked = n.Seq // it counts as acknowledged while it goes
			o.forget(n)
		}
	}
	for n := o.before(o.unacked); n != nil && n.Seq > a; n = n.prev {
		o.unacked = n
		o.dirty++
	}
	o.acked = a
}

func (o *Owner) before(n *node) *node {
	if n == nil {
		return o.order.tail
	}
	return n.prev
}

// newLineage begins one that is later than both the owner's and seen. Sequence numbers go on: the replica can enter
// it by ADOPT or FULL only, so at this seq or later, and what lies below is
// never asked for. Hence no entry is stored anew, and no tombstone is needed.
func (o *Owner) newLineage(seen Lineage) {
	if !seen.after(o.lineage) {
		seen = o.lineage
	}
	o.lineage = Lineage{N: seen.next(), Nonce: o.rand()}
	o.setAcked(o.seq)
	o.setAcked(0)
	o.talk.full = nil
	o.talk.inStep = false
	o.log.dirty = true
}

// TakeJournal returns what is to be committed before Messages are sent.
func (o *Owner) TakeJournal() Journal {
	return o.log.take(o.state())
}

func (o *Owner) state() State {
	return State{Lineage: o.lineage, Seq: o.seq, Acked: o.acked, GCFloor: o.gcFloor, VerFloor: o.verFloor}
}

// Get returns a live entry.
func (o *Owner) Get(key string) (Entry, bool) {
	if n := o.keys[key]; n != nil && !n.Deleted {
		return n.entry(), true
	}
	return Entry{}, false
}

// Range calls fn for live entries in order of their keys, until it says false.
func (o *Owner) Range(prefix string, fn func(Entry) bool) { o.RangeFrom(prefix, prefix, fn) }

// RangeFrom is Range from a key on. fn must not change the map.
func (o *Owner) RangeFrom(prefix, from string, fn func(Entry) bool) {
	o.sorted.scan(max(prefix, from), func(key, _ []byte) bool {
		if !bytes.HasPrefix(key, []byte(prefix)) {
			return false
		}
		n := o.keys[string(key)]
		return n.Deleted || fn(n.entry())
	})
}

// Keys returns the live keys in order.
func (o *Owner) Keys(prefix string) []string { return keysOf(o.Range, prefix) }

func keysOf(all func(string, func(Entry) bool), prefix string) (keys []string) {
	all(prefix, func(e Entry) bool {
		keys = append(keys, e.Key)
		return true
	})
	return keys
}

// Len counts live keys.
func (o *Owner) Len() int { return o.live }

// Bytes counts those of live keys and values.
func (o *Owner) Bytes() int { return o.size }

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

// Digest of the live entries.
func (o *Owner) Digest() Digest { return o.sum.digest() }

// Lineage under which the map is numbered.
func (o *Owner) Lineage() Lineage { return o.lineage }

// Seq is the number of the last write.
func (o *Owner) Seq() uint64 { return o.seq }

// Acked is the number up to which the replica has the map.
func (o *Owner) Acked() uint64 { return o.acked }
