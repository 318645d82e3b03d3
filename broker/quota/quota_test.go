// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEachAndAll(t *testing.T) {
	q := New("watches", "user", Limit{2, "limits.each"}, Limit{4, "limits.all"})
	require.NoError(t, q.Take("a", 1))
	require.NoError(t, q.Take("a", 1))
	require.EqualError(t, q.Take("a", 1), "one user may have 2 watches at most (limits.each), as many as a has")
	require.NoError(t, q.Take("", 2), "nothing is known of the empty key's holders")
	require.EqualError(t, q.Take("b", 1), "there are as many watches as there may be: 4 (limits.all)")
	q.Add("a", -1)
	require.NoError(t, q.Check("b", 1))
	require.NoError(t, q.Take("b", 1))
	for key, n := range map[string]int64{"a": -1, "b": -1, "": -2} {
		q.Add(key, n)
	}
	require.Zero(t, q.Held())
	require.Empty(t, q.accounts, "nothing is kept of who holds nothing")
}

// Nobody uses up a shared quota: however many keys take all they can get, the next still finds room.
func TestAQuotaIsSharedAmongUsers(t *testing.T) {
	const all = 1 << 20
	q := NewShared("bytes of messages", "user", Limit{all, "limits.x"})
	hog := func(key string) (n int64) {
		for q.Take(key, 64) == nil {
			n += 64
		}
		return n
	}
	require.EqualValues(t, all/2, hog("a"), "alone it gets half")
	require.EqualValues(t, all/4, hog("b"))
	require.ErrorContains(t, q.Take("a", 64), "no user may have more bytes of messages than are left for all others, of 1048576 (limits.x); a has 524288")
	for _, key := range []string{"c", "d", "e", "f"} {
		require.Positive(t, hog(key))
	}
	require.LessOrEqual(t, q.Held(), int64(all))
	q.Add("a", -all/2)
	require.Positive(t, hog("f"), "what is given back is shared again")
	require.LessOrEqual(t, q.Held(), int64(all))
}

// Of what a user may have, no session takes all from the user's others.
func TestSharedAmongOneUsersSessions(t *testing.T) {
	const all = 1 << 20
	q := NewShared("bytes of messages", "user", Limit{all, "limits.x"})
	a := q.Open("a")
	fill := func() (n int64) {
		for a.Room(n, 64) {
			a.Add(64)
			n += 64
		}
		return n
	}
	first := fill()
	require.EqualValues(t, all/4, first)
	for range 10 {
		require.Positive(t, fill())
	}
	b := q.Open("b")
	require.True(t, b.Room(0, all/8), "and another user has room for more than any of them")
	require.False(t, b.Room(0, all))
	require.True(t, (*Account)(nil).Room(1<<40, 1<<40))
}
