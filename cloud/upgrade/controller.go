// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/rollout"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"

	"golang.org/x/sync/errgroup"
)

// concurrentWrites is how many orders are written at a time: they share commits of the store.
const concurrentWrites = 64

// Options are what the controller needs.
type Options struct {
	Objects *objects.Registry
	// Reader and Writer have the records of orders and of reports, which are no objects.
	Reader store.Reader
	Writer store.Writer
	// Record records an Event.
	Record func(resource.Occurrence)
	// Pause is the least time between two looks at an Upgrade; 0: 200 ms.
	Pause time.Duration
	Now   func() time.Time // nil: time.Now
}

// Controller makes the controller of Upgrades.
func Controller(o Options) control.Controller {
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &controller{Options: o, as: o.Objects.Controller("upgrade"), decoded: make(map[string]*resource.Upgrade)}
	waiting := &control.Index[waitingNodes]{Kind: resource.KindUpgrade, Of: indexWaiting, Status: true}
	ofNode := func(o store.Object) []store.Key {
		return slices.DeleteFunc(waiting.Referring(nodeKey(o.Name)), func(upgrade store.Key) bool {
			nodes, _ := waiting.Get(upgrade)
			return !c.Now().Before(nodes.until[o.Name])
		})
	}
	ofAny := func() (keys []store.Key) {
		for upgrade, nodes := range waiting.All() {
			if c.Now().Before(nodes.last) {
				keys = append(keys, upgrade)
			}
		}
		return keys
	}
	return control.Controller{
		// With one worker no two Upgrades are planned at a time: they may want the same node.
		Name: "upgrades", Workers: 1, Reconcile: c.reconcile, Indexes: []control.Indexer{waiting}, Pause: cmp.Or(o.Pause, 200*time.Millisecond),
		Watches: []control.Watch{
			{Kind: resource.KindUpgrade, Keys: func(o store.Object) []store.Key { return append(ofAny(), o.Key) }},
			{Kind: resource.KindArtifact, Keys: func(store.Object) []store.Key { return ofAny() }},
			{Kind: resource.KindNode, Keys: ofNode},
			{Kind: resource.KindUpgradeReport, Keys: ofNode},
			{Kind: resource.KindUpgradeOrder, Keys: func(o store.Object) []store.Key { // of Upgrades that were deleted when the hub stopped
				var order resource.UpgradeOrder
				_ = json.Unmarshal(o.Data, &order)
				return []store.Key{upgradeKey(order.Upgrade)}
			}},
		},
	}
}

func upgradeKey(name string) store.Key { return store.Key{Kind: resource.KindUpgrade, Name: name} }
func nodeKey(name string) store.Key    { return store.Key{Kind: resource.KindNode, Name: name} }
func orderKey(node string) store.Key   { return store.Key{Kind: resource.KindUpgradeOrder, Name: node} }
func reportKey(node string) store.Key  { return store.Key{Kind: resource.KindUpgradeReport, Name: node} }

type controller struct {
	Options
	as      *objects.Controller
	decoded map[string]*resource.Upgrade // the newest that was read; used by the one worker
}

// waitingNodes are the nodes for which an Upgrade waits: those for which it is not over, that may still answer, and that have succeeded lately. That
// ends without a change of the Upgrade, whose nodes go on changing.
type waitingNodes struct {
	until map[string]time.Time
	last  time.Time // of all
}

// indexWaiting has an Upgrade found by the nodes for which it waits.
func indexWaiting(o store.Object) (v waitingNodes, refs []store.Key, ok bool) {
	var status resource.UpgradeStatus
	deleted := rawjson.Field(rawjson.Field(o.Data, "metadata"), "deletionTimestamp") != nil
	if deleted || len(o.Status) == 0 || json.Unmarshal(o.Status, &status) != nil {
		return v, nil, false
	}
	v.until = make(map[string]time.Time)
	for _, n := range status.Nodes {
		if until := changesUntil(n.Last()); !until.IsZero() {
			v.until[n.NodeName] = until
			refs = append(refs, nodeKey(n.NodeName))
			if until.After(v.last) {
				v.last = until
			}
		}
	}
	return v, refs, len(refs) > 0
}

func (c *controller) reconcile(ctx context.Context, key store.Key) (time.Duration, error) {
	all, err := c.upgrades(ctx)
	if err != nil {
		return 0, err
	}
	u := all[key.Name]
	if u == nil || u.Metadata.DeletionTimestamp != nil {
		return 0, c.writeOrders(ctx, key.Name, nil)
	}
	in := Input{Now: c.Now(), Upgrade: u}
	if in.Artifact, err = getOptional[resource.Artifact](ctx, c, ArtifactName(u.Spec)); err != nil {
		return 0, err
	}
	if in.Nodes, err = c.nodes(ctx, u, all); err != nil {
		return 0, err
	}
	p := PlanUpgrade(in)
	if err := c.writeStatus(ctx, u, p); err != nil {
		return 0, store.IgnoreNotFound(err)
	}
	if err := c.writeOrders(ctx, key.Name, p.Orders); err != nil {
		return 0, err
	}
	if p.Again.IsZero() {
		return 0, nil
	}
	return max(control.UntilTime(p.Again, in.Now), time.Millisecond), nil
}

