// SPDX-License-Identifier: Apache-2.0

// Package fleet tries the numbered points of the design of fleets, each in a test with its number, against a real hub, real cores and real
// agents, over flightctl's REST paths, our own, and kubectl. The points are taken from the source document "Definition of the Fleet and
// Device API spec" and from this project's decisions where that is silent.
//
// The tests share a hub and run side by side: each has nodes, labels and fleets of its own, under fixed names, so none runs twice (-count 1).
package fleet

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every write of an object changes its resourceVersion, and a write with a stale one is refused.
func Test01ResourceVersion(t *testing.T) {
	t.Parallel()
	const at = flightctlPath + "devices/p01"
	device := func(version, more string) string {
		return fmt.Sprintf(`{"apiVersion":"flightctl.io/v1alpha1","kind":"Device","metadata":{"name":"p01","resourceVersion":%q%s},"spec":{"os":{"image":"quay.io/x:1"}}}`, version, more)
	}
	made := callOK(t, "", "POST", flightctlPath+"devices", device("", ""))
	seen := map[string]bool{made.text("metadata.resourceVersion"): true}
	require.NotContains(t, seen, "")
	changed := func(what string) string {
		version := callOK(t, "", "GET", at, "").text("metadata.resourceVersion")
		require.False(t, seen[version], "%s changes the resourceVersion", what)
		seen[version] = true
		return version
	}
	waitUntil(t, func() error { // the hub's own writes, until it has rendered the spec
		if callOK(t, "", "GET", at, "").condition("SpecRendered") == "" {
			return fmt.Errorf("it is not rendered yet")
		}
		return nil
	})
	now := changed("the rendering")
	callOK(t, "", "PATCH", at, `{"metadata":{"labels":{"a":"b"}}}`)
	stale, now := now, changed("a label")
	require.Contains(t, callRefused(t, 409, "", "PUT", at, device(stale, "")), "p01")
	require.Contains(t, callRefused(t, 409, "", "PATCH", at, `{"metadata":{"resourceVersion":"`+stale+`","annotations":{"a":"b"}}}`), "p01")
	require.NotEqual(t, stale, now)
	waitUntil(t, func() error { // the hub may write the status meanwhile
		now = callOK(t, "", "GET", at, "").text("metadata.resourceVersion")
		if code, answer, _ := callAPI(t, "", "PUT", at, device(now, `,"labels":{"a":"c"}`)); code != 200 {
			return fmt.Errorf("%d %s", code, answer.text("message"))
		}
		return nil
	})
	seen[now] = true
	changed("a replacement")
	for _, kind := range []string{"fleets", "repositories", "resourcesyncs", "templateversions", "secrets", "configmaps", "nodes"} {
		path := apiPath + kind
		if kind == "secrets" || kind == "configmaps" {
			path = "/api/v1/namespaces/default/" + kind
		}
		for _, o := range callOK(t, operator, "GET", path, "").list("items") {
			require.NotEmpty(t, o.text("metadata.resourceVersion"), "%s has one", kind)
		}
	}
}

// metadata.owner is protected: nobody but the hub's controllers sets or clears an owner Fleet/…; a controller beside the hub has the owners
// that begin with its own name, and everybody else is refused.
func Test02Owner(t *testing.T) {
	t.Parallel()
	makeNode(t, "p02", "p02=a")
	owner := func(as, owner string, head ...string) (int, string) {
		code, answer, _ := callAPI(t, as, "PATCH", flightctlPath+"devices/p02", fmt.Sprintf(`{"metadata":{"owner":%q}}`, owner), head...)
		return code, answer.text("message")
	}
	forbidden := func(as, to string) {
		t.Helper()
		code, why := owner(as, to)
		require.Equal(t, 403, code, "%s sets the owner %q: %s", as, to, why)
	}
	for _, as := range []string{"", operator, viewer, controllerUser} {
		forbidden(as, "Fleet/p02")
	}
	forbidden(operator, controllerUser+"/7")
	forbidden(controllerUser, otherNode+"/7")
	code, why := owner(controllerUser, controllerUser+"/7")
	require.Equal(t, 200, code, why)
	forbidden(otherNode, "")
	forbidden(otherNode, otherNode+"/1")
	require.Contains(t, callRefused(t, 409, operator, "PATCH", flightctlPath+"devices/p02", `{"spec":{"os":{"image":"quay.io/x:1"}}}`), controllerUser+"/7")
	callOK(t, controllerUser, "PATCH", flightctlPath+"devices/p02", `{"spec":{"os":{"image":"quay.io/x:1"}}}`)
	require.Equal(t, controllerUser+"/7", getObject(t, "nodes/p02").text("metadata.owner"))
	code, why = owner(controllerUser, "")
	require.Equal(t, 200, code, why)

	makeFleet(t, "p02", "p02=a", motdConfig("p02"))
	untilIs(t, "nodes/p02", "metadata.owner", "Fleet/p02")
	forbidden(controllerUser, "")
	forbidden(controllerUser, controllerUser+"/7")
	require.Equal(t, "Fleet/p02", getObject(t, "nodes/p02").text("metadata.owner"))
}

