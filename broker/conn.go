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

	"github.com/edgebus/edgebus/broker/session"
)

// conn is one connection, from accept to close: a goroutine that reads packets and
// acts on them, and one that writes, so that no slow client holds anybody up.
type conn struct {
	net.Conn // the transport
	b        *Broker
	listener *listener
	in       *frames
	w        *session.Writer
	acks     acks

	version     atomic.Uint32 // of the protocol, once known
	established atomic.Bool   // CONNACK went out
	closing     atomic.Bool
	unstorable  atomic.Bool // a node's message could not be stored: none that it sent later on this connection counts as stored

	// Set by the reading goroutine before the connection is attached, and fixed then.
	ident          Identity
	byCertificate  bool // it ends with its certificate
	clean          bool
	bridge         bool   // a mosquitto bridge: it gets nothing back that it sent, and the retain flag as it was published
	assigned       string // the identifier that a client got which brought none
	receiveMaximum uint16
	maximumPacket  uint32
	noProblems     bool // the client asked for no reason strings
	keepAlive      time.Duration
	shortened      bool // the keep-alive is not what the client asked for
	resumed        bool
	unstored       bool // attaching changed what is on disk
	client         *client
	owner          *connectionOwner // once it is known who it is

	host    string        // at the other end
	pending *list.Element // in pendingConns, which guards it; nil: it has sent its CONNECT

	stopped chan struct{} // closed once no packet of the client's is applied any more

	// The reading goroutine's.
	quantum     quantum
	loggedFlood bool          // it was logged that the client is read more slowly
	rate        *rate.Limiter // limits.packetRate; nil: none
	loggedRate  bool          // it was logged that it sends more than that
	expiry      time.Duration // of the session
	aliases     map[uint16]string
	aliased     int                // what they count for
	last        time.Time          // when the last packet had been taken; zero: the keep-alive doesn't count yet
	heard       bool               // a packet was taken since the last read
	ownTopics   bool               // it may publish on topics of the users' own
	recent      *route             // of what it published last
	batch       session.WriteBatch // of those whom the client's packets gave something to write
	scratch     [4]byte

	// Whoever is writing has these.
	retainedPause  time.Duration // pause that is due for the retained messages sent
	loggedRetained bool          // it was logged that the client gets retained messages more slowly

	mu   sync.Mutex
	will *will
	why  error // what the broker closed the connection for
}

func newConn(b *Broker, l *listener, transport net.Conn) *conn {
	transport = direct(transport)
	c := &conn{Conn: transport, b: b, listener: l, stopped: make(chan struct{})}
	if c.host, _, _ = net.SplitHostPort(transport.RemoteAddr().String()); c.host == "" {
		c.host = transport.RemoteAddr().String()
	}
	c.quantum.began = time.Now()
	c.batch.Fanout = b.fanout
	c.meter(transport)
	c.in = newFrames(transport, int(b.opts.Limits.Packet))
	c.acks.init()
	c.w = session.NewWriter(output(transport, c), b.opts.Limits.WriteTimeout)
	c.w.ReportReplay(c.servedRetained)
	return c
}

// serve runs the connection to its end.
func (b *Broker) serve(l *listener, transport net.Conn) {
	c := newConn(b, l, transport)
	if !b.admit(c) {
		b.metrics.rejected.WithLabelValues(tooManyConnections).Inc()
		_ = transport.Close()
		return
	}
	defer b.clients.release(c)
	if out := b.pending.add(c); out != nil {
		b.metrics.rejected.WithLabelValues(evictedPending).Inc()
		out.shut()
	}
	defer b.connections.Done()
	c.readUntil(time.Now().Add(b.opts.Limits.ConnectTimeout))
	err := c.read()
	close(c.stopped)
	b.pending.remove(c)
	c.countEnd(err)
	c.finish(err)
	c.releaseQuotas() // before the session can be seen without its client, who may come back at once
	b.detach(c, c.cause(err))
	c.shut() // who left sees it once the session knows, and may come back at once
	c.linger()
}

// releaseQuotas gives back what the connection counts for.
func (c *conn) releaseQuotas() {
	c.b.quotas.state.Add(c.ident.User, -int64(c.aliased))
	if c.owner != nil {
		c.b.quotas.releaseConnection(*c.owner)
	}
}

