// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/rollout"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/templates"
	"github.com/edgebus/edgebus/topics/resource"
	"github.com/edgebus/edgebus/topics/schedule"
)

const (
	// sourceFreshness is how old what is known of a source may be when a template changes: fleets that are written together read it once.
	sourceFreshness = 5 * time.Second
	// concurrentWrites is how many nodes are written at a time: they share commits of the store.
	concurrentWrites = 256
	// keptVersions is how many versions of a fleet are kept that no node has, unless it says otherwise.
	keptVersions = 10

	defaultSuccess = 90
	defaultTimeout = 10 * time.Minute
)

// rolloutController makes versions of fleets' templates, and gives them to nodes.
type rolloutController struct {
	Options
	as           *objects.Controller
	nodeIndex    *control.Index[struct{}] // by fleet
	versionIndex *control.Index[struct{}] // by fleet

	mu                sync.Mutex
	nextPoll          map[string]time.Time          // by fleet: when its references are looked at again
	failedGenerations map[string]int64              // by fleet: the generation whose template can't be resolved
	referringFleets   map[store.Key]map[string]bool // by ConfigMap or Secret: the fleets that refer to it
	snapshots         map[string]*fleetSnapshot     // by fleet: its nodes at the last look. Those that have not changed are not decoded again.
}

func newRolloutController(o Options, nodes, versions *control.Index[struct{}]) *rolloutController {
	return &rolloutController{
		Options: o, as: o.Objects.Controller("fleet-rollouts"), nodeIndex: nodes, versionIndex: versions,
		nextPoll: make(map[string]time.Time), failedGenerations: make(map[string]int64), referringFleets: make(map[store.Key]map[string]bool),
		snapshots: make(map[string]*fleetSnapshot),
	}
}

// fleetsReferringTo are the fleets that refer to a ConfigMap or Secret that has changed. Their references are looked at at once.
func (c *rolloutController) fleetsReferringTo(o store.Object) (keys []store.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for fleet := range c.referringFleets[o.Key] {
		delete(c.nextPoll, fleet)
		keys = append(keys, fleetKey(fleet))
	}
	return keys
}

// fleetsOfSource are the fleets that use a source that stands for something else now, or can't be read any more.
func (c *rolloutController) fleetsOfSource(o store.Object) []store.Key {
	keys := c.Sources.Users(resource.KindFleet)(o)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		delete(c.nextPoll, key.Name)
	}
	return keys
}

func (c *rolloutController) reconcile(ctx context.Context, key store.Key) (time.Duration, error) {
	f, err := objects.Get[resource.Fleet](ctx, c.as, key)
	if errors.Is(err, resource.NotFound) {
		return 0, c.forget(ctx, key.Name)
	}
	if err != nil || f.Metadata.DeletionTimestamp != nil {
		return 0, err
	}
	nodes, err := c.nodes(ctx, f)
	if err != nil {
		return 0, err
	}
	if err := c.showSummary(ctx, f, nodes); err != nil {
		return 0, err
	}
	due := c.pollDue(key.Name)
	newest, err := c.newestVersion(ctx, f, nodes)
	if err != nil || newest == nil {
		return c.untilPoll(key.Name), err
	}
	if due {
		if err := c.collectVersions(ctx, f, newest.Metadata.Name, nodes); err != nil {
			return 0, err
		}
	}
	v, err := c.targetVersion(ctx, f, newest, nodes)
	if err != nil {
		return 0, err
	}
	again, err := c.rollOut(ctx, f, v, newest, nodes)
	if poll := c.untilPoll(key.Name); again == 0 || poll < again {
		again = poll
	}
	return again, err
}

// showSummary writes how the nodes are, if that has changed. They have been read for the rollout already.
func (c *rolloutController) showSummary(ctx context.Context, f *resource.Fleet, nodes []*fleetNode) error {
	var sum resource.FleetSummary
	for _, m := range nodes {
		sum.Add(m.summaries)
	}
	if f.Status.Summary != nil && reflect.DeepEqual(*f.Status.Summary, sum) {
		return nil
	}
	err := objects.UpdateStatus(ctx, c.as, fleetKey(f.Metadata.Name), func(f *resource.Fleet) error {
		f.Status.Summary = &sum
		return nil
	})
	return store.IgnoreNotFound(err)
}

