package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/seal"
	"github.com/edgebus/edgebus/cloud/api"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/bolt"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// startHub is the hub's API over a real store, and the one that commands talk to.
func startHub(t *testing.T, more ...func(*api.Options)) *httptest.Server {
	st, err := bolt.Open(bolt.Options{Path: filepath.Join(t.TempDir(), "hub.db")})
	require.NoError(t, err)
	key, err := seal.Create(t.TempDir())
	require.NoError(t, err)
	o := api.Options{Reader: st, Writer: st, Watcher: st, Seal: key, Log: zerolog.Nop()}
	for _, change := range more {
		change(&o)
	}
	server := httptest.NewServer(api.New(o))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		require.NoError(t, st.Close())
	})
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "config"))
	t.Setenv("EDGEBUS_CONTEXT", "")
	t.Setenv("EDGEBUS_SERVER", server.URL)
	return server
}

// runEdgebus runs a command, which must end with that code, and returns what it said.
func runEdgebus(t *testing.T, code int, args ...string) (out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	got := run(args, &o, &e)
	require.Equal(t, code, got, "%v\n%s%s", args, o.String(), e.String())
	return o.String(), e.String()
}

const plantManifest = `
apiVersion: edgebus.io/v1alpha1
kind: Device
metadata: {name: lamp, labels: {room: hall}}
spec: {deviceModelRef: {name: dimmable}, nodeName: n1, protocol: {type: virtual}, desired: {brightness: 40}}
---
apiVersion: edgebus.io/v1alpha1
kind: DeviceModel
metadata: {name: dimmable}
spec:
  properties:
  - {name: brightness, type: int, accessMode: ReadWrite, maximum: 100}
  - {name: colorTemp_K, type: int, accessMode: ReadWrite}
---
apiVersion: edgebus.io/v1alpha1
kind: Node
metadata: {name: n1, labels: {site: here}}
`

