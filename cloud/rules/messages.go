// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// messageKind is the kind of the records of messages that wait for nodes. Their namespace is the node, and their names are numbers in the order in which they were
// accepted.
const messageKind = "RuleMessage"

// What may wait for one node.
const (
	maxNodeMessages = 1000
	maxNodeBytes    = 16 << 20
)

const (
	deliverTimeout = 30 * time.Second // that a node has to store a message
	awayPoll       = time.Minute      // after which messages are looked at of a node that is away: they may be too old
)

// waitingMessage is a message that waits for a node.
type waitingMessage struct {
	Rule    string    `json:"rule"` // its name; the namespace is beside it
	Space   string    `json:"namespace"`
	Topic   string    `json:"topic"`
	Payload []byte    `json:"payload,omitempty"`
	Time    time.Time `json:"time"`
}

func (m *waitingMessage) rule() store.Key {
	return store.Key{Kind: resource.KindRule, Namespace: m.Space, Name: m.Rule}
}

// waitingMessages are the messages that wait for nodes, without their content, which is read when it is their turn.
type waitingMessages struct {
	mu    sync.Mutex
	nodes map[string]*nodeQueue
	start func(node string, q *nodeQueue) // starts what sends them; nil: not running
}

// nodeQueue are the messages of one node.
type nodeQueue struct {
	woken   chan struct{}
	writing sync.Mutex // held while one is stored, so that they are in order
	ended   bool       // nothing sends what is in it: there is another one, or none; with writing
	mu      sync.Mutex
	waiting []queuedMessage
	bytes   int
	last    uint64
}

type queuedMessage struct {
	key       store.Key
	bytes     int
	delivered chan error // gets what became of it; may be nil
}

// of returns the queue of a node.
func (w *waitingMessages) of(node string) *nodeQueue {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.nodes[node]
	if q == nil {
		q = &nodeQueue{woken: make(chan struct{}, 1)}
		w.nodes[node] = q
		if w.start != nil {
			w.start(node, q)
		}
	}
	return q
}

// lock returns the queue of a node for who stores a message in it.
func (w *waitingMessages) lock(node string) *nodeQueue {
	for {
		q := w.of(node)
		q.writing.Lock()
		if !q.ended {
			return q
		}
		q.writing.Unlock()
	}
}

// end removes the queue of a node if it is empty and nobody stores a message in it: most nodes never get one.
func (w *waitingMessages) end(node string, q *nodeQueue) bool {
	if !q.writing.TryLock() {
		return false
	}
	defer q.writing.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, waits := q.first(); waits {
		return false
	}
	q.ended = true
	delete(w.nodes, node)
	return true
}

func (w *waitingMessages) wake(node string) {
	w.mu.Lock()
	q := w.nodes[node]
	w.mu.Unlock()
	if q != nil {
		wakeUp(q.woken)
	}
}

// load finds the messages that waited when the hub stopped.
func (w *waitingMessages) load(ctx context.Context, r store.Reader) error {
	for o, err := range store.All(ctx, r, messageKind, store.ListOptions{}) {
		if err != nil {
			return err
		}
		q := w.of(o.Namespace)
		q.waiting = append(q.waiting, queuedMessage{key: o.Key, bytes: len(o.Data)})
		q.bytes += len(o.Data)
		if n, err := strconv.ParseUint(o.Name, 10, 64); err == nil {
			q.last = max(q.last, n)
		}
	}
	return nil
}

// send stores a message for a node. delivered gets nil when the node has stored it, or why it never will.
func (e *Engine) send(ctx context.Context, node string, m waitingMessage) (delivered chan error, err error) {
	m.Time = e.o.Now()
	data, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	q := e.messages.lock(node)
	defer q.writing.Unlock()
	q.mu.Lock()
	count, bytes := len(q.waiting), q.bytes
	q.last = max(q.last+1, uint64(m.Time.UnixNano()))
	key := store.Key{Kind: messageKind, Namespace: node, Name: fmt.Sprintf("%020d", q.last)}
	q.mu.Unlock()
	if count >= maxNodeMessages || bytes+len(data) > maxNodeBytes {
		return nil, resource.Errorf(resource.Quota, "", "%d messages (%d bytes) wait for node %s, and no more are taken until it has some of them", count, bytes, node)
	}
	if _, err := e.o.Writer.Create(ctx, store.Object{Key: key, Data: data}); err != nil {
		return nil, err
	}
	delivered = make(chan error, 1)
	q.mu.Lock()
	q.waiting = append(q.waiting, queuedMessage{key, len(data), delivered})
	q.bytes += len(data)
	q.mu.Unlock()
	wakeUp(q.woken)
	return delivered, nil
}

