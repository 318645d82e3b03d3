package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/bbolt"
)

// load reads the whole file into a snapshot.
func load(db *bbolt.DB) (snap *snapshot, err error) {
	err = file(db.Path()).Safely(func() error {
		return db.View(func(tx *bbolt.Tx) (err error) {
			snap, err = readAll(tx)
			return err
		})
	})
	return snap, err
}

func initialise(tx *bbolt.Tx) error {
	for _, name := range [][]byte{bucketMeta, bucketObjects, bucketReplicas, bucketReported} {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	return errors.Join(tx.Bucket(bucketMeta).Put(keyVersion, number(formatVersion)), putIdentity(tx))
}

func readAll(tx *bbolt.Tx) (*snapshot, error) {
	if err := wellFormed(tx); err != nil {
		return nil, err
	}
	meta := tx.Bucket(bucketMeta)
	snap := &snapshot{
		rev: toNumber(meta.Get(keyRev)), seq: toNumber(meta.Get(keySeq)),
		tables: make(map[string]*table),
	}
	objects := tx.Bucket(bucketObjects)
	err := objects.ForEach(func(kind, _ []byte) error {
		t, err := readTable(objects.Bucket(kind), snap.rev)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		snap.tables[string(kind)] = t
		return nil
	})
	return snap, err
}

// wellFormed says that the file is of a format that is read here, and has all of its buckets.
func wellFormed(tx *bbolt.Tx) error {
	needed := [][]byte{bucketMeta, bucketObjects, bucketReplicas, bucketReported}
	switch v := version(tx); {
	case v == formatFirst:
		needed = [][]byte{bucketMeta, bucketObjects, bucketNodes1, bucketUp1}
	case v != formatVersion:
		return fmt.Errorf("its format is %d, this program reads up to %d", v, formatVersion)
	}
	for _, name := range needed {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("no %s in it", name)
		}
	}
	return nil
}

func version(tx *bbolt.Tx) uint64 {
	if meta := tx.Bucket(bucketMeta); meta != nil {
		return toNumber(meta.Get(keyVersion))
	}
	return formatVersion
}

