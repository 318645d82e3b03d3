package link

import (
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
