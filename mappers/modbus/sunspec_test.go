// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/modbus/wire"
)

// TestTheModelsOfSunSpecAreAsLongAsTheyAre: the lengths that SunSpec gives them.
func TestTheModelsOfSunSpecAreAsLongAsTheyAre(t *testing.T) {
	lengths := map[int][2]uint16{1: {65, 0}, 103: {50, 0}, 113: {60, 0}, 120: {26, 0}, 121: {30, 0}, 122: {44, 0}, 123: {24, 0}, 124: {24, 0}, 160: {8, 20}, 203: {105, 0}, 802: {62, 0}}
	for number, want := range lengths {
		m, ok := sunspecBlock{number: number}.model()
		require.True(t, ok, number)
		list, size := parsePoints(m.points)
		part, partSize := parsePoints(m.repeat)
		require.Equal(t, want, [2]uint16{size, partSize}, "model %d", number)
		names := map[string]bool{}
		for _, p := range append(list, part...) {
			if p.factor != "" {
				factor, ok := findPoint(list, p.factor)
				require.True(t, ok && factor.typ == 'x', "%d %s: no %s", number, p.name, p.factor)
			}
			require.Contains(t, "aubefisx-", string(p.typ), p.name)
			require.NotContains(t, names, p.name)
			names[p.name] = p.typ != '-' && m.repeat == ""
		}
	}
}

// sunspecServer serves an image from a base on, which 1 to 3 registers before it don't answer.
func sunspecServer(t *testing.T, base int, image []uint16) string {
	s := &wire.Server{Handle: func(c wire.Call) ([]uint16, error) {
		from := int(c.Address) - base
		if from < 0 || from+int(c.Quantity) > len(image) {
			return nil, wire.IllegalAddress
		}
		if c.IsWrite() {
			copy(image[from:], c.Values)
			return nil, nil
		}
		return image[from : from+int(c.Quantity)], nil
	}}
	require.NoError(t, s.Listen("127.0.0.1:0"))
	t.Cleanup(func() { _ = s.Close() })
	return s.Addr()
}

func sunspecProperty(name string, typ mappers.Type, point string) mappers.Property {
	return newProperty(name, typ, false, "sunspec", point)
}

func TestPointsOfSunSpecAreFoundByTheirNumbers(t *testing.T) {
	for _, base := range []int{40000, 50000, 0} {
		d := mappers.Device{Name: "pv", Config: map[string]string{"address": sunspecServer(t, base, sunspecImage())}, Properties: []mappers.Property{
			sunspecProperty("power", mappers.Double, "inverter/W"), sunspecProperty("voltage", mappers.Double, "103/phvpha"), sunspecProperty("energy", mappers.Int, "inverter/WH"),
			sunspecProperty("serial", mappers.String, "common/SN"), sunspecProperty("east", mappers.Double, "160/1/DCV"), sunspecProperty("west", mappers.Double, "mppt/2/DCA"),
			sunspecProperty("rating", mappers.Double, "120/WRtg"), sunspecProperty("none", mappers.Double, "inverter/VA"), sunspecProperty("third", mappers.Double, "160/3/DCV"),
			sunspecProperty("battery", mappers.Double, "battery/SoC"), sunspecProperty("temperature", mappers.Double, "inverter/TmpCab"),
		}}
		s := openDevice(t, d)
		require.NoError(t, s.Ping(t.Context()))
		names := make([]string, len(d.Properties))
		for i, p := range d.Properties {
			names[i] = p.Name
		}
		for range 2 {
			got := map[string]mappers.Reading{}
			for _, group := range s.Group(names) {
				part, err := s.ReadBatch(t.Context(), group)
				require.NoError(t, err)
				for name, r := range part {
					got[name] = r
				}
			}
			for name, want := range map[string]string{"power": "2995", "voltage": "230.1", "energy": "12345678", "serial": "SIM-0001", "east": "350", "west": "3.74", "rating": "5000", "temperature": "41.5"} {
				require.NoError(t, got[name].Err, name)
				require.Equal(t, want, got[name].Value, name)
			}
			require.ErrorContains(t, got["none"].Err, "Unknown: the device says that it has no value")
			require.ErrorContains(t, got["third"].Err, "the device has no 160/3/DCV: its SunSpec models are 1, 103, 120, 160")
			require.ErrorContains(t, got["battery"].Err, "the device has no battery/SoC")
		}
		require.LessOrEqual(t, len(s.Group(names)), 8)
	}
}

