// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// activeRule is a Rule that acts. It doesn't change.
type activeRule struct {
	key     store.Key
	created time.Time
	from    string // the type of its source

	// Of a rest source, below /{node}/{namespace}/.
	path []string

	// Of an eventbus source.
	node    string
	topics  []string
	filters []string // of its messages on the hub
	url     string   // that they are sent to

	// The target of requests: a topic, or a port and a path.
	target     string
	port       int
	targetPath string
}

// newActiveRule makes one of a Rule that was checked against its endpoints.
func newActiveRule(r *resource.Rule, source, target *resource.RuleEndpoint) *activeRule {
	a := &activeRule{key: ruleKey(r), from: source.Spec.RuleEndpointType}
	if at := r.Metadata.CreationTimestamp; at != nil {
		a.created = *at
	}
	if a.from == resource.EndpointEventBus {
		a.node, a.topics, a.url = r.Spec.SourceResource[resource.RuleNode], r.SourceTopics(), r.Spec.TargetResource[resource.RuleURL]
		for _, topic := range a.topics {
			a.filters = append(a.filters, topics.Address{Node: a.node, Kind: topics.KindBridge, Name: topic}.String())
		}
		return a
	}
	a.path = strings.Split(strings.Trim(r.Spec.SourceResource[resource.RulePath], "/"), "/")
	if target.Spec.RuleEndpointType == resource.EndpointEventBus {
		a.target = r.Spec.TargetResource[resource.RuleTopic]
	} else {
		a.port, a.targetPath = target.Port(), "/"+strings.Trim(r.Spec.TargetResource[resource.RulePath], "/")
	}
	return a
}

func ruleKey(r *resource.Rule) store.Key {
	return store.Key{Kind: resource.KindRule, Namespace: r.Metadata.Namespace, Name: r.Metadata.Name}
}

// name is what the Rule is called in headers and logs.
func (a *activeRule) name() string { return a.key.Namespace + "/" + a.key.Name }

// before says which of two Rules at one place acts: the older one.
func (a *activeRule) before(b *activeRule) bool {
	if c := a.created.Compare(b.created); c != 0 {
		return c < 0
	}
	return a.key.Compare(b.key) < 0
}

// samePath reports whether two Rules take the same requests.
func (a *activeRule) samePath(b *activeRule) bool {
	if a.key.Namespace != b.key.Namespace || len(a.path) == 0 || len(a.path) != len(b.path) {
		return false
	}
	for i := range a.path {
		if a.path[i] != b.path[i] && !(isParameter(a.path[i]) && isParameter(b.path[i])) {
			return false
		}
	}
	return true
}

// isParameter reports whether a level of a Rule's path stands for any one level.
func isParameter(level string) bool {
	return strings.HasPrefix(level, "{") && strings.HasSuffix(level, "}")
}

// matches reports whether a request's levels begin with the Rule's path, and how well: a level that is named counts before one that isn't.
func (a *activeRule) matches(levels []string) (rank string, ok bool) {
	if len(a.path) == 0 || len(levels) < len(a.path) {
		return "", false
	}
	for i, level := range a.path {
		switch {
		case isParameter(level):
			rank += "1"
		case level == levels[i]:
			rank += "2"
		default:
			return "", false
		}
	}
	return rank, true
}

// ruleOf finds the Rule of a request: the one with most levels, and with the most that are named from the left. rest are the levels after its path, escaped.
func (e *Engine) ruleOf(u *url.URL) (rule *activeRule, node string, rest []string) {
	escaped := strings.Split(strings.Trim(u.EscapedPath(), "/"), "/")
	levels := make([]string, len(escaped))
	for i, text := range escaped {
		level, err := url.PathUnescape(text)
		if err != nil || level == "." || level == ".." || strings.Contains(level, "/") {
			return nil, "", nil
		}
		levels[i] = level
	}
	if len(levels) < 3 || !topics.ValidName(levels[0]) {
		return nil, "", nil
	}
	best := ""
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, a := range e.active {
		if key.Namespace != levels[1] {
			continue
		}
		rank, ok := a.matches(levels[2:])
		if c := cmp.Or(cmp.Compare(len(rank), len(best)), cmp.Compare(rank, best)); ok && (rule == nil || c > 0 || c == 0 && a.before(rule)) {
			rule, best = a, rank
		}
	}
	if rule == nil {
		return nil, "", nil
	}
	return rule, levels[0], escaped[2+len(rule.path):]
}

// rulesOf are the Rules that a message of a node is for.
func (e *Engine) rulesOf(topic string) (list []*activeRule) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.active {
		if slices.Contains(a.filters, topic) {
			list = append(list, a)
		}
	}
	return list
}
