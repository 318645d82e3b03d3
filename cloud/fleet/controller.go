package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/objects"
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
	finalizer = resource.Group + "/fleet"

	// What the controllers note at a Node, and at a Fleet.
	versionAnnotation  = "fleet-controller/templateVersion"         // the version that the node has applied, and that the fleet is rolled out to
	assignedAnnotation = "fleet-controller/assignedTemplateVersion" // the version that the node's spec is made of
	sinceAnnotation    = "fleet-controller/assignedAt"
	batchAnnotation    = "fleet-controller/batch" // version/number

	overlapping  = "OverlappingSelectors"
	manyOwners   = "MultipleOwners"
	resolvedCond = "TemplateResolved"
)

// Controllers makes the controllers: one for whose nodes are, and one for what becomes of them.
func Controllers(o Options) []control.Controller {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Poll = cmp.Or(o.Poll, 5*time.Minute)
	o.Pause = cmp.Or(o.Pause, 200*time.Millisecond)
	o.Retry = cmp.Or(o.Retry, time.Second)
	m := newMembers()
	own := &owners{Options: o, as: o.Objects.Controller("fleet-owners"), members: m, selectors: map[string]string{}, overlaps: map[string][]string{}}
	roll := newRollouts(o, m)
	return []control.Controller{
		{
			Name: "fleet-owners", Workers: 4, Reconcile: own.reconcile,
			Watches: []control.Watch{
				{Kind: resource.KindFleet, DataOnly: true, Keys: own.concerned},
				{Kind: resource.KindNode, DataOnly: true, Keys: func(o store.Object) []store.Key { m.ofNode(o); return []store.Key{o.Key} }},
			},
		},
		{
			Name: "fleet-rollouts", Workers: 4, Reconcile: roll.reconcile, Timeout: 10 * time.Minute, Pause: o.Pause,
			Watches: []control.Watch{
				{Kind: resource.KindFleet, DataOnly: true},
				{Kind: resource.KindNode, Keys: m.ofNode},
				{Kind: resource.KindConfigMap, Keys: roll.referring},
				{Kind: resource.KindSource, Keys: roll.ofSource},
			},
		},
	}
}

// owners sets metadata.owner of Nodes.
type owners struct {
	Options
	as      *objects.Controller
	members *members

	mu        sync.Mutex
	index     *Index
	selectors map[string]string   // by fleet: what its choice of nodes depends on
	overlaps  map[string][]string // by node: the fleets that match, where they are several
}

// concerned are the keys that a Fleet concerns: its own, and those of all Nodes if it chooses others than before.
func (c *owners) concerned(o store.Object) []store.Key {
	keys := []store.Key{o.Key}
	var f resource.Fleet
	if json.Unmarshal(o.Data, &f) != nil {
		return keys
	}
	selector, _ := json.Marshal(f.Spec.Selector) // it was read from JSON
	now := fmt.Sprint(f.Metadata.UID, f.Metadata.DeletionTimestamp != nil, string(selector))
	c.mu.Lock()
	same := c.selectors[o.Name] == now
	c.selectors[o.Name] = now
	if !same {
		c.index = nil
	}
	c.mu.Unlock()
	if same {
		return keys
	}
	for after := (store.Key{}); ; {
		page, err := c.Reader.List(context.Background(), resource.KindNode, store.ListOptions{After: after, Limit: 1000})
		if err != nil {
			return keys // the store is closed
		}
		for _, n := range page.Items {
			keys = append(keys, n.Key)
			after = n.Key
		}
		if page.More == 0 {
			return keys
		}
	}
}

// current is the index of the fleets as they are now.
func (c *owners) current(ctx context.Context) (*Index, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.index != nil {
		return c.index, nil
	}
	var list []Candidate
	for f, err := range objects.List[resource.Fleet](ctx, c.as, "") {
		if err != nil {
			return nil, err
		}
		if f.Metadata.DeletionTimestamp == nil {
			list = append(list, NewCandidate(f.Metadata.Name, *f.Metadata.CreationTimestamp, f.Spec.Selector))
		}
	}
	c.index = NewIndex(list)
	return c.index, nil
}

func (c *owners) reconcile(ctx context.Context, key store.Key) (time.Duration, error) {
	if key.Kind == resource.KindFleet {
		return c.fleet(ctx, key)
	}
	return 0, c.node(ctx, key)
}

// node gives a Node its owner.
func (c *owners) node(ctx context.Context, key store.Key) error {
	index, err := c.current(ctx)
	if err != nil {
		return err
	}
	n, err := objects.Get[resource.Node](ctx, c.as, key)
	if errors.Is(err, resource.NotFound) {
		return c.overlap(ctx, key.Name, nil)
	}
	if err != nil {
		return err
	}
	a := index.Assign(n.Metadata.Owner, n.Metadata.Labels)
	if before := n.Metadata.Owner; a.Owner != before {
		n, err = objects.Update(ctx, c.as, key, func(n *resource.Node) error {
			a = index.Assign(n.Metadata.Owner, n.Metadata.Labels)
			n.Metadata.Owner = a.Owner
			for _, key := range []string{versionAnnotation, assignedAnnotation, sinceAnnotation, batchAnnotation} {
				delete(n.Metadata.Annotations, key)
			}
			return nil
		})
		if err != nil {
			return ignoreGone(err)
		}
		c.record(n.Metadata, before)
	}
	if err := c.overlap(ctx, key.Name, a.Matching); err != nil {
		return err
	}
	return c.showOwners(ctx, n, a)
}

