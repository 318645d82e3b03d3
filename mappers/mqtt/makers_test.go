// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/jsonpath"
)

// makersProperty is a property of a maker's device: its type, its visitor, and a value that is written with the command that it becomes.
type makersProperty struct {
	typ            mappers.Type
	config         map[string]string
	words          []mappers.Word
	write, command string
}

// What makers' documentation says that their devices publish and take. The visitors are those of docs/mqtt-devices.md.
func TestDevicesAsTheirMakersDescribeThem(t *testing.T) {
	onOff := []mappers.Word{{Value: "true", Read: []string{"on"}, Write: "on"}, {Value: "false", Read: []string{"off"}, Write: "off"}}
	for name, device := range map[string]struct {
		config     map[string]string
		properties map[string]makersProperty
		said       [][2]string
		want       map[string]string // values, or the text of an error
		absent     string
	}{
		"Tasmota": {
			config: map[string]string{"t": "plug7", "availability": "tele/{t}/LWT", "available": "Online"},
			properties: map[string]makersProperty{
				"power":  {typ: mappers.String, config: map[string]string{"state": "stat/{t}/RESULT", "path": "POWER1", "command": "cmnd/{t}/POWER1", "payload": "{value}"}, write: "ON", command: "cmnd/plug7/POWER1 ON"},
				"total":  {typ: mappers.Double, config: map[string]string{"state": "tele/{t}/SENSOR", "path": "ENERGY.Total"}},
				"watts2": {typ: mappers.Int, config: map[string]string{"state": "tele/{t}/SENSOR", "path": "ENERGY.Power[1]"}},
				"temp":   {typ: mappers.Float, config: map[string]string{"state": "tele/{t}/SENSOR", "path": "['DS18B20-1'].Temperature"}},
			},
			said: [][2]string{
				{"stat/plug7/RESULT", `{"POWER1":"OFF"}`},
				{"tele/plug7/LWT", "Offline"},
				{"tele/plug7/SENSOR", `{"Time":"2026-01-31T12:00:00","ENERGY":{"Total":12.345,"Power":[5,17]},"DS18B20-1":{"Id":"01","Temperature":21.4},"TempUnit":"C"}`},
			},
			want:   map[string]string{"power": "OFF", "total": "12.345", "watts2": "17", "temp": "21.4"},
			absent: "tele/plug7/LWT is Offline",
		},
		"Shelly, first generation": {
			config: map[string]string{"id": "shellyswitch25-AA", "availability": "shellies/{id}/online"},
			properties: map[string]makersProperty{
				"on":       {typ: mappers.Boolean, words: onOff, config: map[string]string{"state": "shellies/{id}/relay/0", "command": "shellies/{id}/relay/0/command", "payload": "{value}"}, write: "on", command: "shellies/shellyswitch25-AA/relay/0/command on"},
				"power":    {typ: mappers.Float, config: map[string]string{"state": "shellies/{id}/relay/0/power"}},
				"position": {typ: mappers.Int, config: map[string]string{"state": "shellies/{id}/roller/0/pos", "command": "shellies/{id}/roller/0/command/pos"}, write: "40", command: "shellies/shellyswitch25-AA/roller/0/command/pos 40"},
				"over":     {typ: mappers.Boolean, config: map[string]string{"state": "shellies/{id}/overtemperature"}},
			},
			said: [][2]string{{"shellies/shellyswitch25-AA/relay/0", "off"}, {"shellies/shellyswitch25-AA/relay/0/power", "0.00"}, {"shellies/shellyswitch25-AA/roller/0/pos", "85"}, {"shellies/shellyswitch25-AA/overtemperature", "0"}, {"shellies/shellyswitch25-AA/online", "true"}},
			want: map[string]string{"on": "off", "power": "0.00", "position": "85", "over": "false"},
		},
		"Shelly, later generations": {
			config: map[string]string{"id": "shelly1pmminig3-aabbcc", "availability": "{id}/online"},
			properties: map[string]makersProperty{
				"output": {typ: mappers.Boolean, config: map[string]string{
					"state": "{id}/events/rpc", "path": "params['switch:0'].output", "command": "{id}/rpc", "payload": `{"id":1,"src":"edgebus","method":"Switch.Set","params":{"id":0,"on":{json}}}`,
				}, write: "true", command: `shelly1pmminig3-aabbcc/rpc {"id":1,"src":"edgebus","method":"Switch.Set","params":{"id":0,"on":true}}`},
				"power": {typ: mappers.Float, config: map[string]string{"state": "{id}/events/rpc", "path": "params['switch:0'].apower"}},
				"status": {typ: mappers.Boolean, words: []mappers.Word{{Value: "true", Read: []string{"true"}, Write: "on"}, {Value: "false", Read: []string{"false"}, Write: "off"}}, config: map[string]string{
					"state": "{id}/status/switch:0", "path": "output", "command": "{id}/command/switch:0", "payload": "{value}",
				}, write: "on", command: "shelly1pmminig3-aabbcc/command/switch:0 on"},
			},
			said: [][2]string{
				{"shelly1pmminig3-aabbcc/events/rpc", `{"src":"shelly1pmminig3-aabbcc","dst":"shelly1pmminig3-aabbcc/events","method":"NotifyStatus","params":{"ts":1713278915.28,"switch:0":{"id":0,"output":true,"apower":3.8,"source":"MQTT"}}}`},
				{"shelly1pmminig3-aabbcc/events/rpc", `{"src":"shelly1pmminig3-aabbcc","dst":"shelly1pmminig3-aabbcc/events","method":"NotifyStatus","params":{"ts":1713278916.28,"cloud":{"connected":true}}}`},
				{"shelly1pmminig3-aabbcc/status/switch:0", `{"id":0,"source":"init","output":false,"temperature":{"tC":57.7,"tF":135.9}}`},
			},
			want: map[string]string{"output": "true", "power": "3.8", "status": "false"},
		},
		"Victron": {
			config: map[string]string{"p": "c0619ab1", "get": "R/{p}/keepalive", "getEvery": "30s"},
			properties: map[string]makersProperty{
				"soc":  {typ: mappers.Float, config: map[string]string{"state": "N/{p}/battery/512/Soc", "path": "value"}},
				"gone": {typ: mappers.Float, config: map[string]string{"state": "N/{p}/vebus/257/Ac/Out/L1/P", "path": "value"}},
				"mode": {typ: mappers.Int, config: map[string]string{"state": "N/{p}/vebus/257/Mode", "path": "value", "command": "W/{p}/vebus/257/Mode"}, write: "3", command: `W/c0619ab1/vebus/257/Mode {"value":3}`},
			},
			said: [][2]string{{"N/c0619ab1/battery/512/Soc", `{"value":87.5}`}, {"N/c0619ab1/vebus/257/Ac/Out/L1/P", `{"value":null}`}, {"N/c0619ab1/vebus/257/Mode", `{"max":4,"min":1,"value":4}`}},
			want: map[string]string{"soc": "87.5", "gone": "Unknown: the device says null on N/c0619ab1/vebus/257/Ac/Out/L1/P", "mode": "4"},
		},
		"ChirpStack": {
			config: map[string]string{"a": "83a0", "e": "0101010101010101"},
			properties: map[string]makersProperty{
				"temperature": {typ: mappers.Float, config: map[string]string{"state": "application/{a}/device/{e}/event/up", "path": "object.temperature"}},
				"rssi":        {typ: mappers.Int, config: map[string]string{"state": "application/{a}/device/{e}/event/up", "path": "rxInfo[0].rssi"}},
				"data":        {typ: mappers.Bytes, config: map[string]string{"state": "application/{a}/device/{e}/event/up", "path": "data"}},
				"valve": {typ: mappers.Boolean, config: map[string]string{
					"state": "application/{a}/device/{e}/event/up", "path": "object.valve", "command": "application/{a}/device/{e}/command/down", "payload": `{"devEui":"{e}","confirmed":true,"fPort":10,"object":{"valve":{json}}}`,
				}, write: "true", command: `application/83a0/device/0101010101010101/command/down {"devEui":"0101010101010101","confirmed":true,"fPort":10,"object":{"valve":true}}`},
				"raw": {typ: mappers.Bytes, config: map[string]string{"command": "application/{a}/device/{e}/command/down", "payload": `{"devEui":"{e}","fPort":10,"data":"{value}"}`}, write: "AQI=", command: `application/83a0/device/0101010101010101/command/down {"devEui":"0101010101010101","fPort":10,"data":"AQI="}`},
			},
			said: [][2]string{{"application/83a0/device/0101010101010101/event/up", `{"deduplicationId":"3ac7","time":"2026-07-18T09:34:15.775Z","deviceInfo":{"devEui":"0101010101010101"},"devAddr":"00189440","dr":1,"fPort":1,"data":"qg==","object":{"temperature":22.5,"valve":false},"rxInfo":[{"gatewayId":"0016","rssi":-48,"snr":9}]}`}},
			want: map[string]string{"temperature": "22.5", "rssi": "-48", "data": "qg==", "valve": "false"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := mappers.Device{Config: device.config}
			for _, property := range slices.Sorted(maps.Keys(device.properties)) {
				p := device.properties[property]
				one := mappers.Property{Name: property, Type: p.typ, Words: p.words, Writable: p.write != "", Visited: true, Config: p.config}
				if len(p.words) > 0 { // as the SDK has it for a driver
					one.Type = mappers.String
				}
				d.Properties = append(d.Properties, one)
			}
			c, err := parseDevice(d)
			require.NoError(t, err)
			s := &session{config: c, presence: newPresence(len(c.availability.sources)), values: map[string]lastReading{}, changed: make(chan struct{})}
			for _, m := range device.said {
				s.take(&jsonpath.Message{Source: m[0], Payload: []byte(m[1])})
			}
			for property, want := range device.want {
				r := s.values[property]
				require.NotZero(t, r.count, property)
				if r.err != nil {
					r.value = r.err.Error()
				}
				require.Equal(t, want, r.value, property)
			}
			require.Equal(t, device.absent, s.presence.absence(c.availability.mode))
			for property, p := range device.properties {
				if p.write == "" {
					continue
				}
				m, err := s.command(c.fields[property], p.write, s.values[property])
				require.NoError(t, err)
				require.Equal(t, p.command, m.Topic+" "+string(m.Payload), property)
			}
		})
	}
}
