// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/dialect"
	"github.com/edgebus/edgebus/topics/resource"
)

// Managers makes the field managers of apimachinery, one for each kind and subresource. Managed fields are tracked from
// an object's first server-side apply on: before it there can be no conflict, and managedFields would double the size
// of most objects and the cost of each write (ADR 0019).
type Managers struct {
	forms   formConverter
	schemas func() (map[string]*spec.Schema, error)
	mu      sync.Mutex
	types   managedfields.TypeConverter
	made    map[managerKey]*managedfields.FieldManager
}

// Form is a group and version in which objects of a kind are written.
type Form struct {
	schema.GroupVersionKind
	// Kind is the kind's name in the store.
	Kind string
	// Read makes the canonical object of one in this form, and Show the opposite; nil: this is the canonical form.
	Read, Show func(raw []byte) ([]byte, error)
}

// NewManagers makes the managers of forms. Their schemas are asked for when a manager is needed for the first time.
func NewManagers(forms []Form, schemas func() (map[string]*spec.Schema, error)) *Managers {
	return &Managers{forms: forms, schemas: schemas, made: make(map[managerKey]*managedfields.FieldManager)}
}

type managerKey struct {
	kind        schema.GroupVersionKind
	subresource string
}

// Get is the field manager of a form, or of its status.
func (m *Managers) Get(form schema.GroupVersionKind, subresource string) (*managedfields.FieldManager, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.types == nil {
		defs, err := m.schemas()
		if err != nil {
			return nil, err
		}
		if m.types, err = managedfields.NewTypeConverter(defs, false); err != nil {
			return nil, err
		}
	}
	key := managerKey{form, subresource}
	if fm := m.made[key]; fm != nil {
		return fm, nil
	}
	fm, err := managedfields.NewDefaultCRDFieldManager(m.types, m.forms, m.forms, m.forms, key.kind, key.kind.GroupVersion(), subresource, m.forms.filters())
	if err == nil {
		m.made[key] = fm
	}
	return fm, err
}

// ToUnstructured decodes an object as field managers take it.
func ToUnstructured(raw []byte) (*unstructured.Unstructured, error) {
	u := new(unstructured.Unstructured)
	return u, kjson.Unmarshal(raw, &u.Object)
}

// NewUnstructured makes an object that has nothing but its form.
func NewUnstructured(kind schema.GroupVersionKind) *unstructured.Unstructured {
	u := new(unstructured.Unstructured)
	u.SetGroupVersionKind(kind)
	return u
}

// managedForm is an object as its managed fields are recorded: the status belongs to the status subresource.
func managedForm(o *Object, subresource string) (*unstructured.Unstructured, error) {
	out := *o
	if subresource == "" {
		out.Status = nil
	}
	raw, err := out.ForClient()
	if err != nil {
		return nil, err
	}
	return ToUnstructured(raw)
}

// trackManagers updates the managed fields of next, which replaces old. An apply has done so already. What the writer
// gives as managedFields counts, if it is valid. An object that has none, and gets none, stays without.
func (s *Registry) trackManagers(k *Kind, old, next, wanted *Object, w *WriteOptions) error {
	sent, was := wanted.Metadata.ManagedFields, old.Metadata.ManagedFields
	if w.Applied {
		next.Metadata.ManagedFields = sent
		return nil
	}
	next.Metadata.ManagedFields = was
	if noManagers(was) && noManagers(sent) || s.Managers == nil {
		return nil
	}
	subresource := ""
	if w.Part != Spec {
		subresource = "status"
	}
	fm, err := s.Managers.Get(schema.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Name}, subresource)
	if err != nil {
		return err
	}
	before, err := managedForm(old, subresource)
	if err != nil {
		return err
	}
	next.Metadata.ManagedFields = sent
	after, err := managedForm(next, subresource)
	if err != nil {
		next.Metadata.ManagedFields = was
		return nil //nolint:nilerr // invalid managedFields are ignored
	}
	raw, err := json.Marshal(fm.UpdateNoErrors(before, after, w.Manager).(*unstructured.Unstructured).GetManagedFields())
	if noManagers(raw) {
		raw = nil
	}
	next.Metadata.ManagedFields = raw
	return err
}

