// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/edge/forward"
	"github.com/edgebus/edgebus/topics"
)

// hubStreams is the part of the link that forwards what the node's broker has queued for the hub.
type hubStreams struct {
	broker *broker.Broker
	budget *forward.Budget
	upload forward.Upload // the large message that is on its way
	node   string
	log    zerolog.Logger
}

// forward sends streams over a connection, after the hub has received all state in it.
func (h *hubStreams) forward(ctx context.Context, c *client.Client, caughtUp <-chan struct{}) {
	select {
	case <-caughtUp:
	case <-ctx.Done():
		return
	}
	forward.New(forward.Options{
		// What was taken from the queue for this connection would overtake, on the next one, what is sent again there.
		Publish: func(m client.Message, done func(error)) { c.PublishOver(ctx, m, done) },
		Open:    h.broker.LinkQueue().Open, Reconnect: c.Reconnect, Topic: hubTopic(h.node),
		Parts: topics.Address{Node: h.node, Kind: topics.KindParts}.String(), Upload: &h.upload,
		Budget: h.budget, Log: h.log,
	}).Run(ctx)
}

const dropLogInterval = 10 * time.Second

// dropReporter logs how many messages of streams were dropped since it was last called.
func (h *hubStreams) dropReporter() func() {
	last := h.broker.LinkQueue().Stats().Dropped
	return func() {
		now := h.broker.LinkQueue().Stats().Dropped
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
