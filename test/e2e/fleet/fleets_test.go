// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fromGit is an item of a spec's config that is a directory of a repository.
func fromGit(repository, revision, path string) string {
	return fmt.Sprintf(`{"name":"git","configType":"GitConfigProviderSpec","gitRef":{"repository":%q,"targetRevision":%q,"path":%q}}`, repository, revision, path)
}

// fromMap is one that is a ConfigMap of the namespace default.
func fromMap(name, mountPath string) string {
	return fmt.Sprintf(`{"name":"map","configType":"ConfigMapProviderSpec","configMapRef":{"name":%q,"mountPath":%q}}`, name, mountPath)
}

func makeMap(t *testing.T, name, key, text string) {
	t.Helper()
	callOK(t, "", "POST", flightctlPath+"namespaces/default/configmaps", fmt.Sprintf(`{"metadata":{"name":%q},"data":{%q:%q}}`, name, key, text))
}

// In the spec of a Device that a fleet owns, image tags are digests, and branches and tags of git are commits.
func Test28OwnedReferencesAreFrozen(t *testing.T) {
	t.Parallel()
	n := newOnlineNode(t, "p28=a") // without an agent: no host here boots the image
	registry := startRegistry(t)
	digest := registry.push(t, "os:latest")
	r := makeRepository(t, "p28", "etc/p28", "one\n")
	commit := r.git(t, "rev-parse", "HEAD")
	r.git(t, "tag", "v1")
	makeFleet(t, "p28", "p28=a", fmt.Sprintf(`{"os":{"image":"%s/os:latest"},"config":[%s,%s]}`, registry.address, fromGit("p28", "main", "/"),
		strings.Replace(fromGit("p28", "v1", "/etc"), `"name":"git"`, `"name":"tag"`, 1)))
	untilIs(t, "nodes/"+n.name, "spec.os.image", registry.address+"/os@"+digest)
	d := callOK(t, "", "GET", flightctlPath+"devices/"+n.name, "")
	require.Equal(t, registry.address+"/os@"+digest, d.text("spec.os.image"))
	require.Equal(t, commit+" "+commit, n.get(t).text("spec.config.0.gitRef.targetRevision")+" "+n.get(t).text("spec.config.1.gitRef.targetRevision"))
	require.Equal(t, registry.address+"/os:latest", getObject(t, "fleets/p28").text("spec.template.spec.os.image"), "the template stays as it was written")

	r.commit(t, "etc/p28", "two\n") // a Device of the same version has the same, whenever it comes
	v := getObject(t, "fleets/p28").text("metadata.annotations.fleet-controller/templateVersion")
	references := getObject(t, "templateversions/"+v).list("spec.references")
	require.Len(t, references, 3)
	for _, ref := range references {
		require.Contains(t, []string{digest, commit}, ref.text("resolved"))
	}
}

// A Fleet has a generation, an owner, a selector, and a template with a generation and a spec, on flightctl's path and ours.
func Test29Fleet(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../topics/dialect/testdata/fleet-fleet.yaml")
	require.NoError(t, err)
	out, err := kubectl(t, strings.ReplaceAll(string(text), "optical-inspector", "p29"), "apply", "-f", "-")
	require.NoError(t, err, out)
	const at = flightctlPath + "fleets/p29-production-fleet"
	f := callOK(t, "", "GET", at, "")
	require.Equal(t, "1 1 p29", f.text("metadata.generation")+" "+f.text("spec.template.metadata.generation")+" "+f.text("spec.selector.matchLabels.device"))
	require.Equal(t, "quay.io/flightctl/flightctl-agent-basic-nginx:latest", f.text("spec.template.spec.os.image"))
	require.Equal(t, "demo", f.text("spec.template.spec.config.1.gitRef.targetRevision"))
	callOK(t, "", "PATCH", at, `{"spec":{"template":{"spec":{"os":{"image":"quay.io/x:2"}}}}}`)
	require.Equal(t, "2", callOK(t, "", "GET", at, "").text("metadata.generation"))
	callOK(t, "", "PATCH", at, `{"metadata":{"labels":{"a":"b"}}}`)
	require.Equal(t, "2", callOK(t, "", "GET", at, "").text("metadata.generation"))
	callRefused(t, 403, "", "PATCH", at, `{"metadata":{"owner":"ResourceSync/x"}}`)
}

