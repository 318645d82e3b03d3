// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/harness"
)

// mailLoad are messages at QoS 1 and 2, each of its own, to sessions that are kept: of a client that changes hubs, of one that is away until it is asked, and of one whose
// connections take it over from each other.
type mailLoad struct {
	l       *load
	roaming *session
	away    *session
	fought  *session

	// visiting is held while a session's client is there: what it was given as it left would come again to the next one, which knows of no handshake.
	visiting sync.RWMutex

	mu    sync.Mutex
	acked map[string]bool // by payload
	wills map[string]bool // of clients that are gone, and will not come back
	sent  int
	fence int
}

// session is what the clients of a session were given.
type session struct {
	id  string
	qos byte

	mu  sync.Mutex
	got map[string]int // by payload
}

const mailPace = 20 * time.Millisecond

func newMail(l *load) *mailLoad {
	return &mailLoad{
		l: l, roaming: &session{id: "roaming", qos: 2, got: map[string]int{}}, away: &session{id: "away", qos: 2, got: map[string]int{}}, fought: &session{id: "fought", qos: 1, got: map[string]int{}},
		acked: map[string]bool{}, wills: map[string]bool{},
	}
}

// options are those of a client of the session.
func (s *session) options(up chan<- context.Context) client.Options {
	return client.Options{
		ClientID: s.id, SessionExpiry: 24 * time.Hour, Subscriptions: []client.Subscription{{Filter: "mail/#", QoS: s.qos}}, OnConnect: firstUp(up),
		OnMessage: func(m client.Message) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.got[string(m.Payload)]++
		},
	}
}

// start makes the sessions, and then has everybody publish until ctx ends.
func (m *mailLoad) start(ctx context.Context, work *sync.WaitGroup) {
	for _, s := range []*session{m.away, m.fought} {
		m.visit(ctx, s, func(*client.Client) {})
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
	gone := false
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
			conn, err = clientDialer.DialContext(ctx, network, address)
			return conn, err
		},
	})
	defer func() { stop(); <-ended }()
	err := c.Publish(ctx, client.Message{Topic: "mail/joined", Payload: []byte(name + " is there"), QoS: 1}) // behind its will in the log
	mu.Lock()
	defer mu.Unlock()
	gone = true
	if conn != nil {
		_ = conn.Close()
	}
	if err == nil {
		m.mu.Lock()
		m.wills[name] = true
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

// visit connects a session's client for as long as it takes to be given all that waits.
func (m *mailLoad) visit(ctx context.Context, s *session, during func(*client.Client)) {
	ctx, stop := context.WithTimeout(ctx, recovery)
	defer stop()
	up := make(chan context.Context, 1)
	c, ended := m.l.connect(ctx, s.options(up))
	select {
	case <-up:
	case <-ctx.Done():
	}
	during(c)
	stop()
	<-ended
}

// check looks whether the roaming client has all that was acknowledged; with the others, whether their sessions had it as well, once.
func (m *mailLoad) check(ctx context.Context, others bool) error {
	err := harness.Eventually(ctx, recovery, func(context.Context) error { return m.missing(m.roaming) })
	for _, s := range []*session{m.away, m.fought} {
		if !others || err != nil {
			break
		}
		m.visiting.Lock()
		m.visit(ctx, s, func(c *client.Client) {
			err = harness.Eventually(ctx, recovery, func(context.Context) error { return m.missing(s) })
			for range 2 { // the second one is answered when the broker has stored that the others were taken
				m.fence++
				fence := fmt.Sprint("fence ", m.fence)
				err = errors.Join(err, c.Publish(ctx, client.Message{Topic: "mail/fence", Payload: []byte(fence), QoS: 1}), harness.Eventually(ctx, recovery, func(context.Context) error {
					s.mu.Lock()
					defer s.mu.Unlock()
					if s.got[fence] == 0 {
						return fmt.Errorf("%s waits for %s", s.id, fence)
					}
					return nil
				}))
			}
		})
		m.visiting.Unlock()
	}
	return errors.Join(err, m.doubles())
}

func (m *mailLoad) missing(s *session) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	var lost []string
	for _, all := range []map[string]bool{m.acked, m.wills} {
		for payload := range all {
			if s.got[payload] == 0 {
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
	var errs []error
	for _, s := range []*session{m.roaming, m.away} {
		s.mu.Lock()
		for _, payload := range slices.Sorted(maps.Keys(s.got)) {
			if n := s.got[payload]; n > 1 && (s == m.away || strings.HasPrefix(payload, "two-")) {
				errs = append(errs, fmt.Errorf("%s was given %q %d times", s.id, payload, n))
			}
		}
		s.mu.Unlock()
	}
	return errors.Join(errs[:min(len(errs), 10)]...)
}

func (m *mailLoad) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprintf("%d of %d messages acknowledged, %d wills", len(m.acked), m.sent, len(m.wills))
}
