// SPDX-License-Identifier: Apache-2.0

package bacnet

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/mappers/bacnet/wire"
	"github.com/edgebus/edgebus/test/handlertest"
)

func startUnit(t *testing.T, number uint32, name string) *wire.Server {
	t.Helper()
	s, err := wire.NewServer("127.0.0.1:0", number, map[wire.ObjectID]*wire.ServerObject{
		wire.NewObjectID(wire.Device, number): {Properties: map[wire.PropertyID][]any{
			wire.ObjectName: {name}, wire.VendorName: {"ACME"}, wire.ModelName: {"Unit\x00 7"}, wire.FirmwareVersion: {uint64(4)},
		}},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func detailsFor(more string, units ...*wire.Server) string {
	var addresses []string
	for _, u := range units {
		addresses = append(addresses, fmt.Sprintf("%q", u.Addr()))
	}
	return "addresses: [" + strings.Join(addresses, ", ") + "]\ninterval: 1s\nwait: 150ms\ntimeout: 200ms\n" + more
}

func TestDevicesAreFoundWithWhatTheySayOfThemselves(t *testing.T) {
	a, b, silent := startUnit(t, 1234, "Air handling"), startUnit(t, 77, "Boiler"), startUnit(t, 78, "Pump")
	silent.Answer(func(byte) bool { return false }) // to what is asked it doesn't answer, but to Who-Is
	found := handlertest.Discover(t, deviceFinder{zerolog.Nop()}, detailsFor("", a, b, silent), nil)
	devices := handlertest.AwaitIDs(t, found, "1234", "77", "78")
	require.Equal(t, map[string]string{
		"BACNET_DEVICE": "1234", "BACNET_ADDRESS": a.Addr().String(), "BACNET_NETWORK": "", "BACNET_MAC": "", "BACNET_NAME": "Air handling", "BACNET_VENDOR": "ACME",
		"BACNET_VENDOR_ID": "65535", "BACNET_MODEL": "Unit\ufffd 7", "BACNET_FIRMWARE": "", "BACNET_LOCATION": "", "BACNET_DESCRIPTION": "",
	}, devices[0].Properties)
	require.Empty(t, devices[2].Properties["BACNET_NAME"])
	silent.Answer(nil)
	require.Eventually(t, func() bool {
		return handlertest.NextDevices(t, found, 3)[2].Properties["BACNET_NAME"] == "Pump"
	}, handlertest.Timeout, time.Millisecond, "it is asked again")
	require.NoError(t, b.Close())
	handlertest.AwaitIDs(t, found, "1234", "78")
}

func TestNumbersAndPropertiesSelectDevices(t *testing.T) {
	a, b := startUnit(t, 1234, "Air handling"), startUnit(t, 77, "Boiler")
	handlertest.AwaitIDs(t, handlertest.Discover(t, deviceFinder{zerolog.Nop()}, detailsFor("devices: 1000-1999", a, b), nil), "1234")
	handlertest.AwaitIDs(t, handlertest.Discover(t, deviceFinder{zerolog.Nop()}, detailsFor("filter: {BACNET_NAME: Boil*}", a, b), nil), "77")
}

func TestTwoDevicesWithOneNumberAreTold(t *testing.T) {
	a, b := startUnit(t, 5, "one"), startUnit(t, 5, "other")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := ""
	ctx = handler.WithTell(ctx, func(message string) { told = message })
	require.NoError(t, deviceFinder{zerolog.Nop()}.Discover(ctx, detailsFor("", a, b), nil, func([]handler.Device) { cancel() }))
	require.Contains(t, told, "device 5 is at "+min(a.Addr().String(), b.Addr().String()))
}

func TestWhatIsWrongInDetailsIsNamed(t *testing.T) {
	for details, want := range map[string]string{
		"addresses: [\"10.0.0.9:x\"]": "addresses[0]", "devices: 9-3": "devices", "devices: 5000000": "devices", "interval: 1ms": "interval", "wait: 2h": "wait",
		"timeout: 0s": "timeout", "device: 3": "there is no field device", "filter: {A: \"[\"}": "filter.A",
	} {
		err := deviceFinder{zerolog.Nop()}.Discover(t.Context(), details, nil, func([]handler.Device) { t.Error(details) })
		require.True(t, handler.IsInvalidArgument(err), "%s: %v", details, err)
		require.ErrorContains(t, err, want, details)
	}
}
