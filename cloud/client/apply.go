// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// LastApplied is the annotation with the manifest that was applied last, so that fields that a new one doesn't have are
// removed, and fields that others wrote stay. It is kubectl's: both can apply the same manifests.
// A manifest that has it is an export: see Apply.
const LastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Outcome is the outcome of an apply.
type Outcome string

// The outcomes.
const (
	Created    Outcome = "created"
	Configured Outcome = "configured"
	Unchanged  Outcome = "unchanged"
)

var documentSeparator = regexp.MustCompile(`(?m)^---(?:[ \t]+|\r?$)`)

// Document is a document of a manifest.
type Document struct {
	Number  int // from 1
	Objects []Object
	Err     error  // why it can't be read
	Warning string // keys that are there twice, of which the last one counts
}

// Documents reads the documents of a manifest, YAML or JSON. Empty ones are left out; a List is its items.
func Documents(text []byte) (all []Document) {
	if list, ok := jsonDocuments(text); ok {
		for i, body := range list {
			all = append(all, newDocument(i+1, body))
		}
		return all
	}
	number := 0
	for _, part := range documentSeparator.Split(string(text), -1) {
		body, err := yaml.YAMLToJSON([]byte(part))
		if err == nil && string(body) == "null" {
			continue // nothing but comments, or null
		}
		number++
		if err != nil {
			all = append(all, Document{Number: number, Err: notYAML(part, err)})
			continue
		}
		d := newDocument(number, body)
		d.Warning = findDuplicates(part)
		all = append(all, d)
	}
	return all
}

// findDuplicates names the keys of a document that are there twice.
func findDuplicates(text string) string {
	if strings.Contains(text, "<<:") {
		return "" // what is set beside a merged mapping would be taken for such a key
	}
	if _, err := yaml.YAMLToJSONStrict([]byte(text)); err != nil {
		return strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:\n  "), "\n  ", ", ")
	}
	return ""
}

func notYAML(text string, err error) error {
	advice := ""
	if strings.HasPrefix(text, "\t") || strings.Contains(text, "\n\t") {
		advice = " (it is indented with a tab: YAML wants spaces)"
	}
	return resource.Errorf(resource.Invalid, "", "is not YAML: %v%s", err, advice)
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
		if string(body) != "null" {
			all = append(all, body)
		}
	}
}

func newDocument(number int, body []byte) Document {
	d := Document{Number: number}
	items, isList, err := resource.ListItems(body)
	if err != nil {
		d.Err = err
		return d
	}
	var wrong []error
	for i, item := range items {
		o, err := newObject(item)
		if err == nil {
			d.Objects = append(d.Objects, o)
			continue
		}
		if isList {
			err = fmt.Errorf("items[%d]: %w", i, err)
		}
		wrong = append(wrong, err)
	}
	d.Err = errors.Join(wrong...)
	return d
}

func newObject(body []byte) (o Object, err error) {
	if err := json.Unmarshal(body, &o); err != nil {
		if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) && wrong.Field != "" {
			return o, resource.Errorf(resource.Invalid, wrong.Field, "can't be a %s", wrong.Value)
		}
		return o, resource.Errorf(resource.Invalid, "", "is no object with apiVersion, kind and metadata: %.60q", body)
	}
	return o, o.named()
}

// named checks that an object has an apiVersion, a kind, and a name or what one is made of.
func (o Object) named() error {
	for _, field := range []struct{ name, value, example string }{
		{"apiVersion", o.APIVersion, ", such as edgebus.io/v1alpha1: edgebus kinds lists them"},
		{"kind", o.Kind, ", such as Device: edgebus kinds lists them"},
		{"metadata.name", o.Metadata.Name + o.Metadata.GenerateName, ""},
	} {
		if field.value == "" {
			return resource.Errorf(resource.Invalid, field.name, "is missing%s", field.example)
		}
	}
	return nil
}

