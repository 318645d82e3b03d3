// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
)

// The numbers of requests and answers in their binary encoding.
const (
	idServiceFault        = 397
	idFindRequest         = 422
	idFindResponse        = 425
	idEndpointsRequest    = 428
	idEndpointsResponse   = 431
	idOpenRequest         = 446
	idOpenResponse        = 449
	idCloseChannelRequest = 452
	idCreateRequest       = 461
	idCreateResponse      = 464
	idActivateRequest     = 467
	idActivateResponse    = 470
	idCloseRequest        = 473
	idCloseResponse       = 476
	idAnonymousToken      = 321
	idUserNameToken       = 324
)

// Options say where a server is, and how it is signed in to.
type Options struct {
	URL            string       // opc.tcp://host:4840/path
	Policy         Policy       // empty: the best that the server offers
	Mode           SecurityMode // 0: the best with the policy
	Identity       Identity
	Fingerprint    string // SHA-256 of the server's certificate in hexadecimal; empty: any
	User, Password string
	Name           string        // of the session
	SessionTimeout time.Duration // after which the server forgets a session that is not heard of
}

// Endpoint is one of the ways that a server offers.
type Endpoint struct {
	URL string

	Application Application
	Policy      Policy
	Mode        SecurityMode
	Cert        []byte
	tokens      []userToken
}

type userToken struct {
	id     string
	kind   uint32 // 0 anonymous, 1 user name, 2 certificate, 3 issued
	policy string
}

// Anonymous reports whether who doesn't say who they are are let in.
func (e Endpoint) Anonymous() bool {
	return slices.ContainsFunc(e.tokens, func(t userToken) bool { return t.kind == 0 })
}

type responseHeader struct {
	handle uint32
	result Status
}

func (r *reader) responseHeader() (h responseHeader) {
	r.time()
	h.handle, h.result = r.uint32(), Status(r.uint32())
	r.diagnostics(0)
	for range r.count(4) {
		r.bytes()
	}
	r.extension()
	return h
}

func (w *writer) requestHeader(token NodeID, timeout time.Duration) {
	w.nodeID(token)
	w.time(time.Now())
	w.uint32(0)
	w.uint32(0)
	w.string("")
	w.uint32(uint32(timeout / time.Millisecond))
	w.nodeID(NodeID{})
	w.byte(0)
}

// HostOf is the address of a URL, with the port of OPC UA if it has none.
func HostOf(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "opc.tcp" || u.Hostname() == "" {
		return "", errors.New("must be a URL such as opc.tcp://10.0.0.5:4840")
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "4840")), nil
}

// Endpoints asks a server for the ways that it offers, without security, which every server answers.
func Endpoints(ctx context.Context, address string) ([]Endpoint, error) {
	r, err := askUnsecured(ctx, address, idEndpointsRequest, idEndpointsResponse)
	if err != nil {
		return nil, fmt.Errorf("ask for the endpoints: %w", err)
	}
	endpoints := readList(r, 20, r.endpoint)
	return endpoints, r.err
}

// askUnsecured asks one of the questions that every server answers without a session: for all that it has of something.
func askUnsecured(ctx context.Context, address string, request, response uint32) (*reader, error) {
	host, err := HostOf(address)
	if err != nil {
		return nil, err
	}
	c, err := dialChannel(ctx, host, address, channelSecurity{policy: PolicyNone, mode: ModeNone})
	if err != nil {
		return nil, err
	}
	defer c.close()
	var w writer
	w.nodeID(NumericID(0, request))
	w.requestHeader(NodeID{}, 10*time.Second)
	w.string(address)
	w.uint32(0)
	w.uint32(0)
	a, err := c.call(ctx, w.data, (*secureChannel).sendMessage)
	if err != nil {
		return nil, c.reason(err)
	}
	if a.typeID != response {
		return nil, fmt.Errorf("the answer has type %d, not %d", a.typeID, response)
	}
	return &reader{data: a.body}, nil
}

func (r *reader) endpoint() (e Endpoint) {
	e.URL = r.string()
	e.Application = r.application()
	e.Cert = r.bytes()
	e.Mode = SecurityMode(r.uint32())
	policy := r.string()
	e.Policy = Policy(strings.TrimPrefix(policy, policyPrefix))
	e.tokens = readList(r, 20, func() (t userToken) {
		t.id, t.kind = r.string(), r.uint32()
		r.bytes()
		r.bytes()
		t.policy = r.string()
		return t
	})
	r.bytes()
	r.byte()
	return e
}

