// Package events keeps what happened to objects for a while, for people who ask why.
//
// There is one Event for each reason and part of an object: what happens again raises its
// count. Its name says so, hence nothing need be remembered, also not over a restart.
// Whoever tells of something is never kept waiting, and never hears of a failure: an Event that
// can't be written is tried again, and what there is no room for is dropped and counted.
package events

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options are what a Recorder needs. Zero fields take the defaults.
type Options struct {
	Reader store.Reader
	Writer store.Writer
	Log    zerolog.Logger
	Now    func() time.Time
	// Component is the program that sees things happen.
	Component string
	// Keep is how long an Event is kept after it happened last, and Most how many are.
	Keep time.Duration
	Most int
	// Every is how often what was told is written. An object gets Burst writes at once and then one each Pace: what
	// happens to it meanwhile is told together.
	Every, Pace time.Duration
	Burst       int
	// Waiting is how many different Events may wait to be written.
	Waiting int
}

func (o *Options) setDefaults() {
	o.Component = cmp.Or(o.Component, "cloudhub")
	o.Keep = cmp.Or(o.Keep, 7*24*time.Hour)
	o.Most = cmp.Or(o.Most, 10_000)
	o.Every = cmp.Or(o.Every, 250*time.Millisecond)
	o.Pace = cmp.Or(o.Pace, 10*time.Second)
	o.Burst = cmp.Or(o.Burst, 20)
	o.Waiting = cmp.Or(o.Waiting, 4096)
	if o.Now == nil {
		o.Now = time.Now
	}
}

const (
	writers   = 16               // that share commits
	patience  = 10 * time.Second // for an object that is not there yet, such as the Node of one that has just joined
	trimEvery = time.Minute
	longest   = 1024 // bytes of a message
)

// Recorder writes Events.
type Recorder struct {
	o Options

	mu      sync.Mutex
	waiting map[key]*note
	allowed map[object]*allowance

	fresh   int // Events made since the last trim
	failing bool

	written, dropped atomic.Uint64
}

type object struct{ kind, namespace, name string }

// key is what has one Event. A deleted object's differ from those of its successor.
type key struct {
	object
	uid, reason, about string
}

// note is what is to be written of a key.
type note struct {
	resource.Occurrence
	count       int
	first, last time.Time
}

// allowance is how many writes an object may have now.
type allowance struct {
	writes float64
	at     time.Time
}

// New makes a Recorder. Nothing is written before Run.
func New(o Options) *Recorder {
	o.setDefaults()
	return &Recorder{o: o, waiting: make(map[key]*note), allowed: make(map[object]*allowance)}
}

// Tell takes note of something. It may be called from any goroutine, and never waits.
func (r *Recorder) Tell(h resource.Occurrence) {
	if len(h.Message) > longest {
		h.Message = strings.ToValidUTF8(h.Message[:longest], "") + "…"
	}
	k := key{object{h.Kind, h.Namespace, h.Name}, h.UID, h.Reason, h.About}
	now := r.o.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.waiting[k]
	if n == nil {
		if len(r.waiting) >= r.o.Waiting {
			r.dropped.Add(1)
			return
		}
		n = &note{first: now}
		r.waiting[k] = n
	}
	n.Occurrence, n.last = h, now
	n.count++
}

