package broker

import (
	"bytes"
	"container/list"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"golang.org/x/time/rate"

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
	acks     pendingAcks

	version     atomic.Uint32 // of the protocol, once known
	established atomic.Bool   // CONNACK went out
	closing     atomic.Bool
	storeFailed atomic.Bool // a node's message could not be stored: none that it sent later on this connection counts as stored

	// Set by the reading goroutine before the connection is attached, and fixed then.
	ident              *Identity // never nil; it is replaced when the client has signed in, and never changed
	clean              bool
	bridge             bool   // a mosquitto bridge: its subscriptions are no-local and retain-as-published
	assignedID         string // the client identifier that the broker assigned; empty: the client brought one
	receiveMaximum     uint16
	maximumPacket      uint32
	partsMemory        string // of a client that takes large messages in parts; empty: it doesn't
	noProblemInfo      bool   // the client asked for no reason strings
	keepAlive          time.Duration
	keepAliveShortened bool // the keep-alive is not what the client asked for
	resumed            bool
	recordPending      bool // the session's record is not on disk yet
	client             *client
	owner              *quotaHolder // once it is known who it is

	host    string        // at the other end, as limits for each address count it
	pending *list.Element // in pendingConns, which guards it; nil: it has sent its CONNECT

	stopped  chan struct{} // closed once no packet of the client's is applied any more
	detached chan struct{} // closed once its session knows
	readErr  error         // why, then
	drain    drainState
	revoked  atomic.Bool // its identity has ended, and with it the session and the will

	// The reading goroutine's.
	signedIn          bool // its user is known, and answers for it
	quantum           quantum
	loggedFlood       bool          // it was logged that the client is read more slowly; once is enough
	rate              *rate.Limiter // limits.packetRate; nil: none
	loggedRate        bool          // it was logged that it sends more than that
	expiry            time.Duration // of the session
	stopWatchingToken func() bool   // ends waiting for the revocation of the client's token
	droppedWill       bool          // until it sent DISCONNECT
	aliases           map[uint16]string
	aliasBytes        int                // what they count for
	lastHeard         atomic.Int64       // when the client last sent something, in Unix milliseconds; 0: after its CONNECT nothing
	lastHandled       time.Time          // when the last packet had been handled; zero: the keep-alive doesn't count yet
	unextendedBytes   int                // bytes that have arrived since then
	tookPacket        bool               // a packet was taken since the last read
	ownTopics         bool               // it may publish outside v1/
	lastRoute         *route             // of the topic that it published to last
	batch             session.WriteBatch // writers of the sessions that the client's packets queued messages in
	scratch           [4]byte

	// Used by the goroutine that is writing.
	retainedPause  time.Duration // pause that is due for the retained messages sent so far
	loggedRetained bool          // it was logged that the client gets retained messages more slowly

	releasing sync.Mutex // releaseQuotas: the connection's own goroutine and who takes its session over may come at once

	mu          sync.Mutex
	will        *will
	closeReason error // why the broker closed the connection
}

func newConn(b *Broker, l *listener, transport net.Conn) *conn {
	transport = rawSocketOf(transport)
	c := &conn{Conn: transport, b: b, listener: l, ident: &unknownIdentity, stopped: make(chan struct{}), detached: make(chan struct{}), stopWatchingToken: func() bool { return true }}
	c.host = peerNetwork(transport.RemoteAddr())
	c.quantum.began = time.Now()
	c.batch.Fanout = b.fanout
	c.meter(transport)
	c.in = newFrameReader(transport, min(int(b.opts.Limits.Packet), maxConnect))
	c.in.countBytes = c.countUnfinished
	c.acks.init()
	c.w = session.NewWriter(writerConn(transport, c), b.opts.Limits.WriteTimeout)
	c.w.ReportReplay(c.servedRetained)
	return c
}

// serve runs the connection until it ends.
func (b *Broker) serve(l *listener, transport net.Conn) {
	c := newConn(b, l, transport)
	if !b.admit(c) {
		b.metrics.rejected.WithLabelValues(daemon.Label(tooManyConnections)).Inc()
		_ = transport.Close()
		return
	}
	defer b.clients.release(c)
	if out := b.pending.add(c); out != nil {
		b.metrics.rejected.WithLabelValues(daemon.Label(evictedPending)).Inc()
		out.shut()
	}
	defer b.connections.Done()
	c.readUntil(time.Now().Add(b.opts.Limits.ConnectTimeout))
	err := c.read()
	c.readErr = err
	close(c.stopped)
	c.stopWatchingToken()
	b.pending.remove(c)
	c.countEnd(err)
	c.finish(err)
	b.detach(c, c.cause(err))
	close(c.detached)
	b.storeLeave(c)
	c.shut() // a client that sent DISCONNECT sees the end only now, and may reconnect at once
	c.linger()
}

