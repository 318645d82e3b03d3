// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/views"
	view "github.com/edgebus/edgebus/broker/views/sparkplug"
	"github.com/edgebus/edgebus/broker/views/viewtest"
	"github.com/edgebus/edgebus/topics/resource"
)

// foreignPayload is what Eclipse Tahu's library for JavaScript makes of a payload.
type foreignPayload struct {
	Timestamp any             `json:"timestamp,omitempty"`
	Seq       any             `json:"seq,omitempty"`
	Metrics   []foreignMetric `json:"metrics"`
}

type foreignMetric struct {
	Name       string                               `json:"name"`
	Type       string                               `json:"type"`
	Value      any                                  `json:"value"`
	Timestamp  any                                  `json:"timestamp,omitempty"`
	Alias      any                                  `json:"alias,omitempty"`
	Properties map[string]struct{ Type, Value any } `json:"properties,omitempty"`
}

// foreignSparkplug has lines converted by that library.
func foreignSparkplug(t *testing.T, lines []string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "node", "devices/node/payload.mjs")
	cmd.Stdin, cmd.Stderr = strings.NewReader(strings.Join(lines, "\n")+"\n"), os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	answers := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Len(t, answers, len(lines))
	return answers
}

func TestTahusLibraryReadsWhatAnEdgeNodeSaysAndIsUnderstood(t *testing.T) {
	requireTools(t)
	v := view.New(view.Options{Group: "plant", EdgeNode: viewtest.Node})
	will := v.Connect(2).Will
	now := time.UnixMilli(1_800_000_000_000)
	messages := []views.Message{*will}
	tell := func(e views.Event) (sets []*views.Set) {
		for _, a := range v.Next(now, e) {
			switch a := a.(type) {
			case *views.Publish:
				messages = append(messages, a.Message)
			case *views.Set:
				sets = append(sets, a)
			}
		}
		return sets
	}
	tell(&views.NodeChanged{Node: views.Node{Name: viewtest.Node, Online: true}})
	texts := map[resource.DataType]string{
		resource.TypeInt: "-9007199254740993", resource.TypeFloat: "0.25", resource.TypeDouble: "-1.5e-300", resource.TypeBoolean: "true", resource.TypeBytes: "AP8=",
		resource.TypeObject: `{"a":1}`, resource.TypeArray: "[1]", resource.TypeString: "tür", "": "ON",
	}
	properties := map[string]resource.Property{}
	for _, b := range viewtest.Devices() {
		d := &views.Device{Node: viewtest.Node, Object: &b.Device, Model: &b.Model, State: resource.Online, Values: map[string]views.Value{}}
		for _, p := range b.Model.Spec.Properties {
			properties[d.Name()+"/"+p.Name] = p
			d.Values[p.Name] = views.Value{Text: texts[p.Type], Known: true, At: now.Add(-time.Minute)}
		}
		tell(&views.DeviceChanged{Device: d, Whole: true})
	}
	tell(&views.Settled{})
	var lines []string
	for _, m := range messages {
		lines = append(lines, base64.StdEncoding.EncodeToString(m.Payload))
	}
	types := map[resource.DataType]string{
		resource.TypeInt: "Int64", resource.TypeFloat: "Float", resource.TypeDouble: "Double", resource.TypeBoolean: "Boolean", resource.TypeBytes: "Bytes",
	}
	told := 0
	for i, line := range foreignSparkplug(t, lines) {
		var p foreignPayload
		require.NoError(t, json.Unmarshal([]byte(line), &p), line)
		topic := strings.Split(messages[i].Topic, "/")
		switch topic[2] {
		case "NDEATH":
			require.Equal(t, []foreignMetric{{Name: "bdSeq", Type: "Int64", Value: "1"}}, p.Metrics)
		case "NBIRTH":
			require.Equal(t, "0", plainText(p.Seq))
			require.Len(t, p.Metrics, 2)
		case "DBIRTH":
			require.Equal(t, strconv.Itoa(i-1), plainText(p.Seq))
			for _, m := range p.Metrics {
				told++
				is := properties[topic[4]+"/"+m.Name]
				typ := types[is.Type]
				if typ == "" {
					typ = "String"
				}
				require.Equal(t, typ, m.Type, line)
				require.Equal(t, texts[is.Type], plainText(m.Value), line)
				require.Equal(t, strconv.FormatInt(now.Add(-time.Minute).UnixMilli(), 10), plainText(m.Timestamp), line)
				require.Equal(t, "192", plainText(m.Properties["Quality"].Value), line)
				if is.Unit != "" {
					require.Equal(t, is.Unit, plainText(m.Properties["engUnit"].Value), line)
				}
			}
		}
	}
	require.Len(t, properties, told)

	commands := map[string]string{ // what the library writes, and what is set
		`{"timestamp":1,"metrics":[{"name":"power","type":"String","value":"OFF"},{"name":"brightness","type":"Int32","value":70}]}`: "lamp power=OFF brightness=70",
		`{"timestamp":1,"metrics":[{"name":"setpoint","type":"Float","value":20.5}]}`:                                                "heatpump setpoint=20.5",
		`{"timestamp":1,"metrics":[{"name":"relay","type":"Boolean","value":false}]}`:                                                "plug relay=false",
		`{"timestamp":1,"metrics":[{"name":"speed","type":"Double","value":-20}]}`:                                                   "plc-7 speed=-20",
	}
	for payload, want := range commands {
		words := strings.Fields(want)
		b, err := base64.StdEncoding.DecodeString(foreignSparkplug(t, []string{payload})[0])
		require.NoError(t, err)
		values := map[string]string{}
		for _, w := range words[1:] {
			name, value, _ := strings.Cut(w, "=")
			values[name] = value
		}
		sets := tell(&views.Received{Message: views.Message{Topic: "spBv1.0/plant/DCMD/n1/" + words[0], Payload: b}})
		require.Equal(t, []*views.Set{{Node: viewtest.Node, Device: words[0], Values: values}}, sets)
	}
}

func plainText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case bool:
		return strconv.FormatBool(v)
	}
	return ""
}
