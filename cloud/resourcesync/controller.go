// SPDX-License-Identifier: Apache-2.0

// Package resourcesync applies the manifests of git repositories: what a ResourceSync describes is created, changed and deleted in the
// hub as it is in its repository.
//
// It owns what it applied (metadata.owner is ResourceSync/{name}), and never changes or deletes an object that is not its own. It
// reads no repository: package cloud/sources does. A pure function of manifests and owners, planSync, decides what to do.
package resourcesync

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options are what the controller needs.
type Options struct {
	Objects *objects.Registry
	Reader  store.Reader
	// Sources say what a path of a repository contains.
	Sources interface {
		Use(user store.Key, refs []resource.Reference, every time.Duration)
		Users(kind string) func(store.Object) []store.Key
		Known(ctx context.Context, ref resource.Reference) (known resource.Reference, failure error, err error)
	}
	// Content reads a part of a blob.
	Content func(digest string, p []byte, offset int64) (int, error)
	// Record records an Event.
	Record func(resource.Occurrence)
	// Interval is how often what was applied is compared with what there is; 0: 5 minutes.
	Interval time.Duration
	Now      func() time.Time // nil: time.Now
}

const (
	controllerName = "resourcesync"
	finalizer      = objects.ResourceSyncFinalizer
	// appliedAnnotation has the names of the labels and annotations that were applied last: one that a manifest doesn't have
	// any more is removed, and those that users have set stay.
	appliedAnnotation = objects.SyncAppliedAnnotation

	conditionParsed = "ResourceParsed"
	conditionSynced = "Synced"
	// idleFactor is how many times as long as a comparison with all objects has taken the next one waits at least.
	idleFactor = 50
	// maxNamed bounds how many objects or references a message names.
	maxNamed = 5
)

// NewController makes the controller of ResourceSyncs.
func NewController(o Options) control.Controller {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Interval == 0 {
		o.Interval = 5 * time.Minute
	}
	c := &controller{Options: o, as: o.Objects.Controller(controllerName)}
	return control.Controller{
		Name: controllerName, Workers: 2, Reconcile: c.reconcile, Timeout: 5 * time.Minute,
		Watches: []control.Watch{
			{Kind: resource.KindResourceSync, DataOnly: true},
			{Kind: resource.KindSource, Keys: o.Sources.Users(resource.KindResourceSync)},
		},
	}
}

type controller struct {
	Options
	as *objects.Controller
}

// Owner is metadata.owner of what a ResourceSync owns.
func Owner(sync string) string { return resource.KindResourceSync + "/" + sync }

