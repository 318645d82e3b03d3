// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// requirePrograms skips a test where it can't run, and fails it in CI.
func requirePrograms(t *testing.T, programs ...string) {
	t.Helper()
	lacks := ""
	if os.Geteuid() != 0 {
		lacks = "it takes root"
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			lacks = program + " is missing"
		}
	}
	switch {
	case lacks == "":
	case os.Getenv("CI") != "":
		t.Fatal(lacks)
	default:
		t.Skip(lacks)
	}
}

// makeForTest makes something of the programs for this machine in a directory that ends with the test. Of the mappers, which differ in their
// names alone, two are enough.
func makeForTest(t *testing.T, command, version string) *releaseBuild {
	t.Helper()
	b := newBuild(t, version)
	for _, mapper := range b.mappers() {
		if mapper != "mapper-virtual" && mapper != "mapper-modbus" {
			delete(b.mains, mapper)
		}
	}
	if err := commands[command](b); err != nil {
		t.Fatal(err)
	}
	return b
}

// programsForTests has the programs that tests have built, by their version.
var programsForTests string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "programs")
	if err != nil {
		panic(err)
	}
	programsForTests = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func newBuild(t *testing.T, version string) *releaseBuild {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	b := &releaseBuild{root: root, out: t.TempDir(), built: filepath.Join(programsForTests, version), version: version, arches: []string{runtime.GOARCH}, large: true}
	if err := b.prepare(); err != nil {
		t.Fatal(err)
	}
	return b
}

// testMachine is a Debian with a systemd of its own, in namespaces.
type testMachine struct {
	t      *testing.T
	root   string
	leader string // the process that is its process 1
}

// installDebian makes a small Debian with systemd.
func installDebian(root string) error {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return err
	}
	suite := "stable"
	if found := regexp.MustCompile(`(?m)^VERSION_CODENAME=(\w+)$`).FindSubmatch(release); found != nil {
		suite = string(found[1])
	}
	out, err := exec.Command("mmdebstrap", "--quiet", "--variant=minbase", "--include=systemd,systemd-sysv,dbus",
		"--dpkgopt=path-exclude=/usr/share/locale/*", suite, root).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mmdebstrap: %w: %s", err, out)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(root, "etc/hostname"), []byte("hub\n"), 0o644),
		os.WriteFile(filepath.Join(root, "etc/hosts"), []byte("127.0.0.1 localhost\n127.0.1.1 hub\n"), 0o644))
}

// bootMachine starts the machine; mounts are those of this one that it sees: from=to.
func bootMachine(t *testing.T, root string, mounts map[string]string) *testMachine {
	t.Helper()
	args := []string{"--quiet", "--register=no", "--keep-unit", "--private-network", "--boot", "--console=read-only", "--directory=" + root}
	for from, to := range mounts {
		args = append(args, "--bind-ro="+from+":"+to)
	}
	cmd := exec.Command("systemd-nspawn", args...)
	console := &machineConsole{}
	cmd.Stdout, cmd.Stderr = console, console
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	m := &testMachine{t: t, root: root}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if m.leader != "" {
			_ = exec.Command("kill", "-KILL", m.leader).Run()
		}
		<-ended
	})
	m.until("the machine to boot", func() error {
		select {
		case <-ended:
			t.Fatalf("systemd-nspawn ended: %s", console)
		default:
		}
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
		if pids := strings.Fields(string(children)); err == nil && len(pids) > 0 {
			m.leader = pids[0]
		}
		if m.leader == "" {
			return errors.New("it has no process 1")
		}
		out, err := m.try("systemctl is-system-running")
		if strings.TrimSpace(out) == "running" || strings.TrimSpace(out) == "degraded" {
			return nil
		}
		return fmt.Errorf("it is %s (%w)", out, err)
	})
	return m
}

// machineConsole is what a machine writes.
type machineConsole struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (c *machineConsole) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(p)
}

func (c *machineConsole) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

