package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// link is one connection, from CONNACK to its end.
type link struct {
	c         *Client
	conn      *patientConn
	r         *bufio.Reader
	keepAlive time.Duration
	maxPacket uint32 // what the broker takes; 0 unlimited
	maxQoS    byte
	wake      chan struct{} // capacity 1: there may be something to write
	done      chan struct{} // closed at the end
	ctx       context.Context
	cancel    context.CancelFunc

	once sync.Once
	err  error // why it ended; readable after done

	// guarded by Client.mu
	control []packet // acknowledgements and requests, written before publishes
	quota   int      // how many more QoS 1 and 2 publishes the broker takes now
	leaving bool     // say goodbye when all is written

	// unacked counts QoS 1 and 2 messages that the broker has sent and we have not acknowledged. Guarded by Client.mu.
	unacked int
}

// errWasUp marks the end of a connection that had been made, as opposed to one that could not be made.
var errWasUp = errors.New("connection ended")

// connectOnce makes one connection, serves it to its end and says why it ended.
func (c *Client) connectOnce(ctx context.Context, s server) error {
	l, present, err := c.connect(ctx, s)
	if err != nil {
		c.events.push(event{kind: failed, err: err})
		return err
	}
	c.begin(l, present)
	c.o.Log.Info().Str("server", s.String()).Bool("session", present).Msg("MQTT connected")
	l.serve(ctx)
	c.lose(l)
	return fmt.Errorf("%w: %w", errWasUp, l.err)
}

// connect dials and exchanges CONNECT and CONNACK.
func (c *Client) connect(ctx context.Context, s server) (*link, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.ConnectTimeout)
	defer cancel()
	raw, err := dial(ctx, c.o, s)
	if err != nil {
		return nil, false, fmt.Errorf("connect to %s: %w", s, c.o.explain(err, s))
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	conn := &patientConn{Conn: raw}
	conn.patience.Store(int64(c.o.ConnectTimeout))
	r := bufio.NewReaderSize(conn, 32<<10)
	ack, err := c.handshake(conn, r, s)
	if err != nil {
		_ = raw.Close()
		return nil, false, fmt.Errorf("connect to %s: %w", s, c.o.explain(err, s))
	}
	return c.newLink(conn, r, ack), ack.SessionPresent, nil
}

func (c *Client) handshake(conn net.Conn, r *bufio.Reader, s server) (*packets.Connack, error) {
	hello, err := c.o.connectPacket(s)
	if err != nil {
		return nil, err
	}
	if _, err := hello.WriteTo(conn); err != nil {
		return nil, err
	}
	cp, err := readPacket(r, c.o.MaxPacket)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	ack, ok := cp.Content.(*packets.Connack)
	if !ok {
		return nil, fmt.Errorf("got packet type %d instead of CONNACK; does the server speak MQTT 5?", cp.Type)
	}
	if ack.ReasonCode >= 0x80 {
		return nil, &Refused{Op: "connect", Code: ack.ReasonCode, Reason: ack.Properties.ReasonString}
	}
	return ack, nil
}

func (c *Client) newLink(conn *patientConn, r *bufio.Reader, ack *packets.Connack) *link {
	p := ack.Properties
	l := &link{
		c: c, conn: conn, r: r, keepAlive: c.o.KeepAlive, maxQoS: 2, quota: 65535,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if p.ServerKeepAlive != nil && *p.ServerKeepAlive > 0 {
		l.keepAlive = time.Duration(*p.ServerKeepAlive) * time.Second
	}
	if p.ReceiveMaximum != nil {
		l.quota = int(*p.ReceiveMaximum)
	}
	if p.MaximumPacketSize != nil {
		l.maxPacket = *p.MaximumPacketSize
	}
	if p.MaximumQOS != nil {
		l.maxQoS = *p.MaximumQOS
	}
	conn.patience.Store(int64(l.keepAlive + l.keepAlive/2))
	return l
}

// begin makes l the client's connection.
func (c *Client) begin(l *link, present bool) {
	c.mu.Lock()
	var lost []*flight
	if present {
		c.out.rewind()
	} else {
		lost = c.out.clear()
		clear(c.received)
	}
	c.link, c.lastErr = l, nil
	closeOnce(c.up)
	c.mu.Unlock()
	for _, f := range lost {
		f.done(ErrConnectionLost)
	}
	l.wakeWriter()
	c.events.push(event{kind: connected, link: l, present: present})
}

// lose takes the connection away again. Publishes wait for the next one only when there is a session to go on with.
func (c *Client) lose(l *link) {
	c.mu.Lock()
	c.link, c.lastErr, c.replying = nil, l.err, nil
	c.up = make(chan struct{})
	var lost []*flight
	if c.o.CleanStart || c.o.SessionExpiry == 0 {
		lost = c.out.clear()
	}
	waiting := c.waiting
	c.waiting = map[uint16]chan answer{}
	c.mu.Unlock()
	for _, f := range lost {
		f.done(ErrConnectionLost)
	}
	for _, ch := range waiting {
		ch <- answer{err: ErrConnectionLost}
	}
	c.events.push(event{kind: disconnected, link: l})
}

// serve owns the goroutines of the connection and returns when all have ended.
func (l *link) serve(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(l.read)
	wg.Go(l.write)
	select {
	case <-l.done:
	case <-ctx.Done():
		l.leave()
	}
	wg.Wait()
}

// leave writes what is queued and DISCONNECT, for at most a second.
func (l *link) leave() {
	l.c.mu.Lock()
	l.leaving = true
	l.c.mu.Unlock()
	l.wakeWriter()
	select {
	case <-l.done:
	case <-time.After(time.Second):
		l.fail(ErrClosed)
	}
}

func (l *link) fail(err error) {
	l.once.Do(func() {
		l.err = err
		l.cancel()
		close(l.done)
		_ = l.conn.Close()
	})
}

func (l *link) alive() bool {
	select {
	case <-l.done:
		return false
	default:
		return true
	}
}

func (l *link) wakeWriter() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// accepts refuses what the broker has said it doesn't take.
func (l *link) accepts(m Message) error {
	if m.QoS > l.maxQoS {
		return &Refused{Op: "publish to", Topic: m.Topic, Code: 0x9B, Reason: fmt.Sprintf("the broker takes QoS %d at most", l.maxQoS)}
	}
	size := len(m.Topic) + len(m.Payload) + len(m.ContentType) + len(m.ResponseTopic) + len(m.Correlation) + 32
	for _, u := range m.User {
		size += len(u.Key) + len(u.Value) + 5
	}
	if l.maxPacket > 0 && size > int(l.maxPacket) {
		return &Refused{Op: "publish to", Topic: m.Topic, Code: 0x95, Reason: fmt.Sprintf("about %d bytes, the broker takes %d", size, l.maxPacket)}
	}
	if size > 268435455 {
		return &Refused{Op: "publish to", Topic: m.Topic, Code: 0x95, Reason: "more than MQTT can carry"}
	}
	return nil
}
