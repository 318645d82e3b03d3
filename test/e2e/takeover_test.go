// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics/password"
)

// ackedMessages are what was acknowledged, and when.
type ackedMessages struct {
	mu sync.Mutex
	at map[string]time.Time
}

// publish publishes numbers to a topic until the test ends.
func (a *ackedMessages) publish(t *testing.T, c *client.Client, topic string) {
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	t.Cleanup(func() { stop(); group.Wait() })
	group.Go(func() {
		for n := 1; ctx.Err() == nil; n++ {
			value := strconv.Itoa(n)
			if c.Publish(ctx, client.Message{Topic: topic, Payload: []byte(value), QoS: 1}) == nil {
				a.mu.Lock()
				a.at[value] = time.Now()
				a.mu.Unlock()
			}
		}
	})
}

func (a *ackedMessages) until(at time.Time) (values []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for value, when := range a.at {
		if when.Before(at) {
			values = append(values, value)
		}
	}
	return values
}

// copyState is what follow.json says.
type copyState struct {
	Whole   bool      `json:"whole"`
	AsOf    time.Time `json:"asOf"`
	Lacking []string  `json:"lackingKeys"`
	Error   string    `json:"error"`
}

// standbyHost is a machine that follows the hub of a stand.
type standbyHost struct {
	*stand.Stand
	t   *testing.T
	dir string
}

func newStandby(t *testing.T) standbyHost {
	s := stand.New(t, 1)
	text := "auth:\n  anonymous: loopback\n  users:\n    - {name: standby, role: follower, passwordHash: '" + password.NewHash([]byte("standby")) +
		"'}\n    - {name: ann, role: operator, nodes: ['*'], passwordHash: '" + password.NewHash([]byte("ann")) + "'}\n"
	s.User, s.Password = "ann", "ann"
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "hub.yaml"), []byte(text), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "password"), []byte("standby\n"), 0o600))
	return standbyHost{s, t, filepath.Join(s.Dir, "standby")}
}

func (s standbyHost) follow(args ...string) []string {
	return append([]string{
		filepath.Join(s.Bin, "edgebus"), "follow", "--data-dir", s.dir, "--server", "http://" + s.Hub.HTTP,
		"--user", "standby", "--password-file", filepath.Join(s.Dir, "password"),
	}, args...)
}

func (s standbyHost) run(args ...string) (string, error) {
	out, err := exec.CommandContext(s.t.Context(), args[0], args[1:]...).CombinedOutput()
	return string(out), err
}

func (s standbyHost) state() (c copyState) {
	text, err := os.ReadFile(filepath.Join(s.dir, "follow.json"))
	if err == nil {
		require.NoError(s.t, json.Unmarshal(text, &c))
	}
	return c
}

func (s standbyHost) copyKeys() {
	keys, err := filepath.Glob(filepath.Join(s.Dir, "hub", "authority", "*.key"))
	require.NoError(s.t, err)
	for _, path := range append(keys, filepath.Join(s.Dir, "hub", "secrets.key")) {
		name, err := filepath.Rel(filepath.Join(s.Dir, "hub"), path)
		require.NoError(s.t, err)
		text, err := os.ReadFile(path)
		require.NoError(s.t, err)
		require.NoError(s.t, os.WriteFile(filepath.Join(s.dir, name), text, 0o600))
	}
}

// devicesRevision lists the Devices.
func (s standbyHost) devicesRevision() string {
	text, err := harness.Call(s.t.Context(), http.MethodGet, s.DeviceURL(""), nil)
	require.NoError(s.t, err)
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	require.NoError(s.t, json.Unmarshal(text, &list))
	return list.Metadata.ResourceVersion
}

