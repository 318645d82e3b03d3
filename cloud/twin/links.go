package twin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// lateAfter is how old what a connected node lacks may be before it counts as late.
const lateAfter = 30 * time.Second

// contact is what is known of a node's connections since the hub was started. There is
// one for each node: it is kept small, and nothing of it is stored.
type contact struct {
	since     int64 // when the node came online or went offline; all times in ms, 0: not known
	last      int64 // when it was last heard
	expires   int64 // its certificate
	ahead     int64 // ms that its clock is ahead of ours
	clocked   bool  // ahead is known
	links     uint32
	takeovers uint32
	remote    string
	ended     string // why the last connection did
	anomaly   *resource.Anomaly
	told      bool // of an anomaly in this connection
}

func (c *contact) began(now time.Time, id broker.Identity) {
	c.since, c.last, c.remote = now.UnixMilli(), now.UnixMilli(), id.Remote
	c.links++
	c.told = false
	c.expires = 0
	if !id.CertExpires.IsZero() {
		c.expires = id.CertExpires.UnixMilli()
	}
}

// over notes the end of a connection, and says whether another took its place.
func (c *contact) over(now time.Time, cause error) (takenOver bool) {
	c.since, c.ended = now.UnixMilli(), "the node said goodbye"
	if cause != nil {
		c.ended = cause.Error()
	}
	if takenOver = errors.Is(cause, broker.ErrTakenOver); takenOver {
		c.takeovers++
	}
	return takenOver
}

func (c *contact) heard(now time.Time, clock int64) {
	c.last = now.UnixMilli()
	if clock != 0 {
		c.ahead, c.clocked = clock-c.last, true
	}
}

// setAway says whether a node has been offline for so long that what it reported of its
// devices can't be relied on, and has their statuses say so. A node that comes back soon, as
// all do when the hub is restarted, costs no writes.
func (t *Twins) setAway(n *node, away bool) {
	if n.away == away {
		return
	}
	n.away = away
	for name := range n.bound {
		t.status.device(name)
	}
}

func (t *Twins) noteAway(b *batch, n *node) {
	since := max(n.contact.since, t.started.UnixMilli())
	if n.core == "" && b.now.Sub(time.UnixMilli(since)) >= t.o.AwayAfter {
		t.setAway(n, true)
	}
}

// nodeOnline is a Device's word about its node. One that was never away has none.
func nodeOnline(list []resource.Condition, r resource.Reachability, now time.Time) []resource.Condition {
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

// Registered says whether there is a Node of that name, and whether there is any.
func (t *Twins) Registered(name string) (there, any bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.registered[name], len(t.registered) > 0
}

// register takes note of whether there is a Node of that name: devices' statuses say when there is none.
func (t *Twins) register(name string, there bool) {
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

// recallAway takes from a Device's stored status that its node was away when the hub stopped.
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

// clockOf is the sender's clock, which a core tells now and then beside what it says. 0: not told.
func clockOf(m broker.Message) int64 {
	for _, p := range m.Props.User {
		if p.Key == "ts" {
			if at, err := resource.ParseTime(p.Value); err == nil {
				return at.UnixMilli()
			}
		}
	}
	return 0
}

// behindFor is the age of the oldest key that the node lacks. What was written before
// this connection is as old as the connection at most: whether the node lacked it
// before can't be known after a restart of the hub.
func (n *node) behindFor(now time.Time) time.Duration {
	ts, ok := n.down.Oldest()
	if !ok {
		return 0
	}
	return max(now.Sub(time.UnixMilli(max(ts, n.contact.since))), 0)
}

func (t *Twins) link(n *node, now time.Time) resource.Link {
	c := &n.contact
	l := resource.Link{
		Node: n.name, State: n.state(), Since: resource.Millis(c.since), LastSeen: resource.Millis(c.last),
		InStep: n.core != "" && n.down.InStep(), Peer: c.remote, LastError: c.ended,
		OverQuota: n.oversize, OtherHub: t.otherHub(n), Anomaly: c.anomaly, Connections: int(c.links), Takeovers: int(c.takeovers), CertificateExpires: resource.Millis(c.expires),
	}
	if c.links > 0 { // or what it has is not known
		l.Behind = &resource.Behind{Keys: n.down.Dirty(), Seconds: n.behindFor(now).Seconds()}
	}
	if c.clocked {
		seconds := float64(c.ahead) / 1000
		l.ClockAhead = &seconds
	}
	return l
}

// Links looks at one node, or at all of them, the worst ones first and at most so
// many. There is none if nobody has heard of the node.
func (t *Twins) Links(name string, most int) (links []resource.Link, more int) {
	t.mu.RLock()
	now := t.o.Now()
	for _, n := range t.nodes {
		if name == "" || n.name == name {
			links = append(links, t.link(n, now))
		}
	}
	t.mu.RUnlock()
	slices.SortFunc(links, func(a, b resource.Link) int {
		return cmp.Or(cmp.Compare(badness(b), badness(a)), strings.Compare(a.Node, b.Node))
	})
	if len(links) > most {
		links, more = links[:most], len(links)-most
	}
	for i := range links {
		links[i].Version = t.version(links[i].Node)
		links[i].Rejected = t.rejects.of(links[i].Node)
	}
	if r := t.rejects.of(name); len(links) == 0 && r != nil {
		links = append(links, resource.Link{Node: name, State: resource.Unknown, Rejected: r})
	}
	return links, more
}

// badness orders links: those that are offline, those that are behind by their
// lag, those that have said nothing wrong.
func badness(l resource.Link) float64 {
	switch {
	case l.State != resource.Online || l.OverQuota != "" || l.OtherHub != "":
		return 1e12
	case !l.InStep && l.Behind != nil:
		return 1 + l.Behind.Seconds
	}
	return 0
}

// version is what the node says that its core is.
func (t *Twins) version(name string) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var report resource.NodeReport
	if n := t.nodes[name]; n != nil {
		if e, ok := n.up.Get(topics.Address{Kind: topics.KindStatus}.Key()); ok {
			_ = json.Unmarshal(e.Value, &report) // a node that reports nonsense about itself has no version to show
		}
	}
	return report.Version
}

// rejects are the last connections that were not let in, by the node in whose name
// they came. Anybody can make them up: there is room for so many names, and the
// oldest goes first.
type rejects struct {
	mu     sync.Mutex
	byNode map[string]*resource.Rejection
}

const maxRejects = 1024

// Rejected is told by the hub's broker of connections that it does not let in.
func (t *Twins) Rejected(r broker.Rejection) {
	name, ok := strings.CutPrefix(r.ClientID, "node/")
	if !ok {
		name, ok = strings.CutPrefix(r.User, "node/")
	}
	if !ok || !topics.ValidName(name) {
		return
	}
	t.rejects.add(name, r, resource.Time(t.o.Now()))
	t.noteRejected(name, r)
}

func (r *rejects) add(name string, what broker.Rejection, at string) {
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

func (r *rejects) dropOldest() {
	oldest := ""
	for name, x := range r.byNode {
		if oldest == "" || x.Time < r.byNode[oldest].Time {
			oldest = name
		}
	}
	delete(r.byNode, oldest)
}

func (r *rejects) of(name string) *resource.Rejection {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byNode[name]
}