func writeFile(t *testing.T, dir, name, text string) string {
	path := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestObjectsThroughTheirLives(t *testing.T) {
	startHub(t)
	file := writeFile(t, t.TempDir(), "plant.yaml", plantManifest)
	_, errs := runEdgebus(t, 0, "get", "devices")
	require.Equal(t, "no devices in namespace default\n", errs)

	out, errs := runEdgebus(t, 0, "apply", "-f", file)
	require.Equal(t, "devicemodel/dimmable created\nnode/n1 created\ndevice/lamp created\n", out, "the model first")
	require.Equal(t, "3 objects: 3 created\n", errs)
	out, _ = runEdgebus(t, 0, "get", "dev")
	require.Regexp(t, `^NAME +NODE +MODEL +STATE +IN-SYNC +AGE\nlamp +n1 +dimmable +unknown +\S+ +\d+s\n$`, out)
	out, _ = runEdgebus(t, 0, "get", "devices", "-o", "wide")
	require.Regexp(t, `^NAME +NODE +MODEL +STATE +IN-SYNC +PROTOCOL +LAST-SEEN +REPORTED +AGE\nlamp +n1 +dimmable +unknown +\S+ +virtual .*\d+s\n$`, out)
	out, _ = runEdgebus(t, 0, "get", "device/lamp", "node/n1", "-o", "name")
	require.Equal(t, "device/lamp\nnode/n1\n", out)
	out, _ = runEdgebus(t, 0, "get", "devices,devicemodels", "-A")
	require.Contains(t, out, "device/lamp")
	require.Contains(t, out, "devicemodel/dimmable")
	out, _ = runEdgebus(t, 0, "get", "device", "lamp", "-o", "json")
	require.True(t, strings.HasPrefix(out, `{`))
	require.NotContains(t, out, "managedFields")
	out, _ = runEdgebus(t, 0, "get", "devices", "-o", "yaml", "-l", "room=hall")
	require.Contains(t, out, "kind: List\n")
	out, _ = runEdgebus(t, 0, "describe", "device", "lamp")
	require.Regexp(t, `(?s)Name: +lamp.*Labels: +room=hall.*Spec:.*brightness: "40"`, out)
	require.NotContains(t, out, client.LastApplied)

	out, errs = runEdgebus(t, 3, "get", "device", "lamp", "none")
	require.Contains(t, out, "lamp")
	require.Contains(t, errs, `"none" not found`)
	_, errs = runEdgebus(t, 0, "delete", "devicemodel", "dimmable")
	require.Contains(t, errs, "Warning: devicemodel dimmable is in use by lamp")
	out, _ = runEdgebus(t, 0, "delete", "devices", "-l", "room=hall")
	require.Equal(t, "device/lamp deleted\n", out)
	runEdgebus(t, 3, "get", "devicemodel", "dimmable") // it went with its last device
	runEdgebus(t, 3, "delete", "device", "lamp")
	runEdgebus(t, 0, "delete", "device", "lamp", "--ignore-not-found")
	out, errs = runEdgebus(t, 3, "delete", "-f", file)
	require.Equal(t, "node/n1 deleted\n", out)
	require.Contains(t, errs, "plant.yaml document 1 (Device lamp): ")
}

// What flightctl calls a Device is a Node here: its Events are the Node's, not those of a Device of that name.
func TestDescribeShowsTheEventsOfTheObjectItself(t *testing.T) {
	startHub(t)
	dir := t.TempDir()
	runEdgebus(t, 0, "apply", "-f", writeFile(t, dir, "plant.yaml", strings.ReplaceAll(plantManifest, "name: lamp", "name: n1")))
	for _, kind := range []string{"device", "node"} {
		object, _ := runEdgebus(t, 0, "get", kind, "n1", "-o", "json")
		uid := regexp.MustCompile(`"uid": *"([^"]+)"`).FindStringSubmatch(object)[1]
		runEdgebus(t, 0, "apply", "-f", writeFile(t, dir, kind+".yaml", "{apiVersion: v1, kind: Event, metadata: {name: of-"+kind+"}, reason: Saw-"+kind+
			", involvedObject: {kind: "+strings.ToUpper(kind[:1])+kind[1:]+", name: n1, uid: "+uid+"}}"))
	}
	for _, name := range []string{"devices.flightctl.io", "node"} {
		out, _ := runEdgebus(t, 0, "describe", name, "n1")
		require.Contains(t, out, "Saw-node", name)
		require.NotContains(t, out, "Saw-device", name)
	}
	out, _ := runEdgebus(t, 0, "describe", "device", "n1")
	require.Contains(t, out, "Saw-device")
	require.NotContains(t, out, "Saw-node")
}

func TestOneThatFailsDoesntStopTheOthers(t *testing.T) {
	startHub(t)
	dir := t.TempDir()
	writeFile(t, dir, "a.yaml", plantManifest)
	writeFile(t, dir, "b/bad.yaml", strings.Replace(plantManifest, "40", "400", 1)+"---\na: [\n---\napiVersion: v9\nkind: Toaster\nmetadata: {name: t}\n")
	writeFile(t, dir, "notes.txt", "no manifest")
	_, errs := runEdgebus(t, 0, "apply", "-f", dir)
	require.Contains(t, errs, "3 objects: 3 created", "without -R")
	out, errs := runEdgebus(t, 1, "apply", "-R", "-f", dir)
	require.Contains(t, out, "device/lamp unchanged")
	require.Contains(t, errs, "bad.yaml document 1 (Device lamp): ")
	require.Contains(t, errs, "bad.yaml document 4: is not YAML")
	require.Contains(t, errs, "bad.yaml document 5 (Toaster t): the hub knows no kind Toaster of v9")
	require.Contains(t, errs, "8 objects: 5 unchanged, 3 failed")
	_, errs = runEdgebus(t, refused, "apply", "-f", writeFile(t, dir, "c.yaml", strings.Replace(plantManifest, "40", "x", 1)), "--dry-run")
	require.Contains(t, errs, "(dry run)")
	for _, args := range [][]string{{}, {"-f", filepath.Join(dir, "b"), "x"}, {"-f", "http://example.org/x.yaml"}, {"-f", writeFile(t, dir, "d/none.yaml", "# nothing\n")}} {
		runEdgebus(t, misused, append([]string{"apply"}, args...)...)
	}
	_, errs = runEdgebus(t, misused, "apply", "-n", "other", "-f", writeFile(t, dir, "e.yaml", strings.Replace(plantManifest, "name: lamp", "name: lamp, namespace: mine", 1)))
	require.Contains(t, errs, "it is in namespace mine, and --namespace says other")
}

// nodeOfSamples is a Node that the Upgrades among the samples are for: one that is for none is refused.
const nodeOfSamples = `
apiVersion: edgebus.io/v1alpha1
kind: Node
metadata: {name: n2, labels: {node-role.kubernetes.io/edge: "", node-role.kubernetes.io/agent: "", stage: production}}
`

func TestAnExportIsPrivate(t *testing.T) {
	startHub(t)
	dir := t.TempDir()
	runEdgebus(t, 0, "apply", "-f", writeFile(t, dir, "node.yaml", nodeOfSamples), "-f", "../../api/testdata/samples.yaml")
	runEdgebus(t, 0, "export", "-d", filepath.Join(dir, "out"))
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

func TestAnExportMakesTheSameHub(t *testing.T) {
	old := startHub(t)
	dir := t.TempDir()
	const dialects = "../../../topics/dialect/testdata/"
	manifests := []string{
		"apply", "-f", writeFile(t, dir, "plant.yaml", strings.Replace(plantManifest, "name: lamp", "name: hall", 1)), "-f", "../../api/testdata/samples.yaml", // all kinds
		"-f", writeFile(t, dir, "node.yaml", nodeOfSamples),
		"-f", dialects + "device-management-model.yaml", "-f", dialects + "device-management-device.yaml", "-f", dialects + "fleet-device-valid.yaml",
		"-f", writeFile(t, dir, "other.yaml", "{apiVersion: edgebus.io/v1alpha1, kind: DeviceModel, metadata: {name: dimmable, namespace: other, "+
			"annotations: {why: not}}, spec: {properties: [{name: a, type: double, minimum: 0.1, maximum: 9007199254740991}]}}"),
	}
	runEdgebus(t, 0, manifests...)
	runEdgebus(t, 0, "twin", "set", "hall", "colorTemp_K=2700")
	createUnapplied(t, old.URL)
	first, _ := runEdgebus(t, 0, "export")
	require.NotRegexp(t, `(?m)^ +(uid|resourceVersion|managedFields):`, first)
	require.Contains(t, first, "maximum: 9007199254740991")
	require.Contains(t, first, "dialect.edgebus.io/devices.kubeedge.io.v1alpha1")
	require.Contains(t, first, `    temperature-enable: "false"`, "desired values of KubeEdge stand in a manifest's status")
	for _, k := range api.Kinds() {
		if k.Name != resource.KindEvent {
			require.Contains(t, first, "\nkind: "+k.Name+"\n")
		}
	}
	runEdgebus(t, 0, "export", "-d", filepath.Join(dir, "out"))
	_, errs := runEdgebus(t, misused, "export", "-d", filepath.Join(dir, "out"))
	require.Contains(t, errs, "is not empty")

	startHub(t)
	runEdgebus(t, 0, "apply", "-R", "-f", filepath.Join(dir, "out"))
	second, _ := runEdgebus(t, 0, "export")
	require.Equal(t, first, second)
	out, _ := runEdgebus(t, 0, "apply", "-f", writeFile(t, dir, "first.yaml", first))
	require.Equal(t, strings.Count(first, "\nkind: "), strings.Count(out, "unchanged"), out)
	out, _ = runEdgebus(t, 0, "export", "dm", "-n", "other")
	require.Equal(t, 1, strings.Count(out, "\nkind:"))

	// Who applies the manifests again finds what would have been found on the old hub: what others set stays.
	runEdgebus(t, 0, append(manifests, "-f", writeFile(t, dir, "unapplied.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: unapplied}, data: {b: mine}}"))...)
	second, _ = runEdgebus(t, 0, "export")
	runEdgebus(t, 0, append(manifests, "-f", filepath.Join(dir, "unapplied.yaml"), "--server", old.URL)...)
	first, _ = runEdgebus(t, 0, "export", "--server", old.URL)
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
	startHub(t, func(o *api.Options) {
		o.Authenticate = func(*http.Request) (broker.Identity, error) {
			nodes := []string{"*"}
			if limited.Load() {
				nodes = []string{"n1"}
			}
			return broker.Identity{User: "ann", Roles: []topics.Role{topics.RoleOperator}, Nodes: nodes}, nil
		}
	})
	runEdgebus(t, 0, "apply", "-f", writeFile(t, t.TempDir(), "plant.yaml", plantManifest))
	limited.Store(true)
	out, errs := runEdgebus(t, 0, "export")
	require.Contains(t, out, "kind: DeviceModel\n")
	require.Contains(t, out, "kind: Device\n")
	require.Regexp(t, `^edgebus: secrets are left out: .*needs nodes: \["\*"\]\nedgebus: repositories are left out: .*\n$`, errs)
	_, errs = runEdgebus(t, refused, "export", "nodes", "secrets")
	require.Contains(t, errs, "forbidden")
}

// An export is a manifest: who edits it, and applies it, and edits it again, finds every step done.
func TestAnExportCanBeEdited(t *testing.T) {
	startHub(t)
	dir := t.TempDir()
	runEdgebus(t, 0, "apply", "-f", writeFile(t, dir, "plant.yaml", plantManifest))
	export, _ := runEdgebus(t, 0, "export", "devices")
	file := writeFile(t, dir, "lamp.yaml", strings.Replace(export, "    room: hall\n", "    room: hall\n    floor: ground\n", 1))
	runEdgebus(t, 0, "apply", "-f", file)
	out, _ := runEdgebus(t, 0, "get", "devices", "-l", "floor=ground", "-o", "name")
	require.Equal(t, "device/lamp\n", out)
	writeFile(t, dir, "lamp.yaml", export)
	runEdgebus(t, 0, "apply", "-f", file)
	out, _ = runEdgebus(t, 0, "get", "devices", "-l", "floor", "-o", "name")
	require.Empty(t, out)
}

func TestContexts(t *testing.T) {
	hub := startHub(t)
	t.Setenv("EDGEBUS_SERVER", "")
	runEdgebus(t, 0, "apply", "--server", hub.URL, "-n", "hall", "-f", writeFile(t, t.TempDir(), "plant.yaml", plantManifest))
	runEdgebus(t, 0, "context", "set", "here", "--server", hub.URL, "-n", "hall")
	runEdgebus(t, 0, "context", "set", "nowhere", "--server", "http://127.0.0.1:1")
	out, _ := runEdgebus(t, 0, "get", "devices", "-o", "name")
	require.Equal(t, "device/lamp\n", out, "the first one is used")
	runEdgebus(t, 0, "context", "use", "nowhere")
	runEdgebus(t, unreachable, "get", "devices")
	out, _ = runEdgebus(t, 0, "get", "devices", "--context", "here", "-o", "name")
	require.Equal(t, "device/lamp\n", out)
	t.Setenv("EDGEBUS_CONTEXT", "here")
	runEdgebus(t, 0, "get", "device", "lamp")
	t.Setenv("EDGEBUS_SERVER", "http://127.0.0.1:1")
	runEdgebus(t, unreachable, "get", "device", "lamp")
	runEdgebus(t, 0, "get", "device", "lamp", "--server", hub.URL)
	out, _ = runEdgebus(t, 0, "context", "list")
	require.Regexp(t, `(?m)^\* +nowhere +http://127.0.0.1:1$`, out)
	info, err := os.Stat(os.Getenv("KUBECONFIG"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	out, _ = runEdgebus(t, 0, "kubeconfig", "--server", hub.URL)
	require.Contains(t, out, "server: "+hub.URL)
	require.Contains(t, out, "namespace: hall")
	_, errs := runEdgebus(t, notFound, "context", "use", "other")
	require.Contains(t, errs, "edgebus context set other")
	runEdgebus(t, misused, "context", "set", "bad", "--server", "hub")
	runEdgebus(t, 0, "context", "delete", "nowhere")
	out, _ = runEdgebus(t, 0, "__complete", "context", "use", "")
	require.Contains(t, out, "here\n:4")
}

func TestExitCodesAndCompletion(t *testing.T) {
	startHub(t)
	for _, line := range []string{
		"get", "get devices -o xml", "get devices --nope", "gett", "get devices,nodes a", "get device/", "get device a -l b",
		"get devices --server hub", "twin set lamp power", "twin set lamp a=1 a=2", "twin set lamp a/b=1", "twin get lamp -o value",
		"delete devices", "describe device",
	} {
		_, errs := runEdgebus(t, misused, strings.Split(line, " ")...)
		require.True(t, strings.HasPrefix(errs, "edgebus: "), errs)
	}
	runEdgebus(t, notFound, "get", "toasters")
	runEdgebus(t, notFound, "twin", "get", "lamp")
	runEdgebus(t, unreachable, "get", "devices", "--server", "http://127.0.0.1:1")
	runEdgebus(t, 0, "apply", "-f", writeFile(t, t.TempDir(), "plant.yaml", plantManifest))
	runEdgebus(t, 0, "twin", "set", "lamp", "colorTemp_K=2700")
	runEdgebus(t, refused, "twin", "set", "lamp", "brightness=101")
	runEdgebus(t, late, "twin", "set", "lamp", "brightness=10", "--wait", "--timeout", "2s")
	for line, want := range map[string]string{"get |": "devicemodels\n", "get devices |": "lamp\n", "get device/|": "device/lamp\n", "twin set lamp |": "brightness=\n"} {
		words := strings.Split(strings.TrimSuffix(line, "|"), " ")
		out, _ := runEdgebus(t, 0, append([]string{"__complete", words[0], "--timeout=1m"}, words[1:]...)...)
		require.Contains(t, out, want, line)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		out, _ := runEdgebus(t, 0, "completion", shell)
		require.Contains(t, out, "edgebus", shell)
	}
	runEdgebus(t, 0, "kinds")
	require.Equal(t, failed, exitCodeOf(http.ErrHandlerTimeout))
}

func TestWishes(t *testing.T) {
	desired := &resource.TwinValue{Value: "ON", Ver: 7}
	w := desiredWrite{device: "lamp", property: "power", value: "ON", afterVersion: 6}
	override := &resource.TwinValue{Value: "OFF", BasedOn: 7, Origin: "switch"}
	for name, c := range map[string]struct {
		twin resource.TwinProperty
		done bool
		err  string
	}{
		"not seen yet":     {resource.TwinProperty{InSync: true}, false, ""},
		"another's":        {resource.TwinProperty{Desired: &resource.TwinValue{Value: "OFF", Ver: 8}, InSync: true}, false, ""},
		"an older one":     {resource.TwinProperty{Desired: &resource.TwinValue{Value: "ON", Ver: 6}, InSync: true}, false, ""},
		"waiting":          {resource.TwinProperty{Desired: desired}, false, ""},
		"applied":          {resource.TwinProperty{Desired: desired, InSync: true}, true, ""},
		"refused":          {resource.TwinProperty{Desired: desired, Refused: &resource.Refusal{Ver: 7, Code: "Busy", Message: "later"}}, false, "refused by the device: Busy: later"},
		"refused before":   {resource.TwinProperty{Desired: desired, Refused: &resource.Refusal{Ver: 6, Code: "Busy"}}, false, ""},
		"overridden":       {resource.TwinProperty{Desired: desired, Conflict: &resource.OverrideConflict{DesiredVer: 7, Override: "OFF", Policy: "edge", Winner: "override"}}, false, "overridden with OFF"},
		"held back":        {resource.TwinProperty{Desired: desired, Refused: &resource.Refusal{Ver: 7, Code: "Held"}}, false, "is held back: Held. To set it again, clear the desired value first: edgebus twin set lamp power="},
		"safe instead":     {resource.TwinProperty{Desired: desired, Refused: &resource.Refusal{Ver: 7, Code: "SafeValue"}}, false, "is held back: SafeValue. To set"},
		"overridden since": {resource.TwinProperty{Desired: desired, Override: override}, false, "overridden with OFF, by switch. To set it again"},
		"not any more":     {resource.TwinProperty{Desired: &resource.TwinValue{Value: "ON", Ver: 8}, Override: override}, false, ""},
		"won the conflict": {resource.TwinProperty{Desired: desired, InSync: true, Conflict: &resource.OverrideConflict{DesiredVer: 7, Winner: "desired"}}, true, ""},
	} {
		done, err := w.outcome(c.twin)
		require.Equal(t, c.done, done, name)
		if c.err == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.err, name)
		require.Equal(t, refused, exitCodeOf(err), name)
	}
	done, err := desiredWrite{property: "power"}.outcome(resource.TwinProperty{})
	require.NoError(t, err)
	require.True(t, done, "taken back")
}

func TestApplyShowsWhatTheHubWarnsOf(t *testing.T) {
	startHub(t)
	lost := strings.ReplaceAll(plantManifest[:strings.LastIndex(plantManifest, "---")], "n1", "attic")
	both := lost + "---" + strings.ReplaceAll(lost[:strings.Index(lost, "---")], "lamp", "fan")
	out, errs := runEdgebus(t, 0, "apply", "-f", writeFile(t, t.TempDir(), "lost.yaml", both))
	require.Contains(t, out, "device/fan created")
	require.Equal(t, "Warning: spec.nodeName: there is no Node attic; its devices wait until a core of that name connects\n"+
		"3 objects: 3 created\n", errs)
}

// TestTimeoutBoundsTheWholeCommand: a hub that takes connections and never answers holds nobody up for longer.
func TestTimeoutBoundsTheWholeCommand(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "config"))
	hung, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer hung.Close()
	manifest := writeFile(t, t.TempDir(), "plant.yaml", plantManifest)
	commands := []string{
		"get devices", "get devices -w", "watch devices", "kinds", "describe device lamp", "export", "apply -f " + manifest,
		"delete device lamp", "delete device lamp --wait", "twin get lamp", "twin watch lamp", "twin set lamp power=ON", "twin set lamp power=ON --wait",
	}
	codes, errs := make([]int, len(commands)), make([]bytes.Buffer, len(commands))
	began := time.Now()
	var all sync.WaitGroup
	for i, args := range commands {
		all.Go(func() {
			codes[i] = run(append(strings.Fields(args), "--timeout", "3s", "--server", "http://"+hung.Addr().String()), io.Discard, &errs[i])
		})
	}
	all.Wait()
	require.Less(t, time.Since(began), 20*time.Second, "each answer has 30 s otherwise")
	for i, args := range commands {
		require.Contains(t, errs[i].String(), "no answer from the hub at http://"+hung.Addr().String()+": it takes the connection, and has not answered GET /api", args)
		require.Equal(t, late, codes[i], args)
	}
	runEdgebus(t, misused, "get", "devices", "--timeout", "-1s")
}

// TestTimeIsUpAmongMany: the code is the same for many objects as for one, and what is left is said once.
func TestTimeIsUpAmongMany(t *testing.T) {
	hub := startHub(t)
	hangs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			hub.Config.Handler.ServeHTTP(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // else nobody notices that the client has gone
		<-r.Context().Done()
	}))
	defer hangs.Close()
	defer hangs.CloseClientConnections()
	manifest := writeFile(t, t.TempDir(), "plant.yaml", plantManifest)
	for args, left := range map[string]string{
		"apply -f " + manifest:    "3 objects: 1 failed, 2 without an answer\n",
		"delete -f " + manifest:   "edgebus: not tried: 2 more\n",
		"delete node n1 n2 n3 n4": "edgebus: not tried: 3 more\n",
		"delete node n1":          "time was up (--timeout)\n",
		"apply -q -f " + manifest: "3 objects: 1 failed, 2 without an answer\n",
	} {
		errs := runWithMoreTime(t, late, left, append(strings.Fields(args), "--server", hangs.URL)...)
		require.Equal(t, 1, strings.Count(errs, ": time was up (--timeout)\n"), errs)
		require.NotContains(t, errs, "firewall")
	}
	runEdgebus(t, 0, "get", "nodes", "--timeout", "2000000h")
}

