// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
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

// NodeSpec is the desired state of a node's host. The template of a Fleet has the same fields.
type NodeSpec struct {
	// OS is the desired operating system; it is left as it is when missing.
	OS *NodeOS `json:"os,omitempty"`
	// Config are the desired files of the host, from several sources.
	// +listType=map
	// +listMapKey=name
	Config []ConfigItem `json:"config,omitempty"`
	// Applications are the containers to run. They are started, updated and removed with the spec.
	// +listType=map
	// +listMapKey=name
	Applications []Application `json:"applications,omitempty"`
	// Hooks are commands that the agent runs around an update. The node's own configuration must allow each of them by its
	// name.
	Hooks *Hooks `json:"hooks,omitempty"`
	// Monitoring selects what the node reports about its host.
	Monitoring *Monitoring `json:"monitoring,omitempty"`
	// Resources are alerts on the host's processors, memory and disks.
	// +listType=atomic
	Resources []ResourceMonitor `json:"resources,omitempty"`
	// Drift says what happens to a file that was changed on the host by other means: restore writes it again as the spec has
	// it, report only reports it.
	// +kubebuilder:validation:Enum=restore;report
	// +default=restore
	Drift string `json:"drift,omitempty"`
	// UpdatePolicy says when the agent may download and apply a spec; at any time when missing.
	UpdatePolicy *UpdatePolicy `json:"updatePolicy,omitempty"`
}

// UpdatePolicy has the times at which an agent may begin to download and to apply a spec. The policy of the new spec counts,
// so a spec without one is applied at once.
type UpdatePolicy struct {
	// DownloadSchedule has the times for downloading the contents of files and the images of applications; any time when
	// missing.
	DownloadSchedule *UpdateSchedule `json:"downloadSchedule,omitempty"`
	// UpdateSchedule has the times for changing the host; any time when missing.
	UpdateSchedule *UpdateSchedule `json:"updateSchedule,omitempty"`
}

func (u *UpdatePolicy) check(p *causeList, at string) {
	if u != nil {
		u.DownloadSchedule.check(p, at+".downloadSchedule")
		u.UpdateSchedule.check(p, at+".updateSchedule")
	}
}

// WaitingForWindow is the reason of the condition Updating, whose status is False, while the agent waits for a time of its
// UpdatePolicy.
const WaitingForWindow = "WaitingForWindow"

// The values of NodeSpec.Drift.
const (
	DriftRestore = "restore"
	DriftReport  = "report"
)

// Application is a set of containers, described by a compose file or by quadlet units.
type Application struct {
	// Name is unique among the node's applications: 1 to 63 characters of a–z, 0–9 and '-', beginning with a letter. Units and
	// the compose project are named after it.
	Name string `json:"name"`
	// AppType is the type of the files.
	// +kubebuilder:validation:Enum=compose;quadlet
	AppType string `json:"appType"`
	// Files are the units, or the compose file and the files that it refers to. If there is an image they are the files that it
	// was resolved to.
	// +listType=map
	// +listMapKey=path
	Files []InlineFile `json:"files,omitempty"`
	// Image is a reference to an OCI artifact or image that contains the files. What its tag refers to may change.
	Image string `json:"image,omitempty"`
	// EnvVars are environment variables of the containers, by name.
	EnvVars map[string]string `json:"envVars,omitempty"`
}

// The types of Application.
const (
	AppCompose = "compose"
	AppQuadlet = "quadlet"
)

// InlineFile is a file and its content.
type InlineFile struct {
	// Path is the path of the file, at most 4,095 bytes: absolute in a configuration, relative to the application's directory
	// in an Application.
	Path string `json:"path"`
	// Content is the content of the file, encoded as contentEncoding says.
	Content string `json:"content,omitempty"`
	// ContentEncoding is the encoding of content: plain or base64; plain when empty.
	// +kubebuilder:validation:Enum=plain;base64
	// +default=plain
	ContentEncoding string `json:"contentEncoding,omitempty"`
	// Digest is the digest of the content, sha256: and 64 hexadecimal digits, if the hub stores it as a blob. Content is then
	// empty.
	Digest string `json:"digest,omitempty"`
	// Size is the size of the blob in bytes, at most 1 TiB.
	// +kubebuilder:validation:Minimum=0
	Size int64 `json:"size,omitempty"`
	// Mode has the permissions as a decimal number, as in Ignition: 420 is 0644. 420 when missing.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4095
	Mode *int `json:"mode,omitempty"`
	// User is the owner, as a name or number of the host; root when empty.
	User string `json:"user,omitempty"`
	// Group is the group, as a name or number of the host; root when empty.
	Group string `json:"group,omitempty"`
}