// releaseQuotas ends counting the connection for its user and host. Whoever ends the connection calls it, once no packet of
// it is handled any more.
func (c *conn) releaseQuotas() {
	c.releasing.Lock()
	defer c.releasing.Unlock()
	c.in.release()
	c.b.quotas.state.Add(c.ident.User, -int64(c.aliasBytes))
	c.aliasBytes = 0
	c.releaseOwner()
}

func (c *conn) releaseOwner() {
	if c.owner != nil {
		c.b.quotas.releaseConnection(*c.owner)
		c.owner = nil
	}
}

// maxConnect bounds a CONNECT, and every packet of a client that hasn't signed in.
const maxConnect = 64 << 10

// countUnfinished counts n more bytes of memory for a packet that has not arrived whole: for the user, or for the address of
// a client that hasn't signed in.
func (c *conn) countUnfinished(n int) error {
	q, key := c.b.quotas.unfinished, c.ident.User
	if !c.signedIn {
		q, key = c.b.quotas.unsigned, c.host
	}
	if n <= 0 {
		q.Add(key, int64(n))
		return nil
	}
	if err := q.Take(key, int64(n)); err != nil {
		return packets.Code{Code: codeQuota, Reason: reasonOf(err)}
	}
	return nil
}

// signedInLimits gives a client that has signed in what its user may have. Who asks for a first certificate has shown nothing yet.
func (c *conn) signedInLimits() {
	if c.ident.Has(topics.RoleEnrollee) {
		return
	}
	c.in.release()
	c.signedIn = true
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

// wrongDoor logs that a client came to the wrong listener, which it can't be told in a way that it understands.
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
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closeReason != nil:
		return c.closeReason
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
	c.mu.Lock()
	if c.closeReason == nil {
		c.closeReason = why
	}
	if c.version.Load() == 5 && c.established.Load() && !c.closing.Load() {
		pk := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, ReasonCode: code}
		pk.Properties.ReasonString = validText(why.Error())
		c.send(pk, nil)
	}
	c.closing.Store(true)
	c.mu.Unlock()
	c.shut()
}

