package broker

import "sync"

// Backlog publishes the changes of one commit of a Tree. All of them can be read
// at once, but they are published one after the other; a retained value read in
// between would be newer than the next one published of its topic. So while a
// topic has more than its last value to publish, its retained value is not
// given out: whoever asks for it is subscribed already and gets the last value live.
type Backlog struct {
	mu   sync.Mutex
	left map[string]int // values still to be published, of topics that have several
}

// Fill takes what is going to be published, before anybody can read it.
func (l *Backlog) Fill(messages []Message) {
	if len(messages) < 2 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = make(map[string]int, len(messages))
	for _, m := range messages {
		l.left[m.Topic]++
	}
	for topic, n := range l.left {
		if n == 1 {
			delete(l.left, topic)
		}
	}
}

// Drain publishes what Fill took.
func (l *Backlog) Drain(messages []Message, publish func(Message)) {
	for _, m := range messages {
		l.next(m.Topic)
		publish(m)
	}
}

// next uncovers a topic before its last value is published: after it would be
// too late for who subscribes in between.
func (l *Backlog) next(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch n := l.left[topic]; n {
	case 0:
	case 1:
		delete(l.left, topic)
	default:
		l.left[topic] = n - 1
	}
}

// Hides says whether the topic's retained value must not be given out now.
func (l *Backlog) Hides(topic string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.left[topic]
	return ok
}
