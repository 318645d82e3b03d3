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

// Check compares the file with the index, and each with itself. It runs between
// commits, when the two must be equal.
func (s *Store) Check() error {
	if s.opts.ReadOnly {
		return s.view(func(tx *bbolt.Tx) error { return s.checkTx(tx) })
	}
	var found error
	err := s.submit(context.Background(), 0, func(b *batch) error {
		if !b.empty() {
			return errOtherWrites
		}
		found = s.view(func(tx *bbolt.Tx) error { return s.checkTx(tx) })
		return nil
	})
	if errors.Is(err, errOtherWrites) {
		return s.Check()
	}
	return errors.Join(err, found)
}

var errOtherWrites = errors.New("other writes in the batch")

func (s *Store) checkTx(tx *bbolt.Tx) error {
	var errs []error
	if err := storeFile(s.opts.Path).CheckPages(s.db); err != nil {
		errs = append(errs, err)
	}
	onDisk, _, err := readAll(tx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	mem := s.snap.Load()
	if mem.rev > onDisk.rev || mem.rev < onDisk.rev && !s.derives.Load() || mem.seq != onDisk.seq {
		errs = append(errs, fmt.Errorf("the index is at revision %d, commit %d; the file at %d, %d", mem.rev, mem.seq, onDisk.rev, onDisk.seq))
	}
	kinds := maps.Clone(mem.tables)
	maps.Copy(kinds, onDisk.tables)
	for kind := range kinds {
		if err := compareTables(mem.table(kind), onDisk.table(kind)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", kind, err))
		}
		errs = append(errs, checkStatus(tx, kind))
	}
	return errors.Join(errs...)
}

// compareTables compares the index of one kind with one that was made from the file.
func compareTables(mem, disk *table) error {
	if mem.n != disk.n || mem.lastDelete != disk.lastDelete {
		return fmt.Errorf("the index has %d objects, the newest deletion at revision %d; the file %d, %d", mem.n, mem.lastDelete, disk.n, disk.lastDelete)
	}
	var errs []error
	var last *objectVersion
	seen := 0
	disk.from("", "", func(d *objectVersion) bool {
		seen++
		m := mem.get(d.namespace, d.name)
		if m == nil || m.created != d.created || !bytes.Equal(m.data, d.data) ||
			!mem.derives && (m.rev != d.rev || !bytes.Equal(m.status, d.status)) || m.rev < d.rev {
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
	alive := func(t *table) []*objectVersion {
		return slices.DeleteFunc(t.since(0), func(e *objectVersion) bool { return e.deleted })
	}
	a, b := alive(mem), alive(disk)
	if len(a) != len(b) {
		return fmt.Errorf("the index knows %d changes, the file %d", len(a), len(b))
	}
	for i := range a {
		if !mem.derives && (a[i].rev != b[i].rev || a[i].compare(b[i].namespace, b[i].name) != 0) {
			return fmt.Errorf("change %d differs: %+v, %+v", i, *a[i], *b[i])
		}
		if i > 0 && a[i].rev <= a[i-1].rev {
			return fmt.Errorf("revision %d stands twice or out of order", a[i].rev)
		}
	}
	return nil
}

// checkStatus returns an error for a status record without an object.
func checkStatus(tx *bbolt.Tx, kind string) error {
	b := tx.Bucket(bucketKinds).Bucket([]byte(kind))
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
