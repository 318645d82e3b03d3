package client

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// lines is a log that is read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// What a client drops because its owner is slower than its broker is counted and said,
// and so is what waits in it.
func TestWhatIsDroppedIsCounted(t *testing.T) {
	b := newFakeBroker(t)
	var count Counters
	var log lines
	handling, goOn := make(chan struct{}, maxWaiting+1), make(chan struct{})
	c := start(t, b, func(o *Options) {
		o.Counters, o.Log = &count, zerolog.New(&log)
		o.OnMessage = func(Message) {
			handling <- struct{}{}
			<-goOn
		}
	})
	letGo := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(letGo)
	conn := b.accept(packets.Connack{})
	conn.publish("first", "", 0, 0)
	<-handling
	for range maxWaiting + 7 {
		conn.publish("flood", "", 0, 0)
	}
	counted := func(counts func() bool) { require.Eventually(t, counts, wait, time.Millisecond) }
	counted(func() bool { return count.Dropped.Load() == 7 })
	require.EqualValues(t, maxWaiting, count.Waiting.Load())
	require.Contains(t, log.String(), "QoS 0 messages are dropped")
	letGo()
	counted(func() bool { return count.Waiting.Load() == 0 })

	acknowledged := make(chan error, 1)
	c.PublishAsync(Message{Topic: "a", QoS: 1}, func(err error) { acknowledged <- err })
	require.EqualValues(t, 1, count.Pending.Load())
	conn.puback(conn.readPublish().PacketID, 0, "")
	require.NoError(t, <-acknowledged)
	require.Zero(t, count.Pending.Load())
}
