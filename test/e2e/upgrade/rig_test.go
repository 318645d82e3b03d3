// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/blake2b"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// builtPrograms are built once: the core and the agent of the release before (v0.9.0 here), the real core in two versions and, as v2.0.0, with the next format of the store, and the core that misbehaves.
var builtPrograms = sync.OnceValues(func() (map[string]string, error) {
	dir, err := os.MkdirTemp("", "upgrade")
	if err != nil {
		return nil, err
	}
	built := map[string]string{"dir": dir}
	overlay, err := nextFormat(dir)
	if err != nil {
		return nil, err
	}
	if built["before"], err = sourcesBefore(filepath.Join("..", "..", ".."), dir); err != nil {
		return nil, err
	}
	for _, p := range []struct{ name, pkg, version string }{
		{"core-0.9.0", "edge/cmd/edgecore", "v0.9.0"},
		{"agent-0.9.0", "edge/cmd/edgeagent", "v0.9.0"},
		{"core-1.0.0", "edge/cmd/edgecore", "v1.0.0"},
		{"core-1.1.0", "edge/cmd/edgecore", "v1.1.0"},
		{"core-2.0.0", "edge/cmd/edgecore", "v2.0.0"},
		{"agent-1.0.0", "edge/cmd/edgeagent", "v1.0.0"},
		{"agent-1.1.0", "edge/cmd/edgeagent", "v1.1.0"},
		{"badcore", "test/e2e/upgrade/badcore", "dev"},
		{"killedagent", "test/e2e/upgrade/killedagent", "v1.0.0"},
	} {
		built[p.name] = filepath.Join(dir, p.name)
		var flags []string
		if p.version == "v2.0.0" {
			flags = []string{"-overlay", overlay}
		}
		sources := "."
		if p.version == "v0.9.0" {
			sources = built["before"]
		}
		if err := buildProgram(sources, p.pkg, p.version, built[p.name], flags...); err != nil {
			return nil, err
		}
	}
	return built, nil
})

// buildProgram builds a program from the sources in a directory.
func buildProgram(sources, pkg, version, file string, flags ...string) error {
	const path = "github.com/edgebus/edgebus/"
	line := []string{"build", "-trimpath", "-tags", "testprogram,grpcnotrace", "-ldflags", "-s -w -X " + path + "broker/daemon.version=" + version, "-o", file}
	cmd := exec.Command("go", append(append(line, flags...), path+pkg)...)
	cmd.Dir, cmd.Env = sources, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", pkg, version, err, out)
	}
	return nil
}

// nextFormat is a file for go build -overlay, with which a core has the store's format after the present one.
func nextFormat(dir string) (overlay string, err error) {
	source, err := filepath.Abs("../../../edge/store/database.go")
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	next := bytes.Replace(text, fmt.Appendf(nil, "const Format = %d\n", store.Format), fmt.Appendf(nil, "const Format = %d\n", store.Format+1), 1)
	if bytes.Equal(next, text) {
		return "", fmt.Errorf("%s has no constant Format", source)
	}
	changed := filepath.Join(dir, "database.go")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{source: changed}})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, errors.Join(os.WriteFile(changed, next, 0o600), os.WriteFile(overlay, list, 0o600))
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built, err := builtPrograms(); err == nil {
		_ = os.RemoveAll(built["dir"])
	}
	os.Exit(code)
}

func readProgram(t testing.TB, name string) string {
	t.Helper()
	built, err := builtPrograms()
	require.NoError(t, err)
	return built[name]
}

// brokenCore is a core of a version that misbehaves after some time.
func brokenCore(t testing.TB, version, mode string, after time.Duration) []byte {
	t.Helper()
	text, err := os.ReadFile(readProgram(t, "badcore"))
	require.NoError(t, err)
	return fmt.Appendf(text, "\n-- behaviour --\n"+`{"mode":%q,"version":%q,"after":%d}`, mode, version, after)
}

