// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/topics"
)

const (
	window      = 256             // messages that the peer has not acknowledged: then the view waits, and values wait as one
	endingTime  = 2 * time.Second // for what a view says at its end
	callTime    = 30 * time.Second
	maxCalls    = 64 // commands that have not answered: who wants more of them is refused
	maxAnswers  = 256
	maxReceived = 64
)

// patience is how long a peer may acknowledge nothing while the view waits for that.
var patience = time.Minute

// session is one connection of a view. The view and its tree are told by one goroutine, that of serve.
type session struct {
	p        *peer
	exchange *views.Exchange
	client   *client.Client
	up       chan context.Context // gets the context of the connection once it is made
	lost     chan error
	stopped  <-chan struct{} // the client is
	received chan client.Message
	answers  chan views.Event // what became of actions
	slots    chan struct{}    // one for each message that the peer has not acknowledged
	calls    chan struct{}    // one for each command that has not answered
	replays  chan struct{}    // the past is read of one Device at a time
	conn     context.Context  // of the connection
	serving  context.Context  // ends with it, or when the time is over that the view has for its end
	begun    atomic.Bool
	settled  bool
	again    bool              // the view wants another connection
	rejected map[string]string // why a Device can't be shown, by node and name
}

func newSession(p *peer, n uint64) *session {
	return &session{
		p: p, exchange: views.NewExchange(p.view, n), up: make(chan context.Context, 1), lost: make(chan error, 1),
		received: make(chan client.Message, maxReceived), answers: make(chan views.Event, maxAnswers), slots: make(chan struct{}, window),
		calls: make(chan struct{}, maxCalls), replays: make(chan struct{}, 1), rejected: make(map[string]string),
	}
}

// begin subscribes, when the connection is made.
func (s *session) begin(ctx context.Context, _ bool) error {
	if s.begun.Swap(true) { // there is one connection
		return errEnded
	}
	var subscriptions []client.Subscription
	for _, f := range filtersOf(s.exchange.Connection) {
		subscriptions = append(subscriptions, client.Subscription{Filter: f, QoS: 1, NoLocal: true, RetainAsPublished: true})
	}
	if len(subscriptions) > 0 {
		if err := s.client.Subscribe(ctx, subscriptions...); err != nil {
			s.p.note(err)
			s.begun.Store(false) // it is tried again
			return err
		}
	}
	s.p.of.counters.connections.Add(1)
	s.up <- ctx
	return nil
}

// filtersOf are those of a connection, without those that another covers: many brokers send a message once for each filter that matches it, and
// what a peer asks for would be done twice.
func filtersOf(c views.Connection) []string {
	all := slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.Filters, c.Retained))))
	return slices.DeleteFunc(slices.Clone(all), func(f string) bool {
		return slices.ContainsFunc(all, func(wide string) bool { return wide != f && topics.CoversFilter(wide, f) })
	})
}

func (s *session) receive(m client.Message) {
	select {
	case s.received <- m:
	case <-s.stopped:
	}
}

func (s *session) lose(err error) {
	if s.begun.Load() {
		select {
		case s.lost <- err:
		default:
		}
	}
}

// serve tells the view until the connection ends.
func (s *session) serve(ctx context.Context) error {
	select {
	case s.conn = <-s.up:
	case <-ctx.Done():
		return nil
	}
	var late context.CancelFunc
	s.serving, late = context.WithCancel(s.conn)
	defer late()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(endingTime, late) })()
	p := s.p
	p.state.connected.Store(true)
	p.note(nil)
	p.log.Info().Msg("the view is connected to its peer")
	p.tree.Repeat()
	for !s.again && !p.gone {
		select {
		case <-ctx.Done():
			s.end()
			return nil
		case err := <-s.lost:
			return err
		case m := <-s.received: // however many come, the tree is told of in between
			s.take(m)
		case e := <-s.answers:
			s.tell(e)
		default:
		}
		if s.again || s.step() {
			continue
		}
		select {
		case <-ctx.Done():
		case err := <-s.lost:
			return err
		case m := <-s.received:
			s.take(m)
		case e := <-s.answers:
			s.tell(e)
		case <-p.inbox.wake:
		}
	}
	if p.gone {
		s.end()
		return nil
	}
	s.flush()
	s.client.Reconnect(errEnded)
	for {
		select {
		case <-s.lost:
			return nil
		case <-s.received: // who delivers it tells of the end only after it
		case <-s.answers:
		}
	}
}

// end has the view say what it says at its end.
func (s *session) end() {
	s.tell(&views.Ending{})
	s.flush()
}

// flush waits until the peer has acknowledged everything.
func (s *session) flush() {
	late := time.After(endingTime)
	for range window {
		select {
		case s.slots <- struct{}{}:
		case <-late:
			return
		case <-s.serving.Done():
			return
		}
	}
}

// step tells the view one thing of the tree; false: there is nothing.
func (s *session) step() bool {
	p := s.p
	values, events := p.inbox.take()
	for _, m := range values {
		p.tree.Apply(m.Topic, m.Payload, timeOf(m))
	}
	for _, m := range events {
		if a, err := topics.Parse(m.Topic); err == nil {
			if d := p.tree.Device(a.Node, a.Device); d != nil {
				s.tell(&views.Happened{Device: d, Name: a.Name, Payload: m.Payload})
			}
		}
	}
	e := p.tree.Next()
	if e == nil && !s.settled {
		s.settled, e = true, &views.Settled{}
	}
	if e == nil {
		return len(events) > 0
	}
	s.tell(e)
	if n, ok := e.(*views.NodeChanged); ok && n.Gone && n.Node.Name == p.node {
		p.gone = true
	}
	p.state.devices.Store(int64(p.tree.Devices()))
	p.state.retained.Store(int64(s.exchange.Retained()))
	return true
}

