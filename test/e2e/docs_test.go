// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/root"
)

// docBlock is what stands between ``` and ``` in a document.
type docBlock struct {
	text string
	used bool
}

// docPage is the blocks of a document, in their order. A test takes them one by one by the beginning of one of their
// lines; at its end all have been taken, so that nothing can be written there that nobody has tried.
type docPage struct {
	t      *testing.T
	name   string
	blocks []*docBlock
}

func readDocPage(t *testing.T, name string) *docPage {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", name))
	require.NoError(t, err)
	d := &docPage{t: t, name: name}
	for _, found := range regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```$").FindAllSubmatch(text, -1) {
		d.blocks = append(d.blocks, &docBlock{text: string(found[1])})
	}
	return d
}

// take is the first block that wasn't taken and has a line that begins so.
func (d *docPage) take(line string) string {
	d.t.Helper()
	for _, b := range d.blocks {
		if !b.used && strings.Contains("\n"+b.text, "\n"+line) {
			b.used = true
			return b.text
		}
	}
	require.Fail(d.t, d.name+" has no block with a line "+line)
	return ""
}

func (d *docPage) allTaken() {
	d.t.Helper()
	for _, b := range d.blocks {
		require.True(d.t, b.used, "%s has commands or settings that this test does not try: put them into its story\n%s", d.name, b.text)
	}
}

// replaceEach is a text in which each old part stands for the new one; a part that isn't there is a failure.
func replaceEach(t *testing.T, text string, oldnew ...string) string {
	t.Helper()
	for i := 0; i < len(oldnew); i += 2 {
		require.Contains(t, text, oldnew[i])
		text = strings.ReplaceAll(text, oldnew[i], oldnew[i+1])
	}
	return text
}

// docHost is a machine of its own: this one's files, of which it changes copies, and a network of its own.
type docHost struct {
	t           *testing.T
	root, netns string
	sources     string
}

var hostCount atomic.Int64 // by which network namespaces are named

// newDocHosts makes hosts on one network. It takes root.
func newDocHosts(t *testing.T, addresses ...string) []*docHost {
	t.Helper()
	root.Require(t)
	lacks := func(why string) {
		if os.Getenv("CI") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	for _, program := range []string{"ip", "mount", "setpriv", "mosquitto_pub", "openssl", "perl"} {
		if _, err := exec.LookPath(program); err != nil {
			lacks(program + " is missing")
		}
	}
	sources, err := filepath.Abs("../..")
	require.NoError(t, err)
	var hosts []*docHost
	for range addresses {
		h := &docHost{t: t, netns: fmt.Sprintf("edgebus-%d-%d", os.Getpid(), hostCount.Add(1)), sources: sources}
		base := t.TempDir()
		h.root = filepath.Join(base, "root")
		mustRun(t, "mount", "-t", "tmpfs", "edgebus", base)
		t.Cleanup(func() { mustRun(t, "umount", "-l", base) })
		for _, dir := range []string{"root", "upper", "work"} {
			require.NoError(t, os.Mkdir(filepath.Join(base, dir), 0o755))
		}
		if out, err := exec.Command("mount", "-t", "overlay", "overlay", "-o",
			fmt.Sprintf("lowerdir=/,upperdir=%s/upper,workdir=%s/work", base, base), h.root).CombinedOutput(); err != nil {
			lacks("no overlay file system here: " + string(out))
		}
		t.Cleanup(func() { mustRun(t, "umount", "-l", h.root) })
		mustRun(t, "ip", "netns", "add", h.netns)
		t.Cleanup(func() { mustRun(t, "ip", "netns", "del", h.netns) })
		t.Cleanup(h.endAll)
		for _, dir := range []string{"/proc", "/dev"} {
			mustRun(t, "mount", "--bind", dir, h.root+dir)
			t.Cleanup(func() { mustRun(t, "umount", "-l", h.root+dir) })
		}
		mustRun(t, "mount", "-t", "tmpfs", "edgebus", h.root+"/run")
		t.Cleanup(func() { mustRun(t, "umount", "-l", h.root+"/run") })
		mustRun(t, "ip", "-n", h.netns, "link", "set", "lo", "up")
		hosts = append(hosts, h)
	}
	if len(hosts) == 2 {
		mustRun(t, "ip", "link", "add", "wire", "netns", hosts[0].netns, "type", "veth", "peer", "name", "wire", "netns", hosts[1].netns)
	}
	for i, address := range addresses {
		h := hosts[i]
		if len(hosts) == 2 {
			mustRun(t, "ip", "-n", h.netns, "address", "add", address+"/24", "dev", "wire")
			mustRun(t, "ip", "-n", h.netns, "link", "set", "wire", "up")
		}
		h.write("/etc/hosts", "127.0.0.1 localhost\n"+addresses[0]+" hub.example.org\n", 0o644)
		h.write("/usr/local/bin/sudo", "#!/bin/sh\nexec \"$@\"\n", 0o755)
		h.write("/usr/local/bin/systemctl", systemctlScript, 0o755)
		// The sources, as somebody has them who has cloned and built them, and nothing of what this machine has installed or stored.
		// Who has tried a program as root has a directory of data that no other user can enter.
		h.sh("", "mkdir -p /run/systemd/system /root/edgebus && rm -rf /usr/local/bin/edgebus /etc/edgebus /var/lib/edgebus && install -d -m 0700 /var/lib/edgebus && cd /root/edgebus && cp -r "+
			strings.Join([]string{sources + "/bin", sources + "/scripts", sources + "/configs"}, " ")+" .")
	}
	return hosts
}

// systemctlScript is as much of it as installing takes, on a machine without systemd.
const systemctlScript = `#!/bin/bash
set -euo pipefail
pid() { cat "/run/$1.pid" 2>/dev/null || true; }
active() { local p; p=$(pid "$1"); [[ -n $p ]] && kill -0 "$p" 2>/dev/null; }
value() { sed -n "s|^$2=||p" "/etc/systemd/system/$1.service"; }
stop() {
	! active "$1" || kill "$(pid "$1")"
	while active "$1"; do sleep 0.05; done
}
start() {
	local needed state user
	needed=$(value "$1" ConditionPathExists) state=$(value "$1" StateDirectory) user=$(value "$1" User)
	if active "$1" || [[ -n $needed && ! -e $needed ]]; then return; fi
	[[ -z $state ]] || install -d -o "$user" -g "$user" -m 0700 "/var/lib/$state"
	# shellcheck disable=SC2046
	notified "$(value "$1" Type)" "/run/$1.notify" "/run/$1.pid" \
		setpriv --reuid "$user" --regid "$user" --init-groups $(value "$1" ExecStart) </dev/null >>"/var/log/$1.log" 2>&1 ||
		{ echo "Job for $1.service failed: see /var/log/$1.log" >&2 && return 1; }
}
# notified TYPE SOCKET PIDFILE COMMAND…: starts it; of Type=notify it is started when it has said READY=1, unless it ends before.
notified() {
	perl -MSocket -MPOSIX -e '
		my ($type, $path, $file, @command) = @ARGV;
		unlink $path;
		my ($socket, $out);
		socket($socket, AF_UNIX, SOCK_DGRAM, 0) && bind($socket, sockaddr_un($path)) && chmod(0666, $path) or die "$path: $!";
		defined(my $pid = fork) or die "fork: $!";
		if (!$pid) {
			POSIX::setsid();
			$ENV{NOTIFY_SOCKET} = $path if $type eq "notify";
			exec @command or die "$command[0]: $!";
		}
		open($out, ">", $file) && print($out "$pid\n") && close($out) or die "$file: $!";
		exit 0 if $type ne "notify";
		while (waitpid($pid, WNOHANG) == 0) {
			my $in = "";
			vec($in, fileno($socket), 1) = 1;
			next unless select($in, undef, undef, 0.1) > 0;
			recv($socket, my $said, 1000, 0);
			exit 0 if $said =~ /^READY=1$/m;
		}
		exit 1;
	' "$@"
}
what=$1
shift
[[ ${1:-} != --quiet ]] || shift
for unit in "$@"; do
	unit=${unit%.service}
	case $what in
	start | stop) $what "$unit" ;;
	restart) stop "$unit" && start "$unit" ;;
	try-restart) ! active "$unit" || { stop "$unit" && start "$unit"; } ;;
	is-active) active "$unit" ;;
	enable) [[ -f /etc/systemd/system/$unit.service ]] ;;
	esac
