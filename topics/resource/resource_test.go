// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// writeGolden says to write the golden files anew: make golden.
var writeGolden = os.Getenv("GOLDEN") == "write"

func floatPointer(x float64) *float64 { return &x }

var testLampModel = DeviceModel{
	TypeMeta: TypeMeta{APIVersion, KindDeviceModel},
	Metadata: Meta{Name: "dimmable-lamp", Namespace: "default", UID: "m-1", Generation: 2},
	Spec: DeviceModelSpec{
		Properties: []Property{
			{Name: "power", Type: TypeString, AccessMode: ReadWrite, Enum: []Value{"ON", "OFF"}},
			{Name: "brightness", Type: TypeInt, AccessMode: ReadWrite, Minimum: floatPointer(0), Maximum: floatPointer(100), Unit: "%"},
			{Name: "temperature", Type: TypeFloat, Unit: "°C"},
		},
		PropertyVisitors: []ProtocolVisitors{{Protocol: "virtual", Visitors: []Visitor{{PropertyName: "power", CollectCycle: 1000}}}},
	},
}

var testLamp = Device{
	TypeMeta: TypeMeta{APIVersion, KindDevice},
	Metadata: Meta{Name: "lamp", Namespace: "default", UID: "d-1", ResourceVersion: "17", Generation: 4, Labels: map[string]string{"room": "hall"}},
	Spec: DeviceSpec{
		DeviceModelRef: ObjectRef{"dimmable-lamp"}, NodeName: "n1",
		Protocol: Protocol{Name: "rs485-1", Type: "modbus", Config: map[string]Value{"unit": "1"}},
		Desired:  map[string]Value{"power": "ON", "brightness": "40"},
	},
}

