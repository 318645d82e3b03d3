// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/templates"
	"github.com/edgebus/edgebus/topics/resource"
)

// pauseLabels are the labels by which a node's owner has the fleet controller leave it alone, with the value "paused".
var pauseLabels = []string{"fleet-controller", "flightctl.io/fleet-controller"}

// IsPaused says whether a node's labels end its management by fleets.
func IsPaused(nodeLabels map[string]string) bool {
	return slices.ContainsFunc(pauseLabels, func(l string) bool { return nodeLabels[l] == "paused" })
}

// ownerPrefix is what the owner of a node begins with if it is a fleet.
const ownerPrefix = resource.KindFleet + "/"

// Owner is metadata.owner of what a fleet owns.
func Owner(fleet string) string { return ownerPrefix + fleet }

// OwnedBy is the fleet that owns a node with this metadata.owner; false: none does.
func OwnedBy(owner string) (fleet string, ok bool) { return strings.CutPrefix(owner, ownerPrefix) }

// OwnerCandidate is a fleet that may own nodes.
type OwnerCandidate struct {
	Name    string
	Created time.Time
	matches labels.Selector
	// anchor is a label that all nodes of the fleet have, as key=value; empty: the selector has none, and each node has to
	// be compared with it.
	anchor string
}

// NewOwnerCandidate reads a fleet's selector. One that is empty or that can't be read chooses no node.
func NewOwnerCandidate(name string, created time.Time, s *resource.LabelSelector) OwnerCandidate {
	c := OwnerCandidate{Name: name, Created: created, matches: objects.Selector(s)}
	if s != nil && len(s.MatchLabels) > 0 {
		key := slices.Min(slices.Collect(maps.Keys(s.MatchLabels)))
		c.anchor = key + "=" + s.MatchLabels[key]
	}
	return c
}

// SelectorIndex finds the fleets that match a node without asking all of them.
type SelectorIndex struct {
	anchored map[string][]OwnerCandidate // by anchor
	others   []OwnerCandidate
}

// NewSelectorIndex makes an index of fleets.
func NewSelectorIndex(fleets []OwnerCandidate) *SelectorIndex {
	x := &SelectorIndex{anchored: make(map[string][]OwnerCandidate)}
	for _, f := range fleets {
		if f.anchor == "" {
			x.others = append(x.others, f)
		} else {
			x.anchored[f.anchor] = append(x.anchored[f.anchor], f)
		}
	}
	return x
}

// Match lists the fleets whose selectors match, the oldest first.
func (x *SelectorIndex) Match(nodeLabels map[string]string) (names []string) {
	var found []OwnerCandidate
	add := func(list []OwnerCandidate) {
		for _, f := range list {
			if f.matches.Matches(labels.Set(nodeLabels)) {
				found = append(found, f)
			}
		}
	}
	add(x.others)
	for key, value := range nodeLabels {
		add(x.anchored[key+"="+value])
	}
	slices.SortFunc(found, func(a, b OwnerCandidate) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name))
	})
	for _, f := range found {
		names = append(names, f.Name)
	}
	return names
}

// Assignment is whose a node is.
type Assignment struct {
	// Owner is what metadata.owner is to be.
	Owner string
	// Fleet is the fleet that manages the node; empty: none does.
	Fleet string
	// Matching are all fleets that match, if there are several. Each of them says so, and so does the node.
	Matching []string
}

// Assign says whose a node is. The fleet that owns it keeps it while it matches; else the oldest that matches gets it. A node that
// is paused, or owned by something that is no fleet, is left to others.
func (x *SelectorIndex) Assign(owner string, nodeLabels map[string]string) Assignment {
	matching := x.Match(nodeLabels)
	a := Assignment{}
	if len(matching) > 1 {
		a.Matching = matching
	}
	fleet, owned := OwnedBy(owner)
	switch {
	case owner != "" && !owned:
		a.Owner = owner
	case IsPaused(nodeLabels) || len(matching) == 0:
	case owned && slices.Contains(matching, fleet):
		a.Owner, a.Fleet = owner, fleet
	default:
		a.Owner, a.Fleet = Owner(matching[0]), matching[0]
	}
	return a
}

// ExpandTemplate is a template's spec as one node gets it: each text that contains {{ is a Go template over the node's metadata.name,
// metadata.labels and metadata.annotations. An error names the node and the field.
func ExpandTemplate(spec resource.NodeSpec, node resource.Meta) (resource.NodeSpec, error) {
	return templates.Expand(spec, map[string]any{"metadata": map[string]any{
		"name": node.Name, "labels": nonNilMap(node.Labels), "annotations": nonNilMap(node.Annotations),
	}}, "spec", "node "+node.Name)
}

func nonNilMap(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
