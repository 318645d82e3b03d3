package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	stopTime = 6 * time.Second        // for all programs to stop in order
	killTime = 2 * time.Second        // for what is killed to be gone
	pollTime = 10 * time.Millisecond  // between looks at a process group
	stagger  = 700 * time.Millisecond // for one program before the next is asked
)

// processes are the programs of a demo, each in a process group of its own, so
// that ctrl-C reaches them through us only, and in order.
type processes struct {
	logs   string
	onExit func(error) // a program has ended that should not have

	mu       sync.Mutex
	all      []*process
	stopping bool
}

type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

// exitError is a program that ended by itself, with the end of its log.
type exitError struct {
	name, state, log string
	tail             []string
}

func (e *exitError) Error() string {
	text := fmt.Sprintf("%s ended unexpectedly (%s)", e.name, e.state)
	if len(e.tail) > 0 {
		text += "; its last words:\n  " + strings.Join(e.tail, "\n  ")
	}
	return text
}

func newProcesses(logs string) *processes {
	return &processes{logs: logs, onExit: func(error) {}}
}

// start runs a program in dir. Its output goes to a file, where it survives us.
func (g *processes) start(name string, args []string, dir string) error {
	if err := os.MkdirAll(g.logs, 0o755); err != nil {
		return err
	}
	p := &process{name: name, log: filepath.Join(g.logs, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Dir = dir
	p.cmd.Env = cleanEnvironment()
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = ownGroup()
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	g.mu.Lock()
	g.all = append(g.all, p)
	g.mu.Unlock()
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
		g.mu.Lock()
		expected := g.stopping
		g.mu.Unlock()
		if !expected {
			g.onExit(&exitError{name: name, state: p.cmd.ProcessState.String(), log: p.log, tail: tail(p.log, 5)})
		}
	}()
	return nil
}

// cleanEnvironment is ours without settings of the bus: the demo is always the same.
func cleanEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "EDGEBUS_") })
}

// stop asks the programs to end, the last one first; who doesn't is killed. It
// returns when none is left, children included.
func (g *processes) stop() error {
	g.mu.Lock()
	g.stopping = true
	all := slices.Clone(g.all)
	g.mu.Unlock()
	slices.Reverse(all)
	deadline := time.After(stopTime)
	for _, p := range all {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select { // a mapper should still find its broker when it says goodbye
		case <-p.done:
		case <-time.After(stagger):
		}
	}
	var stuck []string
	for _, p := range all {
		select {
		case <-p.done:
		case <-deadline:
			deadline = closedTime()
			stuck = append(stuck, p.name)
		}
		p.killGroup()
	}
	if len(stuck) > 0 {
		return fmt.Errorf("did not stop within %s and had to be killed: %s", stopTime, strings.Join(stuck, ", "))
	}
	return nil
}

func closedTime() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}

// killGroup ends what is left of a process and its children, and waits for it.
func (p *process) killGroup() {
	group := -p.cmd.Process.Pid
	for end := time.Now().Add(killTime); time.Now().Before(end); time.Sleep(pollTime) {
		if err := syscall.Kill(group, syscall.SIGKILL); err != nil {
			return // nobody is there any more
		}
	}
}

// tail is the end of a log.
func tail(file string, lines int) []string {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	all := strings.Split(string(bytes.TrimSpace(text)), "\n")
	if all[0] == "" {
		return nil
	}
	return all[max(0, len(all)-lines):]
}