func workingCore(t testing.TB, version string) []byte {
	t.Helper()
	text, err := os.ReadFile(readProgram(t, "core-"+strings.TrimPrefix(version, "v")))
	require.NoError(t, err)
	return text
}

// artifactSigner signs as minisign does.
type artifactSigner struct {
	id  [8]byte
	key ed25519.PrivateKey
}

func newSigner(t testing.TB, n byte) artifactSigner {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	return artifactSigner{[8]byte{n}, key}
}

func (s artifactSigner) public() string {
	return base64.StdEncoding.EncodeToString(slices.Concat([]byte("Ed"), s.id[:], s.key.Public().(ed25519.PublicKey)))
}

func (s artifactSigner) sign(text []byte, comment string) string {
	hash := blake2b.Sum512(text)
	signature := ed25519.Sign(s.key, hash[:])
	global := ed25519.Sign(s.key, append(bytes.Clone(signature), comment...))
	return fmt.Sprintf("untrusted comment: signature\n%s\ntrusted comment: %s\n%s\n",
		base64.StdEncoding.EncodeToString(slices.Concat([]byte("ED"), s.id[:], signature)), comment, base64.StdEncoding.EncodeToString(global))
}

// testNode is a node with a hub, whose agent runs the core in version v1.0.0.
type testNode struct {
	t testing.TB
	*stand.Stand
	signer artifactSigner
	socket string // of the broker at which the agent is
	client *client.Client
	config string
	env    []string
	kills  bool // the agent is the one that is killed
	orders int

	mu      sync.Mutex
	blobs   map[string]string // paths by digest
	reports []resource.UpgradeReport
	acked   int
	stopped chan struct{}
	stop    func() // the writer
	data    string // where the directories of programs, core and agent are
	sources []string
	changes []string // settings of the core that the hub may change
	chain   bool     // the agent is at the core's own broker, and the hub orders upgrades
	format  int      // of the store, in the manifests
	agent   string   // the program of the agent, if it is not one of those built
	from    string   // the version that is installed first, if it is not v1.0.0
}

const coreSettings = `
upgrade:
  dir: %q
  keys: [%q]
  sources: %s
  settings: %s
  core: {run: %s, data: %q, stop: 1s}
  trial: {timeout: %s, watch: 1s, memory: 150MiB}
log: {format: json, level: debug}
`

// newTestNode makes a node whose agent gives a new version so long. Within that time a good one has to be well on a busy machine.
func newTestNode(t testing.TB, timeout time.Duration, prepare ...func(*testNode)) *testNode {
	t.Helper()
	stand.RequirePrograms(t, "/usr/sbin/mosquitto")
	n := &testNode{t: t, Stand: stand.New(t, 1), signer: newSigner(t, 1), blobs: map[string]string{}, stopped: make(chan struct{})}
	n.stop = sync.OnceFunc(func() { close(n.stopped) })
	n.socket = filepath.Join(n.Dir, "s")
	n.data = n.Dir
	n.Up("hub")
	n.Create(stand.ModelManifest("lamp", "{name: level, type: int, accessMode: ReadWrite}") + stand.DeviceManifests("lamp", "virtual", "lamp"))
	for _, p := range prepare {
		p(n)
	}
	if !n.chain {
		n.broker()
	}
	n.from = cmp.Or(n.from, "v1.0.0")
	n.install(n.from)
	place := n.Node("n1")
	run, err := json.Marshal([]string{
		"--data-dir", n.core(), "--node-name", "n1", "--mqtt-listen", place.MQTT, "--http-listen", place.HTTP, "--mqtt-socket", n.coreSocket(),
		"--config", n.coreConfig("mqtt://" + place.Net.Addr()), "--link-retry-backoff-min", "50ms", "--link-retry-backoff-max", "200ms", "--log-format", "json",
	})
	require.NoError(t, err)
	changes, err := json.Marshal(append([]string{}, n.changes...))
	require.NoError(t, err)
	sources, err := json.Marshal(append([]string{}, n.sources...))
	require.NoError(t, err)
	n.config = filepath.Join(n.Dir, "agent.yaml")
	n.write(n.config, fmt.Appendf(nil, coreSettings, n.programs(), n.signer.public(), sources, changes, run, n.core(), timeout))
	n.start()
	n.runs(n.from)
	n.writes()
	return n
}

