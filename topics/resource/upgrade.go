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

// Upgrade brings the edge core on some nodes to a version.
type Upgrade struct {
	TypeMeta
	Metadata Meta          `json:"metadata"`
	Spec     UpgradeSpec   `json:"spec"`
	Status   UpgradeStatus `json:"status,omitzero"`
}

// UpgradeSpec is which nodes get which version, settings or images: exactly one of these is wanted. Either nodeNames or labelSelector says which; neither can be changed later. The
// nodes that a selector matches are noted when the version is first acted upon: one that matches later is not upgraded.
type UpgradeSpec struct {
	// Version is the version of the edge core that is wanted, such as v1.10.0. It can be changed once all nodes have answered.
	Version string `json:"version,omitempty"`
	// Settings are settings of the edge core that are wanted instead of a version, by their names with dots such as link.rate, with values
	// in YAML.
	Settings map[string]string `json:"settings,omitempty"`
	// Images are container images that the nodes pull, instead of taking a version.
	// +listType=set
	Images []string `json:"images,omitempty"`
	// UpgradeInstaller is the command that installs the upgrader; empty: the usual one. No shell reads it: a command and
	// its arguments between single blanks, of letters, digits and ._/+:=,@%-.
	UpgradeInstaller string `json:"upgradeInstaller,omitempty"`
	// UpgradeCmd is the command that upgrades a node; empty: the usual one. It has the form of upgradeInstaller.
	UpgradeCmd string `json:"upgradeCmd,omitempty"`
	// NodeNames are the nodes, if they are named.
	// +listType=set
	NodeNames []string `json:"nodeNames,omitempty"`
	// LabelSelector chooses nodes by their labels.
	LabelSelector *LabelSelector `json:"labelSelector,omitempty"`
	// Artifact is the Artifact with the programs; empty: the one whose name is the version. With upgradeCmd none is needed.
	Artifact string `json:"artifact,omitempty"`
	// Concurrency is how many nodes are upgraded at a time; 1 when it is not given.
	// +kubebuilder:validation:Minimum=0
	Concurrency int `json:"concurrency,omitempty"`
	// FailureBudget is how many nodes may fail before no more are begun: a number, or a percentage of the nodes such as 10%,
	// rounded up. 10% when empty.
	FailureBudget string `json:"failureBudget,omitempty"`
	// Timeout is how long a node may take, such as 10m; at least 1s, 10m when empty. Then it counts as failed.
	Timeout string `json:"timeout,omitempty"`
	// Checks are bounds of the host's resources: a node waits until it is within them.
	Checks *UpgradeChecks `json:"checks,omitempty"`
	// Window is when nodes may be begun; at any time when it is missing.
	Window *UpgradeWindow `json:"window,omitempty"`
	// RequireConfirmation waits for somebody to write the version into confirmed before the first node is begun.
	RequireConfirmation bool `json:"requireConfirmation,omitempty"`
	// Confirmed is what somebody has confirmed: the version; for settings and images what status.rollout.spec says.
	Confirmed string `json:"confirmed,omitempty"`
	// RequireNodeConfirmation waits, on each node, for its owner: edgeagent upgrade release.
	RequireNodeConfirmation bool `json:"requireNodeConfirmation,omitempty"`
	// AllowDowngrade lets nodes take an older version than they have.
	AllowDowngrade bool `json:"allowDowngrade,omitempty"`
	// Paused keeps nodes from being begun. Those that have begun go on.
	Paused bool `json:"paused,omitempty"`
	// Aborted ends the upgrade: no node is begun, and those that have not changed anything yet are told to stop.
	Aborted bool `json:"aborted,omitempty"`
	// Attempt is counted up to try nodes again that have failed.
	// +kubebuilder:validation:Minimum=0
	Attempt int `json:"attempt,omitempty"`
}

// UpgradeChecks are the most that may be used of a host's resources, in percent; 0: it is not looked at.
type UpgradeChecks struct {
	// CPU is the most of the processors.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	CPU int `json:"cpu,omitempty"`
	// Memory is the most of the memory.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Memory int `json:"memory,omitempty"`
	// Disk is the most of the file system with the core's data.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Disk int `json:"disk,omitempty"`
}

