// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/rollout"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// parsedTemplate is the spec of a fleet's template, and what it comes to where that is the same for all nodes.
type parsedTemplate struct {
	spec          resource.NodeSpec
	text          string // in JSON
	dependsOnNode bool   // it depends on the node
	shared        *expandedTemplate
}

func parseTemplate(spec resource.NodeSpec) (*parsedTemplate, error) {
	text, err := json.Marshal(spec)
	return &parsedTemplate{spec: spec, text: string(text), dependsOnNode: bytes.Contains(text, []byte("{{"))}, err
}

// expandedTemplate is what a template comes to for a node, or for all nodes of a fleet.
type expandedTemplate struct {
	spec    resource.NodeSpec
	invalid error                // why the template is none for the node
	refs    []resource.Reference // what floats in spec

	frozenFor string            // the UID of the version that frozen is of
	frozen    resource.NodeSpec // spec with what its references stood for when the version was made
	text      []byte            // frozen in JSON, as it is stored
}

// expand is what the template comes to for a node.
func (t *parsedTemplate) expand(node resource.Meta) *expandedTemplate {
	if t.shared != nil {
		return t.shared
	}
	w := new(expandedTemplate)
	if w.spec, w.invalid = ExpandTemplate(t.spec, node); w.invalid == nil { // a label may make it one that no node may have
		w.invalid = resource.Node{Metadata: resource.Meta{Name: node.Name}, Spec: w.spec}.Validate()
	}
	if w.invalid == nil {
		w.refs = floatingReferences(w.spec)
	}
	if !t.dependsOnNode {
		t.shared = w
	}
	return w
}

// freeze makes frozen and text those of a version.
func (w *expandedTemplate) freeze(v *resource.TemplateVersion) {
	if w.frozenFor == v.Metadata.UID {
		return
	}
	w.frozenFor, w.frozen = v.Metadata.UID, freezeSpec(w.spec, v.Spec.References)
	w.text, _ = json.Marshal(w.frozen) // it was read from JSON; without a text specs are compared decoded
}

// matches says whether a stored spec is the frozen one. Inline documents may have been written with their fields in another order.
func (w *expandedTemplate) matches(stored []byte) bool {
	if len(stored) == 0 {
		stored = []byte("{}")
	}
	if bytes.Equal(stored, w.text) {
		return true
	}
	var spec resource.NodeSpec
	return json.Unmarshal(stored, &spec) == nil && sameJSON(spec, w.frozen)
}

// fleetNode is what rollouts look at of a node of a fleet: all members are in memory.
type fleetNode struct {
	name                string
	labels, annotations map[string]string
	generation          int64
	rev                 uint64 // of the store
	spec                []byte // as it is stored
	state               string
	specVersion         string // that its spec was rendered to
	appliedVersion      string
	failedVersion       string
	rendered            string // the status of the condition SpecRendered; empty: there is none
	renderedGeneration  int64
	summaries           resource.Summaries
	// waitsForWindow says that its agent waits for a window of its own, and began is when that last began or ended.
	waitsForWindow bool
	windowChanged  time.Time

	// What follows is of the last look.
	text     string // of the template that wanted is of
	expanded *expandedTemplate
	invalid  error // why the node can't have what is rolled out
	updated  bool  // it has that
}

// newFleetNode decodes a node. Labels and annotations that are the same text are one map.
func newFleetNode(o store.Object, maps map[string]map[string]string) (m *fleetNode, owner string, err error) {
	parts, _ := objects.PartsOf(o.Data)
	m = &fleetNode{name: o.Name, rev: o.Rev, spec: parts.Spec}
	decodeMap := func(text []byte) (decoded map[string]string, err error) {
		decoded, known := maps[string(text)]
		if !known {
			err = json.Unmarshal(text, &decoded)
			maps[string(text)] = decoded
		}
		return decoded, err
	}
	for f := rawjson.Fields(parts.Metadata); f.Next() && err == nil; {
		switch string(f.Name) {
		case "owner":
			err = json.Unmarshal(f.Value, &owner)
		case "generation":
			m.generation, err = strconv.ParseInt(string(f.Value), 10, 64)
		case "labels":
			m.labels, err = decodeMap(f.Value)
		case "annotations":
			m.annotations, err = decodeMap(f.Value)
		}
	}
	if err != nil {
		return nil, "", fmt.Errorf("the stored %s can't be read: %w", o.Key, err)
	}
	var s resource.NodeStatus
	if len(o.Status) > 0 {
		if err := json.Unmarshal(o.Status, &s); err != nil {
			return nil, "", fmt.Errorf("the status of the stored %s can't be read: %w", o.Key, err)
		}
	}
	m.summaries = s.Summaries()
	m.follow(s)
	return m, owner, nil
}

// follow takes in the node's status.
func (m *fleetNode) follow(s resource.NodeStatus) {
	m.state, m.specVersion, m.appliedVersion = s.State, s.SpecVersion, s.RenderedVersion
	if s.AgentStopped() { // nothing makes the node what its spec says
		m.state = resource.Offline
	}
	if s.Failed != nil {
		m.failedVersion = s.Failed.RenderedVersion
	}
	for _, c := range s.Conditions {
		switch {
		case c.Type == resource.ConditionSpecRendered:
			m.rendered, m.renderedGeneration = c.Status, c.ObservedGeneration
		case c.Type == resource.ConditionUpdating && rawjson.Field(m.spec, "updatePolicy") != nil:
			m.waitsForWindow, m.windowChanged = c.Reason == resource.WaitingForWindow, c.LastTransitionTime
		}
	}
}

