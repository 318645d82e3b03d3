// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/test/faults"
)

const (
	streamTopic  = "v1/nodes/n1/devices/d0/telemetry/temperature"
	streamWindow = 128 // of a core's forwarder
	streamTime   = 2 * time.Minute
)

// measureStreams measures telemetry on its way: with the link up, into the queue with the link down, and out of it.
func measureStreams(b benchRun) error {
	fmt.Fprintf(b.w, "Telemetry of %d bytes, published on a node with QoS 1 and %d in flight; stored there, forwarded, and given to a subscriber of the\n"+
		"hub, QoS 1. All on this machine, over a proxy that cuts the link. *To the hub* publishes the same to the hub itself, with\n"+
		"the forwarder's %d in flight: what is left of it is the node's part. *append+fsync* appends as many messages to a file as are\n"+
		"in flight, with one fsync.\n\n| | messages/s | beside | alternative ÷ it |\n|---|---|---|---|\n", payloadSize, offlineWindow, streamWindow)
	var up, direct, down, raw, drain, waiting, cost []float64
	for range b.rounds {
		s, err := streamRun(b)
		if err != nil {
			return err
		}
		r, err := appendMessages(b.d)
		if err != nil {
			return err
		}
		up, direct, down, raw = append(up, s.up), append(direct, s.direct), append(down, s.down), append(raw, r)
		drain, waiting, cost = append(drain, s.drain), append(waiting, s.waiting), append(cost, s.memory/s.waiting)
	}
	for _, r := range []struct {
		what   string
		rate   float64
		beside string
		other  float64
	}{
		{"link up, from publish to arrival", median(up), "to the hub", median(direct)},
		{"link down, into the queue", median(down), "append+fsync", median(raw)},
		{"link up again, out of the queue", median(drain), "to the hub", median(direct)},
	} {
		fmt.Fprintf(b.w, "| %s | %.0f | %s: %.0f | %.2f |\n", r.what, r.rate, r.beside, r.other, r.other/r.rate)
	}
	fmt.Fprintf(b.w, "\nWith %.1f MB waiting (`edgebus_streams_waiting_bytes`) the core has %.1f MB of memory more for each of them (RssAnon, before it\n"+
		"is collected again); what waits is on disk.\n", median(waiting), median(cost))
	return nil
}

// streamFigures are messages a second, and MB.
type streamFigures struct{ up, direct, down, drain, waiting, memory float64 }

func streamRun(b benchRun) (f streamFigures, err error) {
	hub, web, err := hubWithAPI(b)
	if err != nil {
		return f, err
	}
	defer hub.stop()
	if err := errors.Join(postObject(web, "devicemodels", benchModel(1)), postObject(web, "devices", benchDevice(0))); err != nil {
		return f, err
	}
	proxy, err := faults.New(faults.Options{Target: hub.addr})
	if err != nil {
		return f, err
	}
	defer proxy.Close()
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(dir)
	core, web, err := linkedCore(b, dir, proxy.Addr(), "--limits-streams-bytes", "1GiB")
	if err != nil {
		return f, err
	}
	defer core.stop()
	if err := awaitLink(web, true); err != nil {
		return f, err
	}
	arrived, end, err := listenStream(hub.addr)
	if err != nil {
		return f, err
	}
	defer end()
	if f.direct, err = streamRate(hub.addr, "node/n1", b.d, streamWindow, arrived); err != nil {
		return f, err
	}
	if f.up, err = streamRate(core.addr, "", b.d, offlineWindow, arrived); err != nil {
		return f, err
	}
	before, err := anonymousMemory(core.pid)
	if err != nil {
		return f, err
	}
	proxy.Cut(faults.Reset)
	if err := awaitLink(web, false); err != nil {
		return f, err
	}
	n, err := publishFor(core.addr, "", b.d, offlineWindow)
	if err != nil {
		return f, err
	}
	f.down = float64(n) / b.d.Seconds()
	after, err := anonymousMemory(core.pid)
	if err != nil {
		return f, err
	}
	waiting, err := readGauge(web, "edgebus_streams_waiting_bytes")
	if err != nil {
		return f, err
	}
	f.waiting, f.memory = waiting/1e6, after-before
	from := arrived.Load()
	proxy.Heal()
	if err := awaitCount(arrived, from+1); err != nil {
		return f, err
	}
	begin := time.Now()
	err = awaitCount(arrived, from+int64(n))
	f.drain = float64(n) / time.Since(begin).Seconds()
	return f, err
}

// streamRate is how many messages a second are published and arrive.
func streamRate(addr, user string, d time.Duration, window int, arrived *atomic.Int64) (float64, error) {
	from, begin := arrived.Load(), time.Now()
	n, err := publishFor(addr, user, d, window)
	if err != nil {
		return 0, err
	}
	err = awaitCount(arrived, from+int64(n))
	return float64(n) / time.Since(begin).Seconds(), err
}

func publishFor(addr, user string, d time.Duration, window int) (int, error) {
	p, err := newPumpAs(addr, user)
	if err != nil {
		return 0, err
	}
	defer p.close()
	payload := make([]byte, payloadSize)
	return p.run(d, window, func(int) (string, []byte) { return streamTopic, payload })
}

// listenStream subscribes to the stream on the hub, and counts what comes.
func listenStream(addr string) (arrived *atomic.Int64, end func(), err error) {
	c, err := dialClient(addr, "listener")
	if err != nil {
		return nil, nil, err
	}
	if err := subscribeClient(c, streamTopic, 1); err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	arrived = new(atomic.Int64)
	go countMessages(c, arrived)
	return arrived, func() { _ = c.Close() }, nil
}

func countMessages(c net.Conn, arrived *atomic.Int64) {
	var acks []byte
	_ = readPackets(c, func(first byte, body []byte) error {
		if first>>4 == 3 {
			at := 2 + int(binary.BigEndian.Uint16(body))
			acks = append(acks, 0x40, 2, body[at], body[at+1])
		}
		return nil
	}, func(int) error {
		arrived.Add(int64(len(acks) / 4))
		_, err := c.Write(acks)
		acks = acks[:0]
		return err
	})
}

func awaitCount(arrived *atomic.Int64, n int64) error {
	for deadline := time.Now().Add(streamTime); arrived.Load() < n; {
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of %d messages came", arrived.Load(), n)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// awaitLink waits until the core says that it is in step, or that it has no link.
func awaitLink(web string, want bool) error {
	name := "edgebus_core_link_in_step"
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		v, err := readGauge(web, name)
		if err != nil {
			return err
		}
		if (v == 1) == want {
			return nil
		}
	}
	return fmt.Errorf("%s is not %t after a minute", name, want)
}

// readGauge is a figure without labels of /metrics.
func readGauge(web, name string) (float64, error) {
	// Uncompressed: compressing takes more of the program's time than what is measured.
	plain := http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}
	resp, err := plain.Get("http://" + web + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("no %s", name)
}
