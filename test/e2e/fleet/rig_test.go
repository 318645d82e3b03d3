// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/hosttest"
	"github.com/edgebus/edgebus/topics/password"
)

// waitTimeout is how long a test waits for what should come at once, on a busy machine.
const waitTimeout = 45 * time.Second

// maxNodes is how many nodes with programs of their own the tests can have.
const maxNodes = 48

// The users of the hub. Whoever signs in with none of these names is an operator, but sees no Secrets and Repositories.
const (
	operator       = "op"     // of all nodes
	viewer         = "vera"   // of all nodes
	controllerUser = "aap"    // a controller that is a program beside the hub
	otherNode      = "acm"    // another such
	theNode        = "own"    // a node with a password and no programs
	notIt          = "others" // another such
	overHTTP       = "web"    // another such
	word           = "correct-horse"
)

const hubSettings = `auth:
  anonymous: loopback
  users:
    - {name: op, role: operator, nodes: ["*"], passwordHash: '%[1]s'}
    - {name: vera, role: viewer, nodes: ["*"], passwordHash: '%[1]s'}
    - {name: aap, role: controller, passwordHash: '%[1]s'}
    - {name: acm, role: controller, passwordHash: '%[1]s'}
    - {name: own, role: node, passwordHash: '%[1]s'}
    - {name: others, role: node, passwordHash: '%[1]s'}
    - {name: web, role: node, passwordHash: '%[1]s'}
sources: {interval: 500ms, allow: [127.0.0.0/8, "::1/128"]}
`

// sharedHub is what all tests share: a hub, places for nodes, and a directory of git repositories.
var sharedHub struct {
	*harness.World
	kubectl string
	api     *httptest.Server // signs in whoever asks as op
	git     *httptest.Server
	taken   atomic.Int64
}

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// runTests starts the hub, and takes it down after the tests. A program that ended by itself fails them.
func runTests(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "fleet") // the path of a socket is short
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	if sharedHub.World, err = harness.NewWorld(dir, 1); err != nil {
		return 1, err
	}
	defer sharedHub.Close()
	if bin := os.Getenv("EDGEBUS_BIN"); bin != "" {
		sharedHub.Bin = bin
	}
	for i := 2; i <= maxNodes; i++ { // before the tests, which run side by side
		if _, err := sharedHub.AddNode(nodeName(i), 1); err != nil {
			return 1, err
		}
	}
	for _, variable := range sharedHub.Env() {
		if at, ok := strings.CutPrefix(variable, "KUBECTL="); ok {
			sharedHub.kubectl = at
		}
	}
	settings := fmt.Sprintf(hubSettings, password.NewHash([]byte(word)))
	if err := os.WriteFile(filepath.Join(dir, "hub.yaml"), []byte(settings), 0o600); err != nil {
		return 1, err
	}
	if err := sharedHub.Start(context.Background(), "hub"); err != nil {
		return 1, fmt.Errorf("%w\n%s", err, sharedHub.Logs(40))
	}
	sharedHub.User, sharedHub.Password = "op", word
	sharedHub.api = sharedHub.SignedIn()
	defer sharedHub.api.Close()
	if sharedHub.git, err = serveGit(filepath.Join(dir, "git")); err != nil {
		return 1, err
	}
	defer sharedHub.git.Close()
	code = m.Run()
	if died := sharedHub.Died(); len(died) > 0 {
		err = fmt.Errorf("ended by themselves: %s", strings.Join(died, ", "))
	}
	if code != 0 || err != nil {
		fmt.Fprintln(os.Stderr, sharedHub.Logs(30))
	}
	return code, err
}

func nodeName(i int) string { return "n" + strconv.Itoa(i) }

// testNode is a node of the hub's. It has programs of its own if start has started them.
type testNode struct {
	name, root, socket string
	core, agent        string // the programs' names
	systemd            *hosttest.Systemd
}

var agentUsers = sync.OnceValues(func() (string, error) { // who may be a core's agent
	me, err := user.Current()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("auth: {anonymous: loopback, users: [{name: agent, role: agent, local: %q}]}\n", me.Username), nil
})

