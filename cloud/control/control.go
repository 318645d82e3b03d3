// SPDX-License-Identifier: Apache-2.0

// Package control runs controllers: functions that are called with the key of an object until the world is as that object
// says it should be.
//
// A controller is level-triggered: it is told which key to look at, never what changed, so it reads the present state and a
// missed event does no harm. It never sees two calls for one key at the same time. A controller whose Reconcile panics, blocks or
// fails does not stop another. One informer a kind (informer.go) follows its objects for all controllers.
package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Controller is one controller.
type Controller struct {
	Name string // in metrics and logs
	// Watches say which objects' changes concern which keys.
	Watches []Watch
	// Indexes are those that it uses; several controllers may use one.
	Indexes []Indexer
	// Sources add keys for reasons other than changes of objects. Each runs until its context ends.
	Sources []func(ctx context.Context, add func(keys ...store.Key))
	// Reconcile makes the world as the object with that key says, or does nothing if it is so already. The key's object may
	// not exist any more. again asks for another call after that time; 0: only when something changes. After an error the
	// key is tried again with back-off.
	Reconcile func(ctx context.Context, key store.Key) (again time.Duration, err error)
	// Workers is how many keys are reconciled at a time; 0: 1.
	Workers int
	// Timeout bounds one call; 0: a minute. Its context ends then.
	Timeout time.Duration
	// Pause is the least time between two calls for one key: all that changes meanwhile is seen by the next one. 0: none.
	Pause time.Duration
}

// Options are what a Runtime is made from.
type Options struct {
	Reader  store.Reader
	Watcher store.Watcher
	Metrics prometheus.Registerer
	Log     zerolog.Logger
	// FirstRetry and LastRetry bound the back-off of a key that fails; 0: 100 ms and 5 min.
	FirstRetry, LastRetry time.Duration
	// Grace is how long a call may go on after its context has ended when controllers stop; 0: 5 s.
	Grace time.Duration
}

const (
	firstRetry     = 100 * time.Millisecond
	lastRetry      = 5 * time.Minute
	defaultTimeout = time.Minute
	stopGrace      = 5 * time.Second
	pageSize       = 1000 // objects that are listed at a time
	jitter         = 0.2  // of each delay, so that what failed together is not tried again together
)

// Runtime runs controllers.
type Runtime struct {
	options Options
	results *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	waiting *prometheus.GaugeVec
}

// New makes a runtime and registers its metrics.
func New(o Options) *Runtime {
	o.FirstRetry = cmp.Or(o.FirstRetry, firstRetry)
	o.LastRetry = cmp.Or(o.LastRetry, lastRetry)
	o.Grace = cmp.Or(o.Grace, stopGrace)
	label := []string{"controller"}
	r := &Runtime{
		options: o,
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "edgebus_reconciles_total", Help: "Calls of controllers, by result: done, again (asked to be called later), error or panic.",
		}, []string{"controller", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "edgebus_reconcile_seconds", Help: "How long calls of controllers took.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9),
		}, label),
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "edgebus_reconciles_waiting", Help: "Keys that wait for a call of their controller.",
		}, label),
	}
	o.Metrics.MustRegister(r.results, r.seconds, r.waiting)
	return r
}

// Run runs controllers until the context ends, and returns when the last call has. Calls that are under way then have their
// contexts ended; one that doesn't end with its context is left behind after Options.Grace.
func (r *Runtime) Run(ctx context.Context, controllers ...Controller) error {
	informers := make(map[string]*informer)
	informerOf := func(kind string) *informer {
		if informers[kind] == nil {
			informers[kind] = &informer{kind: kind, runtime: r, known: make(map[store.Key]knownVersion), listed: make(chan struct{})}
		}
		return informers[kind]
	}
	var loops, feeds sync.WaitGroup
	listed := make(chan struct{})
	for _, c := range controllers {
		l := r.newLoop(c)
		for _, w := range c.Watches {
			i := informerOf(w.Kind)
			i.status = i.status || !w.DataOnly
			i.watches = append(i.watches, func(before, now *store.Object) {
				l.add(r.concernedBy(w, before, now))
			})
		}
		for _, x := range c.Indexes {
			i := informerOf(x.kind())
			i.status = i.status || x.usesStatus()
			if !slices.Contains(i.indexes, x) {
				i.indexes = append(i.indexes, x)
			}
		}
		loops.Go(func() { l.run(ctx, listed) })
	}
	for _, i := range informers {
		feeds.Go(func() { i.run(ctx) })
	}
	for _, i := range informers { // an index that isn't whole would say that something is missing
		select {
		case <-i.listed:
		case <-ctx.Done():
		}
	}
	close(listed)
	loops.Wait()
	r.await(&feeds, "the controllers' watches")
	return nil
}