// Hooks are commands around an update, which are run in their order. If a command fails, the update ends; if the update's
// files have been written, it is rolled back.
type Hooks struct {
	// BeforeUpdating are run before anything is changed.
	BeforeUpdating []Hook `json:"beforeUpdating,omitempty"`
	// AfterUpdating are run after the files were written and before the host's health is checked.
	AfterUpdating []Hook `json:"afterUpdating,omitempty"`
	// BeforeRebooting are run before the host reboots into another OS image.
	BeforeRebooting []Hook `json:"beforeRebooting,omitempty"`
	// AfterRebooting are run after that reboot.
	AfterRebooting []Hook `json:"afterRebooting,omitempty"`
}

// Hook is a command that the node allows, and the conditions under which it is run.
type Hook struct {
	// Run is the name of a command in the node's own configuration.
	Run string `json:"run"`
	// If are conditions, of which at least one must hold. Without conditions the command is always run.
	If []HookCondition `json:"if,omitempty"`
	// Timeout is the longest duration of the command, at least 1s; 10s when empty. A command that takes longer is ended, and
	// has failed.
	Timeout string `json:"timeout,omitempty"`
}

// HookCondition holds if the update changes a file or directory.
type HookCondition struct {
	// Path is the absolute path of a file, or of a directory with all that is below it.
	Path string `json:"path"`
	// Op are the changes that count; all of them when empty.
	// +kubebuilder:validation:items:Enum=created;updated;removed
	Op []string `json:"op,omitempty"`
}

// ResourceMonitor measures a resource of the host and raises alerts.
type ResourceMonitor struct { //nolint:revive // it is one of the host's resources
	// MonitorType is the resource.
	// +kubebuilder:validation:Enum=CPU;Memory;Disk
	MonitorType string `json:"monitorType"`
	// SamplingInterval is the time between two measurements, at least 1s, such as 5s.
	SamplingInterval string `json:"samplingInterval"`
	// AlertRules are the thresholds, at most one for each severity.
	// +listType=map
	// +listMapKey=severity
	AlertRules []AlertRule `json:"alertRules,omitempty"`
	// Path is the absolute path of a directory in the file system to measure; required for Disk.
	Path string `json:"path,omitempty"`
}

// AlertRule raises an alert when a resource's use exceeds a threshold.
type AlertRule struct {
	// Severity is the severity of the alert.
	// +kubebuilder:validation:Enum=Info;Warning;Critical
	Severity string `json:"severity"`
	// Percentage is the threshold in percent of the resource's capacity, from 0 to 100.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Percentage float64 `json:"percentage"`
	// Duration is the period, at least 1s, such as 10m. The alert begins when the mean over this period exceeds the threshold.
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

// HealthCondition is the type of the condition for a resource, such as CPUHealthy. The condition's reason is the severity of the worst
// alert.
func HealthCondition(monitorType string) string { return monitorType + "Healthy" }

// NodeOS is the desired operating system.
type NodeOS struct {
	// Image is a reference to an OCI image. What its tag refers to may change.
	Image string `json:"image,omitempty"`
}

// ConfigType is the type of a configuration source.
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
	// Name is unique among the items.
	Name string `json:"name"`
	// ConfigType says which of inline, gitRef, httpRef, ociRef, secretRef, configMapRef and files is set.
	ConfigType ConfigType `json:"configType"`
	// Inline is the configuration itself: an Ignition document, version 3.4.0.
	Inline json.RawMessage `json:"inline,omitempty"`
	// GitRef refers to files in a Repository of type git.
	GitRef *GitRef `json:"gitRef,omitempty"`
	// HTTPRef refers to a file on an HTTP server.
	HTTPRef *HTTPRef `json:"httpRef,omitempty"`
	// OCIRef refers to the files of an artifact or image in a registry.
	OCIRef *OCIRef `json:"ociRef,omitempty"`
	// SecretRef refers to a Secret. Its present values are always used, as Secrets have no versions.
	SecretRef *SecretMount `json:"secretRef,omitempty"`
	// ConfigMapRef refers to a ConfigMap. Its present values are used, as ConfigMaps have no versions.
	ConfigMapRef *ConfigMapMount `json:"configMapRef,omitempty"`
	// Files are files with their content. Beside a gitRef, httpRef, ociRef or configMapRef they are the files that it had when
	// a fleet froze it, and are used instead of the present ones.
	// +listType=atomic
	Files []InlineFile `json:"files,omitempty"`
}

