// SPDX-License-Identifier: Apache-2.0

// Package boltfile opens bbolt files as hub and core keep them: made whole or not at
// all, for their owner only, with damage told as an error that names the file.
//
// It knows nothing of what is in a file.
package boltfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options say which file, and how.
type Options struct {
	File
	Make     func(*bbolt.Tx) error // fills a new file; nil: the file must be there
	ReadOnly bool
	// LockTimeout is how long to wait for a process that has the file open.
	LockTimeout time.Duration
	// NoFreelistSync makes commits smaller, and opening slower: it reads the whole file.
	NoFreelistSync bool
}

// File names a file.
type File struct {
	Path   string
	Advice string // what to do when it is damaged
}

// damageError is the error for a file that can't be trusted.
type damageError struct {
	file File
	what error
}

func (d damageError) Error() string {
	return fmt.Sprintf("the store's file %s is damaged: %v; %s", d.file.Path, d.what, d.file.Advice)
}

func (d damageError) Unwrap() error { return d.what }

// Damaged makes an error of what is wrong with a file that can't be trusted.
func (f File) Damaged(what error) error {
	if errors.As(what, new(damageError)) { // it says so
		return what
	}
	return damageError{f, what}
}

// CatchPanics makes damage of what bbolt panics about: it asserts what it reads, and a file
// that is shorter than it says faults.
func (f File) CatchPanics(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = f.Damaged(fmt.Errorf("%v", r))
		}
	}()
	return do()
}

// Open opens a file, or makes it.
func Open(o Options) (*bbolt.DB, error) {
	switch info, err := os.Stat(o.Path); {
	case errors.Is(err, os.ErrNotExist) && !o.ReadOnly && o.Make != nil:
		if err := makeFile(o); err != nil {
			return nil, fmt.Errorf("a new file for the store: %w", err)
		}
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("the store's file: %w", err)
	case err == nil && info.Size() == 0:
		return nil, o.Damaged(errors.New("it is empty"))
	}
	db, err := openWhole(o)
	if err == nil && !o.ReadOnly {
		if err = os.Chmod(o.Path, 0o600); err != nil { // it holds secrets
			_ = db.Close()
		}
	}
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, resource.Errorf(resource.Unavailable, "", "the store's file %s is open in another process", o.Path)
	case errors.Is(err, os.ErrPermission), errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.EROFS):
		return nil, fmt.Errorf("the store's file: %w", err)
	case err != nil:
		return nil, o.Damaged(err)
	}
	return db, nil
}

// makeFile makes a new file under another name, and gives it its own when all of it
// is on disk: a file that is empty, or has no beginning, is damaged.
func makeFile(o Options) error {
	if err := os.MkdirAll(filepath.Dir(o.Path), 0o700); err != nil {
		return fmt.Errorf("the store's directory: %w", err)
	}
	path := o.Path + ".new"
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	db, err := openFile(o, path)
	if err != nil {
		return err
	}
	if err := errors.Join(db.Update(o.Make), db.Close()); err != nil {
		return err
	}
	if err := os.Rename(path, o.Path); err != nil {
		return err
	}
	return datadir.SyncDir(filepath.Dir(path))
}

// openWhole opens a file when all of its pages have been looked at.
func openWhole(o Options) (*bbolt.DB, error) {
	look := o
	look.ReadOnly = true
	db, err := openFile(look, o.Path)
	if err != nil || o.ReadOnly {
		return db, err
	}
	if err := db.Close(); err != nil {
		return nil, err
	}
	return openFile(o, o.Path)
}

// openFile opens a file, and looks at its pages if that is all that is done with it.
func openFile(o Options, path string) (db *bbolt.DB, err error) {
	var file *os.File
	err = o.CatchPanics(func() (err error) {
		db, err = bbolt.Open(path, 0o600, &bbolt.Options{
			Timeout:        o.LockTimeout,
			FreelistType:   bbolt.FreelistMapType,
			NoFreelistSync: o.NoFreelistSync,
			ReadOnly:       o.ReadOnly,
			// Room to grow in the address space, which costs nothing: bbolt lets go of the old
			// mapping before it asks for a larger one, and a disk that fails may not give it; and it
			// makes writers wait for it while somebody reads, as a backup does for long.
			InitialMmapSize: int(min(int64(16<<30), math.MaxInt>>3)),
			OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
				file, err = os.OpenFile(name, flag, mode)
				return file, err
			},
		})
		return err
	})
	if err == nil && o.ReadOnly {
		if err = checkPages(file, db.Info().PageSize); err != nil {
			_ = db.Close()
			return nil, err
		}
	}
	if err != nil {
		if file != nil {
			_ = file.Close()
		}
		return nil, err
	}
	db.AllocSize = 1 << 20 // what the file grows by, now that the mapping doesn't say it
	return db, nil
}