func readTable(kind *bbolt.Bucket, newest uint64) (*table, error) {
	if kind == nil {
		return nil, errors.New("not a bucket")
	}
	data, status, tombs := kind.Bucket(bucketData), kind.Bucket(bucketStatus), kind.Bucket(bucketTombs)
	if data == nil || status == nil || tombs == nil {
		return nil, errors.New("a bucket is missing")
	}
	t := &table{floor: toNumber(kind.Get(keyFloor))}
	err := data.ForEach(func(k, v []byte) error {
		e, err := readEntry(k, v, status.Get(k))
		if err != nil {
			return err
		}
		if e.rev > newest {
			return fmt.Errorf("%q has a revision beyond the newest", k)
		}
		t.set(e)
		t.log = append(t.log, e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := t.readTombs(tombs); err != nil {
		return nil, err
	}
	t.log = append(t.log, t.tombs...)
	slices.SortFunc(t.log, func(a, b *entry) int { return cmpRev(a.rev, b.rev) })
	t.log = slices.Clip(t.log)
	return t, nil
}

func cmpRev(a, b uint64) int {
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}

func readEntry(key, data, status []byte) (*entry, error) {
	e := new(entry)
	var err error
	var value []byte
	if e.namespace, e.name, err = splitKey(key); err != nil {
		return nil, err
	}
	if e.created, e.rev, value, err = decodeRecord(data); err != nil {
		return nil, fmt.Errorf("%q: %w", key, err)
	}
	e.data = bytes.Clone(value)
	if status == nil {
		return e, nil
	}
	_, rev, value, err := decodeRecord(status)
	if err != nil {
		return nil, fmt.Errorf("status of %q: %w", key, err)
	}
	e.rev, e.status = max(e.rev, rev), bytes.Clone(value)
	return e, nil
}

func (t *table) readTombs(b *bbolt.Bucket) error {
	return b.ForEach(func(k, v []byte) error {
		grave, err := decodeTombstone(v)
		if err != nil {
			return fmt.Errorf("tombstone %x: %w", k, err)
		}
		t.tombs = append(t.tombs, &entry{
			namespace: grave.namespace, name: grave.name,
			rev: toNumber(k), when: grave.when, deleted: true,
		})
		return nil
	})
}

// Check compares the file with the index, and each with itself. It waits its
// turn among the writes, so that it sees the two in step.
func (s *Store) Check() error {
	if s.opts.ReadOnly {
		return s.view(func(tx *bbolt.Tx) error { return s.check1(tx) })
	}
	var found error
	err := s.do(context.Background(), 0, func(b *batch) error {
		if !b.empty() {
			return errBusy
		}
		found = s.view(func(tx *bbolt.Tx) error { return s.check1(tx) })
		return nil
	})
	if errors.Is(err, errBusy) {
		return s.Check()
	}
	return errors.Join(err, found)
}

var errBusy = errors.New("other writes in the batch")

func (s *Store) check1(tx *bbolt.Tx) error {
	var errs []error
	for err := range tx.Check() {
		errs = append(errs, err)
	}
	onDisk, err := readAll(tx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	mem := s.snap.Load()
	if mem.rev != onDisk.rev || mem.seq != onDisk.seq {
		errs = append(errs, fmt.Errorf("the index is at revision %d, commit %d; the file at %d, %d", mem.rev, mem.seq, onDisk.rev, onDisk.seq))
	}
	kinds := maps.Clone(mem.tables)
	maps.Copy(kinds, onDisk.tables)
	for kind := range kinds {
		if err := compare(mem.table(kind), onDisk.table(kind)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", kind, err))
		}
		errs = append(errs, checkStatus(tx, kind))
	}
	return errors.Join(append(errs, checkNodes(tx))...)
}

// compare checks the index of one kind against the one that the file makes.
func compare(mem, disk *table) error {
	if mem.n != disk.n || mem.floor != disk.floor || len(mem.tombs) != len(disk.tombs) {
		return fmt.Errorf("the index has %d objects, %d tombstones, floor %d; the file %d, %d, %d",
			mem.n, len(mem.tombs), mem.floor, disk.n, len(disk.tombs), disk.floor)
	}
	var errs []error
	var last *entry
	seen := 0
	disk.from("", "", func(d *entry) bool {
		seen++
		m := mem.get(d.namespace, d.name)
		if m == nil || m.rev != d.rev || m.created != d.created ||
			!bytes.Equal(m.data, d.data) || !bytes.Equal(m.status, d.status) {
			errs = append(errs, fmt.Errorf("%s/%s differs between index and file", d.namespace, d.name))
		}
		if last != nil && last.compare(d.namespace, d.name) >= 0 {
			errs = append(errs, fmt.Errorf("%s/%s is out of order", d.namespace, d.name))
		}
		last = d
		return true
	})
	if seen != disk.n {
		errs = append(errs, fmt.Errorf("%d objects in an index that says %d", seen, disk.n))
	}
	return errors.Join(append(errs, compareLogs(mem, disk))...)
}

func compareLogs(mem, disk *table) error {
	a, b := mem.since(mem.floor), disk.since(disk.floor)
	if len(a) != len(b) {
		return fmt.Errorf("the index knows %d changes, the file %d", len(a), len(b))
	}
	for i := range a {
		if a[i].rev != b[i].rev || a[i].deleted != b[i].deleted || a[i].compare(b[i].namespace, b[i].name) != 0 {
			return fmt.Errorf("change %d differs: %+v, %+v", i, *a[i], *b[i])
		}
		if i > 0 && a[i].rev <= a[i-1].rev {
			return fmt.Errorf("revision %d stands twice or out of order", a[i].rev)
		}
	}
	return nil
}

// checkStatus finds status records without an object.
func checkStatus(tx *bbolt.Tx, kind string) error {
	b := tx.Bucket(bucketObjects).Bucket([]byte(kind))
	if b == nil {
		return nil
	}
	data := b.Bucket(bucketData)
	return b.Bucket(bucketStatus).ForEach(func(k, _ []byte) error {
		if data.Get(k) == nil {
			return fmt.Errorf("%s: a status without an object: %q", kind, k)
		}
		return nil
	})
}