// UpgradeWindow is a part of some days.
type UpgradeWindow struct {
	// From is when it opens, such as 22:00.
	From string `json:"from"`
	// To is when it closes; on the next day if that is not after from.
	To string `json:"to"`
	// Days are those on which the window opens: Mon Tue Wed Thu Fri Sat Sun; all when empty.
	// +listType=set
	Days []string `json:"days,omitempty"`
	// TimeZone is that of the times, such as Europe/Berlin; UTC when empty.
	TimeZone string `json:"timeZone,omitempty"`
}

// UpgradeStatus is how far an upgrade is.
type UpgradeStatus struct {
	// Rollout is how far the version is as a whole.
	Rollout *UpgradeRollout `json:"rollout,omitempty"`
	// Nodes has an entry for each node that was asked.
	// +listType=map
	// +listMapKey=nodeName
	Nodes []UpgradeNode `json:"nodes,omitempty"`
	// Conditions say how the upgrade as a whole is.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// UpgradeRollout is how far a version is on the nodes of an upgrade.
type UpgradeRollout struct {
	// Run counts what was asked of the nodes: another version, or another attempt.
	Run int `json:"run"`
	// Spec is a hash of what the run does.
	Spec string `json:"spec,omitempty"`
	// Started is when it began.
	Started string `json:"started,omitempty"`
	// Nodes is how many nodes there are.
	Nodes int `json:"nodes"`
	// Pending is how many of them have not begun.
	Pending int `json:"pending,omitempty"`
	// Upgrading is how many have begun and have not answered.
	Upgrading int `json:"upgrading,omitempty"`
	// Succeeded is how many have the version.
	Succeeded int `json:"succeeded,omitempty"`
	// Failed is how many have failed, or did not answer in time.
	Failed int `json:"failed,omitempty"`
	// Reason is why no more nodes are begun now, in one word; empty: all have been.
	Reason string `json:"reason,omitempty"`
	// Message says the same to people.
	Message string `json:"message,omitempty"`
}

// UpgradeNode is how far one node is.
type UpgradeNode struct {
	// NodeName is the node.
	NodeName string `json:"nodeName"`
	// History is what was tried, the newest last: at most 20 entries.
	// +kubebuilder:validation:MaxItems=20
	History []UpgradeAttempt `json:"history,omitempty"`
}

// UpgradeAttempt is one attempt to upgrade a node.
type UpgradeAttempt struct {
	// FromVersion is the version before.
	FromVersion string `json:"fromVersion,omitempty"`
	// ToVersion is the version that was wanted.
	ToVersion string `json:"toVersion,omitempty"`
	// OperationStatus is how it went.
	// +kubebuilder:validation:Enum=pending;upgrading;upgrade_success;upgrade_failed_rollback_success;upgrade_failed_rollback_failed
	OperationStatus string `json:"operationStatus,omitempty"`
	// Reason is why it failed, or what it waits for: a word, a colon, and what a person has to know.
	Reason string `json:"reason,omitempty"`
	// Run is the run of status.rollout.
	Run int `json:"run,omitempty"`
	// Step is what the node does while it is upgrading.
	Step string `json:"step,omitempty"`
	// StartedAt is when the node was told to begin.
	StartedAt string `json:"startedAt,omitempty"`
	// EndedAt is when it was known how it went, or when the node had not answered in time: then it counts as failed, and an answer
	// that comes later is noted nevertheless.
	EndedAt string `json:"endedAt,omitempty"`
}

// How an attempt to upgrade goes.
const (
	UpgradePending        = "pending" // the node was not told to begin
	Upgrading             = "upgrading"
	UpgradeSuccess        = "upgrade_success"
	UpgradeRolledBack     = "upgrade_failed_rollback_success"
	UpgradeRollbackFailed = "upgrade_failed_rollback_failed"
)

// MaxUpgradeHistory is how many attempts a node's history holds.
const MaxUpgradeHistory = 20

// Validate checks an Upgrade.
func (u Upgrade) Validate() error {
	var p problems
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

// runForm is what RunOf returns.
var runForm = regexp.MustCompile(`^[0-9a-f]{16}$`)

// actions are the fields that say what is wanted of the nodes.
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

// Action is the field that says what is wanted: version, settings or images; empty: none.
func (s UpgradeSpec) Action() string {
	if list := s.actions(); len(list) > 0 {
		return list[0]
	}
	return ""
}

// Goal is what is wanted of the nodes, for people: the version, or how many settings or images there are.
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

// Confirmation is what Confirmed has to be, for the present spec to be confirmed.
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
	maxPulled       = 32   // images
)

// settingForm is the name of a setting.
var settingForm = regexp.MustCompile(`^[a-z][A-Za-z0-9]*(\.[A-Za-z0-9]+)*$`)

// checkSettings checks the form of settings. Only the core knows which there are, and which values they may have.
func checkSettings(p *problems, at string, settings map[string]string) {
	if len(settings) > maxSettings {
		p.add(at, "%d settings; at most %d can be changed at a time", len(settings), maxSettings)
		return
	}
	for name, value := range settings {
		switch {
		case len(name) > maxSettingName || !settingForm.MatchString(name):
			p.add(at, "%s: must be the name of a setting of edgecore, such as link.rate", clip(name))
		case len(value) > maxSettingValue:
			p.add(at+"."+name, "%d bytes; a value has at most %d", len(value), maxSettingValue)
		case strings.ContainsFunc(value, unicode.IsControl) || !utf8.ValidString(value):
			p.add(at+"."+name, "must be one line of YAML, without control characters")
		}
	}
}

func checkImages(p *problems, at string, images []string) {
	if len(images) > maxPulled {
		p.add(at, "%d images; at most %d can be pulled at a time", len(images), maxPulled)
		return
	}
	seen := names{}
	for i, image := range images {
		field := fmt.Sprintf("%s[%d]", at, i)
		required(p, field, image)
		checkImage(p, field, image)
		seen.check(p, field, image)
	}
}

// checkNodes checks that either names or labels choose nodes.
func (s UpgradeSpec) checkNodes(p *problems) {
	switch {
	case len(s.NodeNames) == 0 && s.LabelSelector.Empty():
		p.add("spec.nodeNames", "is required, unless labelSelector chooses nodes: an upgrade of none is a mistake")
	case len(s.NodeNames) > 0 && s.LabelSelector != nil:
		p.add("spec.nodeNames", "must be empty when labelSelector is given: nodes are chosen by their names or by their labels, not by both")
	}
	p.tooMany("spec.nodeNames", len(s.NodeNames))
	nodes := names{}
	for i, name := range s.NodeNames[:min(len(s.NodeNames), maxListed)] {
		at := fmt.Sprintf("spec.nodeNames[%d]", i)
		checkName(p, at, name)
		nodes.check(p, at, name)
	}
	s.LabelSelector.check(p, "spec.labelSelector")
}

func (w *UpgradeWindow) check(p *problems, at string) {
	if w == nil {
		return
	}
	for field, text := range map[string]string{"from": w.From, "to": w.To} {
		if _, err := time.Parse("15:04", text); err != nil || len(text) != len("15:04") {
			p.add(at+"."+field, "%s: must be a time of the day such as 22:00", clip(text))
		}
	}
	days := names{}
	for i, day := range w.Days[:min(len(w.Days), maxListed)] {
		field := fmt.Sprintf("%s.days[%d]", at, i)
		oneOf(p, field, day, weekdays)
		days.check(p, field, day)
	}
	if _, err := time.LoadLocation(w.TimeZone); err != nil || w.TimeZone == "Local" {
		p.add(at+".timeZone", "%s: must be a time zone such as Europe/Berlin", clip(w.TimeZone))
	}
}

var weekdays = []string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"} // as time.Weekday counts

// At reports whether a window is open at a time, when it closes if it is, and when it opens next if it isn't. A missing one is always open.
// It must be valid.
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
		on := len(w.Days) == 0 || slices.Contains(w.Days, weekdays[from.Weekday()])
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

// on is the window that opens on the day of a time.
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
	var p problems
	for i, n := range u.Status.Nodes {
		at := fmt.Sprintf("status.nodes[%d].history", i)
		required(&p, fmt.Sprintf("status.nodes[%d].nodeName", i), n.NodeName)
		if len(n.History) > MaxUpgradeHistory {
			p.add(at, "%d attempts; the last %d are kept", len(n.History), MaxUpgradeHistory)
		}
		for j, a := range n.History {
			oneOf(&p, fmt.Sprintf("%s[%d].operationStatus", at, j), a.OperationStatus,
				[]string{"", UpgradePending, Upgrading, UpgradeSuccess, UpgradeRolledBack, UpgradeRollbackFailed})
		}
	}
	return p.err()
}

