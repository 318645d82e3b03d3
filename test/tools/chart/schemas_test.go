// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// schemaFiles are the names under which kubeconform looks for the schemas of the chart's kinds, and their names in the API's description.
func schemaFiles() map[string]string {
	return map[string]string{
		"secret-v1.json": "io.k8s.api.core.v1.Secret", "service-v1.json": "io.k8s.api.core.v1.Service", "statefulset-apps-v1.json": "io.k8s.api.apps.v1.StatefulSet",
		"networkpolicy-networking-v1.json": "io.k8s.api.networking.v1.NetworkPolicy",
	}
}

// writeSchemas makes JSON schemas of the API's description, which the module of kubectl has. Like the API with strict validation they refuse
// fields that they don't have.
func writeSchemas(t *testing.T, dir string) {
	t.Helper()
	find := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubectl")
	find.Dir = filepath.Join("..", "kubernetes")
	module, err := find.Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(module)), "testdata", "openapi", "swagger.json"))
	if err != nil {
		t.Fatal(err)
	}
	var api struct{ Definitions map[string]map[string]any }
	if err := json.Unmarshal(text, &api); err != nil {
		t.Fatal(err)
	}
	for _, d := range api.Definitions {
		if d["properties"] != nil {
			d["additionalProperties"] = false
		}
		if d["format"] == "int-or-string" {
			delete(d, "type")
			d["oneOf"] = []any{map[string]any{"type": "string"}, map[string]any{"type": "integer"}}
		}
	}
	// The description is older than Kubernetes 1.30, which has this by itself.
	for _, name := range []string{"io.k8s.api.core.v1.Handler", "io.k8s.api.core.v1.LifecycleHandler"} {
		if properties, is := api.Definitions[name]["properties"].(map[string]any); is {
			properties["sleep"] = map[string]any{
				"type": "object", "required": []string{"seconds"}, "additionalProperties": false,
				"properties": map[string]any{"seconds": map[string]any{"type": "integer"}},
			}
		}
	}
	for file, name := range schemaFiles() {
		if api.Definitions[name] == nil {
			t.Fatalf("the description has no %s", name)
		}
		text, err := json.Marshal(map[string]any{"$ref": "#/definitions/" + name, "definitions": api.Definitions})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The description has no policy/v1, and a ServiceMonitor is none of Kubernetes' own kinds: both are decoded strictly, as their types.
func TestKubeconformTakesTheChart(t *testing.T) {
	dir := t.TempDir()
	writeSchemas(t, dir)
	conforms := func(objects string) (string, error) {
		cmd := exec.Command("go", "tool", "kubeconform", "-strict", "-summary", "-skip", "ServiceMonitor,PodDisruptionBudget", "-schema-location", dir+"/{{.ResourceKind}}{{.KindSuffix}}.json", "-")
		cmd.Stdin = strings.NewReader(objects)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, values := range []string{"", fullValues, clusterValues} {
		objects, err := runHelm(t, "template", "plant", chartDir, "--namespace", "bus", "--values", writeValues(t, values))
		if err != nil {
			t.Fatalf("helm template: %v\n%s", err, objects)
		}
		said, err := conforms(objects)
		if err != nil || !strings.Contains(said, "Invalid: 0, Errors: 0") {
			t.Errorf("kubeconform: %v\n%s", err, said)
		}
		if said, err := conforms(strings.Replace(objects, "serviceName:", "servicename:", 1)); err == nil {
			t.Errorf("kubeconform takes a field that there is not: %s", said)
		}
	}
}
