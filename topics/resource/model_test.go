// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// heatPump is a model with all that a model can have.
func heatPump(t *testing.T) (m DeviceModel) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(`{"metadata":{"name":"heat-pump"},"spec":{
		"title":"Heat pump",
		"properties":[
			{"name":"temperature","type":"float","unit":"°C","alarms":[{"name":"hot","above":80,"clear":75,"after":30000,"severity":"high"}]},
			{"name":"bridge","enum":["online","offline"]},
			{"name":"door","type":"boolean","alarms":[{"name":"open","equals":"true"}]}],
		"events":[{"name":"action","title":"Button","enum":["single","double","hold"]},{"name":"count","type":"int"}],
		"commands":[{"name":"reset"},{"name":"beep","input":{"type":"int","minimum":1,"maximum":9}}],
		"propertyVisitors":[{"protocol":"mqtt",
			"online":{"mode":"any","when":[{"propertyName":"bridge","values":["online"]},{"propertyName":"temperature","values":[20]}]},
			"visitors":[
				{"propertyName":"temperature","confirmWithin":900000,"expireAfter":180000},
				{"eventName":"action","words":[{"value":"single","read":["1_single"]}],"config":{"state":"{topic}"}},
				{"commandName":"reset","config":{"command":"x"}}]}]}}`), &m))
	return m
}

func TestAModelHasEventsCommandsAndAlarms(t *testing.T) {
	m := heatPump(t)
	require.NoError(t, m.Validate())
	for want, change := range map[string]func(*DeviceModel){
		`spec.title: "a\nb": must be at most 128`:                          func(m *DeviceModel) { m.Spec.Title = "a\nb" },
		`spec.events[0].name: "alarm" is the event of the device's alarms`: func(m *DeviceModel) { m.Spec.Events[0].Name = AlarmEvent },
		`spec.events[1].name: "action" occurs twice`:                       func(m *DeviceModel) { m.Spec.Events[1].Name = "action" },
		`spec.events[1].type: "number" is not one of`:                      func(m *DeviceModel) { m.Spec.Events[1].Type = "number" },
		`spec.commands[0].name: "a b": must be`:                            func(m *DeviceModel) { m.Spec.Commands[0].Name = "a b" },
		`spec.commands[1].input.minimum: 10 is above the maximum of 9`:     func(m *DeviceModel) { *m.Spec.Commands[1].Input.Minimum = 10 },
		`spec.commands[1].input.enum[0]: "x" is not an integer`:            func(m *DeviceModel) { m.Spec.Commands[1].Input.Enum = []Value{"x"} },

		`visitors[0].propertyName: is there beside eventName`:                             func(m *DeviceModel) { m.Spec.PropertyVisitors[0].Visitors[0].EventName = "action" },
		`visitors[1].propertyName: is required, unless there is eventName or commandName`: func(m *DeviceModel) { m.Spec.PropertyVisitors[0].Visitors[1].EventName = "" },
		`visitors[1].eventName: "actoin" is not an event of the model: did you mean action?`: func(m *DeviceModel) {
			m.Spec.PropertyVisitors[0].Visitors[1].EventName = "actoin"
		},
		`visitors[2].commandName: "rest" is not a command of the model`:                                          func(m *DeviceModel) { m.Spec.PropertyVisitors[0].Visitors[2].CommandName = "rest" },
		`visitors[2].expireAfter: is for properties`:                                                             func(m *DeviceModel) { m.Spec.PropertyVisitors[0].Visitors[2].ExpireAfter = 1 },
		`visitors[0].collectCycle: 9223372036854775807: at most 315360000000 milliseconds, ten years, are taken`: func(m *DeviceModel) { m.Spec.PropertyVisitors[0].Visitors[0].CollectCycle = math.MaxInt64 },
		`visitors[0].confirmWithin: -1: milliseconds can't be negative`:                                          func(m *DeviceModel) { m.Spec.PropertyVisitors[0].Visitors[0].ConfirmWithin = -1 },
		`visitors[1].words[0].value: "triple" is not one of single, double, hold`:                                func(m *DeviceModel) { m.Spec.PropertyVisitors[0].Visitors[1].Words[0].Value = "triple" },
		`online.mode: "some" is not one of all, any`:                                                             func(m *DeviceModel) { m.Spec.PropertyVisitors[0].Online.Mode = "some" },
		`online.when: is required`:                                                                               func(m *DeviceModel) { m.Spec.PropertyVisitors[0].Online.When = nil },
		`online.when[0].propertyName: "brigde" is not a property of the model`:                                   func(m *DeviceModel) { m.Spec.PropertyVisitors[0].Online.When[0].PropertyName = "brigde" },
		`online.when[0].values[0]: "up" is not one of online, offline`:                                           func(m *DeviceModel) { m.Spec.PropertyVisitors[0].Online.When[0].Values = []Value{"up"} },
		`online.when[0].values: is required`:                                                                     func(m *DeviceModel) { m.Spec.PropertyVisitors[0].Online.When[0].Values = nil },

		`alarms[0].clear: 90 is above 80`:                  func(m *DeviceModel) { *m.Spec.Properties[0].Alarms[0].Clear = 90 },
		`alarms[0].severity: "urgent" is not one of low`:   func(m *DeviceModel) { m.Spec.Properties[0].Alarms[0].Severity = "urgent" },
		`alarms[0].after: -1: milliseconds can't be`:       func(m *DeviceModel) { m.Spec.Properties[0].Alarms[0].After = -1 },
		`alarms[0]: must have exactly one of above, below`: func(m *DeviceModel) { m.Spec.Properties[0].Alarms[0].Above = nil },
		`alarms[0].equals: "open" is not a boolean`:        func(m *DeviceModel) { m.Spec.Properties[2].Alarms[0].Equals = "open" },
		`alarms[0].above: is for int, float and double, not for b`: func(m *DeviceModel) {
			m.Spec.Properties[2].Alarms[0] = PropertyAlarm{Name: "x", Above: floatPointer(1)}
		},
		`alarms[1].name: "hot" occurs twice`: func(m *DeviceModel) {
			m.Spec.Properties[0].Alarms = append(m.Spec.Properties[0].Alarms, m.Spec.Properties[0].Alarms[0])
		},
	} {
		m := heatPump(t)
		change(&m)
		require.ErrorContains(t, m.Validate(), want)
	}
}

