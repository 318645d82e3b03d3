package resource

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fleet is a template for all the nodes that its selector matches.
type Fleet struct {
	TypeMeta
	Metadata Meta        `json:"metadata"`
	Spec     FleetSpec   `json:"spec"`
	Status   FleetStatus `json:"status,omitzero"`
}

// FleetSpec is which nodes a fleet has, and what is wanted of each.
type FleetSpec struct {
	// Selector chooses the nodes by their labels. One that is empty chooses none.
	Selector *LabelSelector `json:"selector,omitempty"`
	// Template is what each node's spec is made of.
	Template NodeTemplate `json:"template"`
	// RolloutPolicy says how a change of the template reaches the nodes; without it all get it at once.
	RolloutPolicy *RolloutPolicy `json:"rolloutPolicy,omitempty"`
	// Paused stops the rollout: no more nodes get another version.
	Paused bool `json:"paused,omitempty"`
	// RevisionHistoryLimit is how many TemplateVersions are kept that no node has; 10 when missing.
	// +kubebuilder:validation:Minimum=0
	RevisionHistoryLimit *int `json:"revisionHistoryLimit,omitempty"`
	// RevisionHistoryAge is how old a TemplateVersion that no node has may become, such as 720h; any age when empty. The one
	// before the newest is kept.
	RevisionHistoryAge string `json:"revisionHistoryAge,omitempty"`
}

// RolloutPolicy is how a change reaches a fleet's nodes.
type RolloutPolicy struct {
	// DeviceSelection divides the nodes into batches.
	DeviceSelection *DeviceSelection `json:"deviceSelection,omitempty"`
	// DisruptionBudget bounds how many nodes are not available at a time.
	DisruptionBudget *DisruptionBudget `json:"disruptionBudget,omitempty"`
	// SuccessThreshold is the percentage of a batch that must succeed before the next one begins; 90% when empty.
	SuccessThreshold string `json:"successThreshold,omitempty"`
	// DefaultUpdateTimeout is when a node that has not answered counts as failed, and one that is offline is no longer waited
	// for; 10m when empty.
	DefaultUpdateTimeout string `json:"defaultUpdateTimeout,omitempty"`
	// OnFailure is what becomes of a new version that halts: Halt leaves the nodes as they are, RollBack gives them the
	// last version that was rolled out to the end.
	// +kubebuilder:validation:Enum=Halt;RollBack
	// +default=Halt
	OnFailure string `json:"onFailure,omitempty"`
	// UpdateSchedule are the times at which nodes may be given another version; any when missing.
	UpdateSchedule *UpdateSchedule `json:"updateSchedule,omitempty"`
	// DownloadSchedule are the times at which nodes may download what a version needs; any when missing. A node without an updatePolicy
	// downloads when it is given the version, so that is done when both schedules allow it.
	DownloadSchedule *UpdateSchedule `json:"downloadSchedule,omitempty"`
}

// UpdateSchedule is a window of time that comes again and again.
type UpdateSchedule struct {
	// At is when it opens, as a cron expression: minute, hour, day of the month, month and day of the week.
	At string `json:"at"`
	// TimeZone is that of the expression, such as Europe/Berlin; Local, which is the default, is each node's own: its annotation
	// edgebus.io/time-zone. Without one it is the time zone of the host in spec.updatePolicy of a Node, and UTC in a rolloutPolicy.
	// +default=Local
	TimeZone string `json:"timeZone,omitempty"`
	// StartGraceDuration is how long it is open, such as 2h, at least 1m; 1h when empty.
	StartGraceDuration string `json:"startGraceDuration,omitempty"`
}

// TimeZoneAnnotation is a Node's own time zone.
const TimeZoneAnnotation = Group + "/time-zone"

// MaxCron bounds the length of a cron expression, which is read often. One with all minutes, hours and days has less than half of it.
const MaxCron = 1000

func (s *UpdateSchedule) check(p *problems, at string) {
	if s == nil {
		return
	}
	if n := len(s.At); n > MaxCron {
		p.add(at+".at", "has %d characters; must have at most %d", n, MaxCron)
	} else if n := len(strings.Fields(s.At)); n != 5 && !(n == 1 && strings.HasPrefix(s.At, "@")) {
		p.add(at+".at", "%s: must be a cron expression of five fields, such as 0 2 * * *", clip(s.At))
	}
	checkDuration(p, at+".startGraceDuration", s.StartGraceDuration, time.Minute)
}

