package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/edgebus/edgebus/topics/dialect"
	"github.com/edgebus/edgebus/topics/resource"
)

// managers keep the record of who owns which field. An object has one from its first
// server-side apply on: until then nobody could have a conflict, and the record would
// double most objects and each write's cost.
type managers struct {
	forms forms
	mu    sync.Mutex
	types managedfields.TypeConverter
	of    map[schema.GroupVersionKind]map[string]*managedfields.FieldManager // by subresource
}

func (m *managers) get(k *Kind, subresource string) (*managedfields.FieldManager, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.types == nil {
		defs, err := m.forms.schemas()
		if err != nil {
			return nil, err
		}
		types, err := managedfields.NewTypeConverter(defs, false)
		if err != nil {
			return nil, err
		}
		m.types, m.of = types, make(map[schema.GroupVersionKind]map[string]*managedfields.FieldManager)
	}
	gvk := k.groupVersionKind()
	if m.of[gvk] == nil {
		m.of[gvk] = make(map[string]*managedfields.FieldManager)
	}
	if m.of[gvk][subresource] == nil {
		fm, err := managedfields.NewDefaultCRDFieldManager(m.types, m.forms, m.forms, m.forms, gvk, gvk.GroupVersion(), subresource, m.forms.ownerless())
		if err != nil {
			return nil, err
		}
		m.of[gvk][subresource] = fm
	}
	return m.of[gvk][subresource], nil
}

// recorded is the kind in whose form fields have owners that are written without an apply, whichever group's form
// a client speaks. An apply is recorded in its own.
func (s *server) recorded(k *Kind) *Kind {
	switch {
	case k.foreign != nil:
		return k.foreign.of
	case len(k.Names) > 0:
		return s.kindNamed(k.Name)
	}
	return k
}

// owned is the object as the record of managers is about it. Only who writes the status is concerned by it.
func (k *Kind) owned(o *object, subresource string) (*unstructured.Unstructured, error) {
	out := *o
	if k.foreign == nil {
		out.APIVersion, out.Kind = k.apiVersion(), k.Name
	}
	if subresource == "" {
		out.Status = nil
	}
	raw, err := k.recordForm(&out)
	if err != nil {
		return nil, err
	}
	return form(raw)
}

// recordForm is an object in the form in which it is recorded.
func (k *Kind) recordForm(o *object) ([]byte, error) {
	if k.foreign == nil {
		return o.shown()
	}
	return k.form(o)
}

func form(raw []byte) (*unstructured.Unstructured, error) {
	u := new(unstructured.Unstructured)
	return u, kjson.Unmarshal(raw, &u.Object)
}

const (
	// lastApplied is the annotation in which kubectl apply remembers what it said.
	lastApplied = "kubectl.kubernetes.io/last-applied-configuration"
	// clientSide is the manager of what was said that way, as kubectl calls it.
	clientSide = "kubectl-client-side-apply"
	// beforeFirst is the manager of what else was there before the record began.
	beforeFirst = "before-first-apply"
)

// begin gives an object that kubectl apply made a record, if it has none. kubectl apply --server-side
// makes all of its own that the owner of the annotation owns, and removes of it what its manifest
// doesn't have: so that owner must have no more than what kubectl apply said.
func (s *server) begin(k *Kind, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	text := live.GetAnnotations()[lastApplied]
	if text == "" || len(live.GetManagedFields()) > 0 {
		return live, nil // the first apply gives all to beforeFirst
	}
	fm, err := s.managers.get(k, "")
	if err != nil {
		return nil, err
	}
	if said, err := k.lastSaid(text); err == nil {
		if begun, err := split(fm, said, live); err == nil {
			return begun, nil
		}
	}
	// Anybody can write an annotation. One that can't be read says nothing but itself.
	said := new(unstructured.Unstructured)
	said.SetGroupVersionKind(live.GroupVersionKind())
	said.SetAnnotations(map[string]string{lastApplied: text})
	return split(fm, said, live)
}

// lastSaid is what kubectl apply said, the annotation included.
func (k *Kind) lastSaid(text string) (*unstructured.Unstructured, error) {
	said, _, err := k.config([]byte(text))
	if err != nil {
		return nil, err
	}
	k.dropStatus(said)
	said.SetManagedFields(nil)
	return said, unstructured.SetNestedField(said.Object, text, "metadata", "annotations", lastApplied)
}

// split records clientSide as the owner of what still is as it said, and beforeFirst as that of the rest.
func split(fm *managedfields.FieldManager, said, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	mine, err := fm.Update(nothing(live.GroupVersionKind()), said, clientSide)
	if err != nil {
		return nil, applyError(err)
	}
	all, err := fm.Update(mine, live.DeepCopy(), beforeFirst)
	if err != nil {
		return nil, applyError(err)
	}
	return all.(*unstructured.Unstructured), nil
}

// manager is the name under which a client owns fields.
func manager(r *request) string {
	if name := r.FormValue("fieldManager"); name != "" {
		return name
	}
	name, _, _ := strings.Cut(r.UserAgent(), "/")
	if name == "" {
		return "unknown"
	}
	return name[:min(len(name), maxManager)]
}

// maxManager is how long a manager's name may be, as in Kubernetes.
const maxManager = 128

// checkManager refuses a field manager that can't be one.
func checkManager(r *request) error {
	name := r.FormValue("fieldManager")
	bad := strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c > '~' })
	if len(name) > maxManager || bad {
		return badRequest("fieldManager", "fieldManager must be at most %d printable characters", maxManager)
	}
	return nil
}