// getOptional reads a cluster-scoped object; nil: there is none.
func getOptional[T any](ctx context.Context, c *controller, name string) (*T, error) {
	v, err := objects.Get[T](ctx, c.as, store.Key{Name: name})
	if errors.Is(err, resource.NotFound) {
		return nil, nil //nolint:nilnil // see above
	}
	return v, err
}

// upgrades are all Upgrades by name. They are decoded when they have changed.
func (c *controller) upgrades(ctx context.Context) (map[string]*resource.Upgrade, error) {
	page, err := c.Reader.List(ctx, resource.KindUpgrade, store.ListOptions{})
	if err != nil {
		return nil, err
	}
	now := make(map[string]*resource.Upgrade, len(page.Items))
	for _, o := range page.Items {
		u := c.decoded[o.Name]
		if u == nil || u.Metadata.ResourceVersion != fmt.Sprint(o.Rev) {
			if u, err = objects.DecodeTyped[resource.Upgrade](c.as, o); err != nil {
				return nil, err
			}
		}
		now[o.Name] = u
	}
	c.decoded = now
	return now, nil
}

// nodes are those that a plan depends on.
func (c *controller) nodes(ctx context.Context, u *resource.Upgrade, all map[string]*resource.Upgrade) (list []NodeState, err error) {
	var others []*resource.Upgrade
	for _, o := range all {
		if o != u && (!isFinished(o) || BeginsRun(o)) {
			others = append(others, o)
		}
	}
	slices.SortFunc(others, compareAge)
	add := func(name string, n *resource.Node) error {
		node := NodeState{Name: name}
		if n != nil {
			node.OverHTTP = n.Status.OverHTTP
			node.Labels, node.Exists, node.Online, node.Version = n.Metadata.Labels, n.Metadata.DeletionTimestamp == nil, n.Status.State == resource.Online && !n.Status.OverHTTP, n.Status.Version
		}
		for _, o := range others {
			// One that can begin nothing without its Artifact holds up no other.
			if wants, begun := WantsNode(o, name, node.Labels); begun || wants && compareAge(o, u) < 0 && !(o.Status.Rollout != nil && o.Status.Rollout.Reason == ReasonNoArtifact) {
				node.EarlierUpgrade = o.Metadata.Name
				break
			}
		}
		if node.Report, err = c.report(ctx, name); err != nil {
			return err
		}
		list = append(list, node)
		return nil
	}
	if BeginsRun(u) && len(u.Spec.NodeNames) == 0 {
		matches := nodeMatcher(u.Spec)
		for n, err := range objects.List[resource.Node](ctx, c.as, "") {
			if err != nil {
				return nil, err
			}
			if !matches(n.Metadata.Name, n.Metadata.Labels) {
				continue
			}
			if err := add(n.Metadata.Name, n); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	names := u.Spec.NodeNames
	if !BeginsRun(u) {
		names = nil
		for _, n := range u.Status.Nodes {
			names = append(names, n.NodeName)
		}
	}
	for _, name := range names {
		n, err := getOptional[resource.Node](ctx, c, name)
		if err == nil {
			err = add(name, n)
		}
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// compareAge orders Upgrades by age.
func compareAge(a, b *resource.Upgrade) int {
	var at, bt time.Time
	if a.Metadata.CreationTimestamp != nil && b.Metadata.CreationTimestamp != nil {
		at, bt = *a.Metadata.CreationTimestamp, *b.Metadata.CreationTimestamp
	}
	return cmp.Or(at.Compare(bt), cmp.Compare(a.Metadata.Name, b.Metadata.Name))
}

// isFinished says whether an Upgrade waits for no node.
func isFinished(u *resource.Upgrade) bool {
	return !slices.ContainsFunc(u.Status.Nodes, func(n resource.UpgradeNode) bool { return n.Last().Open() })
}

// report is what a node has reported last; nil: nothing.
func (c *controller) report(ctx context.Context, node string) (*resource.UpgradeReport, error) {
	o, err := c.Reader.Get(ctx, reportKey(node))
	if err != nil {
		return nil, store.IgnoreNotFound(err)
	}
	r, err := resource.ParseUpgradeReport(o.Data)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // the node's broker checks it: a node that reports nonsense has not answered
	}
	return &r, nil
}

// errStale is of a plan for a spec that has changed meanwhile.
var errStale = resource.Errorf(resource.Conflict, "", "the Upgrade has changed meanwhile")

// writeStatus writes the status. It is written before any order is: a hub that starts again goes on from there.
func (c *controller) writeStatus(ctx context.Context, u *resource.Upgrade, p Plan) error {
	if reflect.DeepEqual(u.Status, p.Status) {
		return nil
	}
	err := objects.UpdateStatus(ctx, c.as, upgradeKey(u.Metadata.Name), func(now *resource.Upgrade) error {
		if now.Metadata.UID != u.Metadata.UID || now.Metadata.Generation != u.Metadata.Generation {
			return errStale
		}
		now.Status = p.Status
		return nil
	})
	if err == nil {
		c.record(u, p)
	}
	return err
}

// record records what has happened to nodes, and to the Upgrade.
func (c *controller) record(u *resource.Upgrade, p Plan) {
	if c.Record == nil {
		return
	}
	for _, n := range p.Status.Nodes {
		if !slices.Contains(p.Changed, n.NodeName) {
			continue
		}
		a := n.Last()
		o := resource.Occurrence{Kind: resource.KindNode, Name: n.NodeName, Type: resource.EventNormal}
		of := fmt.Sprintf("%s to %s (Upgrade %s)", cmp.Or(a.FromVersion, "an unknown version"), cmp.Or(a.ToVersion, u.Spec.Goal()), u.Metadata.Name)
		switch {
		case a.OperationStatus == resource.UpgradePending:
			continue
		case a.OperationStatus == resource.UpgradeSuccess:
			o.Reason, o.Message = "Upgraded", "from "+of
		case a.Open():
			o.Reason, o.Message = "Upgrading", "from "+of
		default:
			o.Type, o.Reason, o.Message = resource.EventWarning, "UpgradeFailed", fmt.Sprintf("from %s: %s: %s", of, a.OperationStatus, a.Reason)
		}
		c.Record(o)
	}
	before, now := u.Status.Rollout, p.Status.Rollout
	if now == nil {
		return
	}
	if before == nil || before.Run != now.Run {
		before = new(resource.UpgradeRollout)
	}
	o := resource.Occurrence{Kind: resource.KindUpgrade, Name: u.Metadata.Name, UID: u.Metadata.UID, Type: resource.EventNormal}
	switch {
	case now.Nodes > 0 && now.Succeeded == now.Nodes && before.Succeeded != now.Nodes:
		o.Reason, o.Message = "Upgraded", fmt.Sprintf("all %d nodes have %s", now.Nodes, u.Spec.Goal())
	case now.Reason == string(rollout.Halted) && before.Reason != now.Reason:
		o.Type, o.Reason, o.Message = resource.EventWarning, "UpgradeHalted", now.Message
	default:
		return
	}
	c.Record(o)
}

// writeOrders writes the orders of an Upgrade, and deletes all others of it.
func (c *controller) writeOrders(ctx context.Context, upgrade string, orders map[string]resource.UpgradeOrder) error {
	page, err := c.Reader.List(ctx, resource.KindUpgradeOrder, store.ListOptions{})
	if err != nil {
		return err
	}
	var group errgroup.Group // without a context: an order that can't be written stops no other
	group.SetLimit(concurrentWrites)
	is := make(map[string]store.Object, len(page.Items))
	for _, o := range page.Items {
		var order struct{ Upgrade string }
		_ = json.Unmarshal(o.Data, &order) // one that can't be read is nobody's, and is replaced
		if order.Upgrade != upgrade && order.Upgrade != "" {
			if _, wanted := orders[o.Name]; wanted {
				group.Go(func() error {
					return fmt.Errorf("the node %s has an order of the Upgrade %s still", o.Name, order.Upgrade)
				})
				delete(orders, o.Name)
			}
			continue
		}
		is[o.Name] = o
		if _, wanted := orders[o.Name]; !wanted {
			group.Go(func() error {
				_, err := c.Writer.Delete(ctx, o.Key, o.Rev)
				return store.IgnoreNotFound(err)
			})
		}
	}
	for node, order := range orders {
		data, err := json.Marshal(order)
		if err != nil {
			return err
		}
		o, there := is[node]
		switch {
		case !there:
			group.Go(func() error {
				_, err := c.Writer.Create(ctx, store.Object{Key: orderKey(node), Data: data})
				return err
			})
		case !bytes.Equal(o.Data, data):
			group.Go(func() error {
				_, err := c.Writer.Update(ctx, store.Object{Key: o.Key, Data: data}, o.Rev)
				return err
			})
		}
	}
	return group.Wait()
}

// StoreReport stores what a node has reported; no value: nothing any more.
func StoreReport(ctx context.Context, r store.Reader, w store.Writer, node string, value []byte) error {
	key := reportKey(node)
	switch o, err := r.Get(ctx, key); {
	case err == nil && len(value) == 0:
		_, err := w.Delete(ctx, key, o.Rev)
		return store.IgnoreNotFound(err)
	case err == nil && !bytes.Equal(o.Data, value):
		_, err := w.Update(ctx, store.Object{Key: key, Data: value}, o.Rev)
		return err
	case errors.Is(err, resource.NotFound) && len(value) > 0:
		_, err := w.Create(ctx, store.Object{Key: key, Data: value})
		return err
	default:
		return store.IgnoreNotFound(err)
	}
}