// countEnd counts an end that nobody else does.
func (c *conn) countEnd(err error) {
	if c.w.Stalled() {
		c.b.metrics.closed.WithLabelValues(readsNothing).Inc()
		c.b.sampledLog.Info().Str("client", c.ident.ClientID).Msg("disconnected: the client reads nothing")
	}
	if plain := (tls.RecordHeaderError{}); errors.As(err, &plain) {
		c.logWrongProtocol("this listener wants TLS, and the client speaks without: have it use mqtts://")
	}
	if errors.Is(err, errNotHTTP) {
		c.logWrongProtocol("this listener wants WebSocket, and the client speaks without, or TLS: see mqtt.listen and mqtt.websocket.tls")
	}
	if c.client == nil && errors.Is(err, os.ErrDeadlineExceeded) && !c.closing.Load() {
		c.b.metrics.rejected.WithLabelValues(noConnect).Inc()
	}
}

// tlsHandshake is what TLS begins with; no MQTT packet does.
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
	_, _ = io.CopyN(io.Discard, beneath(c.Conn), lingerBytes)
	_ = c.Conn.Close()
}

// halfCloser is what the writer gets of the transport: it ends its own direction, and
// the reader's with it, which may have nothing to read for ever.
type halfCloser struct {
	net.Conn
	c *conn
}

func (h halfCloser) Close() error {
	h.c.closing.Store(true)
	h.c.wakeReader()
	if half, ok := h.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		return nil
	}
	return h.Conn.Close()
}

// finish closes the connection, unless the client has left, and tells an MQTT 5 client why if it was its fault.
func (c *conn) finish(err error) {
	var code packets.Code
	switch {
	case errors.As(err, &code):
		c.disconnect(code.Code, code)
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.disconnect(packets.ErrKeepAliveTimeout.Code, packets.ErrKeepAliveTimeout)
	}
	if !errors.Is(err, errDisconnected) {
		c.shut()
	}
	event := c.b.log.Debug().Err(err).Str("client", c.ident.ClientID).Str("listener", c.listener.Name)
	event.Str("remote", c.RemoteAddr().String()).Msg("connection closed")
}

// readUntil sets the reader's deadline, but for a connection that is being closed.
func (c *conn) readUntil(deadline time.Time) {
	_ = c.SetReadDeadline(deadline)
	if c.closing.Load() {
		c.wakeReader()
	}
}

func (c *conn) wakeReader() { _ = c.SetReadDeadline(time.Unix(1, 0)) }

// cause is why the connection ended: what the broker closed it for comes before what
// its reader then found. A client's DISCONNECT is no error.
func (c *conn) cause(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.why != nil:
		return c.why
	case errors.Is(err, errDisconnected):
		return nil
	}
	return err
}

