// SPDX-License-Identifier: Apache-2.0

// Package store defines the interfaces of the hub's object store. Each has at most three methods, so that a user states only what it
// needs. Backends are packages below it; package test/storetest has the tests that each of them must pass.
//
// It never interprets Data or Status.
//
// # Contract
//
// A revision is opaque: it is ordered within one kind and says nothing else.
// Events of one kind arrive in rising revision. Versions of an object may
// coalesce to the latest one. Every delete arrives, or the watch
// ends with Gone and the watcher must list again. There is no transaction over several objects. A
// write that is answered is on disk. When a write's outcome is unknown the error says so
// (ErrUnknown): read again and compare. A write that changes no byte is no
// write: it raises no revision and makes no event.
//
// Errors are *resource.Error; the kinds used here are NotFound, AlreadyExists,
// Conflict, Gone, Invalid, TooLarge and Unavailable.
package store

import (
	"cmp"
	"context"
	"io"
	"iter"
	"strings"
)

// Key names an object. Kind is the canonical kind, such as "Device". Namespace
// is empty for cluster-scoped kinds. Within a kind keys are ordered by
// namespace, then name.
type Key struct{ Kind, Namespace, Name string }

// String is for logs and messages: Device default/lamp.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Kind + " " + k.Name
	}
	return k.Kind + " " + k.Namespace + "/" + k.Name
}