// chooseEndpoint finds the endpoint that the options ask for, or the best.
func chooseEndpoint(endpoints []Endpoint, o Options) (Endpoint, error) {
	var offered []string
	best, rank := Endpoint{}, -1
	for _, e := range endpoints {
		p := slices.Index(Policies, e.Policy)
		if e.Mode >= ModeNone && e.Mode <= ModeEncrypt {
			offered = append(offered, string(e.Policy)+" "+e.Mode.String())
		}
		switch {
		case p < 0, o.Policy != "" && e.Policy != o.Policy, o.Mode != 0 && e.Mode != o.Mode:
		case (e.Policy == PolicyNone) != (e.Mode == ModeNone):
		case o.Identity.Key == nil && e.Policy != PolicyNone:
		case int(e.Mode)*10+p > rank:
			best, rank = e, int(e.Mode)*10+p
		}
	}
	if rank < 0 {
		return best, fmt.Errorf("the server doesn't offer that security; it offers %s", strings.Join(offered, ", "))
	}
	return best, nil
}

// String is None, Sign or SignAndEncrypt.
func (m SecurityMode) String() string {
	switch m {
	case ModeNone:
		return "None"
	case ModeSign:
		return "Sign"
	case ModeEncrypt:
		return "SignAndEncrypt"
	}
	return fmt.Sprintf("mode %d", uint32(m))
}

// ParseSecurityMode understands what String says.
func ParseSecurityMode(s string) (SecurityMode, error) {
	for m := ModeNone; m <= ModeEncrypt; m++ {
		if strings.EqualFold(s, m.String()) {
			return m, nil
		}
	}
	return 0, errors.New("must be None, Sign or SignAndEncrypt")
}

// Session is a session with a server. Its methods may be called at the same time.
type Session struct {
	Endpoint Endpoint // how it is connected

	channel *secureChannel
	token   NodeID
	o       Options

	subscribed subscriptions
}

// UntrustedError is that the server doesn't accept this client's certificate: what a person has to do.
type UntrustedError struct{ err error }

func (e *UntrustedError) Error() string {
	return "the server must trust this mapper's certificate (mapper-opcua certificate prints it): " + e.err.Error()
}

func (e *UntrustedError) Unwrap() error { return e.err }

// Dial connects and signs in.
func Dial(ctx context.Context, o Options) (*Session, error) {
	endpoints, err := Endpoints(ctx, o.URL)
	if err != nil {
		return nil, err
	}
	e, err := chooseEndpoint(endpoints, o)
	if err != nil {
		return nil, err
	}
	sec := channelSecurity{policy: e.Policy, mode: e.Mode, identity: o.Identity, server: e.Cert}
	if e.Policy != PolicyNone {
		if sec.key, err = certificateKey(e.Cert); err != nil {
			return nil, err
		}
		if err := checkKey(&o.Identity.Key.PublicKey); err != nil {
			return nil, err
		}
	}
	if got := Fingerprint(e.Cert); o.Fingerprint != "" && !strings.EqualFold(strings.ReplaceAll(o.Fingerprint, ":", ""), got) {
		return nil, fmt.Errorf("the server's certificate has the fingerprint %s, and not the configured one", got)
	}
	host, err := HostOf(o.URL)
	if err != nil {
		return nil, err
	}
	c, err := dialChannel(ctx, host, o.URL, sec)
	if err != nil {
		return nil, explainTrust(err, e.Policy)
	}
	s := &Session{Endpoint: e, channel: c, o: o}
	if err := s.signIn(ctx); err != nil {
		c.close()
		return nil, explainTrust(err, e.Policy)
	}
	go c.keepOpen()
	return s, nil
}

// explainTrust says what to do when a server ends a secured channel at its beginning.
func explainTrust(err error, p Policy) error {
	if p != PolicyNone && (errors.Is(err, BadSecurityChecksFailed) || errors.Is(err, BadCertificateUntrusted) || errors.Is(err, BadCertificateInvalid)) {
		return &UntrustedError{err}
	}
	return err
}

// Fingerprint is the SHA-256 of a certificate in hexadecimal.
func Fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// request makes a message with its header.
func (s *Session) request(id uint32, timeout time.Duration, body func(*writer)) []byte {
	var w writer
	w.nodeID(NumericID(0, id))
	w.requestHeader(s.token, timeout)
	body(&w)
	return w.data
}

// call sends a request and gives a reader of its answer, which must have the type response.
func (s *Session) call(ctx context.Context, id, response uint32, body func(*writer)) (*reader, error) {
	timeout := time.Duration(0) // the server may wait for as long as it likes, as with Publish
	if end, ok := ctx.Deadline(); ok {
		timeout = max(time.Until(end), time.Millisecond)
	}
	a, err := s.channel.call(ctx, s.request(id, timeout, body), (*secureChannel).sendMessage)
	if err != nil {
		return nil, err
	}
	if a.typeID != response {
		return nil, fmt.Errorf("the answer has type %d, not %d", a.typeID, response)
	}
	return &reader{data: a.body}, nil
}

