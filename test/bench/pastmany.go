// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
	corehistory "github.com/edgebus/edgebus/edge/history"
	"github.com/edgebus/edgebus/test/simnodes"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	manyNodes      = 20
	manyDevices    = 50 // of each node
	manyProperties = 10 // of each device: each has another value each second
	manyTurns      = 10 // a second: a tenth of a node's devices at each
	manyRate       = manyNodes * manyDevices * manyProperties
)

// measurePastOfMany has many nodes send their histories to one hub, alone and beside the values themselves.
func measurePastOfMany(b benchRun) error {
	fmt.Fprintf(b.w, "%d nodes of %d Devices of %d properties, all new each second: %d values a second for %s. The nodes are simulated, in one process: the link's\n"+
		"machines, the recorder of a core's history with its files, and the sender of them, with a connection each. The hub is as it is shipped.\n"+
		"First they send nothing but their histories, then each value as well, as a core does. *Written* is what reaches the hub's disk, an ext4 of its own,\n"+
		"or, of the nodes and without root, what the kernel counts for the process, until the last value, *a day* the same of 24 hours; *nodes* are the simulated ones, all together, with the benchmark.\n", manyNodes, manyDevices, manyProperties, manyRate, b.past)
	for _, c := range []struct {
		name   string
		values bool
	}{{"histories alone", false}, {"values as well", true}} {
		if !strings.Contains(c.name, b.chosen) {
			continue
		}
		fmt.Fprintf(b.w, "\n**%s**\n\n", c.name)
		if err := pastOfMany(b, c.values); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

func pastOfMany(b benchRun, values bool) error {
	hub, web, disk, err := onDiskOfItsOwn(b)
	if err != nil {
		return err
	}
	defer disk.unmount()
	defer hub.stop()
	m, err := startMany(hub, web)
	if err != nil {
		return err
	}
	defer m.stop()
	programs := []*usage{{name: "cloudhub", pid: hub.pid, disk: disk}, {name: "nodes", pid: os.Getpid()}}
	for _, u := range programs {
		if err := u.begin(); err != nil {
			return err
		}
	}
	var commits commitFigures
	if err := commits.begin(web); err != nil {
		return err
	}
	begin := time.Now()
	m.report(b.past, values)
	took := time.Since(begin)
	fmt.Fprint(b.w, "| program | of a core | MB, most | MB written | GB a day |\n|---|---|---|---|---|\n")
	for _, u := range programs {
		if err := u.end(b.w); err != nil {
			return err
		}
	}
	if err := commits.end(b.w, web); err != nil {
		return err
	}
	rest, err := residentMemory(hub.pid)
	if err != nil {
		return err
	}
	sent := 0
	for _, n := range m.nodes {
		sent += len(n.turns) * manyDevices / manyTurns * manyProperties
	}
	fmt.Fprintf(b.w, "\n%d values were reported, %.0f a second; %d are meant, and many less would mean that the machine is too slow. The hub has %.0f MB resident at the end.\n", sent, float64(sent)/took.Seconds(), manyRate, rest)
	if values {
		if err := m.awaitInStep(); err != nil {
			return err
		}
		fmt.Fprintf(b.w, "The last value was acknowledged %s after it was reported.\n", (time.Since(begin) - took).Round(time.Millisecond))
	}
	m.flush()
	if err := m.compare(b, web, begin); err != nil {
		return err
	}
	past, err := sizeOfDir(filepath.Join(hub.dir, "history"))
	if err != nil {
		return err
	}
	all, err := sizeOfDir(hub.dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.w, "The hub's files are %.1f MB of history, %.2f bytes a value, and %.1f MB besides. Messages refused, malformed or repeated: %d.\n",
		past/1e6, past/float64(sent), (all-past)/1e6, m.set.Faults.Load())
	return nil
}

// pastNodes are simulated nodes, each with the history of a core.
type pastNodes struct {
	dir   string // of the nodes' files
	set   *simnodes.Set
	nodes []*pastNode
	end   context.CancelFunc // of the senders

	flush   func() // writes what is recorded, and records no more
	running sync.WaitGroup
}

type pastNode struct {
	*simnodes.Node
	number  int
	bundles []resource.Bundle
	past    *corehistory.Recorder
	sender  *corehistory.CopySender
	turns   []int64 // when each was, in ms since 1970
}

func startMany(hub *benchProcess, web string) (m *pastNodes, err error) {
	model := benchModel(manyProperties)
	for i := range model.Spec.Properties {
		model.Spec.Properties[i].Type = resource.TypeDouble
	}
	if err := postObject(web, "devicemodels", model); err != nil {
		return nil, err
	}
	m = new(pastNodes)
	if m.dir, err = os.MkdirTemp("", "edgebus-bench-"); err != nil {
		return nil, err
	}
	byName := map[string]*pastNode{}
	var names []string
	for i := range manyNodes {
		n := &pastNode{number: i}
		if err := n.open(m.dir, web, model); err != nil {
			return nil, err
		}
		names = append(names, pastName(i))
		m.nodes, byName[pastName(i)] = append(m.nodes, n), n
	}
	m.set, err = simnodes.Start(simnodes.Options{
		Hub: hub.addr, Filter: func(n *simnodes.Node) string { return wantedTopic(n.Name) },
		Hear: func(n *simnodes.Node, got client.Message) { byName[n.Name].sender.Received(got.Payload) },
	}, names...)
	if err != nil {
		return nil, err
	}
	sending, end := context.WithCancel(context.Background())
	recording, flush := context.WithCancel(context.Background())
	var recorders sync.WaitGroup
	m.end = func() { flush(); end() }
	m.flush = func() { flush(); recorders.Wait() }
	for i, n := range m.nodes {
		n.Node = m.set.Nodes[i]
		recorders.Go(func() { // nodes don't write at the same moment
			backoff.Sleep(recording, time.Duration(i)*time.Minute/manyNodes)
			_ = n.past.Run(recording)
		})
		m.running.Go(func() { n.past.Send(sending, n.sender) })
	}
	return m, m.awaitInStep()
}

func pastName(i int) string { return fmt.Sprintf("past-%02d", i) }

func wantedTopic(node string) string {
	return topics.Address{Node: node, Kind: topics.KindHistoryWanted, Device: "core"}.String()
}

// noBudget is that of a link without link.rate.
type noBudget struct{}

func (noBudget) Wait() time.Duration { return 0 }
func (noBudget) Download(int)        {}

// open makes a node's Devices and its history.
func (n *pastNode) open(dir, web string, model resource.DeviceModel) (err error) {
	for d := range manyDevices {
		device := benchDevice(n.number*manyDevices + d)
		device.Spec.NodeName = pastName(n.number)
		if device.Metadata.UID, err = createdUID(web, "devices", device); err != nil {
			return err
		}
		n.bundles = append(n.bundles, resource.NewBundle(device, model))
	}
	topic := topics.Address{Node: pastName(n.number), Kind: topics.KindHistoryCopy}.String()
	n.sender = corehistory.NewSending(func(payload []byte) {
		n.Publish(client.Message{Topic: topic, Payload: payload, QoS: 1, ResponseTopic: wantedTopic(pastName(n.number))})
	}, noBudget{})
	n.past, err = corehistory.Open(corehistory.Options{Dir: filepath.Join(dir, pastName(n.number)), Bytes: 512 << 20, Log: zerolog.Nop()})
	if err == nil {
		n.past.Follow(n)
	}
	return err
}

// Bundle and Bundles are for the recorder.
func (n *pastNode) Bundle(name string) (resource.Bundle, bool) {
	i := slices.IndexFunc(n.bundles, func(b resource.Bundle) bool { return b.Device.Metadata.Name == name })
	return n.bundles[max(i, 0)], i >= 0
}

func (n *pastNode) Bundles() map[string]resource.Bundle {
	all := map[string]resource.Bundle{}
	for _, b := range n.bundles {
		all[b.Device.Metadata.UID] = b
	}
	return all
}

// manyValue is what a property is in a round: a tenth or two more than before, and after 20.0 less.
func manyValue(d, p, round int) string {
	return strconv.FormatFloat(float64(round*(1+(d+p)%2)%200)/10, 'g', -1, 64)
}

// report has all nodes report for so long.
func (m *pastNodes) report(d time.Duration, values bool) {
	end := time.Now().Add(d)
	var all sync.WaitGroup
	for i, n := range m.nodes {
		all.Go(func() {
			time.Sleep(time.Duration(i) * time.Second / manyTurns / manyNodes)
			tick := time.NewTicker(time.Second / manyTurns)
			defer tick.Stop()
			for ; time.Now().Before(end); <-tick.C {
				n.turn(values)
			}
		})
	}
	all.Wait()
}

// turn reports the values of some of a node's Devices.
func (n *pastNode) turn(values bool) {
	now, round := time.Now().UnixMilli(), len(n.turns)/manyTurns
	var list []link.Entry
	for d := len(n.turns) % manyTurns; d < manyDevices; d += manyTurns {
		for p := range manyProperties {
			b, name, v := &n.bundles[d], "p"+strconv.Itoa(p), manyValue(d, p, round)
			n.past.Record(b, name, v, now)
			if values {
				list = append(list, link.Entry{Key: topics.DeviceKey(b.Device.Metadata.Name, topics.KindReported, name), TS: now, Origin: "mapper-bench", Value: []byte(v)})
			}
		}
	}
	n.turns = append(n.turns, now)
	if values {
		n.Put(list...)
	}
}

func (m *pastNodes) awaitInStep() error {
	_, err := awaitInStep(m.set)
	return err
}

// compare compares the past of one Device of each node, as the hub has it, with what was reported, once the hub has all of it.
func (m *pastNodes) compare(b benchRun, web string, from time.Time) error {
	last, changes := time.Now(), 0
	for _, n := range m.nodes {
		device := n.number*manyDevices + n.number%manyDevices
		want := n.changes(n.number % manyDevices)
		for {
			text, err := pastOf(web, device, from.Add(-time.Minute), last)
			if err != nil {
				return err
			}
			got, err := changesOf(text)
			if err != nil {
				return err
			}
			if slices.Equal(want, got) {
				break
			}
			if time.Since(last) > pastCopied {
				return fmt.Errorf("the hub's curve of d%d is not what was reported: %d changes of %d", device, len(got), len(want))
			}
			time.Sleep(time.Second)
		}
		changes += len(want)
	}
	fmt.Fprintf(b.w, "The hub's curve of a Device of each node, %d changes in all, is what was reported, %s after the nodes had written the last of it.\n", changes, time.Since(last).Round(time.Second))
	return nil
}

// changes is what was reported of a device.
func (n *pastNode) changes(d int) (list []string) {
	for p := range manyProperties {
		for round, turn := 0, d%manyTurns; turn < len(n.turns); round, turn = round+1, turn+manyTurns {
			list = append(list, fmt.Sprintf("p%d %s %s", p, resource.FormatMillis(n.turns[turn]), manyValue(d, p, round)))
		}
	}
	return list
}

// changesOf is the same of what a hub sends, which says of a value at the end, and where a file begins, that it is still so.
func changesOf(text []byte) (list []string, err error) {
	lines, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil || len(lines) == 0 {
		return nil, errors.Join(err, errors.New("the history has no lines"))
	}
	property, value := "", ""
	for _, l := range lines[1:] {
		if l[1] != property || l[2] != value {
			list = append(list, fmt.Sprintf("%s %s %s", l[1], l[0], l[2]))
		}
		property, value = l[1], l[2]
	}
	return list, nil
}

func (m *pastNodes) stop() {
	m.end()
	m.flush()
	m.set.Stop()
	m.running.Wait()
	_ = os.RemoveAll(m.dir)
}

// sizeOfDir is how long the files of a directory are.
func sizeOfDir(dir string) (size float64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a file that is replaced
		}
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			size += float64(info.Size())
		}
		return err
	})
	return size, err
}
