package resource

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
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

// Artifact is a version of the programs that run on nodes, signed by its author. The programs are blobs of the hub, or at the
// source.
type Artifact struct {
	TypeMeta
	Metadata Meta         `json:"metadata"`
	Spec     ArtifactSpec `json:"spec"`
}

// ArtifactSpec is the content of an Artifact. It is immutable, because nodes may be downloading it.
type ArtifactSpec struct {
	// Manifest is the JSON text of a Manifest, as it was signed: at most 64 KiB.
	Manifest string `json:"manifest"`
	// Signature is the signature of the manifest in minisign's format: the four lines of a .minisig file, at most 2 KiB.
	Signature string `json:"signature"`
	// Source is the address from which nodes download the programs, instead of from the hub. https://host/path, to which
	// /{architecture}/{name} is appended; or oci://registry/repository, in which the programs are blobs that are found by their
	// digests.
	Source string `json:"source,omitempty"`
}

// repositoryForm is a slash and the name of a repository in the OCI distribution specification.
var repositoryForm = regexp.MustCompile(`^(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)+$`)

// Manifest is what the author of an Artifact signs: the programs of one version, by architecture.
type Manifest struct {
	// Version is the version of all the programs.
	Version string `json:"version"`
	// StoreFormat is the newest format of the core's store that the version can read and write; 0: not stated. A node whose
	// store has a newer format refuses the version.
	StoreFormat int `json:"storeFormat,omitempty"`
	// Programs are the programs. edgecore must be among them.
	Programs []ArtifactProgram `json:"programs"`
}

// ArtifactProgram is one program for one architecture.
type ArtifactProgram struct {
	// Name is the name of the program and of its file: edgecore, edgeagent, mapper-modbus, …
	Name string `json:"name"`
	// Architecture is the processor architecture in Go's words: amd64, arm64, arm, …
	Architecture string `json:"architecture"`
	// Digest is sha256: and the SHA-256 of the file in hexadecimal.
	Digest string `json:"digest"`
	// Size is the size of the file in bytes, from 1 to 1 GiB.
	Size int64 `json:"size"`
}

const (
	maxManifest  = 64 << 10
	maxSignature = 2 << 10
	// MaxProgram is the largest Size of an ArtifactProgram, in bytes.
	MaxProgram = 1 << 30
)

var programName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)

// Of returns the programs for an architecture.
func (b Manifest) Of(architecture string) (list []ArtifactProgram) {
	for _, p := range b.Programs {
		if p.Architecture == architecture {
			list = append(list, p)
		}
	}
	return list
}

// ParseManifest reads a manifest, and checks everything that needs no key. Unknown fields are refused, because all that was
// signed must be understood.
func ParseManifest(manifest []byte) (b Manifest, err error) {
	if len(manifest) > maxManifest {
		return b, Errorf(TooLarge, "manifest", "%d bytes; a manifest has at most %d", len(manifest), maxManifest)
	}
	d := json.NewDecoder(bytes.NewReader(manifest))
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		return b, Errorf(Invalid, "manifest", "is not what it must be: %v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return b, Errorf(Invalid, "manifest", "has more after its JSON object")
	}
	var p causeList
	checkRequired(&p, "manifest.version", b.Version)
	checkVersion(&p, "manifest.version", b.Version)
	if b.StoreFormat < 0 {
		p.add("manifest.storeFormat", "%d: must be 0 or more", b.StoreFormat)
	}
	p.tooMany("manifest.programs", len(b.Programs))
	seen, core := uniqueNames{}, false
	for i, f := range b.Programs[:min(len(b.Programs), maxListed)] {
		at := fmt.Sprintf("manifest.programs[%d]", i)
		f.check(&p, at)
		seen.check(&p, at, f.Architecture+"/"+f.Name)
		core = core || f.Name == "edgecore"
	}
	if !core {
		p.add("manifest.programs", "has no edgecore: it is what an upgrade replaces")
	}
	return b, p.err()
}

