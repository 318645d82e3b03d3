// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/topics/backoff"
)

// Owner is who owns the log, as far as this hub has read; without a name: nobody.
type Owner struct{ Name, Address string }

// Options are what Hubs are made from.
type Options struct {
	Listen string      // host:port
	Name   string      // of this hub
	TLS    *tls.Config // of both ends: each has to show that it is a hub of the cluster
	// Owner says who owns the log, and has its channel closed when that changes.
	Owner func() (Owner, <-chan struct{})
	Log   zerolog.Logger
}

// Errors of Dial.
var (
	ErrSelf    = errors.New("this hub owns the log")
	ErrNoOwner = errors.New("no hub owns the log")
	ErrUnknown = errors.New("there is no connection to that hub")
	ErrRefused = errors.New("the other hub doesn't do that now")
)

// Hubs are the other hubs of a cluster, as far as there are connections.
type Hubs struct {
	o        Options
	listener net.Listener
	ctx      context.Context //nolint:containedctx // of the connections, which end with Run or Close
	cancel   context.CancelFunc

	refusals zerolog.Logger // of connections of strangers, who may be many

	mu       sync.Mutex
	unproven []net.Conn // accepted, and not shown to be a hub's, the oldest first
	handlers map[string]func(Stream)
	sessions map[string][]connection // by hub, the newest last
	dialing  chan struct{}           // has one in it while somebody dials
	failed   error                   // why the last dialing failed, for a moment
	until    time.Time
}

// connection is one to another hub.
type connection struct {
	*yamux.Session
	dialed bool // by this hub
}

// Stream is a stream of another hub.
type Stream struct {
	net.Conn
	Hub string // the other's name
}

// Gone reports whether the connection to the other hub has ended, and the stream with it.
func (s Stream) Gone() bool {
	m, ok := s.Conn.(*muxStream)
	return ok && m.Session().IsClosed()
}

// muxStream is a stream of a connection. Errors of its deadlines are those of a socket's, and it gives up the memory that a burst took.
type muxStream struct {
	*yamux.Stream
	burst int // bytes that were read since there were none
}

// burstBytes are the most that a stream without anything to be read keeps a buffer for. Without a bound it would be the whole window, for each stream.
const burstBytes = 8 << 10

func (s *muxStream) Read(b []byte) (int, error) {
	n, err := s.Stream.Read(b)
	if s.burst += n; n < len(b) { // that was all
		if s.burst > burstBytes {
			s.Shrink()
		}
		s.burst = 0
	}
	return n, socketError(err)
}

func (s *muxStream) Write(b []byte) (int, error) {
	n, err := s.Stream.Write(b)
	return n, socketError(err)
}

func socketError(err error) error {
	if errors.Is(err, yamux.ErrTimeout) {
		return os.ErrDeadlineExceeded
	}
	return err
}

const (
	handshakeTime = 5 * time.Second
	writeTime     = 5 * time.Second // after which a hub that takes nothing is gone
	retryTime     = 250 * time.Millisecond
	maxShort      = 255  // bytes of a hub's name, or of what a stream is for
	openStreams   = 1024 // that wait to be taken
	mostUnproven  = 64   // connections that have not shown that they are a hub's
)

const (
	answerYes = 'y'
	answerNo  = 'n'
)

// Listen binds the address at which other hubs reach this one.
func Listen(o Options) (*Hubs, error) {
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("store.peer.listen: %w", err)
	}
	h := &Hubs{o: o, listener: daemon.ReserveDescriptors(l, daemon.HTTPReserve), handlers: map[string]func(Stream){}, sessions: map[string][]connection{}, dialing: make(chan struct{}, 1)}
	h.refusals = o.Log.Sample(&zerolog.BurstSampler{Burst: 20, Period: 10 * time.Second})
	h.ctx, h.cancel = context.WithCancel(context.Background())
	o.Log.Info().Stringer("address", l.Addr()).Msg("listening for other hubs")
	return h, nil
}

