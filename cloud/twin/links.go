// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// links reports on the nodes' links.
type links struct {
	opts         *Options
	host         *tree.Host[*batch]
	nodes        *nodes
	httpPresence *httpPresence
	statuses     *statusWriter
	rejections   rejections
}

// recordRejected records a refused connection in the name of a known node. Anybody can use any name, so other names are ignored.
func (ls *links) recordRejected(name string, r broker.RejectedConnect) {
	ls.host.RLock()
	known := ls.nodes.byName[name] != nil
	ls.host.RUnlock()
	if known {
		ls.opts.Record(nodeEvent(name, resource.EventWarning, "Rejected", "", "a connection in its name from %s was not let in: %s", r.Remote, r.Reason))
	}
}

// Links looks at one node, or at all of them, the worst ones first and at most so
// many. There is none if the node is unknown.
func (ls *links) Links(name string, most int) (links []resource.Link, more int) {
	ls.host.RLock()
	now := ls.opts.Now()
	for _, n := range ls.nodes.byName {
		present, _ := ls.httpPresence.ofNode(n.name, ls.opts.HTTPPresence)
		if never := present && n.linkClient == "" && n.connections.links == 0 && !reported(n.up); !never && (name == "" || n.name == name) {
			links = append(links, n.link(now))
		}
	}
	ls.host.RUnlock()
	slices.SortFunc(links, func(a, b resource.Link) int {
		return cmp.Or(cmp.Compare(linkSeverity(b), linkSeverity(a)), strings.Compare(a.Node, b.Node))
	})
	if len(links) > most {
		links, more = links[:most], len(links)-most
	}
	for i := range links {
		f := ls.statuses.nodeFacts(links[i].Node)
		links[i].Version, links[i].RenewalError = f.core.Version, f.core.RenewalError
		if f.agent != nil && f.agent.Failed != nil {
			links[i].SpecFailed = f.agent.Failed.String()
		}
		if f.state == resource.Online {
			links[i].StoppedPrograms = f.stoppedPrograms()
		}
		links[i].Rejected = ls.rejections.ofNode(links[i].Node)
	}
	if r := ls.rejections.ofNode(name); len(links) == 0 && r != nil {
		links = append(links, resource.Link{Node: name, State: resource.Unknown, Rejected: r})
	}
	return links, more
}

// Rejected is called by the broker for each connection that it refuses.
func (ls *links) Rejected(r broker.RejectedConnect) {
	name, ok := strings.CutPrefix(r.ClientID, "node/")
	if !ok {
		name, ok = strings.CutPrefix(r.User, "node/")
	}
	if !ok || !topics.ValidName(name) {
		return
	}
	ls.rejections.add(name, r, resource.FormatTime(ls.opts.Now()))
	ls.recordRejected(name, r)
}

// lateAfter is the age of the oldest key that a connected node lacks at which the node counts as late.
const lateAfter = 30 * time.Second

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

func (n *node) link(now time.Time) resource.Link {
	c := &n.connections
	l := resource.Link{
		Node: n.name, State: n.state(), Since: resource.FormatMillis(c.since), LastSeen: resource.FormatMillis(c.last),
		InStep: n.linkClient != "" && n.down.InStep(), Peer: c.remote, LastError: c.ended,
		OverQuota: n.quotaError, OtherHub: n.otherHub(), Anomaly: c.anomaly, Connections: int(c.links), Takeovers: int(c.takeovers), CertificateExpires: resource.FormatMillis(c.expires),
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
