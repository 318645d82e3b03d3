package resource

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Node is a host that runs the edge core.
type Node struct {
	TypeMeta
	Metadata Meta       `json:"metadata"`
	Spec     NodeSpec   `json:"spec,omitzero"`
	Status   NodeStatus `json:"status,omitzero"`
}

// NodeSpec is what is wanted of a node. A Fleet's template has the same fields.
type NodeSpec struct {
	// OS is the operating system that is wanted.
	OS *NodeOS `json:"os,omitempty"`
	// Config is what is wanted of the host's files, from several sources.
	// +listType=map
	// +listMapKey=name
	Config []ConfigItem `json:"config,omitempty"`
	// Monitoring says what the node reports of its host.
	Monitoring *Monitoring `json:"monitoring,omitempty"`
}

// NodeOS is the operating system that is wanted.
type NodeOS struct {
	// Image is a reference to an OCI image; its tag may float.
	Image string `json:"image,omitempty"`
}

// ConfigType says where a part of a node's configuration is from.
// +kubebuilder:validation:Enum=InlineConfigProviderSpec;GitConfigProviderSpec;KubernetesSecretProviderSpec
type ConfigType string

// The sources of configuration.
const (
	ConfigInline ConfigType = "InlineConfigProviderSpec"
	ConfigGit    ConfigType = "GitConfigProviderSpec"
	ConfigSecret ConfigType = "KubernetesSecretProviderSpec"
)

// ConfigItem is a part of a node's configuration, from one source.
type ConfigItem struct {
	// Name tells the parts apart.
	Name string `json:"name"`
	// ConfigType says which one of inline, gitRef and secretRef is set.
	ConfigType ConfigType `json:"configType"`
	// Inline is the configuration itself: an Ignition document, version 3.4.0.
	Inline json.RawMessage `json:"inline,omitempty"`
	// GitRef is a path in a Repository.
	GitRef *GitRef `json:"gitRef,omitempty"`
	// SecretRef is a Secret; it has no versions and always floats.
	SecretRef *SecretMount `json:"secretRef,omitempty"`
}

// GitRef is a place in a Repository at a revision.
type GitRef struct {
	// Repository is the name of a Repository.
	Repository string `json:"repository"`
	// TargetRevision is a branch, tag or commit; the first two float.
	TargetRevision string `json:"targetRevision"`
	// Path is a file or directory in the repository.
	Path string `json:"path"`
}

// SecretMount is a Secret and where its values go on a node.
type SecretMount struct {
	// Name is the Secret's name.
	Name string `json:"name"`
	// Namespace is the Secret's; default when empty.
	// +default=default
	Namespace string `json:"namespace,omitempty"`
	// MountPath is the directory on the node for which each key becomes a file.
	MountPath string `json:"mountPath"`
}

// Monitoring says what a node reports of its host.
type Monitoring struct {
	// Containers are those to watch.
	Containers *Patterns `json:"containers,omitempty"`
	// Systemd are the units to watch.
	Systemd *Patterns `json:"systemd,omitempty"`
}

// Patterns choose by name.
type Patterns struct {
	// MatchPatterns are names in which * stands for any text.
	MatchPatterns []string `json:"matchPatterns,omitempty"`
}

// NodeStatus is what is known of a node.
type NodeStatus struct {
	// State is online or offline, as the hub sees the connection.
	State string `json:"state,omitempty"`
	// LastSeen is when the state last changed.
	LastSeen string `json:"lastSeen,omitempty"`
	// Version is that of the edge core.
	Version string `json:"version,omitempty"`
	// Devices is how many Devices are bound to the node, with a model that is there.
	Devices int `json:"devices,omitempty"`
	// RenderedVersion is the configuration that the node has applied.
	RenderedVersion string `json:"renderedVersion,omitempty"`
	// SystemInfo describes the host.
	SystemInfo *SystemInfo `json:"systemInfo,omitempty"`
	// Containers are those that spec.monitoring asks for.
	// +listType=map
	// +listMapKey=id
	Containers []ContainerStatus `json:"containers,omitempty"`
	// SystemdUnits are those that spec.monitoring asks for.
	// +listType=map
	// +listMapKey=name
	SystemdUnits []SystemdUnit `json:"systemdUnits,omitempty"`
	// CertificateExpires is when the certificate ends with which the node last connected; empty: it had none.
	CertificateExpires string `json:"certificateExpires,omitempty"`
	// UpdatedAt is when the node last reported its status.
	UpdatedAt string `json:"updatedAt,omitempty"`
	// Conditions are the node's own and those of its rendering. Ready says whether its link to the hub is up;
	// QuotaExceeded and OfAnotherHub are there if they ever were true, CertificateRenewal if a renewal has ever failed.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// AgentConditions are the types of those conditions that a flightctl agent reported: one that it reports no more goes.
	// +listType=atomic
	AgentConditions []string `json:"agentConditions,omitempty"`
}

