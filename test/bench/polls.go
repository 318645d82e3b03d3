// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	polledDevices = 100
	polledTags    = 9 // of each, all with another value at each poll
	pollSettle    = 10 * time.Second
	deadPolled    = 7 // the device that takes connections, or datagrams, and answers nothing
)

// pollClock has the times that are measured: from one poll of a device to the next, or from a device's change to its report.
type pollClock struct {
	mu   sync.Mutex
	last [polledDevices]time.Time
	took []time.Duration
}

// poll notes that a device was asked for its values.
func (c *pollClock) poll(device int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if !c.last[device].IsZero() {
		c.took = append(c.took, now.Sub(c.last[device]))
	}
	c.last[device] = now
}

func (c *pollClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took = append(c.took, d)
}

// take gives the times since it was called last, in order.
func (c *pollClock) take() []time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.took
	c.took = nil
	slices.Sort(list)
	return list
}

// polledKind is how simulated devices of a protocol are made, and driven by the protocol's mapper.
type polledKind struct {
	name     string
	protocol string
	program  string
	flags    []string
	// serve starts the devices. device gives what a Device says of the d-th, property what its model says of the p-th property of it.
	serve func(*pollClock) (polledPeers, error)
	// tells is said of devices that tell their values by themselves, each second: what is measured is from then to the report.
	tells bool
}

// polledPeers are the devices of a kind.
type polledPeers struct {
	device   func(d int) map[string]resource.Value
	property func(d, p int) map[string]resource.Value
	tell     func(core *clientConnection, d int, now time.Time) // of kinds that tell
	stop     func()
}

var polledKinds = []polledKind{
	{name: "modbus", protocol: "modbus", program: "mapper-modbus", serve: serveModbusPolls},
	{name: "opcua, read", protocol: "opcua", program: "mapper-opcua", serve: func(c *pollClock) (polledPeers, error) { return serveOPCUAPolls(c, false) }},
	{name: "opcua, subscribed", protocol: "opcua", program: "mapper-opcua", serve: func(c *pollClock) (polledPeers, error) { return serveOPCUAPolls(c, true) }, tells: true},
	{name: "snmp", protocol: "snmp", program: "mapper-snmp", serve: serveSNMPPolls},
	{name: "bacnet", protocol: "bacnet", program: "mapper-bacnet", flags: []string{"--driver-listen", "127.0.0.1:0"}, serve: serveBACnetPolls},
	{name: "http", protocol: "http", program: "mapper-http", serve: serveHTTPPolls},
	{name: "mqtt", protocol: "mqtt", program: "mapper-mqtt", serve: serveMQTTPolls, tells: true},
}

// measurePolls has each mapper drive devices each second, one of which is dead.
func measurePolls(b benchRun) error {
	fmt.Fprintf(b.w, "Each mapper, a process of its own on one core, drives %d devices with %d values each, all new each second; one more takes connections and answers\n"+
		"nothing. %s a mapper. Of devices that are asked the times are from one poll of a device to its next one; of those that tell their values by themselves,\n"+
		"from then until the report is at the node's broker. Aims: at most 10 %% of a core, 64 MB, and no poll late because of the dead one.\n\n"+
		"| mapper | polls | p50 | p99 | longest | of a core | MB resident |\n|---|---|---|---|---|---|---|\n", polledDevices-1, polledTags, 10*b.d)
	for _, k := range polledKinds {
		if !strings.Contains(k.name, b.chosen) {
			continue
		}
		if err := k.measure(b); err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
	}
	return nil
}

