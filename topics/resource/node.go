package resource

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
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
	// Applications are containers that are started, updated and removed with the spec.
	// +listType=map
	// +listMapKey=name
	Applications []Application `json:"applications,omitempty"`
	// Hooks are commands that the agent runs around an update: each of them is one that the node's own configuration
	// allows, by its name there.
	Hooks *Hooks `json:"hooks,omitempty"`
	// Monitoring says what the node reports of its host.
	Monitoring *Monitoring `json:"monitoring,omitempty"`
	// Resources are the alerts on the host's processors, memory and disks.
	// +listType=atomic
	Resources []ResourceMonitor `json:"resources,omitempty"`
	// Drift says what becomes of a file that somebody changed by hand: restore writes it as the spec has it, report
	// only reports it.
	// +kubebuilder:validation:Enum=restore;report
	// +default=restore
	Drift string `json:"drift,omitempty"`
	// UpdatePolicy says when the node's agent downloads and applies a spec; at once when it is missing.
	UpdatePolicy *UpdatePolicy `json:"updatePolicy,omitempty"`
}

// UpdatePolicy are the times at which an agent may begin to download and to apply a spec: this one, so a spec without a policy is applied at once.
type UpdatePolicy struct {
	// DownloadSchedule are the times for the download of files' contents and applications' images; any when missing.
	DownloadSchedule *UpdateSchedule `json:"downloadSchedule,omitempty"`
	// UpdateSchedule are the times for what changes the host; any when missing.
	UpdateSchedule *UpdateSchedule `json:"updateSchedule,omitempty"`
}

func (u *UpdatePolicy) check(p *problems, at string) {
	if u != nil {
		u.DownloadSchedule.check(p, at+".downloadSchedule")
		u.UpdateSchedule.check(p, at+".updateSchedule")
	}
}

// WaitingForWindow is the reason of the condition Updating, with the status False, while the agent waits for a time of its UpdatePolicy.
const WaitingForWindow = "WaitingForWindow"

// What becomes of files that were changed by hand.
const (
	DriftRestore = "restore"
	DriftReport  = "report"
)

// Application is a set of containers: a compose file, or quadlet units.
type Application struct {
	// Name tells the applications of a node apart: a DNS label, since units and a project are named after it.
	Name string `json:"name"`
	// AppType is what files are.
	// +kubebuilder:validation:Enum=compose;quadlet
	AppType string `json:"appType"`
	// Files are the units, or the compose file and what it refers to. With an image they are what that was resolved to.
	// +listType=map
	// +listMapKey=path
	Files []InlineFile `json:"files,omitempty"`
	// Image is an OCI artifact or image that contains the files, in a registry; its tag may float.
	Image string `json:"image,omitempty"`
	// EnvVars are the variables of the environment of its containers.
	EnvVars map[string]string `json:"envVars,omitempty"`
}

// The types of Application.
const (
	AppCompose = "compose"
	AppQuadlet = "quadlet"
)

// InlineFile is a file with its content.
type InlineFile struct {
	// Path is where it goes: absolute in a configuration, relative to the application's directory in an Application.
	Path string `json:"path"`
	// Content is what it contains, encoded as contentEncoding says.
	Content string `json:"content,omitempty"`
	// ContentEncoding is plain or base64.
	// +kubebuilder:validation:Enum=plain;base64
	// +default=plain
	ContentEncoding string `json:"contentEncoding,omitempty"`
	// Digest is that of the content, sha256:…, if it is kept by the hub as a blob; content is empty then.
	Digest string `json:"digest,omitempty"`
	// Size is the blob's, in bytes.
	// +kubebuilder:validation:Minimum=0
	Size int64 `json:"size,omitempty"`
	// Mode are its permissions as a decimal number, as in Ignition: 420 is 0644, which is the default.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4095
	Mode *int `json:"mode,omitempty"`
	// User owns it: a name or a number of the host; root when empty.
	User string `json:"user,omitempty"`
	// Group owns it: a name or a number of the host; root when empty.
	Group string `json:"group,omitempty"`
}

