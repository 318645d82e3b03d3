// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/broker/session"
)

// Tree owns the topics below v1/: it decides what a publish means, stores it, and gives what is retained.
type Tree interface {
	// Publish handles a client's message, which its publisher has the right to publish. It must not wait for a
	// commit. It calls done exactly once, from any goroutine, perhaps before it returns: with nil when the message is
	// stored, and with a *resource.Error when it is refused.
	Publish(m Message, done func(error))
	// Retained returns an iterator over the retained topics that match a filter. Each call of the iterator returns at
	// most max messages with their values at the time of the call, and none at the end. It must not return a value
	// before Broker.Publish was called with that value and has returned; while a value is being published, it waits.
	// Both may be called from any goroutine, and may take locks.
	Retained(filter string) func(max int) []Message
}

// Presence is notified of connections. For one client the calls come in order: a
// takeover is Disconnected and then Connected. They must not block.
type Presence interface {
	Connected(*Identity)
	Subscribed(id *Identity, filter string)
	Disconnected(id *Identity, err error)
}

// Broker is an MQTT broker. New makes one, Serve runs it.
type Broker struct {
	opts          Options
	log           zerolog.Logger
	sampledLog    zerolog.Logger // for events that a client can cause any number of
	store         *recordStore   // nil: nothing outlives the process
	quotas        quotas
	metrics       *metrics
	refusedOrigin atomic.Pointer[RefusedOrigin] // the last one that was refused
	sys           sysTopics

	auth     *authenticator
	acl      *accessControl
	requests httpRequests

	clients         clients
	presence        presenceReports
	wills           willStore
	activePublisher activePublisher

	admission  *admission
	partials   *partialMessages
	dispatcher *messageDispatcher
	router     *router
	retained   *retainedMessages
	linkQueue  LinkQueue

	listeners     []*listener
	closeOnce     sync.Once
	closed        chan struct{}
	sweepInterval time.Duration // how often expired retained messages are deleted
}

// New makes a broker and binds its listeners. Serve accepts connections; without Serve, Close
// releases the listeners.
func New(opts Options) (*Broker, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	auth, err := newAuthenticator(opts)
	if err != nil {
		return nil, err
	}
	rules := newAccessControl(opts)
	b := &Broker{
		opts: opts, log: opts.Log, sampledLog: sampledLogger(opts.Log), auth: auth, acl: rules, router: newRouter(rules),
		quotas: newQuotas(opts.Limits), metrics: newMetrics(opts.Metrics), closed: make(chan struct{}), sweepInterval: sweepEvery,
	}
	if opts.Journal != nil {
		b.store = newRecordStore(opts.Journal)
	}
	b.requests.log, b.requests.browsers.now = sampledLogger(opts.Log), opts.Now
	b.requests.upgraded = &listener{Listener: Listener{Name: "http", WebSocket: true}, b: b, connects: newRateLimiter(opts.Limits.ConnectRate)}
	b.requests.program = &listener{Listener: Listener{Name: programListener}, b: b, connects: newRateLimiter(opts.Limits.ConnectRate)}
	b.sys.b = b
	b.retained = newRetainedMessages(b.quotas.retained, opts.Now, b.store)
	b.dispatcher = &messageDispatcher{
		router: b.router, retained: b.retained, store: b.store, fanout: session.NewFanout(), now: b.opts.storedTime, node: opts.Node,
		log: b.sampledLog, dropLog: sampledLogger(opts.Log),
	}
	b.router.dropped = b.dispatcher.dropped
	b.admission = &admission{
		opts: &b.opts, acl: b.acl, dispatcher: b.dispatcher, store: b.store, treeBacklog: quota.NewBacklog(backlogBytes()), metrics: b.metrics, log: b.sampledLog,
	}
	b.partials = newPartialMessages(int(opts.Limits.Packet), b.quotas.unfinished, opts.Now)
	b.wills = willStore{store: b.store, admission: b.admission}
	b.presence.presence, b.presence.clients, b.presence.metrics = opts.Presence, &b.clients, b.metrics
	b.clients.init(b)
	if b.store != nil {
		if err := b.load(); err != nil {
			return nil, err
		}
	}
	b.linkQueue.b = b
	b.clients.makeLinkQueue()
	b.register(opts.Metrics)
	return b, b.listen()
}

