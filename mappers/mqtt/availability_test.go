// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/jsonpath"
)

func parseAvailability(t *testing.T, config map[string]string) availability {
	t.Helper()
	c, err := parseDevice(mappers.Device{Config: config})
	require.NoError(t, err)
	return c.availability
}

func TestSeveralAvailabilities(t *testing.T) {
	const list = `[{"topic":"{base}/bridge/state","path":"state","available":"online"},{"topic":"{base}/lamp/availability","path":"state","available":"online"}]`
	say := func(p *presence, a availability, topic, payload string) {
		p.take(a, &jsonpath.Message{Source: topic, Payload: []byte(payload)})
	}
	for mode, want := range map[string][]string{
		"":       {"", "z/lamp/availability is offline", "z/bridge/state is offline, z/lamp/availability is offline", "z/bridge/state is offline"},
		"all":    {"", "z/lamp/availability is offline", "z/bridge/state is offline, z/lamp/availability is offline", "z/bridge/state is offline"},
		"any":    {"", "", "z/bridge/state is offline, z/lamp/availability is offline", ""},
		"latest": {"", "z/lamp/availability is offline", "z/bridge/state is offline", ""},
	} {
		a := parseAvailability(t, map[string]string{"base": "z", "availability": list, "availabilityMode": mode})
		p := newPresence(2)
		got := []string{p.absence(a.mode)}
		say(&p, a, "z/lamp/availability", `{"state":"offline"}`)
		got = append(got, p.absence(a.mode))
		require.False(t, p.complete())
		say(&p, a, "z/bridge/state", `{"state":"offline"}`)
		got = append(got, p.absence(a.mode))
		require.True(t, p.complete())
		say(&p, a, "z/lamp/availability", `{"state":"online"}`)
		got = append(got, p.absence(a.mode))
		require.Equal(t, want, got, mode)
	}
}

func TestWordsForADeviceThatIsThere(t *testing.T) {
	for _, tt := range []struct {
		available, payload string
		there              bool
	}{
		{"", "online", true},
		{"", "Online\n", true},
		{"", "true", true},
		{"", "1", true},
		{"", "offline", false},
		{"", "false", false},
		{"", "lost", false},
		{"here", "here", true},
		{"here", "online", false},
		{"", "", true},
	} {
		a := parseAvailability(t, map[string]string{"availability": "x", "available": tt.available})
		p := newPresence(1)
		p.take(a, &jsonpath.Message{Source: "x", Payload: []byte(tt.payload)})
		require.Equal(t, tt.there, p.absence(a.mode) == "", "%q %q", tt.available, tt.payload)
	}
}

func TestAvailabilitiesThatCanNotBe(t *testing.T) {
	for text, want := range map[string]string{
		`[{"topic":"a/#"}]`: "spec.protocol.config.availability: ", `[{"topic":"a"},{"topic":""}]`: "spec.protocol.config.availability[1]: topic is required",
		`[{"tpic":"a"}]`: "spec.protocol.config.availability: is no list such as", `[`: "is no list", `[{"topic":"a","path":"x["}]`: "spec.protocol.config.availabilityPath: ",
	} {
		_, err := parseDevice(mappers.Device{Config: map[string]string{"availability": text}})
		require.ErrorContains(t, err, want)
	}
	_, err := parseDevice(mappers.Device{Config: map[string]string{"availabilityMode": "some"}})
	require.EqualError(t, err, `spec.protocol.config.availabilityMode: "some" is none of all, any, latest`)
}
