// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics/backoff"
)

// clusterDemo is edgebus demo cluster.
type clusterDemo struct {
	demo
	keys     string
	cloudhub string // the program
	hubs     []clusterHub
	servers  []clusterNATS
	state    clusterState
	load     clusterLoad

	mu      sync.Mutex
	fault   clusterFault // the last one
	pressed time.Time    // when the last key was
}

// clusterFault is a program that was killed, and when all went on after it: zero, if that isn't yet.
type clusterFault struct {
	name                  string
	killed                time.Time
	served, acked, turned time.Time
	serves                string // the hub that serves since
}

// deadTime is after how long nothing comes any more of what was killed.
const deadTime = 100 * time.Millisecond

func newCluster() *cobra.Command {
	c := &clusterDemo{}
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Run three hubs that are one, and kill them",
		Long: `Start three cloudhub with a common log on three NATS servers, and a node with a
simulated lamp, on this machine. One hub serves, two stand by. One address leads to the
hub that serves, as a balancer would; through it a publisher sends numbered messages of
QoS 1 to a durable session, and the lamp is set to one brightness after the other.

Keys: k kills the hub that serves, n kills a NATS server, s starts again what was
killed, q ends. Shown is which hub serves, what was acknowledged, whether anything of it
is missing, and how long it took until another hub served, acknowledged, and the lamp
reported. It fails if something that was acknowledged is missing at the end.

Without a terminal each change is a line, and --keys is a script: each of its keys is
pressed when all has gone on after the one before.

The program nats-server (2.15 or later) has to be in PATH; make demo-cluster builds it.
Data is kept in a temporary directory, and removed at the end unless something failed.`,
		Example: `  edgebus demo cluster
  edgebus demo cluster --keys kskq      # kills a hub, starts it again, kills another one, and ends`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.in, c.out = cmd.InOrStdin(), cmd.OutOrStdout()
			return c.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	taken := " (taken: a free one)"
	f.StringVar(&c.hubMQTT, "hub-mqtt", "127.0.0.1:1883", "the address that leads to MQTT of the hub that serves"+taken)
	f.StringVar(&c.hubHTTP, "hub-http", "127.0.0.1:8080", "the address that leads to HTTP of the hub that serves"+taken)
	f.StringVar(&c.coreMQTT, "core-mqtt", "127.0.0.1:2883", "the node's MQTT address"+taken)
	f.StringVar(&c.coreHTTP, "core-http", "127.0.0.1:10550", "the node's HTTP address"+taken)
	f.StringVar(&c.keys, "keys", "", "keys to press one after the other: k, n, s, q")
	f.StringVar(&c.dataDir, "data-dir", "", "empty directory to keep data and logs in (default: a temporary one, removed at the end unless something failed)")
	f.StringVar(&c.programs, "programs", "", "directory of the programs (default: this program's own, then PATH)")
	f.DurationVar(&c.duration, "for", 0, "stop after this long (default: at q or ctrl-C)")
	return cmd
}

// run starts everything, shows it until ctx ends or something fails, and stops and removes everything.
func (c *clusterDemo) run(ctx context.Context) error {
	if wrong := strings.Trim(c.keys, "knsq"); wrong != "" {
		return fmt.Errorf("--keys: there is no key %q: k kills the hub that serves, n a NATS server, s starts what was killed, q ends", wrong[:1])
	}
	c.chooseAddresses()
	if err := c.makeDataDir(); err != nil {
		return err
	}
	if err := c.refuseOldData(); err != nil {
		return err
	}
	if err := c.writeSettings(); err != nil {
		return err
	}
	return c.withProcesses(ctx, func(ctx context.Context) error {
		if err := c.lead(ctx); err != nil {
			return err
		}
		if err := c.startAll(ctx); err != nil {
			return err
		}
		loading, end := context.WithCancel(ctx)
		defer end()
		loaded := make(chan error, 1)
		go func() { loaded <- c.load.run(loading) }()
		err := c.show(ctx)
		if err == nil {
			err = c.finish(context.WithoutCancel(ctx))
		}
		end()
		return errors.Join(err, <-loaded)
	})
}

