// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// kindNamed is a kind of KubeEdge's.
func kindNamed(t *testing.T, version, name string) Kind {
	t.Helper()
	return kindOf(t, jsonObject{"apiVersion": kubeedgeGroup + "/" + version, "kind": name})
}

// readAs reads a manifest of KubeEdge's as a canonical object, and expects it to be shown as it was.
func readAs(t *testing.T, k Kind, manifest string, into any) (shown map[string]any) {
	t.Helper()
	canonical, err := k.Read([]byte(manifest), nil, false)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(canonical, into))
	raw, err := k.Show(canonical)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &shown))
	var want map[string]any
	require.NoError(t, json.Unmarshal([]byte(manifest), &want))
	require.Equal(t, want["spec"], shown["spec"])
	return shown
}

// A cycle of more than an hour is in nanoseconds, in each form that has cycles, and is said to be read so.
func TestKubeEdgesCyclesAreNanoseconds(t *testing.T) {
	for given, want := range map[int64]int64{10_000_000_000: 10_000, 500_000_000: 500, 3_600_000: 3_600_000, 3_600_001: 3, 60_000: 60_000, 0: 0} {
		for version, form := range map[string]string{
			"v1beta1": `{"spec":{"deviceModelRef":{"name":"m"},"nodeName":"n1","protocol":{"protocolName":"x"},
				"properties":[{"name":"temp","collectCycle":%d,"reportCycle":%[1]d,"visitors":{"protocolName":"x"}}]}}`,
			"v1alpha2": `{"spec":{"deviceModelRef":{"name":"m"},"protocol":{"customizedProtocol":{"protocolName":"x"}},
				"propertyVisitors":[{"propertyName":"temp","collectCycle":%d,"reportCycle":%[1]d,"customizedProtocol":{"protocolName":"x"}}]}}`,
		} {
			k, manifest := kindNamed(t, version, "Device"), fmt.Sprintf(form, given)
			canonical, err := k.Read([]byte(manifest), nil, false)
			require.NoError(t, err)
			var d resource.Device
			require.NoError(t, json.Unmarshal(canonical, &d))
			require.Equal(t, want, d.Spec.PropertyVisitors[0].CollectCycle, version)
			require.Equal(t, want, d.Spec.PropertyVisitors[0].ReportCycle, version)
			doubts := strings.Join(k.Warnings([]byte(manifest)), "\n")
			if given <= 3_600_000 {
				require.Empty(t, doubts)
				continue
			}
			require.Contains(t, doubts, "[0].collectCycle: ")
			require.Contains(t, doubts, "[0].reportCycle: ")
			require.Contains(t, doubts, "read as nanoseconds")
			shown, err := k.Show(canonical)
			require.NoError(t, err)
			require.Contains(t, string(shown), fmt.Sprint(given), "it is shown as it was written")
		}
	}
	k := kindNamed(t, "v1beta1", "Device")
	long, err := json.Marshal(resource.Device{Spec: resource.DeviceSpec{PropertyVisitors: []resource.Visitor{{PropertyName: "a", CollectCycle: 7_200_000}}}})
	require.NoError(t, err)
	shown, err := k.Show(long)
	require.NoError(t, err)
	back, err := k.Read(shown, nil, false)
	require.NoError(t, err)
	require.Contains(t, string(back), `"collectCycle":7200000`, "two hours are two hours again")
}

// A negative cycle, which KubeEdge takes and published manifests have, is none; it is said so, and shown as it was.
func TestKubeEdgesNegativeCycleIsNone(t *testing.T) {
	for version, manifest := range map[string]string{
		"v1beta1": `{"spec":{"deviceModelRef":{"name":"m"},"nodeName":"n1","protocol":{"protocolName":"x"},
			"properties":[{"name":"temp","collectCycle":-1,"reportCycle":-1,"visitors":{"protocolName":"x"}}]}}`,
		"v1alpha2": `{"spec":{"deviceModelRef":{"name":"m"},"protocol":{"customizedProtocol":{"protocolName":"x"}},
			"propertyVisitors":[{"propertyName":"temp","collectCycle":-1,"reportCycle":-1,"customizedProtocol":{"protocolName":"x"}}]}}`,
	} {
		var d resource.Device
		k := kindNamed(t, version, "Device")
		readAs(t, k, manifest, &d)
		require.Zero(t, d.Spec.PropertyVisitors[0].CollectCycle, version)
		require.Zero(t, d.Spec.PropertyVisitors[0].ReportCycle, version)
		require.Contains(t, strings.Join(k.Warnings([]byte(manifest)), "\n"), "[0].collectCycle: -1 is negative, and taken as none: the default", version)
	}
}