// await waits until something ends, and no longer than Options.Grace.
func (r *Runtime) await(group *sync.WaitGroup, what string) {
	ended := make(chan struct{})
	go func() { group.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(r.options.Grace):
		r.options.Log.Error().Str("what", what).Dur("after", r.options.Grace).Msg("a controller did not end in time: the hub stops without it")
	}
}

// controllerLoop is one controller that runs.
type controllerLoop struct {
	Controller
	runtime *Runtime
	log     zerolog.Logger
	queue   workqueue.TypedRateLimitingInterface[store.Key]

	results *prometheus.CounterVec // by result
	seconds prometheus.Observer
	waiting prometheus.Gauge
}

func (r *Runtime) newLoop(c Controller) *controllerLoop {
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	label := prometheus.Labels{"controller": daemon.Label(c.Name)}
	results := r.results.MustCurryWith(label)
	for _, result := range []string{"done", "again", "error", "panic"} { // 0 is a figure, too
		results.WithLabelValues(result)
	}
	return &controllerLoop{
		Controller: c, runtime: r, log: r.options.Log.With().Str("controller", c.Name).Logger(),
		results: results, seconds: r.seconds.With(label), waiting: r.waiting.With(label),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[store.Key](r.options.FirstRetry, r.options.LastRetry)),
	}
}

// run runs a controller once all objects are listed.
func (l *controllerLoop) run(ctx context.Context, listed <-chan struct{}) {
	var group sync.WaitGroup
	for _, source := range l.Sources {
		group.Go(func() { source(ctx, func(keys ...store.Key) { l.add(keys) }) })
	}
	<-listed
	for range max(1, l.Workers) {
		group.Go(func() { l.work(ctx) })
	}
	<-ctx.Done()
	l.queue.ShutDown()
	l.runtime.await(&group, l.Name)
}

func (l *controllerLoop) add(keys []store.Key) {
	if len(keys) == 0 {
		return
	}
	for _, key := range keys {
		l.queue.Add(key)
	}
	l.waiting.Set(float64(l.queue.Len()))
}

// work reconciles one key after the other.
func (l *controllerLoop) work(ctx context.Context) {
	for {
		key, over := l.queue.Get()
		if over {
			return
		}
		l.reconcileKey(ctx, key)
		if l.Pause > 0 { // until it is done, the queue keeps a key that is added again, and hands it out once
			time.AfterFunc(l.Pause, func() { l.queue.Done(key) })
		} else {
			l.queue.Done(key)
		}
		l.waiting.Set(float64(l.queue.Len()))
	}
}

func (l *controllerLoop) reconcileKey(ctx context.Context, key store.Key) {
	if ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithTimeout(ctx, l.Timeout)
	defer stop()
	began := time.Now()
	again, err := l.reconcileRecovered(ctx, key)
	l.seconds.Observe(time.Since(began).Seconds())
	result := "done"
	var p *panicError
	switch {
	case err == nil && again > 0:
		result = "again"
		l.queue.Forget(key)
		l.queue.AddAfter(key, wait.Jitter(again, jitter))
	case err == nil:
		l.queue.Forget(key)
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled):
		return // the hub stops: the key is looked at when it starts again
	case errors.As(err, &p):
		result = "panic"
		l.log.Error().Str("key", key.String()).Str("panic", p.text).Bytes("stack", p.stack).Msg("a controller panicked: the key is tried again")
		l.queue.AddRateLimited(key)
	case errors.Is(err, resource.Conflict):
		result = "error"
		l.log.Debug().Err(err).Str("key", key.String()).Msg("somebody else wrote first: the key is tried again")
		l.queue.AddRateLimited(key)
	default:
		result = "error"
		l.log.Warn().Err(err).Str("key", key.String()).Int("failures", l.queue.NumRequeues(key)+1).Msg("a controller failed: the key is tried again")
		l.queue.AddRateLimited(key)
	}
	l.results.WithLabelValues(result).Inc()
}

// panicError is a panic as an error.
type panicError struct {
	text  string
	stack []byte
}

func (p *panicError) Error() string { return "panic: " + p.text }

// recoverPanic is deferred, and turns a panic into an error.
func recoverPanic(err *error) {
	if p := recover(); p != nil {
		*err = &panicError{text: fmt.Sprint(p), stack: debug.Stack()}
	}
}

// reconcileRecovered turns a panic into an error: one object that breaks a controller must not end the hub.
func (l *controllerLoop) reconcileRecovered(ctx context.Context, key store.Key) (again time.Duration, err error) {
	defer recoverPanic(&err)
	return l.Reconcile(ctx, key)
}

// UntilTime is how long a controller waits for a time of the clock: a minute at most, then it looks again, since somebody may set the clock.
func UntilTime(at, now time.Time) time.Duration { return min(at.Sub(now.Round(0)), time.Minute) }
