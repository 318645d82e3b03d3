// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/disk"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/natsservers"
)

const (
	hubSilence = 1500 * time.Millisecond
	diskSize   = 384 // megabytes
	hubCount   = 3
	stream     = "edgebus"
)

// hubs are three hubs and three servers, each on a host and a disk of its own.
type hubs struct {
	*harness.World
	t       *testing.T
	dice    *rand.Rand
	each    []*hub
	servers *natsservers.Servers
	at      []*server // where servers are
	program string
	control http.Client // asks hubs how they are
	owner   atomic.Int32
	load    *load
	said    []string // who was struck in the round
	renewed int      // servers that did not catch up by themselves
}

// hub is one of them.
type hub struct {
	*host
	*disk.Disk
	config, mqtt, http, clock string
	full, cut                 bool
}

// server is one of the log's servers.
type server struct {
	*host
	*disk.Disk
	full, cut bool
}

// newHubs starts three of each. The hubs don't ask servers whose settings are changed.
func newHubs(t *testing.T, seed uint64, change func(i int, settings string) string) *hubs {
	t.Helper()
	hosts := newNetwork(t, "hub-0", "hub-1", "hub-2", "n0", "n1", "n2")
	disks := make([]*disk.Disk, len(hosts))
	for i := range hosts {
		disks[i] = disk.New(t, diskSize)
	}
	w, err := harness.NewWorld(t.TempDir(), seed)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.Logs(40))
		}
		w.Close()
	})
	c := &hubs{World: w, t: t, dice: rand.New(rand.NewPCG(seed, 1)), program: ownClockProgram(t), control: http.Client{
		Timeout: 500 * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{LocalAddr: tcpAddress(controlAddress)}).DialContext},
	}}
	var places []natsservers.Host
	for i, h := range hosts[hubCount:] {
		c.at = append(c.at, &server{host: h, Disk: disks[hubCount+i]})
		places = append(places, natsservers.Host{Address: h.address, Prefix: h.prefix(), Dir: disks[hubCount+i].Dir})
	}
	c.servers = natsservers.StartOn(t, places, change)
	monitors := c.servers.Monitors()
	if change != nil {
		monitors = []string{}
	}
	for i, h := range hosts[:hubCount] {
		one := &hub{host: h, Disk: disks[i], config: filepath.Join(w.Dir, h.name+".yaml"), clock: filepath.Join(w.Dir, h.name+".clock"), mqtt: h.address + ":1883", http: h.address + ":8080"}
		settings := map[string]any{
			"data": map[string]any{"dir": one.data()},
			"mqtt": map[string]any{"listen": one.mqtt, "websocket": map[string]any{"listen": ""}},
			"http": map[string]any{"listen": one.http},
			"store": map[string]any{"engine": "nats", "peer": map[string]any{"listen": h.address + ":8447"}, "nats": map[string]any{
				"servers": c.servers.URLs(), "monitor": monitors, "name": h.name, "silence": hubSilence.String(), "keep": "5m",
			}},
			"limits": map[string]any{"session": map[string]any{"bytes": "64MiB"}},
		}
		text, err := json.Marshal(settings)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(one.config, text, 0o600))
		require.NoError(t, os.WriteFile(one.clock, make([]byte, 8), 0o600))
		c.each = append(c.each, one)
	}
	c.command(c.each[0], "cluster", "init")
	c.start(c.each[0])
	c.awaitServing()
	for _, h := range c.each[1:] {
		c.join(h)
	}
	return c
}

func tcpAddress(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip)} }

func (h *hub) data() string { return filepath.Join(h.Dir, "data") }

// ownClockProgram builds the hub with a wall clock that a file changes.
func ownClockProgram(t *testing.T) string {
	t.Helper()
	top, err := filepath.Abs("../../..")
	require.NoError(t, err)
	const pkg = "cloud/cmd/cloudhub"
	replace := map[string]string{}
	for name, text := range map[string]string{"clock.go": "clock.go.txt", "clock_amd64.s": "clock_amd64.s"} {
		replace[filepath.Join(top, pkg, name)] = filepath.Join(top, "test", "chaos", "testdata", "clock", text)
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	bin := t.TempDir()
	overlay := filepath.Join(bin, "overlay.json")
	require.NoError(t, os.WriteFile(overlay, text, 0o600))
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-overlay", overlay, "-o", bin+"/", "./"+pkg)
	build.Dir = top
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return filepath.Join(bin, "cloudhub")
}

// command runs a command of cloudhub on a hub's host.
func (c *hubs) command(h *hub, args ...string) {
	c.t.Helper()
	require.NoError(c.t, run(append(append(h.prefix(), c.program), append(args, "--config", h.config)...)...))
}

// join has a hub begin anew, with what the one that serves has.
func (c *hubs) join(h *hub) {
	c.t.Helper()
	file := filepath.Join(c.Dir, "join.tgz")
	require.NoError(c.t, harness.Eventually(c.t.Context(), time.Minute, func(context.Context) error {
		s := c.awaitServing()
		_ = os.Remove(file)
		return run(append(s.prefix(), c.program, "backup", "--config", s.config, file)...)
	}))
	require.NoError(c.t, os.RemoveAll(h.data()))
	c.command(h, "cluster", "join", file)
	c.start(h)
}

// start starts a hub; it stands by then.
func (c *hubs) start(h *hub) {
	c.t.Helper()
	require.NoError(c.t, c.tryStart(h))
}

func (c *hubs) tryStart(h *hub) error {
	line := append(h.prefix(), "env", "STEPPED_CLOCK="+h.clock, c.program, "--config", h.config)
	err := c.Run(c.t.Context(), h.name, line, "http://"+h.http+"/livez")
	if err == nil {
		err = c.Doom(h.name) // a hub that finds its disk full or its log damaged ends
	}
	return err
}

// setClock sets a hub's wall clock to the right time and so much.
func (h *hub) setClock(ahead time.Duration) error {
	f, err := os.OpenFile(h.clock, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(int64(ahead/time.Second))), 0)
	return errors.Join(err, f.Close())
}