// Run writes what it is told until ctx ends, and then what still waits.
func (r *Recorder) Run(ctx context.Context) error {
	tick, trim := time.NewTicker(r.o.Every), time.NewTicker(trimEvery)
	defer tick.Stop()
	defer trim.Stop()
	r.trim(ctx)
	for {
		select {
		case <-tick.C:
			r.write(ctx, r.take(false))
			if r.fresh > r.o.Most/8 {
				r.trim(ctx)
			}
		case <-trim.C:
			r.trim(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			r.write(last, r.take(true))
			return nil
		}
	}
}

// take gives what may be written now.
func (r *Recorder) take(all bool) map[key]*note {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, out := r.o.Now(), make(map[key]*note)
	for k, n := range r.waiting {
		if all || r.allow(k.object, now) {
			out[k] = n
			delete(r.waiting, k)
		}
	}
	for o, a := range r.allowed { // one that may have all again need not be remembered
		if now.Sub(a.at) > time.Duration(r.o.Burst)*r.o.Pace {
			delete(r.allowed, o)
		}
	}
	return out
}

func (r *Recorder) allow(o object, now time.Time) bool {
	a := r.allowed[o]
	if a == nil {
		a = &allowance{writes: float64(r.o.Burst), at: now}
		r.allowed[o] = a
	}
	a.writes = min(a.writes+max(now.Sub(a.at).Seconds(), 0)/r.o.Pace.Seconds(), float64(r.o.Burst))
	a.at = now
	if a.writes < 1 {
		return false
	}
	a.writes--
	return true
}

// again puts back what was not written. What happened meanwhile comes on top.
func (r *Recorder) again(k key, n *note) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.allowed[k.object]; a != nil {
		a.writes++
	}
	if later := r.waiting[k]; later != nil {
		later.first = n.first
		later.count += n.count
		return
	}
	if len(r.waiting) >= r.o.Waiting {
		r.dropped.Add(uint64(n.count))
		return
	}
	r.waiting[k] = n
}

var errEarly = errors.New("the object is not there yet")

// write writes notes, some at a time. After a failure the rest of them are not tried.
func (r *Recorder) write(ctx context.Context, notes map[key]*note) {
	var failed atomic.Pointer[error]
	var made atomic.Int64
	work := make(chan key)
	var wg sync.WaitGroup
	for range min(writers, len(notes)) {
		wg.Go(func() {
			for k := range work {
				if failed.Load() != nil {
					r.again(k, notes[k])
					continue
				}
				fresh, err := r.writeOne(ctx, k, notes[k])
				switch {
				case err == nil:
					r.written.Add(1)
				case errors.Is(err, errEarly), errors.Is(err, resource.Conflict):
					r.again(k, notes[k])
				default:
					failed.Store(&err)
					r.again(k, notes[k])
				}
				if fresh {
					made.Add(1)
				}
			}
		})
	}
	for k := range notes {
		work <- k
	}
	close(work)
	wg.Wait()
	r.fresh += int(made.Load())
	if len(notes) > 0 {
		r.say(failed.Load())
	}
}

// say says once that nothing can be written, and once that it can again.
func (r *Recorder) say(failed *error) {
	if failing := failed != nil; failing != r.failing {
		r.failing = failing
		if failing {
			r.o.Log.Warn().Err(*failed).Msg("events can't be written: trying again")
			return
		}
		r.o.Log.Info().Msg("events can be written again")
	}
}

// writeOne adds a note to its Event, or makes one.
func (r *Recorder) writeOne(ctx context.Context, k key, n *note) (fresh bool, err error) {
	if n.UID == "" {
		if n.UID, err = r.uid(ctx, k); err != nil {
			return false, err
		}
		if n.UID == "" && r.o.Now().Sub(n.first) < patience {
			return false, errEarly
		}
	}
	at := store.Key{Kind: resource.KindEvent, Namespace: cmp.Or(k.namespace, resource.DefaultNamespace), Name: eventName(k, n.UID)}
	old, err := r.o.Reader.Get(ctx, at)
	if errors.Is(err, resource.NotFound) {
		data, err := json.Marshal(r.event(at, n))
		if err == nil {
			_, err = r.o.Writer.Create(ctx, store.Object{Key: at, Data: data})
		}
		return err == nil, err
	}
	if err != nil {
		return false, err
	}
	var e stored
	if err := json.Unmarshal(old.Data, &e); err != nil {
		e = r.event(at, n) // one that can't be read is of no use to anybody
		e.Spec.Count = 0
	}
	last := seconds(n.last)
	e.Spec.Count, e.Spec.LastTimestamp, e.Spec.Message, e.Spec.Type = e.Spec.Count+n.count, &last, n.Message, n.Type
	data, err := json.Marshal(e)
	if err == nil {
		_, err = r.o.Writer.Update(ctx, store.Object{Key: at, Data: data}, old.Rev)
	}
	return false, err
}

