// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"sync"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// objectIndexes are what is known of objects, and which of them concern each other. Configurations and Instances are found by their
// names alone, too, which are unique; Instances by their Configuration and by the nodes that use them; Configurations by the Secrets and ConfigMaps
// that they refer to.
type objectIndexes struct {
	configurations *control.Index[*resource.Configuration] // nobody may change them
	instances      *control.Index[knownInstance]
	orders         *control.Index[*Order]
	labels         *control.Index[map[string]string] // of Nodes
	hosts          *control.Index[func() *HostState] // decoded when somebody asks
}

// knownInstance is an Instance that was made of what nodes found.
type knownInstance struct {
	configuration string
	nodes         []string           // that use it
	broker        resource.Condition // BrokerReady; zero: it has none
}

func newObjectIndexes() objectIndexes {
	return objectIndexes{
		configurations: &control.Index[*resource.Configuration]{Kind: resource.KindConfiguration, Of: indexConfiguration},
		instances:      &control.Index[knownInstance]{Kind: resource.KindInstance, Of: indexInstance, Status: true},
		orders: &control.Index[*Order]{Kind: OrderKind, Of: func(o store.Object) (*Order, []store.Key, bool) {
			order := new(Order)
			return order, nil, json.Unmarshal(o.Data, order) == nil
		}},
		labels: &control.Index[map[string]string]{Kind: resource.KindNode, Of: func(o store.Object) (map[string]string, []store.Key, bool) {
			labels, ok := decodeLabels(o)
			return labels, nil, ok
		}},
		hosts: &control.Index[func() *HostState]{Kind: resource.KindNode, Status: true, Of: func(o store.Object) (func() *HostState, []store.Key, bool) {
			status := o.Status
			return sync.OnceValue(func() *HostState { return decodeHost(status) }), nil, true
		}},
	}
}

func (x *objectIndexes) all() []control.Indexer {
	return []control.Indexer{x.configurations, x.instances, x.orders, x.labels, x.hosts}
}

func configurationName(name string) store.Key {
	return store.Key{Kind: resource.KindConfiguration, Name: name}
}

func nodeKey(name string) store.Key { return store.Key{Kind: resource.KindNode, Name: name} }

func indexConfiguration(o store.Object) (c *resource.Configuration, refs []store.Key, ok bool) {
	c, refs = new(resource.Configuration), []store.Key{configurationName(o.Name)}
	if json.Unmarshal(o.Data, c) != nil {
		return nil, nil, false
	}
	for _, p := range c.Spec.DiscoveryHandler.DiscoveryProperties {
		if ref, _, ok := valueRefOf(p, o.Namespace); ok {
			refs = append(refs, store.Key{Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name})
		}
	}
	return c, refs, true
}

func indexInstance(o store.Object) (known knownInstance, refs []store.Key, ok bool) {
	var i resource.Instance
	if json.Unmarshal(o.Data, &i) != nil || !IsManaged(&i) {
		return known, nil, false
	}
	known = knownInstance{configuration: i.Spec.ConfigurationName, nodes: nodesUsing(&i), broker: brokerCondition(o)}
	refs = []store.Key{instanceKey(o.Name), configurationName(known.configuration)}
	for _, node := range known.nodes {
		refs = append(refs, nodeKey(node))
	}
	return known, refs, true
}

// brokerCondition is the condition BrokerReady of a stored Instance; zero: it has none, or none that can be read.
func brokerCondition(o store.Object) (c resource.Condition) {
	var status resource.InstanceStatus
	if bytes.Contains(o.Status, []byte(resource.ConditionBrokerReady)) && json.Unmarshal(o.Status, &status) == nil {
		c = resource.ConditionOf(status.Conditions, resource.ConditionBrokerReady)
	}
	return c
}

// configuration is a Configuration as the watch has seen it last; nil: there is none.
func (x *objectIndexes) configuration(name string) *resource.Configuration {
	for _, key := range x.configurationKey(name) {
		c, _ := x.configurations.Get(key)
		return c
	}
	return nil
}

func (x *objectIndexes) configurationKey(name string) []store.Key {
	return x.configurations.Referring(configurationName(name))
}

// instance is an Instance, and its namespace; empty: none of that name was made.
func (x *objectIndexes) instance(name string) (i knownInstance, namespace string) {
	for _, key := range x.instances.Referring(instanceKey(name)) {
		i, _ = x.instances.Get(key)
		return i, key.Namespace
	}
	return i, ""
}

