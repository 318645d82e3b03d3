// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// NodeReferences is what a Node with these labels and annotations may get from fleets: what the templates of all fleets refer to that match it.
// Not only the fleet that would own it counts, since a second one takes over when the first is gone. All fleets count if its labels follow
// what the node reports.
func NodeReferences(r store.Reader) func(ctx context.Context, node resource.Meta) ([]objects.Reference, error) {
	return func(ctx context.Context, node resource.Meta) (refs []objects.Reference, err error) {
		follows := node.Annotations[resource.LabelFromAnnotation] != ""
		if len(node.Labels) == 0 && node.Owner == "" && !follows {
			return nil, nil
		}
		owns := func(name string) bool { return node.Owner == Owner(name) }
		for f, err := range objects.AllSelecting[resource.Fleet](ctx, r, resource.KindFleet, "selector", node, owns) {
			if err != nil {
				return nil, err
			}
			more, err := templateReferences(ctx, r, *f, node)
			if err != nil {
				return nil, err
			}
			refs = append(refs, more...)
		}
		return refs, nil
	}
}

// templateReferences is what a fleet's template refers to for a node, and the version of it that the fleet is rolled back to.
func templateReferences(ctx context.Context, r store.Reader, f resource.Fleet, node resource.Meta) (refs []objects.Reference, err error) {
	templates := []resource.NodeSpec{f.Spec.Template.Spec}
	if name := f.Metadata.Annotations[resource.RollBackAnnotation]; name != "" {
		o, err := r.Get(ctx, versionKey(name))
		if store.IgnoreNotFound(err) != nil {
			return nil, err
		}
		var v resource.TemplateVersion
		if err == nil && json.Unmarshal(o.Data, &v) == nil {
			templates = append(templates, v.Spec.Template.Spec)
		}
	}
	for _, template := range templates {
		spec, err := ExpandTemplate(template, node)
		if err != nil {
			continue // the node can't have it
		}
		refs = append(refs, objects.SpecReferences("metadata.labels: the Fleet "+f.Metadata.Name+" matches, and its spec.template.spec", spec)...)
	}
	return refs, nil
}