// stored is an Event as the store has it: as all objects, with metadata and spec.
type stored struct {
	resource.TypeMeta
	Metadata resource.Meta         `json:"metadata"`
	Spec     resource.EventContent `json:"spec"`
}

func (r *Recorder) event(at store.Key, n *note) stored {
	first, last := seconds(n.first), seconds(n.last)
	of := resource.ObjectReference{
		APIVersion: resource.APIVersion, Kind: n.Kind, Namespace: n.Namespace, Name: n.Name, UID: n.UID,
	}
	return stored{
		TypeMeta: resource.TypeMeta{APIVersion: "v1", Kind: resource.KindEvent},
		Metadata: resource.Meta{Name: at.Name, Namespace: at.Namespace, UID: resource.NewUID(), CreationTimestamp: &first},
		Spec: resource.EventContent{
			InvolvedObject: of, Type: n.Type, Reason: n.Reason, Message: n.Message, Count: n.count,
			FirstTimestamp: &first, LastTimestamp: &last,
			Source: resource.EventSource{Component: r.o.Component}, ReportingComponent: r.o.Component,
		},
	}
}

func seconds(t time.Time) time.Time { return t.UTC().Truncate(time.Second) } // as Kubernetes writes them

// uid is that of the object as it is now; empty if there is none.
func (r *Recorder) uid(ctx context.Context, k key) (string, error) {
	o, err := r.o.Reader.Get(ctx, store.Key{Kind: k.kind, Namespace: k.namespace, Name: k.name})
	if errors.Is(err, resource.NotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var head struct {
		Metadata resource.Meta `json:"metadata"`
	}
	return head.Metadata.UID, json.Unmarshal(o.Data, &head)
}

// eventName is the same for what is counted together.
func eventName(k key, uid string) string {
	sum := sha256.New()
	for _, part := range []string{k.kind, k.namespace, k.name, uid, k.reason, k.about} {
		_, _ = sum.Write(append([]byte(part), 0)) // a hash never fails
	}
	return k.name[:min(len(k.name), 200)] + "." + hex.EncodeToString(sum.Sum(nil)[:8])
}

// trim drops the Events that are too old, and the oldest of too many. The last write of an Event
// is when it happened last: the store has them in that order.
func (r *Recorder) trim(ctx context.Context) {
	r.fresh = 0
	page, err := r.o.Reader.List(ctx, resource.KindEvent, store.ListOptions{})
	if err != nil {
		return // the next one mends it
	}
	list := page.Items
	slices.SortFunc(list, func(a, b store.Object) int { return cmp.Compare(a.Rev, b.Rev) })
	extra := len(list) - r.o.Most
	oldest := r.o.Now().Add(-r.o.Keep)
	work := make(chan store.Object)
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for o := range work {
				_, _ = r.o.Writer.Delete(ctx, o.Key, o.Rev) // one that happens again stays; otherwise the next trim drops it
			}
		})
	}
	for i, o := range list {
		if i >= extra && !over(o, oldest) {
			break
		}
		work <- o
	}
	close(work)
	wg.Wait()
}

// over says whether an Event happened last before a time.
func over(o store.Object, oldest time.Time) bool {
	var e stored
	if json.Unmarshal(o.Data, &e) != nil {
		return true
	}
	last := cmp.Or(e.Spec.LastTimestamp, e.Metadata.CreationTimestamp)
	return last == nil || last.Before(oldest)
}

// Stats are counts since the start, for metrics.
type Stats struct {
	Written, Dropped uint64
	Waiting          int
}

// Stats returns the counts.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Stats{Written: r.written.Load(), Dropped: r.dropped.Load(), Waiting: len(r.waiting)}
}
