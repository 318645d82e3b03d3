// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/test/flood"
)

const (
	neighbourRounds = 5
	floodOnset      = 300 * time.Millisecond // of a flood, before it is measured
	maxRatio50      = 3.0
	maxRatio99      = 10.0
)

// measuredFloods are the floods that differ in what they cost the broker. The others do the same as one of these, or next to
// nothing; test/flood tries all of them.
var measuredFloods = []string{"qos0", "qos1", "topics", "deaf", "subscriptions", "connects", "retained", "fragments", "watches", "tree"}

// measureNeighbours measures what well-behaved clients notice of each flood.
func measureNeighbours(b benchRun) error {
	if err := raiseFileLimit(); err != nil {
		return err
	}
	broker, unpin, err := pinCPU()
	if err != nil {
		return err
	}
	defer unpin()
	fmt.Fprintf(b.w, "%d clients send themselves a message at QoS 1 ten times a second each, and one sets a value of the tree a hundred times a\n"+
		"second (on the hub a desired, on the core a reported one), which is acknowledged when it is on disk. On the core another sets a\n"+
		"desired value twenty times a second, which a mapper answers with a reported one. Programs and limits are as shipped; the program\n"+
		"has one core, the clients and each flood the other, the flood at a lower priority. So a flood uses the time that the clients\n"+
		"leave on their core, and the measurement is of the program, as long as *core used* shows that it is busy. Runs with and\n"+
		"without the flood alternate; medians of %d. Time from publish to arrival, to PUBACK for the tree, and to the reported value's\n"+
		"arrival; in brackets the ratio to the run without the flood. Aims: p50 below %.1f, p99 below %.0f times; misses are bold.\n",
		ownTopics, neighbourRounds, maxRatio50, maxRatio99)
	for _, h := range []struct {
		name   string
		open   func(benchRun, string) (*neighbourProcess, error)
		floods func(flood.Flood) bool
	}{
		{"cloudhub", hubNeighbourhood, isMeasured},
		{"edgecore", coreNeighbourhood, isMeasured},
		{fmt.Sprintf("cloudhub with %d keys", fleetKeys), fleetNeighbourhood, func(f flood.Flood) bool { return f.Name == "served" }},
	} {
		var n *neighbourProcess
		for _, f := range flood.Floods() {
			if !h.floods(f) || !strings.Contains(f.Name, b.chosen) {
				continue
			}
			first := n == nil
			if n, err = h.open(b, broker); err != nil {
				return err
			}
			if first {
				n.header(b, h.name)
			}
			err = n.bear(b, f.What, func() (func(), error) { return n.unleash(f.Name, n.target) })
			n.close()
			if err != nil {
				return fmt.Errorf("%s, %s: %w", h.name, f.Name, err)
			}
		}
	}
	fmt.Fprint(b.w, "\nReading is bounded per connection (docs/adr/0013), and fan-out to many subscribers goes through one queue (0028). What the\n"+
		"others still wait for is the rest of a quantum (200 µs), writes to the flood's own subscribers, and a commit under way that the\n"+
		"flood's messages are part of, which can't be interrupted. With 200 subscribers of # each message of anybody's is written 200 times.\n")
	return nil
}

func isMeasured(f flood.Flood) bool { return slices.Contains(measuredFloods, f.Name) }

// victimFigures is what the victims of one run saw.
type victimFigures struct {
	waits        []percentiles // by group
	used, memory float64
}

type percentiles struct{ p50, p99 float64 }

