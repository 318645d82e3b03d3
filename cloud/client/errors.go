package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// status is how the API says that something went wrong.
type status struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Reason  string `json:"reason"`
	Code    int    `json:"code"`
	Details struct {
		Causes []resource.Cause `json:"causes"`
	} `json:"details"`
}

// kind is the inverse of what the API makes of an error's kind.
func (s status) kind() resource.ErrorKind {
	switch s.Reason {
	case "AlreadyExists":
		return resource.AlreadyExists
	case "Expired":
		return resource.Gone
	}
	switch s.Code {
	case http.StatusNotFound:
		return resource.NotFound
	case http.StatusConflict:
		return resource.Conflict
	case http.StatusUnauthorized:
		return resource.Unauthorized
	case http.StatusForbidden:
		return resource.Forbidden
	case http.StatusRequestEntityTooLarge:
		return resource.TooLarge
	case http.StatusTooManyRequests:
		return resource.Quota
	case http.StatusGone:
		return resource.Gone
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusBadGateway:
		return resource.Unavailable
	}
	if s.Code/100 == 4 {
		return resource.Invalid
	}
	return resource.Internal
}

func (s status) err() error {
	text := s.Message
	if s.Code == http.StatusUnauthorized {
		text += " (--cert and --key, or --user and --password-file)"
	}
	return &resource.Error{Kind: s.kind(), Message: text, Causes: s.Details.Causes}
}

// refused is what an answer other than success means.
func (c *Client) refused(code int, body []byte) error {
	var s status
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
	s = status{Code: code, Message: fmt.Sprintf("%s answers %d %s: %.200q", c.Server, code, http.StatusText(code), text)}
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
	return &Unreachable{c.Server, "what answers there is something else", "A hub's HTTP API is on port 8080 if its configuration (http.listen) doesn't say otherwise"}
}

// unanswered says what a server that takes the connection was asked, and for how long.
func (c *Client) unanswered(r call, what string, since time.Time) error {
	why := fmt.Sprintf("it takes the connection, and has not %s %s %s in %s", what, r.method, r.path, time.Since(since).Round(100*time.Millisecond))
	return &Unreachable{c.Server, why, "Does it hang, or is something else there? --timeout says how long to wait"}
}

// over is why a context that has ended gets no answer: that says nothing of the hub.
func (c *Client) over(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return &Unreachable{c.Server, "time was up (--timeout)", ""}
}

// timedOut is whether an answer took too long.
func timedOut(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

// unreachable says in plain words why there is no answer, and what to do. Being told to stop is
// not such a reason.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil && (c.answered.Load() || errors.Is(ctx.Err(), context.Canceled)) {
		return c.over(ctx)
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // the address is said anyway
	}
	why, advice := explain(err)
	if strings.HasPrefix(c.Server, "https:") && (why == hungUp || why == err.Error()) {
		advice = signed // what it said about it may be lost with the connection
	}
	return &Unreachable{c.Server, why, advice}
}

const (
	hungUp = "it hangs up"
	signed = "It takes certificates that its http.tls.clientCA has signed (--cert, --key), and users' passwords (--user, --password-file)"
)

func explain(err error) (why, advice string) {
	var (
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
		invalid  x509.CertificateInvalidError
		record   tls.RecordHeaderError
		alert    tls.AlertError
		dns      *net.DNSError
	)
	text := err.Error()
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there", "Is cloudhub running, and is this its HTTP address (http.listen, http.tls.listen)?"
	case errors.As(err, &dns):
		return fmt.Sprintf("the name %s can't be found (%s)", dns.Name, dns.Err), "Is it spelt right?"
	case errors.As(err, &unknown):
		return "its certificate is signed by nobody who is trusted here", "Give the authority's certificate with --ca"
	case errors.As(err, &hostname):
		return "its certificate is for another name: " + hostname.Error(), ""
	case errors.As(err, &invalid):
		return "its certificate is not valid: " + invalid.Error(), ""
	case errors.As(err, &record), strings.Contains(text, "HTTP response to HTTPS client"):
		return "it doesn't speak TLS", "Should the address begin with http://?"
	case errors.As(err, &alert), strings.Contains(text, "remote error: tls:"):
		return "it doesn't take our certificate (" + text + ")", signed
	case strings.Contains(text, "malformed HTTP"):
		return "it speaks something else than HTTP", "Is this the port of MQTT?"
	case strings.Contains(text, "closed idle connection"), strings.Contains(text, "connection broken"),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return hungUp, "Is it stopping, or is this the port of MQTT?"
	case timedOut(err):
		return "time is up", "Is the address right, and does a firewall let it through?"
	}
	return text, ""
}
