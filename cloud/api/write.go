package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// dryRun says whether a write is to be tried only.
func dryRun(values []string) (bool, error) {
	for _, v := range values {
		if v != "All" {
			return false, badRequest("dryRun", "dryRun must be All, not %q", v)
		}
	}
	return len(values) > 0, nil
}

// origin is who writes, as desired values remember it.
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

// read decodes the body of a create or update, and minds the fields that are not known.
func (s *server) read(w http.ResponseWriter, r *request) (*object, error) {
	raw, err := r.body()
	if err != nil {
		return nil, err
	}
	return s.heed(w, r, raw, nil)
}

// heed understands a body, and minds the fields that are not known.
func (s *server) heed(w http.ResponseWriter, r *request, raw []byte, old *object) (*object, error) {
	o, unknown, err := r.understand(raw, old)
	if err != nil {
		return nil, err
	}
	w.Header().Del("Warning") // of the last try
	return o, checkFields(w, r, unknown)
}

func (s *server) create(w http.ResponseWriter, r *request) error {
	dry, err := dryRun(r.Form["dryRun"])
	if err != nil {
		return err
	}
	o, err := s.read(w, r)
	if err != nil {
		return err
	}
	if err := s.newborn(r, o); err != nil {
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
		made, err := s.add(r, o, dry)
		if generated && try < 8 && errors.Is(err, resource.AlreadyExists) {
			continue
		}
		if err != nil {
			return r.about(o.Metadata.Name, err)
		}
		return s.answer(w, r, http.StatusCreated, made)
	}
}

// newborn gives a new object the metadata that is the hub's to give.
func (s *server) newborn(r *request, o *object) error {
	m := &o.Metadata
	switch {
	case m.Namespace != "" && m.Namespace != r.key.Namespace:
		return badRequest("metadata.namespace", "the namespace of the object (%s) does not match the namespace on the path (%s)", m.Namespace, r.key.Namespace)
	case m.ResourceVersion != "":
		return badRequest("metadata.resourceVersion", "resourceVersion should not be set on objects to be created")
	case m.Owner != "" && !accessIn(r.Context()).controls:
		return r.about(m.Name, errOwner)
	}
	now := s.Now().UTC().Truncate(time.Second)
	m.Namespace, m.UID, m.CreationTimestamp, m.Generation = r.key.Namespace, resource.NewUID(), &now, 1
	if r.kind.Flat {
		m.Generation = 0
	}
	m.DeletionTimestamp, m.DeletionGracePeriodSeconds, m.ManagedFields, m.SelfLink = nil, nil, nil, ""
	o.Status = nil
	return nil
}

var errOwner = resource.Errorf(resource.Forbidden, "metadata.owner", "only controllers (role controller) set or clear it")

// owned refuses what somebody else's owner has to write. It isn't a conflict of revisions, which a later try could win.
func owned(field, owner string) error {
	return &httpError{
		code: http.StatusConflict, reason: "Conflict", details: &StatusDetails{Causes: []StatusCause{{Reason: "FieldManagerConflict", Field: field, Message: "managed by " + owner}}},
		message: fmt.Sprintf("%s: %s manages the object: change that; labels and annotations are yours", field, owner),
	}
}

const suffixLetters = "bcdfghjklmnpqrstvwxz2456789" // no vowels: no words

func suffix() string {
	b := make([]byte, 5)
	_, _ = rand.Read(b) // crypto/rand never fails
	for i := range b {
		b[i] = suffixLetters[int(b[i])%len(suffixLetters)]
	}
	return string(b)
}

