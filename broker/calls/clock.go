// SPDX-License-Identifier: Apache-2.0

package calls

import (
	"strconv"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// A stalled link may deliver a command long after it was sent, and MQTT says only for how long it was valid when it was
// sent. So a core tells the hub its clock, and the hub adds to a command the time, in that clock, at which it expires. A
// clock here is the time since a process began: it doesn't jump, and needn't be right.

// propDeadline is a user property of commands on the link: when the command expires, in milliseconds of the core's clock.
const propDeadline = "deadline"

// clockDrift is by how much two clocks may drift apart: one second in so many.
const clockDrift = 2000

// maxClock bounds what a core may say of its clock.
const maxClock = 100 * 365 * 24 * time.Hour

// nodeClock is what a core said of its clock, which then showed no less.
type nodeClock struct {
	client string // whose connection it came over
	core   time.Duration
	at     time.Time
}

// shows is the least that the core's clock shows at a time.
func (c nodeClock) shows(now time.Time) time.Duration {
	age := now.Sub(c.at)
	return c.core + age - age/clockDrift
}

// nodeClocks are those of the connected nodes.
type nodeClocks struct {
	mu   sync.Mutex
	node map[string]nodeClock
}

// set takes what a core says, unless it is known to be old: the message may have been delayed.
func (c *nodeClocks) set(node string, says nodeClock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.node[node]; ok && known.shows(says.at) > says.core {
		return
	}
	if c.node == nil {
		c.node = make(map[string]nodeClock)
	}
	c.node[node] = says
}

func (c *nodeClocks) of(node string) (says nodeClock, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	says, ok = c.node[node]
	return says, ok
}

// forget forgets what came over a client's connection. A node has other clients, such as its bridge.
func (c *nodeClocks) forget(node, client string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.node[node].client == client {
		delete(c.node, node)
	}
}

// Clock is what a core tells the hub of its clock, when a connection begins and from time to time: clocks drift apart.
func (c *Calls) Clock() []byte { return strconv.AppendInt(nil, time.Since(c.began).Milliseconds(), 10) }

// setClock takes a core's Clock.
func (c *Calls) setClock(node, client string, payload []byte) error {
	ms, err := strconv.ParseInt(string(payload), 10, 64)
	if err != nil || ms < 0 || ms > maxClock.Milliseconds() {
		return resource.Errorf(resource.Invalid, "", "%.20q is no clock: milliseconds since the core began", payload)
	}
	c.clocks.set(node, nodeClock{client, time.Duration(ms) * time.Millisecond, time.Now()})
	return nil
}

// PropTime is the user property of a core's Clock with the time that its system's clock shows.
const PropTime = "ts"

// tellTime passes on what a node's system clock shows.
func (c *Calls) tellTime(node string, m broker.Message) {
	if c.opts.NodeTime == nil {
		return
	}
	for _, p := range m.Props.User {
		if p.Key == PropTime {
			if at, err := resource.ParseTime(p.Value); err == nil {
				c.opts.NodeTime(node, at)
			}
		}
	}
}

// withDeadline tells the node when the command expires, if its clock is known.
func (c *Calls) withDeadline(m broker.Message, node string, wait time.Duration) broker.Message {
	is, ok := c.clocks.of(node)
	if !ok {
		return m
	}
	over := is.shows(time.Now()) + wait
	own := m.Props.User
	m.Props.User = append(own[:len(own):len(own)], broker.UserProperty{Key: propDeadline, Value: strconv.FormatInt(over.Milliseconds(), 10)})
	return m
}

// takeDeadline removes what withDeadline has added, and returns how much time is left. It reports false if nothing was added.
func (c *Calls) takeDeadline(m broker.Message) (rest broker.Message, left time.Duration, ok bool) {
	n := len(m.Props.User) - 1
	if n < 0 || m.Props.User[n].Key != propDeadline {
		return m, 0, false
	}
	ms, err := strconv.ParseInt(m.Props.User[n].Value, 10, 64)
	if err != nil {
		return m, 0, false
	}
	m.Props.User = m.Props.User[:n]
	return m, time.Duration(ms)*time.Millisecond - time.Since(c.began), true
}
