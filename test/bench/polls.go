//go:build testprogram

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/mappers/modbus/wire"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	polledDevices  = 100
	polledTags     = 9 // of each, all with another value at each poll
	pollSettle     = 10 * time.Second
	pollFirst      = 100 // register of the first tag
	deadPolledUnit = 7   // takes connections, and answers nothing
)

// pollClock measures the time from one poll of a device to the next.
type pollClock struct {
	mu   sync.Mutex
	last [polledDevices]time.Time
	gaps []time.Duration
}

func (c *pollClock) poll(device int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if !c.last[device].IsZero() {
		c.gaps = append(c.gaps, now.Sub(c.last[device]))
	}
	c.last[device] = now
}

// measurePolls has mapper-modbus poll devices each second, one of which is dead.
func measurePolls(b benchRun) error {
	var clock pollClock
	docs := map[string][]byte{}
	for d := range polledDevices {
		s, err := servePolls(&clock, d)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		doc, err := json.Marshal(polledBundle(d, s.Addr()))
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
	mapper := exec.Command(filepath.Join(b.bin, "mapper-modbus"), "--server", "mqtt://"+core.addr, "--log-level", "error")
	mapper.Env = append(os.Environ(), "GOMAXPROCS=1")
	if err := mapper.Start(); err != nil {
		return err
	}
	defer func() {
		_ = mapper.Process.Signal(syscall.SIGTERM)
		_ = mapper.Wait()
	}()
	time.Sleep(pollSettle)
	clock.mu.Lock()
	clock.gaps = nil
	clock.mu.Unlock()
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
	clock.mu.Lock()
	defer clock.mu.Unlock()
	if len(clock.gaps) == 0 {
		return fmt.Errorf("nothing was polled")
	}
	slices.Sort(clock.gaps)
	fmt.Fprintf(b.w, "mapper-modbus on one core polls %d devices over TCP each second, %d registers of each, all with new values; one more takes connections and answers nothing. %s.\n"+
		"Aims: at most 10 %% of a core, 64 MB, and no poll late because of the dead one.\n\n"+
		"| polls | from one to the next, p50 | p99 | longest | of a core | MB resident |\n|---|---|---|---|---|---|\n| %d | %s | %s | %s | %.1f %% | %.1f |\n",
		polledDevices-1, polledTags, took, len(clock.gaps), clock.gaps[len(clock.gaps)/2].Round(time.Millisecond), clock.gaps[len(clock.gaps)*99/100].Round(time.Millisecond),
		clock.gaps[len(clock.gaps)-1].Round(time.Millisecond), 100*float64(after-before)/float64(took), memory)
	return nil
}

func servePolls(clock *pollClock, device int) (*wire.Server, error) {
	s := &wire.Server{Handle: func(c wire.Call) ([]uint16, error) {
		if c.Address == pollFirst && c.Quantity == polledTags {
			clock.poll(device)
		}
		out := make([]uint16, c.Quantity)
		for i := range out {
			out[i] = uint16(time.Now().UnixMilli()/100) + uint16(i)
		}
		return out, nil
	}}
	if device == deadPolledUnit {
		s.Before = func(r *wire.Reply) { r.Silent = true }
	}
	return s, s.Listen("127.0.0.1:0")
}

func polledBundle(d int, address string) resource.Bundle {
	m := benchModel(polledTags)
	visitors := resource.ProtocolVisitors{Protocol: "modbus"}
	for i, p := range m.Spec.Properties {
		visitors.Visitors = append(visitors.Visitors, resource.Visitor{PropertyName: p.Name, Config: map[string]resource.Value{
			"register": "holding", "address": resource.Value(fmt.Sprint(pollFirst + i)), "type": "uint16",
		}})
	}
	m.Spec.PropertyVisitors = []resource.ProtocolVisitors{visitors}
	device := benchDevice(d)
	device.Spec.Protocol = resource.Protocol{Type: "modbus", Config: map[string]resource.Value{"address": resource.Value(address)}}
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
