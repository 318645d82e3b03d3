// SPDX-License-Identifier: Apache-2.0

package session

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// messageTakenAt is a message that was on disk: the clock that never jumps knows nothing of it.
func messageTakenAt(at time.Time, expiry uint32) *Message {
	m := newMessage("t", "p", 1)
	m.Props.Expiry = expiry
	m.Stamp(at)
	e := Encoder{}
	e.Message(m)
	return NewDecoder(e).Message()
}

// What is left of a message's time is a duration, which jumps of the clock must not
// change: a time says that it knows the clock that never jumps by "m=".
func TestExpiryIsADuration(t *testing.T) {
	now := time.Now()
	m := messageTakenAt(now.Add(-10*time.Second), 60)
	require.NotContains(t, m.At.String(), "m=", "what was on disk has the calendar only")
	m.Rebase(now)
	require.Contains(t, m.came.String(), "m=")
	require.InDelta(t, 50, m.remaining(now), 1)
	require.Contains(t, m.Deadline().String(), "m=")

	forever := messageTakenAt(now, 0)
	forever.Rebase(now)
	require.False(t, forever.Expired(now.AddDate(100, 0, 0)))
	require.Zero(t, forever.remaining(now))
}

// A clock that was set between two runs makes nothing last longer than it was to, and
// nothing old that was stored while the clock was not set yet.
func TestAClockThatWasSet(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		at   time.Time
		left uint32
		age  time.Duration
	}{
		"right":   {now.Add(-time.Hour), 3600, time.Hour},
		"back":    {now.Add(time.Hour), 7200, 0},
		"forward": {now.Add(-100 * time.Hour), 1, 100 * time.Hour},
		"not set": {time.Unix(1000, 0), 7200, 0},
	} {
		m := messageTakenAt(c.at, 7200)
		m.Rebase(now)
		require.InDelta(t, c.left, m.remaining(now), 1, name)
		require.InDelta(t, c.age, now.Sub(m.came), float64(time.Second), name)
		require.Equal(t, c.at.UnixMilli(), m.At.UnixMilli(), "%s: it says what the clock said", name)
	}
	never := time.Unix(5000, 0)
	require.Equal(t, time.Unix(1000, 0), RebaseTime(time.Unix(1000, 0), never), "two readings of a clock that was never set")
}
