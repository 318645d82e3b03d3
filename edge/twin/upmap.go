// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// upMap holds all keys that the edge owns: the map that is synchronised with the hub, and the local values, which are not, because
// their Device says so (spec.local, spec.localState). Readers see no difference. Local values are stored among the values in force.
type upMap struct {
	*link.Owner
	local   map[string]link.Entry                // the values that stay on the node
	sorted  []string                             // the keys of local
	isLocal func(key string) bool                // reports whether a key is local
	store   func(key string, e *store.Effective) // adds a change to the batch; nil deletes the key

	changed func(b *batch, e link.Entry) // is told of each change

	opts *Options
	ends *overrideEnds
}

// load takes what is stored. It moves the local values out of effective, with which they were stored.
func (u *upMap) load(o *link.Owner, effective map[string]*store.Effective) {
	u.Owner, u.local = o, make(map[string]link.Entry)
	for key, e := range effective {
		if !strings.Contains(key, "/desired/") {
			u.local[key] = link.Entry{Key: key, Value: e.Value, Ver: e.Ver, TS: e.TS, Origin: e.Origin, Meta: link.Meta{For: e.SourceVer}}
			delete(effective, key)
		}
	}
	u.sorted = slices.Sorted(maps.Keys(u.local))
}

// Put writes a key: into the local values, or into the map that the hub follows.
func (u *upMap) Put(e link.Entry) (link.Entry, bool, error) {
	if !u.isLocal(e.Key) {
		return u.Owner.Put(e)
	}
	if len(e.Value) > link.MaxValue {
		return e, false, resource.Errorf(resource.TooLarge, "", "%d bytes: a value has at most %d", len(e.Value), link.MaxValue)
	}
	old, known := u.local[e.Key]
	if known && string(old.Value) == string(e.Value) && old.Meta == e.Meta {
		return old, false, nil
	}
	e.Ver = max(old.Ver, e.Ver) + 1
	if !known {
		at, _ := slices.BinarySearch(u.sorted, e.Key)
		u.sorted = slices.Insert(u.sorted, at, e.Key)
	}
	u.local[e.Key] = e
	u.storeEntry(e.Key, e)
	return e, true, nil
}

// Delete removes a key from either.
func (u *upMap) Delete(key string, ts int64, origin string) (link.Entry, bool) {
	old, known := u.local[key]
	if !known {
		return u.Owner.Delete(key, ts, origin)
	}
	delete(u.local, key)
	at, _ := slices.BinarySearch(u.sorted, key)
	u.sorted = slices.Delete(u.sorted, at, at+1)
	u.store(key, nil)
	return link.Entry{Key: key, Ver: old.Ver + 1, TS: ts, Origin: origin, Deleted: true}, true
}

// Get returns a live entry.
func (u *upMap) Get(key string) (link.Entry, bool) {
	if e, ok := u.local[key]; ok {
		return e, true
	}
	return u.Owner.Get(key)
}

// Range calls fn for live entries in order of their keys, until it says false.
func (u *upMap) Range(prefix string, fn func(link.Entry) bool) { u.RangeFrom(prefix, prefix, fn) }

// RangeFrom is Range from a key on. fn must not change the map.
func (u *upMap) RangeFrom(prefix, from string, fn func(link.Entry) bool) {
	at, _ := slices.BinarySearch(u.sorted, max(prefix, from))
	more := true
	localBefore := func(key string, all bool) {
		for ; more && at < len(u.sorted) && strings.HasPrefix(u.sorted[at], prefix) && (all || u.sorted[at] < key); at++ {
			more = fn(u.local[u.sorted[at]])
		}
	}
	u.Owner.RangeFrom(prefix, from, func(e link.Entry) bool {
		localBefore(e.Key, false)
		more = more && fn(e)
		return more
	})
	localBefore("", true)
}

