// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/httpserver"
)

// purposeHTTP is that of streams with requests that another hub was sent.
const purposeHTTP = "http"

// forwardedHeader says whose request it is. It is read on streams of other hubs alone, which put their own in the place of any that a client sends.
const forwardedHeader = "Edgebus-Forwarded"

// forwardedClient is the connection on which another hub got a request.
type forwardedClient struct {
	Remote       string   `json:"remote"`
	Local        string   `json:"local,omitempty"`
	TLS          bool     `json:"tls,omitempty"`
	Certificates [][]byte `json:"certificates,omitempty"` // the client's and its chain, whose key it has shown to have
	// Offer is what the other hub offers to do itself, as it and the owner understand it.
	Offer json.RawMessage `json:"offer,omitempty"`
}

func forwardedBy(r *http.Request) forwardedClient {
	f := forwardedClient{Remote: r.RemoteAddr, TLS: r.TLS != nil}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		f.Local = local.String()
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		for _, c := range r.TLS.PeerCertificates {
			f.Certificates = append(f.Certificates, c.Raw)
		}
	}
	return f
}

const (
	idleStreams = 64
	idleTime    = 30 * time.Second
	answerTime  = time.Minute // for a client to read what there is of an answer
	dialTime    = 2 * time.Second
)

// unreachedError is why a request was not sent to the owner.
type unreachedError struct{ error }

func (e unreachedError) Unwrap() error { return e.error }

// Forwarder is a handler that has the owner answer, with the client's identity. While there is no owner it answers 503.
type Forwarder struct {
	h         *Hubs
	transport *http.Transport
	proxy     *httputil.ReverseProxy
	patience  time.Duration // for a client to send, or to read, a part
	Offers    StandbyAnswers
}

// StandbyAnswers are how a hub that stands by answers itself, if the owner wants it; zero: it doesn't.
type StandbyAnswers struct {
	// Make is what it offers with a request; nil: nothing.
	Make func(*http.Request) json.RawMessage
	// Told is told of the owner's answer to that, and reports whether this hub is to answer.
	Told func(r *http.Request, owner http.Header) bool
	// Answer answers, with what the owner's answer has. It returns false if it can't: the owner is then asked again, without an offer.
	Answer func(w http.ResponseWriter, r *http.Request, owner io.Reader) bool
}

// offeredRequest is a request with an offer, as it came.
type offeredRequest struct {
	r     *http.Request
	offer json.RawMessage
}

type offeredKey struct{}

func offeredIn(ctx context.Context) offeredRequest {
	o, _ := ctx.Value(offeredKey{}).(offeredRequest)
	return o
}

// takenError is that the owner takes an offer.
type takenError struct{ answer io.ReadCloser }

func (takenError) Error() string { return "the owner has this hub answer" }

// Forward makes a Forwarder.
func (h *Hubs) Forward() *Forwarder {
	transport := &http.Transport{
		DisableCompression: true, MaxIdleConnsPerHost: idleStreams, IdleConnTimeout: idleTime,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, stop := context.WithTimeout(ctx, dialTime)
			defer stop()
			c, err := h.Dial(ctx, purposeHTTP)
			if err != nil {
				err = unreachedError{err}
			}
			return c, err
		},
	}
	f := &Forwarder{h: h, transport: transport, patience: answerTime}
	f.proxy = &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", "owner"
			p.Out.Host = p.In.Host
			by := forwardedBy(p.In)
			by.Offer = offeredIn(p.In.Context()).offer
			said, _ := json.Marshal(by) // of strings
			p.Out.Header.Set(forwardedHeader, string(said))
		},
		ModifyResponse: func(r *http.Response) error {
			if o := offeredIn(r.Request.Context()); o.offer != nil && f.Offers.Told(o.r, r.Header) {
				taken := takenError{r.Body}
				r.Body = http.NoBody // it is closed, and the answer lasts
				return taken
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			var taken takenError
			if errors.As(err, &taken) {
				f.answer(w, offeredIn(r.Context()).r, taken.answer)
				return
			}
			// A write that was sent may be done: its connection ends without an answer, as one to the owner would.
			if !errors.As(err, new(unreachedError)) && r.Method != http.MethodGet && r.Method != http.MethodHead {
				panic(http.ErrAbortHandler)
			}
			h.refuse(w, err)
		},
	}
	return f
}

// answer answers a request that the owner leaves to this hub.
func (f *Forwarder) answer(w http.ResponseWriter, r *http.Request, owner io.ReadCloser) {
	is := f.Offers.Answer(w, r, owner)
	_ = owner.Close()
	if !is {
		f.proxy.ServeHTTP(w, r)
	}
}

