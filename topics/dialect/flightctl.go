package dialect

import (
	"encoding/json"

	"github.com/edgebus/edgebus/topics/resource"
)

// flightctl.io/v1alpha1: what it calls a Device is the host of an edge core, our Node.

const flightctlGroup = "flightctl.io"

type hostV1alpha1 struct {
	Spec   hostSpec   `json:"spec,omitzero"`
	Status hostStatus `json:"status,omitzero"`
}

type hostSpec struct {
	OS         *resource.NodeOS     `json:"os,omitempty"`
	Config     []configItem         `json:"config,omitempty"`
	Monitoring *resource.Monitoring `json:"monitoring,omitempty"`

	Applications    opaque `json:"applications,omitempty"`
	Consoles        opaque `json:"consoles,omitempty"`
	Containers      opaque `json:"containers,omitempty"` // before there was monitoring
	Decommission    opaque `json:"decommission,omitempty"`
	Hooks           opaque `json:"hooks,omitempty"`
	Resources       opaque `json:"resources,omitempty"`
	Systemd         opaque `json:"systemd,omitempty"`
	TemplateVersion opaque `json:"templateVersion,omitempty"`
	UpdatePolicy    opaque `json:"updatePolicy,omitempty"`
}

// configItem names its source in an object of its own, or flat.
type configItem struct {
	Name       string                `json:"name"`
	ConfigType resource.ConfigType   `json:"configType"`
	Inline     json.RawMessage       `json:"inline,omitempty"`
	GitRef     *gitRef               `json:"gitRef,omitempty"`
	SecretRef  *resource.SecretMount `json:"secretRef,omitempty"`

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

type hostStatus struct {
	Conditions      []resource.Condition       `json:"conditions,omitempty"`
	Containers      []resource.ContainerStatus `json:"containers,omitempty"`
	SystemdUnits    []resource.SystemdUnit     `json:"systemdUnits,omitempty"`
	SystemInfo      *resource.SystemInfo       `json:"systemInfo,omitempty"`
	RenderedVersion string                     `json:"renderedVersion,omitempty"`
	UpdatedAt       string                     `json:"updatedAt,omitempty"`
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
	device.reconcile = func(form, _ tree) { reconcileConfig(form["spec"]) }
	fleet := flightctlKind("Fleet", "fleets", "fleet", resource.KindFleet).pair(conversion(readFleet, showFleet))
	fleet.reconcile = func(form, _ tree) {
		spec, _ := form["spec"].(tree)
		template, _ := spec["template"].(tree)
		reconcileConfig(template["spec"])
	}
	version := flightctlKind("TemplateVersion", "templateversions", "templateversion", resource.KindTemplateVersion)
	repository := flightctlKind("Repository", "repositories", "repository", resource.KindRepository)
	sync := flightctlKind("ResourceSync", "resourcesyncs", "resourcesync", resource.KindResourceSync)
	return []Kind{
		device, fleet, version.pair(conversion(readVersion, showVersion)),
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

func (s hostSpec) canonical() resource.NodeSpec {
	out := resource.NodeSpec{OS: s.OS, Monitoring: s.Monitoring}
	for _, c := range s.Config {
		item := resource.ConfigItem{Name: c.Name, ConfigType: c.ConfigType, Inline: c.Inline, SecretRef: c.SecretRef}
		if c.GitRef != nil {
			item.GitRef = &c.GitRef.GitRef
		}
		if c.ConfigType == resource.ConfigGit && item.GitRef == nil && c.Repository != "" {
			item.GitRef = &resource.GitRef{Repository: c.Repository, TargetRevision: c.Ref, Path: c.Path}
		}
		if c.ConfigType == resource.ConfigSecret && item.SecretRef == nil && c.MountPath != "" {
			item.SecretRef = &resource.SecretMount{Name: c.Name, Namespace: c.Namespace, MountPath: c.MountPath}
		}
		out.Config = append(out.Config, item)
	}
	return out
}

func showHostSpec(s resource.NodeSpec) hostSpec {
	out := hostSpec{OS: s.OS, Monitoring: s.Monitoring}
	for _, c := range s.Config {
		item := configItem{Name: c.Name, ConfigType: c.ConfigType, Inline: c.Inline, SecretRef: c.SecretRef}
		if c.GitRef != nil {
			item.GitRef = &gitRef{GitRef: *c.GitRef}
		}
		out.Config = append(out.Config, item)
	}
	return out
}

// reconcileConfig leaves the flat fields out where an object says the same: it is newer.
func reconcileConfig(spec any) {
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
