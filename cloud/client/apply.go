package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"reflect"
	"regexp"

	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/topics/resource"
)

// LastApplied is the annotation that remembers what was applied, so that what is no longer in a
// manifest goes away and what others wrote stays. It is kubectl's: both can apply the same manifests.
// A manifest that has it is an export: see Apply.
const LastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Outcome is what became of an object that was applied.
type Outcome string

// The outcomes.
const (
	Created    Outcome = "created"
	Configured Outcome = "configured"
	Unchanged  Outcome = "unchanged"
)

var separator = regexp.MustCompile(`(?m)^---(?:[ \t]+|\r?$)`)

// Document is a document of a manifest.
type Document struct {
	Number  int // from 1
	Objects []Object
	Err     error // why it can't be read
}

// Documents reads the documents of a manifest, YAML or JSON. Empty ones are left out; a List is its items.
func Documents(text []byte) (all []Document) {
	if list, ok := jsonDocuments(text); ok {
		for i, body := range list {
			all = append(all, document(i+1, body))
		}
		return all
	}
	number := 0
	for _, part := range separator.Split(string(text), -1) {
		body, err := yaml.YAMLToJSON([]byte(part))
		if err == nil && string(body) == "null" {
			continue // nothing but comments
		}
		number++
		if err != nil {
			all = append(all, Document{Number: number, Err: resource.Errorf(resource.Invalid, "", "is not YAML: %v", err)})
			continue
		}
		all = append(all, document(number, body))
	}
	return all
}

// jsonDocuments reads one JSON object after the other, if that is what text is.
func jsonDocuments(text []byte) (all []json.RawMessage, ok bool) {
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var body json.RawMessage
		err := d.Decode(&body)
		if errors.Is(err, io.EOF) {
			return all, len(all) > 0
		}
		if err != nil {
			return nil, false
		}
		all = append(all, body)
	}
}

func document(number int, body []byte) Document {
	d := Document{Number: number}
	var list struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}
	bodies := []json.RawMessage{body}
	if json.Unmarshal(body, &list) == nil && list.Items != nil && len(list.Kind) >= 4 && list.Kind[len(list.Kind)-4:] == "List" {
		bodies = list.Items
	}
	for _, body := range bodies {
		var o Object
		if err := json.Unmarshal(body, &o); err != nil {
			d.Err = resource.Errorf(resource.Invalid, "", "is no object: %v", err)
			return d
		}
		if err := o.named(); err != nil {
			d.Err = err
			return d
		}
		d.Objects = append(d.Objects, o)
	}
	return d
}

// named is whether an object says what it is.
func (o Object) named() error {
	for _, field := range []struct{ name, value string }{{"apiVersion", o.APIVersion}, {"kind", o.Kind}, {"metadata.name", o.Metadata.Name}} {
		if field.value == "" {
			return resource.Errorf(resource.Invalid, field.name, "is missing")
		}
	}
	return nil
}

