package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// asUser makes everybody an operator of all nodes, but As: controller.
func asUser(o *Options) {
	o.Authenticate = func(r *http.Request) (broker.Identity, error) {
		role := topics.RoleOperator
		if r.Header.Get("As") == "controller" {
			role = topics.RoleController
		}
		return broker.Identity{User: "ann", Roles: []topics.Role{role}, Nodes: []string{"*"}}, nil
	}
}

const flightctlAPI = "/apis/flightctl.io/v1alpha1"

// syncSamples are valid objects of a kind that users write and controllers report on, by the collection that they are posted to.
var syncSamples = map[string]string{
	apiRoot + "/resourcesyncs": `{"metadata":{"name":"s"},"spec":{"repository":"r","targetRevision":"main","path":"/"}}`,
}

func warningsOf(r hubResponse) string { return strings.Join(r.header.Values("Warning"), "\n") }

// All kinds are acted on: no write is warned about that has nothing wrong.
func TestAllKindsAreActedOn(t *testing.T) {
	h := newHub(t, asUser)
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`)
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	for at, text := range map[string]string{
		apiRoot + "/resourcesyncs": syncSamples[apiRoot+"/resourcesyncs"],
		apiRoot + "/nodes":         `{"metadata":{"name":"plain"}}`, flightctlAPI + "/devices": `{"metadata":{"name":"n"},"spec":{"os":{"image":"os:1"}}}`, namespaceRoot + "/devices": lampJSON("", ""),
		"/api/v1/namespaces/default/configmaps":              `{"metadata":{"name":"c"},"data":{"a":"b"}}`,
		namespaceRoot + "/configurations":                    `{"metadata":{"name":"c"},"spec":{"discoveryHandler":{"name":"udev"}}}`,
		"/apis/akri.sh/v0/namespaces/default/configurations": `{"metadata":{"name":"c2"},"spec":{"discoveryHandler":{"name":"udev","discoveryDetails":"x"}}}`,
		namespaceRoot + "/instances":                         `{"metadata":{"name":"i"},"spec":{"configurationName":"c"}}`,
	} {
		require.Empty(t, warningsOf(h.ok("POST", at, text)), "%s is acted on", at)
	}
}

// A text that a host is going to be given has a grammar, in every form of the object.
func TestTextForShellsIsRefused(t *testing.T) {
	h := newHub(t, asUser)
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`)
	upgrade := func(version, installer, cmd string) string {
		return marshalText(t, dict{"metadata": dict{"name": "u"}, "spec": dict{
			"version": version, "upgradeInstaller": installer, "upgradeCmd": cmd, "nodeNames": []string{"n1"},
		}})
	}
	bad := []string{
		"v1.10.0; rm -rf /", "$(id)", "`id`", "v1 && x", "a|b", "v1.0.0\nrm", "a > /etc/passwd", "'quoted'", `"quoted"`, "a\\b", "--help", "-o x", "a  b", "é", "*", "~root", "x\x00y", "{a,b}", "!1", "#x", "${IFS}",
		strings.Repeat("1", 2000),
	}
	for _, at := range []string{apiRoot + "/upgrades", "/apis/upgrade.kubeedge.io/v1alpha2/upgrades"} {
		for _, text := range bad {
			require.Contains(t, h.refused(422, "Invalid", "POST", at, upgrade(text, "", "")), "spec.version", "%q", text)
			require.Contains(t, h.refused(422, "Invalid", "POST", at, upgrade("v1.0.0", text, "")), "spec.upgradeInstaller", "%q", text)
			require.Contains(t, h.refused(422, "Invalid", "POST", at, upgrade("v1.0.0", "", text)), "spec.upgradeCmd", "%q", text)
		}
		for _, version := range []string{"v1.10.0", "1.10.0", "v1.10.0-rc.1+build.5", "v0.0.0-20261121-abcdef"} {
			h.ok("POST", at+"?dryRun=All", upgrade(version, "install", "keadm upgrade --toVersion=v1.10.0 --force /usr/bin/x"))
		}
	}
	for _, where := range []struct{ at, form string }{
		{apiRoot + "/nodes", `{"metadata":{"name":"n"},"spec":{"os":{"image":%s}}}`},
		{flightctlAPI + "/devices", `{"metadata":{"name":"n"},"spec":{"os":{"image":%s}}}`},
		{apiRoot + "/fleets", `{"metadata":{"name":"n"},"spec":{"template":{"spec":{"os":{"image":%s}}}}}`},
		{"/api/v1/fleets", `{"metadata":{"name":"n"},"spec":{"template":{"spec":{"os":{"image":%s}}}}}`},
	} {
		for _, image := range append(bad, "a:b:c", "UPPER/name", "name@sha256:123", "https://host/x") {
			require.Contains(t, h.refused(422, "Invalid", "POST", where.at, fmt.Sprintf(where.form, marshalText(t, image))), "os.image", "%q", image)
		}
		for _, image := range []string{"os:1", "quay.io/redhat/rhde:9.2", "localhost:5000/a/b_c/d-e:v1.0", "Registry.Example.org/a@sha256:" + strings.Repeat("0a", 32)} {
			h.ok("POST", where.at+"?dryRun=All", fmt.Sprintf(where.form, marshalText(t, image)))
		}
	}
	for _, revision := range bad {
		said := h.refused(422, "Invalid", "POST", apiRoot+"/resourcesyncs", marshalText(t, dict{
			"metadata": dict{"name": "s"}, "spec": dict{"repository": "r", "path": "/", "targetRevision": revision},
		}))
		require.Contains(t, said, "spec.targetRevision", "%q", revision)
	}
}

