package api

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/dialect"
	"github.com/edgebus/edgebus/topics/resource"
)

// foreign says that a Kind is another group's form of one of ours: the same objects
// in the store, with the same revisions, rules and columns.
type foreign struct {
	dialect.Kind
	of *Kind
}

// withDialects adds the dialects of the kinds that are served. The canonical ones stay first.
func withDialects(kinds []Kind) []Kind {
	out := kinds
	for _, d := range dialect.All() {
		for i := range kinds {
			if of := &kinds[i]; of.Name == d.Canonical && of.Group == resource.Group {
				k := *of
				k.Group, k.Version, k.Name, k.Plural, k.Singular, k.Short = d.Group, d.Version, d.Name, d.Plural, d.Singular, nil
				k.foreign = &foreign{d, of}
				out = append(out, k)
			}
		}
	}
	return out
}

// readOnly says that the kind is a form for reading only.
func (k *Kind) readOnly() bool { return k.foreign != nil && k.foreign.ReadOnly }

// verbs are what can be done with objects of the kind.
func (k *Kind) verbs() []string {
	switch {
	case k == &namespaceKind:
		return namespaceVerbs
	case k.readOnly():
		return readVerbs
	}
	return verbs
}

// isAt says whether the kind's own system serves it there, in a group that has no name.
func (f *foreign) isAt(root, group string) bool { return f != nil && group == "" && f.Root == root }

// fleetsVersions understands fleets/{name}/templateversions[/{version}], where flightctl has those of one Fleet. It says whether
// it did, and has the Fleet in the field selector then.
func fleetsVersions(r *http.Request, parts []string) ([]string, bool) {
	if len(parts) < 3 || len(parts) > 4 || parts[0] != "fleets" || parts[2] != "templateversions" {
		return parts, false
	}
	fields := "spec.fleet=" + parts[1]
	if more := r.Form.Get("fieldSelector"); more != "" && len(parts) == 3 {
		fields += "," + more
	}
	r.Form.Set("fieldSelector", fields)
	return parts[2:], true
}

// among refuses an object that the path's field selector leaves out.
func (s *server) among(r *request) error {
	sel, err := s.selector(r)
	if err != nil {
		return err
	}
	stored, err := s.Reader.Get(r.Context(), r.key)
	if err != nil {
		return r.about(r.key.Name, err)
	}
	if ok, err := s.matches(sel, stored); err != nil || ok {
		return err
	}
	return r.about(r.key.Name, store.NotFound(r.key))
}

// record is the name under which the store has the kind.
func (k *Kind) record() string {
	if k.foreign != nil {
		return k.foreign.of.Name
	}
	return k.Name
}

// form is an object as a client of this kind sees it.
func (k *Kind) form(o *object) (json.RawMessage, error) {
	if len(k.Names) > 0 {
		return k.renamed(o)
	}
	raw, err := o.shown()
	if err != nil || k.foreign == nil {
		return raw, err
	}
	return k.foreign.Show(raw)
}

// understand reads a client's object; old is what is stored, if there is anything.
// A dialect keeps unknown fields, and tells of them.
func (r *request) understand(raw []byte, old *object) (*object, []string, error) {
	k := r.kind
	if err := checkGrowth(raw, old); err != nil {
		return nil, nil, err
	}
	if k.foreign == nil {
		return k.decode(raw)
	}
	var head resource.TypeMeta
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, nil, badField(err)
	}
	if err := k.checkType(head); err != nil {
		return nil, nil, err
	}
	var before []byte
	var err error
	if old != nil {
		if before, err = old.shown(); err != nil {
			return nil, nil, err
		}
	}
	unknown, err := r.newlyUnknown(raw, before)
	if err != nil {
		return nil, nil, err
	}
	r.readings = k.foreign.Warnings(raw)
	if raw, err = k.foreign.Read(raw, before, r.subresource == "status"); err != nil {
		return nil, nil, r.about(r.key.Name, err)
	}
	o, _, err := k.foreign.of.decode(raw)
	return o, unknown, err
}

