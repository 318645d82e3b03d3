// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// beforeRow is a figure of a hub of which more is better.
type beforeRow struct {
	what    string
	measure func(b benchRun, h oneHub, round int) (perSecond float64, err error)
}

var beforeRows = []beforeRow{
	{"messages a second to an offline session", func(b benchRun, h oneHub, _ int) (float64, error) { return offlineRateAndEnd(b.d, h.addr) }},
	{"retained messages a second, 1 publisher", func(b benchRun, h oneHub, round int) (float64, error) { return publishers(1)(b, h.addr, round) }},
	{"retained messages a second, 64 publishers", func(b benchRun, h oneHub, round int) (float64, error) {
		return publishers(clusterPublishers)(b, h.addr, round)
	}},
	{"reports a second, 1 node", reportingBy(1)},
	{"reports a second, 64 nodes", reportingBy(reportNodes)},
}

// measureBefore measures the hub beside one of an earlier version, in turn.
func measureBefore(b benchRun) error {
	if b.before == "" {
		fmt.Fprintln(b.w, "Not measured: the flag before names no directory of an earlier version's programs.")
		return nil
	}
	fmt.Fprintf(b.w, "Two hubs with files, of the version before and of this one, measured in turn, %d times; medians. CPU is the hub's for one of what is counted.\n\n"+
		"| | before | after | ratio | CPU before | after |\n|---|---|---|---|---|---|\n", b.rounds)
	for _, row := range beforeRows {
		if !strings.Contains(row.what, b.chosen) {
			continue
		}
		var rates, costs [2][]float64
		for round := range b.rounds {
			for i, bin := range []string{b.before, b.bin} {
				rate, cost, err := row.once(b, bin, round)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", row.what, bin, err)
				}
				rates[i], costs[i] = append(rates[i], rate), append(costs[i], cost)
			}
		}
		before, after := median(rates[0]), median(rates[1])
		fmt.Fprintf(b.w, "| %s | %.0f | %.0f | %.2f | %.1f µs | %.1f µs |\n", row.what, before, after, after/before, median(costs[0]), median(costs[1]))
	}
	return nil
}

// once is one run of a hub of its own: what it does a second, and the microseconds of its processor's time for each.
func (r beforeRow) once(b benchRun, bin string, round int) (rate, cost float64, err error) {
	b.bin = bin
	h, err := startOneHub(b)
	if err != nil {
		return 0, 0, err
	}
	defer h.stop()
	var spent time.Duration
	b.spent = &spent
	rate, err = r.measure(b, h, round)
	if err != nil {
		return 0, 0, err
	}
	if spent == 0 { // all that the hub did was this
		spent, err = cpuOf(h.pid)
	}
	return rate, float64(spent.Microseconds()) / (rate * b.d.Seconds()), err
}

// reportingBy has nodes report one value after the other.
func reportingBy(n int) func(benchRun, oneHub, int) (float64, error) {
	return func(b benchRun, h oneHub, _ int) (float64, error) {
		nodes, err := reportingNodes(h.addr, h.web)
		if err != nil {
			return 0, err
		}
		defer nodes.Stop()
		before, err := cpuOf(h.pid)
		if err != nil {
			return 0, err
		}
		begin := time.Now()
		count, err := reportFor(b.d, nodes.Nodes[:n])
		took := time.Since(begin)
		after, failed := cpuOf(h.pid)
		if b.spent != nil {
			*b.spent = after - before
		}
		return float64(count) / took.Seconds(), errors.Join(err, failed, faultsOf(nodes))
	}
}
