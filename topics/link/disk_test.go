package link

import "maps"

// disk is what a host has committed.
type disk struct {
	state   State
	entries map[string]Entry
	last    map[string]effect // replica's host: what each key drove last
}

type effect struct {
	ver   uint64
	value string
	live  bool
}

func newDisk() *disk {
	return &disk{entries: map[string]Entry{}, last: map[string]effect{}}
}

func (d *disk) clone() *disk {
	return &disk{d.state, maps.Clone(d.entries), maps.Clone(d.last)}
}

func (d *disk) commit(j Journal) {
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

func (d *disk) content() map[string]string {
	return content(func(_ string, fn func(Entry) bool) {
		for _, e := range d.entries {
			if !e.Deleted {
				fn(e)
			}
		}
	})
}
