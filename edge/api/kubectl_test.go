// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

func getAs(t *testing.T, url, accept string) (media string, answer map[string]any) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode, string(text))
	require.NoError(t, json.Unmarshal(text, &answer))
	return resp.Header.Get("Content-Type"), answer
}

// Everything that discovery names is there, in the old form and in the aggregated one.
func TestDiscoveryNamesWhatThereIs(t *testing.T) {
	f, url := newTestServer(t)
	f.set("lamp", "ON")
	var groups struct {
		Groups []struct {
			Versions []struct{ GroupVersion string }
		}
	}
	require.Equal(t, 200, getJSON(t, url+"/apis", &groups))
	found := 0
	for _, g := range groups.Groups {
		for _, v := range g.Versions {
			var resources struct{ Resources []struct{ Name, Kind string } }
			require.Equal(t, 200, getJSON(t, url+"/apis/"+v.GroupVersion, &resources))
			var schema struct {
				Components struct{ Schemas map[string]map[string]any }
			}
			require.Equal(t, 200, getJSON(t, url+"/openapi/v3/apis/"+v.GroupVersion, &schema))
			for _, r := range resources.Resources {
				found++
				var l struct {
					APIVersion, Kind string
					Items            []map[string]any
				}
				require.Equal(t, 200, getJSON(t, url+"/apis/"+v.GroupVersion+"/"+r.Name, &l))
				require.Equal(t, v.GroupVersion, l.APIVersion)
				require.Equal(t, r.Kind+"List", l.Kind)
				require.Len(t, l.Items, 1)
				require.Equal(t, r.Kind, l.Items[0]["kind"])
				named := false
				for name, s := range schema.Components.Schemas {
					named = named || strings.HasSuffix(name, "."+r.Kind) && s["x-kubernetes-group-version-kind"] != nil
				}
				require.True(t, named, "%s %s has a schema", v.GroupVersion, r.Kind)
			}
		}
	}
	require.Equal(t, 10, found, "3 of ours and 7 of KubeEdge's")
	const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	media, all := getAs(t, url+"/apis", aggregated+",application/json")
	require.Equal(t, aggregated, media)
	require.Len(t, all["items"], 2)
	_, core := getAs(t, url+"/api", aggregated)
	require.Empty(t, core["items"])
	require.Equal(t, 404, getJSON(t, url+"/apis/flightctl.io", nil))
}

const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

func TestTablesSelectorsAndTheNode(t *testing.T) {
	f, url := newTestServer(t)
	f.set("lamp", "ON")
	f.set("fan", "OFF")
	_, table := getAs(t, url+canonicalRoot+"/devices?fieldSelector=metadata.name%3Dlamp", asTable)
	require.Equal(t, "Table", table["kind"])
	rows := table["rows"].([]any)
	require.Len(t, rows, 1)
	require.Equal(t, "lamp", rows[0].(map[string]any)["cells"].([]any)[0])
	require.Equal(t, "PartialObjectMetadata", rows[0].(map[string]any)["object"].(map[string]any)["kind"])
	_, one := getAs(t, url+canonicalRoot+"/namespaces/default/devices/fan?includeObject=Object", asTable)
	require.Equal(t, "Device", one["rows"].([]any)[0].(map[string]any)["object"].(map[string]any)["kind"])

	var n resource.Node
	require.Equal(t, 200, getJSON(t, url+canonicalRoot+"/nodes/n1", &n))
	require.Equal(t, resource.Online, n.Status.State)
	require.Equal(t, 2, n.Status.Devices)
	require.Equal(t, 404, getJSON(t, url+canonicalRoot+"/nodes/n2", nil))
	require.Equal(t, 422, getJSON(t, url+canonicalRoot+"/devices?fieldSelector=spec.nodeName%3Dn1", nil))
	require.Equal(t, 422, getJSON(t, url+canonicalRoot+"/devices?labelSelector=a+in+(b)", nil))
	require.Equal(t, 422, getJSON(t, url+canonicalRoot+"/devices?watch=1&sendInitialEvents=true", nil))
	for selector, want := range map[string]int{"": 2, "room": 0, "!room": 2, "room!=hall": 2, "room=hall": 0} {
		var l listAnswer[resource.Device]
		require.Equal(t, 200, getJSON(t, url+canonicalRoot+"/devices?labelSelector="+selector, &l))
		require.Len(t, l.Items, want, selector)
	}
	resp, err := http.Post(url+"/apis/devices.kubeedge.io/v1beta1/namespaces/default/devices", "application/json", nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, 405, resp.StatusCode)
	require.Equal(t, "GET, HEAD", resp.Header.Get("Allow"))
}

// Who watches the node or models is told what changes, from the list on; who watches one Device, of no other.
func TestEachKindOfTheNodeIsWatched(t *testing.T) {
	f, url := newTestServer(t)
	var l listAnswer[resource.Node]
	require.Equal(t, 200, getJSON(t, url+canonicalRoot+"/nodes", &l))
	nodes := followWatch(t, url+canonicalRoot+"/nodes?watch=1&resourceVersion="+l.Metadata.ResourceVersion)
	models := followWatch(t, url+canonicalRoot+"/devicemodels?watch=1")
	lamp := followWatch(t, url+"/apis/devices.kubeedge.io/v1beta1/devices?watch=1&fieldSelector=metadata.name%3Dlamp")
	f.set("fan", "ON")
	f.set("lamp", "ON")
	kind, n := nodes()
	require.Equal(t, "MODIFIED", kind)
	require.Equal(t, "n1", n.Metadata.Name)
	kind, m := models()
	require.Equal(t, "ADDED lamp", kind+" "+m.Metadata.Name)
	kind, d := lamp()
	require.Equal(t, "ADDED lamp", kind+" "+d.Metadata.Name)
	require.Equal(t, "devices.kubeedge.io/v1beta1", d.APIVersion)
	f.remove("lamp")
	f.remove("fan")
	kind, m = models()
	require.Equal(t, "DELETED lamp", kind+" "+m.Metadata.Name)
	kind, d = lamp()
	require.Equal(t, "DELETED lamp", kind+" "+d.Metadata.Name)
	require.Equal(t, 410, expiredIn(t, url+canonicalRoot+"/devicemodels?watch=1&resourceVersion=17"))
}

// expiredIn is the code of the error that a watch begins with.
func expiredIn(t *testing.T, url string) int {
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	var e struct{ Object struct{ Code int } }
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&e))
	return e.Object.Code
}
