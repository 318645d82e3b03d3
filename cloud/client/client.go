// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options say which hub to ask, and as whom.
type Options struct {
	// Server is the hub's HTTP address: http://127.0.0.1:8080.
	Server string
	// TLS has the trusted authorities and the client certificate; nil: those of the system, and none.
	TLS *tls.Config
	// User and Password sign in, if there is a User. They are never sent in the clear to another host.
	User, Password string
	// Token signs in if there is no User.
	Token string
	// Proxy is the proxy to ask through; nil: the environment's.
	Proxy *url.URL
	// Manager is the name under which the hub records writes.
	Manager string
	// Timeout bounds the wait for the beginning of an answer; all of it may take twice as long. 0: 30 s.
	Timeout time.Duration
	// Warn is called with the hub's warnings, and when a watch is interrupted. It may be nil.
	Warn func(text string)
}

func (o *Options) validate() error {
	if o.Manager == "" {
		o.Manager = "edgebus"
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	o.Server = strings.TrimRight(o.Server, "/")
	u, err := url.Parse(o.Server)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return resource.Errorf(resource.Invalid, "server", "%q is no address of a hub: it looks like http://127.0.0.1:8080", o.Server)
	}
	if o.User+o.Token != "" && u.Scheme == "http" && !configs.IsLoopback(u.Hostname()) {
		return resource.Errorf(resource.Invalid, "server", "the password or token would cross the network in the clear to %s: use https://", o.Server)
	}
	return nil
}

// Client asks one hub. It is for any number of goroutines.
type Client struct {
	Options
	http     *http.Client
	answered atomic.Bool // at least once: it doesn't hang

	mu    sync.Mutex
	kinds []Kind // see Kinds
}

const dialTimeout = 5 * time.Second

// New makes a client. It sends nothing yet.
func New(o Options) (*Client, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = o.TLS
	if o.Proxy != nil {
		transport.Proxy = http.ProxyURL(o.Proxy)
	}
	transport.DialContext = (&net.Dialer{Timeout: dialTimeout}).DialContext
	transport.ResponseHeaderTimeout = o.Timeout
	transport.MaxIdleConnsPerHost = 16
	// Hubs don't redirect.
	never := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{Options: o, http: &http.Client{Transport: transport, CheckRedirect: never}}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// request is a request.
type request struct {
	method, path string
	query        url.Values
	accept, form string // form is the body's Content-Type
	body         []byte
	content      io.Reader // the body instead, if not nil, and its size
	size         int64
}

// Get reads the JSON at a path that is no object, such as /links. into may be nil.
func (c *Client) Get(ctx context.Context, path string, into any) error {
	path, query, _ := strings.Cut(path, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return err
	}
	return c.do(ctx, request{method: http.MethodGet, path: path, query: values}, into)
}

// do sends a request, and decodes the JSON of the answer if into isn't nil.
func (c *Client) do(ctx context.Context, r request, into any) error {
	text, err := c.ask(ctx, r)
	if err != nil || into == nil {
		return err
	}
	return c.decode(text, into)
}

const sessionsPath = "/sessions"

// Sessions lists the sessions of the broker's clients. A node's core answers it, too.
func (c *Client) Sessions(ctx context.Context) (list resource.SessionList, err error) {
	err = c.Get(ctx, sessionsPath, &list)
	return list, err
}

// EndSession ends the session of a client.
func (c *Client) EndSession(ctx context.Context, clientID string) error {
	return c.do(ctx, request{method: http.MethodDelete, path: sessionsPath, query: url.Values{"client": {clientID}}}, nil)
}

// ask waits for all of an answer.
func (c *Client) ask(given context.Context, r request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(given, 2*min(c.Timeout, math.MaxInt64/2)) // a long answer may take longer than its beginning
	defer cancel()
	began := time.Now()
	response, err := c.open(ctx, r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if isTimeout(err) && given.Err() == nil {
		return nil, c.unanswered(r, "finished answering", began)
	}
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	return text, nil
}

// open waits for the beginning of an answer. One that isn't a success is an error.
func (c *Client) open(ctx context.Context, r request) (*http.Response, error) {
	if ctx.Err() != nil {
		return nil, c.over(ctx)
	}
	address := c.Server + r.path
	if len(r.query) > 0 {
		address += "?" + r.query.Encode()
	}
	began, connected := time.Now(), new(atomic.Bool)
	request, err := http.NewRequestWithContext(withConnectionTrace(ctx, connected), r.method, address, bytes.NewReader(r.body))
	if err != nil {
		return nil, resource.Errorf(resource.Invalid, "server", "%v", err)
	}
	if r.content != nil {
		request.Body, request.GetBody, request.ContentLength = io.NopCloser(r.content), nil, r.size
		request.Header.Set("Expect", "100-continue") // it is sent if the hub wants it
	}
	request.Header.Set("User-Agent", c.Manager)
	if r.accept == "" {
		r.accept = "application/json"
	}
	request.Header.Set("Accept", r.accept)
	switch {
	case c.User != "":
		request.SetBasicAuth(c.User, c.Password)
	case c.Token != "":
		request.Header.Set("Authorization", "Bearer "+c.Token)
	}
	if r.form != "" {
		request.Header.Set("Content-Type", r.form)
	}
	response, err := c.http.Do(request)
	if isTimeout(err) && connected.Load() && (ctx.Err() == nil || !c.answered.Load()) {
		return nil, c.unanswered(r, "answered", began)
	}
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	c.answered.Store(true)
	for _, text := range response.Header.Values("Warning") {
		c.Warn(parseWarning(text))
	}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	return nil, c.refused(response.StatusCode, text)
}

// withConnectionTrace notes whether the server accepts the connection. A new one counts before the TLS handshake, in which the server may hang.
func withConnectionTrace(ctx context.Context, connected *atomic.Bool) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
		ConnectDone: func(_, _ string, err error) {
			if err == nil {
				connected.Store(true)
			}
		},
	})
}

