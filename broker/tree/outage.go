// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"sync/atomic"
	"time"
)

const (
	probeInterval    = time.Second      // between two probes of a store that has failed
	maxProbeInterval = 30 * time.Second // the same, while batches fail although probes succeed
)

// StoreOutage is the time from a batch that could not be stored until the store takes a probe. After a failed commit all that is stored
// is read back, under the lock that readers wait for. That is done once in an outage: until the store is well again, steps change
// nothing that would have to be stored, and the store is probed from time to time, outside of that lock.
type StoreOutage struct {
	Every time.Duration // between two probes; 0: a second

	state              atomic.Pointer[outageState] // nil: everything is stored
	pause              time.Duration               // until the next probe
	nothingStoredSince bool                        // nothing was stored since the last outage
}

type outageState struct {
	err   error
	until time.Time // of the next probe, by the real clock
}

// Err is why nothing can be stored; nil: it can, or it is time to try.
func (o *StoreOutage) Err() error {
	if now := o.state.Load(); now != nil && time.Now().Before(now.until) {
		return now.err
	}
	return nil
}

// Active reports whether nothing can be stored.
func (o *StoreOutage) Active() bool { return o.state.Load() != nil }

// Cause is why nothing can be stored, also when it is time to try: for those that don't.
func (o *StoreOutage) Cause() error {
	if now := o.state.Load(); now != nil {
		return now.err
	}
	return nil
}

// UntilProbe is how long it is until the next probe.
func (o *StoreOutage) UntilProbe() time.Duration {
	if now := o.state.Load(); now != nil {
		return max(time.Until(now.until), 0)
	}
	return 0
}

// Begin begins an outage after a failed commit. err is the answer to those that want something stored.
func (o *StoreOutage) Begin(err error) {
	every := o.Every
	if every == 0 {
		every = probeInterval
	}
	if o.nothingStoredSince {
		o.pause = min(2*o.pause, max(maxProbeInterval, every))
	} else {
		o.pause = every
	}
	o.nothingStoredSince = true
	o.state.Store(&outageState{err, time.Now().Add(o.pause)})
}

// Stored notes that a batch was stored.
func (o *StoreOutage) Stored() { o.nothingStoredSince = false }

// Probe is called before each batch, by the goroutine that commits. In an outage it returns why nothing can be stored. When it is
// time it calls probe, and ends the outage if that succeeds.
func (o *StoreOutage) Probe(probe func() error) (over bool, refused error) {
	now := o.state.Load()
	if now == nil {
		return false, nil
	}
	if time.Now().Before(now.until) {
		return false, now.err
	}
	if probe() == nil {
		o.state.Store(nil)
		return true, nil
	}
	o.state.Store(&outageState{now.err, time.Now().Add(o.pause)})
	return false, now.err
}
