// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"slices"
)

// Replica is the following side of a map.
type Replica struct {
	dir     MapDirection
	lineage Lineage
	applied uint64
	ReplicaEntries
	stored  *ReplicaEntries // the entries that are stored, if there are others
	changes changeLog

	quota     Quota
	refused   string // why nothing is applied
	wantsFull bool   // the next SEEN has no lineage, so that the owner sends a FULL

	partial *partialFull // an unfinished FULL; not stored
	n       uint64       // the connection of the owner's last message
	seenDue bool         // a SEEN is to be sent
}

// partialFull is a FULL of which the first parts have arrived.
type partialFull struct {
	id             uint64
	lineage        Lineage
	upto           uint64
	parts          uint32
	held           uint32
	count          int // of the entries that came
	ReplicaEntries     // of different keys
}

// NewReplica begins with an empty map, of no lineage.
func NewReplica(dir MapDirection) *Replica {
	return &Replica{dir: dir, changes: changeLog{reset: true}}
}

// RestoreReplica continues from what was committed.
func RestoreReplica(dir MapDirection, s MapState, entries iter.Seq[Entry]) (*Replica, error) {
	r := &Replica{dir: dir, lineage: s.Lineage, applied: s.Applied}
	for e := range entries {
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("restore replica of %v: %w", dir, err)
		}
		if twice, _ := r.set(&e); twice || e.Deleted {
			return nil, fmt.Errorf("restore replica of %v: key %s is there twice or a tombstone", dir, e.Key)
		}
	}
	return r, nil
}

// Step handles a message of the owner. It returns the entries that changed for readers, in the order in which they were
// applied; a removed key is Deleted. After any valid message a SEEN is due.
func (r *Replica) Step(m Message) []Entry {
	if m.Map != r.dir || m.Type == TypeSeen || m.check() != nil {
		return nil
	}
	r.n, r.seenDue = m.N, true
	r.wantsFull = r.wantsFull && m.Type == TypeDelta
	switch m.Type {
	case TypeHello:
		r.handleHello(m)
	case TypeAdopt:
		r.handleAdopt(m)
	case TypeDelta:
		return r.handleDelta(m)
	case TypeFull:
		return r.takeFullPart(m)
	}
	return nil
}

// handleAdopt takes the owner's lineage for the map as it is, if the digests are equal. It has the effect of a FULL with the same
// content.
func (r *Replica) handleAdopt(m Message) {
	if m.Lineage.after(r.lineage) && *m.Digest == r.Digest() {
		r.moveTo(m.Lineage, m.Upto)
	}
}

func (r *Replica) handleDelta(m Message) []Entry {
	if m.Lineage != r.lineage || m.Base > r.applied || m.Upto <= r.applied || !r.withinQuota(m) {
		return nil
	}
	changes := make([]Entry, 0, len(m.Entries))
	r.changes.expect(len(m.Entries))
	for i := range m.Entries {
		if m.Entries[i].Seq > r.applied {
			changes = r.write(changes, &m.Entries[i])
		}
	}
	r.moveTo(r.lineage, m.Upto)
	return changes
}

func (r *Replica) moveTo(l Lineage, applied uint64) {
	if l != r.lineage || applied != r.applied { // a FULL that comes twice changes nothing
		r.changes.dirty = true
	}
	r.lineage, r.applied, r.partial = l, applied, nil
	r.refused, r.wantsFull = "", false
}

// write applies one entry.
func (r *Replica) write(changes []Entry, e *Entry) []Entry {
	if e.Deleted {
		return r.drop(changes, *e)
	}
	r.keepStored()
	_, same := r.set(e)
	r.changes.put(*e)
	r.changes.dirty = true
	if same {
		return changes
	}
	return append(changes, *e)
}

func (r *Replica) drop(changes []Entry, tombstone Entry) []Entry {
	r.keepStored()
	if !r.remove(tombstone.Key) {
		return changes
	}
	r.changes.drop(tombstone.Key)
	r.changes.dirty = true
	return append(changes, tombstone)
}

// acceptsFull is rule 3: which FULL may replace the map.
func (r *Replica) acceptsFull(l Lineage, upto uint64) bool {
	return l.after(r.lineage) || l == r.lineage && upto >= r.applied
}

