package broker

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/configs/descriptors"
)

// listener is a bound address. It outlives failed accepts.
type listener struct {
	Listener
	b        *Broker
	bound    net.Listener
	loopback bool
	closed   atomic.Bool
	connects throttle // of CONNECTs
}

// listen binds all addresses, or none.
func (b *Broker) listen() error {
	for _, o := range b.opts.Listeners {
		bound, err := new(net.ListenConfig).Listen(context.Background(), "tcp", o.Address)
		if err != nil {
			for _, l := range b.listeners {
				_ = l.close()
			}
			return fmt.Errorf("%s: %w", cmp.Or(o.Setting, "listener "+o.Name), err)
		}
		l := &listener{Listener: o, b: b, loopback: loopbackAddr(bound.Addr())}
		l.connects.every = time.Second / time.Duration(b.opts.Limits.ConnectRate)
		l.bound = &gate{
			Listener: descriptors.Keep(bound, descriptors.MQTT), rate: &throttle{every: l.connects.every / acceptsPerConnect}, closed: b.closed,
			metered: o.TLS != nil || o.WebSocket,
			held:    func() { b.stats.held.Add(1) },
		}
		if o.TLS != nil {
			l.bound = tls.NewListener(l.bound, o.TLS)
		}
		b.listeners = append(b.listeners, l)
	}
	return nil
}

func loopbackAddr(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

const acceptSaid = 10 * time.Second // how often at most it is said that none can be accepted

// serve accepts connections until the listener is closed.
func (l *listener) serve() {
	var said time.Time
	for {
		transport, err := l.bound.Accept()
		switch {
		case err == nil:
			if l.WebSocket {
				transport = &wsConn{Conn: transport, upgrade: l.upgrade}
			}
			go l.b.serve(l, transport) // ends with the connection; Close waits for it
		case l.closed.Load() || errors.Is(err, net.ErrClosed):
			return
		default: // out of file descriptors, or a client that was gone already
			if time.Since(said) > acceptSaid {
				l.b.log.Warn().Err(err).Str("listener", l.Name).Msg("new connections can't be accepted now; those that stand go on")
				said = time.Now()
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-l.b.closed:
				return
			}
		}
	}
}

func (l *listener) close() error {
	if l.closed.Swap(true) {
		return nil
	}
	return l.bound.Close()
}

// peerCertificate is the client's certificate, if it has a verified one.
func (c *conn) peerCertificate() *x509.Certificate {
	secure, ok := beneath(c.Conn).(*tls.Conn)
	if !ok {
		return nil
	}
	state := secure.ConnectionState()
	return verified(&state)
}

func verified(state *tls.ConnectionState) *x509.Certificate {
	if state == nil || len(state.VerifiedChains) == 0 {
		return nil
	}
	return state.PeerCertificates[0]
}
