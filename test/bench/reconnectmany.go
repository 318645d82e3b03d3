// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/test/simnodes"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

const (
	crowdNodes   = 2000 // nodes
	crowdKeys    = 50   // of each
	crowdChanged = 10   // of each, while the hub is away
)

// measureReconnectMany has all nodes of a fleet come back to a hub at the same moment.
func measureReconnectMany(b benchRun) error {
	if err := raiseFileLimit(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	addr, err := freeAddress()
	if err != nil {
		return err
	}
	run := func() (*benchProcess, error) {
		return startBroker(filepath.Join(dir, "none"), addr, "", filepath.Join(b.bin, "cloudhub"), "--data-dir", dir, "--mqtt-listen", addr,
			"--mqtt-websocket-listen", "", "--http-listen", "127.0.0.1:0")
	}
	hub, err := run()
	if err != nil {
		return err
	}
	defer func() { hub.stop() }()
	time.Sleep(settleTime)
	before, err := anonymousMemory(hub.pid)
	if err != nil {
		return err
	}
	names := make([]string, crowdNodes)
	for i := range names {
		names[i] = fmt.Sprintf("crowd-%04d", i)
	}
	nodes, err := simnodes.Start(simnodes.Options{Hub: addr, Keys: func(n *simnodes.Node) { n.Put(crowdEntries(crowdKeys, 0)...) }}, names...)
	if err != nil {
		return err
	}
	defer nodes.Stop()
	first, err := awaitInStep(nodes)
	if err != nil {
		return err
	}
	var again, memory []float64
	for round := range b.rounds {
		_ = syscall.Kill(hub.pid, syscall.SIGKILL)
		hub.stop()
		for _, n := range nodes.Nodes {
			n.Put(crowdEntries(crowdChanged, round+1)...)
		}
		if hub, err = run(); err != nil {
			return err
		}
		took, err := awaitInStep(nodes)
		if err != nil {
			return err
		}
		time.Sleep(settleTime)
		after, err := anonymousMemory(hub.pid)
		if err != nil {
			return err
		}
		again, memory = append(again, took.Seconds()), append(memory, (after-before)*1e6/crowdNodes)
	}
	fmt.Fprintf(b.w, "\n%d nodes of %d keys each connect to one hub, which is then killed and started again with %d keys of each changed\n"+
		"meanwhile; the nodes (owners and replicas of the link with a connection each) try again after 0.1 to 1 s, all of them at once.\n\n"+
		"| | |\n|---|---|\n| all in step for the first time, s | %.1f |\n| all in step again after the hub listens, s | %.1f |\n"+
		"| anonymous memory of the hub a node, bytes | %.0f |\n| connections refused or lost; messages malformed, refused or repeated | %d |\n\n"+
		"Aims: all in step; no error: %s; less than 60,000 bytes a node: %s.\n",
		crowdNodes, crowdKeys, crowdChanged, first.Seconds(), median(again), median(memory), nodes.Faults.Load(),
		aimText(nodes.Faults.Load() == 0), aimText(median(memory) < 60_000))
	return nil
}

// crowdEntries are some of a node's keys, with the values of a round.
func crowdEntries(keys, round int) (list []link.Entry) {
	for i := range keys {
		list = append(list, link.Entry{
			Key: topics.DeviceKey(fmt.Sprintf("press-%04d", i/10), topics.KindReported, fleetProperties[i%10]),
			TS:  1_790_000_000_000, Origin: "mapper-modbus", Value: fmt.Appendf(nil, "%08.3f", float64(i+round)/7),
		})
	}
	return list
}

// awaitInStep waits until all nodes agree with the hub.
func awaitInStep(nodes *simnodes.Set) (time.Duration, error) {
	nodes.Steady.Store(true)
	defer nodes.Steady.Store(false)
	begin := time.Now()
	least, fell := len(nodes.Nodes)+1, begin
	for left := 1; left > 0; time.Sleep(5 * time.Millisecond) {
		if left = nodes.Left(); left < least {
			least, fell = left, time.Now()
		}
		if time.Since(fell) > 2*time.Minute {
			return 0, fmt.Errorf("%d of %d nodes are not in step, and no other has been for two minutes", left, len(nodes.Nodes))
		}
	}
	return time.Since(begin), nil
}
