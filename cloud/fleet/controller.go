// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options are what the controllers of fleets need.
type Options struct {
	Objects *objects.Registry
	Reader  store.Reader
	Sources Sources
	// Record records an Event.
	Record func(resource.Occurrence)
	// Poll is how often references to what the hub has itself are looked at; 0: 5 minutes.
	Poll time.Duration
	// Pause is the least time between two looks at a fleet: what its nodes report meanwhile is seen in one; 0: 200 ms.
	Pause time.Duration
	// Retry is how long something is waited for that nothing reports; 0: 1 s.
	Retry time.Duration
	Now   func() time.Time // nil: time.Now
}

// Sources says what references stand for, and keeps what they contain as blobs for as long as Refs names them.
type Sources interface {
	// Resolve reads a source that was last read before notBefore. An error may have a method Cause with the reason.
	Resolve(ctx context.Context, ref resource.Reference, notBefore time.Time) (resource.Reference, error)
	// Use notes which sources somebody uses. Their records of kind resource.KindSource change when they do.
	Use(user store.Key, refs []resource.Reference, every time.Duration)
	// Users are the keys, of one kind, of those that use a record.
	Users(kind string) func(store.Object) []store.Key
}

const (
	// finalizer keeps a Fleet until its nodes are released.
	finalizer = objects.FleetFinalizer

	// What the controllers note at a Node, and at a Fleet.
	versionAnnotation    = resource.VersionAnnotation
	assignedAnnotation   = resource.AssignedVersionAnnotation
	assignedAtAnnotation = objects.FleetPrefix + "assignedAt"
	batchAnnotation      = objects.FleetPrefix + "batch" // version/number

	conditionOverlapping    = "OverlappingSelectors"
	conditionMultipleOwners = "MultipleOwners"
)

// Controllers makes the controllers: one for whose nodes are, and one for what becomes of them.
func Controllers(o Options) []control.Controller {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Poll = cmp.Or(o.Poll, 5*time.Minute)
	o.Pause = cmp.Or(o.Pause, 200*time.Millisecond)
	o.Retry = cmp.Or(o.Retry, time.Second)
	fleets := &control.Index[OwnerCandidate]{Kind: resource.KindFleet, Of: indexFleet}
	nodes := &control.Index[struct{}]{Kind: resource.KindNode, Of: indexNode}
	versions := &control.Index[struct{}]{Kind: resource.KindTemplateVersion, Of: indexVersion}
	own := &ownerController{Options: o, as: o.Objects.Controller("fleet-owners"), fleets: fleets, nodes: nodes, overlaps: newSelectorOverlaps()}
	roll := newRolloutController(o, nodes, versions)
	return []control.Controller{
		{
			Name: "fleet-owners", Workers: 64, Reconcile: own.reconcile,
			Indexes: []control.Indexer{fleets, nodes},
			Watches: []control.Watch{
				{Kind: resource.KindFleet, DataOnly: true},
				{Kind: resource.KindFleet, DataOnly: true, Same: sameSelection, Changes: func(_, _ *store.Object) []store.Key { return nodes.Keys() }},
				{Kind: resource.KindNode, DataOnly: true, Same: sameOwnership},
			},
		},
		{
			Name: "fleet-rollouts", Workers: 4, Reconcile: roll.reconcile, Timeout: 10 * time.Minute, Pause: o.Pause,
			Indexes: []control.Indexer{nodes, versions},
			Watches: []control.Watch{
				{Kind: resource.KindFleet, DataOnly: true},
				{Kind: resource.KindNode, Keys: fleetOfNode},
				{Kind: resource.KindConfigMap, Keys: roll.fleetsReferringTo},
				{Kind: resource.KindSecret, DataOnly: true, Keys: roll.fleetsReferringTo},
				{Kind: resource.KindSource, Keys: roll.fleetsOfSource},
				{Kind: resource.KindTemplateVersion, Keys: fleetOfVersion}, // whose Fleet may be gone
			},
		},
	}
}

// ownerController sets metadata.owner of Nodes.
type ownerController struct {
	Options
	as       *objects.Controller
	fleets   *control.Index[OwnerCandidate]
	nodes    *control.Index[struct{}]
	overlaps *selectorOverlaps

	mu      sync.Mutex
	index   *SelectorIndex
	version int  // of fleets, of which index is
	loaded  bool // overlaps have all Nodes
}

