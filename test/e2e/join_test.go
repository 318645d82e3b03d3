// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Two machines and the two commands of docs/running.md: nothing to Ready. Before that, each mistake that people make, in
// the same place; none of them must spoil what comes after.
func TestJoiningOnHosts(t *testing.T) {
	t.Parallel()
	doc := readDocPage(t, "docs/running.md")
	hosts := newDocHosts(t, "192.0.2.10", "192.0.2.11")
	hub, node := hosts[0], hosts[1]
	const src = "/root/edgebus"
	hub.sh(src, "scripts/install.sh hub")
	require.Contains(t, node.sh(src, "scripts/install.sh core"), "edgecore join")
	refused := func(script, why string) {
		t.Helper()
		out, err := node.try("", script)
		require.Error(t, err, "%s\n%s", script, out)
		require.Contains(t, out, why, script)
	}
	hub.write("/etc/edgebus/hub.yaml", doc.take("listen: public"), 0o644)
	refused("edgecore join hub.example.org", "is cloudhub running, with listen: public")
	hub.sh("", "systemctl start cloudhub")
	commands := regexp.MustCompile(`(?m)^hub\$  (edgebus invite n1.*)$`).FindStringSubmatch(doc.take("hub$  edgebus invite n1"))
	require.NotNil(t, commands)
	line := strings.TrimSpace(hub.sh("", commands[1]))
	require.Regexp(t, `^edgecore join hub.example.org:8883 --token ebj1-[^ ]+$`, line)

	other := func(hub string) string { return replaceEach(t, line, "hub.example.org:8883", hub) }
	refused(other("hub2.example.org"), "check the hub's name")
	refused(other("192.0.2.10"), "the hub's certificate is for hub.example.org")
	refused(other("192.0.2.99"), "check the network")
	refused(other("hub.example.org:8884"), "nothing listens at this port")
	refused(other("https://hub.example.org:8443"), "no hub's address")
	refused("timeout 5 "+other("hub.example.org:8443"), "run the same command again")
	refused("edgecore join hub.example.org", "compare it with what edgebus authority says")
	user := "setpriv --reuid 1234 --regid 1234 --clear-groups "
	refused(user+line, "Run it as root")
	refused("HOME=/nowhere XDG_STATE_HOME= "+user+line+" --config /tmp/core.yaml", "with --data-dir")

	// What was refused has used nothing up, and left nothing in the way.
	begun := time.Now()
	out := node.sh("", line)
	require.Contains(t, out, "node n1 has joined hub.example.org:8883")
	require.Contains(t, out, "started: systemctl status edgecore")
	hub.until("edgebus get nodes -o wide | grep -q '^n1 .* True '")
	t.Logf("from the pasted line to Ready: %s", time.Since(begun).Round(10*time.Millisecond))
	require.Equal(t, "640 root edgebus-core\n", node.sh("", "stat -c '%a %U %G' /etc/edgebus/core.yaml"))
	require.Equal(t, "600 edgebus-core edgebus-core\n", node.sh("", "stat -c '%a %U %G' /var/lib/edgebus/core/identity/*/node.pem"))
	require.Regexp(t, `"site": ?"hall"`, hub.sh("", "edgebus get node n1 -o json"))
	require.Contains(t, node.sh("", line), "had joined already")
	refused(line+" --config /tmp/thief.yaml --data-dir /tmp/thief", "the token has been used")
}
