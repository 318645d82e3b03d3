// SPDX-License-Identifier: Apache-2.0

package objects_test

import (
	"context"
	"io"
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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/api"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/test/clitest"
)

func TestObjectsThroughTheirLives(t *testing.T) {
	clitest.StartHub(t)
	file := clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant)
	_, errs := clitest.Run(t, 0, "get", "devices")
	require.Equal(t, "no devices in namespace default\n", errs)

	out, errs := clitest.Run(t, 0, "apply", "-f", file)
	require.Equal(t, "devicemodel/dimmable created\nnode/n1 created\ndevice/lamp created\n", out, "the model first")
	require.Equal(t, "3 objects: 3 created\n", errs)
	out, _ = clitest.Run(t, 0, "get", "dev")
	require.Regexp(t, `^NAME +NODE +MODEL +STATE +IN-SYNC +ALARM +REPORTED +AGE\nlamp +n1 +dimmable +unknown +\S+ +<none> +<none> +\d+s\n$`, out)
	out, _ = clitest.Run(t, 0, "get", "devices", "-o", "wide")
	require.Regexp(t, `^NAME +NODE +MODEL +STATE +IN-SYNC +ALARM +REPORTED +PROTOCOL +LAST-SEEN +AGE\nlamp +n1 +dimmable +unknown +\S+ +<none> +<none> +virtual .*\d+s\n$`, out)
	out, _ = clitest.Run(t, 0, "get", "device/lamp", "node/n1", "-o", "name")
	require.Equal(t, "device/lamp\nnode/n1\n", out)
	out, _ = clitest.Run(t, 0, "get", "devices,devicemodels", "-A")
	require.Contains(t, out, "device/lamp")
	require.Contains(t, out, "devicemodel/dimmable")
	out, _ = clitest.Run(t, 0, "get", "device", "lamp", "-o", "json")
	require.True(t, strings.HasPrefix(out, `{`))
	require.NotContains(t, out, "managedFields")
	out, _ = clitest.Run(t, 0, "get", "devices", "-o", "yaml", "-l", "room=hall")
	require.Contains(t, out, "kind: List\n")
	out, _ = clitest.Run(t, 0, "describe", "device", "lamp")
	require.Regexp(t, `(?s)Name: +lamp.*Labels: +room=hall.*Spec:.*brightness: "40"`, out)
	require.NotContains(t, out, client.LastApplied)

	out, errs = clitest.Run(t, 3, "get", "device", "lamp", "none")
	require.Contains(t, out, "lamp")
	require.Contains(t, errs, `"none" not found`)
	_, errs = clitest.Run(t, 0, "delete", "devicemodel", "dimmable")
	require.Contains(t, errs, "Warning: devicemodel dimmable is in use by lamp")
	out, _ = clitest.Run(t, 0, "delete", "devices", "-l", "room=hall")
	require.Equal(t, "device/lamp deleted\n", out)
	clitest.Run(t, 3, "get", "devicemodel", "dimmable") // it went with its last device
	clitest.Run(t, 3, "delete", "device", "lamp")
	clitest.Run(t, 0, "delete", "device", "lamp", "--ignore-not-found")
	out, errs = clitest.Run(t, 3, "delete", "-f", file)
	require.Equal(t, "node/n1 deleted\n", out)
	require.Contains(t, errs, "plant.yaml document 1 (Device lamp): ")
}