// made are the names of the Instances that were made for a Configuration.
func (x *objectIndexes) made(configuration string) []string {
	return keyNames(x.instances.Referring(configurationName(configuration)))
}

// usedBy are the names of the Instances that a node uses.
func (x *objectIndexes) usedBy(node string) []string {
	return keyNames(x.instances.Referring(nodeKey(node)))
}

func keyNames(keys []store.Key) (list []string) {
	for _, key := range keys {
		list = append(list, key.Name)
	}
	return list
}

// uses says whether a node uses one of some Instances.
func (x *objectIndexes) uses(node string, instances []string) bool {
	return slices.ContainsFunc(instances, func(name string) bool {
		i, _ := x.instance(name)
		return slices.Contains(i.nodes, node)
	})
}

// nodesOf are the nodes that use Instances of a Configuration.
func (x *objectIndexes) nodesOf(configuration string) []string {
	nodes := make(map[string]bool)
	for _, name := range x.made(configuration) {
		i, _ := x.instance(name)
		for _, node := range i.nodes {
			nodes[node] = true
		}
	}
	return slices.Sorted(maps.Keys(nodes))
}

// brokers are the conditions BrokerReady of a Configuration's Instances.
func (x *objectIndexes) brokers(configuration string) map[string]resource.Condition {
	all := make(map[string]resource.Condition)
	for _, name := range x.made(configuration) {
		if i, _ := x.instance(name); i.broker.Type != "" {
			all[name] = i.broker
		}
	}
	return all
}

// host is how a Node is now.
func (x *objectIndexes) host(node string) *HostState {
	if decode, ok := x.hosts.Get(nodeKey(node)); ok {
		return decode()
	}
	return new(HostState)
}

// matching are the names of the Nodes that a selector chooses, sorted.
func (x *objectIndexes) matching(s *resource.LabelSelector) (list []string) {
	for key, labels := range x.labels.All() {
		if s.Matches(labels) {
			list = append(list, key.Name)
		}
	}
	slices.Sort(list)
	return list
}

// decodeHost is how a Node is. A status that can't be read says nothing.
func decodeHost(status []byte) *HostState {
	var s struct {
		State           string                       `json:"state"`
		LastSeen        string                       `json:"lastSeen"`
		AgentVersion    string                       `json:"agentVersion"`
		RenderedVersion string                       `json:"renderedVersion"`
		Failed          *resource.FailedVersion      `json:"failed"`
		Applications    []resource.ApplicationStatus `json:"applications"`
		Conditions      []resource.Condition         `json:"conditions"`
	}
	_ = json.Unmarshal(status, &s)
	h := &HostState{Agent: s.AgentVersion != "" || s.RenderedVersion != "", Applications: make(map[string]resource.ApplicationStatus)}
	if s.State != resource.Online {
		h.Offline, _ = resource.ParseTime(s.LastSeen)
	}
	for _, a := range s.Applications {
		h.Applications[a.Name] = resource.ApplicationStatus{Status: a.Status, Message: a.Message}
	}
	if s.Failed != nil {
		h.Problem = "the node could not apply its spec: " + s.Failed.String()
	}
	for _, c := range s.Conditions {
		if c.Type == resource.ConditionSpecRendered && c.Status == "False" {
			h.Problem = "the spec of the node can't be rendered: " + c.Message
		}
	}
	return h
}

// same says whether two states of a Node are the same, as far as they concern an application.
func (h *HostState) same(other *HostState, application string) bool {
	return h.Offline.Equal(other.Offline) && h.Agent == other.Agent && h.Problem == other.Problem && h.Applications[application] == other.Applications[application]
}

func decodeLabels(o store.Object) (labels map[string]string, ok bool) {
	text := rawjson.Field(rawjson.Field(o.Data, "metadata"), "labels")
	return labels, len(text) == 0 || json.Unmarshal(text, &labels) == nil
}

// sameLabels says whether a Node has the labels that it had.
func sameLabels(before, now store.Object) bool {
	of := func(o store.Object) []byte { return rawjson.Field(rawjson.Field(o.Data, "metadata"), "labels") }
	return bytes.Equal(of(before), of(now)) // a map is stored in the order of its keys
}
