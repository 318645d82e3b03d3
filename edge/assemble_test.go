// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

// A message in parts whose connection ends before it could be stored is sent again by the hub, and is not taken for one that has come before.
func TestAMessageInPartsThatCouldNotBeStoredComesAgain(t *testing.T) {
	large := bytes.Repeat([]byte("large "), 2000)
	stored, full, reconnects := []client.Message(nil), true, 0
	take := func(m client.Message) bool {
		if !full {
			stored = append(stored, m)
		}
		return !full
	}
	o := assembleParts(client.Options{}, "n1", take, func(error) { reconnects++ })
	topic := topics.Address{Node: "n1", Kind: topics.KindParts}.String()
	c := link.OutgoingParts{ID: link.NewPartID(), Topic: "large", Payload: large}
	// send sends what the hub sends after a CONNECT: it goes on with what was not acknowledged, or begins anew.
	memory := ""
	send := func() {
		now := o.Properties()[0].Value
		if now != memory {
			memory, c.ID, c.Acked = now, link.NewPartID(), 0
		}
		for c.Sent = c.Acked; c.Sent < len(large); {
			p := c.Next(5000)
			payload, err := link.EncodeMessagePart(p)
			require.NoError(t, err)
			o.OnMessage(client.Message{Topic: topic, Payload: payload, QoS: 1})
			if !p.Last() {
				c.Acked = c.Sent
			}
		}
	}
	send()
	require.Empty(t, stored)
	full = false
	send()
	require.Equal(t, []client.Message{{Topic: "large", Payload: large, QoS: 1}}, stored)
	send()
	require.Len(t, stored, 1, "it comes again because its acknowledgement was lost")
	require.Zero(t, reconnects)
}
