// SPDX-License-Identifier: Apache-2.0

package blobs

import (
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

const (
	minWindow  = 2 << 10
	maxWindow  = 48 << 10 // with the ranges that the hub reads, less than 64 KiB for each node
	minRange   = 1 << 10
	baseTime   = time.Minute // the round-trip time of an idle link is measured again after this time
	minSamples = 8           // ranges between two changes of the window: the shortest round trip of these has little of the jitter
)

// flowControl decides how many bytes are requested and not yet received. State and downloads share the link, and whatever of a
// download waits in a queue of the network delays state. So flow measures by how much the round-trip time of ranges is longer than the
// shortest one, and keeps that below 2 ms, an eighth of a round trip, and what round trips differ by anyway (as in RFC 6298): with the
// jitter of a link the time that state takes on it differs as well. The principle is that of LEDBAT (RFC 6817).
//
// Ranges are a quarter of the window, so that one of them does not delay state for long, and on a fast link cost little.
type flowControl struct {
	window, inflight int
	base             time.Duration // the shortest round-trip time; 0: not measured
	baseAt           time.Time
	full             bool          // a queue was found since the window was smallest: from there on it grows slowly
	round            int           // bytes received since the window was last changed
	mean, deviation  time.Duration // of round-trip times
	samples          int           // ranges received since then
	shortest         time.Duration // round-trip time of these
}

// reset begins with a new connection, of which nothing is known.
func (f *flowControl) reset() { *f = flowControl{window: minWindow} }

// length is how long the next range should be.
func (f *flowControl) length() int { return min(max(f.window/4, minRange), resource.MaxBlobRange) }

// room reports whether n more bytes may be requested.
func (f *flowControl) room(n int) bool { return f.inflight == 0 || f.inflight+n <= f.window }

func (f *flowControl) sent(n int) { f.inflight += n }
func (f *flowControl) lost(n int) { f.inflight -= n }

// received adapts the window to the round-trip time of a range.
func (f *flowControl) received(n int, took time.Duration, now time.Time) {
	f.inflight -= n
	if f.base == 0 || took < f.base {
		if f.base == 0 {
			f.baseAt = now
		}
		f.base = took
	}
	if f.shortest == 0 || took < f.shortest {
		f.shortest = took
	}
	if f.mean == 0 {
		f.mean = took
	}
	f.deviation += ((took - f.mean).Abs() - f.deviation) / 8
	f.mean += (took - f.mean) / 8
	f.samples++
	if f.round += n; f.round < f.window || f.samples < minSamples {
		return
	}
	delay, target := f.shortest-f.base, 2*time.Millisecond+f.base/8+f.deviation
	switch {
	case now.Sub(f.baseAt) > baseTime: // the link may be another; a queue of our own must not count as part of it
		f.window, f.base, f.full = minWindow, 0, false
	case delay > target: // as much less as the queue is too long
		f.window = int(float64(f.window) * float64(f.base+target/2) / float64(f.shortest))
		f.full = true
	case delay <= target/2 && f.full:
		f.window += f.window / 16
	case delay <= target/2:
		f.window += f.window / 2
	}
	f.window = min(max(f.window, minWindow), maxWindow)
	f.round, f.samples, f.shortest = 0, 0, 0
}

// slow is called when an answer did not come.
func (f *flowControl) slow() { f.window, f.round, f.samples, f.shortest = minWindow, 0, 0, 0 }
