// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/cloud/store"
)

// A record begins with its kind. A number is a varint, a text is its length and its bytes, and what is last needs no length.
//
//	state       format, identity, revision: those after it may be given when it is written again
//	lastDelete  revision of the newest deletion of a kind: a watch from before it can't go on after a restart; kind
//	object      revisions of the first and of this version; kind, namespace, name; data
//	status      revision; record of the object; status
//	node        node; what is stored of its replica as a whole
//	reported    record of the node; key; value
//
// An object's revision is the higher one of its two records. The state is the store's first record; all others have the number that they got
// when they were made, and one that is deleted leaves its number to another.
const (
	recordState      = 1
	recordLastDelete = 2
	recordObject     = 3
	recordStatus     = 4
	recordNode       = 5
	recordReported   = 6
)

// formatVersion rises with what is in the records, the JSON of objects included: a hub that reads it with other names would take what
// was revoked for what was not.
const formatVersion = 4

var errRecord = errors.New("a record that can't be read")

// recordID is a record's number among those of the store. 0 is none.
type recordID uint32

// objectsTable is the number of the table that the store has in a journal; the broker has 0.
const objectsTable = 1

const stateRecord recordID = 1

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// storeState is the record of the whole store.
type storeState struct {
	identity uint32
	rev      uint64
}

func (s storeState) encode() []byte {
	b := binary.AppendUvarint([]byte{recordState}, formatVersion)
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(s.identity)), s.rev)
}

func encodeLastDelete(kind string, rev uint64) []byte {
	return append(binary.AppendUvarint([]byte{recordLastDelete}, rev), kind...)
}

func (e *objectVersion) encodeObject(kind string) []byte {
	b := make([]byte, 0, 32+len(kind)+len(e.namespace)+len(e.name)+len(e.data))
	b = binary.AppendUvarint(binary.AppendUvarint(append(b, recordObject), e.created), e.rev)
	return append(appendText(appendText(appendText(b, kind), e.namespace), e.name), e.data...)
}

func (e *objectVersion) encodeStatus() []byte {
	status := e.status.unpack()
	b := make([]byte, 0, 20+len(status))
	b = binary.AppendUvarint(binary.AppendUvarint(append(b, recordStatus), e.rev), uint64(e.record))
	return append(b, status...)
}

func encodeNode(node string, meta []byte) []byte {
	return append(appendText([]byte{recordNode}, node), meta...)
}

func encodeReported(node recordID, item store.ReplicaItem) []byte {
	b := make([]byte, 0, 16+len(item.Key)+len(item.Value))
	b = binary.AppendUvarint(append(b, recordReported), uint64(node))
	return append(appendText(b, item.Key), item.Value...)
}

// recordReader reads a record. After an error all is zero.
type recordReader struct {
	rest []byte
	err  error
}

func (r *recordReader) kind() (kind byte) {
	if len(r.rest) == 0 {
		r.err = errRecord
		return 0
	}
	kind, r.rest = r.rest[0], r.rest[1:]
	return kind
}

func (r *recordReader) number() uint64 {
	n, used := binary.Uvarint(r.rest)
	if used <= 0 {
		r.err, r.rest = errRecord, nil
		return 0
	}
	r.rest = r.rest[used:]
	return n
}

func (r *recordReader) id() recordID {
	n := r.number()
	if n == 0 || n != uint64(recordID(n)) {
		r.err = errRecord
	}
	return recordID(n)
}

func (r *recordReader) text() string {
	n := r.number()
	if n > uint64(len(r.rest)) {
		r.err, r.rest = errRecord, nil
		return ""
	}
	s := string(r.rest[:n])
	r.rest = r.rest[n:]
	return s
}

// state reads the rest of the state. Of another format nothing else is read.
func (r *recordReader) state() (s storeState) {
	if v := r.number(); r.err == nil && v != formatVersion {
		r.err = &formatError{v}
		return s
	}
	id := r.number()
	s.identity, s.rev = uint32(id), r.number()
	if r.err == nil && (s.identity == 0 || uint64(s.identity) != id || len(r.rest) > 0) {
		r.err = errRecord
	}
	return s
}

// formatError is the error for records of another format. They are not damaged.
type formatError struct{ format uint64 }

// Error says the formats.
func (e *formatError) Error() string {
	return fmt.Sprintf("its format is %d, this program reads %d", e.format, formatVersion)
}

// idSource gives numbers to records, those that have become free first, so that the numbers in use stay close together.
type idSource struct {
	last recordID
	free []recordID
}

func (s *idSource) take() recordID {
	if n := len(s.free); n > 0 {
		id := s.free[n-1]
		s.free = s.free[:n-1]
		return id
	}
	s.last++
	return s.last
}

// journalID is the number of a record in the journal.
func journalID(id recordID) uint64 { return objectsTable<<journal.TableShift | uint64(id) }

func journalIDs(records []recordID) []uint64 {
	ids := make([]uint64, len(records))
	for i, id := range records {
		ids[i] = journalID(id)
	}
	return ids
}
