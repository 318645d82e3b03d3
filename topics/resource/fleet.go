// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fleet has a template for the specs of all nodes that its selector matches.
type Fleet struct {
	TypeMeta
	Metadata Meta        `json:"metadata"`
	Spec     FleetSpec   `json:"spec"`
	Status   FleetStatus `json:"status,omitzero"`
}

// FleetSpec is which nodes belong to a fleet, and their desired state.
type FleetSpec struct {
	// Selector chooses the nodes by their labels. An empty selector chooses no nodes.
	Selector *LabelSelector `json:"selector,omitempty"`
	// Template is the template from which the spec of each node is made.
	Template NodeTemplate `json:"template"`
	// RolloutPolicy says how a change of the template reaches the nodes; all nodes at once when missing.
	RolloutPolicy *RolloutPolicy `json:"rolloutPolicy,omitempty"`
	// Paused stops the rollout: no further node gets another version.
	Paused bool `json:"paused,omitempty"`
	// RevisionHistoryLimit is how many TemplateVersions are kept that no node has; 10 when missing.
	// +kubebuilder:validation:Minimum=0
	RevisionHistoryLimit *int `json:"revisionHistoryLimit,omitempty"`
	// RevisionHistoryAge is the age at which a TemplateVersion that no node has is deleted, at least 1m, such as 720h; no limit
	// when empty. The version before the newest and the last that was rolled out to the end are always kept.
	RevisionHistoryAge string `json:"revisionHistoryAge,omitempty"`
}

// RolloutPolicy says how a change of the template reaches a fleet's nodes.
type RolloutPolicy struct {
	// DeviceSelection divides the nodes into batches; all nodes are one batch when missing.
	DeviceSelection *DeviceSelection `json:"deviceSelection,omitempty"`
	// DisruptionBudget limits how many nodes are unavailable at a time; no limit when missing.
	DisruptionBudget *DisruptionBudget `json:"disruptionBudget,omitempty"`
	// SuccessThreshold is the percentage of a batch's nodes that must succeed before the next batch begins, from 0% to 100%;
	// 90% when empty.
	SuccessThreshold string `json:"successThreshold,omitempty"`
	// DefaultUpdateTimeout is the time, at least 1s, after which a node that has not answered counts as failed, and an offline
	// node is no longer waited for; 10m when empty.
	DefaultUpdateTimeout string `json:"defaultUpdateTimeout,omitempty"`
	// OnFailure says what happens when the rollout of a version halts: Halt leaves the nodes as they are, RollBack gives them
	// the last version whose rollout was finished.
	// +kubebuilder:validation:Enum=Halt;RollBack
	// +default=Halt
	OnFailure string `json:"onFailure,omitempty"`
	// UpdateSchedule has the times at which nodes may be given another version; any time when missing.
	UpdateSchedule *UpdateSchedule `json:"updateSchedule,omitempty"`
	// DownloadSchedule has the times at which nodes may download what a version needs; any time when missing. A node without an
	// updatePolicy downloads when it is given the version, so it is given the version when both schedules allow it.
	DownloadSchedule *UpdateSchedule `json:"downloadSchedule,omitempty"`
}

// UpdateSchedule is a recurring window of time.
type UpdateSchedule struct {
	// At is when the window opens, as a cron expression of five fields: minute, hour, day of the month, month and day of the
	// week; or as a name such as @daily. At most 1,000 characters.
	At string `json:"at"`
	// TimeZone is the time zone of at, such as Europe/Berlin. In spec.updatePolicy of a Node, Local is the time zone of the
	// host. In a rolloutPolicy it is the one in the node's annotation edgebus.io/time-zone, and UTC for a node without it.
	// +default=Local
	TimeZone string `json:"timeZone,omitempty"`
	// StartGraceDuration is how long the window stays open, at least 1m, such as 2h; 1h when empty.
	StartGraceDuration string `json:"startGraceDuration,omitempty"`
}

// TimeZoneAnnotation of a Node has its time zone.
const TimeZoneAnnotation = Group + "/time-zone"

// MaxCron bounds the length of a cron expression, which is read often. One with all minutes, hours and days has less than half of it.
const MaxCron = 1000

func (s *UpdateSchedule) check(p *causeList, at string) {
	if s == nil {
		return
	}
	if n := len(s.At); n > MaxCron {
		p.add(at+".at", "has %d characters; must have at most %d", n, MaxCron)
	} else if why := cronProblem(s.At); why != "" {
		p.add(at+".at", "%s: %s", clipText(s.At), why)
	}
	if _, err := time.LoadLocation(s.TimeZone); err != nil {
		p.add(at+".timeZone", "%s: must be a time zone such as Europe/Berlin, or Local", clipText(s.TimeZone))
	}
	checkDuration(p, at+".startGraceDuration", s.StartGraceDuration, time.Minute)
}