// What a model says of its protocol is its devices', which may say otherwise.
func TestKubeEdgesModelMayHaveAProtocolConfig(t *testing.T) {
	var m resource.DeviceModel
	readAs(t, kindNamed(t, "v1beta1", "DeviceModel"), `{"spec":{"protocol":"modbus","protocolConfigData":{"ip":"10.0.0.5","port":1502},
		"properties":[{"name":"temp","type":"INT","accessMode":"ReadWrite","visitors":{"protocolName":"modbus","configData":{"offset":2}}}]}}`, &m)
	b := resource.NewBundle(resource.Device{Spec: resource.DeviceSpec{
		Protocol:         resource.Protocol{Type: "Modbus", Config: map[string]resource.Value{"port": "503", "slaveID": "1"}},
		PropertyVisitors: []resource.Visitor{{PropertyName: "temp", Config: map[string]resource.Value{"offset": "3"}}},
	}}, m)
	require.Equal(t, map[string]resource.Value{"ip": "10.0.0.5", "port": "503", "slaveID": "1"}, b.Device.Spec.Protocol.Config)
	require.EqualValues(t, "3", b.Model.Visitors("modbus")[0].Config["offset"])

	var bare resource.DeviceModel
	readAs(t, kindNamed(t, "v1beta1", "DeviceModel"), `{"spec":{"protocol":"x","protocolConfigData":{"a":"b"},"properties":[{"name":"p","type":"STRING"}]}}`, &bare)
	require.NoError(t, func() error { bare.Metadata.Name = "m"; return bare.Validate() }())
	other := resource.NewBundle(resource.Device{Spec: resource.DeviceSpec{Protocol: resource.Protocol{Type: "y"}}}, bare)
	require.Empty(t, other.Device.Spec.Protocol.Config, "of another protocol")
	_, err := kindNamed(t, "v1beta1", "DeviceModel").Read([]byte(`{"spec":{"protocolConfigData":{"a":"b"}}}`), nil, false)
	require.ErrorContains(t, err, "spec.protocol")
}

// DeviceStatus shows what is known, and nothing that a manifest claimed of the Device.
func TestADeviceStatusOfKubeEdge(t *testing.T) {
	device, status := kindNamed(t, "v1beta1", "Device"), kindNamed(t, "v1beta1", "DeviceStatus")
	require.True(t, status.ReadOnly)
	canonical, err := device.Read([]byte(`{"metadata":{"name":"lamp"},"spec":{"deviceModelRef":{"name":"m"},"protocol":{"protocolName":"x"},"extra":"y"},"status":{"state":"online"}}`), nil, false)
	require.NoError(t, err)
	var d map[string]any
	require.NoError(t, json.Unmarshal(canonical, &d))
	d["status"] = map[string]any{"state": "offline", "lastSeen": "2026-11-21T10:00:00Z", "twin": map[string]any{
		"power": map[string]any{"reported": map[string]any{"value": "ON"}, "desired": map[string]any{"value": "OFF"}},
	}}
	raw, err := json.Marshal(d)
	require.NoError(t, err)
	shown, err := status.Show(raw)
	require.NoError(t, err)
	require.JSONEq(t, `{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"DeviceStatus","metadata":{"name":"lamp"},"spec":{},"status":{"state":"offline",
		"lastOnlineTime":"2026-11-21T10:00:00Z","twins":[{"propertyName":"power","reported":{"value":"ON"},"observedDesired":{"value":"OFF"}}]}}`, strings.Replace(string(shown), `"kind":"DeviceStatus",`, `"kind":"DeviceStatus","spec":{},`, 1))
}

// What a v1beta1 Device says of reporting, methods and pushing is said in the canonical form, and shown as it was.
func TestKubeEdgesReportingAndPushMethods(t *testing.T) {
	var d resource.Device
	readAs(t, kindNamed(t, "v1beta1", "Device"), `{"spec":{"deviceModelRef":{"name":"m"},"protocol":{"protocolName":"x"},
		"properties":[
			{"name":"a","reportToCloud":false,"visitors":{"protocolName":"x"},"pushMethod":{"mqtt":{"address":"tcp://h:1883","topic":"t","qos":1,"retained":true},"dbMethod":{"redis":{}}}},
			{"name":"b","reportToCloud":true,"visitors":{"protocolName":"x"},"pushMethod":{"http":{"hostName":"h","port":8080,"requestPath":"/p","timeout":3}}},
			{"name":"c","visitors":{"protocolName":"x"}}],
		"methods":[{"name":"set","description":"d","propertyNames":["a","b"]}],"stateReport":{"reportToCloud":false,"reportCycle":5000}}}`, &d)
	require.Equal(t, []string{"a"}, d.Spec.Local)
	require.True(t, d.Spec.LocalState)
	require.Equal(t, []resource.DeviceCommand{{Name: "set", Description: "d", Properties: []string{"a", "b"}}}, d.Spec.Commands)
	require.Equal(t, []resource.Push{
		{PropertyName: "a", MQTT: &resource.PushMQTT{Address: "tcp://h:1883", Topic: "t", QoS: 1, Retain: true}},
		{PropertyName: "b", HTTP: &resource.PushHTTP{URL: "http://h:8080/p"}},
	}, d.Spec.Push)
	d.Metadata.Name = "lamp"
	require.NoError(t, d.Validate())
	d.Spec.Push[1].HTTP.URL = "http://user:pw@h/"
	require.ErrorContains(t, d.Validate(), "spec.push[1].http.url: must hold no name or password")
	d.Spec.Push[1].HTTP.URL = "file:///etc/passwd"
	require.ErrorContains(t, d.Validate(), "spec.push[1].http.url")
}

