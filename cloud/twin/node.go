package twin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// node finds a node's state, or makes it: a node is known from its first
// connection, or from the first Device that is bound to it.
func (t *Twins) node(name string) *node {
	n := t.nodes[name]
	if n == nil {
		n = &node{
			name: name, bound: make(map[string]bool),
			down: link.NewProjection(link.Down, t.nonce), up: link.NewReplica(link.Up),
		}
		n.up.SetQuota(t.opts.Quota)
		t.nodes[name] = n
		i, _ := slices.BinarySearch(t.names, name)
		t.names = slices.Insert(t.names, i, name)
	}
	return n
}

// sync is a message of the link to the node.
func (n *node) sync(payload []byte) broker.Message {
	_, down := topics.SyncTopics(n.name)
	return broker.Message{Topic: down, Payload: payload, QoS: 1}
}

func (n *node) retained(key string, payload []byte) broker.Message {
	return tree.DocumentMessage(n.name, key, payload)
}

func (n *node) state() string {
	if n.linkClient != "" {
		return resource.Online
	}
	return resource.Offline
}

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
		n := t.node(id.Node)
		n.linkClient = id.ClientID
		t.recordJoined(b, n, id)
		n.connections.connected(b.now, id)
		t.stats.links.Add(1)
		t.setAway(n, false)
		n.down.Connect(t.opts.Rand())
		b.activeLinks[n] = true
		t.publishPresence(b, n)
		t.opts.Log.Info().Str("node", n.name).Str("remote", id.Remote).Msg("node is online")
	})
}

// Disconnected ends the link with the connection that it was on.
func (t *Twins) Disconnected(id *broker.Identity, cause error) {
	if !id.Has(topics.RoleNode) {
		return
	}
	t.host.Put(linkSender(id.Node), 0, func(b *batch) {
		n := t.nodes[id.Node]
		if n == nil || n.linkClient != id.ClientID {
			return
		}
		n.linkClient = ""
		takenOver := n.connections.disconnected(b.now, cause)
		if takenOver {
			t.stats.takeovers.Add(1)
		}
		t.recordLeft(b, n, takenOver)
		n.down.Disconnect()
		t.publishPresence(b, n)
		t.opts.Log.Warn().AnErr("cause", cause).Str("node", n.name).Str("remote", id.Remote).Msg("node is offline")
	})
}

func (t *Twins) publishPresence(b *batch, n *node) {
	b.publishes = append(b.publishes, n.retained(stateKey, []byte(n.state())))
	t.status.node(n.name)
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
	taken := t.host.Put(linkSender(name), len(said.Payload)+entryCost*len(m.Entries), func(b *batch) {
		n := t.node(name)
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
			if t.checkHub(b, n, m) {
				n.down.Disconnect()
				return
			}
			if err := n.down.Step(m); err != nil {
				t.sampledLog.Warn().Err(err).Str("node", name).Msg("message from the node")
			}
			t.recordInStep(b, n)
			return
		}
		t.recordAnomaly(b, n, m)
		began := time.Now()
		changes := n.up.Step(m)
		b.changes += len(changes)
		for i := range changes {
			t.handleReported(b, n, &changes[i])
		}
		if m.Type == link.TypeFull {
			n.fullPacer.charge(b.now, m, time.Since(began))
		}
		t.recordOversize(b, n)
	})
	if !taken {
		done(errStopped)
	}
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
// changes nothing but its own replica. The change is published once it is stored, if the topic has a subscriber. Later subscribers
// read it as a retained message, and those are not read before the commit.
func (t *Twins) handleReported(b *batch, n *node, c *link.Entry) {
	a, ok := edgeOwned(n.name, c.Key)
	if !ok {
		return
	}
	if (c.Deleted || n.shows(a)) && t.opts.Wanted(topics.TopicOf(n.name, c.Key)) {
		b.reports = append(b.reports, tree.EntryMessage(n.name, *c))
	}
	t.recordReported(b, n, a, c)
	t.noteReport(n.name, a.Kind, c.Key)
	switch {
	case a.Kind == topics.KindStatus, a.Kind == topics.KindAgent, a.Kind == topics.KindAgentState, a.Kind == topics.KindDiscovererState:
		t.status.node(n.name)
	case a.Kind == topics.KindMapperState, a.Kind == topics.KindMapperProtocols:
		for name := range n.bound { // the status of each device depends on the node's mappers
			t.status.device(name)
		}
	case a.Device != "" && n.bound[a.Device]:
		t.status.device(a.Device)
	}
}

