// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const clusterPublishers = 64 // that publish one message after the other each

// measureThreeHubs measures one hub on files and three hubs on three NATS servers in turn, and how long they need to go on after a kill.
func measureThreeHubs(b benchRun) error {
	fmt.Fprintf(b.w, "One hub on files, and three hubs on three NATS servers with `sync_interval: always`, all with their defaults, on this machine at the same time; what is\n"+
		"measured alternates between the two, %d times. Publishers have one message of %d bytes in flight, QoS 1.\n\n| | one hub on files | three hubs on NATS | ratio | aim |\n|---|---|---|---|---|\n", b.rounds, payloadSize)
	one, err := startOneHub(b)
	if err != nil {
		return err
	}
	defer one.stop()
	c, err := startThreeHubs(b, nil, queues...)
	if err != nil {
		return err
	}
	defer c.stop()
	for _, row := range clusterRows {
		if !strings.Contains(row.what, b.chosen) {
			continue
		}
		if err := c.compare(one, row); err != nil {
			return fmt.Errorf("%s: %w", row.what, err)
		}
	}
	if err := c.tripRow(one); err != nil {
		return err
	}
	if err := c.memoryRows(one); err != nil {
		return err
	}
	return c.failovers()
}

// hubAt is a hub that serves.
type hubAt struct{ mqtt, http string }

type oneHub struct {
	*benchProcess
	web string
}

// queues let an offline session have what is published in the time of a run.
var queues = []string{"--limits-session-all", "256GiB", "--limits-session-bytes", "64GiB"}

func startOneHub(b benchRun) (h oneHub, err error) {
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return h, err
	}
	addr, err := freeAddress()
	if err != nil {
		return h, err
	}
	if h.web, err = freeAddress(); err != nil {
		return h, err
	}
	args := append([]string{"--data-dir", dir, "--mqtt-listen", addr, "--mqtt-websocket-listen", "", "--http-listen", h.web, "--log-level", "warn"}, queues...)
	if h.benchProcess, err = startBroker(dir, addr, "", filepath.Join(b.bin, "cloudhub"), args...); err != nil {
		return h, err
	}
	return h, awaitReady("http://" + h.web + "/readyz")
}

// clusterRow is a figure of which more is better.
type clusterRow struct {
	what    string
	least   float64 // of the ratio; 0: no aim
	measure func(b benchRun, addr string, round int) (perSecond float64, err error)
}

var clusterRows = []clusterRow{
	{"retained messages a second, 1 publisher", 0, publishers(1)},
	{fmt.Sprintf("retained messages a second, %d publishers", clusterPublishers), 1.0 / 3, publishers(clusterPublishers)},
	{fmt.Sprintf("messages a second to an offline session, %d in flight", offlineWindow), 0, func(b benchRun, addr string, _ int) (float64, error) {
		return offlineRateAndEnd(b.d, addr)
	}},
	{"messages a second 1 → 1, 100 in flight", 0, func(b benchRun, addr string, _ int) (float64, error) {
		f, err := runTrial(b.d, traffic{publishers: 1, subscribers: 1, qos: 1, window: 100}, func() (*benchProcess, error) {
			return &benchProcess{addr: addr, pid: os.Getpid(), stop: func() {}}, nil
		})
		return f.rate, err
	}},
}

// publishers has so many clients publish what is retained, each on topics of its own.
func publishers(n int) func(benchRun, string, int) (float64, error) {
	return func(b benchRun, addr string, round int) (float64, error) {
		var all sync.WaitGroup
		sent, errs := make([]int, n), make([]error, n)
		begin := time.Now()
		for i := range n {
			all.Go(func() {
				conn, err := dialAs(addr, fmt.Sprint("records-", i), "")
				if err != nil {
					errs[i] = err
					return
				}
				p := &pump{conn: conn, in: bufio.NewReader(conn), retain: true}
				defer p.close()
				payload := make([]byte, payloadSize)
				sent[i], errs[i] = p.run(b.d, 1, func(k int) (string, []byte) {
					copy(payload, strconv.Itoa(round*1_000_000+k))
					return fmt.Sprintf("records/%d/%d", i, k%100), payload
				})
			})
		}
		all.Wait()
		sum := 0
		for i, k := range sent {
			if errs[i] != nil {
				return 0, errs[i]
			}
			sum += k
		}
		return float64(sum) / time.Since(begin).Seconds(), nil
	}
}

// compare measures both in turn.
func (c *threeHubs) compare(one oneHub, row clusterRow) error {
	var ones, threes []float64
	for round := range c.b.rounds {
		rate, err := row.measure(c.b, one.addr, round)
		if err != nil {
			return err
		}
		ones = append(ones, rate)
		serving, err := c.awaitServing(time.Minute)
		if err != nil {
			return err
		}
		if rate, err = row.measure(c.b, serving.mqtt, round); err != nil {
			return err
		}
		threes = append(threes, rate)
	}
	aim, ratio := "", median(threes)/median(ones)
	if row.least > 0 {
		aim = fmt.Sprintf("≥ %.2f: %s", row.least, aimText(ratio >= row.least))
	}
	fmt.Fprintf(c.b.w, "| %s | %.0f | %.0f | %.3f | %s |\n", row.what, median(ones), median(threes), ratio, aim)
	return nil
}

const tripRowName = "desired → reported"

