// SPDX-License-Identifier: Apache-2.0

package demo_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli/demo"
	"github.com/edgebus/edgebus/test/clitest"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestSamplesAreAppliedOnce(t *testing.T) {
	hub := clitest.StartHub(t)
	apply := func() error { return demo.ApplySamples(t.Context(), hub.Listener.Addr().String(), "127.0.0.1:9999") }
	require.NoError(t, apply())
	out, _ := clitest.Run(t, 0, "get", "device", "thermostat", "-o", "yaml")
	require.Contains(t, out, "tcp://127.0.0.1:9999")
	require.NoError(t, apply(), "a kept directory has them")
	hub.Close()
	require.ErrorIs(t, apply(), resource.Unavailable)
}
