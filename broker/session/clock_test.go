package session

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is left of a message's time is a duration, which jumps of the clock must not
// change: a time says that it knows the clock that never jumps by "m=".
func TestExpiryIsADuration(t *testing.T) {
	m := message("t", "p", 1)
	m.Props.Expiry = 60
	m.Stamp(time.Now())
	require.Contains(t, m.deadline.String(), "m=")

	e := Encoder{}
	e.Message(m)
	read := NewDecoder(e).Message()
	require.NotContains(t, read.deadline.String(), "m=", "what was on disk has the calendar only")
	now := time.Now()
	read.Anchor(now)
	require.Contains(t, read.deadline.String(), "m=")
	require.InDelta(t, 60, read.deadline.Sub(now).Seconds(), 1)

	forever := message("t", "p", 1)
	forever.Anchor(now)
	require.False(t, forever.Expired(now.AddDate(100, 0, 0)))
}
