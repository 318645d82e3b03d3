// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// VersionsForUndo are what a rollout is undone with: of a fleet's versions, the oldest first, the one before the newest, and the last
// before the newest that was rolled out to its end.
func VersionsForUndo(list []*resource.TemplateVersion, newest string) map[string]bool {
	names := make(map[string]bool)
	older := slices.DeleteFunc(slices.Clone(list), func(v *resource.TemplateVersion) bool { return v.Metadata.Name == newest })
	if len(older) > 0 {
		names[older[len(older)-1].Metadata.Name] = true
	}
	for _, v := range slices.Backward(older) {
		if v.Status.RolledOutAt != "" {
			names[v.Metadata.Name] = true
			break
		}
	}
	return names
}

// checkVersionDeletion refuses to delete a TemplateVersion of a Fleet that nodes have, or that a rollout is undone with.
func checkVersionDeletion(ctx context.Context, r store.Reader, obj any) error {
	v := obj.(*resource.TemplateVersion)
	f, err := readTyped[resource.Fleet](ctx, r, store.Key{Kind: resource.KindFleet, Name: v.Spec.Fleet})
	if errors.Is(err, resource.NotFound) || err == nil && (f.Metadata.DeletionTimestamp != nil || v.Metadata.Owner != resource.KindFleet+"/"+f.Metadata.Name) {
		return nil // its versions go, too
	}
	if err != nil {
		return err
	}
	name := v.Metadata.Name
	nodes, err := nodesWith(ctx, r, name)
	if err != nil {
		return err
	}
	const force = "; --force (the parameter force=true) deletes it all the same"
	list, err := versionsOf(ctx, r, f.Metadata.Name)
	if err != nil {
		return err
	}
	newest := f.Metadata.Annotations[resource.VersionAnnotation]
	if newest == "" && len(list) > 0 {
		newest = list[len(list)-1].Metadata.Name
	}
	switch {
	case len(nodes) > 0:
		return resource.Errorf(resource.Conflict, "", "the nodes %s have it, or are being given it"+force, JoinFirst(nodes))
	case f.Metadata.Annotations[resource.RollBackAnnotation] == name:
		return resource.Errorf(resource.Conflict, "", "the Fleet %s is rolled back to it"+force, f.Metadata.Name)
	case newest == name && v.Status.RolledOutAt != "":
		return resource.Errorf(resource.Conflict, "", "it is the newest version of the Fleet %s that was rolled out to its end"+force, f.Metadata.Name)
	case VersionsForUndo(list, newest)[name]:
		return resource.Errorf(resource.Conflict, "", "it is what a rollout of the Fleet %s is undone with: the one before the newest, or the last that was rolled out to its end"+force, f.Metadata.Name)
	}
	return nil
}

func readTyped[T any](ctx context.Context, r store.Reader, key store.Key) (*T, error) {
	o, err := r.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	v := new(T)
	return v, json.Unmarshal(o.Data, v)
}

// nodesWith are the nodes that have a version, or are being given it.
func nodesWith(ctx context.Context, r store.Reader, version string) (names []string, err error) {
	for o, err := range store.All(ctx, r, resource.KindNode, store.ListOptions{}) {
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(o.Data, []byte(version)) {
			continue // few are decoded
		}
		var node struct{ Metadata resource.Meta }
		if err := json.Unmarshal(o.Data, &node); err != nil {
			return nil, err
		}
		if m := node.Metadata.Annotations; m[resource.VersionAnnotation] == version || m[resource.AssignedVersionAnnotation] == version {
			names = append(names, o.Name)
		}
	}
	return names, nil
}

// versionsOf are the versions that the controller has made for a Fleet, the oldest first.
func versionsOf(ctx context.Context, r store.Reader, fleet string) (list []*resource.TemplateVersion, err error) {
	for o, err := range store.All(ctx, r, resource.KindTemplateVersion, store.ListOptions{}) {
		if err != nil {
			return nil, err
		}
		v := new(resource.TemplateVersion)
		if err := json.Unmarshal(o.Data, v); err != nil {
			return nil, err
		}
		v.Status = resource.TemplateVersionStatus{}
		if len(o.Status) > 0 {
			if err := json.Unmarshal(o.Status, &v.Status); err != nil {
				return nil, err
			}
		}
		if v.Spec.Fleet == fleet && v.Metadata.Owner == resource.KindFleet+"/"+fleet {
			list = append(list, v)
		}
	}
	slices.SortFunc(list, func(a, b *resource.TemplateVersion) int { // a longer number is a larger one
		return cmp.Or(cmp.Compare(len(a.Metadata.Name), len(b.Metadata.Name)), cmp.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	return list, nil
}
