// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/natsservers"
)

const clusterSilence = 1500 * time.Millisecond

// hubCluster is three hubs on three NATS servers, behind a balancer at the addresses of the world's hub, and what is known of what they said.
type hubCluster struct {
	*harness.World
	t       *testing.T
	servers *natsservers.Servers
	hubs    []clusterHub
	client  http.Client // for checks

	mu       sync.Mutex
	sent     int
	acked    []string       // payloads
	got      map[string]int // messages that came to a session whose client is there, by payload
	waited   map[string]int // that waited in a session until the end
	register int            // the highest retained value that was acknowledged
	made     []string       // objects that were acknowledged
	watched  map[string]int // additions that the watch has told, by name
}

type clusterHub struct{ name, config, mqtt, mqtts, http, https string }

func newHubCluster(t *testing.T, change ...func(settings string) string) *hubCluster {
	w, err := harness.NewWorld(t.TempDir(), 1)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.Logs(40))
		}
		w.Close()
	})
	c := &hubCluster{World: w, t: t, servers: natsservers.Start(t, 3), got: map[string]int{}, waited: map[string]int{}, watched: map[string]int{}, client: http.Client{Timeout: 500 * time.Millisecond}}
	for i := range 3 {
		h := clusterHub{name: fmt.Sprint("hub-", i), config: filepath.Join(w.Dir, fmt.Sprint("hub-", i, ".yaml")), mqtt: harness.FreeAddress(t), mqtts: harness.FreeAddress(t), http: harness.FreeAddress(t), https: harness.FreeAddress(t)}
		servers, _ := json.Marshal(c.servers.URLs())
		monitors, _ := json.Marshal(c.servers.Monitors())
		text := fmt.Sprintf("data: {dir: %q}\nmqtt: {listen: %q, tls: {listen: %q}, websocket: {listen: ''}}\nhttp: {listen: %q, tls: {listen: %q}}\nstore: {engine: nats, peer: {listen: '127.0.0.1:0'}, nats: {servers: %s, monitor: %s, name: %s, silence: %s}}\n",
			filepath.Join(w.Dir, h.name), h.mqtt, h.mqtts, h.http, h.https, servers, monitors, h.name, clusterSilence)
		for _, f := range change {
			text = f(text)
		}
		require.NoError(t, os.WriteFile(h.config, []byte(text), 0o600))
		c.hubs = append(c.hubs, h)
	}
	c.initAsRoot()
	c.start(c.hubs[0])
	c.awaitServing()
	file := filepath.Join(w.Dir, "join.tgz")
	c.command("backup", "--config", c.hubs[0].config, file)
	for _, h := range c.hubs[1:] {
		c.command("cluster", "join", "--config", h.config, file)
		c.start(h)
	}
	c.balance(w.Hub.MQTT, func(h clusterHub) string { return h.mqtt })
	c.balance(w.Hub.HTTP, func(h clusterHub) string { return h.http })
	return c
}

// initAsRoot makes the log. If it is root who does, in a directory of the service's, the service has to be able to read what was made.
func (c *hubCluster) initAsRoot() {
	const nobody = 65534
	dir := filepath.Join(c.Dir, c.hubs[0].name)
	require.NoError(c.t, os.Mkdir(dir, 0o700))
	if os.Geteuid() == 0 {
		require.NoError(c.t, os.Chown(dir, nobody, nobody))
	}
	c.command("cluster", "init", "--config", c.hubs[0].config)
	require.NoError(c.t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		require.NoError(c.t, err)
		info, err := os.Stat(path)
		require.NoError(c.t, err)
		if os.Geteuid() == 0 {
			require.EqualValues(c.t, nobody, info.Sys().(*syscall.Stat_t).Uid, path)
		}
		return nil
	}))
}

func (c *hubCluster) command(args ...string) (said string) {
	c.t.Helper()
	out, err := exec.Command(filepath.Join(c.Bin, "cloudhub"), args...).CombinedOutput()
	require.NoError(c.t, err, string(out))
	return string(out)
}

func (c *hubCluster) start(h clusterHub) {
	c.t.Helper()
	require.NoError(c.t, c.Run(c.t.Context(), h.name, []string{"cloudhub", "--config", h.config}, "http://"+h.http+"/livez"))
}

func (c *hubCluster) ready(h clusterHub) bool {
	r, err := c.client.Get("http://" + h.http + "/readyz?owner")
	if err != nil {
		return false
	}
	_ = r.Body.Close()
	return r.StatusCode == http.StatusOK
}

// serving is the hub that serves; -1: none does.
func (c *hubCluster) serving() int { return slices.IndexFunc(c.hubs, c.ready) }