// refuseOldData refuses a directory with data: the log's is begun anew.
func (c *clusterDemo) refuseOldData() error {
	entries, err := os.ReadDir(c.dataDir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("--data-dir: %s isn't empty: this demo begins anew each time", c.dataDir)
	}
	return err
}

// lead opens the addresses that lead to the hub that serves, and watches which one does.
func (c *clusterDemo) lead(ctx context.Context) error {
	var mqtt, http []string
	for _, h := range c.hubs {
		mqtt, http = append(mqtt, h.mqtt), append(http, h.http)
	}
	for _, s := range c.servers {
		c.state.servers = append(c.state.servers, s.monitor)
	}
	c.state.hubs, c.state.serving, c.load.changed = http, -1, make(chan struct{})
	for _, way := range []struct {
		address *string
		hubs    []string
	}{{&c.hubMQTT, mqtt}, {&c.hubHTTP, http}} {
		l, err := net.Listen("tcp", freeAddress(*way.address))
		if err != nil {
			return err
		}
		*way.address = l.Addr().String()
		go c.state.lead(ctx, l, way.hubs)
	}
	c.load.mqtt = c.hubMQTT
	go c.state.watch(ctx)
	return nil
}

// awaitServing waits until a hub serves.
func (c *clusterDemo) awaitServing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, wholeTimeout)
	defer cancel()
	for {
		if serving, _, _ := c.state.now(); serving >= 0 {
			return nil
		}
		if !backoff.Sleep(ctx, statePause) {
			return errors.New("no hub serves")
		}
	}
}

