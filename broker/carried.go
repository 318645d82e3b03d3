// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
)

// Origin is where a connection comes from that another broker's ConnCarrier has taken.
type Origin struct {
	Listener string `json:"listener"` // its name, which this broker's own has, too
	Remote   string `json:"remote"`   // the client's address and port
	Loopback bool   `json:"loopback,omitempty"`
	// Certificates are the client's and its chain, in DER, whose key it has shown to have.
	Certificates [][]byte `json:"certificates,omitempty"`
	// Gone reports whether the other broker is gone: then the end of its connections is not their clients'. nil: it never is.
	Gone func() bool `json:"-"`
}

// carriedConn is a connection that a ConnCarrier has taken: a stream of what the client sends, without TLS.
type carriedConn struct {
	net.Conn    // a meteredSocket around the stream
	remote      net.Addr
	certificate *x509.Certificate // nil: it has shown none
	gone        func() bool       // as in Origin
}

func (c *carriedConn) RemoteAddr() net.Addr { return c.remote }

// carrierGone reports whether the broker is gone that has taken the connection for this one.
func (c *conn) carrierGone() bool {
	carried, ok := underlyingConn(c.Conn).(*carriedConn)
	return ok && carried.gone != nil && carried.gone()
}

// CloseWrite ends the direction to the client.
func (c *carriedConn) CloseWrite() error { return c.Conn.(*meteredSocket).CloseWrite() }

// carriedStream gives the errors of a stream's deadlines the form of those of a socket's.
type carriedStream struct{ net.Conn }

func (s carriedStream) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	return n, deadlineError(err)
}

func (s carriedStream) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p)
	return n, deadlineError(err)
}

func deadlineError(err error) error {
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		return os.ErrDeadlineExceeded
	}
	return err
}

// CloseWrite ends the direction, where a stream's Close is that: it goes on to be read.
func (s carriedStream) CloseWrite() error {
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return s.Conn.Close()
}

// verifyCarried judges a client's certificate as this listener does, whatever the other broker made of it.
func (l *listener) verifyCarried(certificates [][]byte) (*x509.Certificate, error) {
	chain := make([]*x509.Certificate, len(certificates))
	for i, der := range certificates {
		var err error
		if chain[i], err = x509.ParseCertificate(der); err != nil {
			return nil, err
		}
	}
	if l.TLS == nil {
		return nil, errors.New("this hub's listener has no TLS")
	}
	if _, err := VerifyClient(l.TLS, chain); err != nil {
		return nil, err
	}
	return chain[0], nil
}

// VerifyClient judges a client's certificate, with the chain that it has shown, as a server with these settings does.
func VerifyClient(settings *tls.Config, chain []*x509.Certificate) ([][]*x509.Certificate, error) {
	if settings.GetConfigForClient != nil {
		latest, err := settings.GetConfigForClient(&tls.ClientHelloInfo{})
		if err != nil {
			return nil, err
		}
		settings = cmp.Or(latest, settings)
	}
	o := x509.VerifyOptions{Roots: settings.ClientCAs, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if o.Roots == nil { // which would be the system's
		return nil, errors.New("no authority of clients is configured")
	}
	if settings.Time != nil {
		o.CurrentTime = settings.Time()
	}
	for _, more := range chain[1:] {
		o.Intermediates.AddCert(more)
	}
	return chain[0].Verify(o)
}

// ServeCarried serves a connection that another broker's ConnCarrier has taken and brings here as a stream, until it ends: it has the rights and
// limits that it would have at this broker's own listener of that name.
func (b *Broker) ServeCarried(stream net.Conn, from Origin) error {
	remote, err := netip.ParseAddrPort(from.Remote)
	if err != nil {
		return fmt.Errorf("the client's address: %w", err)
	}
	c := &carriedConn{Conn: &meteredSocket{Conn: carriedStream{stream}}, remote: net.TCPAddrFromAddrPort(remote), gone: from.Gone}
	for _, own := range b.listeners {
		if own.Name != from.Listener {
			continue
		}
		if len(from.Certificates) > 0 {
			if c.certificate, err = own.verifyCarried(from.Certificates); err != nil {
				return fmt.Errorf("the client's certificate: %w", err)
			}
		}
		l := &listener{Listener: own.Listener, b: b, loopback: from.Loopback, connects: own.connects}
		var transport net.Conn = c
		if l.WebSocket {
			transport = &wsConn{Conn: c, upgrade: l.upgrade}
		}
		select {
		case <-b.clients.resumed:
		case <-b.closed:
			return nil
		}
		l.serveConn(transport)
		return nil
	}
	return fmt.Errorf("this hub has no listener %s: hubs of a cluster have the same settings of mqtt", from.Listener)
}