// coreSocket is the core's, if the agent is there.
func (n *testNode) coreSocket() string {
	if n.chain {
		return n.socket
	}
	return ""
}

// coreConfig says where the hub is. If the agent is at the core, its user is the agent there, and anybody on this host may write.
func (n *testNode) coreConfig(hub string) string {
	n.t.Helper()
	path := filepath.Join(n.Dir, "core.yaml")
	text := fmt.Appendf(nil, "# of this node\nlink:\n  server: %s # its hub\n", hub)
	if n.chain {
		me, err := user.Current()
		require.NoError(n.t, err)
		text = fmt.Appendf(text, "auth: {anonymous: loopback, users: [{name: agent, role: agent, local: %q}]}\n", me.Username)
	}
	n.write(path, text)
	return path
}

func (n *testNode) core() string     { return filepath.Join(n.data, "core") }
func (n *testNode) programs() string { return filepath.Join(n.data, "programs") }
func (n *testNode) agentDir() string { return filepath.Join(n.data, "agent") }

func (n *testNode) write(path string, text []byte) {
	n.t.Helper()
	require.NoError(n.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(n.t, os.WriteFile(path, text, 0o755))
}

// install puts a version in place as install.sh does.
func (n *testNode) install(version string) {
	n.t.Helper()
	dir := filepath.Join(n.programs(), "versions", version)
	n.write(filepath.Join(dir, "edgecore"), workingCore(n.t, version))
	require.NoError(n.t, os.Symlink(filepath.Join("versions", version), filepath.Join(n.programs(), "current")))
	syscall.Sync() // a power cut may come soon
}

// installAgent puts the agent beside the core, as install.sh does, from where it can replace itself.
func (n *testNode) installAgent(version string) {
	n.t.Helper()
	text, err := os.ReadFile(readProgram(n.t, "agent-"+strings.TrimPrefix(version, "v")))
	require.NoError(n.t, err)
	n.write(filepath.Join(n.programs(), "versions", version, "edgeagent"), text)
	require.NoError(n.t, os.Symlink(filepath.Join("versions", version), filepath.Join(n.programs(), "agent")))
	n.agent = filepath.Join(n.programs(), "agent", "edgeagent")
}

// agentLink is the version of the agent that is started when the present one ends.
func (n *testNode) agentLink() string {
	n.t.Helper()
	target, err := os.Readlink(filepath.Join(n.programs(), "agent"))
	require.NoError(n.t, err)
	return filepath.Base(target)
}

// broker is where the agent hears of orders, and gets contents.
func (n *testNode) broker() {
	n.t.Helper()
	conf := filepath.Join(n.Dir, "mosquitto.conf")
	n.write(conf, fmt.Appendf(nil, "listener 0 %s\nallow_anonymous true\nuser root\n", n.socket))
	require.NoError(n.t, n.Run(n.t.Context(), "mosquitto", []string{"/usr/sbin/mosquitto", "-c", conf}, ""))
	n.Eventually(stand.WaitTimeout, func() error { _, err := os.Stat(n.socket); return err })
	n.client = n.Client("unix://"+n.socket, func(o *client.Options) {
		o.Subscriptions = []client.Subscription{{Filter: "v1/nodes/n1/upgrade/status", QoS: 1}, {Filter: "v1/nodes/n1/blobs/get", QoS: 1}}
		o.OnMessage = n.heard
	})
	n.send(topics.TopicOf("n1", "status"), []byte(`{}`))
}

func (n *testNode) send(topic string, payload []byte) {
	n.t.Helper()
	require.NoError(n.t, n.client.Publish(n.t.Context(), client.Message{Topic: topic, Payload: payload, QoS: 1, Retain: true}))
}

func (n *testNode) heard(m client.Message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if strings.HasSuffix(m.Topic, "/blobs/get") {
		var r resource.BlobRequest
		if json.Unmarshal(m.Payload, &r) != nil {
			return
		}
		answer := resource.BlobAnswer{Digest: r.Digest, Size: r.Size, Received: r.Size, Path: n.blobs[r.Digest]}
		if answer.Path == "" {
			answer = resource.BlobAnswer{Digest: r.Digest, Error: "there is no such blob", Reason: string(resource.NotFound)}
		}
		payload, _ := json.Marshal(answer) // texts and numbers
		n.client.PublishAsync(client.Message{Topic: m.ResponseTopic, Payload: payload, QoS: 1, Correlation: m.Correlation}, nil)
		return
	}
	if r, err := resource.ParseUpgradeReport(m.Payload); err == nil {
		n.reports = append(n.reports, r)
	}
}

// start starts the agent.
func (n *testNode) start() {
	n.t.Helper()
	name := "agent-1.0.0"
	if n.kills {
		name = "killedagent"
	}
	line := append([]string{"env"}, n.env...)
	line = append(line, cmp.Or(n.agent, readProgram(n.t, name)), "--config", n.config, "--data-dir", n.agentDir(), "--mqtt-socket", n.socket, "--root", n.root())
	require.NoError(n.t, n.Run(n.t.Context(), "agent", line, ""))
}

func (n *testNode) root() string {
	dir := filepath.Join(n.Dir, "root")
	require.NoError(n.t, os.MkdirAll(dir, 0o755))
	return dir
}

// bundle is a signed version: an order that can be changed before it is given.
func (n *testNode) bundle(version string, files map[string][]byte) resource.UpgradeOrder {
	n.t.Helper()
	m := resource.Manifest{Version: version, StoreFormat: n.format}
	for name, text := range files {
		digest := resource.DigestOf(text)
		path := filepath.Join(n.Dir, "blobs", strings.TrimPrefix(digest, resource.DigestPrefix))
		n.write(path, text)
		n.mu.Lock()
		n.blobs[digest] = path
		n.mu.Unlock()
		m.Programs = append(m.Programs, resource.ArtifactProgram{Name: name, Architecture: runtime.GOARCH, Digest: digest, Size: int64(len(text))})
	}
	text, err := json.Marshal(m)
	require.NoError(n.t, err)
	n.orders++
	return resource.UpgradeOrder{
		ID: "order-" + strconv.Itoa(n.orders), Upgrade: "test", Version: version, Manifest: string(text),
		Signature: n.signer.sign(text, "version "+version), Timeout: 60,
	}
}

// order gives an order and waits for its outcome.
func (n *testNode) order(o resource.UpgradeOrder) resource.UpgradeReport {
	n.t.Helper()
	n.give(o)
	return n.outcome(o)
}

func (n *testNode) give(o resource.UpgradeOrder) {
	n.t.Helper()
	text, err := json.Marshal(o)
	require.NoError(n.t, err)
	n.send(topics.TopicOf("n1", "upgrade"), text)
}

func (n *testNode) outcome(o resource.UpgradeOrder) (r resource.UpgradeReport) {
	n.t.Helper()
	n.Eventually(2*stand.WaitTimeout, func() error {
		r = n.last()
		if r.Order != o.ID || r.Result == "" {
			return fmt.Errorf("the node reports %+v", r)
		}
		return nil
	})
	return r
}

func (n *testNode) last() (r resource.UpgradeReport) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.reports) > 0 {
		r = n.reports[len(n.reports)-1]
	}
	return r
}

