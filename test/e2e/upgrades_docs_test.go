// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The block of docs/upgrades.md that leads from nothing to a first upgrade, as it stands there, and then that of docs/fleets.md to a first fleet.
func TestTheFirstUpgradeAndTheFirstFleetOfTheDocumentsOnAHost(t *testing.T) {
	t.Parallel()
	block := readDocPage(t, "docs/upgrades.md").take("scripts/install.sh hub core agent")
	h := newDocHosts(t, "192.0.2.10")[0]
	const src = "/root/edgebus"
	name, err := os.Hostname()
	require.NoError(t, err)
	h.write("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 "+name+"\n", 0o644)
	for dir, version := range map[string]string{"bin": "v1.1.0", "v1.2.0": "v1.2.0"} {
		for program, pkg := range map[string]string{"edgecore": "edge/cmd/edgecore", "edgeagent": "edge/cmd/edgeagent"} {
			const path = "github.com/edgebus/edgebus/"
			build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X "+path+"broker/daemon.version="+version, "-o", filepath.Join(h.root+src, dir, program), path+pkg)
			build.Env = append(build.Environ(), "CGO_ENABLED=0")
			out, err := build.CombinedOutput()
			require.NoError(t, err, string(out))
		}
	}
	// This host has no systemd, which the agent would have start the core: the agent runs it itself, and the unit doesn't.
	h.write(src+"/scripts/systemd/edgecore.service", replaceEach(t, h.read(src+"/scripts/systemd/edgecore.service"), "/etc/edgebus/core.yaml", "/never"), 0o644)
	own := "export EDGEAGENT_UPGRADE_CORE_RUN='[--data-dir, /var/lib/edgebus/core]' EDGEAGENT_UPGRADE_TRIAL_WATCH=1s\n"
	out := h.sh(src, own+block)
	require.Contains(t, out, "artifact/v1.2.0 created")
	require.Regexp(t, `n1 +online +v1\.2\.0 .* v1\.2\.0 `, out)
	require.Equal(t, "versions/v1.2.0\n", h.sh("", "readlink /usr/local/lib/edgebus/current"))
	require.Equal(t, "versions/v1.2.0\n", h.sh("", "readlink /usr/local/lib/edgebus/agent"))
	require.NotContains(t, h.sh(src, "grep -rl \"$(sed -n 2p minisign.key)\" /var/lib/edgebus /etc/edgebus || true"), "edgebus", "the secret key is nowhere else")

	out = h.sh(src, own+readDocPage(t, "docs/fleets.md").take("cat >shops.yaml"))
	require.Contains(t, out, "fleet/shops created")
	require.Contains(t, out, "This is n1 in DELFT\n")
	require.Contains(t, out, "fleet/shops configured")
	h.until("grep 'This is n1 in DELFT' /etc/motd")
}
