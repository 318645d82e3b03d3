// SPDX-License-Identifier: Apache-2.0

// Package chunkenc compares the chunks of numbers of Edgebus' history with those of Prometheus, which are to be the same bit for bit.
package chunkenc

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/history/chunk"
)

type sample struct {
	t int64
	v float64
}

// samplesOf makes samples of arbitrary bytes: steps of all sizes, and values that are equal, near or anything.
func samplesOf(b []byte) (list []sample) {
	t, v := int64(1_700_000_000_000), uint64(0)
	for len(b) >= 10 && len(list) < chunk.MaxSamples {
		step := int64(binary.LittleEndian.Uint64(b[2:])) >> (b[0] % 64)
		t += step
		switch b[1] % 3 {
		case 0:
			v = math.Float64bits(float64(int8(b[2])) / 10)
		case 1:
			v = binary.LittleEndian.Uint64(b[2:])
		}
		list = append(list, sample{t, math.Float64frombits(v)})
		b = b[10:]
	}
	return list
}

func FuzzTheSameBytesAsPrometheus(f *testing.F) {
	f.Add([]byte("0123456789abcdefghijabcdefghij0123456789"))
	seed := make([]byte, 0, 1200)
	for i := range 120 {
		seed = append(seed, byte(40+i%24), byte(i), byte(i*7), byte(i*31), byte(i*i), byte(i>>1), byte(i*3), byte(i*5), byte(i), byte(255-i))
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, b []byte) {
		list := samplesOf(b)
		theirs := chunkenc.NewXORChunk()
		app, err := theirs.Appender()
		require.NoError(t, err)
		var ours chunk.NumberChunk
		ours.Reset()
		for _, s := range list {
			app.Append(0, s.t, s.v)
			ours.Append(s.t, s.v)
		}
		require.Equal(t, theirs.Bytes(), ours.Bytes)
		var read []sample
		require.NoError(t, chunk.DecodeNumbers(theirs.Bytes(), func(at int64, v float64) bool {
			read = append(read, sample{at, v})
			return true
		}))
		require.Len(t, read, len(list))
		for i := range list {
			require.Equal(t, list[i].t, read[i].t)
			require.Equal(t, math.Float64bits(list[i].v), math.Float64bits(read[i].v))
		}
	})
}
