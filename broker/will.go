package broker

import (
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgebus/edgebus/broker/journal"
)

// will is what a client wants published when its connection is lost.
type will struct {
	message Message
	delay   time.Duration
	packet  int // bytes of the CONNECT that it came in, and keeps in memory
}

// willOf is the will in a CONNECT; nil: none.
func willOf(pk *packets.Packet) *will {
	p := &pk.Connect
	if !p.WillFlag {
		return nil
	}
	return &will{
		message: Message{
			Topic: p.WillTopic, Payload: p.WillPayload, QoS: p.WillQos, Retain: p.WillRetain,
			Props: properties(&p.WillProperties),
		},
		delay:  time.Duration(p.WillProperties.WillDelayInterval) * time.Second,
		packet: pk.FixedHeader.Remaining,
	}
}

// weight is about what the will costs in memory.
func (w *will) weight() int { return outgoing(w.message, time.Time{}).Weight() + w.packet }

// publishWill publishes a will as if its client did. The changes that come along are
// stored with it.
func (b *Broker) publishWill(w *will, along ...journal.Change) {
	b.accept(w.message, nil, along, func(err error) {
		if err != nil {
			b.refused(w.message, err)
			if len(along) > 0 { // it is not tried again
				b.store.journal.Commit(along, nil)
			}
		}
	})
}
