// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"time"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// LabelsController makes the controller that copies system information into labels of Nodes whose annotation asks for it; see
// resource.Node.FollowSystem. It ignores all other Nodes.
func LabelsController(as *objects.Controller) control.Controller {
	return control.Controller{
		Name: "node-labels", Workers: 4,
		Watches: []control.Watch{{Kind: resource.KindNode, Keys: func(o store.Object) []store.Key {
			if bytes.Contains(o.Data, []byte(resource.LabelFromAnnotation)) {
				return []store.Key{o.Key}
			}
			return nil
		}}},
		Reconcile: func(ctx context.Context, key store.Key) (time.Duration, error) {
			err := followSystem(ctx, as, key)
			if errors.Is(err, resource.NotFound) {
				err = nil
			}
			return 0, err
		},
	}
}

func followSystem(ctx context.Context, as *objects.Controller, key store.Key) error {
	n, err := objects.Get[resource.Node](ctx, as, key)
	if err != nil || n.Metadata.DeletionTimestamp != nil {
		return err
	}
	labels, notes := maps.Clone(n.Metadata.Labels), maps.Clone(n.Metadata.Annotations)
	n.FollowSystem()
	if maps.Equal(labels, n.Metadata.Labels) && maps.Equal(notes, n.Metadata.Annotations) {
		return nil
	}
	return objects.Update(ctx, as, key, func(n *resource.Node) error { n.FollowSystem(); return nil })
}
