package dialect

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/edgebus/edgebus/topics/resource"
)

// flightctl.io/v1alpha1 and v1beta1: what it calls a Device is the host of an edge core, our Node. Both versions are read alike:
// the field that a config item has determines its source, with or without a configType.

const flightctlGroup = "flightctl.io"

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
	Enable      keptField[string] `json:"enable,omitempty"`
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

type fleetV1alpha1 struct {
	Spec   fleetSpec            `json:"spec"`
	Status resource.FleetStatus `json:"status,omitzero"`
}

type fleetV1beta1 struct {
	Spec   fleetSpec          `json:"spec"`
	Status fleetStatusV1beta1 `json:"status,omitzero"`
}

type fleetSpec struct {
	Selector *resource.LabelSelector `json:"selector,omitempty"`
	Template flightctlTemplate       `json:"template"`
	Rollout  *rolloutPolicy          `json:"rolloutPolicy,omitempty"`
}

// rolloutPolicy is the canonical one, in which a batch's limit may be a number.
type rolloutPolicy struct {
	DeviceSelection      *deviceSelection           `json:"deviceSelection,omitempty"`
	DisruptionBudget     *resource.DisruptionBudget `json:"disruptionBudget,omitempty"`
	SuccessThreshold     string                     `json:"successThreshold,omitempty"`
	DefaultUpdateTimeout string                     `json:"defaultUpdateTimeout,omitempty"`
}

type deviceSelection struct {
	Strategy string           `json:"strategy"`
	Sequence []flightctlBatch `json:"sequence,omitempty"`
}

type flightctlBatch struct {
	Selector         *resource.LabelSelector `json:"selector,omitempty"`
	Limit            opaqueJSON              `json:"limit,omitempty"` // a number, or a percentage as text
	SuccessThreshold string                  `json:"successThreshold,omitempty"`
}

// fleetStatusV1beta1 has counts and conditions that follow from the canonical ones.
type fleetStatusV1beta1 struct {
	Rollout    *fleetRollout        `json:"rollout,omitempty"`
	Conditions []resource.Condition `json:"conditions,omitempty"`
	Devices    *devicesSummary      `json:"devicesSummary,omitempty"`
}

type fleetRollout struct {
	CurrentBatch int `json:"currentBatch,omitempty"`
}

type devicesSummary struct {
	Total             int            `json:"total"`
	UpdateStatus      map[string]int `json:"updateStatus"`
	SummaryStatus     map[string]int `json:"summaryStatus"`
	ApplicationStatus map[string]int `json:"applicationStatus"`
}

type flightctlTemplate struct {
	Metadata *resource.TemplateMeta `json:"metadata,omitempty"`
	Spec     hostSpec               `json:"spec"`
}

type templateVersionV1alpha1 struct {
	Spec struct {
		Fleet      string               `json:"fleet,omitempty"`
		Template   flightctlTemplate    `json:"template,omitzero"`
		References []resource.Reference `json:"references,omitempty"`
	} `json:"spec"`
	Status resource.TemplateVersionStatus `json:"status,omitzero"`
}

// templateVersionV1beta1 has the frozen template as its status.
type templateVersionV1beta1 struct {
	Spec struct {
		Fleet string `json:"fleet"`
	} `json:"spec"`
	Status struct {
		hostSpec
		UpdatedAt  string               `json:"updatedAt,omitempty"`
		Conditions []resource.Condition `json:"conditions,omitempty"`
	} `json:"status,omitzero"`
}

// canonicalForm is a form that is as the canonical one.
type canonicalForm[S, T any] struct {
	Spec   S `json:"spec"`
	Status T `json:"status,omitzero"`
}

type (
	repositoryForm   canonicalForm[repositorySpec, resource.RepositoryStatus]
	resourceSyncForm canonicalForm[resourceSyncSpec, resource.ResourceSyncStatus]
)

type resourceSyncSpec struct {
	resource.ResourceSyncSpec
	Type keptField[string] `json:"type,omitempty"`
}

