// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"errors"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/tracing"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
	"github.com/edgebus/edgebus/topics/trace"
)

// linkSender is a node's link as the sender of steps.
func linkSender(node string) string { return "node/" + node }

// Connected does nothing: a node is online once its link has subscribed to sync/down (see Subscribed). Another client
// with the node's certificate does not make it so.
func (t *Twins) Connected(*broker.Identity) {}

// Subscribed begins the link when a core listens on its sync/down.
func (t *Twins) Subscribed(id *broker.Identity, filter string) {
	if _, down := topics.SyncTopics(id.Node); !id.IsLink() || filter != down {
		return
	}
	t.host.Put(linkSender(id.Node), 0, func(b *batch) {
		n := t.nodes.get(id.Node)
		n.linkClient = id.ClientID
		n.recordJoined(b, id)
		n.connections.connected(b.now, id)
		t.stats.links.Add(1)
		n.setAway(false)
		n.down.Connect(t.opts.Rand())
		b.activeLinks[n] = true
		n.publishPresence(b)
		t.opts.Log.Info().Str("node", n.name).Str("remote", id.Remote).Msg("node is online")
	})
}

// Disconnected ends the link with the connection that it was on.
func (t *Twins) Disconnected(id *broker.Identity, cause error) {
	if !id.Has(topics.RoleNode) {
		return
	}
	t.host.Put(linkSender(id.Node), 0, func(b *batch) {
		n := t.nodes.byName[id.Node]
		if n == nil || n.linkClient != id.ClientID {
			return
		}
		n.linkClient = ""
		takenOver := n.connections.disconnected(b.now, cause)
		if takenOver {
			t.stats.takeovers.Add(1)
		}
		n.recordLeft(b, takenOver)
		n.down.Disconnect()
		n.publishPresence(b)
		t.opts.Log.Warn().AnErr("cause", cause).Str("node", n.name).Str("remote", id.Remote).Msg("node is offline")
	})
}

func (n *node) publishPresence(b *batch) {
	b.publishes = append(b.publishes, n.retained(stateKey, []byte(n.state())))
	n.nodes.status.node(n.name)
}

// receiveFromNode takes a message of a node's link, which is acknowledged once it was taken: the node has no more messages on their way
// than that. A malformed one is dropped: the link protocol sends its contents again.
func (t *Twins) receiveFromNode(name string, said broker.Message, done func(error)) {
	m, err := link.Decode(said.Payload)
	if err != nil {
		t.sampledLog.Warn().Err(err).Str("node", name).Msg("malformed message from the node")
		done(nil)
		return
	}
	traces := tracesOf(said)
	taken := t.host.Put(linkSender(name), len(said.Payload)+entryCost*len(m.Entries), func(b *batch) {
		n := t.nodes.get(name)
		b.activeLinks[n] = true
		n.connections.last = b.now.UnixMilli()
		if b.refused != nil && m.Map == link.Up && m.Type != link.TypeHello { // the node sends it again
			b.acknowledge = append(b.acknowledge, done)
			return
		}
		if m.Type == link.TypeFull && m.Map == link.Up && !n.fullPacer.admit(b.now, m, n.up.Collects()) {
			t.sampledLog.Warn().Str("node", name).Msg("the node sends all that it reports again and again: it waits")
			time.AfterFunc(fullDropDelay, func() { done(nil) }) // the node sends it again
			return
		}
		b.acknowledge = append(b.acknowledge, done)
		if m.Map == link.Down {
			n.sentAt = b.now
			if n.checkHub(b, m) {
				n.down.Disconnect()
				return
			}
			if err := n.down.Step(m); err != nil {
				t.sampledLog.Warn().Err(err).Str("node", name).Msg("message from the node")
			}
			n.recordInStep(b)
			return
		}
		n.recordAnomaly(b, m)
		began := time.Now()
		changes := n.up.Step(m)
		b.changes += len(changes)
		for i := range changes {
			t.handleReported(b, n, &changes[i])
			t.traceReported(b, n, &changes[i], traces)
		}
		if m.Type == link.TypeFull {
			n.fullPacer.charge(b.now, m, time.Since(began))
		}
		n.recordQuota(b)
	})
	if !taken {
		done(errStopped)
	}
}

// tracesOf are the traces of the keys in a message of a node's link.
func tracesOf(m broker.Message) map[string]string {
	var values []string
	for _, p := range m.Props.User {
		if p.Key == trace.Property {
			values = append(values, p.Value)
		}
	}
	return tree.ParseTraces(values)
}

// traceReported begins the span of what a node reported because of a desired value. It ends when it is stored and published.
func (t *Twins) traceReported(b *batch, n *node, c *link.Entry, traces map[string]string) {
	traceparent := traces[c.Key]
	if traceparent == "" {
		return
	}
	span := t.opts.Traces.Follow(traceparent, "update status", tracing.Consumer, "edgebus.node", n.name, "edgebus.key", c.Key)
	b.spans = b.spans.Add(topics.TopicOf(n.name, c.Key), span)
	t.opts.Log.Debug().Str("node", n.name).Str("key", c.Key).Str("trace_id", trace.IDOf(traceparent)).Msg("reported")
}

// entryCost is what an entry of a decoded message takes in memory besides its texts.
const entryCost = 160

// fullPacer paces the FULLs of a node. One replaces a whole map, which costs the hub much more than it costs the node, and a node needs
// one after it or the hub was restored, not again and again: the next one waits for a hundred times as long as the last one took,
// in which what other nodes and users do goes on. The node's owner of the map sends it again meanwhile.
type fullPacer struct {
	id    uint64
	spent time.Duration // on the FULL with that id
	next  time.Time     // when another one may begin
}

