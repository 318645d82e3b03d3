// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/cloud/render"
	"github.com/edgebus/edgebus/topics/dialect"
	"github.com/edgebus/edgebus/topics/resource"
)

// Every example of docs/nodes.md is valid and is rendered.
func TestTheExamplesAreRendered(t *testing.T) {
	text, err := os.ReadFile("../../docs/nodes.md")
	require.NoError(t, err)
	nodes, maps, secrets := []resource.Node{}, map[string]resource.ConfigMap{}, map[string]resource.Secret{}
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		for _, doc := range strings.Split(block[1], "\n---\n") {
			raw, err := yaml.YAMLToJSONStrict([]byte(doc))
			require.NoError(t, err)
			var head resource.TypeMeta
			require.NoError(t, json.Unmarshal(raw, &head))
			switch head.Kind {
			case resource.KindNode:
				var n resource.Node
				require.NoError(t, json.Unmarshal(raw, &n))
				require.NoError(t, n.Validate())
				nodes = append(nodes, n)
			case resource.KindConfigMap:
				var m resource.ConfigMap
				require.NoError(t, json.Unmarshal(raw, &m))
				maps[m.Metadata.Namespace+"/"+m.Metadata.Name] = m
			case resource.KindSecret:
				var s resource.Secret
				require.NoError(t, json.Unmarshal(raw, &s))
				s.Complete()
				secrets[s.Metadata.Namespace+"/"+s.Metadata.Name] = s
			default:
				t.Fatalf("the page has a %s", head.Kind)
			}
		}
	}
	require.Len(t, nodes, 4)
	for _, n := range nodes {
		out, contents, err := render.Render(n.Spec, render.Lookups{
			ConfigMap: func(namespace, name string) ([]render.ConfigMapValue, error) {
				m, ok := maps[namespace+"/"+name]
				require.True(t, ok)
				return render.ConfigMapValues(m), nil
			},
			Secret: func(namespace, name string) (version string, keys []string, err error) {
				s, ok := secrets[namespace+"/"+name]
				require.True(t, ok)
				for key := range s.Data {
					keys = append(keys, key)
				}
				return "1", keys, nil
			},
		})
		require.NoError(t, err, n.Metadata.Name)
		require.NotEmpty(t, len(out.Files)+len(out.Applications))
		if out.UpdatePolicy != nil {
			require.Equal(t, []string{"registry.example/viewer:2"}, out.Applications[0].Images)
		}
		checkSound(t, out, contents)
	}
}

// Points 3 to 6 of the fleet document: what a manifest of flightctl says is what is rendered: of the document's own Device, and of one
// in the shape of today.
func TestManifestsOfFlightctlAreRendered(t *testing.T) {
	for name, want := range map[string]string{
		"fleet-device-valid.yaml":       "spec.config[config-from-git] has not been read",
		"flightctl-v1beta1-device.yaml": "spec.config[site] has not been read",
	} {
		raw, err := os.ReadFile("../../topics/dialect/testdata/" + name)
		require.NoError(t, err)
		raw, err = yaml.YAMLToJSON(raw)
		require.NoError(t, err)
		var head resource.TypeMeta
		require.NoError(t, json.Unmarshal(raw, &head))
		for _, k := range dialect.AllKinds() {
			if k.APIVersion() != head.APIVersion || k.Name != head.Kind {
				continue
			}
			canonical, err := k.Read(raw, nil, false)
			require.NoError(t, err)
			var n resource.Node
			require.NoError(t, json.Unmarshal(canonical, &n))
			require.NoError(t, n.Validate())
			all := render.Lookups{Secret: func(string, string) (string, []string, error) { return "1", []string{"psk"}, nil }}
			_, _, err = render.Render(n.Spec, all)
			require.ErrorContains(t, err, want)
			for i := len(n.Spec.Config) - 1; i >= 0; i-- {
				if n.Spec.Config[i].GitRef != nil || n.Spec.Config[i].HTTPRef != nil {
					n.Spec.Config = append(n.Spec.Config[:i], n.Spec.Config[i+1:]...)
				}
			}
			out, _, err := render.Render(n.Spec, all)
			require.NoError(t, err)
			paths := ""
			for _, f := range out.Files {
				paths += f.Path + " " + f.Mode + "\n"
			}
			if head.APIVersion == "flightctl.io/v1beta1" {
				require.Equal(t, "/etc/motd 0644\n/etc/press/calibration.bin 0600\n/etc/wifi/psk 0600\n", paths)
				require.Equal(t, "viewer", out.Applications[0].Name)
			} else {
				require.Equal(t, "/etc/motd 0646\n/path/to/config/in/device/psk 0600\n", paths)
			}
		}
	}
}
