package broker

import (
	"sync"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/topics/resource"
)

// BeginsLane is a user property, the last, of the first message that a node's core sends
// over a connection, and of the first after one that can't be stored now. From there on
// its stored messages are taken in order, or refused: it can send many without waiting.
var BeginsLane = UserProperty{Key: "edgebus-lane", Value: "begins"}

// inLane gives a message of a node's its lane.
func (c *conn) inLane(m Message) Message {
	if n := len(m.Props.User) - 1; n >= 0 && m.Props.User[n] == BeginsLane {
		m.Props.User = m.Props.User[:n]
		c.lane.end(errLaneAnew)
		if c.lane = nil; c.b.store != nil {
			c.lane = &lane{store: c.b.store}
		}
	}
	m.lane = c.lane
	return m
}

// lane is the order of messages that their publisher sends without waiting. Once one can't
// be stored nothing behind it is, until the publisher begins another: or the disk is mended
// in between, and what was refused comes behind what was sent after it. So one commit is
// on its way at a time, and all that comes meanwhile is the next one.
type lane struct {
	store *store

	mu      sync.Mutex
	flying  bool
	waiting []awaited
	broken  error
}

var (
	errLaneEnded = resource.Errorf(resource.Unavailable, "", "the connection has ended")
	errLaneAnew  = resource.Errorf(resource.Unavailable, "", "its sender begins again")
)

// commit is the store's, in order.
func (l *lane) commit(changes []journal.Change, done func(error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if why := l.broken; why != nil {
		go done(why)
		return
	}
	l.waiting = append(l.waiting, l.store.begin(changes, done))
	if !l.flying {
		l.fly()
	}
}

// fly commits all that waits, as one. The lane is locked.
func (l *lane) fly() {
	all := l.waiting
	l.waiting, l.flying = nil, true
	changes := all[0].changes
	for _, o := range all[1:] {
		changes = append(changes, o.changes...)
	}
	l.store.journal.Commit(changes, func(err error) { l.landed(all, cantStore(err)) })
}

func (l *lane) landed(all []awaited, err error) {
	if err != nil {
		all = append(all, l.stop(err)...)
	}
	for _, o := range all {
		o.tell(l.store, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flying = false; len(l.waiting) > 0 {
		l.fly()
	}
}

// stop takes nothing any more, and returns what waits.
func (l *lane) stop(why error) (waiting []awaited) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken == nil {
		l.broken = why
	}
	waiting, l.waiting = l.waiting, nil
	return waiting
}

// end is the end of the connection, or of what it sent before it began again: what waits
// must not come behind what another one sends.
func (l *lane) end(why error) {
	if l == nil {
		return
	}
	for _, o := range l.stop(why) {
		o.tell(l.store, why)
	}
}
