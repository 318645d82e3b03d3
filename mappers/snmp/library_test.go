// SPDX-License-Identifier: Apache-2.0

package snmp

import (
	"testing"
	"time"

	"github.com/gosnmp/gosnmp"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/drivertest"
	"github.com/edgebus/edgebus/topics/resource"
)

// The objects are those of RFC 1628 (UPS-MIB) and RFC 2863 (IF-MIB).
func TestModelsOfTheLibraryReadWhatDevicesHave(t *testing.T) {
	a := newFakeAgent(t)
	integer := func(n int) gosnmp.SnmpPDU { return gosnmp.SnmpPDU{Type: gosnmp.Integer, Value: n} }
	text := func(s string) gosnmp.SnmpPDU { return gosnmp.SnmpPDU{Type: gosnmp.OctetString, Value: s} }
	const ups, testID = ".1.3.6.1.2.1.33.1.", ".1.3.6.1.2.1.33.1.7.1.0"
	for oid, v := range map[string]gosnmp.SnmpPDU{
		"1.1.0": text("Maker"), "1.2.0": text("UPS 1000"), "2.1.0": integer(3), "2.2.0": integer(95), "2.3.0": integer(42), "2.4.0": integer(87), "2.5.0": integer(547), "2.7.0": integer(25),
		"3.3.1.2.1": integer(499), "3.3.1.3.1": integer(231), "4.1.0": integer(5), "4.4.1.2.1": integer(229), "4.4.1.4.1": integer(410), "4.4.1.5.1": integer(37),
		"6.1.0": {Type: gosnmp.Gauge32, Value: uint32(1)}, "7.1.0": {Type: gosnmp.ObjectIdentifier, Value: ups + "7.7.1"}, "7.3.0": integer(6),
	} {
		a.put(ups+oid, v)
	}
	for row, name := range map[string]string{".2": "eth0", ".7": "eth1"} {
		a.put(".1.3.6.1.2.1.31.1.1.1.1"+row, text(name))
	}
	counter := func(n uint32) gosnmp.SnmpPDU { return gosnmp.SnmpPDU{Type: gosnmp.Counter32, Value: n} }
	for oid, v := range map[string]gosnmp.SnmpPDU{
		"31.1.1.1.18.7": text("uplink"), "31.1.1.1.15.7": {Type: gosnmp.Gauge32, Value: uint32(1000)},
		"31.1.1.1.6.7": {Type: gosnmp.Counter64, Value: uint64(5_000_000_000)}, "31.1.1.1.10.7": {Type: gosnmp.Counter64, Value: uint64(6_000_000_000)},
		"2.2.1.7.7": integer(1), "2.2.1.8.7": integer(7), "2.2.1.13.7": counter(13), "2.2.1.14.7": counter(14), "2.2.1.19.7": counter(19), "2.2.1.20.7": counter(20),
	} {
		a.put(".1.3.6.1.2.1."+oid, v)
	}
	want := map[string]map[string]string{
		"snmp-ups": {
			"manufacturer": "Maker", "model": "UPS 1000", "source": "battery", "battery-state": "low", "battery": "87", "battery-minutes": "42", "battery-voltage": "54.7", "battery-temperature": "25",
			"on-battery": "95", "input-voltage": "231", "input-frequency": "49.9", "output-voltage": "229", "output-power": "410", "load": "37", "alarms": "1", "test-result": "none",
		},
		"snmp-interface": {
			"alias": "uplink", "enabled": "up", "state": "lower-layer-down", "speed": "1000", "received": "5000000000", "sent": "6000000000",
			"received-discards": "13", "received-errors": "14", "sent-discards": "19", "sent-errors": "20",
		},
	}
	driver := New(Options{Traps: "127.0.0.1:0", Timeout: 10 * time.Second})
	address := resource.Value(a.conn.LocalAddr().String())
	devices := drivertest.LibraryDevices(t, driver, map[string]map[string]resource.Value{"snmp-ups": {"address": address}, "snmp-interface": {"address": address, "row": "eth1"}})
	for name, d := range devices {
		s, err := mappers.Open(t.Context(), driver, d)
		require.NoError(t, err, name)
		t.Cleanup(func() { _ = s.Close() })
		require.Equal(t, want[name], drivertest.ReadAll(t, s, d), name)
		if name == "snmp-ups" {
			traps := map[string]string{}
			for _, e := range s.Session.(*session).config.events {
				traps[e.name] = e.trap
			}
			require.Equal(t, map[string]string{"on-battery": ".1.3.6.1.2.1.33.2.1", "alarm-added": ".1.3.6.1.2.1.33.2.3", "alarm-removed": ".1.3.6.1.2.1.33.2.4"}, traps)
			_, err = s.Session.(mappers.Commander).Command(t.Context(), "test-battery", nil)
			require.NoError(t, err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	require.Equal(t, ups+"7.7.4", a.objects[testID].Value, "the quick test was asked for")
}

func TestARowThatNobodyNamesIsAMistake(t *testing.T) {
	d := mappers.Device{Name: "eth", Config: map[string]string{"address": "127.0.0.1"}, Properties: []mappers.Property{newProperty("in", mappers.Int, false, "oid", "1.3.8.1.2", "where", "1.3.8.1.1")}}
	_, err := New(Options{}).Open(t.Context(), d)
	require.ErrorContains(t, err, "visitor in: config.is: belongs to where")
	require.ErrorContains(t, err, "unless the Device's row says it")
}
