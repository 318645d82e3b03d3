// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/edgebus/edgebus/cloud/objects"
)

const (
	// maxManager bounds the name of a field manager, as in Kubernetes.
	maxManager = 128
	// lastAppliedAnnotation is the annotation in which kubectl apply keeps the manifest that it applied.
	lastAppliedAnnotation = "kubectl.kubernetes.io/last-applied-configuration"
	// clientSideManager is kubectl's name for the manager of what kubectl apply wrote.
	clientSideManager = "kubectl-client-side-apply"
	// beforeFirstManager is the manager of what else an object had before its first server-side apply.
	beforeFirstManager = "before-first-apply"
)

// Managers are the field managers of all kinds and their dialects, for objects.Options.
func Managers() *objects.Managers {
	kinds := addDialects(Kinds())
	var forms []objects.Form
	for i := range kinds {
		k := &kinds[i]
		f := objects.Form{GroupVersionKind: k.groupVersionKind(), Kind: k.storeKind()}
		if d := k.dialect; d != nil {
			f.Read, f.Show = func(raw []byte) ([]byte, error) { return d.Read(raw, nil, false) }, d.Show
		}
		forms = append(forms, f)
	}
	return objects.NewManagers(forms, func() (map[string]*spec.Schema, error) { return formSchemas(kinds) })
}

// formSchemas are the schemas of all forms.
func formSchemas(kinds []Kind) (map[string]*spec.Schema, error) {
	defs := make(map[string]*spec.Schema)
	if err := json.Unmarshal(schemaText, &defs); err != nil {
		return nil, err
	}
	all, dialects := decodeSchemas(), jsonObject{}
	for i := range kinds {
		if k := &kinds[i]; k.dialect != nil {
			dialects[k.schemaName()] = k.dialect.schema(all)
		}
	}
	raw, err := json.Marshal(dialects)
	if err != nil {
		return nil, err
	}
	return defs, json.Unmarshal(raw, &defs)
}

// recordedKind is the kind in whose form managed fields are recorded for writes other than applies. An apply is recorded
// in its own form.
func (ow *objectWriter) recordedKind(k *Kind) *Kind {
	switch {
	case k.dialect != nil:
		return k.dialect.of
	case len(k.FieldNames) > 0:
		i := slices.IndexFunc(ow.kinds, func(of Kind) bool { return of.Name == k.Name })
		return &ow.kinds[i]
	}
	return k
}

// managedForm is the object as its managed fields are recorded: the status belongs to the status subresource.
func (k *Kind) managedForm(o *objects.Object, subresource string) (*unstructured.Unstructured, error) {
	out := *o
	if k.dialect == nil {
		out.APIVersion, out.Kind = k.APIVersion(), k.Name
	}
	if subresource == "" {
		out.Status = nil
	}
	raw, err := k.form(&out)
	if err != nil {
		return nil, err
	}
	return objects.ToUnstructured(raw)
}

// addManagers adds managed fields to an object that kubectl apply made. kubectl apply --server-side takes over all
// fields of the manager of the annotation, and removes those that its manifest doesn't have: so this manager must own
// exactly what kubectl apply wrote.
func (ow *objectWriter) addManagers(k *Kind, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	text := live.GetAnnotations()[lastAppliedAnnotation]
	if text == "" || len(live.GetManagedFields()) > 0 {
		return live, nil // the first apply gives all fields to beforeFirstManager
	}
	fm, err := ow.objects.Managers.Get(k.groupVersionKind(), "")
	if err != nil {
		return nil, err
	}
	if applied, err := k.decodeLastApplied(text); err == nil {
		if live, err := splitManagers(fm, applied, live); err == nil {
			return live, nil
		}
	}
	// Users can write anything into the annotation. If it is no manifest the manager owns the annotation only.
	applied := objects.NewUnstructured(live.GroupVersionKind())
	applied.SetAnnotations(map[string]string{lastAppliedAnnotation: text})
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
	return applied, unstructured.SetNestedField(applied.Object, text, "metadata", "annotations", lastAppliedAnnotation)
}

// splitManagers records clientSideManager as the manager of the fields that still are as applied, and beforeFirstManager of the rest.
func splitManagers(fm *managedfields.FieldManager, applied, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	mine, err := fm.Update(objects.NewUnstructured(live.GroupVersionKind()), applied, clientSideManager)
	if err != nil {
		return nil, managerError(err)
	}
	all, err := fm.Update(mine, live.DeepCopy(), beforeFirstManager)
	if err != nil {
		return nil, managerError(err)
	}
	return all.(*unstructured.Unstructured), nil
}

// fieldManager is the name of the manager that makes a request.
func fieldManager(r *request) string {
	name := cmp.Or(r.program(), "unknown")
	return name[:min(len(name), maxManager)]
}

// program is what a request says of the program that sends it.
func (r *request) program() string {
	name, _, _ := strings.Cut(r.UserAgent(), "/")
	return cmp.Or(r.FormValue("fieldManager"), name)
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

// applyChangedNothing reports whether an apply has changed nothing but the times of managed fields. The library sets such a time whenever the body
// has a field that is null or an empty map, as manifests made by Go programs have.
func applyChangedNothing(old, next *objects.Object, subresource string) bool {
	meaning := func(o *objects.Object) any {
		m := o.Metadata
		var managers []metav1.ManagedFieldsEntry
		if len(m.ManagedFields) > 0 && json.Unmarshal(m.ManagedFields, &managers) != nil {
			return o // equal to no other
		}
		for i := range managers {
			managers[i].Time = nil
		}
		parts := []any{managers, m.Labels, m.Annotations, m.Finalizers, m.OwnerReferences, m.Owner, o.Spec}
		if subresource != "" {
			parts = append(parts, o.Status)
		}
		raw, err := json.Marshal(parts)
		var tree any
		if err != nil || json.Unmarshal(raw, &tree) != nil {
			return o
		}
		return withoutEmpty(tree)
	}
	return reflect.DeepEqual(meaning(old), meaning(next))
}

// withoutEmpty removes fields that are null or empty.
func withoutEmpty(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, below := range v {
			if v[name] = withoutEmpty(below); v[name] == nil {
				delete(v, name)
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		for i := range v {
			v[i] = withoutEmpty(v[i])
		}
		if len(v) == 0 {
			return nil
		}
	}
	return v
}

// managerError is an error of a field manager; a conflict names managers and fields.
func managerError(err error) error {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		return statusErrorf(http.StatusUnprocessableEntity, "Invalid", "the object can't be applied: %v", err)
	}
	return &statusError{status: known.Status(), err: err}
}
