// SPDX-License-Identifier: Apache-2.0

package boltfile

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

// Whatever is done to a database, nothing is found wrong with its pages, here and by bbolt.
func TestWholeFilesPass(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	for _, unsynced := range []bool{false, true} {
		random := rand.New(rand.NewPCG(seed, 0))
		o := Options{File: File{Path: filepath.Join(t.TempDir(), "x.db")}, NoFreelistSync: unsynced, LockTimeout: time.Minute}
		o.Make = func(tx *bbolt.Tx) error {
			_, err := tx.CreateBucket([]byte("outer"))
			return err
		}
		db, err := Open(o)
		require.NoError(t, err)
		db.NoSync = true
		for range 150 {
			require.NoError(t, db.Update(func(tx *bbolt.Tx) error { return changeSome(tx, random) }))
			require.NoError(t, o.CheckPages(db))
		}
		require.NoError(t, db.Close())
		db, err = Open(o)
		require.NoError(t, err)
		require.NoError(t, db.View(func(tx *bbolt.Tx) (all error) {
			for err := range tx.Check() {
				all = errors.Join(all, err)
			}
			return all
		}))
		require.NoError(t, db.Close())
	}
}

// changeSome puts and deletes some records, in buckets that come and go.
func changeSome(tx *bbolt.Tx, random *rand.Rand) error {
	outer := tx.Bucket([]byte("outer"))
	name := fmt.Append(nil, "inner ", random.IntN(4))
	if random.IntN(20) == 0 && outer.Bucket(name) != nil {
		return outer.DeleteBucket(name)
	}
	b, err := outer.CreateBucketIfNotExists(name)
	if err != nil {
		return err
	}
	b.FillPercent = 0.1 + random.Float64()*0.9
	from, n := random.IntN(1000), random.IntN(300)
	for i := from; i < from+n && err == nil; i++ {
		key := append(fmt.Append(nil, i*7919%1000), bytes.Repeat([]byte("k"), i%200)...)
		switch {
		case random.IntN(3) > 0:
			err = b.Delete(key)
		case random.IntN(50) == 0:
			err = b.Put(key, make([]byte, random.IntN(20_000)))
		default:
			err = b.Put(key, make([]byte, random.IntN(200)))
		}
	}
	return err
}
