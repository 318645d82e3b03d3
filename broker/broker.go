// Package broker is the MQTT broker that the hub and the core embed: one package,
// the same behaviour on both sides.
//
// The protocol library gives the codec. Everything between a client's CONNECT and a
// subscriber's socket is done here: a packet's form, who it is, rights, the tree's
// say on what is below v1/, acknowledging what was stored, routing, retained
// messages, wills, and sessions (package session).
//
// The broker never decides what a topic of the tree means, never stores one, and
// lets no type of the protocol library out. Nothing that a client sends may stop
// the process, and no client can make another wait.
package broker

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
)

// Tree is what is below v1/.
type Tree interface {
	// Publish takes a client's message, which the sender has the right to publish. It
	// must not wait for a commit. It calls done exactly once, from any goroutine,
	// also before it returns: nil when the message is stored, and a *resource.Error
	// when it is refused.
	Publish(m Message, done func(error))
	// Retained goes through the retained topics that match a filter. Each call of
	// what it returns gives at most max of them with their values as of the call, and
	// none at the end. To a call a value must not be visible before Broker.Publish has
	// returned that was called with it, and no call may go by a value that is being
	// published: such a call waits.
	// It may be called from any goroutine, and takes whatever locks it likes.
	Retained(filter string) func(max int) []Message
}

// Presence is told of connections. For one client the calls come in order: a
// takeover is Disconnected and then Connected. They must not block.
type Presence interface {
	Connected(Identity)
	Subscribed(id Identity, filter string)
	Disconnected(id Identity, err error)
}

// Broker is an MQTT broker. New makes one, Serve runs it.
type Broker struct {
	opts            Options
	log             zerolog.Logger
	sampledLog      zerolog.Logger // for what a client can cause any number of
	queueFullLog    zerolog.Logger // for sessions without room, which no other flood may hide
	signInLog       zerolog.Logger // for HTTP requests whose sender isn't let in, the same
	auth            *authenticator
	acl             *acl
	router          *router
	retained        *memoryRetained
	pendingRetained pendingRetained
	began           time.Time
	loads           sysLoads
	lost            []*will // of sessions that ended with the process before this one
	store           *store  // nil: nothing outlives the process
	treeBacklog     backlog // of the tree
	clients         clients
	metrics         *metrics
	neighbour       neighbour
	fanout          *session.Fanout
	pending         pendingConns
	quotas          quotas
	logins          *loginThrottle
	counters        session.Counters
	outlet          struct {
		sess  *session.Session
		count session.Counters
	}
	listeners []*listener
	order     stripes  // of a retained topic's store and routing
	told      stripes  // of a client's presence
	present   sync.Map // client id → the *conn that presence was told of last

	connections sync.WaitGroup
	number      atomic.Uint64
	closeOnce   sync.Once
	closed      chan struct{}
	sweeps      time.Duration // how often what has expired is forgotten
}

// New makes a broker and binds its listeners. Serve has to be called for it to
// take connections, or Close to let go of the listeners.
func New(opts Options) (*Broker, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	auth, err := newAuthenticator(opts)
	if err != nil {
		return nil, err
	}
	rules := newACL(opts)
	b := &Broker{
		opts: opts, log: opts.Log, auth: auth, acl: rules, router: newRouter(rules),
		sampledLog: sampled(opts.Log), queueFullLog: sampled(opts.Log), signInLog: sampled(opts.Log),
		closed: make(chan struct{}), sweeps: sweepEvery, metrics: newMetrics(opts.Metrics),
	}
	b.fanout = session.NewFanout()
	b.quotas = newQuotas(opts.Limits)
	b.treeBacklog.init()
	b.router.dropped = b.droppedFor
	b.pending.size = max(16, opts.Limits.Connections/4)
	b.logins = newLoginThrottle(opts.Limits.WrongPasswords, auth.slowest.Rounds(), opts.Now)
	b.began = opts.Now()
	b.retained = newRetained(b.quotas.retained, opts.Now)
	b.clients.byID = make(map[string]*client)
	b.clients.kept = b.quotas.kept
	b.clients.conns = make(map[*conn]struct{})
	if opts.Journal != nil {
		b.store = newStore(opts.Journal)
		if err := b.load(); err != nil {
			return nil, err
		}
	}
	b.makeOutlet()
	b.register(opts.Metrics)
	return b, b.listen()
}