// Hooks are commands around an update, in their order. A command that fails before the update's files are written ends it; one
// that fails after that rolls it back.
type Hooks struct {
	// BeforeUpdating run before anything is changed.
	BeforeUpdating []Hook `json:"beforeUpdating,omitempty"`
	// AfterUpdating run after the files are written, before health is checked.
	AfterUpdating []Hook `json:"afterUpdating,omitempty"`
	// BeforeRebooting run before the host is rebooted into another OS image.
	BeforeRebooting []Hook `json:"beforeRebooting,omitempty"`
	// AfterRebooting run after that.
	AfterRebooting []Hook `json:"afterRebooting,omitempty"`
}

// Hook is a command that the node allows, and when it is run.
type Hook struct {
	// Run is the name of a command in the node's own configuration.
	Run string `json:"run"`
	// If are conditions, of which one must hold; none: the command is always run.
	If []HookCondition `json:"if,omitempty"`
	// Timeout ends the command, which has failed then; 10s when empty.
	Timeout string `json:"timeout,omitempty"`
}

// HookCondition holds if the update changes a file.
type HookCondition struct {
	// Path is a file, or a directory with all below it.
	Path string `json:"path"`
	// Op are the changes that count; all of them when empty.
	// +kubebuilder:validation:items:Enum=created;updated;removed
	Op []string `json:"op,omitempty"`
}

// ResourceMonitor watches a resource of the host.
type ResourceMonitor struct { //nolint:revive // it is one of the host's resources
	// MonitorType is the resource.
	// +kubebuilder:validation:Enum=CPU;Memory;Disk
	MonitorType string `json:"monitorType"`
	// SamplingInterval is how often it is measured, such as 5s; at least 1s.
	SamplingInterval string `json:"samplingInterval"`
	// AlertRules are thresholds.
	// +listType=map
	// +listMapKey=severity
	AlertRules []AlertRule `json:"alertRules,omitempty"`
	// Path is a directory of the file system that is watched, for Disk.
	Path string `json:"path,omitempty"`
}

// AlertRule is a threshold of a resource.
type AlertRule struct {
	// Severity is how bad it is above the threshold.
	// +kubebuilder:validation:Enum=Info;Warning;Critical
	Severity string `json:"severity"`
	// Percentage is the threshold, in percent of what there is.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Percentage float64 `json:"percentage"`
	// Duration is how long the mean must be above the threshold, such as 10m.
	Duration string `json:"duration"`
	// Description is for people.
	Description string `json:"description,omitempty"`
}

// The resources and severities.
const (
	MonitorCPU       = "CPU"
	MonitorMemory    = "Memory"
	MonitorDisk      = "Disk"
	SeverityInfo     = "Info"
	SeverityWarning  = "Warning"
	SeverityCritical = "Critical"
)

// Health is the condition that says how a resource is, such as CPUHealthy: its reason is the severity of the worst rule that holds.
func Health(monitorType string) string { return monitorType + "Healthy" }

// NodeOS is the operating system that is wanted.
type NodeOS struct {
	// Image is a reference to an OCI image; its tag may float.
	Image string `json:"image,omitempty"`
}

// ConfigType says where a part of a node's configuration is from.
// +kubebuilder:validation:Enum=InlineConfigProviderSpec;GitConfigProviderSpec;KubernetesSecretProviderSpec;ConfigMapProviderSpec;FileListProviderSpec;HttpConfigProviderSpec;OciConfigProviderSpec
type ConfigType string

// The sources of configuration.
const (
	ConfigInline ConfigType = "InlineConfigProviderSpec"
	ConfigGit    ConfigType = "GitConfigProviderSpec"
	ConfigSecret ConfigType = "KubernetesSecretProviderSpec"
	ConfigMapRef ConfigType = "ConfigMapProviderSpec"
	ConfigFiles  ConfigType = "FileListProviderSpec"
	ConfigHTTP   ConfigType = "HttpConfigProviderSpec"
	ConfigOCI    ConfigType = "OciConfigProviderSpec"
)

