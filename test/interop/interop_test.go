// SPDX-License-Identifier: Apache-2.0

// Package interop runs the MQTT clients that people use against both brokers: what
// each must be able to do is the same list of steps, written in that client's own
// language, in clients/ or here.
package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
)

const (
	stepTimeout = 30 * time.Second
	python      = "/usr/bin/python3" // the system's: another may not see Debian's packages
	user        = "operator"
	password    = "secret"
	users       = `auth:
  anonymous: loopback
  users:
    - name: operator
      role: operator
      nodes: ["*"]
      passwordHash: $7$101$MDEyMzQ1Njc4OWFi$EO/lLlkeUgIiBaS8G8UK0ZMP1u508TA7Tl+AdJ1cEsmlbGyEPAERErpfq84j1kepISs0UzmcdL4ucgZ2uodxfQ==
`
)

// brokerTarget is a broker's address, and what it takes to connect there.
type brokerTarget struct {
	name, address string
	scheme        string // mqtt, mqtts, ws
	pki           string // directory, for mqtts
}

func (a brokerTarget) host() string { host, _, _ := net.SplitHostPort(a.address); return host }

func (a brokerTarget) port() string { _, port, _ := net.SplitHostPort(a.address); return port }

func (a brokerTarget) ca() string { return filepath.Join(a.pki, "ca.pem") }

// A client is given a version of MQTT and a prefix of its own for topics and ids.
type interopClient struct {
	name     string
	versions []int
	schemes  string
	run      func(t *testing.T, at brokerTarget, version int, prefix string)
}

var interopClients = []interopClient{
	{"mosquitto", []int{4, 5}, "mqtt mqtts", runMosquitto},
	{"paho-golang", []int{5}, "mqtt mqtts ws", runPahoGo},
	{"mqttjs", []int{4, 5}, "mqtt mqtts ws", runMQTTJS},
	{"paho-python", []int{4, 5}, "mqtt mqtts ws", runPahoPython},
}

func TestClients(t *testing.T) {
	requireTools(t)
	for _, at := range startBrokers(t) {
		for _, c := range interopClients {
			if !strings.Contains(" "+c.schemes+" ", " "+at.scheme+" ") {
				continue
			}
			for _, version := range c.versions {
				t.Run(at.name+"/"+c.name+"/"+strconv.Itoa(version), func(t *testing.T) {
					t.Parallel()
					c.run(t, at, version, c.name+strconv.Itoa(version)+at.scheme)
				})
			}
		}
	}
}

// requireTools is what has to be installed. In CI nothing may be missing.
func requireTools(t *testing.T) {
	t.Helper()
	missing := harness.Missing("mosquitto_pub", "mosquitto_sub", "mosquitto_rr", "node", "openssl")
	if exec.Command(python, "-c", "import paho.mqtt.client").Run() != nil {
		missing = append(missing, "paho-mqtt for "+python)
	}
	if _, err := os.Stat("clients/mqttjs/node_modules/mqtt"); err != nil {
		missing = append(missing, "MQTT.js")
	}
	if _, err := os.Stat("devices/node/node_modules/sparkplug-payload"); err != nil {
		missing = append(missing, "sparkplug-payload")
	}
	if len(missing) == 0 {
		return
	}
	text := "missing: " + strings.Join(missing, ", ") + "; `make needs-clients` installs them"
	if os.Getenv("CI") != "" {
		t.Fatal(text)
	}
	t.Skip(text)
}

// startBrokers runs a hub and a core, each of which listens in every way that it can.
func startBrokers(t *testing.T) []brokerTarget {
	t.Helper()
	w, err := harness.NewWorld(t.TempDir(), 1)
	require.NoError(t, err)
	t.Cleanup(w.Close)
	pki := filepath.Join(w.Dir, "pki")
	for _, line := range []string{"ca " + pki, "server " + pki + " broker 127.0.0.1", "node " + pki + " n1"} {
		out, err := exec.Command("bash", append([]string{"../../scripts/certs.sh"}, strings.Fields(line)...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	secure := []string{
		"--mqtt-tls-cert", filepath.Join(pki, "broker.pem"), "--mqtt-tls-key", filepath.Join(pki, "broker.key"),
		"--mqtt-tls-client-ca", filepath.Join(pki, "ca.pem"),
	}
	var targets []brokerTarget
	for _, broker := range []string{"hub", "core"} {
		require.NoError(t, os.WriteFile(filepath.Join(w.Dir, broker+".yaml"), []byte(users), 0o600))
		plain, err := w.Broker(broker)
		require.NoError(t, err)
		tls, ws := harness.FreeAddress(t), harness.FreeAddress(t)
		args := append([]string{"--mqtt-tls-listen", tls, "--mqtt-websocket-listen", ws}, secure...)
		require.NoError(t, w.Start(ctx, broker, args...))
		targets = append(targets,
			brokerTarget{broker + "-tcp", plain, "mqtt", ""}, brokerTarget{broker + "-tls", tls, "mqtts", pki}, brokerTarget{broker + "-websocket", ws, "ws", ""})
	}
	// There are users: of certificates' names the hub knows those of its Nodes.
	n1 := filepath.Join(w.Dir, "n1.yaml")
	require.NoError(t, os.WriteFile(n1, []byte("apiVersion: edgebus.io/v1alpha1\nkind: Node\nmetadata:\n  name: n1\n"), 0o600))
	out, err := exec.CommandContext(ctx, filepath.Join(w.Bin, "edgebus"), "apply", "-f", n1, "--server", "http://"+w.Hub.HTTP).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return targets
}

// runSteps runs a program that prints a line for each step that went well.
func runSteps(t *testing.T, want []string, name string, script string, given map[string]any) {
	t.Helper()
	text, err := json.Marshal(given)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, script, string(text))
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Run(), "%s", &out)
	for _, step := range want {
		require.Contains(t, out.String(), "ok "+step+"\n")
	}
}

// clientSteps is what every client has to do; the last two MQTT 5 only.
func clientSteps(version int) []string {
	all := []string{"qos", "retained", "will", "resume", "shared", "refused", "request", "properties"}
	if version < 5 {
		return all[:6]
	}
	return all
}

func runMQTTJS(t *testing.T, at brokerTarget, version int, prefix string) {
	given := map[string]any{"url": at.scheme + "://" + at.address, "version": version, "prefix": prefix}
	if at.pki != "" {
		given["ca"], given["username"], given["password"] = at.ca(), user, password
	}
	runSteps(t, clientSteps(version), "node", "clients/mqttjs/steps.mjs", given)
}

func runPahoPython(t *testing.T, at brokerTarget, version int, prefix string) {
	port, _ := strconv.Atoi(at.port())
	given := map[string]any{"host": at.host(), "port": port, "version": version, "prefix": prefix, "transport": "tcp"}
	if at.scheme == "ws" {
		given["transport"] = "websockets"
	}
	if at.pki != "" {
		given["ca"], given["username"], given["password"] = at.ca(), user, password
	}
	runSteps(t, clientSteps(version), python, "clients/python/steps.py", given)
}