// newOnlineNode makes a node with these labels, key=value, and starts its core.
func newOnlineNode(t *testing.T, labels ...string) *testNode {
	t.Helper()
	i := int(sharedHub.taken.Add(1))
	require.LessOrEqual(t, i, maxNodes, "more nodes than the rig has places for")
	n := &testNode{name: nodeName(i), core: "core@" + nodeName(i), agent: "agent@" + nodeName(i)}
	n.socket = filepath.Join(sharedHub.Dir, n.name+".sock")
	n.root = filepath.Join(sharedHub.Dir, n.name+".root")
	require.NoError(t, os.MkdirAll(filepath.Join(n.root, "etc"), 0o755))
	users, err := agentUsers()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(sharedHub.Dir, n.core+".yaml"), []byte(users), 0o600))
	makeNode(t, n.name, labels...)
	require.NoError(t, sharedHub.Start(t.Context(), n.core, "--mqtt-socket", n.socket))
	waitUntil(t, func() error { return wantEqual("online", getObject(t, "nodes/"+n.name).text("status.state")) })
	t.Cleanup(func() {
		if sharedHub.Running(n.agent) {
			_ = sharedHub.Crash(n.agent)
		}
		_ = sharedHub.Crash(n.core)
	})
	return n
}

// newNodeWithAgent is online, with an agent that makes the files below the node's root what the spec says.
func newNodeWithAgent(t *testing.T, labels ...string) *testNode {
	t.Helper()
	n := newOnlineNode(t, labels...)
	n.startAgent(t)
	return n
}

func (n *testNode) startAgent(t *testing.T, args ...string) {
	t.Helper()
	line := append([]string{
		"edgeagent", "--mqtt-socket", n.socket, "--data-dir", filepath.Join(sharedHub.Dir, n.agent), "--root", n.root, "--health-timeout", "5s", "--log-format", "json",
	}, args...)
	require.NoError(t, sharedHub.Run(t.Context(), n.agent, line, ""))
}

// withSystemd gives a node that has no agent yet a stand-in for systemd.
func (n *testNode) withSystemd(t *testing.T) {
	t.Helper()
	n.systemd = hosttest.StartSystemd(t, n.root)
	bus, _, _ := strings.Cut(strings.TrimPrefix(n.systemd.Address, "unix:path="), ",")
	require.NoError(t, os.MkdirAll(filepath.Join(n.root, "run/dbus"), 0o755))
	require.NoError(t, os.Symlink(bus, filepath.Join(n.root, "run/dbus/system_bus_socket")))
}

// untilFile waits until a file of the node has a text.
func (n *testNode) untilFile(t *testing.T, path, text string) {
	t.Helper()
	waitUntil(t, func() error {
		got, err := os.ReadFile(filepath.Join(n.root, path))
		if err != nil {
			return err
		}
		return wantEqual(text, string(got))
	})
}

func (n *testNode) get(t *testing.T) jsonValue { t.Helper(); return getObject(t, "nodes/"+n.name) }

// makeNode makes a Node, whose host needs not be there.
func makeNode(t *testing.T, name string, labels ...string) {
	t.Helper()
	of := map[string]string{}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		of[key] = value
	}
	text, err := json.Marshal(of)
	require.NoError(t, err)
	callOK(t, "", "POST", apiPath+"nodes", fmt.Sprintf(`{"apiVersion":"edgebus.io/v1alpha1","kind":"Node","metadata":{"name":%q,"labels":%s}}`, name, text))
}

// Where the hub serves its own kinds, and where flightctl's clients look for theirs.
const (
	apiPath       = "/apis/edgebus.io/v1alpha1/"
	flightctlPath = "/api/v1/"
)

// jsonValue is an answer of the API, or a part of it.
type jsonValue struct{ of any }

