// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/daemon/rawgrpc"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/discovery/embedded"
	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/wire"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options are what edgediscovery needs.
type Options struct {
	Config configs.Discovery
	Log    zerolog.Logger
	// Ready is called once handlers can register. It may be nil.
	Ready func()
	// Embedded are the handlers of this program; default those that are linked in.
	Embedded []handler.Program
	// Timing's zero fields have default values.
	Timing Timing
}

// Timing are the durations that no setting changes.
type Timing struct {
	// Retry is the wait before a handler that failed is asked again; default 500 ms to 30 s.
	Retry backoff.Backoff
	// Silence is how long a called handler may send nothing until it counts as having accepted the details: Akri's handlers send
	// nothing while they find no device.
	Silence time.Duration
	// Probe is how often a handler that is asked must accept a connection, and ProbeTimeout how long that may take.
	Probe, ProbeTimeout time.Duration
	// Settle is how long after a connection to the broker it is taken to have sent what it has retained.
	Settle time.Duration
}

func (t Timing) withDefaults() Timing {
	return Timing{
		Retry:   cmp.Or(t.Retry, backoff.Backoff{Min: 500 * time.Millisecond, Max: 30 * time.Second}),
		Silence: cmp.Or(t.Silence, 3*time.Second),
		Probe:   cmp.Or(t.Probe, 30*time.Second), ProbeTimeout: cmp.Or(t.ProbeTimeout, 10*time.Second),
		Settle: cmp.Or(t.Settle, time.Second),
	}
}

// discovery is a running edgediscovery.
type discovery struct {
	o      Options
	log    zerolog.Logger
	bus    *busClient
	client credentials.TransportCredentials // for handlers at a network address; nil: none
	ctx    context.Context                  // of Run
	g      *errgroup.Group

	mu             sync.Mutex
	configurations map[string]*configuration
	endpoints      map[string]*endpoint
	broker         map[string]*brokerState // what the broker has, by Configuration
}

// configuration is a Configuration that is assigned to this node. discovery.mu guards it.
type configuration struct {
	name    string
	request resource.DiscoveryRequest
	secrets *resource.SecretValues
	seenOn  int // the connection to the broker on which it was last seen
	calls   map[string]*handlerCall
	absent  time.Time // since when there is no handler of the name; zero: there is one
	refused string    // why the core refuses what is published
	changed chan struct{}
	stop    context.CancelFunc
}

// Run runs edgediscovery until ctx ends.
func Run(ctx context.Context, o Options) (err error) {
	o.Timing = o.Timing.withDefaults()
	if o.Embedded == nil {
		o.Embedded = embedded.Programs()
	}
	dir, err := datadir.Open(o.Config.Data.Dir, "edgediscovery")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(dir.ExplainFull(err), dir.Close()) }()
	serving, dialling, err := wire.MutualTLS(o.Config.TCP.TLS)
	if err != nil {
		return fmt.Errorf("tcp.tls: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	d := &discovery{
		o: o, log: o.Log, client: dialling, ctx: ctx, g: g, configurations: map[string]*configuration{}, endpoints: map[string]*endpoint{},
		broker: map[string]*brokerState{},
	}
	if err := d.loadHandlers(); err != nil {
		return err
	}
	if d.bus, err = newBus(d, o.Config.MQTT.Sockets()); err != nil {
		return err
	}
	if err := d.serveRegistration(serving); err != nil {
		return err
	}
	g.Go(func() error { return d.bus.presence.Run(ctx) })
	if o.Ready != nil {
		o.Ready()
	}
	err = g.Wait()
	d.closeHandlers()
	return err
}

// serveRegistration has handlers register until the context of Run ends.
func (d *discovery) serveRegistration(serving credentials.TransportCredentials) error {
	h, tcp := d.o.Config.Handlers, d.o.Config.TCP.Listen
	if err := makeSocketDir(h.Dir); err != nil {
		return fmt.Errorf("handlers.dir: %w", err)
	}
	if tcp != "" && serving == nil && !wire.IsLoopback(tcp) {
		return fmt.Errorf("tcp.listen: %s is not an address of loopback, and needs tcp.tls", tcp)
	}
	socket, err := rawgrpc.ListenUnix(filepath.Join(h.Dir, handler.RegistrationSocket))
	if err != nil {
		return fmt.Errorf("handlers.dir: %w", err)
	}
	d.serve(socket, nil, true)
	if tcp == "" {
		return nil
	}
	l, err := net.Listen("tcp", tcp)
	if err != nil {
		return errors.Join(fmt.Errorf("tcp.listen: %w", err), socket.Close())
	}
	d.log.Info().Stringer("address", l.Addr()).Bool("tls", serving != nil).Msg("handlers can register over TCP")
	d.serve(l, serving, false)
	return nil
}