func (f *Forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := http.NewResponseController(w)
	if r.ContentLength != 0 {
		r.Body = &patientReader{r.Body, c, f.patience}
	}
	out := &patientWriter{w, c, f.patience, r.ProtoMajor >= 2}
	out.rest()
	if f.Offers.Make != nil {
		if offer := f.Offers.Make(r); offer != nil {
			r = r.WithContext(context.WithValue(r.Context(), offeredKey{}, offeredRequest{r, offer}))
		}
	}
	f.proxy.ServeHTTP(out, r)
}

// Local is a handler of this hub's own for whoever may read a path at the owner. Who comes over a plain connection of this host is let in while there is none.
func (f *Forwarder) Local(path string, own http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ask := r.Clone(r.Context())
		ask.Method, ask.URL = http.MethodHead, &url.URL{Scheme: "http", Host: "owner", Path: path}
		said, _ := json.Marshal(forwardedBy(r)) // of strings
		ask.Header.Set(forwardedHeader, string(said))
		ask.Body, ask.ContentLength, ask.TransferEncoding = nil, 0, nil // with a length and no body it would fail, as if there were no owner
		ask.Header.Del("Accept-Encoding")
		answer, err := f.transport.RoundTrip(ask)
		remote, _ := netip.ParseAddrPort(r.RemoteAddr)
		switch {
		case err != nil && r.TLS == nil && remote.Addr().Unmap().IsLoopback():
			own.ServeHTTP(w, r)
		case err != nil:
			f.h.refuse(w, err)
		default:
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				own.ServeHTTP(w, r)
				return
			}
			for _, name := range []string{"Www-Authenticate", "Retry-After"} {
				if value := answer.Header.Get(name); value != "" {
					w.Header().Set(name, value)
				}
			}
			http.Error(w, "the hub that serves doesn't let you read this: "+http.StatusText(answer.StatusCode), answer.StatusCode)
		}
	})
}

func (h *Hubs) refuse(w http.ResponseWriter, err error) {
	owner, _ := h.o.Owner()
	w.Header().Set("Retry-After", "1")
	http.Error(w, fmt.Sprintf("standby of %s: %s", orNobody(owner.Name), explainUnreached(err)), http.StatusServiceUnavailable)
}

func orNobody(name string) string {
	if name == "" {
		return "nobody yet"
	}
	return name
}

// explainUnreached says for clients why the owner doesn't answer. What it says isn't for strangers to know: addresses are in the hub's log.
func explainUnreached(err error) string {
	switch {
	case errors.Is(err, ErrSelf):
		return "this hub is taking over"
	case errors.Is(err, ErrNoOwner):
		return "no hub serves; try again"
	case errors.Is(err, ErrRefused):
		return "it is taking over"
	}
	return "it doesn't answer; try again"
}

// patientReader gives a client the same time to send each part of a body. How long all of it may take is for the owner to say.
type patientReader struct {
	io.ReadCloser
	c    *http.ResponseController
	each time.Duration
}

func (r *patientReader) Read(b []byte) (int, error) {
	_ = r.c.SetReadDeadline(time.Now().Add(r.each)) // in tests there is none
	return r.ReadCloser.Read(b)
}

// patientWriter gives a client the same time to read each part of an answer, however many there are, and long after one another.
type patientWriter struct {
	http.ResponseWriter
	c      *http.ResponseController
	each   time.Duration
	shared bool // the connection, by HTTP/2: there a deadline ends an answer of which nothing is written as well
}

// begin is called before a part, and rest after it.
func (w *patientWriter) begin() {
	_ = w.c.SetWriteDeadline(time.Now().Add(w.each)) // in tests there is none
}

func (w *patientWriter) rest() {
	if w.shared {
		_ = w.c.SetWriteDeadline(time.Time{})
	}
}

func (w *patientWriter) WriteHeader(status int) {
	if !w.shared { // it may be all of the answer, and is written with its end
		w.begin()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *patientWriter) Write(b []byte) (int, error) {
	w.begin()
	defer w.rest()
	return w.ResponseWriter.Write(b)
}

// FlushError is for http.ResponseController.
func (w *patientWriter) FlushError() error {
	w.begin()
	defer w.rest()
	return w.c.Flush()
}

// Hijack is of http.Hijacker.
func (w *patientWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := w.c.Hijack()
	if err != nil {
		return nil, nil, err
	}
	return upgradedConn{conn, w.each}, buffered, nil
}

// upgradedConn is a client's connection that is for another protocol now. It has no CloseWrite: with one, a proxy waits for the client when the owner has ended the
// connection, and so for as long as the client likes.
type upgradedConn struct {
	net.Conn
	each time.Duration
}

func (c upgradedConn) Write(b []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(c.each))
	return c.Conn.Write(b)
}

