// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/subprocess"
	"github.com/edgebus/edgebus/topics/backoff"
)

// core is what runs the node's core.
type core interface {
	// restart ends the core that runs, with all that it has started, and starts the program that current leads to. It returns an
	// error if that did not start. With trial it is not started again when it ends.
	restart(ctx context.Context, trial bool) error
	// process is the main process of the core; 0: none runs, and why.
	process(ctx context.Context) (pid int, why string)
	// committed ends the trial: from now on the core is started again when it ends.
	committed()
	// stop ends the core, so that its data can be worked on.
	stop(ctx context.Context) error
	// output is the end of what the core has printed since its last restart.
	output(ctx context.Context) string
}

// Unit is a service of systemd.
type Unit interface {
	// Restart and Stop wait until it is done.
	Restart(ctx context.Context) error
	Stop(ctx context.Context) error
	// MainPID is its process; 0: none.
	MainPID(ctx context.Context) (int, error)
}

// unitCore is a core that systemd runs.
type unitCore struct {
	Unit
	name  string
	began time.Time
}

func (u *unitCore) restart(ctx context.Context, _ bool) error {
	u.began = time.Now()
	return u.Restart(ctx)
}

func (u *unitCore) process(ctx context.Context) (int, string) {
	pid, err := u.MainPID(ctx)
	if err != nil {
		return 0, err.Error()
	}
	return pid, "its service has no process: see systemctl status " + u.name
}

func (u *unitCore) committed() {}

func (u *unitCore) stop(ctx context.Context) error { return u.Stop(ctx) }

// output is what the system's journal has; where there is none, nothing.
func (u *unitCore) output(ctx context.Context) string {
	out, err := subprocess.Command{Time: 5 * time.Second, Argv: []string{
		"journalctl", "--unit", u.name, "--since", u.began.Format("2006-01-02 15:04:05"), "--lines", strconv.Itoa(tailLines), "--output", "cat", "--no-pager",
	}}.Run(ctx)
	if err != nil {
		return ""
	}
	return lastLines(out)
}

// The end of an output that a reason has.
const (
	tailLines = 20
	tailBytes = 4 << 10
)

func lastLines(out []byte) string {
	out = out[max(0, len(out)-tailBytes):]
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(out), "�")), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

// childCore is a core that the agent runs itself, where there is no systemd. It is in the agent's process group, outlives the agent, and is found
// again by the next one. Its output is in a file, because a pipe would end with the agent.
type childCore struct {
	program string   // a path that leads through current
	args    []string // of it
	data    string   // its data directory, whose owner it runs as
	log     string   // file of its output
	mark    string   // variable of its environment, by which all that it starts is found
	stopFor time.Duration
	logger  zerolog.Logger

	change   sync.Mutex   // held while it is started or ended
	unreaped atomic.Int64 // the process that this agent has started: no other gets its number before it is waited for; 0: none
	mu       sync.Mutex
	pid      int
	reaped   chan struct{} // closed when ended says how the process ended; nil: another agent has started it
	ended    string        // why there is no process
	known    bool          // it was started, or looked for
	trial    bool
	wake     chan struct{} // capacity 1
}

func newChildCore(program string, args []string, data, log string, stopFor time.Duration, logger zerolog.Logger) *childCore {
	return &childCore{
		program: program, args: args, data: data, log: log, mark: "EDGEAGENT_CORE=" + log, stopFor: stopFor, logger: logger,
		ended: "it was not started", wake: make(chan struct{}, 1),
	}
}

// restartBackoff is the wait before a core that has ended is started again.
var restartBackoff = backoff.Backoff{Min: 200 * time.Millisecond, Max: 10 * time.Second}

const maxLogSize = 4 << 20 // bytes of the file of its output