func (f ArtifactProgram) check(p *causeList, at string) {
	if !programName.MatchString(f.Name) {
		p.add(at+".name", "%s: must be the name of a program, such as edgecore: a-z, 0-9 and -", clipText(f.Name))
	}
	if !programName.MatchString(f.Architecture) {
		p.add(at+".architecture", "%s: must be an architecture, such as arm64", clipText(f.Architecture))
	}
	if _, err := ParseDigest(f.Digest); err != nil {
		p.addErr(at+".digest", err)
	}
	if f.Size < 1 || f.Size > MaxProgram {
		p.add(at+".size", "%d: must be 1 to %d bytes", f.Size, int64(MaxProgram))
	}
}

// Validate checks an Artifact, but not its signature: the hub has no keys, and nodes verify signatures themselves.
func (a Artifact) Validate() error {
	var p causeList
	a.Metadata.check(&p)
	if _, err := ParseManifest([]byte(a.Spec.Manifest)); err != nil {
		p.addErr("spec.manifest", err)
	}
	if lines := strings.Split(strings.TrimSuffix(a.Spec.Signature, "\n"), "\n"); len(a.Spec.Signature) > maxSignature || len(lines) != 4 {
		p.add("spec.signature", "must be the four lines that minisign writes, of at most %d bytes", maxSignature)
	}
	if s := a.Spec.Source; s != "" {
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Scheme != "https" && u.Scheme != "oci" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || slices.Contains(strings.Split(u.Path, "/"), ".."):
			p.add("spec.source", "%s: must be https://host/path or oci://registry/repository", clipText(s))
		case u.Scheme == "oci" && !repositoryForm.MatchString(u.Path):
			p.add("spec.source", "%s: must be oci://registry/repository, without a tag or digest, in lower case", clipText(s))
		}
	}
	return p.err()
}

// CheckUpdate reports whether an Artifact may replace prev: its spec must be the same.
func (a Artifact) CheckUpdate(prev Artifact) error {
	var p causeList
	checkUnchanged(&p, "spec", prev.Spec, a.Spec)
	return p.err()
}

// UpgradeOrder is the payload of the topic upgrade: the hub's order to a node. The agent carries it out once, and sends
// UpgradeReports. An order that is deleted, or replaced by one with another ID, is abandoned if nothing was changed for it
// yet.
type UpgradeOrder struct {
	// ID identifies the order. An order whose ID is that of one which the node has carried out, successfully or not, is not
	// carried out again.
	ID string `json:"id"`
	// Upgrade is the name of the Upgrade, for people.
	Upgrade string `json:"upgrade"`
	// Version is the desired version, which must be that of the manifest. Exactly one of Version, Settings and Images is set.
	Version string `json:"version,omitempty"`
	// Settings are settings of the core: values in YAML by name, with dots. The core validates them first. They are undone if
	// the core does not reach the hub with them.
	Settings map[string]string `json:"settings,omitempty"`
	// Images are container images to pull.
	Images []string `json:"images,omitempty"`
	// Wait says that the node may not begin yet. The node reports StepHeld until its owner has released the upgrade, and
	// StepReady from then on. When it may begin, the order is sent again with the same ID and without Wait. The hub also sets
	// Wait when a node reports StepHeld, so that other nodes can begin meanwhile.
	Wait bool `json:"wait,omitempty"`
	// Confirm says that the node's owner must release the upgrade even if the node's settings do not require it.
	Confirm bool `json:"confirm,omitempty"`
	// Manifest is the JSON text of a Manifest, and Signature its signature by minisign. Both are empty if Command is set and
	// there is no Artifact.
	Manifest  string `json:"manifest,omitempty"`
	Signature string `json:"signature,omitempty"`
	// Source is the address of the programs, if it is not the hub: see ArtifactSpec.
	Source string `json:"source,omitempty"`
	// Installer and Command are the argument vectors of upgradeInstaller and upgradeCmd. The node's settings must allow them.
	Installer []string `json:"installer,omitempty"`
	Command   []string `json:"command,omitempty"`
	// AllowDowngrade permits an older version than the node's.
	AllowDowngrade bool `json:"allowDowngrade,omitempty"`
	// Checks are limits that the host must be within before anything is changed. The node reports StepWaiting until it is.
	Checks *UpgradeChecks `json:"checks,omitempty"`
	// Timeout is the time in seconds, at least 1, from when the node begins until the new version must be committed. If it runs
	// out, the node rolls back.
	Timeout int64 `json:"timeout"`
	// Begun is the time when the hub had the node begin; empty while the node waits. When it changes, the node has all the time of
	// Timeout again.
	Begun string `json:"begun,omitempty"`
	// SwitchBefore is the time when the window closes. Nothing is changed after it, and the order fails with
	// UpgradeFailedWindow. Empty: no limit.
	SwitchBefore string `json:"switchBefore,omitempty"`
}

