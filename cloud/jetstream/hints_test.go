// SPDX-License-Identifier: Apache-2.0

package jetstream

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
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