// deleteVersion deletes a version, unless it is another one of that name.
func (c *rolloutController) deleteVersion(ctx context.Context, v *resource.TemplateVersion) error {
	return objects.DeleteIf(ctx, c.as, versionKey(v.Metadata.Name), func(now *resource.TemplateVersion) bool { return now.Metadata.UID == v.Metadata.UID })
}

// forget deletes the versions of a Fleet that no longer exists, and what is known of it.
func (c *rolloutController) forget(ctx context.Context, fleet string) error {
	c.mu.Lock()
	delete(c.nextPoll, fleet)
	delete(c.failedGenerations, fleet)
	delete(c.snapshots, fleet)
	c.mu.Unlock()
	c.setReferences(fleet, nil)
	list, err := c.versions(ctx, fleet)
	if err != nil {
		return err
	}
	for _, v := range list {
		err = errors.Join(err, store.IgnoreNotFound(c.deleteVersion(ctx, v)))
	}
	return err
}

// untilPoll is the time until references are looked at again.
func (c *rolloutController) untilPoll(fleet string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.nextPoll[fleet].Sub(c.Now()), c.Retry)
}

// newestVersion is the version of a fleet's template to roll out. It is made if the template has changed, or if what floats in it
// stands for something else now. nil: it can't be made, which a condition says.
func (c *rolloutController) newestVersion(ctx context.Context, f *resource.Fleet, nodes []*fleetNode) (*resource.TemplateVersion, error) {
	refs := fleetReferences(f.Spec.Template.Spec, nodes)
	c.setReferences(f.Metadata.Name, refs)
	name := f.Metadata.Annotations[versionAnnotation]
	if s := f.Status.Rollout; name == "" && s != nil { // somebody has replaced the Fleet, with its annotations
		name = s.TemplateVersion
	}
	var last *resource.TemplateVersion
	if name != "" {
		v, err := objects.Get[resource.TemplateVersion](ctx, c.as, versionKey(name))
		if store.IgnoreNotFound(err) != nil {
			return nil, err
		}
		last = v
	}
	same := last != nil && sameJSON(last.Spec.Template, f.Spec.Template)
	if same && coversReferences(last, refs) && !c.pollDue(f.Metadata.Name) {
		return last, nil
	}
	if !c.pollDue(f.Metadata.Name) && c.hasFailed(f) {
		return nil, nil //nolint:nilnil // the condition says why there is none
	}
	if err := templates.Check(f.Spec.Template.Spec, "spec"); err != nil {
		c.waitForPoll(f.Metadata.Name)
		c.noteFailed(f, err)
		return nil, c.showResolved(ctx, f, "InvalidTemplate", err)
	}
	c.waitForPoll(f.Metadata.Name) // before they are read: what changes meanwhile is read again
	var notBefore time.Time
	if !same || !coversReferences(last, refs) { // somebody has just changed it, and may have changed what it refers to before
		notBefore = c.Now().Add(-sourceFreshness)
	}
	resolved, err := c.resolve(ctx, refs, notBefore)
	c.noteFailed(f, err)
	if err != nil {
		if shown := c.showResolved(ctx, f, failureReason(err), err); shown != nil || !same || !coversReferences(last, refs) {
			return nil, shown
		}
		return last, nil // what was frozen stays
	}
	if same && coversReferences(last, refs) && !referencesChanged(last.Spec.References, resolved) {
		return last, c.showResolved(ctx, f, "", nil)
	}
	v, err := c.makeVersion(ctx, f, versionNumber(f.Metadata.Name, name), resolved)
	if err != nil {
		return nil, err
	}
	err = objects.Update(ctx, c.as, fleetKey(f.Metadata.Name), func(f *resource.Fleet) error {
		if f.Metadata.Annotations == nil {
			f.Metadata.Annotations = make(map[string]string)
		}
		f.Metadata.Annotations[versionAnnotation] = v.Metadata.Name
		delete(f.Metadata.Annotations, resource.RollBackAnnotation)
		return nil
	})
	if err != nil {
		return nil, store.IgnoreNotFound(err)
	}
	delete(f.Metadata.Annotations, resource.RollBackAnnotation)
	c.Record(resource.Occurrence{
		Kind: resource.KindFleet, Name: f.Metadata.Name, UID: f.Metadata.UID, Type: resource.EventNormal, Reason: "TemplateVersionMade",
		Message: fmt.Sprintf("%s has %d references that floated", v.Metadata.Name, len(resolved)),
	})
	f.Status.Rollout = nil // it begins
	return v, errors.Join(c.showResolved(ctx, f, "", nil), c.collectVersions(ctx, f, v.Metadata.Name, nodes))
}

