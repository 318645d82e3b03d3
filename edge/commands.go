package edge

import (
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/calls"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
)

// commandsOf covers the commands for a node's devices.
func commandsOf(node string) string { return topics.Prefix + node + "/devices/+/commands/+" }

// ask takes a command from the hub, and sends the answer back. With the link lost
// meanwhile the hub has answered already.
func ask(commands *calls.Calls, hub *client.Client, m client.Message) {
	commands.Ask(asked(m), func(r broker.Message) { hub.PublishAsync(answer(r), nil) })
}

// tellClock tells the hub the clock of this core, if it is there.
func tellClock(commands *calls.Calls, hub *client.Client, node string) {
	a := topics.Address{Node: node, Kind: topics.KindClock}
	hub.PublishAsync(client.Message{Topic: a.String(), Payload: commands.Clock()}, nil)
}

// every calls f again and again, until stop is called.
func every(d time.Duration, f func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(d)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				f()
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}

func asked(m client.Message) broker.Message {
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

func answer(m broker.Message) client.Message {
	out := client.Message{
		Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Correlation: m.Props.Correlation, ContentType: m.Props.ContentType,
		Text: m.Props.PayloadFormat != nil && *m.Props.PayloadFormat == 1,
	}
	for _, p := range m.Props.User {
		out.User = append(out.User, client.UserProperty(p))
	}
	return out
}
