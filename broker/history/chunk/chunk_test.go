// SPDX-License-Identifier: Apache-2.0

package chunk

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type numberSample struct {
	t int64
	v uint64
}

func numbersOf(t require.TestingT, chunk []byte) (list []numberSample) {
	require.NoError(t, DecodeNumbers(chunk, func(at int64, v float64) bool {
		list = append(list, numberSample{at, math.Float64bits(v)})
		return true
	}))
	return list
}

func TestNumbersAreReadAsTheyWereWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c NumberChunk
		var want []numberSample
		at := rapid.Int64().Draw(t, "begin")
		for range rapid.IntRange(0, 300).Draw(t, "samples") {
			step := rapid.OneOf(rapid.Just(int64(1000)), rapid.Int64Range(-20, 20), rapid.Int64Range(-1<<21, 1<<21), rapid.Int64()).Draw(t, "step")
			v := rapid.OneOf(rapid.Uint64(), rapid.Map(rapid.IntRange(0, 300), func(n int) uint64 { return math.Float64bits(float64(n) / 10) })).Draw(t, "value")
			at += step
			c.Append(at, math.Float64frombits(v))
			want = append(want, numberSample{at, v})
		}
		require.Equal(t, want, numbersOf(t, append(c.Bytes, make([]byte, max(0, 2-len(c.Bytes)))...)))
	})
}

func TestTheEdgesOfSecondDifferencesAreReadAsTheyWereWritten(t *testing.T) {
	for _, size := range []uint{14, 17, 20} {
		for _, d := range []int64{-(1<<(size-1) - 1), -(1<<(size-1) - 1) - 1, 1 << (size - 1), 1<<(size-1) + 1} {
			var c NumberChunk
			want := []numberSample{{0, 0}, {1 << 30, 0}, {2<<30 + d, 0}}
			for _, n := range want {
				c.Append(n.t, math.Float64frombits(n.v))
			}
			require.Equal(t, want, numbersOf(t, c.Bytes))
		}
	}
}

func TestTextsAreReadAsTheyWereWritten(t *testing.T) {
	type text struct {
		t   int64
		s   string
		gap bool
	}
	rapid.Check(t, func(t *rapid.T) {
		var c TextChunk
		var want, got []text
		for range rapid.IntRange(0, 50).Draw(t, "samples") {
			s := text{t: rapid.Int64().Draw(t, "t"), gap: rapid.Bool().Draw(t, "gap")}
			if !s.gap {
				s.s = rapid.String().Draw(t, "text")
			}
			c.Append(s.t, s.s, s.gap)
			want = append(want, s)
		}
		require.NoError(t, DecodeTexts(c.Bytes, func(t int64, s string, gap bool) bool {
			got = append(got, text{t, s, gap})
			return true
		}))
		require.Equal(t, want, got)
	})
}

func TestAGapIsNoNumberOfADevice(t *testing.T) {
	require.True(t, IsGap(GapValue))
	require.False(t, IsGap(math.NaN()))
	require.False(t, IsGap(0))
}

func FuzzDecodeNumbers(f *testing.F) {
	var c NumberChunk
	for i := range 20 {
		c.Append(int64(i*1000), float64(i)/10)
	}
	f.Add(c.Bytes)
	f.Add([]byte{0, 1})
	f.Fuzz(func(t *testing.T, chunk []byte) {
		var again NumberChunk
		n := 0
		if DecodeNumbers(chunk, func(at int64, v float64) bool { again.Append(at, v); n++; return true }) != nil || n == 0 {
			return
		}
		require.Len(t, numbersOf(t, again.Bytes), n)
	})
}

func FuzzDecodeTexts(f *testing.F) {
	var c TextChunk
	c.Append(1, "ON", false)
	c.Append(2, "", true)
	f.Add(c.Bytes)
	f.Fuzz(func(t *testing.T, chunk []byte) {
		var again TextChunk
		if DecodeTexts(chunk, func(at int64, s string, gap bool) bool { again.Append(at, s, gap); return true }) != nil {
			return
		}
		require.NoError(t, DecodeTexts(again.Bytes, func(int64, string, bool) bool { return true }))
	})
}

func BenchmarkAppendNumber(b *testing.B) {
	b.ReportAllocs()
	var c NumberChunk
	t := int64(1_700_000_000_000)
	for i := 0; b.Loop(); i++ {
		if c.Count == MaxSamples {
			c.Reset()
		}
		t += 1000 + int64(i%7)
		c.Append(t, 20+float64(i%30)/10)
	}
}