// ConfigItem is a part of a node's configuration, from one source.
type ConfigItem struct {
	// Name tells the parts apart.
	Name string `json:"name"`
	// ConfigType says which one of inline, gitRef, httpRef, ociRef, secretRef, configMapRef and files is set.
	ConfigType ConfigType `json:"configType"`
	// Inline is the configuration itself: an Ignition document, version 3.4.0.
	Inline json.RawMessage `json:"inline,omitempty"`
	// GitRef is a path in a Repository.
	GitRef *GitRef `json:"gitRef,omitempty"`
	// HTTPRef is what a Repository of type http answers.
	HTTPRef *HTTPRef `json:"httpRef,omitempty"`
	// OCIRef is an artifact or image in a registry, with the files that it contains.
	OCIRef *OCIRef `json:"ociRef,omitempty"`
	// SecretRef is a Secret; it has no versions and always floats.
	SecretRef *SecretMount `json:"secretRef,omitempty"`
	// ConfigMapRef is a ConfigMap; it has no versions and always floats.
	ConfigMapRef *ConfigMapMount `json:"configMapRef,omitempty"`
	// Files are files with their content. With a gitRef, httpRef, ociRef or configMapRef they are what a fleet has
	// frozen, and go before what that contains now.
	// +listType=atomic
	Files []InlineFile `json:"files,omitempty"`
}

// GitRef is a place in a Repository at a revision.
type GitRef struct {
	// Repository is the name of a Repository.
	Repository string `json:"repository"`
	// TargetRevision is a branch, tag or commit; the first two float.
	TargetRevision string `json:"targetRevision"`
	// Path is a file or directory in the repository.
	Path string `json:"path"`
	// MountPath is the directory on the node below which the files go; / when empty.
	MountPath string `json:"mountPath,omitempty"`
}

// HTTPRef is a file that an HTTP server has.
type HTTPRef struct {
	// Repository is the name of a Repository of type http.
	Repository string `json:"repository"`
	// Suffix follows the Repository's address: a path, and a query if one is needed.
	Suffix string `json:"suffix,omitempty"`
	// FilePath is where the answer's body goes on a node.
	FilePath string `json:"filePath"`
}

