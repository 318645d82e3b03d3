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
	dir     Direction
	lineage Lineage
	applied uint64
	entries
	log ledger

	quota   Quota
	refused string // why nothing is taken
	anew    bool   // a FULL is asked for, by a SEEN as of a map that has none of the owner's

	gather *gather // an unfinished FULL; not stored
	n      uint64  // connection of the owner's last message
	due    bool    // a SEEN is to be sent
}

// gather is a FULL of which some parts, the first ones, are held.
type gather struct {
	id      uint64
	lineage Lineage
	upto    uint64
	parts   uint32
	held    uint32
	count   int // of the entries that came
	entries     // of different keys
}

// NewReplica begins with an empty map, of no lineage.
func NewReplica(dir Direction) *Replica {
	return &Replica{dir: dir, log: ledger{reset: true}}
}

// RestoreReplica goes on from what was committed.
func RestoreReplica(dir Direction, s State, entries iter.Seq[Entry]) (*Replica, error) {
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

// Step takes a message of the owner, and returns what readers of the map see
// differently by it, in the order in which it was applied; a key that is gone is
// Deleted. Whatever the message, a SEEN becomes due.
func (r *Replica) Step(m Message) []Entry {
	if m.Map != r.dir || m.Type == Seen || m.check() != nil {
		return nil
	}
	r.n, r.due = m.N, true
	r.anew = r.anew && m.Type == Delta
	switch m.Type {
	case Hello:
		r.greet(m)
	case Adopt:
		r.adopt(m)
	case Delta:
		return r.delta(m)
	case Full:
		return r.part(m)
	}
	return nil
}

// adopt takes a lineage for the map as it is. That is a FULL whose content is
// here already, and as safe as one: the digest says so of this very moment.
func (r *Replica) adopt(m Message) {
	if m.Lineage.after(r.lineage) && *m.Digest == r.Digest() {
		r.moveTo(m.Lineage, m.Upto)
	}
}

func (r *Replica) delta(m Message) []Entry {
	if m.Lineage != r.lineage || m.Base > r.applied || m.Upto <= r.applied || !r.admits(m) {
		return nil
	}
	changes := make([]Entry, 0, len(m.Entries))
	r.log.expect(len(m.Entries))
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
		r.log.dirty = true
	}
	r.lineage, r.applied, r.gather = l, applied, nil
	r.refused, r.anew = "", false
}

// write applies one entry.
func (r *Replica) write(changes []Entry, e *Entry) []Entry {
	if e.Deleted {
		return r.drop(changes, *e)
	}
	_, same := r.set(e)
	r.log.put(*e)
	r.log.dirty = true
	if same {
		return changes
	}
	return append(changes, *e)
}

func (r *Replica) drop(changes []Entry, tombstone Entry) []Entry {
	if !r.remove(tombstone.Key) {
		return changes
	}
	r.log.drop(tombstone.Key)
	r.log.dirty = true
	return append(changes, tombstone)
}

// wants is rule 3: which FULL may replace the map.
func (r *Replica) wants(l Lineage, upto uint64) bool {
	return l.after(r.lineage) || l == r.lineage && upto >= r.applied
}

// part collects a FULL. Only the part that is next is kept; the SEEN says how
// many are held, so that one that went missing is sent again.
func (r *Replica) part(m Message) []Entry {
	if !r.wants(m.Lineage, m.Upto) {
		return nil
	}
	if g := r.gather; m.Part == 0 && (g == nil || g.id != m.ID) {
		r.gather = &gather{id: m.ID, lineage: m.Lineage, upto: m.Upto, parts: m.Parts}
	}
	g := r.gather
	if g == nil || g.id != m.ID || g.lineage != m.Lineage || g.upto != m.Upto || g.parts != m.Parts || g.held != m.Part {
		return nil
	}
	g.held++
	g.count += len(m.Entries)
	for i := range m.Entries {
		g.set(&m.Entries[i])
	}
	if r.refused = r.quota.exceeded(g.Len(), g.size); r.refused != "" {
		r.gather = nil
		return nil
	}
	if g.held < g.parts {
		return nil
	}
	r.gather = nil
	return r.replace(g, m.Digest)
}

// replace makes the map what a whole FULL says, or leaves it as it is when the
// digest shows that the parts don't make the owner's map.
func (r *Replica) replace(g *gather, want *Digest) []Entry {
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
		// Nobody says what version the deletion had: the old one is the
		// latest that is known of the key.
		changes = r.drop(changes, Entry{Key: e.Key, Ver: e.Ver, Deleted: true})
	}
	g.Range("", func(e Entry) bool {
		if !r.holds(&e) {
			changes = r.write(changes, &e)
		}
		return true
	})
	slices.SortStableFunc(changes, func(a, b Entry) int { return cmp.Compare(a.Seq, b.Seq) }) // as they were written
	r.moveTo(g.lineage, g.upto)
	return changes
}

// holds tells whether an entry is here, labels included, so that a FULL stores
// only what it changes.
func (r *Replica) holds(e *Entry) bool {
	old, ok := r.Get(e.Key)
	return ok && old.same(e) && old.TS == e.TS && old.Origin == e.Origin
}

