// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/oneprocessor"
	"github.com/edgebus/edgebus/test/selfsigned"
	"github.com/edgebus/edgebus/topics/limits"
)

// writeCertificate makes a certificate that signs itself, for server and client alike, in PEM files.
func writeCertificate(t *testing.T, name string) (cert, key string) {
	text, secret := selfsigned.NewPEM(t, name, "127.0.0.1")
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(cert, text, 0o600))
	require.NoError(t, os.WriteFile(key, secret, 0o600))
	return cert, key
}

// readTLS reads a server's certificate, and the authority of its clients' certificates.
func readTLS(cert, key, clientCA string) func() (*tls.Config, error) {
	return func() (*tls.Config, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, err
		}
		authority, err := os.ReadFile(clientCA)
		clients := x509.NewCertPool()
		clients.AppendCertsFromPEM(authority)
		return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.VerifyClientCertIfGiven}, err
	}
}

// TestHTTPSChecksCertificates: who shows one that somebody else signed gets nothing; who shows none
// is for the handler to judge.
func TestHTTPSChecksCertificates(t *testing.T) {
	cert, key := writeCertificate(t, "server and user")
	strange, strangeKey := writeCertificate(t, "stranger")
	s, err := Listen(Options{
		Listen: "127.0.0.1:0", ListenTLS: "127.0.0.1:0", TLS: readTLS(cert, key, cert), Limits: limits.Limits{Requests: 1},
	}, zerolog.Nop(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.VerifiedChains) == 0 {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	defer func() { cancel(); require.NoError(t, <-ended) }()

	roots := x509.NewCertPool()
	text, err := os.ReadFile(cert)
	require.NoError(t, err)
	roots.AppendCertsFromPEM(text)
	get := func(files ...string) (int, error) {
		c := &tls.Config{RootCAs: roots}
		if len(files) > 0 {
			pair, err := tls.LoadX509KeyPair(files[0], files[1])
			require.NoError(t, err)
			// A client by itself leaves a certificate out that isn't of the authorities that the server names.
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		transport := &http.Transport{TLSClientConfig: c}
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get("https://" + s.Addrs()[1].String())
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	// There is room for one connection, and two listeners wait for it.
	code, err := get(cert, key)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
	code, err = get()
	require.NoError(t, err)
	require.Equal(t, http.StatusUnauthorized, code)
	_, err = get(strange, strangeKey)
	require.Error(t, err)
	resp, err := http.Get("http://" + s.Addrs()[0].String())
	require.NoError(t, err, "plain, on the loopback interface")
	resp.Body.Close()
}

// TestNoRoomIsCounted: a connection more than there may be waits, which is counted.
func TestNoRoomIsCounted(t *testing.T) {
	s, err := Listen(Options{Listen: "127.0.0.1:0", Limits: limits.Limits{Requests: 1}}, zerolog.Nop(), http.NotFoundHandler())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	defer func() { cancel(); require.NoError(t, <-ended) }()
	is := func(open, full int64) {
		t.Helper()
		require.Eventually(t, func() bool {
			o, f := s.Connections()
			return o == open && f == full
		}, time.Minute, time.Millisecond)
	}
	is(0, 0)
	conn, err := net.Dial("tcp", s.Addrs()[0].String())
	require.NoError(t, err)
	is(1, 0)
	waits, err := net.Dial("tcp", s.Addrs()[0].String())
	require.NoError(t, err)
	is(1, 1)
	require.NoError(t, conn.Close())
	require.NoError(t, waits.Close())
	is(0, 1)
}

// remoteListener is where what comes from 127.0.1.0/24 is from: loopback addresses are not counted.
type remoteListener struct{ net.Listener }

func (l remoteListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return remoteConn{conn}, nil
}

type remoteConn struct{ net.Conn }

func (s remoteConn) RemoteAddr() net.Addr {
	at := *s.Conn.RemoteAddr().(*net.TCPAddr)
	if ip := at.IP.To4(); ip[2] == 1 {
		at.IP = net.IPv4(192, 0, 2, ip[3])
	}
	return &at
}

// startServer runs a handler for whom 127.0.1.0/24 is elsewhere. ask sends a request from an address and reads the answer's first byte.
func startServer(t *testing.T, bounds limits.Limits, h http.Handler) (s *Server, ask func(from string) (net.Conn, error)) {
	s, err := Listen(Options{Listen: "127.0.0.1:0", Limits: bounds}, zerolog.Nop(), h)
	require.NoError(t, err)
	l := s.listeners[0].(*limitedListener)
	l.Listener = remoteListener{l.Listener}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	return s, func(from string) (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := d.Dial("tcp", s.Addrs()[0].String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		if _, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: hub\r\n\r\n")); err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		return conn, err
	}
}

// TestOneHostLeavesRoom: who has asked for what is public, or was refused, may be there for a while; so from one
// address nobody takes all the room. Its own connections make room for its new ones.
func TestOneHostLeavesRoom(t *testing.T) {
	s, ask := startServer(t, limits.Limits{Requests: 4, PerAddress: 5000}, http.NotFoundHandler())
	s.limit.minIdle = 0
	first, err := ask("127.0.1.1")
	require.NoError(t, err)
	second, err := ask("127.0.1.1")
	require.NoError(t, err)
	other, err := ask("127.0.1.2")
	require.NoError(t, err)
	_, err = ask("127.0.1.1")
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, first) // the rest of its answer
	require.NoError(t, err, "the one that was idle for longest is closed")
	_, full := s.Connections()
	require.EqualValues(t, 1, full)
	for _, conn := range []net.Conn{second, other} {
		_, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: hub\r\n\r\n"))
		require.NoError(t, err)
	}
	open, _ := s.Connections()
	require.EqualValues(t, 3, open)
}

// Who asks nothing any more, or hasn't asked yet, stands in nobody's way.
func TestIdleHTTPConnectionsMakeRoom(t *testing.T) {
	s, ask := startServer(t, limits.Limits{Requests: 16}, http.NotFoundHandler())
	var idle []net.Conn
	for _, from := range []string{"127.0.1.1", "127.0.1.2"} {
		for range 20 {
			conn, err := ask(from)
			require.NoError(t, err)
			idle = append(idle, conn)
		}
	}
	for range 12 { // half of a request is none
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, 3)}}).Dial("tcp", s.Addrs()[0].String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: h"))
		require.NoError(t, err)
	}
	for _, from := range []string{"127.0.1.4", "127.0.0.1"} {
		_, err := ask(from)
		require.NoError(t, err, from)
	}
	_, err := io.Copy(io.Discard, idle[0])
	require.NoError(t, err, "closed")
	open, full := s.Connections()
	require.LessOrEqual(t, open, int64(16))
	require.Positive(t, full)
}

// When all are busy others wait for room, and this host, its operator and its health checks, has some left.
func TestThisHostHasRoomWhenAllAreBusy(t *testing.T) {
	busy, release := make(chan struct{}, 100), make(chan struct{})
	s, ask := startServer(t, limits.Limits{Requests: 16}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if host, _, _ := net.SplitHostPort(r.RemoteAddr); host != "127.0.0.1" {
			busy <- struct{}{}
			<-release
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	answers := make(chan error, 20)
	for i := range 20 {
		go func() { _, err := ask([]string{"127.0.1.1", "127.0.1.2"}[i%2]); answers <- err }()
	}
	for range 14 {
		<-busy
	}
	require.Eventually(t, func() bool { _, full := s.Connections(); return full == 6 }, time.Minute, time.Millisecond)
	for range 3 {
		_, err := ask("127.0.0.1")
		require.NoError(t, err)
	}
	require.Empty(t, busy, "others wait")
	close(release)
	for range 20 {
		require.NoError(t, <-answers)
	}
}

func TestWhomAConnectionCountsFor(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "::ffff:192.0.2.1": "192.0.2.1", "127.0.0.1": "", "::1": "",
		"2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64", "2001:db8:1:2::1": "2001:db8:1:2::/64", "2001:db8:1:3::1": "2001:db8:1:3::/64",
	} {
		require.Equal(t, want, hostOf(&net.TCPAddr{IP: net.ParseIP(remote)}))
	}
	small := newConnLimit(limits.Limits{Requests: 100, PerAddress: 3})
	require.Equal(t, 3, small.each)
	require.Equal(t, 1, newConnLimit(limits.Limits{Requests: 1, PerAddress: 3}).each)
	require.Zero(t, newConnLimit(limits.Limits{Requests: 100}).each, "any number")
}

// The log says where it listens, and what net/http complains of, in its own form, and not all of a flood.
func TestTheLogIsOneOfJSON(t *testing.T) {
	cert, key := writeCertificate(t, "server")
	path := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(path)
	require.NoError(t, err)
	defer log.Close()
	s, err := Listen(Options{
		Listen: "127.0.0.1:0", ListenTLS: "127.0.0.1:0", TLS: readTLS(cert, key, cert), Limits: limits.Limits{Requests: 2},
	}, zerolog.New(log), http.NotFoundHandler())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	const tries = 30
	began := time.Now()
	for range tries {
		conn, err := net.Dial("tcp", s.Addrs()[1].String())
		require.NoError(t, err)
		_, err = conn.Write([]byte("this is no TLS"))
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, conn) // until the server has given up
		require.NoError(t, conn.Close())
	}
	took := time.Since(began)
	cancel()
	require.NoError(t, <-ended)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	said := map[string]int{}
	for line := range strings.Lines(string(text)) {
		var fields struct {
			Level, Message, Address string
			TLS                     bool
		}
		require.NoError(t, json.Unmarshal([]byte(line), &fields), line)
		require.Equal(t, "info", fields.Level)
		what, _, _ := strings.Cut(fields.Message, " from")
		said[what]++
		if fields.Address != "" {
			require.Equal(t, map[bool]string{false: s.Addrs()[0].String(), true: s.Addrs()[1].String()}[fields.TLS], fields.Address)
		}
	}
	require.Equal(t, 2, said["listening for HTTP"])
	require.NotZero(t, said["TLS handshake error"])
	if took < 10*time.Second {
		require.Less(t, said["TLS handshake error"], tries)
	}
}

// On a single processor whom the network has woken runs before the next of many requests that others send one after the other.
func TestOnOneProcessorOthersRunBetweenRequests(t *testing.T) {
	oneprocessor.Use(t)
	var served atomic.Int64
	turn := make(chan struct{}) // of one client after the other, so that each wakes the next
	handler := yieldFirst(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }))
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case turn <- struct{}{}:
				case <-turn:
				case <-ctx.Done():
					return
				}
				handler.ServeHTTP(nil, nil)
			}
		})
	}
	givesWay := oneprocessor.GivesWay(&served)
	stop()
	clients.Wait()
	require.True(t, givesWay)
}
