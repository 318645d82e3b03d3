// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/test/simnodes"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

const (
	viewNodes      = 100
	viewDevices    = 100 // of each node
	viewProperties = 4
	viewRate       = 1000 // values a second that change
)

// measureViews measures what a view costs a hub, by a changed value.
func measureViews(b benchRun) error {
	fmt.Fprintf(b.w, "A hub with %d Devices of %d properties on %d nodes, of whose values %d change each second. The processor's time is the hub's, with all that a change\n"+
		"takes there: the link, the log, the tree, the view. \"Shown after\" is from the start of the view until all is at its peer.\n"+
		"Then neighbours do as in the section of that name: a message of their own, QoS 1, and a desired value, until it is acknowledged.\n\n"+
		"| view | shown after | a changed value | memory | own topic, p50 | p99 | tree, p50 | p99 |\n|---|---|---|---|---|---|---|---|\n", viewNodes*viewDevices, viewProperties, viewNodes, viewRate)
	other, err := startProgram(filepath.Join(b.bin, "cloudhub"), "")
	if err != nil {
		return err
	}
	defer other.stop()
	var off time.Duration
	const messages, devices = viewNodes * viewDevices * viewProperties, viewNodes * viewDevices
	for _, c := range []struct {
		what  string
		gauge string // says how much is shown
		all   float64
		args  []string
	}{
		{"off", "", 0, nil},
		{"Home Assistant, at the hub's own broker", `edgebus_views_retained_messages{view="homeassistant"}`, messages, []string{"--views-home-assistant-enabled"}},
		{"Home Assistant, at another broker", `edgebus_views_retained_messages{view="homeassistant"}`, messages, []string{"--views-home-assistant-enabled", "--views-home-assistant-server", "mqtt://" + other.addr}},
		{"unified namespace, at another broker", `edgebus_views_retained_messages{view="uns"}`, messages, []string{"--views-uns-enabled", "--views-uns-server", "mqtt://" + other.addr}},
		{"Sparkplug, 100 edge nodes, at another broker", `edgebus_views_devices{view="sparkplug"}`, devices, []string{"--views-sparkplug-enabled", "--views-sparkplug-server", "mqtt://" + other.addr}},
	} {
		if err := measureView(b, c.what, c.gauge, c.all, &off, c.args...); err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
	}
	return nil
}

func measureView(b benchRun, what, gauge string, all float64, off *time.Duration, args ...string) error {
	n, err := openNeighbourhood(filepath.Join(b.bin, "cloudhub"), "", nil, args...)
	if err != nil {
		return err
	}
	defer n.close()
	nodes, err := fillViewHub(n)
	if err != nil {
		return err
	}
	defer nodes.Stop()
	shown := "–"
	if args != nil {
		begin := time.Now()
		for {
			found, err := readGauge(n.target.HTTP, gauge)
			if err == nil && found >= all {
				break
			}
			if time.Since(begin) > 5*time.Minute {
				return errors.Join(fmt.Errorf("only %.0f are shown", found), err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		shown = formatDuration(time.Since(begin)) + " after the last Device"
	}
	time.Sleep(pollSettle) // what was made is done with
	before, err := cpuOf(n.pid)
	if err != nil {
		return err
	}
	changed := changeViewed(nodes, 5*b.d, 0)
	time.Sleep(pollSettle)
	after, err := cpuOf(n.pid)
	if err != nil {
		return err
	}
	if err := n.inhabit(topics.TopicOf(nodes.Nodes[0].Name, topics.DeviceKey(viewName(0, 0), topics.KindDesired, "p"))); err != nil {
		return err
	}
	var changing sync.WaitGroup
	changing.Go(func() { changeViewed(nodes, 5*b.d, changed) })
	seen, err := n.measure(5 * b.d)
	changing.Wait()
	if err != nil {
		return err
	}
	rss, err := residentMemory(n.pid)
	each := (after - before) / time.Duration(changed*viewProperties)
	if *off == 0 {
		*off = each
	}
	fmt.Fprintf(b.w, "| %s | %s | %d µs (%+d µs) | %.0f MB |", what, shown, each.Microseconds(), (each - *off).Microseconds(), rss)
	for _, w := range seen.waits {
		fmt.Fprintf(b.w, " %.2f ms | %.2f ms |", 1000*w.p50, 1000*w.p99)
	}
	fmt.Fprintln(b.w)
	return err
}

// changeViewed changes values for a while, and returns how many Devices' it was.
func changeViewed(nodes *simnodes.Set, d time.Duration, changed int) int {
	tick := time.NewTicker(time.Second / (viewRate / viewProperties))
	defer tick.Stop()
	for begin := time.Now(); time.Since(begin) < d; changed++ {
		<-tick.C
		nodes.Nodes[changed%viewNodes].Put(viewEntries(changed%viewNodes, changed/viewNodes%viewDevices, changed)[1:]...)
	}
	return changed
}

func viewName(node, device int) string { return "d" + strconv.Itoa(node*viewDevices+device) }

// fillViewHub makes the Devices, and nodes that report them.
func fillViewHub(n *neighbourProcess) (*simnodes.Set, error) {
	if err := awaitReady("http://" + n.target.HTTP + "/readyz"); err != nil {
		return nil, err
	}
	if err := postObject(n.target.HTTP, "devicemodels", benchModel(viewProperties)); err != nil {
		return nil, err
	}
	var posting errgroup.Group
	posting.SetLimit(16)
	names := make([]string, viewNodes)
	of := make(map[string]int, viewNodes)
	for i := range names {
		names[i] = fmt.Sprintf("view-%03d", i)
		of[names[i]] = i
		for d := range viewDevices {
			device := benchDevice(0)
			device.Metadata.Name, device.Spec.NodeName = viewName(i, d), names[i]
			posting.Go(func() error { return postObject(n.target.HTTP, "devices", device) })
		}
	}
	if err := posting.Wait(); err != nil {
		return nil, err
	}
	return simnodes.Start(simnodes.Options{Hub: cmp.Or(n.addr, n.target.MQTT), Agent: simnodes.ApplyAtOnce, Keys: func(s *simnodes.Node) {
		for d := range viewDevices {
			s.Put(viewEntries(of[s.Name], d, 0)...)
		}
	}}, names...)
}

// viewEntries are what a Device reports: its state, and its values.
func viewEntries(node, device, round int) []link.Entry {
	now, name := time.Now().UnixMilli(), viewName(node, device)
	list := []link.Entry{{Key: topics.DeviceKey(name, topics.KindDeviceState, ""), TS: now, Origin: "mapper-bench", Value: []byte("online")}}
	for p := range viewProperties {
		list = append(list, link.Entry{Key: topics.DeviceKey(name, topics.KindReported, "p"+strconv.Itoa(p)), TS: now, Origin: "mapper-bench", Value: strconv.AppendInt(nil, int64(round+p), 10)})
	}
	return list
}
