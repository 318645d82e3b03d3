// Package web serves a handler over HTTP and HTTPS as a configuration says.
package web

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/configs"
)

const (
	headerTimeout = 10 * time.Second // a request must have come soon; a watch has no end
	idleTimeout   = 2 * time.Minute
	closeTimeout  = 3 * time.Second
)

// Server is a handler on its listeners, which are bound when it is made.
type Server struct {
	handler   http.Handler
	listeners []net.Listener
}

// Listen binds the configured addresses.
func Listen(cfg configs.HTTP, handler http.Handler) (*Server, error) {
	s := &Server{handler: handler}
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
		secure.ClientAuth = tls.RequireAndVerifyClientCert // the API knows no other way to tell who somebody is
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
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	s.listeners = append(s.listeners, l)
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
		Handler: s.handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
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
