package dialect

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/edgebus/edgebus/topics/resource"
)

// flightctl.io/v1alpha1 and, of Device alone, v1beta1: what it calls a Device is the host of an edge core, our Node. Both versions
// are read alike: a config item's source is the field that it has, whether a configType says so as well or not.

const flightctlGroup = "flightctl.io"

type hostV1alpha1 struct {
	Spec   hostSpec   `json:"spec,omitzero"`
	Status hostStatus `json:"status,omitzero"`
}

type hostSpec struct {
	OS         *resource.NodeOS     `json:"os,omitempty"`
	Config     []configItem         `json:"config,omitempty"`
	Monitoring *resource.Monitoring `json:"monitoring,omitempty"`
	// Containers and Systemd are those of Monitoring, before there was that in v1alpha1 and after it in v1beta1.
	Containers   *resource.Patterns         `json:"containers,omitempty"`
	Systemd      *resource.Patterns         `json:"systemd,omitempty"`
	Applications []application              `json:"applications,omitempty"`
	Resources    []resource.ResourceMonitor `json:"resources,omitempty"`

	Consoles        opaque `json:"consoles,omitempty"`
	Decommission    opaque `json:"decommission,omitempty"`
	Decommissioning opaque `json:"decommissioning,omitempty"`
	Hooks           opaque `json:"hooks,omitempty"`
	TemplateVersion opaque `json:"templateVersion,omitempty"`
	UpdatePolicy    opaque `json:"updatePolicy,omitempty"`
}

// application has its files here if it is a canonical one. Others are from images, and are only kept.
type application struct {
	Name    string                `json:"name,omitempty"`
	AppType string                `json:"appType,omitempty"`
	Inline  []resource.InlineFile `json:"inline,omitempty"`
	EnvVars map[string]string     `json:"envVars,omitempty"`

	Image     opaque `json:"image,omitempty"`
	Volumes   opaque `json:"volumes,omitempty"`
	Ports     opaque `json:"ports,omitempty"`
	Resources opaque `json:"resources,omitempty"`
	RunAs     opaque `json:"runAs,omitempty"`
}

// configItem names its source in an object of its own, or flat.
type configItem struct {
	Name       string              `json:"name"`
	ConfigType resource.ConfigType `json:"configType,omitempty"`
	Inline     json.RawMessage     `json:"inline,omitempty"` // an Ignition document, or a list of files
	GitRef     *gitRef             `json:"gitRef,omitempty"`
	SecretRef  *secretRef          `json:"secretRef,omitempty"`

	Repository string `json:"repository,omitempty"` // flat, of git
	Ref        string `json:"ref,omitempty"`
	Path       string `json:"path,omitempty"`
	Namespace  string `json:"namespace,omitempty"` // flat, of a Secret that is called as the item
	MountPath  string `json:"mountPath,omitempty"`

	HTTPRef opaque `json:"httpRef,omitempty"`
}

type gitRef struct {
	resource.GitRef
	MountPath opaque `json:"mountPath,omitempty"`
}

