// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics/password"
	"github.com/edgebus/edgebus/topics/resource"
)

const secretTopic = "v1/nodes/n1/secrets/default.wifi"

// secretStand is a hub and a core at which everything that may have rules gives away everything, and the node's agent.
type secretStand struct {
	*stand.Stand
	socket string
	agent  *stand.Watcher
	plain  []string // values that nobody else may see
}

func newSecretStand(t *testing.T) *secretStand {
	s := &secretStand{Stand: stand.New(t, 1)}
	hash := password.NewHash([]byte(accessPassword))
	user := func(name, role, more string) string {
		return fmt.Sprintf("    - {name: %s, role: %s, passwordHash: '%s'%s}\n", name, role, hash, more)
	}
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o600))
	}
	write("rules", "topic readwrite #\nuser vera\ntopic read #\ntopic read v1/nodes/n1/secrets/#\npattern readwrite #\n")
	rules := filepath.Join(s.Dir, "rules")
	write("hub.yaml", "bridge: {down: ['#']}\nauth:\n  anonymous: loopback\n  topics: "+rules+"\n  sharedGroups: ['*']\n  users:\n"+
		user("ann", "operator", `, nodes: ["*"]`)+user("otto", "operator", `, nodes: ["n*"]`)+user("vera", "viewer", `, nodes: ["*"]`))
	dir, err := os.MkdirTemp("", "eb") // the path of a socket is short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.socket = filepath.Join(dir, "mqtt.sock")
	write("core.yaml", "mqtt: {socket: "+s.socket+"}\nbridge: [{direction: up, filter: '#'}, {direction: down, filter: '#'}]\nauth:\n  anonymous: loopback\n  topics: "+rules+
		"\n  sharedGroups: ['*']\n  users:\n"+user("ann", "operator", `, nodes: ["*"]`)+user("vera", "viewer", "")+user("modbus", "mapper", "")+
		fmt.Sprintf("    - {name: agent, role: agent, local: '%d'}\n", os.Getuid()))
	s.Up("hub", "core")
	s.agent = s.Watch("unix://"+s.socket, "v1/nodes/n1/#", nil)
	return s
}

// call asks the hub's API as the operator.
func (s *secretStand) call(t *testing.T, method, path, body string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Hub.HTTP+path, strings.NewReader(body))
	require.NoError(t, err)
	r.SetBasicAuth("ann", accessPassword)
	if r.Header.Set("Content-Type", "application/json"); method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Less(t, answer.StatusCode, 300, "%s %s: %s", method, path, text)
	return string(text)
}

// psk stores a new value in the Secret.
func (s *secretStand) psk(t *testing.T, method, value string) {
	t.Helper()
	s.plain = append(s.plain, value)
	path := "/api/v1/namespaces/default/secrets"
	if method == http.MethodPatch {
		path += "/wifi"
	}
	s.call(t, method, path, fmt.Sprintf(`{"metadata":{"name":"wifi"},"stringData":{"psk":%q}}`, value))
}

// refer has the node's spec refer to the Secret, or to nothing.
func (s *secretStand) refer(t *testing.T, config string) {
	t.Helper()
	s.call(t, http.MethodPatch, "/apis/edgebus.io/v1alpha1/nodes/n1", `{"spec":{"config":`+config+`}}`)
}

const wifiConfig = `[{"name":"wifi","configType":"KubernetesSecretProviderSpec","secretRef":{"name":"wifi","mountPath":"/etc/wifi"}}]`

// agentHas waits until the agent has a value; empty: none.
func (s *secretStand) agentHas(t *testing.T, value string) (version string) {
	t.Helper()
	s.agent.AwaitThat(secretTopic, func(m client.Message) bool {
		if value == "" {
			return len(m.Payload) == 0
		}
		var got resource.SecretValues
		if json.Unmarshal(m.Payload, &got) != nil || string(got.Data["psk"]) != value {
			return false
		}
		version = got.Version
		return true
	})
	return version
}

// reveals reports whether a text has one of the values, as it is or in base64.
func (s *secretStand) reveals(text []byte) bool {
	for _, value := range s.plain {
		for shift := range 3 { // of base64
			encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat(" ", shift) + value))
			if bytes.Contains(text, []byte(value)) || bytes.Contains(text, []byte(encoded[4:len(encoded)-4])) {
				return true
			}
		}
	}
	return false
}

// files looks for the values in every file below a directory.
func (s *secretStand) files(t *testing.T, dir string) {
	t.Helper()
	count := 0
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // a log that was retired
			}
			return err
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if count++; s.reveals(text) {
			t.Errorf("%s has the value of a Secret", path)
		}
		return err
	}))
	require.NotZero(t, count, dir)
}

// backup looks for the values in a backup.
func (s *secretStand) backup(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	names := ""
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		text, err := io.ReadAll(r)
		require.NoError(t, err)
		if names += h.Name + " "; s.reveals(text) {
			t.Errorf("%s in %s has the value of a Secret", h.Name, path)
		}
	}
	require.Contains(t, names, "secrets.key ")
}

