// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"encoding/json"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/edgebus/edgebus/topics/resource"
)

// anyJSON draws JSON as people might write it: at some places what belongs there, at others something else.
func anyJSON(t *rapid.T, depth int) any {
	kinds := 6
	if depth <= 0 {
		kinds = 4
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return rapid.SampledFrom([]string{"", "ON", "n1", "unknown", "a/b~c", "12", "name=x", "INT", "rw"}).Draw(t, "text")
	case 1:
		return rapid.IntRange(-3, 300).Draw(t, "number")
	case 2:
		return rapid.Bool().Draw(t, "truth")
	case 3:
		return nil
	case 4:
		return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) any { return anyJSON(t, depth-1) }), 0, 3).Draw(t, "list")
	}
	keys := rapid.SliceOfN(rapid.SampledFrom([]string{
		"name", "propertyName", "config", "value", "desired", "x/y", "a~b", "metadata", "type", "visitors", "node", "id",
	}), 0, 4).Draw(t, "keys")
	m := jsonObject{}
	for _, key := range keys {
		m[key] = anyJSON(t, depth-1)
	}
	return m
}

// spoilJSON is a sample of which a few places are something else.
func spoilJSON(t *rapid.T, v any, depth int) any {
	if rapid.IntRange(0, 30).Draw(t, "spoil") == 0 {
		return anyJSON(t, 3)
	}
	switch v := v.(type) {
	case jsonObject:
		out := jsonObject{}
		for _, key := range slices.Sorted(mapKeys(v)) {
			out[key] = spoilJSON(t, v[key], depth+1)
		}
		return out
	case []any:
		out := []any{}
		for _, e := range v {
			out = append(out, spoilJSON(t, e, depth+1))
		}
		return out
	}
	return v
}

func mapKeys(m jsonObject) func(func(string) bool) {
	return func(yield func(string) bool) {
		for key := range m {
			if !yield(key) {
				return
			}
		}
	}
}

// What a form says is shown again, whatever it is: only the status may be less than what it claimed.
func TestWhatIsSaidIsShown(t *testing.T) {
	type one struct {
		kind Kind
		form jsonObject
	}
	var all []one
	for _, name := range sampleNames {
		k, form := readSample(t, name)
		all = append(all, one{k, form})
	}
	rapid.Check(t, func(rt *rapid.T) {
		s := rapid.SampledFrom(all).Draw(rt, "sample")
		form := jsonObject{"apiVersion": s.form["apiVersion"], "kind": s.form["kind"], "metadata": jsonObject{"name": "x"}}
		for name, v := range specAndStatus(s.form) {
			form[name] = spoilJSON(rt, v, 0)
		}
		canonical, err := s.kind.Read(marshalJSON(t, form), nil, false)
		if err != nil {
			require.NotEqual(t, resource.Internal, resource.KindOf(err), "%v", err)
			return
		}
		shown, err := s.kind.Show(canonical)
		require.NoError(t, err)
		again, err := s.kind.Read(shown, canonical, false)
		require.NoError(t, err)
		require.JSONEq(t, string(canonical), string(again), "shown as %s", shown)
		twice, err := s.kind.Show(again)
		require.NoError(t, err)
		require.JSONEq(t, string(shown), string(twice))
	})
}

// A canonical object is the same after it was shown in any of its kind's forms and read again.
func TestCanonicalObjectsSurviveEveryForm(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		k := rapid.SampledFrom(AllKinds()).Draw(rt, "dialect")
		object := canonicalObject(rt, k.Canonical)
		if object == nil || k.ReadOnly || !isSelected(k, object) {
			return
		}
		raw := marshalJSON(t, object)
		shown, err := k.Show(raw)
		require.NoError(t, err)
		back, err := k.Read(shown, raw, false)
		require.NoError(t, err)
		want, err := parseObject(raw)
		require.NoError(t, err)
		got, err := parseObject(back)
		require.NoError(t, err)
		require.Equal(t, want, got, "%s shows %s", k.APIVersion(), shown)
	})
}

// isSelected reports whether the kind has the object: see Kind.Selector.
func isSelected(k Kind, object any) bool {
	u, ok := object.(resource.Upgrade)
	return !ok || k.Selector == "" || k.Selector == "action="+u.Spec.Action()
}