// Two fleets whose selectors match one Device have the condition OverlappingSelectors, and lose it.
func Test30OverlappingSelectors(t *testing.T) {
	t.Parallel()
	makeFleet(t, "p30-a", "p30=a", motdConfig("a"))
	untilCondition(t, "fleets/p30-a", "OverlappingSelectors", "False")
	makeFleet(t, "p30-b", "room=p30", motdConfig("b"))
	makeNode(t, "p30", "p30=a", "room=p30")
	untilCondition(t, "fleets/p30-a", "OverlappingSelectors", "True", "p30-b")
	untilCondition(t, "fleets/p30-b", "OverlappingSelectors", "True", "p30-a")
	labelNode(t, "p30", "room", "other")
	untilCondition(t, "fleets/p30-a", "OverlappingSelectors", "False")
	untilCondition(t, "fleets/p30-b", "OverlappingSelectors", "False")
}

// A change of the template makes an immutable TemplateVersion. Its references are those of all Devices of the fleet, each resolved.
func Test31TemplateVersion(t *testing.T) {
	t.Parallel()
	one, two := newOnlineNode(t, "p31=a", "city=rome"), newOnlineNode(t, "p31=a", "city=oslo")
	makeMap(t, "p31-rome", "a", "of rome")
	makeMap(t, "p31-oslo", "a", "of oslo")
	makeFleet(t, "p31", "p31=a", `{"config":[`+fromMap("p31-{{ .metadata.labels.city }}", "/etc/p31")+`]}`)
	untilIs(t, "fleets/p31", "metadata.annotations.fleet-controller/templateVersion", "p31-0000001")
	waitUntil(t, func() error {
		v := getObject(t, "fleets/p31").text("metadata.annotations.fleet-controller/templateVersion")
		var sources []string
		for _, ref := range getObject(t, "templateversions/"+v).list("spec.references") {
			require.True(t, strings.HasPrefix(ref.text("resolved"), "sha256:"), ref.text(""))
			sources = append(sources, ref.text("source"))
		}
		return wantEqual("default/p31-oslo default/p31-rome", strings.Join(sources, " "))
	})
	for _, n := range []*testNode{one, two} {
		waitUntil(t, func() error {
			if !n.get(t).has("spec.config.0.files") {
				return fmt.Errorf("%s has nothing yet", n.name)
			}
			return nil
		})
	}
	v := getObject(t, "fleets/p31").text("metadata.annotations.fleet-controller/templateVersion")
	callRefused(t, 403, operator, "PATCH", apiPath+"templateversions/"+v, `{"spec":{"fleet":"other"}}`)
	callRefused(t, 409, controllerUser, "PATCH", apiPath+"templateversions/"+v, `{"spec":{"fleet":"other"}}`)
	require.Contains(t, callRefused(t, 422, operator, "PATCH", apiPath+"templateversions/"+v, `{"spec":{"fleet":"other"}}`, "Impersonate-User", "controller"), "spec")
}

// What a frozen source contains changes: another version, with which all Devices get the same.
func Test32AFrozenSourceChanges(t *testing.T) {
	t.Parallel()
	n := newNodeWithAgent(t, "p32=a")
	r := makeRepository(t, "p32", "etc/p32", "one\n")
	makeMap(t, "p32", "a", "one")
	makeFleet(t, "p32", "p32=a", `{"config":[`+fromGit("p32", "main", "/")+`,`+fromMap("p32", "/etc/map")+`]}`)
	n.untilFile(t, "etc/p32", "one\n")
	n.untilFile(t, "etc/map/a", "one")
	version := nextVersion(t, "p32")
	r.commit(t, "etc/p32", "two\n")
	n.untilFile(t, "etc/p32", "two\n")
	untilIs(t, "nodes/"+n.name, "metadata.annotations.fleet-controller/templateVersion", version)
	version = nextVersion(t, "p32")
	callOK(t, "", "PATCH", flightctlPath+"namespaces/default/configmaps/p32", `{"data":{"a":"two"}}`)
	n.untilFile(t, "etc/map/a", "two")
	untilIs(t, "nodes/"+n.name, "metadata.annotations.fleet-controller/templateVersion", version)
	require.Equal(t, r.git(t, "rev-parse", "HEAD"), n.get(t).text("spec.config.0.gitRef.targetRevision"))
}

