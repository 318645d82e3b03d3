// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// readBack is what a manifest's spec becomes when it is stored and read again. observed is the status that the hub has of it.
func readBack(t *testing.T, k Kind, manifest string, observed resource.DeviceStatus) (spec string, d resource.Device) {
	t.Helper()
	canonical, err := k.Read([]byte(manifest), nil, false)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(canonical, &d))
	var c jsonObject
	require.NoError(t, json.Unmarshal(canonical, &c))
	c["status"] = observed
	raw, err := json.Marshal(c)
	require.NoError(t, err)
	shown, err := k.Show(raw)
	require.NoError(t, err)
	var form map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(shown, &form))
	return string(form["spec"]), d
}

// KubeEdge's own checks compare what they read with what they sent, deeply.
func TestASpecIsReadBackAsItWasSent(t *testing.T) {
	at := "2026-11-21T10:00:00.123Z"
	observed := resource.DeviceStatus{State: resource.Online, LastSeen: at, Twin: map[string]resource.TwinProperty{
		"temperature": {Desired: &resource.TwinValue{Value: "30", Ver: 7, TS: at}, Reported: &resource.TwinValue{Value: "30", Ver: 1, TS: at}},
	}}
	for name, spec := range map[string]string{
		"a desired value":                `{"deviceModelRef":{"name":"m"},"nodeName":"n1","protocol":{"protocolName":"modbus","configData":{"ip":"127.0.0.1"}},"properties":[{"name":"temperature","desired":{"value":"30"}}]}`,
		"its metadata":                   `{"deviceModelRef":{"name":"m"},"protocol":{"protocolName":"modbus"},"properties":[{"name":"temperature","desired":{"value":"30","metadata":{"timestamp":"1550049403598","type":"string"}}}]}`,
		"properties in their order":      `{"deviceModelRef":{"name":"m"},"protocol":{"protocolName":"modbus"},"properties":[{"name":"z","desired":{"value":"1"}},{"name":"temperature","desired":{"value":"30"},"visitors":{"protocolName":"modbus","configData":{"register":"HoldingRegister","offset":2,"isSwap":true}}},{"name":"a","collectCycle":1000,"reportCycle":2000,"reportToCloud":true}]}`,
		"what has no effect":             `{"deviceModelRef":{"name":"m"},"protocol":{"protocolName":"modbus"},"properties":[{"name":"a","pushMethod":{"dbMethod":{"influxdb2":{"influxdb2ClientConfig":{"url":"http://x"}}}}}],"stateReport":{"reportToCloud":true,"reportCycle":10000}}`,
		"methods":                        `{"deviceModelRef":{"name":"m"},"protocol":{"protocolName":"modbus"},"methods":[{"name":"set","description":"d","propertyNames":["a","b"]}]}`,
		"no protocol":                    `{"deviceModelRef":{"name":"m"},"nodeName":"n1","properties":[{"name":"temperature","visitors":{"protocolName":"modbus","configData":{"register":"CoilRegister"}}}]}`,
		"a protocol's settings, unnamed": `{"deviceModelRef":{"name":"m"},"protocol":{"configData":{"a":"b"}}}`,
	} {
		manifest := `{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"Device","metadata":{"name":"d"},"spec":` + spec + `}`
		back, _ := readBack(t, kindNamed(t, "v1beta1", "Device"), manifest, observed)
		require.JSONEq(t, spec, back, name)
		require.Equal(t, orderOf(t, spec), orderOf(t, back), name)
	}
}

// orderOf are the names of the properties, in order.
func orderOf(t *testing.T, spec string) (names []string) {
	var s struct{ Properties []struct{ Name string } }
	require.NoError(t, json.Unmarshal([]byte(spec), &s))
	for _, p := range s.Properties {
		names = append(names, p.Name)
	}
	return names
}

func TestADeviceWithoutAProtocolWaitsForOne(t *testing.T) {
	for version, spec := range map[string]string{
		"v1alpha1": `{"deviceModelRef":{"name":"m"},"nodeName":"n1"}`,
		"v1alpha2": `{"deviceModelRef":{"name":"m"},"propertyVisitors":[{"propertyName":"a","modbus":{"register":"CoilRegister"}}]}`,
		"v1beta1":  `{"deviceModelRef":{"name":"m"},"nodeName":"n1","properties":[{"name":"a","visitors":{"protocolName":"modbus","configData":{"register":"CoilRegister"}}}]}`,
	} {
		k := kindNamed(t, version, "Device")
		manifest := `{"apiVersion":"` + k.APIVersion() + `","kind":"Device","metadata":{"name":"d"},"spec":` + spec + `}`
		back, d := readBack(t, k, manifest, resource.DeviceStatus{})
		require.JSONEq(t, spec, back, version)
		require.Equal(t, resource.NoProtocol, d.Spec.Protocol.Type, version)
		require.NoError(t, d.Validate(), version)
		require.Contains(t, resource.Reachability{Node: "n1", Registered: true, Protocol: d.Spec.Protocol.Type}.Condition().Message, "no protocol")
	}
	k := kindNamed(t, "v1beta1", "Device")
	manifest := `{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"Device","metadata":{"name":"d"},"spec":{"deviceModelRef":{"name":"m"},"protocol":{"protocolName":"modbus","configData":{"ip":"10.0.0.5"}},
		"properties":[{"name":"a","visitors":{"protocolName":"modbus","configData":{"register":"CoilRegister"}}}]}}`
	_, d := readBack(t, k, manifest, resource.DeviceStatus{})
	require.Equal(t, "modbus", d.Spec.Protocol.Type, "it comes, and the visitors are there")
	require.EqualValues(t, "CoilRegister", d.Spec.PropertyVisitors[0].Config["register"])
}