// readDocument is the Device of the source document, with the corrections that make it YAML.
func readDocument(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../../topics/dialect/testdata/fleet-device-valid.yaml")
	require.NoError(t, err)
	return strings.Replace(string(text), "fab9839018890a88b898b980f8f809f8e8ac333761977d987a777a777a987ccce", name, 1)
}

// The spec of a Device is visible, and has no templateVersion.
func Test03SpecIsVisible(t *testing.T) {
	t.Parallel()
	out, err := kubectl(t, readDocument(t, "p03"), "apply", "-f", "-")
	require.NoError(t, err, out)
	for _, path := range []string{flightctlPath + "devices/p03", "/apis/flightctl.io/v1alpha1/devices/p03"} {
		d := callOK(t, "", "GET", path, "")
		require.Len(t, d.list("spec.config"), 3, path)
		require.False(t, d.has("spec.templateVersion"), path)
	}
	callRefused(t, 400, "", "PATCH", flightctlPath+"devices/p03?fieldValidation=Strict", `{"spec":{"templateVersion":"1"}}`)
}

// spec.os.image is the image's reference.
func Test04OSImage(t *testing.T) {
	t.Parallel()
	out, err := kubectl(t, readDocument(t, "p04"), "apply", "-f", "-")
	require.NoError(t, err, out)
	require.Equal(t, "quay.io/redhat/rhde:9.2", callOK(t, "", "GET", flightctlPath+"devices/p04", "").text("spec.os.image"))
	require.Equal(t, "quay.io/redhat/rhde:9.2", getObject(t, "nodes/p04").text("spec.os.image"))
	require.Contains(t, callRefused(t, 422, "", "PATCH", flightctlPath+"devices/p04", `{"spec":{"os":{"image":"no image; rm"}}}`), "os.image")
}

// What is watched is in spec.monitoring; the former fields spec.containers and spec.systemd are not shown.
func Test05Monitoring(t *testing.T) {
	t.Parallel()
	out, err := kubectl(t, readDocument(t, "p05"), "apply", "-f", "-")
	require.NoError(t, err, out)
	d := callOK(t, "", "GET", flightctlPath+"devices/p05", "")
	require.Equal(t, `["*my-container*","*another-container*"]`, d.text("spec.monitoring.containers.matchPatterns"))
	require.Equal(t, `["chronyd.service","firewalld.service","sshd*.service"]`, d.text("spec.monitoring.systemd.matchPatterns"))
	require.False(t, d.has("spec.containers") || d.has("spec.systemd"))
	callOK(t, "", "POST", flightctlPath+"devices", `{"apiVersion":"flightctl.io/v1alpha1","kind":"Device","metadata":{"name":"p05-former"},"spec":{"systemd":{"matchPatterns":["a.service"]}}}`)
	require.Equal(t, `["a.service"]`, getObject(t, "nodes/p05-former").text("spec.monitoring.systemd.matchPatterns"), "a manifest in the former form means the same")
}