// parseWarning is the text of a Warning header: 299 - "text".
func parseWarning(header string) string {
	_, quoted, ok := strings.Cut(header, `"`)
	if text, err := strconv.Unquote(`"` + quoted); ok && err == nil {
		return text
	}
	return header
}

func (c *Client) decode(text []byte, into any) error {
	err := json.Unmarshal(text, into)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return c.notAHub()
	}
	return err
}

// apiStatus is the API's answer to a request that failed.
type apiStatus struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Reason  string `json:"reason"`
	Code    int    `json:"code"`
	Details struct {
		Causes []resource.Cause `json:"causes"`
	} `json:"details"`
}

var kindsByCode = map[int]resource.ErrorKind{
	http.StatusNotFound: resource.NotFound, http.StatusConflict: resource.Conflict, http.StatusGone: resource.Gone,
	http.StatusUnauthorized: resource.Unauthorized, http.StatusForbidden: resource.Forbidden,
	http.StatusRequestEntityTooLarge: resource.TooLarge, http.StatusTooManyRequests: resource.Quota,
	http.StatusServiceUnavailable: resource.Unavailable, http.StatusGatewayTimeout: resource.Unavailable, http.StatusBadGateway: resource.Unavailable,
}

// kind maps an answer to the kind of error that the API made it of.
func (s apiStatus) kind() resource.ErrorKind {
	kind, known := kindsByCode[s.Code]
	switch {
	case s.Reason == "AlreadyExists":
		return resource.AlreadyExists
	case s.Reason == "Expired":
		return resource.Gone
	case known:
		return kind
	case s.Code/100 == 4:
		return resource.Invalid
	}
	return resource.Internal
}

func (s apiStatus) err() error {
	text := s.Message
	if s.Code == http.StatusUnauthorized {
		text += " (--cert and --key, --user and --password-file, or --token-file)"
	}
	return &resource.Error{Kind: s.kind(), Message: text, Causes: s.Details.Causes}
}

// refused is the error for an answer other than success.
func (c *Client) refused(code int, body []byte) error {
	var s apiStatus
	if json.Unmarshal(body, &s) == nil && s.Kind == "Status" {
		s.Code = code
		return s.err()
	}
	text := strings.TrimSpace(string(body))
	switch {
	case strings.Contains(text, "HTTP request to an HTTPS server"):
		return &Unreachable{c.Server, "it speaks TLS", "The address begins with https:// then"}
	case code == http.StatusNotFound:
		return c.notAHub()
	}
	s = apiStatus{Code: code, Message: fmt.Sprintf("%s answers %d %s: %.200q", c.Server, code, http.StatusText(code), text)}
	return s.err()
}

// Unreachable is an error of the kind resource.Unavailable: there was no answer, or none of a hub.
type Unreachable struct {
	Server string
	Why    string // in plain words
	Advice string // what to look at; may be empty
}

func (u *Unreachable) Error() string {
	text := "no answer from the hub at " + u.Server + ": " + u.Why
	if u.Advice != "" {
		text += ". " + u.Advice
	}
	return text
}

// Unwrap gives it its kind.
func (u *Unreachable) Unwrap() error {
	return resource.Errorf(resource.Unavailable, "", "%s", u.Why)
}