// keep starts the core whenever it does not run, except in a trial, until ctx ends. The pause after a start grows while it ends again and again.
func (c *childCore) keep(ctx context.Context) {
	starts := 0 // one soon after the other
	var started time.Time
	for {
		if c.keepOnce(ctx) {
			started = time.Now()
			if !backoff.Sleep(ctx, restartBackoff.Wait(starts)) {
				return
			}
			starts++
			continue
		}
		if time.Since(started) > 2*restartBackoff.Max {
			starts = 0
		}
		if info, err := os.Stat(c.log); err == nil && info.Size() > maxLogSize {
			_ = os.Truncate(c.log, 0) // what the core appends follows
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wake: // it has ended
		case <-time.After(time.Second):
		}
	}
}

// keepOnce starts the core if it does not run and is to, and says whether it did.
func (c *childCore) keepOnce(ctx context.Context) (started bool) {
	c.change.Lock()
	defer c.change.Unlock()
	c.mu.Lock()
	trial := c.trial
	c.mu.Unlock()
	pid, why := c.process(ctx)
	if pid != 0 || trial {
		return false
	}
	c.logger.Warn().Str("reason", why).Msg("the core does not run and is started")
	if err := c.start(); err != nil {
		c.logger.Error().Err(err).Msg("the core can't be started")
	}
	return true
}

// signal says that the core may have to be started.
func (c *childCore) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *childCore) restart(ctx context.Context, trial bool) error {
	c.change.Lock()
	defer c.change.Unlock()
	c.mu.Lock()
	c.trial = trial
	c.mu.Unlock()
	if err := c.end(ctx); err != nil {
		return err
	}
	return c.start()
}

func (c *childCore) stop(ctx context.Context) error {
	c.change.Lock()
	defer c.change.Unlock()
	c.mu.Lock()
	c.trial = true // until the next restart
	c.mu.Unlock()
	return c.end(ctx)
}

func (c *childCore) committed() {
	c.mu.Lock()
	c.trial = false
	c.mu.Unlock()
	c.signal()
}

// start starts the program that current leads to now.
func (c *childCore) start() error {
	program, err := filepath.EvalSymlinks(c.program)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(program, c.args...) //nolint:gosec // from the node's own settings
	cmd.Env = append(subprocess.Environment(), c.mark)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = ownerAttributes(c.data)
	if err := cmd.Start(); err != nil {
		c.note(0, err.Error())
		return err
	}
	reaped := make(chan struct{})
	c.unreaped.Store(int64(cmd.Process.Pid))
	c.mu.Lock()
	c.pid, c.reaped, c.ended, c.known = cmd.Process.Pid, reaped, "", true
	c.mu.Unlock()
	go func() {
		defer close(reaped)
		c.reap(cmd)
		c.mu.Lock()
		if c.pid == cmd.Process.Pid {
			c.pid, c.ended = 0, "it ended: "+cmd.ProcessState.String()
		}
		c.mu.Unlock()
		c.signal()
	}()
	return nil
}

// reap waits for a process's end, which is in its state then. Nobody else may have its number before it is forgotten here.
func (c *childCore) reap(cmd *exec.Cmd) {
	awaitEnd(cmd.Process.Pid)
	c.unreaped.CompareAndSwap(int64(cmd.Process.Pid), 0)
	_ = cmd.Wait()
}

func (c *childCore) note(pid int, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pid, c.reaped, c.ended, c.known = pid, nil, why, true
}

// ownerAttributes are the attributes of a process that works on a directory: only root may work as the directory's owner.
func ownerAttributes(dir string) *syscall.SysProcAttr {
	info, err := os.Stat(dir)
	if err != nil || os.Geteuid() != 0 {
		return nil
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid != 0 {
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: s.Uid, Gid: s.Gid}}
	}
	return nil
}

