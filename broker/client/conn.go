// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// connection is one connection, from CONNACK to its end.
type connection struct {
	client    *Client
	conn      *timeoutConn
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
	leaving bool     // DISCONNECT is written after all that is queued

	// unacked counts QoS 1 and 2 messages that the broker has sent and we have not acknowledged. Guarded by Client.mu.
	unacked int
}

// errWasUp marks the end of a connection that had been made, as opposed to one that could not be made.
var errWasUp = errors.New("connection ended")

// connectOnce makes a connection, serves it to its end, and returns why it ended.
func (c *Client) connectOnce(ctx context.Context, s server) error {
	l, present, err := c.connect(ctx, s)
	if err != nil {
		c.events.push(event{kind: eventFailed, err: err})
		return err
	}
	c.begin(l, present)
	c.opts.Log.Info().Str("server", s.String()).Bool("session", present).Msg("MQTT connected")
	l.serve(ctx)
	c.lose(l)
	return fmt.Errorf("%w: %w", errWasUp, l.err)
}

// connect dials and exchanges CONNECT and CONNACK.
func (c *Client) connect(ctx context.Context, s server) (*connection, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.ConnectTimeout)
	defer cancel()
	raw, err := dialServer(ctx, c.opts, s)
	if err != nil {
		return nil, false, fmt.Errorf("connect to %s: %w", s, c.opts.explain(err, s))
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	conn := &timeoutConn{Conn: raw}
	conn.timeout.Store(int64(c.opts.ConnectTimeout))
	r := bufio.NewReaderSize(conn, 32<<10)
	ack, err := c.handshake(conn, r, s)
	if err != nil {
		_ = raw.Close()
		return nil, false, fmt.Errorf("connect to %s: %w", s, c.opts.explain(err, s))
	}
	return c.newConnection(conn, r, ack), ack.SessionPresent, nil
}

func (c *Client) handshake(conn net.Conn, r *bufio.Reader, s server) (*packets.Connack, error) {
	o := c.opts
	c.mu.Lock()
	o.Will = c.will
	c.mu.Unlock()
	hello, err := o.connectPacket(s)
	if err != nil {
		return nil, err
	}
	if _, err := hello.WriteTo(conn); err != nil {
		return nil, err
	}
	cp, err := readPacket(r, maxPacket)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	ack, ok := cp.Content.(*packets.Connack)
	if !ok {
		return nil, fmt.Errorf("got packet type %d instead of CONNACK; does the server speak MQTT 5?", cp.Type)
	}
	if ack.ReasonCode >= 0x80 {
		refused := &Refused{Op: opConnect, Code: ack.ReasonCode, Reason: ack.Properties.ReasonString}
		for _, u := range ack.Properties.User {
			refused.User = append(refused.User, UserProperty(u))
		}
		return nil, refused
	}
	return ack, nil
}

