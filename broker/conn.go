// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
)

// conn is one connection, from accept to close. One goroutine reads packets and acts on them. Writing is the session
// writer's (package session), done by whichever goroutine has something for the client, or by the fan-out workers: it never
// waits for a slow client, except on a goroutine of that client's own.
type conn struct {
	net.Conn // the transport
	b        *Broker
	listener *listener
	in       *frameReader
	w        *session.Writer
	batch    session.WriteBatch // writers of the sessions that the client's packets queued messages in

	version     atomic.Uint32 // of the protocol, once known
	established atomic.Bool   // CONNACK went out
	closing     atomic.Bool
	revoked     atomic.Bool // its identity has ended, and with it the session and the will

	// Set by the reading goroutine before the connection is attached, and fixed then.
	ident *Identity // never nil; it is replaced when the client has signed in, and never changed
	connectParams
	client *client

	expiry            time.Duration // of the session; the reading goroutine's
	stopWatchingToken func() bool   // ends waiting for the revocation of the client's token
	keepAlive         keepAliveState
	publisher         publisher
	throttle          readThrottle
	quotas            connQuotas
	will              connWill
	drain             drainState
	end               connEnd
}

// connectParams are what a CONNECT says of how its connection is used.
type connectParams struct {
	bridge         bool // a mosquitto bridge: its subscriptions are no-local and retain-as-published
	receiveMaximum uint16
	maximumPacket  uint32
	partsMemory    string // of a client that takes large messages in parts; empty: it doesn't
	noProblemInfo  bool   // the client asked for no reason strings
}

// connEnd is how a connection ended.
type connEnd struct {
	stopped  chan struct{} // closed once no packet of the client's is applied any more
	readErr  error         // why, then
	detached chan struct{} // closed once its session knows

	mu     sync.Mutex
	reason error // why the broker closed the connection
}

func newConn(b *Broker, l *listener, transport net.Conn) *conn {
	transport = rawSocketOf(transport)
	c := &conn{Conn: transport, b: b, listener: l, ident: &unknownIdentity, stopWatchingToken: func() bool { return true }}
	c.end.stopped, c.end.detached = make(chan struct{}), make(chan struct{})
	c.publisher.c, c.throttle.c, c.quotas.c = c, c, c
	c.quotas.host = peerNetwork(transport.RemoteAddr())
	c.throttle.quantum.began = time.Now()
	c.batch.Fanout = b.dispatcher.fanout
	meterSocket(transport, c)
	c.in = newFrameReader(transport, min(int(b.opts.Limits.Packet), maxConnect))
	c.in.countBytes = c.quotas.countUnfinished
	c.publisher.acks.init()
	c.w = session.NewWriter(writerConn(transport, c), b.opts.Limits.WriteTimeout)
	c.w.ReportReplay(c.throttle.servedRetained)
	return c
}

// serveConn runs a connection until it ends.
func (l *listener) serveConn(transport net.Conn) {
	b := l.b
	c := newConn(b, l, transport)
	if !b.clients.admit(c) {
		b.metrics.rejected.WithLabelValues(daemon.Label(tooManyConnections)).Inc()
		_ = transport.Close()
		return
	}
	defer b.clients.release(c)
	if out := b.clients.pending.add(c); out != nil {
		b.metrics.rejected.WithLabelValues(daemon.Label(evictedPending)).Inc()
		out.shut()
	}
	defer b.clients.running.Done()
	c.readUntil(time.Now().Add(b.opts.Limits.ConnectTimeout))
	err := c.read()
	c.end.readErr = err
	close(c.end.stopped)
	c.stopWatchingToken()
	b.clients.pending.remove(c)
	c.countEnd(err)
	c.finish(err)
	b.clients.detach(c, c.cause(err))
	close(c.end.detached)
	b.wills.awaitDrop(c)
	c.shut() // a client that sent DISCONNECT sees the end only now, and may reconnect at once
	c.linger()
}

// maxConnect bounds a CONNECT, and every packet of a client that hasn't signed in.
const maxConnect = 64 << 10

