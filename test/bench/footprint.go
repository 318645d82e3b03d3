package main

import (
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
)

// settled is how long a program rests before its memory is read.
const settled = 3 * time.Second

// footprint measures the programs as they are shipped: stripped size, and the memory of an idle process.
func footprint(b bench) error {
	fmt.Fprintf(b.w, "Stripped programs, idle for %s after their start; resident memory as the kernel counts it.\n\n"+
		"| program | size, MB | idle, MB resident |\n|---|---|---|\n", settled)
	for _, p := range []struct{ name, port string }{{"edgecore", "28831"}, {"cloudhub", "28832"}} {
		size, rss, err := measure(filepath.Join(b.bin, p.name), p.port)
		if err != nil {
			return fmt.Errorf("%w: run make build first", err)
		}
		fmt.Fprintf(b.w, "| %s | %.1f | %.1f |\n", p.name, size, rss)
	}
	return nil
}

func measure(program, port string) (size, rss float64, err error) {
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
	if err := ready("http://127.0.0.1:" + port + "/readyz"); err != nil {
		return 0, 0, err
	}
	time.Sleep(settled)
	rss, err = resident(cmd.Process.Pid)
	return float64(info.Size()) / 1e6, rss, err
}

func ready(url string) error {
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

func resident(pid int) (float64, error) {
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
