// SPDX-License-Identifier: Apache-2.0

// Package handlertest runs discovery handlers in their tests. It is never part of a program.
package handlertest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/edge/discovery/handler"
)

// Timeout is how long to wait for what is to happen: a busy machine must not fail a test.
const Timeout = 30 * time.Second

// Discover runs a handler until the test ends, which it must do without an error, and returns the lists that it finds.
func Discover(t testing.TB, h handler.Handler, details string, properties map[string][]byte) <-chan []handler.Device {
	ctx, cancel := context.WithCancel(context.Background())
	found, ended := make(chan []handler.Device, 1000), make(chan error, 1)
	go func() {
		ended <- h.Discover(ctx, details, properties, func(devices []handler.Device) {
			select {
			case found <- devices:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return found
}

// NextDevices waits for a list of n devices.
func NextDevices(t testing.TB, found <-chan []handler.Device, n int) []handler.Device {
	t.Helper()
	return awaitDevices(t, found, n, func(ids []string) bool { return len(ids) == n })
}

// AwaitIDs waits for a list of the devices with some ids, in their order.
func AwaitIDs(t testing.TB, found <-chan []handler.Device, ids ...string) []handler.Device {
	t.Helper()
	return awaitDevices(t, found, ids, func(has []string) bool { return slices.Equal(has, ids) })
}

func awaitDevices(t testing.TB, found <-chan []handler.Device, wanted any, ok func(ids []string) bool) []handler.Device {
	t.Helper()
	var ids []string
	for timeout := time.After(Timeout); ; {
		select {
		case devices := <-found:
			ids = nil
			for _, d := range devices {
				ids = append(ids, d.ID)
			}
			if ok(ids) {
				return devices
			}
		case <-timeout:
			require.FailNow(t, "not found in time", "wanted %v, there is %v", wanted, ids)
		}
	}
}
