// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/stand"
)

const userSettings = `auth:
  anonymous: loopback
  users:
    - name: operator
      role: operator
      nodes: ["*"]
      passwordHash: $7$101$MDEyMzQ1Njc4OWFi$EO/lLlkeUgIiBaS8G8UK0ZMP1u508TA7Tl+AdJ1cEsmlbGyEPAERErpfq84j1kepISs0UzmcdL4ucgZ2uodxfQ==
`

// toolPath is a program of others that `make` builds into .tools.
func toolPath(t *testing.T, s *stand.Stand, name string) string {
	t.Helper()
	file := filepath.Join(filepath.Dir(s.Bin), ".tools", name)
	if _, err := os.Stat(file); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("missing: %s", file)
		}
		t.Skipf("missing: %s; `make e2e` builds it", file)
	}
	return file
}

// A controller that is written with controller-runtime is elected by a Lease, watches, finalizes, owns a ConfigMap, writes Events, and takes all
// away again.
func TestControllerRuntimeIsServed(t *testing.T) {
	s := stand.New(t, 1)
	controller := toolPath(t, s, "controller")
	s.Up("hub")
	said, err := exec.CommandContext(t.Context(), controller, "http://"+s.Hub.HTTP).CombinedOutput()
	require.NoError(t, err, "%s", said)
}

// helm installs a chart, upgrades it more often than it keeps revisions, and takes all of it away.
func TestHelmInstallsUpgradesAndUninstalls(t *testing.T) {
	s := stand.New(t, 1)
	helm := toolPath(t, s, "helm")
	// Who keeps Secrets, as helm does, has signed in.
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "hub.yaml"), []byte(userSettings), 0o600))
	s.Up("hub")
	s.User, s.Password = "operator", "secret"
	signedIn := s.SignedIn()
	defer signedIn.Close()
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), helm, append(args, "--kube-apiserver", signedIn.URL, "--namespace", "default")...)
		cmd.Env = append(os.Environ(), "HOME="+s.Dir, "KUBECONFIG="+os.DevNull)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "helm %v: %s", args, out)
		return string(out)
	}
	run("install", "lamps", "testdata/chart")
	for i := range 11 {
		run("upgrade", "lamps", "testdata/chart", "--set", "level="+strconv.Itoa(i))
	}
	require.Contains(t, run("status", "lamps"), "REVISION: 12")
	require.Contains(t, run("get", "manifest", "lamps"), `level: "10"`)
	run("rollback", "lamps", "11")
	require.Contains(t, run("history", "lamps"), "Rollback to 11")
	run("uninstall", "lamps")
	require.NotContains(t, run("list", "--all"), "lamps")
	for _, path := range []string{"/apis/edgebus.io/v1alpha1/namespaces/default/devices", "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/secrets"} {
		out, err := exec.CommandContext(t.Context(), "curl", "-sf", signedIn.URL+path).Output()
		require.NoError(t, err)
		require.Contains(t, string(out), `"items":[]`, "%s", path)
	}
}
