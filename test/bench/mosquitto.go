// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// errNoMosquitto makes a section say what it went without.
var errNoMosquitto = errors.New("mosquitto is not installed: without it there is nothing to compare with (on Debian: apt-get install mosquitto)")

// mosquittoSettings is what mosquitto is given to be compared fairly: no delay of small packets, and windows and queues as wide
// as ours, without which it drops or waits where we don't.
var mosquittoSettings = []string{
	"allow_anonymous true", "set_tcp_nodelay true", "log_dest none", "connection_messages false",
	"max_inflight_messages 1024", "max_queued_messages 100000", "max_queued_bytes 67108864",
}

// benchProcess is a broker in a process of its own.
type benchProcess struct {
	addr string // of its MQTT listener
	pid  int
	dir  string // its files; gone after stop
	stop func()
}

// startMosquitto starts Debian's mosquitto on a free port of the loopback interface. cpu is the core that it is kept
// on; empty: any. Persistence is off unless the settings, lines of its configuration file, say otherwise; {dir} in
// them is its directory.
func startMosquitto(cpu string, settings ...string) (*benchProcess, error) {
	program, err := findMosquitto()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return nil, err
	}
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(addr)
	lines := append([]string{"listener " + port + " " + host}, mosquittoSettings...)
	if len(settings) == 0 {
		settings = []string{"persistence false"}
	}
	lines = append(lines, settings...)
	if os.Geteuid() == 0 {
		lines = append(lines, "user root") // or it could not write below dir
	}
	conf := filepath.Join(dir, "mosquitto.conf")
	text := strings.ReplaceAll(strings.Join(lines, "\n"), "{dir}", dir) + "\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return startBroker(dir, addr, cpu, program, "-c", conf)
}

func findMosquitto() (string, error) {
	if program, err := exec.LookPath("mosquitto"); err == nil {
		return program, nil
	}
	const debian = "/usr/sbin/mosquitto" // not on everybody's path
	if _, err := os.Stat(debian); err != nil {
		return "", errNoMosquitto
	}
	return debian, nil
}

func mosquittoVersion() string {
	program, err := findMosquitto()
	if err != nil {
		return "mosquitto"
	}
	out, _ := exec.Command(program, "-h").Output() // which it ends with an error
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.Replace(strings.TrimSpace(first), " version", "", 1)
}

// startProgram starts one of ours with a directory of its own, and its defaults otherwise.
func startProgram(program, cpu string, args ...string) (*benchProcess, error) {
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return nil, err
	}
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	args = append(args, "--data-dir", dir, "--mqtt-listen", addr, "--mqtt-websocket-listen", "", "--http-listen", "127.0.0.1:0")
	return startBroker(dir, addr, cpu, program, args...)
}

// startBroker runs a broker, and returns once it takes connections on addr.
func startBroker(dir, addr, cpu, program string, args ...string) (*benchProcess, error) {
	if cpu != "" {
		program, args = "taskset", append([]string{"-c", cpu, program}, args...)
	}
	cmd := exec.Command(program, args...)
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	p := &benchProcess{addr: addr, pid: cmd.Process.Pid, dir: dir, stop: func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		_ = os.RemoveAll(dir)
	}}
	for deadline := time.Now().Add(20 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if conn, err := net.Dial("tcp", addr); err == nil {
			return p, conn.Close()
		}
		select {
		case <-ended:
			return nil, fmt.Errorf("%s ended at once", program)
		default:
		}
	}
	p.stop()
	return nil, fmt.Errorf("%s doesn't listen on %s", program, addr)
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
