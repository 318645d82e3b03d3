// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
)

func main() {
	out := flag.String("o", "", "write the report to this file as well")
	seconds := flag.Duration("t", 3*time.Second, "how long each case runs")
	rounds := flag.Int("rounds", 3, "how often each case runs; the median is reported")
	only := flag.String("only", "", "run the sections whose names contain this")
	chosen := flag.String("case", "", "compare brokers in the cases, let loose the floods and attacks, and have nodes send what, whose names contain this")
	nodes := flag.Int("nodes", 10_000, "how many nodes the fleet has whose template is changed")
	devices := flag.Int("devices", 100_000, "how many Devices a hub has that is started, listed and patched: a million are made by hand")
	past := flag.Duration("past", 2*time.Minute, "how long a node reports, or many do, whose past is compared with the hub's")
	failovers := flag.Int("failovers", 50, "how often each kind of kill is done to three hubs")
	bin := flag.String("bin", "bin", "directory of the programs whose footprint is measured")
	before := flag.String("before", "", "directory of an earlier version's programs, whose hub is measured beside this one")
	name := flag.String("flood", "", "be this flood or attack, on the target given as JSON: how the benchmark starts one")
	flag.Parse()
	objectNodes = *devices / objectsOfNode
	if *name != "" {
		if err := runFlood(*name, flag.Args()); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if err := runSections(*out, *only, benchRun{d: *seconds, rounds: *rounds, bin: *bin, chosen: *chosen, nodes: *nodes, past: *past, failovers: *failovers, before: *before}); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// benchRun is how the measuring is done.
type benchRun struct {
	d      time.Duration
	rounds int
	bin    string
	chosen string
	nodes  int
	past   time.Duration

	failovers int // of each kind

	before string         // programs of an earlier version; empty: none
	spent  *time.Duration // of the hub's processor, if not all of it counts

	w io.Writer
}

type benchSection struct {
	name string
	run  func(benchRun) error
}

var benchSections = []benchSection{
	{"Durable property updates", measureDurableUpdates},
	{"Written to disk", measureWritten},
	{"Desired to reported", measureRoundTrip},
	{"The broker beside mosquitto", measureBrokers},
	{"QoS 1 to an offline durable session", measureOffline},
	{"Idle connections", measureIdle},
	{"Neighbours", measureNeighbours},
	{"Neighbours of open pages", measurePages},
	{"Neighbours of who asks for the past", measurePastRequests},
	{"Attacks", measureAttacks},
	{"Hub memory", measureHubMemory},
	{"A hundred thousand Devices", measureObjects},
	{"Reconnect", measureReconnect},
	{"A fleet", measureRollouts},
	{"Three hubs", measureThreeHubs},
	{"A cluster with many Devices", measureLargeCluster},
	{"Lists and watches at a hub that stands by", measureMirrors},
	{"The cloud away", measureCloudAway},
	{"Streams", measureStreams},
	{"Polls", measurePolls},
	{"The past", measurePast},
	{"The past of many nodes", measurePastOfMany},
	{"Views", measureViews},
	{"Before and after", measureBefore},
	{"Footprint", measureFootprint},
}

func runSections(out, only string, b benchRun) error {
	var report strings.Builder
	b.w = io.MultiWriter(os.Stdout, &report)
	fmt.Fprintf(b.w, "# Benchmarks\n\nWritten by `make bench` (`go run -tags testprogram ./test/bench`): %d runs of %s a case, medians. %d cores, %s/%s, %s.\n"+
		"Compare figures within a table, not with those of another machine.\n",
		b.rounds, b.d, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	for _, s := range benchSections {
		if !strings.Contains(strings.ToLower(s.name), strings.ToLower(only)) {
			continue
		}
		fmt.Fprintf(b.w, "\n## %s\n\n", s.name)
		if err := s.run(b); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if out == "" {
		return nil
	}
	return os.WriteFile(out, []byte(report.String()), 0o644)
}
