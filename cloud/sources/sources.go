// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/publicsuffix"

	"github.com/edgebus/edgebus/topics/resource"
)

// Options are what a Client is made from.
type Options struct {
	// Allow are networks that may be reached although they are the hub's own, link-local or a cloud's metadata server.
	Allow []netip.Prefix
	// AllowSetting is where Allow is set; "": sources.allow.
	AllowSetting string
	// OwnAddresses are those of the hub's host; nil: net.InterfaceAddrs.
	OwnAddresses func() ([]net.Addr, error)
	// Timeout bounds a call; 0: a minute.
	Timeout time.Duration
	// MaxBytes bounds what is read in a call, and the files that it returns; 0: 64 MiB. MaxFiles bounds the files; 0: 10,000. All
	// objects of a git commit may have four times as many bytes when they are inflated, and be ten times as many; all layers of an
	// artifact may have MaxBytes as they are sent, and four times as many when they are inflated.
	MaxBytes int64
	MaxFiles int
	// Dir is a directory for commits and artifacts while they are read; what an earlier Client has left there is removed.
	// Empty: the system's directory for temporary files, and a commit is removed as soon as nobody reads it.
	Dir string
}

// Client reads sources.
type Client struct {
	o     Options
	packs *packCache
	// unpacking is full while a commit or an artifact is unpacked. Whatever is read is written to disk first, by as many at a time as
	// there are, and then one at a time is unpacked, of which one file is in memory: so what is in memory doesn't grow with how many
	// sources are read, and a server that is slow holds up nobody.
	unpacking chan struct{}
}

// unpack waits until nothing else is unpacked.
func (c *Client) unpack(ctx context.Context, what string) (release func(), err error) {
	select {
	case c.unpacking <- struct{}{}:
		return func() { <-c.unpacking }, nil
	case <-ctx.Done():
		return nil, explainError(ctx, ctx.Err(), what)
	}
}

// New makes a client.
func New(o Options) *Client {
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	o.AllowSetting = cmp.Or(o.AllowSetting, "sources.allow")
	o.MaxBytes = cmp.Or(o.MaxBytes, 64<<20)
	o.MaxFiles = cmp.Or(o.MaxFiles, 10_000)
	if o.OwnAddresses == nil {
		o.OwnAddresses = net.InterfaceAddrs
	}
	return &Client{o: o, packs: newPackCache(o.Dir), unpacking: make(chan struct{}, 1)}
}

// RepositoryAccess is a Repository with the values of its Secret.
type RepositoryAccess struct {
	Spec resource.RepositorySpec
	// Secret has username and password, or token; ssh-privatekey with ssh-passphrase and known_hosts; tls.crt and tls.key; ca.crt.
	Secret map[string][]byte
}

// File is a file of a source.
type File struct {
	// Path is relative to the path that was asked for; "." if that is the file.
	Path    string
	Mode    uint32 // permissions
	Content []byte
}

// Reason is why a source can't be read.
type Reason string

// The reasons.
const (
	NotAllowed   Reason = "AddressNotAllowed"
	Unauthorized Reason = "Unauthorized"
	NotFound     Reason = "NotFound"
	Untrusted    Reason = "CertificateNotTrusted"
	TooLarge     Reason = "TooLarge"
	TimedOut     Reason = "TimedOut"
	Invalid      Reason = "Invalid"
	Unavailable  Reason = "Unavailable"
)

// Error is why a source can't be read. Its text has no credentials.
type Error struct {
	Reason Reason `json:"reason"`
	Text   string `json:"message"`
}

func (e *Error) Error() string { return e.Text }

// Cause is the reason, for conditions.
func (e *Error) Cause() string { return string(e.Reason) }

func errorf(r Reason, format string, args ...any) error {
	return &Error{r, fmt.Sprintf(format, args...)}
}

// explainError gives an error of a library its reason. A connection that is closed since the time is over has errors of any kind.
func explainError(ctx context.Context, err error, what string) error {
	var known *Error
	var untrusted *tls.CertificateVerificationError
	var timeout net.Error
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return errorf(known.Reason, "%s: %s", what, known.Text)
	case errors.As(err, &untrusted):
		return errorf(Untrusted, "%s: %v", what, untrusted.Err)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return errorf(TimedOut, "%s: no answer in time", what)
	}
	var inURL *url.Error
	if errors.As(err, &inURL) {
		err = inURL.Err // without the address, which may have more in it than what names it
	}
	return errorf(Unavailable, "%s: %v", what, err)
}

