// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/test/harness"
)

// The suites of other projects are not part of this one: a variable names the folder of one that is there. docs/mqtt.md has the results.
const (
	mosquittoSuite = "EDGEBUS_MOSQUITTO_SUITE" // the folder test of mosquitto's source
	pahoSuite      = "EDGEBUS_PAHO_SUITE"      // the folder interoperability of paho.mqtt.testing
	suiteNotes     = "EDGEBUS_SUITE_NOTES"     // where the program mosquitto says why it doesn't start
	suiteBroker    = "EDGEBUS_SUITE_BROKER"    // the path of cloudhub or edgecore
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "mosquitto" {
		if err := becomeMosquitto(os.Args[1:]); err != nil {
			_ = os.WriteFile(os.Getenv(suiteNotes), []byte(err.Error()), 0o600)
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// becomeMosquitto becomes the hub or the core, with the settings that mosquitto's file asks for. An error names the first setting that they don't
// have: the script is then left out.
func becomeMosquitto(args []string) error {
	port, file := "1883", ""
	for i := 0; i < len(args); i++ {
		switch args[i] {
		case "-v":
		case "-p":
			i++
			port = args[i]
		case "-c":
			i++
			file = args[i]
		default:
			return fmt.Errorf("the argument %s", args[i])
		}
	}
	s := brokerSettings{port: port, anonymous: "loopback"}
	if file != "" {
		if err := s.read(file); err != nil {
			return err
		}
	}
	line, err := s.line(os.Getenv(suiteBroker))
	if err != nil {
		return err
	}
	return syscall.Exec(line[0], line, os.Environ())
}

// brokerSettings are what a mosquitto.conf says, as far as our brokers can do it.
type brokerSettings struct {
	port       string
	listeners  int
	persistent bool
	anonymous  string
	flags      []string
	users      strings.Builder
}

// ignoredSettings are settings that say what is so anyway, or what nothing depends on.
var ignoredSettings = map[string]bool{
	"allow_anonymous false": true, "log_type all": true, "log_dest stderr": true, "persistence true": true, "persistence_file": true,
	"persistence_location": true, "autosave_interval": true, "sys_interval": true, "allow_zero_length_clientid true": true,
	"per_listener_settings false": true, "check_retain_source true": true, "connection_messages true": true,
}

// limitFlags are mosquitto's limits, by the names of ours.
var limitFlags = map[string]string{
	"max_keepalive": "--limits-keep-alive", "max_packet_size": "--limits-packet", "max_inflight_messages": "--limits-inflight", "max_connections": "--limits-connections",
}

func (s *brokerSettings) read(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	s.port, s.anonymous = "", "never"
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		key, value, _ := strings.Cut(line, " ")
		value = strings.TrimSpace(value)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case key == "port" || key == "listener":
			if s.listeners++; s.listeners > 1 {
				return fmt.Errorf("several listeners")
			}
			s.port, _, _ = strings.Cut(value, " ")
		case line == "persistence true":
			s.persistent = true
		case limitFlags[key] != "":
			if key == "max_keepalive" {
				value += "s"
			}
			s.flags = append(s.flags, limitFlags[key], value)
		case key == "password_file":
			if err := s.passwords(value); err != nil {
				return err
			}
		case line == "allow_anonymous true":
			s.anonymous = "loopback"
		case !ignoredSettings[line] && !ignoredSettings[key]:
			return fmt.Errorf("the setting %s", key)
		}
	}
	if s.port == "" {
		return fmt.Errorf("no port")
	}
	return nil
}

// passwords takes the users of a password file, whose hashes ours are like.
func (s *brokerSettings) passwords(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("a password file that isn't there")
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, hash, ok := strings.Cut(lines.Text(), ":"); ok {
			fmt.Fprintf(&s.users, "    - {name: %q, role: operator, nodes: [\"*\"], passwordHash: %q}\n", name, hash)
		}
	}
	return nil
}