func (s *session) take(m client.Message) {
	s.p.of.counters.received.Add(1)
	s.tell(&views.Received{Message: fromClient(m)})
}

func (s *session) tell(e views.Event) {
	for _, a := range s.exchange.Tell(time.Now(), e) {
		s.do(a)
	}
}

func (s *session) do(a views.Action) {
	switch a := a.(type) {
	case *views.Publish:
		s.publish(a.Message)
	case *views.Set:
		s.set(a)
	case *views.Call:
		s.call(a)
	case *views.Replay:
		s.replay(a)
	case *views.Reject:
		s.reject(a)
	case *views.Repeat:
		s.p.tree.Repeat()
		s.settled = false
	case *views.Reconnect:
		s.again = true
	}
}

var errSilent = errors.New("the peer acknowledges nothing")

// publish waits while the peer has too much to acknowledge.
func (s *session) publish(m views.Message) {
	select {
	case s.slots <- struct{}{}:
	default:
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case s.slots <- struct{}{}:
		case <-timer.C:
			s.client.Reconnect(errSilent)
			return
		case <-s.serving.Done():
			return
		}
	}
	s.client.PublishOver(s.conn, toClient(m), func(err error) {
		<-s.slots
		var refused *client.Refused
		switch {
		case err == nil:
			s.p.of.counters.published.Add(1)
		case errors.As(err, &refused):
			s.p.of.counters.refused.Add(1)
			s.p.note(err)
			s.p.few.Warn().Err(err).Msg("the view's peer refuses a message")
		}
	})
}

const propOrigin = "origin"

func toClient(m views.Message) client.Message {
	out := client.Message{Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Retain: m.Retain}
	if m.Origin != "" {
		out.User = []client.UserProperty{{Key: propOrigin, Value: m.Origin}}
	}
	return out
}

func fromClient(m client.Message) views.Message {
	return views.Message{Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Retain: m.Retain, Origin: m.Property(propOrigin)}
}

// answer tells the view what became of an action, unless it has ended.
func (s *session) answer(e views.Event) {
	select {
	case s.answers <- e:
	case <-s.stopped:
	}
}

func (s *session) set(a *views.Set) {
	values := make(map[string]*string, len(a.Values))
	for p, text := range a.Values {
		if values[p] = &text; text == "" {
			values[p] = nil
		}
	}
	payload, _ := json.Marshal(values) // texts
	m := client.Message{Topic: topics.Address{Node: a.Node, Kind: topics.KindDesiredAll, Device: a.Device}.String(), Payload: payload, QoS: 1}
	d := s.p.tree.Device(a.Node, a.Device)
	s.p.of.tree.PublishAsync(m, func(err error) {
		if err == nil {
			return
		}
		s.p.few.Info().Err(err).Str("device", a.Device).Msg("what the view's peer asks for is refused")
		if d != nil {
			go s.answer(&views.Refused{Device: d, Properties: slices.Sorted(maps.Keys(a.Values)), Reason: err.Error()})
		}
	})
}

func (s *session) call(a *views.Call) {
	m := client.Message{
		Topic: topics.Address{Node: a.Node, Kind: topics.KindCommand, Device: a.Device, Name: a.Command}.String(), Payload: a.Payload, QoS: 1,
	}
	select {
	case s.calls <- struct{}{}:
	default:
		s.p.few.Warn().Str("device", a.Device).Str("command", a.Command).Int("calls", maxCalls).Msg("a command of the view's peer is dropped: too many have not answered")
		return
	}
	go func() { // it ends by its time
		defer func() { <-s.calls }()
		ctx, cancel := context.WithTimeout(s.conn, callTime)
		defer cancel()
		answer, err := s.p.of.tree.Request(ctx, m)
		if err == nil && answer.Property(topics.PropCode) != string(topics.CodeOK) {
			err = errors.New(answer.Property(topics.PropCode) + ": " + answer.Property(topics.PropError))
		}
		if err != nil {
			s.p.few.Info().Err(err).Str("device", a.Device).Str("command", a.Command).Msg("a command of the view's peer has failed")
		}
		if a.Reply != "" && err == nil {
			s.client.PublishOver(s.conn, client.Message{Topic: a.Reply, Payload: answer.Payload, QoS: 1}, nil)
		}
	}()
}

func (s *session) replay(a *views.Replay) {
	d := s.p.tree.Device(a.Node, a.Device)
	if d == nil {
		return
	}
	go func() { // it ends with the connection
		select {
		case s.replays <- struct{}{}:
		case <-s.conn.Done():
			return
		}
		defer func() { <-s.replays }()
		var samples []views.Sample
		if s.p.of.o.Past != nil {
			var err error
			if samples, err = s.p.of.o.Past(s.conn, a.Node, a.Device, a.Since); err != nil {
				s.p.few.Warn().Err(err).Str("device", a.Device).Msg("the past of a Device can't be read")
			}
		}
		s.answer(&views.Past{Device: d, Samples: samples, Last: true})
	}()
}

func (s *session) reject(a *views.Reject) {
	key := a.Node + "/" + a.Device
	_, was := s.rejected[key]
	if a.Reason == "" {
		delete(s.rejected, key)
	} else {
		if s.rejected[key] = a.Reason; !was {
			s.p.log.Warn().Str("device", key).Str("reason", a.Reason).Msg("the view can't show a Device")
			if d := s.p.tree.Device(a.Node, a.Device); d != nil && s.p.of.o.Rejected != nil {
				s.p.of.o.Rejected(s.p.of.Name, d, a.Reason)
			}
		}
	}
	s.p.state.rejected.Store(int64(len(s.rejected)))
}
