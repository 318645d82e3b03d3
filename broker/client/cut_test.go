// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/stretchr/testify/require"
)

// cuttingBroker is a broker that keeps one session over connections that break: each after as many bytes behind its CONNACK as plan says, in both
// directions together; the last one doesn't break.
type cuttingBroker struct {
	plan func(connection int) (bytes int64, last bool)

	mu       sync.Mutex
	made     int
	newest   *cutLine
	present  bool
	got      map[string]int // payloads that were taken, by how often
	released map[uint16]bool
	good     chan struct{} // closed when a connection that doesn't break was made
}

// cutLine is one connection's budget.
type cutLine struct {
	left  atomic.Int64
	after int64 // after CONNACK
	ends  []net.Conn
}

func (l *cutLine) cut() {
	for _, c := range l.ends {
		_ = c.Close()
	}
}

// cutConn gives out and takes in what the line still carries.
type cutConn struct {
	net.Conn
	line *cutLine
}

func (c cutConn) Write(p []byte) (int, error) {
	left := c.line.left.Add(-int64(len(p))) + int64(len(p))
	if left >= int64(len(p)) {
		return c.Conn.Write(p)
	}
	n := 0
	if left > 0 {
		n, _ = c.Conn.Write(p[:left])
	}
	c.line.cut()
	return n, errors.New("the line broke")
}

func (b *cuttingBroker) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	b.mu.Lock()
	bytes, last := b.plan(b.made)
	b.made++
	b.mu.Unlock()
	l := &cutLine{ends: []net.Conn{ours, theirs}}
	l.left.Store(1 << 50)
	l.after = bytes
	if last {
		l.after = 1 << 50
		defer closeOnce(b.good)
	}
	go b.serve(cutConn{theirs, l})
	return cutConn{ours, l}, nil
}