func (c *hubs) ready(h *hub) bool {
	r, err := c.control.Get("http://" + h.http + "/readyz")
	if err != nil {
		return false
	}
	_ = r.Body.Close()
	return r.StatusCode == http.StatusOK
}

// serving is a hub that serves; nil: none does.
func (c *hubs) serving(among ...*hub) *hub {
	for _, h := range among {
		if c.ready(h) && c.gauge(h, "owner") == 1 {
			for i, o := range c.each {
				if o == h {
					c.owner.Store(int32(i))
				}
			}
			return h
		}
	}
	return nil
}

// recovery is how long hubs and servers may take until one of them serves, on a machine that has more to do.
const recovery = 90 * time.Second

func (c *hubs) awaitServing() *hub {
	c.t.Helper()
	return c.awaitAmong(c.each...)
}

// awaitAmong waits until one of some hubs serves.
func (c *hubs) awaitAmong(among ...*hub) (serving *hub) {
	c.t.Helper()
	require.Eventually(c.t, func() bool { serving = c.serving(among...); return serving != nil }, recovery, 20*time.Millisecond, "no hub serves")
	return serving
}

// others are the hubs but one.
func (c *hubs) others(than *hub) (list []*hub) {
	for _, h := range c.each {
		if h != than {
			list = append(list, h)
		}
	}
	return list
}

// gauge is one of a hub's metrics of the cluster; -1: it says none.
func (c *hubs) gauge(h *hub, name string) float64 {
	r, err := c.control.Get("http://" + h.http + "/metrics")
	if err != nil {
		return -1
	}
	defer r.Body.Close()
	var text strings.Builder
	if _, err := io.Copy(&text, io.LimitReader(r.Body, 8<<20)); err != nil {
		return -1
	}
	_, after, found := strings.Cut(text.String(), "\nedgebus_cluster_"+name+" ")
	value, _, _ := strings.Cut(after, "\n")
	n, err := strconv.ParseFloat(value, 64)
	if !found || err != nil {
		return -1
	}
	return n
}

// position is up to where the hub that serves has the log.
func (c *hubs) position() (at float64) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		h := c.serving(c.each...)
		if at = -1; h != nil {
			at = c.gauge(h, "position")
		}
		return at >= 0
	}, recovery, 20*time.Millisecond, "no hub serves, and says how far it is")
	return at
}

// leader is the number of the server that leads the log.
func (c *hubs) leader() (i int) {
	c.t.Helper()
	require.Eventually(c.t, func() bool { i = c.servers.Leader(stream); return i >= 0 }, recovery, 50*time.Millisecond, "the log has no leader")
	return i
}

// mendDisk gives a disk its power or its room back, when nobody uses it.
func mendDisk(d *disk.Disk, full, cut *bool) error {
	var err error
	if *full {
		err = d.Free()
	}
	if *cut {
		err = errors.Join(err, d.Restore())
	}
	*full, *cut = false, false
	return err
}

// mend mends all that is broken, and starts what doesn't run.
func (c *hubs) mend() {
	c.t.Helper()
	for _, h := range c.each {
		if c.Running(h.name) {
			c.must(c.Signal(h.name, syscall.SIGCONT))
		}
		c.must(errors.Join(h.host.mend(), h.setClock(0), mendDisk(h.Disk, &h.full, &h.cut)))
	}
	for i, s := range c.at {
		c.must(s.host.mend())
		if s.full { // it has stopped to store
			c.servers.Kill(i)
		}
		c.must(mendDisk(s.Disk, &s.full, &s.cut))
		if !c.servers.Running(i) {
			c.servers.Kill(i)
			c.servers.Restart(i)
		}
		c.servers.Resume(i)
	}
	for _, name := range c.servers.AwaitHealthyOrRenew() {
		c.say(name + " did not catch up")
		c.renewed++
	}
}

// whole mends all, and waits until a hub serves and the others have what it has.
func (c *hubs) whole() {
	c.t.Helper()
	c.mend()
	c.startMissing()
	at := c.position()
	for _, h := range c.each {
		require.Eventually(c.t, func() bool {
			c.startMissing() // one that was told of its full disk late, or could not reach the log
			return c.gauge(h, "position") >= at
		}, recovery, 50*time.Millisecond, "%s doesn't follow", h.name)
	}
}

func (c *hubs) startMissing() {
	for _, h := range c.each {
		if !c.Running(h.name) {
			c.start(h)
		}
	}
}

func (c *hubs) sleep(d time.Duration) {
	select { // a fault lasts for a while
	case <-time.After(d):
	case <-c.t.Context().Done():
	}
}

func (c *hubs) String() string { return fmt.Sprint(c.each[c.owner.Load()].name, " serves") }
