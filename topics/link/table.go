// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sort"
)

// blockSize is how large a table's blocks grow, unless a single record is larger.
const blockSize = 1 << 10

// keyTable is a sorted map from keys to bytes for a million keys in little memory: its only pointers are those to blocks. A
// block is a sequence of records:
//
//	three varints: how many bytes the key shares with the key before it, how many bytes follow, the length of the body;
//	the rest of the key; the body
//
// The shared prefix is always the longest possible one, and empty in a block's first record. So a lookup compares each byte
// of a key once and builds no key, and a change affects one record and the next.
type keyTable struct {
	blocks [][]byte // none empty
	len    int
	last   int  // the block that was changed last: what is written together is mostly close together
	shared bool // a snapshot has the same blocks: they are replaced, and not changed
}

// snapshot is the table as it is. From then on t replaces blocks instead of changing them.
func (t *keyTable) snapshot() keyTable {
	t.shared = true
	next := *t
	next.blocks = slices.Clone(t.blocks)
	return next
}

// tableRecord is a parsed record of a block.
type tableRecord struct {
	from, to   int // its place in the block
	shared     int
	rest, body []byte
}

func parseRecord(block []byte, at int) tableRecord {
	r := tableRecord{from: at}
	rest, body := 0, 0
	r.shared, at = readVarint(block, at)
	rest, at = readVarint(block, at)
	body, at = readVarint(block, at)
	r.to = at + rest + body
	r.rest, r.body = block[at:at+rest], block[at+rest:r.to]
	return r
}

// readVarint reads a varint, nearly all of which are of one byte.
func readVarint(b []byte, at int) (n, next int) {
	if b[at] < 0x80 {
		return int(b[at]), at + 1
	}
	return readLongVarint(b, at)
}

func readLongVarint(b []byte, at int) (n, next int) {
	x, size := binary.Uvarint(b[at:])
	return int(x), at + size
}

func appendRecord(b []byte, shared int, rest string, body []byte) []byte {
	for _, n := range [...]int{shared, len(rest), len(body)} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	b = append(b, rest...)
	return append(b, body...)
}

// tablePosition is where a key is, or is to be inserted: before the record at a block's offset.
type tablePosition struct {
	block, at int
	shared    int  // bytes that the key has in common with the one before
	found     bool // the record is the key's
}

func (t *keyTable) block(key string) int {
	if i := t.last; i < len(t.blocks) && string(firstKey(t.blocks[i])) <= key && (i+1 == len(t.blocks) || string(firstKey(t.blocks[i+1])) > key) {
		return i
	}
	n := sort.Search(len(t.blocks), func(i int) bool { return string(firstKey(t.blocks[i])) > key })
	return max(0, n-1)
}

// firstKey is a block's first key.
func firstKey(block []byte) []byte { return parseRecord(block, 0).rest }

func (t *keyTable) find(key string) tablePosition {
	p := tablePosition{block: t.block(key)}
	if len(t.blocks) == 0 {
		return p
	}
	// All keys up to here are less; the one before has p.shared bytes in common.
	for b := t.blocks[p.block]; p.at < len(b); {
		shared, at := readVarint(b, p.at)
		if shared < p.shared {
			return p // this key shares less with the one before than ours does: it is greater
		}
		rest, at := readVarint(b, at)
		body, at := readVarint(b, at)
		if shared == p.shared { // otherwise this key is less, as the one before is
			same := commonPrefix(b[at:at+rest], key[shared:])
			p.found = same == rest && shared+same == len(key)
			if p.found || same < rest && (shared+same == len(key) || b[at+same] > key[shared+same]) {
				return p
			}
			p.shared += same
		}
		p.at = at + rest + body
	}
	return p
}

