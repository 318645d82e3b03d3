// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"context"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// NodeReferences is what a Node with these labels gets from Configurations: what the properties of all of them refer to that select it. One
// without a selector is for every node, whatever its labels. All others count if its labels follow what the node reports.
func NodeReferences(r store.Reader) func(ctx context.Context, node resource.Meta) ([]objects.Reference, error) {
	return func(ctx context.Context, node resource.Meta) (refs []objects.Reference, err error) {
		follows := node.Annotations[resource.LabelFromAnnotation] != ""
		if len(node.Labels) == 0 && !follows {
			return nil, nil
		}
		none := func(string) bool { return false }
		for c, err := range objects.AllSelecting[resource.Configuration](ctx, r, resource.KindConfiguration, "nodeSelector", node, none) {
			if err != nil {
				return nil, err
			}
			if c.Spec.NodeSelector.Empty() {
				continue
			}
			for _, ref := range objects.References(c) {
				ref.Field = "metadata.labels: the Configuration " + c.Metadata.Name + " selects it, and its " + ref.Field
				refs = append(refs, ref)
			}
		}
		return refs, nil
	}
}