// serve is the broker's end of a connection. Answers are written beside, as the pipe holds nothing.
func (b *cuttingBroker) serve(c cutConn) {
	defer c.Close()
	r := bufio.NewReader(c)
	answers := make(chan *packets.ControlPacket, 1000)
	var writer sync.WaitGroup
	writer.Go(func() {
		for p := range answers {
			_, _ = p.WriteTo(c)
		}
	})
	defer writer.Wait()
	defer close(answers)
	answer := func(kind byte, content packets.Packet) {
		p := packets.NewControlPacket(kind)
		p.Content = content
		answers <- p
	}
	for {
		p, err := readPacket(r, 1<<20)
		if err != nil {
			return
		}
		b.mu.Lock()
		if _, connects := p.Content.(*packets.Connect); connects {
			b.newest = c.line
		} else if b.newest != c.line { // the next connection has taken the session over
			b.mu.Unlock()
			return
		}
		switch m := p.Content.(type) {
		case *packets.Connect:
			c.line.left.Store(5 + c.line.after)
			answer(packets.CONNACK, &packets.Connack{SessionPresent: b.present, Properties: &packets.Properties{}})
			b.present = true
		case *packets.Publish:
			if m.QoS < 2 || !b.released[m.PacketID] {
				b.got[string(m.Payload)]++
			}
			switch m.QoS {
			case 1:
				answer(packets.PUBACK, &packets.Puback{PacketID: m.PacketID, Properties: &packets.Properties{}})
			case 2:
				b.released[m.PacketID] = true
				answer(packets.PUBREC, &packets.Pubrec{PacketID: m.PacketID, Properties: &packets.Properties{}})
			}
		case *packets.Pubrel:
			delete(b.released, m.PacketID)
			answer(packets.PUBCOMP, &packets.Pubcomp{PacketID: m.PacketID, Properties: &packets.Properties{}})
		case *packets.Pingreq:
			answer(packets.PINGRESP, &packets.Pingresp{})
		case *packets.Disconnect:
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
	}
}

func newCuttingBroker(t *testing.T, session time.Duration, slots int, plan func(connection int) (int64, bool)) (b *cuttingBroker, c *Client, stop func()) {
	t.Helper()
	b = &cuttingBroker{plan: plan, got: map[string]int{}, released: map[uint16]bool{}, good: make(chan struct{})}
	c, err := New(Options{
		Servers: []string{"mqtt://127.0.0.1:1"}, ClientID: "x", SessionExpiry: session, CleanStart: session == 0, Dial: b.dial, MaxPending: slots,
		Backoff: Backoff{Min: time.Microsecond, Max: 10 * time.Microsecond},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- c.Run(ctx) }()
	return b, c, func() {
		cancel()
		require.NoError(t, <-ran)
	}
}

// Wherever a connection breaks, each publish has one outcome and gives its slot back; what was acknowledged has arrived, at QoS 2 once.
func TestEachPublishHasOneOutcomeWhereverTheConnectionBreaks(t *testing.T) {
	const messages = 9 // three of each QoS
	whole := 0
	for _, session := range []time.Duration{0, time.Hour} {
		for at := 1; ; at++ {
			broke := false
			b, c, stop := newCuttingBroker(t, session, messages, func(connection int) (int64, bool) { return int64(at), connection > 0 })
			outcomes := make(chan func(), messages)
			var pending sync.WaitGroup
			again := map[string]*atomic.Int32{}
			for i := range messages {
				payload := fmt.Sprintf("m%d", i)
				count := &atomic.Int32{}
				again[payload] = count
				pending.Add(1)
				go func() {
					defer pending.Done()
					require.NoError(t, c.waitUp(t.Context()))
					done := make(chan error, 2)
					c.PublishAsync(Message{Topic: "t", Payload: []byte(payload), QoS: byte(i % 3)}, func(err error) {
						count.Add(1)
						done <- err
					})
					err := <-done
					outcomes <- func() {
						b.mu.Lock()
						defer b.mu.Unlock()
						n := b.got[payload]
						switch {
						case errors.Is(err, ErrNotConnected):
							require.Zero(t, n)
						case err != nil:
							require.ErrorIs(t, err, ErrConnectionLost)
							require.False(t, session > 0 && i%3 > 0, "a session continues it: %v", err)
						case i%3 > 0:
							require.Positive(t, n, "acknowledged, and not there")
							require.False(t, i%3 == 2 && n > 1, "QoS 2 arrived %d times", n)
						}
					}
				}()
			}
			pending.Wait()
			stop() // after that, nothing has an outcome any more
			close(outcomes)
			for check := range outcomes {
				check()
			}
			for payload, count := range again {
				require.EqualValues(t, 1, count.Load(), "%s, cut after %d bytes", payload, at)
			}
			require.Empty(t, c.slots, "cut after %d bytes", at)
			require.Zero(t, c.opts.Counters.Pending.Load())
			require.Zero(t, c.outbox.all.Len())
			b.mu.Lock()
			broke = b.made > 1
			b.mu.Unlock()
			if whole++; !broke {
				break // all went over the first connection
			}
		}
	}
	t.Logf("%d cuts", whole)
}

// A line that breaks a thousand times costs no slot: when it is good again, each message arrives.
func TestALineThatBreaksAThousandTimesCostsNoSlot(t *testing.T) {
	const breaks, slots = 1000, 64
	random := rand.New(rand.NewPCG(1, 2))
	b, c, stop := newCuttingBroker(t, time.Hour, slots, func(connection int) (int64, bool) { return 40 + random.Int64N(4000), connection >= breaks })
	defer stop()
	payload := make([]byte, 300)
	for sent := 0; ; sent++ {
		c.PublishAsync(Message{Topic: "t", Payload: payload, QoS: byte(sent % 3)}, nil)
		select {
		case <-b.good:
		default:
			if c.waitUp(t.Context()) == nil {
				continue
			}
		}
		break
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for i := range 3 * slots {
		require.NoError(t, c.Publish(ctx, Message{Topic: "t", Payload: fmt.Appendf(nil, "after %d", i), QoS: byte(i % 3)}))
	}
	require.NoError(t, c.Publish(ctx, Message{Topic: "t", Payload: []byte("last"), QoS: 1}))
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range 3 * slots {
		require.Positive(t, b.got[fmt.Sprintf("after %d", i)])
	}
	require.Empty(t, c.slots)
}

// A QoS 2 message that is being handled when the connection breaks comes again on the next one, and is handled once.
func TestAMessageOfQoS2IsHandledOnceOverACut(t *testing.T) {
	for name, queued := range map[string]bool{"handled when the line breaks": false, "queued when the line breaks": true} {
		t.Run(name, func(t *testing.T) {
			b := newFakeBroker(t)
			var handled atomic.Int32
			entered, goOn := make(chan string, 4), make(chan struct{})
			c, err := New(Options{
				Servers: []string{b.url()}, ClientID: "x", SessionExpiry: time.Hour, Backoff: Backoff{Min: time.Millisecond, Max: 2 * time.Millisecond},
				OnMessage: func(m Message) {
					if m.Topic == "t" {
						handled.Add(1)
					}
					entered <- m.Topic
					<-goOn
				},
			})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(context.Background())
			ran := make(chan error, 1)
			go func() { ran <- c.Run(ctx) }()
			one := b.accept(packets.Connack{})
			if queued {
				one.publish("before", "x", 0, 0)
			}
			one.publish("t", "x", 2, 5)
			<-entered
			_ = one.Close()
			two := b.accept(packets.Connack{SessionPresent: true})
			two.send(packets.PUBLISH, &packets.Publish{Topic: "t", Payload: []byte("x"), QoS: 2, PacketID: 5, Duplicate: true, Properties: &packets.Properties{}})
			two.publish("after", "x", 1, 6)
			close(goOn)
			require.EqualValues(t, packets.PUBREC, two.read().Type)
			require.EqualValues(t, packets.PUBACK, two.read().Type)
			two.send(packets.PUBREL, &packets.Pubrel{PacketID: 5, Properties: &packets.Properties{}})
			require.EqualValues(t, packets.PUBCOMP, two.read().Type)
			require.EqualValues(t, 1, handled.Load())
			cancel()
			require.NoError(t, <-ran)
		})
	}
}
