// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/calls"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/blobs"
	"github.com/edgebus/edgebus/edge/forward"
	"github.com/edgebus/edgebus/edge/history"
	"github.com/edgebus/edgebus/edge/rules"
	"github.com/edgebus/edgebus/edge/twin"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/trace"
)

// hubLink keeps the clients of the link between the core and its hub: the main one, that of stored bridge rules, and that of blobs. What goes over the main one
// is done by parts: state by the twin first, then commands, streams, and the users' own topics by the bridge.
type hubLink struct {
	cfg      configs.Core
	twin     *twin.Twin
	commands hubCommands
	streams  hubStreams
	identity hubIdentity
	bridge   *bridge
	blobs    *blobs.Downloads
	past     nodeHistory
	rules    *rules.Rules
	status   *linkStatus
	log      zerolog.Logger

	running sync.WaitGroup // goroutines of the present connections
	mu      sync.Mutex
	main    *client.Client   // nil: its files can't be read yet
	clients []*client.Client // that are kept connected
}

func newHubLink(cfg configs.Core, tw *twin.Twin, commands *calls.Calls, log zerolog.Logger) *hubLink {
	return &hubLink{
		cfg: cfg, twin: tw, status: newLinkStatus(), log: log,
		commands: hubCommands{calls: commands, node: cfg.Node.Name},
		streams:  hubStreams{budget: forward.NewBudget(int64(cfg.Link.Rate), time.Now), node: cfg.Node.Name, log: log},
		identity: hubIdentity{cfg: cfg, log: log},
	}
}

// run keeps the link up until ctx ends. When it gives up (link.retry.attempts) the node goes on alone.
func (h *hubLink) run(ctx context.Context) error {
	h.identity.deleteDecommissioned()
	go runEvery(ctx, time.Hour, h.identity.deleteDecommissioned)
	if why, err := h.identity.decommissionNote(); err != nil || why != "" {
		h.status.note(func(l *linkState) { l.lastError = why })
		return err
	}
	ctx, end := context.WithCancel(ctx)
	h.identity.end = end
	defer end()
	main := h.awaitMain(ctx)
	if main == nil {
		return nil
	}
	go runEvery(ctx, clockInterval, func() { h.commands.publishClock(main) })
	go runEvery(ctx, dropLogInterval, h.streams.dropReporter())
	var stored sync.WaitGroup
	defer stored.Wait()
	defer h.running.Wait()
	if len(h.bridge.stored) > 0 {
		second, err := h.newStored()
		if err != nil {
			return err
		}
		stored.Go(func() { h.keepConnected(ctx, second, "the session of bridge.down") })
	}
	if renewer := h.identity.renewer; renewer != nil {
		h.running.Go(func() { renewer.Run(ctx) })
	}
	h.keepConnected(ctx, main, "the link to the hub")
	return nil
}

const identityRetry = 5 * time.Second // between two looks at files that the link needs

// awaitMain makes the main client as soon as the files that it needs can be read; nil: ctx has ended. What only the link needs must not keep
// the broker, the mappers and the devices from working.
func (h *hubLink) awaitMain(ctx context.Context) *client.Client {
	for told := ""; ; {
		c, err := h.newMain(ctx)
		if err == nil {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.main = c
			return c
		}
		if why := err.Error(); why != told {
			told = why
			h.log.Error().Err(err).Msg("there is no link to the hub, and the node works alone: mend this file, take it from a backup, " +
				"or have the node join again (edgecore join); the core sees it by itself")
			h.status.note(func(l *linkState) { l.lastError = why })
		}
		if !backoff.Sleep(ctx, identityRetry) {
			return nil
		}
	}
}

func (h *hubLink) keepConnected(ctx context.Context, c *client.Client, what string) {
	if err := h.runClient(ctx, c); err != nil && ctx.Err() == nil {
		h.log.Error().Err(err).Msg(what + " was given up: the node works alone until the core is restarted")
		<-ctx.Done()
	}
}

