package link

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Replica is the following side of a map.
type Replica struct {
	dir     Direction
	lineage Lineage
	applied uint64
	keys    map[string]*Entry
	sum     sum
	log     ledger

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
	entries []Entry
}

// Change is what a reader of the map can see of a step. A deleted key has New
// with Deleted set. HadOld is false, and Old empty, when the key was not there.
type Change struct {
	Old, New Entry
	HadOld   bool
}

// NewReplica begins with an empty map, of no lineage.
func NewReplica(dir Direction) *Replica {
	return &Replica{dir: dir, keys: make(map[string]*Entry), log: ledger{reset: true}}
}

// RestoreReplica goes on from what was committed.
func RestoreReplica(dir Direction, s State, entries iter.Seq[Entry]) (*Replica, error) {
	r := &Replica{dir: dir, lineage: s.Lineage, applied: s.Applied, keys: make(map[string]*Entry)}
	for e := range entries {
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("restore replica of %v: %w", dir, err)
		}
		if r.keys[e.Key] != nil || e.Deleted {
			return nil, fmt.Errorf("restore replica of %v: key %s is there twice or a tombstone", dir, e.Key)
		}
		r.keys[e.Key] = &e
		r.sum.add(e.hash())
	}
	return r, nil
}

// Step takes a message of the owner, and returns what changed by it, in the
// order in which it was applied. Whatever the message, a SEEN becomes due.
func (r *Replica) Step(m Message) []Change {
	if m.Map != r.dir || m.Type == Seen || m.check() != nil {
		return nil
	}
	r.n, r.due = m.N, true
	switch m.Type {
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
	if m.Lineage.N > r.lineage.N && *m.Digest == r.Digest() {
		r.moveTo(m.Lineage, m.Upto)
	}
}

func (r *Replica) delta(m Message) []Change {
	if m.Lineage != r.lineage || m.Base > r.applied || m.Upto <= r.applied {
		return nil
	}
	var changes []Change
	for i := range m.Entries {
		if m.Entries[i].Seq > r.applied {
			changes = r.set(changes, &m.Entries[i])
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
}

// set applies one entry. It copies it, so as not to keep a whole message in
// memory for the sake of one key.
func (r *Replica) set(changes []Change, e *Entry) []Change {
	old := r.keys[e.Key]
	if e.Deleted {
		return r.remove(changes, old, *e)
	}
	n := *e
	c := Change{New: n}
	if old != nil {
		n.Key = old.Key // one copy of the text for map and entry
		c.Old, c.HadOld = *old, true
		r.sum.sub(old.hash())
	}
	r.keys[n.Key] = &n
	r.sum.add(n.hash())
	r.log.touch(n.Key)
	r.log.dirty = true
	if c.HadOld && c.Old.same(&n) {
		return changes
	}
	return append(changes, c)
}

func (r *Replica) remove(changes []Change, old *Entry, tombstone Entry) []Change {
	if old == nil {
		return changes
	}
	r.sum.sub(old.hash())
	delete(r.keys, old.Key)
	r.log.touch(old.Key)
	r.log.dirty = true
	return append(changes, Change{Old: *old, New: tombstone, HadOld: true})
}

// wants is rule 3: which FULL may replace the map.
func (r *Replica) wants(l Lineage, upto uint64) bool {
	return l.N > r.lineage.N || l == r.lineage && upto >= r.applied
}

// part collects a FULL. Only the part that is next is kept; the SEEN says how
// many are held, so that one that went missing is sent again.
func (r *Replica) part(m Message) []Change {
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
	g.entries = append(g.entries, m.Entries...)
	if g.held < g.parts {
		return nil
	}
	r.gather = nil
	return r.replace(g, m.Digest)
}

// replace makes the map what a whole FULL says, or leaves it as it is when the
// digest shows that the parts don't make the owner's map.
func (r *Replica) replace(g *gather, want *Digest) []Change {
	wanted := make(map[string]struct{}, len(g.entries))
	var s sum
	for i := range g.entries {
		wanted[g.entries[i].Key] = struct{}{}
		s.add(g.entries[i].hash())
	}
	if want == nil || s.digest() != *want || len(wanted) != len(g.entries) {
		return nil
	}
	var changes []Change
	for _, key := range r.Keys("") {
		if _, ok := wanted[key]; !ok {
			old := r.keys[key]
			// Nobody says what version the deletion had: the old one is the
			// latest that is known of the key.
			changes = r.remove(changes, old, Entry{Key: old.Key, Ver: old.Ver, Deleted: true})
		}
	}
	for i := range g.entries {
		if e := &g.entries[i]; !r.holds(e) {
			changes = r.set(changes, e)
		}
	}
	r.moveTo(g.lineage, g.upto)
	return changes
}

// holds tells whether an entry is here, labels included, so that a FULL stores
// only what it changes.
func (r *Replica) holds(e *Entry) bool {
	old := r.keys[e.Key]
	return old != nil && old.same(e) && old.TS == e.TS && old.Origin == e.Origin
}

// Messages returns the SEEN that is due, if one is: the latest answers all.
func (r *Replica) Messages() []Message {
	if !r.due {
		return nil
	}
	r.due = false
	d := r.Digest()
	m := Message{V: Version, Map: r.dir, Type: Seen, N: r.n, Lineage: r.lineage, Applied: r.applied, Digest: &d}
	if g := r.gather; g != nil {
		m.ID, m.Part = g.id, g.held
	}
	return []Message{m}
}

// TakeJournal returns what is to be committed before Messages are sent.
func (r *Replica) TakeJournal() Journal {
	return r.log.take(State{Lineage: r.lineage, Applied: r.applied}, func(key string) *Entry { return r.keys[key] })
}

// Get returns an entry.
func (r *Replica) Get(key string) (Entry, bool) {
	if e := r.keys[key]; e != nil {
		return *e, true
	}
	return Entry{}, false
}

// Range calls fn for entries in no particular order, until it says false.
func (r *Replica) Range(prefix string, fn func(Entry) bool) {
	for key, e := range r.keys {
		if strings.HasPrefix(key, prefix) && !fn(*e) {
			return
		}
	}
}

// Keys returns the keys in order.
func (r *Replica) Keys(prefix string) []string {
	var keys []string
	for key := range r.keys {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Len counts keys.
func (r *Replica) Len() int { return len(r.keys) }

// Digest of the entries.
func (r *Replica) Digest() Digest { return r.sum.digest() }

// Lineage that the map was last brought to; the zero one at first.
func (r *Replica) Lineage() Lineage { return r.lineage }

// Applied is how far in its lineage the map is.
func (r *Replica) Applied() uint64 { return r.applied }