// at is the part at a path such as spec.config.0.name; nil if there is none.
func (v jsonValue) at(path string) jsonValue {
	of := v.of
	for path != "" {
		key, rest, _ := strings.Cut(path, ".")
		switch in := of.(type) {
		case map[string]any:
			for k := range in { // the longest key that fits: annotations have dots and slashes
				if len(k) > len(key) && (path == k || strings.HasPrefix(path, k+".")) {
					key, rest = k, strings.TrimPrefix(strings.TrimPrefix(path, k), ".")
				}
			}
			of = in[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(in) {
				return jsonValue{}
			}
			of = in[i]
		default:
			return jsonValue{}
		}
		path = rest
	}
	return jsonValue{of}
}

// text is the part at a path as text.
func (v jsonValue) text(path string) string {
	switch of := v.at(path).of.(type) {
	case nil:
		return ""
	case string:
		return of
	case float64:
		return strconv.FormatFloat(of, 'f', -1, 64)
	default:
		text, _ := json.Marshal(of)
		return string(text)
	}
}

func (v jsonValue) has(path string) bool { return v.at(path).of != nil }

func (v jsonValue) list(path string) (list []jsonValue) {
	in, _ := v.at(path).of.([]any)
	for _, of := range in {
		list = append(list, jsonValue{of})
	}
	return list
}

// condition is a condition of an object: its status, reason and message.
func (v jsonValue) condition(kind string) string {
	for _, c := range v.list("status.conditions") {
		if c.text("type") == kind {
			return strings.TrimSpace(c.text("status") + " " + c.text("reason") + " " + c.text("message"))
		}
	}
	return ""
}

// callAPI asks the hub, as a user or, with none, as op: who has not signed in may refer to no Repository and no Secret.
func callAPI(t *testing.T, as, method, path, body string, head ...string) (code int, answer jsonValue, header http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+sharedHub.Hub.HTTP+path, strings.NewReader(body))
	require.NoError(t, err)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if method == "PATCH" {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	for i := 0; i < len(head); i += 2 {
		r.Header.Set(head[i], head[i+1])
	}
	r.SetBasicAuth(cmp.Or(as, sharedHub.User), word)
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	if len(bytes.TrimSpace(text)) > 0 {
		require.NoError(t, json.Unmarshal(text, &answer.of), "%s %s: %s", method, path, text)
	}
	return response.StatusCode, answer, response.Header
}

// callOK is call for what must succeed.
func callOK(t *testing.T, as, method, path, body string, head ...string) jsonValue {
	t.Helper()
	code, answer, _ := callAPI(t, as, method, path, body, head...)
	require.Equal(t, 2, code/100, "%s %s: %d %s", method, path, code, answer.text(""))
	return answer
}

// callRefused is call for what must be refused, and returns why.
func callRefused(t *testing.T, code int, as, method, path, body string, head ...string) string {
	t.Helper()
	got, answer, _ := callAPI(t, as, method, path, body, head...)
	require.Equal(t, code, got, "%s %s: %s", method, path, answer.text(""))
	return answer.text("message")
}

// getObject reads one of the hub's own kinds.
func getObject(t *testing.T, path string) jsonValue {
	t.Helper()
	return callOK(t, "", "GET", apiPath+path, "")
}

// patchObject changes an object with a merge patch.
func patchObject(t *testing.T, path, body string) jsonValue {
	t.Helper()
	return callOK(t, "", "PATCH", apiPath+path, body)
}

// applyManifest makes objects what a YAML text says.
func applyManifest(t *testing.T, text string, args ...any) {
	t.Helper()
	require.NoError(t, sharedHub.Apply(t.Context(), fmt.Appendf(nil, text, args...)))
}

// kubectl runs kubectl against the hub.
func kubectl(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	if _, err := os.Stat(sharedHub.kubectl); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("no kubectl: make .tools/kubectl")
		}
		t.Skip("no kubectl: make .tools/kubectl")
	}
	cmd := exec.CommandContext(t.Context(), sharedHub.kubectl, append([]string{"--server", sharedHub.api.URL}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+sharedHub.Dir, "KUBECONFIG="+os.DevNull)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// runEdgebus runs the command line tool against the hub.
func runEdgebus(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(sharedHub.Bin, "edgebus"), append(args, "--server", sharedHub.api.URL)...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// waitUntil waits until check has no error.
func waitUntil(t *testing.T, check func() error) {
	t.Helper()
	require.NoError(t, harness.Eventually(t.Context(), waitTimeout, func(context.Context) error { return check() }))
}

// wantEqual is nil if two texts are one.
func wantEqual(want, got string) error {
	if want == got {
		return nil
	}
	return fmt.Errorf("%q, and not %q", got, want)
}

// untilIs waits until a field of an object has a value.
func untilIs(t *testing.T, object, field, want string) {
	t.Helper()
	waitUntil(t, func() error {
		if err := wantEqual(want, getObject(t, object).text(field)); err != nil {
			return fmt.Errorf("%s of %s: %w", field, object, err)
		}
		return nil
	})
}

// untilCondition waits until a condition of an object begins so, and says so much.
func untilCondition(t *testing.T, object, kind, begin string, parts ...string) {
	t.Helper()
	waitUntil(t, func() error {
		got := getObject(t, object).condition(kind)
		for _, part := range parts {
			if !strings.Contains(got, part) {
				return fmt.Errorf("%s of %s is %q, and doesn't say %s", kind, object, got, part)
			}
		}
		if !strings.HasPrefix(got, begin) {
			return fmt.Errorf("%s of %s is %q, and not %s", kind, object, got, begin)
		}
		return nil
	})
}

// requireStays fails if a check fails while something else, which comes later, is waited for.
func requireStays(t *testing.T, check func() error, meanwhile func()) {
	t.Helper()
	require.NoError(t, check())
	meanwhile()
	require.NoError(t, check())
}

// motdConfig is a spec with one file, in JSON, as the source document writes it.
func motdConfig(text string) string {
	return `{"config":[` + inlineConfig("motd", "/etc/motd", text) + `]}`
}

// inlineConfig is an item of a spec's config: one file, as an Ignition document.
func inlineConfig(name, path, text string) string {
	return fmt.Sprintf(`{"name":%q,"configType":"InlineConfigProviderSpec","inline":{"ignition":{"version":"3.4.0"},
		"storage":{"files":[{"path":%q,"mode":420,"overwrite":true,"contents":{"source":%q}}]}}}`, name, path, "data:,"+url.PathEscape(text))
}

// makeFleet makes a fleet of the nodes with a label, key=value, and a template's spec in JSON.
func makeFleet(t *testing.T, name, label, spec string) {
	t.Helper()
	key, is, _ := strings.Cut(label, "=")
	callOK(t, "", "POST", apiPath+"fleets", fmt.Sprintf(
		`{"apiVersion":"edgebus.io/v1alpha1","kind":"Fleet","metadata":{"name":%q},"spec":{"selector":{"matchLabels":{%q:%q}},"template":{"spec":%s}}}`, name, key, is, spec))
}

// setTemplate changes a fleet's template.
func setTemplate(t *testing.T, fleet, spec string) {
	t.Helper()
	callOK(t, "", "PATCH", apiPath+"fleets/"+fleet, `[{"op":"replace","path":"/spec/template/spec","value":`+spec+`}]`, "Content-Type", "application/json-patch+json")
}

// gitRepository is a git repository that the hub can read.
type gitRepository struct{ dir, url string }

// serveGit serves the repositories of a directory with git's own program.
func serveGit(dir string) (*httptest.Server, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	path, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return nil, fmt.Errorf("git --exec-path: %w", err)
	}
	return httptest.NewServer(&cgi.Handler{Stderr: io.Discard, Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"), Env: []string{
		"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
	}}), nil
}

