// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// KindBlob is the Kind of a Reference to a blob, which is no object.
const KindBlob = "Blob"

// Reference is what an object has the hub hand out: to a node, or to whoever reads what a node gets.
type Reference struct {
	// Field is where it stands, for messages.
	Field string
	// Kind is Secret, ConfigMap, Repository or KindBlob. Name is empty where it may be any of the kind.
	Kind, Namespace, Name string
	// Of is which part of it: a path and a revision, or a key.
	Of string
	// Image is of an artifact, instead of the name: the Repository of type oci that it is in has the credentials.
	Image string
	// Fetched says that a blob was fetched from a Repository.
	Fetched bool
}

func (r Reference) String() string { return r.Field + " refers to the " + r.What() }

// What is the kind and the name.
func (r Reference) What() string {
	name := r.Name
	if r.Namespace != "" && r.Namespace != resource.DefaultNamespace {
		name = r.Namespace + "/" + name
	}
	if r.Name == "" {
		name = cmp.Or(r.Image, "of every name")
	}
	return r.Kind + " " + name
}

// target is the reference without where it stands.
func (r Reference) target() Reference {
	r.Field = ""
	return r
}

// References are those of an object, of any kind.
func References(obj any) []Reference {
	switch v := obj.(type) {
	case *resource.Node:
		return SpecReferences("spec", v.Spec)
	case *resource.Fleet:
		return SpecReferences("spec.template.spec", v.Spec.Template.Spec)
	case *resource.TemplateVersion:
		refs := SpecReferences("spec.template.spec", v.Spec.Template.Spec)
		for i, r := range v.Spec.References {
			refs = append(refs, fileReferences(fmt.Sprintf("spec.references[%d]", i), r.Files)...)
		}
		return refs
	case *resource.Repository:
		if s := v.Spec.SecretRef; s != nil {
			return []Reference{{Field: "spec.secretRef", Kind: resource.KindSecret, Namespace: cmp.Or(s.Namespace, resource.DefaultNamespace), Name: s.Name}}
		}
	case *resource.ResourceSync:
		refs := []Reference{{Field: "spec.repository", Kind: resource.KindRepository, Name: v.Spec.Repository, Of: v.Spec.TargetRevision + " " + v.Spec.Path}}
		for _, kind := range v.Spec.Allow {
			refs = append(refs, Reference{Field: "spec.allow", Kind: kind})
		}
		return refs
	case *resource.Configuration:
		return propertyReferences(v)
	case *resource.Artifact:
		var refs []Reference
		m, _ := resource.ParseManifest([]byte(v.Spec.Manifest)) // Validate reads it, too
		for _, p := range m.Programs {
			refs = append(refs, Reference{Field: "spec.manifest", Kind: KindBlob, Name: p.Digest})
		}
		return refs
	}
	return nil
}

func propertyReferences(c *resource.Configuration) (refs []Reference) {
	for _, p := range c.Spec.DiscoveryHandler.DiscoveryProperties {
		if p.ValueFrom == nil {
			continue
		}
		at := fmt.Sprintf("spec.discoveryHandler.discoveryProperties[%s].valueFrom.", p.Name)
		add := func(field, kind string, k *resource.KeyRef) {
			if k != nil {
				refs = append(refs, Reference{Field: at + field, Kind: kind, Namespace: cmp.Or(k.Namespace, c.Metadata.Namespace), Name: k.Name, Of: k.Key})
			}
		}
		add("secretKeyRef", resource.KindSecret, p.ValueFrom.SecretKeyRef)
		add("configMapKeyRef", resource.KindConfigMap, p.ValueFrom.ConfigMapKeyRef)
	}
	return refs
}

// SpecReferences are those of a node's spec, which stands at a field.
func SpecReferences(at string, spec resource.NodeSpec) (refs []Reference) {
	for _, c := range spec.Config {
		field := fmt.Sprintf("%s.config[%s].", at, c.Name)
		switch {
		case c.SecretRef != nil:
			refs = append(refs, Reference{
				Field: field + "secretRef", Kind: resource.KindSecret, Namespace: cmp.Or(c.SecretRef.Namespace, resource.DefaultNamespace), Name: c.SecretRef.Name,
			})
		case c.ConfigMapRef != nil:
			refs = append(refs, Reference{
				Field: field + "configMapRef", Kind: resource.KindConfigMap, Namespace: cmp.Or(c.ConfigMapRef.Namespace, resource.DefaultNamespace), Name: c.ConfigMapRef.Name,
			})
		case c.GitRef != nil:
			refs = append(refs, Reference{Field: field + "gitRef", Kind: resource.KindRepository, Name: c.GitRef.Repository, Of: c.GitRef.TargetRevision + " " + c.GitRef.Path})
		case c.HTTPRef != nil:
			refs = append(refs, Reference{Field: field + "httpRef", Kind: resource.KindRepository, Name: c.HTTPRef.Repository, Of: c.HTTPRef.Suffix})
		case c.OCIRef != nil:
			refs = append(refs, Reference{Field: field + "ociRef", Kind: resource.KindRepository, Image: c.OCIRef.Image})
		}
		refs = append(refs, fileReferences(strings.TrimSuffix(field, "."), c.Files)...)
	}
	for _, a := range spec.Applications {
		field := fmt.Sprintf("%s.applications[%s]", at, a.Name)
		if a.Image != "" {
			refs = append(refs, Reference{Field: field + ".image", Kind: resource.KindRepository, Image: a.Image})
		}
		refs = append(refs, fileReferences(field, a.Files)...)
	}
	return refs
}

