// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// carriersByBroker are those that carry to a broker, by broker.
var carriersByBroker sync.Map

// startCarrier has a carrier take connections for a broker, over one connection between the two, until the test ends.
func startCarrier(t *testing.T, b *Broker) *ConnCarrier {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	here, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	there, err := l.Accept()
	require.NoError(t, err)
	settings := yamux.DefaultConfig()
	settings.LogOutput, settings.AcceptBacklog = io.Discard, 4096
	from, err := yamux.Client(here, settings)
	require.NoError(t, err)
	to, err := yamux.Server(there, settings)
	require.NoError(t, err)
	go func() {
		for {
			stream, err := to.AcceptStream()
			if err != nil {
				return
			}
			go func() {
				defer stream.Close()
				var at Origin
				if err := json.NewDecoder(io.LimitReader(stream, int64(mustReadLength(stream)))).Decode(&at); err == nil {
					_ = b.ServeCarried(stream, at)
				}
			}()
		}
	}()
	o := ConnCarrierOptions{Limits: b.opts.Limits, Log: zerolog.Nop(), Dial: func(_ context.Context, at Origin) (net.Conn, error) {
		stream, err := from.OpenStream()
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(at)
		if err == nil {
			_, err = stream.Write(append([]byte{byte(len(text) >> 8), byte(len(text))}, text...))
		}
		return stream, err
	}}
	for _, l := range b.opts.Listeners {
		l.Address = "127.0.0.1:0"
		o.Listeners = append(o.Listeners, l)
	}
	c, err := NewConnCarrier(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Serve(ctx) }()
	carriersByBroker.Store(b, c)
	t.Cleanup(func() {
		carriersByBroker.Delete(b)
		cancel()
		<-ended
		_ = errors.Join(from.Close(), to.Close())
	})
	return c
}

func mustReadLength(from io.Reader) int {
	var b [2]byte
	if _, err := io.ReadFull(from, b[:]); err != nil {
		return 0
	}
	return int(b[0])<<8 | int(b[1])
}

// Who comes through another hub is who it would be here: by its certificate or without, from its own address, over WebSocket as well.
func TestACarriedConnectionIsWhoItWouldBeHere(t *testing.T) {
	a := newTestAuthority(t)
	told := &recordedPresence{}
	b := startBroker(t, func(o *Options) {
		withUsers(o)
		o.Presence = told
		o.Listeners = []Listener{
			{Name: "tls", Address: "127.0.0.1:0", TLS: a.server()},
			{Name: "wss", Address: "127.0.0.1:0", TLS: a.server(), WebSocket: true},
			{Name: "tcp", Address: "127.0.0.1:0"},
		}
	})
	c := startCarrier(t, b)
	node := dialTLS(t, c.Addrs()[0], a.client("n1"))
	require.Equal(t, byte(0), node.connect("node/n1"))
	require.Equal(t, byte(0x87), node.publish1("v1/nodes/n2/sync/up", "x").ReasonCode)
	id := told.last(t, "+node/n1")
	require.Equal(t, "n1", id.Node)
	require.Equal(t, "tls", id.Listener)
	require.Equal(t, node.conn.LocalAddr().String(), id.Remote)
	require.NotNil(t, id.Certificate)

	page := dialWS(t, "wss://"+c.Addrs()[1].String()+"/mqtt", a.client("n2"))
	require.Equal(t, byte(0), page.connect("node/n2"))
	require.Equal(t, "wss", told.last(t, "+node/n2").Listener)

	stranger := dialTLS(t, c.Addrs()[0], a.client(""))
	require.Equal(t, byte(0x85), stranger.connect("node/n3"), "a node without a certificate")
	require.Eventually(t, func() bool { return c.Carried() == 2 }, 30*time.Second, time.Millisecond)

	ended := b.EndIdentity(func(id *Identity) bool { return id.Node == "n1" }, "revoked")
	require.True(t, ended)
	code, _ := node.ended()
	require.Equal(t, byte(0x98), code, "administrative action")
	require.Eventually(t, func() bool { return c.Carried() == 1 }, 30*time.Second, time.Millisecond)
}