func (c *Client) notAHub() error {
	return &Unreachable{c.Server, "something else answers there", "A hub's HTTP API is on port 8080 if its configuration (http.listen) doesn't say otherwise"}
}

// unanswered is the error for a server that accepts the connection and doesn't answer.
func (c *Client) unanswered(r request, what string, since time.Time) error {
	why := fmt.Sprintf("it takes the connection, and has not %s %s %s in %s", what, r.method, r.path, time.Since(since).Round(100*time.Millisecond))
	return &Unreachable{c.Server, why, "Does it hang, or is something else there? --timeout says how long to wait"}
}

// over is the error for a context that has ended, which says nothing about the hub.
func (c *Client) over(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return &Unreachable{c.Server, "time was up (--timeout)", ""}
}

// isTimeout is whether an answer took too long.
func isTimeout(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

// unreachable is the error for a request without an answer: in plain words why, and what to do. If the context was
// cancelled, it is the context's error.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil && (c.answered.Load() || errors.Is(ctx.Err(), context.Canceled)) {
		return c.over(ctx)
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // the text has the address anyway
	}
	why, advice := explainNetworkError(err)
	if advice == "" && !c.answered.Load() && !isNetworkError(err) {
		why, advice = "it speaks something else than HTTP", "Is this the port of MQTT?"
	}
	if strings.HasPrefix(c.Server, "https:") && (why == whyHungUp || why == err.Error()) {
		advice = adviceSigned // the TLS alert may be lost with the connection
	}
	return &Unreachable{c.Server, why, advice}
}

const (
	whyHungUp    = "it hangs up"
	adviceSigned = "It accepts certificates that its http.tls.clientCA has signed (--cert, --key), and users' passwords (--user, --password-file)"
)

func explainNetworkError(err error) (why, advice string) {
	var (
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
		invalid  x509.CertificateInvalidError
		record   tls.RecordHeaderError
		alert    tls.AlertError
		dns      *net.DNSError
		remote   *net.OpError
	)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there", "Is cloudhub running, and is this its HTTP address (http.listen, http.tls.listen)?"
	case errors.As(err, &dns):
		return fmt.Sprintf("the name %s can't be found (%s)", dns.Name, dns.Err), "Is it spelt right?"
	case errors.As(err, &unknown):
		return "its certificate is signed by an authority that isn't trusted here", "Give the authority's certificate with --ca"
	case errors.As(err, &hostname):
		return "its certificate is for another name: " + hostname.Error(), ""
	case errors.As(err, &invalid):
		return "its certificate is not valid: " + invalid.Error(), ""
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return "it doesn't speak TLS", "Should the address begin with http://?"
	case errors.As(err, &alert), errors.As(err, &remote) && remote.Op == "remote error":
		return "it doesn't accept the client certificate (" + err.Error() + ")", adviceSigned
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return whyHungUp, "Is it stopping, or is this the port of MQTT?"
	case isTimeout(err):
		return "time is up", "Is the address right, and does a firewall let it through?"
	}
	return err.Error(), ""
}

// isNetworkError reports whether an error comes from the network or from TLS. What remains is an answer that is none of HTTP, for which the
// library has no type.
func isNetworkError(err error) bool {
	var network net.Error
	var verification *tls.CertificateVerificationError
	return errors.As(err, &network) || errors.As(err, &verification)
}

// Post sends a request to a path that is no object, such as /enroll/invitations, and reads the answer if into isn't nil.
func (c *Client) Post(ctx context.Context, path string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.do(ctx, request{method: http.MethodPost, path: path, form: "application/json", body: text}, into)
}

// Remove deletes what is at a path that is no object.
func (c *Client) Remove(ctx context.Context, path string) error {
	return c.do(ctx, request{method: http.MethodDelete, path: path}, nil)
}

// Upload puts a content of any size at a path, for as long as that takes, and reads the answer. Nothing is sent that the hub
// has already.
func (c *Client) Upload(ctx context.Context, path string, content io.Reader, size int64, into any) error {
	response, err := c.open(ctx, request{method: http.MethodPut, path: path, form: "application/octet-stream", content: content, size: size})
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return c.unreachable(ctx, err)
	}
	return c.decode(text, into)
}

// Download gets what is at a path, of any size.
func (c *Client) Download(ctx context.Context, path string) (content io.ReadCloser, size int64, err error) {
	response, err := c.open(ctx, request{method: http.MethodGet, path: path, accept: "*/*"})
	if err != nil {
		return nil, 0, err
	}
	return response.Body, response.ContentLength, nil
}