// Compare orders keys the way List does.
func (k Key) Compare(o Key) int {
	if c := strings.Compare(k.Kind, o.Kind); c != 0 {
		return c
	}
	if c := strings.Compare(k.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(k.Name, o.Name)
}

// Object is what the store keeps. Data and Status are records of their own, so
// that a status can follow a busy device without its spec being rewritten. The
// bytes are shared with the store and other readers: never modify them.
type Object struct {
	Key
	Rev    uint64 // of the last write, of either record
	Data   []byte // JSON of metadata (without resourceVersion) and spec
	Status []byte // JSON of status; nil: there is none
}

// ListOptions choose what List returns. Its zero value is everything.
type ListOptions struct {
	Namespace string // "" is all of them
	Name      string // if set, this one of Namespace and no other
	Limit     int    // 0 is no limit
	// After and Rev continue an earlier page: the objects after that key, as they
	// were at that revision (Page.Rev).
	After Key
	Rev   uint64
	// DataOnly leaves out statuses, some of which are derived for whoever reads them.
	DataOnly bool
	// StatusOf chooses whose statuses are read, by objects without them, in their order; nil: everybody's.
	StatusOf func(Object) bool
	// Buffer is what statuses are appended to, by a caller who uses its memory again once they are read; nil: each has its own.
	Buffer *[]byte
	// Reader is who reads page by page: the revisions of one reader don't push out those of others.
	Reader string
}

// Page is what List returns.
type Page struct {
	Items []Object // in key order
	Rev   uint64   // everything in the list is as of this revision; watch from here
	More  int      // how many objects follow the last of Items
}

// Reader reads what was committed. A read that begins after a write was
// answered sees that write.
type Reader interface {
	Get(ctx context.Context, key Key) (Object, error)
	// List returns one kind's objects in key order. With Rev it answers as of that
	// revision, or Gone when it no longer can: begin again without.
	List(ctx context.Context, kind string, opts ListOptions) (Page, error)
}

// Writer writes one object at a time.
type Writer interface {
	// Create fails with AlreadyExists when the key is taken. Rev is ignored.
	Create(ctx context.Context, o Object) (Object, error)
	// Update replaces Data, Status or both; nil leaves that record as it is, and an
	// empty Status removes it. expect is the revision that the caller last saw;
	// another one is a Conflict that names both. 0 asks for none: no program of ours updates so, and deletes so only what has to go whatever it is
	// by now. It returns the whole object as stored.
	Update(ctx context.Context, o Object, expect uint64) (Object, error)
	// Delete removes the object and returns it as it last was, with the deletion's
	// own revision.
	Delete(ctx context.Context, key Key, expect uint64) (Object, error)
}

// DerivedStatuses are the statuses of a kind that follow from what is stored elsewhere. They are in memory alone: an object that
// gets another one has another revision and makes an event, as with any write, and nothing is written. After a restart a status
// is derived when it is read first, and the objects have other revisions: a watch that goes on from before has all of them. What follows in
// an object's Data is derived again by who wrote it: until then the object has the Data that was stored last.
type DerivedStatuses interface {
	// DeriveStatuses has the statuses of a kind derived by a function, which must not wait for a write. It is called before anybody
	// reads the kind who keeps what was read, but for its caller, who watches it from the revision that it returns, or writes it.
	DeriveStatuses(kind string, status func(Object) []byte) (rev uint64, err error)
	// UpdateDerived is Writer.Update of what is derived: of a status, or of Data that differs from what is stored in nothing else. After
	// Update of that record, which stores it, and until the next restart it is as good as stored. The first status that is written of an object
	// after a restart is a change in any case: nobody may have read the one before, which follows from the same.
	UpdateDerived(ctx context.Context, o Object, expect uint64) (Object, error)
}

// EventType says what happened to an object.
type EventType uint8

// The types of event.
const (
	Added EventType = iota + 1
	Modified
	Deleted
)

// String is the type in the words of a Kubernetes watch.
func (t EventType) String() string {
	return [...]string{"", "ADDED", "MODIFIED", "DELETED"}[t&3]
}

// Event is a change of one object. For Deleted, Object is the object as it
// last was, with the deletion's revision.
type Event struct {
	Type   EventType
	Object Object
	// Old is the object as this stream last returned it, or nil if the store no longer knows (after the stream has caught up
	// from an old revision).
	Old *Object
}

// Watcher follows a kind, or one object. A watch of one object costs nothing for writes of others.
type Watcher interface {
	// Watch streams every change of a kind, or of one object if of names one, after the revision from, which is a Page.Rev or
	// the revision of an object seen. It fails with Gone if from is too old, or not of this store: list
	// again. Close the stream when done.
	Watch(ctx context.Context, of Key, from uint64) (Stream, error)
}

// Stream is one watch. It is used by one goroutine, except Close.
type Stream interface {
	// Next waits for changes and returns those that are there, in order, at most some hundreds at once. A slow reader misses
	// intermediate versions, never the latest one, and never blocks writers. An error ends the stream: Gone, ctx's own, or
	// Unavailable when the store or the stream was closed.
	Next(ctx context.Context) ([]Event, error)
	// Rev is a revision up to which Next has returned everything, from which another watch can go on. It rises with the store,
	// also when nothing of this kind changes.
	Rev() uint64
	Close()
}

// ReplicaItem is a record of a replica: its key below the node's tree and the value,
// in an encoding of the caller's own.
type ReplicaItem struct {
	Key   string
	Value []byte
}

// NodeChange changes what one node's replica holds.
type NodeChange struct {
	Node string
	// Reset empties the replica first: meta and items.
	Reset bool
	// Meta is the replica's own record (lineage, applied); nil leaves it.
	Meta   []byte
	Put    []ReplicaItem
	Delete []string
	// Drop forgets the node altogether. Nothing else in the change counts.
	Drop bool
}

// Replica is all that is stored of one node.
type Replica struct {
	Node  string
	Meta  []byte
	Items []ReplicaItem // in key order
}

// Replicas keeps what nodes reported: for each node the "up" map. It is beside
// the objects and has no revisions, but shares their commits. It has one writer, the node's twin, which has in memory what it replaces.
type Replicas interface {
	// Commit makes the changes of several nodes durable, all or none of them. What
	// ErrUnknown says of writes holds here.
	Commit(ctx context.Context, changes []NodeChange) error
	// Load reads one node's replica; an empty one when there is none.
	Load(ctx context.Context, node string) (Replica, error)
	// All goes through every replica, in the order of node names; for startup.
	All(ctx context.Context) iter.Seq2[Replica, error]
}

// Store is what a backend implements. Users state smaller interfaces.
type Store interface {
	Reader
	Writer
	Watcher
	Replicas
	DerivedStatuses
	io.Closer
}

// All reads the objects of a kind as they are at one revision, a page at a time. After an error there is nothing more; Gone: the
// store has forgotten the revision meanwhile.
func All(ctx context.Context, r Reader, kind string, opts ListOptions) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		opts.Limit = cmp.Or(opts.Limit, 500)
		for {
			page, err := r.List(ctx, kind, opts)
			if err != nil {
				yield(Object{}, err)
				return
			}
			for _, o := range page.Items {
				if !yield(o, nil) {
					return
				}
				opts.After = o.Key
			}
			if opts.Rev = page.Rev; page.More == 0 {
				return
			}
		}
	}
}

// Put creates an object if expect is 0, and replaces it at that revision otherwise.
func Put(ctx context.Context, w Writer, o Object, expect uint64) error {
	if expect == 0 {
		_, err := w.Create(ctx, o)
		return err
	}
	_, err := w.Update(ctx, o, expect)
	return err
}
