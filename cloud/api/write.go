package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"hash/fnv"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// maxStatus bounds the status that a client writes, in bytes.
const maxStatus = 512 << 10

// create serves POST.
func (s *server) create(w http.ResponseWriter, r *request) error {
	raw, err := r.body()
	if err != nil {
		return err
	}
	o, err := s.decode(w, r, raw, nil)
	if err != nil {
		return err
	}
	generated := o.Metadata.Name == ""
	if generated && o.Metadata.GenerateName == "" {
		return r.about("", resource.Errorf(resource.Invalid, "metadata.name", "name or generateName is required"))
	}
	for try := 0; ; try++ {
		if generated {
			o.Metadata.Name = o.Metadata.GenerateName + s.Suffix()
		}
		err = s.createObject(w, r, o, nil)
		if !generated || try == 8 || !errors.Is(err, resource.AlreadyExists) {
			return err
		}
	}
}

// createObject prepares, validates, stores and answers a new object.
func (s *server) createObject(w http.ResponseWriter, r *request, o *object, managedFields json.RawMessage) error {
	dry, err := dryRun(r.Form["dryRun"])
	if err != nil {
		return err
	}
	if err := s.prepareForCreate(r, o); err != nil {
		return err
	}
	o.Metadata.ManagedFields = managedFields
	audit.Name(r.Request, o.Metadata.Name)
	created, err := s.storeNew(r, o, dry)
	if err != nil {
		return r.about(o.Metadata.Name, err)
	}
	return s.answer(w, r, http.StatusCreated, created)
}

// put serves PUT.
func (s *server) put(w http.ResponseWriter, r *request) error {
	raw, err := r.body()
	if err != nil {
		return err
	}
	return s.change(w, r, func(old *object) (*object, error) { return s.decode(w, r, raw, old) })
}

// change writes what edit makes of an object. A write without a resourceVersion that meets another one is repeated,
// under a lock: many writers that repeat at once would mostly make each other fail.
func (s *server) change(w http.ResponseWriter, r *request, edit func(*object) (*object, error)) error {
	dry, err := dryRun(r.Form["dryRun"])
	if err != nil {
		return err
	}
	for lock := (*sync.Mutex)(nil); ; {
		old, err := s.load(r)
		if err != nil {
			return err
		}
		wanted, err := edit(old)
		if err != nil {
			return err
		}
		expected := wanted.Metadata.ResourceVersion
		if err := r.checkRevision(expected, old); err != nil {
			return err
		}
		changed, err := s.update(r, old, wanted, dry)
		if errors.Is(err, resource.Conflict) && expected == "" && r.Context().Err() == nil {
			if lock == nil {
				lock = s.retryLock(r.key)
				lock.Lock()
				defer lock.Unlock()
			}
			continue
		}
		if err != nil {
			return r.about(r.key.Name, err)
		}
		return s.answer(w, r, http.StatusOK, changed)
	}
}

// retryLock is the lock for repeated writes of an object; other objects may share it.
func (s *server) retryLock(key store.Key) *sync.Mutex {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key.String())) // a hash never fails
	return &s.retryLocks[h.Sum32()%uint32(len(s.retryLocks))]
}

// checkRevision fails if a client expects another revision than the stored one; "" expects none.
func (r *request) checkRevision(expected string, old *object) error {
	if expected == "" || expected == old.Metadata.ResourceVersion {
		return nil
	}
	rev, err := revision(expected)
	if err != nil {
		return err
	}
	return r.about(r.key.Name, store.Conflict(r.key, rev, old.rev))
}

// decode decodes an object of a client. Unknown and duplicate fields are refused or warned of, as fieldValidation says.
func (s *server) decode(w http.ResponseWriter, r *request, raw []byte, old *object) (*object, error) {
	o, unknown, err := r.toCanonical(raw, old)
	if err != nil {
		return nil, err
	}
	w.Header().Del("Warning") // of a try before
	return o, checkFields(w, r, unknown)
}

