// SPDX-License-Identifier: Apache-2.0

package link

import (
	"encoding"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// MapState is what an Owner or a Replica stores beside its entries. They use different fields of it. A store keeps it as bytes.
type MapState struct {
	Lineage  Lineage `cbor:"1,keyasint"`
	Seq      uint64  `cbor:"2,keyasint,omitempty"` // owner: last number given
	Acked    uint64  `cbor:"3,keyasint,omitempty"` // owner: the replica has the map up to this seq
	GCFloor  uint64  `cbor:"4,keyasint,omitempty"` // owner: a replica below this seq may have missed a deletion
	VerFloor uint64  `cbor:"5,keyasint,omitempty"` // owner: versions of new keys begin above this
	Applied  uint64  `cbor:"6,keyasint,omitempty"` // replica: it has the map up to this seq
}

var (
	_ encoding.BinaryMarshaler   = MapState{}
	_ encoding.BinaryUnmarshaler = (*MapState)(nil)
)

// MarshalBinary writes a state for a store.
func (s MapState) MarshalBinary() ([]byte, error) { return wireCodec.enc.Marshal(s) }

// UnmarshalBinary reads a state back.
func (s *MapState) UnmarshalBinary(b []byte) error {
	*s = MapState{}
	if err := wireCodec.dec.Unmarshal(b, s); err != nil {
		return fmt.Errorf("link state: %w", err)
	}
	return nil
}

// Fork gives an owner that is restored from a backup a new lineage: the replica may have applied writes that are newer than
// the backup. Every entry is forked with the same stamp.
//
// Versions must rise above all that were given since the backup was made, so each gains at least 2^32. That alone fails
// when one backup is restored twice, or an older one after a newer one. So the upper half becomes the stamp, which the
// caller makes higher at each restore. (Hours since a recent year keep versions exact as JSON numbers.)
func (s MapState) Fork(rand func() uint64, stamp uint32) MapState {
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

// JournalChanges is what changed since the previous journal. The host commits it in one transaction before it sends Messages and
// acknowledges writers.
type JournalChanges struct {
	// Dirty says that there is something to commit. Otherwise the journal is empty, and changes that may wait (the acked
	// seq, dropped tombstones) are part of the next dirty one. Losing them in a crash is safe.
	Dirty bool
	// Reset says that the map was not restored from the store: the store deletes all its entries first.
	Reset   bool
	State   MapState
	Entries []Entry  // to store, tombstones included
	Dropped []string // keys to erase
}

// changeLog collects the next journal: the latest entry of each key, in the order in which the keys were first written, so
// that the store writes neighbouring keys together.
type changeLog struct {
	disabled     bool // the journal has no reader
	dirty, reset bool
	entries      []Entry        // one without a seq: the key is gone
	at           map[string]int // where in entries a key is
	dropped      int            // how many are
}

// expect reserves memory for n more keys.
func (l *changeLog) expect(n int) {
	if l.at == nil {
		l.at = make(map[string]int, n)
	}
	l.entries = slices.Grow(l.entries, n)
}

// put records a key's latest entry.
func (l *changeLog) put(e Entry) {
	if l.disabled {
		return
	}
	if e.Seq == 0 {
		l.dropped++
	}
	if i, known := l.at[e.Key]; known {
		if l.entries[i].Seq == 0 {
			l.dropped--
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

// drop records that a key is erased.
func (l *changeLog) drop(key string) { l.put(Entry{Key: key}) }

// take returns the journal and empties the log.
func (l *changeLog) take(s MapState) JournalChanges {
	if !l.dirty || l.disabled {
		return JournalChanges{}
	}
	j := JournalChanges{Dirty: true, Reset: l.reset, State: s, Entries: l.entries}
	if l.dropped > 0 {
		j.Entries = make([]Entry, 0, len(l.entries)-l.dropped)
		for _, e := range l.entries {
			if e.Seq > 0 {
				j.Entries = append(j.Entries, e)
			} else if !l.reset {
				j.Dropped = append(j.Dropped, e.Key)
			}
		}
	}
	at := l.at
	if len(l.entries) > maxReusedKeys {
		at = nil
	}
	clear(at)
	*l = changeLog{at: at}
	return j
}

const maxReusedKeys = 512 // keys; the memory for more isn't kept

// The stored form of an entry is a format byte, a byte of flags and the fields in order: numbers as varints, the origin with
// its length, and the value, which is the rest. The key is the store's key.
const entryFormat = 1

const flagDeleted = 1

var errEntry = errors.New("entry is damaged")

// EncodeEntry is the stored form of an entry, without its key.
func EncodeEntry(e Entry) []byte {
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

// ParseEntry reads the stored form. The entry holds no reference to b, which may be a database's memory.
func ParseEntry(key string, b []byte) (Entry, error) {
	e, origin, err := viewEntry(key, b)
	if err == nil && !e.Deleted {
		e.Value = append([]byte{}, e.Value...)
	}
	e.Origin = string(origin)
	return e, err
}

// viewEntry reads the stored form without copying: the entry, whose Origin is returned apart, is valid as long as b is.
func viewEntry(key string, b []byte) (e Entry, origin []byte, err error) {
	if len(b) < 2 || b[0] != entryFormat {
		return Entry{}, nil, errEntry
	}
	e = Entry{Key: key, Deleted: b[1]&flagDeleted != 0}
	r := fieldReader{b: b[2:]}
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

// fieldReader reads consecutive fields; bad says that one of them was damaged.
type fieldReader struct {
	b   []byte
	bad bool
}

func (r *fieldReader) uvarint() uint64 {
	n, size := binary.Uvarint(r.b)
	r.skip(size)
	return n
}

func (r *fieldReader) varint() int64 {
	n, size := binary.Varint(r.b)
	r.skip(size)
	return n
}

func (r *fieldReader) skip(size int) {
	if size <= 0 {
		r.bad, r.b = true, nil
		return
	}
	r.b = r.b[size:]
}

func (r *fieldReader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	head := r.b[:n]
	r.b = r.b[n:]
	return head
}