// The values of RolloutPolicy.OnFailure.
const (
	OnFailureHalt     = "Halt"
	OnFailureRollBack = "RollBack"
)

// RollBackAnnotation of a Fleet names the TemplateVersion that the nodes get instead of the newest. It is removed when there
// is a newer version.
const RollBackAnnotation = "fleet-controller/rollBackTo"

const (
	// VersionAnnotation of a Node names the TemplateVersion that it has applied, and of a Fleet the newest.
	VersionAnnotation = "fleet-controller/templateVersion"
	// AssignedVersionAnnotation of a Node names the TemplateVersion that its spec is made of.
	AssignedVersionAnnotation = "fleet-controller/assignedTemplateVersion"
)

// DeviceSelection divides the nodes of a fleet into batches. Nodes that are in no batch are the last batch.
type DeviceSelection struct {
	// Strategy is how the nodes are divided.
	// +kubebuilder:validation:Enum=BatchSequence
	Strategy string `json:"strategy"`
	// Sequence are the batches in their order.
	// +listType=atomic
	Sequence []RolloutBatch `json:"sequence,omitempty"`
}

// RolloutBatch is a batch of a fleet's nodes.
type RolloutBatch struct {
	// Selector chooses nodes by their labels; all nodes when empty.
	Selector *LabelSelector `json:"selector,omitempty"`
	// Limit is the largest number of nodes in the batch: a number, or a percentage of the nodes chosen, such as 10%; no limit
	// when empty.
	Limit string `json:"limit,omitempty"`
	// SuccessThreshold is the percentage of this batch that must succeed, from 0% to 100%; the policy's when empty.
	SuccessThreshold string `json:"successThreshold,omitempty"`
}

// DisruptionBudget limits how many nodes are unavailable at a time. A node is unavailable while it is updated, and while it is
// offline or has failed.
type DisruptionBudget struct {
	// GroupBy are keys of labels. Nodes with the same values are a group, and the limits apply to each group. All nodes are one
	// group when empty.
	// +listType=atomic
	GroupBy []string `json:"groupBy,omitempty"`
	// MinAvailable is how many nodes of a group must stay available; no limit when missing.
	// +kubebuilder:validation:Minimum=0
	MinAvailable *int `json:"minAvailable,omitempty"`
	// MaxUnavailable is how many nodes of a group may be unavailable; no limit when missing.
	// +kubebuilder:validation:Minimum=0
	MaxUnavailable *int `json:"maxUnavailable,omitempty"`
}

func (r *RolloutPolicy) check(p *causeList, at string) {
	if r == nil {
		return
	}
	checkPercent(p, at+".successThreshold", r.SuccessThreshold)
	checkDuration(p, at+".defaultUpdateTimeout", r.DefaultUpdateTimeout, time.Second)
	r.UpdateSchedule.check(p, at+".updateSchedule")
	r.DownloadSchedule.check(p, at+".downloadSchedule")
	checkOneOf(p, at+".onFailure", r.OnFailure, []string{"", OnFailureHalt, OnFailureRollBack})
	if s := r.DeviceSelection; s != nil {
		at := at + ".deviceSelection"
		checkOneOf(p, at+".strategy", s.Strategy, []string{"BatchSequence"})
		for i, b := range s.Sequence {
			here := fmt.Sprintf("%s.sequence[%d]", at, i)
			b.Selector.check(p, here+".selector")
			checkPercent(p, here+".successThreshold", b.SuccessThreshold)
			checkAmount(p, here+".limit", b.Limit)
		}
	}
	if b := r.DisruptionBudget; b != nil {
		at := at + ".disruptionBudget"
		for name, n := range map[string]*int{"minAvailable": b.MinAvailable, "maxUnavailable": b.MaxUnavailable} {
			if n != nil && *n < 0 {
				p.add(at+"."+name, "%d: must be 0 or more", *n)
			}
		}
	}
}

// checkAmount checks a number or a percentage. An empty text is valid.
func checkAmount(p *causeList, field, text string) {
	if strings.HasSuffix(text, "%") {
		checkPercent(p, field, text)
	} else if _, err := strconv.ParseUint(text, 10, 31); err != nil && text != "" {
		p.add(field, "%s: must be a number, or a percentage such as 10%%", clipText(text))
	}
}

// checkPercent checks a percentage. An empty text is valid.
func checkPercent(p *causeList, field, text string) {
	if text == "" {
		return
	}
	if _, err := ParsePercent(text); err != nil {
		p.add(field, "%s: must be a percentage from 0%% to 100%%", clipText(text))
	}
}

