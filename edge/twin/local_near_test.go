package twin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
)

func TestAnUnknownDeviceIsToldWhichOneMayHaveBeenMeant(t *testing.T) {
	r := newJoinedRig(t)
	publish := func(key string, as *broker.Identity) error {
		done := make(chan error, 1)
		r.twin.Publish(broker.Message{Topic: topics.TopicOf("n1", key), Payload: []byte("20.5"), QoS: 1, Publisher: as}, func(err error) { done <- err })
		return <-done
	}
	operator := &broker.Identity{ClientID: "ann", Roles: []topics.Role{topics.RoleOperator}}
	for _, key := range []string{"devices/hal/desired/setpoint", "devices/hal/telemetry/x"} {
		require.ErrorContains(t, publish(key, operator), "device hal does not belong to node n1: did you mean hall?")
		mapper := &broker.Identity{ClientID: "mapper-x", Roles: []topics.Role{topics.RoleMapper}}
		require.NotContains(t, publish(key, mapper).Error(), "hall", "a mapper need not know of other mappers' devices")
	}
	require.ErrorContains(t, r.twin.Has("n1", "hal"), "did you mean hall?", "a command")
	require.NotContains(t, publish("devices/pump/desired/setpoint", operator).Error(), "did you mean")
}