func TestACommandsInputIsTheModels(t *testing.T) {
	m := heatPump(t)
	for _, c := range []struct{ name, payload, err string }{
		{"reset", "", ""},
		{"reset", "1", "takes no input"},
		{"beep", "9", ""},
		{"beep", "", "needs an input: the payload must be a value of the type int"},
		{"beep", "10", `"10" is above the maximum of 9`},
		{"beep", "x", "is not an integer"},
		{"of-the-mapper", "anything", ""},
	} {
		err := m.CheckCommand(c.name, []byte(c.payload))
		if c.err == "" {
			require.NoError(t, err, c)
		} else {
			require.ErrorContains(t, err, c.err, c)
			require.ErrorIs(t, err, Invalid)
		}
	}
}

func TestADevicesAlarmsAndVisitorsReplaceTheModels(t *testing.T) {
	m := heatPump(t)
	d := Device{Metadata: Meta{Name: "d"}}
	d.Spec.DeviceModelRef.Name, d.Spec.Protocol.Type = "heat-pump", "mqtt"
	d.Spec.Alarms = []DeviceAlarm{
		{"temperature", PropertyAlarm{Name: "hot", Above: floatPointer(60)}},
		{"temperature", PropertyAlarm{Name: "cold", Below: floatPointer(5)}},
	}
	d.Spec.PropertyVisitors = []Visitor{{EventName: "action", Config: map[string]Value{"state": "mine"}}, {CommandName: "beep"}}
	require.NoError(t, d.Validate())
	require.NoError(t, d.CheckModel(m))
	b := NewBundle(d, m)
	p, _ := b.Model.Property("temperature")
	require.Len(t, p.Alarms, 2)
	require.EqualValues(t, 60, *p.Alarms[0].Above)
	require.Nil(t, b.Device.Spec.Alarms)
	own, _ := m.Property("temperature")
	require.EqualValues(t, 80, *own.Alarms[0].Above, "the model itself is as it was")
	visitors := b.Model.Visitors("mqtt")
	require.Len(t, visitors, 4)
	require.EqualValues(t, "mine", visitors[0].Config["state"])
	require.NotNil(t, b.Model.Spec.PropertyVisitors[0].Online)

	for want, change := range map[string]func(){
		"spec.alarms[0].propertyName": func() { d.Spec.Alarms[0].PropertyName = "x" },
		"spec.propertyVisitors[1].commandName: \"beeep\" is not a command": func() {
			d.Spec.PropertyVisitors[1].CommandName = "beeep"
		},
	} {
		was := d
		d.Spec.Alarms, d.Spec.PropertyVisitors = append([]DeviceAlarm{}, was.Spec.Alarms...), append([]Visitor{}, was.Spec.PropertyVisitors...)
		change()
		require.ErrorContains(t, d.CheckModel(m), want)
		d = was
	}
	d.Spec.PropertyVisitors = append(d.Spec.PropertyVisitors, Visitor{CommandName: "beep"})
	require.ErrorContains(t, d.Validate(), `spec.propertyVisitors[2].commandName: "beep" occurs twice`)
	d.Spec.PropertyVisitors = nil
	d.Spec.Alarms[1].Name = "hot"
	require.ErrorContains(t, d.Validate(), `spec.alarms[1].name: "hot" occurs twice for temperature`)
	d.Spec.AcknowledgedAlarms = map[string]string{"temperature/hot": "yesterday"}
	require.ErrorContains(t, d.Validate(), "spec.acknowledgedAlarms[temperature/hot]")
}

func TestADeviceIsOnlineByItsValues(t *testing.T) {
	m := heatPump(t)
	rule := *m.Spec.PropertyVisitors[0].Online
	values := map[string]string{}
	get := func(name string) (string, bool) { v, ok := values[name]; return v, ok }
	for _, c := range []struct {
		bridge, temperature string
		any, all            bool
	}{{"", "", false, false}, {"online", "", true, false}, {"offline", "20.0", true, false}, {"online", "20", true, true}, {"offline", "21", false, false}} {
		clear(values)
		for name, v := range map[string]string{"bridge": c.bridge, "temperature": c.temperature} {
			if v != "" {
				values[name] = v
			}
		}
		rule.Mode = OnlineAny
		require.Equal(t, c.any, rule.Online(&m, get), c)
		rule.Mode = ""
		require.Equal(t, c.all, rule.Online(&m, get), c)
	}
}
