// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/dialect"
	"github.com/edgebus/edgebus/topics/resource"
)

// dialectKind makes a Kind another group's form of one of ours: the same objects in the store, with the same revisions,
// rules and columns.
type dialectKind struct {
	dialect.Kind
	of *Kind
}

// addDialects adds the dialects of kinds. The canonical kinds stay first.
func addDialects(kinds []Kind) []Kind {
	out := kinds
	for _, d := range dialect.AllKinds() {
		for i := range kinds {
			if of := &kinds[i]; of.Name == d.Canonical && of.Group == resource.Group {
				k := *of
				k.Group, k.Version, k.Name, k.Plural, k.Singular, k.Short = d.Group, d.Version, d.Name, d.Plural, d.Singular, nil
				k.dialect = &dialectKind{d, of}
				k.addFields(flightctlFields(k.storeKind()))
				out = append(out, k)
			}
		}
	}
	return out
}

// addFields adds the field selectors that flightctl has to one of its kinds.
func (k *Kind) addFields(more map[string]func(any) string) {
	if k.dialect.Root != flightctlRoot || len(more) == 0 {
		return
	}
	all := maps.Clone(k.Fields)
	if all == nil {
		all = map[string]func(any) string{}
	}
	k.Computed = map[string]bool{}
	for name, value := range more {
		all[name], k.Computed[name] = value, true
	}
	k.Fields = all
}

// servesAt reports whether the dialect's own system serves it below a path, without a group.
func (d *dialectKind) servesAt(root, group string) bool {
	return d != nil && group == "" && d.Root == root
}

// fleetVersions recognizes fleets/{name}/templateversions[/{version}], flightctl's path of the TemplateVersions of one
// Fleet. It turns the Fleet into a field selector.
func fleetVersions(r *http.Request, parts []string) ([]string, bool) {
	if len(parts) < 3 || len(parts) > 4 || parts[0] != "fleets" || parts[2] != "templateversions" {
		return parts, false
	}
	if len(parts) == 4 {
		r.Form.Del("fieldSelector")
	}
	addFieldSelector(r, "spec.fleet="+parts[1])
	return parts[2:], true
}

// addFieldSelector has a request select by fields as well.
func addFieldSelector(r *http.Request, fields string) {
	if more := r.Form.Get("fieldSelector"); more != "" {
		fields += "," + more
	}
	r.Form.Set("fieldSelector", fields)
}

// addOwnSelector adds the field selector of a dialect's kind to a request.
func (r *request) addOwnSelector() {
	if d := r.kind.dialect; d != nil && d.Selector != "" {
		addFieldSelector(r.Request, d.Selector)
		r.selected = true
	}
}

// checkSelected fails if the field selector of the path doesn't select the object. One that doesn't exist is left to the request.
func (l *lister) checkSelected(r *request) error {
	sel, err := l.selector(r)
	if err != nil {
		return err
	}
	stored, err := l.reader.Get(r.Context(), r.key)
	switch {
	case errors.Is(err, resource.NotFound):
		return nil
	case err != nil:
		return r.about(r.key.Name, err)
	}
	if ok, err := l.encoder.matches(sel, stored); err != nil || ok {
		return err
	}
	return r.about(r.key.Name, store.NotFound(r.key))
}

// form is an object as clients of the kind see it.
func (k *Kind) form(o *objects.Object) (json.RawMessage, error) {
	out := *o
	if len(k.FieldNames) > 0 {
		out.APIVersion = k.APIVersion()
		if len(o.Spec) > 0 { // a deleted object that the client may not see has only a name
			var err error
			if out.Spec, err = renameFields(o.Spec, k.FieldNames); err != nil {
				return nil, err
			}
		}
	}
	raw, err := out.ForClient()
	if err != nil || k.dialect == nil {
		return raw, err
	}
	return k.dialect.Show(raw)
}

// chooseVersion takes the version of the body at a path of the dialect's own system, which has none.
func (ow *objectWriter) chooseVersion(r *request, raw []byte) {
	var head resource.TypeMeta
	if !r.ownPath || json.Unmarshal(raw, &head) != nil {
		return
	}
	for i := range ow.kinds {
		if k := &ow.kinds[i]; k.dialect != nil && k.Plural == r.kind.Plural && k.Group == r.kind.Group && k.isOf(head.APIVersion) {
			r.kind = k
		}
	}
}

// toCanonical decodes an object of a client; old is the stored one, or nil. It returns the unknown fields. A dialect
// keeps them.
func (r *request) toCanonical(raw []byte, old *objects.Object) (*objects.Object, []string, error) {
	k := r.kind
	if err := checkGrowth(raw, old); err != nil {
		return nil, nil, err
	}
	if k.dialect == nil {
		return k.decode(raw)
	}
	var head struct {
		resource.TypeMeta
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, nil, badFieldError(err)
	}
	if err := k.checkType(head.TypeMeta); err != nil {
		return nil, nil, err
	}
	var before []byte
	var err error
	if old != nil {
		if before, err = old.ForClient(); err != nil {
			return nil, nil, err
		}
	}
	unknown, err := k.dialect.newUnknown(raw, before)
	if err != nil {
		return nil, nil, err
	}
	r.written, r.dialectWarnings = raw, k.dialect.Warnings(raw)
	if raw, err = k.dialect.Read(raw, before, r.subresource == "status"); err != nil {
		return nil, nil, r.about(cmp.Or(r.key.Name, head.Metadata.Name), err)
	}
	o, _, err := k.dialect.of.decode(raw)
	return o, unknown, err
}

