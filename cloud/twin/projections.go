// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// Projection says which documents the objects of a kind put into the maps of nodes.
type Projection struct {
	Kind string
	// Documents returns what an object comes to, in the order in which nodes get it. It may read other objects, and is called
	// by several goroutines. If it fails, the documents that it returns are written, and those of before stay; it is called
	// again later. After a restart of the hub nodes lack what it has not returned: so a failure with one document must not
	// keep it from returning the others.
	Documents func(ctx context.Context, o store.Object) ([]Document, error)
}

// Document is the value of a key of a node's map down. A key of a node comes from one object only.
type Document struct {
	Node, Key string
	Value     []byte // shared with the caller: never modified
}

// check fails if the key is none that a projection may write.
func (d Document) check() error {
	a, err := topics.ParseKey(d.Node, d.Key)
	if err != nil {
		return err
	}
	if row := a.Kind.Row(); row.Owner != topics.OwnerCloud || !row.Retain || a.Name != "" || a.Kind == topics.KindDevice || a.Kind == topics.KindMembership {
		return fmt.Errorf("%s of node %s is no document of a projection", d.Key, d.Node)
	}
	return nil
}

// treeKey is a key of a node.
type treeKey struct{ node, key string }

// documents writes what objects of Options.Projections come to into the nodes' maps.
type documents struct {
	opts  *Options
	host  *tree.Host[*batch]
	nodes *nodes
	keys  map[store.Key]map[treeKey]bool // where the documents of each object are
}

// loadProjections puts the documents of all objects into the maps, before any node can connect: a node that connected earlier
// would delete what it has of them. What fails here is tried again by Project.
func (docs *documents) loadProjections(ctx context.Context, b *batch) error {
	for _, p := range docs.opts.Projections {
		page, err := docs.opts.Reader.List(ctx, p.Kind, store.ListOptions{})
		if err != nil {
			return err
		}
		prepareInOrder(page.Items, func(o store.Object) projectedDocuments { return p.make(ctx, o) },
			func(o store.Object, m projectedDocuments) { docs.putProjected(b, o.Key, m) })
	}
	return nil
}

// projectedDocuments is what an object comes to, and the error because of which it may not be all.
type projectedDocuments struct {
	documents []Document
	err       error
}

func (p Projection) make(ctx context.Context, o store.Object) (m projectedDocuments) {
	m.documents, m.err = p.Documents(ctx, o)
	for _, d := range m.documents {
		if err := d.check(); err != nil {
			return projectedDocuments{err: err}
		}
	}
	return m
}

// Project makes nodes' maps follow an object of one of Options.Projections as it is now; an object that doesn't exist has no
// documents. After an error it must be called again. It never asks to be called again without one.
func (docs *documents) Project(ctx context.Context, key store.Key) (again time.Duration, err error) {
	for _, p := range docs.opts.Projections {
		if p.Kind != key.Kind {
			continue
		}
		var m projectedDocuments
		switch o, err := docs.opts.Reader.Get(ctx, key); {
		case err == nil:
			m = p.make(ctx, o)
		case !errors.Is(err, resource.NotFound):
			return 0, err
		}
		if !docs.host.Put(tree.OwnSender, m.bytes(), func(b *batch) { docs.putProjected(b, key, m) }) {
			return 0, errStopped
		}
		return 0, m.err
	}
	return 0, fmt.Errorf("objects of the kind %s are not projected", key.Kind)
}

func (m projectedDocuments) bytes() (n int) {
	for _, d := range m.documents {
		n += len(d.Value)
	}
	return n
}

// putProjected writes an object's documents, and deletes those that it has no more unless some could not be made.
func (docs *documents) putProjected(b *batch, of store.Key, m projectedDocuments) {
	before, now := docs.keys[of], make(map[treeKey]bool, len(m.documents))
	for _, d := range m.documents {
		at := treeKey{d.Node, d.Key}
		n := docs.nodes.get(d.Node)
		if !before[at] && !now[at] {
			n.documentCount++
		}
		now[at] = true
		n.putDocument(b, d.Key, d.Value, "")
	}
	for at := range before {
		switch {
		case now[at]:
		case m.err != nil:
			now[at] = true
		default:
			docs.deleteProjected(b, at)
		}
	}
	delete(docs.keys, of)
	if len(now) > 0 {
		docs.keys[of] = now
	}
}

func (docs *documents) deleteProjected(b *batch, at treeKey) {
	n := docs.nodes.byName[at.node]
	n.documentCount--
	n.deleteDown(b, at.key)
	n.deleteParts(b, at.key, 0)
	docs.nodes.dropUnused(b, n)
}