// CheckUpdate reports whether an Upgrade may follow prev: which nodes it is for never changes, and the rest only once every node has
// answered. At any time it may be confirmed, paused and aborted.
func (u Upgrade) CheckUpdate(prev Upgrade) error {
	var p problems
	unchanged(&p, "spec.nodeNames", prev.Spec.NodeNames, u.Spec.NodeNames)
	unchanged(&p, "spec.labelSelector", prev.Spec.LabelSelector, u.Spec.LabelSelector)
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

// orders are the fields that say what is done with the nodes, as JSON.
func (s UpgradeSpec) orders() map[string]string {
	fields := make(map[string]string)
	for field, value := range map[string]any{
		"version": s.Version, "settings": s.Settings, "images": s.Images, "upgradeInstaller": s.UpgradeInstaller, "upgradeCmd": s.UpgradeCmd, "artifact": s.Artifact,
		"concurrency": s.Concurrency, "failureBudget": s.FailureBudget, "timeout": s.Timeout, "checks": s.Checks, "window": s.Window,
		"requireConfirmation": s.RequireConfirmation, "requireNodeConfirmation": s.RequireNodeConfirmation,
		"allowDowngrade": s.AllowDowngrade, "attempt": s.Attempt,
	} {
		text, _ := json.Marshal(value) // it was read from JSON
		fields[field] = string(text)
	}
	return fields
}

// RunOf is a hash of all that a run of an upgrade does. While it is the same, the run goes on.
func (s UpgradeSpec) RunOf() string {
	text, _ := json.Marshal(s.orders()) // sorted by field
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// unfinished says for whose answer an upgrade waits, or nothing. One that was aborted waits only for nodes that have begun.
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

// Last is the newest attempt; its zero value if there was none.
func (n UpgradeNode) Last() UpgradeAttempt {
	if len(n.History) == 0 {
		return UpgradeAttempt{}
	}
	return n.History[len(n.History)-1]
}

// Open reports whether an attempt is waited for. One that was not answered in time is not, and remains upgrading.
func (a UpgradeAttempt) Open() bool {
	return a.EndedAt == "" && (a.OperationStatus == "" || a.OperationStatus == UpgradePending || a.OperationStatus == Upgrading)
}

// Artifact is a version of the programs that run on nodes, signed by whoever made them. Their contents are blobs of the hub, or are where
// the source is.
type Artifact struct {
	TypeMeta
	Metadata Meta         `json:"metadata"`
	Spec     ArtifactSpec `json:"spec"`
}

// ArtifactSpec is the content of an Artifact. It is immutable, as nodes may be fetching it.
type ArtifactSpec struct {
	// Manifest is the JSON text of a Manifest, as it was signed.
	Manifest string `json:"manifest"`
	// Signature is the manifest's, in minisign's format: the four lines of a .minisig file.
	Signature string `json:"signature"`
	// Source is where nodes fetch the programs, instead of from the hub: https://host/path, to which /{architecture}/{name} is added, or
	// oci://registry/repository, of which the programs are blobs, found by their digests.
	Source string `json:"source,omitempty"`
}

// repositoryForm is a repository's name of the OCI distribution specification, after a slash.
var repositoryForm = regexp.MustCompile(`^(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)+$`)

// Manifest is what the author of an Artifact signs: the programs of one version, by architecture.
type Manifest struct {
	// Version is that of all its programs.
	Version string `json:"version"`
	// StoreFormat is the newest format of the core's store that the version can read and write; 0: it isn't said. A node whose
	// store has a newer one refuses the version.
	StoreFormat int `json:"storeFormat,omitempty"`
	// Programs are the programs, edgecore among them.
	Programs []ArtifactProgram `json:"programs"`
}

// ArtifactProgram is one program for one architecture.
type ArtifactProgram struct {
	// Name is the program's, and that of its file: edgecore, edgeagent, mapper-modbus, …
	Name string `json:"name"`
	// Architecture is the processor's, as Go names it: amd64, arm64, arm, …
	Architecture string `json:"architecture"`
	// Digest is sha256: and the SHA-256 of the file in hex.
	Digest string `json:"digest"`
	// Size is the file's, in bytes.
	Size int64 `json:"size"`
}

const (
	maxManifest  = 64 << 10
	maxSignature = 2 << 10
	// MaxProgram bounds the Size of a ArtifactProgram.
	MaxProgram = 1 << 30
)

var programName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)

// Of are the programs for an architecture.
func (b Manifest) Of(architecture string) (list []ArtifactProgram) {
	for _, p := range b.Programs {
		if p.Architecture == architecture {
			list = append(list, p)
		}
	}
	return list
}

// ParseManifest reads a manifest, and checks all of it that needs no key. Unknown fields are refused: what is signed is understood.
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
	var p problems
	required(&p, "manifest.version", b.Version)
	checkVersion(&p, "manifest.version", b.Version)
	if b.StoreFormat < 0 {
		p.add("manifest.storeFormat", "%d: must be 0 or more", b.StoreFormat)
	}
	p.tooMany("manifest.programs", len(b.Programs))
	seen, core := names{}, false
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

func (f ArtifactProgram) check(p *problems, at string) {
	if !programName.MatchString(f.Name) {
		p.add(at+".name", "%s: must be the name of a program, such as edgecore: a-z, 0-9 and -", clip(f.Name))
	}
	if !programName.MatchString(f.Architecture) {
		p.add(at+".architecture", "%s: must be an architecture, such as arm64", clip(f.Architecture))
	}
	if _, err := ParseDigest(f.Digest); err != nil {
		p.addErr(at+".digest", err)
	}
	if f.Size < 1 || f.Size > MaxProgram {
		p.add(at+".size", "%d: must be 1 to %d bytes", f.Size, int64(MaxProgram))
	}
}

// Validate checks an Artifact, but not whether the signature is right: the hub knows no key, and nodes don't trust it.
func (a Artifact) Validate() error {
	var p problems
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
			p.add("spec.source", "%s: must be https://host/path or oci://registry/repository", clip(s))
		case u.Scheme == "oci" && !repositoryForm.MatchString(u.Path):
			p.add("spec.source", "%s: must be oci://registry/repository, without a tag or digest, in lower case", clip(s))
		}
	}
	return p.err()
}