func edgeOwned(node, key string) (topics.Address, bool) {
	a, err := topics.ParseKey(node, key)
	if err != nil {
		return a, false
	}
	row := a.Kind.Row()
	return a, row.Owner == topics.OwnerEdge && row.Retain
}

// shows reports whether an address is shown: of devices' keys only those of devices that are bound to the node.
func (n *node) shows(a topics.Address) bool {
	return !strings.HasPrefix(a.Key(), "devices/") || n.bound[a.Device]
}

// formerDevice is what a node had reported of a Device when that left the node. A Device that is made with the same name while the node is
// away has none of it: the node clears it once it knows of the other one, and what it reports of that has other versions.
type formerDevice struct {
	uid     string
	entries map[string]reportVersion
}

type reportVersion struct {
	ver uint64
	ts  int64 // a node that was installed anew counts anew
}

// noteFormer notes what is reported of a Device that leaves the node.
func (n *node) noteFormer(d *device) {
	f := formerDevice{d.uid, make(map[string]reportVersion)}
	n.up.Range("devices/"+d.name+"/", func(e link.Entry) bool {
		f.entries[e.Key] = reportVersion{e.Ver, e.TS}
		return true
	})
	delete(n.formerDevices, d.name)
	if len(f.entries) == 0 {
		return
	}
	if n.formerDevices == nil {
		n.formerDevices = make(map[string]formerDevice)
	}
	n.formerDevices[d.name] = f
}

// isFormer reports whether an entry was reported of a former Device of the name.
func (n *node) isFormer(device string, e link.Entry) bool {
	id, noted := n.formerDevices[device].entries[e.Key]
	return noted && id == reportVersion{e.Ver, e.TS}
}

// currentEntry is a key of the map up, unless it is of a former Device.
func (n *node) currentEntry(device string) func(key string) (link.Entry, bool) {
	return func(key string) (link.Entry, bool) {
		e, ok := n.up.Get(key)
		return e, ok && !n.isFormer(device, e)
	}
}

// showReported publishes what a node had reported of a device before that was bound to it.
func (t *Twins) showReported(b *batch, n *node, device string) {
	if b.loading {
		return
	}
	n.up.Range("devices/"+device+"/", func(e link.Entry) bool {
		if _, ok := edgeOwned(n.name, e.Key); ok && !n.isFormer(device, e) && t.opts.Wanted(topics.TopicOf(n.name, e.Key)) {
			b.reports = append(b.reports, tree.EntryMessage(n.name, e))
		}
		return true
	})
}

// loadReplicas reads what the nodes had reported when the hub stopped.
func (t *Twins) loadReplicas(ctx context.Context) error {
	for r, err := range t.opts.Replicas.All(ctx) {
		if err != nil {
			return err
		}
		if err := t.node(r.Node).restore(r, t.opts.Quota); err != nil {
			return err
		}
	}
	return nil
}

func (t *Twins) reloadReplica(ctx context.Context, n *node) error {
	r, err := t.opts.Replicas.Load(ctx, n.name)
	if err != nil {
		return err
	}
	return n.restore(r, t.opts.Quota)
}

func (n *node) restore(r store.Replica, q link.Quota) error {
	if r.Meta == nil {
		n.up = link.NewReplica(link.Up)
		n.up.SetQuota(q)
		return nil
	}
	var state link.MapState
	if err := state.UnmarshalBinary(r.Meta); err != nil {
		return fmt.Errorf("the stored map of node %s: %w", n.name, err)
	}
	var damaged error
	up, err := link.RestoreReplica(link.Up, state, parseItems(r.Items, &damaged))
	if err = errors.Join(err, damaged); err != nil {
		return fmt.Errorf("the stored map of node %s: %w", n.name, err)
	}
	n.up = up
	n.up.SetQuota(q)
	return nil
}