// ParsePercent reads a percentage from 0% to 100%.
func ParsePercent(text string) (int, error) {
	digits, ok := strings.CutSuffix(text, "%")
	n, err := strconv.ParseUint(digits, 10, 8)
	if !ok || err != nil || n > 100 {
		return 0, fmt.Errorf("%q is not a percentage from 0%% to 100%%", text)
	}
	return int(n), nil
}

// NodeTemplate is the template for the nodes of a fleet.
type NodeTemplate struct {
	// Metadata is metadata of the template.
	Metadata *TemplateMeta `json:"metadata,omitempty"`
	// Spec is the spec that nodes get, with its references resolved. Texts may be Go templates, which are evaluated for each
	// node.
	Spec NodeSpec `json:"spec"`
}

// TemplateMeta is the metadata of a template.
type TemplateMeta struct {
	// Labels are for readers of the template. They are not set on nodes.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations are for readers of the template.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Generation is set by the author of the template. The hub does not change it.
	// +kubebuilder:validation:Minimum=0
	Generation int64 `json:"generation,omitempty"`
}

// FleetStatus is the observed state of a fleet.
type FleetStatus struct {
	// Rollout is the progress of the newest version of the template.
	Rollout *RolloutStatus `json:"rollout,omitempty"`
	// Summary counts the fleet's nodes by their states.
	Summary *FleetSummary `json:"summary,omitempty"`
	// Conditions: Ready says whether the nodes have the newest version of the template; Stalled is True while somebody has to help;
	// OverlappingSelectors names the fleets whose selectors match the same nodes; TemplateResolved says whether the newest version
	// of the template could be made.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// TemplateResolved is the condition of a Fleet that says whether the newest version of its template could be made.
const TemplateResolved = "TemplateResolved"

// RolloutStatus is the progress of a version of a fleet's template.
type RolloutStatus struct {
	// TemplateVersion is the version that is rolled out.
	TemplateVersion string `json:"templateVersion,omitempty"`
	// ObservedGeneration is the generation of the Fleet that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Batch is the number of the current batch, from 1 to batches; 0 before the first batch begins.
	Batch int `json:"batch,omitempty"`
	// Batches is the number of batches, including the last one, of the nodes in no other batch; 0 before the first batch
	// begins.
	Batches int `json:"batches,omitempty"`
	// BatchStarted is the time when the batch began.
	BatchStarted string `json:"batchStarted,omitempty"`
	// RolledBackFrom is the newest version, if another one is rolled out instead.
	RolledBackFrom string `json:"rolledBackFrom,omitempty"`
	// FinishedAt is the time when the last batch ended and all batches had succeeded; empty before.
	FinishedAt string `json:"finishedAt,omitempty"`
	// Nodes is the number of nodes of the fleet.
	Nodes int `json:"nodes,omitempty"`
	// Updated is the number of nodes that have the version.
	Updated int `json:"updated,omitempty"`
	// Updating is the number of nodes that were given the version and have not answered.
	Updating int `json:"updating,omitempty"`
	// FailedNodes is the number of nodes that could not apply the version, or did not answer in time.
	FailedNodes int `json:"failedNodes,omitempty"`
	// Reason is why no further nodes are given the version now, in one word; empty if all nodes have it or are being given it.
	Reason string `json:"reason,omitempty"`
	// Message is the reason as a sentence for people.
	Message string `json:"message,omitempty"`
}

// LabelSelector chooses objects by their labels. All its terms must hold.
type LabelSelector struct {
	// MatchLabels are labels that an object must have with these values.
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
	// MatchExpressions are further terms.
	MatchExpressions []LabelTerm `json:"matchExpressions,omitempty"`
}

// LabelTerm is one term of a selector.
type LabelTerm struct {
	// Key is the key of the label.
	Key string `json:"key"`
	// Operator compares the label with the values.
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator string `json:"operator"`
	// Values are the values for In and NotIn; empty for the other operators.
	Values []string `json:"values,omitempty"`
}

// Empty reports whether a selector is missing or has no terms.
func (s *LabelSelector) Empty() bool {
	return s == nil || len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0
}

// Matches reports whether the terms of a selector hold for labels. A missing selector and one without terms match all labels.
func (s *LabelSelector) Matches(labels map[string]string) bool {
	if s == nil {
		return true
	}
	for key, value := range s.MatchLabels {
		if has, ok := labels[key]; !ok || has != value {
			return false
		}
	}
	return !slices.ContainsFunc(s.MatchExpressions, func(t LabelTerm) bool { return !t.holds(labels) })
}

func (t LabelTerm) holds(labels map[string]string) bool {
	value, has := labels[t.Key]
	switch t.Operator {
	case "In":
		return has && slices.Contains(t.Values, value)
	case "NotIn":
		return !has || !slices.Contains(t.Values, value)
	case "Exists":
		return has
	}
	return !has
}

func (s *LabelSelector) check(p *causeList, at string) {
	if s == nil {
		return
	}
	checkLabels(p, at+".matchLabels", s.MatchLabels)
	for i, term := range s.MatchExpressions {
		term.check(p, fmt.Sprintf("%s.matchExpressions[%d]", at, i))
	}
}

func (t LabelTerm) check(p *causeList, at string) {
	checkLabel(p, at+".key", t.Key, "")
	checkOneOf(p, at+".operator", t.Operator, []string{"In", "NotIn", "Exists", "DoesNotExist"})
	sets := t.Operator == "In" || t.Operator == "NotIn"
	switch {
	case sets && len(t.Values) == 0:
		p.add(at+".values", "is required: %s needs values to compare with", t.Operator)
	case !sets && len(t.Values) > 0:
		p.add(at+".values", "must be empty: the operator is not In or NotIn")
	}
}

// Validate checks a Fleet.
func (f Fleet) Validate() error {
	var p causeList
	f.Metadata.check(&p)
	if most := 253 - len("-0000001"); len(f.Metadata.Name) > most {
		p.add("metadata.name", "has %d characters; a fleet's has at most %d, for its TemplateVersions add a dash and seven digits", len(f.Metadata.Name), most)
	}
	f.Spec.Selector.check(&p, "spec.selector")
	f.Spec.Template.check(&p, "spec.template")
	f.Spec.RolloutPolicy.check(&p, "spec.rolloutPolicy")
	if n := f.Spec.RevisionHistoryLimit; n != nil && *n < 0 {
		p.add("spec.revisionHistoryLimit", "%d: must be 0 or more", *n)
	}
	checkDuration(&p, "spec.revisionHistoryAge", f.Spec.RevisionHistoryAge, time.Minute)
	return p.err()
}

func (t NodeTemplate) check(p *causeList, at string) {
	if m := t.Metadata; m != nil {
		checkLabels(p, at+".metadata.labels", m.Labels)
		if m.Generation < 0 {
			p.add(at+".metadata.generation", "%d: must be 0 or more", m.Generation)
		}
	}
	t.Spec.check(p, at+".spec", true)
}

// TemplateVersion is a Fleet's template at one time, with its references resolved. Only controllers create TemplateVersions,
// and their specs never change.
type TemplateVersion struct {
	TypeMeta
	Metadata Meta                  `json:"metadata"`
	Spec     TemplateVersionSpec   `json:"spec"`
	Status   TemplateVersionStatus `json:"status,omitzero"`
}

// TemplateVersionSpec is the frozen template. It is immutable.
type TemplateVersionSpec struct {
	// Fleet is the name of the Fleet that the template belongs to.
	Fleet string `json:"fleet"`
	// Template is the template as it was written.
	Template NodeTemplate `json:"template"`
	// References are the references in the template and in the nodes' own specs, with what they were resolved to.
	References []Reference `json:"references,omitempty"`
}

// TemplateVersionStatus is the observed state of a TemplateVersion.
type TemplateVersionStatus struct {
	// UpdatedAt is the time when the references were last resolved.
	UpdatedAt string `json:"updatedAt,omitempty"`
	// RolledOutAt is the time when the last batch of its rollout ended and all batches had succeeded; empty if that has not
	// happened, or if no node has had it.
	RolledOutAt string `json:"rolledOutAt,omitempty"`
	// Conditions say why a version can't be rolled out.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// Validate checks a TemplateVersion.
func (v TemplateVersion) Validate() error {
	var p causeList
	v.Metadata.check(&p)
	checkName(&p, "spec.fleet", v.Spec.Fleet)
	v.Spec.Template.check(&p, "spec.template")
	for i, ref := range v.Spec.References {
		at := fmt.Sprintf("spec.references[%d]", i)
		checkOneOf(&p, at+".type", ref.Type, refTypes)
		checkRequired(&p, at+".source", ref.Source)
		checkFiles(&p, at+".files", ref.Files, true)
	}
	return p.err()
}

// CheckUpdate reports whether a TemplateVersion may replace prev: its spec must be the same.
func (v TemplateVersion) CheckUpdate(prev TemplateVersion) error {
	var p causeList
	checkUnchanged(&p, "spec", prev.Spec, v.Spec)
	return p.err()
}