func TestPointsOfSunSpecAreLookedForAgainAfterTheDeviceWasAway(t *testing.T) {
	var image atomic.Pointer[[]uint16]
	old := sunspecImage()
	image.Store(&old)
	server := &wire.Server{Handle: func(c wire.Call) ([]uint16, error) {
		image := *image.Load()
		from := int(c.Address) - 40000
		if from < 0 || from+int(c.Quantity) > len(image) {
			return nil, wire.IllegalAddress
		}
		return image[from : from+int(c.Quantity)], nil
	}}
	require.NoError(t, server.Listen("127.0.0.1:0"))
	t.Cleanup(func() { _ = server.Close() })
	s := openDevice(t, mappers.Device{Name: "pv", Config: map[string]string{"address": server.Addr()}, Properties: []mappers.Property{
		sunspecProperty("power", mappers.Double, "inverter/W"), sunspecProperty("east", mappers.Double, "160/1/DCV"),
	}})
	require.Equal(t, "2995", s.get(t, "power"))
	require.Equal(t, "350", s.get(t, "east"))
	moved := slices.Concat(old[:2], []uint16{64001, 3, 1, 2, 3}, old[2:]) // a new firmware has a model before them
	image.Store(&moved)
	for _, away := range []time.Duration{sunspecAway, 0} { // it was away, and comes back with an answer to Ping; then nothing is doubted
		s.lastAnswer = s.lastAnswer.Add(-away)
		require.NoError(t, s.Ping(t.Context()))
		require.Equal(t, "2995", s.get(t, "power"))
		require.Equal(t, "350", s.get(t, "east"))
		require.Len(t, s.config.order, 2)
	}
	image.Store(&old)
	s.locateAt = s.locateAt.Add(-doubtAfter - askSunspecEvery)
	require.Equal(t, "350", s.get(t, "east"), "once a day")
}

func TestADeviceWithoutSunSpec(t *testing.T) {
	s := openDevice(t, mappers.Device{Name: "d", Config: map[string]string{"address": sunspecServer(t, 0, make([]uint16, 10))}, Properties: []mappers.Property{sunspecProperty("power", mappers.Double, "inverter/W")}})
	require.NoError(t, s.Ping(t.Context()))
	got, err := s.ReadBatch(t.Context(), []string{"power"})
	require.NoError(t, err)
	require.ErrorContains(t, got["power"].Err, "the device has no SunSpec at register 40000, 50000 or 0")
}

func TestAPointOfSunSpecIsWritten(t *testing.T) {
	m, _ := sunspecBlock{number: 123}.model()
	list, size := parsePoints(m.points)
	image := append([]uint16{0x5375, 0x6e53, 123, size}, fillPoints(list, map[string]any{"WMaxLimPct": 1000, "WMaxLimPct_SF": -1})...)
	p := sunspecProperty("limit", mappers.Double, "123/WMaxLimPct")
	p.Writable = true
	s := openDevice(t, mappers.Device{Name: "d", Config: map[string]string{"address": sunspecServer(t, 40000, append(image, 0xFFFF, 0))}, Properties: []mappers.Property{p}})
	require.NoError(t, s.Write(t.Context(), "limit", "70.5"))
	require.Equal(t, "70.5", s.get(t, "limit"))
}