// run runs a program of the build in the stand's directory. What it says goes through the same check.
func (s *secretStand) run(t *testing.T, line ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(s.Bin, line[0]), line[1:]...)
	cmd.Dir = s.Dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", line, out)
	require.False(t, s.reveals(out), "%s: %s", line, out)
	return string(out)
}

// The values of a Secret go from the hub's store to the node's agent, and nobody and nothing else has them: no client of either
// broker with any subscription, no API and tool, no bridge, log, metric, file or backup.
func TestSecretsReachTheAgentAlone(t *testing.T) {
	t.Parallel()
	s := newSecretStand(t)
	type login struct{ broker, user string }
	as := []login{
		{s.Hub.MQTT, ""},
		{s.Hub.MQTT, "ann"},
		{s.Hub.MQTT, "otto"},
		{s.Hub.MQTT, "vera"},
		{s.Core(), ""},
		{s.Core(), "ann"},
		{s.Core(), "vera"},
		{s.Core(), "modbus"},
	}
	filters := []string{"#", "v1/#", "v1/nodes/n1/#", "+/+/+/secrets/+", "$share/g/v1/nodes/#", "v1/nodes/n1/secrets/#"}
	var others []*secretReader
	read := func() {
		for _, l := range as {
			for _, filter := range filters {
				others = append(others, s.reader(t, l.broker, l.user, filter))
			}
		}
	}
	read()
	s.psk(t, http.MethodPost, "first-value-of-the-psk")
	s.refer(t, wifiConfig)
	first := s.agentHas(t, "first-value-of-the-psk")
	read() // what is retained
	s.psk(t, http.MethodPatch, "second-value-of-the-psk")
	second := s.agentHas(t, "second-value-of-the-psk")
	require.NotEqual(t, first, second)

	for _, broker := range []string{s.Hub.MQTT, s.Core()} { // everybody has what was sent before this
		end := s.Client("mqtt://"+broker, func(o *client.Options) { o.User, o.Password = "ann", accessPassword })
		require.NoError(t, s.Publish(end, "plant/end", "end"))
	}
	for _, o := range others {
		o.check(t)
	}
	for _, address := range []string{s.Hub.HTTP, s.Node("n1").HTTP} {
		for _, path := range []string{
			"/metrics", "/apis/edgebus.io/v1alpha1/nodes", "/apis/edgebus.io/v1alpha1/devices", "/apis/edgebus.io/v1alpha1/nodes/n1",
			"/api/v1/namespaces/default/secrets", "/api/v1/namespaces/default/secrets/wifi", "/apis/edgebus.io/v1alpha1/nodes/n1/rendered",
			"/api/v1/devices/n1/rendered", "/sessions", "/status", "/links",
		} {
			for _, user := range []string{"", "vera", "otto", "modbus"} {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
				require.NoError(t, err)
				if user != "" {
					r.SetBasicAuth(user, accessPassword)
				}
				answer, err := http.DefaultClient.Do(r)
				require.NoError(t, err)
				text, err := io.ReadAll(answer.Body)
				require.NoError(t, err)
				require.NoError(t, answer.Body.Close())
				require.False(t, s.reveals(text), "%s %s as %q", address, path, user)
			}
		}
	}
	require.NotContains(t, s.run(t, "edgebus", "tree", "n1", "--once", "--server", "mqtt://"+s.Hub.MQTT), "secrets/")

	s.run(t, "edgebus", "backup", "hub", "hub.backup")
	s.run(t, "edgebus", "backup", "core", "core.backup")
	s.backup(t, filepath.Join(s.Dir, "hub.backup"))
	s.backup(t, filepath.Join(s.Dir, "core.backup"))
	for _, dir := range []string{"hub", "core", "logs"} {
		s.files(t, filepath.Join(s.Dir, dir))
	}

	// A new key is no new value.
	require.Contains(t, s.run(t, "cloudhub", "rotate-key", "--data-dir", "hub"), "1 Secrets were encrypted")
	heard := len(s.agent.Tree())
	s.psk(t, http.MethodPatch, "third-value-of-the-psk")
	third := s.agentHas(t, "third-value-of-the-psk")
	var before, after int
	_, err := fmt.Sscanf(second[strings.LastIndex(second, "-")+1:]+" "+third[strings.LastIndex(third, "-")+1:], "%d %d", &before, &after)
	require.NoError(t, err)
	require.Equal(t, before+1, after, "%s, %s", second, third)
	require.Equal(t, heard, len(s.agent.Tree()))

	// Restarts of the core, and a restored backup of it.
	require.NoError(t, s.Crash("core"))
	s.Up("core")
	s.agentHas(t, "third-value-of-the-psk")
	require.NoError(t, s.Term("core"))
	s.files(t, filepath.Join(s.Dir, "core"))
	require.Contains(t, s.run(t, "edgebus", "check", "core"), "it decrypts all values of Secrets (1)")
	require.Contains(t, s.run(t, "edgecore", "restore", "--force", "--data-dir", "core", "core.backup"), "it decrypts all values of Secrets (1)")
	s.Up("core")
	s.agentHas(t, "third-value-of-the-psk")

	// A lost key.
	require.NoError(t, s.Term("core"))
	require.NoError(t, os.Remove(filepath.Join(s.Dir, "core", "secrets.key")))
	require.Contains(t, s.run(t, "edgebus", "check", "core"), "is missing; the hub has to send 1 values of Secrets again")
	s.Up("core")
	s.agentHas(t, "third-value-of-the-psk")
	log, err := os.ReadFile(s.LogFile("core"))
	require.NoError(t, err)
	require.Contains(t, string(log), "stored Secrets can't be decrypted with the key in the data directory")
	require.NoError(t, s.Term("core"))
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "core", "secrets.key"), []byte("garbage"), 0o600))
	s.Up("core")
	s.agentHas(t, "third-value-of-the-psk")

	// What nothing refers to any more is gone from the node.
	s.refer(t, `null`)
	s.agentHas(t, "")
	s.refer(t, wifiConfig)
	s.agentHas(t, "third-value-of-the-psk")
	s.call(t, http.MethodDelete, "/api/v1/namespaces/default/secrets/wifi", "")
	s.refer(t, `[]`)
	s.agentHas(t, "")
	require.NoError(t, s.Term("core"))
	require.NotContains(t, s.run(t, "edgebus", "check", "core"), "values of Secrets")
	for _, dir := range []string{"hub", "core", "logs"} {
		s.files(t, filepath.Join(s.Dir, dir))
	}
}

