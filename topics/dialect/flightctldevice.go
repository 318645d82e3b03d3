// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"encoding/json"

	"github.com/edgebus/edgebus/topics/resource"
)

type hostV1alpha1 struct {
	Spec   hostSpec   `json:"spec,omitzero"`
	Status hostStatus `json:"status,omitzero"`
}

type hostSpec struct {
	OS         *hostOS              `json:"os,omitempty"`
	Config     []configItem         `json:"config,omitempty"`
	Monitoring *resource.Monitoring `json:"monitoring,omitempty"`
	// Containers and Systemd have the contents of Monitoring in versions without that field: before it in v1alpha1, and in v1beta1.
	Containers   *resource.Patterns         `json:"containers,omitempty"`
	Systemd      *resource.Patterns         `json:"systemd,omitempty"`
	Applications []flightctlApplication     `json:"applications,omitempty"`
	Resources    []resource.ResourceMonitor `json:"resources,omitempty"`

	Consoles        keptField[[]jsonObject] `json:"consoles,omitempty"`
	Decommission    keptField[jsonObject]   `json:"decommission,omitempty"`
	Decommissioning keptField[jsonObject]   `json:"decommissioning,omitempty"`
	Hooks           keptField[jsonObject]   `json:"hooks,omitempty"`

	UpdatePolicy *resource.UpdatePolicy `json:"updatePolicy,omitempty"`
}

// flightctlApplication has its files here or in an image if it is a canonical one. Others are only kept.
type flightctlApplication struct {
	Name    string                `json:"name,omitempty"`
	AppType string                `json:"appType,omitempty"`
	Inline  []resource.InlineFile `json:"inline,omitempty"`
	Image   string                `json:"image,omitempty"`
	EnvVars map[string]string     `json:"envVars,omitempty"`

	Annotations       keptField[map[string]string] `json:"annotations,omitempty"`
	CatalogItem       keptField[jsonObject]        `json:"catalogItemRef,omitempty"`
	DesiredState      keptField[string]            `json:"desiredState,omitempty"`
	RestartGeneration keptField[int64]             `json:"restartGeneration,omitempty"`
	Volumes           keptField[[]jsonObject]      `json:"volumes,omitempty"`
	Ports             keptField[[]any]             `json:"ports,omitempty"`
	PublishPorts      keptField[[]any]             `json:"publishPorts,omitempty"`
	Resources         keptField[jsonObject]        `json:"resources,omitempty"`
	RunAs             keptField[string]            `json:"runAs,omitempty"`
	Namespace         keptField[string]            `json:"namespace,omitempty"`
	Values            keptField[jsonObject]        `json:"values,omitempty"`
	ValuesFiles       keptField[[]string]          `json:"valuesFiles,omitempty"`
}

// hostOS has a reference to a catalog, which there is none of here, beside the image.
type hostOS struct {
	resource.NodeOS
	CatalogItem keptField[jsonObject] `json:"catalogItemRef,omitempty"`
}

// configItem names its source in an object of its own, or flat.
type configItem struct {
	Name       string              `json:"name"`
	ConfigType resource.ConfigType `json:"configType,omitempty"`
	Inline     json.RawMessage     `json:"inline,omitempty"` // an Ignition document, or a list of files
	GitRef     *resource.GitRef    `json:"gitRef,omitempty"`
	HTTPRef    *resource.HTTPRef   `json:"httpRef,omitempty"`
	OCIRef     *resource.OCIRef    `json:"ociRef,omitempty"`
	SecretRef  *secretRef          `json:"secretRef,omitempty"`

	Repository string `json:"repository,omitempty"` // flat, of git
	Ref        string `json:"ref,omitempty"`
	Path       string `json:"path,omitempty"`
	Namespace  string `json:"namespace,omitempty"` // flat, of a Secret that is called as the item
	MountPath  string `json:"mountPath,omitempty"`
}

type secretRef struct {
	resource.SecretMount
	User  keptField[any] `json:"user,omitempty"`
	Group keptField[any] `json:"group,omitempty"`
}

type hostStatus struct {
	Conditions      []resource.Condition       `json:"conditions,omitempty"`
	Containers      []resource.ContainerStatus `json:"containers,omitempty"`
	SystemdUnits    []resource.SystemdUnit     `json:"systemdUnits,omitempty"`
	SystemInfo      *resource.SystemInfo       `json:"systemInfo,omitempty"`
	RenderedVersion string                     `json:"renderedVersion,omitempty"`
	UpdatedAt       string                     `json:"updatedAt,omitempty"`
}

