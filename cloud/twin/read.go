package twin

import (
	"maps"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

// Retained gives the nodes' trees as the hub's broker shows them, one node after
// the other, so that a subscription to all of them holds no copy of all of them.
func (t *Twins) Retained(filter string) func(max int) []broker.Message {
	nodes := t.covered(filter)
	var keys []string
	return func(most int) []broker.Message {
		var out []broker.Message
		t.mu.RLock()
		defer t.mu.RUnlock()
		for len(out) < most && len(nodes) > 0 {
			n := t.nodes[nodes[0]]
			if keys == nil {
				keys = n.keys(filter)
			}
			for len(keys) > 0 && len(out) < most {
				if m, ok := n.shown(keys[0]); ok && !t.backlog.Hides(m.Topic) {
					out = append(out, m)
				}
				keys = keys[1:]
			}
			if len(keys) == 0 {
				nodes, keys = nodes[1:], nil
			}
		}
		return out
	}
}

// covered are the nodes whose names the filter's third level covers.
func (t *Twins) covered(filter string) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	levels := strings.SplitN(filter, "/", 4)
	if len(levels) == 4 && levels[2] != "+" && levels[0] != "#" && levels[1] != "#" {
		if t.nodes[levels[2]] == nil {
			return nil
		}
		return []string{levels[2]}
	}
	return slices.Sorted(maps.Keys(t.nodes))
}

const stateKey = "state"

func (n *node) keys(filter string) []string {
	prefix := topics.TopicOf(n.name, "")
	if !strings.ContainsAny(filter, "+#") {
		if key := strings.TrimPrefix(filter, prefix); !strings.Contains(key, "/parts/") {
			return []string{key}
		}
		return []string{}
	}
	out := []string{}
	add := func(key string) {
		if topics.Match(filter, prefix+key) {
			out = append(out, key)
		}
	}
	add(stateKey)
	for _, key := range n.down.Keys("") {
		if !strings.Contains(key, "/parts/") {
			add(key)
		}
	}
	n.up.Range("", func(e link.Entry) bool {
		if _, ok := edgeOwned(n.name, e.Key); ok {
			add(e.Key)
		}
		return true
	})
	return out
}

// shown is the message of a key as it is now.
func (n *node) shown(key string) (m broker.Message, ok bool) {
	if key == stateKey {
		return n.retained(key, []byte(n.state())), true
	}
	e, ok := n.down.Get(key) // first: a node can't put its own in the place of the cloud's
	if !ok {
		e, ok = n.up.Get(key)
		_, owned := edgeOwned(n.name, key)
		return tree.Entry(n.name, e), ok && owned
	}
	if strings.Contains(key, "/desired/") {
		return tree.Value(n.name, key, topics.KindDesired, tree.Stored(e)), true
	}
	doc, whole := topics.Join(e.Value, func(i int) ([]byte, bool) {
		p, ok := n.down.Get(topics.PartKey(key, i))
		return p.Value, ok
	})
	return n.retained(key, doc), whole
}
