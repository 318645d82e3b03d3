// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// OrderKind is the kind of the records that say what nodes are told of Rules, by the Rules' names.
const OrderKind = "RuleOrder"

// Order is what a node is told of a Rule.
type Order struct {
	Node   string              `json:"node"`
	Source resource.RuleSource `json:"source"`
}

// countPause is the least time between two writes of a Rule's counts.
const countPause = 2 * time.Second

// Controllers are those of Rules: one has them act, the other writes what they have done.
func (e *Engine) Controllers() []control.Controller {
	all := func(store.Object) (keys []store.Key) { return e.ruleKeys() }
	return []control.Controller{
		{
			Name: "rules", Reconcile: e.reconcile, Workers: 1,
			Watches: []control.Watch{
				{Kind: resource.KindRule, DataOnly: true, Keys: func(o store.Object) []store.Key { return append([]store.Key{o.Key}, e.neighbours(o.Key)...) }},
				{Kind: resource.KindRuleEndpoint, Keys: func(o store.Object) []store.Key {
					return slices.DeleteFunc(all(o), func(k store.Key) bool { return k.Namespace != o.Namespace })
				}},
				{Kind: resource.KindNode, DataOnly: true, Same: func(_, _ store.Object) bool { return true }, Keys: all},
				{Kind: OrderKind, Keys: func(o store.Object) []store.Key { // of Rules that were deleted when the hub stopped
					return []store.Key{{Kind: resource.KindRule, Namespace: o.Namespace, Name: o.Name}}
				}},
			},
		},
		{Name: "rule-counts", Reconcile: e.writeCounts, Workers: 1, Pause: countPause, Sources: []func(context.Context, func(...store.Key)){e.countedRules}},
	}
}

// ruleKeys are the Rules that there are.
func (e *Engine) ruleKeys() (keys []store.Key) {
	for o, err := range store.All(context.Background(), e.o.Reader, resource.KindRule, store.ListOptions{}) {
		if err != nil {
			e.log.Error().Err(err).Msg("Rules can't be listed: those whose endpoints have changed act as before")
			return keys
		}
		keys = append(keys, o.Key)
	}
	return keys
}

// neighbours are the other Rules of a namespace: they may have its path.
func (e *Engine) neighbours(key store.Key) []store.Key {
	return slices.DeleteFunc(e.ruleKeys(), func(k store.Key) bool { return k.Namespace != key.Namespace || k == key })
}

// reconcile makes a Rule act as it says, or not.
func (e *Engine) reconcile(ctx context.Context, key store.Key) (time.Duration, error) {
	rule, err := objects.Get[resource.Rule](ctx, e.o.Objects, key)
	if errors.Is(err, resource.NotFound) || err == nil && rule.Metadata.DeletionTimestamp != nil {
		e.mu.Lock()
		delete(e.active, key)
		delete(e.counts, key)
		e.mu.Unlock()
		return 0, errors.Join(e.keep(), e.order(ctx, key, nil))
	}
	if err != nil {
		return 0, err
	}
	reason, message, err := e.judge(ctx, rule)
	if err != nil {
		return 0, err
	}
	if err := e.keep(); err != nil { // before the node sends anything
		return 0, err
	}
	if err := e.order(ctx, key, e.activeOf(key)); err != nil {
		return 0, err
	}
	return 0, store.IgnoreNotFound(objects.UpdateStatus(ctx, e.o.Objects, key, func(r *resource.Rule) error {
		r.SetReason(reason, message, e.o.Now())
		return nil
	}))
}

func (e *Engine) activeOf(key store.Key) *activeRule {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.active[key]
}