func parseItems(items []store.ReplicaItem, bad *error) iter.Seq[link.Entry] {
	return func(yield func(link.Entry) bool) {
		for _, item := range items {
			e, err := link.ParseEntry(item.Key, item.Value)
			if err != nil {
				*bad = fmt.Errorf("key %q: %w", item.Key, err)
				return
			}
			if !yield(e) {
				return
			}
		}
	}
}

func nodeChange(name string, j link.JournalChanges) (store.NodeChange, error) {
	meta, err := j.State.MarshalBinary()
	c := store.NodeChange{Node: name, Reset: j.Reset, Meta: meta, Delete: j.Dropped, Put: make([]store.ReplicaItem, 0, len(j.Entries))}
	for _, e := range j.Entries {
		c.Put = append(c.Put, store.ReplicaItem{Key: e.Key, Value: link.EncodeEntry(e)})
	}
	return c, err
}

// Nodes are the names of all nodes that are known, in order.
func (t *Twins) Nodes() []string {
	t.host.RLock()
	defer t.host.RUnlock()
	return slices.Clone(t.names)
}

// lateAfter is the age of the oldest key that a connected node lacks at which the node counts as late.
const lateAfter = 30 * time.Second

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
		c := &t.node(name).connections
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
func (t *Twins) setAway(n *node, away bool) {
	if n.away == away {
		return
	}
	n.away = away
	for name := range n.bound {
		t.status.device(name)
	}
}

func (t *Twins) recordAway(b *batch, n *node) {
	since := max(n.connections.since, t.started.UnixMilli())
	if n.linkClient == "" && b.now.Sub(time.UnixMilli(since)) >= t.opts.AwayAfter {
		t.setAway(n, true)
	}
}

// setNodeOnline sets a Device's condition NodeOnline. A Device whose node was never away has none.
func setNodeOnline(list []resource.Condition, r resource.Reachability, now time.Time) []resource.Condition {
	switch {
	case r.OnUnknownNode():
		c := r.Condition()
		c.Type, c.Status = resource.ConditionNodeOnline, "False"
		return resource.SetCondition(list, c, now)
	case r.Away:
		return resource.SetCondition(list, resource.Condition{
			Type: resource.ConditionNodeOnline, Status: "False", Reason: resource.ReasonAway,
			Message: "node " + r.Node + " is offline: all else is what it reported last",
		}, now)
	case slices.ContainsFunc(list, func(c resource.Condition) bool { return c.Type == resource.ConditionNodeOnline }):
		return resource.SetCondition(list, resource.Condition{Type: resource.ConditionNodeOnline, Status: "True", Reason: "NodeOnline"}, now)
	}
	return list
}

// Registered reports whether there is a Node of that name, and whether there is any Node.
func (t *Twins) Registered(name string) (there, any bool) {
	t.host.RLock()
	defer t.host.RUnlock()
	return t.registered[name], len(t.registered) > 0
}

// setRegistered notes whether there is a Node of that name, which the statuses of its devices depend on.
func (t *Twins) setRegistered(name string, there bool) {
	if t.registered[name] == there {
		return
	}
	if delete(t.registered, name); there {
		t.registered[name] = true
	}
	if n := t.nodes[name]; n != nil {
		for device := range n.bound {
			t.status.device(device)
		}
	}
}

// recallAway restores from a Device's stored status that its node was away when the hub stopped.
func (t *Twins) recallAway(o store.Object) {
	d := t.devices[o.Name]
	if d == nil || t.nodes[d.node] == nil || t.nodes[d.node].away || !bytes.Contains(o.Status, []byte(resource.ConditionNodeOnline)) {
		return
	}
	for _, c := range conditionsOf(o.Status) {
		if c.Type == resource.ConditionNodeOnline && c.Status == "False" {
			t.nodes[d.node].away = true
		}
	}
}

// behindFor is the age of the oldest key that the node lacks. What was written before
// this connection is as old as the connection at most: whether the node lacked it
// before can't be known after a restart of the hub.
func (n *node) behindFor(now time.Time) time.Duration {
	ts, ok := n.down.Oldest()
	if !ok {
		return 0
	}
	return max(now.Sub(time.UnixMilli(max(ts, n.connections.since))), 0)
}