// CheckUpdate reports whether an Artifact may follow prev: its spec may not change.
func (a Artifact) CheckUpdate(prev Artifact) error {
	var p problems
	unchanged(&p, "spec", prev.Spec, a.Spec)
	return p.err()
}

// UpgradeOrder is the payload of the topic upgrade: what the hub orders of a node. The agent does it once, with the UpgradeReports that say
// so; an order that is replaced by one with another ID, or deleted, is given up, if nothing was changed for it yet.
type UpgradeOrder struct {
	// ID tells orders apart: an order with an ID that the node has carried out, or failed to, is not carried out again.
	ID string `json:"id"`
	// Upgrade is the name of the Upgrade, for people.
	Upgrade string `json:"upgrade"`
	// Version is the version that is wanted. The manifest has the same. Exactly one of Version, Settings and Images is there.
	Version string `json:"version,omitempty"`
	// Settings are settings of the core, by their names with dots, with values in YAML. The core validates them before they are taken;
	// they are taken back if it does not reach the hub with them.
	Settings map[string]string `json:"settings,omitempty"`
	// Images are container images to pull.
	Images []string `json:"images,omitempty"`
	// Wait says that the hub has not told the node to begin: it begins nothing, and reports StepHeld while its owner has not released
	// the upgrade, StepReady after that. The order comes again, with the same ID and without Wait, when it may begin. The hub sets
	// it as well when a node reports StepHeld, so that others can be begun meanwhile.
	Wait bool `json:"wait,omitempty"`
	// Confirm says that the node's owner has to release the upgrade, also where the node's settings don't demand that.
	Confirm bool `json:"confirm,omitempty"`
	// Manifest is the JSON text of a Manifest, and Signature that of minisign. Both are empty if Command is set and there is no Artifact.
	Manifest  string `json:"manifest,omitempty"`
	Signature string `json:"signature,omitempty"`
	// Source is where the programs are, instead of at the hub: see ArtifactSpec.
	Source string `json:"source,omitempty"`
	// Installer and Command are the argument vectors of upgradeInstaller and upgradeCmd. The node's settings have to allow them.
	Installer []string `json:"installer,omitempty"`
	Command   []string `json:"command,omitempty"`
	// AllowDowngrade lets the node take an older version.
	AllowDowngrade bool `json:"allowDowngrade,omitempty"`
	// Checks are what the host has to be within, before anything is changed. The node reports StepWaiting until it is.
	Checks *UpgradeChecks `json:"checks,omitempty"`
	// Timeout is how many seconds the node may take, from when it begins until the new version is committed. Then it rolls back.
	Timeout int64 `json:"timeout"`
	// SwitchBefore is when the window closes: after that nothing is changed, and the order fails with UpgradeFailedWindow. Empty: at no time.
	SwitchBefore string `json:"switchBefore,omitempty"`
}

