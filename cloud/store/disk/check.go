// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Check compares the records with the index, and each with itself. It runs between
// commits, when the two must be equal.
func (s *Store) Check() (found error) {
	err := s.between(context.Background(), func() { found = s.compare() })
	return errors.Join(err, found)
}

func (s *Store) compare() error {
	onDisk, _, err := loadRecords(s.journal)
	if err != nil {
		return err
	}
	var errs []error
	mem := s.snap.Load()
	if rev := onDisk.snap.rev; mem.rev > rev || mem.rev < rev && !s.derives.Load() {
		errs = append(errs, fmt.Errorf("the index is at revision %d, the records at %d", mem.rev, rev))
	}
	kinds := maps.Clone(mem.tables)
	maps.Copy(kinds, onDisk.snap.tables)
	for kind := range kinds {
		if err := compareTables(mem.table(kind), onDisk.snap.table(kind)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", kind, err))
		}
	}
	if !maps.EqualFunc(s.nodes, onDisk.nodes, func(a, b *nodeRecords) bool {
		return a.record == b.record && bytes.Equal(a.meta, b.meta) && slices.Equal(a.items, b.items)
	}) {
		errs = append(errs, errors.New("what is known of the nodes' records differs from what is there"))
	}
	if !maps.Equal(s.lastDeletes, onDisk.lastDeletes) {
		errs = append(errs, fmt.Errorf("the newest deletions are in the records %v, and should be in %v", onDisk.lastDeletes, s.lastDeletes))
	}
	return errors.Join(append(errs, s.checkIDs(onDisk.ids))...)
}

// checkIDs compares the numbers that are free.
func (s *Store) checkIDs(onDisk idSource) error {
	free := slices.Sorted(slices.Values(s.ids.free))
	for id := onDisk.last + 1; id <= s.ids.last; id++ {
		onDisk.free = append(onDisk.free, id)
	}
	slices.Sort(onDisk.free)
	if !slices.Equal(free, onDisk.free) {
		return fmt.Errorf("%d numbers of records are free, and should be %d", len(free), len(onDisk.free))
	}
	return nil
}

// compareTables compares the index of one kind with one that was made from the records.
func compareTables(mem, disk *table) error {
	if mem.n != disk.n || mem.lastDelete != disk.lastDelete {
		return fmt.Errorf("the index has %d objects, the newest deletion at revision %d; the records %d, %d", mem.n, mem.lastDelete, disk.n, disk.lastDelete)
	}
	var errs []error
	var last *objectVersion
	seen := 0
	disk.from("", "", func(d *objectVersion) bool {
		seen++
		m := mem.get(d.namespace, d.name)
		if m == nil || m.created != d.created || !m.unstored && !bytes.Equal(m.data, d.data) || m.record != d.record || m.statusRecord != d.statusRecord ||
			!mem.derives && (m.rev != d.rev || !m.status.equal(d.status)) || m.rev < d.rev {
			errs = append(errs, fmt.Errorf("%s/%s differs between index and records", d.namespace, d.name))
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
		return slices.DeleteFunc(t.since(0, len(t.log)), func(e *objectVersion) bool { return e.deleted })
	}
	a, b := alive(mem), alive(disk)
	if len(a) != len(b) {
		return fmt.Errorf("the index knows %d changes, the records %d", len(a), len(b))
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