func (c *hubCluster) awaitServing() (serving clusterHub) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		i := c.serving()
		if i >= 0 {
			serving = c.hubs[i]
		}
		return i >= 0
	}, time.Minute, 50*time.Millisecond)
	return serving
}

// balance has connections go to the hub that is ready, and ends those to one that isn't any more.
func (c *hubCluster) balance(address string, port func(clusterHub) string) {
	l, err := net.Listen("tcp", address)
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go c.carry(from, port)
		}
	}()
}

func (c *hubCluster) carry(from net.Conn, port func(clusterHub) string) {
	defer from.Close()
	i := c.serving()
	if i < 0 {
		return
	}
	to, err := net.DialTimeout("tcp", port(c.hubs[i]), time.Second)
	if err != nil {
		return
	}
	defer to.Close()
	ended := make(chan struct{}, 2)
	pass := func(to io.Writer, from io.Reader) {
		_, _ = io.Copy(to, from)
		ended <- struct{}{}
	}
	go pass(to, from)
	go pass(from, to)
	check := time.NewTicker(500 * time.Millisecond)
	defer check.Stop()
	for {
		select {
		case <-ended:
			return
		case <-check.C:
			if !c.ready(c.hubs[i]) {
				return
			}
		}
	}
}

// connect runs an MQTT client that tries the hubs in turn, until ctx ends.
func (c *hubCluster) connect(ctx context.Context, o client.Options) (cl *client.Client, ended <-chan struct{}) {
	for _, h := range c.hubs {
		o.Servers = append(o.Servers, "mqtt://"+h.mqtt)
	}
	o.KeepAlive, o.ConnectTimeout = cmp.Or(o.KeepAlive, 2*time.Second), cmp.Or(o.ConnectTimeout, time.Second)
	o.Backoff = client.Backoff{Min: 50 * time.Millisecond, Max: 200 * time.Millisecond}
	cl, err := client.New(o)
	require.NoError(c.t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cl.Run(ctx)
	}()
	return cl, done
}

// session is a client with a durable session for work/#. What was being delivered when a hub ended comes again.
func (c *hubCluster) session(ctx context.Context, id string, got map[string]int) (ended <-chan struct{}) {
	connected := make(chan struct{}, 100)
	_, ended = c.connect(ctx, client.Options{
		ClientID: id, SessionExpiry: time.Hour, Subscriptions: []client.Subscription{{Filter: "work/#", QoS: 2}},
		OnConnect: func(context.Context, bool) error { connected <- struct{}{}; return nil },
		OnMessage: func(m client.Message) {
			c.mu.Lock()
			defer c.mu.Unlock()
			got[string(m.Payload)]++
		},
	})
	<-connected
	return ended
}

// publisher publishes each message over one connection, or over none: it never sends one again.
type publisher struct {
	*client.Client
	up chan context.Context // the connection that there is
}

func (c *hubCluster) publisher(ctx context.Context, name string) *publisher {
	p := &publisher{up: make(chan context.Context, 1)}
	p.Client, _ = c.connect(ctx, client.Options{ClientID: name, OnConnect: func(ctx context.Context, _ bool) error {
		select {
		case <-p.up:
		default:
		}
		p.up <- ctx
		return nil
	}})
	return p
}

