// SPDX-License-Identifier: Apache-2.0

package link

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestALineageHasNoEnd: whatever lineage somebody with the node's identity has made a replica take, the owner
// itself comes after it, and the replica has the owner's map again.
func TestALineageHasNoEnd(t *testing.T) {
	for _, n := range []uint64{2, 1 << 16, 1<<48 - 1, 1 << 48, 1<<63 - 1, 1 << 63, 1<<63 + 1, 1<<63 + 2, 1<<64 - 1} {
		p := newPair(t)
		p.put("devices/lamp/reported/power", "ON")
		p.connect().run().requireInStep()

		forged := NewOwner(Up, countFrom(99))
		forged.lineage.N = n
		_, _, err := forged.Put(Entry{Key: "devices/lamp/reported/power", Value: []byte("FORGED")})
		require.NoError(t, err)
		forged.Connect(1 << 32)
		for range 10 {
			for _, m := range forged.Messages() {
				p.r.Step(p.wire(m))
			}
			for _, m := range p.r.Messages() {
				_ = forged.Step(p.wire(m))
			}
		}

		p.put("devices/lamp/reported/power", "OFF")
		p.connect().run().requireInStep()
		require.NotZero(t, p.o.Lineage().N)
	}
}

func TestLineageOrder(t *testing.T) {
	none, one, last := Lineage{}, Lineage{N: 1}, Lineage{N: 1<<64 - 1}
	require.True(t, one.after(none))
	require.True(t, last.after(none))
	require.False(t, none.after(one))
	require.False(t, none.after(none))
	require.True(t, one.after(last), "the numbers go round")
	require.Equal(t, uint64(1), last.next(), "0 is none")
	require.Equal(t, uint64(0), one.LeadOver(none), "the first contact")
	require.Equal(t, uint64(4), Lineage{N: 5}.LeadOver(one))
	require.Equal(t, uint64(0), one.LeadOver(Lineage{N: 5}))
}