func (t *Twins) link(n *node, now time.Time) resource.Link {
	c := &n.connections
	l := resource.Link{
		Node: n.name, State: n.state(), Since: resource.FormatMillis(c.since), LastSeen: resource.FormatMillis(c.last),
		InStep: n.linkClient != "" && n.down.InStep(), Peer: c.remote, LastError: c.ended,
		OverQuota: n.quotaError, OtherHub: t.otherHub(n), Anomaly: c.anomaly, Connections: int(c.links), Takeovers: int(c.takeovers), CertificateExpires: resource.FormatMillis(c.expires),
	}
	if c.links > 0 { // or what it has is not known
		l.Behind = &resource.LinkLag{Keys: n.down.Dirty(), Seconds: n.behindFor(now).Seconds()}
	}
	if ahead, known := c.clockAhead(now); known {
		seconds := ahead.Seconds()
		l.ClockAhead = &seconds
	}
	return l
}

// Links looks at one node, or at all of them, the worst ones first and at most so
// many. There is none if the node is unknown.
func (t *Twins) Links(name string, most int) (links []resource.Link, more int) {
	t.host.RLock()
	now := t.opts.Now()
	for _, n := range t.nodes {
		present, _ := t.httpPresence.ofNode(n.name, t.opts.HTTPPresence)
		if never := present && n.linkClient == "" && n.connections.links == 0 && !n.reported(); !never && (name == "" || n.name == name) {
			links = append(links, t.link(n, now))
		}
	}
	t.host.RUnlock()
	slices.SortFunc(links, func(a, b resource.Link) int {
		return cmp.Or(cmp.Compare(linkSeverity(b), linkSeverity(a)), strings.Compare(a.Node, b.Node))
	})
	if len(links) > most {
		links, more = links[:most], len(links)-most
	}
	for i := range links {
		f := t.nodeFacts(links[i].Node)
		links[i].Version, links[i].RenewalError = f.core.Version, f.core.RenewalError
		if f.agent != nil && f.agent.Failed != nil {
			links[i].SpecFailed = f.agent.Failed.String()
		}
		if f.state == resource.Online {
			links[i].Stopped = f.stoppedPrograms()
		}
		links[i].Rejected = t.rejects.ofNode(links[i].Node)
	}
	if r := t.rejects.ofNode(name); len(links) == 0 && r != nil {
		links = append(links, resource.Link{Node: name, State: resource.Unknown, Rejected: r})
	}
	return links, more
}

// linkSeverity orders links, worst first: offline or refused nodes, then nodes that are behind, by their lag, then all others.
func linkSeverity(l resource.Link) float64 {
	switch {
	case l.State != resource.Online || l.OverQuota != "" || l.OtherHub != "":
		return 1e12
	case !l.InStep && l.Behind != nil:
		return 1 + l.Behind.Seconds
	}
	return 0
}

// rejections holds the last refused connection for each node name. Anybody can cause entries, with any name, so their number is bounded:
// the oldest is dropped first.
type rejections struct {
	mu     sync.Mutex
	byNode map[string]*resource.Rejection
}

const maxRejects = 1024

// Rejected is called by the broker for each connection that it refuses.
func (t *Twins) Rejected(r broker.RejectedConnect) {
	name, ok := strings.CutPrefix(r.ClientID, "node/")
	if !ok {
		name, ok = strings.CutPrefix(r.User, "node/")
	}
	if !ok || !topics.ValidName(name) {
		return
	}
	t.rejects.add(name, r, resource.FormatTime(t.opts.Now()))
	t.recordRejected(name, r)
}

func (r *rejections) add(name string, what broker.RejectedConnect, at string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byNode == nil {
		r.byNode = make(map[string]*resource.Rejection)
	}
	if r.byNode[name] == nil && len(r.byNode) >= maxRejects {
		r.dropOldest()
	}
	count := 1
	if old := r.byNode[name]; old != nil {
		count += old.Count
	}
	r.byNode[name] = &resource.Rejection{Count: count, Time: at, Reason: what.Reason, Remote: what.Remote}
}

func (r *rejections) dropOldest() {
	oldest := ""
	for name, x := range r.byNode {
		if oldest == "" || x.Time < r.byNode[oldest].Time {
			oldest = name
		}
	}
	delete(r.byNode, oldest)
}

func (r *rejections) ofNode(name string) *resource.Rejection {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byNode[name]
}