// The kinds of spec.config, with both shapes of a git reference and of a Secret, mean the same.
func Test06Config(t *testing.T) {
	t.Parallel()
	out, err := kubectl(t, readDocument(t, "p06"), "apply", "-f", "-")
	require.NoError(t, err, out)
	flat := getObject(t, "nodes/p06")
	require.Equal(t, []string{"InlineConfigProviderSpec", "GitConfigProviderSpec", "KubernetesSecretProviderSpec"},
		[]string{flat.text("spec.config.0.configType"), flat.text("spec.config.1.configType"), flat.text("spec.config.2.configType")})
	require.Equal(t, "3.4.0", flat.text("spec.config.0.inline.ignition.version"))
	callOK(t, "", "POST", flightctlPath+"devices", `{"apiVersion":"flightctl.io/v1alpha1","kind":"Device","metadata":{"name":"p06-nested"},"spec":{"config":[
		{"name":"config-from-git","configType":"GitConfigProviderSpec","gitRef":{"repository":"my-repo","targetRevision":"v1.0.0","path":"/path/to/config/in/git"}},
		{"name":"my-secret","configType":"KubernetesSecretProviderSpec","secretRef":{"name":"my-secret","namespace":"my-namespace","mountPath":"/path/to/config/in/device"}}]}}`)
	nested := getObject(t, "nodes/p06-nested")
	require.JSONEq(t, flat.text("spec.config.1"), nested.text("spec.config.0"))
	require.JSONEq(t, flat.text("spec.config.2"), nested.text("spec.config.1"))
	shown := callOK(t, "", "GET", flightctlPath+"devices/p06", "")
	require.Equal(t, "my-repo v1.0.0", shown.text("spec.config.1.repository")+" "+shown.text("spec.config.1.ref"), "in the shape in which it was written")
	code, answer, _ := callAPI(t, "", "PATCH", flightctlPath+"devices/p06", `{"spec":{"config":[{"name":"x","configType":"InlineConfigProviderSpec","inline":{"ignition":{"version":"2.0.0"}}}]}}`)
	if code/100 == 2 { // it is refused, or can't be rendered
		untilCondition(t, "nodes/p06", "SpecRendered", "False InvalidConfig", "version")
	} else {
		require.Equal(t, 422, code, answer.text(""))
	}
}

// The floating references of a Device without an owner are stored as they were written.
func Test07FloatingReferencesStayAsWritten(t *testing.T) {
	t.Parallel()
	r := makeRepository(t, "p07", "etc/p07", "one\n")
	spec := `{"os":{"image":"quay.io/x:latest"},"config":[{"name":"a","configType":"GitConfigProviderSpec","gitRef":{"repository":"p07","targetRevision":"main","path":"/"}}]}`
	makeNode(t, "p07")
	callOK(t, "", "PATCH", flightctlPath+"devices/p07", `{"spec":`+spec+`}`)
	waitUntil(t, func() error {
		if getObject(t, "nodes/p07").condition("SpecRendered") == "" {
			return fmt.Errorf("the hub has not looked at it")
		}
		return nil
	})
	stored, err := json.Marshal(getObject(t, "nodes/p07").at("spec").of)
	require.NoError(t, err)
	require.JSONEq(t, spec, string(stored))
	require.NotContains(t, string(stored), r.git(t, "rev-parse", "HEAD"))
}

// status has what the node's agent reports of its host.
func Test08Status(t *testing.T) {
	t.Parallel()
	n := newOnlineNode(t, "p08=a")
	n.withSystemd(t)
	n.systemd.Add("chronyd.service", "active", "running")
	n.systemd.Add("other.service", "active", "running")
	n.startAgent(t)
	callOK(t, "", "PATCH", flightctlPath+"devices/"+n.name, `{"spec":{"monitoring":{"systemd":{"matchPatterns":["chronyd*"]}}}}`)
	waitUntil(t, func() error { return wantEqual("chronyd.service", n.get(t).text("status.systemdUnits.0.name")) })
	s := callOK(t, "", "GET", flightctlPath+"devices/"+n.name, "")
	require.Len(t, s.list("status.systemdUnits"), 1)
	require.Equal(t, "loaded active", s.text("status.systemdUnits.0.loadState")+" "+s.text("status.systemdUnits.0.activeState"))
	for _, field := range []string{"architecture", "bootID", "operatingSystem"} {
		require.NotEmpty(t, s.text("status.systemInfo."+field), field)
	}
	require.NotEmpty(t, s.text("status.updatedAt"))
	require.NotEmpty(t, s.list("status.conditions"))

	// What an agent of flightctl's reports stands there as it says.
	callOK(t, "", "POST", flightctlPath+"devices", `{"apiVersion":"flightctl.io/v1alpha1","kind":"Device","metadata":{"name":"`+theNode+`"}}`)
	const reported = `"containers":[{"id":"fa31","name":"web","status":"running","image":"quay.io/x:1","engine":"podman"}],
		"systemInfo":{"architecture":"arm64","bootID":"b","machineID":"m","operatingSystem":"linux","measurements":{"pcr01":"00"}},"updatedAt":"2024-04-30T15:06:19Z"`
	reportStatus(t, reported)
	d := callOK(t, "", "GET", flightctlPath+"devices/"+theNode, "")
	require.Equal(t, "fa31 web running quay.io/x:1 podman", strings.Join([]string{
		d.text("status.containers.0.id"), d.text("status.containers.0.name"), d.text("status.containers.0.status"), d.text("status.containers.0.image"), d.text("status.containers.0.engine"),
	}, " "))
	require.Equal(t, "m 00", d.text("status.systemInfo.machineID")+" "+d.text("status.systemInfo.measurements.pcr01"))

	t.Run("09ConditionsOfTheAgent", func(t *testing.T) { reportsOfAnAgentAreSeen(t) })
	t.Run("25StatusIsTheNodes", func(t *testing.T) { renderedSpecsAreServed(t) })
}