// What becomes of a rollout that halts.
const (
	OnFailureHalt     = "Halt"
	OnFailureRollBack = "RollBack"
)

// RollBackAnnotation names the TemplateVersion that a Fleet's nodes are to have instead of the newest. It goes when there is a newer one.
const RollBackAnnotation = "fleet-controller/rollBackTo"

// DeviceSelection divides the nodes of a fleet into batches. Those that no batch has are the last one.
type DeviceSelection struct {
	// Strategy is how.
	// +kubebuilder:validation:Enum=BatchSequence
	Strategy string `json:"strategy"`
	// Sequence are the batches in their order.
	// +listType=atomic
	Sequence []RolloutBatch `json:"sequence,omitempty"`
}

// RolloutBatch is a part of a fleet's nodes.
type RolloutBatch struct {
	// Selector chooses by labels; all nodes when empty.
	Selector *LabelSelector `json:"selector,omitempty"`
	// Limit is how many of them at most: a number, or a percentage of those that match, such as 10%.
	Limit string `json:"limit,omitempty"`
	// SuccessThreshold is the percentage of this batch that must succeed; the policy's when empty.
	SuccessThreshold string `json:"successThreshold,omitempty"`
}

// DisruptionBudget bounds how many nodes are not available at a time: those that are updated, offline or broken.
type DisruptionBudget struct {
	// GroupBy are labels: nodes with the same values are a group, to which the bounds apply. All nodes are one when empty.
	// +listType=atomic
	GroupBy []string `json:"groupBy,omitempty"`
	// MinAvailable is how many of a group stay available.
	// +kubebuilder:validation:Minimum=0
	MinAvailable *int `json:"minAvailable,omitempty"`
	// MaxUnavailable is how many of a group may be not available.
	// +kubebuilder:validation:Minimum=0
	MaxUnavailable *int `json:"maxUnavailable,omitempty"`
}

