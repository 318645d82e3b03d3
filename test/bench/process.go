package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a program that runs beside the benchmark, so that what it costs can be told
// from what the benchmark costs.
type process struct {
	cmd        *exec.Cmd
	mqtt, http string
}

// startProgram starts one of the project's programs on free ports of the loopback interface.
func startProgram(program, dir string, args ...string) (*process, error) {
	mqtt, err := freeAddress()
	if err != nil {
		return nil, err
	}
	http, err := freeAddress()
	if err != nil {
		return nil, err
	}
	args = append([]string{"--data-dir", dir, "--mqtt-listen", mqtt, "--mqtt-websocket-listen", "", "--http-listen", http, "--log-level", "warn"}, args...)
	p := &process{cmd: exec.Command(program, args...), mqtt: mqtt, http: http}
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: run make build first", err)
	}
	if err := ready("http://" + http + "/readyz"); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	return p.cmd.Wait()
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// cpu is the processor time that the process has taken so far.
func (p *process) cpu() (time.Duration, error) { return cpuOf(p.cmd.Process.Pid) }

const tick = 10 * time.Millisecond // of the kernel's accounting, on every architecture that Go runs on

func cpuOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// ownCPU is what the benchmark itself has taken so far.
func ownCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // can't fail with these arguments
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
