package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// inUse is the finalizer of an object that others reference. The API itself sets and removes it.
const inUse = resource.Group + "/in-use"

type deleteOptions struct {
	Preconditions struct {
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"preconditions"`
	DryRun            []string `json:"dryRun"`
	PropagationPolicy *string  `json:"propagationPolicy"`
	OrphanDependents  *bool    `json:"orphanDependents"`
}

// deleteOptions reads the options of a deletion, and whether it is only to be tried.
func (r *request) deleteOptions() (opts deleteOptions, dry bool, err error) {
	if policy := r.FormValue("propagationPolicy"); policy != "" {
		opts.PropagationPolicy = &policy
	}
	if r.ContentLength != 0 {
		raw, err := readBody(r.Request, r.media)
		if err != nil {
			return opts, false, err
		}
		if err := json.Unmarshal(raw, &opts); err != nil {
			return opts, false, badField(err)
		}
	}
	if err := opts.checkPropagation(); err != nil {
		return opts, false, err
	}
	dry, err = dryRun(append(opts.DryRun, r.Form["dryRun"]...))
	return opts, dry, err
}

// checkPropagation refuses unknown policies. The known ones make no difference: nothing is deleted because its owner is.
func (o deleteOptions) checkPropagation() error {
	switch {
	case o.PropagationPolicy == nil:
		return nil
	case o.OrphanDependents != nil:
		return resource.Errorf(resource.Invalid, "propagationPolicy", "orphanDependents and propagationPolicy can't be set both")
	case !slices.Contains([]string{"Orphan", "Background", "Foreground"}, *o.PropagationPolicy):
		return resource.Errorf(resource.Invalid, "propagationPolicy", "%.40q: must be Background, Foreground or Orphan", *o.PropagationPolicy)
	}
	return nil
}

// delete serves DELETE of an object.
func (s *server) delete(w http.ResponseWriter, r *request) error {
	opts, dry, err := r.deleteOptions()
	if err != nil {
		return err
	}
	left, err := s.deleteObject(w, r, opts, dry)
	if err != nil {
		return err
	}
	if len(left.Metadata.Finalizers) > 0 {
		record, err := s.toStore(r.key, left)
		if err != nil {
			return err
		}
		return s.answer(w, r, http.StatusOK, record)
	}
	writeJSON(w, http.StatusOK, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: r.key.Name, Group: r.kind.Group, Kind: r.kind.Plural, UID: types.UID(left.Metadata.UID)},
	})
	return nil
}

// deleteCollection serves DELETE of what the selectors match. It is no transaction: objects are deleted one by one, and
// those that are created meanwhile stay.
func (s *server) deleteCollection(w http.ResponseWriter, r *request) error {
	opts, dry, err := r.deleteOptions()
	if err != nil {
		return err
	}
	sel, err := s.selector(r)
	if err != nil {
		return err
	}
	page, err := s.listOptions(r)
	if err != nil {
		return err
	}
	objects, meta, err := s.collect(r, page, sel)
	if err != nil {
		return err
	}
	items := []json.RawMessage{}
	for _, o := range objects {
		one := &request{Request: r.Request, kind: r.kind, key: o.Key}
		left, err := s.deleteObject(w, one, opts, dry)
		if errors.Is(err, resource.NotFound) {
			continue // deleted by somebody else
		}
		if err != nil {
			return err
		}
		form, err := r.kind.form(left)
		if err != nil {
			return err
		}
		items = append(items, form)
	}
	writeJSON(w, http.StatusOK, struct {
		listHead
		Items []json.RawMessage `json:"items"`
	}{r.kind.listHead(meta), items})
	return nil
}

// decommission ends a node's part in the bus: its certificates are taken no more, and its Node is deleted. It may be asked
// again, also when the Node is gone.
func (s *server) decommission(w http.ResponseWriter, r *http.Request) error {
	id, node := accessIn(r.Context()).id, r.PathValue("name")
	if !id.AllNodes() {
		return resource.Errorf(resource.Forbidden, "", "this is for operators of all nodes")
	}
	if err := s.Decommission(node, id.User); err != nil {
		return err
	}
	as := r.Clone(r.Context())
	as.Method, as.Body, as.ContentLength = http.MethodDelete, http.NoBody, 0
	as.URL.Path, as.URL.RawPath = "/apis/"+resource.APIVersion+"/nodes/"+node, ""
	err := s.object(w, as)
	if errors.Is(err, resource.NotFound) {
		writeJSON(w, http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
		return nil
	}
	return err
}

// deleteObject deletes an object, or marks it as deleted if something has to happen first. It returns the object as it is
// left, or as it was.
func (s *server) deleteObject(w http.ResponseWriter, r *request, opts deleteOptions, dry bool) (*object, error) {
	for {
		old, err := s.load(r)
		if err != nil {
			return nil, err
		}
		if uid := opts.Preconditions.UID; uid != "" {
			err = r.checkIdentity(old, &object{Metadata: resource.Meta{UID: uid}})
		}
		if err == nil {
			err = r.checkRevision(opts.Preconditions.ResourceVersion, old)
		}
		if err != nil {
			return nil, err
		}
		left, err := s.deleteOrMark(w, r, old, dry)
		if errors.Is(err, resource.Conflict) && r.Context().Err() == nil {
			continue // changed meanwhile
		}
		return left, r.about(r.key.Name, err)
	}
}

func (s *server) deleteOrMark(w http.ResponseWriter, r *request, old *object, dry bool) (*object, error) {
	ctx := r.Context()
	next, users, err := s.marked(ctx, r.kind, r.key, old)
	if err != nil {
		return nil, err
	}
	if len(users) > 0 {
		warn(w, "%s %s is in use by %s; it goes when they do", strings.ToLower(r.kind.Name), r.key.Name, joinFirst(users))
	}
	if len(next.Metadata.Finalizers) == 0 {
		gone := *old
		gone.Metadata.Finalizers = nil
		if !dry {
			err = s.remove(ctx, r.kind, r.key, old)
		}
		return &gone, err
	}
	if dry {
		return next, nil
	}
	return s.replace(ctx, r.key, next)
}

// marked is an object with a deletionTimestamp, and the names of the objects that use it.
func (s *server) marked(ctx context.Context, k *Kind, key store.Key, old *object) (next *object, users []string, err error) {
	marked := *old
	m := &marked.Metadata
	m.Finalizers = slices.DeleteFunc(slices.Clone(m.Finalizers), func(f string) bool { return f == inUse })
	if k.ReferencedBy != nil {
		if users, err = k.ReferencedBy(ctx, s.Reader, key); err != nil {
			return nil, nil, err
		}
	}
	if len(users) > 0 {
		m.Finalizers = append(m.Finalizers, inUse)
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
func (s *server) withInUse(status json.RawMessage, users []string) (json.RawMessage, error) {
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
		Message: "deletion waits for " + joinFirst(users),
	}, s.Now())
	raw, err := json.Marshal(conditions)
	if err != nil {
		return nil, err
	}
	fields["conditions"] = raw
	return json.Marshal(fields)
}

// joinFirst lists the first ten names.
func joinFirst(names []string) string {
	const most = 10
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// replace stores an object and its status.
func (s *server) replace(ctx context.Context, key store.Key, next *object) (*object, error) {
	record, err := s.toStore(key, next)
	if err != nil {
		return nil, err
	}
	stored, err := s.Writer.Update(ctx, record, next.rev)
	if err != nil {
		return nil, err
	}
	return s.fromStore(stored)
}

// remove removes an object from the store, and continues deletions that waited for it.
func (s *server) remove(ctx context.Context, k *Kind, key store.Key, old *object) error {
	if _, err := s.Writer.Delete(ctx, key, old.rev); err != nil {
		return err
	}
	if k.UniqueName {
		s.unclaim(ctx, key)
	}
	s.released(ctx, k, old, nil)
	return nil
}

// released continues the deletion of objects that old referenced and next doesn't; next is nil if old is deleted. A
// failure is logged: the next start tries again.
func (s *server) released(ctx context.Context, k *Kind, old, next *object) {
	if k.References == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	still := k.references(next)
	for _, key := range k.references(old) {
		if !slices.Contains(still, key) {
			s.continueDeletion(ctx, key)
		}
	}
}

func (k *Kind) references(o *object) []store.Key {
	if o == nil {
		return nil
	}
	typed, err := k.withoutStatus(o)
	if err != nil {
		return nil
	}
	return k.References(typed)
}

func (s *server) kindNamed(name string) *Kind {
	i := slices.IndexFunc(s.Kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Kinds[i]
}

func (s *server) continueDeletion(ctx context.Context, key store.Key) {
	if err := s.tryDeletion(ctx, key); err != nil {
		s.Log.Error().Err(err).Stringer("object", key).Msg("a deletion that waited could not go on")
	}
}

// tryDeletion removes an object whose deletion waited for others, or updates what it waits for.
func (s *server) tryDeletion(ctx context.Context, key store.Key) error {
	k := s.kindNamed(key.Kind)
	for {
		stored, err := s.Reader.Get(ctx, key)
		if k == nil || errors.Is(err, resource.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		old, err := s.fromStore(stored)
		if err != nil || !slices.Contains(old.Metadata.Finalizers, inUse) {
			return err
		}
		next, _, err := s.marked(ctx, k, key, old)
		if err != nil {
			return err
		}
		if len(next.Metadata.Finalizers) == 0 {
			err = s.remove(ctx, k, key, old)
		} else {
			_, err = s.replace(ctx, key, next)
		}
		if !errors.Is(err, resource.Conflict) {
			return err
		}
	}
}

// continueDeletions continues all deletions that wait: the hub may have stopped between the deletion of a Device and that
// of its DeviceModel.
func (s *server) continueDeletions(ctx context.Context) {
	for i := range s.Kinds {
		k := &s.Kinds[i]
		if k.ReferencedBy == nil || k.dialect != nil {
			continue
		}
		page, err := s.Reader.List(ctx, k.Name, store.ListOptions{})
		if err != nil {
			s.Log.Error().Err(err).Msg("deletions that wait could not be looked at")
		}
		for _, o := range page.Items {
			s.continueDeletion(ctx, o.Key)
		}
	}
}
