// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/cloud/clusterca"
)

// serveAt has a hub answer forwarded requests. It takes all certificates that it is told of, but those of nobody.
func serveAt(t *testing.T, h *Hubs, handler http.HandlerFunc) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- h.ServeHTTP(ctx, func(chain []*x509.Certificate) ([][]*x509.Certificate, error) {
			return [][]*x509.Certificate{chain}, nil
		}, handler)
	}()
	require.Eventually(t, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.handlers[purposeHTTP] != nil
	}, 10*time.Second, time.Millisecond)
	return func() {
		cancel()
		require.NoError(t, <-ended)
	}
}

// two hubs, of which the first owns the log, and the other's address.
func twoHubs(t *testing.T, handler http.HandlerFunc) (owner, standby *Hubs, l *log, server *httptest.Server) {
	t.Helper()
	l = &log{changed: make(chan struct{})}
	owner, standby = startHub(t, "hub-1", l), startHub(t, "hub-2", l)
	l.set(Owner{"hub-1", owner.Addr().String()})
	if handler != nil {
		t.Cleanup(serveAt(t, owner, handler))
	}
	server = httptest.NewUnstartedServer(standby.Forward())
	t.Cleanup(server.Close)
	return owner, standby, l, server
}

func get(t *testing.T, c *http.Client, url string, change ...func(*http.Request)) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	for _, f := range change {
		f(r)
	}
	answer, err := c.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(text), answer.Header
}

// identity is what an owner sees of who asks.
func identity(w http.ResponseWriter, r *http.Request) {
	name := "nobody"
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		name = r.TLS.PeerCertificates[0].DNSNames[0]
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	fmt.Fprintf(w, "tls=%t name=%s remote=%s local=%s host=%s auth=%s forwarded=%q", r.TLS != nil, name, r.RemoteAddr, local, r.Host, r.Header.Get("Authorization"), r.Header.Get(forwardedHeader))
}

func TestTheOwnerSeesTheClientOfAForwardedRequest(t *testing.T) {
	_, _, _, plain := twoHubs(t, identity)
	plain.Start()
	forge := func(r *http.Request) {
		r.Header.Set(forwardedHeader, `{"remote":"192.0.2.1:1","tls":true}`)
		r.Header.Set("Authorization", "Bearer abc")
		r.Host = "hub.example"
	}
	code, text, _ := get(t, plain.Client(), plain.URL, forge)
	require.Equal(t, http.StatusOK, code)
	require.Regexp(t, `^tls=false name=nobody remote=127.0.0.1:[0-9]+ local=`+plain.Listener.Addr().String()+` host=hub.example auth=Bearer abc forwarded=""$`, text)

	_, _, _, secure := twoHubs(t, identity)
	ca, err := clusterca.New(sealed.Key{7})
	require.NoError(t, err)
	own, err := ca.Own()
	require.NoError(t, err)
	secure.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: ca.Roots(nil)}
	secure.StartTLS()
	client := secure.Client()
	_, text, _ = get(t, client, secure.URL, forge)
	require.Contains(t, text, "tls=true name=nobody remote=127.0.0.1:")
	client.CloseIdleConnections()
	client.Transport.(*http.Transport).TLSClientConfig.Certificates = []tls.Certificate{*own}
	_, text, _ = get(t, client, secure.URL, forge)
	require.Contains(t, text, "tls=true name="+clusterca.HubName+" remote=127.0.0.1:")
}

func TestAWatchIsForwardedAsItHappensAndEndsWithTheOwner(t *testing.T) {
	events := make(chan string)
	_, _, l, server := twoHubs(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		c := http.NewResponseController(w)
		_ = c.Flush()
		for {
			select {
			case e := <-events:
				_, _ = io.WriteString(w, e+"\n")
				_ = c.Flush()
			case <-r.Context().Done():
				return
			}
		}
	})
	server.Start()
	answer, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	defer answer.Body.Close()
	lines := bufio.NewReader(answer.Body)
	for _, e := range []string{"one", "two"} {
		events <- e
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, e+"\n", line)
	}
	other := startHub(t, "hub-3", l)
	l.set(Owner{"hub-3", other.Addr().String()}) // the one before is there still
	_, err = lines.ReadString('\n')
	require.Error(t, err, "the client goes on at the version that it has")
}

