// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// The numbers of the services of subscriptions.
const (
	idMonitorRequest          = 751
	idMonitorResponse         = 754
	idSubscribeRequest        = 787
	idSubscribeResponse       = 790
	idDataChange              = 811
	idStatusChange            = 820
	idPublishRequest          = 826
	idPublishResponse         = 829
	idUnsubscribeRequest      = 847
	idUnsubscribeResponse     = 850
	idEventFilter             = 727
	idLiteralOperand          = 597
	idEventList               = 916
	filterOfType              = 14
	monitoringModeReporting   = 2
	monitorTimestampsSource   = 0
	publishRequestsAtATime    = 2
	maxNotificationsPerAnswer = 1000
	eventQueueSize            = 1000
)

// MonitoredItem is a node that a subscription tells of: its value, with how often the server looks at it, or its events.
type MonitoredItem struct {
	Node     NodeID
	Range    string
	Sampling time.Duration
	Events   *EventFilter // nil: its value
}

// EventFilter says which events a subscription tells, and which fields of them.
type EventFilter struct {
	Type   NodeID // and those derived from it; null: any
	Fields []EventField
}

// EventField is a field of events of a type, by the names on the way to it.
type EventField struct {
	Type NodeID
	Path []QualifiedName
}

// QualifiedName is a name in a namespace.
type QualifiedName struct {
	Namespace uint16
	Name      string
}

// BaseEventType is the type that all events are derived from.
var BaseEventType = NumericID(0, 2041)

// Change is a value that a subscription brings, by the place in its list, or the fields of an event, in the order of the filter's.
type Change struct {
	Item   int
	Value  DataValue
	Fields []Value // nil: it is no event
}

// subscriptions are those of a session, which share the Publish requests: an answer may be of any of them.
type subscriptions struct {
	mu   sync.Mutex
	open map[uint32]chan publishAnswer
}

func (s *subscriptions) channel(id uint32) (c chan publishAnswer, others bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[id], len(s.open) > 0
}

func (s *subscriptions) add(id uint32) chan publishAnswer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[uint32]chan publishAnswer{}
	}
	c := make(chan publishAnswer, 16)
	s.open[id] = c
	return c
}

func (s *subscriptions) remove(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, id)
}

// fail ends all.
func (s *subscriptions) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.open {
		select {
		case c <- publishAnswer{err: err}:
		default: // it has enough to do, and will find out
		}
	}
}

