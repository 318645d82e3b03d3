// SPDX-License-Identifier: Apache-2.0

package session

import "sync/atomic"

// DropReason is why a message did not reach a subscriber.
type DropReason int

// The reasons for dropping.
const (
	DropQueueFull    DropReason = iota // the session's queue was at its limit
	DropQoS0Full                       // a QoS 0 message, at the same limit
	DropExpired                        // its expiry interval ran out while it waited
	DropTooLarge                       // larger than the client's maximum packet size
	DropDisconnected                   // a QoS 0 message that waited when the connection ended
	DropSessionEnded                   // the session ended with the message in it
	DropRefused                        // the client refused it
	DropTooOld                         // it waited for longer than the session keeps messages
	DropDamaged                        // its record on disk can't be read
	dropReasons
)

var dropNames = [dropReasons]string{
	"queue_full", "qos0_queue_full", "expired", "too_large", "disconnected", "session_ended", "refused_by_client", "too_old", "damaged",
}

// String is the reason's name in metrics.
func (r DropReason) String() string { return dropNames[r] }

// Counters are shared by many sessions.
type Counters struct {
	Sent         atomic.Int64 // PUBLISH packets given to consumers
	Acknowledged atomic.Int64 // messages that a LocalConsumer has acknowledged
	dropped      [dropReasons]atomic.Int64
}

// Drop counts n messages that did not reach a subscriber.
func (c *Counters) Drop(why DropReason, n int) { c.dropped[why].Add(int64(n)) }

// Dropped is how many messages did not reach a subscriber, by reason.
func (c *Counters) Dropped() map[string]int64 {
	m := make(map[string]int64, dropReasons)
	for why := range dropReasons {
		m[why.String()] = c.dropped[why].Load()
	}
	return m
}
