package twin

import (
	"maps"
	"slices"
	"strings"

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
}

// newUpMap moves the local values out of effective, with which they were stored.
func newUpMap(o *link.Owner, effective map[string]*store.Effective) *upMap {
	u := &upMap{Owner: o, local: make(map[string]link.Entry)}
	for key, e := range effective {
		if !strings.Contains(key, "/desired/") {
			u.local[key] = link.Entry{Key: key, Value: e.Value, Ver: e.Ver, TS: e.TS, Origin: e.Origin, Meta: link.Meta{For: e.SourceVer}}
			delete(effective, key)
		}
	}
	u.sorted = slices.Sorted(maps.Keys(u.local))
	return u
}

// Put writes a key: into the local values, or into the map that the hub follows.
func (u *upMap) Put(e link.Entry) (link.Entry, bool, error) {
	if u.isLocal == nil || !u.isLocal(e.Key) {
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
	u.store(e.Key, &store.Effective{Value: e.Value, Ver: e.Ver, TS: e.TS, Origin: e.Origin, SourceVer: e.Meta.For})
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

// isLocalKey reports whether a key of the edge is local.
func (t *Twin) isLocalKey(key string) bool {
	if !t.anyLocal || !strings.HasSuffix(key, "/state") && !strings.Contains(key, "/reported/") {
		return false
	}
	a, err := topics.ParseKey(t.opts.Node, key)
	d := t.devices[a.Device]
	switch {
	case err != nil || d == nil:
		return false
	case a.Kind == topics.KindDeviceState:
		return d.bundle.Device.Spec.LocalState
	}
	return a.Kind == topics.KindReported && slices.Contains(d.bundle.Device.Spec.Local, a.Name)
}

// relocate moves a device's keys between the local values and the map that the hub follows, after its spec has changed.
func (t *Twin) relocate(b *batch, name string, d *device) {
	keys := []string{topics.Address{Kind: topics.KindDeviceState, Device: name}.Key()}
	for _, p := range d.bundle.Model.Spec.Properties {
		keys = append(keys, topics.DeviceKey(name, topics.KindReported, p.Name))
	}
	for _, key := range keys {
		e, ok := t.up.Get(key)
		_, kept := t.up.local[key]
		if !ok || kept == t.isLocalKey(key) {
			continue
		}
		t.up.Delete(key, b.now.UnixMilli(), "")
		if kept {
			e.Ver = 0 // the map assigns versions
		}
		if err := t.putUp(b, e); err != nil { // it was stored before
			t.opts.Log.Error().Err(err).Str("key", key).Msg("a value can't be moved")
		}
	}
}