func commonPrefix(a []byte, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// get returns a key's body, which is valid until the table changes.
func (t *keyTable) get(key string) ([]byte, bool) {
	p := t.find(key)
	if !p.found {
		return nil, false
	}
	return parseRecord(t.blocks[p.block], p.at).body, true
}

func (t *keyTable) put(key string, body []byte) {
	var scratch [512]byte
	p := t.find(key)
	if p.found {
		r := parseRecord(t.blocks[p.block], p.at)
		t.splice(p.block, r.from, r.to, appendRecord(scratch[:0], r.shared, string(r.rest), body))
		return
	}
	t.len++
	if len(t.blocks) == 0 {
		t.blocks = [][]byte{appendRecord(nil, 0, key, body)}
		return
	}
	b := t.blocks[p.block]
	if p.at == len(b) {
		if p.block == len(t.blocks)-1 && len(b)+len(key)+len(body) > blockSize {
			t.blocks = append(t.blocks, appendRecord(nil, 0, key, body)) // in order, as stores are read: leave the full one full
			return
		}
		t.splice(p.block, p.at, p.at, appendRecord(scratch[:0], p.shared, key[p.shared:], body))
		return
	}
	text, next := appendRecord(scratch[:0], p.shared, key[p.shared:], body), parseRecord(b, p.at)
	if next.shared == p.shared { // it may have more in common with the new key than with the one before
		same := commonPrefix(next.rest, key[p.shared:])
		text = appendRecord(text, p.shared+same, string(next.rest[same:]), next.body)
	} else {
		text = append(text, b[next.from:next.to]...)
	}
	t.splice(p.block, p.at, next.to, text)
}

func (t *keyTable) del(key string) bool {
	p := t.find(key)
	if !p.found {
		return false
	}
	t.len--
	b := t.blocks[p.block]
	r := parseRecord(b, p.at)
	if r.to == len(b) {
		t.splice(p.block, r.from, r.to, nil)
		return true
	}
	next := parseRecord(b, r.to)
	if next.shared <= r.shared {
		t.splice(p.block, r.from, r.to, nil)
		return true
	}
	// What it shared with the deleted key beyond that one's own share it now says itself.
	rest := string(r.rest[:next.shared-r.shared]) + string(next.rest)
	t.splice(p.block, r.from, next.to, appendRecord(nil, r.shared, rest, next.body))
	return true
}

// splice replaces a part of a block, and splits or joins blocks that become too large or too small.
func (t *keyTable) splice(i, from, to int, text []byte) {
	t.last = i
	b := t.blocks[i]
	if size := len(b) - (to - from) + len(text); size <= cap(b) && !t.shared {
		b = slices.Replace(b, from, to, text...)
	} else { // with room for a few more, if there will be any
		room := max(size, min(size+size/4, blockSize))
		b = append(append(append(make([]byte, 0, room), b[:from]...), text...), b[to:]...)
	}
	t.blocks[i] = b
	switch {
	case len(b) == 0:
		t.blocks = slices.Delete(t.blocks, i, i+1)
	case len(b) > blockSize:
		t.split(i)
	case len(b) < blockSize/4 && i+1 < len(t.blocks) && len(b)+len(t.blocks[i+1]) < blockSize/2:
		t.join(i)
	case len(b) < blockSize/4 && i > 0 && len(b)+len(t.blocks[i-1]) < blockSize/2:
		t.join(i - 1)
	}
}

// split halves a block, unless it is one record.
func (t *keyTable) split(i int) {
	b := t.blocks[i]
	var key []byte
	for at := 0; at < len(b); {
		r := parseRecord(b, at)
		key = append(key[:r.shared], r.rest...)
		if at > 0 && (r.to > len(b)/2 || r.to == len(b)) {
			half := appendRecord(nil, 0, string(key), r.body)
			t.blocks = slices.Insert(t.blocks, i+1, append(half, b[r.to:]...))
			t.blocks[i] = bytes.Clone(b[:at])
			return
		}
		at = r.to
	}
}

// join merges a block and the next one.
func (t *keyTable) join(i int) {
	a, b := t.blocks[i], t.blocks[i+1]
	var last []byte
	for at := 0; at < len(a); {
		r := parseRecord(a, at)
		last = append(last[:r.shared], r.rest...)
		at = r.to
	}
	r := parseRecord(b, 0)
	same := commonPrefix(last, string(r.rest))
	a = appendRecord(slices.Clip(a), same, string(r.rest[same:]), r.body)
	t.blocks[i] = append(a, b[r.to:]...)
	t.blocks = slices.Delete(t.blocks, i+1, i+2)
}

// scan calls fn for the keys from one on, in order, until fn returns false. fn's arguments are valid until it returns; it
// must not change the table.
func (t *keyTable) scan(from string, fn func(key, body []byte) bool) {
	key := make([]byte, 0, 64)
	for i := t.block(from); i < len(t.blocks); i++ {
		b := t.blocks[i]
		for at := 0; at < len(b); {
			r := parseRecord(b, at)
			key = append(key[:r.shared], r.rest...)
			if string(key) >= from && !fn(key, r.body) {
				return
			}
			at = r.to
		}
	}
}
