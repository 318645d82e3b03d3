// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/cmd"
	"github.com/edgebus/edgebus/topics/resource"
)

// What zigbee2mqtt says of a light, a shutter, a thermostat on batteries, a door lock, a remote control and a second light of the same kind.
const zigbeeList = `[
 {"ieee_address":"0x0","type":"Coordinator","friendly_name":"Coordinator","definition":null},
 {"ieee_address":"0x1","type":"Router","friendly_name":"hall/lamp","power_source":"Mains (single phase)","definition":{"model":"LED1","vendor":"ACME","exposes":[
  {"type":"light","features":[
   {"type":"binary","name":"state","label":"State","property":"state","access":7,"value_on":"ON","value_off":"OFF","value_toggle":"TOGGLE"},
   {"type":"numeric","name":"brightness","label":"Brightness","property":"brightness","access":7,"value_min":0,"value_max":254},
   {"type":"composite","name":"color_xy","label":"Color (X/Y)","property":"color","access":7,"features":[{"type":"numeric","property":"x","access":7},{"type":"numeric","property":"y","access":7}]},
   {"type":"composite","name":"color_hs","property":"color","access":7,"features":[{"type":"numeric","property":"hue","access":7}]}]},
  {"type":"enum","name":"effect","label":"Effect","property":"effect","access":2,"values":["blink","okay"]},
  {"type":"numeric","name":"linkquality","label":"Linkquality","property":"linkquality","access":1,"unit":"lqi","value_min":0,"value_max":255}]}},
 {"ieee_address":"0x2","type":"Router","friendly_name":"shutter","power_source":"Mains (single phase)","definition":{"model":"S1","vendor":"ACME","exposes":[
  {"type":"cover","features":[{"type":"enum","name":"state","property":"state","access":3,"values":["OPEN","CLOSE","STOP"]},{"type":"numeric","name":"position","property":"position","access":7,"unit":"%","value_min":0,"value_max":100}]},
  {"type":"binary","property":"identify","access":2,"value_on":"ON","value_off":"OFF"}]}},
 {"ieee_address":"0x3","type":"EndDevice","friendly_name":"Bad/Büro Heizung","power_source":"Battery","definition":{"model":"TRV1","vendor":"ACME","exposes":[
  {"type":"climate","features":[{"type":"numeric","label":"Occupied heating setpoint","property":"occupied_heating_setpoint","access":7,"unit":"°C","value_min":5,"value_max":30,"value_step":0.5},
   {"type":"numeric","property":"local_temperature","access":5,"unit":"°C"},{"type":"enum","property":"system_mode","access":7,"values":["off","heat","auto"]}]},
  {"type":"binary","property":"led_disabled_night","access":7,"value_on":true,"value_off":false},
  {"type":"binary","property":"child_lock","access":7,"value_on":"LOCK","value_off":"UNLOCK"},
  {"type":"composite","property":"programming mode","features":[{"type":"text","property":"monday","access":3}]},
  {"type":"list","property":"schedule","access":1,"item_type":{"type":"text"}}]}},
 {"ieee_address":"0x4","type":"EndDevice","friendly_name":"door","power_source":"Battery","definition":{"model":"L1","vendor":"ACME","exposes":[
  {"type":"lock","features":[{"type":"binary","property":"state","access":7,"value_on":"LOCK","value_off":"UNLOCK"},{"type":"enum","property":"lock_state","access":1,"values":["not_fully_locked","locked","unlocked"]}]},
  {"type":"enum","property":"action","access":1,"values":["single","double"]},{"type":"enum","property":"speed","access":7,"values":[1,2]}]}},
 {"ieee_address":"0x5","type":"EndDevice","friendly_name":"nobody knows it","definition":null},
 {"ieee_address":"0x6","type":"Router","friendly_name":"hall/second","power_source":"Mains (single phase)","definition":{"model":"LED1","vendor":"ACME","exposes":[
  {"type":"switch","features":[{"type":"binary","property":"state","access":7,"value_on":"ON","value_off":"OFF"}]}]}}]`

func TestEveryKindOfZigbeeDeviceHasAModel(t *testing.T) {
	list, err := zigbeeModels("zigbee2mqtt", []byte(zigbeeList), "house")
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, cmd.WriteManifests(&out, list...))
	golden := filepath.Join("testdata", "zigbee2mqtt.yaml")
	if os.Getenv("GOLDEN") == "write" {
		require.NoError(t, os.WriteFile(golden, out.Bytes(), 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), out.String())
	for _, text := range bytes.Split(out.Bytes(), []byte("\n---\n")) {
		if bytes.Contains(text, []byte("kind: DeviceModel")) {
			var model resource.DeviceModel
			require.NoError(t, yaml.UnmarshalStrict(text, &model))
			require.NoError(t, model.Validate())
			continue
		}
		var device resource.Device
		require.NoError(t, yaml.UnmarshalStrict(text, &device))
		require.NoError(t, device.Validate())
	}
	for _, f := range list {
		d := mappers.Device{Config: f.Config}
		for _, p := range f.Properties {
			d.Properties = append(d.Properties, mappers.Property{Name: p.Name, Type: mappers.Type(p.Type), Writable: p.Writable, Visited: true, Config: p.Config})
		}
		_, err := parseDevice(d)
		require.NoError(t, err, f.Name)
	}
}

func TestBrowsePrintsWhatIsAskedFor(t *testing.T) {
	server := newBroker(t)
	l := newLamp(t, server, "zigbee2mqtt/hall/lamp")
	l.publish("zigbee2mqtt/bridge/devices", zigbeeList, true)
	var out, failed bytes.Buffer
	require.Zero(t, Main([]string{"browse", "--server", server, "--node", "house", "shutter"}, &out, &failed), failed.String())
	require.Contains(t, out.String(), "name: acme-s1\n")
	require.Contains(t, out.String(), "nodeName: house\n")
	require.NotContains(t, out.String(), "lamp")

	file := filepath.Join(t.TempDir(), "list.json")
	require.NoError(t, os.WriteFile(file, []byte(zigbeeList), 0o600))
	out.Reset()
	require.Zero(t, Main([]string{"browse", "--list", file}, &out, &failed), failed.String())
	require.Contains(t, out.String(), "name: hall-lamp\n")
	for _, args := range [][]string{
		{"browse", "--list", file, "nothing"}, {"browse", "--list", file + "x"}, {"browse", "--server", server, "--topic", "z", "--wait", "50ms"},
	} {
		failed.Reset()
		require.Equal(t, 1, Main(args, &out, &failed))
		require.NotEmpty(t, failed.String())
	}
}

// A door's contact has false for on, which is open: the value is what the device says, not what is on.
func TestATruthValueIsWhatTheDeviceSays(t *testing.T) {
	for _, c := range []struct {
		on, off string
		words   int
	}{{"true", "false", 0}, {"false", "true", 0}, {`"LOCK"`, `"UNLOCK"`, 2}, {"1", "0", 2}} {
		typ, words := exposedFeature{Type: "binary", On: json.RawMessage(c.on), Off: json.RawMessage(c.off)}.valueType()
		require.Equal(t, "boolean", typ)
		require.Len(t, words, c.words, c.on)
	}
}
