// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics/resource"
)

// journal is the agent's state on disk, and what is reported besides it.
type journal struct {
	dir     string // the data directory
	log     zerolog.Logger
	now     func() time.Time
	before  func(step string) // nil: this is no test
	reports chan struct{}     // capacity 1: there may be something to report

	mu    sync.Mutex
	state agentState // of the goroutine of work, which writes it with mu held
	live  liveStatus
}

// agentState is what an agent keeps on disk.
type agentState struct {
	Format int `json:"format"`
	// Applied is the spec that is applied whole; without a version there is none.
	Applied resource.RenderedSpec `json:"applied"`
	// Failed is the version that failed last, and FailedDigest the digest of its content: a hub that has lost its store may
	// give the number to another content.
	Failed       *resource.FailedVersion `json:"failed,omitempty"`
	FailedDigest string                  `json:"failedDigest,omitempty"`
	// Unstarted are the optional applications of Applied that are still to be started.
	Unstarted []string `json:"unstarted,omitempty"`
	// Update is the update that is being made.
	Update *specUpdate `json:"update,omitempty"`
	// Hooks is how far the hooks of the update are that is being made or prepared.
	Hooks hookProgress `json:"hooks,omitzero"`
	// Downloaded is what was downloaded before its window.
	Downloaded downloadedSpec `json:"downloaded,omitzero"`
	// Boot is the boot of the host that the agent saw last, and BootSeen when it first saw it.
	Boot     string    `json:"boot,omitempty"`
	BootSeen time.Time `json:"bootSeen,omitzero"`
	// Rebooted says that the agent has seen another boot before.
	Rebooted bool `json:"rebooted,omitempty"`
}

// downloadedSpec is a spec that was downloaded before its window.
type downloadedSpec struct {
	// Digest is the digest of the spec.
	Digest string `json:"digest"`
	// OSDone says that there is nothing to download for its OS image; OS is the image if it was downloaded, for this spec or an earlier one.
	OSDone bool   `json:"osDone,omitempty"`
	OS     string `json:"os,omitempty"`
}

// specUpdate is one that is being made.
type specUpdate struct {
	Spec resource.RenderedSpec `json:"spec"`
	Step string                `json:"step"`
	// Resumed is how often the agent was started in the midst of it.
	Resumed int `json:"resumed,omitempty"`
	// Unstarted are the optional applications that are to be started after it.
	Unstarted []string `json:"unstarted,omitempty"`
	// OSBefore is the image that was booted when another one was to be made the next; it is on disk before that is done.
	OSBefore *resource.OSStatus `json:"osBefore,omitempty"`
	// Boot is the boot in which the reboot was ordered.
	Boot string `json:"boot,omitempty"`
	// Failed is why it is rolled back.
	Failed *resource.FailedVersion `json:"failed,omitempty"`
	// RollbackReboots is how many boots of the host were to be into the image before; RollbackBoot is the last of them that was ended for it.
	RollbackReboots int    `json:"rollbackReboots,omitempty"`
	RollbackBoot    string `json:"rollbackBoot,omitempty"`
}

// liveStatus is what an agent reports besides its state.
type liveStatus struct {
	version     string // of the update that is being made
	step        string // of the update that is being made
	waitReason  string // why it does not go on, or why the spec can't be read
	drifted     []string
	driftLeft   bool                    // they are left alone
	blocked     []blockedFile           // files that can't be put back
	failed      *resource.FailedVersion // that is not in the state, because that can't be written
	failingApps map[string]string       // why optional applications don't start, by name
	driftError  string
	stateDamage string // of the state when the agent started
}

// blockedFile is a file that can't be put back, and why.
type blockedFile struct{ path, why string }

const (
	stateName = "state.json"
	// stateFormat is the format of the state on disk. It rises when an agent with the present one would misread it.
	stateFormat = 1
)

func loadState(dir string) (agentState, error) {
	var s agentState
	text, err := os.ReadFile(filepath.Join(dir, stateName))
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("the agent's state can't be read: %w", err)
	}
	if err = datadir.CheckFormat(text, stateFormat); errors.As(err, new(datadir.FormatError)) {
		return s, fmt.Errorf("the agent's state %s %w: move it away, and start the agent again: it applies the node's spec anew", filepath.Join(dir, stateName), err)
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return agentState{}, stateDamagedError{fmt.Errorf("the agent's state %s is damaged: %w", filepath.Join(dir, stateName), err)}
	}
	return s, nil
}

// stateDamagedError is of a state that is on disk and is none.
type stateDamagedError struct{ error }

func (s agentState) save(dir string) error {
	s.Format = stateFormat
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return datadir.WriteFile(filepath.Join(dir, stateName), text)
}

// stateWriteError is of a state that could not be written.
type stateWriteError struct{ error }

func (e stateWriteError) Unwrap() error { return e.error }

func (j *journal) hook(step string) {
	if j.before != nil {
		j.before(step)
	}
}

// save changes the state, on disk first.
func (j *journal) save(change func(*agentState)) error {
	j.mu.Lock()
	next := j.state
	j.mu.Unlock()
	change(&next)
	j.hook("before the state is written")
	if err := next.save(j.dir); err != nil {
		return stateWriteError{fmt.Errorf("the agent's state can't be written: %w", err)}
	}
	j.hook("after the state is written")
	j.mu.Lock()
	j.state, j.live.failed = next, nil
	j.mu.Unlock()
	j.changed()
	return nil
}

func (j *journal) saveUpdate(u specUpdate) error {
	return j.save(func(s *agentState) { s.Update = &u })
}

// progress says where the update is, and why it does not go on.
func (j *journal) progress(version, step string, err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	j.mu.Lock()
	same := j.live.version == version && j.live.step == step && j.live.waitReason == problem
	j.live.version, j.live.step, j.live.waitReason = version, step, problem
	j.mu.Unlock()
	if !same {
		j.changed()
	}
}

// downloading says how far the contents of the version that is prepared are.
func (j *journal) downloading(how error) {
	j.mu.Lock()
	version, step := j.live.version, j.live.step
	j.mu.Unlock()
	if step == stepStage {
		j.progress(version, step, how)
	}
}

// reportUnsaved reports a version as failed while the agent's state can't be written, so that it can't go on.
func (j *journal) reportUnsaved(spec resource.RenderedSpec, err error) {
	if !errors.As(err, new(stateWriteError)) {
		return
	}
	j.mu.Lock()
	j.live.failed = &resource.FailedVersion{RenderedVersion: spec.RenderedVersion, Reason: resource.FailedWrite, Message: err.Error(), At: resource.FormatTime(j.now())}
	j.mu.Unlock()
	j.changed()
}

// changed says that there may be something to report.
func (j *journal) changed() { signalChange(j.reports) }

// specDigest tells the content of one spec from another's.
func specDigest(spec resource.RenderedSpec) string {
	text, _ := json.Marshal(spec) // it was read from JSON
	return resource.DigestOf(text)
}

// wants reports whether a spec is to be applied: it is another than the one that is, and not the one that failed.
func (s agentState) wants(spec *resource.RenderedSpec) bool {
	if spec == nil || s.failedBefore(spec) {
		return false
	}
	// A hub that was restored from a backup may give a version's number to another content.
	return spec.RenderedVersion != s.Applied.RenderedVersion || !reflect.DeepEqual(*spec, s.Applied)
}

// failedBefore reports whether a spec is the one that failed last.
func (s agentState) failedBefore(spec *resource.RenderedSpec) bool {
	return spec != nil && s.Failed != nil && s.Failed.RenderedVersion == spec.RenderedVersion && s.FailedDigest == specDigest(*spec)
}