// UpgradeReport is the payload of the topic upgrade/status: the versions on a node, and the progress of its present or last
// order.
type UpgradeReport struct {
	// Version is the committed version of the core, and Agent the version of the agent.
	Version string `json:"version,omitempty"`
	Agent   string `json:"agent,omitempty"`
	// Held is why the node's owner refuses upgrades at present; empty if he does not. The hub does not let such a node begin.
	Held string `json:"held,omitempty"`
	// Order is the ID of the order that the following fields describe; empty if the node has had none.
	Order string `json:"order,omitempty"`
	// Wait repeats the order's. If it is set, the node has not begun and does not begin.
	Wait bool `json:"wait,omitempty"`
	// From and To are the versions before and after the upgrade.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Step is what the node is doing; empty if there is a Result.
	Step string `json:"step,omitempty"`
	// Received is how many of Size bytes have been downloaded, in StepDownloading.
	Received int64 `json:"received,omitempty"`
	Size     int64 `json:"size,omitempty"`
	// Result is the result of the order: UpgradeSuccess, UpgradeRolledBack (also if nothing was changed) or
	// UpgradeRollbackFailed.
	Result string `json:"result,omitempty"`
	// Reason is why the order failed: one of UpgradeFailed…. Message explains a failure, or what the node waits for, to people.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Log is the end of the new version's output.
	Log string `json:"log,omitempty"`
	// At is the time when the step began, or the order ended, by the node's clock.
	At string `json:"at,omitempty"`
}

// The kinds of the hub's records of the nodes' present orders and last reports, by the nodes' names. The API does not have them.
const (
	KindUpgradeOrder  = "UpgradeOrder"
	KindUpgradeReport = "UpgradeReport"
)

// The steps of an upgrade on a node. Nothing is changed before StepInstalling.
const (
	StepHeld        = "Held"           // the node's owner has not released the upgrade
	StepReady       = "Ready"          // the node waits for the hub's permission to begin: see UpgradeOrder.Wait
	StepWaiting     = "Waiting"        // the node waits for the core, the link, a content or resources: the message says which
	StepDownloading = "Downloading"    // the programs are downloaded and verified
	StepInstalling  = "Installing"     // the order's installer is run
	StepBackingUp   = "BackingUp"      // a backup of the core's data is made
	StepPulling     = "Pulling"        // images are pulled
	StepSwitching   = "Switching"      // the new version or the new settings become the current ones
	StepTrial       = "Trial"          // the new core runs and is observed
	StepAgent       = "ReplacingAgent" // the new agent takes the place of the old one
	StepRollingBack = "RollingBack"    // the version before becomes the current one again, and is started
)

