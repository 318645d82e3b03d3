// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"net"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon"
)

// A hub that stands by starts when it takes over, and collects garbage as rarely as any that starts.
func TestGarbageIsCollectedMoreOftenOnceAHubServes(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	listener := []net.Addr{&net.TCPAddr{}}
	tidyMemory(daemon.Addresses{HTTP: listener})
	require.Equal(t, 100, debug.SetGCPercent(100))
	tidyMemory(daemon.Addresses{HTTP: listener, MQTT: listener})
	require.Equal(t, gcPercent, debug.SetGCPercent(gcPercent))
}
