// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/history"
	"github.com/edgebus/edgebus/test/faults"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	pastAway    = 30 * time.Second // how long the link is away, and then there
	pastDevices = polledDevices - 1
	pastCopied  = 7 * time.Minute // until the hub has the last part of the node's curve
)

// measurePast has a node report for a long time, with its link away half of it, and compares the hub's past with the node's.
func measurePast(b benchRun) error {
	fmt.Fprintf(b.w, "mapper-modbus polls %d devices of %d registers each second, all new each time, for %s. The link is away for %s, and there for as long, in turn.\n"+
		"All programs are those that are shipped, with their defaults. *Written* is what reaches the hub's disk, an ext4 of its own, or, of another program and without\n"+
		"root, what the kernel counts for the process, which may be many times as much: a write into a cached folio counts as all of it. *A day* is the same of 24 hours.\n"+
		"Aims for the node: at most 64 MB, 10 %% of a core and 1.5 GB a day, and the hub's curve equal to the node's.\n\n",
		pastDevices, polledTags, b.past, pastAway)
	var clock pollClock
	peers, err := serveModbusPolls(&clock)
	if err != nil {
		return err
	}
	defer peers.stop()
	hub, web, disk, err := onDiskOfItsOwn(b)
	if err != nil {
		return err
	}
	defer disk.unmount()
	defer hub.stop()
	for d := range polledDevices {
		bundle := polledKinds[0].bundle(peers, d)
		if d == 0 {
			err = postObject(web, "devicemodels", bundle.Model)
		}
		if err = errors.Join(err, postObject(web, "devices", bundle.Device)); err != nil {
			return err
		}
	}
	link, err := faults.New(faults.Options{Target: hub.addr})
	if err != nil {
		return err
	}
	defer link.Close()
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	core, local, err := linkedCore(b, dir, link.Addr())
	if err != nil {
		return err
	}
	defer core.stop()
	mapper := exec.Command(filepath.Join(b.bin, "mapper-modbus"), "--server", "mqtt://"+core.addr, "--log-level", "error")
	if err := mapper.Start(); err != nil {
		return err
	}
	stopMapper := func() error {
		return errors.Join(mapper.Process.Signal(syscall.SIGTERM), mapper.Wait())
	}
	defer stopMapper() //nolint:errcheck // it may have been stopped before
	time.Sleep(pollSettle)
	programs := []*usage{{name: "edgecore", pid: core.pid}, {name: "cloudhub", pid: hub.pid, disk: disk}, {name: "mapper-modbus", pid: mapper.Process.Pid}}
	for _, u := range programs {
		if err := u.begin(); err != nil {
			return err
		}
	}
	var commits commitFigures
	if err := commits.begin(web); err != nil {
		return err
	}
	clock.take()
	begin := time.Now()
	for away := false; time.Since(begin) < b.past; away = !away {
		time.Sleep(min(pastAway, b.past-time.Since(begin)))
		if away {
			link.Heal()
		} else {
			link.Cut(faults.Reset)
		}
	}
	link.Heal()
	fmt.Fprintf(b.w, "| program | of a core | MB, most | MB written | GB a day |\n|---|---|---|---|---|\n")
	for _, u := range programs {
		if err := u.end(b.w); err != nil {
			return err
		}
	}
	if err := commits.end(b.w, web); err != nil {
		return err
	}
	end := time.Now()
	fmt.Fprintf(b.w, "\n%d polls of a device.\n", len(clock.take()))
	if err := stopMapper(); err != nil {
		return err
	}
	return comparePasts(b.w, local, web, begin, end)
}

// comparePasts compares what node and hub say of the past, once the hub has the last of it.
func comparePasts(w io.Writer, node, hub string, from, to time.Time) error {
	changes, equal := 0, 0
	began := time.Now()
	for d := 0; d < polledDevices; d += 9 {
		if d == deadPolled {
			continue
		}
		want, err := pastOf(node, d, from, to)
		if err != nil {
			return err
		}
		got := []byte{}
		for !bytes.Equal(want, got) {
			if got, err = pastOf(hub, d, from, to); err != nil {
				return err
			}
			if time.Since(began) > pastCopied {
				return fmt.Errorf("the hub's curve of d%d is not the node's: %d lines of %d", d, bytes.Count(got, []byte("\n")), bytes.Count(want, []byte("\n")))
			}
			time.Sleep(time.Second)
		}
		equal++
		changes += bytes.Count(want, []byte("\n")) - 1
	}
	fmt.Fprintf(w, "The hub's curve of each of %d devices that were compared, %d changes, is the node's, %s after the last one.\n",
		equal, changes, time.Since(to).Round(time.Second))
	return nil
}

func pastOf(web string, d int, from, to time.Time) ([]byte, error) {
	url := fmt.Sprintf("http://%s/apis/edgebus.io/v1alpha1/namespaces/default/devices/d%d/history?format=csv&from=%d&to=%d", web, d, from.UnixMilli(), to.UnixMilli())
	resp, err := http.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return body, err
}

// usage is what a process takes from begin to end.
type usage struct {
	name    string
	pid     int
	began   time.Time
	cpu     time.Duration
	written float64
	disk    *countedDisk // that has nothing but its files; nil: what it has written is what the kernel counts
}

func (u *usage) bytes() (float64, error) {
	if u.disk != nil {
		return u.disk.written()
	}
	return writtenBytes(u.pid)
}

func (u *usage) begin() (err error) {
	if u.written, err = u.bytes(); err != nil {
		return err
	}
	u.began = time.Now()
	u.cpu, err = cpuOf(u.pid)
	return err
}

