// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// maxStatus bounds the status that is written, in bytes.
const maxStatus = 512 << 10

// WrittenPart is what of an object is written.
type WrittenPart int

const (
	// Spec is all but the status.
	Spec WrittenPart = iota
	// Status is the status only.
	Status
	// SpecAndStatus is the status and, as some other groups have desired values in theirs, spec and annotations.
	SpecAndStatus
)

// WriteOptions says who writes an object, and how. Warnings are for the writer.
type WriteOptions struct {
	// Manager is the field manager.
	Manager string
	// Origin names the writer of desired values in their metadata.
	Origin string
	// Trace is the traceparent of the write; empty: it belongs to no trace.
	Trace string
	// MaySetOwner says whether a controller that writes may set and clear an owner, and change what has it; nil: no controller writes.
	MaySetOwner func(owner string) bool
	Part        WrittenPart
	// Annotations are annotations of the hub's own that a new object gets.
	Annotations map[string]string
	// Derived says that what changes, a status or annotations, follows from what is stored elsewhere, and needn't be stored.
	Derived bool
	// statusOnly says that the writer looks at no spec, and specOnly at no status, which then isn't decoded for it.
	statusOnly, specOnly bool
	// DryRun says that everything happens but the write.
	DryRun bool
	// Force says that the writer deletes what its kind keeps from users.
	Force bool
	// Applied says that the object's managed fields are those of a server-side apply, which has merged them.
	Applied bool
	// Allow refuses an object that the writer may not write, as it is going to be; nil: the writer may write all.
	Allow func(name string, obj any) error
	// MayRefer refuses a reference that the writer may not make, because it would have the hub hand out what the writer may not read; nil:
	// the writer may refer to everything. It is asked for each reference that the object didn't have before.
	MayRefer func(Reference) error
	// Warnings are what may be a mistake in what was written.
	Warnings []string
}

// OwnedError refuses a change that only the owner of an object may make. It is no conflict that a repeated write resolves.
type OwnedError struct{ Field, Owner string }

// Error implements error.
func (e *OwnedError) Error() string {
	return e.Field + ": " + e.Owner + " manages the object: change that; labels and annotations are yours"
}

// maySetOwner says whether the writer may set and clear an owner, and change what has it.
func (w *WriteOptions) maySetOwner(owner string) bool {
	return owner == "" || w.MaySetOwner != nil && w.MaySetOwner(owner)
}

// errOwner refuses an owner that the writer may not set or clear.
func (w *WriteOptions) errOwner(owner string) error {
	if w.MaySetOwner == nil {
		return resource.Errorf(resource.Forbidden, "metadata.owner", "only controllers set or clear it (role controller, or an operator of all nodes with --as controller)")
	}
	return resource.Errorf(resource.Forbidden, "metadata.owner", "%q: a controller that is not the hub's own sets and clears owners that begin with its name and a slash", owner)
}

// Create validates and stores a new object. If it has no name, one is made of its generateName. o becomes the object as it
// is stored, but for its revision and what its kind completes.
func (s *Registry) Create(ctx context.Context, key store.Key, o *Object, w *WriteOptions) (store.Object, error) {
	m := &o.Metadata
	generated := m.Name == ""
	switch {
	case generated && m.GenerateName == "":
		return store.Object{}, resource.Errorf(resource.Invalid, "metadata.name", "name or generateName is required")
	case !w.maySetOwner(m.Owner):
		return store.Object{}, w.errOwner(m.Owner)
	}
	s.prepareForCreate(key, o, w)
	for try := 0; ; try++ {
		if generated {
			m.Name = m.GenerateName[:min(len(m.GenerateName), maxGenerated)] + s.Suffix()
		}
		key.Name, m.UID = m.Name, resource.NewUID()
		created, err := s.create(ctx, key, o, w)
		if !generated || try == 8 || !errors.Is(err, resource.AlreadyExists) {
			return created, err
		}
	}
}