// judge says whether a Rule acts, and why not, and makes it so.
func (e *Engine) judge(ctx context.Context, rule *resource.Rule) (reason, message string, err error) {
	key := ruleKey(rule)
	active, reason, message, err := e.judged(ctx, rule)
	if err != nil {
		return "", "", err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if active == nil {
		delete(e.active, key)
		return reason, message, nil
	}
	e.active[key] = active
	for _, other := range e.active { // ruleOf takes the older one, and this one as soon as that is deleted
		if other.key != key && active.samePath(other) && other.before(active) {
			return resource.ReasonSourceTaken, fmt.Sprintf("the Rule %s, which is older, has the same path", other.key.Name), nil
		}
	}
	return reason, message, nil
}

func (e *Engine) judged(ctx context.Context, rule *resource.Rule) (active *activeRule, reason, message string, err error) {
	source, target, err := objects.RuleEndpoints(ctx, e.o.Reader, rule)
	switch {
	case err != nil:
		return nil, "", "", err
	case source == nil:
		return nil, resource.ReasonEndpointMissing, "there is no RuleEndpoint " + rule.Spec.Source, nil
	case target == nil:
		return nil, resource.ReasonEndpointMissing, "there is no RuleEndpoint " + rule.Spec.Target, nil
	}
	if err := rule.CheckEndpoints(source, target); err != nil {
		return nil, resource.ReasonRuleInvalid, err.Error(), nil
	}
	active = newActiveRule(rule, source, target)
	if active.node != "" {
		_, err := e.o.Reader.Get(ctx, store.Key{Kind: resource.KindNode, Name: active.node})
		if errors.Is(err, resource.NotFound) {
			return nil, resource.ReasonNodeMissing, "there is no Node " + active.node, nil
		}
		if err != nil {
			return nil, "", "", err
		}
	}
	return active, resource.ReasonRuleActs, "it acts", nil
}

// order writes what the node is told of a Rule; nil: nothing.
func (e *Engine) order(ctx context.Context, rule store.Key, active *activeRule) error {
	key := store.Key{Kind: OrderKind, Namespace: rule.Namespace, Name: rule.Name}
	old, err := e.o.Reader.Get(ctx, key)
	missing := errors.Is(err, resource.NotFound)
	if err != nil && !missing {
		return err
	}
	if active == nil || active.node == "" {
		if missing {
			return nil
		}
		_, err := e.o.Writer.Delete(ctx, key, 0)
		return store.IgnoreNotFound(err)
	}
	data, err := json.Marshal(Order{active.node, resource.RuleSource{Topics: active.topics}})
	switch {
	case err != nil:
		return err
	case missing:
		_, err = e.o.Writer.Create(ctx, store.Object{Key: key, Data: data})
	case !bytes.Equal(old.Data, data):
		_, err = e.o.Writer.Update(ctx, store.Object{Key: key, Data: data}, old.Rev)
	}
	return err
}

// Documents are what nodes get of an Order: the node, the key and the value.
func Documents(o store.Object) (node, key string, value []byte, err error) {
	var order Order
	if err := json.Unmarshal(o.Data, &order); err != nil {
		return "", "", nil, fmt.Errorf("the stored %s can't be read: %w", o.Key, err)
	}
	value, err = json.Marshal(order.Source)
	return order.Node, topics.Address{Kind: topics.KindRuleSource, Device: resource.RuleKey(o.Namespace, o.Name)}.Key(), value, err
}

// countedRules gives the Rules whose counts have changed.
func (e *Engine) countedRules(ctx context.Context, add func(...store.Key)) {
	for {
		select {
		case <-e.dirty:
			e.mu.Lock()
			keys := slices.Collect(maps.Keys(e.counts))
			e.mu.Unlock()
			add(keys...)
		case <-ctx.Done():
			return
		}
	}
}

// writeCounts adds to a Rule's status what it has done since.
func (e *Engine) writeCounts(ctx context.Context, key store.Key) (time.Duration, error) {
	e.mu.Lock()
	c := e.counts[key]
	delete(e.counts, key)
	e.mu.Unlock()
	if c == nil {
		return 0, nil
	}
	err := objects.UpdateStatus(ctx, e.o.Objects, key, func(r *resource.Rule) error {
		r.Status.Count(c.succeeded, c.failed, c.why, e.o.Now())
		return nil
	})
	if err == nil || errors.Is(err, resource.NotFound) {
		return 0, nil
	}
	e.mu.Lock()
	if later := e.counts[key]; later != nil { // counted meanwhile
		c.succeeded, c.failed, c.why = c.succeeded+later.succeeded, c.failed+later.failed, append(c.why, later.why...)
	}
	e.counts[key] = c
	e.mu.Unlock()
	return 0, err
}