// OCIRef is an artifact or image in a registry, and where its files go on a node.
type OCIRef struct {
	// Image is a reference to the artifact or image; its tag may float.
	Image string `json:"image"`
	// MountPath is the directory on the node below which the files go.
	MountPath string `json:"mountPath"`
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

// ConfigMapMount is a ConfigMap and where its values go on a node.
type ConfigMapMount struct {
	// Name is the ConfigMap's name.
	Name string `json:"name"`
	// Namespace is the ConfigMap's; default when empty.
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
	// SpecVersion is the version of the rendered spec that the node is sent; it rises with each change.
	SpecVersion string `json:"specVersion,omitempty"`
	// RenderedVersion is the version of the rendered spec that the node has applied whole.
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
	// AgentVersion is that of the node's agent.
	AgentVersion string `json:"agentVersion,omitempty"`
	// Failed is the version of the spec that the node tried last and could not apply; it stays as it was.
	Failed *FailedVersion `json:"failed,omitempty"`
	// OS is the image that the host has booted.
	OS *OSStatus `json:"os,omitempty"`
	// Applications are those of the spec.
	// +listType=map
	// +listMapKey=name
	Applications []ApplicationStatus `json:"applications,omitempty"`
	// Resources are how the host's resources are.
	Resources *ResourceStatus `json:"resources,omitempty"`
	// Drifted are files that somebody changed by hand, and that are left alone as spec.drift says.
	// +listType=atomic
	Drifted []string `json:"drifted,omitempty"`
	// CertificateExpires is when the certificate ends with which the node last connected; empty: it had none.
	CertificateExpires string `json:"certificateExpires,omitempty"`
	// UpdatedAt is when the node last reported its status.
	UpdatedAt string `json:"updatedAt,omitempty"`
	// Conditions are the node's own and those of its rendering. Ready says whether its link to the hub is up;
	// QuotaExceeded, OfAnotherHub and Revoked are there if they ever were true, CertificateRenewal if a renewal has ever failed,
	// SpecRendered and ReferencesResolved from the first spec on.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// AgentConditions are the types of those conditions that the node's agent reported, ours or flightctl's: one that it
	// reports no more goes.
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
	// OperatingSystem is the system's name as its os-release has it; without one linux, …
	OperatingSystem string `json:"operatingSystem,omitempty"`
	// Kernel is the kernel's release.
	Kernel string `json:"kernel,omitempty"`
	// Hostname is the host's own name.
	Hostname string `json:"hostname,omitempty"`
	// MachineID is the host's, of /etc/machine-id.
	MachineID string `json:"machineID,omitempty"`
	// BootID is another one after each boot.
	BootID string `json:"bootID,omitempty"`
	// CPUs is how many processors there are.
	CPUs int `json:"cpus,omitempty"`
	// Measurements are the registers of the host's TPM, in SHA-256: pcr00, … Those that were never extended are left out.
	Measurements map[string]string `json:"measurements,omitempty"`
}

// SystemFields are what a label can be made from: fields of SystemInfo, and osImage, which is the image of the OSStatus.
var SystemFields = []string{"architecture", "operatingSystem", "kernel", "hostname", "machineID", "bootID", "cpus", osImageField}

const osImageField = "osImage"

// Field is one of SystemFields as a text; empty: it is not known.
func (s SystemInfo) Field(name string) string {
	switch name {
	case "architecture":
		return s.Architecture
	case "operatingSystem":
		return s.OperatingSystem
	case "kernel":
		return s.Kernel
	case "hostname":
		return s.Hostname
	case "machineID":
		return s.MachineID
	case "bootID":
		return s.BootID
	case "cpus":
		if s.CPUs > 0 {
			return strconv.Itoa(s.CPUs)
		}
	}
	return ""
}

// LabelFromAnnotation of a Node says which of its labels follow the system information: key=field, with commas between them. The
// node's settings say so when it joins. LabelsGivenAnnotation has the values that the system information has given them: key=value.
const (
	LabelFromAnnotation   = Group + "/label-from"
	LabelsGivenAnnotation = Group + "/labels-given"
)

// LabelValue makes a label's value of any text: what can't be in one becomes a dash, and what is too long is cut.
func LabelValue(text string) string {
	text = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' {
			return r
		}
		return '-'
	}, text)
	return strings.Trim(text[:min(len(text), 63)], "-._")
}

// FollowSystem sets the labels that follow the system information, and notes their values: a label that has another value by now, or
// is gone, is a person's and stays so. What is not known changes nothing.
func (n *Node) FollowSystem() {
	given := ParsePairs(n.Metadata.Annotations[LabelsGivenAnnotation])
	now := make(map[string]string)
	for key, field := range ParsePairs(n.Metadata.Annotations[LabelFromAnnotation]) {
		value := ""
		if info := n.Status.SystemInfo; info != nil {
			value = LabelValue(info.Field(field))
		}
		if n.Status.OS != nil && field == osImageField {
			value = LabelValue(n.Status.OS.Image)
		}
		before, set := given[key]
		has, labelled := n.Metadata.Labels[key]
		if set {
			now[key] = before
		}
		if value == "" || CheckLabels("", map[string]string{key: ""}) != nil || (set != labelled || has != before) && (!labelled || has != value) {
			continue
		}
		if n.Metadata.Labels == nil {
			n.Metadata.Labels = make(map[string]string)
		}
		n.Metadata.Labels[key], now[key] = value, value
	}
	if len(now) > 0 {
		n.Metadata.Annotations[LabelsGivenAnnotation] = FormatPairs(now)
	} else {
		delete(n.Metadata.Annotations, LabelsGivenAnnotation)
	}
}

// ParsePairs reads key=value texts with commas between them. What is none is left out.
func ParsePairs(text string) map[string]string {
	pairs := make(map[string]string)
	for part := range strings.SplitSeq(text, ",") {
		if key, value, ok := strings.Cut(strings.TrimSpace(part), "="); ok {
			pairs[key] = value
		}
	}
	return pairs
}