func (r *RolloutPolicy) check(p *problems, at string) {
	if r == nil {
		return
	}
	checkPercent(p, at+".successThreshold", r.SuccessThreshold)
	checkDuration(p, at+".defaultUpdateTimeout", r.DefaultUpdateTimeout, time.Second)
	r.UpdateSchedule.check(p, at+".updateSchedule")
	r.DownloadSchedule.check(p, at+".downloadSchedule")
	oneOf(p, at+".onFailure", r.OnFailure, []string{"", OnFailureHalt, OnFailureRollBack})
	if s := r.DeviceSelection; s != nil {
		at := at + ".deviceSelection"
		oneOf(p, at+".strategy", s.Strategy, []string{"BatchSequence"})
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

// checkAmount checks a number or a percentage that may be missing.
func checkAmount(p *problems, field, text string) {
	if strings.HasSuffix(text, "%") {
		checkPercent(p, field, text)
	} else if _, err := strconv.ParseUint(text, 10, 31); err != nil && text != "" {
		p.add(field, "%s: must be a number, or a percentage such as 10%%", clip(text))
	}
}

// checkPercent checks a percentage that may be missing.
func checkPercent(p *problems, field, text string) {
	if text == "" {
		return
	}
	if _, err := ParsePercent(text); err != nil {
		p.add(field, "%s: must be a percentage from 0%% to 100%%", clip(text))
	}
}

// ParsePercent reads a percentage such as 90%.
func ParsePercent(text string) (int, error) {
	digits, ok := strings.CutSuffix(text, "%")
	n, err := strconv.ParseUint(digits, 10, 8)
	if !ok || err != nil || n > 100 {
		return 0, fmt.Errorf("%q is not a percentage from 0%% to 100%%", text)
	}
	return int(n), nil
}

// NodeTemplate is what is wanted of each node of a fleet.
type NodeTemplate struct {
	// Metadata is what nodes get beside the spec.
	Metadata *TemplateMeta `json:"metadata,omitempty"`
	// Spec is the spec that nodes get, with floating references resolved.
	Spec NodeSpec `json:"spec"`
}

// TemplateMeta is the metadata of a template.
type TemplateMeta struct {
	// Labels are for readers of the template: a node's own decide which fleet has it.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations are for readers of the template.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Generation is counted by who writes the template; the hub keeps it as it is.
	// +kubebuilder:validation:Minimum=0
	Generation int64 `json:"generation,omitempty"`
}

// FleetStatus is what is known of a fleet.
type FleetStatus struct {
	// Rollout is how far the newest version of the template is.
	Rollout *RolloutStatus `json:"rollout,omitempty"`
	// Summary counts the fleet's nodes by how they are.
	Summary *FleetSummary `json:"summary,omitempty"`
	// Conditions: OverlappingSelectors names the fleets that want the same nodes; TemplateResolved says whether the newest
	// version of the template could be made.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// TemplateResolved is the condition of a Fleet that says whether the newest version of its template could be made.
const TemplateResolved = "TemplateResolved"

// RolloutStatus is how far a version of a fleet's template is.
type RolloutStatus struct {
	// TemplateVersion is the version that is rolled out.
	TemplateVersion string `json:"templateVersion,omitempty"`
	// ObservedGeneration is the generation of the Fleet that this is about.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Batch is the batch that is under way, of Batches; both 0 before the first one begins.
	Batch int `json:"batch,omitempty"`
	// Batches is how many there are, with the last one of the nodes that no other has.
	Batches int `json:"batches,omitempty"`
	// BatchStarted is when the batch began.
	BatchStarted string `json:"batchStarted,omitempty"`
	// RolledBackFrom is the newest version, if another one is rolled out instead.
	RolledBackFrom string `json:"rolledBackFrom,omitempty"`
	// FinishedAt is when the last batch was over for the first time, and each had succeeded; empty: not yet.
	FinishedAt string `json:"finishedAt,omitempty"`
	// Nodes is how many nodes the fleet has.
	Nodes int `json:"nodes,omitempty"`
	// Updated is how many of them have the version.
	Updated int `json:"updated,omitempty"`
	// Updating is how many were given it and have not answered.
	Updating int `json:"updating,omitempty"`
	// FailedNodes is how many could not apply it, or did not answer in time.
	FailedNodes int `json:"failedNodes,omitempty"`
	// Reason is why no more nodes are given it now, in one word; empty: all have it, or are being given it.
	Reason string `json:"reason,omitempty"`
	// Message says the same to people.
	Message string `json:"message,omitempty"`
}

// LabelSelector chooses objects by their labels: all that is said must hold.
type LabelSelector struct {
	// MatchLabels are labels that must have these values.
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
	// MatchExpressions are more terms.
	MatchExpressions []LabelTerm `json:"matchExpressions,omitempty"`
}

// LabelTerm is one term of a selector.
type LabelTerm struct {
	// Key is the label's name.
	Key string `json:"key"`
	// Operator is how the label relates to the values.
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator string `json:"operator"`
	// Values are for In and NotIn; the others have none.
	Values []string `json:"values,omitempty"`
}

// Empty reports whether a selector has no terms; also a missing one is.
func (s *LabelSelector) Empty() bool {
	return s == nil || len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0
}

// Matches reports whether the terms of a selector hold for labels; one without terms matches all.
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

func (s *LabelSelector) check(p *problems, at string) {
	if s == nil {
		return
	}
	checkLabels(p, at+".matchLabels", s.MatchLabels)
	for i, term := range s.MatchExpressions {
		term.check(p, fmt.Sprintf("%s.matchExpressions[%d]", at, i))
	}
}

func (t LabelTerm) check(p *problems, at string) {
	checkLabel(p, at+".key", t.Key, "")
	oneOf(p, at+".operator", t.Operator, []string{"In", "NotIn", "Exists", "DoesNotExist"})
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
	var p problems
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

func (t NodeTemplate) check(p *problems, at string) {
	if m := t.Metadata; m != nil {
		checkLabels(p, at+".metadata.labels", m.Labels)
		if m.Generation < 0 {
			p.add(at+".metadata.generation", "%d: must be 0 or more", m.Generation)
		}
	}
	t.Spec.check(p, at+".spec", true)
}

// TemplateVersion is a Fleet's template as it was at one time, with its floating
// references resolved. Only controllers make them; once made they never change.
type TemplateVersion struct {
	TypeMeta
	Metadata Meta                  `json:"metadata"`
	Spec     TemplateVersionSpec   `json:"spec"`
	Status   TemplateVersionStatus `json:"status,omitzero"`
}

// TemplateVersionSpec is the frozen template. It is immutable.
type TemplateVersionSpec struct {
	// Fleet is the Fleet whose template it is.
	Fleet string `json:"fleet"`
	// Template is the template as it was written.
	Template NodeTemplate `json:"template"`
	// References are what floated in the template, or in the nodes' own specs, and where it stood.
	References []Reference `json:"references,omitempty"`
}

// TemplateVersionStatus is what is known of a template's version.
type TemplateVersionStatus struct {
	// UpdatedAt is when the references were last resolved.
	UpdatedAt string `json:"updatedAt,omitempty"`
	// RolledOutAt is when the last batch of its rollout was over, and each had succeeded; empty: it never was.
	RolledOutAt string `json:"rolledOutAt,omitempty"`
	// Conditions say why a version can't be rolled out.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// Validate checks a TemplateVersion.
func (v TemplateVersion) Validate() error {
	var p problems
	v.Metadata.check(&p)
	checkName(&p, "spec.fleet", v.Spec.Fleet)
	v.Spec.Template.check(&p, "spec.template")
	for i, ref := range v.Spec.References {
		at := fmt.Sprintf("spec.references[%d]", i)
		oneOf(&p, at+".type", ref.Type, refTypes)
		required(&p, at+".source", ref.Source)
		checkFiles(&p, at+".files", ref.Files, true)
	}
	return p.err()
}

// CheckUpdate reports whether a TemplateVersion may follow prev: its spec may not change.
func (v TemplateVersion) CheckUpdate(prev TemplateVersion) error {
	var p problems
	unchanged(&p, "spec", prev.Spec, v.Spec)
	return p.err()
}

// Repository is a place from which configuration or images are taken.
type Repository struct {
	TypeMeta
	Metadata Meta             `json:"metadata"`
	Spec     RepositorySpec   `json:"spec"`
	Status   RepositoryStatus `json:"status,omitzero"`
}

// RepositorySpec is where a repository is and how it is reached.
type RepositorySpec struct {
	// URL is its address: https://…, ssh://…, git@host:path, oci://…; http:// of a registry without TLS.
	URL string `json:"url"`
	// Type is how it is spoken with; git when empty.
	// +kubebuilder:validation:Enum=git;http;oci
	// +default=git
	Type string `json:"type,omitempty"`
	// ValidationSuffix is what follows the address when the hub looks whether a Repository of type http can be read.
	ValidationSuffix string `json:"validationSuffix,omitempty"`
	// SecretRef is a Secret with credentials: username and password, token, ssh-privatekey with known_hosts, tls.crt and
	// tls.key, ca.crt. They are sent to the URL's host only. webhook-secret is what a webhook must prove to know.
	SecretRef *SecretRef `json:"secretRef,omitempty"`
	// Credentials are values that a Secret would have, under the same keys, for manifests of flightctl that have them in the
	// Repository. They are stored unencrypted; a Secret is the better place, and what it has goes before them.
	Credentials map[string][]byte `json:"credentials,omitempty"`
	// InsecureSkipVerify takes any certificate or host key. Only for trying things out.
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// Has reports whether an image, without its tag, is in a Repository of type oci.
func (s RepositorySpec) Has(image string) bool {
	_, place, ok := strings.Cut(s.URL, "://")
	place = strings.TrimSuffix(place, "/")
	return s.Type == "oci" && ok && (image == place || strings.HasPrefix(image, place+"/"))
}

// SecretRef names a Secret.
type SecretRef struct {
	// Name is the Secret's name.
	Name string `json:"name"`
	// Namespace is the Secret's; default when empty.
	// +default=default
	Namespace string `json:"namespace,omitempty"`
}

// RepositoryStatus is what is known of a repository.
type RepositoryStatus struct {
	// NotifiedAt is when a webhook last said that the repository has changed.
	NotifiedAt string `json:"notifiedAt,omitempty"`
	// Conditions: Accessible says whether it could be reached.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// ConditionAccessible reports whether a Repository, or what a ResourceSync refers to, can be read.
const ConditionAccessible = "Accessible"

var repositoryTypes = []string{"", "git", "http", "oci"}

// Validate checks a Repository.
func (r Repository) Validate() error {
	var p problems
	r.Metadata.check(&p)
	oneOf(&p, "spec.type", r.Spec.Type, repositoryTypes)
	if r.Spec.URL == "" {
		p.add("spec.url", "is required")
	} else if why := badURL(r.Spec.URL); why != "" {
		p.add("spec.url", "%s", why)
	}
	if s := r.Spec.ValidationSuffix; s != "" && r.Spec.Type != "http" {
		p.add("spec.validationSuffix", "must be empty: the type is not http")
	} else {
		checkSuffix(&p, "spec.validationSuffix", s)
	}
	if ref := r.Spec.SecretRef; ref != nil {
		required(&p, "spec.secretRef.name", ref.Name)
	}
	return p.err()
}

// badURL says what is wrong with a repository's address. It quotes nothing of it that may be secret.
func badURL(text string) string {
	if user, rest, ok := strings.Cut(text, "@"); ok && !strings.Contains(user, "/") && strings.Contains(rest, ":") {
		return "" // git@host:path
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme == "" || u.Host == "":
		return "must be an address such as https://host/path or git@host:path"
	case !slices.Contains([]string{"https", "http", "ssh", "git", "oci"}, u.Scheme):
		return "the scheme " + clip(u.Scheme) + " is not one of https, http, ssh, git, oci"
	}
	if _, secret := u.User.Password(); secret {
		return "must not hold a password: put it into a Secret, and name that in secretRef"
	}
	return ""
}

// ResourceSync applies the manifests of a repository.
type ResourceSync struct { //nolint:revive // the kind is named so
	TypeMeta
	Metadata Meta               `json:"metadata"`
	Spec     ResourceSyncSpec   `json:"spec"`
	Status   ResourceSyncStatus `json:"status,omitzero"`
}

// ResourceSyncSpec is what is applied.
type ResourceSyncSpec struct { //nolint:revive // the kind is named so
	// Repository is the name of a Repository of type git.
	Repository string `json:"repository"`
	// TargetRevision is the branch, tag or commit.
	TargetRevision string `json:"targetRevision"`
	// Path is a file or directory with manifests.
	Path string `json:"path"`
	// Interval is how often the revision is looked at again, such as 5m, at least 1s; the hub's default when empty.
	Interval string `json:"interval,omitempty"`
	// Allow are the kinds, of Secret and Repository, that manifests may refer to: whoever may push to the repository could otherwise
	// have any Secret, and what any Repository contains, sent to a node. Its own Repository they always may.
	// +listType=atomic
	Allow []string `json:"allow,omitempty"`
}

// ResourceSyncStatus is what is known of it.
type ResourceSyncStatus struct { //nolint:revive // the kind is named so
	// ObservedCommit is the commit that was applied last.
	ObservedCommit string `json:"observedCommit,omitempty"`
	// ObservedGeneration is the generation of the spec that was acted on last.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Accessible, ResourceParsed and Synced, each with the cause if it is False.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// Validate checks a ResourceSync.
func (r ResourceSync) Validate() error {
	var p problems
	r.Metadata.check(&p)
	checkName(&p, "spec.repository", r.Spec.Repository)
	required(&p, "spec.targetRevision", r.Spec.TargetRevision)
	checkRevision(&p, "spec.targetRevision", r.Spec.TargetRevision)
	required(&p, "spec.path", r.Spec.Path)
	if text := r.Spec.Interval; text != "" {
		if d, err := time.ParseDuration(text); err != nil || d < time.Second {
			p.add("spec.interval", "%s is not a duration of at least 1s, such as 5m", clip(text))
		}
	}
	for i, kind := range r.Spec.Allow {
		oneOf(&p, fmt.Sprintf("spec.allow[%d]", i), kind, []string{KindSecret, KindRepository})
	}
	return p.err()
}
