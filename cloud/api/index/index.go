// SPDX-License-Identifier: Apache-2.0

// Package index answers which Devices and Nodes there are of which state, from memory: a list decodes each object that it looks at, which is
// too slow for a page that counts a hundred thousand of them.
//
// It follows the store, and never holds an object: of each it keeps what is counted, searched and sorted by. Start with Index.Find and
// Index.Count; fields.go says what is kept of which kind.
package index

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// retryInterval is how long a kind waits before it is read again after an error.
const retryInterval = time.Second

// Options are what an Index needs.
type Options struct {
	Reader  store.Reader
	Watcher store.Watcher
	Log     zerolog.Logger
}

// Index is what is known of the Devices and Nodes. Its methods may be called from any goroutine.
type Index struct {
	opts  Options
	kinds map[string]*kindIndex
}

// New makes an Index, empty. Run fills it and keeps it as the store is.
func New(o Options) *Index {
	x := &Index{opts: o, kinds: make(map[string]*kindIndex)}
	for kind, fields := range indexedFields {
		x.kinds[kind] = &kindIndex{kind: kind, fields: fields, entries: make(map[store.Key]*Entry), interned: make(map[string]string), wanted: make(chan struct{}), loaded: make(chan struct{})}
	}
	return x
}

// Run follows the store from the first question on until ctx ends: a hub that nobody asks reads nothing for it.
func (x *Index) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, k := range x.kinds {
		all.Go(func() {
			select {
			case <-k.wanted:
			case <-ctx.Done():
			}
			for ctx.Err() == nil {
				err := k.follow(ctx, x.opts)
				if ctx.Err() == nil && !errors.Is(err, resource.Gone) {
					x.opts.Log.Warn().Err(err).Str("kind", k.kind).Msg("the index can't follow the store; it is tried again in a second")
				}
				select {
				case <-ctx.Done():
				case <-time.After(retryInterval):
				}
			}
		})
	}
	all.Wait()
	return nil
}

// Has reports whether objects of a kind are in the index.
func (x *Index) Has(kind string) bool { return x.kinds[kind] != nil }

// kindIndex is the index of the objects of one kind.
type kindIndex struct {
	kind   string
	fields []field
	asked  sync.Once
	wanted chan struct{} // closed by the first question
	loaded chan struct{} // closed once the store's objects are in it

	mu       sync.RWMutex
	entries  map[store.Key]*Entry
	sorted   []*Entry          // by namespace and name; nil: to be sorted anew
	interned map[string]string // values and labels, of which most objects share theirs
	rev      uint64            // up to which the store's changes are in it
	poke     context.CancelFunc
}

// Entry is what is kept of an object. It is never changed.
type Entry struct {
	Key    store.Key
	Node   string   // that it belongs to
	values []string // of the kind's fields
	labels []string // names and values in turn, in the order of the names
	text   string   // what is searched, in lower case
}

// follow reads all objects of the kind, and follows their changes until ctx ends or the store has forgotten where it was.
func (k *kindIndex) follow(ctx context.Context, o Options) error {
	fresh := make(map[store.Key]*Entry)
	page, err := o.Reader.List(ctx, k.kind, store.ListOptions{})
	if err != nil {
		return err
	}
	k.mu.Lock()
	for _, object := range page.Items {
		fresh[object.Key] = k.entry(object)
	}
	k.entries, k.sorted, k.rev = fresh, nil, page.Rev
	k.mu.Unlock()
	stream, err := o.Watcher.Watch(ctx, store.Key{Kind: k.kind}, page.Rev)
	if err != nil {
		return err
	}
	defer stream.Close()
	select {
	case <-k.loaded:
	default:
		close(k.loaded)
	}
	for {
		if err := k.take(ctx, stream); err != nil {
			return err
		}
	}
}

// take waits for changes and takes them in. A reader who has seen a newer revision ends the wait, to learn that nothing of this kind has
// changed up to it.
func (k *kindIndex) take(ctx context.Context, stream store.Stream) error {
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	k.mu.Lock()
	k.poke = cancel
	k.mu.Unlock()
	events, err := stream.Next(wait)
	if err != nil && (wait.Err() == nil || ctx.Err() != nil) {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range events {
		if e.Type == store.Deleted {
			delete(k.entries, e.Object.Key)
			k.sorted = nil
			continue
		}
		k.put(k.entry(e.Object))
	}
	k.rev = max(k.rev, stream.Rev())
	return nil
}

// put puts an entry in the place of the one before.
func (k *kindIndex) put(e *Entry) {
	before := k.entries[e.Key]
	k.entries[e.Key] = e
	if before == nil {
		k.sorted = nil
	}
	if k.sorted != nil {
		at, _ := slices.BinarySearchFunc(k.sorted, before, compareKeys)
		k.sorted[at] = e
	}
}

func compareKeys(a, b *Entry) int {
	if c := strings.Compare(a.Key.Namespace, b.Key.Namespace); c != 0 {
		return c
	}
	return strings.Compare(a.Key.Name, b.Key.Name)
}

// intern returns one copy of a text. What many objects have is kept once.
func (k *kindIndex) intern(text string) string {
	const most = 10_000 // of texts: what each object has for itself isn't worth a place
	if one, ok := k.interned[text]; ok {
		return one
	}
	text = strings.Clone(text) // not a piece of the whole object
	if len(k.interned) < most {
		k.interned[text] = text
	}
	return text
}

// catchUp waits until what the store has committed before is in the index.
func (x *Index) catchUp(ctx context.Context, k *kindIndex) error {
	k.asked.Do(func() { close(k.wanted) })
	select {
	case <-k.loaded:
	case <-ctx.Done():
		return ctx.Err()
	}
	page, err := x.opts.Reader.List(ctx, k.kind, store.ListOptions{Limit: 1, DataOnly: true})
	if err != nil {
		return err
	}
	const patience = 2 * time.Second // then it is answered as of a moment ago
	for end := time.Now().Add(patience); time.Now().Before(end) && ctx.Err() == nil; {
		k.mu.RLock()
		done, poke := k.rev >= page.Rev, k.poke
		k.mu.RUnlock()
		if done {
			return nil
		}
		if poke != nil {
			poke()
		}
		time.Sleep(100 * time.Microsecond) // the goroutine that follows the store needs no longer for what it has not taken in
	}
	return ctx.Err()
}

// ordered are the entries by namespace and name. The list must not be changed.
func (k *kindIndex) ordered() ([]*Entry, uint64) {
	k.mu.RLock()
	list, rev := k.sorted, k.rev
	if list != nil {
		list = slices.Clone(list)
	}
	k.mu.RUnlock()
	if list != nil {
		return list, rev
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sorted == nil {
		k.sorted = make([]*Entry, 0, len(k.entries))
		for _, e := range k.entries {
			k.sorted = append(k.sorted, e)
		}
		slices.SortFunc(k.sorted, compareKeys)
	}
	return slices.Clone(k.sorted), k.rev
}