// shut closes the connection once all queued answers have been written.
func (c *conn) shut() {
	c.closing.Store(true)
	c.w.Close()
	c.acks.close()
	c.b.treeBacklog.Wake()
	if c.b.store != nil {
		c.b.store.wake()
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

// takeWill returns the will and removes it.
func (c *conn) takeWill() *will {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.will
	c.will = nil
	return w
}

// peekWill returns the will without removing it.
func (c *conn) peekWill() *will {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.will
}

func (c *conn) setWill(w *will) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.will = w
}

const (
	readBufferSize  = 64 << 10 // of a client that sends much, from the pool
	smallBufferSize = 4 << 10  // under TLS and WebSocket, and for a part of a packet
)

var readBuffers = sync.Pool{New: func() any { return new([readBufferSize]byte) }}

// frameReader is the read buffer of a connection, which splits the byte stream into packets. It has memory only while there is
// something in it: an idle connection has none, and one that stopped in the middle of a packet no more than it sent.
type frameReader struct {
	conn         net.Conn
	raw          syscall.RawConn       // nil: TLS or WebSocket
	attemptFunc  func(fd uintptr) bool // attempt
	buf          []byte                // buf[taken:filled] has arrived and was not returned by next
	borrowed     *[readBufferSize]byte // the pool's array that buf is in; nil: none
	taken        int
	filled       int
	need         int // length of the incomplete packet, if known
	maxPacket    int // maximum length of a packet
	countedBytes int // bytes of memory that count was told of
	countBytes   func(more int) error
	err          error
	waitingSince time.Time // since when fill has waited; zero: it didn't wait
}

func newFrameReader(conn net.Conn, most int) *frameReader {
	f := &frameReader{conn: conn, raw: rawConnOf(conn), maxPacket: most, countBytes: func(int) error { return nil }}
	f.attemptFunc = f.attempt
	return f
}

// next returns the next complete packet in the buffer: its first byte and its body, which the next fill overwrites.
// It is not ok if there is none.
func (f *frameReader) next() (first byte, body []byte, ok bool, err error) {
	b := f.buf[f.taken:f.filled]
	f.need = 0
	n := 0
	for i := 1; i < len(b); i++ {
		n |= int(b[i]&0x7F) << (7 * (i - 1))
		end := 1 + i + n
		switch {
		case b[i] >= 0x80 && i == 4:
			return 0, nil, false, errMalformed
		case b[i] >= 0x80:
			continue
		case end > f.maxPacket:
			return 0, nil, false, packets.ErrPacketTooLarge
		case end > len(b):
			f.need = end
			return 0, nil, false, nil
		}
		f.taken += end
		return b[0], b[1+i : end], true, nil
	}
	return 0, nil, false, nil
}

// fill reads from the connection, and waits until something has arrived. It is called when next has no packet.
func (f *frameReader) fill() error {
	if f.raw == nil {
		f.makeRoom()
		if err := f.countHeld(); err != nil {
			return err
		}
		n, err := f.conn.Read(f.buf[f.filled:])
		f.filled += n
		if n > 0 {
			return nil // the error comes again
		}
		return err
	}
	f.err, f.waitingSince = nil, time.Time{}
	if err := f.raw.Read(f.attemptFunc); err != nil {
		return err
	}
	return f.err
}

// poll reads without waiting, whatever the connection's deadline is, and reports whether something was there.
func (f *frameReader) poll() (got bool, err error) {
	if f.raw == nil { // metered has looked already
		return false, nil
	}
	f.err = nil
	if err := f.raw.Control(func(fd uintptr) { got = f.attempt(fd) }); err != nil {
		return false, err
	}
	return got && f.err == nil, f.err
}

// waited returns how long the last fill waited.
func (f *frameReader) waited(now time.Time) time.Duration {
	if f.waitingSince.IsZero() {
		return 0
	}
	return now.Sub(f.waitingSince)
}

// attempt reads without waiting. It is not done if nothing is there.
func (f *frameReader) attempt(fd uintptr) (done bool) {
	f.makeRoom()
	n, nothing, err := tryRead(fd, f.buf[f.filled:])
	if nothing {
		f.returnBuffer()
		if f.err = f.countHeld(); f.err != nil {
			return true
		}
		if f.waitingSince.IsZero() {
			f.waitingSince = time.Now()
		}
		return false
	}
	f.filled += n
	f.err = err
	return true
}

// makeRoom makes sure that the buffer has free space at its end.
func (f *frameReader) makeRoom() {
	if f.taken > 0 {
		f.filled = copy(f.buf, f.buf[f.taken:f.filled])
		f.taken = 0
	}
	if f.filled == 0 && f.borrowed == nil && len(f.buf) > smallBufferSize {
		f.buf = nil // it was for a large packet
	}
	if f.filled < len(f.buf) {
		return
	}
	old, part := f.borrowed, f.buf
	f.borrowed = nil
	switch {
	case f.raw != nil && len(part) < readBufferSize:
		f.borrowed = readBuffers.Get().(*[readBufferSize]byte)
		f.buf = f.borrowed[:]
	case len(part) < smallBufferSize:
		f.buf = make([]byte, smallBufferSize)
	default: // memory for a larger packet is allocated as it arrives
		f.buf = make([]byte, min(2*len(part), max(f.need, len(part)+1)))
	}
	copy(f.buf, part)
	if old != nil {
		readBuffers.Put(old)
	}
}

// returnBuffer returns the buffer to the pool, as nothing may arrive for hours. A large part of a packet stays where it is, since
// it would be copied again with each byte that the client sends.
func (f *frameReader) returnBuffer() {
	if f.borrowed == nil || f.filled-f.taken > smallBufferSize {
		return
	}
	f.buf = append([]byte(nil), f.buf[f.taken:f.filled]...)
	f.taken, f.filled = 0, len(f.buf)
	readBuffers.Put(f.borrowed)
	f.borrowed = nil
}

// countHeld counts the memory of an unfinished packet before it is waited for. Little, which every connection may have, isn't counted.
func (f *frameReader) countHeld() error {
	holds := len(f.buf)
	if holds <= smallBufferSize || f.filled == f.taken {
		holds = 0
	}
	if holds == f.countedBytes {
		return nil
	}
	if err := f.countBytes(holds - f.countedBytes); err != nil {
		return err
	}
	f.countedBytes = holds
	return nil
}

// release ends what settle counted.
func (f *frameReader) release() {
	_ = f.countBytes(-f.countedBytes) // less is no error
	f.countedBytes = 0
}

// full reports whether the last read filled the buffer, so that more may wait in the socket.
func (f *frameReader) full() bool { return len(f.buf) >= readBufferSize && f.filled == len(f.buf) }

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
			c.tookPacket = true
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
	c.lastRoute = nil // it may be outdated after the wait, and is large
	if !c.w.WaitForRoom() {
		c.expel(0, nil) // it has failed, and the client can't be told
	}
	if c.in.full() { // the client sends faster than it is read: others run first
		c.batch.Await()
		runtime.Gosched()
	}
	if c.tookPacket { // the time that it was made to wait doesn't count
		c.tookPacket = false
		c.extend()
	}
	had := c.in.filled - c.in.taken
	err := c.in.fill()
	for again := true; again; {
		if again, err = c.interrupted(err, c.in.filled-c.in.taken, c.in.poll); again {
			err = c.in.fill()
		}
	}
	c.unextendedBytes += c.in.filled - c.in.taken - had
	if c.in.raw != nil { // else metered.Read calls arrived
		now := time.Now()
		c.countRead(now, c.in.waited(now), c.in.filled < smallBufferSize)
	}
	return err
}

