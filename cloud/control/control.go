// Package control runs controllers: functions that are called with the key of an object until the world is as that object
// says it should be.
//
// A controller is level-triggered: it is told which key to look at, never what changed, so it reads the present state and a
// missed event does no harm. It never sees two calls for one key at the same time. A controller that panics, blocks or fails
// does not stop another.
package control

import (
	"bytes"
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

// Watch is one kind whose changes concern a controller.
type Watch struct {
	Kind string
	// Keys are the keys that an object concerns; nil: its own. Of a changed object it is asked with the old version, too,
	// where that is known. Of an object that was deleted while the stream was away it is asked with the key alone, as all else is
	// forgotten; the keys that it returned before are looked at as well.
	Keys func(o store.Object) []store.Key
	// DataOnly leaves out changes of the status alone.
	DataOnly bool
	// Same leaves out changes to a version that is the same to the controller; nil: none is.
	Same func(before, now store.Object) bool
}

// concerns reports whether a change is one that the controller looks at.
func (w Watch) concerns(e store.Event) bool {
	if e.Type != store.Modified || e.Old == nil {
		return true
	}
	return (!w.DataOnly || !bytes.Equal(e.Old.Data, e.Object.Data)) && (w.Same == nil || !w.Same(*e.Old, e.Object))
}

func (w Watch) keys(o store.Object) []store.Key {
	if w.Keys == nil {
		return []store.Key{o.Key}
	}
	return w.Keys(o)
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
	var all sync.WaitGroup
	for _, c := range controllers {
		all.Go(func() { r.newLoop(c).run(ctx) })
	}
	all.Wait()
	return nil
}

// controllerLoop is one controller that runs.
type controllerLoop struct {
	Controller
	runtime *Runtime
	log     zerolog.Logger
	queue   workqueue.TypedRateLimitingInterface[store.Key]
}

func (r *Runtime) newLoop(c Controller) *controllerLoop {
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	for _, result := range []string{"done", "again", "error", "panic"} { // 0 is a figure, too
		r.results.WithLabelValues(daemon.Label(c.Name), result)
	}
	r.seconds.WithLabelValues(daemon.Label(c.Name))
	r.waiting.WithLabelValues(daemon.Label(c.Name))
	return &controllerLoop{
		Controller: c, runtime: r, log: r.options.Log.With().Str("controller", c.Name).Logger(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[store.Key](r.options.FirstRetry, r.options.LastRetry)),
	}
}

func (l *controllerLoop) run(ctx context.Context) {
	var feeds, workers sync.WaitGroup
	for _, w := range l.Watches {
		feeds.Go(func() { l.feed(ctx, w) })
	}
	for _, source := range l.Sources {
		feeds.Go(func() { source(ctx, func(keys ...store.Key) { l.add(keys) }) })
	}
	for range max(1, l.Workers) {
		workers.Go(func() { l.work(ctx) })
	}
	<-ctx.Done()
	l.queue.ShutDown()
	ended := make(chan struct{})
	go func() { feeds.Wait(); workers.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(l.runtime.options.Grace):
		l.log.Error().Dur("after", l.runtime.options.Grace).Msg("a controller did not end in time: the hub stops without it")
	}
}

// feed queues the keys that a kind's objects concern: of all objects first, then of those that change. When the stream
// ends, for instance because the store has forgotten the revision, it begins again.
func (l *controllerLoop) feed(ctx context.Context, watch Watch) {
	w := &feed{Watch: watch, seen: make(map[store.Key]seen)}
	delay := l.runtime.options.FirstRetry
	for ctx.Err() == nil {
		listed, err := l.follow(ctx, w)
		if listed {
			delay = l.runtime.options.FirstRetry
		}
		if ctx.Err() != nil {
			return
		}
		if !listed || !errors.Is(err, resource.Gone) {
			l.log.Error().Err(err).Str("kind", w.Kind).Dur("retry_in", delay).Msg("a controller can't follow its objects: they are listed again")
			select {
			case <-time.After(wait.Jitter(delay, jitter)):
			case <-ctx.Done():
			}
			delay = min(2*delay, l.runtime.options.LastRetry)
		}
	}
}

// feed is a watch, and the objects that it has seen: the store doesn't tell which ones were deleted while the stream was away.
type feed struct {
	Watch
	seen map[store.Key]seen
	list int // how many times they were listed
}

// seen is what is known of an object.
type seen struct {
	keys []store.Key // that it concerned, at most maxSeenKeys; nil: its own
	list int         // in which it was last
}

// maxSeenKeys bounds what is remembered of an object. Those that concern more find them by an index of the controller.
const maxSeenKeys = 256

// note remembers which keys an object concerns, and returns those that it concerned before.
func (w *feed) note(o store.Key, keys []store.Key) (before []store.Key, known bool) {
	was, known := w.seen[o]
	if before = was.keys; known && before == nil {
		before = []store.Key{o}
	}
	now := seen{list: w.list}
	if len(keys) != 1 || keys[0] != o {
		now.keys = append([]store.Key{}, keys[:min(len(keys), maxSeenKeys)]...)
	}
	w.seen[o] = now
	return before, known
}

// missing are the keys that objects concern which the last list did not have any more.
func (w *feed) missing() (keys []store.Key) {
	for o, was := range w.seen {
		if was.list == w.list {
			continue
		}
		if was.keys == nil {
			keys = append(keys, o)
		}
		keys = append(append(keys, was.keys...), w.keys(store.Object{Key: o})...)
		delete(w.seen, o)
	}
	return keys
}

// follow lists a kind and then watches it. listed says whether the list was whole.
func (l *controllerLoop) follow(ctx context.Context, w *feed) (listed bool, err error) {
	defer recoverPanic(&err) // of Keys
	var opts store.ListOptions
	w.list++
	for opts.Limit = pageSize; ; {
		page, err := l.runtime.options.Reader.List(ctx, w.Kind, opts)
		if err != nil {
			return false, err
		}
		for _, o := range page.Items {
			keys := w.keys(o)
			before, _ := w.note(o.Key, keys)
			l.add(keys)
			if !slices.Equal(before, keys) {
				l.add(before)
			}
		}
		opts.Rev = page.Rev
		if page.More == 0 || len(page.Items) == 0 {
			break
		}
		opts.After = page.Items[len(page.Items)-1].Key
	}
	l.add(w.missing())
	stream, err := l.runtime.options.Watcher.Watch(ctx, store.Key{Kind: w.Kind}, opts.Rev)
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
			if !w.concerns(e) {
				continue
			}
			keys := w.keys(e.Object)
			before, known := w.note(e.Object.Key, keys)
			if e.Type == store.Deleted {
				delete(w.seen, e.Object.Key)
			}
			l.add(keys)
			if e.Old != nil {
				before, known = w.keys(*e.Old), true
			}
			if known && !slices.Equal(before, keys) { // else a worker that is quick would be called twice
				l.add(before)
			}
		}
	}
}

func (l *controllerLoop) add(keys []store.Key) {
	for _, key := range keys {
		l.queue.Add(key)
	}
	l.runtime.waiting.WithLabelValues(daemon.Label(l.Name)).Set(float64(l.queue.Len()))
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
		l.runtime.waiting.WithLabelValues(daemon.Label(l.Name)).Set(float64(l.queue.Len()))
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
	l.runtime.seconds.WithLabelValues(daemon.Label(l.Name)).Observe(time.Since(began).Seconds())
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
	l.runtime.results.WithLabelValues(daemon.Label(l.Name), result).Inc()
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
