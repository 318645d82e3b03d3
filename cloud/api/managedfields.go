package api

import (
	"bytes"
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

const (
	// maxManager bounds the name of a field manager, as in Kubernetes.
	maxManager = 128
	// lastApplied is the annotation in which kubectl apply keeps the manifest that it applied.
	lastApplied = "kubectl.kubernetes.io/last-applied-configuration"
	// clientSide is kubectl's name for the manager of what kubectl apply wrote.
	clientSide = "kubectl-client-side-apply"
	// beforeFirst is the manager of what else an object had before its first server-side apply.
	beforeFirst = "before-first-apply"
)

// managers makes the field managers of apimachinery, one for each kind and subresource. Managed fields are tracked from
// an object's first server-side apply on: before it there can be no conflict, and managedFields would double the size
// of most objects and the cost of each write (ADR 0019).
type managers struct {
	kinds converter
	mu    sync.Mutex
	types managedfields.TypeConverter
	made  map[managerKey]*managedfields.FieldManager
}

type managerKey struct {
	kind        schema.GroupVersionKind
	subresource string
}

func (m *managers) get(k *Kind, subresource string) (*managedfields.FieldManager, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.types == nil {
		defs, err := m.kinds.schemas()
		if err != nil {
			return nil, err
		}
		if m.types, err = managedfields.NewTypeConverter(defs, false); err != nil {
			return nil, err
		}
		m.made = make(map[managerKey]*managedfields.FieldManager)
	}
	key := managerKey{k.groupVersionKind(), subresource}
	if fm := m.made[key]; fm != nil {
		return fm, nil
	}
	fm, err := managedfields.NewDefaultCRDFieldManager(m.types, m.kinds, m.kinds, m.kinds, key.kind, key.kind.GroupVersion(), subresource, m.kinds.filters())
	if err == nil {
		m.made[key] = fm
	}
	return fm, err
}

// recordedKind is the kind in whose form managed fields are recorded for writes other than applies. An apply is recorded
// in its own form.
func (s *server) recordedKind(k *Kind) *Kind {
	switch {
	case k.dialect != nil:
		return k.dialect.of
	case len(k.FieldNames) > 0:
		return s.kindNamed(k.Name)
	}
	return k
}

// managedForm is the object as its managed fields are recorded: the status belongs to the status subresource.
func (k *Kind) managedForm(o *object, subresource string) (*unstructured.Unstructured, error) {
	out := *o
	if k.dialect == nil {
		out.APIVersion, out.Kind = k.apiVersion(), k.Name
	}
	if subresource == "" {
		out.Status = nil
	}
	raw, err := k.form(&out)
	if err != nil {
		return nil, err
	}
	return toUnstructured(raw)
}

func toUnstructured(raw []byte) (*unstructured.Unstructured, error) {
	u := new(unstructured.Unstructured)
	return u, kjson.Unmarshal(raw, &u.Object)
}

func newUnstructured(kind schema.GroupVersionKind) *unstructured.Unstructured {
	u := new(unstructured.Unstructured)
	u.SetGroupVersionKind(kind)
	return u
}

// addManagers adds managed fields to an object that kubectl apply made. kubectl apply --server-side takes over all
// fields of the manager of the annotation, and removes those that its manifest doesn't have: so this manager must own
// exactly what kubectl apply wrote.
func (s *server) addManagers(k *Kind, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	text := live.GetAnnotations()[lastApplied]
	if text == "" || len(live.GetManagedFields()) > 0 {
		return live, nil // the first apply gives all fields to beforeFirst
	}
	fm, err := s.managers.get(k, "")
	if err != nil {
		return nil, err
	}
	if applied, err := k.decodeLastApplied(text); err == nil {
		if live, err := splitManagers(fm, applied, live); err == nil {
			return live, nil
		}
	}
	// Users can write anything into the annotation. If it is no manifest the manager owns the annotation only.
	applied := newUnstructured(live.GroupVersionKind())
	applied.SetAnnotations(map[string]string{lastApplied: text})
	return splitManagers(fm, applied, live)
}

// decodeLastApplied is what kubectl apply wrote, the annotation included.
func (k *Kind) decodeLastApplied(text string) (*unstructured.Unstructured, error) {
	applied, _, err := k.decodeApplied([]byte(text))
	if err != nil {
		return nil, err
	}
	k.dropStatus(applied)
	applied.SetManagedFields(nil)
	return applied, unstructured.SetNestedField(applied.Object, text, "metadata", "annotations", lastApplied)
}

// splitManagers records clientSide as the manager of the fields that still are as applied, and beforeFirst of the rest.
func splitManagers(fm *managedfields.FieldManager, applied, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	mine, err := fm.Update(newUnstructured(live.GroupVersionKind()), applied, clientSide)
	if err != nil {
		return nil, managerError(err)
	}
	all, err := fm.Update(mine, live.DeepCopy(), beforeFirst)
	if err != nil {
		return nil, managerError(err)
	}
	return all.(*unstructured.Unstructured), nil
}

// fieldManager is the name of the manager that makes a request.
func fieldManager(r *request) string {
	if name := r.FormValue("fieldManager"); name != "" {
		return name
	}
	name, _, _ := strings.Cut(r.UserAgent(), "/")
	if name == "" {
		return "unknown"
	}
	return name[:min(len(name), maxManager)]
}

// checkFieldManager refuses an invalid name of a field manager.
func checkFieldManager(r *request) error {
	name := r.FormValue("fieldManager")
	bad := strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c > '~' })
	if len(name) > maxManager || bad {
		return badRequest("fieldManager", "fieldManager must be at most %d printable characters", maxManager)
	}
	return nil
}

