// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/calls"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// hubCommands is the part of the link that executes the hub's commands, and has the hub know the clock by which they expire.
type hubCommands struct {
	calls *calls.Calls
	node  string
}

// clockInterval is how often the node's clocks are sent to the hub, which compares the system's with its own.
const clockInterval = time.Minute

// commandFilter covers the commands for a node's devices.
func commandFilter(node string) string { return topics.Prefix + node + "/devices/+/commands/+" }

// execute executes a command of the hub, and sends the answer back. If the link is lost meanwhile, the hub has answered the command
// itself.
func (c hubCommands) execute(hub *client.Client, m client.Message) {
	c.calls.Ask(toBrokerMessage(m), func(r broker.Message) { hub.PublishAsync(toClientMessage(r), nil) })
}

// publishClock sends the core's clock to the hub, if it is connected, and what the system's clock shows now.
func (c hubCommands) publishClock(hub *client.Client) {
	a := topics.Address{Node: c.node, Kind: topics.KindClock}
	hub.PublishAsync(client.Message{
		Topic: a.String(), Payload: c.calls.Clock(), User: []client.UserProperty{{Key: calls.PropTime, Value: resource.FormatTime(time.Now())}},
	}, nil)
}

func toBrokerMessage(m client.Message) broker.Message {
	out := broker.Message{Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Props: broker.Properties{
		ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, Correlation: m.Correlation,
		Expiry: uint32(m.Expiry / time.Second),
	}}
	if m.Text {
		format := byte(1)
		out.Props.PayloadFormat = &format
	}
	for _, p := range m.User {
		out.Props.User = append(out.Props.User, broker.UserProperty(p))
	}
	return out
}

func toClientMessage(m broker.Message) client.Message {
	out := client.Message{
		Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Correlation: m.Props.Correlation, ContentType: m.Props.ContentType,
		Text: m.Props.PayloadFormat != nil && *m.Props.PayloadFormat == 1,
	}
	for _, p := range m.Props.User {
		out.User = append(out.User, client.UserProperty(p))
	}
	return out
}