func (c *Client) newConnection(conn *timeoutConn, r *bufio.Reader, ack *packets.Connack) *connection {
	p := ack.Properties
	l := &connection{
		client: c, conn: conn, r: r, keepAlive: c.opts.KeepAlive, maxQoS: 2, quota: 65535,
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
	conn.timeout.Store(int64(l.keepAlive + l.keepAlive/2))
	return l
}

// begin makes l the client's connection.
func (c *Client) begin(l *connection, present bool) {
	c.mu.Lock()
	var lost []*outgoingPublish
	if !present {
		lost = c.outbox.clear()
		clear(c.incoming)
	}
	c.conn, c.lastErr = l, nil
	closeOnce(c.up)
	c.mu.Unlock()
	finishAll(lost, ErrConnectionLost)
	l.wakeWriter()
	c.events.push(event{kind: eventConnected, conn: l, present: present})
}

// lose ends the client's connection. Publishes wait for the next one only if there is a session to continue.
func (c *Client) lose(l *connection) {
	c.mu.Lock()
	c.conn, c.lastErr, c.replyConn = nil, l.err, nil
	c.up = make(chan struct{})
	lost := c.outbox.rewind()
	if c.opts.CleanStart || c.opts.SessionExpiry == 0 {
		lost = append(lost, c.outbox.clear()...)
	}
	waiting := c.awaited
	c.awaited = map[uint16]chan subscribeAnswer{}
	c.mu.Unlock()
	finishAll(lost, ErrConnectionLost)
	for _, ch := range waiting {
		ch <- subscribeAnswer{err: ErrConnectionLost}
	}
	c.events.push(event{kind: eventDisconnected, conn: l})
}

// serve owns the goroutines of the connection and returns when all have ended.
func (l *connection) serve(ctx context.Context) {
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
func (l *connection) leave() {
	l.client.mu.Lock()
	l.leaving = true
	l.client.mu.Unlock()
	l.wakeWriter()
	select {
	case <-l.done:
	case <-time.After(time.Second):
		l.fail(ErrClosed)
	}
}

func (l *connection) fail(err error) {
	l.once.Do(func() {
		l.err = err
		l.cancel()
		close(l.done)
		_ = l.conn.Close()
	})
}

func (l *connection) alive() bool {
	select {
	case <-l.done:
		return false
	default:
		return true
	}
}

func (l *connection) wakeWriter() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// accepts returns an error for what the broker has said it doesn't accept.
func (l *connection) accepts(m Message) error {
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

// read is the only goroutine that reads from the connection.
func (l *connection) read() {
	for {
		cp, err := readPacket(l.r, maxPacket)
		if err == nil {
			err = l.handle(cp)
		}
		if err != nil {
			l.fail(l.explain(err))
			return
		}
	}
}

func (l *connection) explain(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the broker was silent for one and a half keep-alives (%s): %w", l.keepAlive, err)
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		return fmt.Errorf("the broker closed the connection without a reason: %w", err)
	}
	return err
}

func (l *connection) handle(cp *packets.ControlPacket) error {
	switch p := cp.Content.(type) {
	case *packets.Publish:
		return l.publish(p)
	case *packets.Puback:
		l.finish(p.PacketID, p.ReasonCode, p.Properties.ReasonString)
	case *packets.Pubrec:
		l.pubrec(p)
	case *packets.Pubcomp:
		code := p.ReasonCode
		if code == packets.PubcompPacketIdentifierNotFound { // the broker is done with it, and the PUBCOMP that said so was lost with a connection [4.3.3]
			code = 0
		}
		l.finish(p.PacketID, code, p.Properties.ReasonString)
	case *packets.Pubrel:
		l.pubrel(p)
	case *packets.Suback:
		l.answer(p.PacketID, p.Reasons, p.Properties.ReasonString)
	case *packets.Unsuback:
		l.answer(p.PacketID, p.Reasons, p.Properties.ReasonString)
	case *packets.Disconnect:
		return &Disconnected{Code: p.ReasonCode, Reason: p.Properties.ReasonString, ClientID: l.client.opts.ClientID}
	case *packets.Pingresp:
	default:
		return fmt.Errorf("mqtt: packet type %d was not expected from the broker", cp.Type)
	}
	return nil
}

// publish queues an incoming message for OnMessage.
func (l *connection) publish(p *packets.Publish) error {
	if p.Topic == "" {
		return errors.New("mqtt: publish without a topic from the broker (no topic alias was offered)")
	}
	c := l.client
	ev := event{kind: eventMessage, conn: l, id: p.PacketID}
	c.mu.Lock()
	if p.QoS > 0 {
		l.unacked++
	}
	// Brokers such as mosquitto send more retained messages than they are allowed: they may, while these take no more memory.
	over, known := l.unacked > int(c.opts.ReceiveMaximum) && (l.unacked > math.MaxUint16 || !c.events.holds(fromPacket(p))), false
	if p.QoS == 2 {
		if ev.receipt = c.incoming[p.PacketID]; ev.receipt != nil {
			known = true
		} else {
			ev.receipt = &incomingQoS2{}
			c.incoming[p.PacketID] = ev.receipt
		}
		ev.receipt.conn = l
		if ev.receipt.handled { // its PUBREC was lost
			l.unacked--
			l.send(&packets.Pubrec{PacketID: p.PacketID, Properties: &packets.Properties{}})
		}
	}
	c.mu.Unlock()
	switch {
	case over:
		return fmt.Errorf("mqtt: the broker sends more than the %d unacknowledged messages it was allowed", c.opts.ReceiveMaximum)
	case known: // it is acknowledged once it was handled
		return nil
	}
	ev.message = fromPacket(p)
	if c.takeAnswer(ev.message) {
		ev.acknowledge()
		return nil
	}
	if !c.events.push(ev) {
		c.sampled.Warn().Int64("dropped", c.opts.Counters.Dropped.Load()).
			Msg("QoS 0 messages are dropped: more come than are handled, and too many wait")
	}
	return nil
}

// send queues a packet, which is written before publishes. Client.mu is held.
func (l *connection) send(p packet) {
	l.control = append(l.control, p)
	l.wakeWriter()
}

func (l *connection) pubrel(p *packets.Pubrel) {
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	delete(l.client.incoming, p.PacketID)
	l.send(&packets.Pubcomp{PacketID: p.PacketID, Properties: &packets.Properties{}})
}

func (l *connection) pubrec(p *packets.Pubrec) {
	if p.ReasonCode >= 0x80 {
		l.finish(p.PacketID, p.ReasonCode, p.Properties.ReasonString)
		return
	}
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	rel := &packets.Pubrel{PacketID: p.PacketID, Properties: &packets.Properties{}}
	if f := l.client.outbox.byID[p.PacketID]; f != nil && f.progress != progressWaiting {
		f.progress, f.pubrecReceived = progressReleased, true
	} else {
		rel.ReasonCode = 0x92
	}
	l.send(rel)
}

// finish ends a publish with the broker's answer.
func (l *connection) finish(id uint16, code byte, reason string) {
	l.client.mu.Lock()
	f := l.client.outbox.byID[id]
	if f != nil && f.progress == progressWaiting {
		f = nil // it wasn't sent over this connection
	}
	if f != nil {
		l.client.outbox.remove(f)
		l.quota++
	}
	l.client.mu.Unlock()
	if f == nil {
		return
	}
	l.wakeWriter()
	if code >= 0x80 {
		f.done(&Refused{Op: "publish to", Topic: f.message.Topic, Code: code, Reason: reason})
		return
	}
	f.done(nil)
}

// answer gives a SUBACK or UNSUBACK to the call that waits for it.
func (l *connection) answer(id uint16, codes []byte, reason string) {
	l.client.mu.Lock()
	ch := l.client.awaited[id]
	delete(l.client.awaited, id)
	l.client.mu.Unlock()
	if ch != nil {
		ch <- subscribeAnswer{codes: codes, reason: reason}
	}
}

// maxUnflushed is how many QoS 0 publishes wait for the buffer to be flushed before they have their outcome.
const maxUnflushed = 512

// write is the only goroutine that writes to the connection. It also keeps it alive.
func (l *connection) write() {
	w := bufio.NewWriterSize(l.conn, 32<<10)
	tick := time.NewTicker(l.keepAlive / 2)
	defer tick.Stop()
	var written []*outgoingPublish
	for {
		batch, taken, last := l.next()
		written = append(written, taken...)
		for _, p := range batch {
			if _, err := p.WriteTo(w); err != nil {
				l.fail(err)
				return
			}
		}
		if len(batch) > 0 && !last && len(written) < maxUnflushed {
			continue
		}
		if err := w.Flush(); err != nil {
			l.fail(err)
			return
		}
		l.settle(written)
		written = written[:0]
		if last {
			l.fail(ErrClosed)
			return
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-l.done:
			return
		case <-l.wake:
		case <-tick.C:
			l.ping()
		}
	}
}

// settle gives QoS 0 publishes their outcome: they were written. Those that were not are lost with the connection, in lose.
func (l *connection) settle(written []*outgoingPublish) {
	l.client.mu.Lock()
	l.client.outbox.remove(written...)
	l.client.mu.Unlock()
	finishAll(written, nil)
}

// ping sends PINGREQ if nothing was sent, or nothing was received, since the last tick.
func (l *connection) ping() {
	quiet := time.Now().Add(-l.keepAlive / 2).UnixNano()
	if l.conn.lastRead.Load() > quiet && l.conn.lastSent.Load() > quiet {
		return
	}
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	l.control = append(l.control, packets.NewControlPacket(packets.PINGREQ))
}

// next takes what to write: everything of control, then publishes within the broker's Receive Maximum. taken are the
// QoS 0 publishes among them, whose outcome is that they were written. last reports that DISCONNECT is among them.
func (l *connection) next() (batch []packet, taken []*outgoingPublish, last bool) {
	c := l.client
	c.mu.Lock()
	defer c.mu.Unlock()
	batch, l.control = l.control, nil
	for len(batch) < 256 {
		f := c.outbox.first()
		if f == nil || f.message.QoS > 0 && l.quota == 0 {
			break
		}
		if f.message.QoS > 0 && f.id == 0 {
			if f.id = c.outbox.take(c.idUsed); f.id == 0 {
				break
			}
		}
		batch = append(batch, l.packetFor(f))
		if f.message.QoS == 0 {
			taken = append(taken, f)
		}
	}
	if l.leaving && len(batch) == 0 {
		end := &packets.Disconnect{Properties: &packets.Properties{}}
		if c.willAtEnd {
			end.ReasonCode = packets.DisconnectDisconnectWithWillMessage
		}
		return []packet{end}, nil, true
	}
	return batch, taken, false
}

func (c *Client) idUsed(id uint16) bool {
	_, used := c.awaited[id]
	return used
}

// packetFor is the next packet of the first publish that waits, which is on its way with it.
func (l *connection) packetFor(f *outgoingPublish) packet {
	switch {
	case f.message.QoS == 0:
		l.client.outbox.advance(progressWriting)
		return f.message.packet(0, false)
	case f.pubrecReceived:
		l.quota--
		l.client.outbox.advance(progressReleased)
		return &packets.Pubrel{PacketID: f.id, Properties: &packets.Properties{}}
	}
	l.quota--
	l.client.outbox.advance(progressSent)
	return f.message.packet(f.id, f.dup)
}
