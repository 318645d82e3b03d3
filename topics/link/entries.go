package link

import "bytes"

// entries are a replica's, in little memory: each stands in the table in its
// stored form. What they return is a copy.
type entries struct {
	table table
	sum   sum
	size  int // bytes of keys and values
}

func unpack(key string, body []byte) Entry {
	e, _ := ParseEntry(key, body) // it was written by pack
	return e
}

// Get returns an entry.
func (x *entries) Get(key string) (Entry, bool) {
	body, ok := x.table.get(key)
	if !ok {
		return Entry{}, false
	}
	return unpack(key, body), true
}

// set puts an entry in the place of the key's old one, if there is one, and says whether it is the same to readers.
func (x *entries) set(e *Entry) (had, same bool) {
	if body, ok := x.table.get(e.Key); ok {
		old, origin, _ := viewEntry(e.Key, body) // good until the table changes
		had, same = true, old.same(e)
		x.uncount(&old)
		x.size -= len(origin)
	}
	var scratch [256]byte
	x.table.put(e.Key, AppendEntry(scratch[:0], *e))
	x.sum.add(e.hash())
	x.size += e.weight()
	return had, same
}

func (x *entries) remove(key string) (had bool) {
	old, had := x.Get(key)
	if had {
		x.uncount(&old)
		x.table.del(key)
	}
	return had
}

func (x *entries) uncount(e *Entry) {
	x.sum.sub(e.hash())
	x.size -= e.weight()
}

// Range calls fn for entries in order of their keys, until it says false.
func (x *entries) Range(prefix string, fn func(Entry) bool) { x.RangeFrom(prefix, prefix, fn) }

// RangeFrom is Range from a key on. fn must not change the map.
func (x *entries) RangeFrom(prefix, from string, fn func(Entry) bool) {
	x.table.scan(max(prefix, from), func(key, body []byte) bool {
		return bytes.HasPrefix(key, []byte(prefix)) && fn(unpack(string(key), body))
	})
}

// Keys returns the keys in order.
func (x *entries) Keys(prefix string) []string { return keysOf(x.Range, prefix) }

// Len counts keys.
func (x *entries) Len() int { return x.table.len }

// Bytes counts those of keys and values.
func (x *entries) Bytes() int { return x.size }

// Digest of the entries.
func (x *entries) Digest() Digest { return x.sum.digest() }
