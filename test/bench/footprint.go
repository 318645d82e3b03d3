// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/topics"
)

// settleTime is how long a program rests before its memory is read.
const settleTime = 3 * time.Second

const (
	footprintDevices    = 1000
	footprintProperties = 10
	footprintKeys       = footprintDevices * footprintProperties
)

// measureFootprint measures the programs as they are shipped: stripped size, and the memory of a process that is idle,
// and of one that holds a tree.
func measureFootprint(b benchRun) error {
	fmt.Fprintf(b.w, "Stripped programs, idle for %s after their start, and after %d keys were written: to the core, reported values of\n"+
		"%d devices; to mosquitto, retained messages with the same topics and payloads. Resident memory as the kernel counts it.\n"+
		"Aims for edgecore: below 16 MB, 22 MB and 50 MB. KubeEdge's edgecore, by its own users' figures and not measured here, is a\n"+
		"program of 101 MB that takes 70–150 MB.\n\n"+
		"| program | size, MB | idle, MB resident | %d keys, MB resident |\n|---|---|---|---|\n",
		settleTime, footprintKeys, footprintDevices, footprintKeys)
	for _, p := range []struct{ name, port string }{{"edgecore", "28831"}, {"cloudhub", "28832"}} {
		size, rss, err := measureProgram(filepath.Join(b.bin, p.name), p.port)
		if err != nil {
			return fmt.Errorf("%w: run make build first", err)
		}
		full := "–"
		if p.name == "edgecore" {
			mb, err := filledCore(b)
			if err != nil {
				return err
			}
			full = fmt.Sprintf("%.1f", mb)
		}
		fmt.Fprintf(b.w, "| %s | %.1f | %.1f | %s |\n", p.name, size, rss, full)
	}
	size, idle, full, err := mosquittoFootprint()
	if errors.Is(err, errNoMosquitto) {
		fmt.Fprintf(b.w, "\n%v.\n", err)
		return nil
	}
	if err == nil {
		fmt.Fprintf(b.w, "| %s | %.1f | %.1f | %.1f |\n", mosquittoVersion(), size, idle, full)
	}
	return err
}

// filledCore is the memory of a core that holds a tree.
func filledCore(b benchRun) (mb float64, err error) {
	core, err := shippedCore(b, footprintDevices, footprintProperties)
	if err != nil {
		return 0, err
	}
	defer core.stop()
	return filledMemory(core, false)
}

// filledMemory is the memory of a broker after every key was published once.
func filledMemory(p *benchProcess, retain bool) (mb float64, err error) {
	to, err := newPump(p.addr)
	if err != nil {
		return 0, err
	}
	defer to.close()
	to.retain = retain
	keys := reportedKeys(footprintDevices, footprintProperties)
	n := 0
	err = writeEveryKey(to, len(keys), func(int) (string, []byte) {
		n++
		return topics.TopicOf("n1", keys[n%len(keys)]), strconv.AppendInt(nil, int64(n), 10)
	})
	if err != nil {
		return 0, err
	}
	time.Sleep(settleTime)
	return residentMemory(p.pid)
}

// mosquittoFootprint measures Debian's mosquitto with persistence, which is off otherwise, as ours can't be.
func mosquittoFootprint() (size, idle, full float64, err error) {
	program, err := findMosquitto()
	if err != nil {
		return 0, 0, 0, err
	}
	info, err := os.Stat(program)
	if err != nil {
		return 0, 0, 0, err
	}
	p, err := startMosquitto("", "persistence true", "persistence_location {dir}/")
	if err != nil {
		return 0, 0, 0, err
	}
	defer p.stop()
	time.Sleep(settleTime)
	if idle, err = residentMemory(p.pid); err == nil {
		full, err = filledMemory(p, true)
	}
	return float64(info.Size()) / 1e6, idle, full, err
}

func measureProgram(program, port string) (size, rss float64, err error) {
	info, err := os.Stat(program)
	if err != nil {
		return 0, 0, err
	}
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command(program, "--data-dir", dir, "--mqtt-listen", "127.0.0.1:0", "--mqtt-websocket-listen", "", "--http-listen", "127.0.0.1:"+port)
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	defer cmd.Wait()                          //nolint:errcheck // it is told to stop
	defer cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
	if err := awaitReady("http://127.0.0.1:" + port + "/readyz"); err != nil {
		return 0, 0, err
	}
	time.Sleep(settleTime)
	rss, err = residentMemory(cmd.Process.Pid)
	return float64(info.Size()) / 1e6, rss, err
}

func awaitReady(url string) error {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if resp, err := http.Get(url); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
	}
	return fmt.Errorf("%s is not ready", url)
}

func residentMemory(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kb * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("process %d: no VmRSS", pid)
}