func ignoreGone(err error) error {
	if errors.Is(err, resource.NotFound) {
		return nil
	}
	return err
}

func (c *owners) record(m resource.Meta, before string) {
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
func (c *owners) showOwners(ctx context.Context, n *resource.Node, a Assignment) error {
	has := slices.ContainsFunc(n.Status.Conditions, func(c resource.Condition) bool { return c.Type == manyOwners })
	if len(a.Matching) == 0 && !has {
		return nil
	}
	_, err := objects.UpdateStatus(ctx, c.as, nodeKey(n.Metadata.Name), func(n *resource.Node) error {
		cond := resource.Condition{Type: manyOwners, Status: "False", Reason: "OneFleet", Message: "at most one fleet matches"}
		if len(a.Matching) > 0 {
			cond.Status, cond.Reason, cond.Message = "True", "SeveralFleets", "the fleets "+list(a.Matching)+" match"
		}
		n.Status.Conditions = resource.SetCondition(n.Status.Conditions, cond, c.Now())
		return nil
	})
	return ignoreGone(err)
}

// list names at most ten.
func list(names []string) string {
	const most = 10
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// overlap notes which fleets match a node, if they are several, and has those that this concerns say so.
func (c *owners) overlap(ctx context.Context, node string, matching []string) error {
	c.mu.Lock()
	before := c.overlaps[node]
	if len(matching) == 0 {
		delete(c.overlaps, node)
	} else {
		c.overlaps[node] = matching
	}
	c.mu.Unlock()
	if slices.Equal(before, matching) {
		return nil
	}
	concerned := make(map[string]bool)
	for _, f := range append(slices.Clone(before), matching...) {
		concerned[f] = true
	}
	for _, f := range slices.Sorted(maps.Keys(concerned)) {
		if err := c.showOverlap(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// showOverlap sets the condition OverlappingSelectors of a Fleet.
func (c *owners) showOverlap(ctx context.Context, fleet string) error {
	others := make(map[string]bool)
	c.mu.Lock()
	for _, matching := range c.overlaps {
		if slices.Contains(matching, fleet) {
			for _, f := range matching {
				others[f] = f != fleet
			}
		}
	}
	c.mu.Unlock()
	delete(others, fleet)
	cond := resource.Condition{Type: overlapping, Status: "False", Reason: "NoOverlap", Message: "no node of it matches another fleet"}
	if len(others) > 0 {
		cond.Status, cond.Reason, cond.Message = "True", "Overlap", "nodes of it match "+list(slices.Sorted(maps.Keys(others)))
	}
	_, err := objects.UpdateStatus(ctx, c.as, fleetKey(fleet), func(f *resource.Fleet) error {
		cond.ObservedGeneration = f.Metadata.Generation
		f.Status.Conditions = resource.SetCondition(f.Status.Conditions, cond, c.Now())
		return nil
	})
	return ignoreGone(err)
}

// fleet keeps a Fleet that is being deleted until its nodes are released.
func (c *owners) fleet(ctx context.Context, key store.Key) (time.Duration, error) {
	if err := c.members.load(ctx, c.as); err != nil {
		return 0, err
	}
	f, err := objects.Get[resource.Fleet](ctx, c.as, key)
	if errors.Is(err, resource.NotFound) {
		c.mu.Lock()
		c.index = nil
		delete(c.selectors, key.Name)
		c.mu.Unlock()
	}
	if err != nil {
		return 0, ignoreGone(err)
	}
	has := slices.Contains(f.Metadata.Finalizers, finalizer)
	if f.Metadata.DeletionTimestamp == nil {
		if !has {
			_, err = objects.Update(ctx, c.as, key, func(f *resource.Fleet) error {
				if f.Metadata.DeletionTimestamp == nil && !slices.Contains(f.Metadata.Finalizers, finalizer) {
					f.Metadata.Finalizers = append(f.Metadata.Finalizers, finalizer)
				}
				return nil
			})
		}
		if err == nil && !slices.ContainsFunc(f.Status.Conditions, func(c resource.Condition) bool { return c.Type == overlapping }) {
			err = c.showOverlap(ctx, key.Name)
		}
		return 0, ignoreGone(err)
	}
	if !has {
		return 0, nil
	}
	for node := range c.members.list(key.Name) {
		n, err := objects.Get[resource.Node](ctx, c.as, nodeKey(node))
		if err == nil && n.Metadata.Owner == Owner(key.Name) {
			return c.Retry, nil // its key is queued, too
		}
		if ignoreGone(err) != nil {
			return 0, err
		}
	}
	_, err = objects.Update(ctx, c.as, key, func(f *resource.Fleet) error {
		f.Metadata.Finalizers = slices.DeleteFunc(f.Metadata.Finalizers, func(s string) bool { return s == finalizer })
		return nil
	})
	return 0, ignoreGone(err)
}