// dryRun reports whether a write is only to be tried.
func dryRun(values []string) (bool, error) {
	for _, v := range values {
		if v != "All" {
			return false, badRequest("dryRun", "dryRun must be All, not %q", v)
		}
	}
	return len(values) > 0, nil
}

// origin names the writer of desired values in their metadata.
func origin(r *request) string {
	name := r.FormValue("fieldManager")
	if name == "" {
		name, _, _ = strings.Cut(r.UserAgent(), "/")
	}
	name = strings.Map(func(c rune) rune {
		if c <= ' ' || c > '~' {
			return '-'
		}
		return c
	}, name)
	if name == "" {
		return "api"
	}
	return "api/" + name[:min(len(name), 64)]
}

// prepareForCreate sets the metadata of a new object that the server decides on.
func (s *server) prepareForCreate(r *request, o *object) error {
	m := &o.Metadata
	switch {
	case m.Namespace != "" && m.Namespace != r.key.Namespace:
		return r.wrongNamespace(m.Namespace)
	case m.ResourceVersion != "":
		return badRequest("metadata.resourceVersion", "resourceVersion should not be set on objects to be created")
	case m.Owner != "" && !accessIn(r.Context()).controls:
		return r.about(m.Name, errOwner)
	}
	now := s.Now().UTC().Truncate(time.Second)
	m.Namespace, m.UID, m.CreationTimestamp, m.Generation = r.key.Namespace, resource.NewUID(), &now, 1
	if r.kind.NoSpec {
		m.Generation = 0
	}
	m.DeletionTimestamp, m.DeletionGracePeriodSeconds, m.SelfLink = nil, nil, ""
	o.Status = nil
	return nil
}

func (r *request) wrongNamespace(namespace string) error {
	return badRequest("metadata.namespace", "the namespace of the object (%s) does not match the namespace on the path (%s)", namespace, r.key.Namespace)
}

func (r *request) wrongName(name string) error {
	return badRequest("metadata.name", "the name of the object (%s) does not match the name on the URL (%s)", name, r.key.Name)
}

// checkIdentity fails if a body is about another object than the path.
func (r *request) checkIdentity(old, wanted *object) error {
	m := wanted.Metadata
	switch {
	case m.Name != "" && m.Name != r.key.Name:
		return r.wrongName(m.Name)
	case m.Namespace != "" && m.Namespace != r.key.Namespace:
		return r.wrongNamespace(m.Namespace)
	case m.UID != "" && m.UID != old.Metadata.UID:
		return refuse(http.StatusConflict, "Conflict", "Precondition failed: UID in precondition: %s, UID in object meta: %s", m.UID, old.Metadata.UID)
	}
	return nil
}

var errOwner = resource.Errorf(resource.Forbidden, "metadata.owner", "only controllers (role controller) set or clear it")

// errOwned refuses a change that only the owner of an object may make. It is no conflict that a repeated write resolves.
func errOwned(field, owner string) error {
	return refuse(http.StatusConflict, "Conflict", "%s: %s manages the object: change that; labels and annotations are yours", field, owner).
		withCauses(metav1.StatusCause{Type: metav1.CauseTypeFieldManagerConflict, Field: field, Message: "managed by " + owner})
}

