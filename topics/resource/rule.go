// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics"
)

// The kinds Rule and RuleEndpoint of rules.kubeedge.io/v1, which the hub serves in KubeEdge's form and in no other.
const (
	RulesGroup       = "rules.kubeedge.io"
	RulesVersion     = "v1"
	KindRule         = "Rule"
	KindRuleEndpoint = "RuleEndpoint"
)

// Rule carries messages or requests from one RuleEndpoint to another. It may reach every topic of users' own on nodes' brokers, the ports of
// nodes that their setting rules.ports lists, and the addresses that the hub's setting rules.allow doesn't keep from it.
type Rule struct {
	TypeMeta
	Metadata Meta       `json:"metadata"`
	Spec     RuleSpec   `json:"spec"`
	Status   RuleStatus `json:"status,omitzero"`
}

// RuleSpec says from where to where.
type RuleSpec struct {
	// Source is the name of the RuleEndpoint, in the Rule's namespace, that messages come from.
	Source string `json:"source"`
	// SourceResource says what of the source: {"path": "/a/b"} of a rest endpoint, where {name} stands for any one level, and
	// {"topic": "a/b", "node_name": "n1"} of an eventbus endpoint.
	SourceResource map[string]string `json:"sourceResource"`
	// Target is the name of the RuleEndpoint, in the Rule's namespace, that messages go to.
	Target string `json:"target"`
	// TargetResource says what of the target: {"resource": "http://host/path"} of a rest endpoint, {"topic": "a/b"} of an eventbus endpoint,
	// {"path": "/a/b"} of a servicebus endpoint.
	TargetResource map[string]string `json:"targetResource"`
}

