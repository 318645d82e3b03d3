package broker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/mqttserver"
	"github.com/edgebus/edgebus/configs"
)

// The tests of what clients may rely on are of package broker and run from here, for the limits
// that the programs ship are made by broker/mqttserver, which imports it.

func TestDelivery(t *testing.T) {
	hub, core := shippedLimits(t)
	broker.RunDeliveryTests(t, hub, core)
}

func TestDefaultsHaveRoom(t *testing.T) {
	hub, core := shippedLimits(t)
	broker.RunDefaultRoomTest(t, hub, core)
}

func TestStandard(t *testing.T) {
	hub, core := shippedLimits(t)
	broker.RunStandardTests(t, hub, core)
}

// shippedLimits are the limits that hub and core have by default.
func shippedLimits(t *testing.T) (hub, core broker.Limits) {
	return configuredLimits[configs.Hub](t, "cloudhub", func(c configs.Hub) configs.Limits { return c.Limits.Limits }),
		configuredLimits[configs.Core](t, "edgecore", func(c configs.Core) configs.Limits { return c.Limits.Limits })
}

func configuredLimits[T any](t *testing.T, program string, of func(T) configs.Limits) broker.Limits {
	t.Helper()
	cfg, err := configs.Load[T](program, "/dev/null", nil)
	require.NoError(t, err)
	o, err := mqttserver.BrokerOptions(configs.MQTT{}, configs.Auth{}, of(cfg), false)
	require.NoError(t, err)
	return o.Limits
}
