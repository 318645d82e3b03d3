// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/topics/resource"
)

// standBys are the hubs that don't serve.
func (c *hubCluster) standBys() (all []clusterHub) {
	serving := c.awaitServing()
	for _, h := range c.hubs {
		if h.name != serving.name {
			all = append(all, h)
		}
	}
	return all
}

// mosquitto runs one of mosquitto's clients at a hub, whichever that is.
func (c *hubCluster) mosquitto(program string, at clusterHub, args ...string) string {
	c.t.Helper()
	host, port, err := net.SplitHostPort(at.mqtt)
	require.NoError(c.t, err)
	ctx, stop := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer stop()
	out, err := exec.CommandContext(ctx, program, append([]string{"-h", host, "-p", port, "-V", "5"}, args...)...).CombinedOutput()
	require.NoError(c.t, err, "%s at %s: %s", program, at.name, out)
	return string(out)
}

// carried is how many connections a hub carries to the one that serves.
func (c *hubCluster) carried(h clusterHub) string {
	text, err := harness.Call(c.t.Context(), http.MethodGet, "http://"+h.http+"/metrics", nil)
	require.NoError(c.t, err)
	return string(regexp.MustCompile(`(?m)^edgebus_cluster_carried_connections (\d+)`).FindSubmatch(text)[1])
}

func (c *hubCluster) eventually(check func() error) {
	c.t.Helper()
	require.NoError(c.t, harness.Eventually(c.t.Context(), time.Minute, func(context.Context) error { return check() }))
}

// sessionOf says whether a client is connected, as the hub that serves has it.
func (c *hubCluster) sessionOf(id string) (connected bool, err error) {
	var list resource.SessionList
	text, err := harness.Call(c.t.Context(), http.MethodGet, "http://"+c.World.Hub.HTTP+"/sessions", nil)
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return false, err
	}
	for _, s := range list.Sessions {
		if s.Client == id {
			return s.Connected, nil
		}
	}
	return false, fmt.Errorf("%s has no session", id)
}

// A hub that stands by ends: those that it carried come back to another one, and are not lost before they have had their time. Who ends by itself there is.
func TestAHubThatStandsByEndsAndItsClientsWillsWait(t *testing.T) {
	c := newHubCluster(t)
	serving, others := c.awaitServing(), c.standBys()
	wills, stop := context.WithCancel(t.Context())
	defer stop()
	got := make(chan string, 100)
	connected := make(chan struct{}, 100)
	watch, _ := c.connect(wills, client.Options{
		ClientID: "watch", Subscriptions: []client.Subscription{{Filter: "will/#", QoS: 1}},
		OnConnect: func(context.Context, bool) error { connected <- struct{}{}; return nil },
		OnMessage: func(m client.Message) { got <- string(m.Payload) },
	})
	<-connected
	keep := func(at clusterHub, id string, keepAlive string) *exec.Cmd {
		host, port, err := net.SplitHostPort(at.mqtt)
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), "mosquitto_sub", "-h", host, "-p", port, "-i", id, "-c", "-q", "1", "-t", "none", "-k", keepAlive, "--will-topic", "will/"+id, "--will-payload", id, "--will-qos", "1")
		require.NoError(t, cmd.Start())
		c.eventually(func() error {
			if is, err := c.sessionOf(id); err != nil || !is {
				return fmt.Errorf("%s: %w", id, cmp.Or(err, errors.New("is not connected")))
			}
			return nil
		})
		return cmd
	}
	gone := func(id string) {
		c.eventually(func() error {
			if is, err := c.sessionOf(id); err != nil || is {
				return fmt.Errorf("%s: %w", id, cmp.Or(err, errors.New("is connected")))
			}
			return nil
		})
	}
	told := func(want string) {
		t.Helper()
		require.NoError(t, watch.Publish(t.Context(), client.Message{Topic: "will/mark", Payload: []byte(want), QoS: 1}))
		require.Equal(t, want, <-got)
	}
	lost := keep(others[0], "lost", "60")
	require.NoError(t, lost.Process.Kill())
	_ = lost.Wait()
	require.Equal(t, "lost", <-got)
	for i, end := range []func(string) error{c.Term, c.Crash} {
		id := fmt.Sprint("carried-", i)
		cmd := keep(others[i], id, "3600")
		require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP)) // it doesn't come back
		require.NoError(t, end(others[i].name))
		gone(id)
		told("after " + id)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		c.start(others[i])
		again := keep(serving, id, "3600")
		require.NoError(t, again.Process.Kill())
		_ = again.Wait()
		require.Equal(t, id, <-got, "its connection to the hub that serves is lost")
	}
}

