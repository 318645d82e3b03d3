package bolt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
)

// The file:
//
//	meta      version; state → rev, seq, identity, tally
//	kinds     {kind}/  lastDelete
//	                   data/    key → created, rev, data
//	                   status/  key → created, rev, status
//	replicas  node → meta
//	reported  node NUL key → value
//
// A key is namespace NUL name. An object's revision is the higher one of its two
// records. "rev → key" is not written: it is what the data and status records say, and is put
// together when the file is opened. What was deleted before that is forgotten; lastDelete is the revision of the
// kind's newest deletion, from before which no watch can go on.
//
// Every record but the version begins with a checksum of its place: the kind and the bucket, if it is in one of
// a kind; the key; and the rest. The tally counts all records but those in meta, and sums up their checksums.
var (
	bucketMeta     = []byte("meta")
	bucketKinds    = []byte("kinds")
	bucketReplicas = []byte("replicas")
	bucketReported = []byte("reported")

	bucketData   = []byte("data")
	bucketStatus = []byte("status")

	keyVersion    = []byte("version")
	keyState      = []byte("state")
	keyLastDelete = []byte("lastDelete")
)

const formatVersion = 1

var (
	errRecord  = errors.New("damaged record")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// place is the checksum of what leads to a record's key.
type place uint32

const top place = 0 // of the buckets that are in none

// placeIn is a place in one of a kind's buckets, or in the kind's own.
func placeIn(kind string, bucket []byte) place {
	b := append(append(append(make([]byte, 0, len(kind)+len(bucket)+2), kind...), 0), bucket...)
	return place(crc32.Checksum(append(b, 0), castagnoli))
}

func (p place) sum(key, body []byte) uint32 {
	return crc32.Update(crc32.Update(uint32(p), castagnoli, key), castagnoli, body)
}

// seal is the record of a body that has room for the checksum before it.
func (p place) seal(key, body []byte) []byte {
	binary.BigEndian.PutUint32(body, p.sum(key, body[4:]))
	return body
}

// open is the body of a record, a part of it.
func (p place) open(key, record []byte) ([]byte, error) {
	if len(record) < 4 || binary.BigEndian.Uint32(record) != p.sum(key, record[4:]) {
		return nil, errRecord
	}
	return record[4:], nil
}

// room is a body with room before it.
func room(body []byte) []byte {
	return append(make([]byte, 4, 4+len(body)), body...)
}

// encodeRecord writes the body of a data or status record.
func encodeRecord(created, rev uint64, value []byte) []byte {
	b := make([]byte, 4, 20+len(value))
	b = binary.BigEndian.AppendUint64(b, created)
	b = binary.BigEndian.AppendUint64(b, rev)
	return append(b, value...)
}

// decodeRecord reads one. value is a part of it.
func decodeRecord(body []byte) (created, rev uint64, value []byte, err error) {
	if len(body) < 16 {
		return 0, 0, nil, errRecord
	}
	return binary.BigEndian.Uint64(body), binary.BigEndian.Uint64(body[8:]), body[16:], nil
}

func objectKey(namespace, name string) []byte {
	b := make([]byte, 0, len(namespace)+1+len(name))
	return append(append(append(b, namespace...), 0), name...)
}

func splitKey(b []byte) (first, second string, err error) {
	first, second, ok := strings.Cut(string(b), "\x00")
	if !ok {
		return "", "", fmt.Errorf("key %q: %w", b, errRecord)
	}
	return first, second, nil
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// toNumber reads what number wrote; anything else, and nothing, is 0.
func toNumber(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}
