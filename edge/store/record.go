package store

import (
	"encoding/binary"
	"errors"

	"github.com/fxamacker/cbor/v2"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/topics/link"
)

// The kinds of records; see the package's description.
const (
	kindFormat = iota + 1
	kindUpState
	kindDownState
	kindFloor
	kindUp
	kindDown
	kindEffective
	kinds // one more than the last
)

// The records that there is one of.
const (
	recordFormat = kindFormat
	recordFloor  = kindFloor
	firstKey     = 16
)

var errRecord = errors.New("a record that can't be read")

func appendRecord(b []byte, kind byte, key string, body []byte) []byte {
	return append(appendHead(b, kind, key), body...)
}

func appendHead(b []byte, kind byte, key string) []byte {
	b = binary.AppendUvarint(append(b, kind), uint64(len(key)))
	return append(b, key...)
}

func parseRecord(b []byte) (kind byte, key, body []byte, err error) {
	if len(b) == 0 || b[0] == 0 || b[0] >= kinds {
		return 0, nil, nil, errRecord
	}
	n, used := binary.Uvarint(b[1:])
	if used <= 0 || n > uint64(len(b)-1-used) {
		return 0, nil, nil, errRecord
	}
	rest := b[1+used:]
	return b[0], rest[:n], rest[n:], nil
}

// batch is a Commit in the journal's terms. Its memory serves one after the other.
type batch struct {
	buf     []byte
	changes []journal.Change
}

const keepBatch = 1 << 20 // a larger one's memory is not kept

func (w *batch) reset() {
	if cap(w.buf) > keepBatch || cap(w.changes) > keepBatch/32 {
		*w = batch{}
		return
	}
	clear(w.changes)
	*w = batch{buf: w.buf[:0], changes: w.changes[:0]}
}

// put takes the record that was appended to the buffer behind a place.
func (w *batch) put(id uint64, from int) {
	w.changes = append(w.changes, journal.Change{ID: id, Value: w.buf[from:len(w.buf):len(w.buf)]})
}

func (w *batch) putBody(id uint64, kind byte, key string, body []byte) {
	from := len(w.buf)
	w.buf = appendRecord(w.buf, kind, key, body)
	w.put(id, from)
}

func (w *batch) delete(id uint64) { w.changes = append(w.changes, journal.Change{ID: id}) }

// fill turns a batch into changes of records, and gives keys that are new their numbers.
func (s *Store) fill(w *batch, b Batch) error {
	if err := s.fillMap(w, b.Up, kindUp, kindUpState); err != nil {
		return err
	}
	if err := s.fillMap(w, b.Down, kindDown, kindDownState); err != nil {
		return err
	}
	if b.Floor != 0 {
		floor, err := cbor.Marshal(b.Floor)
		if err != nil {
			return err
		}
		w.putBody(recordFloor, kindFloor, "", floor)
	}
	for key, e := range b.Effective {
		if e == nil {
			s.drop(w, kindEffective, key)
			continue
		}
		body, err := cbor.Marshal(e)
		if err != nil {
			return err
		}
		w.putBody(s.record(kindEffective, key), kindEffective, key, body)
	}
	return nil
}

func (s *Store) fillMap(w *batch, j link.Journal, kind, state byte) error {
	if !j.Dirty {
		return nil
	}
	if j.Reset {
		for _, id := range s.records[kind] {
			w.delete(id)
		}
		clear(s.records[kind])
	}
	for _, e := range j.Entries {
		from := len(w.buf)
		w.buf = link.AppendEntry(appendHead(w.buf, kind, e.Key), e)
		w.put(s.record(kind, e.Key), from)
	}
	for _, key := range j.Dropped {
		s.drop(w, kind, key)
	}
	body, err := j.State.MarshalBinary()
	if err != nil {
		return err
	}
	w.putBody(uint64(state), state, "", body)
	return nil
}

// record is the number of a key's record; one that is new gets one.
func (s *Store) record(kind byte, key string) uint64 {
	if id, ok := s.records[kind][key]; ok {
		return id
	}
	id := s.next
	s.next++
	s.records[kind][key] = id
	return id
}

func (s *Store) drop(w *batch, kind byte, key string) {
	if id, ok := s.records[kind][key]; ok {
		delete(s.records[kind], key)
		w.delete(id)
	}
}
