// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/tracing"
	"github.com/edgebus/edgebus/topics/link"
)

// A batch ends with the step that reaches either.
const (
	maxSteps = 1024
	maxBytes = 1 << 20
)

// Options are what the owner of a tree needs on the hub and on the node alike.
type Options struct {
	// Publish delivers a message to its subscribers on the broker.
	Publish func(broker.Message)
	// Pass delivers a message, and calls done once every durable session that gets it has it on disk.
	Pass func(m broker.Message, done func(error))
	// Kept reports whether a durable session gets the messages of a topic: who caused one is answered once it is on disk
	// there. Nil: none does.
	Kept func(topic string) bool
	// Wanted reports whether a topic has a subscriber: a message without one isn't made. Nil: every topic has.
	Wanted func(topic string) bool
	// Quota bounds what one node may own.
	Quota link.Quota
	// Timeout is how long an unanswered message of the link waits before it is sent again. 0: five seconds.
	Timeout time.Duration
	Log     zerolog.Logger
	// Traces records what becomes of desired values; nil: nobody does.
	Traces *tracing.Tracer
	Now    func() time.Time // nil: time.Now
}

// SampledLog is for messages that a peer can cause any number of.
func (o *Options) SampledLog() zerolog.Logger {
	return o.Log.Sample(&zerolog.BurstSampler{Burst: 20, Period: 10 * time.Second})
}

func (o *Options) setDefaults() {
	if o.Wanted == nil {
		o.Wanted = func(string) bool { return true }
	}
	if o.Kept == nil {
		o.Kept = func(string) bool { return false }
	}
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// BatchStages are what a batch of steps goes through, in this order.
type BatchStages[B any] struct {
	// Begin returns an empty batch.
	Begin func() B
	// Full reports whether a batch takes no more steps, however few it has. Nil: never.
	Full func(B) bool
	// Derive derives what follows from the steps, with the state locked for writing.
	Derive func(B)
	// PublishStored delivers messages of what is stored already.
	PublishStored func(B)
	// Store stores the batch, with nothing locked: readers go on, whatever it takes. It changes nothing that they see, and they see
	// nothing that it is to store. An owner whose readers do stores in Derive.
	Store func(context.Context, B)
	// Settle makes the state what is stored, with the state locked for writing. If the batch could not be stored it says so to the
	// later stages; Settle itself fails only when the state can't be read back, which ends Run.
	Settle func(B) error
	// Publish delivers the batch's other messages.
	Publish func(B)
	// Finish answers the senders of the steps, and sends messages of the link.
	Finish func(B)
}

// Host owns the state of a tree. Many goroutines put steps, which change the state; one goroutine, in Run, takes all
// that wait as one batch, stores it, publishes what changed and answers the senders. Senders share the queue: each has a
// part of it, and one whose part is full waits, while the steps of all others go on.
//
// Steps, Derive and Settle run with the state locked for writing. While messages are published the state is unlocked, but no View
// runs until all are: a new subscriber reads no retained value before the subscribers that were there have got it.
type Host[B any] struct {
	queue[B]
	stages     BatchStages[B]
	publishing sync.RWMutex // locked before state
	state      sync.RWMutex
	taken      atomic.Uint64
}

// NewHost makes a Host, and fills in the defaults of its owner's options.
func NewHost[B any](o *Options, stages BatchStages[B]) *Host[B] {
	o.setDefaults()
	if stages.Full == nil {
		stages.Full = func(B) bool { return false }
	}
	h := &Host[B]{stages: stages}
	h.queue.init(queueBytes())
	return h
}

// Timer takes a step of its owner's when its channel has a value.
type Timer[B any] struct {
	C    <-chan time.Time
	Step func(B)
}

// Run takes steps until ctx ends, then those that wait, and returns. Steps that are put later are refused. There
// are at most four timers.
func (h *Host[B]) Run(ctx context.Context, timers ...Timer[B]) (err error) {
	defer h.Close()
	var timer [4]Timer[B] // without a channel it never fires
	copy(timer[:], timers)
	for err == nil {
		select {
		case <-h.ready:
			err = h.step(ctx, nil)
		case <-timer[0].C:
			err = h.step(ctx, timer[0].Step)
		case <-timer[1].C:
			err = h.step(ctx, timer[1].Step)
		case <-timer[2].C:
			err = h.step(ctx, timer[2].Step)
		case <-timer[3].C:
			err = h.step(ctx, timer[3].Step)
		case <-ctx.Done():
			h.Close()
			for h.Len() > 0 && err == nil {
				err = h.step(ctx, nil)
			}
			return err
		}
	}
	return err
}

// step takes a timer's step, if there is one, and all that wait, as one batch.
func (h *Host[B]) step(ctx context.Context, own func(B)) (lost error) {
	b := h.stages.Begin()
	n := 0
	h.change(func() {
		if own != nil {
			own(b)
			n++
		}
		n += h.run(b, func(ran, bytes int) bool { return ran < maxSteps && bytes < maxBytes && !h.stages.Full(b) })
		h.stages.Derive(b)
	}, func() { h.stages.PublishStored(b) })
	h.stages.Store(context.WithoutCancel(ctx), b) // what was begun is ended, or the state would be ahead of the disk
	h.change(func() { lost = h.stages.Settle(b) }, func() {
		h.taken.Add(uint64(n))
		h.stages.Publish(b)
	})
	h.stages.Finish(b)
	return lost
}

// change changes the state, and publishes what has changed before anybody views it.
func (h *Host[B]) change(state, publish func()) {
	h.publishing.Lock()
	defer h.publishing.Unlock()
	h.state.Lock()
	state()
	h.state.Unlock()
	publish()
}

// Steps is how many steps have been taken.
func (h *Host[B]) Steps() uint64 { return h.taken.Load() }

// RLock locks the state for reading.
func (h *Host[B]) RLock() { h.state.RLock() }

// RUnlock undoes RLock.
func (h *Host[B]) RUnlock() { h.state.RUnlock() }

// View calls fn with the state locked for reading, and all of it published.
func (h *Host[B]) View(fn func()) {
	h.publishing.RLock()
	defer h.publishing.RUnlock()
	h.state.RLock()
	defer h.state.RUnlock()
	fn()
}