func TestWithoutAnOwnerRequestsAreToldToComeAgain(t *testing.T) {
	owner, _, l, server := twoHubs(t, nil)
	server.Start()
	says := func(what string) {
		t.Helper()
		code, text, header := get(t, server.Client(), server.URL)
		require.Equal(t, http.StatusServiceUnavailable, code)
		require.Equal(t, "1", header.Get("Retry-After"))
		require.Contains(t, text, what)
	}
	says("standby of hub-1: it is taking over")
	stop := serveAt(t, owner, identity)
	code, _, _ := get(t, server.Client(), server.URL)
	require.Equal(t, http.StatusOK, code)
	stop()
	says("standby of hub-1")
	l.set(Owner{})
	says("no hub serves")
	l.set(Owner{Name: "hub-2"})
	says("this hub is taking over")
	gone := owner.Addr().String()
	_ = owner.Close()
	l.set(Owner{"hub-1", gone})
	says("it doesn't answer")
}

// Nobody knows whether a write was done whose answer didn't come: it is told neither yes nor no.
func TestAWriteThatWasSentIsNotRefused(t *testing.T) {
	got := make(chan struct{})
	owner, _, _, server := twoHubs(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		close(got)
		<-r.Context().Done()
	})
	server.Start()
	go func() {
		<-got
		_ = owner.Close()
	}()
	answer, err := server.Client().Post(server.URL, "text/plain", strings.NewReader("x"))
	if err == nil {
		_ = answer.Body.Close()
	}
	require.Error(t, err)
}

// What a hub tells of itself it tells those who may read it at the owner, and this host while there is none.
func TestWhatAStandbyTellsOfItselfIsForWhomTheOwnerLetsRead(t *testing.T) {
	_, standby, l, _ := twoHubs(t, func(w http.ResponseWriter, r *http.Request) {
		if user, _, _ := r.BasicAuth(); r.URL.Path != "/metrics" || user != "reader" {
			w.Header().Set("Www-Authenticate", "Basic")
			http.Error(w, "no", http.StatusUnauthorized)
		}
	})
	own := standby.Forward().Local("/metrics", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "its own") }))
	ask := func(remote, user string, secure bool) (int, string) {
		r := httptest.NewRequest(http.MethodGet, "/cluster", http.NoBody)
		r.RemoteAddr, r.TLS = remote, nil
		if r.SetBasicAuth(user, "x"); secure {
			r.TLS = &tls.ConnectionState{}
		}
		w := httptest.NewRecorder()
		own.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	code, text := ask("192.0.2.1:1", "reader", true)
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "its own", text)
	code, _ = ask("127.0.0.1:1", "other", false)
	require.Equal(t, http.StatusUnauthorized, code)
	odd := httptest.NewRequest(http.MethodGet, "/cluster", strings.NewReader("a body"))
	odd.RemoteAddr = "127.0.0.1:1"
	w := httptest.NewRecorder()
	own.ServeHTTP(w, odd)
	require.Equal(t, http.StatusUnauthorized, w.Code)
	l.set(Owner{})
	require.Eventually(t, func() bool { return len(standby.Connected()) == 0 }, 10*time.Second, time.Millisecond, "what is left of the owner's connection may answer until then")
	code, _ = ask("127.0.0.1:1", "", false)
	require.Equal(t, http.StatusOK, code)
	for _, remote := range []string{"127.0.0.1:1", "192.0.2.1:1"} {
		code, _ = ask(remote, "reader", true)
		require.Equal(t, http.StatusServiceUnavailable, code)
	}
	code, _ = ask("192.0.2.1:1", "reader", false)
	require.Equal(t, http.StatusServiceUnavailable, code)
}

// Over HTTP/2 a deadline ends an answer, also one of which nothing is to be written yet.
func TestAWatchWithoutEventsGoesOn(t *testing.T) {
	const patience = 100 * time.Millisecond
	_, standby, _, _ := twoHubs(t, func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		for _, e := range []string{"one", "two"} {
			_, _ = io.WriteString(w, e+"\n")
			_ = c.Flush()
			select {
			case <-time.After(4 * patience):
			case <-r.Context().Done():
				return
			}
		}
	})
	forward := standby.Forward()
	forward.patience = patience
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(patience)) // as each server of the hub
		forward.ServeHTTP(w, r)
	}))
	defer server.Close()
	server.EnableHTTP2 = true
	server.StartTLS()
	answer, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, 2, answer.ProtoMajor)
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\n", string(text))
}

