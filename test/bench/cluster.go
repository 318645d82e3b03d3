// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/edgebus/edgebus/test/natsservers"
)

// threeHubs are hubs with one log, on three NATS servers, all of them processes on this machine.
type threeHubs struct {
	b       benchRun
	world   *benchWorld
	servers *natsservers.Servers
	hubs    []*memberHub
}

// memberHub is one of them.
type memberHub struct {
	name, dir, config string
	mqtt, http        string
	args              []string

	cmd   *exec.Cmd // nil: it doesn't run
	ended chan struct{}
}

// benchWorld has helpers of tests run here: an error ends what withWorld runs.
type benchWorld struct {
	testing.TB
	ctx     context.Context //nolint:containedctx // a test's has one
	dir     string
	cleanup []func()
}

// worldError is what a helper of tests failed with.
type worldError struct{ error }

func newBenchWorld() (*benchWorld, error) {
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	return &benchWorld{ctx: context.Background(), dir: dir}, err
}

func (w *benchWorld) Helper()                         {}
func (w *benchWorld) Context() context.Context        { return w.ctx }
func (w *benchWorld) TempDir() string                 { return w.dir }
func (w *benchWorld) Cleanup(f func())                { w.cleanup = append(w.cleanup, f) }
func (w *benchWorld) Error(args ...any)               { panic(worldError{errors.New(fmt.Sprint(args...))}) }
func (w *benchWorld) Fatal(args ...any)               { panic(worldError{errors.New(fmt.Sprint(args...))}) }
func (w *benchWorld) Fatalf(format string, a ...any)  { panic(worldError{fmt.Errorf(format, a...)}) }
func (w *benchWorld) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// try calls a helper of tests, and returns what it fails with.
func (w *benchWorld) try(f func()) (err error) {
	defer func() {
		if failed := recover(); failed != nil {
			is, known := failed.(worldError)
			if !known {
				panic(failed)
			}
			err = is.error
		}
	}()
	f()
	return nil
}

func (w *benchWorld) close() {
	for i := len(w.cleanup) - 1; i >= 0; i-- {
		w.cleanup[i]()
	}
	_ = os.RemoveAll(w.dir)
}