// Loopback counts where the client came in, and an address's limits for the client's own address.
func TestLoopbackOfACarriedConnectionIsThatOfTheOtherHub(t *testing.T) {
	b := startBroker(t, func(o *Options) { o.Limits.PerAddress = 1 })
	serve := func(from Origin) *testClient {
		here, there := net.Pipe()
		go func() { _ = b.ServeCarried(there, from) }()
		return wrapConn(t, here)
	}
	require.Equal(t, byte(0), serve(Origin{Listener: "tcp", Remote: "127.0.0.1:5", Loopback: true}).connect("a"))
	require.Equal(t, byte(0x86), serve(Origin{Listener: "tcp", Remote: "192.0.2.1:5"}).connect("b"), "not anonymous")
	require.Equal(t, byte(0x86), serve(Origin{Listener: "tcp", Remote: "127.0.0.1:5"}).connect("b"), "a proxy on that host")
	require.ErrorContains(t, b.ServeCarried(nil, Origin{Listener: "other", Remote: "192.0.2.1:5"}), "no listener other")
	require.ErrorContains(t, b.ServeCarried(nil, Origin{Listener: "tcp", Remote: "somewhere"}), "address")
	require.ErrorContains(t, b.ServeCarried(nil, Origin{Listener: "tcp", Remote: "192.0.2.1:5", Certificates: [][]byte{[]byte("x")}}), "certificate")
}

// A certificate that another hub has taken is judged here again: that hub may not know yet what this one trusts no more, or have other settings.
func TestTheCertificateOfACarriedConnectionIsJudgedHereAgain(t *testing.T) {
	a, other := newTestAuthority(t), newTestAuthority(t)
	later := false
	b := startBroker(t, func(o *Options) {
		settings := a.server()
		settings.Time = func() time.Time {
			if later {
				return time.Now().AddDate(100, 0, 0)
			}
			return time.Now()
		}
		o.Listeners = []Listener{{Name: "tls", Address: "127.0.0.1:0", TLS: settings}, {Name: "tcp", Address: "127.0.0.1:0"}}
	})
	serve := func(listener string, from *tls.Config) error {
		here, there := net.Pipe()
		require.NoError(t, here.Close())
		return b.ServeCarried(there, Origin{Listener: listener, Remote: "192.0.2.1:5", Certificates: from.Certificates[0].Certificate})
	}
	require.NoError(t, serve("tls", a.client("n1")))
	require.ErrorContains(t, serve("tls", other.client("n1")), "unknown authority")
	require.ErrorContains(t, serve("tcp", a.client("n1")), "no TLS")
	later = true
	require.ErrorContains(t, serve("tls", a.client("n1")), "expired")
}

// Who shakes no hands, or finds no broker, is closed, and a carrier that ends takes all its connections with it.
func TestACarrierEndsWhatItCantCarry(t *testing.T) {
	a := newTestAuthority(t)
	there := make(chan bool, 1)
	held := make(chan net.Conn, 1)
	c, err := NewConnCarrier(ConnCarrierOptions{
		Listeners: []Listener{{Name: "tls", Address: "127.0.0.1:0", TLS: a.server()}, {Name: "tcp", Address: "127.0.0.1:0"}},
		Limits:    Limits{ConnectTimeout: 100 * time.Millisecond}, Log: zerolog.Nop(),
		Dial: func(context.Context, Origin) (net.Conn, error) {
			if !<-there {
				return nil, errors.New("no hub serves")
			}
			here, other := net.Pipe()
			held <- other
			return here, nil
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Serve(ctx) }()
	closed := func(conn net.Conn) {
		t.Helper()
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(30*time.Second)))
		_, err := io.Copy(io.Discard, conn)
		var late net.Error
		require.False(t, errors.As(err, &late) && late.Timeout(), "it was left open")
	}
	dial := func(i int) net.Conn {
		conn, err := net.Dial("tcp", c.Addrs()[i].String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	closed(dial(0))
	there <- false
	closed(dial(1))
	there <- true
	conn := dial(1)
	stream := <-held
	sent := make(chan error, 1)
	go func() { _, err := stream.Write([]byte("answer")); sent <- err }()
	var text [6]byte
	_, err = io.ReadFull(conn, text[:])
	require.NoError(t, errors.Join(err, <-sent))
	require.Equal(t, "answer", string(text[:]))
	require.Equal(t, 1, c.Carried())
	cancel()
	<-ended
	closed(conn)
	_, err = net.Dial("tcp", c.Addrs()[1].String())
	require.Error(t, err)
	require.Zero(t, c.Carried())
}

// The broker reads no more of a connection that it has ended: what is on its way there must not hold the connection.
func TestACarriedClientThatSendsOnAfterTheBrokersEndIsClosed(t *testing.T) {
	b := startBroker(t, nil)
	c := startCarrier(t, b)
	conn, err := net.Dial("tcp", c.Addrs()[0].String())
	require.NoError(t, err)
	defer conn.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for packet := make([]byte, 64<<10); err == nil; { // no CONNECT
			_, err = conn.Write(packet)
		}
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		require.Fail(t, "it was left open")
	}
	require.Eventually(t, func() bool { return c.Carried() == 0 }, 30*time.Second, time.Millisecond)
}
