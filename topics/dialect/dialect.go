// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/topics/dialect/fit"
	"github.com/edgebus/edgebus/topics/resource"
)

// AnnotationPrefix is the prefix of the annotations that keep what a form can't express.
const AnnotationPrefix = "dialect.edgebus.io/"

// maxDepth bounds how deep in an object an annotation may go.
const maxDepth = 100

// Kind is a kind of another API group, and its conversion to a canonical kind.
type Kind struct {
	Group, Version, Name, Plural, Singular string
	// Canonical is the name of the canonical kind, and Scope that kind's scope.
	Canonical string
	// Form is an empty object: the fields that have a meaning here. Others are kept.
	Form any
	// Root is the path where the kind's own system serves it, such as "/api/v1". The API serves it there as well. Empty: none.
	Root string
	// BareStatus says that a manifest's status may have unknown fields, because it is never taken as fact.
	BareStatus bool
	// ReadOnly says that the form is for reading only.
	ReadOnly bool
	// Selector is a field selector of the canonical kind: the kind has only the objects that it selects. Empty: all.
	Selector string
	// fieldName names fields of the canonical kind as this form does, in what is said of them; nil: they have the same names.
	fieldName fieldName
	// mergesConditions says that an agent which writes a status owns some of the conditions: see the function mergeConditions.
	mergesConditions bool
	// freeLabels says that manifests have label values that Kubernetes refuses. They are kept, and only this form shows them.
	freeLabels bool
	// claims are metadata that manifests contain although the server sets them.
	claims []string

	// derived are annotations that follow from the canonical object; nil: not there. They are shown, and never stored.
	derived                    func(canonical jsonObject) map[string]any
	toCanonical, fromCanonical func([]byte) ([]byte, error)
	// reconcile makes redundant fields agree after kept values were put back.
	reconcile func(form, canonical jsonObject)
	// required are fields of a status, by their pointers, that are shown as here where nothing else is known of them, and never stored.
	required map[string]any
}

// APIVersion is the apiVersion of objects of this kind.
func (k Kind) APIVersion() string { return k.Group + "/" + k.Version }

// annotation is the annotation in which the canonical form keeps what only this form can express.
func (k Kind) annotation() string { return AnnotationPrefix + k.Group + "." + k.Version }

// canonicalAnnotation is the annotation in which every other form keeps what only the canonical one can express.
const canonicalAnnotation = AnnotationPrefix + resource.Group + "." + resource.Version

// AllKinds are all dialects, for each group the newest version first.
func AllKinds() []Kind {
	return slices.Concat(kubeedgeV1beta1(), kubeedgeV1alpha2(), kubeedgeV1alpha1(), upgradeV1alpha2Kinds(), operationsKinds(), flightctlKinds(), akriKinds())
}

// pair makes a Kind's functions of two typed ones. They see spec and status only.
func (k Kind) pair(form any, to, from func([]byte) ([]byte, error)) Kind {
	k.Form, k.toCanonical, k.fromCanonical = form, to, from
	return k
}

func typedConversion[F, C any](to func(F) (C, error), from func(C) F) (form any, toJSON, fromJSON func([]byte) ([]byte, error)) {
	toJSON = func(raw []byte) ([]byte, error) {
		var f F
		if err := json.Unmarshal(raw, &f); err != nil {
			return nil, TypeError(reflect.TypeFor[F](), raw, err)
		}
		c, err := to(f)
		if err != nil {
			return nil, err
		}
		return json.Marshal(c)
	}
	fromJSON = func(raw []byte) ([]byte, error) {
		var c C
		if err := json.Unmarshal(raw, &c); err != nil { // an annotation of the manifest has changed it
			return nil, TypeError(reflect.TypeFor[C](), raw, err)
		}
		return json.Marshal(from(c))
	}
	return new(F), toJSON, fromJSON
}

// TypeError names the first field whose JSON value has the wrong type.
func TypeError(t reflect.Type, raw []byte, err error) error {
	var v any
	if unmarshalNumbers(raw, &v) == nil {
		if at, why := fit.FindMismatch(t, v); why != "" {
			return resource.Errorf(resource.Invalid, at, "%s", why)
		}
	}
	return wrongType(err)
}