// TestAnInterruptedApplyFails: what has no answer is not done.
func TestAnInterruptedApplyFails(t *testing.T) {
	hub := startHub(t)
	var once sync.Once
	hangs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			hub.Config.Handler.ServeHTTP(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		once.Do(func() { assert.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGINT)) }) // the command listens for it until it ends
		<-r.Context().Done()
	}))
	defer hangs.Close()
	defer hangs.CloseClientConnections()
	_, errs := runEdgebus(t, failed, "apply", "-f", writeFile(t, t.TempDir(), "plant.yaml", plantManifest), "--server", hangs.URL)
	require.Contains(t, errs, "3 objects: 3 without an answer\n")
}

// runWithMoreTime runs a command with ever more time, until a busy machine gets as far as to say what is wanted.
func runWithMoreTime(t *testing.T, code int, want string, args ...string) string {
	t.Helper()
	for limit := time.Second; ; limit *= 2 {
		var both bytes.Buffer
		got := run(append(args, "--timeout", limit.String()), &both, &both)
		if got == code && strings.Contains(both.String(), want) {
			return both.String()
		}
		require.Less(t, limit, 30*time.Second, "%v: code %d\n%s", args, got, both.String())
	}
}

// TestAWatchLastsAsLongAsItsTimeout: that was asked for, and is no failure.
func TestAWatchLastsAsLongAsItsTimeout(t *testing.T) {
	startHub(t)
	runEdgebus(t, 0, "apply", "-f", writeFile(t, t.TempDir(), "plant.yaml", plantManifest))
	runWithMoreTime(t, 0, "lamp", "watch", "devices")
}

