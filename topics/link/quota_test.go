// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatIsTooMuchIsRefusedBeforeItIsSent(t *testing.T) {
	p := newPair(t)
	p.r.SetQuota(Quota{Keys: 2})
	for _, k := range []string{"a", "b", "c"} {
		p.put(k, k)
	}
	p.connect().run()
	require.Equal(t, "3 keys, at most 2 are taken", p.o.Refused())
	require.Equal(t, p.o.Refused(), p.r.Refused())
	require.False(t, p.o.InStep())
	require.True(t, p.o.Waiting(), "it asks again")
	require.Empty(t, p.entries, "nothing but greetings was sent")

	p.o.Resend()
	p.run()
	require.Equal(t, 2, p.count[TypeHello])
	require.Empty(t, p.entries)

	p.o.Delete("a", 0, "")
	p.o.Resend()
	p.run()
	p.requireInStep()
	require.Empty(t, p.o.Refused())
	require.Empty(t, p.r.Refused())
}

func TestGrowthBeyondTheQuotaIsRefusedAndMended(t *testing.T) {
	p := newPair(t)
	p.r.SetQuota(Quota{Bytes: 100})
	p.put("a", strings.Repeat("v", 50))
	p.connect().run()
	p.requireInStep()
	p.put("b", strings.Repeat("v", 60))
	p.run()
	require.Contains(t, p.o.Refused(), "at most 100 are taken")
	require.Equal(t, 1, p.r.Len())
	p.put("b", "short")
	p.o.Resend()
	p.run()
	p.requireInStep()

	_, _, err := p.o.Put(Entry{Key: "c", Value: []byte("v"), Origin: strings.Repeat("w", 60)})
	require.NoError(t, err)
	p.run()
	require.Contains(t, p.o.Refused(), "at most 100 are taken", "who wrote it is held, too")
}

// Numbers of writes come in the order of the writes, so that what makes room may
// come after what needs it.
func TestWhatGrowsOnlyInBetweenIsTaken(t *testing.T) {
	p := newPair(t)
	p.o.limits.entries = 3
	p.r.SetQuota(Quota{Keys: 10})
	for i := range 10 {
		p.put(fmt.Sprint("old", i), "v")
	}
	p.connect().run()
	p.requireInStep()
	p.forget()
	for i := range 10 {
		p.put(fmt.Sprint("new", i), "v")
	}
	for i := range 10 {
		p.o.Delete(fmt.Sprint("old", i), 0, "")
	}
	p.run()
	p.requireInStep()
	require.Equal(t, 4, p.count[TypeFull], "it comes whole, which has no in between")
}

// An owner that says it is small, and is not, holds no memory of the replica's.
func TestGatheringIsBounded(t *testing.T) {
	p, parts := fullParts(t)
	p.r.SetQuota(Quota{Keys: 1})
	p.r.Step(parts[0])
	p.r.Step(parts[1])
	require.Nil(t, p.r.partial)
	require.Equal(t, "2 keys, at most 1 are taken", p.r.Messages()[0].Refused)
}

func TestExceeds(t *testing.T) {
	p := newPair(t)
	p.put("a", "12345")
	q := Quota{Keys: 1, Bytes: 10}
	require.Empty(t, p.o.Exceeds(q, Entry{Key: "a", Value: []byte("123456789")}))
	require.Equal(t, "11 bytes of keys and values, at most 10 are taken", p.o.Exceeds(q, Entry{Key: "a", Value: []byte("1234567890")}))
	require.Equal(t, "2 keys, at most 1 are taken", p.o.Exceeds(q, Entry{Key: "b"}))
	require.Empty(t, p.o.Exceeds(Quota{Bytes: 2}, Entry{Key: "a", Value: []byte("1234")}), "it becomes less")
}