func wrongType(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return resource.Errorf(resource.Invalid, wrong.Field, "must not be a %s", wrong.Value)
	}
	return resource.Errorf(resource.Invalid, "", "the object can't be read: %v", err)
}

// Read converts an object in this form to the canonical one. old is the stored canonical object, nil if there is none. With
// status the status is taken over: that is for writes of the status. Otherwise the status is a claim: it is kept in the
// annotation, and this form shows it until the real status is known.
func (k Kind) Read(raw, old []byte, status bool) (canonical []byte, err error) {
	form, err := parseObject(raw)
	if err != nil {
		return nil, err
	}
	scalarsToText(reflect.TypeOf(k.Form), form)
	if status && old != nil {
		if form, err = k.withStatus(form, old); err != nil {
			return nil, err
		}
	}
	meta, err := readMetadata(form)
	if err != nil {
		return nil, err
	}
	k.derive(meta, nil)
	more, err := meta.takeDifferences(canonicalAnnotation)
	if err != nil {
		return nil, err
	}
	prev := jsonObject{}
	if old != nil {
		if prev, err = parseObject(old); err != nil {
			return nil, err
		}
	}
	c, err := convertObject(k.toCanonical, form)
	if err != nil {
		return nil, err
	}
	setField(c, "spec", applyDifferences("/spec", c["spec"], more))
	if status {
		err = k.keepStatus(c, prev)
	} else {
		setField(c, "status", prev["status"])
	}
	if err != nil {
		return nil, err
	}
	rest, err := k.unexpressed(form, c)
	if err != nil {
		return nil, err
	}
	rest = append(rest, k.splitClaims(meta.fields, prev)...)
	rest = append(rest, k.splitLabels(meta.fields)...)
	meta.keepDifferences(k.annotation(), rest)
	c["apiVersion"], c["kind"], c["metadata"] = resource.APIVersion, k.Canonical, meta.fields
	return json.Marshal(c)
}

// opaqueJSON is a part of a manifest that is kept as it is.
type opaqueJSON = json.RawMessage

// keptField is a field that a manifest of this form may have and that is kept, although nothing acts on it here. Its value has to be a T all the
// same, since the form's own system takes no other.
type keptField[T any] json.RawMessage

// UnmarshalJSON implements json.Unmarshaler.
func (k *keptField[T]) UnmarshalJSON(raw []byte) error {
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return err
	}
	*k = slices.Clone(raw)
	return nil
}

// MarshalJSON implements json.Marshaler.
func (k keptField[T]) MarshalJSON() ([]byte, error) { return json.RawMessage(k).MarshalJSON() }

// Kept is the type of the value; see fit.Kept.
func (keptField[T]) Kept() reflect.Type { return reflect.TypeFor[T]() }

// Unknown are the fields of an object that this form doesn't have. They are kept like opaque ones, and may be misspelt.
func (k Kind) Unknown(raw []byte) []string {
	form, err := parseObject(raw)
	if err != nil {
		return nil
	}
	said := specAndStatus(form)
	if k.BareStatus {
		delete(said, "status")
	}
	out := fit.UnknownFields(reflect.TypeFor[resource.Meta](), form["metadata"])
	for i := range out {
		out[i] = "metadata." + out[i]
	}
	return append(out, fit.UnknownFields(reflect.TypeOf(k.Form), said)...)
}

// Warnings returns warnings about values of an object in this form whose meaning its writer may not expect.
func (k Kind) Warnings(raw []byte) []string {
	form, err := parseObject(raw)
	if err != nil {
		return nil
	}
	spec, _ := form["spec"].(jsonObject)
	switch k.Group {
	case kubeedgeGroup:
		return slices.Concat(k.labelWarnings(form), cycleWarnings("spec", spec), pushWarnings(spec))
	case flightctlGroup:
		return slices.Concat(k.keptWarnings(spec), k.placeWarnings(spec), sourceWarnings(spec))
	case operationsGroup:
		return jobWarnings(spec)
	}
	return nil
}