// disconnect closes the connection from our side, from any goroutine.
func (c *conn) disconnect(code byte, why error) {
	if !c.closing.Load() {
		c.b.metrics.closed.WithLabelValues(closeReasons[code]).Inc()
	}
	c.mu.Lock()
	if c.why == nil {
		c.why = why
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

// shut closes the connection once the answers that wait have been written.
func (c *conn) shut() {
	c.closing.Store(true)
	c.w.Close()
	c.acks.close()
	c.b.treeBacklog.wake()
	if c.b.store != nil {
		c.b.store.wake()
	}
	c.wakeReader()
}

// send queues a packet that doesn't come from the session. It leaves out the reason
// where the client can't take it or wants none, and reports false when even that is
// larger than the client takes.
func (c *conn) send(pk packets.Packet, batch *session.WriteBatch) bool {
	packet, fits := c.encode(pk)
	if fits {
		c.w.Control(packet, batch)
	}
	return fits
}

// encode makes an answer, and says whether the client takes one so large.
func (c *conn) encode(pk packets.Packet) (packet []byte, fits bool) {
	pk.ProtocolVersion = byte(c.version.Load())
	if c.noProblems {
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

// takeWill returns the will, once.
func (c *conn) takeWill() *will {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.will
	c.will = nil
	return w
}

// hasWill returns the will, and leaves it.
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
	readBuffer  = 64 << 10 // read at once, of a client that sends much
	smallBuffer = 4 << 10  // where something lies between us and the socket, and of a part of a packet
)

var readBuffers = sync.Pool{New: func() any { return new([readBuffer]byte) }}

// frames cuts what arrives on a connection into packets. It has a buffer only while
// there is something in it: a connection that says nothing costs none, and one that
// stops in the middle of a packet no more than it sent.
type frames struct {
	conn     net.Conn
	raw      syscall.RawConn       // nil: TLS or WebSocket
	again    func(fd uintptr) bool // attempt
	buf      []byte                // what has arrived and not been taken is buf[taken:filled]
	borrowed *[readBuffer]byte     // what buf is in, if it is the pool's
	taken    int
	filled   int
	need     int // the length of the packet of which only a part is there, if known
	most     int // length of a packet
	err      error
	idle     time.Time // since when fill waited; zero: it didn't
}

func newFrames(conn net.Conn, most int) *frames {
	f := &frames{conn: conn, raw: readable(conn), most: most}
	f.again = f.attempt
	return f
}

// next takes a packet that has arrived: its first byte, and what follows its length,
// which is overwritten by the next fill.
func (f *frames) next() (first byte, body []byte, ok bool, err error) {
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
		case end > f.most:
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

// fill waits until more has arrived. It is called once next has no more.
func (f *frames) fill() error {
	if f.raw == nil {
		f.room()
		n, err := f.conn.Read(f.buf[f.filled:])
		f.filled += n
		if n > 0 {
			return nil // the error comes again
		}
		return err
	}
	f.err, f.idle = nil, time.Time{}
	if err := f.raw.Read(f.again); err != nil {
		return err
	}
	return f.err
}

// waited is how long the last fill waited.
func (f *frames) waited(now time.Time) time.Duration {
	if f.idle.IsZero() {
		return 0
	}
	return now.Sub(f.idle)
}

// attempt reads what is there, without waiting.
func (f *frames) attempt(fd uintptr) (done bool) {
	f.room()
	n, nothing, err := tryRead(fd, f.buf[f.filled:])
	if nothing {
		f.rest()
		if f.idle.IsZero() {
			f.idle = time.Now()
		}
		return false
	}
	f.filled += n
	f.err = err
	return true
}

// room sees to it that there is some for what arrives.
func (f *frames) room() {
	if f.taken > 0 {
		f.filled = copy(f.buf, f.buf[f.taken:f.filled])
		f.taken = 0
	}
	if f.filled == 0 && f.borrowed == nil && len(f.buf) > smallBuffer {
		f.buf = nil // it was for a large packet
	}
	if f.filled < len(f.buf) {
		return
	}
	old, part := f.borrowed, f.buf
	f.borrowed = nil
	switch {
	case f.raw != nil && len(part) < readBuffer:
		f.borrowed = readBuffers.Get().(*[readBuffer]byte)
		f.buf = f.borrowed[:]
	case len(part) < smallBuffer:
		f.buf = make([]byte, smallBuffer)
	default: // a packet that is larger gets its memory as it arrives
		f.buf = make([]byte, min(2*len(part), max(f.need, len(part)+1)))
	}
	copy(f.buf, part)
	if old != nil {
		readBuffers.Put(old)
	}
}

// rest gives the pool's buffer back. Nothing is there to be read, and may not be for
// hours. A large part of a packet is left where it is: it would be copied as often as
// a client sends another byte.
func (f *frames) rest() {
	if f.borrowed == nil || f.filled-f.taken > smallBuffer {
		return
	}
	f.buf = append([]byte(nil), f.buf[f.taken:f.filled]...)
	f.taken, f.filled = 0, len(f.buf)
	readBuffers.Put(f.borrowed)
	f.borrowed = nil
}

// full says that there may be more than was read at once.
func (f *frames) full() bool { return len(f.buf) >= readBuffer && f.filled == len(f.buf) }

var (
	errClosed       = errors.New("connection closed by the broker") // and the client knows why
	errDisconnected = errors.New("the client disconnected")
)

// frame is the next packet: its first byte, and what follows its length. The bytes are
// overwritten when the one after it is asked for.
func (c *conn) frame() (first byte, body []byte, err error) {
	for {
		first, body, ok, err := c.in.next()
		switch {
		case c.closing.Load(): // what it sent after that is nobody's
			return 0, nil, errClosed
		case ok || err != nil:
			c.heard = true
			return first, body, err
		}
		if err := c.more(); err != nil {
			return 0, nil, err
		}
	}
}

// more waits for what else the client sends. Between two reads is where a client can
// be held up: what it has sent so far was dealt with.
func (c *conn) more() error {
	c.batch.Flush()
	c.recent = nil // which may be outdated by then, and large
	if !c.w.WaitForRoom() {
		return errClosed
	}
	if c.in.full() { // somebody who sends faster than it is taken doesn't keep the others waiting
		c.batch.Await()
		runtime.Gosched()
	}
	if c.heard { // and what it waited for itself isn't counted against it
		c.heard = false
		c.extend()
	}
	err := c.in.fill()
	for c.extendDeadline(err) {
		err = c.in.fill()
	}
	if c.in.raw != nil { // or what is beneath tells
		now := time.Now()
		c.arrived(now, c.in.waited(now), c.in.filled < smallBuffer)
	}
	return err
}

// extend gives the client one and a half keep-alives from now. They count from the end of
// a packet to the next one: a client can't live on single bytes. The deadline is left where
// it is, and moved when it is reached, so that it needn't be set anew for each packet.
func (c *conn) extend() {
	if c.keepAlive == 0 {
		return
	}
	first := c.last.IsZero()
	if c.last = time.Now(); first {
		c.readUntil(c.due())
	}
}

// due is when the client has said nothing for too long.
func (c *conn) due() time.Time { return c.last.Add(c.keepAlive + c.keepAlive/2) }

// mayGoOn says whether a read that failed is to be tried again, because its deadline was
// that of an earlier packet. What lies between us and the socket must not hear of that.
func (c *conn) extendDeadline(err error) bool {
	if err == nil || c.last.IsZero() || c.closing.Load() || !errors.Is(err, os.ErrDeadlineExceeded) || !time.Now().Before(c.due()) {
		return false
	}
	c.readUntil(c.due())
	return true
}

// read takes the CONNECT and then packets, until the connection ends. What the checks
// let through must not be able to make the decoder panic; should it nevertheless, to
// the sender that is a malformed packet, and to nobody else anything.
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
		c.spend(len(body))
	}
	return err
}

// take deals with a packet of any kind. Decoded packets are large: a reader that waits
// has none on its stack.
func (c *conn) take(first byte, body []byte) error {
	if first>>4 != packets.Publish {
		c.batch.Flush() // what comes now may wait for the disk
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

// landed takes the plain PUBACK, which is half of all packets of a busy subscriber. Any
// other is for decode and handle.
func (c *conn) fastPuback(first byte, body []byte) bool {
	if first != packets.Puback<<4 || len(body) != 2 {
		return false
	}
	id := binary.BigEndian.Uint16(body)
	if id > 0 {
		c.acknowledged(c.client.sess.Puback(id, &c.batch))
	}
	return id > 0
}

// decode reads a packet of an established connection. The packet keeps nothing of the
// body, unless it is an acknowledgement.
func decode(version, first byte, body []byte) (pk packets.Packet, err error) {
	if err := wellFormed(version, first, body); err != nil {
		return pk, err
	}
	if kind := first >> 4; kind < packets.Puback || kind > packets.Pubcomp {
		body = bytes.Clone(body) // the library's texts are parts of it
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
		if len(body) == 1 { // the library overlooks a reason code without properties
			body = append(body, 0)
			pk.FixedHeader.Remaining = 2
		}
		err = pk.DisconnectDecode(body)
	}
	return pk, err
}

// handle deals with a packet of an established connection. An error closes it.
func (c *conn) handle(pk *packets.Packet) error {
	sess := c.client.sess
	switch pk.FixedHeader.Type {
	case packets.Publish:
		return c.publish(pk)
	case packets.Puback:
		c.acknowledged(sess.Puback(pk.PacketID, nil))
	case packets.Pubrec:
		answer, ok := sess.Pubrec(pk.PacketID, pk.ReasonCode)
		c.acknowledged(answer.Code == codeSuccess)
		if ok {
			c.w.Control(answer.Append(nil, c.ident.Version), nil)
		}
	case packets.Pubrel:
		c.acks.released(pk.PacketID)
		sess.Pubrel(pk.PacketID, c.w)
		c.spend(0)
	case packets.Pubcomp:
		c.acknowledged(sess.Pubcomp(pk.PacketID))
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

// fail closes the connection for a mistake of the client's.
func (c *conn) fail(code byte, reason string) error {
	c.disconnect(code, errors.New(reason))
	return errClosed
}

// disconnected takes note of a DISCONNECT.
func (c *conn) disconnected(pk *packets.Packet) error {
	if pk.Properties.SessionExpiryIntervalFlag {
		seconds := pk.Properties.SessionExpiryInterval
		if seconds > 0 && c.expiry == 0 {
			return c.fail(codeProtocolError, "a session that was to end with the connection can't be kept")
		}
		c.expiry = c.b.sessionExpiry(seconds)
	}
	if pk.ReasonCode == codeSuccess { // any other is no normal end
		c.b.dropWill(c.takeWill())
	}
	return errDisconnected
}