// process finds the core's process, also one that an earlier agent has started.
func (c *childCore) process(context.Context) (int, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		c.known = true
		for _, pid := range processesWith(c.mark) {
			if program, err := os.Readlink(procPath(pid, "exe")); err == nil && filepath.Base(program) == filepath.Base(c.program) {
				c.pid = pid
				break
			}
		}
	}
	if c.pid != 0 && !c.is(c.pid) {
		if reaped := c.reaped; reaped != nil { // what it returned is known in a moment
			c.mu.Unlock()
			select {
			case <-reaped:
			case <-time.After(time.Second):
			}
			c.mu.Lock()
		}
		if c.pid != 0 && !c.is(c.pid) {
			c.pid, c.ended = 0, "it has ended"
		}
	}
	return c.pid, c.ended
}

// is reports whether a process runs and is the core's: its number may be another's by now.
func (c *childCore) is(pid int) bool {
	return isRunning(pid) && (int64(pid) == c.unreaped.Load() || hasVariable(pid, c.mark))
}

// all are the processes of the core.
func (c *childCore) all() []int {
	pids := processesWith(c.mark)
	if own := int(c.unreaped.Load()); own != 0 && isRunning(own) && !slices.Contains(pids, own) {
		pids = append(pids, own)
	}
	return pids
}

// tell sends a signal to a process of the core, and to no other that has its number by now: the handle is opened first and stands for one
// process, and then that is looked at.
func (c *childCore) tell(pid int, signal os.Signal) {
	p, err := os.FindProcess(pid) // by pidfd, where the kernel has that
	if err != nil {
		return
	}
	defer func() { _ = p.Release() }()
	if c.is(pid) {
		_ = p.Signal(signal) // it has ended: nothing to do
	}
}

// end ends all processes of the core: by SIGTERM, and by SIGKILL those that are left.
func (c *childCore) end(ctx context.Context) error {
	for _, pid := range c.all() {
		c.tell(pid, syscall.SIGTERM)
	}
	kill := time.Now().Add(c.stopFor)
	for {
		pids := c.all()
		if len(pids) == 0 {
			c.note(0, "it was ended")
			return nil
		}
		if time.Now().After(kill) {
			for _, pid := range pids {
				c.tell(pid, syscall.SIGKILL)
			}
		}
		if time.Now().After(kill.Add(10 * time.Second)) {
			return fmt.Errorf("the processes %v of the core can't be ended", pids)
		}
		if !backoff.Sleep(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
}

func (c *childCore) output(context.Context) string {
	f, err := os.Open(c.log)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > tailBytes {
		_, _ = f.Seek(-tailBytes, io.SeekEnd)
	}
	text, _ := io.ReadAll(f)
	return lastLines(text)
}

func procPath(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }

// processesWith are the processes that have a variable in their environment.
func processesWith(variable string) (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if hasVariable(pid, variable) && isRunning(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func hasVariable(pid int, variable string) bool {
	env, err := os.ReadFile(procPath(pid, "environ"))
	return err == nil && slices.ContainsFunc(bytes.Split(env, []byte{0}), func(v []byte) bool { return string(v) == variable })
}

// isRunning says whether a process is there, and no zombie.
func isRunning(pid int) bool {
	text, err := os.ReadFile(procPath(pid, "stat"))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist) && syscall.Kill(pid, 0) == nil
	}
	_, rest, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " ")
	return rest != "" && rest[0] != 'Z' && rest[0] != 'X'
}

// residentMemory is the memory of a process, in bytes; 0: that can't be known.
func residentMemory(pid int) int64 {
	text, err := os.ReadFile(procPath(pid, "statm"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// newCore is what runs the core; nil: nothing does. up is an upgrade that is being made.
func newCore(o *Options, up *upgradeRecord) core {
	switch {
	case len(o.Config.Core.Run) > 0:
		c := newChildCore(filepath.Join(o.Config.Dir, linkCurrent, programCore), o.Config.Core.Run, o.Config.Core.Data, filepath.Join(o.Dir, "upgrade", "core.log"), o.Config.Core.Stop, o.Log)
		c.trial = up != nil && stepTable[up.Step].holds // the step starts what is to run
		return c
	case o.Unit != nil:
		return &unitCore{Unit: o.Unit, name: o.Config.Core.Unit, began: time.Now()}
	}
	return nil
}