func (c *threeHubs) tripRow(one oneHub) error {
	if !strings.Contains(tripRowName, c.b.chosen) {
		return nil
	}
	serving, err := c.awaitServing(time.Minute)
	if err != nil {
		return err
	}
	at := []hubAt{{one.addr, one.web}, {serving.mqtt, serving.http}}
	var took [2][]time.Duration
	for round := range c.b.rounds {
		for i, hub := range at {
			list, err := tripsAt(c.b, hub.mqtt, hub.http, round == 0)
			if err != nil {
				return err
			}
			took[i] = append(took[i], list...)
		}
	}
	for _, q := range []float64{0.5, 0.99} {
		one, three := quantile(took[0], q), quantile(took[1], q)
		fmt.Fprintf(c.b.w, "| %s, p%.0f | %s | %s | %.2f | |\n", tripRowName, q*100, formatDuration(one), formatDuration(three), three.Seconds()/one.Seconds())
	}
	return nil
}

func (c *threeHubs) memoryRows(one oneHub) error {
	if !strings.Contains("memory", c.b.chosen) {
		return nil
	}
	mine, err := anonymousMemory(one.pid)
	if err != nil {
		return err
	}
	programs, err := c.programs()
	if err != nil {
		return err
	}
	for _, p := range programs {
		each, err := anonymousMemory(p.pid)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.b.w, "| memory, MB: %s | %.0f | %.0f | %.2f | |\n", p.name, mine, each, each/mine)
	}
	return nil
}

// failoverKinds are what is killed.
var failoverKinds = []struct {
	name        string
	hub, leader bool
	most, half  time.Duration // aims for the worst and the median
}{
	{"the hub that serves is killed", true, false, 12 * time.Second, 9 * time.Second},
	{"the log's leader is killed", false, true, 12 * time.Second, 9 * time.Second},
	{"both are killed", true, true, 12 * time.Second, 9 * time.Second},
}

// failovers kills what serves, again and again.
func (c *threeHubs) failovers() error {
	if !strings.Contains("failover", c.b.chosen) || c.b.failovers == 0 {
		return nil
	}
	fmt.Fprintf(c.b.w, "\nFrom a kill until a client that tries all hubs has its next message acknowledged, QoS 1 and retained, %d times each. Killed is who was started again since, and has all that there is.\n\n"+
		"| | median | worst | aim |\n|---|---|---|---|\n", c.b.failovers)
	for _, kind := range failoverKinds {
		var took []time.Duration
		for range c.b.failovers {
			f, err := c.failover(kind.hub, kind.leader)
			if err != nil {
				return fmt.Errorf("%s: %w", kind.name, err)
			}
			took = append(took, f.acknowledged)
		}
		worst, half := slices.Max(took), quantile(took, 0.5)
		fmt.Fprintf(c.b.w, "| %s | %.1f s | %.1f s | median %s, worst %s |\n", kind.name, half.Seconds(), worst.Seconds(), aimText(half <= kind.half), aimText(worst <= kind.most))
	}
	return nil
}

// failoverTimes are from the kill on.
type failoverTimes struct {
	owned, ready, acknowledged time.Duration
	cpu                        time.Duration // that the hub which is ready had taken by then, since it was started
}

// failover kills, and starts again what it has killed.
func (c *threeHubs) failover(hub, leader bool) (f failoverTimes, err error) {
	serving, err := c.awaitServing(time.Minute)
	if err != nil {
		return f, err
	}
	leads := -1
	if leader {
		if err := awaitWithin(time.Minute, "no server leads", func() bool { leads = c.servers.Leader("edgebus"); return leads >= 0 }); err != nil {
			return f, err
		}
	}
	begin := time.Now()
	if leader {
		c.servers.Kill(leads)
	}
	if hub {
		serving.kill()
	}
	if f, err = c.timeFailover(begin, hub); err != nil {
		return f, err
	}
	if leader {
		c.servers.Restart(leads)
	}
	if hub {
		if err := c.start(serving); err != nil {
			return f, err
		}
	}
	return f, c.awaitWhole()
}

const failoverMost = 2 * time.Minute

func (c *threeHubs) timeFailover(begin time.Time, moves bool) (f failoverTimes, err error) {
	var looking sync.WaitGroup
	var ready time.Duration
	if moves {
		looking.Go(func() {
			_ = awaitWithin(failoverMost, "", func() bool {
				for _, h := range c.hubs {
					if h.cmd == nil {
						continue
					}
					if isAnswered(h.http, "/readyz") && h.owns() {
						ready = time.Since(begin)
						f.cpu, _ = cpuOf(h.cmd.Process.Pid) // it has just answered
					}
				}
				time.Sleep(20 * time.Millisecond)
				return ready > 0
			})
		})
	}
	err = awaitWithin(failoverMost, "nothing is acknowledged", func() bool {
		for _, h := range c.hubs {
			if h.cmd != nil && publishOnce(h.mqtt) == nil {
				return true
			}
		}
		time.Sleep(10 * time.Millisecond)
		return false
	})
	f.acknowledged = time.Since(begin)
	looking.Wait()
	f.ready = ready
	for _, h := range c.hubs {
		if when, is := h.ownedSince(begin); is && moves {
			f.owned = when.Sub(begin)
		}
	}
	return f, err
}

// publishOnce connects, and publishes one message.
func publishOnce(addr string) error {
	const most = time.Second
	c, err := dialWithin(addr, "once-"+strconv.FormatInt(time.Now().UnixNano()%math.MaxInt32, 36), most)
	if err != nil {
		return err
	}
	p := &pump{conn: c, in: bufio.NewReader(c), retain: true}
	defer p.close()
	p.publish("failover/once", []byte("there"))
	if err := p.flush(); err != nil {
		return err
	}
	_, err = p.acknowledgedWithin(most)
	return err
}