// kubectl runs kubectl as it is.
func (s standbyHost) kubectl(args ...string) *exec.Cmd {
	s.t.Helper()
	kubectl := filepath.Join(filepath.Dir(s.Bin), ".tools", "kubectl")
	require.FileExists(s.t, kubectl, "make e2e builds it")
	cmd := exec.CommandContext(s.t.Context(), kubectl, append([]string{"--server", "http://" + s.Hub.HTTP, "--cache-dir", filepath.Join(s.Dir, "kubectl")}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(s.Dir, "no-kubeconfig"))
	return cmd
}

// kubectlWatch is kubectl get devices -w: a line each time that a Device is told of, with what its level was reported to be.
type kubectlWatch struct {
	s     standbyHost
	path  string
	ended chan error
}

func (s standbyHost) watchWithKubectl(name string) kubectlWatch {
	w := kubectlWatch{s, filepath.Join(s.Dir, name), make(chan error, 1)}
	out, err := os.Create(w.path)
	require.NoError(s.t, err)
	cmd := s.kubectl("get", "devices", "--watch", "--output", `jsonpath={.metadata.name}={.status.twin.level.reported.value}{"\n"}`)
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(s.t, cmd.Start())
	require.NoError(s.t, out.Close())
	go func() { w.ended <- cmd.Wait() }()
	return w
}

// await waits until kubectl has said all of that.
func (w kubectlWatch) await(lines ...string) {
	w.s.t.Helper()
	w.s.Eventually(stand.WaitTimeout, func() error {
		text, err := os.ReadFile(w.path)
		for _, line := range lines {
			if err == nil && !strings.Contains("\n"+string(text), "\n"+line+"\n") {
				err = fmt.Errorf("kubectl hasn't said %s: %s", line, text)
			}
		}
		return err
	})
}

// A hub is killed under load, and its copy goes on at its address: what the copy said to have is there, once; nodes, the session and the will
// go on; no version goes back; a watch from before is told to list again, and kubectl does when it is run again.
func TestACopyGoesOnInThePlaceOfAHubThatIsKilled(t *testing.T) {
	t.Parallel()
	s := newStandby(t)
	nodes := []string{"n1", "n2", "n3"}
	s.Up("hub")
	manifests := stand.ModelManifest("meter", "{name: level}", "{name: wish, accessMode: ReadWrite}")
	for _, n := range nodes {
		if n != "n1" {
			_, err := s.AddNode(n, 1)
			require.NoError(t, err)
		}
		manifests += fmt.Sprintf("apiVersion: edgebus.io/v1alpha1\nkind: Device\nmetadata: {name: meter-%s}\nspec: {nodeName: %s, deviceModelRef: {name: meter}, protocol: {type: by-hand}}\n---\n", n, n)
	}
	s.Create(manifests)
	s.Up("core", "core@n2", "core@n3")
	topic := func(n, kind string) string { return "v1/nodes/" + n + "/devices/meter-" + n + "/" + kind }
	seen := versionRecorder{owned: "/desired/", last: map[string]client.Message{}}
	cloud := s.Watch(s.Hub.MQTT, "v1/nodes/#", seen.hear)
	hub := s.Client(s.Hub.MQTT, nil)
	cores := make(map[string]*client.Client)
	for _, n := range nodes {
		cores[n] = s.Client(s.Node(n).MQTT, nil)
		s.Eventually(stand.WaitTimeout, func() error { return s.Publish(cores[n], topic(n, "reported/level"), "1") })
		s.Eventually(stand.WaitTimeout, func() error { return s.Publish(hub, topic(n, "desired/wish"), "a") })
	}
	s.Create("apiVersion: v1\nkind: Secret\nmetadata: {name: pump}\nstringData: {password: hidden}\n")

	// A session that is away, messages for it, and a client with a will.
	absent := &absentClient{broker: s.Hub.MQTT, filter: "site/#"}
	require.NoError(t, absent.visit(t.Context(), nil))
	dying, err := client.New(client.Options{
		Servers: []string{"mqtt://" + s.Hub.MQTT}, ClientID: "dying", SessionExpiry: time.Hour,
		Will: &client.Message{Topic: "site/will", Payload: []byte("gone"), QoS: 1},
	})
	require.NoError(t, err)
	living, die := context.WithCancel(t.Context())
	dead := make(chan error, 1)
	go func() { dead <- dying.Run(living) }()
	s.Eventually(stand.WaitTimeout, func() error {
		if !dying.Connected() {
			return errors.New("the client with the will isn't connected")
		}
		return nil
	})
	acked := &ackedMessages{at: map[string]time.Time{}}
	acked.publish(t, s.Client(s.Hub.MQTT, nil), "site/load")

	require.NoError(t, s.Run(t.Context(), "follow", s.follow(), ""))
	s.Eventually(stand.WaitTimeout, func() error {
		if c := s.state(); !c.Whole || len(c.Lacking) == 0 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	require.NoFileExists(t, filepath.Join(s.dir, "secrets.key"), "no key is sent")
	s.Eventually(stand.WaitTimeout, func() error { return wantGauge(s.Stand, s.Hub.HTTP, "edgebus_hub_followers_connected", 1) })
	s.copyKeys()
	began := time.Now()
	s.Eventually(stand.WaitTimeout, func() error {
		if c := s.state(); len(c.Lacking) > 0 || c.AsOf.Before(began) || len(acked.until(c.AsOf)) < 50 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	out, err := s.run(s.follow("--status", "--within", "30s")...)
	require.NoError(t, err, out)
	before := s.devicesRevision()
	s.Create("apiVersion: edgebus.io/v1alpha1\nkind: Node\nmetadata: {name: n9}\n")
	out, err = s.run(filepath.Join(s.Bin, "edgebus"), "node", "revoke", "n9", "--server", "http://"+s.Hub.HTTP)
	require.NoError(t, err, out)
	s.Eventually(stand.WaitTimeout, func() error {
		if text, _ := os.ReadFile(filepath.Join(s.dir, "authority", "revoked.json")); !strings.Contains(string(text), `"n9"`) {
			return fmt.Errorf("the revocation isn't in the copy: %s", text)
		}
		return nil
	})
	watch := s.watchWithKubectl("watch before")
	watch.await("meter-n1=1", "meter-n2=1", "meter-n3=1")
	require.NoError(t, s.Publish(cores["n1"], topic("n1", "reported/level"), "2"))
	watch.await("meter-n1=2")
	revoked := time.Now()
	s.Eventually(stand.WaitTimeout, func() error {
		if c := s.state(); c.AsOf.Before(revoked) {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})

	require.NoError(t, s.Crash("hub"))
	select { // kubectl get -w ends with the connection
	case <-watch.ended:
	case <-time.After(stand.WaitTimeout):
		t.Fatal("kubectl get -w goes on without a hub")
	}
	die()
	<-dead
	s.Eventually(stand.WaitTimeout, func() error {
		if s.state().Error == "" {
			return errors.New("it is still connected")
		}
		return nil
	})
	require.NoError(t, s.Term("follow"))
	had := acked.until(s.state().AsOf)
	require.NotEmpty(t, had)
	out, err = s.run(filepath.Join(s.Bin, "cloudhub"), "--data-dir", s.dir, "--mqtt-listen", s.Hub.MQTT, "--http-listen", s.Hub.HTTP)
	require.Error(t, err)
	require.Contains(t, out, "is a copy of another hub's log", "no hub starts on a copy by accident")
	out, err = s.run(filepath.Join(s.Bin, "edgebus"), "takeover", s.dir)
	require.NoError(t, err, out)
	require.Contains(t, out, "The copy has all that the hub had at ")
	require.Contains(t, out, "1 revoked nodes")
	require.NoFileExists(t, filepath.Join(s.dir, "follow.json"), "it follows nobody now")
	require.NoError(t, s.Start(t.Context(), "hub", "--data-dir", s.dir))
	watch = s.watchWithKubectl("watch after")
	watch.await("meter-n1=2", "meter-n2=1", "meter-n3=1")

	// Nodes.
	for i, n := range nodes {
		s.Eventually(stand.WaitTimeout, func() error { return s.Publish(cores[n], topic(n, "reported/level"), strconv.Itoa(10+i)) })
		cloud.Await(topic(n, "reported/level"), strconv.Itoa(10+i))
		cloud.Await(topic(n, "desired/wish"), "a")
		s.Eventually(stand.WaitTimeout, func() error { return s.Publish(hub, topic(n, "desired/wish"), "b") })
		require.NoError(t, harness.Await(t.Context(), s.Node(n).MQTT, topic(n, "desired/wish"), "b", stand.WaitTimeout))
		watch.await(fmt.Sprintf("meter-%s=%d", n, 10+i))
	}
	seen.mu.Lock()
	require.Empty(t, seen.faults)
	seen.mu.Unlock()

	// The session and the will.
	times := make(map[string]int)
	require.NoError(t, s.Publish(hub, "site/end", "end"))
	require.NoError(t, absent.visit(t.Context(), func(topic, value string) bool {
		times[topic+" "+value]++
		return topic == "site/end"
	}))
	for _, value := range had {
		require.Equal(t, 1, times["site/load "+value], "message %s of %d", value, len(had))
	}
	require.Equal(t, 1, times["site/will gone"])
	for what, n := range times {
		require.Equal(t, 1, n, what)
	}

	// A watch from before, and lists after it.
	answer, err := harness.Call(t.Context(), http.MethodGet, s.DeviceURL("")+"?watch=true&timeoutSeconds=5&resourceVersion="+before, nil)
	gone := new(harness.StatusError)
	require.True(t, errors.As(err, &gone) && gone.Code == http.StatusGone || strings.Contains(string(answer), `"code":410`), "%v %s", err, answer)
	said, err := s.kubectl("get", "--raw", "/apis/edgebus.io/v1alpha1/devices?watch=true&timeoutSeconds=5&resourceVersion="+before).CombinedOutput()
	require.True(t, err != nil || strings.Contains(string(said), `"code":410`), "%s", said)
	require.Regexp(t, `410|Expired|too old`, string(said))
	after, err := strconv.ParseUint(s.devicesRevision(), 10, 64)
	require.NoError(t, err)
	old, err := strconv.ParseUint(before, 10, 64)
	require.NoError(t, err)
	require.Greater(t, after, old)
	secret, err := s.run(filepath.Join(s.Bin, "edgebus"), "check", s.dir)
	require.Error(t, err, "it runs: %s", secret)

	// The new hub can be followed as well; the copy's directory can't be written over.
	out, err = s.run(s.follow("--once")...)
	require.Error(t, err)
	require.Contains(t, out, "is in use by cloudhub")
	again := standbyHost{s.Stand, t, filepath.Join(s.Dir, "second")}
	out, err = again.run(again.follow("--once")...)
	require.NoError(t, err, out)
	require.True(t, again.state().Whole)
	out, err = again.run(filepath.Join(s.Bin, "edgebus"), "takeover", again.dir)
	require.Error(t, err)
	require.Contains(t, out, "1.key", "what is missing is named")
	for _, name := range []string{"restored", "replaced"} { // they came with the log
		hubs, err := os.ReadFile(filepath.Join(s.dir, name))
		require.NoError(t, err)
		theirs, err := os.ReadFile(filepath.Join(again.dir, name))
		require.NoError(t, err)
		require.Equal(t, string(hubs), string(theirs), "nothing is changed")
	}

	// The old hub comes back at its address: it is another hub now, changes nothing on the nodes, and says why.
	require.NoError(t, s.Term("hub"))
	require.NoError(t, s.Start(t.Context(), "hub", "--data-dir", filepath.Join(s.Dir, "hub")))
	s.Eventually(stand.WaitTimeout, func() error {
		return wantGauge(s.Stand, s.Hub.HTTP, "edgebus_hub_nodes_of_another_hub", float64(len(nodes)))
	})
	for _, n := range nodes {
		s.Eventually(stand.WaitTimeout, func() error { return s.Publish(hub, topic(n, "desired/wish"), "old") })
		s.Eventually(stand.WaitTimeout, func() error { return s.Publish(cores[n], topic(n, "reported/level"), "99") })
		cloud.Await(topic(n, "reported/level"), "99") // the link is up, and what was wanted before would be there
		require.NoError(t, harness.Await(t.Context(), s.Node(n).MQTT, topic(n, "desired/wish"), "b", stand.WaitTimeout))
	}
	require.NoError(t, s.Term("hub"))
	require.NoError(t, s.Start(t.Context(), "hub", "--data-dir", s.dir))
	for _, n := range nodes {
		s.Eventually(stand.WaitTimeout, func() error { return s.Publish(hub, topic(n, "desired/wish"), "c") })
		require.NoError(t, harness.Await(t.Context(), s.Node(n).MQTT, topic(n, "desired/wish"), "c", stand.WaitTimeout))
	}
}
