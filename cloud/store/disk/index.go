// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/edgebus/edgebus/cloud/store"
)

// objectVersion is one version of an object. Entries are never changed, only replaced.
type objectVersion struct {
	namespace, name string
	rev             uint64 // of this version
	created         uint64 // revision of the object's first version
	record          recordID
	statusRecord    recordID // 0: there is none
	deleted         bool     // a tombstone, with the last version's bytes
	unstored        bool     // data is derived, and the record has that of an earlier version
	data            []byte
	status          packedText
	derived         *derivedStatus // of a version that was read from the file; nil: status is the status
}

// derivedStatus is a status that is derived when it is read first. It is kept as long as the version: derived a second time it could be another one
// of the same revision, and a write of what has changed would find it there already, and tell nobody.
type derivedStatus struct {
	of     func(store.Object) []byte
	once   sync.Once
	status packedText // until then: what is stored
}

// read is the status of an object, in a buffer as unpackInto has it.
func (d *derivedStatus) read(o store.Object, buffer *[]byte) []byte {
	d.once.Do(func() {
		o.Status = d.status.unpack()
		d.status = packText(d.of(o))
	})
	return d.status.unpackInto(buffer)
}

// again is for another version of the object. It was read.
func (d *derivedStatus) again() *derivedStatus {
	if d == nil {
		return nil
	}
	return &derivedStatus{of: d.of, status: d.status}
}

// size is about what a version takes in memory, with its share of the index: each write copies a block.
func (e *objectVersion) size() uint64 { return uint64(len(e.data) + e.status.size() + 8*blockSize) }

func (e *objectVersion) compare(namespace, name string) int {
	if c := strings.Compare(e.namespace, namespace); c != 0 {
		return c
	}
	return strings.Compare(e.name, name)
}

func (e *objectVersion) object(kind string) store.Object { return e.objectInto(kind, nil) }

// objectInto is the object with its status in a buffer as unpackInto has it.
func (e *objectVersion) objectInto(kind string, buffer *[]byte) store.Object {
	o := e.dataOnly(kind)
	if e.derived != nil {
		o.Status = e.derived.read(o, buffer)
	} else {
		o.Status = e.status.unpackInto(buffer)
	}
	return o
}

// dataOnly is the object without its status, which costs most of the work.
func (e *objectVersion) dataOnly(kind string) store.Object {
	return store.Object{Key: store.Key{Kind: kind, Namespace: e.namespace, Name: e.name}, Rev: e.rev, Data: e.data}
}

// blockSize bounds what one change copies: a block of pointers.
const blockSize = 256

// index is an ordered set of entries that is never changed: edit makes another
// one that shares most blocks with it. So readers need no lock, and a list
// that is read page by page stays as it was.
type index struct {
	blocks [][]*objectVersion // none is empty
	own    []bool             // which of them no other index has: they are changed in place
	n      int
}

// block finds the block that holds the key, or would.
func (ix *index) block(namespace, name string) int {
	i := sort.Search(len(ix.blocks), func(i int) bool {
		return ix.blocks[i][0].compare(namespace, name) > 0
	})
	return max(i-1, 0)
}

func findVersion(block []*objectVersion, namespace, name string) (int, bool) {
	return slices.BinarySearchFunc(block, name, func(e *objectVersion, _ string) int {
		return e.compare(namespace, name)
	})
}

func (ix *index) get(namespace, name string) *objectVersion {
	if len(ix.blocks) == 0 {
		return nil
	}
	block := ix.blocks[ix.block(namespace, name)]
	if i, ok := findVersion(block, namespace, name); ok {
		return block[i]
	}
	return nil
}

// edit returns an index that set and remove may be called on, without ix seeing it.
func (ix *index) edit() index {
	return index{blocks: slices.Clone(ix.blocks), own: make([]bool, len(ix.blocks)), n: ix.n}
}

// makeIndex makes an index of entries in order.
func makeIndex(entries []*objectVersion) index {
	ix := index{n: len(entries)}
	for block := range slices.Chunk(entries, blockSize/2) {
		ix.blocks, ix.own = append(ix.blocks, slices.Clone(block)), append(ix.own, true)
	}
	return ix
}

func (ix *index) set(e *objectVersion) {
	if len(ix.blocks) == 0 {
		ix.blocks, ix.own, ix.n = [][]*objectVersion{{e}}, []bool{true}, 1
		return
	}
	b := ix.block(e.namespace, e.name)
	old := ix.blocks[b]
	i, found := findVersion(old, e.namespace, e.name)
	if found {
		if !ix.own[b] {
			ix.blocks[b], ix.own[b] = slices.Clone(old), true
		}
		ix.blocks[b][i] = e
		return
	}
	ix.n++
	fresh := make([]*objectVersion, 0, len(old)+1)
	fresh = append(append(append(fresh, old[:i]...), e), old[i:]...)
	ix.own[b] = true
	if len(fresh) <= blockSize {
		ix.blocks[b] = fresh
		return
	}
	half := len(fresh) / 2
	ix.blocks[b] = fresh[:half:half]
	ix.blocks, ix.own = slices.Insert(ix.blocks, b+1, fresh[half:]), slices.Insert(ix.own, b+1, true)
}

