// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheWindowFollowsTheLine(t *testing.T) {
	now := time.Now()
	p := NewLinePace(256 << 10)
	for range 100 { // a satellite: half a second there and back, and much room
		p.Answered(8<<10, now.Add(-500*time.Millisecond), now)
	}
	require.Equal(t, 256<<10, p.Window())
	for range 10 {
		now = now.Add(5 * time.Second)
		p.Answered(8<<10, now.Add(-4*time.Second), now)
		p.Answered(8<<10, now.Add(-4*time.Second), now)
	}
	require.Equal(t, minWindow, p.Window())
}

// Large messages and those of their topics wait in order; between two parts others go that are as large as one.
func TestPartsAndSmallMessagesTakeTurns(t *testing.T) {
	u := PartTurns[string]{LinePace: NewLinePace(256 << 10)}
	require.True(t, u.Hold("large", "a", 50_000, u.Large(50_000)))
	require.True(t, u.Hold("behind", "a", 10, u.Large(10)))
	require.False(t, u.PartDue())
	for sent := 0; sent < u.PartSize(); sent += 512 {
		require.False(t, u.PartDue())
		require.False(t, u.Hold("small", "b", 512, u.Large(512)))
	}
	require.True(t, u.PartDue())
	u.PartSent()
	require.False(t, u.PartDue())
	first, _ := u.First()
	require.Equal(t, "large", first)
	u.Done()
	first, _ = u.First()
	require.Equal(t, "behind", first)
	u.Done()
	require.False(t, u.Hold("small", "a", 10, false))
	require.False(t, u.Full())
	u.Hold("huge", "c", maxWaitingBytes, true)
	require.True(t, u.Full())
	u.Done()
	u.Hold("large", "a", 50_000, true)
	for n := 1; n < maxWaitingMessages; n++ {
		require.False(t, u.Full())
		require.True(t, u.Hold("behind", "a", 1, false))
	}
	require.True(t, u.Full(), "of messages, too")
}

// What was cut is put together again, over connections and with parts that come twice.
func TestACutMessageIsPutTogether(t *testing.T) {
	c := OutgoingParts{ID: NewPartID(), Topic: "t", Payload: bytes.Repeat([]byte("payload "), 1000)}
	p := c.Next(3000)
	a := NewIncomingParts(&p)
	take := func(p MessagePart) {
		fresh, err := a.NewContent(&p)
		require.NoError(t, err)
		a.Content = append(a.Content, fresh...)
	}
	take(p)
	c.Acked = c.Sent
	take(c.Next(3000)) // whose acknowledgement is lost
	c.Sent = c.Acked
	for p = c.Next(3000); ; p = c.Next(3000) {
		take(p)
		if p.Last() {
			break
		}
	}
	require.Equal(t, c.Payload, a.Content)
	require.Equal(t, "t", p.Topic)
	_, err := a.NewContent(&MessagePart{ID: []byte("another"), Size: a.Size, Offset: 10, Content: []byte("x")})
	require.ErrorIs(t, err, ErrPartsMissing)
	b := NewIncomingParts(&p)
	_, err = b.NewContent(&p)
	require.ErrorIs(t, err, ErrPartsMissing)
}
