// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/topics/resource"
)

// readSample reads a manifest the way kubectl does, and finds its dialect.
func readSample(t *testing.T, name string) (Kind, jsonObject) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	raw, err = yaml.YAMLToJSON(raw)
	require.NoError(t, err)
	form, err := parseObject(raw)
	require.NoError(t, err)
	return kindOf(t, form), form
}

func kindOf(t *testing.T, form jsonObject) Kind {
	t.Helper()
	for _, k := range AllKinds() {
		if form["apiVersion"] == k.APIVersion() && form["kind"] == k.Name {
			return k
		}
	}
	t.Fatalf("no dialect has %s %s", form["apiVersion"], form["kind"])
	return Kind{}
}

// sampleNames are all manifests that are valid YAML.
var sampleNames = []string{
	"device-management-model.yaml", "device-management-device.yaml", "fleet-device-valid.yaml",
	"kubeedge-v1alpha2-model.yaml", "kubeedge-v1alpha2-modbus.yaml", "kubeedge-v1alpha2-opcua.yaml", "kubeedge-v1alpha2-bluetooth.yaml",
	"kubeedge-v1alpha2-customized.yaml", "kubeedge-v1beta1-model.yaml", "kubeedge-v1beta1-device.yaml",
	"edge-node-upgrade-upgrade.yaml", "fleet-fleet.yaml", "flightctl-v1beta1-device.yaml", "flightctl-repository.yaml", "flightctl-sync.yaml",
	"flightctl-v1beta1-fleet.yaml", "flightctl-v1beta1-repository-http.yaml", "flightctl-v1beta1-repository-ssh.yaml", "flightctl-v1beta1-repository-oci.yaml",
	"flightctl-v1beta1-sync.yaml",
	"discovery-handlers-configuration.yaml", "discovery-handlers-configuration.json", "akri-configuration.yaml", "akri-instance.yaml",
	"kubeedge-job-upgrade.yaml", "kubeedge-job-upgrade-v1alpha2.yaml", "kubeedge-job-config.yaml", "kubeedge-job-images.yaml", "kubeedge-job-images-v1alpha2.yaml",
}

func fixForm(t *testing.T, form jsonObject, fix func(jsonObject)) jsonObject {
	t.Helper()
	out, _ := cloneJSON(form).(jsonObject)
	if fix != nil {
		fix(out)
	}
	return out
}

func TestEverySampleRoundTrips(t *testing.T) {
	changed := map[string]func(jsonObject){ // what is not the author's to say, or was meant otherwise than it arrives
		"device-management-device.yaml": func(f jsonObject) {
			twin := f["status"].(jsonObject)["twins"].([]any)[0].(jsonObject)
			twin["actual"].(jsonObject)["value"] = "false"
			twin["expected"].(jsonObject)["value"] = "false"
		},
		"fleet-device-valid.yaml": dropOwner, "fleet-fleet.yaml": dropOwner,
	}
	for _, name := range sampleNames {
		t.Run(name, func(t *testing.T) {
			k, form := readSample(t, name)
			canonical := readForm(t, k, form, nil)
			require.Equal(t, resource.APIVersion, canonical["apiVersion"])
			require.Equal(t, k.Canonical, canonical["kind"])
			shown := showForm(t, k, canonical)
			require.Equal(t, fixForm(t, form, changed[name]), shown)
			require.Equal(t, canonical, readForm(t, k, shown, canonical), "read again, it is the same")
		})
	}
}

// dropOwner takes out what a manifest of flightctl claims and the server decides.
func dropOwner(form jsonObject) {
	delete(form["metadata"].(jsonObject), "owner")
	delete(form["metadata"].(jsonObject), "resourceVersion")
}

func readForm(t *testing.T, k Kind, form, old jsonObject) jsonObject {
	t.Helper()
	var was []byte
	if old != nil {
		was = marshalJSON(t, old)
	}
	raw, err := k.Read(marshalJSON(t, form), was, false)
	require.NoError(t, err)
	c, err := parseObject(raw)
	require.NoError(t, err)
	return c
}

func showForm(t *testing.T, k Kind, canonical jsonObject) jsonObject {
	t.Helper()
	raw, err := k.Show(marshalJSON(t, canonical))
	require.NoError(t, err)
	form, err := parseObject(raw)
	require.NoError(t, err)
	return form
}

// No manifest that is in use has a field that its dialect doesn't know: it would be refused under fieldValidation=Strict, which
// is how kubectl asks.
func TestNoSampleHasAnUnknownField(t *testing.T) {
	for _, name := range sampleNames {
		k, form := readSample(t, name)
		require.Empty(t, k.Unknown(marshalJSON(t, form)), name)
	}
}

// What the published forms have beyond the samples is known as well, and kept.
func TestFieldsThatNothingActsOnAreKept(t *testing.T) {
	for _, c := range []struct{ version, kind, spec string }{
		{"devices.kubeedge.io/v1alpha2", "Device", `{"nodeSelector":{"nodeSelectorTerms":[
			{"matchExpressions":[{"key":"","operator":"In","values":["n1"]}],"matchFields":[{"key":"metadata.name"}]}]},"protocol":{}}`},
		{"flightctl.io/v1alpha1", "Device", `{"config":[{"name":"a","configType":"GitConfigProviderSpec",
			"gitRef":{"repository":"r","targetRevision":"main","path":"/p","mountPath":"/etc"}}]}`},
	} {
		form, err := parseObject([]byte(`{"apiVersion":"` + c.version + `","kind":"` + c.kind + `","metadata":{"name":"x"},"spec":` + c.spec + `}`))
		require.NoError(t, err)
		k := kindOf(t, form)
		require.Empty(t, k.Unknown(marshalJSON(t, form)))
		require.Equal(t, form["spec"], showForm(t, k, readForm(t, k, form, nil))["spec"])
	}
}

