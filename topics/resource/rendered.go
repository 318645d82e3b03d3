// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// RenderedSpec is the payload of the topic spec: the Node's spec with every reference resolved. It does not contain the values of
// Secrets but their names: the node gets the values at secrets/{secret}.
type RenderedSpec struct {
	// RenderedVersion is a decimal number that is incremented when any other field changes, and only then.
	RenderedVersion string `json:"renderedVersion"`
	// OS is the desired operating system.
	OS *NodeOS `json:"os,omitempty"`
	// Files are the desired files, directories and links below the node's allowed roots, in the order of their paths. Those that
	// an earlier version had and this one does not have are removed.
	Files []RenderedFile `json:"files,omitempty"`
	// Applications are the desired applications, in the order of their names.
	Applications []RenderedApplication `json:"applications,omitempty"`
	// Hooks are the commands that are run before and after the update.
	Hooks *Hooks `json:"hooks,omitempty"`
	// Monitoring says what the agent reports of the host.
	Monitoring *Monitoring `json:"monitoring,omitempty"`
	// Resources are the monitors of the host's resources, with their alerts.
	Resources []ResourceMonitor `json:"resources,omitempty"`
	// Drift says what happens to a file that was changed on the host: restore or report.
	Drift string `json:"drift,omitempty"`
	// UpdatePolicy says when the spec is downloaded and applied; at once when missing.
	UpdatePolicy *UpdatePolicy `json:"updatePolicy,omitempty"`
}

// RenderedFile is a file, a directory or a symbolic link.
type RenderedFile struct {
	// Path is the absolute path, in its shortest form.
	Path string `json:"path"`
	// Type is file, directory or link.
	Type string `json:"type"`
	// Mode has the permissions in octal, such as 0644. A link has none.
	Mode string `json:"mode,omitempty"`
	// User and Group are the owner, by name or number; root when empty.
	User  string `json:"user,omitempty"`
	Group string `json:"group,omitempty"`
	// Target is the target of a link.
	Target string `json:"target,omitempty"`
	// Keep says that the entry is only created if nothing exists at the path.
	Keep bool `json:"keep,omitempty"`
	Content
}

// RenderedApplication is an application. The paths of its files are relative to its directory.
type RenderedApplication struct {
	Name    string            `json:"name"`
	AppType string            `json:"appType"`
	Files   []RenderedFile    `json:"files"`
	EnvVars map[string]string `json:"envVars,omitempty"`
	// Images are the images of its containers that can be pulled before the application is started.
	Images []string `json:"images,omitempty"`
	// Optional says that the spec counts as applied even if the application does not start. The start is retried.
	Optional bool `json:"optional,omitempty"`
}

// Content is the content of a file. At most one of Text, Base64, Digest and Secret is set; the file is empty if none is.
type Content struct {
	// Text is the content, if it is small and UTF-8.
	Text string `json:"text,omitempty"`
	// Base64 is the content in base64, if it is small and not UTF-8.
	Base64 []byte `json:"base64,omitempty"`
	// Digest is the digest of the content, if it is stored as a blob: sha256: and 64 hexadecimal digits.
	Digest string `json:"digest,omitempty"`
	// Size is the size of the blob in bytes.
	Size int64 `json:"size,omitempty"`
	// Secret refers to a value of a Secret.
	Secret *SecretKey `json:"secret,omitempty"`
}

// SecretKey refers to a value of a Secret.
type SecretKey struct {
	// Name is the name in the topic secrets/{name}: the Secret's namespace and name, joined by a dot.
	Name string `json:"name"`
	// Key is the key of the value in the Secret.
	Key string `json:"key"`
	// Version is the version of the Secret with which the spec was rendered.
	Version string `json:"version"`
}

// The types of RenderedFile.
const (
	FileRegular   = "file"
	FileDirectory = "directory"
	FileLink      = "link"
)

// SecretTopic returns the topic level that names a Secret in a node's tree. A namespace has no dot, so the name is unique.
func SecretTopic(namespace, name string) string { return namespace + "." + name }

// Secrets returns the names of the Secrets that the spec refers to, as SecretTopic forms them, in order.
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

// Blobs returns the digests of the contents that are stored as blobs. A digest may occur more than once.
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

// HasBlobs reports whether a content is stored as a blob.
func (r RenderedSpec) HasBlobs() bool {
	for range r.Blobs() {
		return true
	}
	return false
}

// SecretValues is the payload of secrets/{secret}.
type SecretValues struct {
	// Version changes with each change of the values.
	Version string `json:"version"`
	// Data has the values by their keys.
	Data map[string][]byte `json:"data"`
}

// RetryAnnotation of a Node has its spec rendered as another version when its value changes, so that the node's agent tries again what has
// failed.
const RetryAnnotation = Group + "/retry"

