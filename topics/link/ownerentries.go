// SPDX-License-Identifier: Apache-2.0

package link

import "bytes"

// ownerEntries are the entries of an owner's map, those that were deleted and that the replica may still have included.
type ownerEntries struct {
	keys   map[string]*ownerEntry
	sorted keyTable       // the same keys, in order
	order  ownerEntryList // the same, in the order in which they were written
	live   int
	size   int // bytes of live entries
	sum    hashSum
}

// Get returns a live entry.
func (x *ownerEntries) Get(key string) (Entry, bool) {
	if n := x.keys[key]; n != nil && !n.Deleted {
		return n.entry(), true
	}
	return Entry{}, false
}

// Range calls fn for live entries in order of their keys, until it says false.
func (x *ownerEntries) Range(prefix string, fn func(Entry) bool) { x.RangeFrom(prefix, prefix, fn) }

// RangeFrom is Range from a key on. fn must not change the map.
func (x *ownerEntries) RangeFrom(prefix, from string, fn func(Entry) bool) {
	x.sorted.scan(max(prefix, from), func(key, _ []byte) bool {
		if !bytes.HasPrefix(key, []byte(prefix)) {
			return false
		}
		n := x.keys[string(key)]
		return n.Deleted || fn(n.entry())
	})
}

// Keys returns the live keys in order.
func (x *ownerEntries) Keys(prefix string) []string { return collectKeys(x.Range, prefix) }

func collectKeys(all func(string, func(Entry) bool), prefix string) (keys []string) {
	all(prefix, func(e Entry) bool {
		keys = append(keys, e.Key)
		return true
	})
	return keys
}

// Len counts live keys.
func (x *ownerEntries) Len() int { return x.live }

// Bytes counts those of live keys and values.
func (x *ownerEntries) Bytes() int { return x.size }

// Digest of the live entries.
func (x *ownerEntries) Digest() Digest { return x.sum.digest() }

// Exceeds says which limit of q the map would exceed with the entries, whose keys differ; empty: none. Writes that don't
// make the map larger never exceed it.
func (x *ownerEntries) Exceeds(q Quota, entries ...Entry) string {
	keys, bytes := len(entries), 0
	for i := range entries {
		bytes += entries[i].weight()
	}
	if q.exceeded(x.live+keys, x.size+bytes) == "" { // an upper bound of the size
		return ""
	}
	keys, bytes = 0, 0
	for i := range entries {
		k, b := entryGrowth(x.Get, &entries[i])
		keys, bytes = keys+k, bytes+b
	}
	if keys <= 0 && bytes <= 0 {
		return ""
	}
	return q.exceeded(x.live+keys, x.size+bytes)
}

// count counts a live entry, and uncount one that is live no more.
func (x *ownerEntries) count(n *ownerEntry) {
	if !n.Deleted {
		x.live++
		x.size += n.weight()
		x.sum.add(n.hash())
	}
}

func (x *ownerEntries) uncount(n *ownerEntry) {
	if !n.Deleted {
		x.live--
		x.size -= n.weight()
		x.sum.sub(n.hash())
	}
}

// before is the entry that was written before another; nil stands for the next one that will be written.
func (x *ownerEntries) before(n *ownerEntry) *ownerEntry {
	if n == nil {
		return x.order.tail
	}
	return n.prev
}

// ownerEntry is an entry in the owner's order. While a FULL is being sent, which refers to nodes, a write makes a new node
// instead of changing one.
type ownerEntry struct {
	Entry             // its Value is without tail
	tail       string // the end of the value, shared with other nodes
	prev, next *ownerEntry
}

// set stores an entry whose value ends in tail.
func (n *ownerEntry) set(e Entry, tail string) {
	n.Entry, n.tail = e, tail
	if tail != "" {
		n.Value = bytes.Clone(e.Value[:len(e.Value)-len(tail)])
	}
}

// entry is the entry with its whole value.
func (n *ownerEntry) entry() Entry {
	e := n.Entry
	if n.tail != "" {
		e.Value = append(append(make([]byte, 0, len(e.Value)+len(n.tail)), e.Value...), n.tail...)
	}
	return e
}

func (n *ownerEntry) hash() hashSum {
	e := n.entry()
	return e.hash()
}

func (n *ownerEntry) weight() int { return n.Entry.weight() + len(n.tail) }
func (n *ownerEntry) size() int   { return n.Entry.size() + len(n.tail) }

// holds reports whether value is the entry's value.
func (n *ownerEntry) holds(value []byte) bool {
	head := len(value) - len(n.tail)
	return head >= 0 && string(value[head:]) == n.tail && bytes.Equal(value[:head], n.Value)
}

// ownerEntryList has an owner's nodes by rising seq. It is the outbox: the nodes from the first unacknowledged one to the tail are
// to be sent.
type ownerEntryList struct {
	head, tail *ownerEntry
	len        int
}

func (l *ownerEntryList) push(n *ownerEntry) {
	n.prev, n.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = n
	} else {
		l.head = n
	}
	l.tail = n
	l.len++
}

func (l *ownerEntryList) remove(n *ownerEntry) {
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		l.head = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	} else {
		l.tail = n.prev
	}
	n.prev, n.next = nil, nil // a FULL may keep this node; it must not keep its neighbours from the garbage collector
	l.len--
}
