// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/backoff"
)

// kill kills a program, which is started again.
func (g *processes) kill(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.all {
		if p.name == name {
			_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		}
	}
}

// hold kills a program, which is started again when it is released.
func (g *processes) hold(name string) {
	g.mu.Lock()
	for _, p := range g.all {
		if p.name == name && !p.isHeld() {
			p.held = make(chan struct{})
		}
	}
	g.mu.Unlock()
	g.kill(name)
}

// release has a program start again that hold has killed.
func (g *processes) release(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.all {
		if p.name == name && p.isHeld() {
			close(p.held)
		}
	}
}

// isHeld is whether a program was killed, to stay away.
func (g *processes) isHeld(name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.all, func(p *process) bool { return p.name == name && p.isHeld() })
}

// isHeld is whether hold was called, and release was not since.
func (p *process) isHeld() bool {
	select {
	case <-p.held:
		return false
	default:
		return p.held != nil
	}
}

// awaitRelease waits while a program that has ended is held. It returns whether hold has ended it.
func (g *processes) awaitRelease(p *process) (was bool) {
	for {
		g.mu.Lock()
		held := p.held
		if !p.isHeld() {
			p.held = nil
		}
		g.mu.Unlock()
		if held == nil {
			return was
		}
		was = true
		select {
		case <-held:
		case <-g.ctx.Done():
			return was
		}
	}
}

const (
	stopTimeout       = 6 * time.Second        // for all programs to stop, once each was asked
	killTimeout       = 2 * time.Second        // for what is killed to be gone
	groupPollInterval = 10 * time.Millisecond  // between looks at a process group
	stopStagger       = 700 * time.Millisecond // for one program before the next is asked
)

// A program that ends is started again after a pause that doubles, until it has
// ended this often within this time.
const (
	firstRestartPause = 500 * time.Millisecond
	mostRestarts      = 5
	restartWindow     = 30 * time.Second
)

// processes are the programs of a demo. Each has a process group of its own, so
// that ctrl-C ends them through the demo only, in order.
type processes struct {
	logs   string
	pause  time.Duration // before the first restart
	onExit func(error)   // called when a program has ended too often, and is not restarted
	say    func(string)  // called when a program has ended, or runs again

	ctx    context.Context // done: no program is started any more
	cancel context.CancelFunc
	mu     sync.Mutex
	all    []*process
}

// process is a program, through all its restarts.
type process struct {
	name string
	args []string
	dir  string
	log  string
	done chan struct{} // closed when it has ended for good, children included

	// Guarded by processes.mu:
	cmd  *exec.Cmd     // the one that runs, or did last
	held chan struct{} // not nil: once it has ended, it is started when this is closed
}

// exitError is a program that ended by itself, with the end of its log.
type exitError struct {
	name, state string
	tail        []string
}

func (e *exitError) Error() string {
	text := fmt.Sprintf("%s ended unexpectedly (%s), %d times within %s", e.name, e.state, mostRestarts, restartWindow)
	if len(e.tail) > 0 {
		text += "; the end of its log:\n  " + strings.Join(e.tail, "\n  ")
	}
	return text
}

func newProcesses(logs string) *processes {
	ctx, cancel := context.WithCancel(context.Background())
	return &processes{logs: logs, pause: firstRestartPause, onExit: func(error) {}, say: func(string) {}, ctx: ctx, cancel: cancel}
}

// start runs a program in dir, and again whenever it ends by itself.
func (g *processes) start(name string, args []string, dir string) error {
	if err := os.MkdirAll(g.logs, 0o755); err != nil { //nolint:gosec // G301: logs, which have no secrets
		return err
	}
	p := &process{name: name, args: args, dir: dir, log: filepath.Join(g.logs, name+".log"), done: make(chan struct{})}
	first := make(chan error)
	go g.keepRunning(p, first)
	return <-first
}

// keepRunning keeps a program running. The kernel signals a child (Pdeathsig) when the thread
// that started it ends, so the thread is locked for as long as the child may live.
func (g *processes) keepRunning(p *process, first chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.done)
	err := g.spawn(p)
	if err == nil {
		g.mu.Lock()
		g.all = append(g.all, p)
		g.mu.Unlock()
	}
	first <- err
	if err != nil {
		return
	}
	var deaths []time.Time
	for {
		state := waitForEnd(p, err)
		if g.ctx.Err() != nil {
			return
		}
		if g.awaitRelease(p) {
			err = g.spawn(p)
			continue
		}
		now := time.Now()
		deaths = slices.DeleteFunc(append(deaths, now), func(t time.Time) bool { return now.Sub(t) > restartWindow })
		if len(deaths) >= mostRestarts {
			g.onExit(&exitError{name: p.name, state: state, tail: lastLines(p.log, 5)})
			return
		}
		pause := backoff.Backoff{Min: g.pause, Max: g.pause << mostRestarts}.Wait(len(deaths) - 1)
		g.say(fmt.Sprintf("%s ended unexpectedly (%s), and is started again in %s", p.name, state, pause))
		select {
		case <-g.ctx.Done():
			return
		case <-time.After(pause):
		}
		if err = g.spawn(p); err == nil {
			g.say(p.name + " runs again")
		}
	}
}

// waitForEnd waits for the end of what spawn started, and returns its exit state. Children that
// it left are killed: they could hold its ports and files.
func waitForEnd(p *process, err error) string {
	if err != nil {
		return err.Error()
	}
	_ = p.cmd.Wait()
	p.killGroup()
	return p.cmd.ProcessState.String()
}

// errStopping is why a program is not started.
var errStopping = errors.New("the demo is being stopped")

// spawn starts a program once. Its output goes to a file, which outlives the demo.
func (g *processes) spawn(p *process) error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644) //nolint:gosec // G302: logs have no secrets
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.args[0], p.args[1:]...) //nolint:gosec // G204: a program of the demo
	cmd.Dir = p.dir
	cmd.Env = cleanEnvironment()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = ownGroup()
	g.mu.Lock() // stop sees this program, or this call sees that the demo stops
	defer g.mu.Unlock()
	if g.ctx.Err() != nil {
		return errStopping
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	p.cmd = cmd
	return nil
}

// cleanEnvironment is the environment without Edgebus' settings: the demo is always the same.
func cleanEnvironment() []string {
	return configs.WithoutSettings(os.Environ())
}

// stop asks the programs to end, the last one first, and kills those that don't. It
// returns when all have ended, their children included.
func (g *processes) stop() error {
	g.mu.Lock()
	g.cancel()
	all := slices.Clone(g.all)
	g.mu.Unlock()
	slices.Reverse(all)
	for _, p := range all {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select { // a mapper disconnects from its broker while that still runs
		case <-p.done:
		case <-time.After(stopStagger):
		}
	}
	deadline, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var stuck []string
	for _, p := range all {
		select {
		case <-p.done:
		case <-deadline.Done():
			stuck = append(stuck, p.name)
			p.killGroup()
		}
	}
	if len(stuck) > 0 {
		return fmt.Errorf("did not stop within %s and had to be killed: %s", stopTimeout, strings.Join(stuck, ", "))
	}
	return nil
}

// killGroup kills what is left of a process and its children, and waits until they have ended.
func (p *process) killGroup() {
	group := -p.cmd.Process.Pid
	for end := time.Now().Add(killTimeout); time.Now().Before(end); time.Sleep(groupPollInterval) {
		if err := syscall.Kill(group, syscall.SIGKILL); err != nil {
			return // none is left
		}
	}
}

// lastLines is the last lines of a log.
func lastLines(file string, lines int) []string {
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
