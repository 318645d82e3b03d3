// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"context"
	"encoding/gob"
	"errors"
	"io"
	"iter"
	"net"
	"time"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	feedPage   = 500              // objects that are listed at a time
	frameBytes = 1 << 20          // of events in one frame, but for one that has more by itself
	writeTime  = 30 * time.Second // for the other hub to take a frame
)

// question begins a stream of the hub that asks.
type question struct {
	Kind string
	From uint64 // it has what there was at this revision; 0: nothing
}

// frame is what the owner tells.
type frame struct {
	Owner  uint64 // the process that tells it
	Listed bool   // the events are objects of a list, which replaces what there was once it is Whole
	Whole  bool
	Rev    uint64 // there is everything up to here
	// More follows of what the owner has had since. Of an object that has changed again there is nothing yet, not even that it was made.
	More   bool
	Events []store.Event
}

// parts cuts a frame at frameBytes. There is everything up to its revision with the last part.
func (f frame) parts() iter.Seq[frame] {
	return func(yield func(frame) bool) {
		size, from := 0, 0
		for i, e := range f.Events {
			more := len(e.Object.Data) + len(e.Object.Status)
			if i > from && size+more > frameBytes {
				if !yield(frame{Listed: f.Listed, More: true, Events: f.Events[from:i]}) {
					return
				}
				size, from = 0, i
			}
			size += more
		}
		f.Events = f.Events[from:]
		yield(f)
	}
}

// Objects are a hub's.
type Objects interface {
	store.Reader
	store.Watcher
}

// OwnObjects are those of the hub that serves.
type OwnObjects interface {
	Objects
	Changed(kind string) (rev, changed uint64, objects int)
}

// Feed tells other hubs what objects of a kind there are.
type Feed struct {
	OwnObjects
	Owner uint64 // a number of this process's own
}

// Serve tells one other hub, until it leaves or ctx ends.
func (f Feed) Serve(ctx context.Context, conn net.Conn) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var q question
	if err := gob.NewDecoder(conn).Decode(&q); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, conn) // it says nothing more
		stop()
	}()
	out := gob.NewEncoder(conn)
	send := func(whole frame) error {
		for part := range whole.parts() {
			part.Owner = f.Owner
			_ = conn.SetWriteDeadline(time.Now().Add(writeTime)) // in tests there is none
			if err := out.Encode(part); err != nil {
				return err
			}
		}
		return nil
	}
	stream, err := f.begin(ctx, q, send)
	if err != nil {
		return err
	}
	defer stream.Close()
	var events []store.Event
	for err == nil {
		for i := range events {
			events[i].Old = nil
		}
		_, changed, _ := f.Changed(q.Kind)
		rev := stream.Rev()
		// At the beginning, too: the other hub is to know whom it hears.
		if err = send(frame{Rev: rev, More: rev < changed, Events: events}); err == nil {
			events, err = stream.Next(ctx)
		}
	}
	return err
}

// begin goes on from where the other hub is, or else lists everything.
func (f Feed) begin(ctx context.Context, q question, send func(frame) error) (store.Stream, error) {
	if q.From > 0 {
		stream, err := f.Watch(ctx, store.Key{Kind: q.Kind}, q.From)
		if !errors.Is(err, resource.Gone) {
			return stream, err
		}
	}
	for opts := (store.ListOptions{Limit: feedPage}); ; {
		page, err := f.List(ctx, q.Kind, opts)
		if err != nil {
			return nil, err
		}
		part := frame{Listed: true, Whole: page.More == 0, Rev: page.Rev}
		for _, o := range page.Items {
			part.Events = append(part.Events, store.Event{Type: store.Added, Object: o})
			opts.After = o.Key
		}
		if err := send(part); err != nil {
			return nil, err
		}
		if opts.Rev = page.Rev; part.Whole {
			return f.Watch(ctx, store.Key{Kind: q.Kind}, page.Rev)
		}
	}
}
