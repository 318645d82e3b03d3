// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// allReported are the values of all Devices.
func allReported() int { return allObjects() * objectProperties }

const (
	fleetNodes, fleetDevices = 1000, 100 // and ten properties each
	fleetKeys                = fleetNodes * fleetDevices * 10
)

var fleetProperties = [...]string{
	"temperature", "pressure", "humidity", "setpoint", "mode", "speed", "torque", "vibration", "current", "voltage",
}

// measureHubMemory measures what a key that a node reported costs a hub, and what reading all of them costs others.
func measureHubMemory(b benchRun) error {
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(b.bin, "cloudhub")
	empty, err := startedHub(program, filepath.Join(dir, "empty"))
	if err != nil {
		return fmt.Errorf("%w: run make build first", err)
	}
	empty.stop()
	full := filepath.Join(dir, "full")
	if err := makeFleet(full); err != nil {
		return err
	}
	hub, err := startedHub(program, full)
	if err != nil {
		return err
	}
	defer hub.stop()
	size, err := logSize(filepath.Join(full, hubdata.LogDir))
	if err != nil {
		return err
	}
	a := func(x, y float64) float64 { return (x - y) * 1e6 / fleetKeys }
	fmt.Fprintf(b.w, "A hub is started on a store with %d nodes of %d keys (`devices/press-0042/reported/temperature`, values of 8 bytes with\n"+
		"version, time and origin). Anonymous memory as the kernel counts it (RssAnon), less that of an empty hub.\n\n"+
		"| | bytes a key |\n|---|---|\n| once it is up and at rest | %.0f |\n| at most, while it starts | %.0f |\n| its log | %.0f |\n\n"+
		"Aim: less than 400 bytes a key: %s. "+
		"It takes connections after %.1f s, an empty one after %.2f s.\n\n",
		fleetNodes, fleetKeys/fleetNodes, a(hub.rest, empty.rest), a(hub.peak, empty.peak),
		float64(size)/fleetKeys, aimText(a(hub.rest, empty.rest) < 400), hub.start.Seconds(), empty.start.Seconds())
	hub.stop()
	var readers []startedProgram // with Devices: nobody is shown what is reported of others
	for _, name := range []string{"read", "other"} {
		if err := makeObjects(filepath.Join(dir, name)); err != nil {
			return err
		}
		hub, err := startedHub(program, filepath.Join(dir, name))
		if err != nil {
			return err
		}
		defer hub.stop()
		readers = append(readers, hub)
	}
	return measureReadingAll(b, readers[0].addr, readers[1].addr)
}

// logSize is how long the segments of a log are.
func logSize(dir string) (size int64, err error) {
	segments, err := filepath.Glob(filepath.Join(dir, "*.log"))
	for _, path := range segments {
		info, failed := os.Stat(path)
		if failed != nil {
			return 0, failed
		}
		size += info.Size()
	}
	return size, err
}

// startedProgram is a hub that came up, and what that took.
type startedProgram struct {
	*benchProcess
	start      time.Duration
	rest, peak float64 // MB of anonymous memory
}

func startedHub(program, dir string) (s startedProgram, err error) {
	addr, err := freeAddress()
	if err != nil {
		return s, err
	}
	begin := time.Now()
	s.benchProcess, err = startBroker(dir, addr, "", program, "--data-dir", dir, "--mqtt-listen", addr, "--mqtt-websocket-listen", "",
		"--http-listen", "127.0.0.1:0")
	if err != nil {
		return s, err
	}
	s.start = time.Since(begin)
	if s.peak, err = anonymousMemory(s.pid); err != nil {
		return s, err
	}
	time.Sleep(settleTime) // what it rests at is what is asked
	s.rest, err = anonymousMemory(s.pid)
	return s, err
}

// anonymousMemory is a process's memory that no file stands behind, in MB.
func anonymousMemory(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kb * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("process %d: no RssAnon", pid)
}

// makeFleet writes what so many nodes reported, as a hub would have stored it.
func makeFleet(dir string) error {
	st, err := disk.Open(disk.Options{Path: filepath.Join(dir, hubdata.LogDir)})
	if err != nil {
		return err
	}
	var work sync.WaitGroup
	var failed atomic.Pointer[error]
	slots := make(chan struct{}, 16) // that share commits
	for n := range fleetNodes {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			if err := makeNode(st, fmt.Sprintf("plant-%04d", n)); err != nil {
				failed.Store(&err)
			}
		})
	}
	work.Wait()
	if err := failed.Load(); err != nil {
		return errors.Join(*err, st.Close())
	}
	return st.Close()
}

