package forward

import (
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
)

// propTS is when something was so. The publisher says it, or it is when the node's
// broker took the message: the hub gets it later, perhaps by days.
const propTS = "ts"

// timeFormat is RFC 3339 with milliseconds.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// message is what the hub gets. A response topic doesn't travel: it means nothing there.
func message(p broker.Parcel, topic string) client.Message {
	m := client.Message{
		Topic: topic, Payload: p.Payload, Retain: p.Retain,
		ContentType: p.Props.ContentType, Correlation: p.Props.Correlation,
		Text:   p.Props.PayloadFormat != nil && *p.Props.PayloadFormat == 1,
		Expiry: time.Duration(p.Expiry) * time.Second,
	}
	if p.ID > 0 {
		m.QoS = 1
	}
	timed := false
	for _, u := range p.Props.User {
		m.User = append(m.User, client.UserProperty(u))
		timed = timed || u.Key == propTS
	}
	if !timed && !p.At.IsZero() {
		m.User = append(m.User, client.UserProperty{Key: propTS, Value: p.At.UTC().Format(timeFormat)})
	}
	return m
}

// Size is about what a message costs on the link.
func Size(m client.Message) int {
	n := 16 + len(m.Topic) + len(m.Payload) + len(m.ContentType) + len(m.Correlation)
	for _, u := range m.User {
		n += 5 + len(u.Key) + len(u.Value)
	}
	return n
}