func (s *brokerSettings) line(program string) ([]string, error) {
	dir, err := filepath.Abs("broker-" + s.port)
	if err != nil {
		return nil, err
	}
	if !s.persistent {
		if err := os.RemoveAll(dir); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "settings.yaml")
	text := "{}\n"
	if s.users.Len() > 0 {
		text = "auth:\n  users:\n" + s.users.String()
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	// What CONNACK says of limits is then what mosquitto says.
	s.flags = append([]string{"--limits-receive-maximum", "20", "--limits-topic-aliases", "10", "--auth-anonymous", s.anonymous}, s.flags...)
	line := []string{program, "--log-level", "error", "--config", config, "--data-dir", filepath.Join(dir, "data"), "--mqtt-listen", "127.0.0.1:" + s.port, "--http-listen", "127.0.0.1:0"}
	if filepath.Base(program) == "cloudhub" {
		line = append(line, "--mqtt-websocket-listen", "")
	} else {
		line = append(line, "--node-name", "n1", "--link-server", "")
	}
	return append(line, s.flags...), nil
}

// suiteFolder is the folder that a variable names, or else the test is skipped.
func suiteFolder(t *testing.T, variable, what string) string {
	t.Helper()
	dir := os.Getenv(variable)
	if dir == "" {
		t.Skipf("%s names no folder: it would be %s", variable, what)
	}
	dir, err := filepath.Abs(dir)
	require.NoError(t, err)
	return dir
}

// suiteResults are the outcomes of a suite.
type suiteResults struct {
	passed, failed []string
	left           map[string][]string // by reason
}

func (r *suiteResults) tell(t *testing.T, name string) {
	t.Helper()
	left := 0
	for _, names := range r.left {
		left += len(names)
	}
	t.Logf("%s: %d run, %d passed, %d failed, %d left out", name, len(r.passed)+len(r.failed), len(r.passed), len(r.failed), left)
	for _, why := range slices.Sorted(maps.Keys(r.left)) {
		t.Logf("left out for %s: %s", why, strings.Join(r.left[why], " "))
	}
}

// mosquittoRoot is a copy of the suite, in which the program mosquitto is ours.
func mosquittoRoot(t *testing.T, suite string) string {
	root := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(root, "test"), os.DirFS(suite)))
	changeFile(t, filepath.Join(root, "test/mosq_test.py"), func(text string) string {
		same, err := os.ReadFile("testdata/same_packets.py")
		require.NoError(t, err)
		return text + string(same)
	})
	changeFile(t, filepath.Join(root, "test/broker/msg_sequence_test.py"), func(text string) string {
		for old, now := range map[string]string{
			"data = sock.recv(len(msg.message))\n        if data != msg.message:": "data = mosq_test.receive_same(sock, msg.message)\n        if data is not None:",
			"data = sock.recv(1)\n            if len(data) == 1 and":              "if not mosq_test.is_disconnected(sock) and",
			"port=1888": "port=port",
		} {
			require.Contains(t, text, old)
			text = strings.Replace(text, old, now, 1)
		}
		return text
	})
	require.NoError(t, os.Mkdir(filepath.Join(root, "src"), 0o700))
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, filepath.Join(root, "src/mosquitto")))
	return root
}

func changeFile(t *testing.T, file string, to func(string) string) {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(to(string(b))), 0o700))
}

var missingModule = regexp.MustCompile(`ModuleNotFoundError: No module named '(\w+)'`)

var scriptLine = regexp.MustCompile(`^\s*\((\d+), \[?'\./([^']+)'`)

// mosquitto's scripts start the program ../../src/mosquitto: this test's, which becomes ours.
func TestMosquittosScripts(t *testing.T) {
	dir := suiteFolder(t, mosquittoSuite, "test, of mosquitto's source")
	list, err := os.ReadFile(filepath.Join(dir, "broker/test.py"))
	require.NoError(t, err)
	bin, err := harness.Programs()
	require.NoError(t, err)
	for _, program := range []string{"cloudhub", "edgecore"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			root := mosquittoRoot(t, dir)
			r := suiteResults{left: make(map[string][]string)}
			var mu sync.Mutex
			var all errgroup.Group
			all.SetLimit(6) // they mostly wait
			for line := range strings.Lines(string(list)) {
				m := scriptLine.FindStringSubmatch(line)
				if m == nil {
					continue
				}
				ports, err := strconv.Atoi(m[1])
				require.NoError(t, err)
				run := suiteScript{root: root, name: m[2], program: filepath.Join(bin, program)}
				for range ports {
					_, port, _ := strings.Cut(harness.FreeAddress(t), ":")
					run.ports = append(run.ports, port)
				}
				all.Go(func() error {
					out, why, err := run.run(t.Context())
					mu.Lock()
					defer mu.Unlock()
					switch {
					case why != "":
						r.left[why] = append(r.left[why], run.name)
					case err != nil:
						r.failed = append(r.failed, run.name)
						if knownScripts.of(run.name) == "" {
							t.Logf("%s: %v\n%s", run.name, err, out)
						}
					default:
						r.passed = append(r.passed, run.name)
					}
					return nil
				})
			}
			require.NoError(t, all.Wait())
			r.tell(t, "mosquitto's scripts, "+program)
			tellFailed(t, r.failed, knownScripts)
		})
	}
}