type hostV1beta1 struct {
	Spec   hostSpec          `json:"spec,omitzero"`
	Status hostStatusV1beta1 `json:"status,omitzero"`
}

// hostStatusV1beta1 has summaries. They are computed from the rest, and ignored when a status is written.
type hostStatusV1beta1 struct {
	Conditions   []resource.Condition     `json:"conditions,omitempty"`
	SystemInfo   *resource.SystemInfo     `json:"systemInfo,omitempty"`
	Systemd      []unitV1beta1            `json:"systemd,omitempty"`
	Applications []applicationV1beta1     `json:"applications,omitempty"`
	Resources    *resource.ResourceStatus `json:"resources,omitempty"`
	Config       *configV1beta1           `json:"config,omitempty"`
	OS           *resource.OSStatus       `json:"os,omitempty"`
	LastSeen     string                   `json:"lastSeen,omitempty"`

	ApplicationsSummary *resource.Summary `json:"applicationsSummary,omitempty"`
	Updated             *resource.Summary `json:"updated,omitempty"`
	Summary             *resource.Summary `json:"summary,omitempty"`
	Lifecycle           *resource.Summary `json:"lifecycle,omitempty"`

	Integrity      keptField[jsonObject] `json:"integrity,omitempty"`
	Capabilities   keptField[jsonObject] `json:"capabilities,omitempty"`
	DependencySync keptField[jsonObject] `json:"dependencySync,omitempty"`
}

type unitV1beta1 struct {
	Unit        string `json:"unit"`
	LoadState   string `json:"loadState,omitempty"`
	ActiveState string `json:"activeState,omitempty"`

	Description keptField[string] `json:"description,omitempty"`
	EnableState keptField[string] `json:"enableState,omitempty"`
	SubState    keptField[string] `json:"subState,omitempty"`
}

type applicationV1beta1 struct {
	resource.ApplicationStatus
	AppType  keptField[string]       `json:"appType,omitempty"`
	Embedded keptField[bool]         `json:"embedded,omitempty"`
	RunAs    keptField[string]       `json:"runAs,omitempty"`
	Volumes  keptField[[]jsonObject] `json:"volumes,omitempty"`
}

type configV1beta1 struct {
	RenderedVersion string `json:"renderedVersion"`
}

func readHost(f hostV1alpha1) (n resource.Node, err error) {
	n.Spec = f.Spec.canonical()
	s := f.Status
	n.Status = resource.NodeStatus{
		Conditions: s.Conditions, Containers: s.Containers, SystemdUnits: s.SystemdUnits, SystemInfo: s.SystemInfo,
		RenderedVersion: s.RenderedVersion, UpdatedAt: s.UpdatedAt,
	}
	return n, nil
}

func showHost(n resource.Node) (f hostV1alpha1) {
	s := n.Status
	return hostV1alpha1{showHostSpec(n.Spec), hostStatus{
		s.Conditions, s.Containers, s.SystemdUnits, s.SystemInfo, s.RenderedVersion, s.UpdatedAt,
	}}
}

func readHostV1beta1(f hostV1beta1) (n resource.Node, err error) {
	n.Spec = f.Spec.canonical()
	s := f.Status
	n.Status = resource.NodeStatus{Conditions: s.Conditions, SystemInfo: s.SystemInfo, Resources: s.Resources, OS: s.OS}
	if s.Config != nil {
		n.Status.RenderedVersion = s.Config.RenderedVersion
	}
	for _, u := range s.Systemd {
		n.Status.SystemdUnits = append(n.Status.SystemdUnits, resource.SystemdUnit{Name: u.Unit, LoadState: u.LoadState, ActiveState: u.ActiveState})
	}
	for _, a := range s.Applications {
		n.Status.Applications = append(n.Status.Applications, a.ApplicationStatus)
	}
	return n, nil
}

func showHostV1beta1(n resource.Node) (f hostV1beta1) {
	s := n.Status
	f.Spec = showHostSpec(n.Spec).newer()
	f.Status = hostStatusV1beta1{Conditions: s.Conditions, SystemInfo: s.SystemInfo, Resources: s.Resources, OS: s.OS, LastSeen: s.LastSeen}
	if s.RenderedVersion != "" {
		f.Status.Config = &configV1beta1{s.RenderedVersion}
	}
	for _, u := range s.SystemdUnits {
		f.Status.Systemd = append(f.Status.Systemd, unitV1beta1{Unit: u.Name, LoadState: u.LoadState, ActiveState: u.ActiveState})
	}
	for _, a := range s.Applications {
		f.Status.Applications = append(f.Status.Applications, applicationV1beta1{ApplicationStatus: a})
	}
	f.Status.summarize(s)
	return f
}

