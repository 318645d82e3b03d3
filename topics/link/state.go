package link

import (
	"encoding"
	"fmt"
	"slices"
)

// State is what a machine keeps beside its entries. Owner and Replica use
// different fields of it; a store keeps it as opaque bytes.
type State struct {
	Lineage  Lineage `cbor:"1,keyasint"`
	Seq      uint64  `cbor:"2,keyasint,omitempty"` // owner: last number given
	Acked    uint64  `cbor:"3,keyasint,omitempty"` // owner: the replica has it up to here
	GCFloor  uint64  `cbor:"4,keyasint,omitempty"` // owner: a replica below this missed a deletion
	VerFloor uint64  `cbor:"5,keyasint,omitempty"` // owner: versions of new keys begin above
	Applied  uint64  `cbor:"6,keyasint,omitempty"` // replica: it has the map up to here
}

var (
	_ encoding.BinaryMarshaler   = State{}
	_ encoding.BinaryUnmarshaler = (*State)(nil)
)

// MarshalBinary writes a state for a store.
func (s State) MarshalBinary() ([]byte, error) { return wire.enc.Marshal(s) }

// UnmarshalBinary reads a state back.
func (s *State) UnmarshalBinary(b []byte) error {
	*s = State{}
	if err := wire.dec.Unmarshal(b, s); err != nil {
		return fmt.Errorf("link state: %w", err)
	}
	return nil
}

// Fork is for the tool that restores an owner from a backup: the backup must
// not go on under its old lineage, because the replica may have seen what came
// after it. Every entry is forked with the same stamp.
//
// Versions must rise above any that were given since the backup was made. So
// each gains 2^32 at least; but that alone fails when one backup is restored
// twice, or an older one after a newer: a stamp that is higher at each restore
// becomes the upper half. (Hours since some recent year keep versions exact in
// a JSON number.)
func (s State) Fork(rand func() uint64, stamp uint32) State {
	s.Lineage = Lineage{N: s.Lineage.next(), Nonce: rand()}
	s.VerFloor = ForkVer(s.VerFloor, stamp)
	s.Acked = 0
	return s
}

// Fork returns the entry as a restore tool stores it; see State.Fork.
func (e Entry) Fork(stamp uint32) Entry {
	e.Ver = ForkVer(e.Ver, stamp)
	return e
}

// ForkVer is what becomes of a version in a backup that is restored; see State.Fork.
func ForkVer(ver uint64, stamp uint32) uint64 {
	return max(ver>>32+1, uint64(stamp))<<32 | ver&(1<<32-1)
}

// Journal is what changed since the last one and must be committed, in one
// transaction, before Messages are sent and writers acknowledged.
type Journal struct {
	// Dirty: there is something to commit. Otherwise the journal is empty, and
	// what may wait (how far the replica acknowledged, tombstones it has no
	// more need of) is kept for the next one that isn't. Losing that is safe.
	Dirty bool
	// Reset: the machine was not restored from the store, which must
	// therefore forget all entries before it stores these.
	Reset   bool
	State   State
	Entries []Entry  // to store, tombstones included
	Dropped []string // keys to erase
}

// ledger collects what a journal will say: of each key the last word, in the order in which
// the keys came up, so that neighbours stay neighbours on their way into the store.
type ledger struct {
	none         bool // nobody takes the journal
	dirty, reset bool
	entries      []Entry        // one without a seq: the key is gone
	at           map[string]int // where in entries a key is
	gone         int            // how many are
}

// expect makes room for so many keys more.
func (l *ledger) expect(n int) {
	if l.at == nil {
		l.at = make(map[string]int, n)
	}
	l.entries = slices.Grow(l.entries, n)
}

// put notes what a key is now.
func (l *ledger) put(e Entry) {
	if l.none {
		return
	}
	if e.Seq == 0 {
		l.gone++
	}
	if i, known := l.at[e.Key]; known {
		if l.entries[i].Seq == 0 {
			l.gone--
		}
		l.entries[i] = e
		return
	}
	if l.at == nil {
		l.at = make(map[string]int)
	}
	l.at[e.Key] = len(l.entries)
	l.entries = append(l.entries, e)
}

// drop notes that a key is no more.
func (l *ledger) drop(key string) { l.put(Entry{Key: key}) }

// take empties the ledger into a journal.
func (l *ledger) take(s State) Journal {
	if !l.dirty || l.none {
		return Journal{}
	}
	j := Journal{Dirty: true, Reset: l.reset, State: s, Entries: l.entries}
	if l.gone > 0 {
		j.Entries = make([]Entry, 0, len(l.entries)-l.gone)
		for _, e := range l.entries {
			if e.Seq > 0 {
				j.Entries = append(j.Entries, e)
			} else if !l.reset {
				j.Dropped = append(j.Dropped, e.Key)
			}
		}
	}
	at := l.at
	if len(l.entries) > keepTouched {
		at = nil
	}
	clear(at)
	*l = ledger{at: at}
	return j
}

const keepTouched = 512 // keys; the memory for more isn't kept