// The annotation of a manifest may say anything of the canonical spec: that is refused or kept, and never a fault of the program.
func TestAnnotationsThatFitNoField(t *testing.T) {
	note := func(k Kind, at, is string) string {
		quoted, err := json.Marshal(`[{"at":"` + at + `","is":` + is + `}]`)
		require.NoError(t, err)
		return `{"apiVersion":"` + k.APIVersion() + `","kind":"` + k.Name + `","metadata":{"name":"a","annotations":{"` + canonicalAnnotation + `":` + string(quoted) + `}},"spec":{}}`
	}
	for _, k := range AllKinds() {
		if k.Canonical != resource.KindDevice || k.ReadOnly {
			continue
		}
		for _, url := range []string{``, `a`, `://`, `http://host`} {
			canonical, err := k.Read([]byte(note(k, "/spec/push", `[{"propertyName":"x","http":{"url":"`+url+`"}}]`)), nil, false)
			require.NoError(t, err)
			require.Contains(t, string(canonical), `"url":"`+url+`"`, k.Version)
		}
		_, err := k.Read([]byte(note(k, "/spec/push", `"text"`)), nil, false)
		require.ErrorIs(t, err, resource.Invalid, k.Version)
		require.ErrorContains(t, err, "spec.push")
	}
}

func TestLimitsThatAreNoNumbers(t *testing.T) {
	for _, text := range []string{"NaN", "Inf", "-infinity", "low"} {
		for version, property := range map[string]string{
			"v1beta1": `{"name":"p","minimum":"` + text + `"}`, "v1alpha1": `{"name":"p","config":{"max":"` + text + `"}}`,
		} {
			form, err := parseObject([]byte(`{"apiVersion":"devices.kubeedge.io/` + version + `","kind":"DeviceModel","metadata":{"name":"m"},"spec":{"properties":[` + property + `]}}`))
			require.NoError(t, err)
			raw, err := json.Marshal(form)
			require.NoError(t, err)
			_, err = kindOf(t, form).Read(raw, nil, false)
			require.ErrorIs(t, err, resource.Invalid, text)
			require.ErrorContains(t, err, "must be numbers")
		}
	}
}

// A name may contain any character, also those that separate what a path consists of.
func TestKeptNamesWithSeparators(t *testing.T) {
	form := jsonObject{
		"apiVersion": "flightctl.io/v1alpha1", "kind": "Device", "metadata": jsonObject{"name": "a"},
		"spec": jsonObject{"hooks": jsonObject{"a=b": jsonObject{"c/d": "1", "~2": "2", "e": []any{jsonObject{"name": "x=y/z", "f=": "3"}}}}},
	}
	k := kindOf(t, form)
	require.Equal(t, form, showForm(t, k, readForm(t, k, form, nil)))
}

// The design document's label values, which no selector can name, are shown by its form only, with a warning; every other form refuses them.
func TestLabelsThatNoSelectorCanNameAreOfOneForm(t *testing.T) {
	k, form := readSample(t, "device-management-device.yaml")
	canonical := readForm(t, k, form, nil)
	require.Equal(t, jsonObject{"model": "CC2650"}, canonical["metadata"].(jsonObject)["labels"])
	require.Len(t, k.Warnings(marshalJSON(t, form)), 3)
	require.Contains(t, k.Warnings(marshalJSON(t, form))[0], "the value of description is none that a label may have")

	canonical["metadata"].(jsonObject)["labels"].(jsonObject)["description"] = "sensor"
	shown := showForm(t, k, canonical)["metadata"].(jsonObject)["labels"].(jsonObject)
	require.Equal(t, "sensor", shown["description"], "what has another value now has that")
	require.Equal(t, "Texas Instruments", shown["manufacturer"])

	for _, other := range AllKinds() {
		if other.Group == k.Group && other.Name == k.Name && other.Version != k.Version && !other.ReadOnly {
			require.NotContains(t, showForm(t, other, canonical)["metadata"].(jsonObject)["labels"], "manufacturer")
		}
	}
}

// Fields of flightctl's v1alpha1 that have moved are read at their former places, and whoever writes them there is told.
func TestFieldsAtTheirFormerPlacesWarn(t *testing.T) {
	host := `"containers":{"matchPatterns":["a"]},"systemd":{"matchPatterns":["b"]}`
	for form, want := range map[string][]string{
		`{"kind":"Device","apiVersion":"flightctl.io/v1alpha1","metadata":{"name":"a"},"spec":{` + host + `}}`: {
			"spec.containers is taken as spec.monitoring.containers, which is its place", "spec.systemd is taken as spec.monitoring.systemd, which is its place",
		},
		`{"kind":"Fleet","apiVersion":"flightctl.io/v1alpha1","metadata":{"name":"a"},"spec":{"template":{"spec":{` + host + `}}}}`: {
			"spec.template.spec.containers is taken as spec.template.spec.monitoring.containers, which is its place",
			"spec.template.spec.systemd is taken as spec.template.spec.monitoring.systemd, which is its place",
		},
		`{"kind":"Device","apiVersion":"flightctl.io/v1alpha1","metadata":{"name":"a"},"spec":{"monitoring":{` + host + `}}}`: nil,
		`{"kind":"Device","apiVersion":"flightctl.io/v1beta1","metadata":{"name":"a"},"spec":{` + host + `}}`:                 nil,
	} {
		var tr jsonObject
		require.NoError(t, json.Unmarshal([]byte(form), &tr))
		require.Equal(t, want, kindOf(t, tr).Warnings([]byte(form)), form)
	}
}