// targetVersion is the version that nodes are to have: the newest, or the one that the annotation names. The nodes then get what its
// template comes to for them.
func (c *rolloutController) targetVersion(ctx context.Context, f *resource.Fleet, newest *resource.TemplateVersion, nodes []*fleetNode) (*resource.TemplateVersion, error) {
	name := f.Metadata.Annotations[resource.RollBackAnnotation]
	if name == "" || name == newest.Metadata.Name {
		return newest, nil
	}
	v, err := objects.Get[resource.TemplateVersion](ctx, c.as, versionKey(name))
	if store.IgnoreNotFound(err) != nil {
		return nil, err
	}
	if err != nil || v.Spec.Fleet != f.Metadata.Name {
		return newest, nil //nolint:nilerr // there is no such version, which edgebus rollout says
	}
	t, err := parseTemplate(v.Spec.Template.Spec)
	if err != nil {
		return nil, err
	}
	for _, m := range nodes {
		m.expandTemplate(t)
		if m.invalid == nil && !coversReferences(v, m.expanded.refs) {
			m.invalid = fmt.Errorf("node %s refers to something that %s has not frozen", m.name, name)
		}
	}
	return v, nil
}

// rollBack has the nodes get the last version that was rolled out to the end. It says whether there is one.
func (c *rolloutController) rollBack(ctx context.Context, f *resource.Fleet, from string, why string) (bool, error) {
	list, err := c.versions(ctx, f.Metadata.Name)
	if err != nil {
		return false, err
	}
	for _, v := range slices.Backward(list) {
		if v.Status.RolledOutAt == "" || v.Metadata.Name == from {
			continue
		}
		err := objects.Update(ctx, c.as, fleetKey(f.Metadata.Name), func(f *resource.Fleet) error {
			if f.Metadata.Annotations[versionAnnotation] == from {
				f.Metadata.Annotations[resource.RollBackAnnotation] = v.Metadata.Name
			}
			return nil
		})
		if err == nil {
			c.Record(resource.Occurrence{
				Kind: resource.KindFleet, Name: f.Metadata.Name, UID: f.Metadata.UID, Type: resource.EventWarning, Reason: "RolledBack",
				Message: fmt.Sprintf("the nodes get %s again, since %s halted: %s", v.Metadata.Name, from, why),
			})
		}
		return true, store.IgnoreNotFound(err)
	}
	return false, nil
}

// noteFailed notes whether a fleet's template could be resolved, which is not tried again with each event.
func (c *rolloutController) noteFailed(f *resource.Fleet, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.failedGenerations, f.Metadata.Name)
	if err != nil {
		c.failedGenerations[f.Metadata.Name] = f.Metadata.Generation
	}
}

func (c *rolloutController) hasFailed(f *resource.Fleet) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failedGenerations[f.Metadata.Name] == f.Metadata.Generation
}

// referencesChanged says whether references stand for something else than before. Those that are no longer there don't count.
func referencesChanged(before, now []resource.Reference) bool {
	known := make(map[resource.ReferenceKey]string)
	for _, r := range before {
		known[r.Key()] = r.Resolved
	}
	return slices.ContainsFunc(now, func(r resource.Reference) bool { return known[r.Key()] != r.Resolved })
}

// setReferences notes what a fleet refers to.
func (c *rolloutController) setReferences(fleet string, refs []resource.Reference) {
	c.Sources.Use(fleetKey(fleet), refs, 0)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, fleets := range c.referringFleets {
		delete(fleets, fleet)
	}
	for _, r := range refs {
		kind := map[string]string{resource.RefConfigMap: resource.KindConfigMap, resource.RefSecret: resource.KindSecret}[r.Type]
		if kind == "" {
			continue
		}
		namespace, name, _ := strings.Cut(r.Source, "/")
		key := store.Key{Kind: kind, Namespace: namespace, Name: name}
		if c.referringFleets[key] == nil {
			c.referringFleets[key] = make(map[string]bool)
		}
		c.referringFleets[key][fleet] = true
	}
	maps.DeleteFunc(c.referringFleets, func(_ store.Key, fleets map[string]bool) bool { return len(fleets) == 0 })
}