// FormatPairs is the text that ParsePairs reads.
func FormatPairs(pairs map[string]string) string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		list = append(list, key+"="+pairs[key])
	}
	return strings.Join(list, ",")
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
	return setException(prev, why, Condition{Type: ConditionRenewal, Status: "False", Reason: "Failed"}, Condition{Status: "True", Reason: "Renewed"}, now)
}

// ConditionReady reports whether a node's link to the hub is up.
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
		if old := find(prev, ConditionReady); old != nil && old.Status == "False" {
			c.Message = old.Message
		}
	}
	return SetCondition(slices.Clone(prev), c, now)
}

// The conditions of a Node's rendering, which a Node has from its first spec on.
const (
	// ConditionUpdating is True while the node's agent makes an update.
	ConditionUpdating = "Updating"
	// ConditionSpecRendered is False while the spec can't be rendered; the node keeps what it was sent before.
	ConditionSpecRendered = "SpecRendered"
	// ConditionReferencesResolved is False while the spec refers to something that can't be read. A Node whose spec has
	// never referred to anything doesn't have it.
	ConditionReferencesResolved = "ReferencesResolved"
)

// ConditionRevoked is True once the certificates of a node were revoked, and False when it has joined again.
const ConditionRevoked = "Revoked"

// Reasons of the condition Revoked.
const (
	ReasonRevoked         = "Revoked"
	ReasonDecommissioning = "Decommissioning" // the node was not told yet
	ReasonDecommissioned  = "Decommissioned"  // the node was told, and deletes its keys
	ReasonJoined          = "Joined"          // the status is False: it has joined again
)

// RevokedReason is the reason of the condition Revoked; empty: it is not True.
func (s NodeStatus) RevokedReason() string { return reasonOf(s.Conditions, ConditionRevoked) }

// OfHub reports whether only the hub sets a type of condition of a Node.
func OfHub(condition string) bool {
	return slices.Contains([]string{
		ConditionReady, ConditionRevoked, QuotaExceeded, OfAnotherHub, ConditionRenewal, ConditionSpecRendered, ConditionReferencesResolved,
	}, condition)
}

// QuotaExceeded is the condition of a Node that owns more than the hub takes.
const QuotaExceeded = "QuotaExceeded"

// OfAnotherHub is the condition of a Node that has what another hub gave it, and keeps that.
const OfAnotherHub = "OfAnotherHub"

// OtherHubCondition sets the condition OfAnotherHub: why is the reason for which the hub does not write to the node, empty
// if it does. A node to which the condition never applied doesn't have it.
func OtherHubCondition(prev []Condition, why string, now time.Time) []Condition {
	return setException(prev, why, Condition{Type: OfAnotherHub, Status: "True", Reason: "LeftAlone"}, Condition{Status: "False", Reason: "OfThisHub"}, now)
}

// QuotaCondition sets the condition QuotaExceeded: why is the limit that the node exceeds, empty if none. A node to which
// the condition never applied doesn't have it.
func QuotaCondition(prev []Condition, why string, now time.Time) []Condition {
	if why != "" {
		why = "the node owns " + why + ": what it reports is not taken until it owns less"
	}
	return setException(prev, why, Condition{Type: QuotaExceeded, Status: "True", Reason: "NodeTooLarge"}, Condition{Status: "False", Reason: "WithinQuota"}, now)
}

// setException sets a condition to failed, with the message why, or to normal if why is empty. A list without the condition
// does not get it with normal.
func setException(prev []Condition, why string, failed, normal Condition, now time.Time) []Condition {
	c := failed
	switch {
	case why != "":
		c.Message = why
	case find(prev, c.Type) == nil:
		return prev
	default:
		c.Status, c.Reason = normal.Status, normal.Reason
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
		if _, err := ParseCSR(e.Spec.CSR, cmp.Or(e.Spec.NodeName, e.Metadata.Name)); errors.As(err, &bad) {
			p.add("spec.csr", "%s", bad.Message)
		}
	}
	checkLabels(&p, "spec.labels", e.Spec.Labels)
	oneOf(&p, "spec.approval", e.Spec.Approval, []string{"", Approved, Denied})
	return p.err()
}