func (u *usage) end(w io.Writer) error {
	took := time.Since(u.began)
	cpu, err := cpuOf(u.pid)
	if err != nil {
		return err
	}
	written, err := u.bytes()
	if err != nil {
		return err
	}
	most, err := procField(u.pid, "status", "VmHWM:")
	written -= u.written
	fmt.Fprintf(w, "| %s | %.1f %% | %.1f | %.1f | %.2f |\n", u.name, 100*float64(cpu-u.cpu)/float64(took), most*1024/1e6, written/1e6, written/1e9*24*float64(time.Hour)/float64(took))
	return err
}

// commitFigures are of a hub's log: why it writes what it writes.
type commitFigures struct{ commits, writes, compacted float64 }

func (c *commitFigures) begin(web string) error {
	now, err := commitFiguresOf(web)
	*c = now
	return err
}

func (c *commitFigures) end(w io.Writer, web string) error {
	now, err := commitFiguresOf(web)
	fmt.Fprintf(w, "\nThe hub's log took %.0f groups of %.0f commits, and its compaction copied %.1f MB.\n",
		now.commits-c.commits, now.writes-c.writes, (now.compacted-c.compacted)/1e6)
	return err
}

func commitFiguresOf(web string) (c commitFigures, err error) {
	for name, value := range map[string]*float64{
		`edgebus_commit_seconds_count{store="sessions"}`: &c.commits, `edgebus_commit_writes_sum{store="sessions"}`: &c.writes,
		`edgebus_journal_compacted_bytes_total{store="sessions"}`: &c.compacted,
	} {
		var failed error
		*value, failed = readGauge(web, name)
		err = errors.Join(err, failed)
	}
	return c, err
}

// writtenBytes is what a process has had written to disks.
func writtenBytes(pid int) (float64, error) { return procField(pid, "io", "write_bytes:") }

func procField(pid int, file, name string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strconv.ParseFloat(strings.Fields(rest)[0], 64)
		}
	}
	return 0, fmt.Errorf("process %d: no %s", pid, name)
}

const (
	askedDays   = 30
	askedAtOnce = 8
)

// measurePastRequests measures what well-behaved clients of a node notice of requests for a month of a hundred devices.
func measurePastRequests(b benchRun) error {
	broker, unpin, err := pinCPU()
	if err != nil {
		return err
	}
	defer unpin()
	n, err := openNeighbourhood(filepath.Join(b.bin, "edgecore"), broker, seedPast, "--node-name", "n1", "--link-server", "")
	if err != nil {
		return err
	}
	defer n.close()
	if err := n.inhabit("v1/nodes/n1/devices/d0/reported/p"); err != nil {
		return err
	}
	unleash := func() (func(), error) {
		ctx, cancel := context.WithCancel(context.Background())
		var all sync.WaitGroup
		var failed atomic.Pointer[error]
		for i := range askedAtOnce {
			all.Go(func() {
				for d := i; ctx.Err() == nil; d = (d + askedAtOnce) % polledDevices {
					url := fmt.Sprintf("http://%s/apis/edgebus.io/v1alpha1/namespaces/default/devices/d%d/history?property=p2&from=%dh", n.target.HTTP, d, 24*askedDays)
					if err := askPast(ctx, url); err != nil && ctx.Err() == nil {
						failed.Store(&err)
						return
					}
				}
			})
		}
		return func() {
			cancel()
			all.Wait()
			if err := failed.Load(); err != nil {
				fmt.Fprintf(os.Stderr, "bench: a request for history: %v\n", *err)
			}
		}, nil
	}
	fmt.Fprintf(b.w, "As in the section above, on a node that has %d days of %d devices, a value every five minutes each.\n", askedDays, polledDevices)
	n.header(b, "edgecore")
	return n.bear(b, fmt.Sprintf("asks for %d days of one device after the other, 500 points, %d at a time", askedDays, askedAtOnce), unleash)
}

func askPast(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || len(body) < 10_000) {
		err = fmt.Errorf("%s: %.200s", resp.Status, body)
	}
	return err
}

// seedPast writes devices and their past into a core's data directory, as if a month had gone by.
func seedPast(dir string) error {
	docs := map[string][]byte{}
	for d := range polledDevices {
		device := benchDevice(d)
		device.Metadata.UID = "u" + strconv.Itoa(d)
		doc, err := json.Marshal(resource.NewBundle(device, benchModel(3)))
		if err != nil {
			return err
		}
		docs[fmt.Sprintf("devices/d%d", d)] = doc
	}
	if err := seedDocuments(dir, docs); err != nil {
		return err
	}
	end := time.Now()
	now := end.AddDate(0, 0, -askedDays)
	s, err := history.Open(history.Options{Dir: filepath.Join(dir, history.DirName, "shared"), Bytes: 512 << 20, Log: zerolog.Nop(), Now: func() time.Time { return now }})
	if err != nil {
		return err
	}
	m := benchModel(3)
	p, _ := m.Property("p2")
	for n := 0; now.Before(end); n++ {
		for d := range polledDevices {
			value := strconv.FormatFloat(float64(200+(n*(d+7))%31)/10, 'f', -1, 64)
			s.Record(history.SeriesKey{Device: "u" + strconv.Itoa(d), Property: p.Name}, p, value, now.UnixMilli(), 0)
		}
		if now = now.Add(5 * time.Minute); n%6 == 5 {
			s.Flush()
		}
	}
	s.Flush()
	return nil
}
