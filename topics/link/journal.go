package link

import (
	"encoding"
	"encoding/binary"
	"errors"
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

// On disk an entry stands under its key, as a format byte and the fields in order:
// numbers as varints, texts with their length. The value comes last and needs none.
const entryFormat = 1

const flagDeleted = 1

var errEntry = errors.New("entry is damaged")

// StoredEntry is the stored form of an entry, without its key.
func StoredEntry(e Entry) []byte {
	const most = 24 // of the numbers, nearly always
	return AppendEntry(make([]byte, 0, most+len(e.Origin)+len(e.Value)), e)
}

// AppendEntry appends the stored form of an entry, without its key.
func AppendEntry(b []byte, e Entry) []byte {
	var flags byte
	if e.Deleted {
		flags |= flagDeleted
	}
	b = append(b, entryFormat, flags)
	for _, n := range [...]uint64{e.Seq, e.Ver, e.Meta.For, e.Meta.BasedOn} {
		b = binary.AppendUvarint(b, n)
	}
	b = binary.AppendVarint(b, e.TS)
	b = binary.AppendVarint(b, e.Meta.Until)
	b = binary.AppendUvarint(b, uint64(len(e.Origin)))
	b = append(b, e.Origin...)
	return append(b, e.Value...)
}

// ParseEntry reads the stored form. It copies what it keeps: the bytes may belong to a database.
func ParseEntry(key string, b []byte) (Entry, error) {
	e, origin, err := viewEntry(key, b)
	if err == nil && !e.Deleted {
		e.Value = append([]byte{}, e.Value...)
	}
	e.Origin = string(origin)
	return e, err
}

// viewEntry reads the stored form and copies nothing: the entry, which is without its origin, is good as long as the bytes.
func viewEntry(key string, b []byte) (e Entry, origin []byte, err error) {
	if len(b) < 2 || b[0] != entryFormat {
		return Entry{}, nil, errEntry
	}
	e = Entry{Key: key, Deleted: b[1]&flagDeleted != 0}
	r := reader{b: b[2:]}
	for _, n := range [...]*uint64{&e.Seq, &e.Ver, &e.Meta.For, &e.Meta.BasedOn} {
		*n = r.uvarint()
	}
	e.TS, e.Meta.Until = r.varint(), r.varint()
	origin = r.take(r.uvarint())
	if r.bad {
		return Entry{}, nil, errEntry
	}
	if !e.Deleted {
		e.Value = r.b
	}
	return e, origin, nil
}

// reader reads fields one after the other and remembers that one was damaged.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uvarint() uint64 {
	n, size := binary.Uvarint(r.b)
	r.skip(size)
	return n
}

func (r *reader) varint() int64 {
	n, size := binary.Varint(r.b)
	r.skip(size)
	return n
}

func (r *reader) skip(size int) {
	if size <= 0 {
		r.bad, r.b = true, nil
		return
	}
	r.b = r.b[size:]
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	head := r.b[:n]
	r.b = r.b[n:]
	return head
}
