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

	"github.com/edgebus/edgebus/topics/resource"
)

// Replace is returned by Run when the agent is to be replaced. The agent then ends in order, and its process calls Try.
type Replace struct {
	u       *Upgrader
	version string
}

func (r *Replace) Error() string { return "the agent is replaced by version " + r.version }

// trialEnv has the number of the file to which an agent on trial writes when it has reported. It is no setting.
const trialEnv = "EDGEAGENT_TRIAL"

// OnTrial says whether this process is an agent on trial.
func OnTrial() bool { return os.Getenv(trialEnv) != "" }

// Proven tells the agent that has started this one on trial that it works: it has reported, and the core has stored that. It is called once.
func Proven() {
	n, err := strconv.Atoi(os.Getenv(trialEnv))
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(n), "trial")
	_, _ = f.WriteString(proof) // who waits for it finds out
	_ = f.Close()
}

const proof = "proven\n"

// failedAgent is the reason of an upgrade that succeeded but for the agent.
const failedAgent = "AgentFailed"

// replaceAgent asks to be replaced by the agent of the version, unless it is the one that runs, or the version has none, or it has failed.
func (u *Upgrader) replaceAgent(o resource.UpgradeOrder) error {
	if f := u.state.Upgrade.AgentFailed; f != nil {
		return f
	}
	if !u.versions.has(o.Version, programAgent) || u.versions.linked(linkAgent) == "" || len(o.Command) > 0 {
		return nil
	}
	program := filepath.Join(u.versions.path(o.Version), programAgent)
	if own, err := os.Executable(); err == nil && same(own, program) {
		return u.versions.link(linkAgent, o.Version)
	}
	return &Replace{u, o.Version}
}

// same says whether two files have the same content.
func same(a, b string) bool {
	x, errX := digest(a)
	y, errY := digest(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

func digest(path string) ([]byte, error) {
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
// upgrade.trial.timeout the link leads to it, and it takes the place of this process: then Try does not return. Else it is noted that it failed, and the
// old one goes on. The link leads to the old agent until then, so that is what starts after a power cut. It returns an error if the process is to end.
func (r *Replace) Try(ctx context.Context, log zerolog.Logger) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	program := filepath.Join(r.u.versions.path(r.version), programAgent)
	log.Info().Str("version", r.version).Msg("the new agent is started on trial")
	err := tryAgent(ctx, program, os.Args[1:], r.u.o.Config.Trial.Timeout)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		err = r.u.versions.link(linkAgent, r.version)
	}
	if err == nil {
		log.Info().Str("version", r.version).Msg("the new agent takes over")
		err = syscall.Exec(program, slices.Concat([]string{program}, os.Args[1:]), os.Environ()) //nolint:gosec // a program that was verified
	}
	log.Error().Err(err).Str("version", r.version).Msg("the new agent failed: the present one goes on")
	return r.u.save(func(s *state) {
		up := *s.Upgrade
		up.AgentFailed = &Failure{Reason: failedAgent, Message: err.Error()}
		s.Upgrade = &up
	})
}

// tryAgent runs an agent until it has reported, and ends it.
func tryAgent(ctx context.Context, program string, args []string, limit time.Duration) error {
	from, to, err := os.Pipe()
	if err != nil {
		return err
	}
	defer from.Close()
	out := &output{}
	cmd := exec.Command(program, args...)
	cmd.ExtraFiles = []*os.File{to}
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "NOTIFY_SOCKET=") }), trialEnv+"=3")
	cmd.Stdout, cmd.Stderr = os.Stdout, out
	cmd.WaitDelay = time.Second
	err = cmd.Start()
	_ = to.Close()
	if err != nil {
		return fmt.Errorf("it can't be started: %w", err)
	}
	ended, proven := make(chan error, 1), make(chan bool, 1)
	go func() { ended <- cmd.Wait() }()
	go func() {
		text, _ := io.ReadAll(io.LimitReader(from, int64(len(proof))))
		proven <- string(text) == proof
	}()
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
			return end(cmd, ended)
		case <-over:
			err = fmt.Errorf("it did not report within %s; the end of its output: %s", limit, out)
		case <-ctx.Done():
			err = ctx.Err()
		}
		return errors.Join(err, end(cmd, ended))
	}
}

// endTime is how long an agent may take to end.
const endTime = 15 * time.Second

func end(cmd *exec.Cmd, ended <-chan error) error {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-ended:
		return nil
	case <-time.After(endTime):
		_ = cmd.Process.Kill()
		<-ended
		return fmt.Errorf("it did not end within %s", endTime)
	}
}

// output passes on what a program prints, and keeps its end.
type output struct {
	mu   sync.Mutex
	text []byte
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	o.text = o.text[max(0, len(o.text)-tailBytes):]
	return os.Stderr.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return tail(o.text)
}