func TestWhatAWatchTells(t *testing.T) {
	object := func(text string) (o client.Object) {
		require.NoError(t, json.Unmarshal([]byte(text), &o))
		return o
	}
	lamp := func(value, ts string) client.Object {
		return object(`{"kind":"Device","metadata":{"name":"lamp","resourceVersion":"` + ts + `"},"status":{
			"twin":{"power":{"reported":{"value":"` + value + `","ts":"` + ts + `","ver":` + ts + `}}},
			"conditions":[{"type":"InSync","status":"True","lastTransitionTime":"` + ts + `"}]}}`)
	}
	h, now := lastValues{}, time.Date(2026, 11, 22, 13, 43, 2, 0, time.UTC)
	note := func(kind string, o client.Object) string {
		text, told := h.changeNote(kind, o, now)
		require.Equal(t, told, text != "13:43:02")
		return text
	}
	require.Equal(t, "13:43:02 (new)", note("ADDED", lamp("OFF", "1")))
	require.Equal(t, "13:43:02 power.reported: OFF → ON", note("MODIFIED", lamp("ON", "2")))
	require.Equal(t, "13:43:02", note("MODIFIED", lamp("ON", "3")), "no value has changed")
	require.Equal(t, "13:43:02 (deleted)", note("DELETED", lamp("ON", "4")))
	secret := func(value string) client.Object {
		return object(`{"kind":"Secret","metadata":{"name":"s"},"data":{"key":"` + value + `"}}`)
	}
	note("ADDED", secret("b25l"))
	require.NotContains(t, note("MODIFIED", secret("b25lIHR3bw==")), "b25l")

	sign := func(text string) client.Object {
		return object(`{"kind":"Device","metadata":{"name":"sign","labels":{"origin":"` + text + `"}},"spec":{"desired":{"message":"` + text + `"}},
			"status":{"twin":{"message":{"reported":{"value":"` + text + `"}}}}}`)
	}
	note("ADDED", sign("a"))
	require.Equal(t, "13:43:02 metadata.labels.origin: a → b, spec.desired.message: a → b, message.reported: a → b", note("MODIFIED", sign("b")),
		"names that users choose are no names of the hub's fields")
}

