// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"github.com/fxamacker/cbor/v2"

	"github.com/edgebus/edgebus/topics/link"
)

const (
	heldBytes = 1 << 20 // of changes that wait, with their keys, about
	heldNames = 1 << 15 // keys that are remembered as written
	// heldRoom is how many numbers of the map are given, at most, from one flush to the next.
	heldRoom = 1 << 16
	// lostVersions is more than the versions of any key that were given meanwhile.
	lostVersions = 1 << 20
)

// heldChanges are changes that are acknowledged and not written yet (Batch.MayWait): the last one of each key. They are written with the
// next change of the same Device that may not wait, with a flush, and when the store closes, so that the disk has of each
// Device what it was at one moment.
//
// The first change of a key after a flush is written at once, so one that changes rarely never waits. Before the first change waits, the store
// notes up to which number of the map others may follow: a core that was killed goes on above (see Snapshot.Lost).
type heldChanges struct {
	written map[string]struct{} // keys whose last change was written since the last flush
	devices map[string]*changes // what waits, by the Device
	bytes   int
	count   int    // changes that have waited since the last flush
	ahead   uint64 // the number that is noted on disk; 0: none of this process
	state   []byte // of the map up, where that waits; nil: it is on disk

	seq     uint64 // of the map up, as of the last batch
	lineage link.Lineage
}

// dividedBatch is a batch in two parts: what is written at once, and what waits.
type dividedBatch struct {
	now, later Batch
	flush      bool   // all that waits is written, too
	ahead      uint64 // is to be noted on disk; 0: unchanged
}

// split decides what of a batch is written at once.
func (h *heldChanges) split(b Batch) dividedBatch {
	seq := h.seq
	if b.Up.Dirty {
		seq = b.Up.State.Seq
	}
	// The note must name more than any number that is on disk: a core that was killed would not know of others otherwise.
	passed := h.ahead != 0 && seq >= h.ahead
	all := dividedBatch{now: b, flush: b.Flush || passed || h.bytes > heldBytes || len(h.written) > heldNames}
	if all.flush || len(b.MayWait) == 0 {
		return all
	}
	p := dividedBatch{now: b, later: Batch{Effective: make(map[string]*Effective)}}
	p.now.Up.Entries, p.now.Effective = nil, make(map[string]*Effective)
	waits := func(key string) bool {
		_, known := h.written[key]
		return known && b.MayWait[key]
	}
	for _, e := range b.Up.Entries {
		if waits(e.Key) && !e.Deleted {
			p.later.Up.Entries = append(p.later.Up.Entries, e)
		} else {
			p.now.Up.Entries = append(p.now.Up.Entries, e)
		}
	}
	for key, e := range b.Effective {
		if e != nil && waits(key) {
			p.later.Effective[key] = e
		} else {
			p.now.Effective[key] = e
		}
	}
	waiting := len(p.later.Up.Entries) + len(p.later.Effective)
	switch {
	case waiting == 0:
		return all
	case h.ahead == 0:
		all.ahead = seq + heldRoom
		return all
	case h.count+waiting > heldRoom:
		all.flush = true
		return all
	}
	if len(p.later.Up.Entries) > 0 && len(p.now.Up.Entries)+len(b.Up.Dropped) == 0 && !b.Up.Reset && b.Up.State.Lineage == h.lineage {
		p.later.Up.Dirty, p.later.Up.State, p.now.Up.Dirty = true, b.Up.State, false
	}
	return p
}

// deviceName is the Device that a key belongs to.
func deviceName(key string) string {
	rest, _ := strings.CutPrefix(key, "devices/")
	name, _, _ := strings.Cut(rest, "/")
	return name
}

// due is which Devices' changes are written with a part of a batch.
func (h *heldChanges) due(p dividedBatch) (list []string) {
	if len(h.devices) == 0 {
		return nil
	}
	if p.flush {
		return slices.Collect(maps.Keys(h.devices))
	}
	names := make(map[string]bool)
	for _, e := range p.now.Up.Entries {
		names[deviceName(e.Key)] = true
	}
	for key := range p.now.Effective {
		names[deviceName(key)] = true
	}
	for key, may := range p.now.MayWait {
		if !may { // also what is as it was: it may be waiting
			names[deviceName(key)] = true
		}
	}
	for name := range names {
		if h.devices[name] != nil {
			list = append(list, name)
		}
	}
	return list
}

