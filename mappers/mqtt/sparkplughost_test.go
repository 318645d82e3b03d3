// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
)

// The state of the host is retained: online while it is connected, offline by its will or its goodbye, and not what others say.
func TestAHostOfSparkplugSaysWhetherItIsThere(t *testing.T) {
	server := newBroker(t)
	var mu sync.Mutex
	var last hostState
	c := newClient(t, server, "edge", func(m client.Message) {
		mu.Lock()
		defer mu.Unlock()
		last = hostState{}
		_ = json.Unmarshal(m.Payload, &last)
	}, stateTopic+"plant")
	state := func(online bool) (said hostState) {
		t.Helper()
		require.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			said = last
			return said.Timestamp > 0 && said.Online == online
		}, waitTime, time.Millisecond)
		return said
	}
	d := New(Options{Timeout: waitTime, SparkplugHost: "plant", Broker: client.Options{Servers: []string{server}, ClientID: "devices-mqtt", Log: zerolog.Nop()}})
	s, err := d.Open(t.Context(), lampDevice("lamp"))
	require.NoError(t, err)
	first := state(true)

	payload, _ := json.Marshal(hostState{Timestamp: first.Timestamp + 1})
	require.NoError(t, c.Publish(t.Context(), client.Message{Topic: stateTopic + "plant", Payload: payload, QoS: 1, Retain: true}))
	require.Equal(t, first, state(true), "another's word doesn't stay")

	require.NoError(t, s.Close())
	state(false)
}