func makeNode(st store.Store, name string) error {
	node := resource.Node{Metadata: resource.Meta{Name: name}}
	if err := createObject(st, resource.KindNode, name, node); err != nil {
		return err
	}
	state := link.MapState{Lineage: link.Lineage{N: 1, Nonce: 7}, Applied: 1 << 20}
	meta, err := state.MarshalBinary()
	if err != nil {
		return err
	}
	c := store.NodeChange{Node: name, Meta: meta}
	for d := range fleetDevices {
		for p, property := range fleetProperties {
			e := link.Entry{
				Key: topics.DeviceKey(fmt.Sprintf("press-%04d", d), topics.KindReported, property), Seq: uint64(1<<19 + d*10 + p),
				Ver: 4711, TS: 1_790_000_000_000, Origin: "mapper-modbus", Value: fmt.Appendf(nil, "%08.3f", 20+float64(d)/7),
				Meta: link.Meta{For: 3},
			}
			c.Put = append(c.Put, store.ReplicaItem{Key: e.Key, Value: link.AppendEntry(nil, e)})
		}
	}
	return st.Commit(context.Background(), []store.NodeChange{c})
}

func createObject(st store.Writer, kind, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	key := store.Key{Kind: kind, Namespace: resource.DefaultNamespace, Name: name}
	if kind == resource.KindNode {
		key.Namespace = ""
	}
	_, err = st.Create(context.Background(), store.Object{Key: key, Data: data})
	return err
}

// measureReadingAll measures others' durable publishes while somebody subscribes to everything: on the same hub, and, for
// what the work alone costs them on a machine of few cores, on another one.
func measureReadingAll(b benchRun, hub, other string) error {
	app, err := connectClient(hub, "app")
	if err != nil {
		return err
	}
	defer app.stop()
	cases := []struct {
		name  string
		from  string // whom to read; "": nobody
		took  []float64
		waits []time.Duration
	}{{name: "nobody reads"}, {name: "all of another hub is read", from: other}, {name: "all of this hub is read", from: hub}}
	for range b.rounds {
		for i := range cases {
			c := &cases[i]
			begin, failed := time.Now(), make(chan error, 1)
			end := make(chan struct{})
			go func() {
				defer close(end)
				if c.from == "" {
					time.Sleep(b.d) // that is how long this case lasts
					failed <- nil
					return
				}
				failed <- subscribeAll(c.from)
			}()
			waits, err := publishUntil(app, end)
			if err = errors.Join(err, <-failed); err != nil {
				return err
			}
			c.took, c.waits = append(c.took, time.Since(begin).Seconds()), append(c.waits, waits...)
		}
	}
	fmt.Fprintf(b.w, "A client subscribes to `v1/#` with QoS 1 and receives all %d reported values of a hub with %d Devices, in %.1f s. Meanwhile another publishes desired values, one\n"+
		"after the other, each acknowledged when it is on disk. Reading takes all processor time that is left, so\n"+
		"the cost of reading *another* hub is the machine's, not the hub's.\n\n| meanwhile | p50 | p99 |\n|---|---|---|\n", allReported(), allObjects(), median(cases[2].took))
	for _, c := range cases {
		fmt.Fprintf(b.w, "| %s | %s | %s |\n", c.name, formatDuration(quantile(c.waits, 0.5)), formatDuration(quantile(c.waits, 0.99)))
	}
	return nil
}

// publishUntil publishes a hundred times a second at most, and says how long each acknowledgement took.
func publishUntil(app *clientConnection, end <-chan struct{}) (list []time.Duration, err error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := time.Now().UnixNano() >> 32; ; i++ {
		select {
		case <-end:
			return list, nil
		case <-tick.C:
		}
		begin, done := time.Now(), make(chan error, 1)
		app.PublishAsync(client.Message{Topic: "v1/nodes/plant-0000/devices/" + objectName(0) + "/desired/p0", Payload: fmt.Appendf(nil, "%d", i), QoS: 1},
			func(err error) { done <- err })
		if err := <-done; err != nil {
			return list, err
		}
		list = append(list, time.Since(begin))
	}
}

// subscribeAll subscribes to the whole tree and returns when every reported value has come, once and in order.
func subscribeAll(addr string) error {
	c, err := dialClient(addr, "reader")
	if err != nil {
		return err
	}
	defer c.Close()
	if err := subscribeClient(c, "v1/#", 1); err != nil {
		return err
	}
	var last, acks []byte
	n := 0
	reported := []byte("/reported/")
	err = readPackets(c, func(first byte, body []byte) error {
		if first>>4 != 3 {
			return fmt.Errorf("a packet of type %d", first>>4)
		}
		at := 2 + int(binary.BigEndian.Uint16(body))
		topic := body[2:at]
		acks = append(acks, 0x40, 2, body[at], body[at+1])
		if !bytes.Contains(topic, reported) {
			return nil
		}
		if bytes.Compare(topic, last) <= 0 {
			return fmt.Errorf("%s came after %s", topic, last)
		}
		last = append(last[:0], topic...)
		n++
		return nil
	}, func(int) error {
		if n == allReported() {
			return errAllReceived
		}
		_, err := c.Write(acks)
		acks = acks[:0]
		return err
	})
	if errors.Is(err, errAllReceived) {
		return nil
	}
	return fmt.Errorf("%d of %d topics came: %w", n, allReported(), err)
}

var errAllReceived = errors.New("all came")