// TestGoldenPayloads pins the JSON of everything that travels or is stored.
func TestGoldenPayloads(t *testing.T) {
	stamped := testLamp
	StampDesired(nil, &stamped, "kubectl", "", time.UnixMilli(1_700_000_000_000))
	twin := Twin(testLampModel, func(branch, property string) (StoredValue, bool) {
		s, ok := map[string]StoredValue{
			"desired/power":    {Value: []byte("ON"), Ver: 42, TS: 1_700_000_000_000, Origin: "kubectl"},
			"reported/power":   {Value: []byte("OFF"), Ver: 7, TS: 1_700_000_000_123, For: 9},
			"override/power":   {Value: []byte("OFF"), Ver: 1, BasedOn: 41},
			"refused/power":    {Value: []byte(`{"for":9,"ver":42,"code":"Stuck","message":"relay"}`)},
			"conflict/power":   {Value: []byte(`{"desired":"ON","desiredVer":42,"override":"OFF","basedOn":41,"policy":"cloud","winner":"desired"}`)},
			"reported/unknown": {Value: []byte("?")},
		}[branch+"/"+property]
		return s, ok
	})
	full := stamped
	full.Status = DeviceStatus{State: Online, LastSeen: FormatMillis(1_700_000_000_123), Twin: twin, Conditions: twinConditions(nil, twin, "", time.Unix(1_700_000_000, 0))}
	for name, v := range map[string]any{
		"device-stored": full, "bundle": NewBundle(full, testLampModel), "membership": Membership{Devices: []string{"lamp"}},
		"node":        Node{TypeMeta: TypeMeta{APIVersion, KindNode}, Metadata: Meta{Name: "n1"}, Status: NodeStatus{State: Online}},
		"node-report": NodeReport{Version: "v1.0.0", SystemInfo: &SystemInfo{Architecture: "amd64", CPUs: 4}},
	} {
		got, err := json.MarshalIndent(v, "", "  ")
		require.NoError(t, err)
		file := filepath.Join("testdata", name+".json")
		if writeGolden {
			require.NoError(t, os.MkdirAll("testdata", 0o755))
			require.NoError(t, os.WriteFile(file, append(got, '\n'), 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got)+"\n", "make golden, if this is meant")
	}
}

func TestAConfigurationTakesNumbersAndBooleansForTheirText(t *testing.T) {
	var m DeviceModel
	require.NoError(t, json.Unmarshal([]byte(`{"spec":{"propertyVisitors":[{"protocol":"modbus","config":{"unit":7},
		"visitors":[{"propertyName":"p","config":{"address":40072,"scale":0.1,"retain":true,"register":"holding"}}]}]}}`), &m))
	require.Equal(t, map[string]Value{"unit": "7"}, m.Spec.PropertyVisitors[0].Config)
	require.Equal(t, map[string]Value{"address": "40072", "scale": "0.1", "retain": "true", "register": "holding"}, m.Visitors("modbus")[0].Config)
}

func TestAModelSaysHowValuesAreShown(t *testing.T) {
	m := func(p Property, v Visitor) DeviceModel {
		p.Name, v.PropertyName = "p", "p"
		m := DeviceModel{Spec: DeviceModelSpec{Properties: []Property{p}, PropertyVisitors: []ProtocolVisitors{{Protocol: "x", Visitors: []Visitor{v}}}}}
		m.Metadata.Name = "m"
		return m
	}
	require.NoError(t, m(Property{Title: "Flow temperature", Type: TypeDouble, Quantity: "temperature", Step: 0.1, Counter: true},
		Visitor{NotAvailable: []Value{"0xFFFF"}}).Validate())
	words := []Word{{Value: "locked", Read: []Value{"LOCKED"}, Write: "LOCK"}, {Value: "unlocked", Read: []Value{"UNLOCKED", "UNLATCHED"}}}
	require.NoError(t, m(Property{Enum: []Value{"locked", "unlocked"}}, Visitor{Words: words}).Validate())
	for says, m := range map[string]DeviceModel{
		"spec.properties[0].title: ":                                        m(Property{Title: strings.Repeat("ü", 129)}, Visitor{}),
		"spec.properties[0].quantity: \"Energy\": must be a device class":   m(Property{Quantity: "Energy"}, Visitor{}),
		"spec.properties[0].step: is for int, float and double, not for st": m(Property{Step: 1}, Visitor{}),
		"spec.properties[0].step: -1: must be above 0":                      m(Property{Type: TypeFloat, Step: -1}, Visitor{}),
		"spec.properties[0].step: 0.5: must be a whole number for an int":   m(Property{Type: TypeInt, Step: 0.5}, Visitor{}),
		"spec.properties[0].counter: is for int, float and double":          m(Property{Counter: true}, Visitor{}),
		"spec.propertyVisitors[0].visitors[0].notAvailable[0]: is empty":    m(Property{}, Visitor{NotAvailable: []Value{""}}),
		"spec.propertyVisitors[0].visitors[0].notAvailable: has 65 entries": m(Property{}, Visitor{NotAvailable: make([]Value, 65)}),
		"spec.propertyVisitors[0].visitors[0].words[0].value: is required":  m(Property{}, Visitor{Words: []Word{{Read: []Value{"1"}}}}),
		"spec.propertyVisitors[0].visitors[0].words[1].value: \"a\" is there twice": m(Property{}, Visitor{Words: []Word{
			{Value: "a", Read: []Value{"1"}}, {Value: "a", Read: []Value{"2"}},
		}}),
		"spec.propertyVisitors[0].visitors[0].words[1].read[0]: \"1\" is what the device says for \"a\", too": m(Property{}, Visitor{Words: []Word{
			{Value: "a", Read: []Value{"1"}}, {Value: "b", Read: []Value{"1"}},
		}}),
		"spec.propertyVisitors[0].visitors[0].words[0].value: \"locked\" is not one of open": m(Property{Enum: []Value{"open"}}, Visitor{Words: words}),
	} {
		require.ErrorContains(t, m.Validate(), says)
	}
	d := Device{Spec: DeviceSpec{PropertyVisitors: []Visitor{{PropertyName: "p", Words: words}}}}
	require.ErrorContains(t, d.CheckModel(m(Property{Enum: []Value{"open"}}, Visitor{})), "spec.propertyVisitors[0].words[0].value: \"locked\" is not one of open")
}

func TestAValueIsAsShortAsItsStep(t *testing.T) {
	for _, c := range []struct {
		typ        DataType
		step       float64
		value, out string
	}{
		{TypeFloat, 0.0001, "0.23010000610351564", "0.2301"},
		{TypeDouble, 0.1, "21.57", "21.6"},
		{TypeDouble, 0.1, "-0.04", "0"},
		{TypeDouble, 0.25, "21.3", "21.25"},
		{TypeDouble, 10, "1234.5", "1230"},
		{TypeDouble, 5, "100", "100"},
		{TypeDouble, 0.1, "1e300", "1e300"},
		{TypeDouble, 0.1, "hot", "hot"},
		{TypeDouble, 0, "0.123", "0.123"},
		{TypeInt, 10, "124", "120"},
		{TypeInt, 10, "-125", "-130"},
		{TypeInt, 10, "-124", "-120"},
		{TypeInt, 1, "9223372036854775807", "9223372036854775807"},
		{TypeInt, 10, "9223372036854775807", "9223372036854775800"},
		{TypeString, 1, "7.5", "7.5"},
	} {
		require.Equal(t, c.out, Property{Type: c.typ, Step: c.step}.Rounded(c.value), "%v", c)
	}
}

func TestAnUnknownValueIsNotBehind(t *testing.T) {
	value := &TwinValue{Value: "20", Ver: 3}
	list := twinConditions(nil, map[string]TwinProperty{"level": {Desired: value, Problem: &Problem{Code: ValueUnknown, Message: "none"}}}, "", time.Unix(1_700_000_000, 0))
	c := findCondition(list, ConditionInSync)
	require.Equal(t, "Unknown Unread level", c.Status+" "+c.Reason+" "+c.Message)
	list = twinConditions(nil, map[string]TwinProperty{"level": {Desired: value, Problem: &Problem{Code: ReadFailed}}}, "", time.Unix(1_700_000_000, 0))
	require.Equal(t, "False", findCondition(list, ConditionInSync).Status)
}

func TestCheckValues(t *testing.T) {
	for _, tt := range []struct {
		p     Property
		value string
		says  string // empty: good
	}{
		{Property{Type: TypeInt}, "42", ""},
		{Property{Type: TypeInt}, "-9223372036854775808", ""},
		{Property{Type: TypeInt}, "9223372036854775808", "integer of 64 bits"},
		{Property{Type: TypeInt}, "4.0", "integer"},
		{Property{Type: TypeInt}, "", "is empty"},
		{Property{}, "", "is empty"},
		{Property{Type: TypeFloat}, "21.5", ""},
		{Property{Type: TypeFloat}, "1e3", ""},
		{Property{Type: TypeFloat}, "1e39", "float"},
		{Property{Type: TypeDouble}, "1e39", ""},
		{Property{Type: TypeDouble}, "NaN", "double"},
		{Property{Type: TypeDouble}, "Inf", "double"},
		{Property{Type: TypeDouble}, "0x1p4", "double"},
		{Property{Type: TypeBoolean}, "true", ""},
		{Property{Type: TypeBoolean}, "TRUE", "true or false"},
		{Property{Type: TypeBytes}, "aGVsbG8=", ""},
		{Property{Type: TypeBytes}, "hello!", "base64"},
		{Property{Type: TypeObject}, `{"a":[1,2]}`, ""},
		{Property{Type: TypeObject}, `[1]`, "JSON object"},
		{Property{Type: TypeObject}, `{"a":1} x`, "JSON object"},
		{Property{Type: TypeArray}, ` [1]`, ""},
		{Property{Type: TypeArray}, `{}`, "JSON array"},
		{Property{}, "any text, ü", ""},
		{Property{}, "\xff", "UTF-8"},
		{Property{Type: "complex"}, "1", "unknown type"},
		{Property{Type: TypeInt, Minimum: floatPointer(0), Maximum: floatPointer(100), Unit: "%"}, "101", "above the maximum of 100 %"},
		{Property{Type: TypeInt, Minimum: floatPointer(0)}, "-1", "below the minimum of 0"},
		{Property{Type: TypeFloat, Maximum: floatPointer(35)}, "35.0", ""},
		{Property{Enum: []Value{"ON", "OFF"}}, "ON", ""},
		{Property{Enum: []Value{"ON", "OFF"}}, "on", "not one of ON, OFF"},
		{Property{Type: TypeInt, Enum: []Value{"1", "2"}}, "01", ""},
	} {
		tt.p.Name = "x"
		err := tt.p.Check([]byte(tt.value))
		if tt.says == "" {
			require.NoError(t, err, "%v %q", tt.p, tt.value)
			continue
		}
		require.ErrorContains(t, err, tt.says, "%v %q", tt.p, tt.value)
		require.ErrorContains(t, err, "x: ", "the property is named")
		require.Equal(t, Invalid, KindOf(err))
	}
	err := Property{Name: "x", Type: TypeInt}.Check([]byte(strings.Repeat("9", 100_000)))
	require.Less(t, len(err.Error()), 300, "a hostile value does not come back whole")
}

func TestCanonicalValuesAreEqual(t *testing.T) {
	for _, tt := range []struct {
		kind DataType
		a, b string
		same bool
	}{
		{TypeFloat, "21.5", "21.50", true},
		{TypeFloat, "-0", "0", true},
		{TypeFloat, "1e2", "100", true},
		{TypeDouble, "0.1", "0.10000000000000001", true},
		{TypeInt, "+7", "7", true},
		{TypeString, "a", "a ", false},
		{TypeObject, `{"b":1,"a":[2]}`, ` {"a":[2], "b":1}`, true},
		{TypeObject, `{"a":12345678901234567890}`, `{"a":12345678901234567891}`, false},
	} {
		p := Property{Type: tt.kind}
		require.Equal(t, tt.same, p.Canonical([]byte(tt.a)) == p.Canonical([]byte(tt.b)), "%s %s", tt.a, tt.b)
	}
}

func TestDesiredAndReported(t *testing.T) {
	require.NoError(t, testLampModel.CheckDesired("power", []byte("ON")))
	require.True(t, errors.Is(testLampModel.CheckDesired("temperature", []byte("1")), Forbidden))
	require.ErrorContains(t, testLampModel.CheckDesired("colour", []byte("red")), "it has power, brightness, temperature")
	require.NoError(t, testLampModel.CheckReported("brightness", []byte("120")), "what is, is")
	require.Error(t, testLampModel.CheckReported("brightness", []byte("bright")))
}

func TestStamp(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	v1 := Device{Spec: DeviceSpec{Desired: map[string]Value{"a": "1", "b": "1"}}}
	v1.DesiredMeta = map[string]DesiredMeta{"a": {Ver: 99}} // not the writer's to set
	StampDesired(nil, &v1, "ann", "", at(1))
	require.Equal(t, map[string]DesiredMeta{"a": {Ver: 1, TS: 1000, Origin: "ann"}, "b": {Ver: 1, TS: 1000, Origin: "ann"}}, v1.DesiredMeta)

	v2 := Device{Spec: DeviceSpec{Desired: map[string]Value{"a": "2"}}}
	StampDesired(&v1, &v2, "bob", "", at(2))
	require.Equal(t, map[string]DesiredMeta{"a": {Ver: 2, TS: 2000, Origin: "bob"}, "b": {Ver: 2, TS: 2000, Origin: "bob", Cleared: true}}, v2.DesiredMeta)

	v3 := Device{Spec: DeviceSpec{Desired: map[string]Value{"a": "2", "b": "1"}}}
	StampDesired(&v2, &v3, "cyd", "", at(3))
	require.Equal(t, uint64(2), v3.DesiredMeta["a"].Ver, "unchanged")
	require.Equal(t, DesiredMeta{Ver: 3, TS: 3000, Origin: "cyd"}, v3.DesiredMeta["b"], "its counter went on while it was cleared")

	v4 := v3
	v4.Spec.DesiredUntil = map[string]string{"a": "2030-01-01T00:00:00Z"}
	StampDesired(&v3, &v4, "dee", "", at(4))
	require.Equal(t, uint64(3), v4.DesiredMeta["a"].Ver, "another end is another wish")
}

func TestValuesTakeScalars(t *testing.T) {
	var d Device
	require.NoError(t, json.Unmarshal([]byte(`{"metadata":{"name":"x"},"spec":{"desired":{"a":"ON","b":40,"c":21.50,"d":true,"e":{"k": [1, 2]},"f":null}}}`), &d))
	require.Equal(t, map[string]Value{"a": "ON", "b": "40", "c": "21.50", "d": "true", "e": `{"k":[1,2]}`, "f": ""}, d.Spec.Desired)
}

func TestMembers(t *testing.T) {
	m, err := ParseMembers([]byte(`{"power":"ON","brightness":40,"mode":null,"scene":""}`))
	require.NoError(t, err)
	require.Equal(t, Value("ON"), *m["power"])
	require.Equal(t, Value("40"), *m["brightness"])
	require.Contains(t, m, "mode")
	require.Nil(t, m["mode"])
	require.Contains(t, m, "scene")
	require.Nil(t, m["scene"], "an empty value clears, as an empty payload does")
	for _, bad := range []string{"", "null", "[]", "ON", `{"a":}`, `{"a":1} {"b":2}`} {
		_, err := ParseMembers([]byte(bad))
		require.Error(t, err, bad)
	}
}

func TestValidate(t *testing.T) {
	require.NoError(t, testLamp.Validate())
	require.NoError(t, testLampModel.Validate())
	for says, d := range map[string]Device{
		"metadata.name: is required":       {Spec: testLamp.Spec},
		"metadata.name: \"Lamp\"":          {Metadata: Meta{Name: "Lamp"}, Spec: testLamp.Spec},
		"spec.deviceModelRef.name: is req": {Metadata: Meta{Name: "x"}, Spec: DeviceSpec{Protocol: testLamp.Spec.Protocol}},
		"spec.protocol.type: is required":  {Metadata: Meta{Name: "x"}, Spec: DeviceSpec{DeviceModelRef: ObjectRef{"m"}}},
		"spec.nodeName":                    {Metadata: Meta{Name: "x"}, Spec: DeviceSpec{DeviceModelRef: ObjectRef{"m"}, Protocol: testLamp.Spec.Protocol, NodeName: "N 1"}},
		"spec.desiredUntil[a]":             {Metadata: Meta{Name: "x"}, Spec: DeviceSpec{DeviceModelRef: ObjectRef{"m"}, Protocol: testLamp.Spec.Protocol, DesiredUntil: map[string]string{"a": "soon"}}},
	} {
		err := d.Validate()
		require.ErrorContains(t, err, says)
		require.Equal(t, Invalid, KindOf(err))
	}
	for says, spec := range map[string]DeviceModelSpec{
		"properties[1].name":              {Properties: []Property{{Name: "a"}, {Name: "a"}}},
		"properties[0].type":              {Properties: []Property{{Name: "a", Type: "complex"}}},
		"properties[0].accessMode":        {Properties: []Property{{Name: "a", AccessMode: "rw"}}},
		"properties[0].minimum":           {Properties: []Property{{Name: "a", Type: TypeInt, Minimum: floatPointer(2), Maximum: floatPointer(1)}}},
		"a range is for int":              {Properties: []Property{{Name: "a", Minimum: floatPointer(2)}}},
		"properties[0].enum[0]":           {Properties: []Property{{Name: "a", Type: TypeInt, Enum: []Value{"x"}}}},
		"properties[0].safeValue":         {Properties: []Property{{Name: "a", Type: TypeInt, AtBoot: BootSafe}}},
		"properties[0].conflict":          {Properties: []Property{{Name: "a", Conflict: "war"}}},
		"visitors[0].propertyName":        {PropertyVisitors: []ProtocolVisitors{{Protocol: "p", Visitors: []Visitor{{PropertyName: "b"}}}}},
		"propertyVisitors[0].protocol":    {PropertyVisitors: []ProtocolVisitors{{}}},
		"visitors[0].collectCycle: -1":    {Properties: []Property{{Name: "a"}}, PropertyVisitors: []ProtocolVisitors{{Protocol: "p", Visitors: []Visitor{{PropertyName: "a", CollectCycle: -1}}}}},
		"visitors[0].deadband: NaN: must": {Properties: []Property{{Name: "a"}}, PropertyVisitors: []ProtocolVisitors{{Protocol: "p", Visitors: []Visitor{{PropertyName: "a", Deadband: math.NaN()}}}}},
	} {
		require.ErrorContains(t, DeviceModel{Metadata: Meta{Name: "m"}, Spec: spec}.Validate(), says)
	}
}

func TestErrors(t *testing.T) {
	err := fmt.Errorf("while writing: %w", Errorf(Conflict, "spec.x", "somebody was first"))
	require.True(t, errors.Is(err, Conflict))
	require.False(t, errors.Is(err, NotFound))
	require.Equal(t, Conflict, KindOf(err))
	require.Equal(t, Internal, KindOf(errors.New("?")))
	require.EqualError(t, err, "while writing: spec.x: somebody was first")
}

func TestConditionsKeepTheirTransitionTime(t *testing.T) {
	list := SetCondition(nil, Condition{Type: "InSync", Status: "True"}, time.Unix(100, 0))
	list = SetCondition(list, Condition{Type: "InSync", Status: "True", Message: "still"}, time.Unix(200, 0))
	require.Equal(t, int64(100), list[0].LastTransitionTime.Unix())
	list = SetCondition(list, Condition{Type: "InSync", Status: "False"}, time.Unix(300, 0))
	require.Equal(t, int64(300), list[0].LastTransitionTime.Unix())
	require.Len(t, list, 1)
}

func FuzzDevice(f *testing.F) {
	doc, _ := json.Marshal(testLamp)
	f.Add(doc)
	f.Add([]byte(`{"spec":{"desired":{"a":{}}}}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		var d Device
		if json.Unmarshal(doc, &d) != nil {
			return
		}
		_ = d.Validate()
		_ = d.CheckModel(testLampModel)
		StampDesired(&testLamp, &d, "x", "", time.Unix(0, 0))
		once := roundTrip(t, roundTrip(t, d)) // the first one drops empty maps
		require.Equal(t, once, roundTrip(t, once), "what is written reads back as it was")
	})
}

func roundTrip(t *testing.T, d Device) (out Device) {
	doc, err := json.Marshal(d)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(doc, &out))
	return out
}

func FuzzModel(f *testing.F) {
	doc, _ := json.Marshal(testLampModel)
	f.Add(doc, []byte("ON"))
	f.Fuzz(func(t *testing.T, doc, value []byte) {
		var m DeviceModel
		if json.Unmarshal(doc, &m) != nil || m.Validate() != nil {
			return
		}
		for _, p := range m.Spec.Properties {
			if p.Check(value) == nil {
				require.NoError(t, p.Check([]byte(p.Canonical(value))), "the canonical form of a good value is good")
			}
		}
	})
}

func FuzzMembers(f *testing.F) {
	f.Add([]byte(`{"power":"ON","x":null}`))
	f.Fuzz(func(_ *testing.T, payload []byte) { _, _ = ParseMembers(payload); _, _ = ParseRefusal(payload) })
}

func TestWhatANodesHostIsGiven(t *testing.T) {
	good := `{"applications":[{"name":"web","appType":"quadlet","files":[{"path":"web.container","content":"[Container]"}],"envVars":{"A":"b"}}],
		"config":[{"name":"a","configType":"FileListProviderSpec","files":[{"path":"/etc/motd","content":"aGk=","contentEncoding":"base64","mode":420,"user":"root"}]},
			{"name":"b","configType":"ConfigMapProviderSpec","configMapRef":{"name":"m","mountPath":"/etc/m"}}],
		"hooks":{"afterUpdating":[{"run":"reload","if":[{"path":"/etc","op":["updated"]}],"timeout":"30s"}]},
		"resources":[{"monitorType":"Disk","samplingInterval":"5s","path":"/","alertRules":[{"severity":"Warning","percentage":75,"duration":"10m"}]}],"drift":"report"}`
	check := func(text string) error {
		n := Node{Metadata: Meta{Name: "n1"}}
		require.NoError(t, json.Unmarshal([]byte(text), &n.Spec))
		return n.Validate()
	}
	require.NoError(t, check(good))
	for change, field := range map[[2]string]string{
		{`"name":"web"`, `"name":"Web"`}:                               "spec.applications[0].name",
		{`"path":"web.container"`, `"path":"../web.container"`}:        "spec.applications[0].files[0].path",
		{`"A":"b"`, `"A=":"b"`}:                                        "spec.applications[0].envVars[\"A=\"]",
		{`"/etc/motd"`, `"etc/motd"`}:                                  "spec.config[0].files[0].path",
		{`"aGk="`, `"hi!"`}:                                            "spec.config[0].files[0].content",
		{`"mode":420`, `"mode":7777`}:                                  "spec.config[0].files[0].mode",
		{`"mountPath":"/etc/m"`, `"mountPath":""`}:                     "spec.config[1].configMapRef.mountPath",
		{`"30s"`, `"30"`}:                                              "spec.hooks.afterUpdating[0].timeout",
		{`["updated"]`, `["touched"]`}:                                 "spec.hooks.afterUpdating[0].if[0].op",
		{`"samplingInterval":"5s"`, `"samplingInterval":"1ms"`}:        "spec.resources[0].samplingInterval",
		{`"path":"/","alertRules"`, `"path":"","alertRules"`}:          "spec.resources[0].path",
		{`"percentage":75`, `"percentage":175`}:                        "spec.resources[0].alertRules[0].percentage",
		{`"drift":"report"`, `"drift":"ignore"`}:                       "spec.drift",
		{`"configType":"ConfigMapProviderSpec"`, `"configType":"Map"`}: "spec.config[1].configType",
	} {
		text := strings.Replace(good, change[0], change[1], 1)
		require.NotEqual(t, good, text)
		require.ErrorContains(t, check(text), field)
	}
}

func TestACronExpressionIsBounded(t *testing.T) {
	var f Fleet
	f.Metadata.Name = "shops"
	f.Spec.RolloutPolicy = &RolloutPolicy{UpdateSchedule: &UpdateSchedule{At: "0 2 * * *"}}
	require.NoError(t, f.Validate())
	f.Spec.RolloutPolicy.UpdateSchedule.At = "0 2 * * " + strings.Repeat("*,", MaxCron/2) + "*"
	require.ErrorContains(t, f.Validate(), "spec.rolloutPolicy.updateSchedule.at: has 1009 characters; must have at most 1000")
}

func TestAFleetsNameLeavesRoomForItsVersions(t *testing.T) {
	f := Fleet{Metadata: Meta{Name: strings.Repeat("a", 245)}}
	require.NoError(t, f.Validate())
	f.Metadata.Name += "a"
	require.ErrorContains(t, f.Validate(), "metadata.name: has 246 characters; a fleet's has at most 245")
}

// The rules that an object breaks are named in the order of their fields, however it is walked through, and what was left out comes last.
func TestBrokenRulesAreInOrder(t *testing.T) {
	n := Node{Metadata: Meta{Name: "n", Labels: map[string]string{}}}
	for i := range 30 {
		n.Metadata.Labels[fmt.Sprintf("bad label %02d", i)] = ""
	}
	var e *Error
	require.ErrorAs(t, n.Validate(), &e)
	require.Len(t, e.Causes, maxProblems+1)
	require.Equal(t, Cause{Message: "and more"}, e.Causes[maxProblems])
	require.True(t, strings.HasSuffix(e.Message, "; and more"), e.Message)

	c := ConfigMap{Metadata: Meta{Name: "c"}, Data: map[string]string{}}
	for i := range 30 {
		c.Data[fmt.Sprintf("bad key %02d", i)] = ""
	}
	require.ErrorAs(t, c.Validate(), &e)
	require.Equal(t, Cause{Message: "and more"}, e.Causes[maxProblems])

	hook := []Hook{{}}
	n = Node{Metadata: Meta{Name: "n"}, Spec: NodeSpec{Hooks: &Hooks{BeforeUpdating: hook, AfterUpdating: hook, BeforeRebooting: hook, AfterRebooting: hook}}}
	first := n.Validate().Error()
	for range 20 {
		require.Equal(t, first, n.Validate().Error())
	}
}
