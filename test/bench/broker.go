// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// brokerCases are the ways of using a broker that it is compared in.
var brokerCases = []traffic{
	{name: "1 → 1, QoS 0", publishers: 1, subscribers: 1, qos: 0, window: 200, aim: 2},
	{name: "1 → 1, QoS 1, 100 in flight", publishers: 1, subscribers: 1, qos: 1, window: 100, aim: 1.3},
	{name: "50 → 1, QoS 1, 1 in flight each", publishers: 50, subscribers: 1, oneTopic: true, qos: 1, window: 1, aim: 1.2},
	{name: "1 → 200, QoS 0", publishers: 1, subscribers: 200, qos: 0, window: 20, aim: 3},
	{name: "50 pairs, QoS 1, 20 in flight each, 1,000 idle connections", publishers: 50, subscribers: 1, idle: 1000, qos: 1, window: 20, aim: 1.3},
	{name: "the same, 1 in flight each", publishers: 50, subscribers: 1, idle: 1000, qos: 1, window: 1, aim: 1.3},
}

// steadyCases are those in which publishers keep a pace that both brokers hold, so that what differs is how long a message takes.
var steadyCases = []traffic{
	{name: "2,000 a second, QoS 1", publishers: 1, subscribers: 1, qos: 1, window: 100, every: 500 * time.Microsecond},
	{name: "2,000 a second of 50 pairs, QoS 1", publishers: 50, subscribers: 1, qos: 1, window: 100, every: 25 * time.Millisecond},
	{name: "100 a second of two publishers to 50 subscribers, QoS 1", publishers: 2, subscribers: 50, oneTopic: true, qos: 1, window: 100, every: 20 * time.Millisecond},
}

const brokerRounds = 5

// batchingNote says why the last cases come out nearer to each other than the first.
const batchingNote = `Where many packets arrive together, one system call serves them all, and the ratio is large. With one message in
flight for each client nothing can be combined: each message costs two reads and two writes, and the kernel's
TCP costs every broker the same. A profile (perf) of 50 pairs with 1 in flight each: writing to sockets 45 %, reading 16 % (a third of it
reads that find nothing, before the runtime's poller waits), the poller 11 %, the broker's own code, its memory and the
collector 28 %. An event loop of our own instead of the runtime's could save the unsuccessful reads and half of
the poller, about a tenth of the time; io_uring, which handles many sockets in one call, perhaps a third, where
it is permitted.`

// brokerFigures are what one run gave.
type brokerFigures struct {
	rate      float64 // messages received a second
	cpu       float64 // µs of the broker's CPU time a message
	busy      float64 // the share of a core that the broker used
	generator float64 // and the generator
	lost      float64 // share
	p50, p99  time.Duration
}

// measureBrokers compares the hub's broker with mosquitto.
func measureBrokers(b benchRun) error {
	if _, err := findMosquitto(); err != nil {
		fmt.Fprintf(b.w, "%v.\n", err)
		return nil
	}
	if err := raiseFileLimit(); err != nil {
		return err
	}
	broker, unpin, err := pinCPU()
	if err != nil {
		return err
	}
	defer unpin()
	fmt.Fprintf(b.w, "`cloudhub` with its default settings (topics of the users' own, the journal on) and %s, each alone on one core,\n"+
		"the generator on another. Payloads of %d bytes, MQTT 5, clean sessions. mosquitto has `set_tcp_nodelay` and windows and queues as\n"+
		"wide as ours (`max_inflight_messages 1024`, `max_queued_messages 100000`), and no persistence. Alternating runs, medians of %d;\n"+
		"messages received a second, in brackets µs of the broker's CPU time (user and system) for each of them. The generator counts and\n"+
		"numbers the messages: at QoS 1 every one arrives once and in order, or the run fails.\n\n"+
		"| case | cloudhub | mosquitto | ratio | aim | CPU ratio | cores' use, broker + generator: cloudhub, mosquitto | lost |\n"+
		"|---|---|---|---|---|---|---|---|\n", mosquittoVersion(), payloadSize, brokerRounds)
	for _, t := range brokerCases {
		if !strings.Contains(t.name, b.chosen) {
			continue
		}
		ours, theirs, err := compareBrokers(b, t, broker, "cloudhub")
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		fmt.Fprintf(b.w, "| %s | %.0f (%.1f) | %.0f (%.1f) | %.2f | ≥ %.1f | %.2f | %s, %s | %s |\n", t.name, ours.rate, ours.cpu,
			theirs.rate, theirs.cpu, ours.rate/theirs.rate, t.aim, ours.cpu/theirs.cpu, ours.use(), theirs.use(), formatLosses(ours, theirs))
	}
	fmt.Fprintf(b.w, "\nA light load, which most brokers have: publishers keep a pace (the program, mosquitto, ratio). Aims for the CPU time of a\n"+
		"message: at most 1.1 times mosquitto's for cloudhub, 1.5 for edgecore.\n\n"+
		"| case | program | CPU, µs a message | publish to arrival, p50 | p99 |\n|---|---|---|---|---|\n")
	for _, t := range steadyCases {
		if !strings.Contains(t.name, b.chosen) {
			continue
		}
		for _, program := range [][]string{{"cloudhub"}, {"edgecore", "--node-name", "n1"}} {
			ours, theirs, err := compareBrokers(b, t, broker, program[0], program[1:]...)
			if err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			fmt.Fprintf(b.w, "| %s | %s | %.1f, %.1f, %.2f | %s, %s, %.2f | %s, %s, %.2f |\n", t.name, program[0], ours.cpu, theirs.cpu, ours.cpu/theirs.cpu,
				formatMicros(ours.p50), formatMicros(theirs.p50), ours.p50.Seconds()/theirs.p50.Seconds(), formatMicros(ours.p99), formatMicros(theirs.p99), ours.p99.Seconds()/theirs.p99.Seconds())
		}
	}
	fmt.Fprintf(b.w, "\n%s\n", batchingNote)
	return nil
}

