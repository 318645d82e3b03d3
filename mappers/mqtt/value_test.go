// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/jsonpath"
)

// A command has the type that the device itself says: true, 1 and "1" are three things to some.
func TestCommandsKeepTheTypeThatTheDeviceSays(t *testing.T) {
	for _, tt := range []struct {
		typ           mappers.Type
		words         bool
		said          string // what the device has said; empty: nothing
		value, config string
		want          string
	}{
		{mappers.String, true, "", "true", "", `{"x":true}`},
		{mappers.String, true, `{"x":false}`, "true", "", `{"x":true}`},
		{mappers.String, true, `{"x":"false"}`, "true", "", `{"x":"true"}`},
		{mappers.String, true, `{"x":"OFF"}`, "ON", "", `{"x":"ON"}`},
		{mappers.String, true, `{"x":0}`, "1", "", `{"x":1}`},
		{mappers.String, true, `{"x":0}`, "1", `{"a":{"b":{json}}}`, `{"a":{"b":1}}`},
		{mappers.String, false, "", "1", "", `{"x":"1"}`},
		{mappers.String, false, `{"x":3}`, "1", "", `{"x":1}`},
		{mappers.String, false, `{"x":true}`, "nan", "", `{"x":"nan"}`},
		{mappers.Float, false, `{"x":"21.5"}`, "22", "", `{"x":"22"}`},
		{mappers.Float, false, `{"x":21.5}`, "22", "", `{"x":22}`},
		{mappers.Boolean, false, `{"x":true}`, "false", "", `{"x":false}`},
	} {
		p, err := jsonpath.Parse("x")
		require.NoError(t, err)
		f := &mappedProperty{name: "p", typ: tt.typ, words: tt.words, state: valueSource{"t", p}, payload: tt.config}
		var said lastReading
		if tt.said != "" {
			said, _ = f.decode(&jsonpath.Message{Source: "t", Payload: []byte(tt.said)})
			said.count = 1
		}
		got, err := f.encode(tt.value, said)
		require.NoError(t, err)
		require.Equal(t, tt.want, string(got), "%+v", tt)
	}
}

// What people see devices publish.
func TestValuesAsDevicesPublishThem(t *testing.T) {
	for _, tt := range []struct {
		typ            mappers.Type
		words          bool
		path, payload  string
		value, problem string
	}{
		{mappers.Float, false, "", "21.5\n", "21.5", ""},
		{mappers.Float, false, "", " 21.5\x00", "21.5", ""},
		{mappers.Float, false, "x", `{"x":"21.5 "}`, "21.5", ""},
		{mappers.Int, false, "x", `{"x":"87"}`, "87", ""},
		{mappers.Int, false, "x", `{"x":87.0}`, "87", ""},
		{mappers.Boolean, false, "", "ON\r\n", "true", ""},
		{mappers.Boolean, false, "x", `{"x":1}`, "true", ""},
		{mappers.Boolean, false, "x", `{"x":"perhaps"}`, "", `Invalid: "perhaps" on t is neither on nor off`},
		{mappers.String, true, "", "OPEN\n", "OPEN", ""},
		{mappers.String, true, "x", `{"x":true}`, "true", ""},
		{mappers.String, false, "", " kept as it is \n", " kept as it is ", ""},
		{mappers.Float, false, "", "nan", "nan", ""}, // the SDK says that it is no number
		{mappers.Float, false, "x", `{"x":null}`, "", "Unknown: the device says null on t"},
		{mappers.String, false, "", "\x08\xff", "", "Unknown: what comes on t is no text: a property of the type bytes could have it"},
		{mappers.Object, false, "x", `{"x":{"a":1}}`, `{"a":1}`, ""},
	} {
		p, err := jsonpath.Parse(tt.path)
		require.NoError(t, err)
		r, ok := (&mappedProperty{typ: tt.typ, words: tt.words, state: valueSource{"t", p}}).decode(&jsonpath.Message{Source: "t", Payload: []byte(tt.payload)})
		require.True(t, ok)
		require.Equal(t, tt.value, r.value, "%+v", tt)
		if tt.problem == "" {
			require.NoError(t, r.err)
		} else {
			require.EqualError(t, r.err, tt.problem)
		}
	}
}
