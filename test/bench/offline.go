// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	offlineWindow = 256
	offlineTopic  = "plant/hall/1/temperature"
	offlineClient = "away"
)

// measureOffline measures publishes of QoS 1 that a durable session is owed whose client is away: each is on disk before
// its PUBACK. mosquitto is told to save after every change, which is as near as it comes.
func measureOffline(b benchRun) error {
	fmt.Fprintf(b.w, "One publisher, QoS 1, %d bytes, %d in flight; the only subscriber has a durable session and is away. cloudhub has each\n"+
		"message on disk before its PUBACK. mosquitto runs with `persistence`, `autosave_on_changes` and `autosave_interval 1`: it\n"+
		"acknowledges first, and then writes the whole of its database, once for all that came together. *append+fsync* appends as many\n"+
		"messages to a file as are in flight, with one fsync: what the disk allows.\n\n"+
		"| | messages/s | append+fsync ÷ it |\n|---|---|---|\n", payloadSize, offlineWindow)
	var ours, theirs, raw []float64
	for range b.rounds {
		rate, err := offlineRate(b.d, func() (*benchProcess, error) {
			return startProgram(filepath.Join(b.bin, "cloudhub"), "", "--limits-session-all", "256GiB", "--limits-session-bytes", "64GiB")
		})
		if err != nil {
			return err
		}
		ours = append(ours, rate)
		rate, err = offlineRate(b.d, func() (*benchProcess, error) {
			return startMosquitto("", "persistence true", "persistence_location {dir}/", "autosave_on_changes true", "autosave_interval 1")
		})
		if err != nil && !errors.Is(err, errNoMosquitto) {
			return err
		}
		theirs = append(theirs, rate)
		if rate, err = appendMessages(b.d); err != nil {
			return err
		}
		raw = append(raw, rate)
	}
	most := median(raw)
	for _, r := range []struct {
		name string
		rate float64
	}{{"cloudhub", median(ours)}, {mosquittoVersion(), median(theirs)}, {"append+fsync", most}} {
		if r.rate == 0 {
			fmt.Fprintf(b.w, "| %v | | |\n", errNoMosquitto)
			continue
		}
		fmt.Fprintf(b.w, "| %s | %.0f | %.2f |\n", r.name, r.rate, most/r.rate)
	}
	return nil
}

// offlineRate is how many messages a second a broker acknowledges for a session whose client is away.
func offlineRate(d time.Duration, start func() (*benchProcess, error)) (float64, error) {
	broker, err := start()
	if err != nil {
		return 0, err
	}
	defer broker.stop()
	return offlineRateAt(d, broker.addr)
}

// offlineRateAndEnd is offlineRateAt, after which the session is gone.
func offlineRateAndEnd(d time.Duration, addr string) (float64, error) {
	rate, err := offlineRateAt(d, addr)
	if err != nil {
		return 0, err
	}
	over, err := dialClient(addr, offlineClient) // a clean start
	if err != nil {
		return 0, err
	}
	return rate, over.Close()
}

func offlineRateAt(d time.Duration, addr string) (float64, error) {
	if err := leaveSession(addr); err != nil {
		return 0, err
	}
	p, err := newPump(addr)
	if err != nil {
		return 0, err
	}
	defer p.close()
	payload, begin := make([]byte, payloadSize), time.Now()
	n, err := p.run(d, offlineWindow, func(int) (string, []byte) { return offlineTopic, payload })
	return float64(n) / time.Since(begin).Seconds(), err
}

// leaveSession subscribes with a session that outlives its connection, and goes away.
func leaveSession(addr string) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	body := appendText(nil, "MQTT")
	body = append(body, mqttVersion, 0, 0, 0)                                                  // the session goes on; no keep-alive
	body = binary.BigEndian.AppendUint32(append(body, 5, 0x11), uint32(time.Hour/time.Second)) // session expiry
	answer, err := exchangePacket(c, encodePacket(0x10, appendText(body, offlineClient)))
	if err != nil || answer[0] != 0x20 || answer[3] != 0 {
		return fmt.Errorf("not connected: % x: %w", answer, err)
	}
	if err := subscribeClient(c, offlineTopic, 1); err != nil {
		return err
	}
	_, err = c.Write(encodePacket(0xE0, []byte{0, 0}))
	return err
}

// appendMessages is how many messages a second a file takes, one fsync for as many as are in flight.
func appendMessages(d time.Duration) (float64, error) {
	f, err := os.CreateTemp("", "edgebus-bench-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	group := make([]byte, 0, offlineWindow*(len(offlineTopic)+payloadSize))
	begin, n := time.Now(), 0
	for ; time.Since(begin) < d; n += offlineWindow {
		group = group[:0]
		for range offlineWindow {
			group = append(append(group, offlineTopic...), make([]byte, payloadSize)...)
		}
		if _, err := f.Write(group); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(begin).Seconds(), nil
}
