// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

// The types of a Reference.
const (
	RefImage     = "image"     // the tag of an image
	RefGit       = "git"       // a branch, tag or commit of a Repository
	RefHTTP      = "http"      // an address of a Repository
	RefOCI       = "oci"       // the tag of an artifact or image, of which the files are wanted
	RefConfigMap = "configmap" // a ConfigMap
	RefSecret    = "secret"    // a Secret
)

var refTypes = []string{RefImage, RefGit, RefHTTP, RefOCI, RefSecret, RefConfigMap}

// KindSource is the kind of the hub's records of what References to repositories, servers and registries resolve to. The API
// does not have it.
const KindSource = "Source"

// Reference is a reference whose target can change, such as a tag or branch, with what it resolves to.
type Reference struct {
	// Type is the type of the reference.
	// +kubebuilder:validation:Enum=image;git;http;oci;secret;configmap
	Type string `json:"type"`
	// Source is the image, the Repository, or, as {namespace}/{name}, the Secret or ConfigMap.
	Source string `json:"source"`
	// Path is the file or directory in a Repository of type git, or the suffix that is appended to the address of one of type
	// http.
	Path string `json:"path,omitempty"`
	// Floating is the tag, branch or revision as it was written.
	Floating string `json:"floating,omitempty"`
	// Resolved is the digest or commit to which the reference was resolved.
	Resolved string `json:"resolved,omitempty"`
	// Files are the files that the reference contained, by digest. Those of a Secret are not stored.
	// +listType=atomic
	Files []InlineFile `json:"files,omitempty"`
}

// ReferenceKey identifies a reference by everything but what it resolves to.
type ReferenceKey struct{ Type, Source, Path, Floating string }

// Key returns what identifies the reference.
func (r Reference) Key() ReferenceKey { return ReferenceKey{r.Type, r.Source, r.Path, r.Floating} }

// IsSource reports whether the reference leads out of the hub.
func (r Reference) IsSource() bool {
	return r.Type == RefImage || r.Type == RefGit || r.Type == RefHTTP || r.Type == RefOCI
}

// References returns the references in a node's spec whose targets can change. References that are frozen already are not
// among them, nor is an OS image with a digest.
func (s NodeSpec) References() (refs []Reference) {
	if s.OS != nil && s.OS.Image != "" {
		if r := imageReference(RefImage, s.OS.Image); !strings.HasPrefix(r.Floating, DigestPrefix) {
			refs = append(refs, r)
		}
	}
	for _, item := range s.Config {
		if r, ok := item.reference(); ok && len(item.Files) == 0 {
			refs = append(refs, r)
		}
	}
	for _, a := range s.Applications {
		if a.Image != "" && len(a.Files) == 0 {
			refs = append(refs, imageReference(RefOCI, a.Image))
		}
	}
	return refs
}

func (c ConfigItem) reference() (r Reference, ok bool) {
	switch {
	case c.GitRef != nil:
		return Reference{Type: RefGit, Source: c.GitRef.Repository, Path: c.GitRef.Path, Floating: c.GitRef.TargetRevision}, true
	case c.HTTPRef != nil:
		return Reference{Type: RefHTTP, Source: c.HTTPRef.Repository, Path: c.HTTPRef.Suffix}, true
	case c.OCIRef != nil:
		return imageReference(RefOCI, c.OCIRef.Image), true
	case c.ConfigMapRef != nil:
		return Reference{Type: RefConfigMap, Source: namespacedName(c.ConfigMapRef.Namespace, c.ConfigMapRef.Name), Path: c.ConfigMapRef.MountPath}, true
	case c.SecretRef != nil:
		return Reference{Type: RefSecret, Source: namespacedName(c.SecretRef.Namespace, c.SecretRef.Name)}, true
	}
	return r, false
}

func namespacedName(namespace, name string) string {
	return cmp.Or(namespace, DefaultNamespace) + "/" + name
}

func imageReference(kind, image string) Reference {
	name, tag := SplitImage(image)
	return Reference{Type: kind, Source: name, Floating: tag}
}

// SplitImage splits a reference to an image into its name and its tag or digest. The tag is latest if there is none.
func SplitImage(image string) (name, tag string) {
	if name, digest, ok := strings.Cut(image, "@"); ok {
		return name, digest
	}
	if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
		return image[:i], image[i+1:]
	}
	return image, "latest"
}

// Freeze replaces the references in a node's spec by what refs resolve them to. References that refs do not contain stay as
// they are. References to Secrets always stay: their values are stored nowhere else.
func (s NodeSpec) Freeze(refs []Reference) NodeSpec {
	known := make(map[ReferenceKey]Reference, len(refs))
	for _, r := range refs {
		known[r.Key()] = r
	}
	if s.OS != nil && s.OS.Image != "" {
		if r, ok := known[imageReference(RefImage, s.OS.Image).Key()]; ok && r.Resolved != "" {
			os := *s.OS
			os.Image = r.Source + "@" + r.Resolved
			s.OS = &os
		}
	}
	s.Config, s.Applications = slices.Clone(s.Config), slices.Clone(s.Applications)
	for i, item := range s.Config {
		if of, ok := item.reference(); ok {
			if r, ok := known[of.Key()]; ok && r.Resolved != "" {
				s.Config[i] = item.freeze(r)
			}
		}
	}
	for i, a := range s.Applications {
		if a.Image == "" {
			continue
		}
		if r, ok := known[imageReference(RefOCI, a.Image).Key()]; ok && r.Resolved != "" {
			s.Applications[i].Image, s.Applications[i].Files = r.Source+"@"+r.Resolved, filesBelow("", r.Files)
		}
	}
	return s
}

// freeze returns the item with what its reference resolves to.
func (c ConfigItem) freeze(r Reference) ConfigItem {
	switch {
	case c.GitRef != nil:
		ref := *c.GitRef
		ref.TargetRevision = r.Resolved
		c.GitRef, c.Files = &ref, filesBelow(cmp.Or(ref.MountPath, "/"), r.Files)
	case c.HTTPRef != nil:
		c.Files = slices.Clone(r.Files)
		for i := range c.Files { // there is only one
			c.Files[i].Path = c.HTTPRef.FilePath
		}
	case c.OCIRef != nil:
		ref := *c.OCIRef
		ref.Image = r.Source + "@" + r.Resolved
		c.OCIRef, c.Files = &ref, filesBelow(ref.MountPath, r.Files)
	case c.ConfigMapRef != nil:
		c.Files = r.Files
	}
	return c
}

// filesBelow returns the files with their paths in a directory; relative paths if dir is empty.
func filesBelow(dir string, files []InlineFile) []InlineFile {
	out := slices.Clone(files)
	for i, f := range out {
		if out[i].Path = strings.TrimPrefix(f.Path, "/"); dir != "" {
			out[i].Path = path.Join(dir, f.Path)
		}
	}
	return out
}