// reaches waits until the node reports a step of an order.
func (n *testNode) reaches(o resource.UpgradeOrder, step string) {
	n.t.Helper()
	n.Eventually(stand.WaitTimeout, func() error {
		if r := n.last(); r.Order != o.ID || r.Step != step {
			return fmt.Errorf("the node reports %+v", r)
		}
		return nil
	})
}

// runs waits until the core runs in a version, and is in step with the hub.
func (n *testNode) runs(version string) {
	n.t.Helper()
	n.Eventually(2*stand.WaitTimeout, func() error {
		text, err := harness.Call(n.t.Context(), "GET", "http://"+n.Node("n1").HTTP+"/links", nil)
		if err != nil {
			return err
		}
		var r resource.LinkReport
		if err := json.Unmarshal(text, &r); err != nil {
			return err
		}
		if r.Version != version || len(r.Links) != 1 || r.Links[0].State != resource.Online || !r.Links[0].InStep {
			return fmt.Errorf("the core reports %s", text)
		}
		return nil
	})
}

// writes has a client write rising numbers at the node's broker, until check.
func (n *testNode) writes() {
	n.t.Helper()
	c := n.Client(n.Core(), nil)
	n.Eventually(stand.WaitTimeout, func() error { return n.Publish(c, "v1/nodes/n1/devices/lamp/desired/level", "1") })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 2; ; i++ {
			select {
			case <-n.stopped:
				return
			case <-time.After(5 * time.Millisecond):
			}
			if n.Publish(c, "v1/nodes/n1/devices/lamp/desired/level", strconv.Itoa(i)) == nil {
				n.mu.Lock()
				n.acked = i
				n.mu.Unlock()
			}
		}
	}()
	n.t.Cleanup(func() { n.stop(); <-ended })
}

