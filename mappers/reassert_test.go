// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
)

// What somebody else clears or overwrites of what a mapper has said is said again.
func TestReportsThatOthersClearAreRepeated(t *testing.T) {
	n := newNode(t)
	d := newToys("lamp")
	n.attach("lamp", "toy", nil, toyModel(nil))
	n.run(d, nil)
	n.eventually("devices/lamp/state", "online")
	level := n.want("lamp", "level", "7")
	n.applied("lamp", "level", "7", level)
	refused := n.want("lamp", "power", "BLUE")
	n.refused("lamp", "power", refused, OutOfRange)
	said := map[string]int{}
	keys := []string{
		"devices/lamp/state", "devices/lamp/reported/level", "devices/lamp/reported/temp", "devices/lamp/refused/power",
		"mappers/m1/state", "mappers/m1/protocols",
	}
	for _, key := range keys {
		said[key] = len(n.published(key))
		n.keep(broker.Message{Topic: "v1/nodes/n1/" + key})
	}
	for _, key := range keys {
		require.Eventually(t, func() bool { return len(n.published(key)) > said[key] }, testTimeout, pollInterval, key)
	}
	n.applied("lamp", "level", "7", level)
	n.eventually("devices/lamp/state", "online")
	n.eventually("mappers/m1/state", "online")
	n.refused("lamp", "power", refused, OutOfRange)

	n.keep(broker.Message{Topic: "v1/nodes/n1/devices/lamp/reported/temp", Payload: []byte("99")})
	n.eventually("devices/lamp/reported/temp", "20")
}

// Two who disagree about a topic publish it once a second at most.
func TestTwoClientsDisagree(t *testing.T) {
	sent := 0
	o := newOutbox(func(_ client.Message, done func(error)) { sent++; done(nil) }, zerolog.Nop())
	o.connected()
	o.set(client.Message{Topic: "state", Payload: []byte("online")})
	now := time.Unix(1_000_000, 0)
	for range 1000 {
		o.reassert(client.Message{Topic: "state", Payload: []byte("offline")}, now)
	}
	require.Equal(t, 2, sent, "at once, and then not")
	o.retry(true)
	require.Equal(t, 3, sent)
	o.reassert(client.Message{Topic: "state", Payload: []byte("online")}, now.Add(time.Minute))
	require.Equal(t, 3, sent, "it is what was said")
	o.reassert(client.Message{Topic: "another"}, now)
	require.Equal(t, 3, sent)
}