func (d *discovery) serve(l net.Listener, creds credentials.TransportCredentials, local bool) {
	options := []grpc.ServerOption{grpc.MaxConcurrentStreams(16), grpc.ConnectionTimeout(10 * time.Second), grpc.WaitForHandlers(true)}
	if creds != nil {
		options = append(options, grpc.Creds(creds))
	}
	s := rawgrpc.NewServer(options...)
	wire.ServeRegistration(s, func(_ context.Context, r wire.Registration) error { return d.register(r, local) })
	d.g.Go(func() error { return rawgrpc.Serve(s, l) })
	d.g.Go(func() error {
		<-d.ctx.Done()
		s.Stop()
		return nil
	})
}

// request is a new value of discovery/{name} on the broker, or that of a new connection; empty: it was cleared.
func (d *discovery) request(name string, payload []byte, connection int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.configurations[name]
	if len(payload) == 0 {
		if c != nil {
			d.forget(c)
		}
		return
	}
	var r resource.DiscoveryRequest
	if err := json.Unmarshal(payload, &r); err != nil {
		d.log.Error().Err(err).Str("configuration", name).Msg("a Configuration can't be read")
		return
	}
	if c == nil {
		ctx, stop := context.WithCancel(d.ctx)
		c = &configuration{name: name, calls: map[string]*handlerCall{}, changed: make(chan struct{}, 1), stop: stop}
		d.configurations[name] = c
		d.log.Info().Str("configuration", name).Str("handler", r.Handler).Msg("looking for devices")
		d.g.Go(func() error {
			d.publish(ctx, c)
			return nil
		})
	}
	c.request, c.seenOn = r, connection
	d.reconcile(c)
}

// forget stops discovery for a Configuration. The core has removed its instances. mu is held.
func (d *discovery) forget(c *configuration) {
	d.log.Info().Str("configuration", c.name).Msg("looking for devices no more")
	delete(d.configurations, c.name)
	delete(d.broker, c.name)
	for _, a := range c.calls {
		a.stop()
	}
	c.stop()
}

// secret is a new value of secrets/discovery/{name}.
func (d *discovery) secret(name string, payload []byte) {
	var s *resource.SecretValues
	if len(payload) > 0 && json.Unmarshal(payload, &s) != nil {
		d.log.Error().Str("configuration", name).Msg("the values of a Configuration's Secrets can't be read")
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bus.secrets[name] = s
	if c := d.configurations[name]; c != nil {
		d.reconcile(c)
	}
}

// reconcile starts an ask for each handler that a Configuration names, with its present details, and stops all others. mu is held.
func (d *discovery) reconcile(c *configuration) {
	r := c.request
	c.secrets = d.bus.secrets[c.name]
	waits := r.Secrets != "" && (c.secrets == nil || c.secrets.Version != r.Secrets) // its values are on their way
	for key, a := range c.calls {
		if e := d.endpoints[key]; e == nil || e.name != r.Handler {
			a.stop()
			delete(c.calls, key)
		}
	}
	there := false
	for key, e := range d.endpoints {
		there = there || e.name == r.Handler
		if e.name != r.Handler || waits {
			continue
		}
		before := c.calls[key]
		if before != nil && before.e == e && before.version == r.Version {
			continue
		}
		c.calls[key] = d.newCall(c, e, before)
	}
	if there {
		c.absent = time.Time{}
	} else if c.absent.IsZero() {
		c.absent = time.Now()
	}
	signalChange(c.changed)
}

// properties returns the request's properties, with the values of Secrets.
func (c *configuration) properties() map[string][]byte {
	p := map[string][]byte{}
	for name, value := range c.request.Properties {
		p[name] = []byte(value)
	}
	if c.request.Secrets != "" {
		maps.Copy(p, c.secrets.Data)
	}
	return p
}

// signalChange sends on a channel of capacity 1.
func signalChange(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
