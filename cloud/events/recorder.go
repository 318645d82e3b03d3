// SPDX-License-Identifier: Apache-2.0

// Package events records what happens to objects as Events, which are kept for some days.
//
// There is one Event for each object, reason and part of the object: what happens again raises its count. The name of an
// Event is a hash of these, so nothing has to be remembered, not even over a restart. Record never blocks and never
// fails: an Event that can't be written is tried again, and one that there is no room for is dropped and counted.
package events

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options are what a Recorder needs. Zero fields take the defaults.
type Options struct {
	Reader store.Reader
	Writer store.Writer
	Log    zerolog.Logger
	Now    func() time.Time
	// Component is the name of the program that records.
	Component string
	// Keep is how long an Event is kept after its last occurrence, and Most how many Events are kept. If there are more, those go that
	// the nodes have which have most: one node's Events never push out all others'.
	Keep time.Duration
	Most int
	// Every is the interval of writes. An object's Events are written Burst times at once and then once each Pace:
	// occurrences in between are counted together.
	Every, Pace time.Duration
	Burst       int
	// Waiting is how many different Events may wait to be written, shared as Most is.
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
	concurrentWrites = 16               // at a time: they share commits of the store
	uidWait          = 10 * time.Second // for an object that does not exist yet, such as the Node of a core that has just joined
	trimEvery        = time.Minute
	maxMessage       = 1024 // bytes
)

// Recorder records Events.
type Recorder struct {
	o Options

	mu      sync.Mutex
	pending map[eventKey]*pendingEvent
	waiting map[eventSource]int // of pending
	limits  map[objectRef]*sourceLimit

	created int // Events since the last trim
	failing bool

	written, dropped atomic.Uint64
}

type objectRef struct{ kind, namespace, name string }

// eventKey identifies an Event. Those of a deleted object differ from those of its successor.
type eventKey struct {
	objectRef
	uid, reason, about string
}

// eventSource is who Events are of, and among whom their number is shared: a node, or a kind of objects that the hub sees itself.
type eventSource struct{ node, kind string }

func eventSourceOf(kind, name, node string) eventSource {
	switch {
	case node != "":
		return eventSource{node: node}
	case kind == resource.KindNode:
		return eventSource{node: name}
	}
	return eventSource{kind: kind}
}

func (p *pendingEvent) source() eventSource { return eventSourceOf(p.Kind, p.Name, p.Node) }

// pendingEvent is what is to be written to an Event.
type pendingEvent struct {
	resource.Occurrence
	count       int
	first, last time.Time
}

// sourceLimit is a token bucket: how many writes an object has left. Writes that fail are given back.
type sourceLimit struct {
	writes float64
	at     time.Time
}

// New makes a Recorder, which writes nothing before Run.
func New(o Options) *Recorder {
	o.setDefaults()
	return &Recorder{o: o, pending: make(map[eventKey]*pendingEvent), waiting: make(map[eventSource]int), limits: make(map[objectRef]*sourceLimit)}
}

// Record records an occurrence. It may be called from any goroutine, and never blocks.
func (r *Recorder) Record(o resource.Occurrence) {
	if len(o.Message) > maxMessage {
		o.Message = strings.ToValidUTF8(o.Message[:maxMessage], "") + "…"
	}
	k := eventKey{objectRef{o.Kind, o.Namespace, o.Name}, o.UID, o.Reason, o.About}
	now := r.o.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pending[k]
	if p == nil {
		p = &pendingEvent{Occurrence: o, first: now}
		if !r.hold(k, p) {
			r.dropped.Add(1)
			return
		}
	}
	o.Node = p.Node // it counts as that of who was first
	p.Occurrence, p.last = o, now
	p.count++
}

// hold has an Event wait. If there is no room, one goes of the source that has most; false: that is its own. r.mu is held.
func (r *Recorder) hold(k eventKey, p *pendingEvent) bool {
	if len(r.pending) >= r.o.Waiting {
		own := r.waiting[p.source()]
		for other, p := range r.pending { // the one that has most is met soon
			if s := p.source(); r.waiting[s] > own+1 && r.waiting[s] >= r.o.Waiting/len(r.waiting) {
				r.dropped.Add(uint64(p.count))
				r.release(other, p)
				break
			}
		}
		if len(r.pending) >= r.o.Waiting {
			return false
		}
	}
	r.pending[k] = p
	r.waiting[p.source()]++
	return true
}

// release takes an Event out of those that wait. r.mu is held.
func (r *Recorder) release(k eventKey, p *pendingEvent) {
	delete(r.pending, k)
	if s := p.source(); r.waiting[s] > 1 {
		r.waiting[s]--
	} else {
		delete(r.waiting, s)
	}
}

