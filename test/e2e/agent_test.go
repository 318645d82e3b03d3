// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/test/hosttest"
	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics/resource"
)

const pressDevice = `apiVersion: flightctl.io/v1beta1
kind: Device
metadata: {name: n1}
spec:
  config:
    - name: banner
      inline:
        - {path: /etc/motd, content: "Press 7\n", mode: 420}
        - {path: /etc/press/calibration.bin, content: AAECAwQ=, contentEncoding: base64, mode: 416%s}
    - name: wifi
      secretRef: {name: wifi, namespace: default, mountPath: /etc/wifi}
`

const pressViewer = `  applications:
    - name: viewer
      appType: quadlet
      inline:
        - path: viewer.container
          content: |
            [Container]
            Image=registry.example/viewer:1
`

// A Device as flightctl's v1beta1 has it is applied with kubectl: its files, its Secret and its quadlet are on the node, and gone with it.
func TestAFlightctlDeviceIsAppliedOnTheNode(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	kubectl := filepath.Join(filepath.Dir(s.Bin), ".tools", "kubectl")
	if _, err := os.Stat(kubectl); err != nil {
		t.Skip("no kubectl")
	}
	root := filepath.Join(s.Dir, "root")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "etc"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "run/dbus"), 0o755))
	systemd := hosttest.StartSystemd(t, root)
	bus, _, _ := strings.Cut(strings.TrimPrefix(systemd.Address, "unix:path="), ",")
	require.NoError(t, os.Symlink(bus, filepath.Join(root, "run/dbus/system_bus_socket")))

	me, err := user.Current()
	require.NoError(t, err)
	users := fmt.Sprintf("auth: {users: [{name: agent, role: agent, local: %q}]}\n", me.Username)
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "core.yaml"), []byte(users), 0o600))
	socket := filepath.Join(s.Dir, "mqtt.sock")
	signIn(t, s)
	s.Up("hub")
	api := s.SignedIn()
	defer api.Close()
	require.NoError(t, s.Term("hub"))
	putSecret(t, filepath.Join(s.Dir, "hub"), store.Key{Kind: resource.KindSecret, Namespace: "default", Name: "wifi"}, `{"psk":"Y29ycmVjdCBob3JzZQ=="}`)
	s.Up("hub")
	require.NoError(t, s.Start(t.Context(), "core", "--mqtt-socket", socket))
	require.NoError(t, s.Run(t.Context(), "agent", []string{"edgeagent", "--mqtt-socket", socket, "--data-dir", filepath.Join(s.Dir, "agent"), "--root", root}, ""))

	run := func(stdin string, args ...string) (string, error) {
		cmd := exec.Command(kubectl, append([]string{"--server", api.URL}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+s.Dir)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	// status waits until the Device's status in flightctl's form has the applications, and returns its renderedVersion.
	status := func(applications string) (version string) {
		t.Helper()
		s.Eventually(stand.WaitTimeout, func() error {
			out, err := run("", "get", "devices.v1beta1.flightctl.io", "n1", "-o",
				`jsonpath={.status.applications[*].name}/{.status.applications[*].status}/{.status.config.renderedVersion}`)
			after, ok := strings.CutPrefix(out, applications+"/")
			if version = after; err != nil || !ok || version == "" {
				return fmt.Errorf("status %q, wanted %q: %w", out, applications, err)
			}
			return nil
		})
		return version
	}
	var owner string
	if os.Getuid() == 0 {
		owner = `, user: "1", group: "2"`
	} else {
		owner = fmt.Sprintf(", user: %q, group: %q", me.Uid, me.Gid)
		t.Log("another owner than one's own is not tried: only root may give files away")
	}
	device := fmt.Sprintf(pressDevice, owner)
	s.Eventually(stand.WaitTimeout, func() error { // the hub registers it: kubectl would create what is there by then
		out, err := run("", "get", "devices.v1beta1.flightctl.io", "n1")
		if err != nil {
			return errors.New(out)
		}
		return nil
	})
	out, err := run(device+pressViewer, "apply", "-f", "-")
	require.NoError(t, err, out)
	first := status("viewer/Running")

	for path, want := range map[string]struct {
		content string
		mode    os.FileMode
	}{
		"etc/motd":                  {"Press 7\n", 0o644},
		"etc/press/calibration.bin": {"\x00\x01\x02\x03\x04", 0o640},
		"etc/wifi/psk":              {"correct horse", 0o600},
	} {
		got, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		require.Equal(t, want.content, string(got), path)
		info, err := os.Stat(filepath.Join(root, path))
		require.NoError(t, err)
		require.Equal(t, want.mode, info.Mode().Perm(), path)
		if sys, ok := info.Sys().(*syscall.Stat_t); ok && os.Getuid() == 0 && path == "etc/press/calibration.bin" {
			require.Equal(t, [2]uint32{1, 2}, [2]uint32{sys.Uid, sys.Gid}, path)
		}
	}
	require.Equal(t, "active", systemd.Active("viewer.service"))

	out, err = run(device, "apply", "-f", "-")
	require.NoError(t, err, out)
	s.Eventually(stand.WaitTimeout, func() error {
		if state := systemd.Active("viewer.service"); state != "" {
			return fmt.Errorf("viewer.service is %s", state)
		}
		return nil
	})
	s.Eventually(stand.WaitTimeout, func() error {
		if version := status("/"); version == first {
			return fmt.Errorf("version %s is still reported", version)
		}
		return nil
	})
	require.Contains(t, systemd.Log(), "stop viewer.service")
	require.NoFileExists(t, filepath.Join(root, "etc/containers/systemd/viewer/viewer.container"))
	require.FileExists(t, filepath.Join(root, "etc/motd"))
}