// track brings the record of managers up to what a write changed: sent is what the client sent
// as that record, if anything. Without a record there is nothing to do.
func (s *server) track(r *request, old, next *object, sent json.RawMessage) error {
	was := old.Metadata.ManagedFields
	next.Metadata.ManagedFields = was
	if noRecord(was) && noRecord(sent) {
		return nil
	}
	k := s.recorded(r.kind)
	fm, err := s.managers.get(k, r.subresource)
	if err != nil {
		return err
	}
	before, err := k.owned(old, r.subresource)
	if err != nil {
		return err
	}
	next.Metadata.ManagedFields = sent
	after, err := k.owned(next, r.subresource)
	if err != nil {
		next.Metadata.ManagedFields = was
		return nil //nolint:nilerr // what was sent is no record: ours stays
	}
	raw, err := json.Marshal(fm.UpdateNoErrors(before, after, manager(r)).(*unstructured.Unstructured).GetManagedFields())
	if err != nil {
		return err
	}
	next.Metadata.ManagedFields = raw
	if noRecord(raw) {
		next.Metadata.ManagedFields = nil
	}
	return nil
}

func noRecord(raw json.RawMessage) bool {
	return len(raw) == 0 || string(raw) == "null" || string(raw) == "[]"
}

// applyError is what went wrong in an apply: a conflict names managers and fields.
func applyError(err error) error {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		return refuse(http.StatusUnprocessableEntity, "Invalid", "the object can't be applied: %v", err)
	}
	st := known.Status()
	e := &httpError{code: int(st.Code), reason: string(st.Reason), message: st.Message, err: err}
	if st.Details != nil {
		e.details = new(StatusDetails)
		for _, c := range st.Details.Causes {
			e.details.Causes = append(e.details.Causes, StatusCause{Reason: string(c.Type), Message: c.Message, Field: c.Field})
		}
	}
	return e
}

// forms are all forms of all kinds, between which the record of managers is compared: to it each dialect is
// a version of the kind, and who applies in a dialect owns fields of that form.
type forms []Kind

var errOtherForm = errors.New("the object has no such form")

func (k *Kind) groupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Name}
}

func nothing(gvk schema.GroupVersionKind) *unstructured.Unstructured {
	u := new(unstructured.Unstructured)
	u.SetGroupVersionKind(gvk)
	return u
}

// New makes an empty object.
func (f forms) New(gvk schema.GroupVersionKind) (runtime.Object, error) { return nothing(gvk), nil }

// Default has nothing to do: defaults are rules of a kind.
func (f forms) Default(runtime.Object) {}

// Convert is for others than the record.
func (f forms) Convert(_, _, _ any) error { return errOtherForm }

// ConvertFieldLabel says that labels are called the same in all forms.
func (f forms) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// ConvertToVersion puts an object into the form that its kind has in a group.
func (f forms) ConvertToVersion(in runtime.Object, to runtime.GroupVersioner) (runtime.Object, error) {
	u, ok := in.(*unstructured.Unstructured)
	from := in.GetObjectKind().GroupVersionKind()
	i := slices.IndexFunc(f, func(k Kind) bool { return k.groupVersionKind() == from })
	if !ok || i < 0 {
		return nil, errOtherForm
	}
	for j := range f {
		k := &f[j]
		if k.record() != f[i].record() {
			continue
		}
		switch {
		case to.Identifier() != k.groupVersionKind().GroupVersion().Identifier():
		case j == i:
			return in, nil
		default:
			return between(u, &f[i], k)
		}
	}
	return nil, runtime.NewNotRegisteredErrForKind("forms", from) // such a manager is forgotten
}

// between puts an object from one form into another.
func between(u *unstructured.Unstructured, from, to *Kind) (*unstructured.Unstructured, error) {
	raw, err := json.Marshal(u.Object)
	if err == nil && from.foreign != nil {
		raw, err = from.foreign.Read(raw, nil, false)
	}
	if err == nil && to.foreign != nil {
		raw, err = to.foreign.Show(raw)
	}
	if err != nil {
		return nil, err
	}
	return form(raw)
}

// schemas are those of all forms, as the record reads them.
func (f forms) schemas() (map[string]*spec.Schema, error) {
	defs := make(map[string]*spec.Schema)
	if err := json.Unmarshal(schemaText, &defs); err != nil {
		return nil, err
	}
	all := dict{}
	for i := range f {
		if k := &f[i]; k.foreign != nil {
			all[k.schemaName()] = k.foreign.schema(metaName)
		}
	}
	raw, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	return defs, json.Unmarshal(raw, &defs)
}

// ownerless leaves what the hub itself notes of dialects out of the record.
func (f forms) ownerless() map[fieldpath.APIVersion]fieldpath.Filter {
	notes := fieldpath.NewSet(note(dialect.Prefix + resource.Group + "." + resource.Version))
	for _, k := range f {
		if k.foreign != nil {
			notes.Insert(note(dialect.Prefix + k.Group + "." + k.Version))
		}
	}
	out := make(map[fieldpath.APIVersion]fieldpath.Filter)
	for i := range f {
		out[fieldpath.APIVersion(f[i].apiVersion())] = fieldpath.NewExcludeSetFilter(notes)
	}
	return out
}

func note(name string) fieldpath.Path {
	return fieldpath.MakePathOrDie("metadata", "annotations", name)
}
