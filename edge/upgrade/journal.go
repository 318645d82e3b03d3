// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics/resource"
)

// journal is the state of upgrades on disk, and what is reported besides it.
type journal struct {
	dataDir string // the agent's
	agent   string // its version
	log     zerolog.Logger
	now     func() time.Time
	changed func()            // there is something else to report
	before  func(step string) // nil: this is no test

	// unwritten says that the state is newer than that on disk, which could not be written.
	unwritten bool

	mu    sync.Mutex
	state upgradeState // of the goroutine of Run, which writes it with mu held
	live  liveStatus
}

// stateFormat is the format of the state on disk. It rises when an agent with the present one would misread it.
const stateFormat = 1

// upgradeState is what is kept on disk.
type upgradeState struct {
	Format int `json:"format"`
	// Version is the version of the core that is committed.
	Version string `json:"version,omitempty"`
	// Previous is the one before, which is kept.
	Previous string `json:"previous,omitempty"`
	// LastOutcome is how the last order ended, and PastOutcomes are those before it, without their logs: a hub that was restored from a backup orders
	// what it no longer knows, and gets the outcome.
	LastOutcome  *orderOutcome  `json:"lastOutcome,omitempty"`
	PastOutcomes []orderOutcome `json:"pastOutcomes,omitempty"`
	// Upgrade is the one that is being made, and Preparing the order of which nothing is changed yet, since when it is prepared.
	Upgrade   *upgradeRecord `json:"upgrade,omitempty"`
	Preparing preparedOrder  `json:"preparing,omitzero"`
	// Probation is that of the last upgrade that has succeeded.
	Probation *probationRecord `json:"probation,omitempty"`
	// RestartNeeded says that the version before took the place of a damaged one, and that the core may have to be started again with it.
	RestartNeeded bool `json:"restartNeeded,omitempty"`
}

// preparedOrder is an order that is prepared.
type preparedOrder struct {
	Order string    `json:"order"`
	Begun string    `json:"begun"`
	At    time.Time `json:"at"`
}

// upgradeRecord is the record of one that is being made.
type upgradeRecord struct {
	Order resource.UpgradeOrder `json:"order"`
	From  string                `json:"from"` // the version before, in an order of a version
	Step  string                `json:"step"`
	// Started is when it was begun.
	Started time.Time `json:"started"`
	// Resumed is how often the agent was started in the midst of it.
	Resumed int `json:"resumed,omitempty"`
	// Failed is why it is rolled back, AgentFailed why the agent is not replaced.
	Failed      *Failure `json:"failed,omitempty"`
	AgentFailed *Failure `json:"agentFailed,omitempty"`
	// RevertAttempts is how often what was before could not be put back, Unreverted why it could not, and Unwell why the core did not run with it.
	RevertAttempts int    `json:"revertAttempts,omitempty"`
	RevertError    string `json:"revertError,omitempty"`
	RestartError   string `json:"restartError,omitempty"`
	// ServicesError is why services don't run the version that is committed.
	ServicesError string `json:"servicesError,omitempty"`
	// AgentBoot is the boot of the host in which the new agent has taken the place of the old one.
	AgentBoot string `json:"agentBoot,omitempty"`
}

