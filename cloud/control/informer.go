// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"runtime/debug"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// Watch is one kind whose changes concern a controller. Its functions are pure: they say the same of the same versions, whenever they
// are asked. What they panic at concerns nobody until that object changes.
type Watch struct {
	Kind string
	// Keys are the keys that an object concerns; nil: its own. Of a changed object it is asked with the version before, too, and of
	// a deleted one with the last.
	Keys func(o store.Object) []store.Key
	// Changes are the keys that a change concerns, instead of Keys; nil: there was, or is, none.
	Changes func(before, now *store.Object) []store.Key
	// DataOnly leaves out changes of the status alone. Its functions have no statuses.
	DataOnly bool
	// Same leaves out changes to a version that is the same to the controller; nil: none is.
	Same func(before, now store.Object) bool
}

// concernedBy are the keys that a change concerns.
func (r *Runtime) concernedBy(w Watch, before, now *store.Object) []store.Key {
	if before != nil && now != nil && (w.DataOnly && bytes.Equal(before.Data, now.Data) || w.Same != nil && w.Same(*before, *now)) {
		return nil
	}
	switch {
	case w.Changes != nil:
		return w.Changes(before, now)
	case w.Keys == nil:
		return []store.Key{cmp.Or(now, before).Key}
	}
	keys, old := r.keysOf(w, now), r.keysOf(w, before)
	if slices.Equal(old, keys) { // else a worker that is quick would be called twice
		return keys
	}
	return slices.Concat(keys, old)
}

// keysOf are the keys that an object concerns, which are none if Keys panics.
func (r *Runtime) keysOf(w Watch, o *store.Object) []store.Key {
	if o == nil {
		return nil
	}
	defer r.surviveOf(o.Key)
	return w.Keys(*o)
}

// Index is what a pure function makes of each object of a kind; objects are found in it by what they refer to. It has an object's change
// before any controller is told of it, and all objects before any key is reconciled. Controllers list those that they use.
type Index[T any] struct {
	Kind string
	// Of is what is kept of an object, and the keys by which it is found. false: nothing.
	Of func(o store.Object) (value T, refs []store.Key, ok bool)
	// Status says that Of looks at the status, too.
	Status bool

	mu      sync.RWMutex
	entries map[store.Key]indexEntry[T]
	users   map[store.Key]map[store.Key]bool // objects by what they refer to
	version int
}

type indexEntry[T any] struct {
	value T
	refs  []store.Key
}

// Indexer is an Index of any type.
type Indexer interface {
	kind() string
	usesStatus() bool
	// Change takes in a change; the Runtime calls it. nil: there was, or is, none.
	Change(before, now *store.Object)
}

func (x *Index[T]) kind() string     { return x.Kind }
func (x *Index[T]) usesStatus() bool { return x.Status }

// Change is of the interface Indexer.
func (x *Index[T]) Change(before, now *store.Object) {
	if before != nil && now != nil && !x.Status && bytes.Equal(before.Data, now.Data) {
		return
	}
	var next indexEntry[T]
	ok := false
	if now != nil {
		defer func() { x.set(now.Key, next, ok) }() // also if Of panics
		next.value, next.refs, ok = x.Of(*now)
	} else {
		x.set(before.Key, next, false)
	}
}

func (x *Index[T]) set(key store.Key, next indexEntry[T], ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.version++
	for _, ref := range x.entries[key].refs {
		if delete(x.users[ref], key); len(x.users[ref]) == 0 {
			delete(x.users, ref)
		}
	}
	if !ok {
		delete(x.entries, key)
		return
	}
	if x.entries == nil {
		x.entries, x.users = make(map[store.Key]indexEntry[T]), make(map[store.Key]map[store.Key]bool)
	}
	x.entries[key] = next
	for _, ref := range next.refs {
		if x.users[ref] == nil {
			x.users[ref] = make(map[store.Key]bool)
		}
		x.users[ref][key] = true
	}
}

// Get is what is kept of an object.
func (x *Index[T]) Get(key store.Key) (value T, ok bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	e, ok := x.entries[key]
	return e.value, ok
}

// Referring are the keys of the objects that refer to one, in their order.
func (x *Index[T]) Referring(ref store.Key) []store.Key {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.SortedFunc(maps.Keys(x.users[ref]), store.Key.Compare)
}

// Keys are the keys of all objects of which something is kept, in no order.
func (x *Index[T]) Keys() []store.Key {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Collect(maps.Keys(x.entries))
}

