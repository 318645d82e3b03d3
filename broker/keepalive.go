// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"sync/atomic"
	"time"
)

// keepAliveState is when a client has to be heard of again. The reading goroutine's, but for lastHeard.
type keepAliveState struct {
	interval        time.Duration // 0: the client may be silent for ever
	lastHeard       atomic.Int64  // when the client last sent something, in Unix milliseconds; 0: after its CONNECT nothing
	lastHandled     time.Time     // when the last packet had been handled; zero: the keep-alive doesn't count yet
	unextendedBytes int           // bytes that have arrived since then
	tookPacket      bool          // a packet was taken since the last read
}

// leastRate is how many bytes a second a packet has to arrive with that isn't complete after one and a half keep-alives: a slow line's bytes
// are life, and who trickles is not kept.
const leastRate = 256

// arriving reports whether a packet is on its way that is too long for the line, and restarts the keep-alive if so.
func (k *keepAliveState) arriving(now time.Time) bool {
	if k.unextendedBytes == 0 || float64(k.unextendedBytes) < leastRate*now.Sub(k.lastHandled).Seconds() {
		return false
	}
	k.lastHandled, k.unextendedBytes = now, 0
	k.lastHeard.Store(now.UnixMilli())
	return true
}

// due is when the keep-alive ends.
func (k *keepAliveState) due() time.Time { return k.lastHandled.Add(k.interval + k.interval/2) }

// restart is called when a packet was handled: the next one has to be complete within one and a half of the keep-alive, or be arriving. It
// reports whether it is the first that has to.
func (k *keepAliveState) restart(now time.Time) (first bool) {
	k.lastHeard.Store(now.UnixMilli())
	if k.interval == 0 {
		return false
	}
	first = k.lastHandled.IsZero()
	k.lastHandled, k.unextendedBytes = now, 0
	return first
}
