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
	packet  int    // bytes of the CONNECT that it came in, and keeps in memory
	record  uint64 // on disk, of a session that isn't; 0: none
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
func (w *will) weight() int { return w.message.weight() + w.packet }

// keepWill stores the will of a session that ends with its connection: should the process die,
// that has ended. Nobody waits for it: a client gets in though the disk is full.
func (b *Broker) keepWill(w *will) {
	if w == nil || b.store == nil {
		return
	}
	w.record = b.store.ID()
	b.store.Commit([]journal.Change{w.change()}, func(error) {})
}

// dropWill forgets a will that is not to be published.
func (b *Broker) dropWill(w *will) {
	if w != nil && w.record > 0 {
		b.store.Forget(w.record)
	}
}

// publishWill publishes a will as if its client did. The changes that come along are
// stored with it.
func (b *Broker) publishWill(w *will, along ...journal.Change) {
	if w.record > 0 {
		along = append(along, journal.Change{ID: w.record})
	}
	b.accept(w.message, nil, along, func(err error) {
		if err != nil {
			b.refused(w.message, err)
			if len(along) > 0 { // it is not tried again
				b.store.journal.Commit(along, nil)
			}
		}
	})
}
