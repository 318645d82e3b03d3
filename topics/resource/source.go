package resource

import (
	"net/url"
	"slices"
	"strings"
	"time"
)

// Repository is a place from which configuration or images are taken.
type Repository struct {
	TypeMeta
	Metadata Meta             `json:"metadata"`
	Spec     RepositorySpec   `json:"spec"`
	Status   RepositoryStatus `json:"status,omitzero"`
}

// RepositorySpec is where a repository is and how it is reached.
type RepositorySpec struct {
	// URL is its address: https://…, ssh://…, git@host:path, oci://…
	URL string `json:"url"`
	// Type is how it is spoken with; git when empty.
	// +kubebuilder:validation:Enum=git;http;oci
	// +default=git
	Type string `json:"type,omitempty"`
	// SecretRef is a Secret with credentials: username and password, token, ssh-privatekey, tls.crt and tls.key, ca.crt.
	SecretRef *SecretRef `json:"secretRef,omitempty"`
	// InsecureSkipVerify takes any certificate. Only for trying things out.
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// SecretRef names a Secret.
type SecretRef struct {
	// Name is the Secret's name.
	Name string `json:"name"`
	// Namespace is the Secret's; default when empty.
	// +default=default
	Namespace string `json:"namespace,omitempty"`
}

// RepositoryStatus is what is known of a repository.
type RepositoryStatus struct {
	// Conditions: Accessible says whether it could be reached.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

var repositoryTypes = []string{"", "git", "http", "oci"}

// Validate checks a Repository.
func (r Repository) Validate() error {
	var p problems
	r.Metadata.check(&p)
	oneOf(&p, "spec.type", r.Spec.Type, repositoryTypes)
	if r.Spec.URL == "" {
		p.add("spec.url", "is required")
	} else if why := badURL(r.Spec.URL); why != "" {
		p.add("spec.url", "%s", why)
	}
	if ref := r.Spec.SecretRef; ref != nil {
		required(&p, "spec.secretRef.name", ref.Name)
	}
	return p.err()
}

// badURL says what is wrong with a repository's address. It quotes nothing of it that may be secret.
func badURL(text string) string {
	if user, rest, ok := strings.Cut(text, "@"); ok && !strings.Contains(user, "/") && strings.Contains(rest, ":") {
		return "" // git@host:path
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme == "" || u.Host == "":
		return "must be an address such as https://host/path or git@host:path"
	case !slices.Contains([]string{"https", "http", "ssh", "git", "oci"}, u.Scheme):
		return "the scheme " + clip(u.Scheme) + " is not one of https, http, ssh, git, oci"
	}
	if _, secret := u.User.Password(); secret {
		return "must not hold a password: put it into a Secret, and name that in secretRef"
	}
	return ""
}

// ResourceSync applies the manifests of a repository.
type ResourceSync struct { //nolint:revive // the kind is named so
	TypeMeta
	Metadata Meta               `json:"metadata"`
	Spec     ResourceSyncSpec   `json:"spec"`
	Status   ResourceSyncStatus `json:"status,omitzero"`
}

// ResourceSyncSpec is what is applied.
type ResourceSyncSpec struct { //nolint:revive // the kind is named so
	// Repository is the name of a Repository of type git.
	Repository string `json:"repository"`
	// TargetRevision is the branch, tag or commit.
	TargetRevision string `json:"targetRevision"`
	// Path is a file or directory with manifests.
	Path string `json:"path"`
	// Interval is how often the revision is looked at again, such as 5m, at least 1s; the hub's default when empty.
	Interval string `json:"interval,omitempty"`
}

// ResourceSyncStatus is what is known of it.
type ResourceSyncStatus struct { //nolint:revive // the kind is named so
	// ObservedCommit is the commit that was applied last.
	ObservedCommit string `json:"observedCommit,omitempty"`
	// ObservedGeneration is the generation of the spec that was acted on last.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Accessible, Parsed, Synced.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// Validate checks a ResourceSync.
func (r ResourceSync) Validate() error {
	var p problems
	r.Metadata.check(&p)
	checkName(&p, "spec.repository", r.Spec.Repository)
	required(&p, "spec.targetRevision", r.Spec.TargetRevision)
	checkRevision(&p, "spec.targetRevision", r.Spec.TargetRevision)
	required(&p, "spec.path", r.Spec.Path)
	if text := r.Spec.Interval; text != "" {
		if d, err := time.ParseDuration(text); err != nil || d < time.Second {
			p.add("spec.interval", "%s is not a duration of at least 1s, such as 5m", clip(text))
		}
	}
	return p.err()
}