// NoteVersion is the data of a Node that has, as its status says, the version that it was given: an annotation notes that. nil: it has
// not, or it is noted. Who writes the status writes both together, and the rollout needs no write of its own.
func NoteVersion(o store.Object, s resource.NodeStatus) []byte {
	parts, _ := objects.PartsOf(o.Data)
	annotations := rawjson.Field(parts.Metadata, "annotations")
	assigned := rawjson.Field(annotations, assignedAnnotation)
	if assigned == nil || bytes.Equal(assigned, rawjson.Field(annotations, versionAnnotation)) {
		return nil
	}
	m := fleetNode{spec: parts.Spec}
	m.generation, _ = strconv.ParseInt(string(rawjson.Field(parts.Metadata, "generation")), 10, 64)
	if m.follow(s); m.specState() != rollout.Done {
		return nil
	}
	if rawjson.Field(annotations, versionAnnotation) != nil { // most have had one before
		return objects.WithMetadata(o.Data, rawjson.WithField(parts.Metadata, "annotations", rawjson.WithField(annotations, versionAnnotation, assigned)))
	}
	var meta resource.Meta
	if json.Unmarshal(parts.Metadata, &meta) != nil {
		return nil
	}
	meta.Annotations[versionAnnotation] = meta.Annotations[assignedAnnotation]
	text, err := json.Marshal(meta)
	if err != nil {
		return nil
	}
	return objects.WithMetadata(o.Data, text)
}

// expandTemplate has the node want what a template comes to for it.
func (m *fleetNode) expandTemplate(t *parsedTemplate) {
	if m.expanded == nil || m.text != t.text {
		m.text, m.expanded = t.text, t.expand(resource.Meta{Name: m.name, Labels: m.labels, Annotations: m.annotations})
	}
	m.invalid = m.expanded.invalid
}

// target is how far a node is with a version.
func (m *fleetNode) target(version string) rollout.Target {
	t := rollout.Target{Name: m.name, Labels: m.labels, Online: m.state == resource.Online}
	t.Available = t.Online
	now := m.specState()
	t.Busy, t.WaitsForWindow = now == rollout.Updating, m.waitsForWindow
	t.Since, _ = time.Parse(time.RFC3339, m.annotations[assignedAtAnnotation])
	if m.windowChanged.After(t.Since) { // its time counts from when its window opened
		t.Since = m.windowChanged
	}
	if of, n, ok := strings.Cut(m.annotations[batchAnnotation], "/"); ok && of == version {
		n, _ := strconv.Atoi(n)
		t.Batch = max(0, n)
	}
	switch {
	case m.invalid != nil:
		t.State = rollout.Failed
	case m.annotations[assignedAnnotation] != version:
	case !m.expanded.matches(m.spec): // its labels have changed what the template comes to, or somebody has written the annotation
	default:
		t.State = now
	}
	return t
}

// specState says whether a node is as its spec wants it.
func (m *fleetNode) specState() rollout.State {
	switch {
	case m.rendered == "" && m.specVersion == "" && (len(m.spec) == 0 || string(m.spec) == "{}"):
		return rollout.Done // nothing has ever been wanted of it, and nothing is: there is nothing to render
	case m.rendered == "" || m.renderedGeneration < m.generation:
		return rollout.Updating // it is being rendered
	case m.rendered == "False":
		return rollout.Failed
	case m.appliedVersion == m.specVersion:
		return rollout.Done
	case m.failedVersion != "" && m.failedVersion == m.specVersion:
		return rollout.Failed
	}
	return rollout.Updating
}

// fleetSnapshot is a look at the nodes of a fleet.
type fleetSnapshot struct {
	template *parsedTemplate
	members  map[string]*fleetNode
}

// nodes are a fleet's nodes, by name.
func (c *rolloutController) nodes(ctx context.Context, f *resource.Fleet) (list []*fleetNode, err error) {
	fleet := f.Metadata.Name
	t, err := parseTemplate(f.Spec.Template.Spec)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	before := c.snapshots[fleet]
	c.mu.Unlock()
	switch {
	case before == nil:
		before = new(fleetSnapshot)
	case before.template.text == t.text:
		t = before.template
	}
	now, maps := &fleetSnapshot{t, make(map[string]*fleetNode, len(before.members))}, make(map[string]map[string]string)
	for _, key := range c.nodeIndex.Referring(fleetKey(fleet)) {
		o, err := c.Reader.Get(ctx, key)
		if store.IgnoreNotFound(err) != nil {
			return nil, err
		}
		m, owner := before.members[key.Name], Owner(fleet)
		if err == nil && (m == nil || m.rev != o.Rev) {
			if m, owner, err = newFleetNode(o, maps); err != nil {
				return nil, err
			}
		}
		if err != nil || owner != Owner(fleet) {
			continue
		}
		m.expandTemplate(t)
		now.members[key.Name] = m
		list = append(list, m)
	}
	c.mu.Lock()
	c.snapshots[fleet] = now
	c.mu.Unlock()
	return list, nil
}