// appendDue appends what is to be written before a part of a batch.
func (h *heldChanges) appendDue(frame []byte, p dividedBatch, due []string) []byte {
	for _, name := range due {
		for kind, keys := range h.devices[name].keys {
			for key, body := range keys {
				frame = appendPut(frame, byte(kind), key, body)
			}
		}
	}
	switch {
	case p.ahead != 0:
		frame = appendPut(frame, kindState, stateAhead, binary.AppendUvarint(nil, p.ahead))
	case p.flush && h.ahead != 0:
		frame = appendHead(frame, opDelete, kindState, stateAhead)
	}
	if h.state != nil && !p.now.Up.Dirty && len(due) > 0 {
		frame = appendPut(frame, kindState, stateUp, h.state)
	}
	return frame
}

// wrote notes that a part of a batch is on disk, with what was due.
func (h *heldChanges) wrote(p dividedBatch, due []string) {
	if p.flush {
		h.ahead, h.count = 0, 0
		clear(h.written)
	}
	for _, name := range due {
		for _, keys := range h.devices[name].keys {
			for key := range keys {
				h.written[key] = struct{}{}
			}
		}
		h.bytes -= h.devices[name].bytes
		delete(h.devices, name)
	}
	wrote := func(key string) {
		if _, may := p.now.MayWait[key]; may {
			h.written[key] = struct{}{}
		}
	}
	for _, e := range p.now.Up.Entries {
		wrote(e.Key)
	}
	for key := range p.now.Effective {
		wrote(key)
	}
	if p.ahead != 0 {
		h.ahead = p.ahead
	}
	if p.now.Up.Dirty || len(due) > 0 {
		h.state = nil
	}
	if p.now.Up.Dirty {
		h.seq, h.lineage = p.now.Up.State.Seq, p.now.Up.State.Lineage
	}
}

// hold keeps the other part until it is due.
func (h *heldChanges) hold(p dividedBatch) error {
	for _, e := range p.later.Up.Entries {
		h.put(kindUp, e.Key, link.EncodeEntry(e))
	}
	for key, e := range p.later.Effective {
		body, err := cbor.Marshal(e)
		if err != nil {
			return err
		}
		h.put(kindEffective, key, body)
	}
	if !p.later.Up.Dirty {
		return nil
	}
	h.seq = p.later.Up.State.Seq
	body, err := p.later.Up.State.MarshalBinary()
	h.state = body
	return err
}

func (h *heldChanges) put(kind byte, key string, body []byte) {
	name := deviceName(key)
	c := h.devices[name]
	if c == nil {
		c = &changes{}
		h.devices[name] = c
	}
	before := c.bytes
	c.apply(record{op: opPut, kind: kind, key: []byte(key), body: body})
	h.bytes += c.bytes - before
	h.count++
}

// over applies what waits to what is on disk.
func (h *heldChanges) over(c *changes) {
	for _, held := range h.devices {
		for kind, keys := range held.keys {
			for key, body := range keys {
				c.apply(record{op: opPut, kind: byte(kind), key: []byte(key), body: body})
			}
		}
	}
	if h.state != nil {
		c.apply(record{op: opPut, kind: kindState, key: []byte(stateUp), body: h.state})
	}
}

func newHeldChanges() heldChanges {
	return heldChanges{written: make(map[string]struct{}), devices: make(map[string]*changes)}
}

// Needs reports whether a batch has to be committed: also one without changes, if what it says may not wait does.
func (s *Store) Needs(b Batch) bool {
	return !b.Empty() || len(s.held.due(dividedBatch{now: b})) > 0
}

// Waiting reports whether anything waits, or would: a flush is due within the time that changes may wait.
func (s *Store) Waiting() bool { return len(s.held.written) > 0 }

// lost is up to which number a process that was killed may have given numbers beyond what is on disk; 0: none.
func (h *heldChanges) lost(ahead uint64, up *link.MapState) uint64 {
	if h.ahead != 0 || up == nil || ahead <= up.Seq { // the first: it is this process's own note
		return 0
	}
	return ahead
}
