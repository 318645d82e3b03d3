// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Repository is a source of configuration or images.
type Repository struct {
	TypeMeta
	Metadata Meta             `json:"metadata"`
	Spec     RepositorySpec   `json:"spec"`
	Status   RepositoryStatus `json:"status,omitzero"`
}

// RepositorySpec is the address of a repository, and how it is accessed.
type RepositorySpec struct {
	// URL is the address: https://…, ssh://…, git@host:path or oci://…; http:// for a registry without TLS.
	URL string `json:"url"`
	// Type is the type of the repository; git when empty.
	// +kubebuilder:validation:Enum=git;http;oci
	// +default=git
	Type string `json:"type,omitempty"`
	// ValidationSuffix is appended to the address when the hub checks whether a Repository of type http can be read.
	ValidationSuffix string `json:"validationSuffix,omitempty"`
	// SecretRef names a Secret with credentials: username and password, token, ssh-privatekey with known_hosts, tls.crt and
	// tls.key, ca.crt. They are sent only to the host of the URL. webhook-secret is the secret by which webhooks are
	// authenticated.
	SecretRef *SecretRef `json:"secretRef,omitempty"`
	// Credentials are values that a Secret would have, under the same keys, for flightctl's manifests, which have them in the
	// Repository. They are stored unencrypted, so a Secret is better. A value of the Secret is used instead of one here.
	Credentials map[string][]byte `json:"credentials,omitempty"`
	// InsecureSkipVerify accepts any certificate and host key. It is for tests only.
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// Has reports whether an image, given without its tag, is in a Repository of type oci.
func (s RepositorySpec) Has(image string) bool {
	_, place, ok := strings.Cut(s.URL, "://")
	place = strings.TrimSuffix(place, "/")
	return s.Type == "oci" && ok && (image == place || strings.HasPrefix(image, place+"/"))
}

// Lends reports whether the hub reads an image with credentials of the Repository.
func (s RepositorySpec) Lends(image string) bool {
	name, _ := SplitImage(image)
	anywhere := strings.Contains(image, "{{") // a template may become any image
	return s.Type == "oci" && (s.SecretRef != nil || len(s.Credentials) > 0) && (anywhere || s.Has(name))
}

// SecretRef names a Secret.
type SecretRef struct {
	// Name is the Secret's name.
	Name string `json:"name"`
	// Namespace is the Secret's namespace; default when empty.
	// +default=default
	Namespace string `json:"namespace,omitempty"`
}

// RepositoryStatus is the observed state of a repository.
type RepositoryStatus struct {
	// NotifiedAt is the time of the last webhook that reported a change of the repository.
	NotifiedAt string `json:"notifiedAt,omitempty"`
	// Conditions: Accessible says whether the repository could be read.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// ConditionAccessible says whether a Repository, or what a ResourceSync refers to, can be read.
const ConditionAccessible = "Accessible"

var repositoryTypes = []string{"", "git", "http", "oci"}

// Validate checks a Repository.
func (r Repository) Validate() error {
	var p causeList
	r.Metadata.check(&p)
	checkOneOf(&p, "spec.type", r.Spec.Type, repositoryTypes)
	if r.Spec.URL == "" {
		p.add("spec.url", "is required")
	} else if why := badURL(r.Spec.URL, r.Spec.Type); why != "" {
		p.add("spec.url", "%s", why)
	}
	if s := r.Spec.ValidationSuffix; s != "" && r.Spec.Type != "http" {
		p.add("spec.validationSuffix", "must be empty: the type is not http")
	} else {
		checkSuffix(&p, "spec.validationSuffix", s)
	}
	if ref := r.Spec.SecretRef; ref != nil {
		checkRequired(&p, "spec.secretRef.name", ref.Name)
	}
	return p.err()
}

// repositorySchemes are those by which a repository of each type is read; git@host:path is ssh.
var repositorySchemes = map[string][]string{"git": {"https", "http", "ssh"}, "http": {"https", "http"}, "oci": {"oci", "https", "http"}}

// badURL returns what is wrong with the address of a repository of a type. It quotes no part of it that may be secret.
func badURL(text, kind string) string {
	kind = cmp.Or(kind, "git")
	schemes, known := repositorySchemes[kind]
	wrong := func(scheme string) string {
		return "the scheme " + clipText(scheme) + " is not one of " + strings.Join(schemes, ", ") + ", by which a Repository of type " + kind + " is read"
	}
	if user, rest, ok := strings.Cut(text, "@"); ok && !strings.Contains(user, "/") && strings.Contains(rest, ":") { // git@host:path
		if known && kind != "git" {
			return wrong("ssh")
		}
		return ""
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme == "" || u.Host == "":
		return "must be an address such as https://host/path or git@host:path"
	case known && !slices.Contains(schemes, u.Scheme):
		return wrong(u.Scheme)
	}
	_, secret := u.User.Password()
	switch {
	case secret:
		return "must not hold a password: put it into a Secret, and name that in secretRef"
	case u.User != nil && u.Scheme != "ssh": // https://TOKEN@host is how some hosts take a token
		return "must not hold a user name or token: put it into a Secret (username and password, or token), and name that in secretRef"
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "": // conditions quote the address to who may not read Repositories
		return "must not hold a query or fragment: put a token into a Secret, and name that in secretRef"
	}
	return ""
}

// ResourceSync applies the manifests in a repository.
type ResourceSync struct { //nolint:revive // the kind is named so
	TypeMeta
	Metadata Meta               `json:"metadata"`
	Spec     ResourceSyncSpec   `json:"spec"`
	Status   ResourceSyncStatus `json:"status,omitzero"`
}

// ResourceSyncSpec is which manifests are applied.
type ResourceSyncSpec struct { //nolint:revive // the kind is named so
	// Repository is the name of a Repository of type git.
	Repository string `json:"repository"`
	// TargetRevision is a branch, tag or commit.
	TargetRevision string `json:"targetRevision"`
	// Path is a file or directory with manifests.
	Path string `json:"path"`
	// Interval is the time between two checks of the revision, at least 1s, such as 5m; the hub's setting when empty.
	Interval string `json:"interval,omitempty"`
	// Allow has the kinds, Secret or Repository, to which manifests may refer. Otherwise a person who may push to the
	// repository could have any Secret, and the contents of any Repository, sent to a node. Manifests may always refer to the
	// ResourceSync's own Repository.
	// +listType=atomic
	Allow []string `json:"allow,omitempty"`
}

// ResourceSyncStatus is the observed state of a ResourceSync.
type ResourceSyncStatus struct { //nolint:revive // the kind is named so
	// ObservedCommit is the commit that was last applied.
	ObservedCommit string `json:"observedCommit,omitempty"`
	// ObservedGeneration is the generation of the spec that was last processed.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are Ready, Accessible, ResourceParsed and Synced. Each has the cause if it is False. Ready is True if all others are.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// Validate checks a ResourceSync.
func (r ResourceSync) Validate() error {
	var p causeList
	r.Metadata.check(&p)
	checkName(&p, "spec.repository", r.Spec.Repository)
	checkRequired(&p, "spec.targetRevision", r.Spec.TargetRevision)
	checkRevision(&p, "spec.targetRevision", r.Spec.TargetRevision)
	checkRequired(&p, "spec.path", r.Spec.Path)
	if text := r.Spec.Interval; text != "" {
		if d, err := time.ParseDuration(text); err != nil || d < time.Second {
			p.add("spec.interval", "%s is not a duration of at least 1s, such as 5m", clipText(text))
		}
	}
	for i, kind := range r.Spec.Allow {
		checkOneOf(&p, fmt.Sprintf("spec.allow[%d]", i), kind, []string{KindSecret, KindRepository})
	}
	return p.err()
}