func (c *rolloutController) pollDue(fleet string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.Now().Before(c.nextPoll[fleet])
}

// waitForPoll has references looked at again after the interval, with up to a fifth more: those of many fleets are
// not to be read at one time.
func (c *rolloutController) waitForPoll(fleet string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nextPoll[fleet] = c.Now().Add(wait.Jitter(c.Poll, 0.2))
}

func failureReason(err error) string {
	var source interface{ Cause() string }
	var kind *resource.Error
	switch {
	case errors.As(err, &source):
		return source.Cause()
	case errors.As(err, &kind) && errors.Is(err, resource.NotFound):
		return "NotFound"
	}
	return "Failed"
}

// showResolved sets the condition TemplateResolved.
func (c *rolloutController) showResolved(ctx context.Context, f *resource.Fleet, reason string, why error) error {
	cond := resource.Condition{Type: resource.TemplateResolved, Status: "True", Reason: "Resolved", Message: "all references of the template are resolved"}
	if why != nil {
		cond.Status, cond.Reason, cond.Message = "False", reason, why.Error()
	}
	err := objects.UpdateStatus(ctx, c.as, fleetKey(f.Metadata.Name), func(f *resource.Fleet) error {
		cond.ObservedGeneration = f.Metadata.Generation
		f.Status.Conditions = resource.SetCondition(f.Status.Conditions, cond, c.Now())
		return nil
	})
	return store.IgnoreNotFound(err)
}

// collectVersions deletes versions that no node has: those that are too many, and those that are too old. The one before the newest stays,
// and so does the last one that was rolled out to the end: they are what a rollout is undone with.
func (c *rolloutController) collectVersions(ctx context.Context, f *resource.Fleet, newest string, nodes []*fleetNode) error {
	list, err := c.versions(ctx, f.Metadata.Name)
	if err != nil {
		return err
	}
	used := map[string]bool{newest: true, f.Metadata.Annotations[resource.RollBackAnnotation]: true}
	for _, m := range nodes {
		used[m.annotations[versionAnnotation]], used[m.annotations[assignedAnnotation]] = true, true
	}
	maps.Copy(used, objects.VersionsForUndo(list, newest))
	unused := slices.DeleteFunc(list, func(v *resource.TemplateVersion) bool { return used[v.Metadata.Name] })
	most := keptVersions
	if n := f.Spec.RevisionHistoryLimit; n != nil {
		most = *n
	}
	age, _ := time.ParseDuration(f.Spec.RevisionHistoryAge) // 0: any
	for i, v := range unused {
		tooOld := age > 0 && v.Metadata.CreationTimestamp != nil && c.Now().Sub(*v.Metadata.CreationTimestamp) > age
		if i >= len(unused)-most && !tooOld {
			continue
		}
		if err := store.IgnoreNotFound(c.deleteVersion(ctx, v)); err != nil {
			return err
		}
	}
	return nil
}

// versions are those that the controller has made for a fleet, the oldest first.
func (c *rolloutController) versions(ctx context.Context, fleet string) (list []*resource.TemplateVersion, err error) {
	for _, key := range c.versionIndex.Referring(fleetKey(fleet)) {
		v, err := objects.Get[resource.TemplateVersion](ctx, c.as, key)
		if store.IgnoreNotFound(err) != nil {
			return nil, err
		}
		if err != nil || v.Spec.Fleet != fleet || v.Metadata.Owner != Owner(fleet) {
			continue
		}
		list = append(list, v)
	}
	number := func(v *resource.TemplateVersion) int { return versionNumber(fleet, v.Metadata.Name) }
	slices.SortFunc(list, func(a, b *resource.TemplateVersion) int { return cmp.Compare(number(a), number(b)) })
	return list, nil
}