// writtenWarnings are the warnings about what is written, which name fields as their author did.
func (r *request) writtenWarnings() []string {
	if r.kind.dialect == nil || r.written == nil {
		return r.warnings
	}
	return r.kind.dialect.OfFormTexts(r.written, r.warnings)
}

// checkGrowth refuses an object that a patch made too large. An object that was too large before may stay so, since a
// bound that is newer than the object must not prevent other changes.
func checkGrowth(raw []byte, old *objects.Object) error {
	err := checkValues(raw, maxValues)
	if err == nil || old == nil {
		return err
	}
	before, failed := old.ForClient()
	if failed != nil {
		return failed
	}
	had, _, _ := countValues(before)
	return checkValues(raw, max(maxValues, had))
}

// newUnknown are the fields that the dialect doesn't have, except those that the object had before.
func (d *dialectKind) newUnknown(raw, before []byte) ([]string, error) {
	unknown := d.Unknown(raw)
	if len(unknown) == 0 || before == nil {
		return unknown, nil
	}
	shown, err := d.Show(before)
	if err != nil {
		return nil, err
	}
	known := make(map[string]bool) // there may be very many
	for _, field := range d.Unknown(shown) {
		known[field] = true
	}
	return slices.DeleteFunc(unknown, func(field string) bool { return known[field] }), nil
}

// isOf reports whether an object's apiVersion is the kind's. flightctl's own clients leave the group out, or name another one.
func (k *Kind) isOf(apiVersion string) bool {
	flightctls := k.dialect != nil && k.dialect.Root != "" && k.Group == "flightctl.io"
	return apiVersion == k.APIVersion() || flightctls && (apiVersion == k.Version || apiVersion == "api."+k.APIVersion())
}

// checkType refuses an object whose apiVersion or kind is not that of the path.
func (k *Kind) checkType(t resource.TypeMeta) error {
	if t.APIVersion != "" && !k.isOf(t.APIVersion) {
		return badRequest("apiVersion", "apiVersion %q does not match the path: it must be %s", t.APIVersion, k.APIVersion())
	}
	if t.Kind != "" && t.Kind != k.Name {
		return badRequest("kind", "kind %q does not match the path: it must be %s", t.Kind, k.Name)
	}
	return nil
}

// canonical gives the fields of a client's object their canonical names.
func (k *Kind) canonical(raw []byte) ([]byte, error) {
	if len(k.FieldNames) == 0 {
		return raw, nil
	}
	names := make(map[string]string, 2*len(k.FieldNames))
	for canonical, name := range k.FieldNames {
		names[name] = canonical
		names[canonical] = "" // has no meaning in this group
	}
	out, err := renameFields(raw, names)
	if err != nil {
		return nil, badRequest("", "the body must be an object")
	}
	return out, nil
}

// renameFields renames fields of a JSON object; a field whose new name is empty is removed.
func renameFields(raw []byte, names map[string]string) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	renamed := make(map[string]json.RawMessage, len(fields))
	for name, value := range fields {
		if to, ok := names[name]; ok {
			name = to
		}
		if name != "" {
			renamed[name] = value
		}
	}
	return json.Marshal(renamed)
}

// schema is the OpenAPI schema of the dialect, beside all canonical ones. It allows unknown fields, which are kept.
func (d *dialectKind) schema(all jsonObject) jsonObject {
	def := d.Schema()
	canonical, _ := all[d.of.schemaName()].(jsonObject)
	copyDescriptions(def, canonical)
	def["description"] = "A " + d.Of() + " in the form of " + d.APIVersion() + ". Fields that are not described are kept."
	props, _ := def["properties"].(jsonObject)
	props["apiVersion"], props["kind"] = jsonObject{"type": "string"}, jsonObject{"type": "string"}
	props["metadata"] = jsonObject{"allOf": []any{jsonObject{"$ref": "#/components/schemas/" + metaName}}}
	def["x-kubernetes-group-version-kind"] = []any{jsonObject{"group": d.Group, "version": d.Version, "kind": d.Name}}
	return def
}

// copyDescriptions copies descriptions of the canonical schema to fields of the same name that have none.
func copyDescriptions(def, canonical jsonObject) {
	texts := make(map[string]string)
	eachProperty(canonical, func(name string, prop jsonObject) {
		if text, _ := prop["description"].(string); texts[name] == "" {
			texts[name] = text
		}
	})
	eachProperty(def, func(name string, prop jsonObject) {
		if prop["description"] == nil && texts[name] != "" {
			prop["description"] = texts[name]
		}
	})
}

// eachProperty visits the properties of a schema, outer ones first.
func eachProperty(def jsonObject, visit func(name string, prop jsonObject)) {
	props, _ := def["properties"].(jsonObject)
	names := slices.Sorted(maps.Keys(props))
	for _, name := range names {
		if prop, ok := props[name].(jsonObject); ok {
			visit(name, prop)
		}
	}
	for _, name := range names {
		if prop, ok := props[name].(jsonObject); ok {
			eachProperty(prop, visit)
		}
	}
	for _, inner := range []string{"items", "additionalProperties"} {
		if below, ok := def[inner].(jsonObject); ok {
			eachProperty(below, visit)
		}
	}
}