// signedInLimits gives a client that has signed in what its user may have. Who asks for a first certificate has shown nothing yet.
func (c *conn) signedInLimits() {
	if c.ident.Has(topics.RoleEnrollee) {
		return
	}
	c.in.release()
	c.quotas.signedIn = true
	c.in.maxPacket = int(c.b.opts.Limits.Packet)
}

// countEnd counts and logs the ends of connections that are not counted where they are caused.
func (c *conn) countEnd(err error) {
	if c.w.Stalled() {
		c.b.metrics.closed.WithLabelValues(daemon.Label(readsNothing)).Inc()
		c.b.sampledLog.Info().Str("client", c.ident.ClientID).Msg("disconnected: the client reads nothing")
	}
	if plain := (tls.RecordHeaderError{}); errors.As(err, &plain) {
		c.logWrongProtocol("this listener wants TLS, and the client speaks without: have it use mqtts://")
	}
	if errors.Is(err, errNotHTTP) {
		c.logWrongProtocol("this listener wants WebSocket, and the client speaks without, or TLS: see mqtt.listen and mqtt.websocket.tls")
	}
	if c.client == nil && errors.Is(err, os.ErrDeadlineExceeded) && !c.closing.Load() {
		c.b.metrics.rejected.WithLabelValues(daemon.Label(noConnect)).Inc()
	}
}

// tlsHandshake is the first byte of TLS. No MQTT packet begins with it.
const tlsHandshake = 0x16

// logWrongProtocol logs that a client came to the wrong listener, which it can't be told in a way that it understands.
func (c *conn) logWrongProtocol(what string) {
	c.b.sampledLog.Info().Str("listener", c.listener.Name).Str("remote", c.RemoteAddr().String()).Msg("connection refused: " + what)
}

const (
	lingerTime  = 250 * time.Millisecond
	lingerBytes = 4 << 20
)

// linger reads on for a moment before the connection is closed: a socket that is
// closed with something unread is reset, and the last packet to the client, which
// says why, may be lost with it.
func (c *conn) linger() {
	<-c.w.Done()
	_ = c.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, underlyingConn(c.Conn), lingerBytes)
	_ = c.Conn.Close()
}

// halfCloser is the transport as the writer has it: Close ends the direction to the client, and has the reader handle what
// has arrived and then end, as it could otherwise wait for ever.
type halfCloser struct {
	net.Conn
	c *conn
}

func (h halfCloser) Close() error {
	h.c.expel(0, nil)
	if half, ok := h.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		return nil
	}
	return h.Conn.Close()
}

// finish closes the connection, unless the client sent DISCONNECT. If the client broke the protocol, MQTT 5 says so to it.
func (c *conn) finish(err error) {
	var code packets.Code
	switch {
	case errors.As(err, &code):
		c.disconnect(code.Code, code)
	case errors.Is(err, errDrained):
		c.endDrained()
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.disconnect(packets.ErrKeepAliveTimeout.Code, packets.ErrKeepAliveTimeout)
	}
	if !errors.Is(err, errDisconnected) {
		c.shut()
	}
	event := c.b.log.Debug().Err(err).Str("client", c.ident.ClientID).Str("listener", c.listener.Name)
	event.Str("remote", c.RemoteAddr().String()).Msg("connection closed")
}

// readUntil sets the reader's deadline, unless the reader is to be woken.
func (c *conn) readUntil(deadline time.Time) {
	_ = c.SetReadDeadline(deadline)
	if c.closing.Load() || c.drain.asked() {
		c.wakeReader()
	}
}

func (c *conn) wakeReader() { _ = c.SetReadDeadline(time.Unix(1, 0)) }

// cause is why the connection ended: the broker's reason for closing it, or else the reader's error; nil after a
// client's DISCONNECT.
func (c *conn) cause(err error) error {
	c.end.mu.Lock()
	defer c.end.mu.Unlock()
	switch {
	case c.end.reason != nil:
		return c.end.reason
	case errors.Is(err, errDisconnected):
		return nil
	case errors.Is(err, errDrained):
		return errClosed
	}
	return err
}