// UpgradeReport is the payload of upgrade/status: which versions a node has, and how far it is with the order that it has or had last.
type UpgradeReport struct {
	// Version is the version of the core that is committed, and Agent that of the agent.
	Version string `json:"version,omitempty"`
	Agent   string `json:"agent,omitempty"`
	// Held is why the node's owner wants no upgrade now; empty: he doesn't mind. The hub tells such a node not to begin.
	Held string `json:"held,omitempty"`
	// Order is the ID of the order that the rest is about; empty: the node has had none.
	Order string `json:"order,omitempty"`
	// Wait repeats that of the order: with it, the node has begun nothing and begins nothing.
	Wait bool `json:"wait,omitempty"`
	// From and To are the versions before and after.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Step is what the node does; empty when Result is not.
	Step string `json:"step,omitempty"`
	// Received and Size are how many bytes of how many have been downloaded, in StepDownloading.
	Received int64 `json:"received,omitempty"`
	Size     int64 `json:"size,omitempty"`
	// Result is how the order ended: UpgradeSuccess, UpgradeRolledBack (also if nothing was changed) or UpgradeRollbackFailed.
	Result string `json:"result,omitempty"`
	// Reason is why it failed, as one of UpgradeFailed…. Message says what a person has to know, of a failure or of what is waited for.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Log is the end of what the new version has printed.
	Log string `json:"log,omitempty"`
	// At is when the step was begun, or the order ended, by the node's clock.
	At string `json:"at,omitempty"`
}