// The reasons for which an upgrade fails on a node.
const (
	UpgradeFailedRefused      = "Refused"           // the node's settings don't allow the order, or it can't be read
	UpgradeFailedSignature    = "BadSignature"      // the manifest is not signed by a key that the node trusts
	UpgradeFailedArtifact     = "BadArtifact"       // a program is not what the manifest says, no program, or not whole
	UpgradeFailedArchitecture = "WrongArchitecture" // there is no program for the host
	UpgradeFailedOlder        = "OlderVersion"      // the node has a newer version, and the order doesn't allow a downgrade
	UpgradeFailedFormat       = "NewerStore"        // the version can't read the format of the node's store
	UpgradeFailedDisk         = "NoSpace"
	UpgradeFailedBackup       = "BackupFailed"
	UpgradeFailedCommand      = "CommandFailed" // upgradeInstaller or upgradeCmd failed
	UpgradeFailedSettings     = "BadSettings"   // the core refuses the settings
	UpgradeFailedPull         = "PullFailed"    // an image can't be pulled
	UpgradeFailedSwitch       = "SwitchFailed"
	UpgradeFailedStart        = "DoesNotStart"
	UpgradeFailedExited       = "Exited" // it ended during the trial, once or repeatedly
	UpgradeFailedHang         = "Hangs"
	UpgradeFailedStore        = "StoreFailed"   // it can't open or write the store
	UpgradeFailedConnection   = "NoConnection"  // it does not reach the hub, or loses the connection
	UpgradeFailedMemory       = "TooMuchMemory" // it uses more than the node's settings allow during the trial
	UpgradeFailedInterrupted  = "Interrupted"   // the agent ended too often during the upgrade
	UpgradeFailedTimeout      = "Timeout"       // it was not finished in time
	UpgradeFailedWindow       = "WindowClosed"
	UpgradeFailedAgent        = "AgentFailed" // beside UpgradeSuccess: the core is upgraded, and the agent is not
)

// MaxUpgradeReport is the largest UpgradeReport, in bytes.
const MaxUpgradeReport = 16 << 10

// ParseUpgradeOrder reads the payload of the topic upgrade. Unknown fields are refused: a newer hub has set them, and the node
// would not do what was ordered.
func ParseUpgradeOrder(payload []byte) (o UpgradeOrder, err error) {
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return o, Errorf(Invalid, "upgrade", "is no order that this version understands: %v", err)
	}
	var p causeList
	checkRequired(&p, "upgrade.id", o.ID)
	checkVersion(&p, "upgrade.version", o.Version)
	checkSettings(&p, "upgrade.settings", o.Settings)
	checkImages(&p, "upgrade.images", o.Images)
	switch s := (UpgradeSpec{Version: o.Version, Settings: o.Settings, Images: o.Images}); {
	case len(s.actions()) != 1:
		p.add("upgrade.version", "exactly one of version, settings and images is needed")
	case o.Manifest != "":
		switch b, err := ParseManifest([]byte(o.Manifest)); {
		case err != nil:
			p.addErr("upgrade.manifest", err)
		case b.Version != o.Version:
			p.add("upgrade.manifest", "is of version %s, and %s is ordered", b.Version, o.Version)
		}
	case o.Version != "" && len(o.Command) == 0:
		p.add("upgrade.manifest", "is required, unless there is a command")
	}
	checkCommand(&p, "upgrade.installer", strings.Join(o.Installer, " "))
	checkCommand(&p, "upgrade.command", strings.Join(o.Command, " "))
	if o.Timeout < 1 {
		p.add("upgrade.timeout", "%d: must be at least 1 s", o.Timeout)
	}
	return o, p.err()
}

// ParseUpgradeReport reads the payload of the topic upgrade/status. Unknown fields are ignored: a newer agent has set them.
func ParseUpgradeReport(payload []byte) (r UpgradeReport, err error) {
	if len(payload) > MaxUpgradeReport {
		return r, Errorf(TooLarge, "upgrade/status", "%d bytes; a report is at most %d", len(payload), MaxUpgradeReport)
	}
	if err := json.Unmarshal(payload, &r); err != nil {
		return r, Errorf(Invalid, "upgrade/status", `the payload must be JSON such as {"version":"v1.2.0","order":"…","step":"Trial"}: %v`, err)
	}
	var p causeList
	checkOneOf(&p, "upgrade/status.result", r.Result, []string{"", UpgradeSuccess, UpgradeRolledBack, UpgradeRollbackFailed})
	checkOneOf(&p, "upgrade/status.step", r.Step, []string{
		"", StepHeld, StepReady, StepWaiting, StepDownloading, StepInstalling, StepPulling, StepBackingUp, StepSwitching, StepTrial, StepAgent, StepRollingBack,
	})
	return r, p.err()
}