func (p *publisher) publish(ctx context.Context, m client.Message) error {
	var over context.Context
	select {
	case over = <-p.up:
	case <-ctx.Done():
		return ctx.Err()
	}
	if over.Err() != nil {
		return over.Err()
	}
	select {
	case p.up <- over:
	default: // there is another one
	}
	answer := make(chan error, 1)
	p.PublishOver(over, m, func(err error) { answer <- err })
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// work publishes until ctx ends: messages to the session, and a register that only rises. What was answered with anything but yes may be there or not.
func (c *hubCluster) work(ctx context.Context, name string) {
	p := c.publisher(ctx, name)
	for n := 1; ctx.Err() == nil; n++ {
		payload := fmt.Sprint(name, " ", n)
		err := p.publish(ctx, client.Message{Topic: "work/" + name, Payload: []byte(payload), QoS: 1})
		c.mu.Lock()
		c.sent++
		if err == nil {
			c.acked = append(c.acked, payload)
		}
		c.mu.Unlock()
		if name == "publisher-0" && p.publish(ctx, client.Message{Topic: "own/register", Payload: []byte(strconv.Itoa(n)), QoS: 1, Retain: true}) == nil {
			c.mu.Lock()
			c.register = n
			c.mu.Unlock()
		}
		time.Sleep(5 * time.Millisecond) // a publisher's own pace
	}
}

const devicePath = "/apis/edgebus.io/v1alpha1/namespaces/default/devices/d"

const dial = `
{apiVersion: edgebus.io/v1alpha1, kind: DeviceModel, metadata: {name: dial}, spec: {properties: [{name: level, type: int, accessMode: ReadWrite}]}}
---
{apiVersion: edgebus.io/v1alpha1, kind: Device, metadata: {name: d}, spec: {nodeName: n1, deviceModelRef: {name: dial}, protocol: {type: virtual}}}
`

// startDevice has a node run a device with the property level.
func (c *hubCluster) startDevice() {
	c.t.Helper()
	require.NoError(c.t, c.Apply(c.t.Context(), []byte(dial)))
	require.NoError(c.t, c.Start(c.t.Context(), "core"))
	require.NoError(c.t, c.Start(c.t.Context(), "virtual"))
}

const modelsPath = "/apis/edgebus.io/v1alpha1/namespaces/default/devicemodels"

// create makes objects until ctx ends.
func (c *hubCluster) create(ctx context.Context) {
	for n := 1; ctx.Err() == nil; n++ {
		name := fmt.Sprint("model-", n)
		body := fmt.Sprintf(`{"apiVersion":"edgebus.io/v1alpha1","kind":"DeviceModel","metadata":{"name":%q},"spec":{"properties":[{"name":"power","type":"string","accessMode":"ReadWrite"}]}}`, name)
		if _, err := harness.Call(ctx, http.MethodPost, "http://"+c.Hub.HTTP+modelsPath, []byte(body)); err == nil {
			c.mu.Lock()
			c.made = append(c.made, name)
			c.mu.Unlock()
		}
		time.Sleep(20 * time.Millisecond) // a user's own pace
	}
}

// watch follows the objects as kubectl's informers do: it goes on from the last version, and lists anew when it is told to.
func (c *hubCluster) watch(ctx context.Context) {
	version := ""
	for ctx.Err() == nil {
		if version == "" {
			version = c.list(ctx)
		}
		if version != "" && !c.watchFrom(ctx, &version) {
			version = ""
		}
		time.Sleep(50 * time.Millisecond) // between two connections
	}
}

type listedObject struct {
	Metadata struct{ Name, ResourceVersion string }
	Code     int
}

func (c *hubCluster) list(ctx context.Context) (version string) {
	text, err := harness.Call(ctx, http.MethodGet, "http://"+c.Hub.HTTP+modelsPath, nil)
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []listedObject
	}
	if err != nil || json.Unmarshal(text, &list) != nil {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range list.Items {
		c.watched[o.Metadata.Name] = max(c.watched[o.Metadata.Name], 1)
	}
	return list.Metadata.ResourceVersion
}

// watchFrom reads events until the connection ends. It reports false if the version is too old.
func (c *hubCluster) watchFrom(ctx context.Context, version *string) bool {
	request, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.Hub.HTTP+modelsPath+"?watch=true&resourceVersion="+*version, nil)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return true
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return response.StatusCode != http.StatusGone
	}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		var event struct {
			Type   string
			Object listedObject
		}
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			return true
		}
		if event.Type == "ERROR" {
			return event.Object.Code != http.StatusGone
		}
		*version = event.Object.Metadata.ResourceVersion
		if event.Type == "ADDED" {
			c.mu.Lock()
			c.watched[event.Object.Metadata.Name]++
			c.mu.Unlock()
		}
	}
	return true
}

// readRegister subscribes anew: what is retained is never older than what was acknowledged.
func (c *hubCluster) readRegister() {
	c.t.Helper()
	c.mu.Lock()
	least := c.register
	c.mu.Unlock()
	ctx, stop := context.WithTimeout(c.t.Context(), time.Minute)
	defer stop()
	got := make(chan string, 10)
	c.connect(ctx, client.Options{ClientID: "reader", CleanStart: true, Subscriptions: []client.Subscription{{Filter: "own/register", QoS: 1}}, OnMessage: func(m client.Message) {
		select {
		case got <- string(m.Payload):
		default:
		}
	}})
	select {
	case text := <-got:
		n, err := strconv.Atoi(text)
		require.NoError(c.t, err)
		require.GreaterOrEqual(c.t, n, least, "a value went backwards")
	case <-ctx.Done():
		require.Zero(c.t, least, "what was retained is gone")
	}
}

