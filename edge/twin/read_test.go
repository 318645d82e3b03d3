// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
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

func TestRetainedMessagesMatchFilters(t *testing.T) {
	r := newJoinedRig(t)
	r.wantShown("devices/hall/desired/setpoint", "20", 1)
	require.NoError(t, r.send("devices/hall/desired/mode", "off")) // in force, and the cloud wants nothing
	require.NoError(t, r.send("devices/hall/reported/temperature", "21"))
	r.value("devices/hall/desired/mode", "off")
	all := r.retained()
	require.Contains(t, all, "devices/hall/override/mode")
	for _, filter := range []string{
		"devices/+/desired/+", "devices/hall/desired/#", "devices/hall/override/+", "devices/+/override/mode", "devices/hall/#",
		"devices/hall", "devices/hall/desired/mode", "devices/+", "+/+/+/mode", "status", "devices/hall/reported/#",
	} {
		want, got := []string{}, []string{}
		for key := range all {
			if topics.Match(filter, key) {
				want = append(want, topics.TopicOf("n1", key))
			}
		}
		pull := r.twin.Retained(topics.TopicOf("n1", filter))
		for chunk := pull(1); len(chunk) > 0; chunk = pull(1) {
			for _, m := range chunk {
				got = append(got, m.Topic)
			}
		}
		require.ElementsMatch(t, want, got, filter)
	}
}
