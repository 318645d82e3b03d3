package twin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
)

// Who subscribes while a value is being published gets it once: live or retained. So
// readers wait until it is published, and then find it.
func TestAValueIsReadOnceItIsPublished(t *testing.T) {
	r := newJoinedRig(t)
	topic := "v1/nodes/n1/devices/hall/reported/temperature"
	read := make(chan []broker.Message, 1)
	r.mu.Lock()
	r.during = func(m broker.Message) {
		if m.Topic != topic {
			return
		}
		go func() { read <- r.twin.Retained(topic)(1) }()
		select {
		case early := <-read:
			read <- early
			t.Error("read before it was published")
		case <-time.After(20 * time.Millisecond): // who doesn't wait has read it by then
		}
	}
	r.mu.Unlock()
	require.NoError(t, r.send("devices/hall/reported/temperature", "20.5"))
	found := <-read
	require.Len(t, found, 1)
	require.Equal(t, "20.5", string(found[0].Payload))
}
