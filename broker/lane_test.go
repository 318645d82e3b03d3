package broker

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
)

// heldBack is a journal whose commits are told when the test wants it.
type heldBack struct{ flying []func(error) }

func (h *heldBack) Load(func(uint64, []byte) error) error { return nil }

func (h *heldBack) Read([]uint64, func(int, []byte) error) error { return nil }

func (h *heldBack) Commit(_ []journal.Change, done func(error)) { h.flying = append(h.flying, done) }

// land tells the outcome of the oldest commit.
func (h *heldBack) land(err error) {
	done := h.flying[0]
	h.flying = h.flying[1:]
	done(err)
}

func TestALaneIsStoredInOrderOrNotAtAll(t *testing.T) {
	j := &heldBack{}
	s := newStore(j)
	told := make(chan string, 10)
	say := func(name string) func(error) {
		return func(err error) {
			if err != nil {
				name += " not"
			}
			told <- name
		}
	}
	l, other := &lane{store: s}, &lane{store: s}
	commit := func(l *lane, name string) { l.commit([]journal.Change{{ID: 1, Value: []byte("x")}}, say(name)) }
	commit(l, "a")
	commit(l, "b")
	commit(l, "c")
	require.Len(t, j.flying, 1, "one at a time")
	commit(other, "another lane's")
	require.Len(t, j.flying, 2)
	j.land(nil)
	require.Equal(t, "a", <-told)
	j.land(nil)
	require.Equal(t, "another lane's", <-told)
	commit(l, "d")
	require.Len(t, j.flying, 1, "b and c as one")
	j.land(errors.New("no space left on device"))
	for _, want := range []string{"b not", "c not", "d not"} {
		require.Equal(t, want, <-told)
	}
	commit(l, "e")
	require.Equal(t, "e not", <-told, "though the disk is well")
	require.Empty(t, j.flying)
	require.Zero(t, s.waiting())

	commit(other, "f")
	commit(other, "g")
	other.end(errLaneEnded)
	require.Equal(t, "g not", <-told, "or it might come behind what another connection sends")
	j.land(nil)
	require.Equal(t, "f", <-told)
	require.Empty(t, j.flying)
	require.Zero(t, s.waiting())
}

// What a connection took along with its end is nobody's refusal.
func TestTheEndOfANodesConnectionRefusesNothing(t *testing.T) {
	b := start(t, nil)
	c := &conn{b: b}
	c.acks.init()
	s := &slot{conn: c, id: 1, m: Message{Topic: "a"}}
	require.True(t, c.acks.reserve(s, 10, func() {}))
	s.finish(errLaneEnded)
	require.Zero(t, b.Stats().Refused["Unavailable"])
	require.True(t, c.acks.clear())
}
