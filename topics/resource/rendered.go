package resource

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"time"
)

// RenderedSpec is the payload of the topic spec: what a Node's spec comes to, with every reference resolved. It has no value of a
// Secret, only the names of those that the node gets at secrets/{secret}.
type RenderedSpec struct {
	// RenderedVersion counts up, in decimal, when and only when anything else in here changes.
	RenderedVersion string `json:"renderedVersion"`
	// OS is the operating system that is wanted.
	OS *NodeOS `json:"os,omitempty"`
	// Files are what is wanted below the node's allowed roots, in the order of their paths. What an earlier version had
	// and this one hasn't is removed.
	Files []RenderedFile `json:"files,omitempty"`
	// Applications are the containers that are wanted, in the order of their names.
	Applications []RenderedApplication `json:"applications,omitempty"`
	// Hooks are the commands around the update.
	Hooks *Hooks `json:"hooks,omitempty"`
	// Monitoring says what is reported of the host.
	Monitoring *Monitoring `json:"monitoring,omitempty"`
	// Resources are the alerts on the host.
	Resources []ResourceMonitor `json:"resources,omitempty"`
	// Drift is restore or report.
	Drift string `json:"drift,omitempty"`
	// UpdatePolicy says when this is downloaded and applied; at once when it is missing.
	UpdatePolicy *UpdatePolicy `json:"updatePolicy,omitempty"`
}

// RenderedFile is a file, a directory or a symbolic link.
type RenderedFile struct {
	// Path is absolute and clean.
	Path string `json:"path"`
	// Type is file, directory or link.
	Type string `json:"type"`
	// Mode are the permissions in octal, such as 0644. A link has none.
	Mode string `json:"mode,omitempty"`
	// User and Group own it, by name or number; empty: root.
	User  string `json:"user,omitempty"`
	Group string `json:"group,omitempty"`
	// Target is where a link points to.
	Target string `json:"target,omitempty"`
	// Keep leaves what is there already as it is: the entry is only made where there is nothing.
	Keep bool `json:"keep,omitempty"`
	Content
}

// RenderedApplication is an application, whose files have paths below its directory.
type RenderedApplication struct {
	Name    string            `json:"name"`
	AppType string            `json:"appType"`
	Files   []RenderedFile    `json:"files"`
	EnvVars map[string]string `json:"envVars,omitempty"`
	// Images are the images of its containers, as far as they can be pulled before the application is started.
	Images []string `json:"images,omitempty"`
	// Optional says that the spec is applied whether this application starts or not. One that doesn't start is tried again.
	Optional bool `json:"optional,omitempty"`
}

// Content is that of a file. At most one of Text, Base64, Digest and Secret is set; none: the file is empty.
type Content struct {
	// Text is the content, if it is short and UTF-8.
	Text string `json:"text,omitempty"`
	// Base64 is the content, if it is short and not UTF-8.
	Base64 []byte `json:"base64,omitempty"`
	// Digest is sha256: and the SHA-256 of the content in hex; the content is a blob.
	Digest string `json:"digest,omitempty"`
	// Size is the blob's, in bytes.
	Size int64 `json:"size,omitempty"`
	// Secret is the value of a Secret.
	Secret *SecretKey `json:"secret,omitempty"`
}

// SecretKey is one value of a Secret.
type SecretKey struct {
	// Name is that of the topic secrets/{name}: namespace.name.
	Name string `json:"name"`
	// Key is the value's key in the Secret.
	Key string `json:"key"`
	// Version is that of the Secret which the spec was rendered with.
	Version string `json:"version"`
}

// The types of RenderedFile.
const (
	FileRegular   = "file"
	FileDirectory = "directory"
	FileLink      = "link"
)

// SecretTopic is the level by which a Secret is named in a node's tree. A namespace has no dot, so the name is unique.
func SecretTopic(namespace, name string) string { return namespace + "." + name }