// disconnect closes the connection for the given reason, which an MQTT 5 client gets in a DISCONNECT. What the client has
// sent and was not read yet is not handled: see expel. Any goroutine may call it.
func (c *conn) disconnect(code byte, why error) {
	if !c.closing.Load() {
		c.b.metrics.closed.WithLabelValues(daemon.Label(closeReasons[code])).Inc()
	}
	c.end.mu.Lock()
	if c.end.reason == nil {
		c.end.reason = why
	}
	if c.version.Load() == 5 && c.established.Load() && !c.closing.Load() {
		pk := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, ReasonCode: code}
		pk.Properties.ReasonString = validText(why.Error())
		c.send(pk, nil)
	}
	c.closing.Store(true)
	c.end.mu.Unlock()
	c.shut()
}

// shut closes the connection once all queued answers have been written.
func (c *conn) shut() {
	c.closing.Store(true)
	c.w.Close()
	c.publisher.acks.close()
	c.b.admission.treeBacklog.Wake()
	if c.b.store != nil {
		c.b.store.backlog.Wake()
	}
	c.wakeReader()
}

// send queues a packet that doesn't come from the session. It leaves the reason string out if the client wants none or it
// doesn't fit the client's maximum packet size, and reports false if the packet doesn't fit even so.
func (c *conn) send(pk packets.Packet, batch *session.WriteBatch) bool {
	packet, fits := c.encode(pk)
	if fits {
		c.w.Control(packet, batch)
	}
	return fits
}

// encode encodes an answer, and reports whether it fits the client's maximum packet size.
func (c *conn) encode(pk packets.Packet) (packet []byte, fits bool) {
	pk.ProtocolVersion = byte(c.version.Load())
	if c.noProblemInfo {
		pk.Properties.ReasonString = ""
	}
	packet = encodeAnswer(pk)
	if c.tooLarge(packet) && pk.Properties.ReasonString != "" {
		pk.Properties.ReasonString = ""
		packet = encodeAnswer(pk)
	}
	return packet, !c.tooLarge(packet)
}

func (c *conn) tooLarge(packet []byte) bool {
	return c.maximumPacket > 0 && len(packet) > int(c.maximumPacket)
}

func encodeAnswer(pk packets.Packet) []byte {
	var buf bytes.Buffer
	switch pk.FixedHeader.Type {
	case packets.Connack:
		_ = pk.ConnackEncode(&buf)
	case packets.Suback:
		_ = pk.SubackEncode(&buf)
	case packets.Unsuback:
		_ = pk.UnsubackEncode(&buf)
	case packets.Disconnect:
		_ = pk.DisconnectEncode(&buf)
	}
	return buf.Bytes()
}

var (
	errClosed       = errors.New("connection closed by the broker") // the client has been sent the reason
	errDisconnected = errors.New("the client disconnected")
)

// frame returns the next packet: its first byte and its body, which the next call overwrites. It waits for one.
func (c *conn) frame() (first byte, body []byte, err error) {
	for {
		first, body, ok, err := c.in.next()
		switch {
		case c.closing.Load(): // what the client sent after that is ignored
			return 0, nil, errClosed
		case ok || err != nil:
			c.keepAlive.tookPacket = true
			return first, body, err
		}
		if err := c.more(); err != nil {
			return 0, nil, err
		}
	}
}

// more waits until the client has sent more. All packets read so far have been handled by then, so this is where a
// client is made to wait.
func (c *conn) more() error {
	c.batch.Flush()
	c.publisher.lastRoute = nil // it may be outdated after the wait, and is large
	if !c.w.WaitForRoom() {
		c.expel(0, nil) // it has failed, and the client can't be told
	}
	if c.in.full() { // the client sends faster than it is read: others run first
		c.batch.Await()
		runtime.Gosched()
	}
	if c.keepAlive.tookPacket { // the time that it was made to wait doesn't count
		c.keepAlive.tookPacket = false
		c.extend()
	}
	had := c.in.filled - c.in.taken
	err := c.in.fill()
	for again := true; again; {
		if again, err = c.interrupted(err, c.in.filled-c.in.taken, c.in.poll); again {
			err = c.in.fill()
		}
	}
	c.keepAlive.unextendedBytes += c.in.filled - c.in.taken - had
	if c.in.raw != nil { // else metered.Read calls arrived
		now := time.Now()
		c.throttle.countRead(now, c.in.waited(now), c.in.filled < smallBufferSize)
	}
	return err
}

