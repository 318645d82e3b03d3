// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
)

// After a connection nothing is known of what the broker has until all of it has come: at last what it retains of the node's status. That an order is
// not there says nothing before.
func TestWhatHasNotComeYetIsNotKnown(t *testing.T) {
	b, err := newBus("edgeagent", []string{"unix:///nowhere"}, zerolog.Nop(), func() {})
	require.NoError(t, err)
	says := func(key, payload string, retained bool) {
		b.message(client.Message{Topic: "v1/nodes/n1/" + key, Payload: []byte(payload), Retain: retained})
	}
	order := `{"id":"1","upgrade":"up","images":["a"],"timeout":60}`
	ended, end := context.WithCancel(t.Context()) // it subscribes to nothing without a broker
	end()
	for range 2 {
		_ = b.connected(ended, false)
		o, err := b.order()
		require.ErrorIs(t, err, errOrderUnknown)
		require.Nil(t, o)
		says("upgrade", order, true)
		o, err = b.order()
		require.NoError(t, err)
		require.Equal(t, "1", o.ID)
	}
	_ = b.connected(ended, false)
	says("status", "{}", false) // the core has something to say
	_, err = b.order()
	require.ErrorIs(t, err, errOrderUnknown)
	says("status", "{}", true)
	o, err := b.order()
	require.NoError(t, err, "there is none")
	require.Nil(t, o)
}
