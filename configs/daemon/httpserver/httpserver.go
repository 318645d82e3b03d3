// Package web serves a handler over HTTP and HTTPS as a configuration says. A client's certificate
// is checked if it shows one; who may do what, the handler decides.
package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/configs/daemon"
)

const (
	bodyTimeout   = time.Minute      // for a request's body
	answerTimeout = time.Minute      // for who reads an answer; a watch sets its own, event by event
	headerTimeout = 10 * time.Second // a request must have come soon; a watch has no end
	idleTimeout   = time.Minute
	closeTimeout  = 3 * time.Second
	maxHeader     = 64 << 10 // bytes of a request's first line and headers
)

// Server is a handler on its listeners, which are bound when it is made.
type Server struct {
	handler   http.Handler
	log       zerolog.Logger
	room      *room
	listeners []net.Listener
}

// Listen binds the configured addresses. At most so many connections as the limits say are served at one
// time. Beyond that the one that has been idle for longest is closed for a new one, or that waits.
func Listen(cfg configs.HTTP, limits configs.Limits, log zerolog.Logger, handler http.Handler) (*Server, error) {
	s := &Server{handler: patient(handler), log: log, room: newRoom(limits)}
	if cfg.Listen != "" {
		if err := s.bind("http.listen", cfg.Listen, nil); err != nil {
			return nil, err
		}
	}
	if cfg.TLS.Listen == "" {
		return s, nil
	}
	secure, err := cfg.TLS.Config()
	if err == nil {
		secure.NextProtos = []string{"h2", "http/1.1"}
		err = s.bind("http.tls.listen", cfg.TLS.Listen, secure)
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
	l = &bounded{daemon.ReserveDescriptors(l, daemon.HTTPReserve), s.room}
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	s.listeners = append(s.listeners, l)
	s.log.Info().Stringer("address", l.Addr()).Bool("tls", secure != nil).Msg("listening for HTTP")
	return nil
}

// Addrs are the addresses that are bound, HTTP before HTTPS.
func (s *Server) Addrs() []net.Addr {
	addrs := make([]net.Addr, len(s.listeners))
	for i, l := range s.listeners {
		addrs[i] = l.Addr()
	}
	return addrs
}

// Connections says how many there are, and how often there was no room for another.
func (s *Server) Connections() (open, full int64) { return s.room.open.Load(), s.room.full.Load() }

// Close lets go of the listeners of a server that was never run.
func (s *Server) Close() error {
	var errs []error
	for _, l := range s.listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// Run serves until ctx ends. Requests still running then are given a moment; watches are cut off.
func (s *Server) Run(ctx context.Context) error {
	srv := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx }, ConnContext: withConn, ErrorLog: complaints(s.log),
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

// complaints is where net/http says what is wrong with connections. Anybody can cause any number of them, so not all
// of a flood are logged.
func complaints(log zerolog.Logger) *stdlog.Logger {
	return stdlog.New(complaint{log.Sample(&zerolog.BurstSampler{Burst: 20, Period: 10 * time.Second})}, "", 0)
}

type complaint struct{ log zerolog.Logger }

// Write logs one of them. A failed handshake is the client's affair, as it is with MQTT.
func (c complaint) Write(text []byte) (int, error) {
	what := strings.TrimPrefix(strings.TrimSpace(string(text)), "http: ")
	level := zerolog.WarnLevel
	if strings.HasPrefix(what, "TLS handshake error") {
		level = zerolog.InfoLevel
	}
	c.log.WithLevel(level).Msg(what)
	return len(text), nil
}
