package session

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSessionsShareABudget: when it is used up, whoever has more than an equal share goes without, others
// get theirs, and nobody anything when it is used up twice; what is acknowledged is given back, and what a session
// that ends still had.
func TestSessionsShareABudget(t *testing.T) {
	m := message("a", string(make([]byte, 1000)), 1)
	w := m.weight()
	all := NewBudget(20*w, 4)
	l := limits
	l.All = all
	var count Counters
	open := func() (*Session, *Writer) {
		s := New(l, time.Now, &count)
		return s, attached(s, Params{Version: 5, ReceiveMaximum: 3})
	}
	put := func(s *Session, m *Message) bool { return s.Enqueue(m, Delivery{QoS: m.QoS, Batch: &Batch{}}) }
	hog, hogs := open()
	taken := 0
	for range 50 {
		if put(hog, m) {
			taken++
		}
	}
	require.Equal(t, 20, taken)
	require.EqualValues(t, 20*w, all.Held())
	require.EqualValues(t, 30, count.Dropped()[DropQueueFull.String()])

	other, _ := open()
	for range 5 {
		require.True(t, put(other, m), "an equal share is everybody's")
	}
	require.False(t, put(other, m))

	sent := decode(t, hog.drain(hogs, nil, 1<<20), 5)
	require.Len(t, sent, 3)
	require.EqualValues(t, 25*w, all.Held(), "what was sent is held until it is acknowledged")
	require.False(t, put(hog, m))
	for _, pk := range sent {
		require.True(t, hog.Puback(pk.PacketID, nil))
	}
	require.EqualValues(t, 22*w, all.Held())

	small := message("a", "x", 0)
	fresh, _ := open()
	require.True(t, put(fresh, small))
	require.True(t, put(fresh, m))
	for all.Held()+int64(w) <= 2*20*int64(w) {
		more, _ := open()
		require.True(t, put(more, m), "one message is everybody's")
		defer more.End()
	}
	late, _ := open()
	require.False(t, put(late, m), "there is no more than twice the budget")
	hog.End()
	fresh.End()
	held := all.Held()
	other.End()
	require.EqualValues(t, held-5*int64(w), all.Held())
}