// The hub's records of what nodes are ordered now, and of what they have reported last, under the nodes' names. They are no kinds of
// the API.
const (
	KindUpgradeOrder  = "UpgradeOrder"
	KindUpgradeReport = "UpgradeReport"
)

// The steps of an upgrade on a node. Up to StepInstalling nothing is changed.
const (
	StepHeld        = "Held"        // the node's owner has not released it
	StepReady       = "Ready"       // it may begin when the hub says so: see UpgradeOrder.Wait
	StepWaiting     = "Waiting"     // for the core to be well and linked, for a content, or for resources: the message says for what
	StepDownloading = "Downloading" // the programs are fetched and verified
	StepInstalling  = "Installing"  // the order's own commands are run
	StepBackingUp   = "BackingUp"   // a backup of the core's data is made
	StepPulling     = "Pulling"     // images are pulled
	StepSwitching   = "Switching"   // the new version, or the new settings, become the current ones
	StepTrial       = "Trial"       // the new core runs and is observed
	StepAgent       = "ReplacingAgent"
	StepRollingBack = "RollingBack" // the version before becomes the current one, and is started
)

// Why an upgrade failed on a node.
const (
	UpgradeFailedRefused      = "Refused"           // the node's settings don't allow it, or the order can't be read
	UpgradeFailedSignature    = "BadSignature"      // the manifest is not signed by a key that the node trusts
	UpgradeFailedArtifact     = "BadArtifact"       // a program is not what the manifest says
	UpgradeFailedArchitecture = "WrongArchitecture" // there is no program for the host
	UpgradeFailedOlder        = "OlderVersion"      // the node has a newer version, and the order doesn't allow to go back
	UpgradeFailedFormat       = "NewerStore"        // the version can't read the format that the node's store has
	UpgradeFailedDisk         = "NoSpace"
	UpgradeFailedBackup       = "BackupFailed"
	UpgradeFailedCommand      = "CommandFailed" // upgradeInstaller or upgradeCmd
	UpgradeFailedSettings     = "BadSettings"   // the core refuses the settings
	UpgradeFailedPull         = "PullFailed"    // an image can't be pulled
	UpgradeFailedSwitch       = "SwitchFailed"
	UpgradeFailedStart        = "DoesNotStart"
	UpgradeFailedExited       = "Exited" // on trial; crash loops are meant as well
	UpgradeFailedHang         = "Hangs"
	UpgradeFailedStore        = "StoreFailed"   // it can't open the store, or not write it
	UpgradeFailedConnection   = "NoConnection"  // it does not reach the hub, or not for long
	UpgradeFailedMemory       = "TooMuchMemory" // it uses more than the node's settings allow on trial
	UpgradeFailedInterrupted  = "Interrupted"   // the agent ended too often in the midst of it
	UpgradeFailedTimeout      = "Timeout"       // it was not done in time
	UpgradeFailedWindow       = "WindowClosed"
	UpgradeFailedAgent        = "AgentFailed" // beside UpgradeSuccess: the core is upgraded, and the agent is not
)

