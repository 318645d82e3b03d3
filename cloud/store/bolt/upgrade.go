package bolt

import (
	"fmt"

	"go.etcd.io/bbolt"
)

const upgradeStep = 4 << 20 // bytes in one transaction

// upgrade gives what nodes reported its checksums, in a file of version 1, and a file that
// has none an identity. Until its last transaction the file is one of version 1, so that it
// may be interrupted anywhere.
func upgrade(db *bbolt.DB, opts Options, step int) error {
	if err := upgradeFormat(db, opts, step); err != nil {
		return err
	}
	return identify(db, opts.Path)
}

func upgradeFormat(db *bbolt.DB, opts Options, step int) error {
	old := false
	err := file(opts.Path).Safely(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			old = version(tx) == formatFirst && wellFormed(tx) == nil // what isn't is told of by load
			return nil
		})
	})
	if err != nil || !old {
		return err
	}
	if err := file(opts.Path).Safely(func() error { return upgradeRecords(db, step) }); err != nil {
		return fmt.Errorf("the store's file %s can't be brought up to date, and is as it was: %w", opts.Path, err)
	}
	opts.Log.Info().Str("file", opts.Path).Msg("the store's file was of an older version and is brought up to date")
	return nil
}

func upgradeRecords(db *bbolt.DB, step int) error {
	if err := db.Update(remakeBuckets); err != nil {
		return err
	}
	for after, more := []byte(nil), true; more; {
		err := db.Update(func(tx *bbolt.Tx) (err error) {
			after, more, err = copySealed(tx, bucketUp1, bucketReported, after, step)
			return err
		})
		if err != nil {
			return err
		}
	}
	return db.Update(func(tx *bbolt.Tx) error {
		for after, more := []byte(nil), true; more; {
			var err error
			if after, more, err = copySealed(tx, bucketNodes1, bucketReplicas, after, step); err != nil {
				return err
			}
		}
		for _, name := range [][]byte{bucketNodes1, bucketUp1} {
			if err := tx.DeleteBucket(name); err != nil {
				return err
			}
		}
		return tx.Bucket(bucketMeta).Put(keyVersion, number(formatVersion))
	})
}

// remakeBuckets makes the new buckets, without what an upgrade that was interrupted left in them.
func remakeBuckets(tx *bbolt.Tx) error {
	for _, name := range [][]byte{bucketReplicas, bucketReported} {
		if tx.Bucket(name) != nil {
			if err := tx.DeleteBucket(name); err != nil {
				return err
			}
		}
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	return nil
}

// copySealed copies the next records after a key, which is nil at first, until they have so
// many bytes, and says whether there are more.
func copySealed(tx *bbolt.Tx, from, to, after []byte, bytes int) (last []byte, more bool, err error) {
	into := tx.Bucket(to)
	into.FillPercent = 1 // they come in order
	c := tx.Bucket(from).Cursor()
	k, v := c.First()
	if after != nil {
		k, v = c.Seek(append(after, 0)) // the next key there could be
	}
	for ; k != nil && bytes > 0; k, v = c.Next() {
		if err := into.Put(k, sealUnder(k, v)); err != nil {
			return nil, false, err
		}
		last = append(last[:0], k...)
		bytes -= len(k) + len(v)
	}
	return last, k != nil, nil
}
