package api

import (
	"encoding/json"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/edgebus/edgebus/topics/dialect"
	"github.com/edgebus/edgebus/topics/resource"
)

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
