// Package store keeps a core's state on disk: both maps of the node's tree with
// their place in the link protocol, and what is in force for each property. One
// Commit is one transaction: after it returns, all of it outlives a power cut;
// if it fails, none of it does. It decides nothing: what to store is the twin's business.
package store

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"time"

	"github.com/fxamacker/cbor/v2"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/edgebus/edgebus/topics/link"
)

// FileName is the database's name in the core's data directory.
const FileName = "core.db"

const format = "edgebus-core/1"

var (
	bucketMeta      = []byte("meta")
	bucketUp        = []byte("up")
	bucketDown      = []byte("down")
	bucketEffective = []byte("effective")

	keyFormat = []byte("format")
	keyUp     = []byte("up")
	keyDown   = []byte("down")
	keyFloor  = []byte("effectiveFloor")
)

// Effective is what is in force for a property: the desired value or an
// override. Its version rises with every change, across restarts.
type Effective struct {
	Value     []byte `cbor:"1,keyasint,omitempty"`
	Ver       uint64 `cbor:"2,keyasint"`
	Override  bool   `cbor:"3,keyasint,omitempty"` // an override is in force, not the desired value
	SourceVer uint64 `cbor:"4,keyasint,omitempty"` // the version of that desired value or override
	TS        int64  `cbor:"5,keyasint,omitempty"`
	Origin    string `cbor:"6,keyasint,omitempty"`
	Until     int64  `cbor:"7,keyasint,omitempty"`
	None      bool   `cbor:"8,keyasint,omitempty"` // nothing is in force; the version is kept
}

// Batch is what one transaction changes.
type Batch struct {
	Up, Down  link.Journal
	Effective map[string]*Effective // by key; nil: forget it
	Floor     uint64                // versions of forgotten effective values are at or below it; 0: unchanged
}

// Empty says that there is nothing that must be committed.
func (b Batch) Empty() bool {
	return !b.Up.Dirty && !b.Down.Dirty && len(b.Effective) == 0 && b.Floor == 0
}

// Snapshot is everything that is stored.
type Snapshot struct {
	Up        *link.Owner
	Down      *link.Replica
	Effective map[string]*Effective
	Floor     uint64
}

// Store is an open database.
type Store struct {
	db   *bbolt.DB
	rand func() uint64
}

// Open opens the database in dir, or makes it. rand gives the nonces of new lineages.
func Open(dir string, rand func() uint64) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	path := filepath.Join(dir, FileName)
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout: 2 * time.Second, FreelistType: bbolt.FreelistMapType, NoFreelistSync: true,
	})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fmt.Errorf("%s is in use by another process: only one core can run in a data directory", path)
	case err != nil:
		return nil, fmt.Errorf("%s can't be opened: %w", path, err)
	}
	s := &Store{db: db, rand: rand}
	if err := s.init(path); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

func (s *Store) init(path string) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketMeta, bucketUp, bucketDown, bucketEffective} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		meta := tx.Bucket(bucketMeta)
		switch have := meta.Get(keyFormat); {
		case have == nil:
			return meta.Put(keyFormat, []byte(format))
		case string(have) != format:
			return fmt.Errorf("%s has the format %q; this program reads %q", path, have, format)
		}
		return nil
	})
}

// Close closes the database.
func (s *Store) Close() error { return s.db.Close() }

// Load reads everything.
func (s *Store) Load() (snap Snapshot, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		if snap.Up, err = s.loadUp(tx); err != nil {
			return fmt.Errorf("%s: the map of edge-owned keys: %w", s.db.Path(), err)
		}
		if snap.Down, err = s.loadDown(tx); err != nil {
			return fmt.Errorf("%s: the map of cloud-owned keys: %w", s.db.Path(), err)
		}
		if snap.Effective, err = loadEffective(tx); err != nil {
			return fmt.Errorf("%s: values in force: %w", s.db.Path(), err)
		}
		if b := tx.Bucket(bucketMeta).Get(keyFloor); b != nil {
			return cbor.Unmarshal(b, &snap.Floor)
		}
		return nil
	})
	return snap, err
}

