// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/configs"
)

const (
	readyTime = 60 * time.Second
	stopTime  = 10 * time.Second // what the programs promise
)

// process is a running program in a process group of its own.
type process struct {
	name     string
	cmd      *exec.Cmd
	done     chan struct{}
	expected atomic.Bool // it was told to end
}

func startProcess(name string, line []string, dir, bin, logFile string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	path := line[0]
	if own := filepath.Join(bin, path); !strings.Contains(path, "/") && fileExists(own) {
		path = own
	}
	p := &process{name: name, cmd: exec.Command(path, line[1:]...), done: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Env = configs.WithoutSettings(os.Environ())
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = ownGroup()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func fileExists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *process) awaitReady(ctx context.Context, target string) error {
	if target == "" {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // no need to wait for one that has ended
		select {
		case <-p.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := Eventually(ctx, readyTime, func(ctx context.Context) error { return probeTarget(ctx, target) })
	if err != nil && !p.running() {
		return fmt.Errorf("%s ended before it was ready: %s", p.name, p.cmd.ProcessState)
	}
	if err != nil {
		return fmt.Errorf("%s is not ready: %w", p.name, err)
	}
	return nil
}

func (p *process) term() error {
	p.expected.Store(true)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	select {
	case <-p.done:
	case <-time.After(stopTime):
		p.kill()
		return fmt.Errorf("%s did not stop within %s", p.name, stopTime)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("%s stopped with exit code %d", p.name, code)
	}
	return nil
}

// kill ends the process, with all that it has started, and waits for it.
func (p *process) kill() {
	if !p.running() {
		return
	}
	p.expected.Store(true)
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// frozen is whether every thread is in one of these states: T is stopped, D waits in the kernel and stops when
// it comes back.
func (p *process) frozen(states string) error {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	if err != nil || len(stats) == 0 {
		return fmt.Errorf("%s has no threads in /proc: %w", p.name, err)
	}
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // a thread that has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		if state, _, _ := strings.Cut(rest, " "); !strings.Contains(states, state) {
			return fmt.Errorf("%s: a thread is in state %q", p.name, state)
		}
	}
	return nil
}
