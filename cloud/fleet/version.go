// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/images"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// VersionName is the name of a fleet's nth version: seven digits, as kubectl get sorts them.
func VersionName(fleet string, n int) string { return fmt.Sprintf("%s-%07d", fleet, n) }

// versionNumber is n of VersionName; 0: it is none.
func versionNumber(fleet, name string) int {
	digits, ok := strings.CutPrefix(name, fleet+"-")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || len(digits) < 7 {
		return 0
	}
	return n
}

// resolve says what references stand for. Sources that were last read before notBefore are read now.
func (c *rolloutController) resolve(ctx context.Context, refs []resource.Reference, notBefore time.Time) (out []resource.Reference, err error) {
	for _, r := range refs {
		if r, err = c.Sources.Resolve(ctx, r, notBefore); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// floatingReferences are what floats in a node's spec, images in the files of applications included.
func floatingReferences(spec resource.NodeSpec) []resource.Reference {
	refs := spec.References()
	images.MapImages(spec.Applications, func(image string) string {
		if r := imageReference(image); !strings.HasPrefix(r.Floating, resource.DigestPrefix) {
			refs = append(refs, r)
		}
		return image
	})
	return refs
}

func imageReference(image string) resource.Reference {
	name, tag := resource.SplitImage(image)
	return resource.Reference{Type: resource.RefImage, Source: name, Floating: tag}
}

// freezeSpec replaces what floats in a node's spec by what it stood for when a version was made. What was empty then is left out.
func freezeSpec(spec resource.NodeSpec, refs []resource.Reference) resource.NodeSpec {
	resolved := make(map[resource.ReferenceKey]string, len(refs))
	for _, r := range refs {
		resolved[r.Key()] = r.Resolved
	}
	spec = spec.Freeze(refs)
	spec.Config = slices.DeleteFunc(spec.Config, func(item resource.ConfigItem) bool {
		return len(item.Files) == 0 && (item.GitRef != nil || item.ConfigMapRef != nil || item.OCIRef != nil)
	})
	spec.Applications = images.MapImages(spec.Applications, func(image string) string {
		r := imageReference(image)
		if digest := resolved[r.Key()]; digest != "" {
			return r.Source + "@" + digest
		}
		return image
	})
	return spec
}

// fleetReferences are all references of the nodes of a fleet, each once, in order, and those of its template that are the same for each
// node: so a fleet without nodes has them, too.
func fleetReferences(template resource.NodeSpec, nodes []*fleetNode) []resource.Reference {
	found := make(map[resource.ReferenceKey]resource.Reference)
	for _, r := range floatingReferences(withoutTemplatedFiles(template)) {
		if !strings.Contains(r.Source+r.Path+r.Floating, "{{") {
			found[r.Key()] = r
		}
	}
	counted := make(map[*expandedTemplate]bool)
	for _, m := range nodes {
		if m.invalid != nil || counted[m.expanded] {
			continue
		}
		counted[m.expanded] = true
		for _, r := range m.expanded.refs {
			found[r.Key()] = r
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b resource.Reference) int {
		return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Source, b.Source), strings.Compare(a.Path, b.Path), strings.Compare(a.Floating, b.Floating))
	})
}

// withoutTemplatedFiles leaves out the files of applications whose contents depend on the node.
func withoutTemplatedFiles(spec resource.NodeSpec) resource.NodeSpec {
	spec.Applications = slices.Clone(spec.Applications)
	for i, a := range spec.Applications {
		spec.Applications[i].Files = slices.DeleteFunc(slices.Clone(a.Files), func(f resource.InlineFile) bool { return strings.Contains(f.Content, "{{") })
	}
	return spec
}

// coversReferences says whether a version has all of these references.
func coversReferences(v *resource.TemplateVersion, refs []resource.Reference) bool {
	known := make(map[resource.ReferenceKey]bool)
	for _, r := range v.Spec.References {
		known[r.Key()] = true
	}
	return !slices.ContainsFunc(refs, func(r resource.Reference) bool { return !known[r.Key()] })
}

// makeVersion stores a version of a fleet's template, under the first free number after the last one.
func (c *rolloutController) makeVersion(ctx context.Context, f *resource.Fleet, last int, refs []resource.Reference) (*resource.TemplateVersion, error) {
	for n := last + 1; ; n++ {
		v, err := objects.Create(ctx, c.as, &resource.TemplateVersion{
			Metadata: resource.Meta{Name: VersionName(f.Metadata.Name, n), Owner: Owner(f.Metadata.Name)},
			Spec:     resource.TemplateVersionSpec{Fleet: f.Metadata.Name, Template: f.Spec.Template, References: refs},
		})
		if !errors.Is(err, resource.AlreadyExists) {
			return v, err
		}
	}
}

func versionKey(name string) store.Key {
	return store.Key{Kind: resource.KindTemplateVersion, Name: name}
}

// fleetOfVersion is the Fleet of a TemplateVersion, as key.
func fleetOfVersion(o store.Object) []store.Key {
	var v resource.TemplateVersion
	if json.Unmarshal(o.Data, &v) != nil || v.Spec.Fleet == "" {
		return nil
	}
	return []store.Key{fleetKey(v.Spec.Fleet)}
}

// indexVersion has a TemplateVersion found by its Fleet.
func indexVersion(o store.Object) (v struct{}, refs []store.Key, ok bool) {
	return v, fleetOfVersion(o), true
}
