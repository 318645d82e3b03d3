// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/topics/limits"
)

const (
	bodyTimeout   = time.Minute      // for a request's body
	answerTimeout = time.Minute      // for a client to read an answer; a watch extends it with each event
	headerTimeout = 10 * time.Second // for a request's headers
	idleTimeout   = time.Minute
	closeTimeout  = 3 * time.Second
	maxHeader     = 64 << 10 // bytes of a request's first line and headers
)

// Server serves a handler on listeners, which Listen has bound.
type Server struct {
	handler   http.Handler
	log       zerolog.Logger
	limit     *connLimit
	listeners []net.Listener
}

// Options say where a server listens, and its bounds.
type Options struct {
	Listen    string // host:port; empty: it doesn't
	ListenTLS string // the same with TLS
	TLS       func() (*tls.Config, error)
	Limits    limits.Limits
}

// Listen binds the addresses. At most Limits.Requests connections are served at one time: at the limit a new
// one replaces the one that has been idle for longest, or waits.
func Listen(o Options, log zerolog.Logger, handler http.Handler) (*Server, error) {
	s := &Server{handler: WithDeadlines(handler), log: log, limit: newConnLimit(o.Limits)}
	if o.Listen != "" {
		if err := s.bind("http.listen", o.Listen, nil); err != nil {
			return nil, err
		}
	}
	if o.ListenTLS == "" {
		return s, nil
	}
	secure, err := o.TLS()
	if err == nil {
		secure.NextProtos = []string{"h2", "http/1.1"}
		err = s.bind("http.tls.listen", o.ListenTLS, secure)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) bind(key, address string, secure *tls.Config) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	l = &limitedListener{daemon.ReserveDescriptors(l, daemon.HTTPReserve), s.limit}
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	s.listeners = append(s.listeners, l)
	s.log.Info().Stringer("address", l.Addr()).Bool("tls", secure != nil).Msg("listening for HTTP")
	return nil
}

// Connections says how many connections are open, and how often one came at the limit.
func (s *Server) Connections() (open, full int64) { return s.limit.open.Load(), s.limit.full.Load() }

// Addrs are the addresses that the listeners are bound to.
func (s *Server) Addrs() (all []net.Addr) {
	for _, l := range s.listeners {
		all = append(all, l.Addr())
	}
	return all
}

// Close closes the listeners of a server that is never run.
func (s *Server) Close() error {
	var errs []error
	for _, l := range s.listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// Run serves until ctx ends. Requests in progress then have 3 seconds to end; watches are closed.
func (s *Server) Run(ctx context.Context) error {
	srv := &http.Server{
		Handler: yieldFirst(s.handler), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx }, ConnContext: withConn, ErrorLog: errorLog(s.log),
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, l := range s.listeners {
		g.Go(func() error {
			if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
	}
	g.Go(func() error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if err := srv.Shutdown(grace); err != nil {
			return srv.Close()
		}
		return nil
	})
	return g.Wait()
}

// errorLog logs what net/http reports about connections. Clients can cause any number of these errors, so they are
// sampled.
func errorLog(log zerolog.Logger) *stdlog.Logger {
	return stdlog.New(errorWriter{log.Sample(&zerolog.BurstSampler{Burst: 20, Period: 10 * time.Second})}, "", 0)
}

type errorWriter struct{ log zerolog.Logger }

// Write logs one error. A failed TLS handshake is the client's mistake: it is logged at level info, as for MQTT.
func (c errorWriter) Write(text []byte) (int, error) {
	what := strings.TrimPrefix(strings.TrimSpace(string(text)), "http: ")
	level := zerolog.WarnLevel
	if strings.HasPrefix(what, "TLS handshake error") {
		level = zerolog.InfoLevel
	}
	c.log.WithLevel(level).Msg(what)
	return len(text), nil
}

// yieldFirst has a request wait until what has become runnable before it has run. On a single processor Go runs a goroutine that the network has
// woken after those that other goroutines have started or woken, which never end while a few clients send one expensive request after
// the other: what all others send would wait for dozens of their requests (docs/adr/0153).
func yieldFirst(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runtime.Gosched()
		next.ServeHTTP(w, r)
	})
}