func (s *server) add(r *request, o *object, dry bool) (*object, error) {
	ctx := r.Context()
	next, err := s.complete(ctx, r, nil, o)
	if err != nil {
		return nil, err
	}
	data, err := s.data(next)
	if err != nil {
		return nil, err
	}
	key := r.key
	key.Name = next.Metadata.Name
	if dry {
		return next, s.free(ctx, r.kind, key)
	}
	if r.kind.UniqueName {
		if err := s.claim(ctx, key); err != nil {
			return nil, err
		}
	}
	stored, err := s.Writer.Create(ctx, store.Object{Key: key, Data: data, Status: next.Status})
	if err != nil {
		return nil, err
	}
	return s.fromStore(stored)
}

// free says whether a name could be taken now.
func (s *server) free(ctx context.Context, k *Kind, key store.Key) error {
	_, err := s.Reader.Get(ctx, key)
	switch {
	case err == nil:
		return store.AlreadyExists(key)
	case !errors.Is(err, resource.NotFound):
		return err
	case !k.UniqueName:
		return nil
	}
	_, err = s.claimant(ctx, key)
	return err
}

// complete validates an object that is going to be written and lets its kind
// complete it.
func (s *server) complete(ctx context.Context, r *request, old, next *object) (*object, error) {
	k := r.kind
	r.doubts = nil // of the last try
	typed, err := k.ruled(next)
	if err != nil {
		return nil, err
	}
	next.value = nil // it is about to be changed
	if a := accessIn(ctx); !s.ofTheirs(ctx, a, k, typed) {
		return nil, r.forbidden(a, next.Metadata.Name)
	}
	var prev any
	if old != nil {
		if prev, err = k.before(old); err != nil {
			return nil, err
		}
	}
	if old == nil || !sameSpec(old, next) {
		if k.Validate != nil {
			err = k.Validate(ctx, s.Reader, prev, typed)
		}
	} else {
		err = next.Metadata.ValidateChange(old.Metadata)
	}
	if err != nil {
		return nil, err
	}
	if k.Doubts != nil && (old == nil || !sameSpec(old, next)) {
		r.doubts = k.Doubts(ctx, s.Reader, prev, typed)
	}
	if k.Kept {
		r.doubts = append(r.doubts, "nothing acts on "+k.qualified()+" yet: the hub checks and keeps the object, and no node changes because of it")
	}
	if k.Prepare == nil {
		return next, nil
	}
	k.Prepare(prev, typed, origin(r), s.Now())
	done, err := k.untyped(typed)
	if err != nil {
		return nil, err
	}
	done.Status, done.rev = next.Status, next.rev
	if old != nil {
		keepSealed(old, done)
	}
	if k.StatusAfter != nil && (old == nil || !sameSpec(old, next)) {
		done.Status, err = k.StatusAfter(ctx, s.Reader, prev, typed, next.Status, s.Now())
	}
	return done, err
}

// before is an object that is going to be replaced, in the kind's Go type.
func (k *Kind) before(old *object) (v any, err error) {
	if k.StatusRules {
		return k.typed(old)
	}
	old.value, err = k.ruled(old)
	return old.value, err
}

func sameSpec(a, b *object) bool {
	return bytes.Equal(orEmpty(a.Spec), orEmpty(b.Spec))
}

// reorders reports whether the specs differ in the order of fields only. It may, where a spec has JSON of another
// program in it.
func reorders(a, b *object) bool {
	return len(a.Spec) == len(b.Spec) && jsonpatch.Equal(a.Spec, b.Spec)
}

func orEmpty(spec json.RawMessage) []byte {
	if len(spec) == 0 {
		return []byte("{}")
	}
	return spec
}

func (s *server) put(w http.ResponseWriter, r *request) error {
	raw, err := r.body()
	if err != nil {
		return err
	}
	return s.change(w, r, func(old *object) (*object, error) { return s.heed(w, r, raw, old) })
}

