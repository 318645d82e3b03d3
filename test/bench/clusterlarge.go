// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/edgebus/edgebus/test/simnodes"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

const largeNodes = 2000

// measureLargeCluster measures three hubs with as many Devices as the flag devices says, on 2,000 nodes that are connected.
func measureLargeCluster(b benchRun) error {
	defer func(nodes, of int) { objectNodes, objectsOfNode = nodes, of }(objectNodes, objectsOfNode)
	objectNodes, objectsOfNode = largeNodes, max(1, allObjects()/largeNodes)
	if err := simnodes.RaiseFileLimit(4 * largeNodes); err != nil {
		return err
	}
	limit := strconv.Itoa(4*largeNodes + 1000)
	c, err := startThreeHubs(b, makeObjects, "--limits-connections", limit, "--limits-per-user", limit, "--limits-connect-rate", limit)
	if err != nil {
		return err
	}
	defer c.stop()
	fmt.Fprintf(b.w, "%d Devices of %d properties on %d simulated nodes, which are connected, on three hubs and three NATS servers.\n\n"+
		"| memory (RssAnon), MB | without nodes | all connected | after %d failovers |\n|---|---|---|---|\n", allObjects(), objectProperties, largeNodes, b.failovers)
	empty, err := c.memories()
	if err != nil {
		return err
	}
	nodes, err := c.connectNodes()
	if err != nil {
		return err
	}
	defer nodes.Stop()
	begin := time.Now()
	if err := awaitAll(nodes); err != nil {
		return err
	}
	first := time.Since(begin)
	if err := c.rest(); err != nil {
		return err
	}
	full, err := c.memories()
	if err != nil {
		return err
	}
	took, err := c.largeFailovers(nodes)
	if err != nil {
		return err
	}
	after, err := c.memories()
	if err != nil {
		return err
	}
	for i := range empty {
		fmt.Fprintf(b.w, "| %s | %.0f | %.0f | %.0f |\n", empty[i].what, empty[i].mb, full[i].mb, after[i].mb)
	}
	fmt.Fprintf(b.w, "\nAll nodes reported all that they have for the first time in %.1f s. Then the hub that serves was killed, %d times; each node had one value changed meanwhile. From the kill until …\n\n"+
		"| | median | worst |\n|---|---|---|\n", first.Seconds(), len(took))
	for _, row := range []struct {
		what string
		of   func(largeFailover) time.Duration
	}{
		{"another hub owns the log, and opens what is in it", func(f largeFailover) time.Duration { return f.owned }},
		{"it is ready", func(f largeFailover) time.Duration { return f.ready }},
		{"a client's message is acknowledged", func(f largeFailover) time.Duration { return f.acknowledged }},
		{"all nodes know that the hub has all of them", func(f largeFailover) time.Duration { return f.inStep }},
		{"processor time of that hub, until it is ready", func(f largeFailover) time.Duration { return f.cpu }},
		{"… and until all nodes know", func(f largeFailover) time.Duration { return f.allCPU }},
	} {
		var list []time.Duration
		for _, f := range took {
			list = append(list, row.of(f))
		}
		worst := slices.Max(list)
		fmt.Fprintf(b.w, "| %s | %.1f s | %.1f s |\n", row.what, quantile(list, 0.5).Seconds(), worst.Seconds())
	}
	return nil
}

// rest waits until the hub that serves has nothing to write.
func (c *threeHubs) rest() error {
	serving, err := c.awaitServing(time.Minute)
	if err != nil {
		return err
	}
	return awaitStatuses(serving.http, 30*time.Minute)
}

// connectNodes connects nodes that report what makeObjects has stored of them, as nodes do that have begun anew.
func (c *threeHubs) connectNodes() (*simnodes.Set, error) {
	var names []string
	number := map[string]int{}
	for i := range objectNodes {
		names = append(names, fmt.Sprintf("plant-%04d", i))
		number[names[i]] = i
	}
	return simnodes.Start(simnodes.Options{Hub: c.hubs[0].mqtt, More: []string{c.hubs[1].mqtt, c.hubs[2].mqtt}, Keys: func(n *simnodes.Node) {
		for i := range objectsOfNode {
			device := objectName(number[n.Name]*objectsOfNode + i)
			n.Put(link.Entry{Key: topics.DeviceKey(device, topics.KindDeviceState, ""), TS: time.Now().UnixMilli(), Origin: "mapper-bench", Value: []byte("online")})
			for p := range objectProperties {
				n.Put(largeEntry(device, p, 0))
			}
		}
	}}, names...)
}

// awaitAll waits until all nodes agree with the hub, on a busy machine as well.
func awaitAll(nodes *simnodes.Set) error {
	return awaitWithin(15*time.Minute, "not all nodes are in step", func() bool { return nodes.Left() == 0 })
}

func largeEntry(device string, property, round int) link.Entry {
	return link.Entry{
		Key: topics.DeviceKey(device, topics.KindReported, "p"+strconv.Itoa(property)), TS: time.Now().UnixMilli(), Origin: "mapper-bench",
		Value: strconv.AppendInt(nil, int64(property+1+round), 10),
	}
}

// programMemory is what a program has.
type programMemory struct {
	what string
	mb   float64
}

// memories are those of all, the hub that serves first and the servers last.
func (c *threeHubs) memories() (list []programMemory, err error) {
	programs, err := c.programs()
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(programs[3:], func(a, b runningProgram) int { return len(b.name) - len(a.name) })
	for _, p := range programs {
		mb, err := anonymousMemory(p.pid)
		if err != nil {
			return nil, err
		}
		list = append(list, programMemory{p.name, mb})
	}
	return list, nil
}

// largeFailover is what a failover took until nodes were served, too.
type largeFailover struct {
	failoverTimes
	inStep, allCPU time.Duration
}

// largeFailovers kills the hub that serves, as often as the flag says.
func (c *threeHubs) largeFailovers(nodes *simnodes.Set) (all []largeFailover, err error) {
	for round := range c.b.failovers {
		killed, err := c.awaitServing(time.Minute)
		if err != nil {
			return nil, err
		}
		before := map[*memberHub]time.Duration{}
		for _, h := range c.hubs {
			if before[h], err = cpuOf(h.cmd.Process.Pid); err != nil {
				return nil, err
			}
		}
		begin := time.Now()
		killed.kill()
		for i, n := range nodes.Nodes {
			n.Put(largeEntry(objectName(i*objectsOfNode), 0, round+1))
		}
		var f largeFailover
		if f.failoverTimes, err = c.timeFailover(begin, true); err != nil {
			return nil, err
		}
		if err := awaitAll(nodes); err != nil {
			return nil, err
		}
		f.inStep = time.Since(begin)
		serving, err := c.awaitServing(time.Minute)
		if err != nil {
			return nil, err
		}
		if f.allCPU, err = cpuOf(serving.cmd.Process.Pid); err != nil {
			return nil, err
		}
		f.allCPU, f.cpu = f.allCPU-before[serving], f.cpu-before[serving]
		all = append(all, f)
		if err := c.start(killed); err != nil {
			return nil, err
		}
		if err := c.awaitWhole(); err != nil {
			return nil, err
		}
		if err := c.rest(); err != nil {
			return nil, err
		}
	}
	return all, nil
}