// trackManagers updates the managed fields of next, which replaces old. An apply has done so already. What the client
// sent as managedFields counts, if it is valid. An object that has none, and gets none, stays without.
func (s *server) trackManagers(r *request, old, next, wanted *object) error {
	sent, was := wanted.Metadata.ManagedFields, old.Metadata.ManagedFields
	if r.isApply() {
		next.Metadata.ManagedFields = sent
		return nil
	}
	next.Metadata.ManagedFields = was
	if noManagers(was) && noManagers(sent) {
		return nil
	}
	k := s.recordedKind(r.kind)
	fm, err := s.managers.get(k, r.subresource)
	if err != nil {
		return err
	}
	before, err := k.managedForm(old, r.subresource)
	if err != nil {
		return err
	}
	next.Metadata.ManagedFields = sent
	after, err := k.managedForm(next, r.subresource)
	if err != nil {
		next.Metadata.ManagedFields = was
		return nil //nolint:nilerr // invalid managedFields are ignored
	}
	raw, err := json.Marshal(fm.UpdateNoErrors(before, after, fieldManager(r)).(*unstructured.Unstructured).GetManagedFields())
	if noManagers(raw) {
		raw = nil
	}
	next.Metadata.ManagedFields = raw
	return err
}

func noManagers(raw json.RawMessage) bool {
	return len(raw) == 0 || bytes.Equal(raw, []byte("null")) || bytes.Equal(raw, []byte("[]"))
}

// managerError is an error of a field manager; a conflict names managers and fields.
func managerError(err error) error {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		return refuse(http.StatusUnprocessableEntity, "Invalid", "the object can't be applied: %v", err)
	}
	return &statusError{known.Status(), err}
}

// converter converts objects between the forms of a kind, which are versions of it to field managers: who applies in a
// dialect owns fields of that dialect. It implements the interfaces that managedfields asks for.
type converter []Kind

var errNoForm = errors.New("the object has no such form")

func (k *Kind) groupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Name}
}

// New makes an empty object.
func (c converter) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	return newUnstructured(kind), nil
}

// Default does nothing: defaults are set by a kind's Prepare.
func (c converter) Default(runtime.Object) {}

// Convert is not used by field managers.
func (c converter) Convert(_, _, _ any) error { return errNoForm }

// ConvertFieldLabel returns its arguments: labels are the same in all forms.
func (c converter) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// ConvertToVersion converts an object to the form that its kind has in a group and version.
func (c converter) ConvertToVersion(in runtime.Object, to runtime.GroupVersioner) (runtime.Object, error) {
	u, ok := in.(*unstructured.Unstructured)
	kind := in.GetObjectKind().GroupVersionKind()
	i := slices.IndexFunc(c, func(k Kind) bool { return k.groupVersionKind() == kind })
	if !ok || i < 0 {
		return nil, errNoForm
	}
	j := slices.IndexFunc(c, func(k Kind) bool {
		return k.storeKind() == c[i].storeKind() && k.groupVersionKind().GroupVersion().Identifier() == to.Identifier()
	})
	switch j {
	case -1:
		return nil, runtime.NewNotRegisteredErrForKind("forms", kind) // such a manager is dropped
	case i:
		return in, nil
	}
	raw, err := json.Marshal(u.Object)
	if from := c[i].dialect; err == nil && from != nil {
		raw, err = from.Read(raw, nil, false)
	}
	if to := c[j].dialect; err == nil && to != nil {
		raw, err = to.Show(raw)
	}
	if err != nil {
		return nil, err
	}
	return toUnstructured(raw)
}

// schemas are the schemas of all forms.
func (c converter) schemas() (map[string]*spec.Schema, error) {
	defs := make(map[string]*spec.Schema)
	if err := json.Unmarshal(schemaText, &defs); err != nil {
		return nil, err
	}
	dialects := dict{}
	for i := range c {
		if k := &c[i]; k.dialect != nil {
			dialects[k.schemaName()] = k.dialect.schema()
		}
	}
	raw, err := json.Marshal(dialects)
	if err != nil {
		return nil, err
	}
	return defs, json.Unmarshal(raw, &defs)
}

// filters exclude the annotations in which the hub keeps what a dialect can't express: nobody owns them.
func (c converter) filters() map[fieldpath.APIVersion]fieldpath.Filter {
	annotation := func(group, version string) fieldpath.Path {
		return fieldpath.MakePathOrDie("metadata", "annotations", dialect.Prefix+group+"."+version)
	}
	kept := fieldpath.NewSet(annotation(resource.Group, resource.Version))
	for _, k := range c {
		if k.dialect != nil {
			kept.Insert(annotation(k.Group, k.Version))
		}
	}
	out := make(map[fieldpath.APIVersion]fieldpath.Filter)
	for i := range c {
		out[fieldpath.APIVersion(c[i].apiVersion())] = fieldpath.NewExcludeSetFilter(kept)
	}
	return out
}