// keptWarnings names the fields of a spec on which nothing acts.
func (k Kind) keptWarnings(spec jsonObject) (warnings []string) {
	for _, at := range fit.KeptFields(reflect.TypeOf(k.Form), jsonObject{"spec": spec}) {
		warnings = append(warnings, at+" is kept, and nothing acts on it")
	}
	return warnings
}

// placeWarnings names fields of flightctl's v1alpha1 at the places where they were in its earlier releases.
func (k Kind) placeWarnings(spec jsonObject) (warnings []string) {
	if k.Version != "v1alpha1" {
		return nil
	}
	at := "spec"
	if t, ok := spec["template"].(jsonObject); ok { // of a fleet
		spec, _ = t["spec"].(jsonObject)
		at = "spec.template.spec"
	}
	for _, field := range []string{"containers", "systemd"} {
		if _, old := spec[field]; old {
			warnings = append(warnings, fmt.Sprintf("%s.%s is taken as %s.monitoring.%s, which is its place", at, field, at, field))
		}
	}
	return warnings
}

// labelWarnings names the labels that only this form shows.
func (k Kind) labelWarnings(form jsonObject) (doubts []string) {
	meta, _ := form["metadata"].(jsonObject)
	for _, d := range k.splitLabels(meta) {
		doubts = append(doubts, fmt.Sprintf("metadata.labels: the value of %s is none that a label may have: only %s shows it, and no selector finds it",
			pointerUnescaper.Replace(strings.TrimPrefix(d.At, labelsAt)), k.APIVersion()))
	}
	return doubts
}

// Plain normalizes an object in this form: numbers and booleans where the form has text become text, and nulls are removed. It
// fails if a value has the wrong type.
func (k Kind) Plain(raw []byte) ([]byte, error) {
	form, err := parseObject(raw)
	if err != nil {
		return nil, err
	}
	scalarsToText(reflect.TypeOf(k.Form), form)
	if at, why := fit.FindMismatch(reflect.TypeOf(k.Form), specAndStatus(form)); why != "" {
		return nil, resource.Errorf(resource.Invalid, at, "%s", why)
	}
	return json.Marshal(form)
}

// unexpressed returns what the canonical object can't express of a form.
func (k Kind) unexpressed(form, c jsonObject) ([]formDifference, error) {
	seen, err := convertObject(k.fromCanonical, c)
	if err != nil {
		return nil, err
	}
	found := inMap("", specAndStatus(seen), specAndStatus(form))
	return slices.DeleteFunc(found, func(d formDifference) bool {
		if value, ok := k.required[d.At]; ok && d.Was == nil && reflect.DeepEqual(d.Is, value) {
			return true
		}
		// A claimed status does not replace a known one.
		return strings.HasPrefix(d.At, "/status") && d.Was != nil && d.Was != resource.Unknown
	}), nil
}

// splitClaims removes metadata that the server sets, and returns it. A claim that was kept before is ignored, and so is a revision
// that this server can't have made.
func (k Kind) splitClaims(meta, prev jsonObject) (found []formDifference) {
	was, _ := prev["metadata"].(jsonObject)
	var before []formDifference
	notes, _ := was["annotations"].(jsonObject)
	text, _ := notes[k.annotation()].(string)
	_ = unmarshalNumbers([]byte(text), &before) // the server wrote it, or it doesn't exist
	for _, name := range k.claims {
		at := "/metadata/" + name
		i := slices.IndexFunc(before, func(d formDifference) bool { return d.At == at })
		claimed := i >= 0 && before[i].Is == meta[name]
		switch {
		case len(was) == 0 && meta[name] != nil, claimed, name == "resourceVersion" && foreignRevision(meta[name]):
			found = append(found, formDifference{At: at, Is: meta[name]})
			setField(meta, name, was[name])
		case i >= 0:
			found = append(found, before[i])
		}
	}
	return found
}

const labelsAt = "/metadata/labels/"