// An MQTT client may connect to any of the hubs: a session goes on at another one, a node's link has its certificate there, who is revoked at one is
// at all, and after a failover what was acknowledged is there wherever somebody connects.
func TestClientsConnectToAnyHub(t *testing.T) {
	c := newHubCluster(t)
	serving, others := c.awaitServing(), c.standBys()
	for _, h := range others {
		c.eventually(func() error { // it may only just have started
			conn, err := net.Dial("tcp", h.mqtt)
			if err == nil {
				err = conn.Close()
			}
			return err
		})
	}
	c.mosquitto("mosquitto_sub", others[0], "-i", "roams", "-c", "-x", "3600", "-q", "1", "-t", "roam/#", "-E")
	for i, h := range []clusterHub{others[1], serving, others[0]} {
		c.mosquitto("mosquitto_pub", h, "-q", "1", "-t", "roam/x", "-m", fmt.Sprint(i))
	}
	require.Equal(t, "0\n1\n", c.mosquitto("mosquitto_sub", others[1], "-i", "roams", "-c", "-x", "3600", "-q", "1", "-t", "roam/#", "-C", "2"))
	require.Contains(t, c.mosquitto("mosquitto_sub", serving, "-i", "roams", "-c", "-x", "3600", "-q", "1", "-t", "roam/#", "-C", "1"), "2\n")

	// A node that joins at a hub that stands by, and has its link there.
	line, err := exec.Command(filepath.Join(c.Bin, "edgebus"), "invite", "n9", "--server", "http://"+serving.http).CombinedOutput()
	require.NoError(t, err, string(line))
	token := regexp.MustCompile(`--token (\S+)`).FindSubmatch(line)
	require.NotNil(t, token, string(line))
	for _, h := range c.hubs {
		require.Contains(t, string(line), h.mqtts, "the node gets the addresses of all hubs")
	}
	config := filepath.Join(c.Dir, "n9.yaml")
	out, err := exec.Command(filepath.Join(c.Bin, "edgecore"), "join", harness.FreeAddress(t)+","+others[0].mqtts, "--token", string(token[1]), "--config", config, "--data-dir", filepath.Join(c.Dir, "n9"), "--no-start").CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, c.Run(t.Context(), "n9", []string{"edgecore", "--config", config, "--mqtt-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--log-format", "json"}, ""))
	state := func(want string) {
		t.Helper()
		require.Equal(t, want+"\n", c.mosquitto("mosquitto_sub", others[1], "-t", "v1/nodes/n9/state", "-C", "1"))
	}
	c.eventually(func() error {
		if got := c.mosquitto("mosquitto_sub", others[1], "-t", "v1/nodes/n9/state", "-C", "1"); got != "online\n" {
			return errors.New(got)
		}
		return nil
	})
	require.Equal(t, "1", c.carried(others[0]))
	_, err = harness.Call(t.Context(), http.MethodPost, "http://"+serving.http+"/enroll/nodes/n9/revoke", nil)
	require.NoError(t, err)
	state("offline")
	c.eventually(func() error {
		if n := c.carried(others[0]); n != "0" {
			return fmt.Errorf("%s carries %s connections", others[0].name, n)
		}
		return nil
	})
	c.eventually(func() error { // it is told so at the hub at which it comes back
		if log := c.Logs(40); !strings.Contains(log, "revoked") {
			return errors.New("the node knows nothing of it")
		}
		return nil
	})
	require.NoError(t, c.Term("n9"))

	// A failover with clients at all three.
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	got, clients := map[string]map[string]bool{}, map[string]*client.Client{}
	for i, h := range c.hubs {
		got[h.name] = map[string]bool{}
		connected := make(chan struct{}, 100)
		cl, err := client.New(client.Options{
			Servers: []string{"mqtt://" + h.mqtt, "mqtt://" + c.hubs[(i+1)%3].mqtt}, ClientID: "at-" + h.name, SessionExpiry: time.Hour,
			Subscriptions: []client.Subscription{{Filter: "all/#", QoS: 1}}, KeepAlive: 2 * time.Second, ConnectTimeout: time.Second,
			Backoff:   client.Backoff{Min: 50 * time.Millisecond, Max: 200 * time.Millisecond},
			OnConnect: func(context.Context, bool) error { connected <- struct{}{}; return nil },
			OnMessage: func(m client.Message) {
				mu.Lock()
				defer mu.Unlock()
				got[h.name][string(m.Payload)] = true
			},
		})
		require.NoError(t, err)
		go func() { _ = cl.Run(ctx) }()
		<-connected
		clients[h.name] = cl
	}
	for name, cl := range clients {
		go func() {
			for n := 0; ctx.Err() == nil; n++ {
				payload := fmt.Sprint(name, " ", n)
				if cl.Publish(ctx, client.Message{Topic: "all/" + name, Payload: []byte(payload), QoS: 1}) == nil {
					c.mu.Lock()
					c.acked = append(c.acked, payload)
					c.mu.Unlock()
				}
				time.Sleep(10 * time.Millisecond) // a publisher's own pace
			}
		}()
	}
	more := func() {
		t.Helper()
		c.mu.Lock()
		had := len(c.acked)
		c.mu.Unlock()
		c.eventually(func() error {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, h := range c.hubs {
				if n := strings.Count(strings.Join(c.acked[had:], "\n"), h.name+" "); n < 10 {
					return fmt.Errorf("%s: %d", h.name, n)
				}
			}
			return nil
		})
	}
	more()
	require.NoError(t, c.Crash(serving.name))
	c.awaitServing()
	more()
	c.start(serving)
	c.eventually(func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		mu.Lock()
		defer mu.Unlock()
		for at, payloads := range got {
			for _, payload := range c.acked {
				if !payloads[payload] {
					return fmt.Errorf("%q was acknowledged and did not come to who is at %s", payload, at)
				}
			}
		}
		return nil
	})
}