// What people know of kubectl does the same here.
func TestOutputAsKubectlHasIt(t *testing.T) {
	clitest.StartHub(t)
	dir := t.TempDir()
	lamp, rest, _ := strings.Cut(clitest.Plant, "---")
	clitest.Run(t, 0, "create", "-f", clitest.WriteFile(t, dir, "rest.yaml", rest))
	for name, brightness := range map[string]string{"a": "9", "b": "40", "c": "7"} {
		text := strings.NewReplacer("lamp", name, "brightness: 40", "brightness: "+brightness, "room: hall", "room: "+name+", floor: '2'").Replace(lamp)
		out, _ := clitest.Run(t, 0, "create", "-f", clitest.WriteFile(t, dir, name+".yaml", text))
		require.Equal(t, "device/"+name+" created\n", out)
	}
	_, errs := clitest.Run(t, exitcode.Refused, "create", "-f", filepath.Join(dir, "a.yaml"))
	require.Contains(t, errs, `devices.edgebus.io "a" already exists`)

	generated := clitest.WriteFile(t, dir, "generated.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: made-}\n")
	for range 2 {
		out, _ := clitest.Run(t, 0, "create", "-f", generated)
		require.Regexp(t, `^configmap/made-.{5} created\n$`, out)
	}
	for _, command := range []string{"apply", "delete", "diff"} {
		_, errs = clitest.Run(t, exitcode.Refused, command, "-f", generated)
		require.Contains(t, errs, "metadata.name: is missing: an object with a generateName can be created, and nothing else")
	}

	output := func(args ...string) string {
		out, _ := clitest.Run(t, 0, append([]string{"get"}, args...)...)
		return out
	}
	require.Regexp(t, `^a +n1 .*\nb +n1 .*\nc +n1 .*\n$`, output("devices", "--no-headers"))
	require.Regexp(t, `^device/a .*\ndevice/b .*\ndevice/c .*\nnode/n1 .*\n$`, output("devices,nodes", "--no-headers"))
	require.Regexp(t, `^NAME .* AGE +LABELS\na .* floor=2,room=a\nb .*floor=2,room=b\nc .*\n$`, output("devices", "--show-labels"))
	require.Equal(t, "a b c", output("devices", "-o", "jsonpath={.items[*].metadata.name}"))
	require.Equal(t, "a=9\nb=40\nc=7\n", output("devices", "-o", `jsonpath={range .items[*]}{.metadata.name}={.spec.desired.brightness}{"\n"}{end}`))
	require.Equal(t, "n1", output("device", "a", "-o", "jsonpath=.spec.nodeName"))
	require.Empty(t, output("device", "a", "-o", "jsonpath={.spec.none}"))
	require.Equal(t, "dimmable", output("devicemodels", "-o", `jsonpath={.items[?(@.metadata.generation<2)].metadata.name}`), "numbers are compared as such")
	require.Equal(t, "device/c\ndevice/a\ndevice/b\n", output("devices", "-o", "name", "--sort-by", ".spec.desired.brightness"), "as numbers")
	require.Regexp(t, `^NAME .*\nc .*\na .*\nb .*\n$`, output("devices", "--sort-by={.spec.desired.brightness}"))
	require.Equal(t, "c a b", output("devices", "--sort-by=.spec.desired.brightness", "-o", "jsonpath={.items[*].metadata.name}"))
	require.Equal(t, "device/a\ndevice/b\ndevice/c\n", output("devices", "-o", "name", "--sort-by", "metadata.labels.room"))
}

// What flightctl calls a Device is a Node here: its Events are the Node's, not those of a Device of that name.
func TestDescribeShowsTheEventsOfTheObjectItself(t *testing.T) {
	clitest.StartHub(t)
	dir := t.TempDir()
	clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, dir, "plant.yaml", strings.ReplaceAll(clitest.Plant, "name: lamp", "name: n1")))
	for _, kind := range []string{"device", "node"} {
		object, _ := clitest.Run(t, 0, "get", kind, "n1", "-o", "json")
		uid := regexp.MustCompile(`"uid": *"([^"]+)"`).FindStringSubmatch(object)[1]
		clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, dir, kind+".yaml", "{apiVersion: v1, kind: Event, metadata: {name: of-"+kind+"}, reason: Saw-"+kind+
			", involvedObject: {kind: "+strings.ToUpper(kind[:1])+kind[1:]+", name: n1, uid: "+uid+"}}"))
	}
	for _, name := range []string{"devices.flightctl.io", "node"} {
		out, _ := clitest.Run(t, 0, "describe", name, "n1")
		require.Contains(t, out, "Saw-node", name)
		require.NotContains(t, out, "Saw-device", name)
	}
	out, _ := clitest.Run(t, 0, "describe", "device", "n1")
	require.Contains(t, out, "Saw-device")
	require.NotContains(t, out, "Saw-node")
}

func TestOneThatFailsDoesntStopTheOthers(t *testing.T) {
	clitest.StartHub(t)
	dir := t.TempDir()
	clitest.WriteFile(t, dir, "a.yaml", clitest.Plant)
	clitest.WriteFile(t, dir, "b/bad.yaml", strings.Replace(clitest.Plant, "40", "400", 1)+"---\na: [\n---\napiVersion: v9\nkind: Toaster\nmetadata: {name: t}\n")
	clitest.WriteFile(t, dir, "notes.txt", "no manifest")
	_, errs := clitest.Run(t, 0, "apply", "-f", dir)
	require.Contains(t, errs, "3 objects: 3 created", "without -R")
	out, errs := clitest.Run(t, 1, "apply", "-R", "-f", dir)
	require.Contains(t, out, "device/lamp unchanged")
	require.Contains(t, errs, "bad.yaml document 1 (Device lamp): ")
	require.Contains(t, errs, "bad.yaml document 4: is not YAML")
	require.Contains(t, errs, "bad.yaml document 5 (Toaster t): the hub knows no kind Toaster of v9")
	require.Contains(t, errs, "8 objects: 5 unchanged, 3 failed")
	_, errs = clitest.Run(t, exitcode.Refused, "apply", "-f", clitest.WriteFile(t, dir, "c.yaml", strings.Replace(clitest.Plant, "40", "x", 1)), "--dry-run")
	require.Contains(t, errs, "(dry run)")
	for _, args := range [][]string{{}, {"-f", filepath.Join(dir, "b"), "x"}, {"-f", "http://example.org/x.yaml"}, {"-f", clitest.WriteFile(t, dir, "d/none.yaml", "# nothing\n")}} {
		clitest.Run(t, exitcode.Misused, append([]string{"apply"}, args...)...)
	}
	_, errs = clitest.Run(t, exitcode.Misused, "apply", "-n", "other", "-f", clitest.WriteFile(t, dir, "e.yaml", strings.Replace(clitest.Plant, "name: lamp", "name: lamp, namespace: mine", 1)))
	require.Contains(t, errs, "it is in namespace mine, and --namespace says other")
}