// given are the fields that are the hub's to give. What a manifest says of them is ignored.
var given = []string{"uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "managedFields", "selfLink"}

// Manifest is an object as its author would write it, without what the hub gave it. A status stays: in other groups'
// manifests there are wishes in it, and who writes one of ours is not heard.
func (o Object) Manifest() (map[string]any, error) {
	tree, err := o.Tree()
	if err != nil {
		return nil, err
	}
	meta, _ := tree["metadata"].(map[string]any)
	for _, field := range given {
		delete(meta, field)
	}
	if notes, _ := meta["annotations"].(map[string]any); notes != nil {
		delete(notes, LastApplied)
		if len(notes) == 0 {
			delete(meta, "annotations")
		}
	}
	return tree, nil
}

// Apply makes the hub's object what a manifest says, and leaves alone what that doesn't mention. What an
// earlier apply mentioned, and this one doesn't, is taken away.
//
// An export says what others wrote as well, and brings along what was applied: an object that is made of it remembers
// that, or nothing. One that is there and as the export says stays as it is. An export that changes
// something is a manifest like any other: its author may have edited it.
func (c *Client) Apply(ctx context.Context, k Kind, namespace string, o Object, how WriteOptions) (Outcome, error) {
	if !k.Namespaced {
		namespace = ""
	}
	wanted, err := o.remembered(namespace)
	if err != nil {
		return "", err
	}
	for try := 0; ; try++ {
		current, err := c.Object(ctx, k, namespace, o.Metadata.Name)
		if err == nil {
			_, exported := o.Metadata.Annotations[LastApplied]
			return c.configure(ctx, k, namespace, current, wanted, exported, how)
		}
		if !errors.Is(err, resource.NotFound) {
			return "", err
		}
		body, err := o.newborn(wanted)
		if err != nil {
			return "", err
		}
		_, err = c.Create(ctx, k, namespace, body, how)
		if try == 0 && errors.Is(err, resource.AlreadyExists) { // since we looked; or in another namespace, for good
			continue
		}
		return Created, err
	}
}

// newborn is what is wanted as an object that isn't there yet: it has no revision, and remembers what an export brings.
func (o Object) newborn(wanted map[string]any) ([]byte, error) {
	tree := maps.Clone(wanted)
	meta := maps.Clone(tree["metadata"].(map[string]any))
	tree["metadata"] = meta
	delete(meta, "resourceVersion")
	if record, exported := o.Metadata.Annotations[LastApplied]; exported {
		notes := maps.Clone(meta["annotations"].(map[string]any))
		meta["annotations"] = notes
		notes[LastApplied] = record
		if record == "" { // nothing was applied
			delete(notes, LastApplied)
		}
	}
	return json.Marshal(tree)
}

// remembered is a manifest with itself as an annotation, letter by letter as kubectl writes it:
// taking turns with it changes nothing.
func (o Object) remembered(namespace string) (map[string]any, error) {
	tree, err := o.Manifest()
	if err != nil {
		return nil, err
	}
	meta, ok := tree["metadata"].(map[string]any)
	if !ok {
		return nil, resource.Errorf(resource.Invalid, "metadata", "is missing")
	}
	if namespace != "" {
		meta["namespace"] = namespace
	}
	notes, _ := meta["annotations"].(map[string]any)
	if notes == nil {
		notes = map[string]any{}
		meta["annotations"] = notes
	}
	version, conditional := meta["resourceVersion"]
	delete(meta, "resourceVersion") // is about this once
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	if conditional {
		meta["resourceVersion"] = version
	}
	notes[LastApplied] = string(text) + "\n"
	return tree, nil
}

func (c *Client) configure(ctx context.Context, k Kind, namespace string, current Object, wanted map[string]any, exported bool, how WriteOptions) (Outcome, error) {
	have, err := current.Tree()
	if err != nil {
		return "", err
	}
	// Somebody's text that can't be read remembers nothing.
	was, _ := Object{JSON: json.RawMessage(current.Metadata.Annotations[LastApplied])}.Tree()
	if exported {
		delete(was, "status") // which an export leaves out: it takes none away
	}
	patch := threeWay(was, wanted, have)
	if len(patch) == 0 || exported && onlyRemembers(patch) {
		return Unchanged, nil
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return "", err
	}
	after, err := c.Patch(ctx, k, namespace, current.Metadata.Name, body, how)
	switch {
	case err != nil:
		return "", err
	case !how.DryRun && after.Metadata.ResourceVersion == current.Metadata.ResourceVersion:
		return Unchanged, nil // 40 and "40" are one
	}
	return Configured, nil
}

// onlyRemembers is whether a patch changes nothing but what was applied.
func onlyRemembers(patch map[string]any) bool {
	meta, _ := patch["metadata"].(map[string]any)
	notes, _ := meta["annotations"].(map[string]any)
	_, remembers := notes[LastApplied]
	return remembers && len(patch) == 1 && len(meta) == 1 && len(notes) == 1
}

// threeWay is the merge patch that makes have what wanted says, and takes away what only was said.
func threeWay(was, wanted, have map[string]any) map[string]any {
	patch := map[string]any{}
	for key, want := range wanted {
		now, there := have[key]
		wantTree, isTree := want.(map[string]any)
		nowTree, wasTree := now.(map[string]any)
		switch {
		case isTree && wasTree:
			before, _ := was[key].(map[string]any)
			if below := threeWay(before, wantTree, nowTree); len(below) > 0 {
				patch[key] = below
			}
		case !there && want != nil, there && !reflect.DeepEqual(want, now):
			patch[key] = want
		}
	}
	for key := range was {
		_, still := wanted[key]
		if _, there := have[key]; there && !still {
			patch[key] = nil
		}
	}
	return patch
}