func (s *Store) loadUp(tx *bbolt.Tx) (*link.Owner, error) {
	var state link.State
	b := tx.Bucket(bucketMeta).Get(keyUp)
	if b == nil {
		return link.NewOwner(link.Up, s.rand), nil
	}
	if err := state.UnmarshalBinary(b); err != nil {
		return nil, err
	}
	var damaged error
	o, err := link.RestoreOwner(link.Up, state, entries(tx.Bucket(bucketUp), &damaged), s.rand)
	return o, errors.Join(damaged, err)
}

func (s *Store) loadDown(tx *bbolt.Tx) (*link.Replica, error) {
	var state link.State
	b := tx.Bucket(bucketMeta).Get(keyDown)
	if b == nil {
		return link.NewReplica(link.Down), nil
	}
	if err := state.UnmarshalBinary(b); err != nil {
		return nil, err
	}
	var damaged error
	r, err := link.RestoreReplica(link.Down, state, entries(tx.Bucket(bucketDown), &damaged))
	return r, errors.Join(damaged, err)
}

// entries walks a bucket; the first damaged entry ends it and is reported in bad.
func entries(b *bbolt.Bucket, bad *error) iter.Seq[link.Entry] {
	return func(yield func(link.Entry) bool) {
		c := b.Cursor()
		for k, v := c.First(); k != nil; k, v = c.Next() {
			e, err := link.ParseEntry(string(k), v)
			if err != nil {
				*bad = fmt.Errorf("key %q: %w", k, err)
				return
			}
			if !yield(e) {
				return
			}
		}
	}
}

func loadEffective(tx *bbolt.Tx) (map[string]*Effective, error) {
	all := make(map[string]*Effective)
	err := tx.Bucket(bucketEffective).ForEach(func(k, v []byte) error {
		e := new(Effective)
		if err := cbor.Unmarshal(v, e); err != nil {
			return fmt.Errorf("key %q: %w", k, err)
		}
		all[string(k)] = e
		return nil
	})
	return all, err
}

// Commit stores a batch durably, whole or not at all.
func (s *Store) Commit(b Batch) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		if err := s.putJournal(tx, bucketUp, keyUp, b.Up); err != nil {
			return err
		}
		if err := s.putJournal(tx, bucketDown, keyDown, b.Down); err != nil {
			return err
		}
		if b.Floor != 0 {
			floor, err := cbor.Marshal(b.Floor)
			if err != nil {
				return err
			}
			if err := tx.Bucket(bucketMeta).Put(keyFloor, floor); err != nil {
				return err
			}
		}
		return putEffective(tx.Bucket(bucketEffective), b.Effective)
	})
}

func (s *Store) putJournal(tx *bbolt.Tx, bucket, metaKey []byte, j link.Journal) error {
	if !j.Dirty {
		return nil
	}
	if j.Reset {
		if err := tx.DeleteBucket(bucket); err != nil {
			return err
		}
		if _, err := tx.CreateBucket(bucket); err != nil {
			return err
		}
	}
	into := tx.Bucket(bucket)
	for _, e := range j.Entries {
		// bbolt keeps the slice until the transaction ends: each entry needs its own.
		if err := into.Put([]byte(e.Key), link.AppendEntry(make([]byte, 0, 48+len(e.Origin)+len(e.Value)), e)); err != nil {
			return fmt.Errorf("key %q: %w", e.Key, err)
		}
	}
	for _, key := range j.Dropped {
		if err := into.Delete([]byte(key)); err != nil {
			return err
		}
	}
	state, err := j.State.MarshalBinary()
	if err != nil {
		return err
	}
	return tx.Bucket(bucketMeta).Put(metaKey, state)
}

func putEffective(b *bbolt.Bucket, changed map[string]*Effective) error {
	for key, e := range changed {
		if e == nil {
			if err := b.Delete([]byte(key)); err != nil {
				return err
			}
			continue
		}
		v, err := cbor.Marshal(e)
		if err != nil {
			return err
		}
		if err := b.Put([]byte(key), v); err != nil {
			return err
		}
	}
	return nil
}

// Check reads everything and compares it with itself: the database's pages, and
// that each map is what its digest and counters say. For tests and tools.
func (s *Store) Check() error {
	err := s.db.View(func(tx *bbolt.Tx) error {
		var errs []error
		for err := range tx.Check() {
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", s.db.Path(), err)
	}
	_, err = s.Load()
	return err
}
