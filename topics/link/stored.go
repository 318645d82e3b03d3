package link

import (
	"encoding/binary"
	"errors"
)

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