// summarize sets the summaries of a node of which anything is known.
func (f *hostStatusV1beta1) summarize(s resource.NodeStatus) {
	if s.State == "" && s.RenderedVersion == "" && s.RevokedReason() == "" {
		return
	}
	of, updated, applications, lifecycle := s.Summary(), s.Updated(), s.ApplicationsSummary(), s.Lifecycle()
	f.Summary, f.Updated, f.ApplicationsSummary, f.Lifecycle = &of, &updated, &applications, &lifecycle
}

func (s hostSpec) canonical() resource.NodeSpec {
	out := resource.NodeSpec{Monitoring: s.monitoring(), Resources: s.Resources, UpdatePolicy: s.UpdatePolicy}
	if s.OS != nil {
		out.OS = &s.OS.NodeOS
	}
	for _, c := range s.Config {
		if item, ok := c.canonical(); ok {
			out.Config = append(out.Config, item)
		}
	}
	for _, a := range s.Applications {
		if (len(a.Inline) > 0 || a.Image != "") && (a.AppType == resource.AppCompose || a.AppType == resource.AppQuadlet) {
			out.Applications = append(out.Applications, resource.Application{Name: a.Name, AppType: a.AppType, Files: a.Inline, Image: a.Image, EnvVars: a.EnvVars})
		}
	}
	return out
}

// monitoring is where the canonical spec has the patterns.
func (s hostSpec) monitoring() *resource.Monitoring {
	if s.Systemd == nil && s.Containers == nil {
		return s.Monitoring
	}
	var m resource.Monitoring
	if s.Monitoring != nil {
		m = *s.Monitoring
	}
	if s.Systemd != nil {
		m.Systemd = s.Systemd
	}
	if s.Containers != nil {
		m.Containers = s.Containers
	}
	return &m
}

// canonical is the item as the canonical spec has it; ok is false if nothing here says what its source is.
func (c configItem) canonical() (item resource.ConfigItem, ok bool) {
	item = resource.ConfigItem{Name: c.Name, ConfigType: c.ConfigType, Inline: c.Inline, GitRef: c.GitRef, HTTPRef: c.HTTPRef, OCIRef: c.OCIRef}
	if c.SecretRef != nil {
		item.SecretRef = &c.SecretRef.SecretMount
	}
	if c.ConfigType == resource.ConfigGit && item.GitRef == nil && c.Repository != "" {
		item.GitRef = &resource.GitRef{Repository: c.Repository, TargetRevision: c.Ref, Path: c.Path}
	}
	if c.ConfigType == resource.ConfigSecret && item.SecretRef == nil && c.MountPath != "" {
		item.SecretRef = &resource.SecretMount{Name: c.Name, Namespace: c.Namespace, MountPath: c.MountPath}
	}
	if len(c.Inline) > 0 && c.Inline[0] == '[' && (c.ConfigType == "" || c.ConfigType == resource.ConfigInline) {
		var files []resource.InlineFile
		if json.Unmarshal(c.Inline, &files) == nil && len(files) > 0 {
			item.ConfigType, item.Inline, item.Files = resource.ConfigFiles, nil, files
		}
	}
	if item.ConfigType == "" {
		switch {
		case item.Inline != nil:
			item.ConfigType = resource.ConfigInline
		case item.GitRef != nil:
			item.ConfigType = resource.ConfigGit
		case item.HTTPRef != nil:
			item.ConfigType = resource.ConfigHTTP
		case item.OCIRef != nil:
			item.ConfigType = resource.ConfigOCI
		case item.SecretRef != nil:
			item.ConfigType = resource.ConfigSecret
		}
	}
	return item, item.ConfigType != ""
}

func showHostSpec(s resource.NodeSpec) hostSpec {
	out := hostSpec{Monitoring: s.Monitoring, Resources: s.Resources, UpdatePolicy: s.UpdatePolicy}
	if s.OS != nil {
		out.OS = &hostOS{NodeOS: *s.OS}
	}
	for _, c := range s.Config {
		item := configItem{Name: c.Name, ConfigType: c.ConfigType, Inline: c.Inline, GitRef: c.GitRef, HTTPRef: c.HTTPRef, OCIRef: c.OCIRef}
		if c.SecretRef != nil {
			item.SecretRef = &secretRef{SecretMount: *c.SecretRef}
		}
		if c.ConfigType == resource.ConfigFiles && len(c.Files) > 0 {
			item.ConfigType = resource.ConfigInline
			item.Inline, _ = json.Marshal(c.Files) // texts and numbers
		}
		out.Config = append(out.Config, item)
	}
	for _, a := range s.Applications {
		out.Applications = append(out.Applications, flightctlApplication{Name: a.Name, AppType: a.AppType, Inline: a.Files, Image: a.Image, EnvVars: a.EnvVars})
	}
	return out
}

