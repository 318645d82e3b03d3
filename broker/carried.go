// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
)

// Origin is where a connection comes from that another broker's ConnCarrier has taken.
type Origin struct {
	Listener    string `json:"listener"` // its name, which this broker's own has, too
	Remote      string `json:"remote"`   // the client's address and port
	Loopback    bool   `json:"loopback,omitempty"`
	Certificate []byte `json:"certificate,omitempty"` // of the client, verified, in DER
}

// carriedConn is a connection that a ConnCarrier has taken: a stream of what the client sends, without TLS.
type carriedConn struct {
	net.Conn    // a meteredSocket around the stream
	remote      net.Addr
	certificate *x509.Certificate // nil: it has shown none
}

func (c *carriedConn) RemoteAddr() net.Addr { return c.remote }

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

// ServeCarried serves a connection that another broker's ConnCarrier has taken and brings here as a stream, until it ends: it has the rights and
// limits that it would have at this broker's own listener of that name.
func (b *Broker) ServeCarried(stream net.Conn, from Origin) error {
	remote, err := netip.ParseAddrPort(from.Remote)
	if err != nil {
		return fmt.Errorf("the client's address: %w", err)
	}
	c := &carriedConn{Conn: &meteredSocket{Conn: carriedStream{stream}}, remote: net.TCPAddrFromAddrPort(remote)}
	if len(from.Certificate) > 0 {
		if c.certificate, err = x509.ParseCertificate(from.Certificate); err != nil {
			return fmt.Errorf("the client's certificate: %w", err)
		}
	}
	for _, own := range b.listeners {
		if own.Name != from.Listener {
			continue
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