// orderOutcome is how an order ended.
type orderOutcome struct {
	Order   string    `json:"order"`
	From    string    `json:"from,omitempty"`
	To      string    `json:"to,omitempty"`
	Result  string    `json:"result"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Log     string    `json:"log,omitempty"`
	At      time.Time `json:"at"`
}

// Bounds of PastOutcomes: how many there are, and the bytes of a message.
const (
	maxPastOutcomes = 20
	maxPastMessage  = 1 << 10
)

// end makes an outcome the last one.
func (s *upgradeState) end(o orderOutcome) {
	s.PastOutcomes = slices.DeleteFunc(slices.Clone(s.PastOutcomes), func(e orderOutcome) bool { return e.Order == o.Order })
	if s.LastOutcome != nil && s.LastOutcome.Order != o.Order {
		before := *s.LastOutcome
		before.Message, before.Log = truncateText(before.Message, maxPastMessage), ""
		s.PastOutcomes = append(s.PastOutcomes, before)
	}
	s.PastOutcomes = s.PastOutcomes[max(0, len(s.PastOutcomes)-maxPastOutcomes):]
	s.LastOutcome, s.Upgrade = &o, nil
}

// liveStatus is what is told besides the state.
type liveStatus struct {
	order          string // that is prepared or waits
	from           string
	to             string
	held           bool
	step           string
	at             time.Time // since when
	waitReason     string    // why it does not go on
	versionDamage  string    // of the present version
	lastWaitReason string    // why the order that is prepared did not go on last

	received, size int64 // of what is downloaded
}

func openJournal(o *Options) (*journal, error) {
	if err := datadir.MakeDir(filepath.Join(o.Dir, "upgrade")); err != nil {
		return nil, err
	}
	j := &journal{dataDir: o.Dir, agent: o.Version, log: o.Log, now: o.Now, changed: o.Changed, before: o.BeforeStep}
	s, damage, err := readState(o.Dir)
	if err = errors.Join(err, damage); err != nil {
		return nil, fmt.Errorf("%w: move it away, and the version to which %s leads is kept", err, filepath.Join(o.Config.Dir, linkCurrent))
	}
	j.state = s
	if err := j.reserve(); err != nil {
		j.log.Warn().Err(err).Msg("no space could be set aside for the state of upgrades")
	}
	return j, nil
}

// CheckState says what is damaged of the state of upgrades in an agent's data directory. It returns an error if that can't be read.
func CheckState(dataDir string) (damage, err error) {
	_, damage, err = readState(dataDir)
	return damage, err
}

func readState(dataDir string) (s upgradeState, damage, err error) {
	path := filepath.Join(dataDir, "upgrade", "state.json")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil, nil
	}
	if err != nil {
		return s, nil, fmt.Errorf("the state of upgrades can't be read: %w", err)
	}
	if err = datadir.CheckFormat(text, stateFormat); errors.As(err, new(datadir.FormatError)) {
		return s, nil, fmt.Errorf("the state of upgrades %s %w", path, err)
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return upgradeState{}, fmt.Errorf("the state of upgrades %s is damaged: %w", path, err), nil
	}
	return s, nil, nil
}

func (j *journal) file(name string) string { return filepath.Join(j.dataDir, "upgrade", name) }

// reserveSize is set aside so that the state can be written on a full disk.
const reserveSize = 64 << 10

func (j *journal) reserve() error {
	if info, err := os.Stat(j.file("reserve")); err == nil && info.Size() == reserveSize {
		return nil
	}
	return datadir.WriteFile(j.file("reserve"), make([]byte, reserveSize))
}

// save changes the state, on disk first.
func (j *journal) save(change func(*upgradeState)) error {
	next := j.state
	change(&next)
	next.Format = stateFormat
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	j.hook("before the state is written")
	err = datadir.WriteFile(j.file("state.json"), text)
	if errors.Is(err, syscall.ENOSPC) && os.Remove(j.file("reserve")) == nil && datadir.SyncDir(j.file("")) == nil { // ext4 gives room back when it has synced
		err = datadir.WriteFile(j.file("state.json"), text)
	}
	if err != nil {
		return fmt.Errorf("the state of the upgrade can't be written: %w", err)
	}
	j.hook("after the state is written")
	j.mu.Lock()
	j.state, j.unwritten = next, false
	j.mu.Unlock()
	j.changed()
	return nil
}

// keep changes the state also if that can't be written: then until the agent ends, or until something is written again. It is for what may be
// done again after that.
func (j *journal) keep(change func(*upgradeState)) {
	if err := j.save(change); err != nil {
		j.assume(change, err)
	}
}

// assume changes the state although that could not be written.
func (j *journal) assume(change func(*upgradeState), why error) {
	j.log.Error().Err(why).Msg("it goes on without that")
	j.mu.Lock()
	change(&j.state)
	j.unwritten = true
	j.mu.Unlock()
	j.changed()
}

func (j *journal) hook(step string) {
	if j.before != nil {
		j.before(step)
	}
}

// from is the version before an order; empty if it is not of a version.
func (j *journal) from(o resource.UpgradeOrder) string {
	if o.Version == "" {
		return ""
	}
	return j.state.Version
}

// noteOrder says which order is dealt with.
func (j *journal) noteOrder(o resource.UpgradeOrder) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.live.order, j.live.from, j.live.to, j.live.held = o.ID, j.from(o), o.Version, o.Wait
}

// progress says where the upgrade is, and why it does not go on.
func (j *journal) progress(step string, err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	j.mu.Lock()
	same := j.live.step == step && j.live.waitReason == problem
	if j.live.step != step {
		j.live.at, j.live.received, j.live.size = j.now(), 0, 0
	}
	j.live.step, j.live.waitReason = step, problem
	j.mu.Unlock()
	if !same {
		j.changed()
	}
}

func (j *journal) noteWait(why string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.live.lastWaitReason = why
}

// noteReceived notes how far a download is.
func (j *journal) noteReceived(bytes, size int64) {
	j.mu.Lock()
	j.live.received, j.live.size = bytes, size
	j.mu.Unlock()
	j.changed()
}

// inTime fails when an order has taken too long since it was begun.
func (j *journal) inTime(o resource.UpgradeOrder, begun time.Time) error {
	if limit := time.Duration(o.Timeout) * time.Second; j.now().Sub(begun) > limit {
		return failf(resource.UpgradeFailedTimeout, "it took longer than %s, at last %s: %s", limit, j.live.step, cmp.Or(j.live.waitReason, j.live.lastWaitReason, "no cause is known"))
	}
	return nil
}

// maxText bounds messages and logs in a report.
const maxText = 4 << 10

func truncateText(text string, most int) string {
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// Report is what there is to tell the hub.
func (j *journal) Report() resource.UpgradeReport {
	j.mu.Lock()
	s, seen := j.state, j.live
	j.mu.Unlock()
	r := resource.UpgradeReport{Version: s.Version, Agent: j.agent, Held: heldByOwner(j.dataDir)}
	up, done := s.Upgrade, s.LastOutcome
	switch {
	case up != nil:
		r.Order, r.From, r.To, r.Step, r.Message = up.Order.ID, up.From, up.Order.Version, stepTable[up.Step].report, seen.waitReason
		if up.Failed != nil {
			r.Reason, r.Message, r.Log = up.Failed.Reason, strings.TrimSuffix(up.Failed.Message+"; "+seen.waitReason, "; "), up.Failed.Log
		}
	case seen.step != "":
		r.Order, r.Wait, r.From, r.To, r.Step, r.Message = seen.order, seen.held, seen.from, seen.to, seen.step, seen.waitReason
		r.Received, r.Size = seen.received, seen.size
	case done != nil:
		r.Order, r.From, r.To, r.Result, r.Reason, r.Message, r.Log = done.Order, done.From, done.To, done.Result, done.Reason, done.Message, done.Log
		r.At = resource.FormatTime(done.At)
	}
	if r.Step != "" && !seen.at.IsZero() {
		r.At = resource.FormatTime(seen.at)
	}
	if seen.versionDamage != "" {
		r.Message = strings.TrimPrefix(r.Message+"; "+seen.versionDamage, "; ")
	}
	if r.Result == "" && r.Step == "" && seen.waitReason != "" {
		r.Message = strings.TrimPrefix(r.Message+"; "+seen.waitReason, "; ")
	}
	r.Message, r.Log = truncateText(r.Message, maxText), truncateText(r.Log, maxText)
	return r
}

// reportName is a copy of the report for commands of this host.
const reportName = "report.json"

// LastReport is the last report of an agent, for people of this host.
func LastReport(dataDir string) (r resource.UpgradeReport, err error) {
	text, err := os.ReadFile(filepath.Join(dataDir, "upgrade", reportName))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

// Note keeps a copy of a report for commands of this host.
func (j *journal) Note(r resource.UpgradeReport) {
	if text, err := json.Marshal(r); err == nil {
		_ = os.WriteFile(j.file(reportName+".new"), text, 0o600) // the next one may succeed
		_ = os.Rename(j.file(reportName+".new"), j.file(reportName))
	}
}