// Run writes Events until ctx ends, and then those that still wait.
func (r *Recorder) Run(ctx context.Context) error {
	tick, trim := time.NewTicker(r.o.Every), time.NewTicker(trimEvery)
	defer tick.Stop()
	defer trim.Stop()
	r.trim(ctx)
	for {
		select {
		case <-tick.C:
			r.write(ctx, r.due(false))
			if r.created > r.o.Most/8 {
				r.trim(ctx)
			}
		case <-trim.C:
			r.trim(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			r.write(last, r.due(true))
			return nil
		}
	}
}

// due removes and returns what may be written now.
func (r *Recorder) due(all bool) map[eventKey]*pendingEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, out := r.o.Now(), make(map[eventKey]*pendingEvent)
	for k, p := range r.pending {
		if all || r.allow(k.objectRef, now) {
			out[k] = p
			r.release(k, p)
		}
	}
	for o, l := range r.limits {
		if now.Sub(l.at) > time.Duration(r.o.Burst)*r.o.Pace { // is full again
			delete(r.limits, o)
		}
	}
	return out
}

func (r *Recorder) allow(o objectRef, now time.Time) bool {
	l := r.limits[o]
	if l == nil {
		l = &sourceLimit{writes: float64(r.o.Burst), at: now}
		r.limits[o] = l
	}
	l.writes = min(l.writes+max(now.Sub(l.at).Seconds(), 0)/r.o.Pace.Seconds(), float64(r.o.Burst))
	l.at = now
	if l.writes < 1 {
		return false
	}
	l.writes--
	return true
}

// requeue puts events back that were not written, and merges those that occurred meanwhile.
func (r *Recorder) requeue(k eventKey, p *pendingEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.limits[k.objectRef]; l != nil {
		l.writes++
	}
	if later := r.pending[k]; later != nil {
		later.first = p.first
		later.count += p.count
		return
	}
	if !r.hold(k, p) {
		r.dropped.Add(uint64(p.count))
	}
}

var errNoObject = errors.New("the object does not exist yet")

// write writes Events, some at a time. After a failure of the store the rest of them are not tried.
func (r *Recorder) write(ctx context.Context, all map[eventKey]*pendingEvent) {
	var created atomic.Int64
	group, unless := errgroup.WithContext(context.WithoutCancel(ctx))
	group.SetLimit(concurrentWrites)
	for k, p := range all {
		group.Go(func() error {
			if unless.Err() != nil {
				r.requeue(k, p)
				return nil
			}
			isNew, err := r.writeOne(ctx, k, p)
			if err != nil {
				r.requeue(k, p)
				if errors.Is(err, errNoObject) || errors.Is(err, resource.Conflict) {
					return nil
				}
				return err
			}
			r.written.Add(1)
			if isNew {
				created.Add(1)
			}
			return nil
		})
	}
	err := group.Wait()
	r.created += int(created.Load())
	if len(all) > 0 {
		r.logFailure(err)
	}
}

// logFailure logs the first failure, and the end of it.
func (r *Recorder) logFailure(err error) {
	switch failing := err != nil; {
	case failing == r.failing:
	case failing:
		r.o.Log.Warn().Err(err).Msg("events can't be written: trying again")
	default:
		r.o.Log.Info().Msg("events can be written again")
	}
	r.failing = err != nil
}

