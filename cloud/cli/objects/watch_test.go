// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/client"
)

func TestAWatchNamesTheValuesThatChanged(t *testing.T) {
	object := func(text string) (o client.Object) {
		require.NoError(t, json.Unmarshal([]byte(text), &o))
		return o
	}
	lamp := func(value, ts string) client.Object {
		return object(`{"kind":"Device","metadata":{"name":"lamp","resourceVersion":"` + ts + `"},"status":{
			"twin":{"power":{"reported":{"value":"` + value + `","ts":"` + ts + `","ver":` + ts + `}}},
			"conditions":[{"type":"InSync","status":"True","lastTransitionTime":"` + ts + `"}]}}`)
	}
	h, now := lastValues{}, time.Date(2026, 11, 22, 13, 43, 2, 0, time.UTC)
	note := func(kind string, o client.Object) string {
		text, told := h.changeNote(kind, o, now)
		require.Equal(t, told, text != "13:43:02")
		return text
	}
	require.Equal(t, "13:43:02 (new)", note("ADDED", lamp("OFF", "1")))
	require.Equal(t, "13:43:02 power.reported: OFF → ON", note("MODIFIED", lamp("ON", "2")))
	require.Equal(t, "13:43:02", note("MODIFIED", lamp("ON", "3")), "no value has changed")
	require.Equal(t, "13:43:02 (deleted)", note("DELETED", lamp("ON", "4")))
	secret := func(value string) client.Object {
		return object(`{"kind":"Secret","metadata":{"name":"s"},"data":{"key":"` + value + `"}}`)
	}
	note("ADDED", secret("b25l"))
	require.NotContains(t, note("MODIFIED", secret("b25lIHR3bw==")), "b25l")

	sign := func(text string) client.Object {
		return object(`{"kind":"Device","metadata":{"name":"sign","labels":{"origin":"` + text + `"}},"spec":{"desired":{"message":"` + text + `"}},
			"status":{"twin":{"message":{"reported":{"value":"` + text + `"}}}}}`)
	}
	note("ADDED", sign("a"))
	require.Equal(t, "13:43:02 metadata.labels.origin: a → b, spec.desired.message: a → b, message.reported: a → b", note("MODIFIED", sign("b")),
		"names that users choose are no names of the hub's fields")
}