// indexFleet makes a candidate of a Fleet, unless that is being deleted.
func indexFleet(o store.Object) (c OwnerCandidate, refs []store.Key, ok bool) {
	var f resource.Fleet
	if json.Unmarshal(o.Data, &f) != nil || f.Metadata.DeletionTimestamp != nil {
		return c, nil, false
	}
	return NewOwnerCandidate(f.Metadata.Name, *f.Metadata.CreationTimestamp, f.Spec.Selector), nil, true
}

// sameSelection says whether a Fleet chooses the same nodes as before.
func sameSelection(before, now store.Object) bool {
	selection := func(o store.Object) string {
		var f resource.Fleet
		if json.Unmarshal(o.Data, &f) != nil {
			return ""
		}
		selector, _ := json.Marshal(f.Spec.Selector) // it was read from JSON
		return fmt.Sprint(f.Metadata.UID, f.Metadata.DeletionTimestamp != nil, string(selector))
	}
	return selection(before) == selection(now)
}

// sameOwnership says whether a Node has the owner and the labels that it had.
func sameOwnership(before, now store.Object) bool {
	was, is := rawjson.Field(before.Data, "metadata"), rawjson.Field(now.Data, "metadata")
	for _, field := range []string{"uid", "owner", "labels"} {
		if !bytes.Equal(rawjson.Field(was, field), rawjson.Field(is, field)) {
			return false
		}
	}
	return true
}

// selectorIndex is the index of the fleets as they are now.
func (c *ownerController) selectorIndex() *SelectorIndex {
	c.mu.Lock()
	defer c.mu.Unlock()
	if version := c.fleets.Version(); c.index == nil || c.version != version {
		var list []OwnerCandidate
		for _, f := range c.fleets.All() {
			list = append(list, f)
		}
		c.index, c.version = NewSelectorIndex(list), version
	}
	return c.index
}

func (c *ownerController) reconcile(ctx context.Context, key store.Key) (time.Duration, error) {
	if err := c.load(ctx); err != nil {
		return 0, err
	}
	if key.Kind == resource.KindFleet {
		return c.reconcileFleet(ctx, key)
	}
	return 0, c.reconcileNode(ctx, key)
}

// load notes the overlaps of all Nodes before the first of them is looked at: before, a fleet would seem to have fewer.
func (c *ownerController) load(ctx context.Context) error {
	index := c.selectorIndex()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loaded {
		return nil
	}
	for n, err := range objects.List[resource.Node](ctx, c.as, "") {
		if err != nil {
			return err
		}
		c.overlaps.set(n.Metadata.Name, index.Assign(n.Metadata.Owner, n.Metadata.Labels).Matching)
	}
	c.loaded = true
	return nil
}

// reconcileNode gives a Node its owner.
func (c *ownerController) reconcileNode(ctx context.Context, key store.Key) error {
	index := c.selectorIndex()
	stored, err := c.Reader.Get(ctx, key)
	if errors.Is(err, resource.NotFound) {
		c.overlaps.set(key.Name, nil)
		return c.showOverlaps(ctx)
	}
	if err != nil {
		return err
	}
	var m resource.Meta
	if err := json.Unmarshal(rawjson.Field(stored.Data, "metadata"), &m); err != nil {
		return fmt.Errorf("the stored %s can't be read: %w", key, err)
	}
	a := index.Assign(m.Owner, m.Labels)
	if before := m.Owner; a.Owner != before {
		err = objects.Update(ctx, c.as, key, func(n *resource.Node) error {
			a = index.Assign(n.Metadata.Owner, n.Metadata.Labels)
			n.Metadata.Owner = a.Owner
			for _, key := range []string{versionAnnotation, assignedAnnotation, assignedAtAnnotation, batchAnnotation} {
				delete(n.Metadata.Annotations, key)
			}
			return nil
		})
		if err != nil {
			return store.IgnoreNotFound(err)
		}
		m.Owner = a.Owner
		c.record(m, before)
	}
	c.overlaps.set(key.Name, a.Matching)
	return errors.Join(c.showOverlaps(ctx), c.showOwners(ctx, stored, a))
}