func canonicalObject(t *rapid.T, kind string) any {
	text := rapid.SampledFrom([]string{"", "a", "12", "true", "{}", "null", `"q"`, "x/y~z", "1.50"})
	head := resource.TypeMeta{APIVersion: resource.APIVersion, Kind: kind}
	meta := resource.Meta{Name: "x", Labels: map[string]string{"room": "hall"}}
	values := rapid.Custom(func(t *rapid.T) resource.Value { return resource.Value(text.Draw(t, "value")) })
	config := rapid.MapOfN(rapid.SampledFrom([]string{"ip", "address", "slaveID", "baudRate", "a/b"}), values, 1, 4)
	visitor := func(i int) resource.Visitor {
		return resource.Visitor{
			PropertyName: "p" + strconv.Itoa(i), Config: config.Draw(t, "visitor"),
			CollectCycle: rapid.Int64Range(0, 9).Draw(t, "cycle"), Deadband: float64(rapid.IntRange(0, 2).Draw(t, "deadband")) / 4,
		}
	}
	visitors := func() (out []resource.Visitor) {
		for i := range rapid.IntRange(0, 3).Draw(t, "visitors") {
			out = append(out, visitor(i))
		}
		return out
	}
	protocol := rapid.SampledFrom([]string{"modbus", "Modbus", "opcua", "BluetoothLE", "own"})
	switch kind {
	case resource.KindDevice:
		d := resource.Device{TypeMeta: head, Metadata: meta}
		d.Spec = resource.DeviceSpec{
			DeviceModelRef: resource.ObjectRef{Name: text.Draw(t, "model")}, NodeName: text.Draw(t, "node"),
			Protocol:         resource.Protocol{Name: text.Draw(t, "bus"), Type: protocol.Draw(t, "protocol"), Config: config.Draw(t, "config")},
			PropertyVisitors: visitors(),
		}
		if rapid.Bool().Draw(t, "wanted") {
			d.Spec.Desired = map[string]resource.Value{"p0": "1", "p1": "true", "p2": `{"a": 1}`}
			d.Spec.DesiredUntil = map[string]string{"p0": "2026-11-21T10:00:00Z"}
			d.Status.Twin = map[string]resource.TwinProperty{"p1": {Reported: &resource.TwinValue{Value: "x", Ver: 3, TS: "2026-11-21T10:00:00.123Z"}}}
		}
		return d
	case resource.KindDeviceModel:
		m := resource.DeviceModel{TypeMeta: head, Metadata: meta}
		for i := range rapid.IntRange(0, 3).Draw(t, "properties") {
			low := 1.5
			m.Spec.Properties = append(m.Spec.Properties, resource.Property{
				Name: "p" + strconv.Itoa(i), Type: rapid.SampledFrom([]resource.DataType{"", "int", "object", "double", "bytes"}).Draw(t, "type"),
				AccessMode: rapid.SampledFrom([]resource.AccessMode{"", resource.ReadOnly, resource.ReadWrite}).Draw(t, "access"),
				Minimum:    &low, Enum: []resource.Value{"a"}, Unit: text.Draw(t, "unit"), Conflict: "edge", Adopt: true,
			})
		}
		for range rapid.IntRange(0, 2).Draw(t, "protocols") {
			m.Spec.PropertyVisitors = append(m.Spec.PropertyVisitors, resource.ProtocolVisitors{Protocol: protocol.Draw(t, "protocol"), Visitors: visitors()})
		}
		return m
	case resource.KindNode:
		n := resource.Node{TypeMeta: head, Metadata: meta}
		n.Spec.OS = &resource.NodeOS{Image: text.Draw(t, "image")}
		n.Spec.Config = []resource.ConfigItem{
			{Name: "a", ConfigType: resource.ConfigGit, GitRef: &resource.GitRef{Repository: "r", TargetRevision: "main", Path: "/"}},
			{Name: "b", ConfigType: resource.ConfigInline, Inline: json.RawMessage(`{"ignition":{"version":"3.4.0"}}`)},
		}
		n.Status = resource.NodeStatus{State: "online", LastSeen: "2026-11-21T10:00:00Z", Version: "v1"}
		return n
	case resource.KindUpgrade:
		u := resource.Upgrade{TypeMeta: head, Metadata: meta, Spec: resource.UpgradeSpec{Version: text.Draw(t, "version"), NodeNames: []string{"n1"}}}
		switch rapid.SampledFrom([]string{"version", "settings", "images"}).Draw(t, "action") {
		case "settings":
			u.Spec.Version, u.Spec.Settings = "", map[string]string{"log.level": text.Draw(t, "setting")}
		case "images":
			u.Spec.Version, u.Spec.Images = "", rapid.SliceOfN(text, 1, 2).Draw(t, "images")
		}
		u.Spec.Concurrency = rapid.IntRange(0, 3).Draw(t, "concurrency")
		u.Spec.Timeout = rapid.SampledFrom([]string{"", "1m30s", "90s", "1.5s", "2m"}).Draw(t, "timeout")
		u.Spec.FailureBudget = rapid.SampledFrom([]string{"", "0", "3", "7%", "30%", "100%"}).Draw(t, "budget")
		u.Spec.Checks = rapid.SampledFrom([]*resource.UpgradeChecks{nil, {}, {CPU: 80}, {CPU: 70, Disk: 80}, {Memory: 1}}).Draw(t, "checks")
		u.Status.Nodes = []resource.UpgradeNode{{NodeName: "n1", History: []resource.UpgradeAttempt{{
			FromVersion: "1", ToVersion: "2", Step: rapid.SampledFrom([]string{"", resource.StepReady, resource.StepHeld, resource.StepPulling, resource.StepTrial}).Draw(t, "step"),
			OperationStatus: rapid.SampledFrom([]string{"", resource.UpgradePending, resource.Upgrading, resource.UpgradeSuccess, resource.UpgradeRolledBack}).Draw(t, "result"),
		}}}}
		return u
	case resource.KindConfiguration:
		c := resource.Configuration{TypeMeta: head, Metadata: meta}
		c.Spec.DiscoveryHandler = resource.DiscoveryHandler{Name: text.Draw(t, "handler"), DiscoveryDetails: config.Draw(t, "details")}
		return c
	}
	return nil
}

func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		`{"spec":{"nodeName":"n1","protocol":{"type":"x"}}}`, `{"metadata":{"annotations":{"dialect.edgebus.io/edgebus.io.v1alpha1":"[{\"at\":\"/spec/a\"}]"}}}`,
		`{"metadata":{"annotations":{"dialect.edgebus.io/edgebus.io.v1alpha1":"[{\"at\":\"/spec/push\",\"is\":[{\"http\":{\"url\":\"a\"}}]}]"}}}`,
		`{"status":[{"nodeName":"n"}]}`, `{"spec":{"config":[{"name":"a","gitRef":{}}]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, k := range AllKinds() {
			canonical, err := k.Read(raw, nil, len(raw)%2 == 0)
			if err != nil {
				continue
			}
			shown, err := k.Show(canonical)
			require.NoError(t, err)
			_, err = k.Read(shown, canonical, false)
			require.NoError(t, err, "%s", shown)
		}
	})
}
