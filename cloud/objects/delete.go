// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// inUseFinalizer is the finalizer of an object that others reference. The hub itself sets and removes it.
const inUseFinalizer = resource.Group + "/in-use"

// Delete deletes an object, or marks it as deleted if something has to happen first. check may refuse; nil: nothing does.
// It returns the object as it is left, or as it was.
func (s *Registry) Delete(ctx context.Context, key store.Key, w *WriteOptions, check func(old *Object) error) (*Object, error) {
	for {
		stored, err := s.Reader.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		old, err := s.Decode(stored)
		if err == nil && check != nil {
			err = check(old)
		}
		if err == nil {
			err = s.checkDelete(ctx, key, old, w)
		}
		if err != nil {
			return nil, err
		}
		left, err := s.deleteOrMark(ctx, key, old, w)
		if !errors.Is(err, resource.Conflict) || ctx.Err() != nil {
			return left, err
		}
	}
}

// checkDelete asks the kind of an object whether a user may delete it. The hub's controllers may.
func (s *Registry) checkDelete(ctx context.Context, key store.Key, old *Object, w *WriteOptions) error {
	k := s.Kind(key.Kind)
	if k.CheckDelete == nil || w.MaySetOwner != nil || w.Force {
		return nil
	}
	v, err := k.Typed(old)
	if err != nil {
		return err
	}
	return k.CheckDelete(ctx, s.Reader, v)
}

func (s *Registry) deleteOrMark(ctx context.Context, key store.Key, old *Object, w *WriteOptions) (*Object, error) {
	w.Warnings = nil // of a try before
	k := s.Kind(key.Kind)
	next, users, err := s.withDeletionMark(ctx, k, key, old)
	if err != nil {
		return nil, err
	}
	if len(users) > 0 {
		w.Warnings = append(w.Warnings, strings.ToLower(k.Name)+" "+key.Name+" is in use by "+nameUsers(users)+"; it goes when they do")
	}
	if len(next.Metadata.Finalizers) == 0 {
		gone := *old
		gone.Metadata.Finalizers = nil
		if !w.DryRun {
			err = s.remove(ctx, k, key, old)
		}
		return &gone, err
	}
	if w.DryRun {
		return next, nil
	}
	return s.replace(ctx, key, next)
}

// withDeletionMark is an object with a deletionTimestamp, and the names of the objects that use it.
func (s *Registry) withDeletionMark(ctx context.Context, k *Kind, key store.Key, old *Object) (next *Object, users []string, err error) {
	marked := *old
	m := &marked.Metadata
	m.Finalizers = slices.DeleteFunc(slices.Clone(m.Finalizers), func(f string) bool { return f == inUseFinalizer })
	if users, err = s.usersOf(ctx, k, key); err != nil {
		return nil, nil, err
	}
	if len(users) > 0 {
		m.Finalizers = append(m.Finalizers, inUseFinalizer)
		if marked.Status, err = s.withInUse(old.Status, users); err != nil {
			return nil, nil, err
		}
	}
	if m.DeletionTimestamp == nil {
		now, zero := s.Now().UTC().Truncate(time.Second), int64(0)
		m.DeletionTimestamp, m.DeletionGracePeriodSeconds = &now, &zero
		m.Generation++
	}
	return &marked, users, nil
}

// withInUse adds the condition InUse to a status.
func (s *Registry) withInUse(status json.RawMessage, users []string) (json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	var conditions []resource.Condition
	if len(status) > 0 {
		if err := json.Unmarshal(status, &fields); err != nil {
			return nil, err
		}
		_ = json.Unmarshal(fields["conditions"], &conditions) // none, or invalid ones
	}
	conditions = resource.SetCondition(conditions, resource.Condition{
		Type: "InUse", Status: "True", Reason: "HeldByDevices",
		Message: "deletion waits for " + nameUsers(users),
	}, s.Now())
	raw, err := json.Marshal(conditions)
	if err != nil {
		return nil, err
	}
	fields["conditions"] = raw
	return json.Marshal(fields)
}

// nameUsers names the users of an object if they are few. How many more there are would change with each deletion, and be a write of its own.
func nameUsers(users []string) string {
	if len(users) > maxUsers {
		return fmt.Sprintf("more than %d Devices", maxUsers)
	}
	return strings.Join(users, ", ")
}

// replace stores an object and its status.
func (s *Registry) replace(ctx context.Context, key store.Key, next *Object) (*Object, error) {
	record, err := s.Encode(key, next)
	if err != nil {
		return nil, err
	}
	stored, err := s.Writer.Update(ctx, record, next.rev)
	if err != nil {
		return nil, err
	}
	return s.Decode(stored)
}

// remove removes an object from the store, and continues deletions that waited for it.
func (s *Registry) remove(ctx context.Context, k *Kind, key store.Key, old *Object) error {
	if _, err := s.Writer.Delete(ctx, key, old.rev); err != nil {
		return err
	}
	if k.UniqueName {
		s.names.unclaim(ctx, key)
	}
	s.releaseReferences(ctx, k, key, old, nil)
	return nil
}

// releaseReferences continues the deletion of objects that old referenced and next doesn't; next is nil if old is deleted. A
// failure is logged: the next start tries again.
func (s *Registry) releaseReferences(ctx context.Context, k *Kind, key store.Key, old, next *Object) {
	if k.References == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	still := k.references(next)
	for _, ref := range k.references(old) {
		if !slices.Contains(still, ref) {
			s.index.drop(key, ref)
			s.continueDeletion(ctx, ref)
		}
	}
}

func (s *Registry) continueDeletion(ctx context.Context, key store.Key) {
	if err := s.tryDeletion(ctx, key); err != nil {
		s.Log.Error().Err(err).Stringer("object", key).Msg("a deletion that waited could not go on")
	}
}

// tryDeletion removes an object whose deletion waited for others, or updates what it waits for.
func (s *Registry) tryDeletion(ctx context.Context, key store.Key) error {
	k := s.Kind(key.Kind)
	for {
		stored, err := s.Reader.Get(ctx, key)
		if k == nil || errors.Is(err, resource.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		old, err := s.Decode(stored)
		if err != nil || !slices.Contains(old.Metadata.Finalizers, inUseFinalizer) {
			return err
		}
		next, _, err := s.withDeletionMark(ctx, k, key, old)
		if err != nil {
			return err
		}
		switch {
		case len(next.Metadata.Finalizers) == 0:
			err = s.remove(ctx, k, key, old)
		case !bytes.Equal(next.Status, old.Status):
			_, err = s.replace(ctx, key, next)
		}
		if !errors.Is(err, resource.Conflict) {
			return err
		}
	}
}

// continueDeletions continues all deletions that wait: the hub may have stopped between the deletion of a Device and that
// of its DeviceModel.
func (s *Registry) continueDeletions(ctx context.Context) {
	for i := range s.kinds {
		k := &s.kinds[i]
		if k.UsedBy == "" {
			continue
		}
		page, err := s.Reader.List(ctx, k.Name, store.ListOptions{DataOnly: true})
		if err != nil {
			s.Log.Error().Err(err).Msg("deletions that wait could not be looked at")
		}
		for _, o := range page.Items {
			s.continueDeletion(ctx, o.Key)
		}
	}
}