// Addr is where other hubs reach this one.
func (h *Hubs) Addr() net.Addr { return h.listener.Addr() }

// Address is where others reach this hub: advertise, or the host's name and the port at which it listens, if that is one for all interfaces.
func (h *Hubs) Address(advertise string) (string, error) {
	host, port, _ := net.SplitHostPort(h.listener.Addr().String()) // a listener's address
	if advertise != "" {
		if _, _, err := net.SplitHostPort(advertise); err == nil {
			return advertise, nil
		}
		return net.JoinHostPort(strings.Trim(advertise, "[]"), port), nil
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		name, err := os.Hostname()
		if err != nil || name == "" || name == "localhost" {
			return "", errors.New("store.peer.advertise: this host has no name by which others know it: say at which address the other hubs reach this one")
		}
		host = name
	}
	return net.JoinHostPort(host, port), nil
}

// Close ends all connections. When it returns nothing more is sent over them.
func (h *Hubs) Close() error {
	h.cancel()
	h.mu.Lock()
	all := slices.Concat(slices.Collect(maps.Values(h.sessions))...)
	h.mu.Unlock()
	for _, s := range all {
		_ = s.Close()
	}
	if err := h.listener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Handle has streams for a purpose served from now on, each in a goroutine; nil: no more. The stream is closed when serve returns.
func (h *Hubs) Handle(purpose string, serve func(Stream)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.handlers[purpose] = serve; serve == nil {
		delete(h.handlers, purpose)
	}
}

// Connected are the names of the hubs to which there are connections.
func (h *Hubs) Connected() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.sessions))
}

// Run takes connections, and keeps one to the owner, until Close.
func (h *Hubs) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = h.Close() })()
	var g errgroup.Group
	g.Go(func() error { h.accept(); return nil })
	g.Go(func() error { h.keepOwner(); return nil })
	return g.Wait()
}

func (h *Hubs) accept() {
	for {
		conn, err := h.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // descriptors are short: connections are accepted again when they aren't
			if backoff.Sleep(h.ctx, retryTime) {
				continue
			}
			return
		}
		h.expect(conn)
		go func() {
			secure := tls.Server(conn, h.o.TLS)
			hub, err := h.greet(secure)
			h.proven(conn)
			if err != nil {
				h.refusals.Info().Err(err).Stringer("remote", conn.RemoteAddr()).Msg("a connection to the port for hubs was refused")
				return
			}
			session, err := yamux.Server(secure, h.muxConfig())
			if err == nil {
				one := connection{Session: session}
				h.add(hub, one)
				h.serve(hub, one)
			}
		}()
	}
}

// expect notes a connection whose other end is not known yet. If there are too many the oldest ends: a hub needs milliseconds, and strangers can't keep it out by waiting.
func (h *Hubs) expect(conn net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unproven = append(h.unproven, conn); len(h.unproven) > mostUnproven {
		_ = h.unproven[0].Close()
		h.unproven = slices.Delete(h.unproven, 0, 1)
	}
}

// proven forgets a connection whose handshake is over.
func (h *Hubs) proven(conn net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at := slices.Index(h.unproven, conn); at >= 0 {
		h.unproven = slices.Delete(h.unproven, at, at+1)
	}
}

// greet does the handshake of a connection, in which both ends say their names. It closes the connection if that fails.
func (h *Hubs) greet(c *tls.Conn) (hub string, err error) {
	ctx, stop := context.WithTimeout(h.ctx, handshakeTime)
	defer stop()
	if err = c.HandshakeContext(ctx); err == nil {
		_ = c.SetDeadline(time.Now().Add(handshakeTime))
		err = writeShort(c, h.o.Name)
	}
	if err == nil {
		hub, err = readShort(c)
	}
	if err != nil {
		_ = c.Close()
		return "", err
	}
	return hub, c.SetDeadline(time.Time{})
}

