// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/httpserver"
)

// hubSite is what a hub of a cluster serves over HTTP from its start on: first as one that stands by, then as the owner, on the same connections.
type hubSite struct {
	*httpserver.Server
	handler atomic.Pointer[http.Handler]
	stop    context.CancelFunc
	served  chan struct{}
	err     error                       // of serving; after served
	tls     func() (*tls.Config, error) // of its port, the same each time
}

// openSite serves a hub that stands by, until ctx ends.
func openSite(ctx context.Context, o Options, p *peers, standBy http.Handler) (*hubSite, error) {
	c := o.Config.HTTP
	c.TLS.Own = func(clientCA []byte) *tls.Config { return p.certificates(clientCA) }
	s := &hubSite{served: make(chan struct{}), tls: sync.OnceValues(c.TLS.Config)}
	s.handler.Store(&standBy)
	server, err := httpserver.Listen(httpserver.Options{
		Listen: c.Listen, ListenTLS: c.TLS.Listen, TLS: s.tls, Limits: o.Config.Limits.Limits,
	}, o.Log, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*s.handler.Load()).ServeHTTP(w, r) }))
	if err != nil {
		return nil, err
	}
	s.Server = server
	ctx, s.stop = context.WithCancel(ctx)
	go func() {
		defer close(s.served)
		s.err = server.Run(ctx)
	}()
	return s, nil
}

// close ends it, if it isn't over.
func (s *hubSite) close() error {
	if s == nil {
		return nil
	}
	s.stop()
	<-s.served
	return s.err
}

// certificates are those of the hubs' authority as this one has it at the moment.
func (p *peers) certificates(clientCA []byte) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		a := p.authority.Load()
		if a == nil {
			return nil, errors.New("this hub has no authority before it has served once")
		}
		return a.TLS(clientCA, "h2", "http/1.1").GetConfigForClient(hello)
	}}
}

// verifyClient judges the certificate of a client that another hub has forwarded as this hub's own port does.
func (s *hubSite) verifyClient(chain []*x509.Certificate) ([][]*x509.Certificate, error) {
	c, err := s.tls()
	if err != nil {
		return nil, err
	}
	return broker.VerifyClient(c, chain)
}

// HTTP has a hub that owns the log serve its API, on the connections that there are.
func (s *SharedLog) HTTP(handler http.Handler) (server *httpserver.Server, run func(context.Context) error) {
	site := s.site
	return site.Server, func(ctx context.Context) error {
		site.handler.Store(&handler)
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		go func() {
			<-site.served
			stop()
		}()
		err := s.peers.ServeHTTP(ctx, site.verifyClient, handler)
		return errors.Join(err, site.close())
	}
}
