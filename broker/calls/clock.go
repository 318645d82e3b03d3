package calls

import (
	"strconv"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// A stalled link delivers a command long after it was sent, and MQTT says only how
// long it was good for when it was sent. So a core tells the hub its clock, and the
// hub tells it in that clock when a command's time is over. Clocks here are the time
// since a process began: they don't jump, and needn't be right.

// propDeadline is a user property of what goes over the link: when the time is over,
// in milliseconds of the core's clock.
const propDeadline = "deadline"

// drift is how far apart two clocks go: one second in so many.
const drift = 2000

// clock is what a core said, and when it came: its clock showed no less then.
type clock struct {
	client string // whose connection it came over, and it ends with
	core   time.Duration
	at     time.Time
}

// shows is the least that the core's clock shows at a time.
func (c clock) shows(now time.Time) time.Duration {
	age := now.Sub(c.at)
	return c.core + age - age/drift
}

// clocks are those of the nodes that are connected.
type clocks struct {
	mu   sync.Mutex
	node map[string]clock
}

// tell takes what a core says, unless more is known: a message may have been on its way for long.
func (c *clocks) tell(node string, is clock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.node[node]; ok && known.shows(is.at) > is.core {
		return
	}
	if c.node == nil {
		c.node = make(map[string]clock)
	}
	c.node[node] = is
}

func (c *clocks) of(node string) (is clock, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	is, ok = c.node[node]
	return is, ok
}

// forget ends a client's clock. A node has other clients, such as its bridge.
func (c *clocks) forget(node, client string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.node[node].client == client {
		delete(c.node, node)
	}
}

// Clock is what the core tells the hub of its clock: when a connection begins, and
// every now and then, for clocks drift apart.
func (c *Calls) Clock() []byte { return strconv.AppendInt(nil, time.Since(c.began).Milliseconds(), 10) }

// told takes a core's Clock.
func (c *Calls) told(node, client string, payload []byte) error {
	ms, err := strconv.ParseInt(string(payload), 10, 64)
	if err != nil || ms < 0 || ms > maxClock.Milliseconds() {
		return resource.Errorf(resource.Invalid, "", "%.20q is no clock: milliseconds since the core began", payload)
	}
	c.clocks.tell(node, clock{client, time.Duration(ms) * time.Millisecond, time.Now()})
	return nil
}

const maxClock = 100 * 365 * 24 * time.Hour

// withDeadline says to the node when the time is over, if its clock is known.
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

// deadline takes what withDeadline added off again, and says how much time is left; not
// ok when nothing was added.
func (c *Calls) deadline(m broker.Message) (rest broker.Message, left time.Duration, ok bool) {
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