// rollOut gives a version to the nodes that may have it now.
func (c *rolloutController) rollOut(ctx context.Context, f *resource.Fleet, v, newest *resource.TemplateVersion, nodes []*fleetNode) (time.Duration, error) {
	version := v.Metadata.Name
	in := rollout.Input{Now: c.Now(), Policy: rolloutPolicy(f.Spec.RolloutPolicy), Paused: f.Spec.Paused}
	if s := f.Status.Rollout; s != nil && s.TemplateVersion == version {
		in.Progress.Batch = s.Batch
		in.Progress.Since, _ = time.Parse(time.RFC3339, s.BatchStarted) // the beginning of time if somebody has spoiled it
	}
	in.Targets = make([]rollout.Target, 0, len(nodes))
	opens := windowOpenings(in.Now, f.Spec.RolloutPolicy)
	for _, m := range nodes {
		var notBefore time.Time
		if m.invalid == nil {
			m.expanded.freeze(v)
			notBefore, m.invalid = opens(m)
		}
		t := m.target(version)
		t.NotBefore = notBefore
		m.updated = t.State == rollout.Done
		in.Targets = append(in.Targets, t)
	}
	d := rollout.Plan(in)
	if s := f.Status.Rollout; d.Reason == rollout.Halted && v == newest && wantsRollBack(f) && (s == nil || s.TemplateVersion != version || s.FinishedAt == "") {
		if found, err := c.rollBack(ctx, f, version, d.Message); found || err != nil {
			return c.Retry, err
		}
		d.Message += "; there is no version before it that was rolled out to the end"
	}
	d.Message = addUnassigned(addFirstInvalid(d.Message, nodes), version, nodes, d)
	if err := c.showRollout(ctx, f, v, newest, len(nodes), d); err != nil {
		return 0, err
	}
	if err := c.writeNodes(ctx, v, nodes, d); err != nil {
		return 0, err
	}
	if d.Again.IsZero() {
		return 0, nil
	}
	return max(control.UntilTime(d.Again, c.Now()), c.Pause), nil
}

// windowOpenings says from when on a node may be given a version: the same for all nodes of a time zone.
func windowOpenings(now time.Time, p *resource.RolloutPolicy) func(*fleetNode) (time.Time, error) {
	type opening struct {
		at  time.Time
		err error
	}
	known := make(map[string]opening)
	return func(m *fleetNode) (time.Time, error) {
		if p == nil || p.UpdateSchedule == nil && p.DownloadSchedule == nil {
			return time.Time{}, nil
		}
		zone := m.annotations[resource.TimeZoneAnnotation]
		o, ok := known[zone]
		if !ok {
			o.at, o.err = schedulesOpenAt(now, p, zone)
			known[zone] = o
		}
		if o.err != nil {
			return o.at, fmt.Errorf("node %s: %w", m.name, o.err)
		}
		return o.at, nil
	}
}

func schedulesOpenAt(now time.Time, p *resource.RolloutPolicy, zone string) (time.Time, error) {
	var windows []schedule.Window
	for _, s := range []struct {
		field string
		*resource.UpdateSchedule
	}{{"updateSchedule", p.UpdateSchedule}, {"downloadSchedule", p.DownloadSchedule}} {
		if s.UpdateSchedule == nil {
			continue
		}
		w, err := schedule.Parse(*s.UpdateSchedule, zone)
		if err != nil {
			return now, fmt.Errorf("spec.rolloutPolicy.%s: %w", s.field, err)
		}
		windows = append(windows, w)
	}
	at := schedule.AllOpen(now, windows)
	if at.IsZero() {
		return at, errors.New("spec.rolloutPolicy: updateSchedule and downloadSchedule are never open together")
	}
	return at, nil
}

func wantsRollBack(f *resource.Fleet) bool {
	return f.Spec.RolloutPolicy != nil && f.Spec.RolloutPolicy.OnFailure == resource.OnFailureRollBack
}

// addFirstInvalid adds the first node that the template is none for, and why.
func addFirstInvalid(message string, nodes []*fleetNode) string {
	i := slices.IndexFunc(nodes, func(m *fleetNode) bool { return m.invalid != nil })
	switch {
	case i < 0:
		return message
	case message == "":
		return nodes[i].invalid.Error()
	}
	return message + "; " + nodes[i].invalid.Error()
}

