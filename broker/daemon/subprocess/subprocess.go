// SPDX-License-Identifier: Apache-2.0

// Package subprocess runs programs of the host to their end, for whoever needs their outcome: hooks, compose, bootc, systemctl, a
// new core's checks.
//
// A program gets a process group of its own, no input, and an environment without what is meant for this process. When its time is over, or the
// context ends, the whole group is killed: what a killed program had started would otherwise go on beside whatever undoes its work. It never
// starts a service: that outlives its parent, and has a supervisor.
package subprocess

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// maxOutput bounds the output that Run returns, in bytes.
const maxOutput = 4 << 20

// pipeTimeout is how long Run waits for the output of a process that has left the group.
const pipeTimeout = time.Second

// Command is a program with its arguments.
type Command struct {
	Argv []string
	Dir  string        // empty: the root directory
	Env  []string      // nil: Environment()
	Time time.Duration // how long it may take; 0: as long as the context
	As   *syscall.Credential
}

// Run runs the program and returns what it wrote to its standard output. The error has the end of what it wrote to both of its outputs.
func (c Command) Run(ctx context.Context) ([]byte, error) {
	if len(c.Argv) == 0 {
		return nil, errors.New("there is no command")
	}
	if c.Time > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.Time, fmt.Errorf("it took longer than %s and was ended", c.Time))
		defer cancel()
	}
	var end, stderr Tail
	out := &outputBuffer{end: &end}
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...) //nolint:gosec // G204: the caller's, which says where it comes from
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = c.Dir, c.Env, out, &stderr
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	if cmd.Env == nil {
		cmd.Env = Environment()
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: c.As}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = pipeTimeout
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it left something running, and succeeded itself
	}
	switch {
	case err != nil && ctx.Err() != nil:
		err = context.Cause(ctx)
	case err == nil && out.text.Len() > maxOutput:
		err = fmt.Errorf("it wrote more than %d bytes", maxOutput)
	}
	if err != nil {
		end.append(&stderr)
		return nil, fmt.Errorf("%w%s", err, &end)
	}
	return out.text.Bytes(), nil
}

// outputBuffer keeps what is written, up to a little more than maxOutput.
type outputBuffer struct {
	text bytes.Buffer
	end  *Tail
}

func (o *outputBuffer) Write(p []byte) (int, error) {
	if room := maxOutput + 1 - o.text.Len(); room > 0 {
		o.text.Write(p[:min(len(p), room)])
	}
	return o.end.Write(p)
}

// Environment is this process's environment without what is meant for it alone: its settings, and what systemd hands a service.
func Environment() []string {
	return slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		switch name {
		case "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "CREDENTIALS_DIRECTORY", "INVOCATION_ID", "JOURNAL_STREAM":
			return true
		}
		return strings.HasPrefix(name, "EDGEBUS_") || strings.HasPrefix(name, "EDGEAGENT_")
	})
}
