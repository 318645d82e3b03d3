package edge

import (
	"context"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/calls"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/twin"
	"github.com/edgebus/edgebus/topics"
)

// newLink makes the client that connects the twin with the hub. Its session is
// clean at every start: what was missed is said again by the link, not by the broker.
func newLink(cfg configs.Link, node string, tw *twin.Twin, commands *calls.Calls, up *uplink, log zerolog.Logger) (*client.Client, error) {
	upwards, downwards := topics.Sync(node)
	secret, err := cfg.Secret()
	if err != nil {
		return nil, err
	}
	secure, err := cfg.TLS.Config()
	if err != nil {
		return nil, err
	}
	user := cfg.User
	if user == "" {
		user = "node/" + node
	}
	var c *client.Client
	send := func(payload []byte) {
		c.PublishAsync(client.Message{Topic: upwards, Payload: payload, QoS: 1, User: up.clock()}, func(err error) {
			if err != nil {
				log.Debug().Err(err).Msg("a message to the hub was not delivered: the link says it again")
			}
		})
	}
	c, err = client.New(up.watch(client.Options{
		Servers: []string{cfg.Server}, ClientID: "node/" + node, User: user, Password: secret, TLS: secure,
		KeepAlive: cfg.Keepalive, CleanStart: true,
		Subscriptions: []client.Subscription{{Filter: downwards, QoS: 1}, {Filter: commandsOf(node)}},
		OnConnect: func(context.Context, bool) error {
			tellClock(commands, c, node)
			tw.Connected(nonce(), send)
			return nil
		},
		OnDisconnect: func(error) { tw.Disconnected() },
		OnMessage: func(m client.Message) {
			if m.Topic == downwards {
				tw.Receive(m.Payload)
			} else {
				ask(commands, c, m)
			}
		},
		Backoff:  client.Backoff{Min: cfg.Retry.Backoff.Min, Max: cfg.Retry.Backoff.Max},
		Attempts: cfg.Retry.Attempts, Log: log,
	}))
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	return c, nil
}

// runLink keeps the link up. When it gives up (link.retry.attempts) the node goes on alone.
func runLink(ctx context.Context, cfg configs.Core, tw *twin.Twin, commands *calls.Calls, up *uplink, log zerolog.Logger) error {
	c, err := newLink(cfg.Link, cfg.Node.Name, tw, commands, up, log)
	if err != nil {
		return err
	}
	stop := every(clockEvery, func() { tellClock(commands, c, cfg.Node.Name) })
	defer stop()
	if err := c.Run(ctx); err != nil && ctx.Err() == nil {
		log.Error().Err(err).Msg("the link to the hub was given up: the node works alone until the core is restarted")
		<-ctx.Done()
	}
	return nil
}