func TestAFailureToListIsNoEmptyList(t *testing.T) {
	server := startHub(t)
	file := filepath.Join(t.TempDir(), "plant.yaml")
	require.NoError(t, os.WriteFile(file, []byte(plantManifest), 0o600))
	runEdgebus(t, 0, "apply", "-f", file)
	hub := server.Config.Handler
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/devices") {
			http.Error(w, `{"kind":"Status","message":"devices are not for you","code":403}`, http.StatusForbidden)
			return
		}
		hub.ServeHTTP(w, r)
	})
	out, errs := runEdgebus(t, 4, "delete", "devices,devicemodels", "-l", "room=hall")
	require.Empty(t, out)
	require.Contains(t, errs, "devices are not for you")
}

func TestLabelsOfInvitationsAreInOrder(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `[{"id":"1","node":"n1","labels":{"e":"5","c":"3","a":"1","d":"4","b":"2"},"uses":1}]`)
	}))
	t.Cleanup(server.Close)
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "config"))
	for range 8 {
		out, _ := runEdgebus(t, 0, "invite", "--list", "--server", server.URL)
		require.Contains(t, out, "a=1,b=2,c=3,d=4,e=5")
	}
}

func TestCommandsAreFolded(t *testing.T) {
	const command = "mosquitto_pub -p 12883 -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/brightness -m 40"
	lines := wrapCommand(command, 60)
	for _, line := range lines {
		require.LessOrEqual(t, len(line), 60)
	}
	require.Equal(t, command, strings.ReplaceAll(strings.Join(lines, "\n"), " \\\n    ", " "), "as a shell reads it")
	require.Equal(t, []string{command}, wrapCommand(command, 100))
}