// CheckUpdate reports whether an EnrollmentRequest may follow prev.
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
	n.Status.check(&p, "status")
	return p.err()
}

func (s NodeStatus) check(p *problems, at string) {
	for i, c := range s.Containers {
		required(p, fmt.Sprintf("%s.containers[%d].id", at, i), c.ID)
	}
	for i, a := range s.Applications {
		required(p, fmt.Sprintf("%s.applications[%d].name", at, i), a.Name)
		required(p, fmt.Sprintf("%s.applications[%d].status", at, i), a.Status)
	}
	if f := s.Failed; f != nil {
		required(p, at+".failed.renderedVersion", f.RenderedVersion)
		required(p, at+".failed.reason", f.Reason)
	}
	for i, u := range s.SystemdUnits {
		required(p, fmt.Sprintf("%s.systemdUnits[%d].name", at, i), u.Name)
	}
}

// Validate checks a Node.
func (n Node) Validate() error {
	var p problems
	n.Metadata.check(&p)
	n.Spec.check(&p, "spec", false)
	return p.err()
}

// check checks a spec. In a fleet's template a text may be a Go template, of which only each node's result is checked.
func (s NodeSpec) check(p *problems, at string, template bool) {
	expanded := func(text string) bool { return !template || !strings.Contains(text, "{{") }
	if s.OS != nil && expanded(s.OS.Image) {
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
		item.check(p, here, expanded)
	}
	s.checkApplications(p, at+".applications", expanded)
	s.Hooks.check(p, at+".hooks")
	for i, m := range s.Resources {
		m.check(p, fmt.Sprintf("%s.resources[%d]", at, i))
	}
	oneOf(p, at+".drift", s.Drift, []string{"", DriftRestore, DriftReport})
	s.UpdatePolicy.check(p, at+".updatePolicy")
}

func (s NodeSpec) checkApplications(p *problems, at string, expanded func(string) bool) {
	seen := names{}
	for i, a := range s.Applications {
		here := fmt.Sprintf("%s[%d]", at, i)
		if !appName.MatchString(a.Name) {
			p.add(here+".name", "%s: must be 1–63 characters of a–z, 0–9 and '-', beginning with a letter and ending with a letter or digit", clip(a.Name))
		}
		seen.check(p, here+".name", a.Name)
		oneOf(p, here+".appType", a.AppType, []string{AppCompose, AppQuadlet})
		if len(a.Files) == 0 && a.Image == "" {
			p.add(here+".files", "is required, or image: an application without files starts nothing")
		}
		if a.Image != "" && expanded(a.Image) {
			checkImage(p, here+".image", a.Image)
		}
		checkFiles(p, here+".files", a.Files, false)
		for name := range a.EnvVars {
			if !envName.MatchString(name) {
				p.add(here+".envVars["+clip(name)+"]", "a name is letters, digits and '_', and doesn't begin with a digit")
			}
		}
	}
}

