// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/harness"
)

// kubectl talks to the hub that serves through the balancer.
func (c *hubCluster) kubectl(args ...string) *exec.Cmd {
	ctx, stop := context.WithTimeout(c.t.Context(), time.Minute)
	c.t.Cleanup(stop)
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(c.Bin), ".tools", "kubectl"), append([]string{"--server", "http://" + c.Hub.HTTP}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+c.Dir, "KUBECONFIG=")
	return cmd
}

// kill ends the hub that serves at once, and starts it again when another one serves.
func (c *hubCluster) kill() {
	c.t.Helper()
	h := c.awaitServing()
	require.NoError(c.t, c.Crash(h.name))
	c.awaitServing()
	c.start(h)
}

// kubectl's watch ends with the hub that served it. One that goes on at its version tells what it had not told, of the hub before as well.
func TestKubectlGoesOnAfterAFailover(t *testing.T) {
	c := newHubCluster(t)
	c.startDevice()
	set := func(level int) {
		patch := fmt.Sprintf(`{"spec":{"desired":{"level":"%d"}}}`, level)
		require.NoError(t, harness.Eventually(t.Context(), time.Minute, func(context.Context) error {
			out, err := c.kubectl("patch", "device", "d", "--type", "merge", "-p", patch).CombinedOutput()
			if err != nil {
				return errors.New(string(out))
			}
			return nil
		}))
	}
	get := func(path string) string {
		t.Helper()
		out, err := c.kubectl("get", "device", "d", "-o", "jsonpath="+path).CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	watch := func(args ...string) *bufio.Reader {
		cmd := c.kubectl(append([]string{"get"}, args...)...)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return bufio.NewReader(out)
	}
	tells := func(lines *bufio.Reader, all ...string) {
		t.Helper()
		for len(all) > 0 {
			line, err := lines.ReadString('\n')
			require.NoError(t, err, "the watch ended before it told %s", all)
			all = slices.DeleteFunc(all, func(what string) bool { return strings.Contains(line, what) })
		}
	}
	before := watch("device", "d", "--watch", "-o", `jsonpath=level {.status.twin.level.reported.value}{"\n"}`)
	set(1)
	tells(before, "level 1")
	version := get("{.metadata.resourceVersion}")
	create := c.kubectl("create", "-f", "-")
	create.Stdin = strings.NewReader("{apiVersion: edgebus.io/v1alpha1, kind: Device, metadata: {name: e}, spec: {nodeName: n2, deviceModelRef: {name: dial}, protocol: {type: virtual}}}")
	out, err := create.CombinedOutput()
	require.NoError(t, err, string(out))
	c.kill()
	_, err = io.Copy(io.Discard, before)
	require.NoError(t, err, "it ends with its connection")
	require.Equal(t, "1", get("{.status.twin.level.reported.value}"))
	set(2)
	out, err = c.kubectl("wait", "device/d", "--for=jsonpath={.status.twin.level.reported.value}=2", "--timeout=60s").CombinedOutput()
	require.NoError(t, err, string(out))
	after := watch("--raw", path.Dir(devicePath)+"?watch=true&resourceVersion="+version)
	tells(after, `"name":"e"`, `"desired":{"level":"2"}`)
}

// Wills of connections that a failover cut wait for one and a half keep-alives, and are stored once; those of clients that come back are not.
func TestWillsOfConnectionsThatAFailoverCut(t *testing.T) {
	c := newHubCluster(t)
	c.session(t.Context(), "reader-0", c.got)
	away, leave := context.WithCancel(t.Context())
	left := c.session(away, "reader-1", c.waited)
	leave()
	<-left
	connected := make(chan string, 100)
	join := func(ctx context.Context, name string, keepAlive time.Duration) (ended <-chan struct{}) {
		_, ended = c.connect(ctx, client.Options{
			ClientID: name, KeepAlive: keepAlive, Will: &client.Message{Topic: "work/will", Payload: []byte(name), QoS: 1},
			ConnectTimeout: 20 * time.Second, // who gives up while the next hub takes over is a client whose connection was lost: its will acts
			OnConnect:      func(context.Context, bool) error { connected <- name; return nil },
		})
		require.Equal(t, name, <-connected)
		return ended
	}
	count := func(in map[string]int, payload string) int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return in[payload]
	}
	publish := func(payload string) {
		t.Helper()
		require.NoError(t, c.publisher(t.Context(), payload).publish(t.Context(), client.Message{Topic: "work/" + payload, Payload: []byte(payload), QoS: 1}))
	}
	join(t.Context(), "returns", 3*time.Second)
	cut, end := context.WithCancel(t.Context())
	ended := join(cut, "stays-away", 4*time.Second)
	publish("stored after the wills")
	h := c.awaitServing()
	require.NoError(t, c.Crash(h.name))
	killed := time.Now()
	end() // nobody hears its DISCONNECT
	<-ended
	c.awaitServing()
	c.start(h)
	require.Equal(t, "returns", <-connected)
	require.Eventually(t, func() bool { return count(c.got, "stays-away") > 0 }, time.Minute, 20*time.Millisecond)
	require.Greater(t, time.Since(killed), 6*time.Second, "it had one and a half keep-alives")
	publish("stored after that will")
	c.kill() // the next hub doesn't publish it again
	require.Equal(t, "returns", <-connected)
	time.Sleep(5 * time.Second) // that of who returns would act by now
	publish("the end")
	c.session(t.Context(), "reader-1", c.waited)
	require.Eventually(t, func() bool { return count(c.waited, "the end") > 0 }, time.Minute, 20*time.Millisecond)
	require.Equal(t, 1, count(c.waited, "stays-away"))
	require.Zero(t, count(c.waited, "returns"))
}

