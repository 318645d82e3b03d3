package bolt

import (
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/boltfile"
)

// Counts are the objects of each kind, and the newest revision.
func (s *Store) Counts() (objects map[string]int, rev uint64) {
	snap := s.snap.Load()
	objects = make(map[string]int)
	for kind, t := range snap.tables {
		objects[kind] = t.n
	}
	return objects, snap.rev
}

// Fork makes a file that was restored from a backup fit to go on, before it is opened:
// revisions go on above all that were given since the backup, and who watched is told
// to list again. next gives the revision to go on from.
func Fork(path string, next func(rev uint64) uint64) error {
	db, err := boltfile.Open(boltfile.Options{File: file(path), LockTimeout: lockTime})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		meta, objects := tx.Bucket(bucketMeta), tx.Bucket(bucketObjects)
		if meta == nil || objects == nil {
			return fmt.Errorf("%s is no store of a hub", path)
		}
		rev := number(next(toNumber(meta.Get(keyRev))))
		if err := meta.Put(keyRev, rev); err != nil {
			return err
		}
		return objects.ForEach(func(kind, _ []byte) error {
			b := objects.Bucket(kind)
			if err := b.DeleteBucket(bucketTombs); err != nil {
				return err
			}
			_, err := b.CreateBucket(bucketTombs)
			return errors.Join(err, b.Put(keyFloor, rev))
		})
	})
	return errors.Join(err, db.Close())
}
