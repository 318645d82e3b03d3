package bolt

import (
	"errors"

	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/configs/daemon/boltfile"
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
	err = file(path).Safely(func() error { return db.Update(func(tx *bbolt.Tx) error { return fork(tx, next) }) })
	return errors.Join(err, db.Close())
}

func fork(tx *bbolt.Tx, next func(rev uint64) uint64) error {
	if err := wellFormed(tx); err != nil {
		return file(tx.DB().Path()).Damaged(err)
	}
	now, err := readState(tx)
	if err != nil {
		return file(tx.DB().Path()).Damaged(err)
	}
	now.rev = next(now.rev)
	kinds := tx.Bucket(bucketKinds)
	err = kinds.ForEach(func(name, _ []byte) error {
		b := kindBucket{kinds.Bucket(name), string(name)}
		return b.putLastDelete(&now.records, now.rev)
	})
	return errors.Join(err, now.put(tx))
}
