// SPDX-License-Identifier: Apache-2.0

package session

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The ways of a delivery, event by event, with the state after each.
func TestADeliveryGoesOneOfTheseWays(t *testing.T) {
	type step struct {
		event deliveryEvent
		after deliveryState
	}
	for name, way := range map[string]struct {
		from  deliveryState
		steps []step
	}{
		"QoS 1": {stateQueued, []step{{eventSend, stateSent}, {eventEnd, stateEnded}}},
		"over two connections": {stateQueued, []step{
			{eventSend, stateSent}, {eventConnect, stateDue}, {eventConnect, stateDue}, {eventSend, stateSent}, {eventEnd, stateEnded},
		}},
		"acknowledged late":       {stateQueued, []step{{eventSend, stateSent}, {eventConnect, stateDue}, {eventEnd, stateEnded}}},
		"dropped from the queue":  {stateQueued, []step{{eventEnd, stateEnded}}},
		"dropped on disk":         {stateOnDisk, []step{{eventEnd, stateEnded}}},
		"read from disk":          {stateOnDisk, []step{{eventRead, stateQueued}, {eventSend, stateSent}, {eventEnd, stateEnded}}},
		"held until its turn":     {stateQueued, []step{{eventSend, stateSent}, {eventHold, stateDue}, {eventSend, stateSent}, {eventEnd, stateEnded}}},
		"QoS 2 in memory":         {stateQueued, []step{{eventSend, stateSent}, {eventRelease, stateReleased}, {eventEnd, stateEnded}}},
		"PUBREC late":             {stateQueued, []step{{eventSend, stateSent}, {eventConnect, stateDue}, {eventRelease, stateReleased}, {eventEnd, stateEnded}}},
		"PUBREC refused":          {stateQueued, []step{{eventSend, stateSent}, {eventEnd, stateEnded}}},
		"PUBREC twice":            {stateSent, []step{{eventRelease, stateReleased}, {eventRelease, stateReleased}, {eventEnd, stateEnded}}},
		"PUBREL over connections": {stateSent, []step{{eventRelease, stateReleased}, {eventConnect, stateReleased}, {eventEnd, stateEnded}}},
		"QoS 2 on disk": {stateSent, []step{
			{eventReceive, stateReleasing}, {eventConnect, stateReleasing}, {eventRelease, stateReleased}, {eventEnd, stateEnded},
		}},
		"PUBREC not stored": {stateSent, []step{
			{eventReceive, stateReleasing}, {eventReleaseFailed, stateSent}, {eventConnect, stateDue}, {eventReceive, stateReleasing}, {eventEnd, stateEnded},
		}},
	} {
		state := way.from
		for i, s := range way.steps {
			require.True(t, state.change(s.event), "%s, step %d", name, i)
			require.Equal(t, s.after, state, "%s, step %d", name, i)
		}
	}
}

// What a client sends at the wrong time, and what comes late, changes nothing.
func TestADeliveryIgnoresWhatComesAtTheWrongTime(t *testing.T) {
	for _, c := range []struct {
		state  deliveryState
		events []deliveryEvent
	}{
		{stateQueued, []deliveryEvent{eventRead, eventHold, eventConnect, eventReceive, eventRelease, eventReleaseFailed}},
		{stateOnDisk, []deliveryEvent{eventSend, eventHold, eventConnect, eventReceive, eventRelease, eventReleaseFailed}},
		{stateDue, []deliveryEvent{eventRead, eventHold, eventReleaseFailed}},
		{stateSent, []deliveryEvent{eventRead, eventSend, eventReleaseFailed}},
		{stateReleasing, []deliveryEvent{eventRead, eventSend, eventHold, eventReceive}},
		{stateReleased, []deliveryEvent{eventRead, eventSend, eventHold, eventReceive, eventReleaseFailed}},
		{stateEnded, []deliveryEvent{eventRead, eventSend, eventHold, eventConnect, eventReceive, eventRelease, eventReleaseFailed, eventEnd}},
	} {
		for _, e := range c.events {
			state := c.state
			require.False(t, state.change(e), "state %d, event %d", c.state, e)
			require.Equal(t, c.state, state)
		}
	}
}

// A record that is to be deleted while it is being stored is deleted once it is, and once.
func TestARecordIsDeletedOnceItIsStored(t *testing.T) {
	r := recordCommitting
	require.False(t, r.change(eventDelete))
	require.True(t, r.change(eventCommitted))
	require.True(t, r.change(eventDelete))
	require.False(t, r.change(eventDelete))
	r = recordCommitting
	require.True(t, r.change(eventCommitFailed))
	require.False(t, r.change(eventDelete))
	require.False(t, r.change(eventCommitted))
}
