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

// sample reads a manifest the way kubectl does, and finds its dialect.
func sample(t *testing.T, name string) (Kind, tree) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	raw, err = yaml.YAMLToJSON(raw)
	require.NoError(t, err)
	form, err := parse(raw)
	require.NoError(t, err)
	return kindOf(t, form), form
}

func kindOf(t *testing.T, form tree) Kind {
	t.Helper()
	for _, k := range All() {
		if form["apiVersion"] == k.APIVersion() && form["kind"] == k.Name {
			return k
		}
	}
	t.Fatalf("no dialect has %s %s", form["apiVersion"], form["kind"])
	return Kind{}
}

// samples are all manifests that are valid YAML.
var samples = []string{
	"device-management-model.yaml", "device-management-device.yaml", "fleet-device-valid.yaml",
	"kubeedge-v1alpha2-model.yaml", "kubeedge-v1alpha2-modbus.yaml", "kubeedge-v1alpha2-opcua.yaml", "kubeedge-v1alpha2-bluetooth.yaml",
	"kubeedge-v1alpha2-customized.yaml", "kubeedge-v1beta1-model.yaml", "kubeedge-v1beta1-device.yaml",
	"edge-node-upgrade-upgrade.yaml", "fleet-fleet.yaml", "flightctl-v1beta1-device.yaml", "flightctl-repository.yaml", "flightctl-sync.yaml",
	"flightctl-v1beta1-fleet.yaml", "flightctl-v1beta1-repository-http.yaml", "flightctl-v1beta1-repository-ssh.yaml", "flightctl-v1beta1-repository-oci.yaml",
	"flightctl-v1beta1-sync.yaml",
	"discovery-handlers-configuration.yaml", "discovery-handlers-configuration.json", "akri-configuration.yaml", "akri-instance.yaml",
	"kubeedge-job-upgrade.yaml", "kubeedge-job-upgrade-v1alpha2.yaml", "kubeedge-job-config.yaml", "kubeedge-job-images.yaml", "kubeedge-job-images-v1alpha2.yaml",
}

func fixed(t *testing.T, form tree, fix func(tree)) tree {
	t.Helper()
	out, _ := clone(form).(tree)
	if fix != nil {
		fix(out)
	}
	return out
}

func TestEverySampleRoundTrips(t *testing.T) {
	changed := map[string]func(tree){ // what is not the author's to say, or was meant otherwise than it arrives
		"device-management-device.yaml": func(f tree) {
			twin := f["status"].(tree)["twins"].([]any)[0].(tree)
			twin["actual"].(tree)["value"] = "false"
			twin["expected"].(tree)["value"] = "false"
		},
		"fleet-device-valid.yaml": disown, "fleet-fleet.yaml": disown,
	}
	for _, name := range samples {
		t.Run(name, func(t *testing.T) {
			k, form := sample(t, name)
			canonical := read(t, k, form, nil)
			require.Equal(t, resource.APIVersion, canonical["apiVersion"])
			require.Equal(t, k.Canonical, canonical["kind"])
			shown := show(t, k, canonical)
			require.Equal(t, fixed(t, form, changed[name]), shown)
			require.Equal(t, canonical, read(t, k, shown, canonical), "read again, it is the same")
		})
	}
}

// disown takes out what a manifest of flightctl claims and the server decides.
func disown(form tree) {
	delete(form["metadata"].(tree), "owner")
	delete(form["metadata"].(tree), "resourceVersion")
}

func read(t *testing.T, k Kind, form, old tree) tree {
	t.Helper()
	var was []byte
	if old != nil {
		was = marshal(t, old)
	}
	raw, err := k.Read(marshal(t, form), was, false)
	require.NoError(t, err)
	c, err := parse(raw)
	require.NoError(t, err)
	return c
}

func show(t *testing.T, k Kind, canonical tree) tree {
	t.Helper()
	raw, err := k.Show(marshal(t, canonical))
	require.NoError(t, err)
	form, err := parse(raw)
	require.NoError(t, err)
	return form
}

// No manifest that is in use has a field that its dialect doesn't know: it would be refused under fieldValidation=Strict, which
// is how kubectl asks.
func TestNoSampleHasAnUnknownField(t *testing.T) {
	for _, name := range samples {
		k, form := sample(t, name)
		require.Empty(t, k.Unknown(marshal(t, form)), name)
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
		form, err := parse([]byte(`{"apiVersion":"` + c.version + `","kind":"` + c.kind + `","metadata":{"name":"x"},"spec":` + c.spec + `}`))
		require.NoError(t, err)
		k := kindOf(t, form)
		require.Empty(t, k.Unknown(marshal(t, form)))
		require.Equal(t, form["spec"], show(t, k, read(t, k, form, nil))["spec"])
	}
}

// The annotation of a manifest may say anything of the canonical spec: that is refused or kept, and never a fault of the program.
func TestAnnotationsThatFitNoField(t *testing.T) {
	note := func(k Kind, at, is string) string {
		quoted, err := json.Marshal(`[{"at":"` + at + `","is":` + is + `}]`)
		require.NoError(t, err)
		return `{"apiVersion":"` + k.APIVersion() + `","kind":"` + k.Name + `","metadata":{"name":"a","annotations":{"` + canonicalAnnotation + `":` + string(quoted) + `}},"spec":{}}`
	}
	for _, k := range All() {
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
			form, err := parse([]byte(`{"apiVersion":"devices.kubeedge.io/` + version + `","kind":"DeviceModel","metadata":{"name":"m"},"spec":{"properties":[` + property + `]}}`))
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
	form := tree{
		"apiVersion": "flightctl.io/v1alpha1", "kind": "Device", "metadata": tree{"name": "a"},
		"spec": tree{"hooks": tree{"a=b": tree{"c/d": "1", "~2": "2", "e": []any{tree{"name": "x=y/z", "f=": "3"}}}}},
	}
	k := kindOf(t, form)
	require.Equal(t, form, show(t, k, read(t, k, form, nil)))
}

// The design document's label values, which no selector can name, are shown by its form only, with a warning; every other form refuses them.
func TestLabelsThatNoSelectorCanNameAreOfOneForm(t *testing.T) {
	k, form := sample(t, "device-management-device.yaml")
	canonical := read(t, k, form, nil)
	require.Equal(t, tree{"model": "CC2650"}, canonical["metadata"].(tree)["labels"])
	require.Len(t, k.Warnings(marshal(t, form)), 3)
	require.Contains(t, k.Warnings(marshal(t, form))[0], "the value of description is none that a label may have")

	canonical["metadata"].(tree)["labels"].(tree)["description"] = "sensor"
	shown := show(t, k, canonical)["metadata"].(tree)["labels"].(tree)
	require.Equal(t, "sensor", shown["description"], "what has another value now has that")
	require.Equal(t, "Texas Instruments", shown["manufacturer"])

	for _, other := range All() {
		if other.Group == k.Group && other.Name == k.Name && other.Version != k.Version && !other.ReadOnly {
			require.NotContains(t, show(t, other, canonical)["metadata"].(tree)["labels"], "manufacturer")
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
		var tr tree
		require.NoError(t, json.Unmarshal([]byte(form), &tr))
		require.Equal(t, want, kindOf(t, tr).Warnings([]byte(form)), form)
	}
}
