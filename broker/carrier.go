// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// ConnCarrierOptions are what a ConnCarrier is made from.
type ConnCarrierOptions struct {
	Listeners      []Listener
	InsecureListen bool // as in Options
	Limits         Limits
	// Dial opens a stream to the broker, which begins to serve it as a connection from there. Close of a stream ends its own direction alone, or
	// it has CloseWrite.
	Dial func(ctx context.Context, from Origin) (net.Conn, error)
	Log  zerolog.Logger
}

// ConnCarrier takes connections of clients for a broker that is elsewhere: TLS ends here, and what is below it is carried there and back.
// Sessions, rights and limits, keep-alives included, are that broker's.
type ConnCarrier struct {
	o         ConnCarrierOptions
	log       zerolog.Logger // sampled
	listeners []carrierListener
	closed    chan struct{}
	closing   sync.Once
	running   sync.WaitGroup // connections

	mu      sync.Mutex
	conns   map[net.Conn]struct{} // all, and the streams that they have
	opening pendingConns[net.Conn]
	carried int
}

type carrierListener struct {
	Listener
	bound    net.Listener
	loopback bool
}

// NewConnCarrier binds the listeners. Serve accepts connections; without it Close releases the listeners.
func NewConnCarrier(o ConnCarrierOptions) (*ConnCarrier, error) {
	checked := Options{Listeners: o.Listeners, InsecureListen: o.InsecureListen, Limits: o.Limits}
	if err := checked.validate(); err != nil {
		return nil, err
	}
	o.Limits = checked.Limits
	c := &ConnCarrier{o: o, log: sampledLogger(o.Log), closed: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	c.opening.size = pendingSize(o.Limits)
	c.opening.host = func(conn net.Conn) string { return peerNetwork(conn.RemoteAddr()) }
	for _, l := range checked.Listeners {
		bound, loopback, err := bindLimited(l, o.Limits, c.closed, func() {})
		if err != nil {
			c.Close()
			return nil, err
		}
		c.listeners = append(c.listeners, carrierListener{l, bound, loopback})
	}
	return c, nil
}

// Addrs are the addresses that the listeners are bound to, in their order.
func (c *ConnCarrier) Addrs() (all []net.Addr) {
	for _, l := range c.listeners {
		all = append(all, l.bound.Addr())
	}
	return all
}

// Carried is how many connections are being carried.
func (c *ConnCarrier) Carried() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.carried
}

// Serve accepts connections until ctx ends or Close is called, and returns when all have ended.
func (c *ConnCarrier) Serve(ctx context.Context) {
	defer context.AfterFunc(ctx, c.Close)()
	var accepting sync.WaitGroup
	for _, l := range c.listeners {
		c.o.Log.Info().Str("listener", l.Name).Stringer("address", l.bound.Addr()).Bool("tls", l.TLS != nil).Bool("websocket", l.WebSocket).
			Msg("listening for MQTT, for the hub that serves")
		accepting.Go(func() {
			acceptConns(l.bound, c.closed, c.o.Log.With().Str("listener", l.Name).Logger(), func(conn net.Conn) {
				if c.admit(conn) {
					go c.serveConn(ctx, l, conn)
				}
			})
		})
	}
	accepting.Wait()
	c.running.Wait()
}

// Close releases the listeners and ends all connections.
func (c *ConnCarrier) Close() {
	c.closing.Do(func() { close(c.closed) })
	for _, l := range c.listeners {
		_ = l.bound.Close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.conns {
		_ = conn.SetDeadline(time.Now()) // a stream is still read after its Close
		_ = conn.Close()
	}
}

// isClosed reports whether Close was called. The caller holds the lock.
func (c *ConnCarrier) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// admit counts a connection, whose stream is not there yet. Of these there is a limit, as of those without a CONNECT at a broker.
func (c *ConnCarrier) admit(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed() || c.carried >= c.o.Limits.Connections {
		_ = conn.Close()
		return false
	}
	if oldest := c.opening.add(conn); oldest != nil {
		_ = oldest.Close()
	}
	c.conns[conn] = struct{}{}
	c.running.Add(1)
	return true
}

// serveConn carries a connection until it ends.
func (c *ConnCarrier) serveConn(ctx context.Context, l carrierListener, conn net.Conn) {
	defer c.running.Done()
	stream, err := c.open(ctx, l, conn)
	c.opening.remove(conn)
	if err != nil {
		if plain := (tls.RecordHeaderError{}); errors.As(err, &plain) {
			err = errors.New("this listener wants TLS, and the client speaks without: have it use mqtts://")
		}
		c.log.Info().Err(err).Str("listener", l.Name).Stringer("remote", conn.RemoteAddr()).Msg("connection refused")
	} else if c.begin(stream) {
		carryConn(conn, stream, c.o.Limits.WriteTimeout)
		c.finish(stream)
	}
	_ = conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
}

// begin counts a stream. It reports false after Close.
func (c *ConnCarrier) begin(stream net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed() {
		_ = stream.Close()
		return false
	}
	c.conns[stream] = struct{}{}
	c.carried++
	return true
}

func (c *ConnCarrier) finish(stream net.Conn) {
	_ = stream.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, stream)
	c.carried--
}

// open does the handshake of TLS, and opens a stream to the broker.
func (c *ConnCarrier) open(ctx context.Context, l carrierListener, conn net.Conn) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Limits.ConnectTimeout)
	defer cancel()
	from := Origin{Listener: l.Name, Remote: conn.RemoteAddr().String(), Loopback: l.loopback}
	if secure, ok := conn.(*tls.Conn); ok {
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		state := secure.ConnectionState()
		if verifiedCertificate(&state) != nil {
			for _, shown := range state.PeerCertificates {
				from.Certificates = append(from.Certificates, shown.Raw)
			}
		}
	}
	return c.o.Dial(ctx, from)
}

const (
	idleBuffer = 4 << 10  // for each direction of a connection
	busyBuffer = 32 << 10 // of one that has more to carry than fits
)

// carryConn carries what a client sends to a stream, and what comes back to the client, until both directions have ended, or one has failed.
func carryConn(client, stream net.Conn, writeTimeout time.Duration) {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		err := copyBytes(stream, client, func() {})
		if err == nil {
			err = carriedStream{stream}.CloseWrite()
		}
		if err != nil { // nothing more reaches the broker, and so it must not wait for the client
			_ = carriedStream{stream}.CloseWrite()
			_ = client.SetWriteDeadline(time.Now())
		}
	}()
	err := copyBytes(client, stream, func() { _ = client.SetWriteDeadline(time.Now().Add(writeTimeout)) })
	if half, ok := client.(interface{ CloseWrite() error }); ok && err == nil {
		err = half.CloseWrite()
	}
	if err == nil { // the client reads the end before it is closed, as at a broker
		until := time.Now().Add(2 * lingerTime)
		_ = client.SetReadDeadline(until)
		_ = stream.SetWriteDeadline(until) // the broker may read no more
		<-sent
	}
	_ = client.Close()
	_ = stream.Close()
	<-sent
}

// copyBytes copies until the end, which is no error. It calls before before each write.
func copyBytes(to io.Writer, from io.Reader, before func()) error {
	small := make([]byte, idleBuffer)
	for b := small; ; {
		n, err := from.Read(b)
		if n > 0 {
			before()
			if _, err := to.Write(b[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case n == idleBuffer:
			b = make([]byte, busyBuffer)
		case n < idleBuffer:
			b = small
		}
	}
}