// show shows what happens, and presses keys, until ctx ends or q is pressed.
func (c *clusterDemo) show(ctx context.Context) error {
	_, onScreen := terminal.Size(c.out)
	if onScreen && c.keys == "" {
		return c.runScreen(ctx)
	}
	if err := c.say(strings.Join(c.hints(), "\n")); err != nil {
		return err
	}
	telling, stop := context.WithCancel(ctx)
	var told sync.WaitGroup
	defer told.Wait()
	defer stop()
	told.Go(func() { c.tellChanges(telling) })
	for i, key := range c.keys {
		if err := c.awaitWhole(ctx); err != nil {
			return fmt.Errorf("before key %d of --keys, %c: %w", i+1, key, err)
		}
		if key == 'q' || ctx.Err() != nil {
			return nil
		}
		if err := c.say(c.press(byte(key))); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

// press does what a key says, and returns that.
func (c *clusterDemo) press(key byte) string {
	c.mu.Lock()
	c.pressed = time.Now()
	c.mu.Unlock()
	switch key {
	case 'k':
		serving, _, _ := c.state.now()
		if serving < 0 || c.group.isHeld(c.hubs[serving].name) {
			return "no hub serves that could be killed"
		}
		return c.kill(c.hubs[serving].name)
	case 'n':
		for _, s := range c.servers {
			if !c.group.isHeld(s.name) {
				return c.kill(s.name)
			}
		}
		return "no NATS server runs that could be killed"
	case 's':
		var all []string
		for _, name := range c.programNames() {
			if c.group.isHeld(name) {
				c.group.release(name)
				all = append(all, name)
			}
		}
		if len(all) == 0 {
			return "nothing was killed that could be started"
		}
		return "started again: " + strings.Join(all, ", ")
	}
	return ""
}

func (c *clusterDemo) kill(name string) string {
	c.group.hold(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = clusterFault{name: name, killed: time.Now()}
	return name + " is killed"
}

func (c *clusterDemo) programNames() (all []string) {
	for _, h := range c.hubs {
		all = append(all, h.name)
	}
	for _, s := range c.servers {
		all = append(all, s.name)
	}
	return all
}

// observe looks how far all goes on after the last fault.
func (c *clusterDemo) observe() clusterFault {
	serving, _, _ := c.state.now()
	acked, turned := c.load.times()
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &c.fault
	since := func(is *time.Time, when time.Time) {
		if is.IsZero() && when.Sub(f.killed) > deadTime {
			*is = when
		}
	}
	if serving >= 0 && c.hubs[serving].name != f.name && f.served.IsZero() {
		since(&f.served, time.Now())
		f.serves = c.hubs[serving].name
	}
	since(&f.acked, acked)
	since(&f.turned, turned)
	return *f
}

// String is empty if there was no fault.
func (f clusterFault) String() string {
	if f.name == "" {
		return ""
	}
	after := func(what string, when time.Time) string {
		if when.IsZero() {
			return ""
		}
		return fmt.Sprintf(", %s after %s", what, when.Sub(f.killed).Round(10*time.Millisecond))
	}
	text := after("a message was acknowledged", f.acked) + after("the lamp reported", f.turned)
	if strings.HasPrefix(f.name, "hub-") {
		text = after(f.serves+" served", f.served) + text
	}
	if text == "" {
		return f.name + " was killed: nothing is acknowledged"
	}
	return f.name + " was killed: " + strings.TrimPrefix(text, ", ")
}

func (f clusterFault) isOver() bool {
	return f.name == "" || !f.served.IsZero() && !f.acked.IsZero() && !f.turned.IsZero()
}

// canServe is whether a hub and two servers are left.
func (c *clusterDemo) canServe() bool {
	hubs, servers := 0, 0
	for _, h := range c.hubs {
		if !c.group.isHeld(h.name) {
			hubs++
		}
	}
	for _, s := range c.servers {
		if !c.group.isHeld(s.name) {
			servers++
		}
	}
	return hubs > 0 && servers > clusterSize/2
}

const (
	wholeTimeout  = time.Minute
	brokenTime    = 2 * time.Second // for which is shown that nothing goes on
	finishTimeout = 10 * time.Second
)

// isWhole is whether all goes on since the last key, and all that wasn't killed takes part.
func (c *clusterDemo) isWhole() bool {
	serving, says, whole := c.state.now()
	for i, h := range c.hubs {
		if says[i] == "" && !c.group.isHeld(h.name) {
			return false
		}
	}
	for i, s := range c.servers {
		if !whole[i] && !c.group.isHeld(s.name) {
			return false
		}
	}
	over := c.observe().isOver()
	c.mu.Lock()
	pressed := c.pressed
	c.mu.Unlock()
	return over && serving >= 0 && c.load.isWholeSince(pressed.Add(deadTime))
}

// awaitWhole waits until all goes on, or for a moment if it can't.
func (c *clusterDemo) awaitWhole(ctx context.Context) error {
	if !c.canServe() {
		backoff.Sleep(ctx, brokenTime)
		return nil
	}
	limit, cancel := context.WithTimeout(ctx, wholeTimeout)
	defer cancel()
	for !c.isWhole() {
		if !backoff.Sleep(limit, statePause) {
			if ctx.Err() != nil {
				return nil // it is the end
			}
			return errors.New("not all goes on after the key before: see the logs")
		}
	}
	return nil
}

// finish ends the publisher, waits for what it was acknowledged, and says what has come of it.
func (c *clusterDemo) finish(ctx context.Context) error {
	c.load.pause()
	ctx, cancel := context.WithTimeout(ctx, finishTimeout)
	defer cancel()
	for c.canServe() && !c.load.hasAll() && backoff.Sleep(ctx, statePause) {
	}
	err := c.say("At the end: " + strings.Join(c.load.lines(), "\n"))
	lost := c.load.lost()
	switch {
	case !c.canServe():
		for _, h := range c.hubs {
			c.group.hold(h.name) // asked to stop it would first wait for the log
		}
		return errors.Join(err, c.say("What was acknowledged is in the log, and comes when a hub and two NATS servers run."))
	case lost > 0:
		return errors.Join(err, fmt.Errorf("%d messages that were acknowledged are missing", lost))
	}
	return errors.Join(err, c.say("Nothing that was acknowledged is lost."))
}