// prepareForUpdate is the object that replaces old when a client writes wanted: what a client can't change is old's.
func (s *server) prepareForUpdate(r *request, old, wanted *object) (*object, error) {
	next := *wanted
	m, was := &next.Metadata, old.Metadata
	controls := accessIn(r.Context()).controls
	switch {
	case m.Owner == was.Owner || controls:
	case was.Owner != "":
		return nil, errOwned("metadata.owner", was.Owner)
	default:
		return nil, errOwner
	}
	if was.DeletionTimestamp != nil {
		for _, f := range m.Finalizers {
			if !slices.Contains(was.Finalizers, f) {
				return nil, resource.Errorf(resource.Invalid, "metadata.finalizers", "%q: no new finalizers once the deletion has begun", f)
			}
		}
	}
	m.Name, m.Namespace, m.UID, m.GenerateName = was.Name, was.Namespace, was.UID, was.GenerateName
	m.CreationTimestamp, m.DeletionTimestamp = was.CreationTimestamp, was.DeletionTimestamp
	m.DeletionGracePeriodSeconds, m.SelfLink = was.DeletionGracePeriodSeconds, ""
	m.ResourceVersion, m.Generation, m.ManagedFields = was.ResourceVersion, was.Generation, was.ManagedFields
	next.Status, next.DesiredMeta, next.rev = old.Status, old.DesiredMeta, old.rev
	if sameSpec(old, &next) || reordered(old, &next) {
		next.Spec = old.Spec
		return &next, nil
	}
	if was.Owner != "" && !controls {
		return nil, errOwned("spec", was.Owner)
	}
	if !r.kind.NoSpec {
		m.Generation++
	}
	return &next, nil
}

// sameSpec reports whether two specs are the same text; no spec is {}.
func sameSpec(a, b *object) bool {
	return bytes.Equal(orEmpty(a.Spec), orEmpty(b.Spec))
}

// reordered reports whether two specs differ in the order of fields only. They may, where a spec has JSON of free form.
func reordered(a, b *object) bool {
	return len(a.Spec) == len(b.Spec) && jsonpatch.Equal(a.Spec, b.Spec)
}

func orEmpty(raw json.RawMessage) []byte {
	if len(raw) == 0 {
		return []byte("{}")
	}
	return raw
}

