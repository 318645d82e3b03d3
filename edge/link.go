package edge

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/calls"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/forward"
	"github.com/edgebus/edgebus/edge/twin"
	"github.com/edgebus/edgebus/topics"
)

// hubLink is all that travels between the core and its hub: state first, commands,
// then streams and the users' own topics.
type hubLink struct {
	cfg      configs.Core
	twin     *twin.Twin
	commands *calls.Calls
	broker   *broker.Broker
	up       *uplink
	budget   *forward.Budget
	bridge   *bridge
	log      zerolog.Logger

	running sync.WaitGroup // what was begun with a connection, and ends with it
}

// run keeps the link up until ctx ends. When it gives up (link.retry.attempts) the node goes on alone.
func (h *hubLink) run(ctx context.Context) error {
	main, err := h.newMain(ctx)
	if err != nil {
		return err
	}
	stop := every(clockEvery, func() { tellClock(h.commands, main, h.cfg.Node.Name) })
	defer stop()
	stopReport := every(reportEvery, h.reporter())
	defer stopReport()
	var stored sync.WaitGroup
	defer stored.Wait()
	defer h.running.Wait()
	if len(h.bridge.stored) > 0 {
		second, err := h.newStored()
		if err != nil {
			return err
		}
		stored.Go(func() { h.keep(ctx, second, "what is bridged down") })
	}
	h.keep(ctx, main, "the link to the hub")
	return nil
}

func (h *hubLink) keep(ctx context.Context, c *client.Client, what string) {
	if err := c.Run(ctx); err != nil && ctx.Err() == nil {
		h.log.Error().Err(err).Msg(what + " was given up: the node works alone until the core is restarted")
		<-ctx.Done()
	}
}

// newMain makes the client that connects the twin with the hub. Its session is
// clean at every start: what was missed is said again by the link, not by the broker.
func (h *hubLink) newMain(ctx context.Context) (*client.Client, error) {
	node := h.cfg.Node.Name
	upwards, downwards := topics.Sync(node)
	o, err := h.options()
	if err != nil {
		return nil, err
	}
	var c *client.Client
	send := func(payload []byte) {
		m := client.Message{Topic: upwards, Payload: payload, QoS: 1, User: h.up.clock()}
		h.budget.State(forward.Size(m))
		c.PublishAsync(m, func(err error) {
			if err != nil {
				h.log.Debug().Err(err).Msg("a message to the hub was not delivered: the link says it again")
			}
		})
	}
	if other := otherNode(o, node); other != "" {
		h.log.Error().Str("certificate", h.cfg.Link.TLS.Cert).
			Msgf("the certificate is for %s, but this node is %s: the hub will refuse it; see link.tls.cert and node.name", other, node)
	}
	o.ClientID, o.CleanStart = "node/"+node, true
	o.Subscriptions = []client.Subscription{{Filter: downwards, QoS: 1}, {Filter: commandsOf(node)}}
	o.OnConnect = func(ctx context.Context, _ bool) error {
		tellClock(h.commands, c, node)
		caughtUp := make(chan struct{})
		h.twin.Connected(nonce(), send, func() { close(caughtUp) })
		h.running.Go(func() { h.bridge.ask(ctx, c, h.bridge.live) })
		h.running.Go(func() { h.forward(ctx, c, caughtUp) })
		return nil
	}
	o.OnDisconnect = func(error) { h.twin.Disconnected() }
	o.OnMessage = func(m client.Message) {
		switch {
		case m.Topic == downwards:
			h.twin.Receive(m.Payload)
		case topics.IsTree(m.Topic):
			ask(h.commands, c, m)
		default:
			h.bridge.take(ctx, m)
		}
	}
	if c, err = client.New(h.up.watch(o)); err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	return c, nil
}

// newStored makes a second client, with a session that outlives its connections: what
// the hub keeps for it is what stored rules bring down.
func (h *hubLink) newStored() (*client.Client, error) {
	o, err := h.options()
	if err != nil {
		return nil, err
	}
	var c *client.Client
	o.ClientID, o.SessionExpiry = "node/"+h.cfg.Node.Name+"/bridge", storedFor
	o.Log = h.up.beside(h.log).With().Str("connection", "bridge").Logger()
	// What can't be kept is tried for as long as the connection lasts: with that its acknowledgement is void.
	var connection context.Context
	o.OnConnect = func(ctx context.Context, _ bool) error {
		connection = ctx
		h.running.Go(func() { h.bridge.ask(ctx, c, h.bridge.stored) })
		return nil
	}
	o.OnMessage = func(m client.Message) { h.bridge.take(connection, m) }
	if c, err = client.New(o); err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	return c, nil
}

// options are what both clients have in common.
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
	user := cfg.User
	if user == "" {
		user = "node/" + h.cfg.Node.Name
	}
	return client.Options{
		Servers: []string{cfg.Server}, User: user, Password: secret, TLS: secure, KeepAlive: cfg.Keepalive,
		Backoff:  client.Backoff{Min: cfg.Retry.Backoff.Min, Max: cfg.Retry.Backoff.Max},
		Attempts: cfg.Retry.Attempts, Log: h.log, Counters: &h.up.queues,
	}, nil
}

// otherNode is who the certificate says we are, if that isn't this node; a password
// counts before a certificate. The node works alone then, as with a wrong password: it is
// no reason to stop it.
func otherNode(o client.Options, node string) string {
	leaf := client.Leaf(o.TLS)
	if o.Password != "" || leaf == nil || leaf.Subject.CommonName == node {
		return ""
	}
	return leaf.Subject.CommonName
}

// forward sends streams over a connection, once the hub has caught up with state in it.
func (h *hubLink) forward(ctx context.Context, c *client.Client, caughtUp <-chan struct{}) {
	select {
	case <-caughtUp:
	case <-ctx.Done():
		return
	}
	forward.New(forward.Options{
		Open: h.broker.OpenOutlet, Publish: c.PublishAsync, Reconnect: c.Reconnect, Topic: cloudName(h.cfg.Node.Name),
		Budget: h.budget, Log: h.log,
	}).Run(ctx)
}

const reportEvery = 10 * time.Second

// reporter logs what was dropped of the streams since it was last called.
func (h *hubLink) reporter() func() {
	last := h.broker.OutletStats().Dropped
	return func() {
		now := h.broker.OutletStats().Dropped
		line := h.log.Warn()
		lost := int64(0)
		for reason, n := range now {
			if n -= last[reason]; n > 0 {
				line = line.Int64(reason, n)
				lost += n
			}
		}
		if last = now; lost > 0 {
			line.Int64("messages", lost).Msg("telemetry, events or bridged messages were dropped before the hub had them")
		}
	}
}