func TestNodesThatAreNotThereAreDoubted(t *testing.T) {
	h := newHub(t, asUser)
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`)
	for at, form := range map[string]string{
		apiRoot + "/upgrades":                         `{"metadata":{"name":"u"},"spec":{"version":"v1.0.0","nodeNames":[%s]}}`,
		"/apis/upgrade.kubeedge.io/v1alpha2/upgrades": `{"metadata":{"name":"u"},"spec":{"version":"v1.0.0","nodeNames":[%s]}}`,
	} {
		said := warningsOf(h.ok("POST", at+"?dryRun=All", fmt.Sprintf(form, `"n1","n7","n8"`)))
		require.Contains(t, said, "there is no Node n7, n8", at)
		require.NotContains(t, warningsOf(h.ok("POST", at+"?dryRun=All", fmt.Sprintf(form, `"n1"`))), "there is no Node", at)
	}
}

// A TemplateVersion is made by controllers alone; everybody who may see it may delete it.
func TestUsersMakeNoTemplateVersions(t *testing.T) {
	h := newHub(t, asUser)
	version := func(name string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"fleet":"f","template":{"spec":{}}}}`
	}
	h.ok("POST", apiRoot+"/fleets", `{"metadata":{"name":"f"},"spec":{"template":{"spec":{}}}}`)
	h.ok("POST", apiRoot+"/templateversions", version("f-1"), "As", "controller")
	for _, at := range []string{apiRoot + "/templateversions", flightctlAPI + "/templateversions"} {
		for _, c := range [][3]string{
			{"POST", at, "application/json"},
			{"PUT", at + "/f-1", "application/json"},
			{"PATCH", at + "/f-1", mergePatch},
			{"PATCH", at + "/f-1?fieldManager=x&force=true", applyPatch},
			{"PUT", at + "/f-1/status", "application/json"},
		} {
			require.Contains(t, h.refused(403, "Forbidden", c[0], c[1], version("f-1"), "Content-Type", c[2]), "role controller", c[1])
		}
	}
	for _, at := range []string{"/api/v1/templateversions", "/api/v1/fleets/f/templateversions"} {
		for _, c := range [][2]string{{"POST", at}, {"PUT", at + "/f-1"}, {"PATCH", at + "/f-1"}} {
			require.Contains(t, h.refused(405, "MethodNotAllowed", c[0], c[1], version("f-1")), "made and changed by controllers")
		}
		require.Equal(t, []string{"f-1"}, h.ok("GET", at, "").names())
	}
	can := func(verb string) string {
		return string(h.do("POST", authorizationRoot+"/selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{"group":"edgebus.io","resource":"templateversions","verb":"`+verb+`"}}}`).body)
	}
	require.Contains(t, can("create"), `"allowed":false`)
	require.Contains(t, can("delete"), `"allowed":true`)
	h.ok("DELETE", "/api/v1/fleets/f/templateversions/f-1", "")
}

// Status and owner of what controllers act on are theirs; the refusal says whose, and how one becomes one.
func TestStatusAndOwnerAreTheControllers(t *testing.T) {
	h := newHub(t, asUser)
	for at, sample := range syncSamples {
		u, err := url.Parse(at)
		require.NoError(t, err)
		h := newHub(t, asUser)
		made := h.ok("POST", u.Path, sample)
		one := u.Path + "/" + made.str("metadata.name")
		said := h.refused(403, "Forbidden", "PATCH", one+"/status", `{"status":{}}`, "Content-Type", mergePatch)
		require.Contains(t, said, "the status of", one)
		require.Contains(t, said, "role controller", one)
		said = h.refused(403, "Forbidden", "PUT", one+"/status", string(made.body))
		require.Contains(t, said, "role controller", one)
		said = h.refused(403, "Forbidden", "PATCH", one, `{"metadata":{"owner":"Fleet/x"}}`, "Content-Type", mergePatch)
		require.Contains(t, said, "role controller", one)
		h.ok("PATCH", one+"/status", `{"status":null}`, "Content-Type", mergePatch, "As", "controller")
	}
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"},"spec":{"os":{"image":"os:1"}}}`)
	require.Equal(t, "Fleet/shops", h.ok("PATCH", apiRoot+"/nodes/n1", `{"metadata":{"owner":"Fleet/shops"}}`, "Content-Type", mergePatch, "Impersonate-User", "controller").str("metadata.owner"))
	h.ok("PATCH", apiRoot+"/nodes/n1", `{"spec":{"os":{"image":"os:2"}}}`, "Content-Type", mergePatch, "Impersonate-User", "controller")
	for _, at := range []string{apiRoot + "/nodes/n1", flightctlAPI + "/devices/n1", "/api/v1/devices/n1"} {
		for _, body := range []string{`{"spec":{"os":{"image":"os:3"}}}`, `{"metadata":{"owner":"Fleet/mine"}}`, `{"metadata":{"owner":null}}`} {
			require.Contains(t, h.refused(409, "Conflict", "PATCH", at, body, "Content-Type", mergePatch), "Fleet/shops manages the object", at)
		}
		h.ok("PATCH", at, `{"metadata":{"labels":{"a":"b"}}}`, "Content-Type", mergePatch)
	}
	stored, err := h.store.Get(context.Background(), store.Key{Kind: resource.KindNode, Name: "n1"})
	require.NoError(t, err)
	require.Contains(t, string(stored.Data), "os:2")
}