// Hub is the identity of this hub, and of the hubs that it replaces. A node whose map down came from another hub is left alone: most
// likely this hub has lost its data, or is not the hub that the node should connect to, and has fewer devices for the node than
// the node has.
//
// The hub that a map came from is part of its lineage: the upper half of the nonce is the identity of the hub that drew it. The link
// protocol doesn't interpret it. A node is left alone by disconnecting the owner of the map down before it has received the node's
// SEEN, as when a connection is lost. The map up is still synchronised.
type Hub struct {
	ID       resource.HubID
	Replaces []resource.HubID
}

func (h Hub) replaces(other resource.HubID) bool {
	return slices.Contains(h.Replaces, other)
}

// nonce draws the nonce of a new lineage.
func (t *Twins) nonce() uint64 { return link.NonceOf(uint32(t.opts.Hub.ID), t.opts.Rand()) }

// ownerHub is the other hub that a node's map came from; 0 if it came from this one, or is empty.
func (t *Twins) ownerHub(m link.Message) resource.HubID {
	id := resource.HubID(m.Lineage.OwnerID())
	if id == t.opts.Hub.ID || m.Lineage.N == 0 || t.emptyDigests[*m.Digest] {
		return 0
	}
	return id
}

// checkHub notes which hub the node's map came from, and reports whether the node is left alone.
func (t *Twins) checkHub(b *batch, n *node, m link.Message) bool {
	if m.Type == link.TypeSeen {
		t.recordOtherHub(b, n, t.ownerHub(m))
	}
	return t.leavesAlone(n)
}

func (t *Twins) leavesAlone(n *node) bool { return n.mapHub != 0 && !t.opts.Hub.replaces(n.mapHub) }

// recordOtherHub logs and records once that a node's map came from another hub, and whether it is replaced.
func (t *Twins) recordOtherHub(b *batch, n *node, id resource.HubID) {
	if n.mapHubKnown && n.mapHub == id {
		return
	}
	n.mapHubKnown, n.mapHub = true, id
	t.status.node(n.name)
	log := t.opts.Log.With().Str("node", n.name).Stringer("hub", id).Stringer("self", t.opts.Hub.ID).Logger()
	switch {
	case id == 0:
	case t.leavesAlone(n):
		b.addNodeEvent(n.name, resource.EventWarning, resource.OfAnotherHub, "", "%s", t.otherHubText(n))
		log.Error().Msg("the node has what another hub gave it, and keeps it: restore this hub's backup, or see replaces in hub.yaml")
	default:
		b.addNodeEvent(n.name, resource.EventNormal, "Replaced", "", "what %s gave it is replaced: this is %s", id, t.opts.Hub.ID)
		log.Warn().Msg("what another hub gave the node is replaced")
	}
}

// otherHubText is why a node is left alone; empty if it isn't.
func (t *Twins) otherHubText(n *node) string {
	if !t.leavesAlone(n) {
		return ""
	}
	return fmt.Sprintf("the node has what %s gave it, and keeps it: this is another hub, %s. If it has lost its data, restore its backup; "+
		"if it is to take the other's place, set replaces: [%s] in hub.yaml and start it again", n.mapHub, t.opts.Hub.ID, n.mapHub)
}

// otherHub is the hub because of which a node is left alone, as text; empty if it isn't.
func (t *Twins) otherHub(n *node) string {
	if !t.leavesAlone(n) {
		return ""
	}
	return n.mapHub.String()
}

// emptyMapDigests returns the digests of maps without a device, which may be replaced without loss: one that never had
// a device, and one after its last device left, as putMembership writes it.
func emptyMapDigests() map[link.Digest]bool {
	o := link.NewProjection(link.Down, func() uint64 { return 0 })
	never := o.Digest()
	text, _ := json.Marshal(resource.Membership{Devices: []string{}})              // never fails
	_, _, _ = o.Put(link.Entry{Key: membershipKey, Value: text, Ver: documentVer}) // never fails
	return map[link.Digest]bool{never: true, o.Digest(): true}
}

const forgetRetry = time.Second // until a deletion that failed is tried again

