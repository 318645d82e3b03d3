// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/mappers"
)

// buttonDevice has an event, and commands with and without an input.
func buttonDevice() mappers.Device {
	return mappers.Device{
		Node: "n1", Name: "button", Config: map[string]string{"topic": "z/button"},
		Events: []mappers.Property{{Name: "action", Type: mappers.String, Enum: []string{"single", "double"}, Visited: true, Config: map[string]string{"state": "{topic}", "path": "action"}}},
		Commands: []mappers.Property{
			{Name: "identify", Visited: true, Config: map[string]string{"command": "{topic}/set", "payload": `{"identify":""}`}},
			{Name: "beep", Type: mappers.Int, Visited: true, Config: map[string]string{"command": "{topic}/set", "path": "warn.times"}},
		},
	}
}

func TestEachMessageOfAnEventIsOne(t *testing.T) {
	server := newBroker(t)
	device := newClient(t, server, "button", nil)
	publish := func(payload string, retain bool) {
		t.Helper()
		require.NoError(t, device.Publish(t.Context(), client.Message{Topic: "z/button", Payload: []byte(payload), QoS: 1, Retain: retain}))
	}
	publish(`{"action":"hold","battery":80}`, true)
	s := openDevice(t, newDriver(server, waitTime), buttonDevice())
	told := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Session.(mappers.EventSource).Events(ctx, func(event, value string) { told <- event + " " + value })
	}()
	publish(`{"action":"single"}`, false)
	publish(`{"action":""}`, false)
	publish(`{"action":null}`, false)
	publish(`{"battery":80}`, false)
	publish(`{"action":"single"}`, true) // as it comes it is one, and later it is none
	publish(`{"action":"double"}`, false)
	for _, want := range []string{"action single", "action single", "action double"} {
		select {
		case got := <-told:
			require.Equal(t, want, got)
		case <-time.After(waitTime):
			t.Fatal("no event " + want)
		}
	}
	cancel()
	require.NoError(t, <-ended)
	require.Empty(t, told)
}

func TestACommandOfTheModelIsPublished(t *testing.T) {
	server := newBroker(t)
	got := make(chan string, 10)
	newClient(t, server, "button", func(m client.Message) { got <- m.Topic + " " + string(m.Payload) }, "z/button/set")
	s := openDevice(t, newDriver(server, waitTime), buttonDevice())
	command := s.Session.(mappers.Commander).Command
	_, err := command(t.Context(), "identify", nil)
	require.NoError(t, err)
	_, err = command(t.Context(), "beep", []byte("3"))
	require.NoError(t, err)
	require.Equal(t, `z/button/set {"identify":""}`, <-got)
	require.Equal(t, `z/button/set {"warn":{"times":3}}`, <-got)
	_, err = command(t.Context(), "fly", nil)
	require.ErrorContains(t, err, "no mqtt visitor for the command fly")
}

func TestSettingsOfEventsAndCommandsAreChecked(t *testing.T) {
	server := newBroker(t)
	for want, change := range map[string]func(*mappers.Device){
		"visitors[action].config.state: is required":        func(d *mappers.Device) { delete(d.Events[0].Config, "state") },
		"visitors[action].config.state: an event has":       func(d *mappers.Device) { d.Events[0].Config["command"] = "x" },
		"visitors[action].config.colour: is no setting":     func(d *mappers.Device) { d.Events[0].Config["colour"] = "x" },
		"visitors[identify].config.command: is required":    func(d *mappers.Device) { delete(d.Commands[0].Config, "command") },
		"visitors[identify].config.command: a command has":  func(d *mappers.Device) { d.Commands[0].Config["state"] = "x" },
		"visitors[identify].config.payload: has a placehol": func(d *mappers.Device) { d.Commands[0].Config["payload"] = "{value}" },
	} {
		d := buttonDevice()
		change(&d)
		_, err := mappers.Open(t.Context(), newDriver(server, waitTime), d)
		require.ErrorContains(t, err, want)
	}
}

// What the table says is what the driver takes, in each place.
func TestTheTableOfSettingsIsWhatIsChecked(t *testing.T) {
	settings := New(Options{}).Settings()
	takes := func(place, name string) bool {
		d := buttonDevice()
		d.Properties = []mappers.Property{{Name: "p", Type: mappers.String, Visited: true, Config: map[string]string{"state": "s"}}}
		d.Properties[0].Config, d.Events[0].Config, d.Commands[0].Config = map[string]string{"state": "s"}, map[string]string{"state": "{topic}"}, map[string]string{"command": "{topic}"}
		switch place {
		case "device":
			d.Config[name] = "x"
		case "property":
			d.Properties[0].Config[name] = "x"
		case "event":
			d.Events[0].Config[name] = "x"
		case "command":
			d.Commands[0].Config[name] = "x"
		}
		_, err := parseDevice(d)
		return err == nil || !strings.Contains(err.Error(), "no setting of mqtt") && !strings.Contains(err.Error(), "no other settings")
	}
	for _, place := range []string{"device", "property", "event", "command"} {
		require.NotEmpty(t, settings.SettingsFor(place))
		for _, s := range settings.SettingsFor(place) {
			require.True(t, takes(place, s.Name), "%s of a %s", s.Name, place)
		}
		require.False(t, takes(place, "colour"), place)
	}
	require.False(t, takes("event", "payload"))
	require.False(t, takes("command", "metric"))
}
