package broker

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/edgebus/edgebus/topics"
)

// subscription is one of a client's.
type subscription struct {
	client            *client
	filter            string // as the client gave it, with $share/{group}/
	group, plain      string // taken apart
	id                uint32 // subscription identifier; 0: none
	qos               byte
	noLocal           bool
	retainAsPublished bool
	retainHandling    byte
	record, marker    uint64 // of a durable session
}

// index finds the subscriptions that match a topic. Its own trie, not the protocol
// library's, which misses a/+/# for the topic a/b and merges a client's matching
// subscriptions into one.
type index struct {
	mu   sync.RWMutex
	root level
	// gen changes with every change, so that routes made earlier are known to be stale.
	gen   atomic.Uint64
	count int
}

type level struct {
	next map[string]*level
	subs map[subKey]*subscription
}

type subKey struct {
	client *client
	group  string
}

// add puts a subscription in, or in the place of an earlier one with its filter.
// It reports whether there was one.
func (x *index) add(s *subscription) (existed bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	at := &x.root
	for rest, more := s.plain, true; more; {
		var name string
		name, rest, more = strings.Cut(rest, "/")
		at = at.child(name)
	}
	if at.subs == nil {
		at.subs = make(map[subKey]*subscription)
	}
	key := subKey{s.client, s.group}
	if _, existed = at.subs[key]; !existed {
		x.count++
	}
	at.subs[key] = s
	x.gen.Add(1)
	return existed
}

func (l *level) child(name string) *level {
	if l.next == nil {
		l.next = make(map[string]*level)
	}
	c := l.next[name]
	if c == nil {
		c = &level{}
		l.next[name] = c
	}
	return c
}

// remove takes a subscription out.
func (x *index) remove(s *subscription) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.root.remove(s, s.plain) {
		x.count--
		x.gen.Add(1)
	}
}

func (l *level) remove(s *subscription, filter string) bool {
	name, rest, more := strings.Cut(filter, "/")
	c := l.next[name]
	if c == nil {
		return false
	}
	removed := false
	if more {
		removed = c.remove(s, rest)
	} else {
		key := subKey{s.client, s.group}
		_, removed = c.subs[key]
		delete(c.subs, key)
	}
	if len(c.subs) == 0 && len(c.next) == 0 {
		delete(l.next, name)
	}
	return removed
}

// match calls found for each subscription that matches the topic.
func (x *index) match(topic string, found func(*subscription)) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	x.root.match(topic, topic != "" && topic[0] == '$', found)
}

// match walks one level; reserved keeps wildcards from matching a first level with $.
func (l *level) match(topic string, reserved bool, found func(*subscription)) {
	if many := l.next["#"]; many != nil && !reserved {
		many.each(found)
	}
	name, rest, more := strings.Cut(topic, "/")
	for _, key := range [...]string{name, "+"} {
		c := l.next[key]
		if c == nil || key == "+" && reserved {
			continue
		}
		if more {
			c.match(rest, false, found)
			continue
		}
		c.each(found)
		if many := c.next["#"]; many != nil { // a/# matches a
			many.each(found)
		}
	}
}

// matches says whether any subscription matches the topic. It allocates nothing.
func (x *index) matches(topic string) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.root.matches(topic, topic != "" && topic[0] == '$')
}

func (l *level) matches(topic string, reserved bool) bool {
	if !reserved && l.next["#"].taken() {
		return true
	}
	name, rest, more := strings.Cut(topic, "/")
	for _, key := range [...]string{name, "+"} {
		c := l.next[key]
		switch {
		case c == nil, key == "+" && reserved:
		case more && c.matches(rest, false), !more && (c.taken() || c.next["#"].taken()):
			return true
		}
	}
	return false
}

// taken says whether somebody subscribed to the filter that ends here.
func (l *level) taken() bool { return l != nil && len(l.subs) > 0 }

func (l *level) each(found func(*subscription)) {
	for _, s := range l.subs {
		found(s)
	}
}

// len counts the subscriptions.
func (x *index) len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.count
}

// newSubscription takes a filter apart that CheckFilter found well.
func newSubscription(c *client, filter string) *subscription {
	group, plain, _ := topics.SplitShare(filter)
	return &subscription{client: c, filter: filter, group: group, plain: plain}
}