// repositorySpec has its credentials here, as a Secret has them in the canonical form.
type repositorySpec struct {
	URL                string              `json:"url,omitempty"`
	Type               string              `json:"type,omitempty"`
	ValidationSuffix   string              `json:"validationSuffix,omitempty"`
	SecretRef          *resource.SecretRef `json:"secretRef,omitempty"`
	InsecureSkipVerify bool                `json:"insecureSkipVerify,omitempty"`
	HTTPConfig         *httpConfig         `json:"httpConfig,omitempty"`
	SSHConfig          *sshConfig          `json:"sshConfig,omitempty"`
	Credentials        map[string][]byte   `json:"credentials,omitempty"`

	Registry               string   `json:"registry,omitempty"` // of type oci, instead of an address
	Scheme                 string   `json:"scheme,omitempty"`
	OCIAuth                *ociAuth `json:"ociAuth,omitempty"`
	CA                     []byte   `json:"ca.crt,omitempty"`
	SkipServerVerification bool     `json:"skipServerVerification,omitempty"`

	AccessMode keptField[string]       `json:"accessMode,omitempty"`
	BaseImages keptField[[]jsonObject] `json:"baseImages,omitempty"`
}

type httpConfig struct {
	Username               string `json:"username,omitempty"`
	Password               string `json:"password,omitempty"`
	Token                  string `json:"token,omitempty"`
	Certificate            []byte `json:"tls.crt,omitempty"`
	Key                    []byte `json:"tls.key,omitempty"`
	CA                     []byte `json:"ca.crt,omitempty"`
	SkipServerVerification bool   `json:"skipServerVerification,omitempty"`
}

type sshConfig struct {
	Key                    []byte `json:"sshPrivateKey,omitempty"`
	Passphrase             string `json:"privateKeyPassphrase,omitempty"`
	SkipServerVerification bool   `json:"skipServerVerification,omitempty"`
}

type ociAuth struct {
	AuthType string `json:"authType,omitempty"`
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
}

// flightctlClaims stand in its manifests, and are the server's: the present
// resourceVersion, and who owns the object.
var flightctlClaims = []string{"owner", "resourceVersion"}

func flightctlKinds() []Kind {
	device := flightctlKind("Device", "devices", "device", resource.KindNode)
	device.mergesConditions, device.derived = true, renderedAnnotations
	device.reconcile = func(form, _ jsonObject) { reconcileSpec(form["spec"]) }
	today := device.newer()
	today.reconcile = func(form, canonical jsonObject) {
		reconcileSpec(form["spec"])
		reconcileDecommissioning(form, canonical)
	}
	fleet := flightctlKind("Fleet", "fleets", "fleet", resource.KindFleet)
	fleet.reconcile = func(form, _ jsonObject) {
		spec, _ := form["spec"].(jsonObject)
		template, _ := spec["template"].(jsonObject)
		reconcileSpec(template["spec"])
	}
	version := flightctlKind("TemplateVersion", "templateversions", "templateversion", resource.KindTemplateVersion)
	frozen := version.newer()
	frozen.ReadOnly = true // made by the hub, read-only for all clients
	repository := flightctlKind("Repository", "repositories", "repository", resource.KindRepository).pair(typedConversion(readRepository, showRepository))
	sync := flightctlKind("ResourceSync", "resourcesyncs", "resourcesync", resource.KindResourceSync).pair(typedConversion(
		func(f resourceSyncForm) (resource.ResourceSync, error) {
			return resource.ResourceSync{Spec: f.Spec.ResourceSyncSpec, Status: f.Status}, nil
		},
		func(r resource.ResourceSync) resourceSyncForm {
			return resourceSyncForm{resourceSyncSpec{ResourceSyncSpec: r.Spec}, r.Status}
		},
	))
	enrollment := flightctlKind("EnrollmentRequest", "enrollmentrequests", "enrollmentrequest", resource.KindEnrollmentRequest).pair(typedConversion(readEnrollment, showEnrollment))
	enrollment.Selector = "spec.signerName=" // flightctl has the other requests as a kind of their own
	signing := flightctlKind("CertificateSigningRequest", "certificatesigningrequests", "certificatesigningrequest", resource.KindEnrollmentRequest).pair(typedConversion(readSigning, showSigning))
	return []Kind{
		device.pair(typedConversion(readHost, showHost)), today.pair(typedConversion(readHostV1beta1, showHostV1beta1)),
		fleet.pair(typedConversion(readFleet, showFleet)), fleet.newer().pair(typedConversion(readFleetV1beta1, showFleetV1beta1)),
		version.pair(typedConversion(readVersion, showVersion)), frozen.pair(typedConversion(readVersionV1beta1, showVersionV1beta1)),
		repository, repository.newer(), sync, sync.newer(),
		enrollment, enrollment.newer(), signing, signing.newer(),
	}
}