// prepareForCreate sets the metadata of a new object that the hub decides on.
func (s *Registry) prepareForCreate(key store.Key, o *Object, w *WriteOptions) {
	m, now := &o.Metadata, s.Now().UTC().Truncate(time.Second)
	m.Namespace, m.CreationTimestamp, m.Generation, m.ResourceVersion = key.Namespace, &now, 1, ""
	if k := s.Kind(key.Kind); k.NoSpec && !k.Sealed {
		m.Generation = 0
	}
	m.DeletionTimestamp, m.DeletionGracePeriodSeconds, m.SelfLink = nil, nil, ""
	if !w.Applied {
		m.ManagedFields = nil
	}
	if w.MaySetOwner == nil {
		keepReserved(m, resource.Meta{})
	}
	if len(w.Annotations) > 0 {
		m.Annotations = mergedMap(m.Annotations, w.Annotations)
	}
	o.Status = nil
}

// create validates and stores a prepared object.
func (s *Registry) create(ctx context.Context, key store.Key, o *Object, w *WriteOptions) (store.Object, error) {
	k, mine := s.Kind(key.Kind), *o // a name may be taken, and then o is tried again
	o.value = nil                   // validation completes it
	next, err := s.validate(ctx, k, nil, &mine, w)
	if err != nil {
		return store.Object{}, err
	}
	record, err := s.Encode(key, next)
	if err != nil {
		return record, err
	}
	if w.DryRun {
		return record, s.checkFree(ctx, k, key)
	}
	if k.UniqueName {
		defer s.names.creating.begin(key)()
		if err := s.names.claim(ctx, key); err != nil {
			return record, err
		}
	}
	return s.storeIndexed(k, key, next, func() (store.Object, error) { return s.Writer.Create(ctx, record) })
}

// Change writes what edit makes of an object. The object that edit returns may say in its resourceVersion for which
// revision it is; without one a write that meets another one is repeated, under a lock: many writers that repeat at once
// would mostly make each other fail.
func (s *Registry) Change(ctx context.Context, key store.Key, w *WriteOptions, edit func(old *Object) (*Object, error)) (store.Object, error) {
	for lock := (*sync.Mutex)(nil); ; {
		stored, err := s.Reader.Get(ctx, key)
		if err != nil {
			return stored, err
		}
		old, err := s.Decode(stored)
		if err != nil {
			return stored, err
		}
		wanted, err := edit(old)
		if err != nil {
			return store.Object{}, err
		}
		expected := wanted.Metadata.ResourceVersion
		if expected != "" && expected != old.Metadata.ResourceVersion {
			rev, _ := strconv.ParseUint(expected, 10, 64)
			return store.Object{}, store.Conflict(key, rev, old.rev)
		}
		changed, err := s.update(ctx, key, old, wanted, w)
		if !errors.Is(err, resource.Conflict) || expected != "" || ctx.Err() != nil {
			return changed, err
		}
		if lock == nil {
			lock = s.retryLock(key)
			lock.Lock()
			defer lock.Unlock()
		}
	}
}

// retryLock is the lock for repeated writes of an object; other objects may share it.
func (s *Registry) retryLock(key store.Key) *sync.Mutex {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key.String())) // a hash never fails
	return &s.retryLocks[h.Sum32()%uint32(len(s.retryLocks))]
}

// prepareForUpdate is the object that replaces old when wanted is written: what a writer can't change is old's.
func (s *Registry) prepareForUpdate(k *Kind, old, wanted *Object, w *WriteOptions) (*Object, error) {
	next := *wanted
	m, was := &next.Metadata, old.Metadata
	switch {
	case m.Owner == was.Owner || w.maySetOwner(was.Owner) && w.maySetOwner(m.Owner):
	case was.Owner != "" && w.MaySetOwner == nil:
		return nil, &OwnedError{"metadata.owner", was.Owner}
	case !w.maySetOwner(was.Owner):
		return nil, w.errOwner(was.Owner)
	default:
		return nil, w.errOwner(m.Owner)
	}
	if was.DeletionTimestamp != nil {
		for _, f := range m.Finalizers {
			if !slices.Contains(was.Finalizers, f) {
				return nil, resource.Errorf(resource.Invalid, "metadata.finalizers", "%q: no new finalizers once the deletion has begun", f)
			}
		}
	}
	if w.MaySetOwner == nil {
		keepReserved(m, was)
	}
	m.Name, m.Namespace, m.UID, m.GenerateName = was.Name, was.Namespace, was.UID, was.GenerateName
	m.CreationTimestamp, m.DeletionTimestamp = was.CreationTimestamp, was.DeletionTimestamp
	m.DeletionGracePeriodSeconds, m.SelfLink = was.DeletionGracePeriodSeconds, ""
	m.ResourceVersion, m.Generation, m.ManagedFields = was.ResourceVersion, was.Generation, was.ManagedFields
	next.Status, next.DesiredMeta, next.rev = old.Status, old.DesiredMeta, old.rev
	if sameSpec(old, &next) || sameReordered(old, &next) {
		next.Spec = old.Spec
		return &next, nil
	}
	if !w.maySetOwner(was.Owner) {
		return nil, &OwnedError{"spec", was.Owner}
	}
	if !k.NoSpec {
		m.Generation++
	}
	return &next, nil
}

