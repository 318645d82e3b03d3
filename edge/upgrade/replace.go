// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// AgentReplacement is returned by Run when the agent is to be replaced. The agent then ends in order, and its process calls Try.
type AgentReplacement struct {
	u       *Upgrader
	version string
}

func (r *AgentReplacement) Error() string { return "the agent is replaced by version " + r.version }

// trialEnv has the number of the file to which an agent on trial writes when it has reported. It is no setting.
const trialEnv = "EDGEAGENT_TRIAL"

// IsOnTrial says whether this process is an agent on trial.
func IsOnTrial() bool { return os.Getenv(trialEnv) != "" }

// takeoverEnv is of an agent that has taken the place of another one: the number of the file to which it writes when it has reported, and the
// process that waits for that. guardEnv is of that process: the agent that it ends otherwise. They are no settings.
const (
	takeoverEnv = "EDGEAGENT_TAKEOVER"
	guardEnv    = "EDGEAGENT_GUARD"
)

const provenText = "proven\n"

// Proven is called once, when this agent has reported and the core has stored that: it works.
func (u *Upgrader) Proven() {
	close(u.proven)
	var file, guard int
	if n, _ := fmt.Sscan(os.Getenv(trialEnv)+os.Getenv(takeoverEnv), &file, &guard); n == 0 {
		return
	}
	f := os.NewFile(uintptr(file), "proof")
	_, _ = f.WriteString(provenText) // whoever waits for it finds out
	_ = f.Close()
	_ = os.Unsetenv(takeoverEnv)
	if guard > 0 {
		_, _ = syscall.Wait4(guard, nil, 0, nil) // it ends now
	}
}

// takeAgent asks to be replaced by the agent of the version, unless it is the one that runs, or the version has none.
func (u *Upgrader) takeAgent(_ context.Context, up *upgradeRecord) (stepResult, error) {
	switch {
	case !u.versions.hasAgent(up.Order):
		return resultDone, nil
	case !u.versions.runsAgentOf(up.Order.Version):
		return resultReplace, nil
	}
	return resultOf(u.versions.link(linkAgent, up.Order.Version))
}

// takeOver has the link lead to this agent, which has the place of the one before, when it has reported. Until then it leads to the one before, which
// starts if this one ends.
func (u *Upgrader) takeOver(ctx context.Context, up *upgradeRecord) (stepResult, error) {
	select {
	case <-ctx.Done():
		return resultAgain, ctx.Err()
	case <-u.proven:
	}
	return resultOf(u.versions.link(linkAgent, up.Order.Version))
}

// hasAgent says whether an order's version has an agent, by which the present one can be replaced.
func (i *installation) hasAgent(o resource.UpgradeOrder) bool {
	return i.has(o.Version, programAgent) && i.linked(linkAgent) != "" && len(o.Command) == 0
}

// lacksAgent says whether the present agent is still another one than that of an order's version, because that has failed.
func (i *installation) lacksAgent(o resource.UpgradeOrder) bool {
	return i.hasAgent(o) && !i.runsAgentOf(o.Version)
}

// ownProgram is the program of this process, also when its file was removed or replaced.
const ownProgram = "/proc/self/exe"

// runsAgentOf says whether this process is the agent of a version.
func (i *installation) runsAgentOf(version string) bool {
	return sameContent(ownProgram, filepath.Join(i.path(version), programAgent))
}

// sameContent says whether two files have the same content.
func sameContent(a, b string) bool {
	x, errX := fileDigest(a)
	y, errY := fileDigest(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

func fileDigest(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return h.Sum(nil), err
}

// Try runs the new agent beside the process of the old one, which has ended everything else. When the new one has reported within
// upgrade.trial.timeout it takes the place of this process: then Try does not return. Else it is noted that it failed, and the old one goes on. The link
// leads to the old agent until the new one has reported again, in its place: that is what starts after a power cut. It returns an error if the process
// is to end.
func (r *AgentReplacement) Try(ctx context.Context, log zerolog.Logger) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	program := filepath.Join(r.u.versions.path(r.version), programAgent)
	log.Info().Str("version", r.version).Msg("the new agent is started on trial")
	err := tryAgent(ctx, program, os.Args[1:], r.u.o.Config.Trial.Timeout)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		log.Info().Str("version", r.version).Msg("the new agent takes over")
		err = r.takeOver(program)
	}
	log.Error().Err(err).Str("version", r.version).Msg("the new agent failed: the present one goes on")
	for {
		e := r.note(resultFailed, &Failure{Reason: resource.UpgradeFailedAgent, Message: err.Error()})
		if e == nil {
			return nil
		}
		log.Error().Err(e).Msg("the agent waits until it can note that")
		if !backoff.Sleep(ctx, pollPause) {
			return ctx.Err()
		}
	}
}

// note puts on disk how the trial of the new agent went.
func (r *AgentReplacement) note(to stepResult, why error) error {
	up := *r.u.state.Upgrade
	up.AgentBoot = r.u.o.Boot
	change, _ := up.after(to, why)
	return r.u.save(change)
}