// runClient keeps a client connected until ctx ends, or it gives up.
func (h *hubLink) runClient(ctx context.Context, c *client.Client) error {
	h.mu.Lock()
	h.clients = append(h.clients, c)
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.clients = slices.DeleteFunc(h.clients, func(other *client.Client) bool { return other == c })
	}()
	return c.Run(ctx)
}

// renewed has all clients connect anew, with the new certificate, in a quiet moment.
func (h *hubLink) renewed(ctx context.Context) {
	h.awaitQuiet(ctx)
	h.log.Info().Msg("the link connects anew, with the renewed certificate")
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.clients {
		c.Reconnect(errCertificateRenewed)
	}
}

var errCertificateRenewed = errors.New("the certificate was renewed")

const (
	quietPoll    = 50 * time.Millisecond // the time between two looks at the link
	quietTimeout = time.Minute           // that a quiet moment is waited for
)

// awaitQuiet returns when the hub has confirmed all that the node had to report, no stream waits and no command is under
// way; at the latest after quietTimeout, because nothing is lost in a busy moment either.
func (h *hubLink) awaitQuiet(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, quietTimeout)
	defer cancel()
	for {
		if s := h.twin.Stats(); s.InStep && s.Behind == 0 && h.streams.broker.LinkQueue().Stats().Messages == 0 && h.commands.calls.Stats().UnderWay == 0 {
			return
		}
		if !backoff.Sleep(ctx, quietPoll) {
			return
		}
	}
}

// newClient makes one of the clients. set says what it is for; *self is the client, which is there when it connects.
func (h *hubLink) newClient(identifier string, set func(o *client.Options, self **client.Client)) (*client.Client, error) {
	o, err := h.options()
	if err != nil {
		return nil, err
	}
	o.ClientID = identifier
	var c *client.Client
	set(&o, &c)
	if c, err = client.New(o); err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	return c, nil
}

// newSecondary makes a client beside the main one, at the same server. Its log has nothing while that is down.
func (h *hubLink) newSecondary(purpose string, set func(o *client.Options, self **client.Client)) (*client.Client, error) {
	c, err := h.newClient("node/"+h.cfg.Node.Name+"/"+purpose, func(o *client.Options, self **client.Client) {
		o.Log = h.status.logWhileUp(h.log).With().Str("connection", purpose).Logger()
		set(o, self)
		connect := o.OnConnect
		o.OnConnect = func(ctx context.Context, present bool) error {
			if server := h.mainServer(true); server != "" && server != (*self).Server() { // it has moved meanwhile
				(*self).Reconnect(errOtherServer)
			}
			return connect(ctx, present)
		}
	})
	if err == nil {
		c.Choose(func() string { return h.mainServer(false) })
	}
	return c, err
}

// mainServer is the server of the main client: the one that it is connected to or, unless only that is asked for, that it tries; empty: none.
func (h *hubLink) mainServer(connected bool) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.main == nil || connected && !h.main.Connected() {
		return ""
	}
	return h.main.Server()
}

// gather has the other clients connect to the server of the main one: of several that are hubs, that one finds the node's.
func (h *hubLink) gather(server string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.clients {
		if c.Server() != server {
			c.Reconnect(errOtherServer)
		}
	}
}

var errOtherServer = errors.New("the link is at another address of link.server")