func (s *Session) signIn(ctx context.Context) error {
	nonce := newNonce()
	var cert []byte
	if s.channel.sec.policy != PolicyNone {
		cert = s.o.Identity.Cert
	}
	r, err := s.call(ctx, idCreateRequest, idCreateResponse, func(w *writer) {
		w.string(s.o.Identity.URI)
		w.string("urn:edgebus:mapper-opcua")
		w.byte(2)
		w.string("Edgebus mapper")
		w.uint32(1) // a client
		w.string("")
		w.string("")
		w.uint32(0)
		w.string("")
		w.string(s.o.URL)
		w.string(s.o.Name)
		w.bytes(nonce)
		w.bytes(cert)
		w.double(float64(s.o.SessionTimeout / time.Millisecond))
		w.uint32(maxMessage)
	})
	if err != nil {
		return fmt.Errorf("create a session: %w", err)
	}
	r.nodeID()
	token := r.nodeID()
	r.double()
	serverNonce, serverCert := r.bytes(), r.bytes()
	readList(r, 20, r.endpoint)
	readList(r, 8, func() struct{} { r.bytes(); r.bytes(); return struct{}{} })
	r.bytes()
	signature := r.bytes()
	if r.err != nil {
		return fmt.Errorf("the answer to CreateSession: %w", r.err)
	}
	sec := s.channel.sec
	if sec.policy != PolicyNone {
		if !bytes.Equal(serverCert, sec.server) {
			return errors.New("the session's server has another certificate than the channel's")
		}
		if err := sec.policy.verifyRSA(sec.key, slices.Concat(cert, nonce), signature); err != nil {
			return fmt.Errorf("the server doesn't have its certificate's key: %w", err)
		}
	}
	s.token = token
	return s.activate(ctx, serverNonce)
}

// activate proves who this client is, and signs its user in.
func (s *Session) activate(ctx context.Context, serverNonce []byte) error {
	sec := s.channel.sec
	var signature []byte
	if sec.policy != PolicyNone {
		var err error
		if signature, err = sec.policy.signRSA(sec.identity.Key, slices.Concat(sec.server, serverNonce)); err != nil {
			return err
		}
	}
	token, err := s.userToken(serverNonce)
	if err != nil {
		return err
	}
	_, err = s.call(ctx, idActivateRequest, idActivateResponse, func(w *writer) {
		w.string(sec.policy.signatureURI())
		w.bytes(signature)
		w.uint32(0)
		w.uint32(0)
		token(w)
		w.string("")
		w.bytes(nil)
	})
	if err != nil {
		return fmt.Errorf("sign in as %s: %w", cmp.Or(s.o.User, "anonymous"), err)
	}
	return nil
}

// userToken is who signs in. A password is never sent where others could read it.
func (s *Session) userToken(serverNonce []byte) (func(*writer), error) {
	kind := uint32(0)
	if s.o.User != "" {
		kind = 1
	}
	i := slices.IndexFunc(s.Endpoint.tokens, func(t userToken) bool { return t.kind == kind })
	if i < 0 {
		return nil, fmt.Errorf("the server doesn't let %s sign in", map[uint32]string{0: "anonymous clients", 1: "users with passwords"}[kind])
	}
	t := s.Endpoint.tokens[i]
	if kind == 0 {
		return func(w *writer) { w.extension(idAnonymousToken, func(w *writer) { w.string(t.id) }) }, nil
	}
	policy := s.channel.sec.policy
	if t.policy != "" {
		policy = Policy(strings.TrimPrefix(t.policy, policyPrefix))
	}
	secret, algorithm := []byte(s.o.Password), ""
	switch {
	case slices.Index(Policies, policy) < 0:
		return nil, fmt.Errorf("the server asks for the password with the security policy %.100q, which is not known or not safe", string(policy))
	case policy != PolicyNone:
		key, err := certificateKey(s.Endpoint.Cert)
		if err != nil {
			return nil, err
		}
		var plain writer
		plain.uint32(uint32(len(secret) + len(serverNonce)))
		plain.data = slices.Concat(plain.data, secret, serverNonce)
		if secret, err = policy.encryptRSA(key, plain.data); err != nil {
			return nil, err
		}
		algorithm = uriOAEP
		if policy == PolicyAes256Sha256RsaPss {
			algorithm = uriOAEP256
		}
	case s.channel.sec.mode != ModeEncrypt:
		return nil, errors.New("the server takes the password as plain text only, which is not sent over a connection without encryption")
	}
	return func(w *writer) {
		w.extension(idUserNameToken, func(w *writer) {
			w.string(t.id)
			w.string(s.o.User)
			w.bytes(secret)
			w.string(algorithm)
		})
	}, nil
}

// Close ends the session.
func (s *Session) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = s.call(ctx, idCloseRequest, idCloseResponse, func(w *writer) { w.bool(true) })
	s.channel.close()
	return nil
}

// Done is closed when the connection has ended, and Err says why.
func (s *Session) Done() <-chan struct{} { return s.channel.closed }

// Err is why the connection has ended.
func (s *Session) Err() error { return s.channel.reason(nil) }