// makeRepository makes a git repository with one file, and its Repository.
func makeRepository(t *testing.T, name, file, text string) *gitRepository {
	t.Helper()
	r := &gitRepository{dir: filepath.Join(sharedHub.Dir, "git", name+".git"), url: sharedHub.git.URL + "/" + name + ".git"}
	require.NoError(t, os.MkdirAll(r.dir, 0o755))
	r.git(t, "init", "-q", "-b", "main")
	r.commit(t, file, text)
	callOK(t, operator, "POST", flightctlPath+"repositories", fmt.Sprintf(`{"apiVersion":"flightctl.io/v1alpha1","kind":"Repository","metadata":{"name":%q},"spec":{"type":"git","url":%q}}`, name, r.url))
	return r
}

func (r *gitRepository) git(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return strings.TrimSpace(string(out))
}

// commit changes a file on the branch main, and returns the commit.
func (r *gitRepository) commit(t *testing.T, file, text string) string {
	t.Helper()
	at := filepath.Join(r.dir, file)
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(t, os.WriteFile(at, []byte(text), 0o644))
	r.git(t, "add", "-A")
	r.git(t, "commit", "-q", "-m", "x")
	return r.git(t, "rev-parse", "HEAD")
}

// imageRegistry is a registry on loopback.
type imageRegistry struct{ address string }

func startRegistry(t *testing.T) imageRegistry {
	t.Helper()
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	return imageRegistry{strings.TrimPrefix(s.URL, "http://")}
}

// push makes a new image, gives it a tag, and returns its digest.
func (i imageRegistry) push(t *testing.T, image string) string {
	t.Helper()
	ref, err := name.ParseReference(i.address + "/" + image)
	require.NoError(t, err)
	made, err := random.Image(64, 1)
	require.NoError(t, err)
	require.NoError(t, remote.Write(ref, made))
	digest, err := made.Digest()
	require.NoError(t, err)
	return digest.String()
}