// whole checks that the node runs a version, and has every write that was acknowledged, on both sides.
func (n *testNode) whole(version string) {
	n.t.Helper()
	n.runs(version)
	n.Eventually(2*stand.WaitTimeout, func() error { // a full disk may have kept the client from writing
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.acked <= 10 {
			return fmt.Errorf("%d writes were acknowledged", n.acked)
		}
		return nil
	})
	n.stop()
	n.InStep()
	require.Equal(n.t, filepath.Join("versions", version), n.link())
	n.mu.Lock()
	acked := n.acked // the writer may have written more since, and no less
	n.mu.Unlock()
	require.Greater(n.t, acked, 10)
	for broker, key := range map[string]string{n.Core(): "desired", n.Hub.MQTT: "override"} { // a value that was set at the node overrides the hub's
		w := n.Watch(broker, "v1/nodes/n1/devices/lamp/"+key+"/level", nil)
		n.Eventually(stand.WaitTimeout, func() error {
			for _, m := range w.Tree() {
				if got, err := strconv.Atoi(string(m.Payload)); err == nil && got >= acked {
					return nil
				}
			}
			return fmt.Errorf("%s has %v, and %d was acknowledged", broker, w.Tree(), acked)
		})
	}
}

func (n *testNode) link() string {
	target, err := os.Readlink(filepath.Join(n.programs(), "current"))
	require.NoError(n.t, err)
	return target
}

// damaged is an order of which the core comes otherwise than the manifest says.
func (n *testNode) damaged(change func([]byte) []byte) resource.UpgradeOrder {
	n.t.Helper()
	o := n.bundle("v1.1.0", map[string][]byte{"edgecore": workingCore(n.t, "v1.1.0")})
	m, err := resource.ParseManifest([]byte(o.Manifest))
	require.NoError(n.t, err)
	n.mu.Lock()
	defer n.mu.Unlock()
	path := n.blobs[m.Programs[0].Digest]
	text, err := os.ReadFile(path)
	require.NoError(n.t, err)
	n.write(path+".damaged", change(text))
	n.blobs[m.Programs[0].Digest] = path + ".damaged"
	return o
}

