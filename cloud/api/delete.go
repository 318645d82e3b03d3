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

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// inUse is the finalizer of an object that others hold. The API itself sets and
// clears it.
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

// checkPropagation refuses what nobody knows. No object is deleted because another one is, so that
// what there is makes no difference.
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

func (s *server) delete(w http.ResponseWriter, r *request) error {
	opts, err := readDeleteOptions(r)
	if err != nil {
		return err
	}
	dry, err := dryRun(append(opts.DryRun, r.Form["dryRun"]...))
	if err != nil {
		return err
	}
	left, err := s.deleteOne(w, r, opts, dry)
	if err != nil {
		return err
	}
	if len(left.Metadata.Finalizers) > 0 {
		return s.answer(w, r, http.StatusOK, left)
	}
	details := &StatusDetails{Name: r.key.Name, Group: r.kind.Group, Kind: r.kind.Plural, UID: left.Metadata.UID}
	writeJSON(w, http.StatusOK, Status{Kind: "Status", APIVersion: "v1", Status: "Success", Details: details})
	return nil
}

// deleteOne deletes an object, or begins to. It returns it as it is left, or as it last was.
func (s *server) deleteOne(w http.ResponseWriter, r *request, opts deleteOptions, dry bool) (*object, error) {
	for {
		old, err := s.load(r)
		if err != nil {
			return nil, err
		}
		if err := opts.check(r, old); err != nil {
			return nil, err
		}
		left, err := s.end(w, r, old, dry)
		switch {
		case errors.Is(err, resource.Conflict) && r.Context().Err() == nil:
			continue // somebody changed it meanwhile: what they made of it is deleted
		case err != nil:
			return nil, r.about(r.key.Name, err)
		case left == nil:
			gone := *old
			gone.Metadata.Finalizers = nil
			return &gone, nil
		}
		return left, nil
	}
}

func (o deleteOptions) check(r *request, old *object) error {
	if uid := o.Preconditions.UID; uid != "" && uid != old.Metadata.UID {
		return r.sameObject(old, &object{Metadata: resource.Meta{UID: uid}})
	}
	if rv := o.Preconditions.ResourceVersion; rv != "" && rv != old.Metadata.ResourceVersion {
		rev, err := revision(rv)
		if err != nil {
			return err
		}
		return r.about(r.key.Name, store.Conflict(r.key, rev, old.rev))
	}
	return nil
}

// end deletes an object or, when there is something to wait for, begins to. Then
// it returns the object that remains for now.
func (s *server) end(w http.ResponseWriter, r *request, old *object, dry bool) (*object, error) {
	ctx := r.Context()
	next, holders, err := s.marked(ctx, r.kind, r.key, old)
	if err != nil {
		return nil, err
	}
	if len(holders) > 0 {
		warn(w, "%s %s is in use by %s; it goes when they do", strings.ToLower(r.kind.Name), r.key.Name, someOf(holders))
	}
	if len(next.Metadata.Finalizers) == 0 {
		if dry {
			return nil, nil
		}
		return nil, s.remove(ctx, r.kind, r.key, old)
	}
	if dry {
		return next, nil
	}
	return s.store(ctx, r.key, next)
}

// marked is an object whose deletion has begun, with what it waits for.
func (s *server) marked(ctx context.Context, k *Kind, key store.Key, old *object) (next *object, holders []string, err error) {
	copied := *old
	next = &copied
	m := &next.Metadata
	m.Finalizers = slices.DeleteFunc(slices.Clone(m.Finalizers), func(f string) bool { return f == inUse })
	if k.HeldBy != nil {
		if holders, err = k.HeldBy(ctx, s.Reader, key); err != nil {
			return nil, nil, err
		}
		if len(holders) > 0 {
			m.Finalizers = append(m.Finalizers, inUse)
			if next.Status, err = s.held(old.Status, holders); err != nil {
				return nil, nil, err
			}
		}
	}
	if m.DeletionTimestamp == nil {
		now, zero := s.Now().UTC().Truncate(time.Second), int64(0)
		m.DeletionTimestamp, m.DeletionGracePeriodSeconds = &now, &zero
		m.Generation++
	}
	return next, holders, nil
}

