package broker

import (
	"sync"
	"time"

	"github.com/edgebus/edgebus/topics"
)

const (
	grantTime = 10 * time.Minute
	maxGrants = 65536
)

// grants are the response topics of commands that were sent to a node: the only
// topics outside v1/ that a node may publish to, and only for a while.
type grants struct {
	mu     sync.Mutex
	until  map[grant]time.Time
	oldest []grant
}

type grant struct{ node, topic string }

// note remembers the response topic of a command that is on its way to a node.
func (g *grants) note(m Message, now time.Time) {
	if m.Props.ResponseTopic == "" || !topics.IsTree(m.Topic) {
		return
	}
	addr, err := topics.Parse(m.Topic)
	if err != nil || addr.Kind != topics.KindCommand {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.until == nil {
		g.until = make(map[grant]time.Time)
	}
	x := grant{addr.Node, m.Props.ResponseTopic}
	if _, known := g.until[x]; !known {
		g.oldest = append(g.oldest, x)
	}
	g.until[x] = now.Add(grantTime)
	for len(g.oldest) > maxGrants || len(g.oldest) > 0 && now.After(g.until[g.oldest[0]]) {
		delete(g.until, g.oldest[0])
		g.oldest = g.oldest[1:]
	}
}

// allow says whether the node was asked to answer on the topic.
func (g *grants) allow(node, topic string, now time.Time) bool {
	if node == "" || topics.IsTree(topic) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	until, ok := g.until[grant{node, topic}]
	return ok && now.Before(until)
}
