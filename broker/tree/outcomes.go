// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"sync"

	"github.com/edgebus/edgebus/broker"
)

// DeliveryOutcomes are those of a batch's messages that durable sessions get. The zero value has none.
type DeliveryOutcomes struct {
	mu    sync.Mutex
	left  int
	err   error // the first
	ready []func(error)
}

// Deliver publishes a message. If a durable session gets it, the outcome is one of those that Then waits for.
func (o *DeliveryOutcomes) Deliver(with *Options, m broker.Message) {
	if !with.Kept(m.Topic) {
		with.Publish(m)
		return
	}
	o.mu.Lock()
	o.left++
	o.mu.Unlock()
	with.Pass(m, o.done)
}

func (o *DeliveryOutcomes) done(err error) {
	o.mu.Lock()
	if o.err == nil {
		o.err = err
	}
	o.left--
	var ready []func(error)
	if o.left == 0 {
		ready, o.ready = o.ready, nil
	}
	err = o.err
	o.mu.Unlock()
	for _, fn := range ready {
		fn(err)
	}
}

// Then calls fn once every message that was delivered is on disk for the durable sessions that match it, or with the first
// error. It is called when all are delivered.
func (o *DeliveryOutcomes) Then(fn func(error)) {
	o.mu.Lock()
	if o.left > 0 {
		o.ready = append(o.ready, fn)
		o.mu.Unlock()
		return
	}
	err := o.err
	o.mu.Unlock()
	fn(err)
}