// newer is the spec in the shape of v1beta1: the source of a config item says its type, and patterns stand at the top.
func (s hostSpec) newer() hostSpec {
	for i, c := range s.Config {
		if c.Inline != nil || c.GitRef != nil || c.SecretRef != nil || c.HTTPRef != nil || c.OCIRef != nil {
			s.Config[i].ConfigType = ""
		}
	}
	if s.Monitoring != nil {
		s.Systemd, s.Containers, s.Monitoring = s.Monitoring.Systemd, s.Monitoring.Containers, nil
	}
	return s
}

// reconcileSpec leaves a field out where another one says the same: flat ones of a config item, where an object does, and
// monitoring, where a manifest has the patterns beside it.
func reconcileSpec(spec any) {
	s, _ := spec.(jsonObject)
	delete(s, "templateVersion") // an annotation says it
	items, _ := s["config"].([]any)
	for _, item := range items {
		fields, _ := item.(jsonObject)
		if fields["gitRef"] != nil {
			for _, name := range []string{"repository", "ref", "path"} {
				delete(fields, name)
			}
		}
		if fields["secretRef"] != nil {
			delete(fields, "namespace")
			delete(fields, "mountPath")
		}
	}
	monitoring, _ := s["monitoring"].(jsonObject)
	for _, name := range []string{"systemd", "containers"} {
		if s[name] != nil && monitoring[name] != nil {
			s[name] = monitoring[name]
			delete(monitoring, name)
		}
	}
	if monitoring != nil && len(monitoring) == 0 {
		delete(s, "monitoring")
	}
}

// reconcileDecommissioning has spec.decommissioning say what the status does: a node is decommissioned by a request of its own, and not by a
// manifest that has the field.
func reconcileDecommissioning(form, canonical jsonObject) {
	var host struct{ Status resource.NodeStatus }
	if raw, err := json.Marshal(jsonObject{"status": canonical["status"]}); err == nil {
		_ = json.Unmarshal(raw, &host) // a status that can't be read says nothing
	}
	spec, _ := form["spec"].(jsonObject)
	switch host.Status.RevokedReason() {
	case resource.ReasonDecommissioning, resource.ReasonDecommissioned:
		if spec == nil {
			spec = jsonObject{}
			form["spec"] = spec
		}
		spec["decommissioning"] = jsonObject{"target": "Unenroll"}
	default:
		delete(spec, "decommissioning")
	}
}

// requiredOfADevice is what flightctl's clients read of a Device's status without looking whether it is there, as its own server has it while
// nothing is known.
var requiredOfADevice = map[string]any{
	"/status/conditions":                 []any{},
	"/status/systemInfo/architecture":    "",
	"/status/systemInfo/bootID":          "",
	"/status/systemInfo/operatingSystem": "",
	"/status/systemInfo/agentVersion":    "",
	"/status/applications":               []any{},
	"/status/resources/cpu":              resource.SummaryUnknown,
	"/status/resources/memory":           resource.SummaryUnknown,
	"/status/resources/disk":             resource.SummaryUnknown,
	"/status/integrity/status":           resource.SummaryUnknown,
	"/status/config/renderedVersion":     "",
	"/status/os/image":                   "",
	"/status/os/imageDigest":             "",
}

// sourceWarnings are about applications that are kept, and that nothing acts on, and about credentials.
func sourceWarnings(spec jsonObject) (warnings []string) {
	of := spec
	at := "spec"
	if t, ok := spec["template"].(jsonObject); ok { // of a fleet
		of, _ = t["spec"].(jsonObject)
		at = "spec.template.spec"
	}
	apps, _ := of["applications"].([]any)
	for _, app := range apps {
		fields, _ := app.(jsonObject)
		place := at + ".applications[" + nameOf(app, "name") + "]"
		if kind, _ := fields["appType"].(string); kind != resource.AppCompose && kind != resource.AppQuadlet {
			warnings = append(warnings, place+" is kept, and nothing acts on it: applications of the types compose and quadlet are started")
		} else if fields["volumes"] != nil {
			warnings = append(warnings, place+".volumes: name volumes in the application's own files")
		}
	}
	if spec["httpConfig"] != nil || spec["sshConfig"] != nil || spec["ociAuth"] != nil {
		warnings = append(warnings, "the credentials in spec are stored unencrypted: a Secret that is named in spec.secretRef is not")
	}
	return warnings
}