// addUnassigned adds the nodes that have a spec of no version and are given none now: they came, or came back after a pause, while the
// rollout doesn't go on.
func addUnassigned(message, version string, nodes []*fleetNode, d rollout.Decision) string {
	var names []string
	for _, m := range nodes {
		if of := m.annotations[assignedAnnotation]; m.invalid != nil || of != "" && (of != version || m.expanded.matches(m.spec)) {
			continue
		}
		if _, starts := slices.BinarySearch(d.Started, m.name); !starts && len(m.spec) > 0 && string(m.spec) != "{}" && !m.updated {
			names = append(names, m.name)
		}
	}
	if len(names) == 0 {
		return message
	}
	return strings.TrimPrefix(message+"; "+strconv.Itoa(len(names))+" with a spec that is of no version of the fleet, until "+version+" is given: "+objects.JoinFirst(names), "; ")
}

// sameJSON says whether two values are the same as JSON. Inline documents may have been written with their fields in another order.
func sameJSON[T any](a, b T) bool {
	if equality.Semantic.DeepEqual(a, b) {
		return true
	}
	var trees [2]any
	for i, v := range []T{a, b} {
		text, err := json.Marshal(v)
		if err != nil || json.Unmarshal(text, &trees[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(trees[0], trees[1])
}

// writeNodes marks nodes with their batch, gives those that start the version, and notes which have it. Those that are left
// for the last batch need no mark: it is of all that have none. Which version a node has follows from what it reported, and is stored with
// what the node gets next.
func (c *rolloutController) writeNodes(ctx context.Context, v *resource.TemplateVersion, nodes []*fleetNode, d rollout.Decision) error {
	version := v.Metadata.Name
	started := make(map[string]bool)
	for _, name := range d.Started {
		started[name] = true
	}
	var writes []func() error
	for _, m := range nodes {
		name := m.name
		batch := d.Selected[name]
		marked := batch > 0 && batch < d.Batches
		done := m.updated && m.annotations[versionAnnotation] != version
		if !marked && !started[name] && !done {
			continue
		}
		write := objects.AnnotateDerived[resource.Node]
		if marked || started[name] {
			write = objects.UpdateSpec[resource.Node]
		}
		writes = append(writes, func() error {
			err := write(ctx, c.as, nodeKey(name), func(n *resource.Node) error {
				if n.Metadata.Owner != Owner(v.Spec.Fleet) {
					return nil // it was released meanwhile
				}
				if n.Metadata.Annotations == nil {
					n.Metadata.Annotations = make(map[string]string)
				}
				if marked {
					n.Metadata.Annotations[batchAnnotation] = fmt.Sprintf("%s/%d", version, batch)
				}
				if started[name] {
					if was := n.Metadata.Annotations[assignedAnnotation]; was != "" && was != version && m.specState() == rollout.Done { // a restart may have forgotten it
						n.Metadata.Annotations[versionAnnotation] = was
					}
					n.Spec = m.expanded.frozen
					n.Metadata.Annotations[assignedAnnotation] = version
					n.Metadata.Annotations[assignedAtAnnotation] = c.Now().UTC().Format(time.RFC3339)
				}
				if done {
					n.Metadata.Annotations[versionAnnotation] = version
				}
				return nil
			})
			return store.IgnoreNotFound(err)
		})
	}
	return runConcurrently(writes)
}

// runConcurrently calls functions, concurrentWrites at a time, and returns the first error. One that fails stops no other. A goroutine calls
// many: each new one would have to grow its stack first.
func runConcurrently(calls []func() error) error {
	var group errgroup.Group
	var next atomic.Int64
	for range min(concurrentWrites, len(calls)) {
		group.Go(func() (err error) {
			for i := next.Add(1); i <= int64(len(calls)); i = next.Add(1) {
				err = cmp.Or(err, calls[i-1]())
			}
			return err
		})
	}
	return group.Wait()
}

// showRollout writes how far a rollout is. It is written before anything is started: a hub that starts again goes on from there.
func (c *rolloutController) showRollout(ctx context.Context, f *resource.Fleet, v, newest *resource.TemplateVersion, nodes int, d rollout.Decision) error {
	s := &resource.RolloutStatus{
		TemplateVersion: v.Metadata.Name, Batch: d.Progress.Batch, Batches: d.Batches, Nodes: nodes, Updated: d.Done, Updating: d.Updating,
		ObservedGeneration: f.Metadata.Generation, FailedNodes: d.Failed + d.TimedOut, Reason: string(d.Reason), Message: d.Message,
	}
	if v != newest {
		s.RolledBackFrom = newest.Metadata.Name
	}
	if !d.Progress.Since.IsZero() {
		s.BatchStarted = d.Progress.Since.UTC().Format(time.RFC3339)
	}
	before := f.Status.Rollout
	if before != nil && before.TemplateVersion == s.TemplateVersion {
		s.FinishedAt = before.FinishedAt
	}
	if d.Complete && nodes > 0 && s.FinishedAt == "" {
		s.FinishedAt = c.Now().UTC().Format(time.RFC3339)
	}
	if s.FinishedAt != "" && s.Updated > 0 && v.Status.RolledOutAt == "" {
		if err := c.showRolledOut(ctx, v.Metadata.Name, s.FinishedAt); err != nil {
			return err
		}
	}
	if before != nil && *before == *s {
		return nil
	}
	err := objects.UpdateStatus(ctx, c.as, fleetKey(f.Metadata.Name), func(f *resource.Fleet) error {
		f.Status.Rollout = s
		return nil
	})
	if err == nil {
		c.recordRollout(f.Metadata, before, s)
	}
	return store.IgnoreNotFound(err)
}

// showRolledOut notes at a version that it was rolled out to the end: it is one to roll back to.
func (c *rolloutController) showRolledOut(ctx context.Context, version, at string) error {
	err := objects.UpdateStatus(ctx, c.as, versionKey(version), func(v *resource.TemplateVersion) error {
		v.Status.RolledOutAt = at
		return nil
	})
	return store.IgnoreNotFound(err)
}

// recordRollout records the end of a rollout, and that it stops.
func (c *rolloutController) recordRollout(m resource.Meta, before, now *resource.RolloutStatus) {
	if before == nil {
		before = new(resource.RolloutStatus)
	}
	o := resource.Occurrence{Kind: resource.KindFleet, Name: m.Name, UID: m.UID, Type: resource.EventNormal}
	switch {
	case now.FinishedAt != "" && (before.FinishedAt == "" || before.TemplateVersion != now.TemplateVersion): // not again with each node that joins
		o.Reason, o.Message = "RolledOut", fmt.Sprintf("all %d nodes have %s", now.Nodes, now.TemplateVersion)
		if now.Updated < now.Nodes {
			o.Message = fmt.Sprintf("%d of %d nodes have %s, and no batch is left", now.Updated, now.Nodes, now.TemplateVersion)
		}
	case now.Reason == string(rollout.Halted) && before.Reason != now.Reason:
		o.Type, o.Reason, o.Message = resource.EventWarning, "RolloutHalted", now.TemplateVersion+": "+now.Message
	default:
		return
	}
	c.Record(o)
}

// rolloutPolicy is a fleet's policy as the engine has it.
func rolloutPolicy(p *resource.RolloutPolicy) rollout.Policy {
	if p == nil {
		return rollout.Policy{Timeout: defaultTimeout}
	}
	out := rollout.Policy{Success: percentOr(p.SuccessThreshold, defaultSuccess), Timeout: defaultTimeout}
	if d, err := time.ParseDuration(p.DefaultUpdateTimeout); err == nil {
		out.Timeout = d
	}
	if b := p.DisruptionBudget; b != nil {
		out.Budget = rollout.Budget{GroupBy: b.GroupBy, MinAvailable: b.MinAvailable, MaxUnavailable: b.MaxUnavailable}
	}
	if p.DeviceSelection == nil {
		return out
	}
	for _, b := range p.DeviceSelection.Sequence {
		batch := rollout.Batch{Limit: rollout.ParseAmount(b.Limit)}
		if !b.Selector.Empty() {
			selector := objects.Selector(b.Selector)
			batch.Matches = func(l map[string]string) bool { return selector.Matches(labels.Set(l)) }
		}
		if b.SuccessThreshold != "" {
			n := percentOr(b.SuccessThreshold, defaultSuccess)
			batch.Success = &n
		}
		out.Batches = append(out.Batches, batch)
	}
	return out
}

func percentOr(text string, otherwise int) int {
	n, err := resource.ParsePercent(text)
	if err != nil {
		return otherwise
	}
	return n
}
