// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/drivertest"
	"github.com/edgebus/edgebus/mappers/modbus/wire"
	"github.com/edgebus/edgebus/topics/resource"
)

// meterServer has numbers in input registers, each with the high word first in two of them. It refuses what it doesn't have, and to answer more
// than 40 numbers at once.
func meterServer(t *testing.T, numbers map[uint16]float32) resource.Value {
	s := &wire.Server{Handle: func(c wire.Call) ([]uint16, error) {
		if c.Function != wire.ReadInputRegisters || c.Quantity > 80 {
			return nil, wire.IllegalAddress
		}
		words := make([]uint16, c.Quantity)
		for i := range words {
			address := c.Address + uint16(i)
			bits := math.Float32bits(numbers[address&^1]) // what lies between is 0
			words[i] = uint16(bits >> 16)
			if address%2 == 1 {
				words[i] = uint16(bits)
			}
		}
		return words, nil
	}}
	require.NoError(t, s.Listen("127.0.0.1:0"))
	t.Cleanup(func() { _ = s.Close() })
	return resource.Value("tcp://" + s.Addr())
}

// sunspecMeter are the registers of a meter with the models 1 and 203.
func sunspecMeter() []uint16 {
	image := []uint16{sunspecMark >> 16, sunspecMark & 0xFFFF}
	for _, part := range []struct {
		number int
		values map[string]any
	}{
		{1, map[string]any{"Mn": "Maker", "Md": "M3", "SN": "4711"}},
		{203, map[string]any{
			"AphA": 101, "AphB": 202, "AphC": 303, "A_SF": -2, "PhVphA": 2301, "PhVphB": 2302, "PhVphC": 2303, "V_SF": -1, "Hz": 5001, "Hz_SF": -2,
			"W": -138, "WphA": -23, "WphB": -46, "WphC": -69, "W_SF": 1, "TotWhExp": 7000, "TotWhImp": 123456, "TotWh_SF": 1,
		}},
	} {
		m, _ := sunspecBlock{number: part.number}.model()
		list, size := parsePoints(m.points)
		image = append(append(image, uint16(part.number), size), fillPoints(list, part.values)...)
	}
	return append(image, 0xFFFF, 0)
}

// The registers are those that the makers' documents and SunSpec give.
func TestModelsOfTheLibraryReadWhatDevicesHave(t *testing.T) {
	want := map[string]map[string]string{
		"sunspec-inverter": {
			"manufacturer": "Edgebus", "model": "simulated inverter", "serial": "SIM-0001", "state": "running", "power": "2995", "energy": "12345678", "current": "13.02",
			"voltage-a": "230.1", "voltage-b": "230.4", "voltage-c": "229.8", "frequency": "50.02", "dc-power": "3102", "temperature": "41.5",
		},
		"sunspec-meter": {
			"manufacturer": "Maker", "model": "M3", "serial": "4711", "power": "-1380", "power-a": "-230", "power-b": "-460", "power-c": "-690", "current-a": "1.01", "current-b": "2.02", "current-c": "3.03",
			"voltage-a": "230.1", "voltage-b": "230.2", "voltage-c": "230.3", "frequency": "50.01", "energy-imported": "1234560", "energy-exported": "70000",
		},
		"eastron-sdm120": {
			"voltage": "230.2", "current": "1.5", "power": "-345.3", "apparent-power": "350", "reactive-power": "12.5", "power-factor": "0.98", "frequency": "50.01",
			"energy-imported": "1234.567", "energy-exported": "7.5", "reactive-energy-imported": "3.25", "reactive-energy-exported": "0.5", "energy": "1242.067",
		},
		"eastron-sdm630": {
			"voltage-l1": "230.2", "voltage-l2": "231", "voltage-l3": "229.5", "current-l1": "1", "current-l2": "2", "current-l3": "3.5", "power-l1": "230", "power-l2": "460", "power-l3": "-805",
			"power-factor-l1": "0.9", "power-factor-l2": "0.8", "power-factor-l3": "-0.7", "current": "6.5", "power": "-115", "apparent-power": "1500", "reactive-power": "21", "power-factor": "0.95",
			"frequency": "49.98", "energy-imported": "100.5", "energy-exported": "20.25", "reactive-energy-imported": "5", "reactive-energy-exported": "6",
			"voltage-l1-l2": "399", "voltage-l2-l3": "400", "voltage-l3-l1": "401", "current-neutral": "0.25", "energy": "120.75",
		},
	}
	driver := New(Options{})
	devices := drivertest.LibraryDevices(t, driver, map[string]map[string]resource.Value{
		"sunspec-inverter": {"address": resource.Value(sunspecServer(t, 40000, sunspecImage()))},
		"sunspec-meter":    {"address": resource.Value(sunspecServer(t, 50000, sunspecMeter()))},
		"eastron-sdm120": {"address": meterServer(t, map[uint16]float32{
			0: 230.2, 6: 1.5, 12: -345.3, 18: 350, 24: 12.5, 30: 0.98, 70: 50.01, 72: 1234.567, 74: 7.5, 76: 3.25, 78: 0.5, 342: 1242.067,
		})},
		"eastron-sdm630": {"address": meterServer(t, map[uint16]float32{
			0: 230.2, 2: 231, 4: 229.5, 6: 1, 8: 2, 10: 3.5, 12: 230, 14: 460, 16: -805, 30: 0.9, 32: 0.8, 34: -0.7, 48: 6.5, 52: -115, 56: 1500, 60: 21, 62: 0.95, 70: 49.98,
			72: 100.5, 74: 20.25, 76: 5, 78: 6, 200: 399, 202: 400, 204: 401, 224: 0.25, 342: 120.75,
		})},
	})
	for name, d := range devices {
		s, err := mappers.Open(t.Context(), driver, d)
		require.NoError(t, err, name)
		t.Cleanup(func() { _ = s.Close() })
		require.NoError(t, s.Session.(mappers.Pinger).Ping(t.Context()), name)
		require.Equal(t, want[name], drivertest.ReadAll(t, s, d), name)
	}
}
