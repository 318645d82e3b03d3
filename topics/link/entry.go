package link

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// Limits of what travels. MaxMessage bounds an encoded message, so that both
// brokers can refuse anything larger; one entry at all its limits fits.
const (
	MaxMessage = 256 << 10
	MaxValue   = 128 << 10
	MaxKey     = 4 << 10
	MaxOrigin  = 1 << 10
	MaxParts   = 4096
)

// Errors that Put returns, wrapped with the key and the limit.
var (
	ErrValueTooLarge = errors.New("value too large")
	ErrBadKey        = errors.New("bad key")
)

// Direction says which of a node's two maps is meant.
type Direction uint8

// Down is written by the cloud, Up by the edge. Zero is neither.
const (
	Down Direction = 1
	Up   Direction = 2
)

func (d Direction) String() string {
	switch d {
	case Down:
		return "down"
	case Up:
		return "up"
	}
	return fmt.Sprintf("direction(%d)", uint8(d))
}

// Lineage names one numbering of a map. Sequence numbers of different lineages
// can't be compared. N orders lineages (see after); the nonce tells two apart that
// were begun independently with the same N. The zero lineage is none.
type Lineage struct {
	_     struct{} `cbor:",toarray"`
	N     uint64
	Nonce uint64
}

// after says whether l is later than m. Numbers are compared as serial numbers (RFC 1982): of two,
// the later one is less than half of all numbers ahead. So there is no last one, and whatever number
// a peer makes up, its owner can go one beyond it.
func (l Lineage) after(m Lineage) bool {
	if l.N == 0 || m.N == 0 {
		return l.N != 0 && m.N == 0
	}
	return int64(l.N-m.N) > 0
}

// next is the number of the lineage that follows.
func (l Lineage) next() uint64 { return max(l.N+1, 1) }

// LeadOver is how many lineages l is ahead of m. One side is ahead by as many as there were reasons
// to begin anew since the two met: restored data, mostly. Thousands of them are no normal operation.
func (l Lineage) LeadOver(m Lineage) uint64 {
	if m.N == 0 || !l.after(m) {
		return 0
	}
	return l.N - m.N
}

// Mark is the half of the nonce in which whoever draws it may say who that is. The link doesn't look into it.
func (l Lineage) Mark() uint32 { return uint32(l.Nonce >> 32) }

// Marked is a nonce with a mark.
func Marked(mark uint32, random uint64) uint64 { return uint64(mark)<<32 | random&math.MaxUint32 }

// Meta travels beside a value for its readers. The link compares it and
// carries it, and gives it no meaning.
type Meta struct {
	_       struct{} `cbor:",toarray"`
	For     uint64   // version that a reported value answers
	BasedOn uint64   // version that an override was made against
	Until   int64    // end of validity, Unix milliseconds
}

// Entry is one key with its value, or, when Deleted, its tombstone. A Value is
// never modified once it is handed over, in either direction.
type Entry struct {
	_       struct{} `cbor:",toarray"`
	Key     string
	Seq     uint64 // place in the owner's order; of no meaning to users
	Ver     uint64 // version of the value, which users see
	TS      int64  // Unix milliseconds
	Origin  string // who wrote it
	Value   []byte
	Deleted bool
	Meta    Meta
}

// weight is what an entry counts for where bytes are limited.
func (e *Entry) weight() int { return len(e.Key) + len(e.Origin) + len(e.Value) }

// same tells whether a reader could see no difference. When it was written and
// by whom is a label, not a difference.
func (e *Entry) same(o *Entry) bool {
	return e.Deleted == o.Deleted && e.Ver == o.Ver && e.Meta == o.Meta && bytes.Equal(e.Value, o.Value)
}

func (e *Entry) check() error {
	if e.Key == "" || len(e.Key) > MaxKey || !utf8.ValidString(e.Key) {
		return fmt.Errorf("%w: %.64q: must be 1 to %d bytes of UTF-8", ErrBadKey, e.Key, MaxKey)
	}
	if len(e.Value) > MaxValue {
		return fmt.Errorf("%w: %s: %d bytes, limit %d", ErrValueTooLarge, e.Key, len(e.Value), MaxValue)
	}
	return nil
}

// cut shortens an origin: it is a label, so no write is refused because of it.
func cut(origin string) string {
	if len(origin) > MaxOrigin {
		origin = origin[:MaxOrigin]
	}
	return strings.ToValidUTF8(origin, "")
}

// Upper bounds of what CBOR adds to an entry's texts and bytes, and of a
// message without its entries.
const (
	entryOverhead   = 96
	messageOverhead = 256
)

func (e *Entry) size() int {
	return entryOverhead + len(e.Key) + len(e.Origin) + len(e.Value)
}
