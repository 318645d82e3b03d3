// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/hubdata"
)

// longFault is how long a fault lasts of which hubs must take notice.
const longFault = 2 * hubSilence

// faults break something, and leave it so: hubs.whole mends all. Each is of one kind, and draws whom it strikes.
func (c *hubs) faults() map[string]func() {
	all := c.hubFaults()
	maps.Copy(all, c.serverFaults())
	maps.Copy(all, c.networkFaults())
	maps.Copy(all, c.diskFaults())
	return all
}

// victim is the hub that serves, or now and then another one.
func (c *hubs) victim() *hub {
	h := c.awaitServing()
	if c.dice.IntN(4) == 0 {
		h = c.others(h)[c.dice.IntN(hubCount-1)]
	}
	c.say(h.name)
	return h
}

// struck is the number of the server that leads the log, or, as often, of another one.
func (c *hubs) struck() int {
	i := c.leader()
	if c.dice.IntN(2) == 0 {
		i = (i + 1 + c.dice.IntN(2)) % len(c.at)
	}
	c.say(c.at[i].name)
	return i
}

// say notes who is struck, for who reads the test's log.
func (c *hubs) say(what string) { c.said = append(c.said, what) }

func (c *hubs) must(err error) {
	c.t.Helper()
	require.NoError(c.t, err)
}

// served waits until another hub serves, if the one that is struck did.
func (c *hubs) served(without *hub) { c.awaitAmong(c.others(without)...) }

func (c *hubs) hubFaults() map[string]func() {
	return map[string]func(){
		"hub-killed": func() {
			h := c.victim()
			c.must(c.Crash(h.name))
			c.served(h)
		},
		"hub-stopped": func() {
			h := c.victim()
			c.must(c.Term(h.name))
			c.served(h)
		},
		"hub-paused": func() {
			h := c.victim()
			c.must(c.Freeze(c.t.Context(), h.name))
			c.served(h)
			c.sleep(time.Duration(c.dice.IntN(1000)) * time.Millisecond)
			c.must(c.Signal(h.name, syscall.SIGCONT))
			c.sleep(hubSilence / 2)
		},
		"hub-paused-15s": func() {
			h := c.victim()
			c.must(c.Freeze(c.t.Context(), h.name))
			c.sleep(15 * time.Second)
			c.must(c.Signal(h.name, syscall.SIGCONT))
		},
		"hub-paused-briefly": func() { // about as long as it takes until another one takes the log
			h := c.victim()
			for range 3 {
				c.must(c.Freeze(c.t.Context(), h.name))
				c.sleep(hubSilence/2 + time.Duration(c.dice.Int64N(int64(hubSilence))))
				c.must(c.Signal(h.name, syscall.SIGCONT))
				c.sleep(hubSilence / 3)
			}
		},
		"hubs-killed": func() {
			for _, h := range c.each {
				c.must(c.Crash(h.name))
			}
		},
		"hubs-restarted": func() { // one after the other, as for an upgrade
			for _, h := range append(c.others(c.awaitServing()), c.awaitServing()) {
				c.must(c.Term(h.name))
				c.start(h)
			}
		},
		"hub-clock": func() {
			h := c.victim()
			for range 2 {
				most := []time.Duration{10 * time.Second, time.Hour, 48 * time.Hour, 366 * 24 * time.Hour}[c.dice.IntN(4)]
				c.must(h.setClock(time.Duration(c.dice.Int64N(2*int64(most))) - most))
				c.sleep(hubSilence)
			}
			if c.dice.IntN(2) == 0 { // and another one takes the log meanwhile
				s := c.awaitServing()
				c.must(c.Crash(s.name))
			}
			c.sleep(hubSilence)
		},
		"standby-clock": func() { // one whose clock is wrong must not take the log
			s := c.awaitServing()
			h := c.others(s)[c.dice.IntN(hubCount-1)]
			ahead := 3*time.Second + time.Duration(c.dice.Int64N(int64(48*time.Hour)))
			if c.dice.IntN(2) == 0 {
				ahead = -ahead
			}
			c.say(fmt.Sprint(h.name, " ", ahead.Truncate(time.Second)))
			c.must(h.setClock(ahead))
			c.must(c.Crash(s.name))
			c.served(h)
			owner := -1.0
			require.Eventually(c.t, func() bool { owner = c.gauge(h, "owner"); return owner >= 0 }, recovery, 20*time.Millisecond, "%s doesn't say whether it owns the log", h.name)
			require.Zero(c.t, owner, "%s owns the log by a clock that is wrong", h.name)
		},
		"takeover-storm": func() {
			c.load.mail.storm(c.t.Context(), hubSilence)
			s := c.awaitServing()
			c.must(c.Crash(s.name))
			c.load.mail.storm(c.t.Context(), longFault)
		},
	}
}

func (c *hubs) serverFaults() map[string]func() {
	return map[string]func(){
		"server-killed": func() {
			c.servers.Kill(c.struck())
			c.sleep(hubSilence)
		},
		"server-paused": func() {
			i := c.struck()
			c.servers.Pause(i)
			c.sleep(longFault)
			c.servers.Resume(i)
		},
		"hub-and-leader-killed": func() {
			h, i := c.awaitServing(), c.leader()
			c.servers.Kill(i)
			c.must(c.Crash(h.name))
			c.served(h)
		},
		"servers-killed": func() { // two: nothing is acknowledged
			i := c.struck()
			c.servers.Kill(i)
			c.servers.Kill((i + 1) % len(c.at))
			c.sleep(longFault)
		},
		"servers-restarted": func() {
			for i := range c.at {
				c.servers.Kill(i)
				c.servers.Restart(i)
				c.servers.AwaitHealthy()
			}
		},
		"server-bits": func() { // and read by a hub that lacks what is damaged
			s := c.awaitServing()
			behind := c.others(s)[c.dice.IntN(hubCount-1)]
			c.must(c.Crash(behind.name))
			lacks := c.position() + 30
			require.Eventually(c.t, func() bool { return c.gauge(s, "position") >= lacks }, recovery, 20*time.Millisecond)
			i := c.struck()
			c.servers.Kill(i)
			c.servers.Damage(i, stream)
			c.servers.Restart(i)
		},
	}
}