// GitRef refers to files in a Repository at a revision.
type GitRef struct {
	// Repository is the name of a Repository.
	Repository string `json:"repository"`
	// TargetRevision is a branch, tag or commit. What a branch or tag refers to may change.
	TargetRevision string `json:"targetRevision"`
	// Path is a file or directory in the repository.
	Path string `json:"path"`
	// MountPath is the absolute path of the directory on the node into which the files are written; / when empty.
	MountPath string `json:"mountPath,omitempty"`
}

// HTTPRef refers to a file on an HTTP server.
type HTTPRef struct {
	// Repository is the name of a Repository of type http.
	Repository string `json:"repository"`
	// Suffix is appended to the Repository's address: a path, or a query, or both.
	Suffix string `json:"suffix,omitempty"`
	// FilePath is the absolute path of the file on the node that gets the body of the answer.
	FilePath string `json:"filePath"`
}

// OCIRef refers to the files of an artifact or image in a registry.
type OCIRef struct {
	// Image is a reference to the artifact or image. What its tag refers to may change.
	Image string `json:"image"`
	// MountPath is the absolute path of the directory on the node into which the files are written.
	MountPath string `json:"mountPath"`
}

// SecretMount refers to a Secret whose values are written to files on a node.
type SecretMount struct {
	// Name is the Secret's name.
	Name string `json:"name"`
	// Namespace is the Secret's namespace; default when empty.
	// +default=default
	Namespace string `json:"namespace,omitempty"`
	// MountPath is the directory on the node in which each key becomes a file.
	MountPath string `json:"mountPath"`
}

// ConfigMapMount refers to a ConfigMap whose values are written to files on a node.
type ConfigMapMount struct {
	// Name is the ConfigMap's name.
	Name string `json:"name"`
	// Namespace is the ConfigMap's namespace; default when empty.
	// +default=default
	Namespace string `json:"namespace,omitempty"`
	// MountPath is the directory on the node in which each key becomes a file.
	MountPath string `json:"mountPath"`
}

// Monitoring selects what a node reports about its host.
type Monitoring struct {
	// Containers selects containers by their names.
	Containers *Patterns `json:"containers,omitempty"`
	// Systemd selects systemd units by their names.
	Systemd *Patterns `json:"systemd,omitempty"`
}

// Patterns select by name.
type Patterns struct {
	// MatchPatterns are names in which * stands for any text.
	MatchPatterns []string `json:"matchPatterns,omitempty"`
}

// Validate checks a Node.
func (n Node) Validate() error {
	var p causeList
	n.Metadata.check(&p)
	n.Spec.check(&p, "spec", false)
	return p.err()
}

// check checks a spec. In a fleet's template a text with {{ is a Go template. It is not checked here: the result for each node
// is.
func (s NodeSpec) check(p *causeList, at string, template bool) {
	expanded := func(text string) bool { return !template || !strings.Contains(text, "{{") }
	if s.OS != nil && expanded(s.OS.Image) {
		checkImage(p, at+".os.image", s.OS.Image)
	}
	seen := uniqueNames{}
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
	checkOneOf(p, at+".drift", s.Drift, []string{"", DriftRestore, DriftReport})
	s.UpdatePolicy.check(p, at+".updatePolicy")
}

func (s NodeSpec) checkApplications(p *causeList, at string, expanded func(string) bool) {
	seen := uniqueNames{}
	for i, a := range s.Applications {
		here := fmt.Sprintf("%s[%d]", at, i)
		if !appName.MatchString(a.Name) {
			p.add(here+".name", "%s: must be 1–63 characters of a–z, 0–9 and '-', beginning with a letter and ending with a letter or digit", clipText(a.Name))
		}
		seen.check(p, here+".name", a.Name)
		checkOneOf(p, here+".appType", a.AppType, []string{AppCompose, AppQuadlet})
		if len(a.Files) == 0 && a.Image == "" {
			p.add(here+".files", "is required, or image: an application without files starts nothing")
		}
		if a.Image != "" && expanded(a.Image) {
			checkImage(p, here+".image", a.Image)
		}
		checkFiles(p, here+".files", a.Files, false)
		for name := range a.EnvVars {
			if !envName.MatchString(name) {
				p.add(here+".envVars["+clipText(name)+"]", "a name is letters, digits and '_', and doesn't begin with a digit")
			}
		}
	}
}

