package bolt

import (
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/boltfile"
)

const upgradeStep = 4 << 20 // bytes in one transaction

// upgrade makes a file of before one of this version. Until its last transaction the file is
// what it was, with a copy growing in it, so that it may be interrupted anywhere.
func upgrade(db *bbolt.DB, opts Options) error {
	u := upgrader{update: db.Update, step: upgradeStep}
	err := file(opts.Path).Safely(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			u.from = formatOf(tx)
			if wellFormed(tx) != nil { // what isn't is told of by load
				u.from.version = formatVersion
			}
			return nil
		})
	})
	if err != nil || u.from.version == formatVersion {
		return err
	}
	switch err := file(opts.Path).Safely(u.run); {
	case errors.Is(err, errRecord):
		return file(opts.Path).Damaged(err)
	case err != nil:
		return fmt.Errorf("the store's file %s can't be brought up to date, and is as it was: %w", opts.Path, err)
	}
	opts.Log.Info().Str("file", opts.Path).Msg("the store's file was of an older version and is brought up to date")
	return nil
}

// upgrader copies all records whose form has changed into new buckets.
type upgrader struct {
	update func(func(*bbolt.Tx) error) error // one transaction
	step   int                               // bytes in it
	from   format

	copies []copying
	tally  boltfile.Tally // of what was copied
}

// copying is the copying of one bucket.
type copying struct {
	from, to [][]byte // their names, from outside to inside
	in       place
	open     func(key, record []byte) ([]byte, error)
}

func (u *upgrader) run() error {
	if err := u.update(u.begin); err != nil {
		return err
	}
	for _, c := range u.copies {
		for after, more := []byte(nil), true; more; {
			err := u.update(func(tx *bbolt.Tx) (err error) {
				after, more, err = u.copy(tx, c, after)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return u.update(u.end)
}

// fresh are the buckets that this version has and the file's doesn't, and stale the other way round.
func (u *upgrader) fresh() [][]byte {
	if u.from.version == formatBare {
		return [][]byte{bucketKinds, bucketReplicas, bucketReported}
	}
	return [][]byte{bucketKinds}
}

func (u *upgrader) stale() [][]byte {
	if u.from.version == formatBare {
		return [][]byte{bucketKinds2, bucketNodes1, bucketUp1}
	}
	return [][]byte{bucketKinds2}
}

// begin makes the new buckets, without what an upgrade that was interrupted left in them, and
// works out what is to be copied.
func (u *upgrader) begin(tx *bbolt.Tx) error {
	for _, name := range u.fresh() {
		if tx.Bucket(name) != nil {
			if err := tx.DeleteBucket(name); err != nil {
				return err
			}
		}
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	if u.from.version == formatBare {
		u.copies = append(u.copies,
			copying{[][]byte{bucketNodes1}, [][]byte{bucketReplicas}, top, u.from.node},
			copying{[][]byte{bucketUp1}, [][]byte{bucketReported}, top, u.from.node})
	}
	old := tx.Bucket(bucketKinds2)
	return old.ForEach(func(name, _ []byte) error { return u.beginKind(tx, string(name), old.Bucket(name)) })
}

func (u *upgrader) beginKind(tx *bbolt.Tx, name string, old *bbolt.Bucket) error {
	kind, err := makeKind(tx, name)
	if err != nil {
		return err
	}
	for _, bucket := range [][]byte{bucketData, bucketStatus, bucketTombs} {
		if old == nil || old.Bucket(bucket) == nil {
			return fmt.Errorf("%s has no %s: %w", name, bucket, errRecord)
		}
		in := placeIn(name, bucket)
		u.copies = append(u.copies, copying{
			from: [][]byte{bucketKinds2, []byte(name), bucket},
			to:   [][]byte{bucketKinds, []byte(name), bucket},
			in:   in,
			open: func(key, record []byte) ([]byte, error) { return u.from.object(in, key, record) },
		})
	}
	floor, err := u.from.floor(name, old)
	if err != nil || floor == 0 {
		return err
	}
	return kind.putFloor(&u.tally, floor)
}

// copy copies the next records after a key, which is nil at first, until they have so many
// bytes, and says whether there are more.
func (u *upgrader) copy(tx *bbolt.Tx, c copying, after []byte) (last []byte, more bool, err error) {
	into := records{inside(tx, c.to), c.in}
	into.FillPercent = 1 // they come in order
	from := inside(tx, c.from).Cursor()
	k, v := from.First()
	if after != nil {
		k, v = from.Seek(append(after, 0)) // the next key there could be
	}
	for left := u.step; k != nil && left > 0; k, v = from.Next() {
		body, err := c.open(k, v)
		if err == nil {
			err = into.put(&u.tally, k, room(body))
		}
		if err != nil {
			return nil, false, fmt.Errorf("%q: %w", k, err)
		}
		last = append(last[:0], k...)
		left -= len(k) + len(v)
	}
	return last, k != nil, nil
}

func inside(tx *bbolt.Tx, names [][]byte) *bbolt.Bucket {
	b := tx.Bucket(names[0])
	for _, name := range names[1:] {
		b = b.Bucket(name)
	}
	return b
}

// end makes the copy the file's.
func (u *upgrader) end(tx *bbolt.Tx) error {
	now, err := readState(tx)
	if err != nil {
		return err
	}
	if now.records = u.tally; u.from.version == formatPlain { // whose nodes' records are as they are now
		in := replicas{tx.Bucket(bucketReplicas), tx.Bucket(bucketReported), format{version: formatVersion}}
		if err := in.check(&now.records); err != nil {
			return err
		}
	}
	if now.identity == 0 {
		now.identity, now.older = newIdentity(), true
	}
	for _, name := range u.stale() {
		if err := tx.DeleteBucket(name); err != nil {
			return err
		}
	}
	meta := tx.Bucket(bucketMeta)
	for _, key := range [][]byte{keyRev2, keySeq2, keyIdentity2, keyOlder2} {
		if err := meta.Delete(key); err != nil {
			return err
		}
	}
	return errors.Join(now.put(tx), meta.Put(keyVersion, number(formatVersion)))
}