// newer returns the same kind in v1beta1.
func (k Kind) newer() Kind {
	k.Version = "v1beta1"
	return k
}

// enrollmentV1alpha1 is decided about at /api/v1/enrollmentrequests/{name}/approval.
type enrollmentV1alpha1 struct {
	Spec struct {
		CSR    string            `json:"csr"`
		Labels map[string]string `json:"labels,omitempty"`

		DeviceStatus         keptField[jsonObject] `json:"deviceStatus,omitempty"`
		KnownRenderedVersion keptField[string]     `json:"knownRenderedVersion,omitempty"`
	} `json:"spec"`
	Status enrollmentStatus `json:"status,omitzero"`
}

type enrollmentStatus struct {
	Certificate string               `json:"certificate,omitempty"`
	Conditions  []resource.Condition `json:"conditions"` // its agent takes a list, which may be empty, for an answer
	Approval    *enrollmentApproval  `json:"approval,omitempty"`
}

// enrollmentApproval follows from the canonical decision.
type enrollmentApproval struct {
	Approved   bool              `json:"approved"`
	ApprovedAt string            `json:"approvedAt,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
}

func readEnrollment(f enrollmentV1alpha1) (e resource.EnrollmentRequest, err error) {
	e.Spec.CSR, e.Spec.Labels = f.Spec.CSR, f.Spec.Labels
	e.Status = resource.EnrollmentStatus{Certificate: f.Status.Certificate, Conditions: f.Status.Conditions}
	return e, nil
}

func showEnrollment(e resource.EnrollmentRequest) (f enrollmentV1alpha1) {
	f.Spec.CSR, f.Spec.Labels = e.Spec.CSR, e.Spec.Labels
	f.Status = enrollmentStatus{Certificate: e.Status.Certificate, Conditions: e.Status.Conditions}
	if f.Status.Conditions == nil {
		f.Status.Conditions = []resource.Condition{}
	}
	if e.Spec.Approval == "" {
		return f
	}
	f.Status.Approval = &enrollmentApproval{Approved: e.Spec.Approval == resource.Approved, Labels: e.Spec.Labels}
	for _, c := range e.Status.Conditions {
		if c.Type == e.Spec.Approval {
			f.Status.Approval.ApprovedAt = resource.FormatTime(c.LastTransitionTime)
		}
	}
	return f
}

// signingV1alpha1 has the request and the certificate in base64, as JSON has bytes.
type signingV1alpha1 struct {
	Spec struct {
		Request           []byte `json:"request"`
		SignerName        string `json:"signerName,omitempty"`
		ExpirationSeconds int64  `json:"expirationSeconds,omitempty"`

		Usages   keptField[[]string]            `json:"usages,omitempty"`
		Extra    keptField[map[string][]string] `json:"extra,omitempty"`
		UID      keptField[string]              `json:"uid,omitempty"`
		Username keptField[string]              `json:"username,omitempty"`
	} `json:"spec"`
	Status signingStatus `json:"status,omitzero"`
}

type signingStatus struct {
	Certificate []byte               `json:"certificate,omitempty"`
	Conditions  []resource.Condition `json:"conditions"` // its clients read them without looking whether they are there
}

// The names of flightctl's signers that have an equivalent here. A request for another one, which is kept, asks that a node joins.
var signerNames = map[string]string{"flightctl.io/device-management-renewal": resource.SignerRenewal, "flightctl.io/enrollment": resource.SignerEnroller}

func readSigning(f signingV1alpha1) (e resource.EnrollmentRequest, err error) {
	e.Spec.CSR, e.Spec.SignerName = string(f.Spec.Request), signerNames[f.Spec.SignerName]
	if e.Spec.SignerName == resource.SignerEnroller {
		e.Spec.ExpirationSeconds = f.Spec.ExpirationSeconds
	}
	e.Status = resource.EnrollmentStatus{Certificate: string(f.Status.Certificate), Conditions: f.Status.Conditions}
	return e, nil
}

func showSigning(e resource.EnrollmentRequest) (f signingV1alpha1) {
	f.Spec.Request, f.Spec.ExpirationSeconds = []byte(e.Spec.CSR), e.Spec.ExpirationSeconds
	for theirs, ours := range signerNames {
		if ours == e.Spec.SignerName {
			f.Spec.SignerName = theirs
		}
	}
	f.Status = signingStatus{[]byte(e.Status.Certificate), e.Status.Conditions}
	if f.Status.Conditions == nil {
		f.Status.Conditions = []resource.Condition{}
	}
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

// renderedAnnotations are the annotations in which flightctl has the version of what a Device is to apply.
func renderedAnnotations(canonical jsonObject) map[string]any {
	status, _ := canonical["status"].(jsonObject)
	version := status["specVersion"]
	return map[string]any{"renderedVersion": version, "device-controller/renderedVersion": version}
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

func (t flightctlTemplate) canonical() resource.NodeTemplate {
	return resource.NodeTemplate{Metadata: t.Metadata, Spec: t.Spec.canonical()}
}

func readFleet(f fleetV1alpha1) (out resource.Fleet, err error) {
	out.Status = f.Status
	out.Spec, err = f.Spec.canonical()
	return out, err
}

func readFleetV1beta1(f fleetV1beta1) (out resource.Fleet, err error) {
	out.Status.Conditions = slices.DeleteFunc(slices.Clone(f.Status.Conditions), func(c resource.Condition) bool {
		return c.Type == fleetValid || c.Type == fleetRolling
	})
	out.Spec, err = f.Spec.canonical()
	return out, err
}

func (s fleetSpec) canonical() (out resource.FleetSpec, err error) {
	out.Selector, out.Template = s.Selector, s.Template.canonical()
	p := s.Rollout
	if p == nil {
		return out, nil
	}
	out.RolloutPolicy = &resource.RolloutPolicy{DisruptionBudget: p.DisruptionBudget, SuccessThreshold: p.SuccessThreshold, DefaultUpdateTimeout: p.DefaultUpdateTimeout}
	if p.DeviceSelection == nil {
		return out, nil
	}
	selection := &resource.DeviceSelection{Strategy: p.DeviceSelection.Strategy}
	for i, b := range p.DeviceSelection.Sequence {
		limit := string(b.Limit)
		if len(b.Limit) > 0 && b.Limit[0] == '"' {
			err = json.Unmarshal(b.Limit, &limit)
		}
		if err != nil || len(b.Limit) > 0 && (b.Limit[0] == '{' || b.Limit[0] == '[') {
			return out, resource.Errorf(resource.Invalid, "spec.rolloutPolicy.deviceSelection.sequence["+strconv.Itoa(i)+"].limit", "must be a number, or a percentage such as 10%%")
		}
		selection.Sequence = append(selection.Sequence, resource.RolloutBatch{Selector: b.Selector, Limit: limit, SuccessThreshold: b.SuccessThreshold})
	}
	out.RolloutPolicy.DeviceSelection = selection
	return out, nil
}

func showFleetSpec(in resource.FleetSpec) (s fleetSpec) {
	s.Selector, s.Template = in.Selector, flightctlTemplate{in.Template.Metadata, showHostSpec(in.Template.Spec)}
	p := in.RolloutPolicy
	if p == nil {
		return s
	}
	s.Rollout = &rolloutPolicy{DisruptionBudget: p.DisruptionBudget, SuccessThreshold: p.SuccessThreshold, DefaultUpdateTimeout: p.DefaultUpdateTimeout}
	if p.DeviceSelection == nil {
		return s
	}
	s.Rollout.DeviceSelection = &deviceSelection{Strategy: p.DeviceSelection.Strategy}
	for _, b := range p.DeviceSelection.Sequence {
		out := flightctlBatch{Selector: b.Selector, SuccessThreshold: b.SuccessThreshold}
		if _, err := strconv.ParseUint(b.Limit, 10, 31); err == nil && (b.Limit == "0" || b.Limit[0] != '0') {
			out.Limit = opaqueJSON(b.Limit)
		} else if b.Limit != "" {
			out.Limit, _ = json.Marshal(b.Limit) // it is text
		}
		s.Rollout.DeviceSelection.Sequence = append(s.Rollout.DeviceSelection.Sequence, out)
	}
	return s
}

func showFleet(in resource.Fleet) fleetV1alpha1 {
	return fleetV1alpha1{showFleetSpec(in.Spec), in.Status}
}

func showFleetV1beta1(in resource.Fleet) (f fleetV1beta1) {
	f.Spec = showFleetSpec(in.Spec)
	f.Spec.Template.Spec = f.Spec.Template.Spec.newer()
	f.Status.Conditions = fleetConditions(in)
	if r := in.Status.Rollout; r != nil {
		f.Status.Rollout = &fleetRollout{r.Batch}
	}
	if n := in.Status.Summary; n != nil {
		f.Status.Devices = &devicesSummary{n.Nodes, orEmptyCounts(n.UpdateStatus), orEmptyCounts(n.SummaryStatus), orEmptyCounts(n.ApplicationStatus)}
	}
	return f
}

func orEmptyCounts(counts map[string]int) map[string]int {
	if counts == nil {
		return map[string]int{}
	}
	return counts
}

// The conditions of a Fleet that follow from canonical ones.
const fleetValid, fleetRolling = "Valid", "RolloutInProgress"

// fleetConditions adds those by which flightctl's clients see whether the template could be resolved, and whether it is being rolled out.
func fleetConditions(f resource.Fleet) []resource.Condition {
	list := slices.Clone(f.Status.Conditions)
	if i := slices.IndexFunc(list, func(c resource.Condition) bool { return c.Type == resource.TemplateResolved }); i >= 0 {
		c := list[i]
		c.Type = fleetValid
		list = append(list, c)
	}
	r := f.Status.Rollout
	if r == nil {
		return list
	}
	c := resource.Condition{Type: fleetRolling, Status: "True", Reason: "Active", Message: r.Message, ObservedGeneration: r.ObservedGeneration}
	switch {
	case r.Updated == r.Nodes || r.FinishedAt != "" && r.Updating == 0:
		c.Status, c.Reason = "False", "Inactive"
	case r.Reason == "Halted" || r.Reason == "Paused":
		c.Status, c.Reason = "False", "Suspended"
	case r.Reason == "OutsideWindow" && r.Updating == 0:
		c.Status, c.Reason = "False", "Waiting"
	}
	c.LastTransitionTime, _ = time.Parse(time.RFC3339, cmp.Or(r.FinishedAt, r.BatchStarted))
	return append(list, c)
}

func readVersionV1beta1(f templateVersionV1beta1) (out resource.TemplateVersion, err error) {
	out.Spec.Fleet, out.Spec.Template.Spec = f.Spec.Fleet, f.Status.canonical()
	out.Status = resource.TemplateVersionStatus{UpdatedAt: f.Status.UpdatedAt, Conditions: f.Status.Conditions}
	return out, nil
}

func showVersionV1beta1(in resource.TemplateVersion) (f templateVersionV1beta1) {
	f.Spec.Fleet = in.Spec.Fleet
	f.Status.hostSpec = showHostSpec(in.Spec.Template.Spec.Freeze(in.Spec.References)).newer()
	f.Status.UpdatedAt, f.Status.Conditions = in.Status.UpdatedAt, in.Status.Conditions
	return f
}

// The keys of credentials, as a Secret has them.
const (
	keyUser, keyPassword, keyToken    = "username", "password", "token"
	keyCertificate, keyCertificateKey = "tls.crt", "tls.key"
	keyCA, keySSH, keySSHPassphrase   = "ca.crt", "ssh-privatekey", "ssh-passphrase"
	typeOCI, schemeHTTP, dockerAuth   = "oci", "http", "docker"
)

func readRepository(f repositoryForm) (out resource.Repository, err error) {
	s := f.Spec
	out.Status = f.Status
	out.Spec = resource.RepositorySpec{URL: s.URL, Type: s.Type, ValidationSuffix: s.ValidationSuffix, SecretRef: s.SecretRef}
	out.Spec.InsecureSkipVerify = s.InsecureSkipVerify || s.SkipServerVerification
	if s.Registry != "" && s.URL == "" {
		out.Spec.URL = typeOCI + "://" + s.Registry
		if s.Scheme == schemeHTTP {
			out.Spec.URL = schemeHTTP + "://" + s.Registry
		}
	}
	set := func(key string, value []byte) {
		if len(value) == 0 {
			return
		}
		if out.Spec.Credentials == nil {
			out.Spec.Credentials = make(map[string][]byte)
		}
		out.Spec.Credentials[key] = value
	}
	for key, value := range s.Credentials {
		set(key, value)
	}
	set(keyCA, s.CA)
	if c := s.HTTPConfig; c != nil {
		out.Spec.InsecureSkipVerify = out.Spec.InsecureSkipVerify || c.SkipServerVerification
		set(keyUser, []byte(c.Username))
		set(keyPassword, []byte(c.Password))
		set(keyToken, []byte(c.Token))
		set(keyCertificate, c.Certificate)
		set(keyCertificateKey, c.Key)
		set(keyCA, c.CA)
	}
	if c := s.SSHConfig; c != nil {
		out.Spec.InsecureSkipVerify = out.Spec.InsecureSkipVerify || c.SkipServerVerification
		set(keySSH, c.Key)
		set(keySSHPassphrase, []byte(c.Passphrase))
	}
	if c := s.OCIAuth; c != nil {
		set(keyUser, []byte(c.Username))
		set(keyPassword, []byte(c.Password))
	}
	return out, nil
}

func showRepository(r resource.Repository) (f repositoryForm) {
	s, c := r.Spec, r.Spec.Credentials
	f.Status = r.Status
	f.Spec = repositorySpec{URL: s.URL, Type: s.Type, ValidationSuffix: s.ValidationSuffix, SecretRef: s.SecretRef}
	ssh := c[keySSH] != nil
	switch {
	case s.Type == typeOCI:
		f.Spec.Scheme, f.Spec.Registry, _ = strings.Cut(s.URL, "://")
		if f.Spec.URL = ""; f.Spec.Scheme == typeOCI {
			f.Spec.Scheme = "https"
		}
		f.Spec.CA, f.Spec.SkipServerVerification = c[keyCA], s.InsecureSkipVerify
		if c[keyUser] != nil {
			f.Spec.OCIAuth = &ociAuth{dockerAuth, string(c[keyUser]), string(c[keyPassword])}
		}
	case ssh:
		f.Spec.SSHConfig = &sshConfig{c[keySSH], string(c[keySSHPassphrase]), s.InsecureSkipVerify}
	case len(c) > 0 || s.InsecureSkipVerify:
		f.Spec.HTTPConfig = &httpConfig{
			string(c[keyUser]), string(c[keyPassword]), string(c[keyToken]), c[keyCertificate], c[keyCertificateKey], c[keyCA], s.InsecureSkipVerify,
		}
	}
	return f
}

func readVersion(f templateVersionV1alpha1) (out resource.TemplateVersion, err error) {
	out.Spec = resource.TemplateVersionSpec{Fleet: f.Spec.Fleet, Template: f.Spec.Template.canonical(), References: f.Spec.References}
	out.Status = f.Status
	return out, nil
}

func showVersion(in resource.TemplateVersion) (f templateVersionV1alpha1) {
	f.Spec.Fleet, f.Spec.References, f.Status = in.Spec.Fleet, in.Spec.References, in.Status
	f.Spec.Template = flightctlTemplate{in.Spec.Template.Metadata, showHostSpec(in.Spec.Template.Spec)}
	return f
}

// RenderedDevice is what a node is to apply, as flightctl's agent asks for it: its files as a list in v1beta1, which has no
// directories and links, and as an Ignition document in v1alpha1. value gives the content of a file, or says that the reader may not see
// it; then the file stands there without content. left are the paths of what the form can't express.
func RenderedDevice(version, name string, spec resource.RenderedSpec, value func(resource.RenderedFile) (content []byte, secret bool, err error)) (raw []byte, left []string, err error) {
	out := jsonObject{}
	if spec.OS != nil {
		out["os"] = spec.OS
	}
	if len(spec.Resources) > 0 {
		out["resources"] = spec.Resources
	}
	if spec.UpdatePolicy != nil {
		out["updatePolicy"] = spec.UpdatePolicy
	}
	if m := spec.Monitoring; m != nil && m.Systemd != nil {
		out["systemd"] = m.Systemd
	}
	var apps []jsonObject
	for _, a := range spec.Applications {
		files, _, err := fileList(a.Files, value)
		if err != nil {
			return nil, nil, err
		}
		app := jsonObject{"name": a.Name, "appType": a.AppType, "inline": files}
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
		var files []jsonObject
		files, left, err = fileList(spec.Files, value)
		if len(files) > 0 {
			out["config"] = []jsonObject{{"name": "rendered", "inline": files}}
		}
	}
	if err != nil {
		return nil, nil, err
	}
	raw, err = json.Marshal(jsonObject{
		"apiVersion": flightctlGroup + "/" + version, "kind": "Device",
		"metadata": jsonObject{"name": name, "annotations": renderedAnnotations(jsonObject{"status": jsonObject{"specVersion": spec.RenderedVersion}})},
		"spec":     out,
	})
	return raw, left, err
}

// fileList are files as v1beta1 has them.
func fileList(files []resource.RenderedFile, value func(resource.RenderedFile) ([]byte, bool, error)) (list []jsonObject, left []string, err error) {
	list = []jsonObject{}
	for _, f := range files {
		if f.Type != resource.FileRegular {
			left = append(left, f.Path)
			continue
		}
		content, secret, err := value(f)
		if err != nil {
			return nil, nil, err
		}
		entry := jsonObject{"path": f.Path}
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
	storage := map[string][]jsonObject{}
	for _, f := range files {
		entry := jsonObject{"path": f.Path}
		for name, owner := range map[string]string{"user": f.User, "group": f.Group} {
			if id, err := strconv.Atoi(owner); err == nil {
				entry[name] = jsonObject{"id": id}
			} else if owner != "" {
				entry[name] = jsonObject{"name": owner}
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
				entry["contents"] = jsonObject{"source": "data:;base64," + base64.StdEncoding.EncodeToString(content)}
			}
		}
		storage[kind] = append(storage[kind], entry)
	}
	text, err := json.Marshal(jsonObject{"ignition": jsonObject{"version": "3.4.0"}, "storage": storage})
	return string(text), err
}
