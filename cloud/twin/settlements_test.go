package twin

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// A desired value that a durable session gets is acknowledged once both the store and that session have it, and refused where the
// session's disk is full.
func TestADesiredValueIsAcknowledgedWhenDurableSessionsHaveIt(t *testing.T) {
	r, _ := newJoinedRig(t)
	outcomes := make(chan func(error), 16)
	r.kept.Store(&outcomes)
	write := func(value string) chan error {
		answer := make(chan error, 1)
		r.twins.Publish(broker.Message{Topic: lampDesired + "/brightness", Payload: []byte(value), Publisher: &broker.Identity{ClientID: "ops"}},
			func(err error) { answer <- err })
		return answer
	}
	answer := write("40")
	done := <-outcomes
	require.Empty(t, answer, "the store has it, and the session doesn't")
	done(nil)
	require.NoError(t, <-answer)
	answer = write("41")
	(<-outcomes)(resource.Errorf(resource.Unavailable, "", "no space left on device"))
	require.ErrorIs(t, <-answer, resource.Unavailable)
	r.kept.Store(nil)
	require.NoError(t, <-write("42"))
}

// Nobody waits for a session's copy beyond the hub's end, the device's, or the time that a write may take.
func TestNobodyWaitsForACopyForEver(t *testing.T) {
	s := newDeliveryWaits()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.wait(ctx, new(device), 1), context.Canceled)
	removed := new(device)
	s.remove(removed)
	require.NoError(t, s.wait(t.Context(), removed, 1))
	s.close()
	require.ErrorIs(t, s.wait(t.Context(), new(device), 1), resource.Unavailable)
}