// A version that can't be made is a condition of the fleet with the cause, and nothing is rolled out.
func Test33NoVersion(t *testing.T) {
	t.Parallel()
	n := newNodeWithAgent(t, "p33=a")
	makeFleet(t, "p33", "p33=a", motdConfig("good"))
	n.untilFile(t, "etc/motd", "good")
	makeRepository(t, "p33", "etc/p33", "x\n")
	for name, bad := range map[string]struct{ spec, begin, says string }{
		"no such ConfigMap":   {`{"config":[` + inlineConfig("motd", "/etc/motd", "bad") + `,` + fromMap("p33-none", "/etc/x") + `]}`, "False NotFound", "p33-none"},
		"no such Repository":  {`{"config":[` + inlineConfig("motd", "/etc/motd", "bad") + `,` + fromGit("p33-none", "main", "/") + `]}`, "False NotFound", "p33-none"},
		"no such branch":      {`{"config":[` + inlineConfig("motd", "/etc/motd", "bad") + `,` + fromGit("p33", "no-branch", "/") + `]}`, "False NotFound", "no-branch"},
		"no such directory":   {`{"config":[` + inlineConfig("motd", "/etc/motd", "bad") + `,` + fromGit("p33", "main", "/nowhere") + `]}`, "False NotFound", "nowhere"},
		"nobody listens":      {`{"os":{"image":"127.0.0.1:1/os:latest"},"config":[` + inlineConfig("motd", "/etc/motd", "bad") + `]}`, "False Unavailable", "127.0.0.1:1"},
		"an unknown function": {`{"config":[{"name":"motd","configType":"FileListProviderSpec","files":[{"path":"/etc/motd","content":"{{ shell .metadata.name }}"}]}]}`, "False InvalidTemplate", "shell"},
	} {
		setTemplate(t, "p33", bad.spec)
		untilCondition(t, "fleets/p33", "TemplateResolved", bad.begin, bad.says)
		f := getObject(t, "fleets/p33")
		require.Equal(t, "p33-0000001", f.text("metadata.annotations.fleet-controller/templateVersion"), name)
		n.untilFile(t, "etc/motd", "good")
	}
	setTemplate(t, "p33", `{"config":[`+fromGit("p33", "main", "/")+`]}`)
	n.untilFile(t, "etc/p33", "x\n")
	untilCondition(t, "fleets/p33", "TemplateResolved", "True")
	require.Equal(t, "p33-0000002", getObject(t, "fleets/p33").text("metadata.annotations.fleet-controller/templateVersion"))
}

// fleet-controller/templateVersion is on the fleet the version that is rolled out, and on the Device the one that it has applied. Names
// are the fleet's and seven digits, so a fleet whose name leaves no room for them is refused.
func Test34Annotations(t *testing.T) {
	t.Parallel()
	n := newNodeWithAgent(t, "p34=a")
	makeNode(t, "p34-away", "p34=a")
	const fleet = "p34-production-fleet"
	makeFleet(t, fleet, "p34=a", motdConfig("one"))
	n.untilFile(t, "etc/motd", "one")
	for _, path := range []string{flightctlPath + "devices/" + n.name, apiPath + "nodes/" + n.name, flightctlPath + "fleets/" + fleet} {
		waitUntil(t, func() error {
			return wantEqual(fleet+"-0000001", callOK(t, "", "GET", path, "").text("metadata.annotations.fleet-controller/templateVersion"))
		})
	}
	require.False(t, getObject(t, "nodes/p34-away").has("metadata.annotations.fleet-controller/templateVersion"), "it has applied nothing")
	long := strings.Repeat("x", 246)
	body := `{"apiVersion":"flightctl.io/v1alpha1","kind":"Fleet","metadata":{"name":"%s"},"spec":{"selector":{"matchLabels":{"p34":"none"}},"template":{"spec":{}}}}`
	require.Contains(t, callRefused(t, 422, "", "POST", flightctlPath+"fleets", fmt.Sprintf(body, long)), "TemplateVersion")
	callOK(t, "", "POST", flightctlPath+"fleets", fmt.Sprintf(body, long[:245]))
}