// faults are what becomes of hubs and servers. Each leaves all of them running.
func (c *hubCluster) faults() map[string]func() {
	leader := func() (i int) {
		require.Eventually(c.t, func() bool { i = c.servers.Leader("edgebus"); return i >= 0 }, time.Minute, 50*time.Millisecond)
		return i
	}
	return map[string]func(){
		"the hub that serves is paused": func() {
			h := c.awaitServing()
			require.NoError(c.t, c.Freeze(c.t.Context(), h.name))
			c.awaitServing()
			time.Sleep(clusterSilence) // it may be paused for any time
			require.NoError(c.t, c.Signal(h.name, syscall.SIGCONT))
		},
		"hub and leader are killed": func() {
			h, i := c.awaitServing(), leader()
			c.servers.Kill(i)
			require.NoError(c.t, c.Crash(h.name))
			c.awaitServing()
			c.servers.Restart(i)
			c.start(h)
			c.servers.AwaitHealthy()
		},
	}
}

// Three hubs of which one serves: whichever is killed, paused or stopped, with the log's leader or without, nothing that was acknowledged is lost or stored twice,
// no value goes backwards, watches go on, and nodes and their devices do. test/chaos/cluster has many more faults.
func TestThreeHubsAreOne(t *testing.T) {
	c := newHubCluster(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c.session(ctx, "reader-0", c.got)
	away, leave := context.WithCancel(ctx)
	left := c.session(away, "reader-1", c.waited)
	leave()
	<-left
	c.startDevice()

	working, end := context.WithCancel(ctx)
	var work sync.WaitGroup
	for i := range 3 {
		work.Go(func() { c.work(working, fmt.Sprint("publisher-", i)) })
	}
	work.Go(func() { c.create(working) })
	work.Go(func() { c.watch(ctx) })
	faults := c.faults()
	_, err := harness.Call(ctx, http.MethodPost, "http://"+c.Hub.HTTP+"/enroll/nodes/gone/revoke", nil)
	require.NoError(t, err, "each hub that goes on has to know of it, or it doesn't start")
	for level, what := range slices.Sorted(maps.Keys(faults)) {
		began := time.Now()
		faults[what]()
		c.readRegister()
		set := fmt.Sprintf(`{"spec":{"desired":{"level":"%d"}}}`, level+1)
		require.NoError(t, harness.Eventually(ctx, time.Minute, func(ctx context.Context) error {
			_, err := harness.Call(ctx, http.MethodPatch, "http://"+c.Hub.HTTP+devicePath, []byte(set))
			return err
		}))
		require.NoError(t, harness.Eventually(ctx, time.Minute, func(ctx context.Context) error {
			text, err := harness.Call(ctx, http.MethodGet, "http://"+c.Hub.HTTP+devicePath, nil)
			if reported := fmt.Sprintf(`"reported":{"value":"%d"`, level+1); err == nil && !strings.Contains(strings.ReplaceAll(string(text), " ", ""), reported) {
				err = fmt.Errorf("no %s in %s", reported, text)
			}
			return err
		}), "what is desired reaches the device")
		t.Log(what, time.Since(began).Round(100*time.Millisecond))
	}
	c.eventually(func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.acked) <= 50 {
			return fmt.Errorf("%d messages were acknowledged: too few to see anything", len(c.acked))
		}
		return nil
	})
	end()
	c.check(ctx)
	stop()
	work.Wait()
}

// check looks whether all that was acknowledged is there.
func (c *hubCluster) check(ctx context.Context) {
	c.awaitServing()
	c.session(ctx, "reader-1", c.waited)
	require.NoError(c.t, harness.Eventually(ctx, time.Minute, func(context.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, payload := range c.acked {
			if c.got[payload] == 0 || c.waited[payload] == 0 {
				return fmt.Errorf("%q was acknowledged and is not there", payload)
			}
		}
		for _, name := range c.made {
			if c.watched[name] == 0 {
				return fmt.Errorf("the watch has not told of %s", name)
			}
		}
		return nil
	}))
	text, err := harness.Call(ctx, http.MethodGet, "http://"+c.Hub.HTTP+modelsPath, nil)
	require.NoError(c.t, err)
	c.mu.Lock()
	defer c.mu.Unlock()
	for payload, n := range c.waited {
		require.Equal(c.t, 1, n, "%q was stored more than once", payload)
	}
	for _, name := range c.made {
		require.Contains(c.t, string(text), fmt.Sprintf("%q", name))
		require.Equal(c.t, 1, c.watched[name], "additions of %s", name)
	}
	require.NotEmpty(c.t, c.made)
	c.t.Log(len(c.acked), "of", c.sent, "messages acknowledged,", len(c.made), "objects, register at", c.register)
}
