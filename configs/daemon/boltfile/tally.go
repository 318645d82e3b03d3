package boltfile

import (
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"
)

// Tally is how many records a database has, and the sum of their first four bytes, which are a checksum
// of each. Kept up with each write and stored with it, it tells of a record that is missing though all
// that are there are whole: one that is out of reach of a damaged tree, or stands in it as it was before.
type Tally struct{ Count, Sum uint64 }

// Add counts a record.
func (t *Tally) Add(record []byte) {
	t.Count++
	t.Sum += uint64(binary.BigEndian.Uint32(record))
}

// take is the opposite of Add, and does nothing for no record.
func (t *Tally) take(record []byte) {
	if len(record) < 4 { // what is damaged while it is in use is found by the next who reads all
		return
	}
	t.Count--
	t.Sum -= uint64(binary.BigEndian.Uint32(record))
}

// Put puts a record into a bucket.
func (t *Tally) Put(b *bbolt.Bucket, key, record []byte) error {
	t.take(b.Get(key))
	t.Add(record)
	return b.Put(key, record)
}

// Delete removes a record, if it is there.
func (t *Tally) Delete(b *bbolt.Bucket, key []byte) error {
	t.take(b.Get(key))
	return b.Delete(key)
}

// Parent is a bucket, or a transaction, that has buckets.
type Parent interface {
	Bucket(name []byte) *bbolt.Bucket
	CreateBucket(name []byte) (*bbolt.Bucket, error)
	DeleteBucket(name []byte) error
}

// Empty removes all records of a bucket.
func (t *Tally) Empty(in Parent, name []byte) error {
	err := in.Bucket(name).ForEach(func(_, record []byte) error {
		t.take(record)
		return nil
	})
	if err == nil {
		err = in.DeleteBucket(name)
	}
	if err == nil {
		_, err = in.CreateBucket(name)
	}
	return err
}

// Compare says what is wrong when all that were found come to another tally.
func (t Tally) Compare(found Tally) error {
	switch {
	case found.Count != t.Count:
		return fmt.Errorf("%d of its records can be read, and it has %d", found.Count, t.Count)
	case found.Sum != t.Sum:
		return fmt.Errorf("its %d records are not all those that were written last", t.Count)
	}
	return nil
}

// Append writes a tally.
func (t Tally) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, t.Count), t.Sum)
}

// TallySize is how many bytes Append writes.
const TallySize = 16

// ParseTally reads what Append wrote; b has at least TallySize bytes.
func ParseTally(b []byte) Tally {
	return Tally{Count: binary.BigEndian.Uint64(b), Sum: binary.BigEndian.Uint64(b[8:])}
}