// began is when the core was started.
func (n *testNode) began() string {
	n.t.Helper()
	info, err := os.Stat(filepath.Join(n.core(), "backup.sock"))
	require.NoError(n.t, err)
	return info.ModTime().String()
}

// agentSays runs edgeagent upgrade, as the owner of the node does.
func (n *testNode) agentSays(args ...string) string {
	n.t.Helper()
	line := append([]string{"upgrade"}, args...)
	out, err := exec.Command(readProgram(n.t, "agent-1.0.0"), append(line, "--config", n.config, "--data-dir", n.agentDir())...).CombinedOutput()
	require.NoError(n.t, err, string(out))
	return string(out)
}

// childProcesses are the processes that a process has started, and those that have ended as long as it has not noticed.
func childProcesses(pid int) (pids []string) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, _ := os.ReadFile(list) // a thread that is gone has none
		pids = append(pids, strings.Fields(string(text))...)
	}
	return pids
}

var errUpgrading = errors.New("the upgrade is still being made")

// attempt waits until an Upgrade's last attempt at the node has ended, and returns it.
func (n *testNode) attempt(name string) (a resource.UpgradeAttempt) {
	n.t.Helper()
	n.Eventually(6*stand.WaitTimeout, func() error { // a download, a trial and a way back, on a busy machine
		text, err := harness.Call(n.t.Context(), "GET", "http://"+n.Hub.HTTP+"/apis/edgebus.io/v1alpha1/upgrades/"+name, nil)
		if err != nil {
			return err
		}
		var u resource.Upgrade
		if err := json.Unmarshal(text, &u); err != nil {
			return err
		}
		if len(u.Status.Nodes) != 1 || len(u.Status.Nodes[0].History) == 0 {
			return fmt.Errorf("the Upgrade is %s", text)
		}
		a = u.Status.Nodes[0].History[len(u.Status.Nodes[0].History)-1]
		if a.OperationStatus == resource.UpgradePending || a.OperationStatus == resource.Upgrading {
			return fmt.Errorf("the Upgrade is %s", text)
		}
		return nil
	})
	return a
}

// known waits until the hub has the Node, without which it takes no Upgrade of it.
func (n *testNode) known() {
	n.t.Helper()
	n.Eventually(stand.WaitTimeout, func() error {
		_, err := harness.Call(n.t.Context(), "GET", "http://"+n.Hub.HTTP+"/apis/edgebus.io/v1alpha1/nodes/n1", nil)
		return err
	})
}

// publish gives a bundle to the hub, and orders it there.
func (n *testNode) publish(o resource.UpgradeOrder, name string) {
	n.t.Helper()
	n.known()
	m, err := resource.ParseManifest([]byte(o.Manifest))
	require.NoError(n.t, err)
	for _, p := range m.Programs {
		out, err := exec.Command(filepath.Join(n.Bin, "edgebus"), "blob", "push", n.blobs[p.Digest], "--server", "http://"+n.Hub.HTTP).CombinedOutput()
		require.NoError(n.t, err, string(out))
	}
	n.Create(fmt.Sprintf("apiVersion: edgebus.io/v1alpha1\nkind: Artifact\nmetadata: {name: %q}\nspec: {manifest: %q, signature: %q}\n", o.Version, o.Manifest, o.Signature))
	n.Create(fmt.Sprintf("apiVersion: edgebus.io/v1alpha1\nkind: Upgrade\nmetadata: {name: %q}\nspec: {version: %q, nodeNames: [n1], timeout: 5m}\n", name, o.Version))
}

// changesSettings has the hub order settings, and waits for the outcome.
func (n *testNode) changesSettings(name, settings string) resource.UpgradeAttempt {
	n.t.Helper()
	n.known()
	n.Create(fmt.Sprintf("apiVersion: edgebus.io/v1alpha1\nkind: Upgrade\nmetadata: {name: %q}\nspec: {settings: {%s}, nodeNames: [n1], timeout: 5m}\n", name, settings))
	return n.attempt(name)
}