type secretRef struct {
	resource.SecretMount
	User  opaque `json:"user,omitempty"`
	Group opaque `json:"group,omitempty"`
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

// hostStatusV1beta1 has summaries, which follow from the rest and are not taken from anybody who writes a status.
type hostStatusV1beta1 struct {
	Conditions   []resource.Condition     `json:"conditions,omitempty"`
	SystemInfo   *resource.SystemInfo     `json:"systemInfo,omitempty"`
	Systemd      []unitV1beta1            `json:"systemd,omitempty"`
	Applications []applicationV1beta1     `json:"applications,omitempty"`
	Resources    *resource.ResourceStatus `json:"resources,omitempty"`
	Config       *configV1beta1           `json:"config,omitempty"`
	OS           *resource.OSStatus       `json:"os,omitempty"`
	LastSeen     string                   `json:"lastSeen,omitempty"`

	ApplicationsSummary *summary `json:"applicationsSummary,omitempty"`
	Updated             *summary `json:"updated,omitempty"`
	Summary             *summary `json:"summary,omitempty"`
	Lifecycle           *summary `json:"lifecycle,omitempty"`

	Integrity      opaque `json:"integrity,omitempty"`
	Capabilities   opaque `json:"capabilities,omitempty"`
	DependencySync opaque `json:"dependencySync,omitempty"`
}

type unitV1beta1 struct {
	Unit        string `json:"unit"`
	LoadState   string `json:"loadState,omitempty"`
	ActiveState string `json:"activeState,omitempty"`

	Description opaque `json:"description,omitempty"`
	Enable      opaque `json:"enable,omitempty"`
	SubState    opaque `json:"subState,omitempty"`
}

type applicationV1beta1 struct {
	resource.ApplicationStatus
	AppType  opaque `json:"appType,omitempty"`
	Embedded opaque `json:"embedded,omitempty"`
	RunAs    opaque `json:"runAs,omitempty"`
	Volumes  opaque `json:"volumes,omitempty"`
}

type configV1beta1 struct {
	RenderedVersion string `json:"renderedVersion"`
}

type summary struct {
	Status string `json:"status"`
	Info   string `json:"info,omitempty"`
}

type fleetV1alpha1 struct {
	Spec struct {
		Selector *resource.LabelSelector `json:"selector,omitempty"`
		Template template                `json:"template"`
		Rollout  opaque                  `json:"rolloutPolicy,omitempty"`
	} `json:"spec"`
	Status resource.FleetStatus `json:"status,omitzero"`
}

type template struct {
	Metadata *resource.TemplateMeta `json:"metadata,omitempty"`
	Spec     hostSpec               `json:"spec"`
}

type templateVersionV1alpha1 struct {
	Spec struct {
		Fleet      string               `json:"fleet,omitempty"`
		Template   template             `json:"template,omitzero"`
		References []resource.Reference `json:"references,omitempty"`
	} `json:"spec"`
	Status resource.TemplateVersionStatus `json:"status,omitzero"`
}

// common is a form that is as the canonical one.
type common[S, T any] struct {
	Spec   S `json:"spec"`
	Status T `json:"status,omitzero"`
}

type (
	repositoryV1alpha1   common[repositorySpec, resource.RepositoryStatus]
	resourceSyncV1alpha1 common[resource.ResourceSyncSpec, resource.ResourceSyncStatus]
)

type repositorySpec struct {
	resource.RepositorySpec
	HTTPConfig opaque `json:"httpConfig,omitempty"`
	SSHConfig  opaque `json:"sshConfig,omitempty"`
	Suffix     opaque `json:"validationSuffix,omitempty"`
}

// flightctlClaims stand in its manifests, and are the server's: the present
// resourceVersion, and who owns the object.
var flightctlClaims = []string{"owner", "resourceVersion"}

func flightctl() []Kind {
	device := flightctlKind("Device", "devices", "device", resource.KindNode).pair(conversion(readHost, showHost))
	device.mergesConditions = true
	device.reconcile = func(form, _ tree) { reconcileSpec(form["spec"]) }
	device.derived = renderedAnnotations
	newer := flightctlKind("Device", "devices", "device", resource.KindNode).pair(conversion(readHostV1beta1, showHostV1beta1))
	newer.Version, newer.mergesConditions, newer.reconcile, newer.derived = "v1beta1", true, device.reconcile, device.derived
	fleet := flightctlKind("Fleet", "fleets", "fleet", resource.KindFleet).pair(conversion(readFleet, showFleet))
	fleet.reconcile = func(form, _ tree) {
		spec, _ := form["spec"].(tree)
		template, _ := spec["template"].(tree)
		reconcileSpec(template["spec"])
	}
	version := flightctlKind("TemplateVersion", "templateversions", "templateversion", resource.KindTemplateVersion)
	repository := flightctlKind("Repository", "repositories", "repository", resource.KindRepository)
	sync := flightctlKind("ResourceSync", "resourcesyncs", "resourcesync", resource.KindResourceSync)
	return []Kind{
		device, newer, fleet, version.pair(conversion(readVersion, showVersion)),
		repository.pair(conversion(
			func(f repositoryV1alpha1) (resource.Repository, error) {
				return resource.Repository{Spec: f.Spec.RepositorySpec, Status: f.Status}, nil
			},
			func(r resource.Repository) repositoryV1alpha1 {
				return repositoryV1alpha1{repositorySpec{RepositorySpec: r.Spec}, r.Status}
			},
		)),
		sync.pair(conversion(
			func(f resourceSyncV1alpha1) (resource.ResourceSync, error) {
				return resource.ResourceSync{Spec: f.Spec, Status: f.Status}, nil
			},
			func(r resource.ResourceSync) resourceSyncV1alpha1 { return resourceSyncV1alpha1{r.Spec, r.Status} },
		)),
		flightctlKind("EnrollmentRequest", "enrollmentrequests", "enrollmentrequest", resource.KindEnrollmentRequest).pair(conversion(readEnrollment, showEnrollment)),
		flightctlKind("CertificateSigningRequest", "certificatesigningrequests", "certificatesigningrequest", resource.KindEnrollmentRequest).pair(conversion(readSigning, showSigning)),
	}
}

// enrollmentV1alpha1 is decided about at /api/v1/enrollmentrequests/{name}/approval.
type enrollmentV1alpha1 struct {
	Spec struct {
		CSR    string            `json:"csr"`
		Labels map[string]string `json:"labels,omitempty"`

		DeviceStatus         opaque `json:"deviceStatus,omitempty"`
		KnownRenderedVersion opaque `json:"knownRenderedVersion,omitempty"`
	} `json:"spec"`
	Status enrollmentStatus `json:"status,omitzero"`
}

type enrollmentStatus struct {
	Certificate string               `json:"certificate,omitempty"`
	Conditions  []resource.Condition `json:"conditions,omitempty"`
}

func readEnrollment(f enrollmentV1alpha1) (e resource.EnrollmentRequest, err error) {
	e.Spec.CSR, e.Spec.Labels = f.Spec.CSR, f.Spec.Labels
	e.Status = resource.EnrollmentStatus{Certificate: f.Status.Certificate, Conditions: f.Status.Conditions}
	return e, nil
}

func showEnrollment(e resource.EnrollmentRequest) (f enrollmentV1alpha1) {
	f.Spec.CSR, f.Spec.Labels = e.Spec.CSR, e.Spec.Labels
	f.Status = enrollmentStatus{e.Status.Certificate, e.Status.Conditions}
	return f
}

// signingV1alpha1 has the request and the certificate in base64, as JSON has bytes.
type signingV1alpha1 struct {
	Spec struct {
		Request []byte `json:"request"`

		SignerName        opaque `json:"signerName,omitempty"`
		Usages            opaque `json:"usages,omitempty"`
		ExpirationSeconds opaque `json:"expirationSeconds,omitempty"`
		Extra             opaque `json:"extra,omitempty"`
	} `json:"spec"`
	Status struct {
		Certificate []byte               `json:"certificate,omitempty"`
		Conditions  []resource.Condition `json:"conditions,omitempty"`
	} `json:"status,omitzero"`
}

func readSigning(f signingV1alpha1) (e resource.EnrollmentRequest, err error) {
	e.Spec.CSR = string(f.Spec.Request)
	e.Status = resource.EnrollmentStatus{Certificate: string(f.Status.Certificate), Conditions: f.Status.Conditions}
	return e, nil
}

func showSigning(e resource.EnrollmentRequest) (f signingV1alpha1) {
	f.Spec.Request = []byte(e.Spec.CSR)
	f.Status.Certificate, f.Status.Conditions = []byte(e.Status.Certificate), e.Status.Conditions
	return f
}

func flightctlKind(name, plural, singular, canonical string) Kind {
	return Kind{
		Group: flightctlGroup, Version: "v1alpha1", Name: name, Plural: plural, Singular: singular,
		Canonical: canonical, Root: "/api/v1", claims: flightctlClaims, BareStatus: true,
	}
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
	f.Spec = showHostSpec(n.Spec)
	for i, c := range f.Spec.Config { // the source says it
		if c.Inline != nil || c.GitRef != nil || c.SecretRef != nil {
			f.Spec.Config[i].ConfigType = ""
		}
	}
	if f.Spec.Monitoring != nil {
		f.Spec.Systemd, f.Spec.Containers, f.Spec.Monitoring = f.Spec.Monitoring.Systemd, f.Spec.Monitoring.Containers, nil
	}
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
	if s.State == "" && s.RenderedVersion == "" {
		return
	}
	f.Summary, f.Updated, f.Lifecycle, f.ApplicationsSummary = &summary{Status: "Unknown"}, &summary{Status: "Unknown"}, &summary{Status: "Enrolled"}, &summary{Status: "NoApplications"}
	if s.State == resource.Online {
		f.Summary.Status = "Online"
	}
	switch {
	case s.RenderedVersion == "":
	case s.RenderedVersion == s.SpecVersion:
		f.Updated.Status = "UpToDate"
	case s.Failed != nil && s.Failed.RenderedVersion == s.SpecVersion:
		*f.Updated = summary{"OutOfDate", s.Failed.Reason + ": " + s.Failed.Message}
	case s.SpecVersion != "":
		f.Updated.Status = "OutOfDate"
	}
	for _, a := range s.Applications {
		switch {
		case a.Status == "Error":
			*f.ApplicationsSummary = summary{"Error", a.Name + ": " + a.Message}
			return
		case a.Status == "Running" || a.Status == "Completed":
			if f.ApplicationsSummary.Status == "NoApplications" {
				f.ApplicationsSummary.Status = "Healthy"
			}
		default:
			*f.ApplicationsSummary = summary{"Degraded", a.Name + " is " + a.Status}
		}
	}
}

// renderedAnnotations are the annotations in which flightctl has the version of what a Device is to apply.
func renderedAnnotations(canonical tree) map[string]any {
	status, _ := canonical["status"].(tree)
	version := status["specVersion"]
	return map[string]any{"renderedVersion": version, "device-controller/renderedVersion": version}
}

func (s hostSpec) canonical() resource.NodeSpec {
	out := resource.NodeSpec{OS: s.OS, Monitoring: s.monitoring(), Resources: s.Resources}
	for _, c := range s.Config {
		if item, ok := c.canonical(); ok {
			out.Config = append(out.Config, item)
		}
	}
	for _, a := range s.Applications {
		if len(a.Inline) > 0 && (a.AppType == resource.AppCompose || a.AppType == resource.AppQuadlet) {
			out.Applications = append(out.Applications, resource.Application{Name: a.Name, AppType: a.AppType, Files: a.Inline, EnvVars: a.EnvVars})
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
	item = resource.ConfigItem{Name: c.Name, ConfigType: c.ConfigType, Inline: c.Inline}
	if c.GitRef != nil {
		item.GitRef = &c.GitRef.GitRef
	}
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
		case item.SecretRef != nil:
			item.ConfigType = resource.ConfigSecret
		}
	}
	return item, item.ConfigType != ""
}

func showHostSpec(s resource.NodeSpec) hostSpec {
	out := hostSpec{OS: s.OS, Monitoring: s.Monitoring, Resources: s.Resources}
	for _, c := range s.Config {
		item := configItem{Name: c.Name, ConfigType: c.ConfigType, Inline: c.Inline}
		if c.GitRef != nil {
			item.GitRef = &gitRef{GitRef: *c.GitRef}
		}
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
		out.Applications = append(out.Applications, application{Name: a.Name, AppType: a.AppType, Inline: a.Files, EnvVars: a.EnvVars})
	}
	return out
}

// reconcileSpec leaves a field out where another one says the same: flat ones of a config item, where an object does, and
// monitoring, where a manifest has the patterns beside it.
func reconcileSpec(spec any) {
	s, _ := spec.(tree)
	items, _ := s["config"].([]any)
	for _, item := range items {
		fields, _ := item.(tree)
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
	monitoring, _ := s["monitoring"].(tree)
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

// sourceWarnings are about parts of a spec that are kept, and that nothing acts on.
func sourceWarnings(spec tree) (warnings []string) {
	items, _ := spec["config"].([]any)
	for _, item := range items {
		if fields, _ := item.(tree); fields["httpRef"] != nil {
			warnings = append(warnings, "spec.config["+nameOf(item, "name")+"].httpRef is kept, and nothing acts on it: the hub fetches nothing over HTTP for a node yet")
		}
	}
	apps, _ := spec["applications"].([]any)
	for _, app := range apps {
		if fields, _ := app.(tree); fields["inline"] == nil {
			warnings = append(warnings, "spec.applications["+nameOf(app, "name")+"] is kept, and nothing acts on it: only applications whose files are inline are")
		}
	}
	return warnings
}

func (t template) canonical() resource.NodeTemplate {
	return resource.NodeTemplate{Metadata: t.Metadata, Spec: t.Spec.canonical()}
}

func readFleet(f fleetV1alpha1) (out resource.Fleet, err error) {
	out.Spec.Selector, out.Spec.Template, out.Status = f.Spec.Selector, f.Spec.Template.canonical(), f.Status
	return out, nil
}

func showFleet(in resource.Fleet) (f fleetV1alpha1) {
	f.Spec.Selector, f.Status = in.Spec.Selector, in.Status
	f.Spec.Template = template{in.Spec.Template.Metadata, showHostSpec(in.Spec.Template.Spec)}
	return f
}

func readVersion(f templateVersionV1alpha1) (out resource.TemplateVersion, err error) {
	out.Spec = resource.TemplateVersionSpec{Fleet: f.Spec.Fleet, Template: f.Spec.Template.canonical(), References: f.Spec.References}
	out.Status = f.Status
	return out, nil
}

func showVersion(in resource.TemplateVersion) (f templateVersionV1alpha1) {
	f.Spec.Fleet, f.Spec.References, f.Status = in.Spec.Fleet, in.Spec.References, in.Status
	f.Spec.Template = template{in.Spec.Template.Metadata, showHostSpec(in.Spec.Template.Spec)}
	return f
}

// RenderedDevice is what a node is to apply, as flightctl's agent asks for it: its files as a list in v1beta1, which has no
// directories and links, and as an Ignition document in v1alpha1. value gives the content of a file, or says that the reader may not see
// it; then the file stands there without content. left are the paths of what the form can't express.
func RenderedDevice(version, name string, spec resource.RenderedSpec, value func(resource.RenderedFile) (content []byte, secret bool, err error)) (raw []byte, left []string, err error) {
	out := tree{}
	if spec.OS != nil {
		out["os"] = spec.OS
	}
	if len(spec.Resources) > 0 {
		out["resources"] = spec.Resources
	}
	if m := spec.Monitoring; m != nil && m.Systemd != nil {
		out["systemd"] = m.Systemd
	}
	var apps []tree
	for _, a := range spec.Applications {
		files, _, err := fileList(a.Files, value)
		if err != nil {
			return nil, nil, err
		}
		app := tree{"name": a.Name, "appType": a.AppType, "inline": files}
		if len(a.EnvVars) > 0 {
			app["envVars"] = a.EnvVars
		}
		apps = append(apps, app)
	}
	if len(apps) > 0 {
		out["applications"] = apps
	}
	if version == "v1alpha1" {
		out["config"], err = ignitionText(spec.Files, value)
	} else {
		var files []tree
		files, left, err = fileList(spec.Files, value)
		if len(files) > 0 {
			out["config"] = []tree{{"name": "rendered", "inline": files}}
		}
	}
	if err != nil {
		return nil, nil, err
	}
	raw, err = json.Marshal(tree{
		"apiVersion": flightctlGroup + "/" + version, "kind": "Device",
		"metadata": tree{"name": name, "annotations": renderedAnnotations(tree{"status": tree{"specVersion": spec.RenderedVersion}})},
		"spec":     out,
	})
	return raw, left, err
}

// fileList are files as v1beta1 has them.
func fileList(files []resource.RenderedFile, value func(resource.RenderedFile) ([]byte, bool, error)) (list []tree, left []string, err error) {
	list = []tree{}
	for _, f := range files {
		if f.Type != resource.FileRegular {
			left = append(left, f.Path)
			continue
		}
		content, secret, err := value(f)
		if err != nil {
			return nil, nil, err
		}
		entry := tree{"path": f.Path}
		switch {
		case secret:
		case utf8.Valid(content):
			entry["content"] = string(content)
		default:
			entry["content"], entry["contentEncoding"] = base64.StdEncoding.EncodeToString(content), "base64"
		}
		if mode, err := strconv.ParseInt(f.Mode, 8, 32); err == nil {
			entry["mode"] = mode
		}
		if f.User != "" {
			entry["user"] = f.User
		}
		if f.Group != "" {
			entry["group"] = f.Group
		}
		list = append(list, entry)
	}
	return list, left, nil
}

// ignitionText is an Ignition document with all files, directories and links.
func ignitionText(files []resource.RenderedFile, value func(resource.RenderedFile) ([]byte, bool, error)) (string, error) {
	storage := map[string][]tree{}
	for _, f := range files {
		entry := tree{"path": f.Path}
		for name, owner := range map[string]string{"user": f.User, "group": f.Group} {
			if id, err := strconv.Atoi(owner); err == nil {
				entry[name] = tree{"id": id}
			} else if owner != "" {
				entry[name] = tree{"name": owner}
			}
		}
		if mode, err := strconv.ParseInt(f.Mode, 8, 32); err == nil {
			entry["mode"] = mode
		}
		kind := "files"
		switch f.Type {
		case resource.FileDirectory:
			kind = "directories"
		case resource.FileLink:
			kind, entry["target"], entry["overwrite"] = "links", f.Target, !f.Keep
		default:
			entry["overwrite"] = !f.Keep
			content, secret, err := value(f)
			if err != nil {
				return "", err
			}
			if !secret {
				entry["contents"] = tree{"source": "data:;base64," + base64.StdEncoding.EncodeToString(content)}
			}
		}
		storage[kind] = append(storage[kind], entry)
	}
	text, err := json.Marshal(tree{"ignition": tree{"version": "3.4.0"}, "storage": storage})
	return string(text), err
}
