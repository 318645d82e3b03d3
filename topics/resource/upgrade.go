// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Upgrade changes the version of the edge core, or its settings, or the container images on a set of nodes.
type Upgrade struct {
	TypeMeta
	Metadata Meta          `json:"metadata"`
	Spec     UpgradeSpec   `json:"spec"`
	Status   UpgradeStatus `json:"status,omitzero"`
}

// UpgradeSpec is which nodes get which version, settings or images. Exactly one of version, settings and images is set. The
// nodes are chosen by either nodeNames or labelSelector, which are immutable. The nodes that a selector matches are determined
// when a run begins: a node that matches later is not part of it.
type UpgradeSpec struct {
	// Version is the desired version of the edge core, such as v1.10.0. It can be changed when all nodes have answered.
	Version string `json:"version,omitempty"`
	// Settings are desired settings of the edge core: values in YAML by name, with dots, such as link.rate. At most 64, with
	// values of at most 1,024 bytes.
	Settings map[string]string `json:"settings,omitempty"`
	// Images are container images that the nodes pull. At most 32.
	// +listType=set
	Images []string `json:"images,omitempty"`
	// UpgradeInstaller is the command that installs the upgrader; the usual one when empty. No shell reads it. It is a command
	// and its arguments, separated by single blanks, of letters, digits and ._/+:=,@%-, at most 1,024 characters.
	UpgradeInstaller string `json:"upgradeInstaller,omitempty"`
	// UpgradeCmd is the command that upgrades a node; the usual one when empty. It has the form of upgradeInstaller.
	UpgradeCmd string `json:"upgradeCmd,omitempty"`
	// NodeNames are the names of the nodes, at most 4,096.
	// +listType=set
	NodeNames []string `json:"nodeNames,omitempty"`
	// LabelSelector chooses the nodes by their labels.
	LabelSelector *LabelSelector `json:"labelSelector,omitempty"`
	// Artifact is the name of the Artifact with the programs; when empty, the Artifact whose name is the version. With
	// upgradeCmd no Artifact is needed.
	Artifact string `json:"artifact,omitempty"`
	// Concurrency is how many nodes are upgraded at a time; 1 when missing or 0.
	// +kubebuilder:validation:Minimum=0
	Concurrency int `json:"concurrency,omitempty"`
	// FailureBudget is how many nodes may fail before no further node is begun: a number, or a percentage of the nodes, such as
	// 10%, rounded up; 10% when empty.
	FailureBudget string `json:"failureBudget,omitempty"`
	// Timeout is the time that a node may take, at least 1s, such as 30m; 10m when empty. A node that takes longer counts as
	// failed.
	Timeout string `json:"timeout,omitempty"`
	// Checks are limits of the use of the host's resources. A node waits until they are met.
	Checks *UpgradeChecks `json:"checks,omitempty"`
	// Window is the time in which nodes may be begun; any time when missing.
	Window *UpgradeWindow `json:"window,omitempty"`
	// RequireConfirmation makes the upgrade wait before the first node is begun until confirmed has the right value.
	RequireConfirmation bool `json:"requireConfirmation,omitempty"`
	// Confirmed confirms the upgrade. The right value is the version, or, for settings and images, the value of
	// status.rollout.spec.
	Confirmed string `json:"confirmed,omitempty"`
	// RequireNodeConfirmation makes each node wait until its owner releases the upgrade with edgeagent upgrade release.
	RequireNodeConfirmation bool `json:"requireNodeConfirmation,omitempty"`
	// AllowDowngrade permits a version that is older than the node's.
	AllowDowngrade bool `json:"allowDowngrade,omitempty"`
	// Paused stops the beginning of further nodes. Nodes that have begun go on.
	Paused bool `json:"paused,omitempty"`
	// Aborted ends the upgrade. No further node is begun, and nodes that have not changed anything yet are told to stop.
	Aborted bool `json:"aborted,omitempty"`
	// Attempt is incremented to try nodes again that have failed.
	// +kubebuilder:validation:Minimum=0
	Attempt int `json:"attempt,omitempty"`
}