func (f brokerFigures) use() string {
	return fmt.Sprintf("%.0f + %.0f %%", 100*f.busy, 100*f.generator)
}

func formatMicros(d time.Duration) string { return d.Round(time.Microsecond).String() }

func formatLosses(ours, theirs brokerFigures) string {
	if ours.lost == 0 && theirs.lost == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f %% / %.1f %%", 100*ours.lost, 100*theirs.lost)
}

// pinCPU keeps this process on one core and names another for the brokers.
func pinCPU() (broker string, unpin func(), err error) {
	if runtime.NumCPU() < 2 {
		return "", nil, errors.New("two cores are needed: one for the broker, one for the generator")
	}
	self := strconv.Itoa(os.Getpid())
	mine := strconv.Itoa(runtime.NumCPU() - 1)
	if out, err := exec.Command("taskset", "-a", "-p", "-c", mine, self).CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("taskset: %w: %s", err, out)
	}
	before := runtime.GOMAXPROCS(1)
	return "0", func() {
		_ = exec.Command("taskset", "-a", "-p", "-c", "0-"+mine, self).Run()
		runtime.GOMAXPROCS(before)
	}, nil
}

// compareBrokers runs a program of ours and mosquitto in turn.
func compareBrokers(b benchRun, t traffic, cpu, program string, args ...string) (ours, theirs brokerFigures, err error) {
	var mine, others []brokerFigures
	for range brokerRounds {
		f, err := runTrial(b.d, t, func() (*benchProcess, error) { return startProgram(filepath.Join(b.bin, program), cpu, args...) })
		if err != nil {
			return ours, theirs, fmt.Errorf("%s: %w", program, err)
		}
		mine = append(mine, f)
		if f, err = runTrial(b.d, t, func() (*benchProcess, error) { return startMosquitto(cpu) }); err != nil {
			return ours, theirs, fmt.Errorf("mosquitto: %w", err)
		}
		others = append(others, f)
	}
	return medianFigures(mine), medianFigures(others), nil
}

func medianFigures(runs []brokerFigures) brokerFigures {
	of := func(get func(brokerFigures) float64) float64 {
		var list []float64
		for _, f := range runs {
			list = append(list, get(f))
		}
		return median(list)
	}
	return brokerFigures{
		rate: of(func(f brokerFigures) float64 { return f.rate }), cpu: of(func(f brokerFigures) float64 { return f.cpu }),
		busy: of(func(f brokerFigures) float64 { return f.busy }), generator: of(func(f brokerFigures) float64 { return f.generator }),
		lost: of(func(f brokerFigures) float64 { return f.lost }),
		p50:  time.Duration(of(func(f brokerFigures) float64 { return float64(f.p50) })),
		p99:  time.Duration(of(func(f brokerFigures) float64 { return float64(f.p99) })),
	}
}

const warmUp = 300 * time.Millisecond

// runTrial is one run of one broker.
func runTrial(d time.Duration, t traffic, start func() (*benchProcess, error)) (f brokerFigures, err error) {
	p, err := start()
	if err != nil {
		return f, err
	}
	defer p.stop()
	g, err := startGenerator(p.addr, t)
	if err != nil {
		closeAll(g.conns)
		return f, err
	}
	time.Sleep(warmUp)
	if t.every > 0 {
		d *= 3 // the kernel counts CPU time in steps of 10 ms
	}
	g.sampling.Store(t.every > 0)
	before, err := g.snapshot(p)
	time.Sleep(d)
	after, err2 := g.snapshot(p)
	g.sampling.Store(false)
	g.stop()
	if err := errors.Join(err, err2, g.fault); err != nil {
		return f, err
	}
	f = after.since(before)
	f.lost = 1 - float64(g.progress())/float64(g.due())
	if len(g.waits) > 0 {
		f.p50, f.p99 = quantile(g.waits, 0.5), quantile(g.waits, 0.99)
	}
	return f, nil
}

type cpuSnapshot struct {
	at                time.Time
	received          int64
	broker, generator time.Duration // CPU
}

func (g *generator) snapshot(p *benchProcess) (cpuSnapshot, error) {
	cpu, err := cpuOf(p.pid)
	return cpuSnapshot{at: time.Now(), received: g.received.Load(), broker: cpu, generator: ownCPU()}, err
}

// since is what happened between two snapshots.
func (s cpuSnapshot) since(before cpuSnapshot) brokerFigures {
	n, seconds := float64(s.received-before.received), s.at.Sub(before.at).Seconds()
	cpu := (s.broker - before.broker).Seconds()
	return brokerFigures{
		rate: n / seconds, cpu: cpu * 1e6 / n, busy: cpu / seconds,
		generator: (s.generator - before.generator).Seconds() / seconds,
	}
}