// suiteScript is one of mosquitto's.
type suiteScript struct {
	root, name, program string
	ports               []string
}

// run runs it. leftOut says why it can't be run.
func (s suiteScript) run(ctx context.Context) (out []byte, leftOut string, err error) {
	notes := filepath.Join(s.root, s.name+".notes")
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, append([]string{s.name}, s.ports...)...)
	cmd.Dir = filepath.Join(s.root, "test/broker")
	cmd.Env = append(os.Environ(), suiteNotes+"="+notes, suiteBroker+"="+s.program, "PYTHONDONTWRITEBYTECODE=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err = cmd.CombinedOutput()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // a broker that the script has left
	}
	if missing := missingModule.FindSubmatch(out); missing != nil {
		return out, "a module of Python that is not installed: " + string(missing[1]), nil
	}
	if why, readErr := os.ReadFile(notes); readErr == nil {
		return out, string(why), nil
	}
	return out, "", err
}

// failureReasons are why a script or a case of another broker's suite fails with ours, by a pattern of its name.
type failureReasons []struct{ why, names string }

// of is the reason; empty: there is none.
func (r failureReasons) of(name string) string {
	for _, one := range r {
		if regexp.MustCompile("^(" + one.names + ")").MatchString(name) {
			return one.why
		}
	}
	return ""
}

var knownScripts = failureReasons{
	{"0x10 (no matching subscribers) is optional", "02-subpub-qos1-message-expiry-retain|03-publish-qos1(-max-inflight|-no-subscribers-v5)?\\.|04-retain-qos1-qos0|11-pub-props"},
	{"a wrong password is 0x86, not 0x87", "01-connect-allow-anonymous|01-connect-uname-"},
	{"a limit of ours: user properties, levels of a topic, connections, packet size, session expiry", "01-connect-575314|01-connect-max-connections|02-subpub-qos0-long-topic|02-subscribe-long-topic|03-publish-long-topic|05-session-expiry-v5|12-prop-maximum-packet-size-broker"},
	{"the keep-alive of MQTT 3.1.1 is taken as it is", "01-connect-max-keepalive"},
	{"a CONNACK with the reason comes before the connection is closed", "07-will-(control|delay-invalid|invalid-utf8|no-flag|null-topic)"},
	{"a session of expiry 0 ends with its connection, and its will is published then", "07-will-delay(-reconnect|-recover)?\\."},
	{"the will of a connection that is taken over is published", "07-will-takeover"},
	{"0x92 for a packet identifier that is free, 0x90 for topics with $, 0x82 for identifier 0", "03-publish-c2b-disconnect-qos2|03-publish-dollar-v5|13-malformed-(un)?subscribe-v5"},
	{"a publish of QoS 2 may come again as often as it likes", "03-publish-qos2-dup"},
	{"packet identifiers don't begin with 1, members of a shared subscription not with the first, properties not in that order", "02-shared-qos0-v5|11-persistent-subscription|12-prop-assigned-client-identifier"},
	{"the packet is 21 bytes long, and the client takes 20", "12-prop-maximum-packet-size-publish"},
	{"a line of a password file that is wrong is refused at the start", "09-pwfile-parse-invalid"},
	{"a node's own topics, which # matches", "01-connect-disconnect-v5|03-pattern-matching|04-retain-clear-multiple"},
}

var knownCases = failureReasons{
	{"0x10 (no matching subscribers) is optional", "v5.0   PUBLISH (32 QoS 1|3A QoS 1|ALLOWED PROPERTIES [^s])"},
	{"a client's PUBLISH has no subscription identifier", "v5.0   PUBLISH ALLOWED PROPERTIES subscription-identifier"},
	{"0x92 for a packet identifier that is free", "v5.0   PUB(REC|REL) (50 unsolicited|62 unsolicited|ALLOWED)"},
	{"CONNACK of MQTT 5 for a version that doesn't exist", "v3.1(.1)? +CONNECT 10 proto ver 6"},
	{"a name of a user may have any characters that UTF-8 allows", "v.* CONNECT 10 Username with 0x00(01|1F|7F|9F)"},
	{"a topic or filter that is refused doesn't end the connection", "v.* (PUBLISH 30 topic with|SUBSCRIBE 82 .*(len 0|topic with|no topic part)|UNSUBSCRIBE A2 (multiple zero|topic with))"},
	{"the byte 0x50 begins an HTTP request, and is answered as one", "v.* PUBREC 50 .MQTT-3.1.0-1"},
}

