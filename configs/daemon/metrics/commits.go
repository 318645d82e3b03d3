package metrics

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Commits are a program's commits to disk, by store.
type Commits struct {
	seconds  *prometheus.HistogramVec
	writes   *prometheus.HistogramVec
	failures *prometheus.CounterVec

	mu      sync.Mutex
	failing map[string]string
	damage  map[string]func() error
	gone    func() error
}

// Commits adds the figures of stores.
func (r Registry) Commits() *Commits {
	c := &Commits{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "commit_seconds", Help: "How long commits to disk took, by store.",
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 15),
		}, []string{"store"}),
		writes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "commit_writes", Help: "How many writes shared a commit, by store.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 7),
		}, []string{"store"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "commit_failures_total", Help: "Commits that failed, by store.",
		}, []string{"store"}),
		failing: make(map[string]string), damage: make(map[string]func() error),
	}
	r.MustRegister(c.seconds, c.writes, c.failures)
	return c
}

// Of is what a store tells of each of its commits.
func (c *Commits) Of(store string) func(took time.Duration, writes int, err error) {
	seconds, writes, failures := c.seconds.WithLabelValues(store), c.writes.WithLabelValues(store), c.failures.WithLabelValues(store)
	return func(took time.Duration, n int, err error) {
		seconds.Observe(took.Seconds())
		writes.Observe(float64(n))
		if err != nil {
			failures.Inc()
		}
		c.note(store, err)
	}
}

func (c *Commits) note(store string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failing[store] = err.Error()
		return
	}
	delete(c.failing, store)
}

// Watch has Damaged say what is wrong with a store's files, whatever becomes of commits.
func (c *Commits) Watch(store string, damage func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.damage[store] = damage
}

// Guard has Gone say what of the data directory was removed while it was in use.
func (c *Commits) Guard(gone func() error) { c.gone = gone }

// Gone says what of the data directory was removed while it was in use; empty: nothing.
func (c *Commits) Gone() string {
	if c.gone != nil {
		if err := c.gone(); err != nil {
			return err.Error()
		}
	}
	return ""
}

// Failing says why the last commit failed, for each store whose last commit did.
func (c *Commits) Failing() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.failing)
}

// Damaged says what is wrong with each store that goes on, and won't open again.
func (c *Commits) Damaged() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string]string)
	for store, damage := range c.damage {
		if err := damage(); err != nil {
			all[store] = err.Error()
		}
	}
	return all
}