// change writes what edit makes of an object. Without a resourceVersion it tries again
// when somebody else was faster: then one at a time, for many who try again at
// once would spend most of their work on losing.
func (s *server) change(w http.ResponseWriter, r *request, edit func(*object) (*object, error)) error {
	dry, err := dryRun(r.Form["dryRun"])
	if err != nil {
		return err
	}
	for turn := (*sync.Mutex)(nil); ; {
		old, err := s.load(r)
		if err != nil {
			return err
		}
		wanted, err := edit(old)
		if err != nil {
			return err
		}
		expected := wanted.Metadata.ResourceVersion
		if expected != "" && expected != old.Metadata.ResourceVersion {
			rev, err := revision(expected)
			if err != nil {
				return err
			}
			return r.about(r.key.Name, store.Conflict(r.key, rev, old.rev))
		}
		next, err := s.update(r, old, wanted, dry)
		if errors.Is(err, resource.Conflict) && expected == "" && r.Context().Err() == nil {
			if turn == nil {
				turn = s.turn(r.key)
				turn.Lock()
				defer turn.Unlock()
			}
			continue
		}
		if err != nil {
			return r.about(r.key.Name, err)
		}
		return s.answer(w, r, http.StatusOK, next)
	}
}

// turn is the lock of those who try again to write an object, and some others.
func (s *server) turn(key store.Key) *sync.Mutex {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key.String())) // a hash never fails
	return &s.turns[h.Sum32()%uint32(len(s.turns))]
}

func (s *server) update(r *request, old, wanted *object, dry bool) (*object, error) {
	if err := r.sameObject(old, wanted); err != nil {
		return nil, err
	}
	if r.subresource == "status" {
		if err := r.kind.checkStatus(old, wanted); err != nil {
			return nil, err
		}
		if r.kind.foreign != nil {
			return s.updateBoth(r, old, wanted, dry)
		}
		return s.updateStatus(r, old, wanted, dry)
	}
	next, err := s.successor(r, old, wanted)
	if err != nil {
		return nil, err
	}
	if next, err = s.complete(r.Context(), r, old, next); err != nil {
		return nil, err
	}
	if err = s.record(r, old, next, wanted); err != nil || dry {
		return next, err
	}
	if next.Metadata.DeletionTimestamp != nil && len(next.Metadata.Finalizers) == 0 {
		return next, s.remove(r.Context(), r.kind, r.key, old)
	}
	data, err := s.data(next)
	if err != nil {
		return nil, err
	}
	stored, err := s.Writer.Update(r.Context(), store.Object{Key: r.key, Data: data, Status: next.Status}, old.rev)
	if err != nil {
		return nil, err
	}
	s.released(r.Context(), r.kind, old, next)
	return s.fromStore(stored)
}

// record keeps the record of managers: an apply brings its own.
func (s *server) record(r *request, old, next, wanted *object) error {
	if r.applies() {
		next.Metadata.ManagedFields = wanted.Metadata.ManagedFields
		return nil
	}
	return s.track(r, old, next, wanted.Metadata.ManagedFields)
}

// sameObject refuses a body that is about another object than the path.
func (r *request) sameObject(old, wanted *object) error {
	m := wanted.Metadata
	switch {
	case m.Name != "" && m.Name != r.key.Name:
		return badRequest("metadata.name", "the name of the object (%s) does not match the name on the URL (%s)", m.Name, r.key.Name)
	case m.Namespace != "" && m.Namespace != r.key.Namespace:
		return badRequest("metadata.namespace", "the namespace of the object (%s) does not match the namespace on the path (%s)", m.Namespace, r.key.Namespace)
	case m.UID != "" && m.UID != old.Metadata.UID:
		return &httpError{
			code: http.StatusConflict, reason: "Conflict",
			message: "Precondition failed: UID in precondition: " + m.UID + ", UID in object meta: " + old.Metadata.UID,
		}
	}
	return nil
}

