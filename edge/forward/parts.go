package forward

import (
	"bytes"
	"crypto/rand"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics/link"
)

const (
	leastWindow = 4 << 10          // bytes on their way, over the slowest line; also the smallest part
	firstWindow = 2 * leastWindow  // until the line is known
	mostPart    = link.MaxPart / 2 // over a fast line
	mostHeld    = 2 << 20          // bytes of messages that were taken from the queue and wait
	// An answer that comes so much later than the quickest one shows that the line has room, or that too much is on its way.
	quickAnswer = 250 * time.Millisecond
	lateAnswer  = 4 * quickAnswer
)

// Upload is the message that goes to the hub in parts. It outlives connections: the next one goes on with the first byte that the hub has
// not acknowledged.
type Upload struct {
	running sync.Mutex // held while a Forwarder runs

	id      []byte
	topic   string
	payload []byte
	acked   int  // bytes from the beginning that the hub has
	whole   bool // the hub has no room for parts: send it as one packet
}

// of makes u the upload of a message. It goes on if the message is the one that was under way.
func (u *Upload) of(m client.Message) {
	if u.id != nil && u.topic == m.Topic && bytes.Equal(u.payload, m.Payload) {
		return
	}
	u.id, u.topic, u.payload, u.acked, u.whole = []byte(rand.Text())[:16], m.Topic, m.Payload, 0, false
}

// heldMessage was taken from the queue and waits: it is large, or of the topic of one before it that waits.
type heldMessage struct {
	p broker.LinkMessage
	m client.Message
	n int // size
}

// window is how many bytes may be on their way. It grows while answers are quick and shrinks when they are late, so that what is small,
// and the node's state, waits for seconds only behind what was sent before it.
type window struct {
	bytes, most int
	quickest    time.Duration // answer over this connection
	shrunk      time.Time
}

// answered notes that the hub has answered a message of n bytes that was sent at the given time.
func (w *window) answered(n int, sent, now time.Time) {
	took := now.Sub(sent)
	if w.quickest == 0 || took < w.quickest {
		w.quickest = took
	}
	switch queued := took - w.quickest; {
	case queued < quickAnswer:
		w.bytes = min(w.bytes+n, w.most)
	case queued > lateAnswer && sent.After(w.shrunk):
		w.bytes, w.shrunk = max(w.bytes/2, leastWindow), now
	}
}

// hold reports whether a message waits for its turn among the held ones, and adds it. f.mu is held.
func (f *Forwarder) hold(h *heldMessage) bool {
	wait := f.o.Parts != "" && f.large(h.n)
	for _, before := range f.held {
		wait = wait || before.m.Topic == h.m.Topic
	}
	if wait {
		f.held = append(f.held, h)
		f.heldBytes += h.n
	}
	return wait
}

// large reports whether a message of n bytes would keep others waiting for too long. f.mu is held.
func (f *Forwarder) large(n int) bool { return n > max(f.window.bytes, firstWindow) }

// partDue reports whether it is a part's turn: between two parts others go that are together as large as one. f.mu is held.
func (f *Forwarder) partDue() bool { return len(f.held) > 0 && f.sincePart >= f.partSize() }

func (f *Forwarder) partSize() int { return min(max(f.window.bytes/4, leastWindow), mostPart) }

// sendHeld sends the next part of the first held message, or all of it if it is small. It reports false if there is nothing to send.
func (f *Forwarder) sendHeld(out *broker.LinkConsumer) bool {
	f.mu.Lock()
	if len(f.held) == 0 || f.heldSent {
		f.mu.Unlock()
		return false
	}
	f.sincePart = 0
	h, u := f.held[0], f.o.Upload
	if f.next == 0 { // it is this message's turn
		u.of(h.m)
		f.begun, f.next = u.acked, u.acked
	}
	if u.whole || f.next == 0 && !f.large(h.n) {
		f.heldSent = true
		f.mu.Unlock()
		f.publish(h.m, h.n, func(err error) {
			f.dropHeld(h, err)
			f.settle(out, h.p, err)
		})
		return true
	}
	part := link.Part{ID: u.id, Size: len(h.m.Payload), Offset: f.next}
	part.Content = h.m.Payload[f.next:min(f.next+f.partSize(), part.Size)]
	f.next += len(part.Content)
	m := client.Message{QoS: 1}
	last := part.Last()
	if last {
		m, part.Topic, f.heldSent = h.m, h.m.Topic, true
	}
	m.Topic = f.o.Parts
	end := f.next
	f.mu.Unlock()
	var err error
	if m.Payload, err = link.EncodePart(part); err != nil {
		f.log.Error().Err(err).Str("topic", h.p.Topic).Msg("a part can't be encoded: the message is dropped")
		f.dropHeld(h, err)
		out.Reject(h.p.ID)
		return true
	}
	anew := f.begun > 0 // or else the hub has no room for parts
	f.publish(m, Size(m), func(err error) {
		f.mu.Lock()
		switch {
		case err == nil:
			u.acked = max(u.acked, end)
		case !gone(err):
			u.acked, u.whole = 0, !anew
		}
		f.mu.Unlock()
		switch {
		case last || err != nil && !gone(err) && permanent(err):
			if f.dropHeld(h, err) {
				f.settle(out, h.p, err)
			}
		case err != nil:
			f.end(err)
		}
	})
	return true
}

// dropHeld ends the wait of the first held message, whose outcome is known. It reports false if that was known before: the parts behind one
// that is refused are refused as well.
func (f *Forwarder) dropHeld(h *heldMessage, err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.held) == 0 || f.held[0] != h {
		return false
	}
	f.heldBytes -= h.n
	f.held = f.held[1:]
	f.next, f.heldSent = 0, false
	if u := f.o.Upload; err == nil || !gone(err) && permanent(err) {
		u.id, u.payload = nil, nil
	}
	return true
}
