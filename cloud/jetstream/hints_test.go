// SPDX-License-Identifier: Apache-2.0

package jetstream

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

func newTestLog() *Log {
	o := Options{}
	o.setDefaults()
	return &Log{o: o, has: make(map[string]Reader)}
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

func TestReadersThatNobodyKnowsFillNoMemory(t *testing.T) {
	l := newTestLog()
	say := func(name string) { l.heard(&nats.Msg{Data: fmt.Appendf(nil, `{"name":%q,"at":1}`, name)}) }
	for i := range 3 * maxReaders {
		say(fmt.Sprint("forged-", i))
		say("hub")
	}
	say(strings.Repeat("x", 1<<20))
	require.LessOrEqual(t, len(l.Readers()), maxReaders)
	require.Contains(t, l.Readers(), "hub")
	require.Contains(t, l.Readers(), fmt.Sprint("forged-", 3*maxReaders-1))
}