// writeOne updates an Event, or creates it.
func (r *Recorder) writeOne(ctx context.Context, k eventKey, n *pendingEvent) (created bool, err error) {
	if n.UID == "" {
		if n.UID, err = r.uid(ctx, k); err != nil {
			return false, err
		}
		if n.UID == "" && r.o.Now().Sub(n.first) < uidWait {
			return false, errNoObject
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
	var e storedEvent
	if err := json.Unmarshal(old.Data, &e); err != nil {
		e = r.event(at, n) // replaces one that can't be read
		e.Spec.Count = 0
	}
	last := wholeSeconds(n.last)
	e.Spec.Count, e.Spec.LastTimestamp, e.Spec.Message, e.Spec.Type = e.Spec.Count+n.count, &last, n.Message, n.Type
	data, err := json.Marshal(e)
	if err == nil {
		_, err = r.o.Writer.Update(ctx, store.Object{Key: at, Data: data}, old.Rev)
	}
	return false, err
}

// storedEvent is an Event in the form of the store: all objects have metadata and spec there.
type storedEvent struct {
	resource.TypeMeta
	Metadata resource.Meta         `json:"metadata"`
	Spec     resource.EventContent `json:"spec"`
}

func (r *Recorder) event(at store.Key, n *pendingEvent) storedEvent {
	first, last := wholeSeconds(n.first), wholeSeconds(n.last)
	of := resource.ObjectReference{
		APIVersion: resource.APIVersion, Kind: n.Kind, Namespace: n.Namespace, Name: n.Name, UID: n.UID,
	}
	return storedEvent{
		TypeMeta: resource.TypeMeta{APIVersion: "v1", Kind: resource.KindEvent},
		Metadata: resource.Meta{Name: at.Name, Namespace: at.Namespace, UID: resource.NewUID(), CreationTimestamp: &first},
		Spec: resource.EventContent{
			InvolvedObject: of, Type: n.Type, Reason: n.Reason, Message: n.Message, Count: n.count,
			FirstTimestamp: &first, LastTimestamp: &last, EventTime: &resource.MicroTime{Time: first},
			Source: resource.EventSource{Component: r.o.Component, Host: n.Node}, ReportingComponent: r.o.Component,
		},
	}
}

func wholeSeconds(t time.Time) time.Time { return t.UTC().Truncate(time.Second) } // as Kubernetes writes them

// uid is the UID of the object, or empty if there is none.
func (r *Recorder) uid(ctx context.Context, k eventKey) (string, error) {
	o, err := r.o.Reader.Get(ctx, store.Key{Kind: k.kind, Namespace: k.namespace, Name: k.name})
	if errors.Is(err, resource.NotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var uid string
	err = json.Unmarshal(rawjson.Field(rawjson.Field(o.Data, "metadata"), "uid"), &uid)
	return uid, err
}

// eventName is the name of the Event of a key.
func eventName(k eventKey, uid string) string {
	sum := sha256.New()
	for _, part := range []string{k.kind, k.namespace, k.name, uid, k.reason, k.about} {
		_, _ = sum.Write(append([]byte(part), 0)) // a hash never fails
	}
	return k.name[:min(len(k.name), 200)] + "." + hex.EncodeToString(sum.Sum(nil)[:8])
}

// trim deletes Events that are too old, and if there are too many, the oldest ones of the sources that have most. Revisions have the
// order of the last occurrences, since each occurrence is a write.
func (r *Recorder) trim(ctx context.Context) {
	r.created = 0
	page, err := r.o.Reader.List(ctx, resource.KindEvent, store.ListOptions{})
	if err != nil {
		return // until the next trim
	}
	list := page.Items
	slices.SortFunc(list, func(a, b store.Object) int { return cmp.Compare(a.Rev, b.Rev) })
	oldest := r.o.Now().Add(-r.o.Keep)
	young := slices.IndexFunc(list, func(o store.Object) bool { return !lastBefore(o, oldest) })
	if young < 0 {
		young = len(list)
	}
	var group errgroup.Group
	group.SetLimit(concurrentWrites)
	for _, o := range append(list[:young:young], beyondShares(list[young:], r.o.Most)...) {
		group.Go(func() error {
			_, _ = r.o.Writer.Delete(ctx, o.Key, o.Rev) // an Event that has occurred again stays; else until the next trim
			return nil
		})
	}
	_ = group.Wait()
}

// beyondShares are the Events, the oldest first, that have to go so that at most so many are left: of the sources that have more than an
// equal share of what others leave.
func beyondShares(list []store.Object, most int) (gone []store.Object) {
	if len(list) <= most {
		return nil
	}
	sources, counts := make([]eventSource, len(list)), make(map[eventSource]int)
	for i, o := range list {
		var e storedEvent
		_ = json.Unmarshal(o.Data, &e) // those that can't be read are one source
		sources[i] = eventSourceOf(e.Spec.InvolvedObject.Kind, e.Spec.InvolvedObject.Name, e.Spec.Source.Host)
		counts[sources[i]]++
	}
	left, share := most, 0
	for i, n := range slices.Sorted(maps.Values(counts)) {
		if share = left / (len(counts) - i); n > share {
			break // nor has any of the rest less
		}
		left -= n
	}
	for i, o := range list {
		if len(gone) < len(list)-most && counts[sources[i]] > share {
			counts[sources[i]]--
			gone = append(gone, o)
		}
	}
	return gone
}

// lastBefore reports whether the last occurrence of an Event was before a time.
func lastBefore(o store.Object, oldest time.Time) bool {
	var e storedEvent
	if json.Unmarshal(o.Data, &e) != nil {
		return true
	}
	last := cmp.Or(e.Spec.LastTimestamp, e.Metadata.CreationTimestamp)
	return last == nil || last.Before(oldest)
}

// Stats are counts since the start.
type Stats struct {
	Written, Dropped uint64
	Waiting          int
}

// Stats returns the counts.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Stats{Written: r.written.Load(), Dropped: r.dropped.Load(), Waiting: len(r.pending)}
}