// Accessible says why a repository can't be reached with its credentials.
func (c *Client) Accessible(ctx context.Context, r RepositoryAccess) error {
	switch r.Spec.Type {
	case "http":
		return c.Get(ctx, r, r.Spec.ValidationSuffix, func(body io.Reader) error {
			_, err := io.Copy(io.Discard, body)
			return err
		})
	case "oci":
		return c.pingRegistry(ctx, r)
	}
	_, err := c.gitRefs(ctx, r)
	return err
}

// Get has use read a body: of the repository's address with a suffix.
func (c *Client) Get(ctx context.Context, r RepositoryAccess, suffix string, use func(body io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	what, err := sourceAddress(r, suffix)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, what, http.NoBody)
	if err != nil {
		return errorf(Invalid, "%s is no address", what)
	}
	hc, err := c.http(r)
	if err != nil {
		return explainError(ctx, err, what)
	}
	if token := r.Secret["token"]; len(token) > 0 {
		req.Header.Set("Authorization", "Bearer "+string(token))
	} else if user := r.Secret["username"]; len(user) > 0 {
		req.SetBasicAuth(string(user), string(r.Secret["password"]))
	}
	res, err := hc.Do(req)
	if err != nil {
		return explainError(ctx, err, what)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errorf(statusReason(res.StatusCode), "%s: the server answers %s", what, res.Status)
	}
	return explainError(ctx, use(res.Body), what)
}

// sourceAddress is a repository's address with a suffix. It is on the repository's own host and below its path, whatever the suffix.
func sourceAddress(r RepositoryAccess, suffix string) (string, error) {
	base, err := url.Parse(r.Spec.URL)
	if err != nil || base.Scheme != "https" && base.Scheme != "http" || base.Host == "" {
		return "", errorf(Invalid, "%s is no address of an HTTP server", redactURL(r.Spec.URL))
	}
	if suffix == "" {
		return base.String(), nil
	}
	if resource.HasDotSegments(suffix) {
		return "", errorf(Invalid, "the suffix %.200q must have no part '.' or '..': what is read is below the Repository's address", suffix)
	}
	address := strings.TrimSuffix(base.String(), "/") + suffix
	if u, err := url.Parse(address); err != nil || u.Host != base.Host || u.User.String() != base.User.String() || suffix[0] != '/' && suffix[0] != '?' {
		return "", errorf(Invalid, "the suffix %.200q must begin with '/' or '?', and be part of an address", suffix)
	}
	return address, nil
}

func statusReason(code int) Reason {
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden:
		return Unauthorized
	case http.StatusNotFound, http.StatusGone:
		return NotFound
	}
	return Unavailable
}

// http is a client for one repository: with its certificates, and within the bounds.
func (c *Client) http(r RepositoryAccess) (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: r.Spec.InsecureSkipVerify} //nolint:gosec // the user asks for it by that name
	if pem := r.Secret["ca.crt"]; len(pem) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errorf(Invalid, "ca.crt of its Secret has no certificate in PEM")
		}
	}
	if pem := r.Secret["tls.crt"]; len(pem) > 0 {
		cert, err := tls.X509KeyPair(pem, r.Secret["tls.key"])
		if err != nil {
			return nil, errorf(Invalid, "tls.crt and tls.key of its Secret are no pair: %v", err)
		}
		config.Certificates = []tls.Certificate{cert}
	}
	return &http.Client{Transport: limitedTransport{c.ownHost(r, config), c.o.MaxBytes}}, nil
}

// hostBoundTransport sends credentials to the repository's own host only: wherever a redirect, or a registry's challenge, leads, there is no
// header and no certificate that identifies the hub.
type hostBoundTransport struct {
	scheme, host string
	domain       string // of a registry's token service, which may be on another host of it; empty: there is none
	encrypted    bool   // nothing is asked without TLS: the library would try that at addresses of private networks
	own, other   http.RoundTripper
}

func (c *Client) ownHost(r RepositoryAccess, config *tls.Config) http.RoundTripper {
	bare := config.Clone()
	bare.Certificates = nil
	transport := func(config *tls.Config) http.RoundTripper {
		return &http.Transport{
			DialContext: c.dialer().DialContext, TLSClientConfig: config, TLSHandshakeTimeout: c.connectTimeout(),
			DisableKeepAlives: true, ResponseHeaderTimeout: c.o.Timeout, ForceAttemptHTTP2: true,
		}
	}
	if r.Spec.URL == "" {
		return transport(config) // an image without a Repository: there is nothing to keep from others
	}
	o := hostBoundTransport{own: transport(config), other: transport(bare)}
	u, err := url.Parse(r.Spec.URL)
	if err != nil {
		return o // it is no address of an HTTP server, and nothing is its own
	}
	o.scheme, o.host = u.Scheme, strings.ToLower(u.Host)
	if r.Spec.Type == "oci" {
		o.domain = registeredDomain(u.Hostname())
		if o.scheme == "oci" {
			o.scheme = "https"
		}
		o.encrypted = o.scheme == "https"
	}
	return o
}