var (
	appName = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// checkFiles checks files with their content, with absolute paths or with relative ones.
func checkFiles(p *problems, at string, files []InlineFile, absolute bool) {
	seen := names{}
	for i, f := range files {
		here := fmt.Sprintf("%s[%d]", at, i)
		switch {
		case f.Path == "":
			p.add(here+".path", "is required")
		case len(f.Path) > maxPath || strings.ContainsRune(f.Path, 0):
			p.add(here+".path", "must have at most %d bytes, and no NUL", maxPath)
		case absolute && (!path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/"):
			p.add(here+".path", "%s: must be absolute, without '..', '//' and a '/' at its end", clip(f.Path))
		case !absolute && (!filepath.IsLocal(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "."):
			p.add(here+".path", "%s: must be relative, without '..', '//' and a '/' at its end", clip(f.Path))
		}
		seen.check(p, here+".path", f.Path)
		oneOf(p, here+".contentEncoding", f.ContentEncoding, []string{"", "plain", "base64"})
		if _, err := ParseDigest(f.Digest); f.Digest != "" && (err != nil || f.Content != "") {
			p.add(here+".digest", "%s: must be sha256: and 64 hexadecimal digits, without content beside it", clip(f.Digest))
		}
		if f.Size < 0 || f.Size > maxBlob {
			p.add(here+".size", "%d: must be from 0 to %d", f.Size, int64(maxBlob))
		}
		if _, err := f.Bytes(); err != nil {
			p.add(here+".content", "is not base64: %v", err)
		}
		if f.Mode != nil && (*f.Mode < 0 || *f.Mode > 0o7777) {
			p.add(here+".mode", "%d: must be from 0 to 4095, which is 7777 in octal", *f.Mode)
		}
	}
}

// maxBlob bounds the size of a blob that a spec refers to, in bytes.
const maxBlob = 1 << 40

// maxPath bounds a path on a node, in bytes: Linux takes no longer one.
const maxPath = 4095

// Bytes are the file's content.
func (f InlineFile) Bytes() ([]byte, error) {
	if f.ContentEncoding == "base64" {
		return base64.StdEncoding.DecodeString(f.Content)
	}
	return []byte(f.Content), nil
}

func (h *Hooks) check(p *problems, at string) {
	if h == nil {
		return
	}
	for stage, hooks := range map[string][]Hook{
		"beforeUpdating": h.BeforeUpdating, "afterUpdating": h.AfterUpdating, "beforeRebooting": h.BeforeRebooting, "afterRebooting": h.AfterRebooting,
	} {
		for i, hook := range hooks {
			hook.check(p, fmt.Sprintf("%s.%s[%d]", at, stage, i))
		}
	}
}

func (h Hook) check(p *problems, at string) {
	required(p, at+".run", h.Run)
	checkDuration(p, at+".timeout", h.Timeout, time.Second)
	for i, c := range h.If {
		here := fmt.Sprintf("%s.if[%d]", at, i)
		if !path.IsAbs(c.Path) || path.Clean(c.Path) != c.Path {
			p.add(here+".path", "%s: must be absolute, without '..', '//' and a '/' at its end", clip(c.Path))
		}
		for _, op := range c.Op {
			oneOf(p, here+".op", op, []string{"created", "updated", "removed"})
		}
	}
}

// checkDuration checks a duration that may be missing.
func checkDuration(p *problems, field, text string, least time.Duration) {
	if text == "" {
		return
	}
	if d, err := time.ParseDuration(text); err != nil || d < least {
		p.add(field, "%s: must be a duration of at least %v, such as 30s or 5m", clip(text), least)
	}
}

func (m ResourceMonitor) check(p *problems, at string) {
	oneOf(p, at+".monitorType", m.MonitorType, []string{MonitorCPU, MonitorMemory, MonitorDisk})
	required(p, at+".samplingInterval", m.SamplingInterval)
	checkDuration(p, at+".samplingInterval", m.SamplingInterval, time.Second)
	if m.MonitorType == MonitorDisk && !path.IsAbs(m.Path) {
		p.add(at+".path", "%s: must be an absolute path of the file system that is watched", clip(m.Path))
	}
	seen := names{}
	for i, r := range m.AlertRules {
		here := fmt.Sprintf("%s.alertRules[%d]", at, i)
		oneOf(p, here+".severity", r.Severity, []string{SeverityInfo, SeverityWarning, SeverityCritical})
		seen.check(p, here+".severity", r.Severity)
		if r.Percentage < 0 || r.Percentage > 100 {
			p.add(here+".percentage", "%v: must be from 0 to 100", r.Percentage)
		}
		required(p, here+".duration", r.Duration)
		checkDuration(p, here+".duration", r.Duration, time.Second)
	}
}

// frozenTypes are the sources of which a fleet writes into an item what they contained.
var frozenTypes = []ConfigType{ConfigGit, ConfigHTTP, ConfigOCI, ConfigMapRef}

// IsFrozen reports whether a fleet has written into the item what its reference contained.
func (c ConfigItem) IsFrozen() bool {
	return len(c.Files) > 0 && slices.Contains(frozenTypes, c.ConfigType)
}

func (c ConfigItem) check(p *problems, at string, expanded func(string) bool) {
	oneOf(p, at+".configType", string(c.ConfigType), []ConfigType{ConfigInline, ConfigGit, ConfigHTTP, ConfigOCI, ConfigSecret, ConfigMapRef, ConfigFiles})
	for _, part := range []struct {
		field string
		is    ConfigType
		set   bool
	}{
		{"inline", ConfigInline, len(c.Inline) > 0},
		{"gitRef", ConfigGit, c.GitRef != nil},
		{"httpRef", ConfigHTTP, c.HTTPRef != nil},
		{"ociRef", ConfigOCI, c.OCIRef != nil},
		{"secretRef", ConfigSecret, c.SecretRef != nil},
		{"configMapRef", ConfigMapRef, c.ConfigMapRef != nil},
		{"files", ConfigFiles, len(c.Files) > 0},
	} {
		switch {
		case part.is == c.ConfigType && !part.set:
			p.add(at+"."+part.field, "is required: the configType is %s", c.ConfigType)
		case part.is == ConfigFiles && slices.Contains(frozenTypes, c.ConfigType):
		case part.is != c.ConfigType && part.set:
			p.add(at+"."+part.field, "must not be set: the configType is %s", clip(string(c.ConfigType)))
		}
	}
	if c.GitRef != nil {
		c.GitRef.check(p, at+".gitRef", expanded)
	}
	if c.HTTPRef != nil {
		c.HTTPRef.check(p, at+".httpRef", expanded)
	}
	if c.OCIRef != nil {
		required(p, at+".ociRef.image", c.OCIRef.Image)
		if c.OCIRef.Image != "" && expanded(c.OCIRef.Image) {
			checkImage(p, at+".ociRef.image", c.OCIRef.Image)
		}
		checkAbsolute(p, at+".ociRef.mountPath", c.OCIRef.MountPath, expanded)
	}
	if c.SecretRef != nil {
		required(p, at+".secretRef.name", c.SecretRef.Name)
		required(p, at+".secretRef.mountPath", c.SecretRef.MountPath)
	}
	if c.ConfigMapRef != nil {
		required(p, at+".configMapRef.name", c.ConfigMapRef.Name)
		required(p, at+".configMapRef.mountPath", c.ConfigMapRef.MountPath)
	}
	checkFiles(p, at+".files", c.Files, true)
	if len(c.Inline) > 0 && !isJSON(string(c.Inline), '{') {
		p.add(at+".inline", "must be an object: an Ignition document")
	}
}

func (g GitRef) check(p *problems, at string, expanded func(string) bool) {
	checkName(p, at+".repository", g.Repository)
	required(p, at+".targetRevision", g.TargetRevision)
	if expanded(g.TargetRevision) {
		checkRevision(p, at+".targetRevision", g.TargetRevision)
	}
	required(p, at+".path", g.Path)
	if g.MountPath != "" {
		checkAbsolute(p, at+".mountPath", g.MountPath, expanded)
	}
}

func (h HTTPRef) check(p *problems, at string, expanded func(string) bool) {
	checkName(p, at+".repository", h.Repository)
	checkAbsolute(p, at+".filePath", h.FilePath, expanded)
	if expanded(h.Suffix) {
		checkSuffix(p, at+".suffix", h.Suffix)
	}
}

// checkAbsolute checks the path of a file or directory on a node.
func checkAbsolute(p *problems, field, text string, expanded func(string) bool) {
	if expanded(text) && (!path.IsAbs(text) || path.Clean(text) != text && path.Clean(text)+"/" != text || len(text) > maxPath || strings.ContainsRune(text, 0)) {
		p.add(field, "%s: must be absolute, without '..' and '//', and have at most %d bytes", clip(text), maxPath)
	}
}

// checkSuffix checks what follows a Repository's address. It can't lead to another host.
func checkSuffix(p *problems, field, text string) {
	if text != "" && (text[0] != '/' && text[0] != '?' || len(text) > maxPath || strings.ContainsAny(text, "\\#\x00\r\n") || strings.HasPrefix(text, "//")) {
		p.add(field, "%s: must begin with one '/', or with '?', and have no fragment", clip(text))
	}
}