func someOf(names []string) string {
	const most = 10
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// held puts the condition into a status that says who holds the object.
func (s *server) held(status json.RawMessage, holders []string) (json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	var conditions []resource.Condition
	if len(status) > 0 {
		if err := json.Unmarshal(status, &fields); err != nil {
			return nil, err
		}
		_ = json.Unmarshal(fields["conditions"], &conditions) // none, or none that we can keep
	}
	conditions = resource.SetCondition(conditions, resource.Condition{
		Type: "InUse", Status: "True", Reason: "HeldByDevices",
		Message: "deletion waits for " + someOf(holders),
	}, s.Now())
	raw, err := json.Marshal(conditions)
	if err != nil {
		return nil, err
	}
	fields["conditions"] = raw
	return json.Marshal(fields)
}

// store writes both records of an object.
func (s *server) store(ctx context.Context, key store.Key, next *object) (*object, error) {
	data, err := s.data(next)
	if err != nil {
		return nil, err
	}
	stored, err := s.Writer.Update(ctx, store.Object{Key: key, Data: data, Status: next.Status}, next.rev)
	if err != nil {
		return nil, err
	}
	return s.fromStore(stored)
}

// remove takes an object out of the store, and lets go of what it held.
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

// released looks again at those whose deletion may have waited for old; next is
// what became of it. Its failure is not the caller's: the next look mends it.
func (s *server) released(ctx context.Context, k *Kind, old, next *object) {
	if k.Holds == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	keep := s.holds(k, next)
	for _, key := range s.holds(k, old) {
		if slices.Contains(keep, key) {
			continue
		}
		if err := s.release(ctx, key); err != nil {
			s.Log.Error().Err(err).Stringer("object", key).Msg("a deletion that waited could not go on")
		}
	}
}

func (s *server) holds(k *Kind, o *object) []store.Key {
	if o == nil {
		return nil
	}
	typed, err := k.ruled(o)
	if err != nil {
		return nil
	}
	return k.Holds(typed)
}

func (s *server) kindNamed(name string) *Kind {
	i := slices.IndexFunc(s.Kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Kinds[i]
}

// release goes on with the deletion of an object, if one has begun.
func (s *server) release(ctx context.Context, key store.Key) error {
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
			_, err = s.store(ctx, key, next)
		}
		if !errors.Is(err, resource.Conflict) {
			return err
		}
	}
}

// releaseAll looks at every object that others may hold: the hub may have
// stopped between a device's deletion and its model's.
func (s *server) releaseAll(ctx context.Context) {
	for i := range s.Kinds {
		if s.Kinds[i].HeldBy == nil || s.Kinds[i].foreign != nil {
			continue
		}
		page, err := s.Reader.List(ctx, s.Kinds[i].Name, store.ListOptions{})
		if err != nil {
			s.Log.Error().Err(err).Msg("deletions that wait could not be looked at")
			continue
		}
		for _, o := range page.Items {
			if err := s.release(ctx, o.Key); err != nil {
				s.Log.Error().Err(err).Stringer("object", o.Key).Msg("a deletion that waited could not go on")
			}
		}
	}
}

// deleteCollection deletes, or begins to, what the selectors match. It is no transaction: each object
// goes by itself, and what was created meanwhile stays.
func (s *server) deleteCollection(w http.ResponseWriter, r *request) error {
	opts, err := readDeleteOptions(r)
	if err != nil {
		return err
	}
	dry, err := dryRun(append(opts.DryRun, r.Form["dryRun"]...))
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
	var out struct {
		listHead
		Items []json.RawMessage `json:"items"`
	}
	out.APIVersion, out.Kind, out.Metadata, out.Items = r.kind.apiVersion(), r.kind.Name+"List", meta, []json.RawMessage{}
	for _, o := range objects {
		one := &request{Request: r.Request, kind: r.kind, key: o.Key}
		left, err := s.deleteOne(w, one, opts, dry)
		if errors.Is(err, resource.NotFound) {
			continue // somebody was faster
		}
		if err != nil {
			return err
		}
		form, err := r.kind.form(left)
		if err != nil {
			return err
		}
		out.Items = append(out.Items, form)
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

func readDeleteOptions(r *request) (opts deleteOptions, err error) {
	if policy := r.FormValue("propagationPolicy"); policy != "" {
		opts.PropagationPolicy = &policy
	}
	if r.ContentLength == 0 {
		return opts, opts.checkPropagation()
	}
	raw, err := readBody(r.Request, r.media)
	if err != nil || string(raw) == "null" {
		return opts, err
	}
	if err := json.Unmarshal(raw, &opts); err != nil {
		return opts, badField(err)
	}
	return opts, opts.checkPropagation()
}