// hubFields are the fields that the hub sets. In a manifest they are ignored.
var hubFields = []string{"uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "managedFields", "selfLink"}

// Manifest is an object without the fields that the hub sets. A status stays: in manifests of other groups it has
// desired values, and the hub ignores that of its own kinds.
func (o Object) Manifest() (map[string]any, error) {
	tree, err := o.Tree()
	if err != nil {
		return nil, err
	}
	meta, _ := tree["metadata"].(map[string]any)
	for _, field := range hubFields {
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

// Change is what a write made of an object.
type Change struct {
	Outcome
	Before Object // empty if there was none
	After  Object
}

// ErrGenerateName says that an object of a manifest has no name of its own.
var ErrGenerateName = resource.Errorf(resource.Invalid, "metadata.name", "is missing: an object with a generateName can be created, and nothing else")

// Apply creates an object, or changes it as a manifest says, and leaves fields alone that the manifest doesn't have. Fields
// that an earlier apply had, and this one doesn't, are removed.
//
// An export has fields that others wrote, too, and the annotation of what was applied: an object that is created from it
// keeps that annotation. An object that equals the export isn't changed. An export that changes
// something is applied like any manifest: it may have been edited.
//
// An object that is being deleted would take what is applied with it: its end is waited for, and then it is created.
func (c *Client) Apply(ctx context.Context, k Kind, namespace string, o Object, how WriteOptions) (Change, error) {
	if !k.Namespaced {
		namespace = ""
	}
	if o.Metadata.Name == "" {
		return Change{}, ErrGenerateName
	}
	wanted, err := o.annotated(namespace)
	if err != nil {
		return Change{}, err
	}
	for try := 0; ; try++ {
		current, err := c.afterDeletion(ctx, k, namespace, o.Metadata.Name, how)
		if err == nil {
			_, exported := o.Metadata.Annotations[LastApplied]
			return c.configure(ctx, k, namespace, current, wanted, exported, how)
		}
		if !errors.Is(err, resource.NotFound) {
			return Change{}, err
		}
		body, err := o.forCreate(wanted)
		if err != nil {
			return Change{}, err
		}
		made, err := c.Create(ctx, k, namespace, body, how)
		if try == 0 && errors.Is(err, resource.AlreadyExists) { // meanwhile; or in another namespace, then it fails again
			continue
		}
		return Change{Outcome: Created, After: made}, err
	}
}

const (
	// deletionWait is how long Apply waits for the end of an object that is being deleted.
	deletionWait = 10 * time.Second
	deletionPoll = 100 * time.Millisecond
)

// afterDeletion is an object, but not one that is being deleted.
func (c *Client) afterDeletion(ctx context.Context, k Kind, namespace, name string, how WriteOptions) (Object, error) {
	for began := time.Now(); ; {
		current, err := c.Object(ctx, k, namespace, name)
		m := current.Metadata
		if err != nil || m.DeletionTimestamp == nil {
			return current, err
		}
		if how.DryRun || time.Since(began) > deletionWait {
			return current, resource.Errorf(resource.Conflict, "metadata.deletionTimestamp",
				"the object is being deleted, and would take what is applied with it: apply it again when it is gone (its finalizers are %s)", strings.Join(m.Finalizers, ", "))
		}
		if !backoff.Sleep(ctx, deletionPoll) {
			return current, ctx.Err()
		}
	}
}

// forCreate is the object to create: without a revision, and with the annotation of an export.
func (o Object) forCreate(wanted map[string]any) ([]byte, error) {
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

// annotated is a manifest with itself as the annotation, byte for byte as kubectl writes it, so that
// applying with the one what was applied with the other changes nothing.
func (o Object) annotated(namespace string) (map[string]any, error) {
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
	delete(meta, "resourceVersion") // it is for this request only
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

func (c *Client) configure(ctx context.Context, k Kind, namespace string, current Object, wanted map[string]any, exported bool, how WriteOptions) (Change, error) {
	have, err := current.Tree()
	if err != nil {
		return Change{}, err
	}
	// An annotation that is not JSON counts as empty.
	was, _ := Object{JSON: json.RawMessage(current.Metadata.Annotations[LastApplied])}.Tree()
	if exported {
		delete(was, "status") // exports have none: it must not be removed
	}
	patch := threeWayPatch(was, wanted, have)
	if len(patch) == 0 || exported && onlyAnnotates(patch) {
		return Change{Unchanged, current, current}, nil
	}
	after, err := c.Patch(ctx, k, namespace, current.Metadata.Name, patch, how)
	switch {
	case err != nil:
		return Change{}, err
	case !how.DryRun && after.Metadata.ResourceVersion == current.Metadata.ResourceVersion:
		return Change{Unchanged, current, after}, nil // 40 and "40" are one
	}
	return Change{Configured, current, after}, nil
}

// onlyAnnotates is whether a patch changes nothing but the annotation.
func onlyAnnotates(patch map[string]any) bool {
	meta, _ := patch["metadata"].(map[string]any)
	notes, _ := meta["annotations"].(map[string]any)
	_, annotates := notes[LastApplied]
	return annotates && len(patch) == 1 && len(meta) == 1 && len(notes) == 1
}

// threeWayPatch is the merge patch that sets in have what wanted has, and removes what was has and wanted doesn't.
func threeWayPatch(was, wanted, have map[string]any) map[string]any {
	patch := map[string]any{}
	for key, want := range wanted {
		now, there := have[key]
		wantTree, isTree := want.(map[string]any)
		nowTree, wasTree := now.(map[string]any)
		switch {
		case isTree && wasTree:
			before, _ := was[key].(map[string]any)
			if below := threeWayPatch(before, wantTree, nowTree); len(below) > 0 {
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