// ContainerStatus is a container on a node.
type ContainerStatus struct {
	// ID is the engine's.
	ID string `json:"id"`
	// Name is the container's.
	Name string `json:"name,omitempty"`
	// Status is running, exited, …
	Status string `json:"status,omitempty"`
	// Image is what it was made of.
	Image string `json:"image,omitempty"`
	// Engine is podman, docker, …
	Engine string `json:"engine,omitempty"`
}

// SystemdUnit is a unit of a node's systemd.
type SystemdUnit struct {
	// Name is the unit's, with its suffix.
	Name string `json:"name"`
	// LoadState is systemd's: loaded, not-found, masked, …
	LoadState string `json:"loadState,omitempty"`
	// ActiveState is systemd's: active, inactive, failed, …
	ActiveState string `json:"activeState,omitempty"`
}

// SystemInfo describes the host of a node.
type SystemInfo struct {
	// Architecture is the processor's: amd64, arm64, …
	Architecture string `json:"architecture,omitempty"`
	// OperatingSystem is linux, …
	OperatingSystem string `json:"operatingSystem,omitempty"`
	// MachineID is the host's, of /etc/machine-id.
	MachineID string `json:"machineID,omitempty"`
	// BootID is another one after each boot.
	BootID string `json:"bootID,omitempty"`
	// CPUs is how many processors there are.
	CPUs int `json:"cpus,omitempty"`
	// Measurements are the platform's registers: pcr01, …
	Measurements map[string]string `json:"measurements,omitempty"`
}

// SystemFields are the fields of SystemInfo that a label can be made from.
var SystemFields = []string{"architecture", "operatingSystem", "machineID", "bootID", "cpus"}

// Field is one of SystemFields as a text.
func (s SystemInfo) Field(name string) string {
	switch name {
	case "architecture":
		return s.Architecture
	case "operatingSystem":
		return s.OperatingSystem
	case "machineID":
		return s.MachineID
	case "bootID":
		return s.BootID
	case "cpus":
		return strconv.Itoa(s.CPUs)
	}
	return ""
}

// NodeReport is the payload of status: what a core says of itself.
type NodeReport struct {
	Version    string      `json:"version"`
	SystemInfo *SystemInfo `json:"systemInfo,omitempty"`
	StartedAt  string      `json:"startedAt,omitempty"`
	// RenewalError is why the node's certificate could not be renewed; empty: it was, or is not due yet.
	RenewalError string `json:"renewalError,omitempty"`
}

// ConditionRenewal is False while a node's certificate can't be renewed.
const ConditionRenewal = "CertificateRenewal"

// RenewalCondition sets the condition CertificateRenewal: why is the reason for which the last attempt failed, empty if it
// didn't. A node for which no attempt has ever failed doesn't have it.
func RenewalCondition(prev []Condition, why string, now time.Time) []Condition {
	c := Condition{Type: ConditionRenewal, Status: "False", Reason: "Failed", Message: why}
	if why == "" {
		if !slices.ContainsFunc(prev, func(o Condition) bool { return o.Type == c.Type }) {
			return prev
		}
		c.Status, c.Reason = "True", "Renewed"
	}
	return SetCondition(slices.Clone(prev), c, now)
}

// ConditionReady says whether a node's link to the hub is up.
const ConditionReady = "Ready"

// ReadyCondition sets the condition Ready. ended is why the last connection of an offline node ended; it is empty if the hub
// has had none since its start, and then the message that prev has is kept.
func ReadyCondition(prev []Condition, state, ended string, now time.Time) []Condition {
	c := Condition{Type: ConditionReady, Status: "True", Reason: "NodeOnline", Message: "its link to the hub is up"}
	if state != Online {
		c.Status, c.Reason, c.Message = "False", ReasonAway, "its link to the hub is down: "+ended
	}
	if state != Online && ended == "" {
		c.Message = "it has not connected since the hub was started"
		if i := slices.IndexFunc(prev, func(c Condition) bool { return c.Type == ConditionReady && c.Status == "False" }); i >= 0 {
			c.Message = prev[i].Message
		}
	}
	return SetCondition(slices.Clone(prev), c, now)
}

// OfHub says whether only the hub sets a type of condition of a Node.
func OfHub(condition string) bool {
	return condition == ConditionReady || condition == QuotaExceeded || condition == OfAnotherHub || condition == ConditionRenewal
}

// QuotaExceeded is the condition of a Node that owns more than the hub takes.
const QuotaExceeded = "QuotaExceeded"

