package resource

import (
	"fmt"
	"net/url"
	"slices"
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
	// Conditions: OverlappingSelectors names the fleets that want the same nodes.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
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

// Empty says whether a selector has no terms; also a missing one is.
func (s *LabelSelector) Empty() bool {
	return s == nil || len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0
}

func (s *LabelSelector) check(p *problems, at string) {
	if s == nil {
		return
	}
	for key, value := range s.MatchLabels {
		checkLabel(p, at+".matchLabels", key, value)
	}
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
	f.Spec.Selector.check(&p, "spec.selector")
	f.Spec.Template.check(&p, "spec.template")
	sortProblems(p)
	return p.err()
}

func (t NodeTemplate) check(p *problems, at string) {
	if m := t.Metadata; m != nil {
		for key, value := range m.Labels {
			checkLabel(p, at+".metadata.labels", key, value)
		}
		if m.Generation < 0 {
			p.add(at+".metadata.generation", "%d: must be 0 or more", m.Generation)
		}
	}
	t.Spec.check(p, at+".spec")
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

// Reference is a floating reference with what it resolved to.
type Reference struct {
	// Type is what kind of reference it is.
	// +kubebuilder:validation:Enum=image;git;secret
	Type string `json:"type"`
	// Source is the image, Repository or Secret that is referred to.
	Source string `json:"source"`
	// Floating is the tag or branch as it was written.
	Floating string `json:"floating,omitempty"`
	// Resolved is the hash that it stood for.
	Resolved string `json:"resolved,omitempty"`
}

// TemplateVersionStatus is what is known of a template's version.
type TemplateVersionStatus struct {
	// UpdatedAt is when the references were last resolved.
	UpdatedAt string `json:"updatedAt,omitempty"`
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
		oneOf(&p, at+".type", ref.Type, []string{"image", "git", "secret"})
		required(&p, at+".source", ref.Source)
	}
	return p.err()
}

// CheckUpdate says whether a TemplateVersion may follow prev: its spec may not change.
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
	// URL is its address: https://…, ssh://…, git@host:path, oci://…
	URL string `json:"url"`
	// Type is how it is spoken with; git when empty.
	// +kubebuilder:validation:Enum=git;http;oci
	// +default=git
	Type string `json:"type,omitempty"`
	// SecretRef is a Secret with credentials: username and password, token, ssh-privatekey, tls.crt and tls.key, ca.crt.
	SecretRef *SecretRef `json:"secretRef,omitempty"`
	// InsecureSkipVerify takes any certificate. Only for trying things out.
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
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
	// Conditions: Accessible says whether it could be reached.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

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
}

// ResourceSyncStatus is what is known of it.
type ResourceSyncStatus struct { //nolint:revive // the kind is named so
	// ObservedCommit is the commit that was applied last.
	ObservedCommit string `json:"observedCommit,omitempty"`
	// ObservedGeneration is the generation of the spec that was acted on last.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Accessible, Parsed, Synced.
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
	return p.err()
}
