// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/drivertest"
	"github.com/edgebus/edgebus/topics/resource"
)

// libraryCase is what a device of a model says, as its maker documents it, and what it is told.
type libraryCase struct {
	topic    string
	says     [][2]string // topics, and what is retained there
	offline  [2]string   // by which it says that it is not there; empty: it never does
	values   map[string]string
	writes   map[string][2]string // a value, and the message that it becomes
	commands map[string]string
	asked    string // how it is asked for its state
}

var zigbeeOffline = [2]string{"zigbee2mqtt/d/availability", `{"state":"offline"}`}

func zigbeeSays(payload string) [][2]string {
	return [][2]string{{"zigbee2mqtt/bridge/state", `{"state":"online"}`}, {"zigbee2mqtt/d/availability", `{"state":"online"}`}, {"zigbee2mqtt/d", payload}}
}

var libraryCases = map[string]libraryCase{
	"shelly-gen1-plug": {
		topic: "shellies/shellyplug-s-AABBCC",
		says: [][2]string{
			{"shellies/shellyplug-s-AABBCC/online", "true"},
			{"shellies/shellyplug-s-AABBCC/relay/0", "overpower"},
			{"shellies/shellyplug-s-AABBCC/relay/0/power", "12.34"},
			{"shellies/shellyplug-s-AABBCC/relay/0/energy", "4711"},
			{"shellies/shellyplug-s-AABBCC/temperature", "31.05"},
			{"shellies/shellyplug-s-AABBCC/overtemperature", "1"},
		},
		offline:  [2]string{"shellies/shellyplug-s-AABBCC/online", "false"},
		values:   map[string]string{"state": "OFF", "power": "12.34", "energy": "4711", "temperature": "31.05", "overheated": "true"},
		writes:   map[string][2]string{"state": {"ON", "shellies/shellyplug-s-AABBCC/relay/0/command on"}},
		commands: map[string]string{"toggle": "shellies/shellyplug-s-AABBCC/relay/0/command toggle"},
	},
	"shelly-plug": {
		topic: "shellyplusplugs-aabbcc",
		says: [][2]string{
			{"shellyplusplugs-aabbcc/online", "true"},
			{"shellyplusplugs-aabbcc/status/switch:0", `{"id":0,"source":"init","output":true,"apower":8.9,"voltage":237.5,"aenergy":{"total":6.532,"by_minute":[45.1,47.8,88.4],"minute_ts":1626935779},"current":0.04,"temperature":{"tC":23.5,"tF":74.3}}`},
		},
		offline:  [2]string{"shellyplusplugs-aabbcc/online", "false"},
		values:   map[string]string{"state": "ON", "power": "8.9", "voltage": "237.5", "current": "0.04", "energy": "6.532", "temperature": "23.5"},
		writes:   map[string][2]string{"state": {"OFF", "shellyplusplugs-aabbcc/command/switch:0 off"}},
		commands: map[string]string{"toggle": "shellyplusplugs-aabbcc/command/switch:0 toggle"},
		asked:    "shellyplusplugs-aabbcc/command status_update",
	},
	"tasmota-plug": {
		topic: "tasmota_AABBCC",
		says: [][2]string{
			{"tele/tasmota_AABBCC/LWT", "Online"},
			{"stat/tasmota_AABBCC/RESULT", `{"POWER":"ON"}`},
			{"tele/tasmota_AABBCC/STATE", `{"Time":"2026-01-31T12:00:00","Uptime":"0T12:00:00","POWER":"ON","Wifi":{"AP":1,"SSId":"net","RSSI":100,"Signal":-47}}`},
			{"tele/tasmota_AABBCC/SENSOR", `{"Time":"2026-01-31T12:00:00","ENERGY":{"TotalStartTime":"2026-01-01T00:00:00","Total":12.345,"Yesterday":0.2,"Today":0.104,"Period":1,"Power":23,"ApparentPower":30,"ReactivePower":19,"Factor":0.77,"Voltage":230,"Current":0.131}}`},
		},
		offline: [2]string{"tele/tasmota_AABBCC/LWT", "Offline"},
		values: map[string]string{
			"state": "ON", "power": "23", "apparent-power": "30", "reactive-power": "19", "power-factor": "0.77", "voltage": "230", "current": "0.131", "energy": "12.345", "energy-today": "0.104", "signal": "-47",
		},
		writes:   map[string][2]string{"state": {"OFF", "cmnd/tasmota_AABBCC/POWER OFF"}},
		commands: map[string]string{"toggle": "cmnd/tasmota_AABBCC/POWER TOGGLE", "restart": "cmnd/tasmota_AABBCC/Restart 1"},
		asked:    "cmnd/tasmota_AABBCC/STATE ",
	},
	"chirpstack-temperature": {
		topic: "application/83a0/device/0101010101010101",
		says: [][2]string{
			{"application/83a0/device/0101010101010101/event/up", `{"deviceInfo":{"devEui":"0101010101010101"},"fPort":1,"data":"qg==","object":{"temperature":22.5,"humidity":41},"rxInfo":[{"gatewayId":"0016","rssi":-48,"snr":9.5}]}`},
			{"application/83a0/device/0101010101010101/event/status", `{"deviceInfo":{"devEui":"0101010101010101"},"margin":7,"externalPowerSource":false,"batteryLevelUnavailable":false,"batteryLevel":88.5}`},
		},
		values: map[string]string{"temperature": "22.5", "humidity": "41", "battery": "88.5", "rssi": "-48", "snr": "9.5"},
	},
	"zigbee2mqtt-light": {
		topic: "zigbee2mqtt/d", offline: zigbeeOffline, asked: `zigbee2mqtt/d/get {"state":""}`,
		says:   zigbeeSays(`{"brightness":120,"color":{"x":0.3,"y":0.4},"color_mode":"xy","color_temp":250,"linkquality":90,"state":"OFF"}`),
		values: map[string]string{"state": "OFF", "brightness": "120", "color-temperature": "250", "color": `{"x":0.3,"y":0.4}`, "linkquality": "90"},
		writes: map[string][2]string{
			"state": {"ON", `zigbee2mqtt/d/set {"state":"ON"}`}, "brightness": {"254", `zigbee2mqtt/d/set {"brightness":254}`},
			"color-temperature": {"300", `zigbee2mqtt/d/set {"color_temp":300}`}, "color": {`{"x":0.5,"y":0.2}`, `zigbee2mqtt/d/set {"color":{"x":0.5,"y":0.2}}`},
		},
	},
	"zigbee2mqtt-plug": {
		topic: "zigbee2mqtt/d", offline: zigbeeOffline, asked: `zigbee2mqtt/d/get {"state":""}`,
		says:     zigbeeSays(`{"current":0.13,"energy":4.56,"linkquality":90,"power":23,"state":"ON","voltage":231}`),
		values:   map[string]string{"state": "ON", "power": "23", "voltage": "231", "current": "0.13", "energy": "4.56", "linkquality": "90"},
		writes:   map[string][2]string{"state": {"OFF", `zigbee2mqtt/d/set {"state":"OFF"}`}},
		commands: map[string]string{"toggle": `zigbee2mqtt/d/set {"state":"TOGGLE"}`},
	},
	"zigbee2mqtt-climate": {
		topic: "zigbee2mqtt/d", offline: zigbeeOffline,
		says:   zigbeeSays(`{"battery":85,"linkquality":90,"local_temperature":20.6,"occupied_heating_setpoint":21.5,"running_state":"heat","system_mode":"off"}`),
		values: map[string]string{"setpoint": "21.5", "mode": "off", "temperature": "20.6", "running-state": "heat", "battery": "85", "linkquality": "90"},
		writes: map[string][2]string{"setpoint": {"18.5", `zigbee2mqtt/d/set {"occupied_heating_setpoint":18.5}`}, "mode": {"auto", `zigbee2mqtt/d/set {"system_mode":"auto"}`}},
	},
	"zigbee2mqtt-cover": {
		topic: "zigbee2mqtt/d", offline: zigbeeOffline, asked: `zigbee2mqtt/d/get {"state":""}`,
		says:     zigbeeSays(`{"linkquality":90,"position":30,"state":"OPEN"}`),
		values:   map[string]string{"state": "OPEN", "position": "30", "linkquality": "90"},
		writes:   map[string][2]string{"state": {"CLOSE", `zigbee2mqtt/d/set {"state":"CLOSE"}`}, "position": {"100", `zigbee2mqtt/d/set {"position":100}`}},
		commands: map[string]string{"stop": `zigbee2mqtt/d/set {"state":"STOP"}`},
	},
	"zigbee2mqtt-lock": {
		topic: "zigbee2mqtt/d", offline: zigbeeOffline,
		says:   zigbeeSays(`{"battery":60,"linkquality":90,"lock_state":"not_fully_locked","state":"UNLOCK"}`),
		values: map[string]string{"state": "unlocked", "bolt": "not-fully-locked", "battery": "60", "linkquality": "90"},
		writes: map[string][2]string{"state": {"locked", `zigbee2mqtt/d/set {"state":"LOCK"}`}},
	},
	"zigbee2mqtt-contact": {
		topic: "zigbee2mqtt/d", offline: zigbeeOffline,
		says:   zigbeeSays(`{"battery":100,"battery_low":false,"contact":false,"linkquality":90,"tamper":true}`),
		values: map[string]string{"state": "open", "battery-low": "false", "tamper": "true", "battery": "100", "linkquality": "90"},
	},
	"zigbee2mqtt-motion": {
		topic: "zigbee2mqtt/d", offline: zigbeeOffline,
		says:   zigbeeSays(`{"battery":100,"battery_low":true,"illuminance":57,"linkquality":90,"occupancy":true}`),
		values: map[string]string{"occupancy": "true", "illuminance": "57", "battery-low": "true", "battery": "100", "linkquality": "90"},
	},
	"zigbee2mqtt-temperature": {
		topic: "zigbee2mqtt/d", offline: zigbeeOffline,
		says:   zigbeeSays(`{"battery":97,"humidity":51.2,"linkquality":90,"pressure":1009.4,"temperature":-3.25}`),
		values: map[string]string{"temperature": "-3.25", "humidity": "51.2", "pressure": "1009.4", "battery": "97", "linkquality": "90"},
	},
}

