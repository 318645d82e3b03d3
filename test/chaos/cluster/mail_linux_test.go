// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/harness"
)

// mailLoad are messages at QoS 1 and 2, each of its own, to sessions that are kept: of a client that changes hubs, of one that is away until it is asked, and of one whose
// connections take it over from each other.
type mailLoad struct {
	l       *load
	roaming *session
	away    *awaySession
	fought  *session

	// visiting is held while a session's client is there: what it was given at QoS 1 as it left would come again.
	visiting sync.RWMutex

	mu    sync.Mutex
	acked map[string]bool // by payload, until all sessions have had them
	had   int             // that all sessions have had
	wills map[string]int  // of clients that are gone, and will not come back: how many connections each of them had, for each has a will of its own
	sent  int
	fence int
}

// session is what the clients of a session were given.
type session struct {
	id  string
	qos byte

	mu    sync.Mutex
	got   map[string][]time.Time // by payload
	fresh map[string]bool        // payloads that came since the last look for doubles
}

func newSession(id string, qos byte) session {
	return session{id: id, qos: qos, got: map[string][]time.Time{}, fresh: map[string]bool{}}
}

// awaySession is a session with one client, which is away most of the time. It goes on where it was, in the midst of a handshake as well.
type awaySession struct {
	session
	client *client.Client
	there  atomic.Bool
	up     chan context.Context // its connection, when it has come
}

const mailPace = 20 * time.Millisecond

func newMail(l *load) *mailLoad {
	roaming, fought := newSession("roaming", 2), newSession("fought", 1)
	return &mailLoad{
		l: l, roaming: &roaming, away: &awaySession{session: newSession("away", 2), up: make(chan context.Context, 1)}, fought: &fought,
		acked: map[string]bool{}, wills: map[string]int{},
	}
}

// options are those of a client of the session.
func (s *session) options(up chan<- context.Context) client.Options {
	return client.Options{
		ClientID: s.id, SessionExpiry: 24 * time.Hour, Subscriptions: []client.Subscription{{Filter: "mail/#", QoS: s.qos}}, OnConnect: firstUp(up),
		OnMessage: func(m client.Message) {
			s.mu.Lock()
			defer s.mu.Unlock()
			payload := string(m.Payload)
			s.got[payload], s.fresh[payload] = append(s.got[payload], time.Now()), true
		},
	}
}

// start makes the sessions, and then has everybody publish until ctx ends.
func (m *mailLoad) start(ctx context.Context, work *sync.WaitGroup) {
	work.Go(m.runAway(ctx, m.away))
	for _, visit := range m.visits() {
		visit(ctx, func(*client.Client, *session) {})
	}
	up := make(chan context.Context, 1)
	c, ended := m.l.connect(ctx, m.roaming.options(up))
	<-up
	work.Go(func() { <-ended })
	work.Go(func() {
		for ctx.Err() == nil {
			pauseFor(ctx, time.Duration(200+m.l.roll(2000))*time.Millisecond)
			c.Reconnect(errors.New("it changes hubs"))
		}
	})
	for i := range 2 {
		work.Go(func() { m.publishOnce(ctx, fmt.Sprint("once-", i)) })
		work.Go(func() { m.publishTwo(ctx, fmt.Sprint("two-", i)) })
	}
}

func (m *mailLoad) note(payload string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent++
	if err == nil {
		m.acked[payload] = true
	}
}

