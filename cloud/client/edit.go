// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"reflect"

	"github.com/edgebus/edgebus/topics/resource"
)

// writeTries is how often a write that depends on what was read is tried: the status of an object changes all the time.
const writeTries = 10

// Edit changes an object as somebody has edited a copy of it. Only the fields that differ are sent. It is a Conflict if another client has
// changed one of them since the copy was made.
func (c *Client) Edit(ctx context.Context, k Kind, copied, edited Object, how WriteOptions) (Change, error) {
	was, err1 := copied.Manifest()
	wanted, err2 := edited.Manifest()
	if err := errors.Join(err1, err2); err != nil {
		return Change{}, err
	}
	a, b := copied.Metadata, edited.Metadata
	if copied.TypeMeta != edited.TypeMeta || a.Name != b.Name || a.Namespace != b.Namespace {
		return Change{}, resource.Errorf(resource.Invalid, "metadata", "apiVersion, kind, name and namespace can't be edited: they say which object it is")
	}
	patch := threeWayPatch(was, wanted, was)
	if len(patch) == 0 {
		return Change{Unchanged, copied, copied}, nil
	}
	return c.PatchIf(ctx, k, a.Namespace, a.Name, how, func(now Object) (map[string]any, error) {
		have, err := now.Manifest()
		if err != nil {
			return nil, err
		}
		if now.Metadata.UID != a.UID && a.UID != "" {
			return nil, resource.Errorf(resource.Conflict, "metadata.uid", "the object was deleted meanwhile, and is another one now")
		}
		if path := changedPath(patch, was, have, ""); path != "" {
			return nil, resource.Errorf(resource.Conflict, path, "another client has changed it meanwhile")
		}
		return patch, nil
	})
}

// PatchIf reads an object, and merges the patch that decide makes of it, unless another client changes it in between: then it begins again.
// Without a patch nothing is changed.
func (c *Client) PatchIf(ctx context.Context, k Kind, namespace, name string, how WriteOptions, decide func(now Object) (map[string]any, error)) (Change, error) {
	for try := 1; ; try++ {
		now, err := c.Object(ctx, k, namespace, name)
		if err != nil {
			return Change{}, err
		}
		patch, err := decide(now)
		if err != nil || len(patch) == 0 {
			return Change{Unchanged, now, now}, err
		}
		after, err := c.Patch(ctx, k, namespace, name, mergedTrees(patch, map[string]any{"metadata": map[string]any{"resourceVersion": now.Metadata.ResourceVersion}}), how)
		switch {
		case errors.Is(err, resource.Conflict) && try < writeTries:
		case err != nil:
			return Change{}, err
		case !how.DryRun && after.Metadata.ResourceVersion == now.Metadata.ResourceVersion:
			return Change{Unchanged, now, after}, nil
		default:
			return Change{Configured, now, after}, nil
		}
	}
}

// mergedTrees is a tree that has the fields of both; those of the second come first.
func mergedTrees(a, b map[string]any) map[string]any {
	merged := map[string]any{}
	for key, value := range a {
		merged[key] = value
	}
	for key, value := range b {
		below, isTree := value.(map[string]any)
		if own, both := merged[key].(map[string]any); isTree && both {
			value = mergedTrees(own, below)
		}
		merged[key] = value
	}
	return merged
}

// changedPath is a field that a patch changes and that two versions of an object have not in common; empty if there is none.
func changedPath(patch, was, now map[string]any, path string) string {
	for key, value := range patch {
		at := path + "." + key
		if path == "" {
			at = key
		}
		below, isTree := value.(map[string]any)
		before, wasTree := was[key].(map[string]any)
		after, nowTree := now[key].(map[string]any)
		if isTree && wasTree && nowTree {
			if found := changedPath(below, before, after, at); found != "" {
				return found
			}
			continue
		}
		if !reflect.DeepEqual(was[key], now[key]) {
			return at
		}
	}
	return ""
}