// startThreeHubs starts hubs and servers. fill puts what the hubs begin with into a directory; nil: nothing.
func startThreeHubs(b benchRun, fill func(dir string) error, args ...string) (c *threeHubs, err error) {
	c = &threeHubs{b: b}
	if c.world, err = newBenchWorld(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	if err := c.world.try(func() { c.servers = natsservers.Start(c.world, 3) }); err != nil {
		return c, err
	}
	servers, _ := json.Marshal(c.servers.URLs()) // strings
	monitors, _ := json.Marshal(c.servers.Monitors())
	for i := range 3 {
		h := &memberHub{name: fmt.Sprint("hub-", i), args: args}
		h.dir, h.config = filepath.Join(c.world.dir, h.name), filepath.Join(c.world.dir, h.name+".yaml")
		if h.mqtt, err = freeAddress(); err == nil {
			h.http, err = freeAddress()
		}
		text := fmt.Sprintf("data: {dir: %q}\nmqtt: {listen: %q, websocket: {listen: ''}}\nhttp: {listen: %q}\nlog: {level: info}\nstore: {engine: nats, peer: {listen: '127.0.0.1:0'}, nats: {servers: %s, monitor: %s, name: %s}}\n",
			h.dir, h.mqtt, h.http, servers, monitors, h.name)
		if err = errors.Join(err, os.WriteFile(h.config, []byte(text), 0o600)); err != nil {
			return c, err
		}
		c.hubs = append(c.hubs, h)
	}
	if fill != nil {
		if err := fill(c.hubs[0].dir); err != nil {
			return c, err
		}
	}
	command := "init"
	if fill != nil {
		command = "import"
	}
	return c, c.join(command)
}

// join makes the log with what the first hub has, and has the others join it.
func (c *threeHubs) join(command string) error {
	first := c.hubs[0]
	if err := c.command("cluster", command, "--config", first.config); err != nil {
		return err
	}
	if err := c.start(first); err != nil {
		return err
	}
	if _, err := c.awaitServing(5 * time.Minute); err != nil {
		return err
	}
	backup := filepath.Join(c.world.dir, "join.tgz")
	if err := c.command("backup", "--config", first.config, backup); err != nil {
		return err
	}
	for _, h := range c.hubs[1:] {
		if err := c.command("cluster", "join", "--config", h.config, backup); err != nil {
			return err
		}
		if err := c.start(h); err != nil {
			return err
		}
	}
	return errors.Join(os.Remove(backup), c.awaitWhole())
}

func (c *threeHubs) command(args ...string) error {
	out, err := exec.Command(filepath.Join(c.b.bin, "cloudhub"), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cloudhub %v: %w: %s", args, err, out)
	}
	return nil
}

// start starts a hub, and returns when it stands by.
func (c *threeHubs) start(h *memberHub) error {
	log, err := os.OpenFile(h.config+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd, ended := exec.Command(filepath.Join(c.b.bin, "cloudhub"), append([]string{"--config", h.config}, h.args...)...), make(chan struct{})
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	h.cmd, h.ended = cmd, ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return awaitWithin(time.Minute, h.name+" doesn't start", func() bool { return isAnswered(h.http, "/livez") })
}

func (h *memberHub) kill() {
	if h.cmd != nil {
		_ = h.cmd.Process.Signal(syscall.SIGKILL)
		<-h.ended
		h.cmd = nil
	}
}

func (c *threeHubs) stop() {
	for _, h := range c.hubs {
		h.kill()
	}
	c.world.close()
}

var quickClient = http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// isAnswered says whether a path is there, with status 200.
func isAnswered(web, path string) bool {
	r, err := quickClient.Get("http://" + web + path)
	if err != nil {
		return false
	}
	_ = r.Body.Close()
	return r.StatusCode == http.StatusOK
}

func awaitWithin(d time.Duration, otherwise string, ok func() bool) error {
	for begin := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > d {
			return fmt.Errorf("%s within %s", otherwise, d)
		}
	}
	return nil
}

// owns reports whether a hub owns the log, whether it serves by now or not.
func (h *memberHub) owns() bool {
	v, err := readGauge(h.http, "edgebus_cluster_owner")
	return err == nil && v == 1
}

// ownedSince is when a hub took the log, by what it logged, which it does before it opens what is in it; ok is false if it hasn't since.
func (h *memberHub) ownedSince(since time.Time) (when time.Time, ok bool) {
	text, err := os.ReadFile(h.config + ".log")
	if err != nil {
		return when, false
	}
	for line := range bytes.Lines(text) {
		var said struct {
			Time    time.Time
			Message string
		}
		if bytes.Contains(line, []byte("this hub owns the log")) && json.Unmarshal(line, &said) == nil && said.Time.After(since) {
			when = said.Time
		}
	}
	return when, !when.IsZero()
}

func (c *threeHubs) awaitServing(d time.Duration) (serving *memberHub, err error) {
	err = awaitWithin(d, "no hub serves", func() bool {
		for _, h := range c.hubs {
			if h.cmd != nil && isAnswered(h.http, "/readyz") && h.owns() {
				serving = h
			}
		}
		return serving != nil
	})
	return serving, err
}

// awaitWhole waits until all servers are whole, and all hubs have what there is.
func (c *threeHubs) awaitWhole() error {
	if err := c.world.try(c.servers.AwaitHealthy); err != nil {
		return err
	}
	serving, err := c.awaitServing(5 * time.Minute)
	if err != nil {
		return err
	}
	end, err := readGauge(serving.http, "edgebus_cluster_position")
	if err != nil {
		return err
	}
	for _, h := range c.hubs {
		err := awaitWithin(5*time.Minute, h.name+" doesn't have what there is", func() bool {
			at, err := readGauge(h.http, "edgebus_cluster_position")
			return err == nil && at >= end
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// programs are the pids of all, by what they do now.
func (c *threeHubs) programs() (list []runningProgram, err error) {
	serving, err := c.awaitServing(time.Minute)
	if err != nil {
		return nil, err
	}
	list = append(list, runningProgram{"cloudhub, which serves", serving.cmd.Process.Pid})
	for _, h := range c.hubs {
		if h != serving {
			list = append(list, runningProgram{"cloudhub, which stands by", h.cmd.Process.Pid})
		}
	}
	leader := c.servers.Leader("edgebus")
	for i, pid := range c.servers.Pids() {
		name := "nats-server"
		if i == leader {
			name = "nats-server, which leads"
		}
		list = append(list, runningProgram{name, pid})
	}
	return list, nil
}

type runningProgram struct {
	name string
	pid  int
}