// publishOnce publishes at QoS 1, and nothing again: what had no answer may have arrived or not.
func (m *mailLoad) publishOnce(ctx context.Context, name string) {
	ups := make(chan context.Context, 1)
	c, ended := m.l.connect(ctx, client.Options{ClientID: name, OnConnect: func(ctx context.Context, _ bool) error {
		select {
		case <-ups:
		default:
		}
		ups <- ctx
		return nil
	}})
	defer func() { <-ended }()
	var up context.Context
	for n := 1; ctx.Err() == nil; {
		select {
		case up = <-ups:
		default:
		}
		if up == nil || up.Err() != nil {
			pauseFor(ctx, mailPace)
			continue
		}
		payload := fmt.Sprint(name, " ", n)
		answer := make(chan error, 1)
		m.visiting.RLock()
		c.PublishOver(up, client.Message{Topic: "mail/" + name, Payload: []byte(payload), QoS: 1}, func(err error) { answer <- err })
		select {
		case err := <-answer:
			m.note(payload, err)
			n++
		case <-ctx.Done():
		}
		m.visiting.RUnlock()
		pauseFor(ctx, mailPace)
	}
}

// publishTwo publishes at QoS 2 in a session that is kept: a handshake that a failover cut goes on with another hub.
func (m *mailLoad) publishTwo(ctx context.Context, name string) {
	c, ended := m.l.connect(ctx, client.Options{ClientID: name, SessionExpiry: 24 * time.Hour})
	defer func() { <-ended }()
	for n := 1; ctx.Err() == nil; n++ {
		payload := fmt.Sprint(name, " ", n)
		m.visiting.RLock()
		m.note(payload, c.Publish(ctx, client.Message{Topic: "mail/" + name, Payload: []byte(payload), QoS: 2}))
		m.visiting.RUnlock()
		pauseFor(ctx, mailPace)
	}
}

// will has a client connect, and its connection end without a DISCONNECT, for good.
func (m *mailLoad) will(ctx context.Context, name string) {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	var mu sync.Mutex
	var conn net.Conn
	gone, connections := false, 0
	up := make(chan context.Context, 1)
	c, ended := m.l.connect(ctx, client.Options{
		ClientID: name, CleanStart: true, KeepAlive: 2 * time.Second, Will: &client.Message{Topic: "mail/will", Payload: []byte(name), QoS: 1}, OnConnect: firstUp(up),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			if gone {
				return nil, errors.New("it is gone")
			}
			var err error
			if conn, err = clientDialer.DialContext(ctx, network, address); err == nil {
				connections++
			}
			return conn, err
		},
	})
	defer func() { stop(); <-ended }()
	err := c.Publish(ctx, client.Message{Topic: "mail/joined", Payload: []byte("there is " + name), QoS: 1}) // behind its will in the log
	mu.Lock()
	defer mu.Unlock()
	gone = true
	if conn != nil {
		_ = conn.Close()
	}
	if err == nil {
		m.mu.Lock()
		m.wills[name] = connections
		m.mu.Unlock()
	}
}

// storm has connections take the session over from each other.
func (m *mailLoad) storm(ctx context.Context, d time.Duration) {
	ctx, stop := context.WithTimeout(ctx, d)
	defer stop()
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			for ctx.Err() == nil {
				short, end := context.WithTimeout(ctx, time.Duration(20+m.l.roll(200))*time.Millisecond)
				_, ended := m.l.connect(short, m.fought.options(make(chan context.Context, 1)))
				<-ended
				end()
			}
		})
	}
	work.Wait()
}

// visits has a client be there for as long as it takes to be given all that waits, of each session whose client isn't there.
func (m *mailLoad) visits() []func(context.Context, func(*client.Client, *session)) {
	return []func(context.Context, func(*client.Client, *session)){m.visitAway, m.visitFought}
}

// runAway makes a session's only client, which tries to connect whenever it isn't away.
func (m *mailLoad) runAway(ctx context.Context, g *awaySession) (wait func()) {
	o := g.options(nil)
	away := errors.New("it is away")
	o.OnConnect = func(ctx context.Context, _ bool) error {
		if !g.there.Load() {
			return away
		}
		select {
		case g.up <- ctx:
		default:
		}
		return nil
	}
	o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if !g.there.Load() {
			return nil, away
		}
		return clientDialer.DialContext(ctx, network, address)
	}
	var ended <-chan struct{}
	g.client, ended = m.l.connect(ctx, o)
	return func() { <-ended }
}