// splitLabels removes the labels whose values no selector can name, and returns them.
func (k Kind) splitLabels(meta jsonObject) (found []formDifference) {
	if !k.freeLabels {
		return nil
	}
	labels, _ := meta["labels"].(jsonObject)
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if value, ok := labels[name].(string); ok && !resource.ValidLabelValue(value) {
			found = append(found, formDifference{At: labelsAt + pointerEscaper.Replace(name), Is: value})
			delete(labels, name)
		}
	}
	return found
}

// showLabels adds the labels that splitLabels removed, except those that have another value now.
func (k Kind) showLabels(meta jsonObject, kept []formDifference) {
	for _, d := range kept {
		path, found := strings.CutPrefix(d.At, labelsAt)
		labels, err := childObject(meta, "labels")
		if name := pointerUnescaper.Replace(path); found && k.freeLabels && err == nil && labels[name] == nil {
			labels[name] = d.Is
			meta["labels"] = labels
		}
	}
}

// foreignRevision reports whether a resourceVersion can't be this server's, whose revisions are numbers.
func foreignRevision(v any) bool {
	text, ok := v.(string)
	return ok && strings.Trim(text, "0123456789") != ""
}

// Show converts a canonical object to this form.
func (k Kind) Show(canonical []byte) ([]byte, error) {
	c, err := parseObject(canonical)
	if err != nil {
		return nil, err
	}
	meta, err := readMetadata(c)
	if err != nil {
		return nil, err
	}
	k.derive(meta, c)
	kept, _ := meta.takeDifferences(k.annotation()) // an annotation that was damaged keeps nothing
	form, err := convertObject(k.fromCanonical, c)
	if err != nil {
		return nil, err
	}
	if k.ReadOnly {
		return k.encode(form, meta)
	}
	status, _ := c["status"].(jsonObject)
	k.showLabels(meta.fields, kept)
	kept = slices.DeleteFunc(kept, func(d formDifference) bool {
		// A claimed status is not shown once a status was observed, even if it is unknown now.
		return strings.HasPrefix(d.At, "/metadata") || d.Was == resource.Unknown && status["lastSeen"] != nil
	})
	form, _ = applyDifferences("", form, kept).(jsonObject)
	if k.reconcile != nil {
		k.reconcile(form, c)
	}
	k.complete(form)
	if back, err := convertObject(k.toCanonical, form); err == nil {
		meta.keepDifferences(canonicalAnnotation, findDifferences("/spec", back["spec"], c["spec"]))
	}
	return k.encode(form, meta)
}

// complete adds the required fields that are missing in a status, if there is one.
func (k Kind) complete(form jsonObject) {
	if form["status"] == nil {
		return
	}
	for at, value := range k.required {
		path := strings.Split(strings.TrimPrefix(at, "/"), "/")
		of := form
		for _, name := range path[:len(path)-1] {
			below, ok := of[name].(jsonObject)
			if !ok {
				below = jsonObject{}
				of[name] = below
			}
			of = below
		}
		if last := path[len(path)-1]; of[last] == nil {
			of[last] = value
		}
	}
}

// derive sets the annotations that follow from the canonical object, or removes them if there is none.
func (k Kind) derive(m objectMetadata, canonical jsonObject) {
	if k.derived == nil {
		return
	}
	for name, v := range k.derived(canonical) {
		setField(m.annotations, name, v)
	}
	m.putAnnotations()
}

func (k Kind) encode(form jsonObject, meta objectMetadata) ([]byte, error) {
	form["apiVersion"], form["kind"], form["metadata"] = k.APIVersion(), k.Name, meta.fields
	return json.Marshal(form)
}

// convertObject applies a conversion of JSON to an object's spec and status.
func convertObject(f func([]byte) ([]byte, error), in jsonObject) (jsonObject, error) {
	raw, err := json.Marshal(jsonObject{"spec": in["spec"], "status": in["status"]})
	if err != nil {
		return nil, err
	}
	if raw, err = f(raw); err != nil {
		return nil, err
	}
	out, err := parseObject(raw)
	if err != nil {
		return nil, err
	}
	return specAndStatus(out), nil
}

