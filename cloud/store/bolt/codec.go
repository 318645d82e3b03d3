package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
)

// The file:
//
//	meta      version, rev, seq, identity, older
//	objects   {kind}/  floor
//	                   data/    key → created, rev, data
//	                   status/  key → created, rev, status
//	                   tombs/   rev → when, key, data, status
//	replicas  node → meta
//	reported  node NUL key → value
//
// A key is namespace NUL name. An object's revision is the higher one of its two
// records. The live half of "rev → key" is not written: it is what the data and
// status records say, and is put together when the file is opened.
//
// Every record of an object begins with a checksum of the rest, and every one of a node with
// that of its key and the rest. Files of version 1 had the nodes' in the buckets nodes and
// up, without checksums.
var (
	bucketMeta     = []byte("meta")
	bucketObjects  = []byte("objects")
	bucketReplicas = []byte("replicas")
	bucketReported = []byte("reported")

	bucketNodes1 = []byte("nodes") // of version 1
	bucketUp1    = []byte("up")

	bucketData   = []byte("data")
	bucketStatus = []byte("status")
	bucketTombs  = []byte("tombs")

	keyVersion = []byte("version")
	keyRev     = []byte("rev")
	keySeq     = []byte("seq")
	keyFloor   = []byte("floor")

	keyIdentity = []byte("identity")
	keyOlder    = []byte("older")
)

const (
	formatVersion = 2
	formatFirst   = 1
)

var (
	errRecord  = errors.New("damaged record")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

func seal(body []byte) []byte {
	binary.BigEndian.PutUint32(body, crc32.Checksum(body[4:], castagnoli))
	return body
}

func unseal(b []byte) ([]byte, error) {
	if len(b) < 4 || binary.BigEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli) {
		return nil, errRecord
	}
	return b[4:], nil
}

// sealUnder is a node's record as the file has it.
func sealUnder(key, value []byte) []byte {
	sum := crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(value)), sum), value...)
}

func unsealUnder(key, b []byte) ([]byte, error) {
	if len(b) < 4 || binary.BigEndian.Uint32(b) != crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, b[4:]) {
		return nil, errRecord
	}
	return b[4:], nil
}

// encodeRecord writes a data or status record.
func encodeRecord(created, rev uint64, value []byte) []byte {
	b := make([]byte, 4, 20+len(value))
	b = binary.BigEndian.AppendUint64(b, created)
	b = binary.BigEndian.AppendUint64(b, rev)
	return seal(append(b, value...))
}

// decodeRecord reads one. value is a part of b.
func decodeRecord(b []byte) (created, rev uint64, value []byte, err error) {
	b, err = unseal(b)
	if err != nil || len(b) < 16 {
		return 0, 0, nil, errRecord
	}
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), b[16:], nil
}

// tombstone is what is kept of a deleted object for those who watch.
type tombstone struct {
	when            int64 // milliseconds since 1970
	namespace, name string
	data, status    []byte
}

func encodeTombstone(t tombstone) []byte {
	b := make([]byte, 4, 40+len(t.namespace)+len(t.name)+len(t.data)+len(t.status))
	b = binary.BigEndian.AppendUint64(b, uint64(t.when))
	for _, part := range [][]byte{[]byte(t.namespace), []byte(t.name), t.data} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	return seal(append(b, t.status...))
}

// decodeTombstone reads one, into memory of its own.
func decodeTombstone(b []byte) (t tombstone, err error) {
	b, err = unseal(b)
	if err != nil || len(b) < 8 {
		return t, errRecord
	}
	t.when = int64(binary.BigEndian.Uint64(b))
	b = b[8:]
	var parts [3][]byte
	for i := range parts {
		n, used := binary.Uvarint(b)
		if used <= 0 || n > uint64(len(b)-used) {
			return t, errRecord
		}
		parts[i], b = b[used:used+int(n)], b[used+int(n):]
	}
	t.namespace, t.name, t.data = string(parts[0]), string(parts[1]), bytes.Clone(parts[2])
	if len(b) > 0 {
		t.status = bytes.Clone(b)
	}
	return t, nil
}

func objectKey(namespace, name string) []byte {
	b := make([]byte, 0, len(namespace)+1+len(name))
	return append(append(append(b, namespace...), 0), name...)
}

func splitKey(b []byte) (first, second string, err error) {
	first, second, ok := strings.Cut(string(b), "\x00")
	if !ok {
		return "", "", fmt.Errorf("damaged key %q", b)
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