// extend restarts the keep-alive. The socket's deadline is not set for each packet: extendDeadline moves it when it is reached.
func (c *conn) extend() {
	if c.keepAlive.restart(time.Now()) {
		c.readUntil(c.keepAlive.due())
	}
}

// extendDeadline reports whether a read that failed has to be repeated, because the deadline was that of an earlier
// packet, and sets the new one. TLS and WebSocket must not see such an error, since they keep it.
func (c *conn) extendDeadline(err error) bool {
	if err == nil || c.keepAlive.lastHandled.IsZero() || c.closing.Load() || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	if now := time.Now(); !now.Before(c.keepAlive.due()) && !c.keepAlive.arriving(now) {
		return false
	}
	c.readUntil(c.keepAlive.due())
	return true
}

// read handles the CONNECT and then packets, until the connection ends. The checks of a packet's form should leave
// nothing that makes the decoder panic; if it does nevertheless, that is a malformed packet of this client, and no other
// client notices.
func (c *conn) read() (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.b.metrics.malformed.Inc()
			c.b.sampledLog.Warn().Interface("panic", p).Str("remote", c.RemoteAddr().String()).Msg("malformed packet")
			err = errMalformed
		}
		c.batch.Flush() // what came before the end
	}()
	if err := (&handshake{conn: c}).connect(); err != nil {
		return err
	}
	c.readUntil(time.Time{})
	for {
		first, body, err := c.frame()
		if err == nil && !c.fastPuback(first, body) {
			err = c.handleFrame(first, body)
		}
		if err != nil {
			return err
		}
	}
}

// isAnswered reports whether a packet is one whose answer says that something holds, also after this broker's end.
func isAnswered(first byte) bool {
	switch first >> 4 {
	case packets.Publish:
		return first&0x06 != 0
	case packets.Pubrel, packets.Subscribe, packets.Unsubscribe:
		return true
	}
	return false
}

func (c *conn) handleFrame(first byte, body []byte) (err error) {
	if owned := c.b.opts.Owned; owned != nil && isAnswered(first) && !owned() {
		return errStopping
	}
	if !c.publisher.fastPublish(first, body) {
		err = c.take(first, body)
	}
	if kind := first >> 4; err == nil && (kind < packets.Puback || kind > packets.Pubcomp) {
		c.throttle.countPacket(len(body))
	}
	return err
}

// take decodes and handles a packet of any kind. It is a function of its own so that a goroutine that waits for packets
// has no decoded packet, which is large, on its stack.
func (c *conn) take(first byte, body []byte) error {
	if first>>4 != packets.Publish {
		c.batch.Flush() // handling it may wait for the disk
	}
	pk, err := decodePacket(byte(c.version.Load()), first, body)
	if first>>4 == packets.Publish && errors.Is(err, errUserProperties) {
		return c.publisher.refuseUnread(first, body)
	}
	if err != nil {
		return err
	}
	return c.handle(&pk)
}

// fastPuback handles a PUBACK without reason code and properties, which is half of all packets of a busy subscriber. It
// reports false for any other packet.
func (c *conn) fastPuback(first byte, body []byte) bool {
	if first != packets.Puback<<4 || len(body) != 2 {
		return false
	}
	id := binary.BigEndian.Uint16(body)
	if id == 0 {
		return false
	}
	known := c.client.sess.Puback(id, &c.batch)
	if !known && !c.client.sess.Fits(packets.Puback, id) {
		return false
	}
	c.throttle.countAck(known)
	return true
}

