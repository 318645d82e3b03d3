// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
)

// mosquittoClients runs mosquitto's clients against a broker.
type mosquittoClients struct {
	t    *testing.T
	ctx  context.Context
	at   brokerTarget
	args []string
}

// cmd runs a program that writes line by line, though not to a terminal.
func (m mosquittoClients) cmd(program string, args ...string) *exec.Cmd {
	return exec.CommandContext(m.ctx, "stdbuf", slices.Concat([]string{"-oL", "mosquitto_" + program}, m.args, args)...)
}

func (m mosquittoClients) pub(args ...string) {
	m.t.Helper()
	out, err := m.cmd("pub", args...).CombinedOutput()
	require.NoError(m.t, err, "%s", out)
	require.Empty(m.t, string(out))
}

// sub starts a subscriber, and returns once it is subscribed. What it prints, less
// what it says of itself, comes from the function when it has ended.
func (m mosquittoClients) sub(args ...string) (cmd *exec.Cmd, lines func() []string) {
	m.t.Helper()
	cmd = m.cmd("sub", append([]string{"-d"}, args...)...)
	out, err := cmd.StdoutPipe()
	require.NoError(m.t, err)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	require.NoError(m.t, cmd.Start())
	scanner := bufio.NewScanner(out)
	subscribed := false
	for !subscribed && scanner.Scan() {
		subscribed = strings.HasPrefix(scanner.Text(), "Subscribed ")
	}
	require.True(m.t, subscribed, "%s", &problems)
	return cmd, func() (lines []string) {
		for scanner.Scan() {
			if !strings.HasPrefix(scanner.Text(), "Client ") {
				lines = append(lines, scanner.Text())
			}
		}
		require.NoError(m.t, cmd.Wait(), "%s", &problems)
		return lines
	}
}

func runMosquitto(t *testing.T, at brokerTarget, version int, prefix string) {
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	m := mosquittoClients{t, ctx, at, []string{"-h", at.host(), "-p", at.port(), "-V", map[int]string{4: "311", 5: "5"}[version]}}
	if at.pki != "" {
		m.args = append(m.args, "--cafile", at.ca())
		m.certificate(prefix)
		m.args = append(m.args, "-u", user, "-P", password)
	}
	m.plain(prefix)
	m.sessions(version, prefix)
	if version == 5 {
		m.five(prefix)
		return
	}
	_, refusal := m.sub("-t", "v1/refused/"+prefix, "-C", "1")
	m.pub("-i", prefix, "-q", "1", "-t", "v1/nodes/n1/spec", "-m", "mine")
	require.Contains(t, refusal()[0], `"code":135`)
}

func (m mosquittoClients) plain(prefix string) {
	t, topic := m.t, prefix+"/"
	_, got := m.sub("-t", topic+"qos/+", "-q", "2", "-C", "3", "-F", "%q %p")
	for _, qos := range []string{"0", "1", "2"} {
		m.pub("-t", topic+"qos/"+qos, "-q", qos, "-m", "message")
	}
	require.Equal(t, []string{"0 message", "1 message", "2 message"}, got())

	m.pub("-t", topic+"retained", "-q", "1", "-r", "-m", "kept")
	_, got = m.sub("-t", topic+"retained", "-C", "1", "-F", "%r %p")
	require.Equal(t, []string{"1 kept"}, got())
	m.pub("-t", topic+"retained", "-q", "1", "-r", "-n")

	_, got = m.sub("-t", topic+"will", "-C", "1")
	doomed, _ := m.sub("-t", "nothing", "--will-topic", topic+"will", "--will-payload", "gone")
	require.NoError(t, doomed.Process.Kill())
	_ = doomed.Wait()
	require.Equal(t, []string{"gone"}, got())
}

func (m mosquittoClients) sessions(version int, prefix string) {
	lasting := []string{"-c", "-i", prefix + "lasting", "-q", "1", "-t", prefix + "/resume"}
	if version == 5 {
		lasting = append(lasting, "-x", "60")
	}
	_, got := m.sub(append(lasting, "-E")...)
	got()
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprint(i))
	}
	publish := m.cmd("pub", "-t", prefix+"/resume", "-q", "1", "-l")
	publish.Stdin = strings.NewReader(strings.Join(want, "\n") + "\n")
	require.NoError(m.t, publish.Run())
	out, err := m.cmd("sub", append(lasting, "-C", "20")...).Output()
	require.NoError(m.t, err)
	require.Equal(m.t, want, strings.Fields(string(out)))

	share := []string{"-t", "$share/group/" + prefix + "/shared", "-q", "1", "-C", "10"}
	_, one := m.sub(share...)
	_, two := m.sub(share...)
	publish = m.cmd("pub", "-t", prefix+"/shared", "-q", "1", "-l")
	publish.Stdin = strings.NewReader(strings.Join(want, "\n") + "\n")
	require.NoError(m.t, publish.Run())
	require.ElementsMatch(m.t, want, append(one(), two()...))
}

func (m mosquittoClients) five(prefix string) {
	t, topic := m.t, prefix+"/"
	_, got := m.sub("-t", topic+"properties", "-C", "1", "-F", "%P %C %p")
	m.pub("-t", topic+"properties", "-q", "1", "-m", "x", "-D", "publish", "content-type", "text/plain",
		"-D", "publish", "user-property", "a", "1", "-D", "publish", "user-property", "a", "2")
	require.Equal(t, []string{"a:1 a:2 text/plain x"}, got())

	_, asked := m.sub("-t", topic+"requests", "-C", "1", "-F", "%R %D %p")
	rr := m.cmd("rr", "-t", topic+"requests", "-e", topic+"answers", "-m", "6*7", "-W", "20",
		"-D", "publish", "correlation-data", "c1")
	var answer bytes.Buffer
	rr.Stdout = &answer
	require.NoError(t, rr.Start())
	require.Equal(t, []string{topic + "answers c1 6*7"}, asked())
	m.pub("-t", topic+"answers", "-q", "1", "-m", "42", "-D", "publish", "correlation-data", "c1")
	require.NoError(t, rr.Wait())
	require.Equal(t, "42\n", answer.String())

	out, _ := m.cmd("pub", "-q", "1", "-t", "v1/nodes/n1/spec", "-m", "mine").CombinedOutput()
	require.Contains(t, string(out), "Not authorized")
}

// certificate: who shows one is the node that it names, and no other. The node is known: there is a user, and so
// certificates of unknown names let nobody in.
func (m mosquittoClients) certificate(prefix string) {
	m.args = append(m.args[:len(m.args):len(m.args)], "--cert", filepath.Join(m.at.pki, "n1.pem"), "--key", filepath.Join(m.at.pki, "n1.key"))
	require.NoError(m.t, harness.Eventually(m.ctx, stepTimeout, func(context.Context) error { // from when the hub has heard of the Node
		out, err := m.cmd("sub", "-i", "node/n1/"+prefix, "-t", "v1/nodes/n1/devices/+/commands/+", "-E").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
	out, _ := m.cmd("sub", "-i", "node/n1/"+prefix, "-t", "v1/nodes/n2/devices/+/commands/+", "-E").CombinedOutput()
	require.Contains(m.t, strings.ToLower(string(out)), "denied", "%s", out)
}