// validate checks an object that is going to be written, and lets its kind complete it; old is nil on create.
func (s *Registry) validate(ctx context.Context, k *Kind, old, next *Object, w *WriteOptions) (*Object, error) {
	w.Warnings = nil // of a try before
	typed, err := k.withoutStatus(next)
	if err != nil {
		return nil, err
	}
	next.value = nil // it is going to be changed
	if w.Allow != nil {
		if err := w.Allow(next.Metadata.Name, typed); err != nil {
			return nil, err
		}
	}
	var prev any
	if old != nil {
		if prev, err = k.OldValue(old); err != nil {
			return nil, err
		}
	}
	changed := old == nil || !sameSpec(old, next)
	switch {
	case !changed:
		err = next.Metadata.ValidateChange(old.Metadata)
	case k.Validate != nil:
		err = k.Validate(ctx, s.Reader, prev, typed)
	}
	if err == nil {
		err = s.Grants.checkReferences(ctx, prev, typed, w)
	}
	if err != nil {
		return nil, err
	}
	if changed && !strings.HasPrefix(w.Origin, controllerOrigin) {
		if k.Warnings != nil {
			w.Warnings = k.Warnings(ctx, s.Reader, prev, typed)
		}
		w.Warnings = append(w.Warnings, s.warnSettings(typed)...)
	}
	if changed {
		if err := s.setReady(k, next); err != nil {
			return nil, err
		}
	}
	if k.Prepare == nil {
		return next, nil
	}
	k.Prepare(prev, typed, w, s.Now())
	prepared, err := k.Untyped(typed)
	if err != nil {
		return nil, err
	}
	prepared.Status, prepared.rev = next.Status, next.rev
	if old != nil {
		keepSealed(old, prepared)
		if k.Sealed && !sameSpec(old, prepared) { // only now it is known whether the values change
			prepared.Metadata.Generation++
		}
	}
	if changed && k.PrepareStatus != nil {
		prepared.Status, err = k.PrepareStatus(ctx, s.Reader, prev, typed, next.Status, s.Now())
	}
	return prepared, err
}

// update validates and stores a changed object or status.
func (s *Registry) update(ctx context.Context, key store.Key, old, wanted *Object, w *WriteOptions) (store.Object, error) {
	k := s.Kind(key.Kind)
	if w.Part != Spec {
		if err := k.validateStatus(old, wanted); err != nil {
			return store.Object{}, err
		}
	}
	switch w.Part {
	case Status:
		return s.updateStatus(ctx, key, old, wanted, w)
	case SpecAndStatus:
		mine := *wanted
		mine.Metadata = old.Metadata
		mine.Metadata.Annotations = wanted.Metadata.Annotations
		wanted = &mine
	}
	next, err := s.prepareForUpdate(k, old, wanted, w)
	if err != nil {
		return store.Object{}, err
	}
	if w.Part == SpecAndStatus {
		next.Status = wanted.Status
	}
	if next, err = s.validate(ctx, k, old, next, w); err == nil {
		if old.Metadata.DeletionTimestamp != nil && w.MaySetOwner == nil && !sameSpec(old, next) {
			w.Warnings = append(w.Warnings, strings.ToLower(k.Name)+" "+key.Name+" is being deleted, and takes what is written with it: write it again when it is gone")
		}
		err = s.trackManagers(k, old, next, wanted, w)
	}
	if err != nil {
		return store.Object{}, err
	}
	record, err := s.Encode(key, next)
	if err != nil || w.DryRun {
		return record, err
	}
	if next.Metadata.DeletionTimestamp != nil && len(next.Metadata.Finalizers) == 0 {
		return record, s.remove(ctx, k, key, old)
	}
	write := s.Writer.Update
	if w.Derived && s.Derived != nil {
		write, record.Status = s.Derived.UpdateDerived, nil
	}
	stored, err := s.storeIndexed(k, key, next, func() (store.Object, error) { return write(ctx, record, old.rev) })
	if err == nil {
		s.releaseReferences(ctx, k, key, old, next)
	}
	return stored, err
}