// expiringWatcher is a store whose first watch has lost its place. Then, and when the next one has begun, functions are called.
type expiringWatcher struct {
	store.Watcher
	lost, next func()
	watches    atomic.Int32
}

func (f *expiringWatcher) Watch(ctx context.Context, of store.Key, from uint64) (store.Stream, error) {
	if f.watches.Add(1) == 1 {
		f.lost()
		return nil, store.Gone(of.Kind, from, from+1)
	}
	st, err := f.Watcher.Watch(ctx, of, from)
	f.next()
	return st, err
}

func TestAnEndIsAwaitedThoughTheWatchHasLostItsPlace(t *testing.T) {
	const at = "/apis/edgebus.io/v1alpha1/nodes"
	for name, f := range map[string]func(release, replace, nothing func()) *expiringWatcher{
		"meanwhile": func(release, _, nothing func()) *expiringWatcher {
			return &expiringWatcher{lost: release, next: nothing}
		},
		"later": func(release, _, nothing func()) *expiringWatcher {
			return &expiringWatcher{lost: nothing, next: release}
		},
		"and a new one": func(_, replace, nothing func()) *expiringWatcher {
			return &expiringWatcher{lost: replace, next: nothing}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var hub *httptest.Server
			send := func(method, path, form, body string) {
				req, err := http.NewRequest(method, hub.URL+path, strings.NewReader(body))
				assert.NoError(t, err)
				req.Header.Set("Content-Type", form)
				res, err := http.DefaultClient.Do(req)
				if assert.NoError(t, err) {
					assert.Less(t, res.StatusCode, 300, path)
					assert.NoError(t, res.Body.Close())
				}
			}
			release := func() {
				send(http.MethodPatch, at+"/n1", "application/merge-patch+json", `{"metadata":{"finalizers":null}}`)
			}
			create := func() {
				send(http.MethodPost, at, "application/json", `{"metadata":{"name":"n1","finalizers":["x.io/a"]}}`)
			}
			watcher := f(release, func() { release(); create() }, func() {})
			hub = startHub(t, func(o *api.Options) { watcher.Watcher, o.Watcher = o.Watcher, watcher })
			create()
			out, _ := runEdgebus(t, 0, "delete", "node", "n1", "--wait")
			require.Equal(t, "node/n1 is being deleted, and waits for its finalizers: x.io/a\nnode/n1 deleted\n", out)
		})
	}
}
