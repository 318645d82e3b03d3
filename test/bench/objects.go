// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	objectProperties              = 5
	objectPage, objectGets        = 500, 5000
	objectWatchers, objectWriters = 5000, 64
)

var objectNodes, objectsOfNode = 1000, 100 // flags have other numbers

func allObjects() int { return objectNodes * objectsOfNode }

// measureObjects measures a hub's API with a hundred thousand Devices, each figure beside what the store alone takes.
func measureObjects(b benchRun) error {
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	empty, err := apiHub(b, filepath.Join(dir, "empty"))
	if err != nil {
		return fmt.Errorf("%w: run make build first", err)
	}
	empty.stop()
	full := filepath.Join(dir, "full")
	if err := makeObjects(full); err != nil {
		return err
	}
	// The first hub writes what it makes of what the nodes reported; the second one is measured.
	hub, err := apiHub(b, full)
	if err != nil {
		return err
	}
	if err := hub.settle(); err != nil {
		return err
	}
	hub.halt()
	raw, err := rawStore(b, full)
	if err != nil {
		return err
	}
	syscall.Sync() // what was copied for that is not the hub's to wait for
	if hub, err = apiHub(b, full); err != nil {
		return err
	}
	defer hub.stop()
	fmt.Fprintf(b.w, "%d Devices of %d properties on %d nodes, two values of each wanted and all of them reported, one DeviceModel.\n"+
		"The hub runs as it is shipped, but for limits.requests and limits.watches, which are for fewer watchers.\n"+
		"The store alone is the same file, opened by the benchmark itself, without API and twins. CPU is user and system "+
		"time of the hub for one object (start, list), request (get) or patch, all that follows from it included.\n\n"+
		"| | aim | hub | CPU | the store alone | |\n|---|---|---|---|---|---|\n", allObjects(), objectProperties, objectNodes)
	put := func(r objectRow) { fmt.Fprint(b.w, r) }
	for _, measure := range []func(*apiProcess, rawFigures, func(objectRow)) error{
		measureObjectStart, measureObjectMemory(empty.rest, "at rest"), listObjects, measureObjectMemory(empty.rest, "after the lists"), getObjects, patchObjects, watchObjects,
	} {
		if err := measure(hub, raw, put); err != nil {
			return err
		}
	}
	fmt.Fprint(b.w, objectsWhy)
	return nil
}

const objectsWhy = `
The hub's work beyond the store: at its start it decodes each Device and computes its node's keys before it accepts connections,
because a node that connects earlier would take a part of its keys for all of them. Only the decoding runs on all processors, so
this aim is the first to be missed on slow or busy ones. The first list derives all statuses, which stay in memory. For another one the
hub copies bytes (see CPU); most of the time is the client's, which reads them. A patch is written once, the Device with its
status, and its value is sent to the node. With this many writers the limit is the processors, not
the disk.
`

// objectRow is a line of the report.
type objectRow struct {
	what, aim  string
	met        bool // the aim, if there is one
	hub, alone string
	ratio      float64
	cpu        time.Duration
}

func (r objectRow) String() string {
	aim, cpu := r.aim, ""
	if aim != "" {
		aim += ": " + aimText(r.met)
	}
	if r.cpu > 0 {
		cpu = r.cpu.Round(100 * time.Nanosecond).String()
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | × %.1f |\n", r.what, aim, r.hub, cpu, r.alone, r.ratio)
}

// measureObjectStart is what it took until the hub let people in, and until it had looked at all statuses.
func measureObjectStart(h *apiProcess, raw rawFigures, put func(objectRow)) error {
	const most = 5 * time.Second
	put(objectRow{
		"start until it answers", "below 5 s", h.start < most,
		formatDuration(h.start), formatDuration(raw.open), h.start.Seconds() / raw.open.Seconds(), h.startCPU / time.Duration(allObjects()),
	})
	if err := h.settle(); err != nil {
		return err
	}
	took := time.Since(h.begun)
	cpu, err := cpuOf(h.pid)
	const aim = 25 * time.Microsecond
	each := cpu / time.Duration(allObjects())
	put(objectRow{"… and until it is at rest", "below 25µs of CPU", each < aim, formatDuration(took), formatDuration(raw.open), took.Seconds() / raw.open.Seconds(), each})
	return err
}

// measureObjectMemory is what the hub has in memory beyond what an empty one has, in MB.
func measureObjectMemory(empty float64, when string) func(*apiProcess, rawFigures, func(objectRow)) error {
	return func(h *apiProcess, raw rawFigures, put func(objectRow)) error {
		rest, err := anonymousMemory(h.pid)
		each := (rest - empty) * 1e6 / float64(allObjects())
		put(objectRow{
			"memory (RssAnon, less an empty hub's) " + when + ", bytes a Device", "below 4000", each < 4000,
			fmt.Sprintf("%.0f", each), fmt.Sprintf("%.0f", raw.memory), each / raw.memory, 0,
		})
		return err
	}
}

// apiProcess is a hub and its API.
type apiProcess struct {
	*benchProcess
	base            string
	client          *http.Client
	begun           time.Time
	start, startCPU time.Duration
	rest            float64 // MB of anonymous memory
}

func apiHub(b benchRun, dir string) (*apiProcess, error) {
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	web, err := freeAddress()
	if err != nil {
		return nil, err
	}
	h := &apiProcess{base: "http://" + web, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: objectWriters}}}
	h.begun = time.Now()
	h.benchProcess, err = startBroker(dir, addr, "", filepath.Join(b.bin, "cloudhub"), "--data-dir", dir, "--mqtt-listen", addr,
		"--mqtt-websocket-listen", "", "--http-listen", web, "--limits-requests", fmt.Sprint(objectWatchers+1000), "--limits-watches", fmt.Sprint(objectWatchers))
	if err != nil {
		return nil, err
	}
	for ; ; time.Sleep(5 * time.Millisecond) {
		if resp, err := h.client.Get(h.base + "/readyz"); err == nil {
			_ = resp.Body.Close()
			break
		}
		if time.Since(h.begun) > 20*time.Minute {
			h.stop()
			return nil, errors.New("the hub's API doesn't answer")
		}
	}
	h.start = time.Since(h.begun)
	if h.startCPU, err = cpuOf(h.pid); err != nil {
		return nil, err
	}
	time.Sleep(settleTime) // what it rests at is what is asked
	h.rest, err = anonymousMemory(h.pid)
	return h, err
}

// halt stops the hub and leaves its files.
func (h *apiProcess) halt() {
	p, _ := os.FindProcess(h.pid)
	_ = p.Signal(os.Interrupt)
	for ; isRunning(h.pid); time.Sleep(20 * time.Millisecond) {
	}
}

func isRunning(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil
}

// settle waits until the hub has no status to write.
func (h *apiProcess) settle() error {
	for begin := time.Now(); time.Since(begin) < 30*time.Minute; time.Sleep(200 * time.Millisecond) {
		text, err := h.get("/metrics", "")
		if err != nil {
			return err
		}
		if bytes.Contains(text, []byte("\nedgebus_hub_status_waiting 0\n")) {
			time.Sleep(settleTime)
			return nil
		}
	}
	return errors.New("the hub's statuses are not written")
}

func (h *apiProcess) get(path, accept string) ([]byte, error) {
	r, err := http.NewRequest(http.MethodGet, h.base+path, nil)
	if err != nil {
		return nil, err
	}
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	resp, err := h.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", path, resp.Status, text)
	}
	return text, err
}
