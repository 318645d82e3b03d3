// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// notAsWritten are the fields of the documents' manifests that don't read back as they were written, and why.
var notAsWritten = map[string][]string{
	"fleet-device-valid.yaml": {".metadata.owner", ".metadata.resourceVersion"}, // claims: the server gives these
	"fleet-fleet.yaml": {
		".metadata.creationTimestamp", ".metadata.owner",
		".status.conditions[0].lastTransitionTime", ".status.conditions[0].status", ".status.conditions[0].type", // the hub knows Ready at once
	},
}

// missingFields are the places at which got is not what was said; it may have more.
func missingFields(said, got any, at string) (out []string) {
	switch said := said.(type) {
	case map[string]any:
		have, ok := got.(map[string]any)
		if !ok && len(said) > 0 {
			return []string{at}
		}
		for _, name := range slices.Sorted(maps.Keys(said)) {
			out = append(out, missingFields(said[name], have[name], at+"."+name)...)
		}
		return out
	case []any:
		have, ok := got.([]any)
		if !ok || len(have) != len(said) {
			return []string{at}
		}
		for i := range said {
			out = append(out, missingFields(said[i], have[i], fmt.Sprintf("%s[%d]", at, i))...)
		}
		return out
	}
	if said == nil || fmt.Sprint(said) == fmt.Sprint(got) { // text may be the text of what YAML took for a boolean
		return nil
	}
	return []string{at}
}

// Every manifest of the documents is created as it stands, and reads back from the store with every field that it had.
func TestEverySampleReadsBack(t *testing.T) {
	h := newHub(t, withSealer(t))
	h.makeHost()
	h.nodes("n1")
	files, err := filepath.Glob("../../topics/dialect/testdata/*")
	require.NoError(t, err)
	kinds, tried := addDialects(Kinds()), 0
	for _, file := range files {
		name := filepath.Base(file)
		if name == "fleet-device.yaml" { // no valid YAML; fleet-device-valid.yaml is what it means
			continue
		}
		tried++
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			raw, err := yaml.YAMLToJSON(text)
			require.NoError(t, err)
			var said map[string]any
			require.NoError(t, json.Unmarshal(raw, &said))
			i := slices.IndexFunc(kinds, func(k Kind) bool { return k.APIVersion() == said["apiVersion"] && k.Name == said["kind"] })
			require.GreaterOrEqual(t, i, 0, "%s %s", said["apiVersion"], said["kind"])
			at := strings.Replace(kinds[i].collection(), "{namespace}", "default", 1)
			if ns, ok := said["metadata"].(map[string]any)["namespace"].(string); ok {
				at = strings.Replace(at, "/namespaces/default/", "/namespaces/"+ns+"/", 1)
			}
			h.ok("POST", at+strictQuery, string(raw))
			got := h.ok("GET", at+"/"+said["metadata"].(map[string]any)["name"].(string), "")
			require.ElementsMatch(t, notAsWritten[name], missingFields(said, got.tree, ""))
			h.ok("DELETE", at+"/"+said["metadata"].(map[string]any)["name"].(string), "")
		})
	}
	require.GreaterOrEqual(t, tried, 19)
}