func TestApplyShowsWhatTheHubWarnsOf(t *testing.T) {
	clitest.StartHub(t)
	lost := strings.ReplaceAll(clitest.Plant[:strings.LastIndex(clitest.Plant, "---")], "n1", "attic")
	both := lost + "---" + strings.ReplaceAll(lost[:strings.Index(lost, "---")], "lamp", "fan")
	out, errs := clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, t.TempDir(), "lost.yaml", both))
	require.Contains(t, out, "device/fan created")
	require.Equal(t, "Warning: spec.nodeName: there is no Node attic; its devices wait until a core of that name connects\n"+
		"3 objects: 3 created\n", errs)
}

func TestApplyWarnsOfAKeyThatIsThereTwice(t *testing.T) {
	clitest.StartHub(t)
	file := clitest.WriteFile(t, t.TempDir(), "twice.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata:\n  a: one\n  a: two\n")
	_, errs := clitest.Run(t, 0, "apply", "-f", file)
	require.Equal(t, "Warning: "+file+": line 6: key \"a\" already set in map: the last value counts\n", errs[:strings.Index(errs, "\n")+1])
}

// TestAnInterruptedApplyFails: what has no answer is not done.
func TestAnInterruptedApplyFails(t *testing.T) {
	hub := clitest.StartHub(t)
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
	_, errs := clitest.Run(t, exitcode.Failed, "apply", "-f", clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant), "--server", hangs.URL)
	require.Contains(t, errs, "3 objects: 3 without an answer\n")
}

// TestAWatchLastsAsLongAsItsTimeout: that was asked for, and is no failure.
func TestAWatchLastsAsLongAsItsTimeout(t *testing.T) {
	clitest.StartHub(t)
	clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant))
	clitest.RunWithMoreTime(t, 0, "lamp", "watch", "devices")
}

func TestAFailureToListIsNoEmptyList(t *testing.T) {
	server := clitest.StartHub(t)
	file := filepath.Join(t.TempDir(), "plant.yaml")
	require.NoError(t, os.WriteFile(file, []byte(clitest.Plant), 0o600))
	clitest.Run(t, 0, "apply", "-f", file)
	hub := server.Config.Handler
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/devices") {
			http.Error(w, `{"kind":"Status","message":"devices are not for you","code":403}`, http.StatusForbidden)
			return
		}
		hub.ServeHTTP(w, r)
	})
	out, errs := clitest.Run(t, 4, "delete", "devices,devicemodels", "-l", "room=hall")
	require.Empty(t, out)
	require.Contains(t, errs, "devices are not for you")
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
			hub = clitest.StartHub(t, func(o *api.Options) { watcher.Watcher, o.Watcher = o.Watcher, watcher })
			create()
			out, _ := clitest.Run(t, 0, "delete", "node", "n1", "--wait")
			require.Equal(t, "node/n1 is being deleted, and waits for its finalizers: x.io/a\nnode/n1 deleted\n", out)
		})
	}
}

// Rules that come with their endpoints act at once, without a warning that there are none.
func TestRulesAreAppliedAfterTheirEndpoints(t *testing.T) {
	clitest.StartHub(t)
	file := clitest.WriteFile(t, t.TempDir(), "rules.yaml", `{apiVersion: rules.kubeedge.io/v1, kind: Rule, metadata: {name: r}, spec: {source: web, sourceResource: {path: /x}, target: messages, targetResource: {topic: x}}}
---
{apiVersion: rules.kubeedge.io/v1, kind: RuleEndpoint, metadata: {name: web}, spec: {ruleEndpointType: rest, properties: {}}}
---
{apiVersion: rules.kubeedge.io/v1, kind: RuleEndpoint, metadata: {name: messages}, spec: {ruleEndpointType: eventbus, properties: {}}}
`)
	out, errs := clitest.Run(t, 0, "apply", "-f", file)
	require.Equal(t, "ruleendpoint/web created\nruleendpoint/messages created\nrule/r created\n", out)
	require.Equal(t, "3 objects: 3 created\n", errs)
}
