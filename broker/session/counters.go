package session

import "sync/atomic"

// Drop is why a message never reached a subscriber.
type Drop int

// The reasons for dropping.
const (
	DropQueueFull    Drop = iota // the session's queue was at its limit
	DropZeroFull                 // QoS 0 that made room, or found none
	DropExpired                  // its expiry interval ran out while it waited
	DropTooLarge                 // over the client's maximum packet size
	DropDisconnected             // QoS 0 that waited when the connection was lost
	DropSessionEnded             // the session ended with it in the queue
	DropRefused                  // the client refused it
	DropTooOld                   // it waited for longer than the session keeps messages
	DropDamaged                  // it can't be read from disk any more
	drops
)

var dropNames = [drops]string{
	"queue_full", "qos0_queue_full", "expired", "too_large", "disconnected", "session_ended", "refused_by_client", "too_old", "damaged",
}

// String is the reason's name in metrics.
func (d Drop) String() string { return dropNames[d] }

// Counters are shared by all sessions of a broker.
type Counters struct {
	Sent    atomic.Int64 // PUBLISH packets handed to connections
	Queued  atomic.Int64 // messages waiting or unacknowledged now
	Done    atomic.Int64 // messages that an outlet has brought where they were to go
	dropped [drops]atomic.Int64
}

func (c *Counters) drop(d Drop, n int) { c.dropped[d].Add(int64(n)) }

// Ended counts messages that nobody gets because the session has ended that they were for.
func (c *Counters) Ended(n int) { c.drop(DropSessionEnded, n) }

// Dropped counts what never reached a subscriber, by reason.
func (c *Counters) Dropped() map[string]int64 {
	m := make(map[string]int64, drops)
	for d := range drops {
		m[d.String()] = c.dropped[d].Load()
	}
	return m
}