func sampled(log zerolog.Logger) zerolog.Logger {
	return log.Sample(&zerolog.BurstSampler{Burst: 20, Period: 10 * time.Second})
}

// Serve takes connections until ctx is done or Close is called, and returns when
// everything has stopped.
func (b *Broker) Serve(ctx context.Context) error {
	b.resume()
	var accepting sync.WaitGroup
	for _, l := range b.listeners {
		accepting.Go(func() { l.serve() })
		b.log.Info().Str("listener", l.Name).Stringer("address", l.bound.Addr()).
			Bool("tls", l.TLS != nil).Bool("websocket", l.WebSocket).Msg("listening for MQTT")
	}
	b.sweep(ctx)
	grace, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := b.Close(grace)
	accepting.Wait()
	return err
}

const (
	closeTimeout = 10 * time.Second
	sweepEvery   = time.Minute
)

// sweep forgets what has expired, from time to time, until the broker is to end.
func (b *Broker) sweep(ctx context.Context) {
	due, figures := time.NewTicker(b.sweeps), time.NewTicker(sysEvery)
	defer due.Stop()
	defer figures.Stop()
	for {
		select {
		case <-due.C:
			b.forgetExpired()
		case <-figures.C:
			b.publishSys()
		case <-ctx.Done():
			return
		case <-b.closed:
			return
		}
	}
}

// Close tells clients that the broker goes, and waits until their connections
// are closed or ctx is done.
func (b *Broker) Close(ctx context.Context) error {
	b.closeOnce.Do(func() { close(b.closed) })
	var errs []error
	for _, l := range b.listeners {
		errs = append(errs, l.close())
	}
	b.clients.close()
	ended := make(chan struct{})
	go func() { // ends with the last connection, each of which is bounded in time
		b.connections.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		errs = append(errs, ctx.Err())
	}
	return errors.Join(errs...)
}

// Addrs are the addresses that the listeners are bound to, in their order.
func (b *Broker) Addrs() []net.Addr {
	addrs := make([]net.Addr, len(b.listeners))
	for i, l := range b.listeners {
		addrs[i] = l.bound.Addr()
	}
	return addrs
}

// Publish routes a message of the bus's own to its subscribers: a projection of
// the tree, a refusal, the link. It never asks the Tree, checks nothing but the
// topic's form, and returns when the message is queued; it never waits for a
// client. Messages of one topic reach each subscriber in the order of the calls.
func (b *Broker) Publish(m Message) {
	if err := topics.CheckTopic(m.Topic); err != nil {
		b.log.Error().Err(err).Msg("the bus published to an impossible topic")
		return
	}
	b.send(outgoing(m, b.opts.Now()), sendOptions{}, func(err error) {
		if err != nil {
			b.about(b.sampledLog.Warn(), m.Topic).Err(err).Msg("not kept")
		}
	})
}

// Wanted says whether anybody is subscribed to a topic: to make a message that nobody
// is would be for nothing. Who subscribes later finds what is retained.
func (b *Broker) Wanted(topic string) bool { return b.router.index.matches(topic) }

// RightsChanged says that Options.Protocol has another answer for a device: who gets its messages is looked at anew.
func (b *Broker) RightsChanged() { b.router.index.gen.Add(1) }

// Disconnect closes the connection of a client, with a reason for MQTT 5 clients.
// It reports whether the client was connected.
func (b *Broker) Disconnect(clientID, reason string) bool {
	c := b.clients.connected(clientID)
	if c == nil {
		return false
	}
	c.disconnect(codeAdministrative, errors.New(reason))
	return true
}
