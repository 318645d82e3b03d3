// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

// Reports is a watch of what nodes own at the topics of one kind, for controllers: first of all that is there, then of what
// changes. Changes of a key are coalesced: a reader gets the latest value, and not every one.
type Reports struct {
	watches *reportWatches
	kind    topics.Kind

	mu      sync.Mutex
	changed map[treeKey]bool
	wake    chan struct{} // holds a value while changed has some
}

// Report is what a node has at a topic now.
type Report struct {
	topics.Address
	Value []byte // nil: nothing any more
	TS    int64  // when the node wrote it, in ms
}

// maxReports is how many reports Next returns at most, so that nodes don't wait long for a reader.
const maxReports = 512

// reportWatches are the watches that have begun.
type reportWatches struct {
	host  *tree.Host[*batch]
	nodes *nodes
	mu    sync.Mutex // of those that change them
	of    atomic.Pointer[map[topics.Kind][]*Reports]
}

// Reports begins a watch of a kind that the edge owns. It must be closed.
func (ws *reportWatches) Reports(kind topics.Kind) *Reports {
	r := &Reports{watches: ws, kind: kind, changed: make(map[treeKey]bool), wake: make(chan struct{}, 1)}
	prefix, _, _ := strings.Cut(kind.Row().Pattern, "{")
	ws.host.RLock() // no change comes between the list and the watch
	defer ws.host.RUnlock()
	for _, n := range ws.nodes.byName {
		n.up.Stored().Range(prefix, func(e link.Entry) bool {
			if a, ok := edgeOwned(n.name, e.Key); ok && a.Kind == kind {
				r.note(treeKey{n.name, e.Key})
			}
			return true
		})
	}
	ws.change(func(list []*Reports) []*Reports { return append(list, r) }, kind)
	return r
}

// Close ends the watch.
func (r *Reports) Close() {
	r.watches.change(func(list []*Reports) []*Reports {
		return slices.DeleteFunc(list, func(o *Reports) bool { return o == r })
	}, r.kind)
}

func (ws *reportWatches) change(change func([]*Reports) []*Reports, kind topics.Kind) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	next := make(map[topics.Kind][]*Reports)
	if now := ws.of.Load(); now != nil {
		maps.Copy(next, *now)
	}
	if next[kind] = change(slices.Clone(next[kind])); len(next[kind]) == 0 {
		delete(next, kind)
	}
	ws.of.Store(&next)
}

// note tells those that watch a kind that a key of it has changed.
func (ws *reportWatches) note(node string, kind topics.Kind, key string) {
	if of := ws.of.Load(); of != nil {
		for _, r := range (*of)[kind] {
			r.note(treeKey{node, key})
		}
	}
}

// Waiting is how many keys Next has not returned yet. When it is 0 for the first time, the reader has all that was there when the
// watch began.
func (r *Reports) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.changed)
}

func (r *Reports) note(at treeKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed[at] = true
	r.signal()
}

func (r *Reports) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Next waits for reports, and returns those that are there. Its only error is that of the context.
func (r *Reports) Next(ctx context.Context) ([]Report, error) {
	for {
		select {
		case <-r.wake:
			if list := r.take(); len(list) > 0 {
				return list, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take reads what has changed.
func (r *Reports) take() (list []Report) {
	r.watches.host.View(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for at := range r.changed {
			if len(list) == maxReports {
				r.signal()
				return
			}
			delete(r.changed, at)
			if a, err := topics.ParseKey(at.node, at.key); err == nil {
				list = append(list, r.watches.reportAt(a))
			}
		}
	})
	return list
}

// Report is what a node has at a topic that the edge owns.
func (ws *reportWatches) Report(at topics.Address) (r Report) {
	ws.host.View(func() { r = ws.reportAt(at) })
	return r
}

func (ws *reportWatches) reportAt(at topics.Address) Report {
	r := Report{Address: at}
	if n := ws.nodes.byName[at.Node]; n != nil {
		if e, ok := n.up.Stored().Get(at.Key()); ok {
			r.Value, r.TS = e.Value, e.TS
		}
	}
	return r
}