// decodePacket checks and decodes a packet of an established connection. Only the packet of an acknowledgement refers to
// the body afterwards.
func decodePacket(version, first byte, body []byte) (pk packets.Packet, err error) {
	if err := wellFormed(version, first, body); err != nil {
		return pk, err
	}
	if kind := first >> 4; kind < packets.Puback || kind > packets.Pubcomp {
		body = bytes.Clone(body) // the library's strings refer to it
	}
	if version == 3 {
		first, body = asLater(first, body)
	}
	pk.ProtocolVersion = version
	if err := pk.FixedHeader.Decode(first); err != nil {
		return pk, err
	}
	pk.FixedHeader.Remaining = len(body)
	switch pk.FixedHeader.Type {
	case packets.Publish:
		err = pk.PublishDecode(body)
	case packets.Puback, packets.Pubrec, packets.Pubrel, packets.Pubcomp:
		err = pk.PubackDecode(body)
	case packets.Subscribe:
		err = pk.SubscribeDecode(body)
	case packets.Unsubscribe:
		err = pk.UnsubscribeDecode(body)
	case packets.Disconnect:
		if len(body) == 1 { // the library ignores a reason code without properties
			body = append(body, 0)
			pk.FixedHeader.Remaining = 2
		}
		err = pk.DisconnectDecode(body)
	}
	return pk, err
}

// handle acts on a packet of an established connection. An error closes the connection.
func (c *conn) handle(pk *packets.Packet) error {
	sess := c.client.sess
	switch kind := pk.FixedHeader.Type; kind {
	case packets.Puback, packets.Pubrec, packets.Pubcomp:
		if !sess.Fits(kind, pk.PacketID) {
			return c.fail(codeProtocolError, "an acknowledgement of another kind than the message waits for")
		}
	}
	switch pk.FixedHeader.Type {
	case packets.Publish:
		return c.publisher.publish(pk)
	case packets.Puback:
		c.throttle.countAck(sess.Puback(pk.PacketID, nil))
	case packets.Pubrec:
		answer, ok := sess.Pubrec(pk.PacketID, pk.ReasonCode)
		c.throttle.countAck(answer.Code == codeSuccess)
		if ok {
			c.w.Control(answer.Append(nil, c.ident.Version), nil)
		}
	case packets.Pubrel:
		c.publisher.acks.released(pk.PacketID)
		sess.Inbound().Release(pk.PacketID, c.w, c.ident.Version)
		c.throttle.countPacket(0)
	case packets.Pubcomp:
		c.throttle.countAck(sess.Pubcomp(pk.PacketID))
	case packets.Subscribe:
		return (&subscribeRequest{c: c}).subscribe(pk)
	case packets.Unsubscribe:
		return (&subscribeRequest{c: c}).unsubscribe(pk)
	case packets.Pingreq:
		c.w.Control(pingresp, nil)
	case packets.Disconnect:
		return c.disconnected(pk)
	}
	return nil
}

var pingresp = []byte{packets.Pingresp << 4, 0}

// fail closes the connection because the client broke a rule.
func (c *conn) fail(code byte, reason string) error {
	c.disconnect(code, errors.New(reason))
	return errClosed
}

// disconnected handles a DISCONNECT.
func (c *conn) disconnected(pk *packets.Packet) error {
	if pk.Properties.SessionExpiryIntervalFlag {
		seconds := pk.Properties.SessionExpiryInterval
		if seconds > 0 && c.expiry == 0 {
			return c.fail(codeProtocolError, "a session expiry interval of 0 in CONNECT can't be changed in DISCONNECT")
		}
		c.expiry = c.b.sessionExpiry(seconds)
	}
	if pk.ReasonCode == codeSuccess { // with any other reason code the will is published
		w := c.will.take()
		c.will.dropped = w != nil
		c.b.wills.drop(w)
	}
	return errDisconnected
}

func revokedToken(user string) string {
	return fmt.Sprintf("the token of %s has been revoked, or the browser's sign-in has ended", validText(user))
}

// revoke closes the connection of an identity that has ended. Its session and its will end with it.
func (c *conn) revoke(code byte, why error) {
	c.revoked.Store(true)
	c.b.wills.drop(c.will.take())
	c.disconnect(code, why)
}