// successor is the object that follows old when a client wants wanted: what is
// not the client's to change is old's.
func (s *server) successor(r *request, old, wanted *object) (*object, error) {
	next := *wanted
	m, was := &next.Metadata, old.Metadata
	controls := accessIn(r.Context()).controls
	switch {
	case m.Owner == was.Owner || controls:
	case was.Owner != "":
		return nil, owned("metadata.owner", was.Owner)
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
	if sameSpec(old, &next) || reorders(old, &next) {
		next.Spec = old.Spec // absent and {} are one
		return &next, nil
	}
	if was.Owner != "" && !controls {
		return nil, owned("spec", was.Owner)
	}
	if !r.kind.Flat {
		m.Generation++
	}
	return &next, nil
}

// maxStatus bounds the status that a client writes, in bytes.
const maxStatus = 512 << 10

func (k *Kind) checkStatus(old, wanted *object) error {
	if len(wanted.Status) > max(maxStatus, len(old.Status)) {
		return resource.Errorf(resource.TooLarge, "status", "it has %d bytes; at most %d are kept", len(wanted.Status), maxStatus)
	}
	var status struct{ Conditions []resource.Condition }
	_ = json.Unmarshal(orEmpty(wanted.Status), &status) // it is of the kind's form
	if err := resource.CheckConditions(status.Conditions); err != nil || k.CheckStatus == nil {
		return err
	}
	typed, err := k.typed(wanted)
	if err != nil {
		return err
	}
	return k.CheckStatus(typed)
}

func (s *server) updateStatus(r *request, old, wanted *object, dry bool) (*object, error) {
	next := *old
	next.Status = wanted.Status
	if err := s.record(r, old, &next, wanted); err != nil || dry {
		return &next, err
	}
	write := store.Object{Key: r.key, Status: next.Status}
	if write.Status == nil {
		write.Status = json.RawMessage{} // removes it
	}
	if !bytes.Equal(next.Metadata.ManagedFields, old.Metadata.ManagedFields) {
		var err error
		if write.Data, err = s.data(&next); err != nil {
			return nil, err
		}
	}
	stored, err := s.Writer.Update(r.Context(), write, old.rev)
	if err != nil {
		return nil, err
	}
	return s.fromStore(stored)
}

// A name that is unique over all namespaces is taken by a record of its own, for
// the store has no transaction over several objects: the claim is made first,
// then the object. One whose object never came, because the hub stopped between
// the two, may be taken over after a while.
type claim struct {
	Namespace string `json:"namespace"`
	At        int64  `json:"at"` // milliseconds since 1970
}

// claimAge is how long a claim holds without its object: longer than any create takes.
const claimAge = time.Minute

func claimKey(key store.Key) store.Key {
	return store.Key{Kind: key.Kind + "Name", Name: key.Name}
}

// claimant reads who has a name. It fails when that is another namespace for good.
func (s *server) claimant(ctx context.Context, key store.Key) (rev uint64, err error) {
	stored, err := s.Reader.Get(ctx, claimKey(key))
	if errors.Is(err, resource.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var c claim
	if err := json.Unmarshal(stored.Data, &c); err != nil {
		return 0, err
	}
	if c.Namespace == key.Namespace {
		return stored.Rev, nil
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

// claim takes a name for an object that is about to be created.
func (s *server) claim(ctx context.Context, key store.Key) error {
	for {
		rev, err := s.claimant(ctx, key)
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

// unclaim gives a name back after its object has gone. A claim that was renewed
// meanwhile stays; one that can't be taken back lapses.
func (s *server) unclaim(ctx context.Context, key store.Key) {
	ctx = context.WithoutCancel(ctx)
	rev, err := s.claimant(ctx, key)
	if err != nil || rev == 0 {
		return
	}
	if _, err := s.Reader.Get(ctx, key); !errors.Is(err, resource.NotFound) {
		return
	}
	if _, err := s.Writer.Delete(ctx, claimKey(key), rev); err != nil && !errors.Is(err, resource.Conflict) && !errors.Is(err, resource.NotFound) {
		s.Log.Warn().Err(err).Stringer("object", key).Msg("the name was not given back")
	}
}