func (ix *index) remove(namespace, name string) {
	if len(ix.blocks) == 0 {
		return
	}
	b := ix.block(namespace, name)
	i, found := findVersion(ix.blocks[b], namespace, name)
	if !found {
		return
	}
	ix.n--
	if len(ix.blocks[b]) == 1 {
		ix.blocks, ix.own = slices.Delete(ix.blocks, b, b+1), slices.Delete(ix.own, b, b+1)
		return
	}
	ix.blocks[b], ix.own[b] = slices.Delete(slices.Clone(ix.blocks[b]), i, i+1), true
}

// from calls yield for the entries from a position on, in order.
func (ix *index) from(namespace, name string, yield func(*objectVersion) bool) {
	if len(ix.blocks) == 0 {
		return
	}
	b := ix.block(namespace, name)
	i, _ := findVersion(ix.blocks[b], namespace, name)
	for ; b < len(ix.blocks); b, i = b+1, 0 {
		for _, e := range ix.blocks[b][i:] {
			if !yield(e) {
				return
			}
		}
	}
}

// rank is how many entries stand before a position.
func (ix *index) rank(namespace, name string) int {
	if len(ix.blocks) == 0 {
		return 0
	}
	b := ix.block(namespace, name)
	i, _ := findVersion(ix.blocks[b], namespace, name)
	for _, block := range ix.blocks[:b] {
		i += len(block)
	}
	return i
}

// table is one kind's objects, and its history as far as it is known. Like an
// index it is never changed once published.
type table struct {
	index
	// log holds versions in rising revision: every live one, every tombstone that is
	// kept, and stale ones until they are swept. Tables share its array: only the
	// newest may append.
	log   []*objectVersion
	tombs []*objectVersion // the tombstones in log, oldest first
	floor uint64           // revision of the newest tombstone that was dropped, or of the newest deletion before the file was opened

	lastDelete uint64 // revision of the newest deletion
	derives    bool   // its statuses are derived, and are not as in the file
}

// staleAllowed is how many stale versions a log may hold beyond a quarter of its size.
const staleAllowed = 1024

// sweep rewrites a log that is mostly stale.
func (t *table) sweep() {
	if len(t.log)-t.n-len(t.tombs) <= staleAllowed+t.n/4 {
		return
	}
	fresh := make([]*objectVersion, 0, t.n+len(t.tombs)+staleAllowed)
	for _, e := range t.log {
		if t.current(e) {
			fresh = append(fresh, e)
		}
	}
	t.log = fresh
}

// compact drops the oldest tombstones. It lets an eighth more than the limit gather, so that not every delete copies the list.
func (t *table) compact(limit int) {
	if len(t.tombs) > limit+limit/8 {
		n := len(t.tombs) - limit
		t.floor = t.tombs[n-1].rev
		t.tombs = slices.Clone(t.tombs[n:])
	}
	t.sweep()
}

// changed is the revision of the newest change.
func (t *table) changed() uint64 {
	if n := len(t.log); n > 0 {
		return max(t.floor, t.log[n-1].rev)
	}
	return t.floor
}

// current says whether a version in the log still counts.
func (t *table) current(e *objectVersion) bool {
	if e.deleted {
		return e.rev > t.floor
	}
	return t.get(e.namespace, e.name) == e
}

// since lists what changed after a revision, in order: the first so many.
func (t *table) since(rev uint64, most int) []*objectVersion {
	i := sort.Search(len(t.log), func(i int) bool { return t.log[i].rev > rev })
	var out []*objectVersion
	for _, e := range t.log[i:] {
		if len(out) == most {
			break
		}
		if t.current(e) {
			out = append(out, e)
		}
	}
	return out
}

// changes are what happened after a revision to a kind, the first so many, or to one object.
func (t *table) changes(of store.Key, rev uint64, most int) (out []*objectVersion) {
	if of.Name == "" {
		return t.since(rev, most)
	}
	i := sort.Search(len(t.tombs), func(i int) bool { return t.tombs[i].rev > rev })
	for _, e := range t.tombs[i:] {
		if e.compare(of.Namespace, of.Name) == 0 {
			out = append(out, e)
		}
	}
	if e := t.get(of.Namespace, of.Name); e != nil && e.rev > rev {
		out = append(out, e)
	}
	return out
}

// snapshot is everything as of one revision. It is never changed.
type snapshot struct {
	rev    uint64
	tables map[string]*table
	// replaced is how many bytes of versions were replaced or deleted since the file was opened: what a snapshot keeps in memory
	// beside a later one is at most the difference.
	replaced uint64
}

var emptyTable = &table{}

func (s *snapshot) table(kind string) *table {
	if t := s.tables[kind]; t != nil {
		return t
	}
	return emptyTable
}
