// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/hosttest"
	"github.com/edgebus/edgebus/test/stand"
)

// echoConfiguration is a Configuration in the shape that Akri publishes: foo1 is a device, and its broker runs once it is found.
const echoConfiguration = `apiVersion: akri.sh/v0
kind: Configuration
metadata: {name: akri-debug-echo-foo, namespace: default}
spec:
  discoveryHandler:
    name: debugEcho
    discoveryDetails: |+
      descriptions: [%s]
  brokerProperties: {SITE: hall}
  brokerSpec:
    brokerPodSpec:
      containers:
        - name: akri-debug-echo-foo-broker
          image: "nginx:stable-alpine"
          resources:
            requests: {"{{PLACEHOLDER}}": "1"}
            limits: {"{{PLACEHOLDER}}": "1"}
  capacity: 1
  gracePeriod: {shared: 0s, local: 0s}
`

// What a handler finds is a quadlet of the node and a started unit, with the properties as variables with and without the Instance's suffix; both go
// with the device. A broker that doesn't start keeps nothing else of the node's spec from being applied, and the Node says why it fails.
func TestABrokerRunsForADeviceThatIsFound(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("two programs sign in at the core's socket as different users of the host: only root may run both")
	}
	stand.RequirePrograms(t, "setpriv", "dbus-daemon")
	s := stand.New(t, 1)
	require.NoError(t, os.Chmod(filepath.Dir(s.Dir), 0o755))
	root, of := filepath.Join(s.Dir, "root"), filepath.Join(s.Dir, "nobody")
	for _, dir := range []string{filepath.Join(root, "etc"), filepath.Join(root, "run/dbus"), of} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}
	require.NoError(t, os.Chown(of, 65534, 65534))
	systemd := hosttest.StartSystemd(t, root)
	bus, _, _ := strings.Cut(strings.TrimPrefix(systemd.Address, "unix:path="), ",")
	require.NoError(t, os.Symlink(bus, filepath.Join(root, "run/dbus/system_bus_socket")))
	users := `auth: {users: [{name: agent, role: agent, local: "0"}, {name: finder, role: discoverer, local: "65534"}]}` + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "core.yaml"), []byte(users), 0o600))
	socket := filepath.Join(s.Dir, "mqtt.sock")
	s.Up("hub")
	require.NoError(t, s.Start(t.Context(), "core", "--mqtt-socket", socket))
	require.NoError(t, s.Run(t.Context(), "agent", []string{"edgeagent", "--mqtt-socket", socket, "--data-dir", filepath.Join(s.Dir, "agent"), "--root", root}, ""))
	require.NoError(t, s.Run(t.Context(), "discovery", []string{
		"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", filepath.Join(s.Bin, "edgediscovery"),
		"--mqtt-socket", socket, "--data-dir", filepath.Join(of, "data"), "--handlers-dir", filepath.Join(of, "h"), "--handlers-grace", "1s",
	}, ""))

	apply := func(text string) {
		t.Helper()
		s.Eventually(stand.WaitTimeout, func() error { return s.Apply(t.Context(), []byte(text)) })
	}
	units := func() []string {
		found, err := filepath.Glob(filepath.Join(root, "etc/containers/systemd/*/*.container"))
		require.NoError(t, err)
		return found
	}
	apply(fmt.Sprintf(echoConfiguration, "foo1"))
	var unit, service string
	s.Eventually(stand.WaitTimeout, func() error {
		found := units()
		if len(found) != 1 {
			return fmt.Errorf("quadlets are %q", found)
		}
		unit = found[0]
		service = strings.TrimSuffix(filepath.Base(unit), ".container") + ".service"
		if state := systemd.Active(service); state != "active" {
			return fmt.Errorf("%s is %q", service, state)
		}
		return nil
	})
	require.Regexp(t, `^akri-debug-echo-foo-[0-9a-f]{12}\.service$`, service)
	text, err := os.ReadFile(unit)
	require.NoError(t, err)
	require.Contains(t, string(text), "\nImage=nginx:stable-alpine\n")
	env, err := os.ReadFile(filepath.Join(filepath.Dir(unit), ".edgebus.env"))
	require.NoError(t, err)
	for _, line := range []string{`AGENT_NODE_NAME=n1`, `SITE=hall`, `SITE_[0-9A-F]{6}=hall`, `DEBUG_ECHO_DESCRIPTION=foo1`, `DEBUG_ECHO_DESCRIPTION_[0-9A-F]{6}=foo1`} {
		require.Regexp(t, `(?m)^`+line+`$`, string(env))
	}

	// Another device takes its place, whose broker doesn't start; and the node gets a file.
	gone := func() error {
		if found := units(); len(found) > 0 || systemd.Active(service) != "" {
			return fmt.Errorf("quadlets are %q, and %s is %q", found, service, systemd.Active(service))
		}
		return nil
	}
	apply(fmt.Sprintf(echoConfiguration, ""))
	s.Eventually(stand.WaitTimeout, gone)
	systemd.Fail(service, true)
	apply(fmt.Sprintf(echoConfiguration, "foo1"))
	status := func(want string) {
		t.Helper()
		s.Eventually(stand.WaitTimeout, func() error {
			answer, err := http.Get("http://" + s.Hub.HTTP + "/apis/edgebus.io/v1alpha1/nodes/n1") //nolint:noctx // a test's
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			if text, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(text), want) {
				return fmt.Errorf("the Node doesn't say %s: %s (%v)", want, text, err) //nolint:errorlint // it may be nil
			}
			return nil
		})
	}
	status(fmt.Sprintf(`"status":"Error","ready":"0/1","message":"systemd: start %s: the job ended with`, service))
	apply("apiVersion: edgebus.io/v1alpha1\nkind: Node\nmetadata: {name: n1}\nspec: {config: [{name: motd, configType: FileListProviderSpec, files: [{path: /etc/motd, content: hello}]}]}\n")
	s.Eventually(stand.WaitTimeout, func() error {
		text, err := os.ReadFile(filepath.Join(root, "etc/motd"))
		if err == nil && string(text) != "hello" {
			err = fmt.Errorf("/etc/motd is %q", text)
		}
		return err
	})
	status(`"type":"SpecApplied","status":"True"`)
	require.Len(t, units(), 1, "the broker stays part of the spec")

	systemd.Fail(service, false)
	require.NoError(t, s.Crash("agent")) // the next agent starts it again at once
	require.NoError(t, s.Run(t.Context(), "agent", []string{"edgeagent", "--mqtt-socket", socket, "--data-dir", filepath.Join(s.Dir, "agent"), "--root", root}, ""))
	s.Eventually(stand.WaitTimeout, func() error {
		if state := systemd.Active(service); state != "active" {
			return fmt.Errorf("%s is %q", service, state)
		}
		return nil
	})
	require.NoError(t, s.Delete(t.Context(), "configurations", "akri-debug-echo-foo"))
	s.Eventually(stand.WaitTimeout, gone)
}
