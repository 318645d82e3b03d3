package main

import (
	"bytes"
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
)

const (
	stopTime = 6 * time.Second        // for all programs to stop in order
	killTime = 2 * time.Second        // for what is killed to be gone
	pollTime = 10 * time.Millisecond  // between looks at a process group
	stagger  = 700 * time.Millisecond // for one program before the next is asked
)

// A program that ends is started again after a pause that doubles, until it has
// ended this often within this time.
const (
	firstPause = 500 * time.Millisecond
	mostDeaths = 5
	deathTime  = 30 * time.Second
)

// processes are the programs of a demo, each in a process group of its own, so
// that ctrl-C reaches them through us only, and in order.
type processes struct {
	logs   string
	pause  time.Duration // before the first restart
	onExit func(error)   // a program ends again and again, and is given up
	say    func(string)  // a program has ended, or runs again

	mu       sync.Mutex
	all      []*process
	stopping chan struct{} // closed when no program is to be started any more
}

// process is a program, through all its restarts.
type process struct {
	name string
	args []string
	dir  string
	log  string
	done chan struct{} // closed when it has ended for good, children included

	cmd *exec.Cmd // the one that runs, or did last; guarded by processes.mu
}

// exitError is a program that ended by itself, with the end of its log.
type exitError struct {
	name, state string
	tail        []string
}

func (e *exitError) Error() string {
	text := fmt.Sprintf("%s ended unexpectedly (%s), %d times within %s", e.name, e.state, mostDeaths, deathTime)
	if len(e.tail) > 0 {
		text += "; its last words:\n  " + strings.Join(e.tail, "\n  ")
	}
	return text
}

func newProcesses(logs string) *processes {
	return &processes{
		logs: logs, pause: firstPause, onExit: func(error) {}, say: func(string) {}, stopping: make(chan struct{}),
	}
}

// start runs a program in dir, and again whenever it ends by itself.
func (g *processes) start(name string, args []string, dir string) error {
	if err := os.MkdirAll(g.logs, 0o755); err != nil {
		return err
	}
	p := &process{name: name, args: args, dir: dir, log: filepath.Join(g.logs, name+".log"), done: make(chan struct{})}
	first := make(chan error)
	go g.tend(p, first)
	return <-first
}

// tend keeps a program running. The kernel ends a child when the thread that
// started it does; so that this means "when the demo dies", the thread is ours for
// as long as the child may live.
func (g *processes) tend(p *process, first chan<- error) {
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
		state := ended(p, err)
		if g.isStopping() {
			return
		}
		now := time.Now()
		deaths = slices.DeleteFunc(append(deaths, now), func(t time.Time) bool { return now.Sub(t) > deathTime })
		if len(deaths) >= mostDeaths {
			g.onExit(&exitError{name: p.name, state: state, tail: tail(p.log, 5)})
			return
		}
		pause := g.pause << (len(deaths) - 1)
		g.say(fmt.Sprintf("%s ended unexpectedly (%s), and is started again in %s", p.name, state, pause))
		select {
		case <-g.stopping:
			return
		case <-time.After(pause):
		}
		if err = g.spawn(p); err == nil {
			g.say(p.name + " runs again")
		}
	}
}

// ended waits for the end of what spawn started, and says what it was. What the
// program left must not hold its ports and files.
func ended(p *process, err error) string {
	if err != nil {
		return err.Error()
	}
	_ = p.cmd.Wait()
	p.killGroup()
	return p.cmd.ProcessState.String()
}

func (g *processes) isStopping() bool {
	select {
	case <-g.stopping:
		return true
	default:
		return false
	}
}

// errStopping is why nothing is started any more.
var errStopping = errors.New("the demo is being stopped")

// spawn runs a program once. Its output goes to a file, where it survives us.
func (g *processes) spawn(p *process) error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Dir = p.dir
	cmd.Env = cleanEnvironment()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = ownGroup()
	g.mu.Lock() // so that stop sees either this one, or that there is none
	defer g.mu.Unlock()
	if g.isStopping() {
		return errStopping
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	p.cmd = cmd
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
	close(g.stopping)
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
			p.killGroup()
		}
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