func fileReferences(at string, files []resource.InlineFile) (refs []Reference) {
	for _, f := range files {
		if f.Digest != "" {
			refs = append(refs, Reference{Field: at + ".files[" + f.Path + "].digest", Kind: KindBlob, Name: f.Digest})
		}
	}
	return refs
}

// Grants knows what an object gives access to: what it refers to, and what it has others hand out because of their labels.
type Grants struct {
	reader         store.Reader
	nodeReferences []func(ctx context.Context, node resource.Meta) ([]Reference, error)
	fetched        func(ctx context.Context, digest string) (bool, error)
}

// checkReferences refuses what the writer may not refer to: each reference that old doesn't have.
func (g *Grants) checkReferences(ctx context.Context, old, next any, w *WriteOptions) error {
	if w.MayRefer == nil {
		return nil
	}
	refs, err := g.effectiveReferences(ctx, next)
	if err != nil || len(refs) == 0 {
		return err
	}
	known := make(map[Reference]bool)
	if old != nil && !selectsOthers(old, next) {
		before, err := g.effectiveReferences(ctx, old)
		if err != nil {
			return err
		}
		for _, r := range before {
			known[r.target()] = true
		}
	}
	for _, r := range refs {
		if known[r.target()] {
			continue
		}
		known[r.target()] = true
		if err := g.CheckReference(ctx, r, w.MayRefer); err != nil {
			return err
		}
	}
	return nil
}

// CheckReference asks may about a reference once it is known what it leads to.
func (g *Grants) CheckReference(ctx context.Context, r Reference, may func(Reference) error) error {
	switch {
	case r.Image != "":
		for o, err := range store.All(ctx, g.reader, resource.KindRepository, store.ListOptions{}) {
			if err != nil {
				return err
			}
			var repository resource.Repository
			if err := json.Unmarshal(o.Data, &repository); err != nil {
				return fmt.Errorf("the stored %s can't be read: %w", o.Key, err)
			}
			if repository.Spec.Lends(r.Image) {
				r.Name = repository.Metadata.Name
				return may(r)
			}
		}
		return nil
	case r.Kind == KindBlob && g.fetched != nil:
		var err error
		if r.Fetched, err = g.fetched(ctx, r.Name); err != nil {
			return err
		}
	}
	return may(r)
}

// selectsOthers reports whether an object hands out what it did to others than before.
func selectsOthers(old, next any) bool {
	switch n := next.(type) {
	case *resource.Fleet:
		return !sameJSON(old.(*resource.Fleet).Spec.Selector, n.Spec.Selector)
	case *resource.Configuration:
		return !sameJSON(old.(*resource.Configuration).Spec.NodeSelector, n.Spec.NodeSelector)
	}
	return false
}

func sameJSON(a, b any) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}

// effectiveReferences are an object's references, and what it has others hand out: a Node by its labels and annotations, an approval by those of
// the Node that joins, a Fleet by the version that it is rolled back to.
func (g *Grants) effectiveReferences(ctx context.Context, obj any) ([]Reference, error) {
	refs := References(obj)
	switch v := obj.(type) {
	case *resource.Node:
		more, err := g.boundReferences(ctx, v.Metadata)
		return append(refs, more...), err
	case *resource.EnrollmentRequest:
		if v.Spec.Approval != resource.Approved {
			return nil, nil
		}
		return g.joiningReferences(ctx, cmp.Or(v.Spec.NodeName, v.Metadata.Name), v.Spec.Labels, v.Metadata.Annotations[resource.LabelFromAnnotation])
	case *resource.Fleet:
		name := v.Metadata.Annotations[resource.RollBackAnnotation]
		if name == "" {
			return refs, nil
		}
		var version resource.TemplateVersion
		o, err := g.reader.Get(ctx, store.Key{Kind: resource.KindTemplateVersion, Name: name})
		if err == nil {
			err = json.Unmarshal(o.Data, &version)
		}
		return append(refs, References(&version)...), store.IgnoreNotFound(err)
	}
	return refs, nil
}