done
`

func mustRun(t *testing.T, line ...string) {
	t.Helper()
	out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
	require.NoError(t, err, "%v: %s", line, out)
}

func (h *docHost) write(path, text string, mode os.FileMode) {
	h.t.Helper()
	require.NoError(h.t, os.MkdirAll(filepath.Dir(h.root+path), 0o755))
	require.NoError(h.t, os.WriteFile(h.root+path, []byte(text), mode))
	require.NoError(h.t, os.Chmod(h.root+path, mode))
}

func (h *docHost) read(path string) string {
	text, _ := os.ReadFile(h.root + path)
	return string(text)
}

// try runs commands in a directory, as root.
func (h *docHost) try(dir, script string) (string, error) {
	if dir == "" {
		dir = "/root"
	}
	cmd := exec.Command("ip", "netns", "exec", h.netns, "chroot", h.root, "/bin/bash", "-euo", "pipefail", "-c", "cd "+dir+"\n"+script)
	cmd.Env = []string{"HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // what it leaves running has its output
	err := cmd.Run()
	if cmd.ProcessState != nil && cmd.ProcessState.Success() {
		err = nil
	}
	return out.String(), err
}

func (h *docHost) sh(dir, script string) string {
	h.t.Helper()
	out, err := h.try(dir, script)
	require.NoError(h.t, err, "%s\n%s\n%s", script, out, h.logs())
	return out
}

// until repeats commands until they succeed.
func (h *docHost) until(script string) {
	h.t.Helper()
	err := harness.Eventually(h.t.Context(), 30*time.Second, func(context.Context) error {
		out, err := h.try("", script)
		if err != nil {
			return fmt.Errorf("%s: %w: %s", script, err, out)
		}
		return nil
	})
	require.NoError(h.t, err, h.logs())
}

func (h *docHost) logs() (all string) {
	files, _ := filepath.Glob(h.root + "/var/log/*edge*.log")
	more, _ := filepath.Glob(h.root + "/var/log/*hub.log")
	for _, file := range append(files, more...) {
		text, _ := os.ReadFile(file)
		all += "== " + filepath.Base(file) + "\n" + string(text[max(0, len(text)-3000):])
	}
	return all
}

// endAll ends what runs on the host.
func (h *docHost) endAll() {
	out, _ := exec.Command("ip", "netns", "pids", h.netns).Output()
	for _, pid := range strings.Fields(string(out)) {
		var n int
		if _, err := fmt.Sscan(pid, &n); err == nil {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
}

// copyTo brings files to another host, as somebody does by scp.
func (h *docHost) copyTo(other *docHost, dir, to string, files ...string) {
	h.t.Helper()
	for _, file := range files {
		info, err := os.Stat(filepath.Join(h.root, dir, file))
		require.NoError(h.t, err)
		other.write(filepath.Join(to, file), h.read(filepath.Join(dir, file)), info.Mode().Perm())
	}
}

// docs/running.md from its beginning to its end, on two machines: what a newcomer does is what stands there.
func TestTheCommandsOfRunningOnHosts(t *testing.T) {
	t.Parallel()
	doc := readDocPage(t, "docs/running.md")
	hosts := newDocHosts(t, "192.0.2.10", "192.0.2.11")
	hub, node := hosts[0], hosts[1]
	const src = "/root/edgebus"

	// Installing: nothing starts before it is configured.
	install := strings.Split(doc.take("sudo scripts/install.sh hub"), "\n")
	require.Equal(t, "make build", install[0]) // it was
	require.Contains(t, hub.sh(src, install[1]), "cloudhub is not started: write /etc/edgebus/hub.yaml")
	require.Contains(t, node.sh(src, replaceEach(t, install[2], "mapper-modbus", "mapper-modbus mapper-virtual")), "or write /etc/edgebus/core.yaml")
	for _, h := range hosts {
		h.sh("", "! systemctl is-active cloudhub && ! systemctl is-active edgecore")
		if _, err := exec.LookPath("systemd-analyze"); err == nil {
			require.Empty(t, h.sh("", "for unit in cloudhub edgecore mapper-modbus mapper-virtual; do unit=/etc/systemd/system/$unit.service; [[ ! -e $unit ]] || systemd-analyze verify $unit; done"))
		}
	}

	doc.take("apt-get install -y ./edgebus_") // scripts/release: TestPackagesAreInstalledUpgradedRemovedAndPurged
	doc.take("listen: public")                // TestJoiningOnHosts
	doc.take("hub$  edgebus invite n1")

	// With TLS.
	hub.sh(src, doc.take("scripts/certs.sh ca pki"))
	hash := strings.TrimSpace(hub.sh("", "echo secret of bob | edgebus passwd"))
	hubYAML := doc.take("mqtt:") + doc.take("http:") + replaceEach(t, doc.take("    - name: ann"), "$argon2id$v=19$…", hash)
	hub.write(src+"/hub.yaml", hubYAML+doc.take("  down: "), 0o644)
	hub.sh(src, doc.take("systemctl start cloudhub"))
	node.write(src+"/core.yaml", doc.take("node:")+doc.take("  - {direction: up"), 0o644)
	hub.copyTo(node, src, src, "pki/n1.key", "pki/n1.pem", "pki/ca.pem")
	node.sh(src, doc.take("systemctl start edgecore")+"\nsystemctl start mapper-virtual")
	for program, h := range map[string]*docHost{"cloudhub": hub, "edgecore": node} {
		user := map[string]string{"cloudhub": "edgebus-hub", "edgecore": "edgebus-core"}[program]
		h.sh("", "setpriv --reuid "+user+" --regid "+user+" --init-groups "+program+" --check-config")
	}

	// The command line, as ann.
	hub.copyTo(hub, src+"/pki", "/root/ann", "ca.pem", "ann.pem", "ann.key")
	hub.write("/root/ann/lamp.yaml", readSamples(t, "n1"), 0o644)
	cli := doc.take("edgebus context set plant")
	first, rest, _ := strings.Cut(cli, "edgebus get devices ")
	hub.sh("/root/ann", first)
	hub.write("/root/n1.yaml", doc.take("kind: Node"), 0o644)
	hub.sh("", "edgebus apply -f n1.yaml")
	hub.until("edgebus get nodes | grep '^n1 .*online'")
	deny := replaceEach(t, doc.take("    - name: n7"), "9E:A0…", strings.Repeat("9E:", 31)+"9E")
	hub.write("/root/deny.yaml", deny, 0o644)
	hub.sh("", "cloudhub --config deny.yaml --check-config")
	hub.write("/root/oidc.yaml", doc.take("  oidc:"), 0o644)
	hub.sh("", "cloudhub --config oidc.yaml --check-config")
	hub.sh("/root/ann", "edgebus apply -f lamp.yaml")
	hub.until("edgebus get devices | grep '^lamp .*online'")
	out := hub.sh("/root/ann", replaceEach(t, "edgebus get devices "+rest, "edgebus sub 'v1/nodes/n1/#'", "edgebus sub 'v1/nodes/n1/#' --count 3"))
	require.Contains(t, out, "device/lamp applied")
	require.Contains(t, out, "v1/nodes/n1/")
	require.Contains(t, hub.read("/root/ann/plant.kubeconfig"), "https://hub.example.org:8443")
	require.FileExists(t, hub.root+"/root/ann/plant/devices/default/lamp.yaml")

	// A token for a program.
	program := replaceEach(t, doc.take("edgebus token create"), "3f2a9c", `$(edgebus token list | awk '$2 == "ci" { print $1 }')`)
	require.Contains(t, hub.sh("/root/ann", program), " revoked")

	// Streams and bridge, by the rules in both files.
	node.sh("", "mosquitto_pub -V 5 -q 1 -r -p 2883 -t site/door -m open")
	hub.until("timeout 10 edgebus sub v1/nodes/n1/bridge/site/door --count 1 | grep open")
	hub.sh("", "edgebus pub orders/n1/7 bread --retain")
	node.until("mosquitto_sub -p 2883 -t orders/n1/7 -C 1 -W 10 | grep bread")

	// Health.
	hub.sh("/root/ann", doc.take("edgebus doctor n1"))

	// A renewed certificate; the node signs in with a password instead.
	renew := strings.Split(doc.take("scripts/certs.sh renew pki n1"), "\n")
	hub.sh(src, renew[0])
	hub.copyTo(node, src, src, "pki/n1.pem")
	node.sh(src, renew[1])
	nodeHash := strings.TrimSpace(hub.sh("", "echo n1 secret | edgebus passwd"))
	users := strings.TrimPrefix(replaceEach(t, doc.take("    - name: n1"), "$argon2id$v=19$…", nodeHash), "auth:\n  users:\n")
	hub.write("/etc/edgebus/hub.yaml", hubYAML+users, 0o644)
	hub.sh("", "systemctl restart cloudhub")
	node.write("/etc/edgebus/password", "n1 secret\n", 0o644)
	node.write("/etc/edgebus/core.yaml", doc.take("node:"), 0o644)
	node.sh("", "systemctl restart edgecore")
	hub.until("edgebus twin set lamp power=OFF --wait --timeout 20s")

	// What it says of a hub that lost its data is a setting.
	hub.write("/root/other.yaml", hubYAML+doc.take("replaces:"), 0o644)
	hub.sh("", "cloudhub --config other.yaml --check-config")

	// Backup and restore.
	cron := strings.Fields(doc.take("12 3 * * *"))
	hub.sh("", "mkdir -p /mnt/backups && "+strings.ReplaceAll(strings.Join(cron[6:], " "), `\%`, "%")+" && ls /mnt/backups/hub-*.backup")
	hub.sh("", doc.take("edgebus backup"))
	hub.sh("", "systemctl start cloudhub\n"+doc.take("edgebus restore hub-monday.backup drill"))

	// A hub of another version takes the nodes, with the authority of the one before.
	hub.sh("", doc.take("edgebus export"))
	hub.until("edgebus get nodes | grep -q ' online'")
	doc.allTaken()
}

// readSamples are the sample lamp and its model, on a node.
func readSamples(t *testing.T, node string) string {
	t.Helper()
	all := ""
	for _, name := range []string{"1-dimmable-lamp", "2-lamp"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "configs", "samples", name+".yaml"))
		require.NoError(t, err)
		all += "---\n" + string(text)
	}
	return replaceEach(t, all, "nodeName: demo", "nodeName: "+node)
}

// README.md's commands and those of docs/overview.md, as somebody pastes them who has just built it.
func TestTheCommandsOfTheREADMEOnAHost(t *testing.T) {
	t.Parallel()
	doc := readDocPage(t, "README.md")
	h := newDocHosts(t, "127.0.0.1")[0]
	const src = "/root/edgebus"
	require.Contains(t, doc.take("make demo"), "git clone")
	doc.take("            cloud") // a picture
	demo := doc.take("mosquitto_sub -v")
	h.sh(src, "bin/edgebus demo >/var/log/edgebus-demo.log 2>&1 &")
	h.until("grep -q 'devices/thermostat/state = online' /var/log/edgebus-demo.log")
	h.until("grep -q 'devices/lamp/state = online' /var/log/edgebus-demo.log")
	h.sh(src, replaceEach(t, demo, "mosquitto_sub", "timeout 1 mosquitto_sub", "# see the values of all devices", "|| true"))
	h.until("grep -q 'devices/lamp/reported/brightness = 75' /var/log/edgebus-demo.log")
	h.until("grep -q 'devices/thermostat/reported/setpoint = 23.5' /var/log/edgebus-demo.log")
	h.endAll()
	h.until("! (echo >/dev/tcp/127.0.0.1/1883) 2>/dev/null")

	doc.allTaken()

	doc = readDocPage(t, "docs/overview.md")
	doc.take("make images") // scripts/release runs it: TestComposeStartsAHubWithANodeAndMappers
	hand := strings.SplitAfter(doc.take("make build"), "\n\n")
	start, rest := replaceEach(t, hand[0], "make build\n", "", " &", " >>/var/log/edgebus-hand.log 2>&1 &"), strings.Join(hand[1:], "")
	h.sh(src, start+"\nuntil bin/edgebus get nodes 2>/dev/null | grep -q '^demo .*online'; do sleep 0.1; done")
	out := h.sh(src, rest)
	require.Contains(t, out, "device/lamp applied")
	require.Contains(t, out, "beep beep")
	doc.allTaken()
}
