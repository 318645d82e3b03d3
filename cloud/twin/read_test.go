// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// Who subscribes while a value is being published gets it once: live or retained. So
// readers wait until it is published, and then find it.
func TestAValueIsReadOnceItIsPublished(t *testing.T) {
	r, c := newJoinedRig(t)
	topic := "v1/nodes/n1/devices/lamp/reported/power"
	read := make(chan []broker.Message, 1)
	r.mu.Lock()
	r.during = func(m broker.Message) {
		if m.Topic != topic {
			return
		}
		go func() { read <- r.twins.Retained(topic)(1) }()
		select {
		case early := <-read:
			read <- early
			t.Error("read before it was published")
		case <-time.After(20 * time.Millisecond): // who doesn't wait has read it by then
		}
	}
	r.mu.Unlock()
	c.report("devices/lamp/reported/power", "ON")
	found := <-read
	require.Len(t, found, 1)
	require.Equal(t, "ON", string(found[0].Payload))
}

// A message that nobody is to get isn't made; who asks later finds the value.
func TestAValueThatNobodyWantsIsRead(t *testing.T) {
	const reported = "v1/nodes/n1/devices/lamp/reported/"
	r := newRig(t)
	r.stop()
	r.wanted = func(topic string) bool { return topic != reported+"power" }
	r.start()
	r.create(resource.KindDeviceModel, "lamp", lampModel(false))
	r.create(resource.KindDevice, "lamp", lampOn("n1"))
	c := r.connect(newCore("n1"))
	c.gets("membership", `{"devices":["lamp"]}`)
	c.report("devices/lamp/reported/power", "ON")
	c.report("devices/lamp/reported/brightness", "7")
	require.Eventually(t, func() bool { return len(r.said(reported+"brightness")) > 0 }, testTimeout, time.Millisecond)
	require.Empty(t, r.said(reported+"power"))
	found := r.twins.Retained(reported + "power")(1)
	require.Len(t, found, 1)
	require.Equal(t, "ON", string(found[0].Payload))
}