func (c *hubs) networkFaults() map[string]func() {
	onHub := func(strike func(*hub) error) func() {
		return func() {
			c.must(strike(c.victim()))
			c.sleep(longFault)
		}
	}
	onServer := func(strike func(*server) error) func() {
		return func() {
			c.must(strike(c.at[c.struck()]))
			c.sleep(longFault)
		}
	}
	loses := func(h *host) error {
		often := []string{"-m", "statistic", "--mode", "random", "--probability", "0.25"}
		return errors.Join(h.drop("INPUT", often...), h.drop("OUTPUT", often...))
	}
	return map[string]func(){
		"hub-unplugged":    onHub(func(h *hub) error { return h.unplug() }),
		"server-unplugged": onServer(func(s *server) error { return s.unplug() }),
		"hub-hears-nobody": onHub(func(h *hub) error { return h.drop("INPUT") }),
		"hub-is-not-heard": onHub(func(h *hub) error { return h.drop("OUTPUT") }),
		"server-hears-nobody": onServer(func(s *server) error {
			return s.drop("INPUT")
		}),
		"server-is-not-heard": onServer(func(s *server) error {
			return s.drop("OUTPUT")
		}),
		"hub-loses-packets":    onHub(func(h *hub) error { return loses(h.host) }),
		"server-loses-packets": onServer(func(s *server) error { return loses(s.host) }),
		"hub-cut-from-servers": onHub(func(h *hub) error {
			var errs []error
			for _, s := range c.at {
				errs = append(errs, h.cutFrom(s.address))
			}
			return errors.Join(errs...)
		}),
		"hub-cut-from-clients": onHub(func(h *hub) error { return h.cutFrom(clientAddress) }),
		"leader-cut-from-servers": func() { // and from no hub
			i := c.leader()
			for _, s := range c.at {
				if s != c.at[i] {
					c.must(c.at[i].cutFrom(s.address))
				}
			}
			c.sleep(2 * longFault)
		},
		"in-halves": func() { // the hub that serves and the log's leader are alone with each other
			h, leader := c.awaitServing(), c.at[c.leader()]
			for _, one := range []*host{h.host, leader.host} {
				for _, s := range c.at {
					if s != leader {
						c.must(one.cutFrom(s.address))
					}
				}
				for _, o := range c.others(h) {
					c.must(one.cutFrom(o.address))
				}
			}
			c.sleep(2 * longFault)
		},
	}
}

func (c *hubs) diskFaults() map[string]func() {
	return map[string]func(){
		"hub-full": func() {
			h := c.victim()
			h.full = true
			c.must(h.Fill())
			c.sleep(longFault)
		},
		"server-full": func() {
			s := c.at[c.struck()]
			s.full = true
			c.must(s.Fill())
			c.sleep(longFault)
		},
		"hub-power": func() {
			h := c.victim()
			c.cutHub(h)
			c.served(h)
		},
		"server-power": func() {
			c.cutServers(c.struck())
			c.sleep(hubSilence)
		},
		"servers-power": func() { c.cutServers(0, 1, 2) },
		"power": func() {
			for _, h := range c.each {
				c.cutHub(h)
			}
			c.cutServers(0, 1, 2)
		},
		"hub-bits": func() {
			h := c.others(c.awaitServing())[c.dice.IntN(hubCount-1)]
			c.must(c.Crash(h.name))
			c.must(damageLog(h.data()))
			if err := c.tryStart(h); err != nil || !c.staysUp(h) { // as docs/cluster.md has it
				c.say("found")
				_ = c.Crash(h.name)
				c.join(h)
			}
		},
	}
}

// staysUp waits until a hub has what the one that serves has, or ends.
func (c *hubs) staysUp(h *hub) bool {
	at := c.position()
	require.Eventually(c.t, func() bool { return !c.Running(h.name) || c.gauge(h, "position") >= at }, recovery, 20*time.Millisecond)
	return c.Running(h.name)
}

// damageLog flips a bit in some blocks of the last file of a hub's log.
func damageLog(data string) error {
	files, err := filepath.Glob(filepath.Join(data, hubdata.LogDir, "[0-9]*"))
	if err != nil || len(files) == 0 {
		return errors.Join(err, fmt.Errorf("%s has no log", data))
	}
	file := slices.Max(files)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for at := len(text) / 2; at < len(text); at += 1 << 14 {
		text[at] ^= 1
	}
	return os.WriteFile(file, text, 0o600)
}

// cutHub stops a hub, takes the power of its disk away, and kills it. It is stopped first, for nobody hears what it says without power.
func (c *hubs) cutHub(h *hub) {
	c.must(c.Freeze(c.t.Context(), h.name))
	c.must(h.Cut())
	h.cut = true
	c.must(c.Crash(h.name))
}

// cutServers takes the power of servers away, at one moment.
func (c *hubs) cutServers(which ...int) {
	for _, i := range which {
		c.must(c.servers.Freeze(i))
	}
	for _, i := range which {
		c.must(c.at[i].Cut())
		c.at[i].cut = true
	}
	for _, i := range which {
		c.servers.Kill(i)
	}
}