// joiningReferences is what a node gets that joins by a name, with labels beside those of its Node, if there is one.
func (g *Grants) joiningReferences(ctx context.Context, name string, labels map[string]string, labelFrom string) ([]Reference, error) {
	n := resource.Node{Metadata: resource.Meta{Name: name}}
	o, err := g.reader.Get(ctx, store.Key{Kind: resource.KindNode, Name: name})
	if err == nil {
		err = json.Unmarshal(o.Data, &n)
	}
	if store.IgnoreNotFound(err) != nil {
		return nil, err
	}
	m := &n.Metadata
	m.Labels, m.Annotations = mergedMap(m.Labels, labels), mergedMap(m.Annotations, nil)
	if labelFrom != "" {
		m.Annotations[resource.LabelFromAnnotation] = labelFrom
	}
	return g.effectiveReferences(ctx, &n)
}

func mergedMap(m, more map[string]string) map[string]string {
	out := make(map[string]string, len(m)+len(more))
	maps.Copy(out, m)
	maps.Copy(out, more)
	return out
}

// CheckJoining refuses a node that joins, by a name and with labels, if it would get something that may refuses.
func (g *Grants) CheckJoining(ctx context.Context, name string, labels map[string]string, labelFrom string, may func(Reference) error) error {
	refs, err := g.joiningReferences(ctx, name, labels, labelFrom)
	for _, r := range refs {
		if err == nil {
			err = g.CheckReference(ctx, r, may)
		}
	}
	return err
}

func (g *Grants) boundReferences(ctx context.Context, m resource.Meta) (refs []Reference, err error) {
	for _, bound := range g.nodeReferences {
		more, err := bound(ctx, m)
		if err != nil {
			return nil, err
		}
		refs = append(refs, more...)
	}
	return refs, nil
}

// What the hub's controllers note at objects. They decide by it, so nobody else sets or removes it.
const (
	AskedLabelsAnnotation      = resource.Group + "/asked-labels"      // of an EnrollmentRequest and a Node: labels that the node itself asked for, in JSON
	RemoteAnnotation           = resource.Group + "/remote"            // of an EnrollmentRequest: the address that the node asked from
	EnrollerAnnotation         = resource.Group + "/enroller"          // of an EnrollmentRequest: the user with the role enroller who made it
	RenewalAnnotation          = resource.Group + "/renews-after"      // of an EnrollmentRequest for a renewal: the node's last revocation when the node made it
	InstanceAnnotation         = resource.Group + "/instance"          // of a Device: the Instance that it was made of
	DiscoveryAppliedAnnotation = resource.Group + "/discovery-applied" // of a Device: a hash of what was made of the template
	SyncAppliedAnnotation      = resource.Group + "/applied"           // of what a ResourceSync has applied: the names of its labels and annotations
	FleetPrefix                = "fleet-controller/"                   // of the annotations of fleets

	FleetFinalizer        = resource.Group + "/fleet"
	DiscoveryFinalizer    = resource.Group + "/discovery"
	ResourceSyncFinalizer = resource.Group + "/resourcesync"
)

var reservedAnnotations = []string{
	resource.JoinedAnnotation, resource.LabelsGivenAnnotation, AskedLabelsAnnotation, RemoteAnnotation, EnrollerAnnotation, RenewalAnnotation, InstanceAnnotation, DiscoveryAppliedAnnotation, SyncAppliedAnnotation,
}

// IsReservedAnnotation reports whether an annotation is the controllers'. All those of fleets are, but for the one by which a fleet is rolled back.
func IsReservedAnnotation(annotation string) bool {
	return strings.HasPrefix(annotation, FleetPrefix) && annotation != resource.RollBackAnnotation || slices.Contains(reservedAnnotations, annotation)
}

// reservedFinalizers are those of the hub's controllers.
var reservedFinalizers = []string{inUseFinalizer, FleetFinalizer, DiscoveryFinalizer, ResourceSyncFinalizer}

// keepReserved gives an object that a user writes the annotations and finalizers that controllers have given it, and no others of theirs;
// was is that of the stored object.
func keepReserved(m *resource.Meta, was resource.Meta) {
	differs := func(key string) bool {
		a, had := was.Annotations[key]
		b, has := m.Annotations[key]
		return IsReservedAnnotation(key) && (had != has || a != b)
	}
	keys := slices.Collect(maps.Keys(m.Annotations))
	keys = slices.AppendSeq(keys, maps.Keys(was.Annotations))
	if slices.ContainsFunc(keys, differs) {
		notes := make(map[string]string)
		for key, value := range m.Annotations {
			if !IsReservedAnnotation(key) {
				notes[key] = value
			}
		}
		for key, value := range was.Annotations {
			if IsReservedAnnotation(key) {
				notes[key] = value
			}
		}
		if m.Annotations = notes; len(notes) == 0 {
			m.Annotations = nil
		}
	}
	for _, f := range reservedFinalizers {
		had, has := slices.Contains(was.Finalizers, f), slices.Contains(m.Finalizers, f)
		switch {
		case had && !has:
			m.Finalizers = append(slices.Clone(m.Finalizers), f)
		case has && !had:
			m.Finalizers = slices.DeleteFunc(slices.Clone(m.Finalizers), func(other string) bool { return other == f })
		}
	}
}
