// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// AllSelecting goes through the objects of a kind whose selector, the field of their spec, matches a Node, or that also chooses. All of
// them count if labels of the Node follow what it reports. Of the others the selector alone is decoded: a template may be large.
func AllSelecting[T any](ctx context.Context, r store.Reader, kind, field string, node resource.Meta, also func(name string) bool) iter.Seq2[*T, error] {
	follows := node.Annotations[resource.LabelFromAnnotation] != ""
	return func(yield func(*T, error) bool) {
		for o, err := range store.All(ctx, r, kind, store.ListOptions{}) {
			if err != nil {
				yield(nil, err)
				return
			}
			var selector *resource.LabelSelector
			if raw := rawjson.Field(rawjson.Field(o.Data, "spec"), field); raw != nil && !follows {
				err = json.Unmarshal(raw, &selector)
			}
			if err == nil && !follows && !also(o.Name) && !Selector(selector).Matches(labels.Set(node.Labels)) {
				continue
			}
			v := new(T)
			if err == nil {
				err = json.Unmarshal(o.Data, v)
			}
			if err != nil {
				yield(nil, fmt.Errorf("the stored %s can't be read: %w", o.Key, err))
				return
			}
			if !yield(v, nil) {
				return
			}
		}
	}
}