// MaxUpgradeReport bounds an UpgradeReport, in bytes.
const MaxUpgradeReport = 16 << 10

// ParseUpgradeOrder reads the payload of upgrade. Fields that are not known are those of a newer hub, and refused: the node would do
// something else than what was ordered.
func ParseUpgradeOrder(payload []byte) (o UpgradeOrder, err error) {
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return o, Errorf(Invalid, "upgrade", "is no order that this version understands: %v", err)
	}
	var p problems
	required(&p, "upgrade.id", o.ID)
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

// ParseUpgradeReport reads the payload of upgrade/status. Fields that are not known are those of a newer agent and ignored.
func ParseUpgradeReport(payload []byte) (r UpgradeReport, err error) {
	if len(payload) > MaxUpgradeReport {
		return r, Errorf(TooLarge, "upgrade/status", "%d bytes; a report is at most %d", len(payload), MaxUpgradeReport)
	}
	if err := json.Unmarshal(payload, &r); err != nil {
		return r, Errorf(Invalid, "upgrade/status", `the payload must be JSON such as {"version":"v1.2.0","order":"…","step":"Trial"}: %v`, err)
	}
	var p problems
	oneOf(&p, "upgrade/status.result", r.Result, []string{"", UpgradeSuccess, UpgradeRolledBack, UpgradeRollbackFailed})
	oneOf(&p, "upgrade/status.step", r.Step, []string{
		"", StepHeld, StepReady, StepWaiting, StepDownloading, StepInstalling, StepPulling, StepBackingUp, StepSwitching, StepTrial, StepAgent, StepRollingBack,
	})
	return r, p.err()
}
