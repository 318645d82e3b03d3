// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// validateRule checks a Rule, against those of its endpoints that exist: the others may come later.
func validateRule(ctx context.Context, r store.Reader, _, next any) error {
	rule := next.(*resource.Rule)
	if err := rule.Validate(); err != nil {
		return err
	}
	source, target, err := RuleEndpoints(ctx, r, rule)
	if err != nil {
		return err
	}
	return rule.CheckEndpoints(source, target)
}

// RuleEndpoints reads the endpoints of a Rule; nil: there is none.
func RuleEndpoints(ctx context.Context, r store.Reader, rule *resource.Rule) (source, target *resource.RuleEndpoint, err error) {
	read := func(name string) (*resource.RuleEndpoint, error) {
		o, err := r.Get(ctx, endpointKey(rule, name))
		if errors.Is(err, resource.NotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		e := new(resource.RuleEndpoint)
		if err := json.Unmarshal(o.Data, e); err != nil {
			return nil, fmt.Errorf("the stored %s can't be read: %w", o.Key, err)
		}
		return e, nil
	}
	if source, err = read(rule.Spec.Source); err == nil {
		target, err = read(rule.Spec.Target)
	}
	return source, target, err
}

func endpointKey(rule *resource.Rule, name string) store.Key {
	return store.Key{Kind: resource.KindRuleEndpoint, Namespace: rule.Metadata.Namespace, Name: name}
}

// warnRuleReferences warns of what a Rule refers to and doesn't exist.
func warnRuleReferences(ctx context.Context, r store.Reader, _, next any) (warnings []string) {
	rule := next.(*resource.Rule)
	for _, ref := range []struct{ field, name string }{{"spec.source", rule.Spec.Source}, {"spec.target", rule.Spec.Target}} {
		if !mayExist(ctx, r, endpointKey(rule, ref.name)) {
			warnings = append(warnings, fmt.Sprintf("%s: there is no RuleEndpoint %s; the Rule waits until there is", ref.field, ref.name))
		}
	}
	if node := rule.Spec.SourceResource[resource.RuleNode]; node != "" && !mayExist(ctx, r, store.Key{Kind: resource.KindNode, Name: node}) {
		warnings = append(warnings, fmt.Sprintf("spec.sourceResource.%s: there is no Node %s; the Rule waits until there is", resource.RuleNode, node))
	}
	return warnings
}