// AgentReport is the payload of the topic agent: the spec that the node's agent has applied, and the state of the host. It has at most
// MaxAgentReport bytes: lists that are too long are cut, and the condition ReportTruncated then says so.
type AgentReport struct {
	// Version is the version of the agent.
	Version string `json:"version,omitempty"`
	// RenderedVersion is the version of the spec that is completely applied; empty if there is none.
	RenderedVersion string `json:"renderedVersion,omitempty"`
	// Failed is the version that could not be applied or was rolled back.
	Failed *FailedVersion `json:"failed,omitempty"`
	// OS is the OS image that the host has booted, if its operating system is an image.
	OS *OSStatus `json:"os,omitempty"`
	// SystemInfo describes the host.
	SystemInfo *SystemInfo `json:"systemInfo,omitempty"`
	// Conditions are Updating, SpecApplied, Drifted, ReportTruncated, and those of the host's resources and interfaces.
	Conditions []Condition `json:"conditions,omitempty"`
	// Containers and SystemdUnits are those that spec.monitoring selects.
	Containers   []ContainerStatus `json:"containers,omitempty"`
	SystemdUnits []SystemdUnit     `json:"systemdUnits,omitempty"`
	// Applications are the states of the spec's applications.
	Applications []ApplicationStatus `json:"applications,omitempty"`
	// Resources is the state of the host's resources.
	Resources *ResourceStatus `json:"resources,omitempty"`
	// Drifted are the paths of files that were changed on the host and not restored.
	Drifted []string `json:"drifted,omitempty"`
}

// MaxAgentReport is the largest size of an AgentReport in bytes.
const MaxAgentReport = 60 << 10

// ParseAgentReport parses the payload of agent. Unknown fields, which a newer agent may send, are ignored.
func ParseAgentReport(payload []byte) (r AgentReport, err error) {
	if len(payload) > MaxAgentReport {
		return r, Errorf(TooLarge, "agent", "%d bytes; a report is at most %d", len(payload), MaxAgentReport)
	}
	if err := json.Unmarshal(payload, &r); err != nil {
		return r, Errorf(Invalid, "agent", `the payload must be JSON such as {"version":"…","renderedVersion":"7","conditions":[…]}: %v`, err)
	}
	var p causeList
	r.hostStatus().check(&p, "agent")
	checkConditions(&p, "agent.conditions", r.Conditions)
	seen := uniqueNames{}
	for i, c := range r.Conditions[:min(len(r.Conditions), maxConditions)] {
		at := fmt.Sprintf("agent.conditions[%d]", i)
		seen.check(&p, at+".type", c.Type)
		switch {
		case OfHub(c.Type):
			p.add(at+".type", "%s is set by the hub only", clipText(c.Type))
		case c.Type != "" && !conditionType.MatchString(c.Type):
			p.add(at+".type", "%s: must be letters and digits and begin with a capital, such as SpecApplied", clipText(c.Type))
		}
		if c.Status != "" {
			checkOneOf(&p, at+".status", c.Status, []string{"True", "False", "Unknown"})
		}
	}
	return r, p.err()
}