// UpgradeChecks are limits of the use of a host's resources, in percent. A resource whose limit is 0 is not checked.
type UpgradeChecks struct {
	// CPU is the limit for the processors, from 0 to 100.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	CPU int `json:"cpu,omitempty"`
	// Memory is the limit for the memory, from 0 to 100.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Memory int `json:"memory,omitempty"`
	// Disk is the limit for the file system with the core's data, from 0 to 100.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Disk int `json:"disk,omitempty"`
}

// UpgradeWindow is a period that recurs on some days of the week.
type UpgradeWindow struct {
	// From is the time when the window opens, as HH:MM, such as 22:00.
	From string `json:"from"`
	// To is the time when the window closes, as HH:MM. If it is not after from, the window closes on the next day.
	To string `json:"to"`
	// Days are the days on which the window opens: Mon, Tue, Wed, Thu, Fri, Sat, Sun; all days when empty.
	// +listType=set
	Days []string `json:"days,omitempty"`
	// TimeZone is the time zone of from and to, such as Europe/Berlin; UTC when empty.
	TimeZone string `json:"timeZone,omitempty"`
}

// UpgradeStatus is the progress of an upgrade.
type UpgradeStatus struct {
	// Rollout is the progress over all nodes.
	Rollout *UpgradeRollout `json:"rollout,omitempty"`
	// Nodes has the progress of each node that has been given an order.
	// +listType=map
	// +listMapKey=nodeName
	Nodes []UpgradeNode `json:"nodes,omitempty"`
	// Conditions are those of the upgrade as a whole: Ready says whether all nodes have what it orders; Stalled is True while
	// somebody has to help.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// UpgradeRollout is the progress of a run over all nodes of an upgrade.
type UpgradeRollout struct {
	// Run is the number of the run. Another version, other settings or images, and another attempt begin a new run.
	Run int `json:"run"`
	// Spec is a hash of everything that the run does.
	Spec string `json:"spec,omitempty"`
	// Started is the time when the run began.
	Started string `json:"started,omitempty"`
	// Nodes is the number of nodes.
	Nodes int `json:"nodes"`
	// Pending is the number of nodes that have not begun.
	Pending int `json:"pending,omitempty"`
	// Upgrading is the number of nodes that have begun and have not answered.
	Upgrading int `json:"upgrading,omitempty"`
	// Succeeded is the number of nodes that have succeeded.
	Succeeded int `json:"succeeded,omitempty"`
	// Failed is the number of nodes that have failed, or did not answer in time.
	Failed int `json:"failed,omitempty"`
	// Away is the number of nodes that have succeeded, went away within a day after that, and are not back.
	Away int `json:"away,omitempty"`
	// Reason is why no further nodes are begun now, in one word; empty if all have begun.
	Reason string `json:"reason,omitempty"`
	// Message is the reason as a sentence for people.
	Message string `json:"message,omitempty"`
}

// UpgradeNode is the progress of one node.
type UpgradeNode struct {
	// NodeName is the name of the node.
	NodeName string `json:"nodeName"`
	// History are the attempts, the newest last: at most 20.
	// +kubebuilder:validation:MaxItems=20
	History []UpgradeAttempt `json:"history,omitempty"`
}

// UpgradeAttempt is one attempt to upgrade a node.
type UpgradeAttempt struct {
	// FromVersion is the version before the attempt.
	FromVersion string `json:"fromVersion,omitempty"`
	// ToVersion is the desired version.
	ToVersion string `json:"toVersion,omitempty"`
	// OperationStatus is the state or the result of the attempt.
	// +kubebuilder:validation:Enum=pending;upgrading;upgrade_success;upgrade_failed_rollback_success;upgrade_failed_rollback_failed
	OperationStatus string `json:"operationStatus,omitempty"`
	// Reason is why the attempt failed, or what the node waits for: a word, a colon, and an explanation for people.
	Reason string `json:"reason,omitempty"`
	// Run is the number of the run, as in status.rollout.
	Run int `json:"run,omitempty"`
	// Step is what the node is doing while it is upgrading.
	Step string `json:"step,omitempty"`
	// StartedAt is the time when the node was told to begin.
	StartedAt string `json:"startedAt,omitempty"`
	// EndedAt is the time when the result was known, or when the time for it had run out. In that case the attempt counts as
	// failed, and a later answer is still recorded.
	EndedAt string `json:"endedAt,omitempty"`
	// AwaySince is the time since when a node is away that has succeeded, if it went away within a day after that.
	AwaySince string `json:"awaySince,omitempty"`
}

// The values of UpgradeAttempt.OperationStatus.
const (
	UpgradePending        = "pending" // the node has not been told to begin
	Upgrading             = "upgrading"
	UpgradeSuccess        = "upgrade_success"
	UpgradeRolledBack     = "upgrade_failed_rollback_success"
	UpgradeRollbackFailed = "upgrade_failed_rollback_failed"
)

// MaxUpgradeHistory is the largest number of attempts in a node's history.
const MaxUpgradeHistory = 20

// Validate checks an Upgrade.
func (u Upgrade) Validate() error {
	var p causeList
	u.Metadata.check(&p)
	s := u.Spec
	if s.Action() == "" {
		p.add("spec.version", "is required, unless there are settings or images")
	}
	if n := len(s.actions()); n > 1 {
		p.add("spec."+s.actions()[1], "must be empty when there is %s: an Upgrade is of one of version, settings and images", s.actions()[0])
	}
	checkVersion(&p, "spec.version", s.Version)
	for field, value := range map[string]string{"upgradeInstaller": s.UpgradeInstaller, "upgradeCmd": s.UpgradeCmd, "artifact": s.Artifact} {
		if value != "" && s.Version == "" && s.Action() != "" {
			p.add("spec."+field, "must be empty when there are %s: it is of a version", s.Action())
		}
	}
	checkSettings(&p, "spec.settings", s.Settings)
	checkImages(&p, "spec.images", s.Images)
	checkCommand(&p, "spec.upgradeInstaller", s.UpgradeInstaller)
	checkCommand(&p, "spec.upgradeCmd", s.UpgradeCmd)
	s.checkNodes(&p)
	if s.Artifact != "" {
		checkName(&p, "spec.artifact", s.Artifact)
	}
	for field, n := range map[string]int{"spec.concurrency": s.Concurrency, "spec.attempt": s.Attempt} {
		if n < 0 {
			p.add(field, "%d: must be 0 or more", n)
		}
	}
	checkAmount(&p, "spec.failureBudget", s.FailureBudget)
	checkDuration(&p, "spec.timeout", s.Timeout, time.Second)
	if c := s.Checks; c != nil {
		for field, n := range map[string]int{"cpu": c.CPU, "memory": c.Memory, "disk": c.Disk} {
			if n < 0 || n > 100 {
				p.add("spec.checks."+field, "%d: must be 0 to 100 percent", n)
			}
		}
	}
	s.Window.check(&p, "spec.window")
	if !runForm.MatchString(s.Confirmed) {
		checkVersion(&p, "spec.confirmed", s.Confirmed)
	}
	return p.err()
}

// runForm is the form of what RunOf returns.
var runForm = regexp.MustCompile(`^[0-9a-f]{16}$`)

// actions are those of the fields version, settings and images that are set.
func (s UpgradeSpec) actions() (list []string) {
	if s.Version != "" {
		list = append(list, "version")
	}
	if len(s.Settings) > 0 {
		list = append(list, "settings")
	}
	if len(s.Images) > 0 {
		list = append(list, "images")
	}
	return list
}

// Action is the one of the fields version, settings and images that is set; empty if none is.
func (s UpgradeSpec) Action() string {
	if list := s.actions(); len(list) > 0 {
		return list[0]
	}
	return ""
}

// Goal describes for people what the nodes get: the version, or the number of settings or images.
func (s UpgradeSpec) Goal() string {
	switch s.Action() {
	case "settings":
		return countOf(len(s.Settings), "setting")
	case "images":
		return countOf(len(s.Images), "image")
	}
	return s.Version
}

func countOf(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Confirmation is the value of Confirmed that confirms the present spec.
func (s UpgradeSpec) Confirmation() string {
	if s.Version != "" {
		return s.Version
	}
	return s.RunOf()
}

const (
	maxSettings     = 64
	maxSettingName  = 128
	maxSettingValue = 1024 // bytes
	maxPulled       = 32   // images that are pulled
)

// settingForm is the form of a setting's name.
var settingForm = regexp.MustCompile(`^[a-z][A-Za-z0-9]*(\.[A-Za-z0-9]+)*$`)

// checkSettings checks the form of settings. Only the core knows which settings exist, and which values they may have.
func checkSettings(p *causeList, at string, settings map[string]string) {
	if len(settings) > maxSettings {
		p.add(at, "%d settings; at most %d can be changed at a time", len(settings), maxSettings)
		return
	}
	for name, value := range settings {
		switch {
		case len(name) > maxSettingName || !settingForm.MatchString(name):
			p.add(at, "%s: must be the name of a setting of edgecore, such as link.rate", clipText(name))
		case len(value) > maxSettingValue:
			p.add(at+"."+name, "%d bytes; a value has at most %d", len(value), maxSettingValue)
		case strings.ContainsFunc(value, unicode.IsControl) || !utf8.ValidString(value):
			p.add(at+"."+name, "must be one line of YAML, without control characters")
		}
	}
}

func checkImages(p *causeList, at string, images []string) {
	if len(images) > maxPulled {
		p.add(at, "%d images; at most %d can be pulled at a time", len(images), maxPulled)
		return
	}
	seen := uniqueNames{}
	for i, image := range images {
		field := fmt.Sprintf("%s[%d]", at, i)
		checkRequired(p, field, image)
		checkImage(p, field, image)
		seen.check(p, field, image)
	}
}

// checkNodes checks that either names or labels choose nodes.
func (s UpgradeSpec) checkNodes(p *causeList) {
	switch {
	case len(s.NodeNames) == 0 && s.LabelSelector.Empty():
		p.add("spec.nodeNames", "is required, unless labelSelector chooses nodes: an upgrade of none is a mistake")
	case len(s.NodeNames) > 0 && s.LabelSelector != nil:
		p.add("spec.nodeNames", "must be empty when labelSelector is given: nodes are chosen by their names or by their labels, not by both")
	}
	p.tooMany("spec.nodeNames", len(s.NodeNames))
	nodes := uniqueNames{}
	for i, name := range s.NodeNames[:min(len(s.NodeNames), maxListed)] {
		at := fmt.Sprintf("spec.nodeNames[%d]", i)
		checkName(p, at, name)
		nodes.check(p, at, name)
	}
	s.LabelSelector.check(p, "spec.labelSelector")
}

func (w *UpgradeWindow) check(p *causeList, at string) {
	if w == nil {
		return
	}
	for field, text := range map[string]string{"from": w.From, "to": w.To} {
		if _, err := time.Parse("15:04", text); err != nil || len(text) != len("15:04") {
			p.add(at+"."+field, "%s: must be a time of the day such as 22:00", clipText(text))
		}
	}
	days := uniqueNames{}
	for i, day := range w.Days[:min(len(w.Days), maxListed)] {
		field := fmt.Sprintf("%s.days[%d]", at, i)
		checkOneOf(p, field, day, weekdayNames)
		days.check(p, field, day)
	}
	if _, err := time.LoadLocation(w.TimeZone); err != nil || w.TimeZone == "Local" {
		p.add(at+".timeZone", "%s: must be a time zone such as Europe/Berlin", clipText(w.TimeZone))
	}
}

var weekdayNames = []string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"} // in the order of time.Weekday

// At returns when a window opens next, or now if it is open, and when it closes then. A missing window is always open: closes
// is zero. The window must be valid.
func (w *UpgradeWindow) At(now time.Time) (opens, closes time.Time) {
	if w == nil {
		return now, time.Time{}
	}
	zone, err := time.LoadLocation(w.TimeZone)
	if err != nil {
		zone = time.UTC
	}
	local := now.In(zone)
	for day := -1; day <= 7; day++ {
		from, to := w.on(local.AddDate(0, 0, day), zone)
		on := len(w.Days) == 0 || slices.Contains(w.Days, weekdayNames[from.Weekday()])
		switch {
		case !on || !now.Before(to):
		case now.Before(from):
			return from, to
		default:
			return now, to
		}
	}
	return now, time.Time{} // not reached: a window opens once a week at least
}

// on returns the window that opens on the day of a time.
func (w *UpgradeWindow) on(day time.Time, zone *time.Location) (from, to time.Time) {
	at := func(text string) time.Time {
		t, _ := time.Parse("15:04", text)
		return time.Date(day.Year(), day.Month(), day.Day(), t.Hour(), t.Minute(), 0, 0, zone)
	}
	if from, to = at(w.From), at(w.To); !to.After(from) {
		day = day.AddDate(0, 0, 1)
		to = at(w.To)
	}
	return from, to
}

// CheckStatus checks what nodes have answered.
func (u Upgrade) CheckStatus() error {
	var p causeList
	for i, n := range u.Status.Nodes {
		at := fmt.Sprintf("status.nodes[%d].history", i)
		checkRequired(&p, fmt.Sprintf("status.nodes[%d].nodeName", i), n.NodeName)
		if len(n.History) > MaxUpgradeHistory {
			p.add(at, "%d attempts; the last %d are kept", len(n.History), MaxUpgradeHistory)
		}
		for j, a := range n.History {
			checkOneOf(&p, fmt.Sprintf("%s[%d].operationStatus", at, j), a.OperationStatus,
				[]string{"", UpgradePending, Upgrading, UpgradeSuccess, UpgradeRolledBack, UpgradeRollbackFailed})
		}
	}
	return p.err()
}

// CheckUpdate reports whether an Upgrade may replace prev. The choice of nodes never changes, and the rest only when every
// node has answered. An Upgrade may be confirmed, paused and aborted at any time.
func (u Upgrade) CheckUpdate(prev Upgrade) error {
	var p causeList
	checkUnchanged(&p, "spec.nodeNames", prev.Spec.NodeNames, u.Spec.NodeNames)
	checkUnchanged(&p, "spec.labelSelector", prev.Spec.LabelSelector, u.Spec.LabelSelector)
	if was := prev.Spec.Action(); u.Spec.Action() != was {
		p.add("spec."+was, "can't be taken away: what an Upgrade is of, its version, settings or images, is immutable")
	}
	if waiting := prev.unfinished(); waiting != "" {
		before, now := prev.Spec.orders(), u.Spec.orders()
		for field, value := range now {
			if value != before[field] {
				p.add("spec."+field, "can't be changed yet: %s; abort the upgrade, or wait", waiting)
			}
		}
	}
	return p.err()
}

// orders are the fields that say what is done on the nodes, as JSON by name.
func (s UpgradeSpec) orders() map[string]string {
	fields := make(map[string]string)
	for field, value := range map[string]any{
		"version": s.Version, "settings": s.Settings, "images": s.Images, "upgradeInstaller": s.UpgradeInstaller, "upgradeCmd": s.UpgradeCmd, "artifact": s.Artifact,
		"concurrency": s.Concurrency, "failureBudget": s.FailureBudget, "timeout": s.Timeout, "checks": s.Checks, "window": s.Window,
		"requireConfirmation": s.RequireConfirmation, "requireNodeConfirmation": s.RequireNodeConfirmation,
		"allowDowngrade": s.AllowDowngrade, "attempt": s.Attempt,
	} {
		text, _ := json.Marshal(value) // can't fail: the value was read from JSON
		fields[field] = string(text)
	}
	return fields
}

// RunOf is a hash of everything that a run of an upgrade does. A run goes on for as long as it is the same.
func (s UpgradeSpec) RunOf() string {
	text, _ := json.Marshal(s.orders()) // sorted by field
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// unfinished says which node an upgrade waits for; empty if none. An aborted upgrade waits only for nodes that have begun.
func (u Upgrade) unfinished() string {
	if len(u.Status.Nodes) == 0 && !u.Spec.Aborted {
		return "no node has answered"
	}
	for _, n := range u.Status.Nodes {
		last := n.Last()
		switch {
		case last.OperationStatus == Upgrading && last.Open():
			return "the node " + n.NodeName + " is being upgraded"
		case last.Open() && !u.Spec.Aborted:
			return "the node " + n.NodeName + " has not answered"
		}
	}
	return ""
}

// Last is the newest attempt; its zero value if there is none.
func (n UpgradeNode) Last() UpgradeAttempt {
	if len(n.History) == 0 {
		return UpgradeAttempt{}
	}
	return n.History[len(n.History)-1]
}

// Open reports whether an answer is expected. It is not expected after the time for it has run out, although the status
// remains upgrading.
func (a UpgradeAttempt) Open() bool {
	return a.EndedAt == "" && (a.OperationStatus == "" || a.OperationStatus == UpgradePending || a.OperationStatus == Upgrading)
}
