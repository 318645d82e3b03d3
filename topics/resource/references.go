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
	RefSecret    = "secret"
)

var refTypes = []string{RefImage, RefGit, RefHTTP, RefOCI, RefSecret, RefConfigMap}

// KindSource is the hub's record of what a Reference to a repository, server or registry stands for. It is no kind of the API.
const KindSource = "Source"

// Reference is a floating reference with what it resolved to.
type Reference struct {
	// Type is what kind of reference it is.
	// +kubebuilder:validation:Enum=image;git;http;oci;secret;configmap
	Type string `json:"type"`
	// Source is the image, Repository, Secret or ConfigMap that is referred to, the latter two with their namespace.
	Source string `json:"source"`
	// Path is the file or directory in a Repository, or what follows its address.
	Path string `json:"path,omitempty"`
	// Floating is the tag or branch as it was written.
	Floating string `json:"floating,omitempty"`
	// Resolved is the hash that it stood for.
	Resolved string `json:"resolved,omitempty"`
	// Files are what it contained, by digest; a Secret's are not kept.
	// +listType=atomic
	Files []InlineFile `json:"files,omitempty"`
}

// ReferenceKey tells references apart: what floats, and where its contents are.
type ReferenceKey struct{ Type, Source, Path, Floating string }

// Key is what tells the reference from others.
func (r Reference) Key() ReferenceKey { return ReferenceKey{r.Type, r.Source, r.Path, r.Floating} }

// IsSource reports whether it refers to something outside of the hub.
func (r Reference) IsSource() bool {
	return r.Type == RefImage || r.Type == RefGit || r.Type == RefHTTP || r.Type == RefOCI
}

// References are what floats in a node's spec. What was frozen before is not among them, nor is an image's digest.
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
		return Reference{Type: RefConfigMap, Source: namespaced(c.ConfigMapRef.Namespace, c.ConfigMapRef.Name), Path: c.ConfigMapRef.MountPath}, true
	case c.SecretRef != nil:
		return Reference{Type: RefSecret, Source: namespaced(c.SecretRef.Namespace, c.SecretRef.Name)}, true
	}
	return r, false
}

func namespaced(namespace, name string) string {
	return cmp.Or(namespace, DefaultNamespace) + "/" + name
}

func imageReference(kind, image string) Reference {
	name, tag := SplitImage(image)
	return Reference{Type: kind, Source: name, Floating: tag}
}

// SplitImage divides a reference to an image into its name, and its tag or digest.
func SplitImage(image string) (name, tag string) {
	if name, digest, ok := strings.Cut(image, "@"); ok {
		return name, digest
	}
	if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
		return image[:i], image[i+1:]
	}
	return image, "latest"
}

// Freeze replaces what floats in a node's spec by what the references say that it stands for; what they don't have is left as it
// is. A Secret always is what it is now: its values are kept in no other place.
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
			s.Applications[i].Image, s.Applications[i].Files = r.Source+"@"+r.Resolved, below("", r.Files)
		}
	}
	return s
}

// freeze is the item with what its reference stands for.
func (c ConfigItem) freeze(r Reference) ConfigItem {
	switch {
	case c.GitRef != nil:
		ref := *c.GitRef
		ref.TargetRevision = r.Resolved
		c.GitRef, c.Files = &ref, below(cmp.Or(ref.MountPath, "/"), r.Files)
	case c.HTTPRef != nil:
		c.Files = slices.Clone(r.Files)
		for i := range c.Files { // it is one
			c.Files[i].Path = c.HTTPRef.FilePath
		}
	case c.OCIRef != nil:
		ref := *c.OCIRef
		ref.Image = r.Source + "@" + r.Resolved
		c.OCIRef, c.Files = &ref, below(ref.MountPath, r.Files)
	case c.ConfigMapRef != nil:
		c.Files = r.Files
	}
	return c
}

// below are files with paths in a directory; "": relative ones.
func below(dir string, files []InlineFile) []InlineFile {
	out := slices.Clone(files)
	for i, f := range out {
		if out[i].Path = strings.TrimPrefix(f.Path, "/"); dir != "" {
			out[i].Path = path.Join(dir, f.Path)
		}
	}
	return out
}