// writeShort writes a name of at most maxShort bytes.
func writeShort(to io.Writer, text string) error {
	if len(text) > maxShort {
		return fmt.Errorf("%.20q… is longer than %d bytes", text, maxShort)
	}
	_, err := to.Write(append([]byte{byte(len(text))}, text...))
	return err
}

func readShort(from io.Reader) (string, error) {
	var b [1 + maxShort]byte
	if _, err := io.ReadFull(from, b[:1]); err != nil {
		return "", err
	}
	text := b[1 : 1+int(b[0])]
	_, err := io.ReadFull(from, text)
	return string(text), err
}

func (h *Hubs) muxConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	c.AcceptBacklog, c.KeepAliveInterval, c.ConnectionWriteTimeout, c.LogOutput = openStreams, writeTime, writeTime, io.Discard
	return c
}

func (h *Hubs) add(hub string, s connection) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sessions[hub] = append(h.sessions[hub], s)
}

// serve takes streams of a connection until it ends.
func (h *Hubs) serve(hub string, s connection) {
	stop := context.AfterFunc(h.ctx, func() { _ = s.Close() })
	defer func() {
		stop()
		_ = s.Close()
		h.mu.Lock()
		defer h.mu.Unlock()
		if left := slices.DeleteFunc(h.sessions[hub], func(x connection) bool { return x == s }); len(left) > 0 {
			h.sessions[hub] = left
		} else {
			delete(h.sessions, hub)
		}
	}()
	for {
		stream, err := s.AcceptStream()
		if err != nil {
			return
		}
		go h.take(Stream{&muxStream{Stream: stream}, hub})
	}
}

// take reads what a stream is for, and has it served.
func (h *Hubs) take(s Stream) {
	defer func() { _ = s.Close() }()
	_ = s.SetDeadline(time.Now().Add(handshakeTime))
	purpose, err := readShort(s)
	if err != nil {
		return
	}
	h.mu.Lock()
	serve := h.handlers[purpose]
	h.mu.Unlock()
	answer := byte(answerYes)
	if serve == nil {
		answer = answerNo
	}
	if _, err := s.Write([]byte{answer}); err != nil || serve == nil {
		return
	}
	_ = s.SetDeadline(time.Time{})
	serve(s)
}

// Dial opens a stream to the owner of the log. The error is ErrSelf at the owner, and ErrRefused if it doesn't serve the purpose, or not yet.
func (h *Hubs) Dial(ctx context.Context, purpose string) (net.Conn, error) {
	owner, _ := h.o.Owner()
	switch owner.Name {
	case "":
		return nil, ErrNoOwner
	case h.o.Name:
		return nil, ErrSelf
	}
	s, err := h.connect(ctx, owner)
	if err != nil {
		return nil, err
	}
	return open(ctx, s, owner.Name, purpose)
}

// DialHub opens a stream to a hub to which there is a connection, whichever of the two has made it.
func (h *Hubs) DialHub(ctx context.Context, hub, purpose string) (net.Conn, error) {
	s := h.session(hub)
	if s == nil {
		return nil, fmt.Errorf("%s: %w", hub, ErrUnknown)
	}
	return open(ctx, s, hub, purpose)
}

func open(ctx context.Context, s *yamux.Session, hub, purpose string) (net.Conn, error) {
	opened, err := s.OpenStream()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", hub, err)
	}
	stream := &muxStream{Stream: opened}
	stop := context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Unix(1, 0)) })
	_ = stream.SetDeadline(time.Now().Add(handshakeTime))
	err = writeShort(stream, purpose)
	var answer [1]byte
	if err == nil {
		_, err = io.ReadFull(stream, answer[:])
	}
	if err == nil && answer[0] != answerYes {
		err = ErrRefused
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = stream.Close()
		return nil, fmt.Errorf("%s: %s: %w", hub, purpose, err)
	}
	return stream, stream.SetDeadline(time.Time{})
}

func (h *Hubs) session(hub string) *yamux.Session {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range slices.Backward(h.sessions[hub]) {
		if !s.IsClosed() {
			return s.Session
		}
	}
	return nil
}