// A connection that is upgraded is its client's at the owner, and ends when the owner ends it, whatever the client does.
func TestAnUpgradedConnectionIsTheClientsAndEndsWithTheOwners(t *testing.T) {
	saw := make(chan string, 1)
	_, _, _, server := twoHubs(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			saw <- err.Error()
			return
		}
		defer conn.Close()
		_, _ = buffered.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = buffered.Flush()
		line, _ := buffered.ReadString('\n')
		_, _ = io.WriteString(conn, line)
		_ = conn.SetReadDeadline(time.Now().Add(-time.Second))
		_, err = conn.Read(make([]byte, 1))
		saw <- fmt.Sprint(conn.RemoteAddr(), " ", errors.Is(err, os.ErrDeadlineExceeded))
	})
	server.StartTLS()
	conn, err := tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: hub\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	require.NoError(t, err)
	in := bufio.NewReader(conn)
	answer, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	_ = answer.Body.Close()
	require.Equal(t, http.StatusSwitchingProtocols, answer.StatusCode)
	_, err = io.WriteString(conn, "hello\n")
	require.NoError(t, err)
	line, err := in.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "hello\n", line)
	require.Equal(t, conn.LocalAddr().String()+" true", <-saw)
	_, err = in.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	_, err = conn.NetConn().Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "it is closed, and doesn't wait for the client")
}

// timedWriter notes until when a body is read and an answer written.
type timedWriter struct {
	*httptest.ResponseRecorder
	read, write time.Time
}

func (w *timedWriter) SetReadDeadline(t time.Time) error  { w.read = t; return nil }
func (w *timedWriter) SetWriteDeadline(t time.Time) error { w.write = t; return nil }

func TestAForwardedRequestHasAsMuchTimeAsOneThatIsNot(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("x"))
	r.Header.Set(forwardedHeader, `{"remote":"192.0.2.1:1"}`)
	w := &timedWriter{ResponseRecorder: httptest.NewRecorder()}
	restoreClient(nil, http.HandlerFunc(identity)).ServeHTTP(w, r)
	require.Contains(t, w.Body.String(), "remote=192.0.2.1:1")
	require.WithinDuration(t, time.Now().Add(time.Minute), w.read, 30*time.Second)
	require.WithinDuration(t, time.Now().Add(time.Minute), w.write, 30*time.Second)
}

// A hub that stands by does itself what it has offered, if the owner takes the offer. It is the hub's offer, whatever a client says; and if it can't after all the
// owner is asked again.
func TestAHubDoesWhatItHasOffered(t *testing.T) {
	_, standby, _, unused := twoHubs(t, func(w http.ResponseWriter, r *http.Request) {
		if offer := OfferOf(r); offer != nil {
			w.Header().Set("Taken", "true")
			_, _ = w.Write(offer)
			return
		}
		w.Header().Set("Taken", r.Header.Get("Taken")) // a handler's own means nothing
		fmt.Fprintf(w, "by the owner, %q", r.Header.Get(forwardedHeader))
	})
	f := standby.Forward()
	f.Offers = StandbyAnswers{
		Make: func(r *http.Request) json.RawMessage {
			if r.URL.Path == "/none" {
				return nil
			}
			return json.RawMessage(`{"since":7}`)
		},
		Told: func(_ *http.Request, owner http.Header) bool { return owner.Get("Taken") != "" },
		Answer: func(w http.ResponseWriter, r *http.Request, owner io.Reader) bool {
			if r.URL.Path == "/not-yet" {
				return false
			}
			said, err := io.ReadAll(owner)
			require.NoError(t, err)
			fmt.Fprintf(w, "here, of %s: %s", r.URL, said)
			return true
		},
	}
	unused.Config.Handler = f
	unused.Start()
	forge := func(r *http.Request) {
		r.Header.Set(forwardedHeader, `{"remote":"192.0.2.1:1","offer":{"since":1}}`)
		r.Header.Set("Taken", "true")
	}
	for path, want := range map[string]string{"/all?x=1": `here, of /all?x=1: {"since":7}`, "/none": `by the owner, ""`, "/not-yet": `by the owner, ""`} {
		_, text, _ := get(t, unused.Client(), unused.URL+path, forge)
		require.Equal(t, want, text, path)
	}
}