// takeOver has a program take the place of this process. It returns only if that fails, and then all is as it was.
func (r *AgentReplacement) takeOver(program string) error {
	if err := r.note(resultReplaced, nil); err != nil {
		return err
	}
	guard, to, err := startGuard()
	if err != nil {
		return fmt.Errorf("nothing can observe it: %w", err)
	}
	env := append(os.Environ(), fmt.Sprintf("%s=%d %d", takeoverEnv, to, guard.Process.Pid))
	err = syscall.Exec(program, slices.Concat([]string{program}, os.Args[1:]), env) //nolint:gosec // a program that was verified
	_ = guard.Process.Kill()
	_ = guard.Wait()
	_ = syscall.Close(to)
	return fmt.Errorf("it can't take over: %w", err)
}

// startGuard starts the program of this agent once more, as the process that observes the one that takes over. to is the file to which that writes.
func startGuard() (guard *exec.Cmd, to int, err error) {
	from, proof, err := os.Pipe()
	if err != nil {
		return nil, 0, err
	}
	defer from.Close()
	defer proof.Close()
	guard = exec.Command(ownProgram, os.Args[1:]...) //nolint:gosec // this program, with its own arguments
	guard.ExtraFiles = []*os.File{from}
	guard.Env = append(slices.DeleteFunc(os.Environ(), isNotifySocket), guardEnv+"="+strconv.Itoa(os.Getpid()))
	guard.Stdout, guard.Stderr = os.Stdout, os.Stderr
	if err := guard.Start(); err != nil {
		return nil, 0, err
	}
	if to, err = syscall.Dup(int(proof.Fd())); err != nil { // a duplicate stays open in the program that takes over
		return nil, 0, errors.Join(err, guard.Process.Kill(), guard.Wait())
	}
	return guard, to, nil
}

func isNotifySocket(pair string) bool { return strings.HasPrefix(pair, "NOTIFY_SOCKET=") }

// IsGuard says whether this process is to be Guard.
func IsGuard() bool { return os.Getenv(guardEnv) != "" }

// RunGuard ends the agent that has taken over if that does not report within limit, or closes the file to which it is to write. The agent's unit
// then starts what the link leads to, the agent before.
func RunGuard(limit time.Duration, log zerolog.Logger) {
	pid, err := strconv.Atoi(os.Getenv(guardEnv))
	if err != nil {
		return
	}
	over, proven := time.After(limit), make(chan bool, 1)
	go func() { proven <- readProof(os.NewFile(3, "proof")) }()
	select {
	case ok := <-proven:
		if ok {
			return
		}
	case <-over:
	}
	if os.Getppid() != pid { // it has ended
		return
	}
	log.Error().Dur("limit", limit).Msg("the agent that has taken over has not reported: it is ended")
	_ = syscall.Kill(pid, syscall.SIGKILL) // this process' parent, so it is there
}

// readProof waits until an agent has written that it has reported, or has closed the file.
func readProof(from io.Reader) bool {
	text, _ := io.ReadAll(io.LimitReader(from, int64(len(provenText)))) // what is missing is no proof
	return string(text) == provenText
}

// tryAgent runs an agent until it has reported, and ends it.
func tryAgent(ctx context.Context, program string, args []string, limit time.Duration) error {
	from, to, err := os.Pipe()
	if err != nil {
		return err
	}
	defer from.Close()
	out := &outputTail{}
	cmd := exec.Command(program, args...)
	cmd.ExtraFiles = []*os.File{to}
	cmd.Env = append(slices.DeleteFunc(os.Environ(), isNotifySocket), trialEnv+"=3")
	cmd.Stdout, cmd.Stderr = os.Stdout, out
	cmd.WaitDelay = time.Second
	err = cmd.Start()
	_ = to.Close()
	if err != nil {
		return fmt.Errorf("it can't be started: %w", err)
	}
	ended, proven := make(chan error, 1), make(chan bool, 1)
	go func() { ended <- cmd.Wait() }()
	go func() { proven <- readProof(from) }()
	over := time.After(limit)
	for {
		select {
		case <-ended:
			return fmt.Errorf("it ended before it reported: %s; the end of its output: %s", cmd.ProcessState, out)
		case ok := <-proven:
			if !ok {
				proven = nil // it ends
				continue
			}
			return endProcess(cmd, ended)
		case <-over:
			err = fmt.Errorf("it did not report within %s; the end of its output: %s", limit, out)
		case <-ctx.Done():
			err = ctx.Err()
		}
		return errors.Join(err, endProcess(cmd, ended))
	}
}

// endTimeout is how long an agent may take to end.
const endTimeout = 15 * time.Second

func endProcess(cmd *exec.Cmd, ended <-chan error) error {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-ended:
		return nil
	case <-time.After(endTimeout):
		_ = cmd.Process.Kill()
		<-ended
		return fmt.Errorf("it did not end within %s", endTimeout)
	}
}

// outputTail passes on what a program prints, and keeps its end.
type outputTail struct {
	mu   sync.Mutex
	text []byte
}

func (o *outputTail) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	o.text = o.text[max(0, len(o.text)-tailBytes):]
	return os.Stderr.Write(p)
}

func (o *outputTail) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return lastLines(o.text)
}
