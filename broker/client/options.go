// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/topics/backoff"
)

// Backoff is the wait between attempts to connect, which is spread: a thousand clients don't connect at the same moment.
type Backoff = backoff.Backoff

// Counters are the state of a client's queues.
type Counters struct {
	Pending atomic.Int64 // publishes without an outcome
	Waiting atomic.Int64 // messages and other events that wait for their callback
	Dropped atomic.Int64 // incoming QoS 0 messages that were dropped, since the start
}

// Options configure a Client. The zero value of everything but Servers and ClientID is usable.
type Options struct {
	// Servers are tried in turn, the one that was connected last first, and with a longer wait after each round: mqtt://host[:1883], mqtts://host[:8883], ws://host[:80]/path, wss://host[:443]/path,
	// unix:///path of a socket.
	// A user name and password may stand in the URL.
	Servers  []string
	ClientID string
	User     string
	Password string
	Secret   func() (string, error) // the password instead, asked for at each connect
	TLS      *tls.Config            // for mqtts and wss
	Roots    func() *x509.CertPool  // the authorities to trust instead of those in TLS, asked for at each connect; nil: those

	KeepAlive      time.Duration // default 30 s; the broker may set another
	CleanStart     bool          // forget the broker's session at every connect
	SessionExpiry  time.Duration // how long the broker keeps the session after a disconnect
	Will           *Message
	Properties     func() []UserProperty // of each CONNECT; nil: none
	ReceiveMaximum uint16                // incoming QoS 1 and 2 messages waiting for OnMessage; default 256
	MaxPending     int                   // publishes without an outcome; default 4096

	Counters *Counters // clients may share them; default: the client's own

	// Subscriptions are made at every connect, before OnConnect. A Publish may be sent before them: to receive what
	// follows from it, wait for OnConnect.
	Subscriptions []Subscription

	// The callbacks are called one after the other from one goroutine, never concurrently: OnConnect, the messages in
	// the order of their arrival, OnDisconnect. They may call every method of the client. A QoS 1 message is
	// acknowledged when OnMessage has returned.
	//
	// OnConnect's ctx ends with the connection. When it returns an error, the client disconnects and tries again.
	// OnConnectError is called instead of the others for each attempt that made no connection.
	OnConnect      func(ctx context.Context, sessionPresent bool) error
	OnDisconnect   func(err error)
	OnConnectError func(err error)
	OnMessage      func(Message)

	Backoff        Backoff       // default 500 ms to 30 s
	Attempts       int           // consecutive failures after which Run gives up; 0 never
	ConnectTimeout time.Duration // from dialling to CONNACK; default 10 s

	Log  zerolog.Logger
	Dial func(ctx context.Context, network, address string) (net.Conn, error) // default net.Dialer
}

func (o Options) withDefaults() (Options, error) {
	o.KeepAlive = cmp.Or(o.KeepAlive, 30*time.Second)
	o.ReceiveMaximum = cmp.Or(o.ReceiveMaximum, 256)
	o.MaxPending = cmp.Or(o.MaxPending, 4096)
	o.Backoff.Min = cmp.Or(o.Backoff.Min, 500*time.Millisecond)
	o.Backoff.Max = cmp.Or(o.Backoff.Max, max(30*time.Second, o.Backoff.Min))
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 10*time.Second)
	o.Counters = cmp.Or(o.Counters, new(Counters))
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	if o.OnMessage == nil {
		o.OnMessage = func(Message) {}
	}
	return o, o.validate()
}

func (o Options) validate() error {
	if len(o.Servers) == 0 {
		return errors.New("mqtt: no server: give at least one URL such as mqtt://127.0.0.1:1883")
	}
	switch {
	case !validText(o.ClientID):
		return fmt.Errorf("mqtt: client id %q is not valid UTF-8", o.ClientID)
	case o.ClientID == "" && !o.CleanStart:
		return errors.New("mqtt: a session needs a client id: set ClientID or CleanStart")
	case o.Backoff.Max < o.Backoff.Min:
		return fmt.Errorf("mqtt: backoff max %s is less than min %s", o.Backoff.Max, o.Backoff.Min)
	case o.KeepAlive < time.Second || o.KeepAlive > 65535*time.Second:
		return fmt.Errorf("mqtt: keep alive %s: must be 1s to 18h12m15s", o.KeepAlive)
	case o.Attempts < 0 || o.MaxPending < 1:
		return errors.New("mqtt: attempts and the maximum of pending publishes must not be negative")
	}
	if o.Will != nil {
		if err := o.Will.check(); err != nil {
			return fmt.Errorf("will: %w", err)
		}
	}
	for _, s := range o.Subscriptions {
		if err := s.check(); err != nil {
			return err
		}
	}
	return nil
}

func (s Subscription) check() error {
	switch {
	case s.Filter == "" || !validText(s.Filter):
		return fmt.Errorf("mqtt: %q is no topic filter", s.Filter)
	case s.QoS > 2 || s.RetainHandling > 2:
		return fmt.Errorf("mqtt: subscribe to %s: QoS and retain handling are 0, 1 or 2", s.Filter)
	}
	return nil
}

// server is a parsed server URL.
type server struct {
	url     *url.URL
	network string // tcp or unix
	address string // host:port, or a socket's path
	tls, ws bool
}

// String leaves the password out: it ends up in logs and errors.
func (s server) String() string { return s.url.Redacted() }

func parseServer(raw string) (server, error) {
	u, err := url.Parse(raw)
	if err == nil && u.Scheme == "unix" && u.Host == "" && strings.HasPrefix(u.Path, "/") {
		return server{url: u, network: "unix", address: u.Path}, nil
	}
	if err != nil || u.Host == "" || u.Hostname() == "" {
		return server{}, fmt.Errorf("mqtt: %q is no server URL: write it like mqtt://host:1883", redactURL(raw))
	}
	s := server{url: u, network: "tcp"}
	port := ""
	switch strings.ToLower(u.Scheme) {
	case "mqtt", "tcp":
		port = "1883"
	case "mqtts", "ssl", "tls":
		port, s.tls = "8883", true
	case "ws":
		port, s.ws = "80", true
	case "wss":
		port, s.ws, s.tls = "443", true, true
	default:
		return server{}, fmt.Errorf("mqtt: %q: scheme %q is unknown: use mqtt, mqtts, ws, wss or unix", redactURL(raw), u.Scheme)
	}
	if p := u.Port(); p != "" {
		port = p
	}
	s.address = net.JoinHostPort(u.Hostname(), port)
	return s, nil
}

// redactURL cuts what may be a password out of a URL that could not be parsed.
func redactURL(raw string) string {
	if i := strings.LastIndexByte(raw, '@'); i >= 0 {
		return "…@" + raw[i+1:]
	}
	return raw
}
