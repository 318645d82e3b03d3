// SPDX-License-Identifier: Apache-2.0

package jetstream

import (
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/natsservers"
)

func newTestLog() *Log {
	o := Options{}
	o.setDefaults()
	return &Log{o: o}
}

// Whoever may publish on the servers can tell of a frame that never comes: readers don't ask for it again and again for ever.
func TestAFrameThatNeverComesIsAskedForSeldom(t *testing.T) {
	l := newTestLog()
	r := reading{log: l, after: 7}
	l.hint(&nats.Msg{Data: []byte("18446744073709551615")})
	began, asked := time.Now(), 0
	for ; time.Since(began) < 3*time.Second; asked++ {
		require.NoError(t, r.wait(t.Context()))
	}
	require.Less(t, asked, emptyTries+20)
	l.hint(&nats.Msg{Data: []byte("8")})
	began = time.Now()
	require.NoError(t, r.wait(t.Context()))
	require.Less(t, time.Since(began), l.o.Poll, "one that was told of is")
}

// A hub that stands by asks for frames all the time: what each answer takes is its garbage collector's work.
func TestAFetchTakesLittleMemory(t *testing.T) {
	o := Options{Servers: natsservers.Start(t, 3).URLs(), Stream: "small"}
	_, err := Create(t.Context(), o)
	require.NoError(t, err)
	log, err := Open(t.Context(), o)
	require.NoError(t, err)
	defer log.Close()
	const times = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		_, err := log.fetch(t.Context(), 0)
		require.NoError(t, err)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, (after.TotalAlloc-before.TotalAlloc)/times, uint64(64<<10), "bytes of a fetch")
}