// checkGrowth refuses what a patch made too large an object of. What is there already may have more: a rule that came
// later must not block a change of something else.
func checkGrowth(raw []byte, old *object) error {
	err := checkValues(raw, maxValues)
	if err == nil || old == nil {
		return err
	}
	before, failed := old.shown()
	if failed != nil {
		return failed
	}
	had, _, _ := countValues(before)
	return checkValues(raw, max(maxValues, had))
}

// newlyUnknown are fields that a dialect's form doesn't have, and that weren't there before.
func (r *request) newlyUnknown(raw, before []byte) ([]string, error) {
	unknown := r.kind.foreign.Unknown(raw)
	if len(unknown) == 0 || before == nil {
		return unknown, nil
	}
	shown, err := r.kind.foreign.Show(before)
	if err != nil {
		return nil, err
	}
	known := make(map[string]bool) // there may be as many as a body has room for
	for _, field := range r.kind.foreign.Unknown(shown) {
		known[field] = true
	}
	return slices.DeleteFunc(unknown, func(field string) bool { return known[field] }), nil
}

// checkType refuses an object that says it is something else than its path says.
func (k *Kind) checkType(t resource.TypeMeta) error {
	if t.APIVersion != "" && t.APIVersion != k.apiVersion() {
		return badRequest("apiVersion", "apiVersion %q does not match the path: it must be %s", t.APIVersion, k.apiVersion())
	}
	if t.Kind != "" && t.Kind != k.Name {
		return badRequest("kind", "kind %q does not match the path: it must be %s", t.Kind, k.Name)
	}
	return nil
}

// updateBoth writes the status of an object that came in another group's form: some
// have wishes in it, and some of it may have to be kept in an annotation.
func (s *server) updateBoth(r *request, old, wanted *object, dry bool) (*object, error) {
	mine := *wanted
	mine.Metadata = old.Metadata
	mine.Metadata.Annotations = wanted.Metadata.Annotations
	next, err := s.successor(r, old, &mine)
	if err != nil {
		return nil, err
	}
	next.Status = wanted.Status
	if next, err = s.complete(r.Context(), r, old, next); err != nil {
		return nil, err
	}
	if err := s.record(r, old, next, &mine); err != nil || dry {
		return next, err
	}
	return s.store(r.Context(), r.key, next)
}

// schema describes the form; what it has no field for is kept, and so not refused.
func (f *foreign) schema(metaName string) dict {
	def := f.Schema()
	describe(def, f.of)
	def["description"] = "A " + f.Of() + " in the form of " + f.APIVersion() + ". Fields that are not described are kept."
	props, _ := def["properties"].(dict)
	props["apiVersion"], props["kind"] = dict{"type": "string"}, dict{"type": "string"}
	props["metadata"] = dict{"allOf": []any{dict{"$ref": "#/components/schemas/" + metaName}}}
	def["x-kubernetes-group-version-kind"] = []any{dict{"group": f.Group, "version": f.Version, "kind": f.Name}}
	return def
}

// describe explains fields as the canonical form does, where it has some of that name.
func describe(def dict, of *Kind) {
	texts := make(map[string]string)
	canonical, _ := schemas()[of.schemaName()].(dict)
	eachField(canonical, func(name string, prop dict) {
		if text, _ := prop["description"].(string); texts[name] == "" {
			texts[name] = text
		}
	})
	eachField(def, func(name string, prop dict) {
		if prop["description"] == nil && texts[name] != "" {
			prop["description"] = texts[name]
		}
	})
}

// eachField visits the fields of a schema, outer ones first.
func eachField(def dict, visit func(name string, prop dict)) {
	props, _ := def["properties"].(dict)
	for _, name := range slices.Sorted(maps.Keys(props)) {
		if prop, ok := props[name].(dict); ok {
			visit(name, prop)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(props)) {
		if prop, ok := props[name].(dict); ok {
			eachField(prop, visit)
		}
	}
	for _, inner := range []string{"items", "additionalProperties"} {
		if below, ok := def[inner].(dict); ok {
			eachField(below, visit)
		}
	}
}
