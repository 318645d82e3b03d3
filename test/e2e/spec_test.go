// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/daemon/seal"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics/password"
	"github.com/edgebus/edgebus/topics/resource"
)

// What a node's spec is rendered to arrives on the node's broker, with the Secrets that it refers to for the agent alone.
func TestARenderedSpecArrivesOnTheNode(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	me, err := user.Current()
	require.NoError(t, err)
	users := fmt.Sprintf("auth: {users: [{name: agent, role: agent, local: %q}]}\n", me.Username)
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "core.yaml"), []byte(users), 0o600))
	socket := filepath.Join(s.Dir, "mqtt.sock")
	signIn(t, s)
	s.Up("hub")
	require.NoError(t, s.Start(t.Context(), "core", "--mqtt-socket", socket))
	const tree = "v1/nodes/n1/"
	agent, operator, cloud := s.Watch("unix://"+socket, tree+"#", nil), s.Watch(s.Core(), tree+"#", nil), s.Watch(s.Hub.MQTT, tree+"#", nil)
	wifi := store.Key{Kind: resource.KindSecret, Namespace: "default", Name: "wifi"}
	require.NoError(t, s.Term("hub"))
	putSecret(t, filepath.Join(s.Dir, "hub"), wifi, `{"psk":"Y29ycmVjdCBob3JzZQ=="}`)
	s.Up("hub")
	node := "apiVersion: edgebus.io/v1alpha1\nkind: Node\nmetadata: {name: n1}\nspec: {config: [%s]}\n"
	motd := "{name: motd, configType: FileListProviderSpec, files: [{path: /etc/motd, content: welcome}]}"
	s.Create(fmt.Sprintf(node, motd+", {name: wifi, configType: KubernetesSecretProviderSpec, secretRef: {name: wifi, mountPath: /etc/wifi}}"))
	secret := tree + "secrets/default.wifi"
	whole := func(m client.Message) bool {
		return bytes.Contains(m.Payload, []byte(`"name":"default.wifi"`)) && bytes.Contains(m.Payload, []byte("/etc/motd"))
	}
	agent.AwaitThat(secret, func(m client.Message) bool { return bytes.Contains(m.Payload, []byte(`"psk":"Y29ycmVjdCBob3JzZQ=="`)) })
	spec := agent.AwaitThat(tree+"spec", whole)
	operator.Await(tree+"spec", string(spec.Payload))
	cloud.Await(tree+"spec", string(spec.Payload))
	require.NoError(t, s.Crash("hub"))
	s.Up("hub")
	s.InStep()
	got, _ := agent.Get(tree + "spec")
	require.Equal(t, string(spec.Payload), string(got.Payload), "a restart of the hub takes nothing from the node and changes no version")
	s.Create(fmt.Sprintf(node, motd))
	agent.Await(secret, "")
	agent.AwaitThat(tree+"spec", func(m client.Message) bool { return len(m.Payload) > 0 && !whole(m) })
	// What the agent reports is in the Node's status; a bad report is refused on the node.
	out := s.Client("unix://"+socket, nil)
	require.NoError(t, s.Publish(out, tree+"agent", `{"version":"v9","renderedVersion":"1","failed":{"renderedVersion":"2","reason":"HookFailed","message":"exit status 1"}}`))
	require.ErrorContains(t, s.Publish(out, tree+"agent", `{"conditions":[{"type":"Ready","status":"True"}]}`), `agent.conditions[0].type: "Ready" is set by the hub only`)
	tool := func(want string, args ...string) {
		t.Helper()
		s.Eventually(stand.WaitTimeout, func() error {
			out, err := exec.Command(filepath.Join(s.Bin, "edgebus"), args...).CombinedOutput()
			if !strings.Contains(string(out), want) {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
	hub := "http://" + s.Hub.HTTP
	tool(`"agentVersion": "v9"`, "get", "node", "n1", "-o", "json", "--server", hub)
	tool("its spec is not applied: version 2: HookFailed: exit status 1", "describe", "node/n1", "--server", hub)
	tool("HookFailed: exit status 1", "doctor", "n1", "--hub", hub)
	for _, others := range []map[string]client.Message{operator.Tree(), cloud.Tree()} {
		require.NotContains(t, others, secret)
	}
}

// putSecret writes a Secret into the store of a hub that is stopped. Over the API only a signed-in operator may.
func putSecret(t *testing.T, dir string, at store.Key, values string) {
	t.Helper()
	key, err := seal.Load(dir)
	require.NoError(t, err)
	sealed, err := key.Seal([]byte(`{"spec":{"data":`+values+`}}`), at.String())
	require.NoError(t, err)
	data, err := json.Marshal(map[string]any{"metadata": resource.Meta{Namespace: at.Namespace, Name: at.Name}, "sealed": sealed})
	require.NoError(t, err)
	st, err := disk.Open(disk.Options{Path: filepath.Join(dir, "log")})
	require.NoError(t, err)
	_, err = st.Create(t.Context(), store.Object{Key: at, Data: data})
	require.NoError(t, err)
	require.NoError(t, st.Close())
}

// signIn has the hub list an operator beside those who need no password, and the test sign in as that one: who has not signed in may
// refer to no Repository and no Secret.
func signIn(t *testing.T, s *stand.Stand) {
	t.Helper()
	s.User, s.Password = "op", "correct horse"
	settings := fmt.Sprintf("auth: {anonymous: loopback, users: [{name: op, role: operator, nodes: [\"*\"], passwordHash: %q}]}\n", password.NewHash([]byte(s.Password)))
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "hub.yaml"), []byte(settings), 0o600))
}