// registeredDomain is the domain that somebody has registered, with which a host name ends; empty for addresses.
func registeredDomain(host string) string {
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	domain, err := publicsuffix.EffectiveTLDPlusOne(strings.ToLower(host))
	if err != nil {
		return ""
	}
	return domain
}

func (o hostBoundTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if o.encrypted && r.URL.Scheme != "https" {
		return nil, errors.New("nothing is asked over plain HTTP: the URL of the Repository has to begin with http:// for that")
	}
	if o.is(r.URL.Scheme, r.URL.Host) || o.domain != "" && r.URL.Scheme == "https" && registeredDomain(r.URL.Hostname()) == o.domain {
		return o.own.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	r.Header.Del("Authorization")
	r.Header.Del("Cookie")
	return o.other.RoundTrip(r)
}

// is says whether an address is the repository's own host.
func (o hostBoundTransport) is(scheme, host string) bool {
	return scheme == o.scheme && hostWithPort(scheme, strings.ToLower(host)) == hostWithPort(o.scheme, o.host)
}

func hostWithPort(scheme, host string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), map[string]string{"https": "443", "http": "80"}[scheme])
}

// connectTimeout bounds how long a connection may take to be made.
func (c *Client) connectTimeout() time.Duration { return min(c.o.Timeout, 10*time.Second) }

// dialer connects to allowed addresses only. It looks at the address that a name was resolved to, not at the name.
func (c *Client) dialer() *net.Dialer {
	return &net.Dialer{Timeout: c.connectTimeout(), Control: c.CheckDial}
}

// CheckDial is net.Dialer's Control of a connection to an allowed address.
func (c *Client) CheckDial(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	return c.allowed(at.Addr())
}

// allowed judges an address, and the one of IPv4 that a gateway sends it on to.
func (c *Client) allowed(a netip.Addr) error {
	a = a.Unmap().WithZone("")
	for _, p := range c.o.Allow {
		if p.Contains(a) {
			return nil
		}
	}
	for prefix, at := range embeddingPrefixes {
		if raw := a.As16(); prefix.Contains(a) {
			if err := c.allowed(netip.AddrFrom4([4]byte(raw[at : at+4]))); err != nil {
				return err
			}
		}
	}
	own, err := c.o.OwnAddresses()
	if err != nil {
		return errorf(Unavailable, "the hub's own addresses can't be found out: %v", err)
	}
	isOwn := slices.ContainsFunc(own, func(of net.Addr) bool {
		p, err := netip.ParsePrefix(of.String())
		return err == nil && p.Addr().Unmap().WithZone("") == a
	})
	if isOwn || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified() || a.IsMulticast() || slices.Contains(metadataServers, a) {
		return errorf(NotAllowed, "the address %s is the hub's own, link-local or its cloud's metadata server: %s has to list it", a, c.o.AllowSetting)
	}
	return nil
}

// metadataServers are the addresses of clouds' metadata servers that are not link-local.
var metadataServers = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),   // AWS
	netip.MustParseAddr("fd20:ce::254"),    // Google Cloud
	netip.MustParseAddr("100.100.100.200"), // Alibaba Cloud
	netip.MustParseAddr("168.63.129.16"),   // Azure
}

// embeddingPrefixes are the networks of IPv6 by which addresses of IPv4 are reached, and at which byte those stand.
var embeddingPrefixes = map[netip.Prefix]int{
	netip.MustParsePrefix("64:ff9b::/96"):   12, // NAT64
	netip.MustParsePrefix("64:ff9b:1::/48"): 12, // NAT64 of a network's own
	netip.MustParsePrefix("2002::/16"):      2,  // 6to4
	netip.MustParsePrefix("::/96"):          12, // IPv4-compatible
}

// limitedTransport ends answers that are too long.
type limitedTransport struct {
	http.RoundTripper
	most int64
}

func (b limitedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		res.Body = &limitedBody{res.Body, b.most, b.most}
	}
	return res, err
}

type limitedBody struct {
	io.ReadCloser
	left, most int64
}

func (l *limitedBody) Read(p []byte) (int, error) {
	if l.left < 0 {
		return 0, errorf(TooLarge, "the answer has more than %d bytes", l.most)
	}
	n, err := l.ReadCloser.Read(p[:min(int64(len(p)), l.left+1)])
	if l.left -= int64(n); l.left < 0 {
		return n, errorf(TooLarge, "the answer has more than %d bytes", l.most)
	}
	return n, err
}

// redactURL is an address without what stands before @.
func redactURL(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		u.User = nil
		return u.String()
	}
	_, rest, _ := strings.Cut(address, "@")
	return cmp.Or(rest, address)
}