// recordOversize logs and records when a node's reports are first refused by the quota, and when they are first accepted again.
func (t *Twins) recordOversize(b *batch, n *node) {
	why := n.up.Refused()
	if why == n.quotaError {
		return
	}
	n.quotaError = why
	t.status.node(n.name)
	if why == "" {
		b.addNodeEvent(n.name, resource.EventNormal, "WithinQuota", "", "what the node reports is taken again")
		t.opts.Log.Info().Str("node", n.name).Msg("what the node reports is taken again")
		return
	}
	b.addNodeEvent(n.name, resource.EventWarning, resource.QuotaExceeded, "",
		"the node owns %s: nothing is taken of what it reports until it owns less", why)
	t.opts.Log.Error().Str("node", n.name).Str("reason", why).
		Msg("nothing is taken of what the node reports until it owns less: see limits.node")
}

// forgetNode handles the deletion of a Node: what the node reported is deleted, too. A node that is connected was accepted, so
// its Node is made again.
func (t *Twins) forgetNode(b *batch, name string) {
	n := t.nodes[name]
	if n == nil {
		t.opts.ForgetNode(name)
		return
	}
	n.lacksNode = false
	if n.linkClient != "" {
		t.status.node(name)
		return
	}
	b.deletedNodes[n] = true
}

// showMissing makes Nodes for nodes that reported something and have no Node: the hub was killed before it wrote one, or before it
// deleted the reports of a deleted one. These can't be told apart, and acknowledged data is not deleted on a guess: a deleted Node
// may appear again.
func (t *Twins) showMissing(have func(name string) bool) {
	for name, n := range t.nodes {
		if n.reported() && !have(name) {
			n.lacksNode = true
			t.status.node(name)
		}
	}
}

// reported reports whether anything that the node reported is stored.
func (n *node) reported() bool { return n.up.Lineage() != (link.Lineage{}) }

// deletions are the changes that delete what forgotten nodes reported. A node that has connected meanwhile stays.
func (b *batch) deletions() (changes []store.NodeChange) {
	for n := range b.deletedNodes {
		if n.linkClient != "" {
			delete(b.deletedNodes, n)
			continue
		}
		changes = append(changes, store.NodeChange{Node: n.name, Drop: true})
	}
	return changes
}

// removeForgotten forgets in memory what was dropped from the store.
func (t *Twins) removeForgotten(b *batch) {
	for n := range b.deletedNodes {
		n.up.Range("", func(e link.Entry) bool {
			if a, shown := edgeOwned(n.name, e.Key); shown {
				t.noteReport(n.name, a.Kind, e.Key)
				b.publishes = append(b.publishes, tree.EntryMessage(n.name, link.Entry{Key: e.Key, Ver: e.Ver, TS: b.now.UnixMilli(), Deleted: true}))
			}
			return true
		})
		t.opts.ForgetNode(n.name)
		n.up, n.quotaError = link.NewReplica(link.Up), ""
		n.mapHub, n.mapHubKnown = 0, false
		n.up.SetQuota(t.opts.Quota)
		for name := range n.bound {
			t.status.device(name)
		}
		t.dropUnused(b, n)
		t.opts.Log.Info().Str("node", n.name).Msg("the Node was deleted, and what it had reported with it")
	}
}

// dropUnused forgets a node that has reported nothing and that no object is for.
func (t *Twins) dropUnused(b *batch, n *node) {
	if n.linkClient != "" || n.reported() || len(n.bound) > 0 || n.documentCount > 0 || t.registered[n.name] {
		return
	}
	delete(t.nodes, n.name)
	i, _ := slices.BinarySearch(t.names, n.name)
	t.names = slices.Delete(t.names, i, i+1)
	b.publishes = append(b.publishes, n.retained(stateKey, nil))
}

func (t *Twins) retryForget(b *batch) {
	for n := range b.deletedNodes {
		time.AfterFunc(forgetRetry, func() { t.host.Put(tree.OwnSender, 0, func(b *batch) { t.forgetNode(b, n.name) }) })
	}
}

// CheckReplica reads a node's stored map as the hub does when it starts, and counts its keys.
func CheckReplica(r store.Replica) (keys int, err error) {
	n := &node{name: r.Node}
	if err := n.restore(r, link.Quota{}); err != nil {
		return 0, err
	}
	return n.up.Len(), nil
}