// reportStatus writes the status of the node that has a password, as itself.
func reportStatus(t *testing.T, status string) {
	t.Helper()
	callOK(t, theNode, "PUT", flightctlPath+"devices/"+theNode+"/status", reportBody(status))
}

func reportBody(status string) string {
	return `{"apiVersion":"flightctl.io/v1alpha1","kind":"Device","metadata":{"name":"` + theNode + `"},"status":{` + status + `}}`
}

// The conditions that an agent reports stand beside the hub's, and one that it stops sending goes. The hub's controllers write their own
// conditions, and nothing else of the status.
func reportsOfAnAgentAreSeen(t *testing.T) {
	callOK(t, "", "PATCH", flightctlPath+"devices/"+theNode, `{"spec":{"config":[{"name":"a","configType":"KubernetesSecretProviderSpec","secretRef":{"name":"nosuch","mountPath":"/etc/a"}}]}}`)
	untilCondition(t, "nodes/"+theNode, "ReferencesResolved", "False", "nosuch")
	conditions := func() (types string) {
		for _, c := range callOK(t, "", "GET", flightctlPath+"devices/"+theNode, "").list("status.conditions") {
			if kind := c.text("type"); kind != "Ready" {
				types += kind + " "
			}
		}
		return types
	}
	cond := func(kind string) string {
		return `{"type":"` + kind + `","status":"True","reason":"AsExpected","lastTransitionTime":"2024-04-30T15:06:20Z"}`
	}
	reportStatus(t, `"conditions":[`+cond("Progressing")+`,`+cond("Available")+`],"renderedVersion":"3"`)
	require.ElementsMatch(t, []string{"Progressing", "Available", "SpecRendered", "ReferencesResolved"}, strings.Fields(conditions()))
	reportStatus(t, `"conditions":[`+cond("Available")+`],"renderedVersion":"3"`)
	require.ElementsMatch(t, []string{"Available", "SpecRendered", "ReferencesResolved"}, strings.Fields(conditions()))
	callOK(t, "", "PATCH", flightctlPath+"devices/"+theNode, `{"spec":{"config":null}}`)
	untilCondition(t, "nodes/"+theNode, "SpecRendered", "True")
	require.ElementsMatch(t, []string{"Available", "SpecRendered", "ReferencesResolved"}, strings.Fields(conditions()))
	require.Equal(t, "3", getObject(t, "nodes/"+theNode).text("status.renderedVersion"))
}

// A change of the spec is rendered anew, and its version rises, which a person can read.
func Test10RenderedVersionRises(t *testing.T) {
	t.Parallel()
	n := newNodeWithAgent(t)
	last := 0
	for _, text := range []string{"one", "two", "three"} {
		callOK(t, "", "PATCH", flightctlPath+"devices/"+n.name, `{"spec":`+motdConfig(text)+`}`)
		n.untilFile(t, "etc/motd", text)
		waitUntil(t, func() error { // and the node says so
			s := n.get(t)
			if v, _ := strconv.Atoi(s.text("status.specVersion")); v <= last {
				return fmt.Errorf("it has version %d still", v)
			}
			return wantEqual(s.text("status.specVersion"), s.text("status.renderedVersion"))
		})
		notes := callOK(t, "", "GET", flightctlPath+"devices/"+n.name, "").at("metadata.annotations")
		version, err := strconv.Atoi(notes.text("renderedVersion"))
		require.NoError(t, err)
		require.Greater(t, version, last)
		require.Equal(t, notes.text("renderedVersion"), notes.text("device-controller/renderedVersion"))
		last = version
	}
	callOK(t, "", "PATCH", flightctlPath+"devices/"+n.name, `{"metadata":{"labels":{"p10":"a"}}}`)
	require.Equal(t, strconv.Itoa(last), callOK(t, "", "GET", flightctlPath+"devices/"+n.name, "").text("metadata.annotations.renderedVersion"), "a label is no change of the spec")
}
