package bolt

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"
)

// Identity tells this store from all others. It is drawn when the file is made, and copies and
// backups have it. older says that the file had been in use before it had one. Of a file that is
// only looked at it may be missing: 0.
func (s *Store) Identity() (id uint32, older bool) { return s.identity, s.older }

func readIdentity(db *bbolt.DB) (id uint32, older bool, err error) {
	err = file(db.Path()).Safely(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			meta := tx.Bucket(bucketMeta)
			switch b := meta.Get(keyIdentity); {
			case b == nil:
			case len(b) != 4 || binary.BigEndian.Uint32(b) == 0:
				return errors.New("its identity is none")
			default:
				id = binary.BigEndian.Uint32(b)
			}
			older = meta.Get(keyOlder) != nil
			return nil
		})
	})
	return id, older, err
}

// putIdentity draws one.
func putIdentity(tx *bbolt.Tx) error {
	id := make([]byte, 4)
	for binary.BigEndian.Uint32(id) == 0 {
		_, _ = rand.Read(id) // crypto/rand never fails
	}
	return tx.Bucket(bucketMeta).Put(keyIdentity, id)
}

// identify gives a file of before there were identities its own. One that isn't well formed
// is left to be told of by load.
func identify(db *bbolt.DB, path string) error {
	missing := false
	err := file(path).Safely(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			missing = wellFormed(tx) == nil && tx.Bucket(bucketMeta).Get(keyIdentity) == nil
			return nil
		})
	})
	if err != nil || !missing {
		return err
	}
	err = file(path).Safely(func() error {
		return db.Update(func(tx *bbolt.Tx) error {
			return errors.Join(putIdentity(tx), tx.Bucket(bucketMeta).Put(keyOlder, []byte{1}))
		})
	})
	if err != nil {
		return fmt.Errorf("the store's file %s can't be given an identity: %w", path, err)
	}
	return nil
}