// specAndStatus is an object without apiVersion, kind and metadata.
func specAndStatus(o jsonObject) jsonObject {
	out := jsonObject{}
	for name, v := range o {
		if name != "apiVersion" && name != "kind" && name != "metadata" {
			out[name] = v
		}
	}
	return out
}

// parseObject reads an object. A null is as if the field were missing.
func parseObject(raw []byte) (jsonObject, error) {
	var o jsonObject
	if err := unmarshalNumbers(raw, &o); err != nil || o == nil {
		return nil, resource.Errorf(resource.Invalid, "", "the body must be an object")
	}
	dropNulls(o)
	return o, nil
}

func unmarshalNumbers(raw []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return d.Decode(v)
}

func dropNulls(v any) {
	switch v := v.(type) {
	case jsonObject:
		for name, e := range v {
			if e == nil {
				delete(v, name)
			}
			dropNulls(e)
		}
	case []any:
		for _, e := range v {
			dropNulls(e)
		}
	}
}

// scalarsToText converts numbers and booleans to text where the form has text, because YAML parsers make booleans of words such as
// ON. It returns the value that replaces v.
func scalarsToText(t reflect.Type, v any) any {
	t = fit.Deref(t)
	switch v := v.(type) {
	case jsonObject:
		switch t.Kind() {
		case reflect.Struct:
			for name, field := range fit.FieldsOf(t) {
				if e, there := v[name]; there {
					v[name] = scalarsToText(field, e)
				}
			}
		case reflect.Map:
			for name, e := range v {
				v[name] = scalarsToText(t.Elem(), e)
			}
		}
	case []any:
		if t.Kind() == reflect.Slice {
			for i, e := range v {
				v[i] = scalarsToText(t.Elem(), e)
			}
		}
	case bool, json.Number:
		if t == reflect.TypeFor[scalarText]() {
			return fmt.Sprint(v)
		}
	}
	return v
}

func setField(o jsonObject, name string, v any) {
	if v == nil {
		delete(o, name)
	} else {
		o[name] = v
	}
}

// objectMetadata is an object's metadata, and its annotations.
type objectMetadata struct{ fields, annotations jsonObject }

func readMetadata(o jsonObject) (m objectMetadata, err error) {
	if m.fields, err = childObject(o, "metadata"); err != nil {
		return m, err
	}
	m.annotations, err = childObject(m.fields, "annotations")
	return m, err
}

func childObject(o jsonObject, name string) (jsonObject, error) {
	v, there := o[name]
	if !there {
		return jsonObject{}, nil
	}
	fields, ok := v.(jsonObject)
	if !ok {
		return nil, resource.Errorf(resource.Invalid, name, "must be an object")
	}
	return fields, nil
}

// takeDifferences removes an annotation that keeps differences.
func (m objectMetadata) takeDifferences(name string) ([]formDifference, error) {
	v, there := m.annotations[name]
	if !there {
		return nil, nil
	}
	m.keepDifferences(name, nil)
	var list []formDifference
	text, _ := v.(string)
	err := unmarshalNumbers([]byte(text), &list)
	deep := slices.ContainsFunc(list, func(d formDifference) bool { return strings.Count(d.At, "/") > maxDepth })
	if err != nil || deep {
		return nil, resource.Errorf(resource.Invalid, "metadata.annotations["+name+"]", "is not as the hub writes it; leave it out")
	}
	return list, nil
}

// keepDifferences writes such an annotation, or none if there is nothing to keep.
func (m objectMetadata) keepDifferences(name string, list []formDifference) {
	delete(m.annotations, name)
	if len(list) > 0 {
		raw, _ := json.Marshal(list) // it was JSON before
		m.annotations[name] = string(raw)
	}
	m.putAnnotations()
}

func (m objectMetadata) putAnnotations() {
	delete(m.fields, "annotations")
	if len(m.annotations) > 0 {
		m.fields["annotations"] = m.annotations
	}
}

// Of is the canonical kind, for readers.
func (k Kind) Of() string { return resource.Group + " " + k.Canonical }