// Messages returns the SEEN that is due, if one is: the latest answers all.
func (r *Replica) Messages() []Message {
	if !r.due {
		return nil
	}
	r.due = false
	d := r.Digest()
	m := Message{V: Version, Map: r.dir, Type: Seen, N: r.n, Lineage: r.lineage, Applied: r.applied, Digest: &d, Refused: r.refused}
	if r.anew {
		m.Lineage, m.Applied = Lineage{}, 0
	}
	if g := r.gather; g != nil {
		m.ID, m.Part = g.id, g.held
	}
	return []Message{m}
}

// TakeJournal returns what is to be committed before Messages are sent.
func (r *Replica) TakeJournal() Journal {
	return r.log.take(State{Lineage: r.lineage, Applied: r.applied})
}

// Lineage that the map was last brought to; the zero one at first.
func (r *Replica) Lineage() Lineage { return r.lineage }

// Applied is how far in its lineage the map is.
func (r *Replica) Applied() uint64 { return r.applied }

// entries are a replica's, in little memory: each stands in the table in its
// stored form. What they return is a copy.
type entries struct {
	table table
	sum   sum
	size  int // bytes of keys and values
}

func unpack(key string, body []byte) Entry {
	e, _ := ParseEntry(key, body) // it was written by pack
	return e
}

// Get returns an entry.
func (x *entries) Get(key string) (Entry, bool) {
	body, ok := x.table.get(key)
	if !ok {
		return Entry{}, false
	}
	return unpack(key, body), true
}

// set puts an entry in the place of the key's old one, if there is one, and says whether it is the same to readers.
func (x *entries) set(e *Entry) (had, same bool) {
	if body, ok := x.table.get(e.Key); ok {
		old, origin, _ := viewEntry(e.Key, body) // good until the table changes
		had, same = true, old.same(e)
		x.uncount(&old)
		x.size -= len(origin)
	}
	var scratch [256]byte
	x.table.put(e.Key, AppendEntry(scratch[:0], *e))
	x.sum.add(e.hash())
	x.size += e.weight()
	return had, same
}

func (x *entries) remove(key string) (had bool) {
	old, had := x.Get(key)
	if had {
		x.uncount(&old)
		x.table.del(key)
	}
	return had
}

func (x *entries) uncount(e *Entry) {
	x.sum.sub(e.hash())
	x.size -= e.weight()
}

// Range calls fn for entries in order of their keys, until it says false.
func (x *entries) Range(prefix string, fn func(Entry) bool) { x.RangeFrom(prefix, prefix, fn) }

// RangeFrom is Range from a key on. fn must not change the map.
func (x *entries) RangeFrom(prefix, from string, fn func(Entry) bool) {
	x.table.scan(max(prefix, from), func(key, body []byte) bool {
		return bytes.HasPrefix(key, []byte(prefix)) && fn(unpack(string(key), body))
	})
}

// Keys returns the keys in order.
func (x *entries) Keys(prefix string) []string { return keysOf(x.Range, prefix) }

// Len counts keys.
func (x *entries) Len() int { return x.table.len }

// Bytes counts those of keys and values.
func (x *entries) Bytes() int { return x.size }

// Digest of the entries.
func (x *entries) Digest() Digest { return x.sum.digest() }

// Quota bounds what a map may hold: its keys, and the bytes of keys and values
// together. A field that is 0 bounds nothing.
//
// The normal place for it is where the owner's host takes writes (see Exceeds):
// there the one who writes is told. A replica's quota protects its host from
// owners that don't keep to it. Such an owner's map is refused as a whole, for a
// part of it would be none of its states; it hears why, and asks from time to time.
type Quota struct{ Keys, Bytes int }

// exceeded says in words what is too much, or nothing.
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

// Refused says why nothing is taken from the owner at present, if that is so.
func (r *Replica) Refused() string { return r.refused }

// greet takes a HELLO, which says how large the owner's map is: what can't be
// taken is refused before it is sent.
func (r *Replica) greet(m Message) {
	const most = 1 << 40 // a peer's word, which must not overflow
	r.refused = r.quota.exceeded(int(min(m.Keys, most)), int(min(m.Bytes, most)))
}

// admits says whether a DELTA leaves the map within the quota. One that is not the
// last may be too much although the owner's map is not: what makes room comes
// after it. Then the replica asks for a FULL, which has no in between.
func (r *Replica) admits(m Message) bool {
	keys, bytes := r.Len()+len(m.Entries), r.size
	for i := range m.Entries {
		bytes += m.Entries[i].weight()
	}
	if r.quota.exceeded(keys, bytes) == "" { // that is as large as it could become
		return true
	}
	keys, bytes = r.Len(), r.size
	for i := range m.Entries {
		k, b := growth(r.Get, &m.Entries[i])
		keys, bytes = keys+k, bytes+b
	}
	why := r.quota.exceeded(keys, bytes)
	if r.anew = why != "" && m.Digest == nil; !r.anew {
		r.refused = why
	}
	return why == ""
}

// growth is what an entry adds to the map that it is put into.
func growth(get func(string) (Entry, bool), e *Entry) (keys, bytes int) {
	if old, had := get(e.Key); had {
		keys, bytes = -1, -old.weight()
	}
	if !e.Deleted {
		keys, bytes = keys+1, bytes+e.weight()
	}
	return keys, bytes
}