// connect returns the connection to a hub, and makes it if there is none.
func (h *Hubs) connect(ctx context.Context, to Owner) (*yamux.Session, error) {
	if s := h.session(to.Name); s != nil {
		return s, nil
	}
	select {
	case h.dialing <- struct{}{}:
		defer func() { <-h.dialing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s := h.session(to.Name); s != nil {
		return s, nil
	}
	if time.Now().Before(h.until) {
		return nil, h.failed
	}
	s, err := h.dial(to)
	if err != nil {
		h.failed, h.until = err, time.Now().Add(retryTime)
	}
	return s, err
}

// dial makes a connection, whoever waits for it: the next one needs it, too.
func (h *Hubs) dial(to Owner) (*yamux.Session, error) {
	ctx, stop := context.WithTimeout(h.ctx, handshakeTime)
	defer stop()
	secure, hub, err := h.reach(ctx, to.Address)
	if errors.As(err, new(unreachedError)) {
		return nil, fmt.Errorf("%s can't be reached at the address that it tells (store.peer.advertise): %w", to.Name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s at %s: %w", to.Name, to.Address, err)
	}
	if hub != to.Name {
		return nil, errors.Join(fmt.Errorf("%s is %s, and not %s: store.peer.advertise of one of them is wrong", to.Address, hub, to.Name), secure.Close())
	}
	session, err := yamux.Client(secure, h.muxConfig())
	if err != nil {
		return nil, errors.Join(err, secure.Close())
	}
	one := connection{session, true}
	h.add(to.Name, one)
	go h.serve(to.Name, one)
	return session, nil
}

// reach makes a connection to the hub at an address, which says its name.
func (h *Hubs) reach(ctx context.Context, address string) (*tls.Conn, string, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, "", unreachedError{err}
	}
	secure := tls.Client(conn, h.o.TLS)
	hub, err := h.greet(secure)
	return secure, hub, err
}

// DialAddress opens a stream to whichever hub is at an address, for who is to become one and has no log yet. Its connection ends with ctx.
func DialAddress(ctx context.Context, o Options, address, purpose string) (net.Conn, error) {
	h := &Hubs{o: o, sessions: map[string][]connection{}}
	h.ctx, h.cancel = context.WithCancel(ctx)
	dialing, stop := context.WithTimeout(h.ctx, handshakeTime)
	defer stop()
	secure, hub, err := h.reach(dialing, address)
	if err != nil {
		h.cancel()
		return nil, err
	}
	session, err := yamux.Client(secure, h.muxConfig())
	if err != nil {
		h.cancel()
		return nil, errors.Join(err, secure.Close())
	}
	go h.serve(hub, connection{session, true})
	return open(ctx, session, hub, purpose)
}

// keepOwner keeps a connection to the owner, and ends those to one that isn't it any more: it may be paused, and what waits for it would wait as long.
func (h *Hubs) keepOwner() {
	var former Owner
	said := ""
	for h.ctx.Err() == nil {
		owner, changed := h.o.Owner()
		if former.Name != "" && former != owner {
			h.disconnect(former.Name)
		}
		former = owner
		var ended <-chan struct{}
		var again <-chan time.Time
		if owner.Name != "" && owner.Name != h.o.Name {
			s, err := h.connect(h.ctx, owner)
			if err != nil {
				again = time.After(retryTime)
				if text := err.Error(); text != said {
					said = text
					h.o.Log.Warn().Err(err).Msg("the hub that serves can't be reached; trying again")
				}
			} else {
				ended, said = s.CloseChan(), ""
			}
		}
		select {
		case <-changed:
		case <-ended:
		case <-again:
		case <-h.ctx.Done():
		}
	}
}

func (h *Hubs) disconnect(hub string) {
	h.mu.Lock()
	all := slices.Clone(h.sessions[hub])
	h.mu.Unlock()
	for _, s := range all {
		if s.dialed {
			_ = s.Close()
		}
	}
}