// writeWithin is write, unless the quota refuses the entry.
func (u *upMap) writeWithin(b *batch, e link.Entry) error {
	if err := u.roomFor(e); err != nil {
		return err
	}
	return u.write(b, e)
}

// write writes an edge-owned key, or clears it when the entry says Deleted, and publishes it. An
// unchanged value is no write.
func (u *upMap) write(b *batch, e link.Entry) error {
	if e.Deleted {
		u.clear(b, e.Key)
		return nil
	}
	e, changed, err := u.Put(e)
	if err != nil {
		return resource.Errorf(resource.TooLarge, e.Key, "%v", err)
	}
	if !changed {
		return nil
	}
	if strings.Contains(e.Key, "/override/") {
		u.ends.schedule(e.Key, e.Meta.Until)
	}
	b.mark(e.Key)
	u.changed(b, e)
	u.publish(b, e)
	return nil
}

// mayWait notes whether a report may be lost in a crash: its publisher reports it again, and what it changes is only the value.
func (u *upMap) mayWait(b *batch, e link.Entry, repeated bool) {
	if before, noted := b.deferral.mayWait[e.Key]; !noted || before {
		old, had := u.Get(e.Key)
		b.deferral.mayWait[e.Key] = repeated && had && !e.Deleted && old.Meta == e.Meta
	}
}

// passLost gives the reported values versions above all that a process that was killed may have given them. Whatever is stored next has
// these, but for local values; see storeLocal.
func (u *upMap) passLost(lost uint64) error {
	for _, key := range u.Owner.Keys("devices/") {
		if e, _ := u.Owner.Get(key); isReported(key) {
			e.Ver += lost
			if _, _, err := u.Owner.Put(e); err != nil {
				return err
			}
		}
	}
	for key, e := range u.local {
		if isReported(key) {
			e.Ver += lost
			u.local[key] = e
		}
	}
	return nil
}

func isReported(key string) bool { return strings.Contains(key, "/reported/") }

// storeLocal has the local values stored again, with the versions that passLost gave them.
func (u *upMap) storeLocal() {
	for key, e := range u.local {
		u.storeEntry(key, e)
	}
}

func (u *upMap) storeEntry(key string, e link.Entry) {
	u.store(key, &store.Effective{Value: e.Value, Ver: e.Ver, TS: e.TS, Origin: e.Origin, SourceVer: e.Meta.For})
}

// publish publishes an edge-owned entry once it is stored, if its topic has a subscriber. Later subscribers read it as a retained
// message, and those are not read before the commit. A subscription with No Local doesn't get changes that its own client caused.
func (u *upMap) publish(b *batch, e link.Entry) {
	if u.opts.Wanted(topics.TopicOf(u.opts.Node, e.Key)) {
		m := u.message(e)
		m.Publisher = b.from
		b.publishes = append(b.publishes, m)
	}
}

func (u *upMap) clear(b *batch, key string) {
	if e, had := u.Delete(key, b.now.UnixMilli(), ""); had {
		u.ends.schedule(key, 0)
		b.mark(key)
		u.changed(b, e)
		u.publish(b, e)
	}
}

// roomFor returns an error if the entries would exceed the node's quota. A Deleted entry frees its share.
func (u *upMap) roomFor(entries ...link.Entry) error {
	if why := u.Exceeds(u.opts.Quota, entries...); why != "" {
		return resource.Errorf(resource.Quota, entries[0].Key, "the node would own %s (limits.node)", why)
	}
	return nil
}

// message is an edge-owned entry as subscribers see it.
func (u *upMap) message(e link.Entry) broker.Message { return tree.EntryMessage(u.opts.Node, e) }

// newEntry is an entry with the batch's time; an empty value clears the key.
func newEntry(b *batch, key string, value []byte, origin string) link.Entry {
	return link.Entry{
		Key: key, Value: bytes.Clone(value), Deleted: len(value) == 0, // a copy, so that the packet's memory can be freed
		TS: b.now.UnixMilli(), Origin: origin,
	}
}
