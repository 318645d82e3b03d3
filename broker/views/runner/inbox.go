// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"sync"

	"github.com/edgebus/edgebus/broker"
)

const maxEvents = 1000 // of devices that wait: then the oldest is dropped

// treeInbox is what the tree has published and a view was not told yet: of each topic the last message, and events.
type treeInbox struct {
	wake chan struct{} // capacity 1: there is something

	mu      sync.Mutex
	last    map[string]broker.Message
	order   []string
	events  []broker.Message
	dropped int64
}

func newInbox() treeInbox {
	return treeInbox{wake: make(chan struct{}, 1), last: make(map[string]broker.Message)}
}

// put never blocks. It is called while the tree publishes.
func (b *treeInbox) put(m broker.Message, event bool) {
	b.mu.Lock()
	if event {
		if len(b.events) == maxEvents {
			b.events = b.events[1:]
			b.dropped++
		}
		b.events = append(b.events, m)
	} else {
		if _, waits := b.last[m.Topic]; !waits {
			b.order = append(b.order, m.Topic)
		}
		b.last[m.Topic] = m
	}
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take empties the inbox, and returns what was in it in order.
func (b *treeInbox) take() (values, events []broker.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, topic := range b.order {
		values = append(values, b.last[topic])
	}
	events, b.events, b.order = b.events, nil, nil
	if len(values) > 0 {
		b.last = make(map[string]broker.Message)
	}
	return values, events
}