// Secrets are the names, as SecretTopic makes them, of the Secrets that a spec refers to, in order.
func (r RenderedSpec) Secrets() (names []string) {
	add := func(files []RenderedFile) {
		for _, f := range files {
			if f.Secret != nil {
				names = append(names, f.Secret.Name)
			}
		}
	}
	add(r.Files)
	for _, a := range r.Applications {
		add(a.Files)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Blobs are the digests of the contents that are apart; a digest may come more than once.
func (r RenderedSpec) Blobs() iter.Seq[string] {
	return func(yield func(string) bool) {
		lists := [][]RenderedFile{r.Files}
		for _, a := range r.Applications {
			lists = append(lists, a.Files)
		}
		for _, files := range lists {
			for _, f := range files {
				if f.Digest != "" && !yield(f.Digest) {
					return
				}
			}
		}
	}
}

// HasBlobs reports whether it has contents that are apart.
func (r RenderedSpec) HasBlobs() bool {
	for range r.Blobs() {
		return true
	}
	return false
}

// SecretValues is the payload of secrets/{secret}.
type SecretValues struct {
	// Version is another one after each change of the values.
	Version string `json:"version"`
	// Data are the values.
	Data map[string][]byte `json:"data"`
}

// AgentReport is the payload of the topic agent: what the node's agent has applied, and what it sees of the host. At most
// MaxAgentReport bytes; lists that are longer are cut, which the condition ReportTruncated says.
type AgentReport struct {
	// Version is the agent's.
	Version string `json:"version,omitempty"`
	// RenderedVersion is the version of the spec that is applied whole; empty: none.
	RenderedVersion string `json:"renderedVersion,omitempty"`
	// Failed is a version that was not applied, or was rolled back; it is not tried again until the spec changes.
	Failed *FailedVersion `json:"failed,omitempty"`
	// OS is the image that the host has booted, if its OS is one.
	OS *OSStatus `json:"os,omitempty"`
	// SystemInfo describes the host.
	SystemInfo *SystemInfo `json:"systemInfo,omitempty"`
	// Conditions are the agent's: Updating, SpecApplied, Drifted, ReportTruncated and those of the host's resources and interfaces.
	Conditions []Condition `json:"conditions,omitempty"`
	// Containers, SystemdUnits are those that monitoring asks for.
	Containers   []ContainerStatus `json:"containers,omitempty"`
	SystemdUnits []SystemdUnit     `json:"systemdUnits,omitempty"`
	// Applications are those of the spec.
	Applications []ApplicationStatus `json:"applications,omitempty"`
	// Resources are how the host's resources are.
	Resources *ResourceStatus `json:"resources,omitempty"`
	// Drifted are files that somebody changed by hand and that are left alone.
	Drifted []string `json:"drifted,omitempty"`
}

// MaxAgentReport bounds an AgentReport, in bytes.
const MaxAgentReport = 60 << 10

// ParseAgentReport reads the payload of agent. Fields that are not known are those of a newer agent and ignored.
func ParseAgentReport(payload []byte) (r AgentReport, err error) {
	if len(payload) > MaxAgentReport {
		return r, Errorf(TooLarge, "agent", "%d bytes; a report is at most %d", len(payload), MaxAgentReport)
	}
	if err := json.Unmarshal(payload, &r); err != nil {
		return r, Errorf(Invalid, "agent", `the payload must be JSON such as {"version":"…","renderedVersion":"7","conditions":[…]}: %v`, err)
	}
	var p problems
	r.hostStatus().check(&p, "agent")
	checkConditions(&p, "agent.conditions", r.Conditions)
	seen := names{}
	for i, c := range r.Conditions[:min(len(r.Conditions), maxConditions)] {
		at := fmt.Sprintf("agent.conditions[%d]", i)
		seen.check(&p, at+".type", c.Type)
		switch {
		case OfHub(c.Type):
			p.add(at+".type", "%s is set by the hub only", clip(c.Type))
		case c.Type != "" && !conditionType.MatchString(c.Type):
			p.add(at+".type", "%s: must be letters and digits and begin with a capital, such as SpecApplied", clip(c.Type))
		}
		if c.Status != "" {
			oneOf(&p, at+".status", c.Status, []string{"True", "False", "Unknown"})
		}
	}
	return r, p.err()
}

var conditionType = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,99}$`)

// hostStatus is the report as the status of a Node, but for conditions and system information.
func (r *AgentReport) hostStatus() NodeStatus {
	return NodeStatus{
		RenderedVersion: r.RenderedVersion, Failed: r.Failed, OS: r.OS, Containers: r.Containers, SystemdUnits: r.SystemdUnits,
		Applications: r.Applications, Resources: r.Resources, Drifted: r.Drifted,
	}
}

// FollowAgent puts into a Node's status what its agent reports on the bus, and at is when. core is the system information of
// the node's core, for what the agent doesn't say. Without a report what an earlier one said is removed; a status that came over
// HTTP, from another agent, stays.
func (s *NodeStatus) FollowAgent(r *AgentReport, at string, core *SystemInfo, now time.Time) {
	if r == nil && s.AgentVersion == "" {
		if core != nil {
			s.SystemInfo = core
		}
		return
	}
	version := ""
	if r != nil {
		version = cmp.Or(r.Version, "unknown")
	} else {
		r = &AgentReport{}
	}
	of := r.hostStatus()
	s.AgentVersion, s.UpdatedAt = version, at
	s.RenderedVersion, s.Failed, s.OS, s.Containers, s.SystemdUnits = of.RenderedVersion, of.Failed, of.OS, of.Containers, of.SystemdUnits
	s.Applications, s.Resources, s.Drifted = of.Applications, of.Resources, of.Drifted
	s.SystemInfo = r.SystemInfo.over(core)
	said := slices.Clone(r.Conditions)
	for i := range said {
		if c := &said[i]; c.LastTransitionTime.IsZero() {
			c.setTransitionTime(find(s.Conditions, c.Type), now)
		}
	}
	s.Conditions, s.AgentConditions = MergeAgentConditions(s.Conditions, s.AgentConditions, said)
}

// over is the system information with that of another for what is missing in it.
func (s *SystemInfo) over(other *SystemInfo) *SystemInfo {
	if s == nil || other == nil {
		return cmp.Or(s, other)
	}
	return &SystemInfo{
		Architecture: cmp.Or(s.Architecture, other.Architecture), OperatingSystem: cmp.Or(s.OperatingSystem, other.OperatingSystem),
		Kernel: cmp.Or(s.Kernel, other.Kernel), Hostname: cmp.Or(s.Hostname, other.Hostname),
		MachineID: cmp.Or(s.MachineID, other.MachineID), BootID: cmp.Or(s.BootID, other.BootID), CPUs: cmp.Or(s.CPUs, other.CPUs),
		Measurements: s.Measurements,
	}
}

// MergeAgentConditions merges the conditions that an agent reports with those that others wrote, and returns the types of the
// agent's own, of which was is the list of before: a condition that it no longer reports is removed. A condition that the agent
// repeats unchanged, because it has read it, does not become its own, and the hub's conditions never are.
func MergeAgentConditions(list []Condition, was []string, said []Condition) (all []Condition, own []string) {
	said = slices.DeleteFunc(slices.Clone(said), func(c Condition) bool { return OfHub(c.Type) })
	for _, old := range list {
		if c := find(said, old.Type); c != nil {
			all = append(all, *c)
		} else if OfHub(old.Type) || !slices.Contains(was, old.Type) {
			all = append(all, old)
		}
	}
	for _, c := range said {
		old := find(list, c.Type)
		if old == nil {
			all = append(all, c)
		}
		if old == nil || !old.equal(c) || slices.Contains(was, c.Type) {
			own = append(own, c.Type)
		}
	}
	return all, own
}

func (c Condition) equal(o Condition) bool {
	same := c.LastTransitionTime.Equal(o.LastTransitionTime)
	c.LastTransitionTime, o.LastTransitionTime = time.Time{}, time.Time{}
	return same && c == o
}

// FailedVersion is a version of a spec that a node could not apply.
type FailedVersion struct {
	// RenderedVersion is the version.
	RenderedVersion string `json:"renderedVersion"`
	// Reason is one word: InvalidSpec, PathNotAllowed, HookFailed, ContentMissing, WriteFailed, Unhealthy, OSUpdateFailed,
	// ApplicationFailed, Interrupted.
	Reason string `json:"reason"`
	// Message says what happened.
	Message string `json:"message,omitempty"`
	// At is when it failed.
	At string `json:"at,omitempty"`
}

// String is for people: version 8: HookFailed: exit status 1.
func (f FailedVersion) String() string {
	text := "version " + f.RenderedVersion + ": " + f.Reason
	if f.Message != "" {
		text += ": " + f.Message
	}
	return text
}

// The reasons of FailedVersion.
const (
	FailedInvalid     = "InvalidSpec"
	FailedPath        = "PathNotAllowed"
	FailedHook        = "HookFailed"
	FailedContent     = "ContentMissing"
	FailedWrite       = "WriteFailed"
	FailedHealth      = "Unhealthy"
	FailedOS          = "OSUpdateFailed"
	FailedApplication = "ApplicationFailed"
	// FailedInterrupted is for an update in the midst of which the agent ended, again and again.
	FailedInterrupted = "Interrupted"
)

// OSStatus is the OS image of a host.
type OSStatus struct {
	// Image is the reference that was booted.
	Image string `json:"image,omitempty"`
	// ImageDigest is its digest.
	ImageDigest string `json:"imageDigest,omitempty"`
}

// ApplicationStatus is how an application is.
type ApplicationStatus struct {
	// Name is the application's.
	Name string `json:"name"`
	// Status is Preparing, Starting, Running, Completed, Error or Unknown.
	Status string `json:"status"`
	// Ready is how many of its containers or units run: 1/2.
	Ready string `json:"ready,omitempty"`
	// Restarts is how often its containers were restarted.
	Restarts int `json:"restarts,omitempty"`
	// Message says what is wrong.
	Message string `json:"message,omitempty"`
}

// Failed reports whether the application has failed.
func (a ApplicationStatus) Failed() bool { return a.Status == "Error" }

// Runs reports whether the application is as it should be: it runs, or has done what it was to do.
func (a ApplicationStatus) Runs() bool { return a.Status == "Running" || a.Status == "Completed" }

// ResourceStatus is how a host's resources are: Healthy, Warning, Critical or Unknown. It says Info as Healthy.
type ResourceStatus struct { //nolint:revive // it is that of the host's resources
	// CPU is how the processors are.
	CPU string `json:"cpu,omitempty"`
	// Memory is how the memory is.
	Memory string `json:"memory,omitempty"`
	// Disk is how the worst of the file systems is.
	Disk string `json:"disk,omitempty"`
}

// KindRenderedSpec is the hub's record of what a Node was last rendered to. It is no kind of the API.
const KindRenderedSpec = "RenderedSpec"
