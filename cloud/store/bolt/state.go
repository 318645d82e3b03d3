package bolt

import (
	"encoding/binary"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/configs/daemon/boltfile"
)

// state is what a file says of all of itself, as of its last transaction.
type state struct {
	rev, seq uint64
	identity uint32
	records  boltfile.Tally
}

const stateSize = 8 + 8 + 4 + boltfile.TallySize

// readState reads it, in a file that is well formed.
func readState(tx *bbolt.Tx) (s state, err error) {
	b, err := top.open(keyState, tx.Bucket(bucketMeta).Get(keyState))
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

func (s state) put(tx *bbolt.Tx) error {
	b := make([]byte, 4, 4+stateSize)
	b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, s.rev), s.seq)
	b = binary.BigEndian.AppendUint32(b, s.identity)
	return tx.Bucket(bucketMeta).Put(keyState, top.seal(keyState, s.records.Append(b)))
}

func initialise(tx *bbolt.Tx) error {
	for _, name := range [][]byte{bucketMeta, bucketKinds, bucketReplicas, bucketReported} {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	return errors.Join(tx.Bucket(bucketMeta).Put(keyVersion, number(formatVersion)), state{identity: newIdentity()}.put(tx))
}