// setReady sets the condition Ready of an object that is going to be written.
func (s *Registry) setReady(k *Kind, o *Object) error {
	if k.SetReady == nil {
		return nil
	}
	v, err := k.Typed(o)
	if err != nil {
		return err
	}
	k.SetReady(v, s.Now())
	with, err := k.withStatus(o, v)
	if err == nil {
		o.Status = with.Status
	}
	return err
}

// updateStatus stores a changed status.
func (s *Registry) updateStatus(ctx context.Context, key store.Key, old, wanted *Object, w *WriteOptions) (store.Object, error) {
	next := *old
	next.Status = wanted.Status
	if err := s.trackManagers(s.Kind(key.Kind), old, &next, wanted, w); err != nil {
		return store.Object{}, err
	}
	if err := s.setReady(s.Kind(key.Kind), &next); err != nil {
		return store.Object{}, err
	}
	record := store.Object{Key: key, Rev: old.rev, Status: next.Status} // without Data only the status is written
	if w.DryRun || !bytes.Equal(next.Metadata.ManagedFields, old.Metadata.ManagedFields) {
		var err error
		if record, err = s.Encode(key, &next); err != nil || w.DryRun {
			return record, err
		}
	}
	if record.Data == nil && bytes.Equal(next.Status, old.Status) { // the store takes a status alone for a change if it was derived
		stored, err := s.Reader.Get(ctx, key)
		if err == nil && stored.Rev != old.rev {
			err = store.Conflict(key, old.rev, stored.Rev)
		}
		return stored, err
	}
	if record.Status == nil {
		record.Status = json.RawMessage{} // removes it
	}
	if w.Derived && s.Derived != nil && record.Data == nil {
		return s.Derived.UpdateDerived(ctx, record, old.rev)
	}
	return s.Writer.Update(ctx, record, old.rev)
}

func (k *Kind) validateStatus(old, wanted *Object) error {
	if most := max(maxStatus, k.MaxStatus); len(wanted.Status) > max(most, len(old.Status)) {
		return resource.Errorf(resource.TooLarge, "status", "it has %d bytes; at most %d are kept", len(wanted.Status), most)
	}
	typed := wanted.value
	if typed == nil {
		var err error
		if typed, err = k.Typed(&Object{TypeMeta: wanted.TypeMeta, Metadata: wanted.Metadata, Status: wanted.Status}); err != nil {
			return err
		}
	}
	if _, _, status := commonFields(typed); status.IsValid() {
		if field := status.FieldByName("Conditions"); field.IsValid() {
			if err := resource.CheckConditions(field.Interface().([]resource.Condition)); err != nil {
				return err
			}
		}
	}
	if k.ValidateStatus == nil {
		return nil
	}
	return k.ValidateStatus(typed)
}

const (
	suffixLetters = "bcdfghjklmnpqrstvwxz2456789" // no vowels: no words
	suffixLength  = 5
	// maxGenerated is how much of a generateName is in the name. With the suffix it is as long as a label's value may be, as in Kubernetes.
	maxGenerated = 63 - suffixLength
)

// randomSuffix makes a name of a generateName unique.
func randomSuffix() string {
	b := make([]byte, suffixLength)
	_, _ = rand.Read(b) // crypto/rand never fails
	for i := range b {
		b[i] = suffixLetters[int(b[i])%len(suffixLetters)]
	}
	return string(b)
}

// checkFree fails if an object of that name can't be created now.
func (s *Registry) checkFree(ctx context.Context, k *Kind, key store.Key) error {
	_, err := s.Reader.Get(ctx, key)
	switch {
	case err == nil:
		return store.AlreadyExists(key)
	case !errors.Is(err, resource.NotFound):
		return err
	case !k.UniqueName:
		return nil
	}
	_, err = s.names.checkClaim(ctx, key)
	return err
}