// leastRate is how many bytes a second a packet has to arrive with that isn't complete after one and a half keep-alives: a slow line's bytes
// are life, and who trickles is not kept.
const leastRate = 256

// arriving reports whether a packet is on its way that is too long for the line, and restarts the keep-alive if so.
func (c *conn) arriving(now time.Time) bool {
	if c.unextendedBytes == 0 || float64(c.unextendedBytes) < leastRate*now.Sub(c.lastHandled).Seconds() {
		return false
	}
	c.lastHandled, c.unextendedBytes = now, 0
	c.lastHeard.Store(now.UnixMilli())
	return true
}

// extend restarts the keep-alive: the next packet has to be complete within one and a half of it, or be arriving. The socket's deadline
// is not set for each packet: extendDeadline moves it when it is reached.
func (c *conn) extend() {
	now := time.Now()
	c.lastHeard.Store(now.UnixMilli())
	if c.keepAlive == 0 {
		return
	}
	first := c.lastHandled.IsZero()
	c.unextendedBytes = 0
	if c.lastHandled = now; first {
		c.readUntil(c.due())
	}
}

// due is when the keep-alive ends.
func (c *conn) due() time.Time { return c.lastHandled.Add(c.keepAlive + c.keepAlive/2) }

// extendDeadline reports whether a read that failed has to be repeated, because the deadline was that of an earlier
// packet, and sets the new one. TLS and WebSocket must not see such an error, since they keep it.
func (c *conn) extendDeadline(err error) bool {
	if err == nil || c.lastHandled.IsZero() || c.closing.Load() || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	if now := time.Now(); !now.Before(c.due()) && !c.arriving(now) {
		return false
	}
	c.readUntil(c.due())
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
	if err := c.connect(); err != nil {
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

func (c *conn) handleFrame(first byte, body []byte) (err error) {
	if !c.fastPublish(first, body) {
		err = c.take(first, body)
	}
	if kind := first >> 4; err == nil && (kind < packets.Puback || kind > packets.Pubcomp) {
		c.countPacket(len(body))
	}
	return err
}

// take decodes and handles a packet of any kind. It is a function of its own so that a goroutine that waits for packets
// has no decoded packet, which is large, on its stack.
func (c *conn) take(first byte, body []byte) error {
	if first>>4 != packets.Publish {
		c.batch.Flush() // handling it may wait for the disk
	}
	pk, err := decode(byte(c.version.Load()), first, body)
	if first>>4 == packets.Publish && errors.Is(err, errUserProperties) {
		return c.refuseUnread(first, body)
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
	c.countAck(known)
	return true
}

// decode checks and decodes a packet of an established connection. Only the packet of an acknowledgement refers to
// the body afterwards.
func decode(version, first byte, body []byte) (pk packets.Packet, err error) {
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
		return c.publish(pk)
	case packets.Puback:
		c.countAck(sess.Puback(pk.PacketID, nil))
	case packets.Pubrec:
		answer, ok := sess.Pubrec(pk.PacketID, pk.ReasonCode)
		c.countAck(answer.Code == codeSuccess)
		if ok {
			c.w.Control(answer.Append(nil, c.ident.Version), nil)
		}
	case packets.Pubrel:
		c.acks.released(pk.PacketID)
		sess.Pubrel(pk.PacketID, c.w)
		c.countPacket(0)
	case packets.Pubcomp:
		c.countAck(sess.Pubcomp(pk.PacketID))
	case packets.Subscribe:
		return c.subscribe(pk)
	case packets.Unsubscribe:
		return c.unsubscribe(pk)
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
		w := c.takeWill()
		c.droppedWill = w != nil
		c.b.dropWill(w)
	}
	return errDisconnected
}

// storeLeave waits until it is on disk that a client has left without its will: who sees its connection closed knows that
// the will isn't published, even if the broker is killed now.
func (b *Broker) storeLeave(c *conn) {
	if c.droppedWill && b.store != nil {
		_ = b.store.commitNow(nil) // what can't be stored now is tried again
	}
}