const (
	fullPauseFactor = 100 // times what the last FULL took
	maxFullPause    = time.Minute
	fullDropDelay   = time.Second // until a part that was not taken is acknowledged: its sender is pushed back
)

// admit reports whether a part of a FULL is taken, while the map collects the parts of the FULL collects, or of none (0).
func (f *fullPacer) admit(now time.Time, m link.Message, collects uint64) bool {
	if collects != 0 && collects == m.ID {
		return true
	}
	if now.Before(f.next) && f.next.Sub(now) <= maxFullPause { // or the clock was set back
		return false
	}
	f.id, f.spent = 0, 0
	if m.Part == 0 { // any other part changes nothing, and is answered
		f.id = m.ID
	}
	return true
}

// charge counts what a part took.
func (f *fullPacer) charge(now time.Time, m link.Message, took time.Duration) {
	if f.id != m.ID {
		return // it was not collected
	}
	f.spent += took
	f.next = now.Add(min(fullPauseFactor*f.spent, maxFullPause))
}

// handleReported handles a change that a node made. Only keys that the edge owns are shown: a node that forges a key of another owner
// changes nothing but its own replica. The change is published once it is stored, if the topic has a subscriber by then: one that comes
// while it is being stored reads what was there before. Later subscribers read it as a retained message.
func (t *Twins) handleReported(b *batch, n *node, c *link.Entry) {
	a, ok := edgeOwned(n.name, c.Key)
	if !ok {
		return
	}
	if c.Deleted || n.shows(a) {
		b.shown = append(b.shown, shownReport{n.name, *c})
	}
	t.devices.recordReported(b, n, a, c)
	b.reported = append(b.reported, reportedKey{n, a.Kind, a.Device, c.Key})
}

// shownReport is what a node reported, for those who have subscribed to it once it is stored.
type shownReport struct {
	node  string
	entry link.Entry
}

// reportedKey is a key that a node changed.
type reportedKey struct {
	node   *node
	kind   topics.Kind
	device string // or mapper; empty: neither
	key    string
}

// noteReported tells those who read a key that it has changed. It is stored by then: they read what is stored.
func (t *Twins) noteReported(r reportedKey) {
	n := r.node
	t.reportWatches.note(n.name, r.kind, r.key)
	switch r.kind {
	case topics.KindStatus, topics.KindAgent, topics.KindAgentState, topics.KindDiscovererState:
		t.status.node(n.name)
	case topics.KindMapperState, topics.KindMapperProtocols:
		for name := range n.bound { // the status of each device depends on the node's mappers
			t.status.device(name)
		}
	default:
		if n.bound[r.device] {
			t.status.device(r.device)
		}
	}
}

// connectionRecord is what is known of a node's connections since the hub was started.
type connectionRecord struct {
	since           int64     // when the node came online or went offline; all times in ms, 0: not known
	last            int64     // when it last sent something
	expires         int64     // its certificate
	clock           time.Time // what its clock showed
	clockRead       time.Time // when it said that; zero: it didn't
	links           uint32
	takeovers       uint32
	remote          string
	ended           string // why the last connection did
	anomaly         *resource.Anomaly
	anomalyReported bool // in this connection
	continues       bool // the core has announced, in this connection, the lineage that the hub has
}

func (c *connectionRecord) connected(now time.Time, id *broker.Identity) {
	c.since, c.last, c.remote = now.UnixMilli(), now.UnixMilli(), id.Remote
	c.links++
	c.anomalyReported, c.continues = false, false
	c.expires = 0
	if !id.CertExpires.IsZero() {
		c.expires = id.CertExpires.UnixMilli()
	}
}

// disconnected notes the end of a connection, and reports whether another connection took it over.
func (c *connectionRecord) disconnected(now time.Time, cause error) (takenOver bool) {
	c.since, c.ended = now.UnixMilli(), "the node said goodbye"
	if cause != nil {
		c.ended = cause.Error()
	}
	if takenOver = errors.Is(cause, broker.ErrTakenOver); takenOver {
		c.takeovers++
	}
	return takenOver
}

// SetTime takes what a node's clock shows.
func (t *Twins) SetTime(name string, at time.Time) {
	t.host.Put(linkSender(name), 0, func(b *batch) {
		c := &t.nodes.get(name).connections
		c.last, c.clock, c.clockRead = b.now.UnixMilli(), at, b.now
	})
}

// clockAhead is how far the node's clock is ahead of ours, if it is known. It is of now: what the node said then has gone on since, as the time
// that a process measures does, and our clock may have been set.
func (c *connectionRecord) clockAhead(now time.Time) (d time.Duration, known bool) {
	return c.clock.Add(now.Sub(c.clockRead)).Sub(now.Round(0)), !c.clockRead.IsZero()
}

// setAway sets whether a node has been offline for longer than Options.AwayAfter, and queues the statuses of its devices, which
// show it. A node that reconnects before that, as all do when the hub is restarted, causes no status writes.
func (n *node) setAway(away bool) {
	if n.away == away {
		return
	}
	n.away = away
	for name := range n.bound {
		n.nodes.status.device(name)
	}
}

func (n *node) recordAway(b *batch) {
	since := max(n.connections.since, n.nodes.started.UnixMilli())
	if n.linkClient == "" && b.now.Sub(time.UnixMilli(since)) >= n.nodes.opts.AwayAfter {
		n.setAway(true)
	}
}