var (
	appName = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// checkFiles checks files with their content. Paths must be absolute or relative, as absolute says.
func checkFiles(p *causeList, at string, files []InlineFile, absolute bool) {
	seen := uniqueNames{}
	for i, f := range files {
		here := fmt.Sprintf("%s[%d]", at, i)
		switch {
		case f.Path == "":
			p.add(here+".path", "is required")
		case len(f.Path) > maxPath || strings.ContainsRune(f.Path, 0):
			p.add(here+".path", "must have at most %d bytes, and no NUL", maxPath)
		case absolute && (!path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/"):
			p.add(here+".path", "%s: must be absolute, without '..', '//' and a '/' at its end", clipText(f.Path))
		case !absolute && (!filepath.IsLocal(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "."):
			p.add(here+".path", "%s: must be relative, without '..', '//' and a '/' at its end", clipText(f.Path))
		}
		seen.check(p, here+".path", f.Path)
		checkOneOf(p, here+".contentEncoding", f.ContentEncoding, []string{"", "plain", "base64"})
		if _, err := ParseDigest(f.Digest); f.Digest != "" && (err != nil || f.Content != "") {
			p.add(here+".digest", "%s: must be sha256: and 64 hexadecimal digits, without content beside it", clipText(f.Digest))
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

// maxBlob bounds the size of a blob to which a spec refers, in bytes.
const maxBlob = 1 << 40

// maxPath bounds a path on a node, in bytes. Linux accepts no longer one.
const maxPath = 4095

// Bytes returns the decoded content of the file.
func (f InlineFile) Bytes() ([]byte, error) {
	if f.ContentEncoding == "base64" {
		return base64.StdEncoding.DecodeString(f.Content)
	}
	return []byte(f.Content), nil
}

func (h *Hooks) check(p *causeList, at string) {
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

func (h Hook) check(p *causeList, at string) {
	checkRequired(p, at+".run", h.Run)
	checkDuration(p, at+".timeout", h.Timeout, time.Second)
	for i, c := range h.If {
		here := fmt.Sprintf("%s.if[%d]", at, i)
		if !path.IsAbs(c.Path) || path.Clean(c.Path) != c.Path {
			p.add(here+".path", "%s: must be absolute, without '..', '//' and a '/' at its end", clipText(c.Path))
		}
		for _, op := range c.Op {
			checkOneOf(p, here+".op", op, []string{"created", "updated", "removed"})
		}
	}
}

// checkDuration checks a duration. An empty text is valid.
func checkDuration(p *causeList, field, text string, least time.Duration) {
	if text == "" {
		return
	}
	if d, err := time.ParseDuration(text); err != nil || d < least {
		p.add(field, "%s: must be a duration of at least %v, such as 30s or 5m", clipText(text), least)
	}
}

func (m ResourceMonitor) check(p *causeList, at string) {
	checkOneOf(p, at+".monitorType", m.MonitorType, []string{MonitorCPU, MonitorMemory, MonitorDisk})
	checkRequired(p, at+".samplingInterval", m.SamplingInterval)
	checkDuration(p, at+".samplingInterval", m.SamplingInterval, time.Second)
	if m.MonitorType == MonitorDisk && !path.IsAbs(m.Path) {
		p.add(at+".path", "%s: must be an absolute path of the file system that is watched", clipText(m.Path))
	}
	seen := uniqueNames{}
	for i, r := range m.AlertRules {
		here := fmt.Sprintf("%s.alertRules[%d]", at, i)
		checkOneOf(p, here+".severity", r.Severity, []string{SeverityInfo, SeverityWarning, SeverityCritical})
		seen.check(p, here+".severity", r.Severity)
		if r.Percentage < 0 || r.Percentage > 100 {
			p.add(here+".percentage", "%v: must be from 0 to 100", r.Percentage)
		}
		checkRequired(p, here+".duration", r.Duration)
		checkDuration(p, here+".duration", r.Duration, time.Second)
	}
}

// frozenTypes are the sources whose files a fleet writes into the item when it freezes it.
var frozenTypes = []ConfigType{ConfigGit, ConfigHTTP, ConfigOCI, ConfigMapRef}

// IsFrozen reports whether a fleet has written the files of the item's source into it.
func (c ConfigItem) IsFrozen() bool {
	return len(c.Files) > 0 && slices.Contains(frozenTypes, c.ConfigType)
}

// HasDotSegments says whether the path of a reference to an HTTP server has parts that servers may take for this directory or the one above.
// Servers differ in how often they decode a path, and in whether a backslash separates parts and a semicolon ends one.
func HasDotSegments(ref string) bool {
	at, _, _ := strings.Cut(ref, "?")
	for {
		for part := range strings.FieldsFuncSeq(at, func(r rune) bool { return r == '/' || r == '\\' }) {
			if name, _, _ := strings.Cut(part, ";"); name == "." || name == ".." {
				return true
			}
		}
		decoded, err := url.PathUnescape(at)
		if err != nil || decoded == at {
			return false
		}
		at = decoded
	}
}

func (c ConfigItem) check(p *causeList, at string, expanded func(string) bool) {
	checkOneOf(p, at+".configType", string(c.ConfigType), []ConfigType{ConfigInline, ConfigGit, ConfigHTTP, ConfigOCI, ConfigSecret, ConfigMapRef, ConfigFiles})
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
			p.add(at+"."+part.field, "must not be set: the configType is %s", clipText(string(c.ConfigType)))
		}
	}
	if c.GitRef != nil {
		c.GitRef.check(p, at+".gitRef", expanded)
	}
	if c.HTTPRef != nil {
		c.HTTPRef.check(p, at+".httpRef", expanded)
	}
	if c.OCIRef != nil {
		checkRequired(p, at+".ociRef.image", c.OCIRef.Image)
		if c.OCIRef.Image != "" && expanded(c.OCIRef.Image) {
			checkImage(p, at+".ociRef.image", c.OCIRef.Image)
		}
		checkAbsolute(p, at+".ociRef.mountPath", c.OCIRef.MountPath, expanded)
	}
	if c.SecretRef != nil {
		checkRequired(p, at+".secretRef.name", c.SecretRef.Name)
		checkRequired(p, at+".secretRef.mountPath", c.SecretRef.MountPath)
	}
	if c.ConfigMapRef != nil {
		checkRequired(p, at+".configMapRef.name", c.ConfigMapRef.Name)
		checkRequired(p, at+".configMapRef.mountPath", c.ConfigMapRef.MountPath)
	}
	checkFiles(p, at+".files", c.Files, true)
	if len(c.Inline) > 0 && !isJSON(string(c.Inline), '{') {
		p.add(at+".inline", "must be an object: an Ignition document")
	}
}

func (g GitRef) check(p *causeList, at string, expanded func(string) bool) {
	checkName(p, at+".repository", g.Repository)
	checkRequired(p, at+".targetRevision", g.TargetRevision)
	if expanded(g.TargetRevision) {
		checkRevision(p, at+".targetRevision", g.TargetRevision)
	}
	checkRequired(p, at+".path", g.Path)
	if g.MountPath != "" {
		checkAbsolute(p, at+".mountPath", g.MountPath, expanded)
	}
}

func (h HTTPRef) check(p *causeList, at string, expanded func(string) bool) {
	checkName(p, at+".repository", h.Repository)
	checkAbsolute(p, at+".filePath", h.FilePath, expanded)
	if expanded(h.Suffix) {
		checkSuffix(p, at+".suffix", h.Suffix)
	}
}

// checkAbsolute checks the absolute path of a file or directory on a node.
func checkAbsolute(p *causeList, field, text string, expanded func(string) bool) {
	if expanded(text) && (!path.IsAbs(text) || path.Clean(text) != text && path.Clean(text)+"/" != text || len(text) > maxPath || strings.ContainsRune(text, 0)) {
		p.add(field, "%s: must be absolute, without '..' and '//', and have at most %d bytes", clipText(text), maxPath)
	}
}

// checkSuffix checks what is appended to a Repository's address. It can't lead to another host, or above the address.
func checkSuffix(p *causeList, field, text string) {
	if HasDotSegments(text) {
		p.add(field, "%s: must have no part '.' or '..': what is read is below the Repository's address", clipText(text))
		return
	}
	if text != "" && (text[0] != '/' && text[0] != '?' || len(text) > maxPath || strings.ContainsAny(text, "\\#") || strings.HasPrefix(text, "//")) {
		p.add(field, "%s: must begin with one '/', or with '?', and have no fragment", clipText(text))
		return
	}
	if _, err := url.Parse("https://host" + text); err != nil {
		p.add(field, "%s: must be a part of an address: each '%%' stands before two hexadecimal digits, and there is no control character", clipText(text))
	}
}