// A hub that was paused while another one took over tells nobody what was true before.
func TestAHubThatWakesUpTellsNothingOld(t *testing.T) {
	c := newHubCluster(t)
	require.NoError(t, c.Apply(t.Context(), []byte(dial)))
	say := func(what string) {
		t.Helper()
		p := c.publisher(t.Context(), "says "+what)
		require.NoError(t, p.publish(t.Context(), client.Message{Topic: "own/said", Payload: []byte(what), QoS: 1, Retain: true}))
	}
	say("old value")
	h := c.awaitServing()
	var apis, brokers []net.Conn
	for i := range 20 {
		dial := func(address string) net.Conn {
			conn, err := net.Dial("tcp", address)
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
			return conn
		}
		apis, brokers = append(apis, dial(h.http)), append(brokers, dial(h.mqtt))
		write(t, apis[i], getRequest)
		require.Contains(t, readUntil(apis[i], "virtual"), " 200 OK")
		write(t, brokers[i], fmt.Sprintf("\x10\x10\x00\x04MQTT\x04\x02\x00\x00\x00\x04c-%02d", i))
		require.Contains(t, readUntil(brokers[i], "\x20\x02\x00\x00"), "\x20\x02\x00\x00", "CONNACK")
	}
	require.NoError(t, c.Freeze(t.Context(), h.name))
	c.awaitServing()
	_, err := harness.Call(t.Context(), http.MethodDelete, "http://"+c.Hub.HTTP+devicePath, nil)
	require.NoError(t, err)
	say("new value")
	for i := range apis {
		write(t, apis[i], getRequest)
		write(t, brokers[i], "\x82\x0d\x00\x01\x00\x08own/said\x01")
	}
	require.NoError(t, c.Signal(h.name, syscall.SIGCONT))
	for i := range apis {
		require.NotContains(t, readUntil(apis[i], " 200 OK"), " 200 OK")
		require.Empty(t, readUntil(brokers[i], "old value"), "neither SUBACK nor what is retained")
	}
}

// A frame that no hub has sealed is behind what they wrote: none of them takes it for one, or goes on without it, and each says what to do.
func TestHubsStopAtAFrameOfSomebodyElse(t *testing.T) {
	c := newHubCluster(t)
	servers, err := nats.Connect(c.servers.URLs()[0])
	require.NoError(t, err)
	defer servers.Close()
	_, err = servers.Request("edgebus.log.edgebus", []byte("somebody else's"), 10*time.Second)
	require.NoError(t, err)
	for _, h := range c.hubs {
		require.Eventually(t, func() bool { return !c.Running(h.name) }, time.Minute, 50*time.Millisecond)
		said, err := os.ReadFile(c.LogFile(h.name))
		require.NoError(t, err)
		require.Regexp(t, "the frame at position [0-9]+ of the log doesn't open.*Nothing is served from it. .*`cloudhub cluster restore`", string(said))
	}
	file := filepath.Join(c.Dir, "repair.tgz")
	c.command("backup", "--config", c.hubs[0].config, file)
	restore := []string{"cluster", "restore", "--config", c.hubs[0].config, "--force", file}
	c.awaitSays(1, "what was revoked after the backup isn't known: .*--unknown-revocations", "cloudhub", restore...)
	c.awaitSays(0, "would be made anew", "cloudhub", append(restore, "--unknown-revocations", "--dry-run")...)
	_, err = servers.Request("$JS.API.STREAM.DELETE.edgebus", nil, 10*time.Second)
	require.NoError(t, err)
	out, err := exec.Command(filepath.Join(c.Bin, "cloudhub"), "--config", c.hubs[0].config).CombinedOutput()
	require.Error(t, err, "it ends, rather than wait for a log that is gone")
	require.Regexp(t, "there is no stream edgebus .*it was deleted, or these are other servers", string(out))
	c.command(restore...)
	c.start(c.hubs[0])
	require.Equal(t, c.hubs[0].name, c.awaitServing().name, "it goes on with what it has, as docs/cluster.md says")
}

const getRequest = "GET " + devicePath + " HTTP/1.1\r\nHost: localhost\r\n\r\n"

func write(t *testing.T, to net.Conn, what string) {
	t.Helper()
	_, err := io.WriteString(to, what)
	require.NoError(t, err)
}

// readUntil is what comes until the connection ends or some of it is what is waited for.
func readUntil(from net.Conn, what string) string {
	var all []byte
	for b := make([]byte, 4096); !bytes.Contains(all, []byte(what)); {
		n, err := from.Read(b)
		if all = append(all, b[:n]...); err != nil {
			break
		}
	}
	return string(all)
}
