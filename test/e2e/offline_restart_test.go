// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/stand"
)

// A hub that comes back knows all its devices before it speaks: no node is told
// that some are gone. They are many, so that it takes a while, and the node asks all the time.
func TestAHubThatComesBackForgetsNothing(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	s.Up("hub")
	require.NoError(t, s.Start(t.Context(), "core", "--log-level", "info",
		"--link-retry-backoff-min", "1ms", "--link-retry-backoff-max", "2ms"))
	f := meterFleet{meters: 10_000, readings: 1}
	f.create(t, s)
	s.Eventually(2*stand.WaitTimeout, func() error { return wantGauge(s, s.Node("n1").HTTP, "edgebus_core_devices", float64(f.meters)) })
	core := f.mapper(s)
	f.reportAll(t, core, 0)
	s.InStep()
	var lost atomic.Int64
	local := s.Watch(s.Core(), deviceTree+"#", func(m client.Message) {
		if len(m.Payload) == 0 {
			lost.Add(1)
		}
	})
	s.Eventually(stand.WaitTimeout, func() error { return wantEqual(f.meters+f.keys(), len(local.Tree())) })
	for range 5 {
		require.NoError(t, s.Crash("hub"))
		s.Up("hub")
		s.InStep()
		require.Zero(t, lost.Load(), "keys were cleared on the node")
	}
}
