// SPDX-License-Identifier: Apache-2.0

package configs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// loadHub loads a hub's settings from the command line.
func loadHub(t *testing.T, args ...string) (Hub, error) {
	t.Helper()
	flags := pflag.NewFlagSet("cloudhub", pflag.ContinueOnError)
	require.NoError(t, AddFlags[Hub]("cloudhub", flags))
	require.NoError(t, flags.Parse(args))
	return Load[Hub]("cloudhub", "", flags)
}

func TestListsAreFlagsAndVariablesToo(t *testing.T) {
	two := []string{"https://a.example", "https://b.example"}
	for _, args := range [][]string{
		{"--mqtt-websocket-origins", "https://a.example,https://b.example"},
		{"--mqtt-websocket-origins", "https://a.example, https://b.example"},
		{"--mqtt-websocket-origins", "https://a.example", "--mqtt-websocket-origins", "https://b.example"},
		{"--mqtt-websocket-origins", "[https://a.example, https://b.example]"},
	} {
		cfg, err := loadHub(t, args...)
		require.NoError(t, err, args)
		require.Equal(t, two, cfg.MQTT.WebSocket.Origins, args)
	}
	t.Setenv("CLOUDHUB_MQTT_WEBSOCKET_ORIGINS", "https://a.example,https://b.example")
	cfg, err := loadHub(t)
	require.NoError(t, err)
	require.Equal(t, two, cfg.MQTT.WebSocket.Origins)
	cfg, err = loadHub(t, "--mqtt-websocket-origins=")
	require.NoError(t, err)
	require.Empty(t, cfg.MQTT.WebSocket.Origins, "an empty flag is an empty list")

	core, err := loadCore(t, "", "--bridge", "[{direction: up, filter: site/#}]")
	require.NoError(t, err)
	require.Equal(t, []Bridge{{Direction: "up", Filter: "site/#"}}, core.Bridge)
}

func TestAWrongListIsToldWithAnExample(t *testing.T) {
	for args, want := range map[[2]string]string{
		{"--bridge", "up"}:             `--bridge: bridge: "up" is not a list in YAML, such as [{direction: …, filter: …}]`,
		{"--bridge", "[{dir: up}]"}:    `not a list that fits, such as [{direction: …, filter: …}]`,
		{"--node-labels", "[{a: b}]"}:  `--node-labels: node.labels: not a list that fits, such as a,b or [a, b]`,
		{"--auth-deny", "n1"}:          `"n1" is not a list in YAML, such as [{`,
		{"--node-label-from", "[a, b"}: `such as a,b or [a, b]`,
	} {
		_, err := loadCore(t, "", args[0], args[1])
		require.ErrorContains(t, err, want, args)
	}
	_, err := loadHub(t, "--mqtt-websocket-origins", "app.example.com")
	require.ErrorContains(t, err, "such as https://app.example.com")
}

// Everybody on a host can read the command line of a process.
func TestSecretsHaveNoFlags(t *testing.T) {
	flags := pflag.NewFlagSet("edgecore", pflag.ContinueOnError)
	require.NoError(t, AddFlags[Core]("edgecore", flags))
	for _, name := range []string{"auth-users", "link-password"} {
		require.Nil(t, flags.Lookup(name), name)
	}
	require.NotNil(t, flags.Lookup("auth-deny"))
}

func TestSystemdsCredentialsAreSettings(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	for name, text := range map[string]string{
		"link.password": "hunter2\n", "link.tls.key": "a key", "link.keepalive": "11s\n", "auth.users": "[{name: bob, role: operator, passwordHash: " + secretHash + "}]\n",
		"other": "not ours",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	core, err := loadCore(t, "link: {keepalive: 5s, password: of the file, user: node/n1, tls: {cert: c.pem}}")
	require.NoError(t, err)
	require.Equal(t, "hunter2", core.Link.Password)
	require.Equal(t, filepath.Join(dir, "link.tls.key"), core.Link.TLS.Key, "of a setting that names a file it is the file")
	require.Equal(t, "11s", core.Link.Keepalive.String())
	require.Equal(t, "bob", core.Auth.Users[0].Name)
	t.Setenv("EDGECORE_LINK_KEEPALIVE", "12s")
	const cert = "link: {tls: {cert: c.pem}}"
	core, err = loadCore(t, cert)
	require.NoError(t, err)
	require.Equal(t, "12s", core.Link.Keepalive.String())

	require.NoError(t, os.WriteFile(filepath.Join(dir, "link.retry.timeout"), []byte("soon"), 0o600))
	_, err = loadCore(t, cert)
	require.ErrorContains(t, err, `credential link.retry.timeout: link.retry.timeout: "soon" is not a duration`)
}

func TestAUsersOwnFileOfSettingsGoesBeforeTheHosts(t *testing.T) {
	dir := t.TempDir()
	own, system := filepath.Join(dir, "own.yaml"), filepath.Join(dir, "system.yaml")
	require.Equal(t, own, ownOrSystem(own, system), "where there is none: where the user can make one")
	require.NoError(t, os.WriteFile(system, nil, 0o600))
	require.Equal(t, system, ownOrSystem(own, system))
	none := filepath.Join(dir, "none.yaml")
	require.Equal(t, none, ownOrSystem(filepath.Join(system, "own.yaml"), none), "what can't be looked at is not the user's")
	require.NoError(t, os.WriteFile(own, nil, 0o600))
	require.Equal(t, own, ownOrSystem(own, system))
}

// A comment's words are the help, wildcards of topics included.
func TestTheHelpOfAFlagIsTheWholeComment(t *testing.T) {
	flags := pflag.NewFlagSet("cloudhub", pflag.ContinueOnError)
	require.NoError(t, AddFlags[Hub]("cloudhub", flags))
	require.Contains(t, flags.Lookup("bridge-down").Usage, `such as "site/#". {node} stands for the asking node's name: "orders/{node}/#".`)
}
