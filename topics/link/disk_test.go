// SPDX-License-Identifier: Apache-2.0

package link

import "maps"

// testDisk is what a host has committed.
type testDisk struct {
	state   MapState
	entries map[string]Entry
	last    map[string]readerEffect // replica's host: what each key drove last
}

type readerEffect struct {
	ver   uint64
	value string
	live  bool
}

func newDisk() *testDisk {
	return &testDisk{entries: map[string]Entry{}, last: map[string]readerEffect{}}
}

func (d *testDisk) clone() *testDisk {
	return &testDisk{d.state, maps.Clone(d.entries), maps.Clone(d.last)}
}

func (d *testDisk) commit(j JournalChanges) {
	if !j.Dirty {
		return
	}
	if j.Reset {
		clear(d.entries)
	}
	for _, e := range j.Entries {
		d.entries[e.Key] = e
	}
	for _, k := range j.Dropped {
		delete(d.entries, k)
	}
	d.state = j.State
}

func (d *testDisk) content() map[string]string {
	return mapContent(func(_ string, fn func(Entry) bool) {
		for _, e := range d.entries {
			if !e.Deleted {
				fn(e)
			}
		}
	})
}