// Managed is the data of an object that somebody has changed in the store without the rest of this package, with the fields that have
// changed owned by that manager. before is the object as it was. What has no managed fields gets none.
func (s *Registry) Managed(before store.Object, data []byte, manager string) ([]byte, error) {
	old, err := s.Decode(before)
	if err != nil || noManagers(old.Metadata.ManagedFields) {
		return data, err
	}
	after := before
	after.Data = data
	next, err := s.Decode(after)
	if err != nil {
		return nil, err
	}
	wanted := *next
	if err := s.trackManagers(s.Kind(before.Kind), old, next, &wanted, &WriteOptions{Manager: manager}); err != nil {
		return nil, err
	}
	record, err := s.Encode(before.Key, next)
	return record.Data, err
}

func noManagers(raw json.RawMessage) bool {
	return len(raw) == 0 || bytes.Equal(raw, []byte("null")) || bytes.Equal(raw, []byte("[]"))
}

// formConverter converts objects between the forms of a kind, which are versions of it to field managers: who applies in a
// dialect owns fields of that dialect. It implements the interfaces that managedfields asks for.
type formConverter []Form

var errNoForm = errors.New("the object has no such form")

// New makes an empty object.
func (c formConverter) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	return NewUnstructured(kind), nil
}

// Default does nothing: defaults are set by a kind's Prepare.
func (c formConverter) Default(runtime.Object) {}

// Convert is not used by field managers.
func (c formConverter) Convert(_, _, _ any) error { return errNoForm }

// ConvertFieldLabel returns its arguments: labels are the same in all forms.
func (c formConverter) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// ConvertToVersion converts an object to the form that its kind has in a group and version.
func (c formConverter) ConvertToVersion(in runtime.Object, to runtime.GroupVersioner) (runtime.Object, error) {
	u, ok := in.(*unstructured.Unstructured)
	kind := in.GetObjectKind().GroupVersionKind()
	i := slices.IndexFunc(c, func(f Form) bool { return f.GroupVersionKind == kind })
	if !ok || i < 0 {
		return nil, errNoForm
	}
	j := slices.IndexFunc(c, func(f Form) bool {
		return f.Kind == c[i].Kind && f.GroupVersion().Identifier() == to.Identifier()
	})
	switch j {
	case -1:
		return nil, runtime.NewNotRegisteredErrForKind("forms", kind) // such a manager is dropped
	case i:
		return in, nil
	}
	raw, err := json.Marshal(u.Object)
	if read := c[i].Read; err == nil && read != nil {
		raw, err = read(raw)
	}
	if show := c[j].Show; err == nil && show != nil {
		raw, err = show(raw)
	}
	if err != nil {
		return nil, err
	}
	return ToUnstructured(raw)
}

// filters exclude the annotations in which the hub keeps what a dialect can't express: nobody owns them.
func (c formConverter) filters() map[fieldpath.APIVersion]fieldpath.Filter {
	annotation := func(group, version string) fieldpath.Path {
		return fieldpath.MakePathOrDie("metadata", "annotations", dialect.AnnotationPrefix+group+"."+version)
	}
	kept := fieldpath.NewSet(annotation(resource.Group, resource.Version))
	for _, f := range c {
		if f.Show != nil {
			kept.Insert(annotation(f.Group, f.Version))
		}
	}
	out := make(map[fieldpath.APIVersion]fieldpath.Filter)
	for _, f := range c {
		out[fieldpath.APIVersion(f.GroupVersion().String())] = fieldpath.NewExcludeSetFilter(kept)
	}
	return out
}