func (c *ownerController) record(m resource.Meta, before string) {
	o := resource.Occurrence{Kind: resource.KindNode, Name: m.Name, UID: m.UID, Type: resource.EventNormal}
	switch {
	case m.Owner == "":
		o.Reason, o.Message = "Released", fmt.Sprintf("%s no longer manages the node, whose spec stays as it is", before)
	case before == "":
		o.Reason, o.Message = "Claimed", fmt.Sprintf("%s manages the node", m.Owner)
	default:
		o.Reason, o.Message = "Claimed", fmt.Sprintf("%s manages the node, instead of %s", m.Owner, before)
	}
	c.Record(o)
}

// showOwners sets the condition MultipleOwners of a Node. One to which it never applied doesn't have it.
func (c *ownerController) showOwners(ctx context.Context, stored store.Object, a Assignment) error {
	if len(a.Matching) == 0 && !bytes.Contains(stored.Status, []byte(conditionMultipleOwners)) {
		return nil
	}
	err := objects.UpdateStatus(ctx, c.as, stored.Key, func(n *resource.Node) error {
		cond := resource.Condition{Type: conditionMultipleOwners, Status: "False", Reason: "OneFleet", Message: "at most one fleet matches"}
		if len(a.Matching) > 0 {
			cond.Status, cond.Reason, cond.Message = "True", "SeveralFleets", "the fleets "+objects.JoinFirst(a.Matching)+" match"
		}
		n.Status.Conditions = resource.SetCondition(n.Status.Conditions, cond, c.Now())
		return nil
	})
	return store.IgnoreNotFound(err)
}

// showOverlaps sets the condition OverlappingSelectors of the Fleets whose overlaps have changed. One that can't be written is
// tried again with the next key; that of the caller is, after the error.
func (c *ownerController) showOverlaps(ctx context.Context) error {
	var failed []error
	for _, fleet := range c.overlaps.takeChanged() {
		if err := c.showOverlap(ctx, fleet); err != nil {
			c.overlaps.markChanged(fleet)
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

func (c *ownerController) showOverlap(ctx context.Context, fleet string) error {
	err := objects.UpdateStatus(ctx, c.as, fleetKey(fleet), func(f *resource.Fleet) error {
		cond := resource.Condition{
			Type: conditionOverlapping, Status: "False", Reason: "NoOverlap", Message: "no node of it matches another fleet", ObservedGeneration: f.Metadata.Generation,
		}
		if others := c.overlaps.overlapping(fleet); len(others) > 0 { // read here, since it may be called again after a conflict
			cond.Status, cond.Reason, cond.Message = "True", "Overlap", "nodes of it match "+objects.JoinFirst(others)
		}
		f.Status.Conditions = resource.SetCondition(f.Status.Conditions, cond, c.Now())
		return nil
	})
	return store.IgnoreNotFound(err)
}

// reconcileFleet keeps a Fleet that is being deleted until its nodes are released.
func (c *ownerController) reconcileFleet(ctx context.Context, key store.Key) (time.Duration, error) {
	f, err := objects.Get[resource.Fleet](ctx, c.as, key)
	if errors.Is(err, resource.NotFound) {
		return 0, nil // its nodes are looked at, too
	}
	if err != nil {
		return 0, err
	}
	has := slices.Contains(f.Metadata.Finalizers, finalizer)
	if f.Metadata.DeletionTimestamp == nil {
		if !has {
			err = objects.Update(ctx, c.as, key, func(f *resource.Fleet) error {
				if f.Metadata.DeletionTimestamp == nil && !slices.Contains(f.Metadata.Finalizers, finalizer) {
					f.Metadata.Finalizers = append(f.Metadata.Finalizers, finalizer)
				}
				return nil
			})
		}
		return 0, errors.Join(store.IgnoreNotFound(err), c.showOverlap(ctx, key.Name))
	}
	if !has {
		return 0, nil
	}
	for _, node := range c.nodes.Referring(key) {
		n, err := objects.Get[resource.Node](ctx, c.as, node)
		if err == nil && n.Metadata.Owner == Owner(key.Name) {
			return c.Retry, nil // its key is queued, too
		}
		if store.IgnoreNotFound(err) != nil {
			return 0, err
		}
	}
	err = objects.Update(ctx, c.as, key, func(f *resource.Fleet) error {
		f.Metadata.Finalizers = slices.DeleteFunc(f.Metadata.Finalizers, func(s string) bool { return s == finalizer })
		return nil
	})
	return 0, store.IgnoreNotFound(err)
}