// newMain makes the client that connects the twin with the hub. It starts with a clean session: the link protocol repeats
// what was missed, not the broker.
func (h *hubLink) newMain(ctx context.Context) (*client.Client, error) {
	node := h.cfg.Node.Name
	upwards, downwards := topics.SyncTopics(node)
	wanted := topics.Address{Node: node, Kind: topics.KindHistoryWanted, Device: "core"}.String()
	var copying atomic.Pointer[history.CopySender] // of the present connection
	return h.newClient("node/"+node, func(o *client.Options, self **client.Client) {
		if other := certificateOfOtherNode(*o, node); other != "" {
			h.log.Error().Str("certificate", h.cfg.Link.TLS.Cert).
				Msgf("the certificate is for %s, but this node is %s: the hub will refuse it; see link.tls.cert and node.name", other, node)
		}
		send := func(payload []byte, traces []string) {
			m := client.Message{Topic: upwards, Payload: payload, QoS: 1}
			for _, t := range traces {
				m.User = append(m.User, client.UserProperty{Key: trace.Property, Value: t})
			}
			h.streams.budget.State(forward.MessageSize(m))
			(*self).PublishAsync(m, func(err error) {
				if err != nil {
					h.log.Debug().Err(err).Msg("a message to the hub was not delivered: the link protocol sends it again")
				}
			})
		}
		o.CleanStart = true
		o.Subscriptions = []client.Subscription{{Filter: downwards, QoS: 1}, {Filter: commandFilter(node)}, {Filter: wanted}, {Filter: rules.RequestTopic(node), QoS: 1}}
		h.identity.addRenewal(o, self, h.renewalNoted, h.renewed)
		o.OnConnect = func(ctx context.Context, _ bool) error {
			c, caughtUp := *self, make(chan struct{})
			h.commands.publishClock(c)
			h.twin.Connected(rand.Uint64(), send, func() { close(caughtUp) }) //nolint:gosec // G404: tells connections apart, keeps no secret
			h.running.Go(func() { h.bridge.subscribe(ctx, c, h.bridge.live) })
			ready := caughtUp
			if len(h.cfg.Link.Servers()) > 1 {
				ready = make(chan struct{})
				h.running.Go(func() { h.awaitOwnHub(ctx, c, caughtUp, ready) })
			}
			h.running.Go(func() { h.streams.forward(ctx, c, ready) })
			sending := h.newCopySender(c, wanted)
			copying.Store(sending)
			h.running.Go(func() { h.past.send(ctx, sending, ready) })
			h.identity.connected()
			return nil
		}
		own := o.TLS
		o.OnDisconnect = func(error) { h.twin.Disconnected() }
		o.OnConnectError = func(err error) { h.identity.checkDecommission(err, client.Leaf(own)) }
		take := func(m client.Message) (taken bool) {
			switch {
			case m.Topic == downwards:
				h.twin.Receive(m.Payload, tracesOf(m))
			case !topics.IsTree(m.Topic):
				return h.bridge.take(ctx, m)
			case m.Topic == wanted:
				if s := copying.Load(); s != nil {
					s.Received(m.Payload)
				}
			case m.Topic == rules.RequestTopic(node):
				h.rules.Do(ctx, toBrokerMessage(m), func(a broker.Message) { (*self).PublishAsync(toClientMessage(a), nil) })
			case !h.identity.take(m):
				h.commands.execute(*self, m)
			}
			return true
		}
		*o = h.status.watch(assembleParts(*o, node, take, func(err error) { (*self).Reconnect(err) }), self)
	})
}

// awaitOwnHub closes own when the hub of a connection is known to be the one that the node's devices came from, and has all state: what is forwarded to another
// one, such as one that was taken over and has come back, is lost to that. Where another one answers the next address is tried; one that replaces
// the node's says so within otherHubGrace.
func (h *hubLink) awaitOwnHub(ctx context.Context, c *client.Client, caughtUp <-chan struct{}, own chan<- struct{}) {
	for began := time.Now(); backoff.Sleep(ctx, hubPoll); {
		switch s := h.twin.Stats(); {
		case s.Hub == 0: // it hasn't said which one it is
		case s.OtherHub == 0:
			h.gather(c.Server())
			select {
			case <-caughtUp:
				close(own)
			case <-ctx.Done():
			}
			return
		case time.Since(began) > otherHubGrace:
			c.Elsewhere(fmt.Errorf("%s is hub %s, and the node's devices are of hub %s: the next address of link.server is tried", c.Server(), s.Hub.Text(), s.OtherHub.Text()))
			return
		}
	}
}

const (
	otherHubGrace = 5 * time.Second
	hubPoll       = 50 * time.Millisecond // the time between two looks at which hub it is
)

