// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// defaultHTTPPresence is longer than flightctl's agent waits for an answer.
const defaultHTTPPresence = 5 * time.Minute

// httpPresence is which nodes are present that speak HTTP. There is no connection whose end could be seen: a node is present while it
// waits for an answer, and for a time after it.
type httpPresence struct {
	opts   *Options
	status *statusQueue

	mu    sync.Mutex
	nodes map[string]*httpNode
}

type httpNode struct {
	requests int         // without an answer yet
	expiry   *time.Timer // ends the presence; nil: it has ended
}

// AskedOverHTTP notes a request of a node over HTTP. answered must be called when it has been answered; the node is present until
// HTTPPresence after that.
func (p *httpPresence) AskedOverHTTP(node string) (answered func()) {
	p.mu.Lock()
	n := p.nodes[node]
	if n == nil {
		n = new(httpNode)
		p.nodes[node] = n
	}
	n.requests++
	began := n.expiry == nil
	if began {
		n.expiry = time.AfterFunc(p.opts.HTTPPresence, func() { p.expire(node, n) })
	}
	n.expiry.Stop()
	p.mu.Unlock()
	if began {
		p.opts.Log.Info().Str("node", node).Msg("node is present over HTTP")
		p.status.node(node)
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if n.requests--; n.requests == 0 {
			n.expiry.Reset(p.opts.HTTPPresence)
		}
	})
}

// HTTPPresence is for how long a node is present after an answer over HTTP.
func (p *httpPresence) HTTPPresence() time.Duration { return p.opts.HTTPPresence }

func (p *httpPresence) expire(node string, n *httpNode) {
	p.mu.Lock()
	ended := n.requests == 0 && n.expiry != nil
	if ended {
		n.expiry = nil
	}
	p.mu.Unlock()
	if ended {
		p.opts.Log.Warn().Str("node", node).Msg("node is no longer present over HTTP")
		p.status.node(node)
	}
}

// forget drops what is known of a node whose Node was deleted.
func (p *httpPresence) forget(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[node]
	if n == nil || n.requests > 0 {
		return
	}
	if n.expiry != nil {
		n.expiry.Stop()
	}
	delete(p.nodes, node)
}

// stop ends all timers.
func (p *httpPresence) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.nodes {
		if n.expiry != nil {
			n.expiry.Stop()
		}
	}
}

// ofNode reports whether a node is present over HTTP, and why it isn't any more; empty: it never was.
func (p *httpPresence) ofNode(node string, interval time.Duration) (present bool, ended string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[node]
	if n == nil || n.expiry != nil {
		return n != nil, ""
	}
	return false, fmt.Sprintf("it has sent no request over HTTP for %v", interval)
}

// recall has a node that was present over HTTP when the hub stopped be present as if it had just got an answer.
func (p *httpPresence) recall(o store.Object) {
	if !bytes.Contains(o.Status, []byte(`"overHTTP"`)) {
		return
	}
	var s resource.NodeStatus
	if json.Unmarshal(o.Status, &s) == nil && s.OverHTTP && s.State == resource.Online {
		p.AskedOverHTTP(o.Name)()
	}
}
