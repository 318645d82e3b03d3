package bolt

import (
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"
)

// What was otherwise in files of before. Version 2 had the objects in another bucket, their checksums of the rest of
// a record alone, no tally, and each part of the state by itself, as number writes it. Version 1 had no checksums of
// what nodes reported, in other buckets, and the oldest of them no identity.
var (
	bucketKinds2 = []byte("objects")
	bucketNodes1 = []byte("nodes")
	bucketUp1    = []byte("up")

	keyRev2      = []byte("rev")
	keySeq2      = []byte("seq")
	keyIdentity2 = []byte("identity")
	keyOlder2    = []byte("older")
)

const (
	formatBare  = 1
	formatPlain = 2
)

// format is how to read a file.
type format struct {
	version                   uint64
	kinds, replicas, reported []byte // buckets
}

func formatOf(tx *bbolt.Tx) (f format) {
	f = format{version(tx), bucketKinds, bucketReplicas, bucketReported}
	if f.version <= formatPlain {
		f.kinds = bucketKinds2
	}
	if f.version == formatBare {
		f.replicas, f.reported = bucketNodes1, bucketUp1
	}
	return f
}

// object is the body of a record in one of a kind's buckets.
func (f format) object(p place, key, record []byte) ([]byte, error) {
	if f.version <= formatPlain {
		return top.open(nil, record)
	}
	return p.open(key, record)
}

// node is the body of a node's record.
func (f format) node(key, record []byte) ([]byte, error) {
	if f.version == formatBare {
		return record, nil
	}
	return top.open(key, record)
}

// floor is the revision of a kind's newest tombstone that was dropped.
func (f format) floor(kind string, b *bbolt.Bucket) (uint64, error) {
	record := b.Get(keyFloor)
	if record == nil {
		return 0, nil
	}
	if f.version <= formatPlain {
		return toNumber(record), nil
	}
	body, err := placeIn(kind, nil).open(keyFloor, record)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", keyFloor, err)
	}
	return toNumber(body), nil
}

func readState2(meta *bbolt.Bucket) (s state, err error) {
	s.rev, s.seq = toNumber(meta.Get(keyRev2)), toNumber(meta.Get(keySeq2))
	switch b := meta.Get(keyIdentity2); {
	case b == nil:
	case len(b) != 4 || binary.BigEndian.Uint32(b) == 0:
		return s, errNoIdentity
	default:
		s.identity = binary.BigEndian.Uint32(b)
	}
	s.older = meta.Get(keyOlder2) != nil
	return s, nil
}