func TestModelsOfTheLibraryDoWhatMakersDocument(t *testing.T) {
	config := map[string]map[string]resource.Value{}
	for name, c := range libraryCases {
		config[name] = map[string]resource.Value{"topic": resource.Value(c.topic)}
	}
	devices := drivertest.LibraryDevices(t, New(Options{}), config)
	for name, c := range libraryCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.try(t, devices[name])
		})
	}
}

func (c libraryCase) try(t *testing.T, d mappers.Device) {
	server := newBroker(t)
	told := make(chan string, 100)
	maker := newClient(t, server, "maker", func(m client.Message) {
		if !m.Retained {
			told <- m.Topic + " " + string(m.Payload)
		}
	}, "cmnd/#", c.topic+"/set", c.topic+"/get", c.topic+"/rpc", c.topic+"/command/#", c.topic+"/relay/0/command")
	say := func(m [2]string) {
		t.Helper()
		require.NoError(t, maker.Publish(t.Context(), client.Message{Topic: m[0], Payload: []byte(m[1]), QoS: 1, Retain: true}))
	}
	hears := func(want string) {
		t.Helper()
		select {
		case got := <-told:
			require.Equal(t, want, got)
		case <-time.After(waitTime):
			t.Fatal("not told: " + want)
		}
	}
	for _, m := range c.says {
		say(m)
	}
	s := openDevice(t, newDriver(server, 200*time.Millisecond), d)
	require.Eventually(t, func() bool { return len(drivertest.ReadAll(t, s, d)) == len(d.Properties) }, waitTime, 10*time.Millisecond)
	require.Equal(t, c.values, drivertest.ReadAll(t, s, d))
	for _, p := range d.Properties {
		require.Equal(t, p.Writable, c.writes[p.Name] != [2]string{}, p.Name)
	}
	for property, write := range c.writes {
		if err := s.Write(t.Context(), property, write[0]); !errors.Is(err, mappers.ErrUnconfirmed) { // this one answers nothing
			require.NoError(t, err)
		}
		hears(write[1])
	}
	for _, command := range d.Commands {
		_, err := s.Session.(mappers.Commander).Command(t.Context(), command.Name, nil)
		require.NoError(t, err)
		hears(c.commands[command.Name])
	}
	if c.asked != "" {
		require.ErrorContains(t, s.Session.(mappers.Pinger).Ping(t.Context()), "no state within")
		hears(c.asked)
	}
	if c.offline != [2]string{} {
		say(c.offline)
		require.Eventually(t, func() bool {
			_, err := s.Read(t.Context(), []string{d.Properties[0].Name})
			return err != nil
		}, waitTime, 10*time.Millisecond, "it says that it is not there")
	}
}