func TestVisitorsOfEventsAndCommandsAreKept(t *testing.T) {
	visitors := `[{"propertyName":"a","config":{"x":"1"}},{"eventName":"press","config":{"state":"t"}},{"commandName":"reset","config":{"command":"c"}}]`
	for kind, spec := range map[string]string{
		"Device":      `{"title":"Boiler","deviceModelRef":{"name":"m"},"protocol":{"type":"mqtt"},"propertyVisitors":` + visitors + `}`,
		"DeviceModel": `{"title":"Heat pump","properties":[{"name":"a"}],"events":[{"name":"press"}],"commands":[{"name":"reset"}],"propertyVisitors":[{"protocol":"mqtt","visitors":` + visitors + `}]}`,
	} {
		canonical := `{"apiVersion":"edgebus.io/v1alpha1","kind":"` + kind + `","metadata":{"name":"m"},"spec":` + spec + `}`
		for _, version := range []string{"v1beta1", "v1alpha2", "v1alpha1"} {
			k := kindNamed(t, version, kind)
			shown, err := k.Show([]byte(canonical))
			require.NoError(t, err)
			require.NotContains(t, string(shown), `"propertyName":""`, version)
			require.NotContains(t, string(shown), `"name":""`, version)
			back, err := k.Read(shown, []byte(canonical), false)
			require.NoError(t, err, version)
			require.JSONEq(t, canonical, string(back), version)
		}
	}
}

func TestAPushThatOnlySomeMappersCarryOutIsNamed(t *testing.T) {
	got := kindNamed(t, "v1beta1", "Device").Warnings([]byte(`{"spec":{"properties":[{"name":"a","pushMethod":{"mqtt":{"topic":"t"}}},
		{"name":"b","pushMethod":{"http":{},"dbMethod":{"redis":{}}}}]}}`))
	require.Len(t, got, 1)
	require.Contains(t, got[0], "spec.properties[1].pushMethod.dbMethod: ")
}

// A warning about a Device or a model names a setting of its protocol where the version of its author has it.
func TestKubeEdgesNamesAreInWarnings(t *testing.T) {
	for _, c := range []struct{ version, kind, manifest, warning, want string }{
		{"v1beta1", "Device", `{"spec":{"protocol":{"configData":{"port":"x"}}}}`, "spec.protocol.config.port: is no number", "spec.protocol.configData.port: is no number"},
		{"v1beta1", "Device", `{"spec":{"properties":[{"name":"a"},{"name":"b","visitors":{"configData":{"x":"y"}}}]}}`, "spec.propertyVisitors[0].config.x: is no setting: did you mean z?", "spec.properties[1].visitors.configData.x: is no setting: did you mean z?"},
		{"v1beta1", "DeviceModel", `{"spec":{"properties":[{"name":"a","visitors":{"protocolName":"p"}},{"name":"b","visitors":{"protocolName":"q"}},{"name":"c","visitors":{"protocolName":"P"}}]}}`, "spec.propertyVisitors[0].visitors[1].config.x: no", "spec.properties[2].visitors.configData.x: no"},
		{"v1beta1", "DeviceModel", `{"spec":{"properties":[{"name":"a","visitors":{"protocolName":"p"}},{"name":"b","visitors":{"protocolName":"q"}},{"name":"c","visitors":{"protocolName":"Q"}}]}}`, "spec.propertyVisitors[1].visitors[1].config.x: no", "spec.properties[2].visitors.configData.x: no"},
		{"v1beta1", "DeviceModel", `{"spec":{"protocolConfigData":{"port":"x"},"properties":[{"name":"a","visitors":{"protocolName":"p"}}]}}`, "spec.propertyVisitors[0].config.port: no", "spec.protocolConfigData.port: no"},
		{"v1alpha2", "Device", `{"spec":{"protocol":{"modbus":{"slaveID":"x"}}}}`, "spec.protocol.config.slaveID: no", "spec.protocol.modbus.slaveID: no"},
		{"v1alpha2", "Device", `{"spec":{"protocol":{"modbus":{},"common":{"tcp":{"port":"x"}}}}}`, "spec.protocol.config.port: no", "spec.protocol.common.tcp.port: no"},
		{"v1alpha2", "Device", `{"spec":{"propertyVisitors":[{"propertyName":"a","customizedProtocol":{"configData":{"x":"y"}}}]}}`, "spec.propertyVisitors[0].config.x: no", "spec.propertyVisitors[0].customizedProtocol.configData.x: no"},
		{"v1alpha1", "Device", `{"spec":{"protocol":{"config":{"x":"y"}}}}`, "spec.protocol.config.x: no", "spec.protocol.config.x: no"},
		{"v1beta1", "Device", `{"spec":{}}`, "a Device of the name was deleted: it is new", "a Device of the name was deleted: it is new"},
	} {
		require.Equal(t, []string{c.want}, kindNamed(t, c.version, c.kind).OfFormTexts([]byte(c.manifest), []string{c.warning}), c.manifest)
	}
}
