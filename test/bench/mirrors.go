// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/test/simnodes"
)

const (
	mirrorNodes    = 100
	mirrorLists    = 10
	mirrorWatchers = 50
	mirrorChanges  = 500 // a second
	mirrorTime     = 20 * time.Second
)

// What no mirror answers: a list that has another page, and a watch with a parameter of lists that an index answers.
const unmirroredWatch = "summary"

func unmirroredList() string { return fmt.Sprintf("limit=%d", allObjects()-1) }

// measureMirrors measures what lists and watches cost the hub that serves, and one that stands by.
func measureMirrors(b benchRun) error {
	defer func(nodes, of int) { objectNodes, objectsOfNode = nodes, of }(objectNodes, objectsOfNode)
	objectNodes, objectsOfNode = mirrorNodes, max(1, allObjects()/mirrorNodes)
	c, err := startThreeHubs(b, makeObjects)
	if err != nil {
		return err
	}
	defer c.stop()
	nodes, err := c.connectNodes()
	if err != nil {
		return err
	}
	defer nodes.Stop()
	if err := errors.Join(awaitAll(nodes), c.rest()); err != nil {
		return err
	}
	owner, err := c.awaitServing(time.Minute)
	if err != nil {
		return err
	}
	standby := c.hubs[0]
	if standby == owner {
		standby = c.hubs[1]
	}
	fmt.Fprintf(b.w, "%d Devices of %d properties; %d changes a second, by their nodes. Processor time: a list's, and of a second with %d watchers of all Devices.\n\n"+
		"| asked | hub that serves, a list | hub that stands by, a list | hub that serves, watchers | hub that stands by, watchers | events to each watcher a second |\n|---|---|---|---|---|---|\n",
		allObjects(), objectProperties, mirrorChanges, mirrorWatchers)
	run := mirrorRun{b, owner, standby, nodes}
	if err := run.watch("nobody", owner, "", "", 0); err != nil {
		return err
	}
	before, err := anonymousMemory(standby.cmd.Process.Pid)
	if err != nil {
		return err
	}
	for _, m := range []struct {
		what           string
		at             *memberHub
		lists, watches string
	}{
		{"the hub that serves", owner, unmirroredList(), unmirroredWatch},
		{"one that stands by, and forwards", standby, unmirroredList(), unmirroredWatch},
		{"one that stands by, with a mirror", standby, "", ""},
	} {
		if m.lists == "" { // it begins
			if err := readAll("http://" + m.at.http + objectsPath); err != nil {
				return err
			}
			if err := awaitWithin(time.Minute, "there is no mirror", func() bool { return isMirrored(m.at) }); err != nil {
				return err
			}
			after, err := anonymousMemory(standby.cmd.Process.Pid)
			if err != nil {
				return err
			}
			defer fmt.Fprintf(b.w, "\nMemory (RssAnon) of the hub that stands by: %.0f MB before, %.0f MB with the mirror.\n", before, after)
		}
		if err := run.watch(m.what, m.at, m.lists, m.watches, mirrorWatchers); err != nil {
			return err
		}
	}
	return nil
}

func isMirrored(h *memberHub) bool {
	r, err := http.Get("http://" + h.http + "/metrics")
	if err != nil {
		return false
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return strings.Contains(string(text), fmt.Sprintf("edgebus_cluster_mirrored_objects %d", allObjects()))
}

func readAll(url string) error {
	r, err := http.Get(url)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return errors.New(r.Status)
	}
	_, err = io.Copy(io.Discard, r.Body)
	return err
}

type mirrorRun struct {
	b              benchRun
	owner, standby *memberHub
	nodes          *simnodes.Set
}

// spent is what both hubs need for f.
func (m mirrorRun) spent(f func() error) (owner, standby time.Duration, err error) {
	var all [4]time.Duration
	for i := range all {
		if i == 2 {
			if err := f(); err != nil {
				return 0, 0, err
			}
		}
		h := m.owner
		if i%2 == 1 {
			h = m.standby
		}
		if all[i], err = cpuOf(h.cmd.Process.Pid); err != nil {
			return 0, 0, err
		}
	}
	return all[2] - all[0], all[3] - all[1], nil
}

func (m mirrorRun) watch(what string, at *memberHub, listed, watched string, watchers int) error {
	lists := "– | –"
	if watchers > 0 {
		one, other, err := m.spent(func() error {
			for range mirrorLists {
				if err := readAll("http://" + at.http + objectsPath + "?" + listed); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		lists = fmt.Sprintf("%.0f ms | %.0f ms", one.Seconds()*1000/mirrorLists, other.Seconds()*1000/mirrorLists)
	}
	var events atomic.Int64
	for range watchers {
		conn, err := net.Dial("tcp", at.http)
		if err != nil {
			return err
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET %s?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&%s HTTP/1.1\r\nHost: localhost\r\n\r\n", objectsPath, watched)
		in := bufio.NewReaderSize(conn, 64<<10)
		if status, err := in.ReadString('\n'); err != nil || !strings.Contains(status, "200") {
			return errors.Join(err, errors.New(status))
		}
		go readEvents(in, func([]byte) { events.Add(1) })
	}
	one, other, err := m.spent(func() error {
		ctx, stop := context.WithTimeout(context.Background(), mirrorTime)
		defer stop()
		pace := time.NewTicker(time.Second / mirrorChanges)
		defer pace.Stop()
		for n := 0; ; n++ {
			select {
			case <-pace.C:
				i := n % mirrorNodes
				m.nodes.Nodes[i].Put(largeEntry(objectName(i*objectsOfNode+n/mirrorNodes%objectsOfNode), 0, int(time.Now().UnixNano()%1000)))
			case <-ctx.Done():
				return nil
			}
		}
	})
	if err != nil {
		return err
	}
	cores := func(d time.Duration) float64 { return 100 * d.Seconds() / mirrorTime.Seconds() }
	fmt.Fprintf(m.b.w, "| %s | %s | %.0f %% of a core | %.0f %% of a core | %.0f |\n", what, lists, cores(one), cores(other), float64(events.Load())/float64(max(watchers, 1))/mirrorTime.Seconds())
	return nil
}