var (
	failedCase = regexp.MustCompile("^\\s*\x1b\\[31m(.*?) failed: (.*)\x1b\\[0m$")
	totalsLine = regexp.MustCompile("(\\d+) tests total\n(\\d+) tests succeeded")
)

// mosquitto's packet cases are bytes that a client sends and what has to come back. Its own script plays them.
func TestMosquittosPacketCases(t *testing.T) {
	dir := suiteFolder(t, mosquittoSuite, "test, of mosquitto's source")
	bin, err := harness.Programs()
	require.NoError(t, err)
	for _, program := range []string{"cloudhub", "edgecore"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			_, port, _ := strings.Cut(harness.FreeAddress(t), ":")
			run := suiteScript{root: mosquittoRoot(t, dir), name: "msg_sequence_test.py", ports: []string{port}, program: filepath.Join(bin, program)}
			out, why, _ := run.run(t.Context())
			require.Empty(t, why)
			require.Regexp(t, totalsLine, string(out))
			var failed []string
			for line := range strings.Lines(string(out)) {
				if m := failedCase.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
					failed = append(failed, m[1])
				}
			}
			m := totalsLine.FindStringSubmatch(string(out))
			t.Logf("mosquitto's packet cases, %s: %s run, %s passed", program, m[1], m[2])
			tellFailed(t, failed, knownCases)
		})
	}
}

// tellFailed logs why cases fail. One that fails and that nothing explains fails the test.
func tellFailed(t *testing.T, failed []string, known failureReasons) {
	t.Helper()
	byReason := make(map[string]int)
	for _, name := range failed {
		why := known.of(name)
		if why == "" {
			t.Errorf("%s fails, and nothing says why", name)
		}
		byReason[why]++
	}
	for _, why := range slices.Sorted(maps.Keys(byReason)) {
		t.Logf("%d fail: %s", byReason[why], why)
	}
}

var knownPaho = failureReasons{
	{"users may use users' own topics", "test_subscribe_failure"},
	{"its client can't read a PUBACK with a reason string", "test_dollar_topics"},
	{"the broker sends no topic aliases", "test_server_topic_alias"},
	{"it passes with --limits-keep-alive 60s", "test_server_keep_alive"},
	{"in some runs it sends a PUBREL before it reads the DISCONNECT, and ends with an error of the socket", "test_flow_control2"},
}

var (
	pahoRan    = regexp.MustCompile(`Ran (\d+) tests?`)
	pahoFailed = regexp.MustCompile(`(?m)^(?:FAIL|ERROR): (\w+)`)
	// pahoWait waits for a SUBACK of another client than the one that has subscribed.
	pahoWait = regexp.MustCompile(`(bclient\.subscribe\([^\n]*\n *self\.waitfor\(callback)\.subscribeds`)
)

// Paho's programs are clients that try what a broker does.
func TestPahosInteroperabilityPrograms(t *testing.T) {
	dir := suiteFolder(t, pahoSuite, "interoperability, of paho.mqtt.testing")
	for _, at := range startBrokers(t) {
		if at.scheme != "mqtt" {
			continue
		}
		t.Run(at.name, func(t *testing.T) {
			t.Parallel()
			for _, program := range []string{"client_test.py", "client_test5.py"} {
				t.Run(program, func(t *testing.T) { pahosProgram(t, at, dir, program) })
			}
		})
	}
}

func pahosProgram(t *testing.T, at brokerTarget, suite, program string) {
	root := t.TempDir()
	require.NoError(t, os.CopyFS(root, os.DirFS(suite)))
	changeFile(t, filepath.Join(root, program), func(text string) string {
		require.Contains(t, text, "port = 1883")
		return pahoWait.ReplaceAllString(strings.Replace(text, "port = 1883", "port = "+at.port(), 1), "${1}2.subscribeds")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, program)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	out, _ := cmd.CombinedOutput()
	ran := pahoRan.FindSubmatch(out)
	require.NotNil(t, ran, "%s", out)
	var failed []string
	for _, m := range pahoFailed.FindAllStringSubmatch(string(out), -1) {
		failed = append(failed, m[1])
	}
	t.Logf("Paho's %s, %s: %s run, %d failed: %v", program, at.name, ran[1], len(failed), failed)
	tellFailed(t, failed, knownPaho)
	if t.Failed() {
		t.Logf("%s", out)
	}
}