// secretReader is a client that notes whether it was sent a value.
type secretReader struct {
	what  string
	ended chan error
}

// reader subscribes, and reads until plant/end.
func (s *secretStand) reader(t *testing.T, broker, user, filter string) *secretReader {
	t.Helper()
	conn, code := accessBroker{name: broker, address: broker}.connect(t, accessClient{user: user, password: user != ""})
	require.Zero(t, code, "%s at %s", user, broker)
	t.Cleanup(func() { _ = conn.Close() })
	p := packets.NewControlPacket(packets.SUBSCRIBE)
	subscribe := p.Content.(*packets.Subscribe)
	subscribe.PacketID, subscribe.Subscriptions = 8, []packets.SubOptions{{Topic: filter}, {Topic: "plant/end"}}
	_, err := p.WriteTo(conn)
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(2*stand.WaitTimeout)))
	r := &secretReader{fmt.Sprintf("%q with %s at %s", user, filter, broker), make(chan error, 1)}
	go func() { r.ended <- r.read(conn) }()
	return r
}

func (r *secretReader) read(conn *accessConn) error {
	for {
		answer, err := packets.ReadPacket(conn.r)
		if err != nil {
			return err
		}
		m, ok := answer.Content.(*packets.Publish)
		switch {
		case !ok:
		case strings.Contains(m.Topic, "secrets/"), bytes.Contains(m.Payload, []byte(`"psk":`)):
			return fmt.Errorf("%s: %s", m.Topic, m.Payload)
		case m.Topic == "plant/end":
			return nil
		}
	}
}

func (r *secretReader) check(t *testing.T) {
	t.Helper()
	if err := <-r.ended; err != nil {
		t.Errorf("%s: %v", r.what, err)
	}
}

// The hub is killed at random moments of rotations: it starts again each time, and has every Secret.
func TestTheHubIsKilledWhileItsKeyIsRotated(t *testing.T) {
	t.Parallel()
	s := newSecretStand(t)
	random := rand.New(rand.NewPCG(13, 4))
	const secrets, rounds = 200, 12
	for i := range secrets {
		s.call(t, http.MethodPost, "/api/v1/namespaces/default/secrets", fmt.Sprintf(`{"metadata":{"name":"s%d"},"stringData":{"v":"value-%d"}}`, i, i))
	}
	key := filepath.Join(s.Dir, "hub", "secrets.key")
	interrupted := 0
	for range rounds {
		cmd := exec.CommandContext(t.Context(), filepath.Join(s.Bin, "cloudhub"), "rotate-key", "--data-dir", filepath.Join(s.Dir, "hub"))
		require.NoError(t, cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		before, err := os.ReadFile(key)
		require.NoError(t, err)
		for now := before; bytes.Equal(now, before); { // the moments that matter come after the new key is written
			require.NoError(t, t.Context().Err())
			now, err = os.ReadFile(key)
			require.NoError(t, err)
		}
		time.Sleep(time.Duration(random.IntN(8000)) * time.Microsecond) // a random moment of the rotation
		require.NoError(t, s.Crash("hub"))
		if <-ended != nil {
			interrupted++
		}
		s.Up("hub")
		now, err := os.ReadFile(key)
		require.NoError(t, err)
		require.Equal(t, 1, bytes.Count(now, []byte("\n")), "the start ends the rotation")
		var list struct{ Items []resource.Secret }
		require.NoError(t, json.Unmarshal([]byte(s.call(t, http.MethodGet, "/api/v1/secrets", "")), &list))
		require.Len(t, list.Items, secrets)
		for _, secret := range list.Items {
			require.Equal(t, "value-"+strings.TrimPrefix(secret.Metadata.Name, "s"), string(secret.Data["v"]))
		}
	}
	t.Logf("%d of %d rotations were interrupted", interrupted, rounds)
}