// newCopySender makes the sender of the history for a connection.
func (h *hubLink) newCopySender(c *client.Client, wanted string) *history.CopySender {
	topic := topics.Address{Node: h.cfg.Node.Name, Kind: topics.KindHistoryCopy}.String()
	return history.NewSending(func(payload []byte) {
		c.PublishAsync(client.Message{Topic: topic, Payload: payload, QoS: 1, ResponseTopic: wanted}, func(err error) {
			if err != nil {
				h.log.Debug().Err(err).Msg("a part of the history was not delivered: it is sent again")
			}
		})
	}, h.streams.budget)
}

// renewalNoted shows why the certificate was not renewed.
func (h *hubLink) renewalNoted(err error, since time.Time) {
	h.status.note(func(l *linkState) { l.renewalError, l.renewalFailsSince = err, since })
	why := ""
	if err != nil {
		why = err.Error()
	}
	h.twin.SetRenewalError(why)
}

// newStored makes a second client, whose session outlives its connections: the hub keeps the messages of bridge rules with
// store: true in it.
func (h *hubLink) newStored() (*client.Client, error) {
	return h.newSecondary("bridge", func(o *client.Options, self **client.Client) {
		o.SessionExpiry = bridgeSessionExpiry
		// A message that can't be stored is tried again as long as the connection lasts; then the hub sends it again.
		var connection context.Context
		o.OnConnect = func(ctx context.Context, _ bool) error {
			connection = ctx
			h.running.Go(func() { h.bridge.subscribe(ctx, *self, h.bridge.stored) })
			return nil
		}
		take := func(m client.Message) bool { return h.bridge.take(connection, m) }
		*o = assembleParts(*o, h.cfg.Node.Name, take, func(err error) { (*self).Reconnect(err) })
	})
}

// downloader makes the function that keeps a connection for blobs; nil: there is no hub.
func (h *hubLink) downloader() func(context.Context) error {
	if h.cfg.Link.Server == "" {
		return nil
	}
	return h.download
}

// tracesOf are the traces of the keys in a message of the hub.
func tracesOf(m client.Message) (traces []string) {
	for _, p := range m.User {
		if p.Key == trace.Property {
			traces = append(traces, p.Value)
		}
	}
	return traces
}

// download keeps a third client connected until ctx ends. It has no session: what was requested and did not come is requested again.
func (h *hubLink) download(ctx context.Context) error {
	c, err := h.newSecondary("blobs", func(o *client.Options, self **client.Client) {
		o.CleanStart = true
		o.Subscriptions = []client.Subscription{{Filter: h.blobs.Filter()}}
		o.OnConnect = func(context.Context, bool) error {
			h.blobs.Connected(*self)
			return nil
		}
		o.OnMessage = h.blobs.Received
		o.OnDisconnect = func(error) { h.blobs.Disconnected() }
	})
	if err != nil {
		return err
	}
	return h.runClient(ctx, c)
}

// options are what all clients have in common.
func (h *hubLink) options() (client.Options, error) {
	cfg := h.cfg.Link
	secret, err := cfg.Secret()
	if err != nil {
		return client.Options{}, err
	}
	secure, err := cfg.TLS.Config()
	if err != nil {
		return client.Options{}, err
	}
	var roots func() *x509.CertPool
	if cfg.TLS.CA != "" {
		roots = cfg.TLS.Roots()
	}
	return client.Options{
		Servers: cfg.Servers(), User: cmp.Or(cfg.User, "node/"+h.cfg.Node.Name), Password: secret, TLS: secure, Roots: roots, KeepAlive: cfg.Keepalive,
		Backoff:  client.Backoff{Min: cfg.Retry.Backoff.Min, Max: cfg.Retry.Backoff.Max},
		Attempts: cfg.Retry.Attempts, Log: h.log, Counters: &h.status.queues,
	}, nil
}

// runEvery calls f periodically until ctx ends.
func runEvery(ctx context.Context, d time.Duration, f func()) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}