// RuleStatus is what a Rule has done.
type RuleStatus struct {
	// SuccessMessages is how many messages and requests have reached the target. Counts are stored every few seconds.
	SuccessMessages int64 `json:"successMessages"`
	// FailMessages is how many were lost, refused or answered with an error of the bus.
	FailMessages int64 `json:"failMessages"`
	// Errors are the last different reasons, with the time of each: at most 10.
	Errors []string `json:"errors,omitempty"`
	// Conditions: Ready says whether the Rule acts, and if not, why.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// RuleEndpoint is a place that messages come from or go to.
type RuleEndpoint struct {
	TypeMeta
	Metadata Meta             `json:"metadata"`
	Spec     RuleEndpointSpec `json:"spec"`
}

// RuleEndpointSpec says what is there.
type RuleEndpointSpec struct {
	// RuleEndpointType is rest, the hub's HTTP API as a source and an HTTP server as a target; eventbus, the brokers of nodes; or servicebus, HTTP
	// servers on nodes that listen at 127.0.0.1.
	// +kubebuilder:validation:Enum=rest;eventbus;servicebus
	RuleEndpointType string `json:"ruleEndpointType"`
	// Properties are {"service_port": "8080"} of a servicebus endpoint; others need none.
	Properties map[string]string `json:"properties,omitempty"`
}

// The types of a RuleEndpoint.
const (
	EndpointREST       = "rest"
	EndpointEventBus   = "eventbus"
	EndpointServiceBus = "servicebus"
)

// The keys of sourceResource, targetResource and properties.
const (
	RulePath     = "path"
	RuleTopic    = "topic"
	RuleNode     = "node_name"
	RuleURL      = "resource"
	EndpointPort = "service_port"
)

var endpointTypes = []string{EndpointREST, EndpointEventBus, EndpointServiceBus}

// Validate checks a RuleEndpoint.
func (e RuleEndpoint) Validate() error {
	var p causeList
	e.Metadata.check(&p)
	if e.Spec.RuleEndpointType == "" {
		p.add("spec.ruleEndpointType", "is required: one of %s", strings.Join(endpointTypes, ", "))
	} else {
		checkOneOf(&p, "spec.ruleEndpointType", e.Spec.RuleEndpointType, endpointTypes)
	}
	if e.Spec.RuleEndpointType == EndpointServiceBus && e.Port() == 0 {
		p.add("spec.properties."+EndpointPort, "%s: a servicebus endpoint needs a port of the node, 1–65535, as a text", clipText(e.Spec.Properties[EndpointPort]))
	}
	p.tooMany("spec.properties", len(e.Spec.Properties))
	return p.err()
}

// Port is the port of a servicebus endpoint; 0: it has none.
func (e RuleEndpoint) Port() int {
	n, err := strconv.ParseUint(e.Spec.Properties[EndpointPort], 10, 16)
	if err != nil {
		return 0
	}
	return int(n)
}

// Validate checks a Rule by itself, as far as that can be done without its endpoints.
func (r Rule) Validate() error {
	var p causeList
	r.Metadata.check(&p)
	checkRequired(&p, "spec.source", r.Spec.Source)
	checkRequired(&p, "spec.target", r.Spec.Target)
	for field, m := range map[string]map[string]string{"spec.sourceResource": r.Spec.SourceResource, "spec.targetResource": r.Spec.TargetResource} {
		if len(m) == 0 {
			p.add(field, "is required")
		}
		p.tooMany(field, len(m))
	}
	return p.err()
}

// rulePairs are the targets of each source.
var rulePairs = map[string][]string{EndpointREST: {EndpointEventBus, EndpointServiceBus}, EndpointEventBus: {EndpointREST}}

// CheckEndpoints checks a Rule against its endpoints; nil: there is none yet.
func (r Rule) CheckEndpoints(source, target *RuleEndpoint) error {
	var p causeList
	if source != nil {
		r.checkSource(&p, source.Spec.RuleEndpointType)
	}
	if target != nil {
		r.checkTarget(&p, target.Spec.RuleEndpointType)
	}
	if source != nil && target != nil {
		from, to := source.Spec.RuleEndpointType, target.Spec.RuleEndpointType
		if pairs, ok := rulePairs[from]; ok && !slices.Contains(pairs, to) {
			p.add("spec.target", "a Rule from %s to %s is not possible: from %s it goes to %s", from, to, from, strings.Join(pairs, " or "))
		}
	}
	return p.err()
}

func (r Rule) checkSource(p *causeList, kind string) {
	at := func(key string) (field, value string) {
		return "spec.sourceResource." + key, r.Spec.SourceResource[key]
	}
	switch kind {
	case EndpointREST:
		if field, path := at(RulePath); strings.Trim(path, "/") == "" {
			p.add(field, "is required: the path, after node and namespace, at which the hub takes requests, such as /test")
		} else {
			checkRulePath(p, field, path)
		}
	case EndpointEventBus:
		field, topic := at(RuleTopic)
		checkRuleTopic(p, field, topic)
		if field, node := at(RuleNode); !topics.ValidName(node) {
			p.add(field, "%s: is required, the name of the node on whose broker the messages are: %s", clipText(node), topics.NameRule())
		}
	default:
		p.add("spec.source", "a %s endpoint is no source: sources are %s", kind, strings.Join(slices.Sorted(maps.Keys(rulePairs)), " and "))
	}
}

func (r Rule) checkTarget(p *causeList, kind string) {
	at := func(key string) (field, value string) {
		return "spec.targetResource." + key, r.Spec.TargetResource[key]
	}
	switch kind {
	case EndpointREST:
		field, text := at(RuleURL)
		switch u, err := url.Parse(text); {
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			p.add(field, "is required: the address that gets the messages, such as https://host/path")
		case u.User != nil:
			p.add(field, "must not hold a user name or password: everybody who reads the Rule would see it")
		}
	case EndpointEventBus:
		field, topic := at(RuleTopic)
		checkRuleTopic(p, field, topic)
	case EndpointServiceBus:
		if field, path := at(RulePath); path == "" {
			p.add(field, "is required: the path of the request to the service, such as /target")
		} else {
			checkRulePath(p, field, path)
		}
	}
}

func checkRulePath(p *causeList, field, path string) {
	switch {
	case len(path) > 1024:
		p.add(field, "has %d bytes; at most 1024 are taken", len(path))
	case strings.ContainsAny(path, "?#\\") || !topics.IsReadable(path):
		p.add(field, "%s: must be a path without ?, # and control characters", clipText(path))
	case slices.ContainsFunc(strings.Split(path, "/"), func(level string) bool { return level == "." || level == ".." }):
		p.add(field, "%s: must have no . and .. as a level", clipText(path))
	}
}

// checkRuleTopic checks a topic of users' own.
func checkRuleTopic(p *causeList, field, topic string) {
	switch err := topics.CheckTopic(topic); {
	case topic == "":
		p.add(field, "is required: a topic of the node's broker")
	case err != nil:
		p.addErr(field, err)
	case topics.IsTree(topic):
		p.add(field, "%s: must be outside %s: what is below it is the bus's own", clipText(topic), topics.Prefix)
	}
}

// ReasonRuleActs and the others are the reasons of a Rule's condition Ready.
const (
	ReasonRuleActs        = "Acts"
	ReasonEndpointMissing = "EndpointMissing"
	ReasonRuleInvalid     = "Invalid"
	ReasonSourceTaken     = "SourceTaken"
	ReasonNodeMissing     = "NodeMissing"
)

// SetReason sets the condition Ready of a Rule.
func (r *Rule) SetReason(reason, message string, now time.Time) {
	c := Condition{Type: ConditionReady, Status: "False", Reason: reason, Message: message, ObservedGeneration: r.Metadata.Generation}
	if reason == ReasonRuleActs {
		c.Status = "True"
	}
	r.Status.Conditions = SetCondition(slices.Clone(r.Status.Conditions), c, now)
}

// maxRuleErrors is how many reasons a Rule's status has, and maxRuleError how long each is, in bytes.
const (
	maxRuleErrors = 10
	maxRuleError  = 300
)

// Count adds to what a Rule has done. why are the reasons of what failed, each once.
func (s *RuleStatus) Count(succeeded, failed int64, why []string, now time.Time) {
	s.SuccessMessages += succeeded
	s.FailMessages += failed
	errs := slices.Clone(s.Errors)
	for _, text := range why {
		if len(text) > maxRuleError {
			text = strings.ToValidUTF8(text[:maxRuleError], "") + "…"
		}
		errs = slices.DeleteFunc(errs, func(old string) bool { _, said, _ := strings.Cut(old, " "); return said == text })
		errs = append(errs, fmt.Sprintf("%s %s", FormatTime(now), text))
	}
	s.Errors = errs[max(0, len(errs)-maxRuleErrors):]
}

// RuleSource is what a node is told of a Rule: the topics of its own broker whose messages it forwards to the hub.
type RuleSource struct {
	Topics []string `json:"topics"`
}

// SourceTopics are the topics of a Rule from an eventbus. KubeEdge's programs publish with the namespace before the topic.
func (r Rule) SourceTopics() []string {
	topic := r.Spec.SourceResource[RuleTopic]
	return []string{topic, r.Metadata.Namespace + "/" + strings.TrimPrefix(topic, "/")}
}

// RuleKey is what a Rule is called in nodes' topics.
func RuleKey(namespace, name string) string { return namespace + "." + name }

// RuleRequest is what a Rule has a node do, beside the body: publish it on its broker, if there is a topic, or send it to a service of its host. It stands in the
// user property PropRequest of the message.
type RuleRequest struct {
	Rule   string              `json:"rule"` // its namespace and name
	Topic  string              `json:"topic,omitempty"`
	Port   int                 `json:"port,omitempty"`
	Method string              `json:"method,omitempty"`
	Path   string              `json:"path,omitempty"` // escaped, with the query
	Header map[string][]string `json:"header,omitempty"`
}

// RuleAnswer is how that went, beside the body of a service's answer. It stands in the user property PropAnswer.
type RuleAnswer struct {
	Status int                 `json:"status,omitempty"` // of the service; 0: there is no answer of one
	Header map[string][]string `json:"header,omitempty"`
	Code   ErrorKind           `json:"code,omitempty"` // why the node didn't do it; empty: it did
	Error  string              `json:"error,omitempty"`
}

// The user properties of RuleRequest and RuleAnswer.
const (
	PropRequest = "request"
	PropAnswer  = "answer"
)

// MaxRuleBody and MaxRuleHeader bound what a Rule carries, in bytes.
const (
	MaxRuleBody   = 1_000_000
	MaxRuleHeader = 16 << 10
	// MaxRuleText bounds a RuleRequest and a RuleAnswer as they are sent: with a body they fit into one packet of the link.
	MaxRuleText = 40 << 10
)

// hopHeaders are for one connection, say who somebody is to the hub, or are about all that the hub's address serves: they go no further.
var hopHeaders = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length",
	"Authorization", "Cookie", "Set-Cookie", "Set-Cookie2", "Origin", "Impersonate-User",
	"Alt-Svc", "Clear-Site-Data", "Nel", "Public-Key-Pins", "Report-To", "Reporting-Endpoints", "Service-Worker-Allowed", "Strict-Transport-Security",
}

// CarriedHeader is the part of an HTTP header that a Rule carries, with canonical names; false: it is too large.
func CarriedHeader(h map[string][]string) (map[string][]string, bool) {
	size, out := 0, make(map[string][]string, len(h))
	for name, values := range h {
		name = http.CanonicalHeaderKey(name)
		out[name] = append(out[name], values...)
	}
	for _, list := range out["Connection"] { // what it names is for one connection as well
		for name := range strings.SplitSeq(list, ",") {
			delete(out, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	for _, name := range hopHeaders {
		delete(out, name)
	}
	for name, values := range out {
		for _, v := range values {
			size += len(name) + len(v)
		}
	}
	return out, size <= MaxRuleHeader
}