// Snapshot is a database as it was at one moment. While it is open the file grows by what
// is written, for no page of it is used again.
type Snapshot struct {
	file File
	tx   *bbolt.Tx
}

// Snapshot begins one. It must be closed before the database is.
func (f File) Snapshot(db *bbolt.DB) (s *Snapshot, err error) {
	err = f.CatchPanics(func() error {
		tx, err := db.Begin(false)
		s = &Snapshot{f, tx}
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Path is the database's file.
func (s *Snapshot) Path() string { return s.file.Path }

// Size is how many bytes Copy writes.
func (s *Snapshot) Size() int64 { return s.tx.Size() }

// Copy writes the file as it was.
func (s *Snapshot) Copy(w io.Writer) error {
	if _, err := s.tx.WriteTo(w); err != nil {
		return fmt.Errorf("%s: %w", s.file.Path, err)
	}
	return nil
}

// Close ends it.
func (s *Snapshot) Close() error { return s.tx.Rollback() }

// Location is the checksum of the names of the buckets that a record is in.
type Location uint32

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrChecksum is the error of a record that isn't what was written there.
var ErrChecksum = errors.New("its checksum is wrong")

// LocationOf is the location of a bucket whose path has that text.
func LocationOf(path []byte) Location { return Location(crc32.Checksum(path, castagnoli)) }

func (l Location) checksum(key, body []byte) uint32 {
	return crc32.Update(crc32.Update(uint32(l), castagnoli, key), castagnoli, body)
}

// Seal writes the checksum of location, key and body into the four bytes before the body, which makes it a record.
func (l Location) Seal(key, room []byte) (record []byte) {
	binary.LittleEndian.PutUint32(room, l.checksum(key, room[4:]))
	return room
}

// Record is a copy of a body, sealed.
func (l Location) Record(key, body []byte) []byte {
	return l.Seal(key, append(make([]byte, 4, 4+len(body)), body...))
}

// Open checks a record's checksum and returns its body, which shares its memory.
func (l Location) Open(key, record []byte) (body []byte, err error) {
	if len(record) < 4 || binary.LittleEndian.Uint32(record) != l.checksum(key, record[4:]) {
		return nil, ErrChecksum
	}
	return record[4:], nil
}

// Tally is how many records a database has, and the sum of their first four bytes, which are a checksum
// of each. Kept up with each write and stored with it, it tells of a record that is missing though all
// that are there are whole: one that is out of reach of a damaged tree, or stands in it as it was before.
type Tally struct{ Count, Sum uint64 }

// Add counts a record.
func (t *Tally) Add(record []byte) {
	t.Count++
	t.Sum += uint64(binary.BigEndian.Uint32(record))
}

// remove is the opposite of Add, and does nothing for no record.
func (t *Tally) remove(record []byte) {
	if len(record) < 4 { // what is damaged while it is in use is found by the next who reads all
		return
	}
	t.Count--
	t.Sum -= uint64(binary.BigEndian.Uint32(record))
}

// Put puts a record into a bucket.
func (t *Tally) Put(b *bbolt.Bucket, key, record []byte) error {
	t.remove(b.Get(key))
	t.Add(record)
	return b.Put(key, record)
}

// Delete removes a record, if it is there.
func (t *Tally) Delete(b *bbolt.Bucket, key []byte) error {
	t.remove(b.Get(key))
	return b.Delete(key)
}

// BucketParent is a bucket, or a transaction, that has buckets.
type BucketParent interface {
	Bucket(name []byte) *bbolt.Bucket
	CreateBucket(name []byte) (*bbolt.Bucket, error)
	DeleteBucket(name []byte) error
}

// Empty removes all records of a bucket.
func (t *Tally) Empty(in BucketParent, name []byte) error {
	err := in.Bucket(name).ForEach(func(_, record []byte) error {
		t.remove(record)
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