func (n *neighbourProcess) measure(d time.Duration) (c victimFigures, err error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	waits := make([][]time.Duration, len(n.groups))
	before, err := cpuOf(n.pid)
	if err != nil {
		return c, err
	}
	for g, group := range n.groups {
		for i, p := range group.pingers {
			wg.Go(func() {
				list, err := p.run(d, group.every, group.every*time.Duration(3*i+g)/time.Duration(3*len(group.pingers)))
				mu.Lock()
				defer mu.Unlock()
				waits[g], errs = append(waits[g], list...), append(errs, err)
			})
		}
	}
	wg.Wait()
	after, err := cpuOf(n.pid)
	errs = append(errs, err)
	if c.memory, err = residentMemory(n.pid); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return c, err
	}
	for _, list := range waits {
		c.waits = append(c.waits, percentiles{quantile(list, 0.5).Seconds(), quantile(list, 0.99).Seconds()})
	}
	c.used = (after - before).Seconds() / d.Seconds()
	return c, nil
}

func (n *neighbourProcess) header(b benchRun, name string) {
	columns, rule := "a client that", "|---"
	for _, g := range n.groups {
		columns += fmt.Sprintf(" | %s, p50 | p99", g.what)
		rule += "|---|---"
	}
	fmt.Fprintf(b.w, "\n**%s**\n\n| %s | core used | memory, MB |\n%s|---|---|\n", name, columns, rule)
}

// bear lets a flood loose on the program and takes it away again, several times.
func (n *neighbourProcess) bear(b benchRun, what string, unleash func() (end func(), err error)) error {
	var quiet, flooded []victimFigures
	for range neighbourRounds {
		c, err := n.measure(b.d)
		if err != nil {
			return err
		}
		quiet = append(quiet, c)
		end, err := unleash()
		if err != nil {
			return err
		}
		time.Sleep(floodOnset)
		c, err = n.measure(b.d)
		end()
		if err != nil {
			return fmt.Errorf("under the flood: %w", err)
		}
		flooded = append(flooded, c)
		time.Sleep(floodOnset)
	}
	of := func(list []victimFigures, get func(victimFigures) float64) float64 {
		var all []float64
		for _, c := range list {
			all = append(all, get(c))
		}
		return median(all)
	}
	row := []string{what}
	cell := func(bound float64, get func(victimFigures) float64) {
		with, without := of(flooded, get), of(quiet, get)
		text := fmt.Sprintf("%s (%.2f)", formatMicros(time.Duration(with*1e9)), with/without)
		if with/without > bound {
			text = "**" + text + "**"
		}
		row = append(row, text)
	}
	for g := range n.groups {
		cell(maxRatio50, func(c victimFigures) float64 { return c.waits[g].p50 })
		cell(maxRatio99, func(c victimFigures) float64 { return c.waits[g].p99 })
	}
	used := func(c victimFigures) float64 { return c.used }
	row = append(row, fmt.Sprintf("%.0f %% (%.0f %%)", 100*of(flooded, used), 100*of(quiet, used)),
		fmt.Sprintf("%.0f", of(flooded, func(c victimFigures) float64 { return c.memory })))
	fmt.Fprintf(b.w, "| %s |\n", strings.Join(row, " | "))
	return nil
}

// unleash runs a flood, or open pages, in a process of its own, beside this one, which comes first.
func (n *neighbourProcess) unleash(name string, at any) (end func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	target, err := json.Marshal(at)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("nice", "-n", "19", self, "-flood", name, string(target))
	cmd.Stderr = os.Stderr
	begins, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	end = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	if _, err := begins.Read(make([]byte, 1)); err != nil {
		end()
		return nil, fmt.Errorf("the flood did not begin: %w", err)
	}
	return end, nil
}

// runFlood is what such a process does.
func runFlood(name string, args []string) error {
	if name == pagesName && len(args) == 1 {
		return runPages(args[0])
	}
	f, err := flood.Find(name)
	if err != nil || len(args) != 1 {
		return errors.Join(err, errors.New("a flood needs its target"))
	}
	var target flood.Target
	if err := json.Unmarshal([]byte(args[0]), &target); err != nil {
		return err
	}
	if err := raiseFileLimit(); err != nil {
		return err
	}
	flood.Prepare(name)
	fmt.Println("begins")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // should nobody end it
	defer cancel()
	f.Run(ctx, target)
	return nil
}
