package discovery

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Bound is what a Node with these labels gets from Configurations: what the properties of all of them refer to that select it. One
// without a selector is for every node, whatever its labels. All others count if its labels follow what the node reports.
func Bound(r store.Reader) func(ctx context.Context, node resource.Meta) ([]objects.Reference, error) {
	return func(ctx context.Context, node resource.Meta) (refs []objects.Reference, err error) {
		follows := node.Annotations[resource.LabelFromAnnotation] != ""
		if len(node.Labels) == 0 && !follows {
			return nil, nil
		}
		for o, err := range store.All(ctx, r, resource.KindConfiguration, store.ListOptions{}) {
			if err != nil {
				return nil, err
			}
			var c resource.Configuration
			if err := json.Unmarshal(o.Data, &c); err != nil {
				return nil, fmt.Errorf("the stored %s can't be read: %w", o.Key, err)
			}
			if c.Spec.NodeSelector.Empty() || !follows && !objects.Selector(c.Spec.NodeSelector).Matches(labels.Set(node.Labels)) {
				continue
			}
			for _, ref := range objects.References(&c) {
				ref.Field = "metadata.labels: the Configuration " + c.Metadata.Name + " selects it, and its " + ref.Field
				refs = append(refs, ref)
			}
		}
		return refs, nil
	}
}