// runMessages sends what waits until ctx ends.
func (e *Engine) runMessages(ctx context.Context, running *sync.WaitGroup) {
	w := &e.messages
	w.mu.Lock()
	defer w.mu.Unlock()
	w.start = func(node string, q *nodeQueue) {
		if ctx.Err() == nil {
			running.Go(func() { e.serveNode(ctx, node, q) })
		}
	}
	for node, q := range w.nodes {
		w.start(node, q)
	}
	running.Go(func() {
		<-ctx.Done()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.start = nil
	})
}

// serveNode sends a node its messages, one after the other.
func (e *Engine) serveNode(ctx context.Context, node string, q *nodeQueue) {
	var again backoff.Retry
	for ctx.Err() == nil {
		m, ok := q.first()
		wait := awayPoll
		if !ok && e.messages.end(node, q) {
			return
		}
		if ok {
			err := e.deliver(ctx, node, q, m)
			switch {
			case err == nil:
				again.Succeeded()
				continue
			case errors.Is(err, errAway):
			default:
				again.Failed(e.retry, time.Now())
				wait = time.Until(again.Due())
				e.log.Info().Err(err).Str("node", node).Msg("a message of a Rule was not delivered: it is sent again")
			}
		}
		select {
		case <-q.woken:
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

func (q *nodeQueue) first() (queuedMessage, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return queuedMessage{}, false
	}
	return q.waiting[0], true
}

// deliver sends the first message of a node. It returns nil if that is done with, for good or bad.
func (e *Engine) deliver(ctx context.Context, node string, q *nodeQueue, queued queuedMessage) error {
	var m waitingMessage
	o, err := e.o.Reader.Get(ctx, queued.key)
	if err == nil {
		err = json.Unmarshal(o.Data, &m)
	}
	if errors.Is(err, resource.NotFound) {
		return e.done(ctx, q, queued, nil, err)
	}
	if err != nil {
		return err
	}
	if age := e.o.Now().Sub(m.Time); age > e.o.Age {
		return e.done(ctx, q, queued, &m, fmt.Errorf("node %s was away for longer than a message waits (rules.age, %s)", node, e.o.Age))
	}
	asking, cancel := context.WithTimeout(ctx, deliverTimeout)
	defer cancel()
	answer, err := e.ask(asking, node, resource.RuleRequest{Rule: m.Space + "/" + m.Rule, Topic: m.Topic}, m.Payload)
	switch {
	case err != nil:
		return err
	case answer.Code == resource.Unavailable:
		e.count(m.rule(), 0, 0, fmt.Errorf("node %s can't store messages now: %s", node, answer.Error))
		return errors.New(answer.Error)
	case answer.Code != "":
		return e.done(ctx, q, queued, &m, fmt.Errorf("node %s refused the message: %s", node, answer.Error))
	}
	return e.done(ctx, q, queued, &m, nil)
}

// done ends the first message of a node. m is nil if it is gone.
func (e *Engine) done(ctx context.Context, q *nodeQueue, queued queuedMessage, m *waitingMessage, outcome error) error {
	if _, err := e.o.Writer.Delete(ctx, queued.key, 0); store.IgnoreNotFound(err) != nil {
		return err // it is sent again, rather than lost
	}
	q.mu.Lock()
	q.waiting = q.waiting[1:]
	q.bytes -= queued.bytes
	q.mu.Unlock()
	if queued.delivered != nil {
		queued.delivered <- outcome
	}
	switch {
	case m == nil:
	case outcome == nil:
		e.count(m.rule(), 1, 0, nil)
	default:
		e.count(m.rule(), 0, 1, outcome)
	}
	return nil
}