// takeFullPart collects a FULL. Parts are taken in order only; the SEEN says how many are held, and the owner sends the others again.
func (r *Replica) takeFullPart(m Message) []Entry {
	if !r.acceptsFull(m.Lineage, m.Upto) {
		return nil
	}
	if g := r.partial; m.Part == 0 && (g == nil || g.id != m.ID) {
		r.partial = &partialFull{id: m.ID, lineage: m.Lineage, upto: m.Upto, parts: m.Parts}
	}
	g := r.partial
	if g == nil || g.id != m.ID || g.lineage != m.Lineage || g.upto != m.Upto || g.parts != m.Parts || g.held != m.Part {
		return nil
	}
	g.held++
	g.count += len(m.Entries)
	for i := range m.Entries {
		g.set(&m.Entries[i])
	}
	if r.refused = r.quota.exceeded(g.Len(), g.size); r.refused != "" {
		r.partial = nil
		return nil
	}
	if g.held < g.parts {
		return nil
	}
	r.partial = nil
	return r.replaceMap(g, m.Digest)
}

// replaceMap replaces the map with a complete FULL. If the digest of its entries is not the owner's, nothing is changed.
func (r *Replica) replaceMap(g *partialFull, want *Digest) []Entry {
	if want == nil || g.Digest() != *want || g.Len() != g.count {
		return nil
	}
	var gone []Entry
	r.Range("", func(e Entry) bool {
		if _, stays := g.Get(e.Key); !stays {
			gone = append(gone, e)
		}
		return true
	})
	var changes []Entry
	for _, e := range gone {
		// A FULL has no tombstones, so the deletion's version is unknown: the old one is the latest known.
		changes = r.drop(changes, Entry{Key: e.Key, Ver: e.Ver, Deleted: true})
	}
	g.Range("", func(e Entry) bool {
		if !r.hasEntry(&e) {
			changes = r.write(changes, &e)
		}
		return true
	})
	slices.SortStableFunc(changes, func(a, b Entry) int { return cmp.Compare(a.Seq, b.Seq) }) // as they were written
	r.moveTo(g.lineage, g.upto)
	return changes
}

// hasEntry reports whether the map has this entry, TS and Origin included. A FULL stores only entries that it changes.
func (r *Replica) hasEntry(e *Entry) bool {
	old, ok := r.Get(e.Key)
	return ok && old.equalForReaders(e) && old.TS == e.TS && old.Origin == e.Origin
}

// Messages returns the SEEN that is due, if any. One SEEN answers all messages before it.
func (r *Replica) Messages() []Message {
	if !r.seenDue {
		return nil
	}
	r.seenDue = false
	d := r.Digest()
	m := Message{V: Version, Map: r.dir, Type: TypeSeen, N: r.n, Lineage: r.lineage, Applied: r.applied, Digest: &d, Refused: r.refused}
	if r.wantsFull {
		m.Lineage, m.Applied = Lineage{}, 0
	}
	if g := r.partial; g != nil {
		m.ID, m.Part = g.id, g.held
	}
	return []Message{m}
}

// TakeChanges returns what is to be committed before Messages are sent.
func (r *Replica) TakeChanges() JournalChanges {
	return r.changes.take(MapState{Lineage: r.lineage, Applied: r.applied})
}

// keepStored keeps what is stored for readers, before it changes.
func (r *Replica) keepStored() {
	if r.stored == nil {
		stored := r.ReplicaEntries
		stored.table = r.table.snapshot()
		r.stored = &stored
	}
}

// Stored are the entries as of the last ChangesStored, for readers while the next changes are being stored. They are valid until the map changes, or ChangesStored is called.
func (r *Replica) Stored() *ReplicaEntries {
	if r.stored != nil {
		return r.stored
	}
	return &r.ReplicaEntries
}

// ChangesStored says that the changes that were taken last are stored: readers of Stored see them.
func (r *Replica) ChangesStored() { r.stored, r.table.shared = nil, false }

// Collects is the id of the FULL whose first parts have arrived; 0: none.
func (r *Replica) Collects() uint64 {
	if r.partial == nil {
		return 0
	}
	return r.partial.id
}

// Lineage is the owner's lineage that the map follows; zero before the first FULL or ADOPT.
func (r *Replica) Lineage() Lineage { return r.lineage }

// Applied is up to which seq of its lineage the map is.
func (r *Replica) Applied() uint64 { return r.applied }

// ReplicaEntries are a replica's entries, in their stored form to save memory. Its methods return copies.
type ReplicaEntries struct {
	table keyTable
	sum   hashSum
	size  int // bytes of keys and values
}

func unpackEntry(key string, body []byte) Entry {
	e, _ := ParseEntry(key, body) // it was written by pack
	return e
}

// Get returns an entry.
func (x *ReplicaEntries) Get(key string) (Entry, bool) {
	body, ok := x.table.get(key)
	if !ok {
		return Entry{}, false
	}
	return unpackEntry(key, body), true
}

