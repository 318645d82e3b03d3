// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
)

// forget takes a device and all that was reported of it off the node, without a word.
func (n *fakeNode) forget(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.devices, name)
	for topic := range n.kept {
		if key := "v1/nodes/n1/devices/" + name; topic == key || strings.HasPrefix(topic, key+"/") {
			delete(n.kept, topic)
		}
	}
}

// A device that left and came back while the broker was away, and whose reports were
// refused in between, is reported again.
func TestDeviceThatComesBackIsReportedAgain(t *testing.T) {
	n := newNode(t)
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(newToys("lamp"), nil)
	n.eventually("devices/lamp/state", "online")
	n.eventually("devices/lamp/reported/temp", "20")
	n.stop()
	n.forget("lamp")
	said := len(n.published("devices/lamp/state"))
	n.start()
	require.Eventually(t, func() bool { return len(n.published("devices/lamp/state")) > said }, testTimeout, pollInterval, "and refused")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.eventually("devices/lamp/state", "online")
	n.eventually("devices/lamp/reported/temp", "20")
}

// Another device of the same name is none of the old one's business, also when nothing
// else tells them apart.
func TestAnotherDeviceOfTheSameName(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	n.eventually("devices/lamp/reported/temp", "20")
	b := n.devices["lamp"]
	b.Device.Metadata.UID = "another"
	payload, err := json.Marshal(b)
	require.NoError(t, err)
	n.forget("lamp")
	n.mu.Lock()
	n.devices["lamp"] = b
	n.mu.Unlock()
	n.keep(broker.Message{Topic: "v1/nodes/n1/devices/lamp", Payload: payload})
	n.eventually("devices/lamp/state", "online")
	n.eventually("devices/lamp/reported/temp", "20")
}

// What is refused while its device joins the node is published once more, and what was
// refused before that when the device is there.
func TestRefusedReportsAreRenewed(t *testing.T) {
	var sent []string
	var answers []func(error)
	o := newOutbox(func(m client.Message, done func(error)) {
		sent, answers = append(sent, string(m.Payload)), append(answers, done)
	}, zerolog.Nop())
	refused := &client.Refused{Code: 0x90}
	o.connected()
	o.set(client.Message{Topic: "state", Payload: []byte("online")})
	o.resendRefused([]string{"state", "other"}) // the device has joined, the publish is under way
	answers[0](refused)
	require.Equal(t, []string{"online", "online"}, sent)
	answers[1](refused)
	o.retry(true)
	require.Len(t, sent, 2, "it waits")
	o.resendRefused([]string{"state"})
	require.Len(t, sent, 3)
	answers[2](nil)
	o.resendRefused([]string{"state"})
	require.Len(t, sent, 3, "it is stored")
}

// TestSetupAskedForMeanwhile: a device that takes another's place while that one is being set up, and one that is
// configured anew or connected again while it is, are set up once more.
func TestSetupAskedForMeanwhile(t *testing.T) {
	old, fresh := &device{key: "lamp"}, &device{key: "lamp"}
	m := &mapper{devices: map[string]*device{"lamp": old}, setups: map[string]uint64{}, setupWake: make(chan struct{}, 1)}
	m.requestSetup("lamp")
	asked := m.pending()["lamp"]
	m.devices["lamp"] = fresh
	m.requestSetup("lamp")
	m.finishSetup("lamp", asked, old, false)
	m.finishSetup("lamp", asked, old, true)
	require.Same(t, fresh, m.devices["lamp"])
	require.Contains(t, m.pending(), "lamp", "still to be done")
	again := m.pending()["lamp"]
	m.requestSetup("lamp")
	m.finishSetup("lamp", again, fresh, false)
	require.Contains(t, m.pending(), "lamp", "asked for after that answer")
	m.finishSetup("lamp", m.pending()["lamp"], fresh, false)
	require.Empty(t, m.pending())
}