func (m *mailLoad) visitAway(ctx context.Context, during func(*client.Client, *session)) {
	g := m.away
	select {
	case <-g.up: // of an earlier visit
	default:
	}
	g.there.Store(true)
	select {
	case <-g.up:
	case <-time.After(recovery):
	case <-ctx.Done():
	}
	during(g.client, &g.session)
	g.there.Store(false)
	g.client.Reconnect(errors.New("it goes away")) // without a DISCONNECT
}

func (m *mailLoad) visitFought(ctx context.Context, during func(*client.Client, *session)) {
	ctx, stop := context.WithTimeout(ctx, recovery)
	defer stop()
	up := make(chan context.Context, 1)
	c, ended := m.l.connect(ctx, m.fought.options(up))
	select {
	case <-up:
	case <-ctx.Done():
	}
	during(c, m.fought)
	stop()
	<-ended
}

// check looks whether the roaming client has all that was acknowledged; with the others, whether their sessions had it as well, once.
func (m *mailLoad) check(ctx context.Context, others bool) error {
	m.mu.Lock()
	owed := slices.Collect(maps.Keys(m.acked))
	m.mu.Unlock()
	err := harness.Eventually(ctx, recovery, func(context.Context) error { return m.missing(m.roaming) })
	for _, visit := range m.visits() {
		if !others || err != nil {
			break
		}
		m.visiting.Lock()
		visit(ctx, func(c *client.Client, s *session) {
			err = harness.Eventually(ctx, recovery, func(context.Context) error { return m.missing(s) })
			for range 2 { // the second one is answered when the broker has stored that the others were taken
				m.fence++
				fence := fmt.Sprint("fence ", m.fence)
				err = errors.Join(err, c.Publish(ctx, client.Message{Topic: "mail/fence", Payload: []byte(fence), QoS: 1}), harness.Eventually(ctx, recovery, func(context.Context) error {
					s.mu.Lock()
					defer s.mu.Unlock()
					if s.got[fence] == nil {
						return fmt.Errorf("%s waits for %s", s.id, fence)
					}
					return nil
				}))
			}
		})
		m.visiting.Unlock()
	}
	if others && err == nil {
		m.mu.Lock()
		for _, payload := range owed {
			delete(m.acked, payload)
		}
		m.had += len(owed)
		m.mu.Unlock()
	}
	return errors.Join(err, m.doubles())
}

func (m *mailLoad) missing(s *session) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	var lost []string
	for _, owed := range []iter.Seq[string]{maps.Keys(m.acked), maps.Keys(m.wills)} {
		for payload := range owed {
			if s.got[payload] == nil {
				lost = append(lost, payload)
			}
		}
	}
	if lost == nil {
		return nil
	}
	slices.Sort(lost)
	return fmt.Errorf("%s lacks %d messages that were acknowledged, or wills: %q", s.id, len(lost), lost[:min(len(lost), 10)])
}

// doubles are messages that came twice where they must not: at QoS 2, and to the session whose client was away.
func (m *mailLoad) doubles() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, s := range []*session{m.roaming, &m.away.session} {
		s.mu.Lock()
		for _, payload := range slices.Sorted(maps.Keys(s.fresh)) {
			most := 1
			if strings.HasPrefix(payload, "will-") {
				most = m.wills[payload] // 0: it may come at any time, also as a client leaves
			}
			if at := s.got[payload]; len(at) > most && most > 0 && (s != m.roaming || strings.HasPrefix(payload, "two-")) {
				errs = append(errs, fmt.Errorf("%s was given %q %d times: %s", s.id, payload, len(at), at))
			}
		}
		clear(s.fresh)
		s.mu.Unlock()
	}
	return errors.Join(errs[:min(len(errs), 10)]...)
}

func (m *mailLoad) String() string {
	acked := m.acknowledged()
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprintf("%d of %d messages acknowledged, %d wills", acked, m.sent, len(m.wills))
}

func (m *mailLoad) acknowledged() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.had + len(m.acked)
}