func (c *controller) reconcile(ctx context.Context, key store.Key) (time.Duration, error) {
	rs, err := objects.Get[resource.ResourceSync](ctx, c.as, key)
	if errors.Is(err, resource.NotFound) {
		c.Sources.Use(key, nil, 0)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if rs.Metadata.DeletionTimestamp != nil {
		return 0, c.release(ctx, key, rs)
	}
	if !slices.Contains(rs.Metadata.Finalizers, finalizer) {
		err := objects.Update(ctx, c.as, key, func(r *resource.ResourceSync) error {
			if r.Metadata.DeletionTimestamp == nil && !slices.Contains(r.Metadata.Finalizers, finalizer) {
				r.Metadata.Finalizers = append(r.Metadata.Finalizers, finalizer)
			}
			return nil
		})
		return 0, err // its change is looked at next
	}
	every := c.Interval
	if d, err := time.ParseDuration(rs.Spec.Interval); err == nil {
		every = d
	}
	ref := resource.Reference{Type: resource.RefGit, Source: rs.Spec.Repository, Path: rs.Spec.Path, Floating: rs.Spec.TargetRevision}
	c.Sources.Use(key, []resource.Reference{ref}, every)
	known, failure, err := c.Sources.Known(ctx, ref)
	if err != nil || known.Resolved == "" && failure == nil {
		return 0, err // it is being read
	}
	began := time.Now()
	out := syncOutcome{commit: rs.Status.ObservedCommit}
	if failure != nil {
		out.set(resource.ConditionAccessible, failureReason(failure), failure.Error())
	} else {
		out.set(resource.ConditionAccessible, "", "the repository can be read")
		err = c.sync(ctx, rs, known, &out)
	}
	// A short interval is for new commits, which the source tells of. That all is still as it was applied is looked at for a small part of
	// the time, however many objects there are.
	return max(every, idleFactor*time.Since(began)), errors.Join(err, c.report(ctx, key, rs, out))
}

func failureReason(failure error) string {
	var why interface{ Cause() string }
	if errors.As(failure, &why) {
		return why.Cause()
	}
	return "NotFound"
}

// syncOutcome is what a status says.
type syncOutcome struct {
	commit     string
	conditions []resource.Condition
}

// set adds a condition, which is True if there is no reason why not.
func (o *syncOutcome) set(kind, whyNot, message string) {
	c := resource.Condition{Type: kind, Status: "True", Reason: kind, Message: message}
	if whyNot != "" {
		c.Status, c.Reason = "False", whyNot
	}
	o.conditions = append(o.conditions, c)
}

// sync makes the hub have what the repository describes. Nothing is done unless all manifests can be read.
func (c *controller) sync(ctx context.Context, rs *resource.ResourceSync, known resource.Reference, out *syncOutcome) error {
	wanted, err := c.parse(known.Files)
	if err != nil {
		out.set(conditionParsed, "Invalid", err.Error())
		return nil
	}
	refused, err := c.refused(ctx, rs, wanted)
	if err != nil {
		return err
	}
	if refused != "" {
		out.set(conditionParsed, "NotAllowed", refused)
		return nil
	}
	out.set(conditionParsed, "", fmt.Sprintf("%d manifests", len(wanted)))
	owner := Owner(rs.Metadata.Name)
	owners, err := c.owners(ctx, wanted, owner)
	if err != nil {
		return err
	}
	p := planSync(wanted, owner, owners)
	var failed []string
	for _, m := range p.foreign {
		failed = append(failed, fmt.Sprintf("%s: there is a %s that is not of this ResourceSync (its owner is %q), and is left alone", m.file, m.key, owners[m.key]))
	}
	broken := false
	for _, m := range p.apply {
		if err := c.apply(ctx, m, rs); err != nil {
			if ctx.Err() != nil {
				return err
			}
			failed, broken = append(failed, fmt.Sprintf("%s: %s: %v", m.file, m.key, err)), true
		}
	}
	for _, key := range p.prune {
		if broken || len(p.foreign) > 0 { // what is described under another name now must be there before this goes
			break
		}
		if err := c.prune(ctx, key, rs); err != nil {
			failed = append(failed, fmt.Sprintf("%s: %v", key, err))
		}
	}
	if len(failed) > 0 {
		reason := "NotApplied"
		if len(p.foreign) == len(failed) {
			reason = "OwnedByOthers"
		}
		out.set(conditionSynced, reason, joinFirst(failed))
		return nil
	}
	out.commit = known.Resolved
	out.set(conditionSynced, "", fmt.Sprintf("%d objects are as commit %s describes them", len(p.apply), known.Resolved))
	return nil
}

// parse reads the manifests in files. There must be one: a directory that was emptied by mistake must not empty the hub.
func (c *controller) parse(files []resource.InlineFile) (all []manifest, err error) {
	seen := make(map[store.Key]string)
	for _, f := range files {
		if !slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(f.Path)) {
			continue // it has none, and may be large
		}
		content := make([]byte, f.Size)
		if n, err := c.Content(f.Digest, content, 0); err != nil || int64(n) != f.Size {
			return nil, errors.Join(fmt.Errorf("%s can't be read now", f.Path), err)
		}
		list, err := parseManifests(c.Objects, strings.TrimPrefix(f.Path, "/"), content)
		if err != nil {
			return nil, err
		}
		for _, m := range list {
			if before, twice := seen[m.key]; twice {
				return nil, fmt.Errorf("%s: the %s is also in %s", m.file, m.key, before)
			}
			seen[m.key] = m.file
		}
		if all = append(all, list...); len(all) > maxManifests {
			return nil, fmt.Errorf("there are more than %d manifests", maxManifests)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("there is no manifest, in no file that ends with .yaml, .yml or .json: to delete all that was applied delete it, or the ResourceSync first")
	}
	return all, nil
}

// refused names what manifests refer to and the ResourceSync does not allow; empty: nothing.
func (c *controller) refused(ctx context.Context, rs *resource.ResourceSync, wanted []manifest) (string, error) {
	var all []string
	for _, m := range wanted {
		for _, ref := range m.refs {
			err := c.Objects.Grants.CheckReference(ctx, ref, mayRefer(rs))
			if err != nil && !errors.Is(err, resource.Forbidden) {
				return "", err
			}
			if err != nil {
				all = append(all, fmt.Sprintf("%s: %v", m.file, err))
			}
		}
	}
	return joinFirst(all), nil
}

// mayRefer is what the manifests of a ResourceSync may refer to: see its spec.allow. ConfigMaps are among them, as a repository may describe
// them itself.
func mayRefer(rs *resource.ResourceSync) func(objects.Reference) error {
	return func(ref objects.Reference) error {
		kind := ref.Kind
		switch {
		case kind == resource.KindConfigMap, kind == objects.KindBlob && !ref.Fetched, kind == resource.KindRepository && ref.Name == rs.Spec.Repository:
			return nil
		case kind == objects.KindBlob:
			kind = resource.KindRepository
		}
		if slices.Contains(rs.Spec.Allow, kind) {
			return nil
		}
		return resource.Errorf(resource.Forbidden, "", "%s, and spec.allow of the ResourceSync lists no %s", ref, kind)
	}
}

// joinFirst names the first of many.
func joinFirst(all []string) string {
	if more := len(all) - maxNamed; more > 0 {
		all = append(all[:maxNamed:maxNamed], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, "; ")
}

// owners are the owners of the objects that are described, if there are such objects, and of all that the ResourceSync owns.
func (c *controller) owners(ctx context.Context, wanted []manifest, owner string) (map[store.Key]string, error) {
	owners := make(map[store.Key]string)
	quoted, _ := json.Marshal(owner) // a text
	note := func(o store.Object, all bool) error {
		of := rawjson.Field(rawjson.Field(o.Data, "metadata"), "owner") // without decoding what is of no concern
		if !all && !bytes.Equal(of, quoted) {
			return nil
		}
		var name string
		if len(of) > 0 {
			if err := json.Unmarshal(of, &name); err != nil {
				return fmt.Errorf("the stored %s can't be read: %w", o.Key, err)
			}
		}
		owners[o.Key] = name
		return nil
	}
	for _, m := range wanted {
		o, err := c.Reader.Get(ctx, m.key)
		if err == nil {
			err = note(o, true)
		}
		if err != nil && !errors.Is(err, resource.NotFound) {
			return nil, err
		}
	}
	for _, kind := range Kinds {
		for o, err := range store.All(ctx, c.Reader, kind, store.ListOptions{}) {
			if err == nil {
				err = note(o, false)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return owners, nil
}

// write is who writes for a ResourceSync.
func (c *controller) write(rs *resource.ResourceSync) *objects.WriteOptions {
	owner := Owner(rs.Metadata.Name)
	return &objects.WriteOptions{
		Manager: controllerName, Origin: strings.ToLower(owner), MaySetOwner: func(of string) bool { return of == "" || of == owner }, MayRefer: mayRefer(rs),
	}
}

func (c *controller) audit(action string, key store.Key, err error) {
	if c.Objects.Audit != nil {
		c.Objects.Audit(controllerName, action, key, err)
	}
}

var errForeign = errors.New("it has another owner by now, and is left alone")

// apply creates an object, or updates it to its manifest. An unchanged object is not written.
func (c *controller) apply(ctx context.Context, m manifest, rs *resource.ResourceSync) error {
	owner := Owner(rs.Metadata.Name)
	var before string
	changed, err := c.Objects.Change(ctx, m.key, c.write(rs), func(old *objects.Object) (*objects.Object, error) {
		if old.Metadata.Owner != owner {
			return nil, errForeign
		}
		before = old.Metadata.ResourceVersion
		wanted, _, err := m.object(c.Objects, old)
		if err != nil {
			return nil, err
		}
		said := wanted.Metadata
		wanted.Metadata = old.Metadata
		wanted.Metadata.ResourceVersion = "" // repeat after a conflict
		mergeMetadata(&wanted.Metadata, said)
		return wanted, nil
	})
	if errors.Is(err, resource.NotFound) {
		o, _, err := m.object(c.Objects, nil)
		if err != nil {
			return err
		}
		said := o.Metadata
		o.Metadata = resource.Meta{Name: said.Name, Owner: owner}
		mergeMetadata(&o.Metadata, said)
		_, err = c.Objects.Create(ctx, m.key, o, c.write(rs))
		c.audit("create", m.key, err)
		return err
	}
	if err != nil || fmt.Sprint(changed.Rev) != before {
		c.audit("update", m.key, err)
	}
	return err
}

// appliedNames are the names of what was applied last.
type appliedNames struct {
	Labels      []string `json:"labels,omitempty"`
	Annotations []string `json:"annotations,omitempty"`
}

// mergeMetadata sets the labels and annotations that a manifest has, and removes those that it had before.
func mergeMetadata(m *resource.Meta, said resource.Meta) {
	said.Annotations = maps.Clone(said.Annotations)
	maps.DeleteFunc(said.Annotations, func(key, _ string) bool { return objects.IsReservedAnnotation(key) })
	var before appliedNames
	_ = json.Unmarshal([]byte(m.Annotations[appliedAnnotation]), &before) // there may be none
	now := appliedNames{slices.Sorted(maps.Keys(said.Labels)), slices.Sorted(maps.Keys(said.Annotations))}
	m.Labels = mergeApplied(m.Labels, said.Labels, before.Labels)
	m.Annotations = mergeApplied(m.Annotations, said.Annotations, append(before.Annotations, appliedAnnotation))
	if len(now.Labels)+len(now.Annotations) > 0 {
		text, _ := json.Marshal(now) // texts
		if m.Annotations == nil {
			m.Annotations = make(map[string]string)
		}
		m.Annotations[appliedAnnotation] = string(text)
	}
}

func mergeApplied(present, said map[string]string, before []string) map[string]string {
	out := maps.Clone(present)
	if out == nil {
		out = make(map[string]string, len(said))
	}
	for _, key := range before {
		delete(out, key)
	}
	maps.Copy(out, said)
	if len(out) == 0 {
		return nil
	}
	return out
}

// prune deletes an object that is not described any more.
func (c *controller) prune(ctx context.Context, key store.Key, rs *resource.ResourceSync) error {
	owner := Owner(rs.Metadata.Name)
	_, err := c.Objects.Delete(ctx, key, c.write(rs), func(old *objects.Object) error {
		if old.Metadata.Owner != owner {
			return errForeign
		}
		return nil
	})
	if errors.Is(err, resource.NotFound) {
		return nil
	}
	c.audit("delete", key, err)
	return err
}

// release gives up what a ResourceSync that is being deleted owns: its objects stay, and are the users'.
func (c *controller) release(ctx context.Context, key store.Key, rs *resource.ResourceSync) error {
	c.Sources.Use(key, nil, 0)
	owner := Owner(rs.Metadata.Name)
	owners, err := c.owners(ctx, nil, owner)
	if err != nil {
		return err
	}
	for of := range owners {
		_, err := c.Objects.Change(ctx, of, c.write(rs), func(old *objects.Object) (*objects.Object, error) {
			wanted := *old
			if wanted.Metadata.Owner != owner {
				return nil, errForeign
			}
			wanted.Metadata.Owner, wanted.Metadata.ResourceVersion = "", ""
			wanted.Metadata.Annotations = mergeApplied(old.Metadata.Annotations, nil, []string{appliedAnnotation})
			return &wanted, nil
		})
		if err != nil && !errors.Is(err, errForeign) && !errors.Is(err, resource.NotFound) {
			return err
		}
		c.audit("update", of, err)
	}
	err = objects.Update(ctx, c.as, key, func(r *resource.ResourceSync) error {
		r.Metadata.Finalizers = slices.DeleteFunc(r.Metadata.Finalizers, func(f string) bool { return f == finalizer })
		return nil
	})
	return store.IgnoreNotFound(err)
}

// report writes what came of it into the status, and records an Event of what can't be applied.
func (c *controller) report(ctx context.Context, key store.Key, rs *resource.ResourceSync, out syncOutcome) error {
	changed := resource.Condition{}
	err := objects.UpdateStatus(ctx, c.as, key, func(r *resource.ResourceSync) error {
		changed = resource.Condition{}
		r.Status.ObservedCommit, r.Status.ObservedGeneration = out.commit, rs.Metadata.Generation
		for _, cond := range out.conditions {
			cond.ObservedGeneration = rs.Metadata.Generation
			before := r.Status.Conditions
			r.Status.Conditions = resource.SetCondition(slices.Clone(before), cond, c.Now())
			if cond.Status == "False" && !slices.Equal(before, r.Status.Conditions) {
				changed = cond
			}
		}
		return nil
	})
	if errors.Is(err, resource.NotFound) {
		return nil
	}
	if err == nil && changed.Type != "" && c.Record != nil {
		c.Record(resource.Occurrence{
			Kind: resource.KindResourceSync, Name: key.Name, UID: rs.Metadata.UID, Type: resource.EventWarning,
			Reason: "NotSynced", About: changed.Reason, Message: changed.Message,
		})
	}
	return err
}
