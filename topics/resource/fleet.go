package resource

import (
	"encoding/json"
	"fmt"

	"github.com/edgebus/edgebus/topics"
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

// CheckStatus checks what the node's host says that it runs.
func (n Node) CheckStatus() error {
	var p problems
	for i, c := range n.Status.Containers {
		required(&p, fmt.Sprintf("status.containers[%d].id", i), c.ID)
	}
	for i, u := range n.Status.SystemdUnits {
		required(&p, fmt.Sprintf("status.systemdUnits[%d].name", i), u.Name)
	}
	return p.err()
}

// Validate checks a Node.
func (n Node) Validate() error {
	var p problems
	n.Metadata.check(&p)
	n.Spec.check(&p, "spec")
	return p.err()
}

func (s NodeSpec) check(p *problems, at string) {
	if s.OS != nil {
		checkImage(p, at+".os.image", s.OS.Image)
	}
	names := make(map[string]bool)
	for i, item := range s.Config {
		here := fmt.Sprintf("%s.config[%d]", at, i)
		if item.Name == "" {
			p.add(here+".name", "is required: it tells the parts of a configuration apart")
		} else if names[item.Name] {
			p.add(here+".name", "%s stands twice", clip(item.Name))
		}
		names[item.Name] = true
		item.check(p, here)
	}
}

func (c ConfigItem) check(p *problems, at string) {
	oneOf(p, at+".configType", string(c.ConfigType), []ConfigType{ConfigInline, ConfigGit, ConfigSecret})
	for _, part := range []struct {
		field string
		is    ConfigType
		set   bool
	}{
		{"inline", ConfigInline, len(c.Inline) > 0}, {"gitRef", ConfigGit, c.GitRef != nil}, {"secretRef", ConfigSecret, c.SecretRef != nil},
	} {
		switch {
		case part.is == c.ConfigType && !part.set:
			p.add(at+"."+part.field, "is required: the configType is %s", c.ConfigType)
		case part.is != c.ConfigType && part.set:
			p.add(at+"."+part.field, "must not be set: the configType is %s", clip(string(c.ConfigType)))
		}
	}
	if c.GitRef != nil {
		c.GitRef.check(p, at+".gitRef")
	}
	if c.SecretRef != nil {
		required(p, at+".secretRef.name", c.SecretRef.Name)
		required(p, at+".secretRef.mountPath", c.SecretRef.MountPath)
	}
	if len(c.Inline) > 0 && !isJSON(string(c.Inline), '{') {
		p.add(at+".inline", "must be an object: an Ignition document")
	}
}

func (g GitRef) check(p *problems, at string) {
	checkName(p, at+".repository", g.Repository)
	required(p, at+".targetRevision", g.TargetRevision)
	checkRevision(p, at+".targetRevision", g.TargetRevision)
	required(p, at+".path", g.Path)
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

// unchanged adds a problem if two values differ in their JSON.
func unchanged(p *problems, field string, a, b any) {
	before, errA := json.Marshal(a)
	after, errB := json.Marshal(b)
	if errA != nil || errB != nil || string(before) != string(after) {
		p.add(field, "can't be changed: it is immutable")
	}
}

func required(p *problems, field, value string) {
	if value == "" {
		p.add(field, "is required")
	}
}

// checkName checks a name that refers to another object.
func checkName(p *problems, field, name string) {
	switch {
	case name == "":
		p.add(field, "is required")
	case !topics.ValidName(name):
		p.add(field, "%s: must be %s", clip(name), topics.NameRule())
	}
}