func TestMistakesInPointsOfSunSpec(t *testing.T) {
	for text, want := range map[string]string{
		"W": "is no point", "inverter/1/W": "is no point of the model", "inverter/Q": "is no point of the model", "9/W": "is of a model that is not known", "160/x/DCW": "has no number", "a/b/c/d": "is no point",
	} {
		_, err := parseField(sunspecProperty("p", mappers.Double, text))
		require.ErrorContains(t, err, want, text)
		require.ErrorContains(t, err, "visitors[p].config.sunspec")
	}
	p := sunspecProperty("p", mappers.Double, "inverter/W")
	p.Writable = true
	_, err := parseField(p)
	require.ErrorContains(t, err, "can't be written")
	p = sunspecProperty("p", mappers.Boolean, "inverter/W")
	_, err = parseField(p)
	require.Error(t, err)
	p = sunspecProperty("p", mappers.Double, "inverter/W")
	p.Config["scale"] = "2"
	_, err = parseField(p)
	require.ErrorContains(t, err, "config.scale")
}

func TestAPartThatTheModelDoesNotHaveIsNowhere(t *testing.T) {
	for repeat, want := range map[int]bool{1: true, 2: true, 3: false, 800: false} { // the 800th would be behind register 65535
		r, err := parseSunspec(newSettings("", nil), fmt.Sprintf("160/%d/DCW", repeat))
		require.NoError(t, err)
		_, _, ok := sunspecBlock{number: 160, address: 50072, length: 8 + 2*20}.config(r)
		require.Equal(t, want, ok, repeat)
	}
}

// TestAChainOfModelsThatNeverEnds ends.
func TestAChainOfModelsThatNeverEnds(t *testing.T) {
	image := append([]uint16{0x5375, 0x6e53}, make([]uint16, 25000)...)
	blocks, err := readSunspec(func(address, quantity uint16) ([]uint16, bool, error) {
		if int(address)-40000+int(quantity) > len(image) || address < 40000 {
			return nil, false, nil
		}
		return image[address-40000:], true, nil
	})
	require.NoError(t, err)
	require.Len(t, blocks, maxSunspecBlocks)
}

// A device that is starting may not have its models yet.
func TestAWriteWaitsUntilThePointIsFound(t *testing.T) {
	m, _ := sunspecBlock{number: 123}.model()
	list, size := parsePoints(m.points)
	image := append([]uint16{0, 0x6e53, 123, size}, fillPoints(list, map[string]any{"WMaxLimPct": 1000, "WMaxLimPct_SF": -1})...)
	p := sunspecProperty("limit", mappers.Double, "123/WMaxLimPct")
	p.Writable = true
	var ready atomic.Bool
	var mu sync.Mutex
	server := &wire.Server{Handle: func(c wire.Call) ([]uint16, error) {
		mu.Lock()
		defer mu.Unlock()
		from := int(c.Address) - 40000
		if from < 0 || from+int(c.Quantity) > len(image) {
			return nil, wire.IllegalAddress
		}
		if ready.Load() {
			image[0] = 0x5375
		}
		if c.IsWrite() {
			copy(image[from:], c.Values)
			return nil, nil
		}
		return slices.Clone(image[from : from+int(c.Quantity)]), nil
	}}
	require.NoError(t, server.Listen("127.0.0.1:0"))
	t.Cleanup(func() { _ = server.Close() })
	image = append(image, 0xFFFF, 0)
	s := openDevice(t, mappers.Device{Name: "d", Config: map[string]string{"address": server.Addr()}, Properties: []mappers.Property{p}})
	var r *mappers.Refusal
	require.ErrorAs(t, s.Write(t.Context(), "limit", "70.5"), &r)
	require.Equal(t, mappers.Unavailable, r.Code, "it is tried again")
	ready.Store(true)
	s.locateAt = s.locateAt.Add(-askSunspecEvery)
	require.NoError(t, s.Write(t.Context(), "limit", "70.5"))
	require.Equal(t, "70.5", s.get(t, "limit"))
}