// /fleets/{f}/templateversions lists and deletes, with a label selector; a version of it is read there, and never written: 405 on flightctl's
// paths and 403 on ours.
func Test35TemplateVersionsOverREST(t *testing.T) {
	t.Parallel()
	n := newNodeWithAgent(t, "p35=a")
	makeFleet(t, "p35", "p35=a", motdConfig("one"))
	n.untilFile(t, "etc/motd", "one")
	setTemplate(t, "p35", motdConfig("two"))
	n.untilFile(t, "etc/motd", "two")
	const at = flightctlPath + "fleets/p35/templateversions"
	names := func(query string) (names []string) {
		for _, v := range callOK(t, "", "GET", at+query, "").list("items") {
			names = append(names, v.text("metadata.name"))
		}
		slices.Sort(names)
		return names
	}
	require.Equal(t, []string{"p35-0000001", "p35-0000002"}, names(""))
	v := callOK(t, "", "GET", at+"/p35-0000001", "")
	require.Equal(t, "TemplateVersion p35 Fleet/p35", v.text("kind")+" "+v.text("spec.fleet")+" "+v.text("metadata.owner"))
	callRefused(t, 404, "", "GET", at+"/p35-0000009", "")
	callRefused(t, 404, "", "GET", flightctlPath+"fleets/p34/templateversions/p35-0000001", "")
	body := strings.Replace(v.text(""), "p35-0000001", "p35-0000007", 1)
	callRefused(t, 405, "", "POST", at, body)
	callRefused(t, 405, "", "PUT", at+"/p35-0000001", v.text(""))
	callRefused(t, 405, "", "PATCH", at+"/p35-0000001", `{"metadata":{"labels":{"a":"b"}}}`)
	mine := getObject(t, "templateversions/p35-0000001").text("")
	callRefused(t, 403, "", "POST", apiPath+"templateversions", strings.Replace(mine, "p35-0000001", "p35-0000007", 1))
	callRefused(t, 403, "", "PUT", apiPath+"templateversions/p35-0000001", mine)
	callOK(t, controllerUser, "PATCH", apiPath+"templateversions/p35-0000001", `{"metadata":{"labels":{"kept":"no"}}}`)
	require.Equal(t, []string{"p35-0000001"}, names("?labelSelector=kept%3Dno"))
	untilIs(t, "nodes/"+n.name, "metadata.annotations.fleet-controller/templateVersion", "p35-0000002") // until then it is refused because the node has it
	require.Contains(t, callRefused(t, 409, "", "DELETE", at+"/p35-0000001", ""), "undone")
	callOK(t, "", "DELETE", at+"/p35-0000001?force=true", "")
	require.Equal(t, []string{"p35-0000002"}, names(""))
	n.untilFile(t, "etc/motd", "two")
}

// Versions that no Device has and that are old are deleted.
func Test36OldVersionsGo(t *testing.T) {
	t.Parallel()
	n := newNodeWithAgent(t, "p36=a")
	makeFleet(t, "p36", "p36=a", motdConfig("0"))
	n.untilFile(t, "etc/motd", "0")
	const versions = 15
	for i := 1; i < versions; i++ {
		setTemplate(t, "p36", motdConfig(fmt.Sprint(i)))
		n.untilFile(t, "etc/motd", fmt.Sprint(i))
	}
	untilIs(t, "nodes/"+n.name, "metadata.annotations.fleet-controller/templateVersion", fmt.Sprintf("p36-%07d", versions))
	setTemplate(t, "p36", motdConfig("last"))
	waitUntil(t, func() error {
		list := callOK(t, "", "GET", flightctlPath+"fleets/p36/templateversions", "").list("items")
		if len(list) > 12 {
			return fmt.Errorf("%d versions are kept", len(list))
		}
		return nil
	})
	n.untilFile(t, "etc/motd", "last")
}

// untilGone waits until a file of the node is not there.
func (n *testNode) untilGone(t *testing.T, path string) {
	t.Helper()
	waitUntil(t, func() error {
		if _, err := os.Stat(filepath.Join(n.root, path)); !os.IsNotExist(err) {
			return fmt.Errorf("%s is there: %w", path, err)
		}
		return nil
	})
}