var conditionType = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,99}$`)

// hostStatus returns the report as the status of a Node, without conditions and system information.
func (r *AgentReport) hostStatus() NodeStatus {
	return NodeStatus{
		RenderedVersion: r.RenderedVersion, Failed: r.Failed, OS: r.OS, Containers: r.Containers, SystemdUnits: r.SystemdUnits,
		Applications: r.Applications, Resources: r.Resources, Drifted: r.Drifted,
	}
}

// FollowAgent writes the report of the node's agent, which came over the bus at the time at, into the Node's status. core is the
// system information of the node's core, used where the agent's has none. sent is the newest version of the spec that the hub has sent the
// node, empty if none: other ones that the report names are not believed. Without a report what an earlier one wrote is removed. A
// status that another agent wrote over HTTP stays.
func (s *NodeStatus) FollowAgent(r *AgentReport, at, sent string, core *SystemInfo, now time.Time) {
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
	why := of.checkReport(sent)
	if c := findCondition(s.Conditions, ReportUntrue); c != nil && c.Status == "True" && at != "" && at == s.UpdatedAt {
		why, of.RenderedVersion, of.Failed = c.Message, s.RenderedVersion, s.Failed // what was not true does not become so when the version is sent
	}
	s.Conditions = UntrueCondition(s.Conditions, why, now)
	s.AgentVersion, s.UpdatedAt = version, at
	s.RenderedVersion, s.Failed, s.OS, s.Containers, s.SystemdUnits = of.RenderedVersion, of.Failed, of.OS, of.Containers, of.SystemdUnits
	s.Applications, s.Resources, s.Drifted = of.Applications, of.Resources, of.Drifted
	s.SystemInfo = r.SystemInfo.mergedOver(core)
	said := slices.Clone(r.Conditions)
	for i := range said {
		if c := &said[i]; c.LastTransitionTime.IsZero() {
			c.setTransitionTime(findCondition(s.Conditions, c.Type), now)
		}
	}
	s.Conditions, s.AgentConditions = MergeAgentConditions(s.Conditions, s.AgentConditions, said)
}

// ReportUntrue is the condition of a Node whose agent names a version of the spec that the hub has not sent.
const ReportUntrue = "ReportUntrue"

// UntrueCondition sets the condition ReportUntrue. why is what can't be true, empty if all can. The condition is not added before it is
// first True.
func UntrueCondition(prev []Condition, why string, now time.Time) []Condition {
	return setException(prev, why, Condition{Type: ReportUntrue, Status: "True", Reason: "NeverSent"}, Condition{Status: "False", Reason: "Believed"}, now)
}

// checkReport removes versions of the spec that the node has never been sent, and returns what it says of them. sent is the newest that
// it was.
func (s *NodeStatus) checkReport(sent string) (why string) {
	if s.Failed != nil && !hasSent(s.Failed.RenderedVersion, sent) {
		why = fmt.Sprintf("the agent says that it could not apply version %s", clipText(s.Failed.RenderedVersion))
		s.Failed = nil
	}
	if s.RenderedVersion != "" && !hasSent(s.RenderedVersion, sent) {
		why = fmt.Sprintf("the agent says that it has applied version %s", clipText(s.RenderedVersion))
		s.RenderedVersion = ""
	}
	switch {
	case why == "":
		return ""
	case sent == "":
		return why + " of the spec, and this hub has sent it none"
	}
	return why + " of the spec, and the newest that this hub has sent it is " + sent
}

// hasSent reports whether a version is one of those up to the newest.
func hasSent(version, newest string) bool {
	n, err := strconv.ParseUint(version, 10, 64)
	last, _ := strconv.ParseUint(newest, 10, 64)
	return err == nil && n > 0 && n <= last && strconv.FormatUint(n, 10) == version
}

// mergedOver returns the system information, with the fields that it lacks taken from another.
func (s *SystemInfo) mergedOver(other *SystemInfo) *SystemInfo {
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
		if c := findCondition(said, old.Type); c != nil {
			all = append(all, *c)
		} else if OfHub(old.Type) || !slices.Contains(was, old.Type) {
			all = append(all, old)
		}
	}
	for _, c := range said {
		old := findCondition(list, c.Type)
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

// FailedVersion is a version of the rendered spec that a node could not apply.
type FailedVersion struct {
	// RenderedVersion is the version of the rendered spec.
	RenderedVersion string `json:"renderedVersion"`
	// Reason is one word: InvalidSpec, PathNotAllowed, HookFailed, ContentMissing, WriteFailed, Unhealthy, OSUpdateFailed,
	// ApplicationFailed, Interrupted.
	Reason string `json:"reason"`
	// Message describes the failure.
	Message string `json:"message,omitempty"`
	// At is the time of the failure.
	At string `json:"at,omitempty"`
}

// String returns a text for people, such as version 8: HookFailed: exit status 1.
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
	// FailedInterrupted is for an update during which the agent ended repeatedly.
	FailedInterrupted = "Interrupted"
)

// OSStatus is the OS image that a host has booted.
type OSStatus struct {
	// Image is the reference to the image.
	Image string `json:"image,omitempty"`
	// ImageDigest is the digest of the image.
	ImageDigest string `json:"imageDigest,omitempty"`
}

// ApplicationStatus is the state of an application.
type ApplicationStatus struct {
	// Name is the name of the application.
	Name string `json:"name"`
	// Status is Preparing, Starting, Running, Completed, Error or Unknown.
	Status string `json:"status"`
	// Ready is the number of its containers or units that run, and of all, such as 1/2.
	Ready string `json:"ready,omitempty"`
	// Restarts is the number of times that its containers were restarted.
	Restarts int `json:"restarts,omitempty"`
	// Message describes what is wrong.
	Message string `json:"message,omitempty"`
}

// Failed reports whether the application has failed.
func (a ApplicationStatus) Failed() bool { return a.Status == "Error" }

// Runs reports whether the application runs, or has completed.
func (a ApplicationStatus) Runs() bool { return a.Status == "Running" || a.Status == "Completed" }

// ResourceStatus is the state of a host's resources: Healthy, Warning, Critical or Unknown. An alert of severity Info counts as Healthy.
type ResourceStatus struct { //nolint:revive // it is that of the host's resources
	// CPU is the state of the processors.
	CPU string `json:"cpu,omitempty"`
	// Memory is the state of the memory.
	Memory string `json:"memory,omitempty"`
	// Disk is the state of the file system that is worst.
	Disk string `json:"disk,omitempty"`
}

// KindRenderedSpec is the kind of the hub's records of the Nodes' last rendered specs. The API does not have it.
const KindRenderedSpec = "RenderedSpec"
