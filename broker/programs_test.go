// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/limits"
)

// The tests of what clients may rely on are of package broker and run from here, with the limits that the programs ship.

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
	return limitsIn(t, "../configs/hub.yaml"), limitsIn(t, "../configs/core.yaml")
}

func limitsIn(t *testing.T, file string) broker.Limits {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var settings struct {
		Limits limits.Limits `yaml:"limits"`
	}
	require.NoError(t, yaml.Unmarshal(text, &settings))
	require.NotZero(t, settings.Limits.Packet)
	return settings.Limits
}