// OfAnotherHub is the condition of a Node that has what another hub gave it, and keeps that.
const OfAnotherHub = "OfAnotherHub"

// OtherHubCondition sets the condition OfAnotherHub: why is the reason for which the hub does not write to the node, empty
// if it does. A node to which the condition never applied doesn't have it.
func OtherHubCondition(prev []Condition, why string, now time.Time) []Condition {
	return setException(prev, Condition{Type: OfAnotherHub, Reason: "LeftAlone", Message: why}, "OfThisHub", now)
}

// QuotaCondition sets the condition QuotaExceeded: why is the limit that the node exceeds, empty if none. A node to which
// the condition never applied doesn't have it.
func QuotaCondition(prev []Condition, why string, now time.Time) []Condition {
	if why != "" {
		why = "the node owns " + why + ": what it reports is not taken until it owns less"
	}
	return setException(prev, Condition{Type: QuotaExceeded, Reason: "NodeTooLarge", Message: why}, "WithinQuota", now)
}

// setException sets a condition that objects have only once it has been true. It is false if c has no message.
func setException(prev []Condition, c Condition, reasonIfFalse string, now time.Time) []Condition {
	c.Status = "True"
	if c.Message == "" {
		if !slices.ContainsFunc(prev, func(o Condition) bool { return o.Type == c.Type }) {
			return prev
		}
		c.Status, c.Reason = "False", reasonIfFalse
	}
	return SetCondition(slices.Clone(prev), c, now)
}

// EnrollmentRequest is a node that asks to join.
type EnrollmentRequest struct {
	TypeMeta
	Metadata Meta             `json:"metadata"`
	Spec     EnrollmentSpec   `json:"spec"`
	Status   EnrollmentStatus `json:"status,omitzero"`
}

// EnrollmentSpec is what the node says of itself, and what somebody decides about it.
type EnrollmentSpec struct {
	// CSR is the node's request for a certificate, in PEM. It is immutable.
	CSR string `json:"csr"`
	// NodeName is the name that the node asks for; the request's own when empty. It is immutable.
	NodeName string `json:"nodeName,omitempty"`
	// Labels are those that the Node gets.
	Labels map[string]string `json:"labels,omitempty"`
	// SystemInfo describes the host that asks.
	SystemInfo *SystemInfo `json:"systemInfo,omitempty"`
	// Approval is empty until somebody decides; a decision is not taken back.
	// +kubebuilder:validation:Enum=Approved;Denied
	Approval string `json:"approval,omitempty"`
}

// EnrollmentStatus is what came of a request.
type EnrollmentStatus struct {
	// Certificate is what the hub signed, in PEM.
	Certificate string `json:"certificate,omitempty"`
	// Conditions: Approved, Denied, Failed.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// What may be decided about a request.
const (
	Approved = "Approved"
	Denied   = "Denied"
)

// Validate checks an EnrollmentRequest.
func (e EnrollmentRequest) Validate() error {
	var p problems
	e.Metadata.check(&p)
	required(&p, "spec.csr", e.Spec.CSR)
	if e.Spec.NodeName != "" {
		checkName(&p, "spec.nodeName", e.Spec.NodeName)
	}
	if e.Spec.CSR != "" {
		var bad *Error
		if _, err := ParseCSR(e.Spec.CSR, e.node()); errors.As(err, &bad) {
			p.add("spec.csr", "%s", bad.Message)
		}
	}
	for key, value := range e.Spec.Labels {
		checkLabel(&p, "spec.labels", key, value)
	}
	oneOf(&p, "spec.approval", e.Spec.Approval, []string{"", Approved, Denied})
	return p.err()
}

// node is the name that the node asks for.
func (e EnrollmentRequest) node() string {
	if e.Spec.NodeName != "" {
		return e.Spec.NodeName
	}
	return e.Metadata.Name
}

// CheckUpdate says whether an EnrollmentRequest may follow prev.
func (e EnrollmentRequest) CheckUpdate(prev EnrollmentRequest) error {
	var p problems
	unchanged(&p, "spec.csr", prev.Spec.CSR, e.Spec.CSR)
	unchanged(&p, "spec.nodeName", prev.Spec.NodeName, e.Spec.NodeName)
	if prev.Spec.Approval != "" {
		unchanged(&p, "spec.approval", prev.Spec.Approval, e.Spec.Approval)
	}
	return p.err()
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
	seen := names{}
	for i, item := range s.Config {
		here := fmt.Sprintf("%s.config[%d]", at, i)
		if item.Name == "" {
			p.add(here+".name", "is required: it tells the parts of a configuration apart")
		} else {
			seen.check(p, here+".name", item.Name)
		}
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