func sampledLogger(log zerolog.Logger) zerolog.Logger {
	return log.Sample(&zerolog.BurstSampler{Burst: 20, Period: 10 * time.Second})
}

// Serve accepts connections until ctx is done or Close is called, and returns when
// everything has stopped.
func (b *Broker) Serve(ctx context.Context) error {
	b.clients.resume()
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

// sweep deletes expired retained messages and publishes $SYS, each at its interval, until ctx is done or the broker is closed.
func (b *Broker) sweep(ctx context.Context) {
	due, figures := time.NewTicker(b.sweepInterval), time.NewTicker(sysEvery)
	defer due.Stop()
	defer figures.Stop()
	for {
		select {
		case <-due.C:
			b.retained.removeExpired()
		case <-figures.C:
			b.sys.publish()
			b.storeMissed()
		case <-ctx.Done():
			return
		case <-b.closed:
			return
		}
	}
}

// Close disconnects all clients with the reason that the server is shutting down, and waits until their connections are
// closed or ctx is done.
func (b *Broker) Close(ctx context.Context) error {
	b.closeOnce.Do(func() { close(b.closed) })
	var errs []error
	for _, l := range b.listeners {
		errs = append(errs, l.close())
	}
	b.clients.close()
	ended := make(chan struct{})
	go func() { // ends with the last connection, each of which is bounded in time
		b.clients.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		errs = append(errs, ctx.Err())
	}
	b.storeMissed()
	return errors.Join(errs...)
}

// storeMissed has what full sessions have dropped count over restarts.
func (b *Broker) storeMissed() {
	for _, cl := range b.clients.chosen(func(*Identity) bool { return true }) {
		cl.sess.StoreMissed()
	}
}

// Addrs are the addresses that the listeners are bound to, in their order.
func (b *Broker) Addrs() []net.Addr {
	addrs := make([]net.Addr, len(b.listeners))
	for i, l := range b.listeners {
		addrs[i] = l.bound.Addr()
	}
	return addrs
}

// Publish routes a message of the program's own, such as a value of the tree, to its subscribers. It doesn't call Tree,
// checks only the form of the topic, and returns when the message is queued; it never waits for a
// client. Messages of one topic reach each subscriber in the order of the calls.
func (b *Broker) Publish(m Message) { b.dispatcher.publish(m) }

// HasDurableSubscriber reports whether a durable session gets the messages of a topic.
func (b *Broker) HasDurableSubscriber(topic string) bool { return b.router.route(topic).durable }

// HasSubscriber reports whether any client is subscribed to a topic, so that messages without a subscriber need not be made.
// A client that subscribes later gets the retained message.
func (b *Broker) HasSubscriber(topic string) bool { return b.router.index.matches(topic) }

// RightsChanged must be called when Options.Protocol returns another protocol for a device, or Auth.Topics other rules:
// routes are built again.
func (b *Broker) RightsChanged() { b.router.index.gen.Add(1) }

// Disconnect closes the connection of a client, with a reason for MQTT 5 clients.
// It reports whether the client was connected.
func (b *Broker) Disconnect(clientID, reason string) bool {
	c := b.clients.connected(clientID)
	if c == nil {
		return false
	}
	c.expel(codeAdministrative, errors.New(reason))
	return true
}

// DisconnectNode closes all connections of a node, with a reason for MQTT 5 clients, and ends its sessions.
// It reports whether the node was connected.
func (b *Broker) DisconnectNode(node, reason string) (connected bool) {
	connected = b.EndIdentity(func(id *Identity) bool { return id.User == nodeUser(node) }, reason)
	b.ForgetNode(node)
	return connected
}
