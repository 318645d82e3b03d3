// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/test/simnodes"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

const (
	reportNodes      = 64 // each has one report in flight at most
	reportDevices    = writtenKeys / reportNodes / reportProperties
	reportProperties = 10
	reportPause      = 50 * time.Microsecond // between two looks at whether a report was acknowledged
)

// writtenByReports has nodes report one value after the other, each when the hub has acknowledged that of before.
func writtenByReports(b benchRun, d *countedDisk, inflight int) (n int, bytes float64, err error) {
	hub, web, err := hubWithAPI(b)
	if err != nil {
		return 0, 0, err
	}
	defer hub.stop()
	nodes, err := reportingNodes(hub.addr, web)
	if err != nil {
		return 0, 0, err
	}
	defer nodes.Stop()
	bytes, err = d.during(func() (err error) {
		n, err = reportFor(b.d, nodes.Nodes[:inflight])
		return err
	})
	return n, bytes, errors.Join(err, faultsOf(nodes))
}

// reportingNodes makes Devices, and nodes that have reported all that these have.
func reportingNodes(addr, web string) (*simnodes.Set, error) {
	if err := postObject(web, "devicemodels", benchModel(reportProperties)); err != nil {
		return nil, err
	}
	var posting errgroup.Group
	posting.SetLimit(16)
	var names []string
	for i := range reportNodes {
		names = append(names, fmt.Sprintf("report-%02d", i))
		for k := range reportDevices {
			device := benchDevice(0)
			device.Metadata.Name, device.Spec.NodeName = reportDevice(names[i], k), names[i]
			posting.Go(func() error { return postObject(web, "devices", device) })
		}
	}
	if err := posting.Wait(); err != nil {
		return nil, err
	}
	nodes, err := simnodes.Start(simnodes.Options{Hub: addr, Keys: func(n *simnodes.Node) {
		for k := range reportDevices * reportProperties {
			n.Put(reportEntry(n.Name, k, 0))
		}
		for k := range reportDevices {
			n.Put(link.Entry{Key: topics.DeviceKey(reportDevice(n.Name, k), topics.KindDeviceState, ""), TS: time.Now().UnixMilli(), Origin: "mapper-bench", Value: []byte("online")})
		}
	}}, names...)
	if err != nil {
		return nil, err
	}
	if _, err = awaitInStep(nodes); err == nil {
		err = awaitStatuses(web, time.Minute)
	}
	if err != nil {
		nodes.Stop()
		return nil, err
	}
	return nodes, nil
}

// awaitStatuses waits until a hub has stored what it makes of Devices that were created, and of what their nodes reported.
func awaitStatuses(web string, most time.Duration) error {
	for begin := time.Now(); time.Since(begin) < most; time.Sleep(100 * time.Millisecond) {
		waiting, err := readGauge(web, "edgebus_hub_status_waiting")
		if err != nil {
			return err
		}
		if waiting == 0 {
			time.Sleep(settleTime)
			return nil
		}
	}
	return fmt.Errorf("the hub's statuses are not written after %s", most)
}

func faultsOf(nodes *simnodes.Set) error {
	if n := nodes.Faults.Load(); n > 0 {
		return fmt.Errorf("%d messages were malformed, refused or repeated", n)
	}
	return nil
}

func reportDevice(node string, k int) string { return node + "-d" + strconv.Itoa(k) }

func reportEntry(node string, k, round int) link.Entry {
	device := reportDevice(node, k/reportProperties)
	return link.Entry{
		Key: topics.DeviceKey(device, topics.KindReported, "p"+strconv.Itoa(k%reportProperties)), TS: time.Now().UnixMilli(), Origin: "mapper-bench",
		Value: strconv.AppendInt(nil, int64(k+round), 10),
	}
}

// reportFor has each of the nodes report for a while, one value at a time.
func reportFor(d time.Duration, nodes []*simnodes.Node) (int, error) {
	var reports, late atomic.Int64
	var all sync.WaitGroup
	begin := time.Now()
	for _, n := range nodes {
		all.Go(func() {
			for round := 1; time.Since(begin) < d; round++ {
				n.Put(reportEntry(n.Name, round%(reportDevices*reportProperties), round))
				sent := time.Now()
				for !n.InStep() {
					time.Sleep(reportPause)
					if time.Since(sent) > pumpTimeout {
						late.Add(1)
						return
					}
				}
				reports.Add(1)
			}
		})
	}
	all.Wait()
	if late.Load() > 0 {
		return 0, fmt.Errorf("%d reports were not acknowledged within %s", late.Load(), pumpTimeout)
	}
	return int(reports.Load()), nil
}
