// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"time"

	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// hubLink is this end of the link to the hub: the connection, and what is known of the hub in it.
type hubLink struct {
	opts    *Options
	up      *upMap
	down    *downMap
	devices *devices

	send  func(message []byte, traces []string) // nil while there is no link
	ready func()                                // called once in a connection, when the hub has caught up; nil: it was called
	nonce uint64                                // of this connection
	hub   resource.HubID                        // the hub that has sent HELLO in this connection; 0: none yet

	resend      *time.Timer     // for messages that the hub has not answered
	resendArmed bool            // resend runs
	traces      tree.LinkTraces // of the keys of up that are to be sent
	quotaError  string          // why the hub accepts no reports: the node's map exceeds its quota; empty: it accepts them
}

// hubSender is the hub as the sender of steps. No client has this name.
const hubSender = "$hub"

// Connected begins a connection to the hub. n is new for every connection; send
// hands a message over and does not block. ready is called once the hub has confirmed all that the node had to report when the
// connection began, or has refused it for its quota. Streams are sent after that.
func (t *Twin) Connected(n uint64, send func(message []byte, traces []string), ready func()) {
	t.host.Put(hubSender, 0, func(*batch) {
		t.link.send, t.link.nonce, t.link.ready, t.link.hub = send, n, ready, 0
		t.up.Connect(n)
		t.opts.Log.Info().Uint64("seq", t.up.Seq()).Int("behind", t.up.Dirty()).Msg("link to the hub is up")
	})
}

// Disconnected ends it.
func (t *Twin) Disconnected() {
	t.host.Put(hubSender, 0, func(*batch) {
		if t.link.send != nil {
			t.opts.Log.Warn().Msg("link to the hub is down: the node goes on by itself")
		}
		t.link.send, t.link.ready, t.link.hub = nil, nil, 0
		t.up.Disconnect()
	})
}

// Receive takes a message from the hub, with the traces of its keys. A malformed one is dropped: the link protocol sends its contents again.
func (t *Twin) Receive(payload []byte, traces []string) {
	m, err := link.Decode(payload)
	if err != nil {
		t.sampledLog.Warn().Err(err).Msg("malformed message from the hub")
		return
	}
	known := tree.ParseTraces(traces)
	t.host.Put(hubSender, len(payload), func(b *batch) {
		if b.refused != nil && (t.ignoresHub || m.Type != link.TypeHello && m.Type != link.TypeSeen) {
			return // the hub sends it again
		}
		if m.Map == link.Up {
			b.linkActive = true
			before := t.up.Lost()
			if err := t.up.Step(m); err != nil {
				t.sampledLog.Warn().Err(err).Msg("message from the hub")
			}
			if lost := t.up.Lost(); before == "" && lost != "" {
				t.opts.Log.Error().Str("lost", lost).Msg("this node's data is older than what the hub has acknowledged: an older copy of the data directory was put back, " +
					"or its disk lost what was written; the hub takes over the values that are here")
			}
			t.link.noteQuota()
			return
		}
		t.link.noteHub(m)
		for _, c := range t.down.Step(m) {
			t.documents.follow(b, c)
			t.traceReceived(b, c.Key, known[c.Key])
		}
	})
}

// caughtUp returns the function to be called if the hub has caught up in this connection. It is called once.
func (l *hubLink) caughtUp() (ready func()) {
	if l.ready == nil || !l.up.CaughtUp() && l.quotaError == "" {
		return func() {}
	}
	ready, l.ready = l.ready, nil
	return ready
}

// noteHub logs once in a connection that the node's map came from another hub.
func (l *hubLink) noteHub(m link.Message) {
	if m.Type != link.TypeHello || l.hub != 0 {
		return
	}
	l.hub = resource.HubID(m.Lineage.OwnerID())
	if other := l.otherHub(); other != 0 {
		l.opts.Log.Warn().Stringer("hub", l.hub).Stringer("other", other).
			Msg("what the node has is another hub's: it keeps that, unless this one is said to replace the other")
	}
}

// otherHub is the hub that the node's map came from, if a different one is connected; else 0.
func (l *hubLink) otherHub() resource.HubID {
	whose := resource.HubID(l.down.Lineage().OwnerID())
	if l.hub == 0 || l.hub == whose || len(l.devices.byName) == 0 {
		return 0
	}
	return whose
}

// noteQuota logs when the hub first refuses the node's reports for its quota, and when it first accepts them again.
func (l *hubLink) noteQuota() {
	why := l.up.Refused()
	if why == l.quotaError {
		return
	}
	l.quotaError = why
	if why == "" {
		l.opts.Log.Info().Msg("the hub takes what the node reports again")
		return
	}
	l.opts.Log.Error().Str("reason", why).Msg("the hub takes nothing of what the node reports until it owns less: see limits.node of both")
}

// messages are the messages that the link is to send now.
func (l *hubLink) messages(b *batch) []link.Message {
	if l.send == nil {
		return nil
	}
	out := append(l.down.Messages(), l.up.Messages()...)
	for _, m := range out {
		b.linkActive = b.linkActive || m.Map == link.Up
	}
	return out
}

// sendToHub sends messages to the hub one by one, so that it handles the first while the next is encoded.
func (l *hubLink) sendToHub(msgs []link.Message) {
	for _, m := range msgs {
		text, err := link.Encode(m)
		if err != nil {
			l.opts.Log.Error().Err(err).Msg("a message to the hub can't be encoded")
			continue
		}
		l.send(text, l.tracesOf(m))
	}
}

// tracesOf are the traces of what a message sends.
func (l *hubLink) tracesOf(m link.Message) []string {
	if m.Map != link.Up {
		return nil
	}
	return l.traces.Take(m.Entries)
}

// arm sets the timer for what is unanswered. A timer that runs is left alone: the steps of a busy node must not put it off.
func (l *hubLink) arm(b *batch) {
	switch waiting := l.send != nil && l.up.Waiting(); {
	case !waiting:
		l.resend.Stop()
		l.resendArmed = false
	case b.linkActive || !l.resendArmed:
		l.resend.Reset(l.opts.Timeout)
		l.resendArmed = true
	}
}
