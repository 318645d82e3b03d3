package broker

import (
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	blockSize = 512  // topics in a block, before it is split
	scanChunk = 4096 // topics looked at under one lock
)

// memoryRetained keeps the retained messages of users' own topics; the journal has a
// copy of each. Topics are kept sorted, in blocks, so that a reader can go on where it was, whatever was
// added or removed since, without a copy of what there is.
type memoryRetained struct {
	limits Limits
	now    func() time.Time

	mu     sync.RWMutex
	byName map[string]*session.Message
	blocks [][]string // none empty
	bytes  int
}

func newRetained(l Limits, now func() time.Time) *memoryRetained {
	return &memoryRetained{limits: l, now: now, byName: make(map[string]*session.Message)}
}

func cost(m *session.Message) int {
	return len(m.Topic) + len(m.Payload) + len(m.Props.Correlation) + 128
}

// get is the topic's message, or nil.
func (r *memoryRetained) get(topic string) *session.Message {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byName[topic]
}

// quota says why the message can't be retained.
func (r *memoryRetained) quota(m *session.Message) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	old := r.byName[m.Topic]
	size := r.bytes + cost(m)
	if old != nil {
		size -= cost(old)
	}
	if len(m.Payload) == 0 {
		return nil
	}
	if size > r.limits.RetainedBytes || old == nil && len(r.byName) >= r.limits.RetainedMessages {
		return resource.Errorf(resource.Quota, m.Topic, "the broker retains no more than %d messages of %d bytes together",
			r.limits.RetainedMessages, r.limits.RetainedBytes)
	}
	return nil
}

// put retains the message, or with an empty payload forgets its topic.
func (r *memoryRetained) put(m *session.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.byName[m.Topic]
	if len(m.Payload) == 0 {
		if old != nil {
			r.drop(old)
		}
		return
	}
	r.bytes += cost(m)
	if old != nil {
		r.bytes -= cost(old)
	}
	r.byName[m.Topic] = m
	if old == nil {
		r.insert(m.Topic)
	}
}

func (r *memoryRetained) drop(m *session.Message) {
	delete(r.byName, m.Topic)
	r.bytes -= cost(m)
	i := r.block(m.Topic)
	at, _ := slices.BinarySearch(r.blocks[i], m.Topic)
	r.blocks[i] = slices.Delete(r.blocks[i], at, at+1)
	if len(r.blocks[i]) == 0 {
		r.blocks = slices.Delete(r.blocks, i, i+1)
	}
}

// block is the number of the block that the topic is in, or belongs in.
func (r *memoryRetained) block(topic string) int {
	return max(0, sort.Search(len(r.blocks), func(i int) bool { return r.blocks[i][0] > topic })-1)
}

func (r *memoryRetained) insert(topic string) {
	if len(r.blocks) == 0 {
		r.blocks = [][]string{{topic}}
		return
	}
	i := r.block(topic)
	at, _ := slices.BinarySearch(r.blocks[i], topic)
	r.blocks[i] = slices.Insert(r.blocks[i], at, topic)
	if b := r.blocks[i]; len(b) > blockSize {
		half := len(b) / 2
		r.blocks = slices.Insert(r.blocks, i+1, slices.Clone(b[half:]))
		r.blocks[i] = slices.Clip(b[:half])
	}
}

func (r *memoryRetained) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.byName)
}

func (r *memoryRetained) Puller(filter string) session.Puller {
	p := retainedPuller{store: r, filter: filter, prefix: literal(filter)}
	p.from = p.prefix
	return p.pull
}

// literal is the part of a filter before its first wildcard. What matches begins
// with it, less the slash: a/# matches a.
func literal(filter string) string {
	if i := strings.IndexAny(filter, "+#"); i >= 0 {
		return strings.TrimSuffix(filter[:i], "/")
	}
	return filter
}

type retainedPuller struct {
	store        *memoryRetained
	filter       string
	prefix, from string // from: the least topic not yet looked at
	done         bool
}

func (p *retainedPuller) pull(max int) (out []*session.Message) {
	for len(out) == 0 && !p.done {
		out = p.scan(max)
	}
	return out
}

// scan looks at some topics. It holds the lock for no longer than that takes.
func (p *retainedPuller) scan(max int) (out []*session.Message) {
	r := p.store
	now := r.now()
	r.mu.RLock()
	defer r.mu.RUnlock()
	looked := 0
	for i := r.block(p.from); i < len(r.blocks); i++ {
		at, _ := slices.BinarySearch(r.blocks[i], p.from)
		for _, topic := range r.blocks[i][at:] {
			if !strings.HasPrefix(topic, p.prefix) {
				p.done = true
				return out
			}
			if len(out) == max || looked == scanChunk {
				p.from = topic
				return out
			}
			looked++
			if m := r.byName[topic]; topics.Match(p.filter, topic) && !m.Expired(now) {
				out = append(out, m)
			}
		}
	}
	p.done = true
	return out
}

// puller goes through everything retained that a client may read and that matches
// the filter: users' own topics, then the tree's.
func (b *Broker) puller(c *client, filter string) session.Puller {
	parts := []session.Puller{b.retained.Puller(filter)}
	first, _, _ := strings.Cut(filter, "/")
	if b.opts.Tree != nil && (first == "#" || first == "+" || first == topics.Version) {
		parts = append(parts, b.treePuller(filter))
	}
	return func(max int) []*session.Message {
		for len(parts) > 0 {
			chunk := parts[0](max)
			if len(chunk) == 0 {
				parts = parts[1:]
				continue
			}
			id := c.rights()
			chunk = slices.DeleteFunc(chunk, func(m *session.Message) bool { return !b.acl.gets(id, filter, m.Topic) })
			if len(chunk) > 0 {
				return chunk
			}
		}
		return nil
	}
}

func (b *Broker) treePuller(filter string) session.Puller {
	next := b.opts.Tree.Retained(filter)
	return func(max int) []*session.Message {
		values := next(max)
		now := b.opts.Now()
		chunk := make([]*session.Message, len(values))
		for i, m := range values {
			chunk[i] = outgoing(m, now)
		}
		return chunk
	}
}
