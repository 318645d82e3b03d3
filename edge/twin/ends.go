package twin

import (
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

// overrideEnds knows when overrides end, and wakes the loop for the next one.
type overrideEnds struct {
	opts   *Options
	outage *tree.StoreOutage

	byKey    map[string]int64 // when each ends
	next     int64            // when the next one does; 0: never
	stale    bool             // next is to be computed again
	wake     *time.Timer      // for the next one
	maxSleep time.Duration    // longest time that wake is set to; clockCheckInterval
}

// load takes the ends of what is stored.
func (o *overrideEnds) load(up *upMap) {
	clear(o.byKey)
	o.stale = true
	up.Range("devices/", func(e link.Entry) bool {
		if e.Meta.Until != 0 && strings.Contains(e.Key, "/override/") {
			o.byKey[e.Key] = e.Meta.Until
		}
		return true
	})
}

// schedule notes when an override ends; 0 is never.
func (o *overrideEnds) schedule(key string, until int64) {
	was, had := o.byKey[key]
	if had && was == o.next || until != 0 && (o.next == 0 || until < o.next) {
		o.stale = true
	}
	delete(o.byKey, key)
	if until != 0 {
		o.byKey[key] = until
	}
}

// touchDue touches the properties whose overrides have ended, once it is time for the next one.
func (o *overrideEnds) touchDue(b *batch) {
	now := b.now.UnixMilli()
	if o.next == 0 || o.next > now {
		return
	}
	o.stale = true // the timer has run
	for key, until := range o.byKey {
		if a, err := topics.ParseKey(o.opts.Node, key); err == nil && until <= now {
			b.touch(a.Device, a.Name)
		}
	}
}

// arm sets the timer for the next override to end, if that may be another one than before. A timer that runs is left alone: the steps
// of a busy node must not put it off.
func (o *overrideEnds) arm(now time.Time) {
	if !o.stale {
		return
	}
	o.stale, o.next = false, 0
	for _, until := range o.byKey {
		if o.next == 0 || until < o.next {
			o.next = until
		}
	}
	o.wake.Stop()
	if o.outage.Active() { // the store is probed also if nobody wants anything stored
		o.wake.Reset(o.outage.UntilProbe())
		return
	}
	if o.next != 0 { // the clock may have jumped, either way, when it is time
		o.wake.Reset(min(max(time.UnixMilli(o.next).Sub(now), 0)+expiryGrain, o.maxSleep))
	}
}
