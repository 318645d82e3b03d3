package twin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// A report that a durable session gets is acknowledged once both the store and that session have it, and refused where the session's
// disk is full.
func TestAReportIsAcknowledgedWhenDurableSessionsHaveIt(t *testing.T) {
	r := newJoinedRig(t)
	outcomes := make(chan func(error), 16)
	r.kept.Store(&outcomes)
	report := func(value string) chan error {
		answer := make(chan error, 1)
		r.twin.Publish(broker.Message{
			Topic: topics.TopicOf("n1", "devices/hall/reported/temperature"), Payload: []byte(value), QoS: 1,
			Publisher: &broker.Identity{ClientID: "tester"},
		}, func(err error) { answer <- err })
		return answer
	}
	answer := report("20.5")
	done := <-outcomes
	require.Empty(t, answer, "the store has it, and the session doesn't")
	done(nil)
	require.NoError(t, <-answer)
	answer = report("21")
	(<-outcomes)(resource.Errorf(resource.Unavailable, "", "no space left on device"))
	require.ErrorIs(t, <-answer, resource.Unavailable)
	r.kept.Store(nil)
}
