package store

import (
	"encoding/binary"
	"errors"

	"github.com/fxamacker/cbor/v2"

	"github.com/edgebus/edgebus/topics/link"
)

// The kinds of what is stored; see the package's description.
const (
	kindState = iota + 1
	kindUp
	kindDown
	kindEffective
	kinds // one more than the last
)

// The keys of kindState.
const (
	stateUp    = "up"
	stateDown  = "down"
	stateFloor = "floor"
)

// The operations that a batch is in the log.
const (
	opPut = iota + 1
	opDelete
	opClear
)

var errRecord = errors.New("a record that can't be read")

// appendHead begins a record: operation, kind and key.
func appendHead(b []byte, op, kind byte, key string) []byte {
	b = binary.AppendUvarint(append(b, op, kind), uint64(len(key)))
	return append(b, key...)
}

func appendPut(b []byte, kind byte, key string, body []byte) []byte {
	b = binary.AppendUvarint(appendHead(b, opPut, kind, key), uint64(len(body)))
	return append(b, body...)
}

// record is one operation.
type record struct {
	op, kind  byte
	key, body []byte
}

// nextRecord takes the first record off.
func nextRecord(b []byte) (r record, rest []byte, err error) {
	if len(b) < 2 || b[0] < opPut || b[0] > opClear || b[1] == 0 || b[1] >= kinds {
		return r, nil, errRecord
	}
	r.op, r.kind = b[0], b[1]
	if r.key, rest, err = nextBytes(b[2:]); err == nil && r.op == opPut {
		r.body, rest, err = nextBytes(rest)
	}
	return r, rest, err
}

func nextBytes(b []byte) (text, rest []byte, err error) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)-used) {
		return nil, nil, errRecord
	}
	end := used + int(n)
	return b[used:end:end], b[end:], nil
}

// appendBatch appends a batch as a frame's body, and counts its records.
func (s *Store) appendBatch(frame []byte, b Batch) (_ []byte, records int, err error) {
	if frame, err = s.appendMap(frame, b.Up, kindUp, stateUp); err != nil {
		return frame, 0, err
	}
	if frame, err = s.appendMap(frame, b.Down, kindDown, stateDown); err != nil {
		return frame, 0, err
	}
	if b.Floor != 0 {
		floor, err := cbor.Marshal(b.Floor)
		if err != nil {
			return frame, 0, err
		}
		frame = appendPut(frame, kindState, stateFloor, floor)
	}
	for key, e := range b.Effective {
		if e == nil {
			frame = appendHead(frame, opDelete, kindEffective, key)
			continue
		}
		body, err := cbor.Marshal(e)
		if err != nil {
			return frame, 0, err
		}
		frame = appendPut(frame, kindEffective, key, body)
	}
	return frame, len(b.Up.Entries) + len(b.Down.Entries) + len(b.Effective), nil
}

func (s *Store) appendMap(frame []byte, j link.Journal, kind byte, state string) ([]byte, error) {
	if !j.Dirty {
		return frame, nil
	}
	if j.Reset {
		frame = appendHead(frame, opClear, kind, "")
	}
	for _, e := range j.Entries {
		s.entry = link.AppendEntry(s.entry[:0], e)
		frame = appendPut(frame, kind, e.Key, s.entry)
	}
	for _, key := range j.Dropped {
		frame = appendHead(frame, opDelete, kind, key)
	}
	body, err := j.State.MarshalBinary()
	if err != nil {
		return frame, err
	}
	return appendPut(frame, kindState, state, body), nil
}

// changes are what a stretch of the log comes to: of each key the last state.
type changes struct {
	cleared [kinds]bool              // nothing that was before counts
	keys    [kinds]map[string][]byte // nil: deleted
	bytes   int
	records int
}

const perKey = 96 // bytes that a key takes in memory beyond its name and value, about

// take adds what a frame says, and copies what it keeps.
func (c *changes) take(body []byte) error {
	for len(body) > 0 {
		r, rest, err := nextRecord(body)
		if err != nil {
			return err
		}
		body = rest
		c.records++
		c.apply(r)
	}
	return nil
}

func (c *changes) apply(r record) {
	if r.op == opClear || c.keys[r.kind] == nil {
		c.keys[r.kind] = make(map[string][]byte)
	}
	if r.op == opClear {
		c.cleared[r.kind] = true
		return
	}
	keys := c.keys[r.kind]
	old, known := keys[string(r.key)]
	if !known {
		c.bytes += len(r.key) + perKey
	}
	if r.op == opDelete {
		keys[string(r.key)] = nil
		return
	}
	if known && cap(old) >= len(r.body) && old != nil {
		keys[string(r.key)] = append(old[:0], r.body...)
		return
	}
	c.bytes += len(r.body)
	keys[string(r.key)] = append(make([]byte, 0, len(r.body)+slack), r.body...)
}

const slack = 8 // numbers grow