func (k polledKind) measure(b benchRun) error {
	var clock pollClock
	peers, err := k.serve(&clock)
	if err != nil {
		return err
	}
	defer peers.stop()
	docs := map[string][]byte{}
	for d := range polledDevices {
		doc, err := json.Marshal(k.bundle(peers, d))
		if err != nil {
			return err
		}
		docs[fmt.Sprintf("devices/d%d", d)] = doc
	}
	core, err := startSeededCore(b, docs)
	if err != nil {
		return err
	}
	defer core.stop()
	data, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(data)
	flags := append([]string{"--server", "mqtt://" + core.addr, "--log-level", "error"}, k.flags...)
	if k.protocol == "opcua" {
		flags = append(flags, "--driver-data-dir", data)
	}
	mapper := exec.Command(filepath.Join(b.bin, k.program), flags...)
	mapper.Env, mapper.Stderr = append(os.Environ(), "GOMAXPROCS=1"), os.Stderr
	if err := mapper.Start(); err != nil {
		return err
	}
	defer func() {
		_ = mapper.Process.Signal(syscall.SIGTERM)
		_ = mapper.Wait()
	}()
	if k.tells {
		stop, err := tellPolls(&clock, core.addr, peers)
		if err != nil {
			return err
		}
		defer stop()
	}
	time.Sleep(pollSettle)
	clock.take()
	before, err := cpuOf(mapper.Process.Pid)
	if err != nil {
		return err
	}
	took := 10 * b.d
	time.Sleep(took)
	after, err := cpuOf(mapper.Process.Pid)
	if err != nil {
		return err
	}
	memory, err := residentMemory(mapper.Process.Pid)
	if err != nil {
		return err
	}
	list := clock.take()
	if len(list) == 0 {
		return fmt.Errorf("nothing was polled")
	}
	rounded := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	fmt.Fprintf(b.w, "| %s | %d | %s | %s | %s | %.1f %% | %.1f |\n", k.name, len(list), rounded(quantile(list, 0.5)), rounded(quantile(list, 0.99)),
		rounded(list[len(list)-1]), 100*float64(after-before)/float64(took), memory)
	return nil
}

// tellPolls has devices tell values each second, the first of which is the time, and notes how old it is where it is reported.
func tellPolls(clock *pollClock, addr string, peers polledPeers) (func(), error) {
	core, err := connectClient(addr, "watch", func(o *client.Options) {
		o.Subscriptions = []client.Subscription{{Filter: "v1/nodes/n1/devices/+/reported/p0"}}
		o.OnMessage = func(m client.Message) {
			if ms, err := strconv.ParseInt(string(m.Payload), 10, 64); err == nil && ms > 0 {
				clock.add(time.Since(time.UnixMilli(ms)))
			}
		}
	})
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		each := time.NewTicker(time.Second / polledDevices)
		defer each.Stop()
		for d := 0; ; d = (d + 1) % polledDevices {
			select {
			case <-done:
				return
			case now := <-each.C:
				if d != deadPolled {
					peers.tell(core, d, now)
				}
			}
		}
	}()
	return func() { close(done); core.stop() }, nil
}

func (k polledKind) bundle(peers polledPeers, d int) resource.Bundle {
	m := benchModel(polledTags)
	visitors := resource.ProtocolVisitors{Protocol: k.protocol}
	for i, p := range m.Spec.Properties {
		m.Spec.Properties[i].AccessMode = resource.ReadOnly
		visitors.Visitors = append(visitors.Visitors, resource.Visitor{PropertyName: p.Name, Config: peers.property(d, i)})
	}
	m.Spec.PropertyVisitors = []resource.ProtocolVisitors{visitors}
	device := benchDevice(d)
	device.Spec.Protocol = resource.Protocol{Type: k.protocol, Config: peers.device(d)}
	return resource.NewBundle(device, m)
}

// startSeededCore starts a core without a hub that has documents.
func startSeededCore(b benchRun, docs map[string][]byte) (*benchProcess, error) {
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return nil, err
	}
	if err := seedDocuments(dir, docs); err != nil {
		return nil, err
	}
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	return startBroker(dir, addr, "", filepath.Join(b.bin, "edgecore"), "--node-name", "n1", "--link-server", "", "--data-dir", dir, "--mqtt-listen", addr,
		"--mqtt-websocket-listen", "", "--http-listen", "127.0.0.1:0")
}
