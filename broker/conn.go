package broker

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgebus/edgebus/broker/session"
)

// conn is one connection, from accept to close. It stands between the protocol
// library and the socket: what the library writes goes to the writer, so that no
// slow client can hold the library up, and deadlines and closing are ours.
type conn struct {
	net.Conn // the transport
	b        *Broker
	listener *listener
	number   uint64
	w        *session.Writer
	acks     acks

	version     atomic.Uint32 // of the protocol, once known
	established atomic.Bool   // CONNACK went out
	closing     atomic.Bool

	// Set by the reading goroutine before the connection is attached, and fixed then.
	ident          Identity
	certName       string
	clean          bool
	connectRefusal byte
	accepted       bool // what the library writes next is a CONNACK with success
	receiveMaximum uint16
	maximumPacket  uint32
	noProblems     bool // the client asked for no reason strings
	keepAlive      time.Duration
	resumed        bool
	unstored       bool // attaching changed what is on disk
	client         *client

	expiry  time.Duration // of the session, the reading goroutine's
	aliases map[uint16]string

	mu   sync.Mutex
	will *will
}

func newConn(b *Broker, l *listener, transport net.Conn, certName string) *conn {
	c := &conn{Conn: transport, b: b, listener: l, number: b.number.Add(1), certName: certName}
	c.acks.init()
	c.w = session.NewWriter(halfCloser{transport}, b.opts.Limits.WriteTimeout)
	return c
}

// serve runs the connection to its end.
func (b *Broker) serve(l *listener, transport net.Conn, certName string) {
	c := newConn(b, l, transport, certName)
	if !b.admit(c) {
		_ = transport.Close()
		return
	}
	defer b.clients.release(c)
	defer b.connections.Done()
	go func() {
		defer b.connections.Done()
		c.w.Run()
	}()
	_ = transport.SetReadDeadline(time.Now().Add(b.opts.Limits.ConnectTimeout))
	err := c.read()
	c.finish(err)
	b.server.Clients.Delete(c.libraryID())
	b.detach(c, err)
	c.linger()
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
	_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
	_ = c.Conn.Close()
}

// halfCloser is what the writer gets of the transport: it ends its own direction.
type halfCloser struct{ net.Conn }

func (h halfCloser) Close() error {
	if half, ok := h.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		return nil
	}
	return h.Conn.Close()
}

// read hands the connection to the protocol library. Its decoder can be made to
// panic by a packet that ends early; to the sender that is a malformed packet, and
// to nobody else anything.
func (c *conn) read() (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.b.stats.panics.Add(1)
			c.b.floods.Warn().Interface("panic", p).Str("remote", c.RemoteAddr().String()).Msg("malformed packet")
			err = packets.ErrMalformedPacket
		}
	}()
	return c.b.server.EstablishConnection(c.listener.Name, c)
}

// finish closes the connection, and tells an MQTT 5 client why if it was its fault.
func (c *conn) finish(err error) {
	var code packets.Code
	switch {
	case errors.As(err, &code) && code.Code >= codeUnspecified && code != packets.ErrRejectPacket:
		c.disconnect(code.Code, code.Reason)
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.disconnect(packets.ErrKeepAliveTimeout.Code, packets.ErrKeepAliveTimeout.Reason)
	case err != nil && !lost(err) && code != packets.ErrRejectPacket:
		c.disconnect(codeMalformed, packets.ErrMalformedPacket.Reason)
	}
	c.shut()
	event := c.b.log.Debug().Err(err).Str("client", c.ident.ClientID).Str("listener", c.listener.Name)
	event.Str("remote", c.RemoteAddr().String()).Msg("connection closed")
}

// lost tells the end of a connection from what the decoder has to say.
func lost(err error) bool {
	var network net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) || errors.As(err, &network)
}

// libraryID is the client's id for the protocol library: another for each
// connection, since takeovers are none of its business.
func (c *conn) libraryID() string { return "#" + mqtt.Int64toa(int64(c.number)) }

// Write takes a packet from the protocol library. MQTT 3.1.1 has no DISCONNECT
// from the server, which the library sends nevertheless.
func (c *conn) Write(p []byte) (int, error) {
	if len(p) > 0 && p[0]>>4 == packets.Disconnect && c.version.Load() < 5 {
		return len(p), nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.w.Control(p)
	if len(p) > 0 && p[0]>>4 == packets.Disconnect {
		c.closing.Store(true) // one is enough
	}
	if c.accepted && !c.established.Load() {
		c.established.Store(true) // this was the CONNACK
	}
	return len(p), nil
}

// Close is the protocol library's wish to close; serve does it when the library
// returns, which it does at once.
func (c *conn) Close() error { return nil }

// SetDeadline is called by the library before each packet. It rounds the keep-alive
// down to whole seconds, and makes it a deadline for writing, too.
func (c *conn) SetDeadline(time.Time) error {
	var deadline time.Time
	if c.keepAlive > 0 {
		deadline = time.Now().Add(c.keepAlive + c.keepAlive/2)
	}
	err := c.SetReadDeadline(deadline)
	if c.closing.Load() {
		c.wakeReader()
	}
	return err
}

func (c *conn) wakeReader() { _ = c.SetReadDeadline(time.Unix(1, 0)) }

// disconnect closes the connection from our side, from any goroutine.
func (c *conn) disconnect(code byte, reason string) {
	c.mu.Lock()
	if c.version.Load() == 5 && c.established.Load() && !c.closing.Load() {
		pk := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, ReasonCode: code}
		if !c.noProblems {
			pk.Properties.ReasonString = validText(reason)
		}
		c.send(pk)
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
	c.wakeReader()
}

// send encodes a packet that comes from neither the session nor the library.
func (c *conn) send(pk packets.Packet) {
	pk.ProtocolVersion = byte(c.version.Load())
	var buf bytes.Buffer
	var err error
	switch pk.FixedHeader.Type {
	case packets.Suback:
		err = pk.SubackEncode(&buf)
	case packets.Unsuback:
		err = pk.UnsubackEncode(&buf)
	case packets.Disconnect:
		err = pk.DisconnectEncode(&buf)
	}
	if err == nil {
		c.w.Control(buf.Bytes())
	}
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