// set stores an entry. It says whether the key existed, and whether the old entry was the same for readers.
func (x *ReplicaEntries) set(e *Entry) (had, same bool) {
	if body, ok := x.table.get(e.Key); ok {
		old, origin, _ := viewEntry(e.Key, body) // valid until the table changes
		had, same = true, old.equalForReaders(e)
		x.uncount(&old)
		x.size -= len(origin)
	}
	var scratch [256]byte
	x.table.put(e.Key, AppendEntry(scratch[:0], *e))
	x.sum.add(e.hash())
	x.size += e.weight()
	return had, same
}

func (x *ReplicaEntries) remove(key string) (had bool) {
	old, had := x.Get(key)
	if had {
		x.uncount(&old)
		x.table.del(key)
	}
	return had
}

func (x *ReplicaEntries) uncount(e *Entry) {
	x.sum.sub(e.hash())
	x.size -= e.weight()
}

// Range calls fn for entries in order of their keys, until it says false.
func (x *ReplicaEntries) Range(prefix string, fn func(Entry) bool) { x.RangeFrom(prefix, prefix, fn) }

// RangeFrom is Range from a key on. fn must not change the map.
func (x *ReplicaEntries) RangeFrom(prefix, from string, fn func(Entry) bool) {
	x.table.scan(max(prefix, from), func(key, body []byte) bool {
		return bytes.HasPrefix(key, []byte(prefix)) && fn(unpackEntry(string(key), body))
	})
}

// Keys returns the keys in order.
func (x *ReplicaEntries) Keys(prefix string) []string { return collectKeys(x.Range, prefix) }

// Len counts keys.
func (x *ReplicaEntries) Len() int { return x.table.len }

// Bytes counts those of keys and values.
func (x *ReplicaEntries) Bytes() int { return x.size }

// Digest of the entries.
func (x *ReplicaEntries) Digest() Digest { return x.sum.digest() }

// Quota limits a map: the number of keys, and the bytes of keys and values together. 0 is no limit.
//
// The owner's host checks it when it accepts a write (see Exceeds), and refuses the write. A replica's quota protects its
// host from owners that don't check. Such an owner's map is refused as a whole, because a part of it is none of its
// states; the SEEN says why, and the owner sends HELLO again from time to time.
type Quota struct{ Keys, Bytes int }

// exceeded says which limit is exceeded; empty: none.
func (q Quota) exceeded(keys, bytes int) string {
	switch {
	case q.Keys > 0 && keys > q.Keys:
		return fmt.Sprintf("%d keys, at most %d are taken", keys, q.Keys)
	case q.Bytes > 0 && bytes > q.Bytes:
		return fmt.Sprintf("%d bytes of keys and values, at most %d are taken", bytes, q.Bytes)
	}
	return ""
}

// SetQuota sets the quota. Entries that exist already stay, even if they exceed it.
func (r *Replica) SetQuota(q Quota) { r.quota = q }

// Refused says why nothing is applied at present; empty: everything is.
func (r *Replica) Refused() string { return r.refused }

// handleHello handles a HELLO, which says how large the owner's map is: a map beyond the quota is refused before it is sent.
func (r *Replica) handleHello(m Message) {
	const most = 1 << 40 // the peer's numbers must not overflow an int
	r.refused = r.quota.exceeded(int(min(m.Keys, most)), int(min(m.Bytes, most)))
}

// withinQuota reports whether the map is within the quota after a DELTA. A DELTA that is not the last chunk may exceed the
// quota although the owner's map doesn't: deletions may follow in the next chunk. Then the replica asks for a FULL.
func (r *Replica) withinQuota(m Message) bool {
	keys, bytes := r.Len()+len(m.Entries), r.size
	for i := range m.Entries {
		bytes += m.Entries[i].weight()
	}
	if r.quota.exceeded(keys, bytes) == "" { // an upper bound of the size
		return true
	}
	keys, bytes = r.Len(), r.size
	for i := range m.Entries {
		k, b := entryGrowth(r.Get, &m.Entries[i])
		keys, bytes = keys+k, bytes+b
	}
	why := r.quota.exceeded(keys, bytes)
	if r.wantsFull = why != "" && m.Digest == nil; !r.wantsFull {
		r.refused = why
	}
	return why == ""
}

// entryGrowth is what an entry adds to the map that it is put into.
func entryGrowth(get func(string) (Entry, bool), e *Entry) (keys, bytes int) {
	if old, had := get(e.Key); had {
		keys, bytes = -1, -old.weight()
	}
	if !e.Deleted {
		keys, bytes = keys+1, bytes+e.weight()
	}
	return keys, bytes
}
