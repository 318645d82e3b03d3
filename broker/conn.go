package broker

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

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

	// Set by the reading goroutine before the connection is attached, and fixed then.
	ident          Identity
	lapses         bool // it ends with its certificate
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
	seat           *seat // once it is known who it is

	host  string // at the other end
	place uint64 // in the lobby, whose it is

	stopped chan struct{} // closed once no packet of the client's is applied any more

	// The reading goroutine's.
	quantum   quantum
	toldFlood bool          // it was logged that the client is read more slowly
	allowed   time.Time     // until then what it has sent uses up limits.packetRate
	toldRate  bool          // it was logged that it sends more than that
	expiry    time.Duration // of the session
	aliases   map[uint16]string
	aliased   int           // what they count for
	last      time.Time     // when the last packet had been taken; zero: the keep-alive doesn't count yet
	heard     bool          // a packet was taken since the last read
	ownTopics bool          // it may publish on topics of the users' own
	recent    *route        // of what it published last
	batch     session.Batch // of those whom the client's packets gave something to write
	scratch   [4]byte
	lane      *lane // of a node's messages; nil: they have none

	// Whoever is writing has these.
	owing        time.Duration // pause that is due for the retained messages sent
	toldRetained bool          // it was logged that the client gets retained messages more slowly

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
	c.w.Paced(c.servedRetained)
	return c
}

// serve runs the connection to its end.
func (b *Broker) serve(l *listener, transport net.Conn) {
	c := newConn(b, l, transport)
	if !b.admit(c) {
		b.stats.rejects.add(tooManyConnections)
		_ = transport.Close()
		return
	}
	defer b.clients.release(c)
	if out := b.lobby.enter(c); out != nil {
		b.stats.rejects.add(crowdedOut)
		out.shut()
	}
	defer b.connections.Done()
	c.readUntil(time.Now().Add(b.opts.Limits.ConnectTimeout))
	err := c.read()
	c.lane.end(errLaneEnded)
	close(c.stopped)
	b.lobby.leave(c)
	c.countEnd(err)
	c.finish(err)
	c.stand() // before the session can be seen without its client, who may come back at once
	b.detach(c, c.cause(err))
	c.shut() // who left sees it once the session knows, and may come back at once
	c.linger()
}

// stand gives back what the connection counts for.
func (c *conn) stand() {
	c.b.quotas.state.Add(c.ident.User, -int64(c.aliased))
	if c.seat != nil {
		c.b.quotas.stand(*c.seat)
	}
}

// countEnd counts an end that nobody else does.
func (c *conn) countEnd(err error) {
	if c.w.Stalled() {
		c.b.stats.closed.add(readsNothing)
		c.b.floods.Info().Str("client", c.ident.ClientID).Msg("disconnected: the client reads nothing")
	}
	if plain := (tls.RecordHeaderError{}); errors.As(err, &plain) {
		c.wrongDoor("this listener wants TLS, and the client speaks without: have it use mqtts://")
	}
	if errors.Is(err, errNotHTTP) {
		c.wrongDoor("this listener wants WebSocket, and the client speaks without, or TLS: see mqtt.listen and mqtt.websocket.tls")
	}
	if c.client == nil && errors.Is(err, os.ErrDeadlineExceeded) && !c.closing.Load() {
		c.b.stats.rejects.add(noConnect)
	}
}

// tlsHandshake is what TLS begins with; no MQTT packet does.
const tlsHandshake = 0x16

// wrongDoor logs that a client came to the wrong listener, which it can't be told in a way that it understands.
func (c *conn) wrongDoor(what string) {
	c.b.floods.Info().Str("listener", c.listener.Name).Str("remote", c.RemoteAddr().String()).Msg("connection refused: " + what)
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
	if !errors.Is(err, errLeft) {
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
	case errors.Is(err, errLeft):
		return nil
	}
	return err
}

// disconnect closes the connection from our side, from any goroutine.
func (c *conn) disconnect(code byte, why error) {
	if !c.closing.Load() {
		c.b.stats.closed.add(closeReasons[code])
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
	c.b.asked.wake()
	if c.b.store != nil {
		c.b.store.wake()
	}
	c.wakeReader()
}

// send queues a packet that doesn't come from the session. It leaves out the reason
// where the client can't take it or wants none, and reports false when even that is
// larger than the client takes.
func (c *conn) send(pk packets.Packet, batch *session.Batch) bool {
	packet, fits := c.encode(pk)
	if fits {
		c.w.Answer(packet, batch)
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
func (c *conn) hasWill() *will {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.will
}

func (c *conn) setWill(w *will) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.will = w
}