func (m *testMachine) try(script string) (string, error) {
	cmd := exec.Command("nsenter", "--target", m.leader, "--all", "/bin/bash", "-euo", "pipefail", "-c", "cd /root\n"+script)
	cmd.Dir = "/"
	cmd.Env = []string{"HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (m *testMachine) sh(script string) string {
	m.t.Helper()
	out, err := m.try(script)
	if err != nil {
		logs, _ := m.try("journalctl --no-pager -n 60; systemctl --no-pager --failed")
		m.t.Fatalf("%s\n%s\n%v\n%s", script, out, err, logs)
	}
	return strings.TrimSpace(out)
}

func (m *testMachine) is(want, script string) {
	m.t.Helper()
	if got := m.sh(script); got != want {
		m.t.Errorf("%s: got %q, not %q", script, got, want)
	}
}

func (m *testMachine) until(what string, try func() error) {
	m.t.Helper()
	end := time.Now().Add(time.Minute)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			m.t.Fatalf("waiting for %s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond) // a machine of its own: there is nothing to be told by
	}
}

// becomes waits until a command prints something.
func (m *testMachine) becomes(want, script string) {
	m.t.Helper()
	m.until(script, func() error {
		out, err := m.try(script)
		if got := strings.TrimSpace(out); err != nil || got != want {
			return fmt.Errorf("%q (%w), not %q", got, err, want)
		}
		return nil
	})
}

// docBlock is what a document has between ``` and ```, by the beginning of its first line.
func docBlock(t *testing.T, document, first string) string {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```$").FindAllSubmatch(text, -1) {
		if strings.HasPrefix(string(found[1]), first) {
			return string(found[1])
		}
	}
	t.Fatalf("%s has no block that begins with %q", document, first)
	return ""
}

func TestPackagesAreInstalledUpgradedRemovedAndPurged(t *testing.T) {
	requirePrograms(t, "mmdebstrap", "systemd-nspawn", "nsenter", "lintian", "rpm")
	debian := filepath.Join(t.TempDir(), "debian")
	var g sync.WaitGroup
	var failed error
	g.Go(func() { failed = installDebian(debian) })
	first, second := makeForTest(t, "packages", "v0.9.0"), makeForTest(t, "packages", "v0.9.1")
	g.Wait()
	if failed != nil {
		t.Fatal(failed)
	}
	g.Go(func() { checkWithLintian(t, first) })
	defer g.Wait()

	began := time.Now()
	m := bootMachine(t, debian, map[string]string{first.out: "/root/packages", second.out: "/root/newer"})
	t.Logf("booted in %s", time.Since(began).Round(10*time.Millisecond))
	fromNothing(t, m)
	upgrade(t, m)
	removeAndPurge(t, m)
	m.sh("systemctl poweroff")
	tryRPMs(t, debian, first, second)
}

// checkWithLintian has Debian's own checks read the packages.
func checkWithLintian(t *testing.T, b *releaseBuild) {
	list, err := filepath.Glob(filepath.Join(b.out, "*.deb"))
	if err != nil || len(list) != len(b.packages()) {
		t.Errorf("%d packages are there, of %d (%v)", len(list), len(b.packages()), err)
	}
	out, err := exec.Command("lintian", append([]string{"--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"}, list...)...).CombinedOutput()
	if err != nil {
		t.Errorf("lintian: %v\n%s", err, out)
	}
}

// fromNothing is the way of docs/running.md, from packages to the first value.
func fromNothing(t *testing.T, m *testMachine) {
	t.Helper()
	script := docBlock(t, "../../docs/running.md", "apt-get install -y ./edgebus_")
	began := time.Now()
	for line := range commandsOf(script) {
		at := time.Now()
		out := m.sh("cd /root/packages\n" + line)
		t.Logf("%6.2f s  %s", time.Since(at).Seconds(), strings.SplitN(line, "\n", 2)[0])
		if strings.HasPrefix(line, "edgebus twin get") && out != "ON" {
			t.Errorf("the lamp's power is %q", out)
		}
	}
	t.Logf("%6.2f s  from packages to a value", time.Since(began).Seconds())
	m.is("active", "systemctl is-active cloudhub edgecore mapper-virtual | sort -u")
	m.sh("cd /root/packages && apt-get install -y ./edgebus*.deb")
	m.is("enabled", "systemctl is-enabled cloudhub edgecore mapper-virtual edgeagent | sort -u")
	m.is("inactive", "systemctl is-active edgeagent || true") // it has no settings
	m.is("v0.9.0", "edgecore --version | sed 's/.* //'")
	m.is("edgebus-hub edgebus-core edgebus-mapper-virtual edgediscovery", "echo $(for unit in cloudhub edgecore mapper-virtual edgediscovery; do stat -c %U /proc/$(systemctl show -P MainPID $unit); done)")
	m.is("640 root edgebus-core", "stat -c '%a %U %G' /etc/edgebus/core.yaml")
	m.is("640 root edgebus-mapper-virtual", "stat -c '%a %U %G' /etc/edgebus/mapper-virtual.yaml")
	for _, unit := range []string{"cloudhub", "edgecore", "mapper-virtual"} {
		t.Logf("%s: %s", unit, m.sh("grep -E '^(Pss|Rss)' /proc/$(systemctl show -P MainPID "+unit+")/smaps_rollup | tr -s ' \\n' ' '"))
		ready := m.sh("systemctl restart " + unit + "; systemctl show -P ExecMainStartTimestampMonotonic -P ActiveEnterTimestampMonotonic " + unit + " | tr '\\n' ' '")
		var start, active int64
		if _, err := fmt.Sscan(ready, &start, &active); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: ready %d ms after its start", unit, (active-start)/1000)
	}
	m.becomes("ON", "edgebus twin get lamp power -o value")
	// A program of a release is one that nodes can be upgraded to.
	m.sh("edgebus artifact key minisign.key && edgebus artifact push --version v0.9.0 --secret-key minisign.key /usr/lib/edgebus/edgecore")
	m.sh("zcat /usr/share/doc/edgebus-core/NOTICE.gz | grep 'Eclipse Distribution License'")
	m.sh("test -s /usr/share/man/man8/edgecore.8.gz && test -e /usr/share/bash-completion/completions/edgebus")
}

// commandsOf are the commands of a script, one by one.
func commandsOf(script string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for line := range strings.Lines(strings.ReplaceAll(script, "\\\n", " ")) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' && !yield(line) {
				return
			}
		}
	}
}

func upgrade(t *testing.T, m *testMachine) {
	t.Helper()
	m.sh("echo 'log: {level: debug}' >>/etc/edgebus/mapper-virtual.yaml")
	before := m.sh("systemctl show -P MainPID edgecore")
	m.sh("cd /root/newer && apt-get install -y ./edgebus*.deb")
	if m.sh("systemctl show -P MainPID edgecore") == before {
		t.Error("the core wasn't started again")
	}
	m.is("active", "systemctl is-active cloudhub edgecore mapper-virtual | sort -u")
	m.is("v0.9.1", "for program in cloudhub edgecore edgeagent mapper-virtual edgebus; do $program --version | sed 's/.* //'; done | sort -u")
	m.is("v0.9.1", "readlink /proc/$(systemctl show -P MainPID edgecore)/exe | grep -o 'v0[^/]*'")
	m.is("log: {level: debug}", "tail -n 1 /etc/edgebus/mapper-virtual.yaml") // a conffile that somebody has changed
	m.becomes("ON", "edgebus twin get lamp power -o value")

	// A version that the hub has sent stays in force if it is newer than that of the package, and no longer.
	m.sh(`cd /usr/local/lib/edgebus && cp -r versions/v0.9.1 versions/v9.0.0 && echo '{}' >versions/v9.0.0/manifest.json && ln -sfn versions/v9.0.0 current`)
	said := m.sh("cd /root/newer && apt-get install -y --reinstall ./edgebus-core_*.deb")
	if !strings.Contains(said, "edgecore stays at v9.0.0") {
		t.Errorf("apt-get said %s", said)
	}
	m.is("versions/v9.0.0", "readlink /usr/local/lib/edgebus/current")
	m.sh(`cd /usr/local/lib/edgebus && mv versions/v9.0.0 versions/v0.8.0 && ln -sfn versions/v0.8.0 current && cd /root/newer && apt-get install -y --reinstall ./edgebus-core_*.deb`)
	m.is("versions/v0.9.1", "readlink /usr/local/lib/edgebus/current")
}

func removeAndPurge(t *testing.T, m *testMachine) {
	t.Helper()
	m.sh("apt-get remove -y 'edgebus*'")
	m.is("", "readlink /proc/[0-9]*/exe | grep -E 'cloudhub|edge|mapper-' || true")
	m.sh("cd /etc/edgebus && ls core.yaml discovery.yaml hub.yaml mapper-modbus.yaml mapper-virtual.yaml")
	m.sh("test -d /var/lib/edgebus/hub && test -d /var/lib/edgebus/core")
	m.is("", "ls /usr/local/lib/edgebus /usr/bin/edgecore /usr/bin/cloudhub 2>/dev/null || true")
	m.sh("apt-get purge -y 'edgebus*'")
	m.is("", "find / -xdev -name '*edgebus*' -not -path '/proc/*' -not -path '/var/log/*' -not -path '/var/lib/dpkg/*' -not -path '/var/cache/*' -not -path '/root/*' -not -path '/tmp/*'")
	m.is("", "find / -xdev '(' -nouser -o -nogroup ')' -not -path '/proc/*' -not -path '/root/*'")
	m.is("", "systemctl --no-pager list-unit-files --no-legend 'cloudhub*' 'edge*' 'mapper*' || true")
	m.is("", "getent passwd | grep edge || true")
}

// tryRPMs does the same with the other format, as far as it goes without a system of that kind: on a tree, without its services.
func tryRPMs(t *testing.T, root string, first, second *releaseBuild) {
	t.Helper()
	run := func(line ...string) string {
		t.Helper()
		out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(line, " "), err, out)
		}
		return string(out)
	}
	list := func(b *releaseBuild) []string {
		files, err := filepath.Glob(filepath.Join(b.out, "edgebus-*.rpm"))
		if err != nil || len(files) < len(b.packages()) {
			t.Fatalf("%d packages are there (%v)", len(files), err)
		}
		return files
	}
	if said := run("rpm", "-qp", "--queryformat", "%{NAME} %{VERSION} %{LICENSE} %{BUILDHOST}\n", list(first)[0]); said != "edgebus-0.9.0-1.x86_64.rpm" && !strings.HasSuffix(said, " 0.9.0 Apache-2.0 edgebus\n") {
		t.Errorf("a package says %q", said)
	}
	rpm := []string{"rpm", "--root", root, "--nodeps"}
	run(append(append(slices.Clone(rpm), "--install"), list(first)...)...)
	if said := run("chroot", root, "edgecore", "--version"); said != "edgecore v0.9.0\n" {
		t.Errorf("it is %q", said)
	}
	run(append(append(slices.Clone(rpm), "--upgrade"), list(second)...)...)
	if said := run("chroot", root, "edgecore", "--version"); said != "edgecore v0.9.1\n" {
		t.Errorf("it is %q", said)
	}
	names := strings.Fields(run("rpm", "--root", root, "--query", "--all"))
	if len(names) != len(first.packages()) {
		t.Errorf("installed are %v", names)
	}
	run(append(append(slices.Clone(rpm), "--erase"), names...)...)
	for _, gone := range []string{"usr/bin/edgecore", "usr/local/lib/edgebus", "usr/lib/systemd/system/edgecore.service"} {
		if _, err := os.Lstat(filepath.Join(root, gone)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("/%s is left (%v)", gone, err)
		}
	}
}