// Subscribe makes a subscription, and calls told with each change until ctx or the connection ends; the error says why. bad is called once
// for each item that the server refuses. A server that falls silent for three keep-alives has ended.
func (s *Session) Subscribe(ctx context.Context, interval time.Duration, items []MonitoredItem, bad func(item int, err error), told func(Change)) error {
	const keepAlives = 10
	r, err := s.call(ctx, idSubscribeRequest, idSubscribeResponse, func(w *writer) {
		w.double(float64(interval) / float64(time.Millisecond))
		w.uint32(keepAlives * 10)
		w.uint32(keepAlives)
		w.uint32(maxNotificationsPerAnswer)
		w.bool(true)
		w.byte(0)
	})
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	id, revised := r.uint32(), r.double()
	r.uint32()
	count := r.uint32()
	if r.err != nil {
		return r.err
	}
	answers := s.subscribed.add(id)
	defer func() {
		s.subscribed.remove(id)
		for range len(answers) { // requests that the others need
			<-answers
			if _, others := s.subscribed.channel(0); others {
				go s.publish(0, nil)
			}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = s.call(ctx, idUnsubscribeRequest, idUnsubscribeResponse, func(w *writer) { w.uint32(1); w.uint32(id) })
	}()
	if err := s.monitor(ctx, id, items, bad); err != nil {
		return err
	}
	silence := 3 * max(time.Duration(max(revised, 1)*float64(max(count, 1)))*time.Millisecond, time.Second)
	return s.publishLoop(ctx, publishedItems{id, len(items), told}, answers, min(silence, time.Hour))
}

// monitor adds the items, some at a time: a server may have limits.
func (s *Session) monitor(ctx context.Context, id uint32, items []MonitoredItem, bad func(item int, err error)) error {
	const atATime = 100
	for from := 0; from < len(items); from += atATime {
		part := items[from:min(from+atATime, len(items))]
		r, err := s.call(ctx, idMonitorRequest, idMonitorResponse, func(w *writer) {
			w.uint32(id)
			w.uint32(monitorTimestampsSource)
			w.uint32(uint32(len(part)))
			for i, m := range part {
				w.monitoredItem(from+i, m)
			}
		})
		if err != nil {
			return fmt.Errorf("subscribe to %d nodes: %w", len(part), err)
		}
		results := readList(r, 20, func() Status {
			status := Status(r.uint32())
			r.uint32()
			r.double()
			r.uint32()
			r.extension()
			return status
		})
		if r.err != nil {
			return r.err
		}
		for i, status := range results {
			if status.IsBad() && i < len(part) {
				bad(from+i, status)
			}
		}
	}
	return nil
}

func (w *writer) monitoredItem(handle int, m MonitoredItem) {
	attribute, queue := AttributeValue, uint32(1)
	if m.Events != nil {
		attribute, queue = AttributeEventNotifier, eventQueueSize
	}
	w.readValueID(ReadRequest{m.Node, attribute, m.Range})
	w.uint32(monitoringModeReporting)
	w.uint32(uint32(handle))
	w.double(float64(m.Sampling) / float64(time.Millisecond))
	if m.Events == nil {
		w.nodeID(NodeID{})
		w.byte(0)
	} else {
		w.extension(idEventFilter, m.Events.encode)
	}
	w.uint32(queue)
	w.bool(true)
}

func (f *EventFilter) encode(w *writer) {
	w.uint32(uint32(len(f.Fields)))
	for _, field := range f.Fields {
		w.nodeID(field.Type)
		w.uint32(uint32(len(field.Path)))
		for _, name := range field.Path {
			w.uint16(name.Namespace)
			w.string(name.Name)
		}
		w.uint32(uint32(AttributeValue))
		w.string("")
	}
	if f.Type.IsNull() {
		w.uint32(0)
		return
	}
	w.uint32(1)
	w.uint32(filterOfType)
	w.uint32(1)
	w.extension(idLiteralOperand, func(w *writer) {
		w.byte(byte(KindNodeID))
		w.nodeID(f.Type)
	})
}

// publishAnswer is an answer to a Publish, behind the number of its subscription.
type publishAnswer struct {
	reader *reader
	err    error
}

// publishedItems are what a subscription tells.
type publishedItems struct {
	id    uint32
	count int
	told  func(Change)
}

// publishLoop keeps Publish requests at the server, and hands on what they bring.
func (s *Session) publishLoop(ctx context.Context, items publishedItems, answers <-chan publishAnswer, silence time.Duration) error {
	for range publishRequestsAtATime {
		go s.publish(items.id, nil)
	}
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Done():
			return s.Err()
		case <-timer.C:
			return fmt.Errorf("the subscription has said nothing for %s", silence)
		case p := <-answers:
			if p.err != nil {
				return p.err
			}
			acknowledge, err := p.reader.notification(items)
			if err != nil {
				return err
			}
			timer.Reset(silence)
			go s.publish(items.id, acknowledge)
		}
	}
}

// publish sends a Publish request, and gives its answer to the subscription that it is of. The request outlives the one that sent it.
func (s *Session) publish(id uint32, acknowledge []uint32) {
	for {
		r, err := s.call(context.Background(), idPublishRequest, idPublishResponse, func(w *writer) {
			w.uint32(uint32(len(acknowledge)))
			for _, number := range acknowledge {
				w.uint32(id)
				w.uint32(number)
			}
		})
		switch {
		case errors.Is(err, BadTooManyPublishRequests): // others are there
			return
		case err != nil:
			s.subscribed.fail(err)
			return
		}
		c, others := s.subscribed.channel(r.uint32())
		switch {
		case c != nil:
			select {
			case c <- publishAnswer{reader: r}:
			case <-s.Done():
			}
			return
		case !others:
			return
		}
		acknowledge = nil // it is of one that has ended: the others need the request
	}
}

// notification reads an answer to Publish, and returns the message's number, which is acknowledged, if it has changes.
func (r *reader) notification(items publishedItems) (acknowledge []uint32, err error) {
	for range r.count(4) {
		r.uint32()
	}
	r.bool()
	number := r.uint32()
	r.time()
	data := readList(r, 4, r.extension)
	if r.err != nil {
		return nil, r.err
	}
	for _, e := range data {
		inner := reader{data: e.body}
		switch e.typeID {
		case NumericID(0, idDataChange):
			for range inner.count(5) {
				handle, value := inner.uint32(), inner.dataValue(0)
				if inner.err != nil {
					return nil, inner.err
				}
				if int(handle) < items.count {
					items.told(Change{Item: int(handle), Value: value})
				}
			}
		case NumericID(0, idEventList):
			for range inner.count(8) {
				handle := inner.uint32()
				fields := readList(&inner, 1, func() Value { return inner.value(0) })
				if inner.err != nil {
					return nil, inner.err
				}
				if int(handle) < items.count {
					items.told(Change{Item: int(handle), Fields: fields})
				}
			}
		case NumericID(0, idStatusChange):
			return nil, fmt.Errorf("the subscription has ended: %w", Status(inner.uint32()))
		}
	}
	if len(data) > 0 {
		acknowledge = []uint32{number}
	}
	return acknowledge, nil
}