func TestATypeOfAModelIsOneOfItsSchema(t *testing.T) {
	for _, typ := range []string{"INT", "FLOAT", "DOUBLE", "STRING", "BOOLEAN", "BYTES", "STREAM"} {
		_, err := kindNamed(t, "v1beta1", "DeviceModel").Read([]byte(`{"metadata":{"name":"m"},"spec":{"properties":[{"name":"a","type":"`+typ+`","accessMode":"ReadOnly"}]}}`), nil, false)
		require.NoError(t, err, typ)
	}
	for _, typ := range []string{"int", "OBJECT", "ARRAY", "INT64", "ENUM", "x"} {
		_, err := kindNamed(t, "v1beta1", "DeviceModel").Read([]byte(`{"metadata":{"name":"m"},"spec":{"properties":[{"name":"a","type":"`+typ+`"}]}}`), nil, false)
		require.ErrorContains(t, err, "spec.properties[0].type", typ)
	}
	for _, typ := range []string{"INT", "object", "int64"} {
		_, err := kindNamed(t, "v1alpha2", "DeviceModel").Read([]byte(`{"metadata":{"name":"m"},"spec":{"properties":[{"name":"a","type":{"`+typ+`":{"accessMode":"ReadOnly"}}}]}}`), nil, false)
		require.ErrorContains(t, err, "spec.properties[0].type", typ)
	}
}

// A model with a type that a form doesn't have is shown as text there, and keeps its type when it is written back.
func TestATypeThatAFormDoesNotHaveIsKept(t *testing.T) {
	canonical := `{"apiVersion":"edgebus.io/v1alpha1","kind":"DeviceModel","metadata":{"name":"m"},"spec":{"properties":[{"name":"a","type":"object"},{"name":"b","type":"array"},{"name":"c","type":"int"}]}}`
	for _, version := range []string{"v1beta1", "v1alpha2", "v1alpha1"} {
		k := kindNamed(t, version, "DeviceModel")
		shown, err := k.Show([]byte(canonical))
		require.NoError(t, err)
		back, err := k.Read(shown, []byte(canonical), false)
		require.NoError(t, err, version)
		require.JSONEq(t, canonical, string(back), version)
	}
}

// Fields on which nothing acts have the types that KubeEdge's schemas give them: a manifest that its own API would refuse is refused here.
func TestFieldsWithoutEffectAreOfTheirTypes(t *testing.T) {
	for _, c := range []struct{ version, spec, at string }{
		{"v1beta1", `{"properties":[{"name":"a","pushMethod":{"dbMethod":"influx"}}]}`, "spec.properties[0].pushMethod.dbMethod"},
		{"v1beta1", `{"properties":[{"name":"a","pushMethod":{"http":{"hostName":"h","timeout":"5"}}}]}`, "spec.properties[0].pushMethod.http.timeout"},
		{"v1beta1", `{"properties":[{"name":"a","pushMethod":{"anomalyDetection":[]}}]}`, "spec.properties[0].pushMethod.anomalyDetection"},
		{"v1beta1", `{"stateReport":{"reportCycle":"10s"}}`, "spec.stateReport.reportCycle"},
		{"v1alpha2", `{"protocol":{"common":{"reconnTimeout":"1"}}}`, "spec.protocol.common.reconnTimeout"},
		{"v1alpha2", `{"protocol":{"common":{"collectType":1}}}`, "spec.protocol.common.collectType"},
		{"v1alpha2", `{"data":[]}`, "spec.data"},
		{"v1alpha2", `{"propertyVisitors":[{"propertyName":"a","customizedValues":"x"}]}`, "spec.propertyVisitors[0].customizedValues"},
		{"v1alpha1", `{"node":{"id":"n1","comment":{}}}`, "spec.node.comment"},
	} {
		_, err := kindNamed(t, c.version, "Device").Read([]byte(`{"metadata":{"name":"d"},"spec":`+c.spec+`}`), nil, false)
		require.ErrorContains(t, err, c.at, c.spec)
	}
}