// Unwrap is for http.ResponseController.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// ServeHTTP answers the requests that other hubs forward, until ctx ends. Certificates of their clients are judged here again.
func (h *Hubs) ServeHTTP(ctx context.Context, verify func([]*x509.Certificate) ([][]*x509.Certificate, error), handler http.Handler) error {
	return h.Serve(ctx, purposeHTTP, restoreClient(verify, handler))
}

// Serve answers the requests of other hubs themselves, for a purpose of its own, until ctx ends.
func (h *Hubs) Serve(ctx context.Context, purpose string, handler http.Handler) error {
	l := &streamListener{h: h, streams: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: handshakeTime, IdleTimeout: 2 * idleTime, MaxHeaderBytes: 1 << 20,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	h.Handle(purpose, l.take)
	defer h.Handle(purpose, nil)
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Client is for what other hubs Serve for a purpose, at HubURL of each, as far as there is a connection.
func (h *Hubs) Client(purpose string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 2, IdleConnTimeout: idleTime,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			host, _, _ := net.SplitHostPort(address) // of HubURL
			name, err := hex.DecodeString(host)
			if err != nil {
				return nil, err
			}
			return h.DialHub(ctx, string(name), purpose)
		},
	}}
}

// HubURL is where a Client finds a hub. It ends with a slash.
func HubURL(hub string) string { return "http://" + hex.EncodeToString([]byte(hub)) + "/" }

// restoreClient has a request be as if its client had sent it here, in the time that a client has.
func restoreClient(verify func([]*x509.Certificate) ([][]*x509.Certificate, error), next http.Handler) http.Handler {
	return httpserver.WithDeadlines(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var f forwardedClient
		if err := json.Unmarshal([]byte(r.Header.Get(forwardedHeader)), &f); err != nil {
			http.Error(w, "a request of another hub doesn't say whose it is: do they have the same version?", http.StatusBadRequest)
			return
		}
		r.Header.Del(forwardedHeader)
		r.RemoteAddr = f.Remote
		if remote, err := netip.ParseAddrPort(f.Remote); err == nil {
			w = &restoredWriter{w, net.TCPAddrFromAddrPort(remote)}
		}
		local, _ := netip.ParseAddrPort(f.Local) // none is no address of loopback
		ctx := context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(net.TCPAddrFromAddrPort(local)))
		r = r.WithContext(context.WithValue(ctx, offeredKey{}, offeredRequest{offer: f.Offer}))
		if f.TLS {
			r.TLS = &tls.ConnectionState{HandshakeComplete: true, Version: tls.VersionTLS13, PeerCertificates: parseChain(f.Certificates)}
			if len(r.TLS.PeerCertificates) > 0 {
				r.TLS.VerifiedChains, _ = verify(r.TLS.PeerCertificates) // else nobody is named by it
			}
		}
		next.ServeHTTP(w, r)
	}))
}

// OfferOf is what the hub that has forwarded a request offers to do itself; nil: nothing.
func OfferOf(r *http.Request) json.RawMessage { return offeredIn(r.Context()).offer }

// restoredWriter has a connection that is upgraded be its client's.
type restoredWriter struct {
	http.ResponseWriter
	remote net.Addr
}

// Unwrap is for http.ResponseController.
func (w *restoredWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack is of http.Hijacker.
func (w *restoredWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	return restoredConn{conn, w.remote}, buffered, nil
}

type restoredConn struct {
	net.Conn
	remote net.Addr
}

func (c restoredConn) RemoteAddr() net.Addr { return c.remote }

func parseChain(raw [][]byte) (chain []*x509.Certificate) {
	for _, der := range raw {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil
		}
		chain = append(chain, c)
	}
	return chain
}

// streamListener has a server of HTTP take streams.
type streamListener struct {
	h       *Hubs
	streams chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func (l *streamListener) take(s Stream) {
	c := &servedStream{Stream: s, over: make(chan struct{})}
	select {
	case l.streams <- c:
		<-c.over
	case <-l.closed:
	}
}

func (l *streamListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.streams:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *streamListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *streamListener) Addr() net.Addr { return l.h.Addr() }

// servedStream says when its server has closed it.
type servedStream struct {
	Stream
	once sync.Once
	over chan struct{}
}

func (s *servedStream) Close() error {
	s.once.Do(func() { close(s.over) })
	return s.Stream.Close()
}
