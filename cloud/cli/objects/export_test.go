// SPDX-License-Identifier: Apache-2.0

package objects_test

import (
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/api"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/test/clitest"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// nodeOfSamples is a Node that the Upgrades among the samples are for: one that is for none is refused.
const nodeOfSamples = `
apiVersion: edgebus.io/v1alpha1
kind: Node
metadata: {name: n2, labels: {node-role.kubernetes.io/edge: "", node-role.kubernetes.io/agent: "", stage: production}}
`

func TestAnExportIsPrivate(t *testing.T) {
	clitest.StartHub(t)
	dir := t.TempDir()
	clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, dir, "node.yaml", nodeOfSamples), "-f", "../../api/testdata/samples.yaml")
	clitest.Run(t, 0, "export", "-d", filepath.Join(dir, "out"))
	files := 0
	require.NoError(t, filepath.WalkDir(filepath.Join(dir, "out"), func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := d.Info()
		require.NoError(t, err)
		want := os.FileMode(0o700)
		if !d.IsDir() {
			want = 0o600
			files++
		}
		require.Equal(t, want, info.Mode().Perm(), path)
		return nil
	}))
	require.Positive(t, files)
}

// Whoever names one object learns that an export is of kinds, and what writes one.
func TestAnExportTakesNoNames(t *testing.T) {
	clitest.StartHub(t)
	for _, args := range [][]string{{"export", "device/lamp"}, {"export", "device", "lamp"}, {"export", "device", "a/b"}} {
		_, said := clitest.Run(t, 2, args...)
		require.Regexp(t, `edgebus: "(device/)?(lamp|a/b)" is no kind: export takes kinds, such as devices, .*; edgebus get KIND/NAME -o yaml writes one\n`, said)
	}
	_, said := clitest.Run(t, 3, "export", "devises")
	require.Contains(t, said, "did you mean devices?")
}

func TestAnExportMakesTheSameHub(t *testing.T) {
	old := clitest.StartHub(t)
	dir := t.TempDir()
	const dialects = "../../../topics/dialect/testdata/"
	manifests := []string{
		"apply", "-f", clitest.WriteFile(t, dir, "plant.yaml", strings.Replace(clitest.Plant, "name: lamp", "name: hall", 1)), "-f", "../../api/testdata/samples.yaml", // all kinds
		"-f", clitest.WriteFile(t, dir, "node.yaml", nodeOfSamples),
		"-f", dialects + "device-management-model.yaml", "-f", dialects + "device-management-device.yaml", "-f", dialects + "fleet-device-valid.yaml",
		"-f", clitest.WriteFile(t, dir, "other.yaml", "{apiVersion: edgebus.io/v1alpha1, kind: DeviceModel, metadata: {name: dimmable, namespace: other, "+
			"annotations: {why: not}}, spec: {properties: [{name: a, type: double, minimum: 0.1, maximum: 9007199254740991}]}}"),
	}
	clitest.Run(t, 0, manifests...)
	clitest.Run(t, 0, "twin", "set", "hall", "colorTemp_K=2700")
	createUnapplied(t, old.URL)
	first, _ := clitest.Run(t, 0, "export")
	require.NotRegexp(t, `(?m)^ +(uid|resourceVersion|managedFields):`, first)
	require.Contains(t, first, "maximum: 9007199254740991")
	require.Contains(t, first, "dialect.edgebus.io/devices.kubeedge.io.v1alpha1")
	require.Contains(t, first, `    temperature-enable: "false"`, "desired values of KubeEdge stand in a manifest's status")
	for _, k := range api.Kinds() {
		if k.Name != resource.KindEvent {
			require.Contains(t, first, "\nkind: "+k.Name+"\n")
		}
	}
	clitest.Run(t, 0, "export", "-d", filepath.Join(dir, "out"))
	_, errs := clitest.Run(t, exitcode.Misused, "export", "-d", filepath.Join(dir, "out"))
	require.Contains(t, errs, "is not empty")

	clitest.StartHub(t)
	clitest.Run(t, 0, "apply", "-R", "-f", filepath.Join(dir, "out"))
	second, _ := clitest.Run(t, 0, "export")
	require.Equal(t, first, second)
	out, _ := clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, dir, "first.yaml", first))
	require.Equal(t, strings.Count(first, "\nkind: "), strings.Count(out, "unchanged"), out)
	out, _ = clitest.Run(t, 0, "export", "dm", "-n", "other")
	require.Equal(t, 1, strings.Count(out, "\nkind:"))

	// Who applies the manifests again finds what would have been found on the old hub: what others set stays.
	clitest.Run(t, 0, append(manifests, "-f", clitest.WriteFile(t, dir, "unapplied.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: unapplied}, data: {b: mine}}"))...)
	second, _ = clitest.Run(t, 0, "export")
	clitest.Run(t, 0, append(manifests, "-f", filepath.Join(dir, "unapplied.yaml"), "--server", old.URL)...)
	first, _ = clitest.Run(t, 0, "export", "--server", old.URL)
	require.Equal(t, first, second)
	require.Contains(t, second, `colorTemp_K: "2700"`)
	require.Contains(t, second, "a: others")
}

// createUnapplied makes an object as others do: nothing remembers a manifest.
func createUnapplied(t *testing.T, hub string) {
	resp, err := http.Post(hub+"/api/v1/namespaces/default/configmaps", "application/json", strings.NewReader(`{"metadata":{"name":"unapplied"},"data":{"a":"others"}}`))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusCreated, resp.StatusCode)
}

func TestExportOfWhatOneMayRead(t *testing.T) {
	var limited atomic.Bool
	clitest.StartHub(t, func(o *api.Options) {
		o.Authenticate = func(*http.Request) (broker.Identity, error) {
			nodes := []string{"*"}
			if limited.Load() {
				nodes = []string{"n1"}
			}
			return broker.Identity{User: "ann", Roles: []topics.Role{topics.RoleOperator}, Nodes: nodes}, nil
		}
	})
	clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant))
	limited.Store(true)
	out, errs := clitest.Run(t, 0, "export")
	require.Contains(t, out, "kind: DeviceModel\n")
	require.Contains(t, out, "kind: Device\n")
	require.Regexp(t, `^edgebus: secrets are left out: .*needs nodes: \["\*"\]\nedgebus: repositories are left out: .*\n$`, errs)
	_, errs = clitest.Run(t, exitcode.Refused, "export", "nodes", "secrets")
	require.Contains(t, errs, "forbidden")
}

// An export is a manifest: who edits it, and applies it, and edits it again, finds every step done.
func TestAnExportCanBeEdited(t *testing.T) {
	clitest.StartHub(t)
	dir := t.TempDir()
	clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, dir, "plant.yaml", clitest.Plant))
	export, _ := clitest.Run(t, 0, "export", "devices")
	file := clitest.WriteFile(t, dir, "lamp.yaml", strings.Replace(export, "    room: hall\n", "    room: hall\n    floor: ground\n", 1))
	clitest.Run(t, 0, "apply", "-f", file)
	out, _ := clitest.Run(t, 0, "get", "devices", "-l", "floor=ground", "-o", "name")
	require.Equal(t, "device/lamp\n", out)
	clitest.WriteFile(t, dir, "lamp.yaml", export)
	clitest.Run(t, 0, "apply", "-f", file)
	out, _ = clitest.Run(t, 0, "get", "devices", "-l", "floor", "-o", "name")
	require.Empty(t, out)
}
