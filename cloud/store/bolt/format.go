package bolt

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/daemon/boltfile"
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
// together when the file is opened. Earlier deletions are not known; lastDelete is the revision of the
// kind's newest deletion, and a watch from before it can't go on.
//
// Every record but the version begins with a checksum of its location (kind and bucket, for records of a kind), its key and its
// body. The tally counts all records but those in meta, and sums up their checksums.
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

// formatVersion rises with what is in the file, the JSON of records included: a hub that reads it with other names would take what
// was revoked for what was not.
const formatVersion = 3

var errRecord = errors.New("damaged record")

const topLevelLocation boltfile.Location = 0 // of buckets at the top level of the file

// locationIn is the location of a bucket of a kind, or of the kind's own bucket: bucket is nil.
func locationIn(kind string, bucket []byte) boltfile.Location {
	b := append(append(append(make([]byte, 0, len(kind)+len(bucket)+2), kind...), 0), bucket...)
	return boltfile.LocationOf(append(b, 0))
}

// encodeRecord writes the body of a data or status record, with room for the checksum before it.
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

func encodeNumber(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// decodeNumber decodes a number; it is 0 if b has another length.
func decodeNumber(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// storeState is the record of the whole file, as of its last transaction.
type storeState struct {
	rev, seq uint64
	identity uint32
	records  boltfile.Tally
}

const stateSize = 8 + 8 + 4 + boltfile.TallySize

// readState reads the state of a file that is well formed.
func readState(tx *bbolt.Tx) (s storeState, err error) {
	b, err := topLevelLocation.Open(keyState, tx.Bucket(bucketMeta).Get(keyState))
	if err != nil || len(b) != stateSize {
		return s, fmt.Errorf("its %s: %w", keyState, errRecord)
	}
	s.rev, s.seq = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	s.identity = binary.BigEndian.Uint32(b[16:])
	s.records = boltfile.ParseTally(b[20:])
	if s.identity == 0 {
		return s, errNoIdentity
	}
	return s, nil
}

var errNoIdentity = fmt.Errorf("its identity is none: %w", errRecord)

func (s storeState) put(tx *bbolt.Tx) error {
	b := make([]byte, 4, 4+stateSize)
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, s.rev), s.seq)
	b = binary.BigEndian.AppendUint32(b, s.identity)
	return tx.Bucket(bucketMeta).Put(keyState, topLevelLocation.Seal(keyState, s.records.Append(b)))
}

func initialiseFile(tx *bbolt.Tx) error {
	for _, name := range [][]byte{bucketMeta, bucketKinds, bucketReplicas, bucketReported} {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	return errors.Join(tx.Bucket(bucketMeta).Put(keyVersion, encodeNumber(formatVersion)), storeState{identity: newIdentity()}.put(tx))
}

// newIdentity draws an identity.
func newIdentity() (id uint32) {
	for id == 0 {
		b := make([]byte, 4)
		_, _ = rand.Read(b) // crypto/rand never fails
		id = binary.BigEndian.Uint32(b)
	}
	return id
}