// validate checks an object that is going to be written, and lets its kind complete it; old is nil on create.
func (s *server) validate(ctx context.Context, r *request, old, next *object) (*object, error) {
	k := r.kind
	r.warnings = nil // of a try before
	typed, err := k.withoutStatus(next)
	if err != nil {
		return nil, err
	}
	next.value = nil // it is going to be changed
	if a := accessIn(ctx); !s.has(ctx, a, k, typed) {
		return nil, r.forbidden(a, next.Metadata.Name)
	}
	var prev any
	if old != nil {
		if prev, err = k.oldValue(old); err != nil {
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
	if err != nil {
		return nil, err
	}
	if changed && k.Warnings != nil {
		r.warnings = k.Warnings(ctx, s.Reader, prev, typed)
	}
	if k.NotReconciled {
		r.warnings = append(r.warnings, "nothing acts on "+k.qualified()+" yet: the hub checks and keeps the object, and no node changes because of it")
	}
	if k.Prepare == nil {
		return next, nil
	}
	k.Prepare(prev, typed, origin(r), s.Now())
	prepared, err := k.untyped(typed)
	if err != nil {
		return nil, err
	}
	prepared.Status, prepared.rev = next.Status, next.rev
	if old != nil {
		keepSealed(old, prepared)
	}
	if changed && k.PrepareStatus != nil {
		prepared.Status, err = k.PrepareStatus(ctx, s.Reader, prev, typed, next.Status, s.Now())
	}
	return prepared, err
}

// oldValue is an object that is going to be replaced, in the Go type of the kind.
func (k *Kind) oldValue(old *object) (v any, err error) {
	if k.OldStatus {
		return k.typed(old)
	}
	old.value, err = k.withoutStatus(old)
	return old.value, err
}

// storeNew validates and stores a new object.
func (s *server) storeNew(r *request, o *object, dry bool) (store.Object, error) {
	ctx := r.Context()
	next, err := s.validate(ctx, r, nil, o)
	if err != nil {
		return store.Object{}, err
	}
	key := r.key
	key.Name = next.Metadata.Name
	record, err := s.toStore(key, next)
	if err != nil {
		return record, err
	}
	if dry {
		return record, s.checkFree(ctx, r.kind, key)
	}
	if r.kind.UniqueName {
		if err := s.claim(ctx, key); err != nil {
			return record, err
		}
	}
	return s.Writer.Create(ctx, record)
}

// update validates and stores a changed object or status.
func (s *server) update(r *request, old, wanted *object, dry bool) (store.Object, error) {
	if err := r.checkIdentity(old, wanted); err != nil {
		return store.Object{}, err
	}
	if r.subresource == "status" {
		return s.updateStatus(r, old, wanted, dry)
	}
	next, err := s.prepareForUpdate(r, old, wanted)
	if err != nil {
		return store.Object{}, err
	}
	next, record, err := s.validated(r, old, next, wanted)
	if err != nil || dry {
		return record, err
	}
	if next.Metadata.DeletionTimestamp != nil && len(next.Metadata.Finalizers) == 0 {
		return record, s.remove(r.Context(), r.kind, r.key, old)
	}
	stored, err := s.Writer.Update(r.Context(), record, old.rev)
	if err == nil {
		s.released(r.Context(), r.kind, old, next)
	}
	return stored, err
}

// validated is a changed object and its record: validated, and with its managers.
func (s *server) validated(r *request, old, next, wanted *object) (*object, store.Object, error) {
	next, err := s.validate(r.Context(), r, old, next)
	if err == nil {
		err = s.trackManagers(r, old, next, wanted)
	}
	if err != nil {
		return nil, store.Object{}, err
	}
	record, err := s.toStore(r.key, next)
	return next, record, err
}

// updateStatus validates and stores a changed status.
func (s *server) updateStatus(r *request, old, wanted *object, dry bool) (store.Object, error) {
	if err := r.kind.validateStatus(old, wanted); err != nil {
		return store.Object{}, err
	}
	if r.kind.dialect != nil {
		return s.updateDialectStatus(r, old, wanted, dry)
	}
	next := *old
	next.Status = wanted.Status
	if err := s.trackManagers(r, old, &next, wanted); err != nil {
		return store.Object{}, err
	}
	record, err := s.toStore(r.key, &next)
	if err != nil || dry {
		return record, err
	}
	if record.Status == nil {
		record.Status = json.RawMessage{} // removes it
	}
	if bytes.Equal(next.Metadata.ManagedFields, old.Metadata.ManagedFields) {
		record.Data = nil // is not written
	}
	return s.Writer.Update(r.Context(), record, old.rev)
}

// updateDialectStatus stores the status of an object in the form of another group: some have desired values in it, and
// an annotation may keep a part of it.
func (s *server) updateDialectStatus(r *request, old, wanted *object, dry bool) (store.Object, error) {
	mine := *wanted
	mine.Metadata = old.Metadata
	mine.Metadata.Annotations = wanted.Metadata.Annotations
	next, err := s.prepareForUpdate(r, old, &mine)
	if err != nil {
		return store.Object{}, err
	}
	next.Status = wanted.Status
	_, record, err := s.validated(r, old, next, &mine)
	if err != nil || dry {
		return record, err
	}
	return s.Writer.Update(r.Context(), record, old.rev)
}

func (k *Kind) validateStatus(old, wanted *object) error {
	if len(wanted.Status) > max(maxStatus, len(old.Status)) {
		return resource.Errorf(resource.TooLarge, "status", "it has %d bytes; at most %d are kept", len(wanted.Status), maxStatus)
	}
	var status struct{ Conditions []resource.Condition }
	_ = json.Unmarshal(orEmpty(wanted.Status), &status) // it has been decoded into the kind's Go type
	if err := resource.CheckConditions(status.Conditions); err != nil || k.ValidateStatus == nil {
		return err
	}
	typed, err := k.typed(wanted)
	if err != nil {
		return err
	}
	return k.ValidateStatus(typed)
}

const suffixLetters = "bcdfghjklmnpqrstvwxz2456789" // no vowels: no words

// suffix makes a name of a generateName unique.
func suffix() string {
	b := make([]byte, 5)
	_, _ = rand.Read(b) // crypto/rand never fails
	for i := range b {
		b[i] = suffixLetters[int(b[i])%len(suffixLetters)]
	}
	return string(b)
}

// A claim reserves a name that is unique over all namespaces. It is a record of its own, made before the object, since
// the store has no transactions over several objects. A claim whose object was never created, because the hub
// stopped in between, may be taken over after claimAge.
type claim struct {
	Namespace string `json:"namespace"`
	At        int64  `json:"at"` // milliseconds since 1970
}

// claimAge is longer than any create takes.
const claimAge = time.Minute

func claimKey(key store.Key) store.Key {
	return store.Key{Kind: key.Kind + "Name", Name: key.Name}
}

// checkFree fails if an object of that name can't be created now.
func (s *server) checkFree(ctx context.Context, k *Kind, key store.Key) error {
	_, err := s.Reader.Get(ctx, key)
	switch {
	case err == nil:
		return store.AlreadyExists(key)
	case !errors.Is(err, resource.NotFound):
		return err
	case !k.UniqueName:
		return nil
	}
	_, err = s.checkClaim(ctx, key)
	return err
}

// checkClaim fails if another namespace has claimed a name. It returns the revision of a claim that may be renewed, or 0.
func (s *server) checkClaim(ctx context.Context, key store.Key) (rev uint64, err error) {
	stored, err := s.Reader.Get(ctx, claimKey(key))
	if errors.Is(err, resource.NotFound) {
		return 0, nil
	}
	var c claim
	if err == nil {
		err = json.Unmarshal(stored.Data, &c)
	}
	if err != nil || c.Namespace == key.Namespace {
		return stored.Rev, err
	}
	other := key
	other.Namespace = c.Namespace
	_, err = s.Reader.Get(ctx, other)
	fresh := s.Now().UnixMilli() < c.At+claimAge.Milliseconds()
	switch {
	case err == nil, errors.Is(err, resource.NotFound) && fresh:
		return 0, resource.Errorf(resource.AlreadyExists, "metadata.name",
			"the names of %ss are unique over all namespaces, and %s has it", key.Kind, other)
	case errors.Is(err, resource.NotFound):
		return stored.Rev, nil
	}
	return 0, err
}

// claim reserves the name of an object that is going to be created.
func (s *server) claim(ctx context.Context, key store.Key) error {
	for {
		rev, err := s.checkClaim(ctx, key)
		if err != nil {
			return err
		}
		data, err := json.Marshal(claim{key.Namespace, s.Now().UnixMilli()})
		if err != nil {
			return err
		}
		o := store.Object{Key: claimKey(key), Data: data}
		if rev == 0 {
			_, err = s.Writer.Create(ctx, o)
		} else {
			_, err = s.Writer.Update(ctx, o, rev)
		}
		raced := errors.Is(err, resource.AlreadyExists) || errors.Is(err, resource.Conflict) || errors.Is(err, resource.NotFound)
		if !raced || ctx.Err() != nil {
			return err
		}
	}
}

// unclaim releases the name of a deleted object, unless it has been claimed again. A claim that can't be deleted
// becomes invalid by its age.
func (s *server) unclaim(ctx context.Context, key store.Key) {
	ctx = context.WithoutCancel(ctx)
	rev, err := s.checkClaim(ctx, key)
	if err != nil || rev == 0 {
		return
	}
	if _, err := s.Reader.Get(ctx, key); !errors.Is(err, resource.NotFound) {
		return
	}
	if _, err := s.Writer.Delete(ctx, claimKey(key), rev); err != nil && !errors.Is(err, resource.Conflict) && !errors.Is(err, resource.NotFound) {
		s.Log.Warn().Err(err).Stringer("object", key).Msg("the claim of a deleted object's name could not be removed")
	}
}