// All is what is kept of all objects. Nothing else may be asked of the index meanwhile.
func (x *Index[T]) All() iter.Seq2[store.Key, T] {
	return func(yield func(store.Key, T) bool) {
		x.mu.RLock()
		defer x.mu.RUnlock()
		for key, e := range x.entries {
			if !yield(key, e.value) {
				return
			}
		}
	}
}

// Version is another number after each change.
func (x *Index[T]) Version() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.version
}

// informer follows the objects of a kind for all controllers. It knows the last version of each, so that a change is told with what was
// before, also if an object was deleted while the stream was away.
type informer struct {
	kind    string
	runtime *Runtime
	indexes []Indexer
	watches []func(before, now *store.Object)
	known   map[store.Key]knownVersion
	status  bool          // somebody looks at statuses
	listed  chan struct{} // closed when all were told for the first time
}

// knownVersion is a version of an object, in the bytes of the store.
type knownVersion struct {
	rev          uint64
	data, status []byte
}

func (i *informer) run(ctx context.Context) {
	delay := i.runtime.options.FirstRetry
	for ctx.Err() == nil {
		listed, err := i.follow(ctx)
		if listed {
			delay = i.runtime.options.FirstRetry
		}
		if ctx.Err() != nil {
			return
		}
		if listed && errors.Is(err, resource.Gone) {
			continue // the store has forgotten the revision
		}
		i.runtime.options.Log.Error().Err(err).Str("kind", i.kind).Dur("retry_in", delay).Msg("controllers can't follow their objects: they are listed again")
		backoff.Sleep(ctx, wait.Jitter(delay, jitter))
		delay = min(2*delay, i.runtime.options.LastRetry)
	}
}

// follow lists the kind and then watches it. listed says whether the list was whole.
func (i *informer) follow(ctx context.Context) (listed bool, err error) {
	rev, err := i.list(ctx)
	if err != nil {
		return false, err
	}
	select {
	case <-i.listed:
	default:
		close(i.listed)
	}
	stream, err := i.runtime.options.Watcher.Watch(ctx, store.Key{Kind: i.kind}, rev)
	if err != nil {
		return true, err
	}
	defer stream.Close()
	for {
		events, err := stream.Next(ctx)
		if err != nil {
			return true, err
		}
		for _, e := range events {
			if e.Type == store.Deleted {
				i.tell(e.Object.Key, nil)
			} else {
				i.tell(e.Object.Key, &e.Object)
			}
		}
	}
}

// list tells what is other than it was known, and returns the revision of that.
func (i *informer) list(ctx context.Context) (rev uint64, err error) {
	missing := maps.Clone(i.known)
	for opts := (store.ListOptions{Limit: pageSize, DataOnly: !i.status}); ; {
		page, err := i.runtime.options.Reader.List(ctx, i.kind, opts)
		if err != nil {
			return 0, err
		}
		for _, o := range page.Items {
			delete(missing, o.Key)
			i.tell(o.Key, &o)
			opts.After = o.Key
		}
		if rev, opts.Rev = page.Rev, page.Rev; page.More == 0 || len(page.Items) == 0 {
			break
		}
	}
	for key := range missing {
		i.tell(key, nil)
	}
	return rev, nil
}

// tell tells of a version; nil: the object is deleted.
func (i *informer) tell(key store.Key, now *store.Object) {
	var before *store.Object
	if v, ok := i.known[key]; ok {
		before = &store.Object{Key: key, Rev: v.rev, Data: v.data, Status: v.status}
	}
	if now != nil && !i.status {
		now.Status = nil
	}
	switch {
	case now == nil && before == nil, now != nil && before != nil && now.Rev == before.Rev:
		return
	case now == nil:
		delete(i.known, key)
	default:
		i.known[key] = knownVersion{now.Rev, now.Data, now.Status}
	}
	for _, x := range i.indexes {
		i.runtime.survive(key, func() { x.Change(before, now) })
	}
	for _, watch := range i.watches {
		i.runtime.survive(key, func() { watch(before, now) })
	}
}

// survive calls what says which keys an object concerns, and survives that it panics: that concerns this object alone.
func (r *Runtime) survive(key store.Key, call func()) {
	defer r.surviveOf(key)
	call()
}

// surviveOf is deferred by who survives.
func (r *Runtime) surviveOf(key store.Key) {
	if p := recover(); p != nil {
		r.options.Log.Error().Str("key", key.String()).Str("panic", fmt.Sprint(p)).Bytes("stack", debug.Stack()).Msg("a controller panicked at an object, which concerns nobody until it changes")
	}
}
