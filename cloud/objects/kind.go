// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Kind is what the rules for all kinds have to know of one: its names and its strategy. Functions may be nil, except New.
type Kind struct {
	Name       string
	Namespaced bool
	// Group and Version are the API group; the core group has no name.
	Group, Version string
	// NoSpec says that the content stands beside the metadata instead of in a spec, as in a Secret.
	NoSpec bool
	// Sealed says that objects are encrypted in the store, and that tables and messages never show their content.
	Sealed bool
	// UniqueName says that a name can be used in one namespace only.
	UniqueName bool

	// New makes an empty object, such as *resource.Device. Its Go type says which fields there are.
	New func() any
	// Validate checks an object before it is written; old is nil on create. It is not called when only metadata changed.
	Validate func(ctx context.Context, r store.Reader, old, next any) error
	// OldStatus says that Validate looks at old's status; otherwise old comes without one. next never has one.
	OldStatus bool
	// ValidateStatus checks a status before it is written; the object comes without a spec. Conditions are checked for all kinds alike.
	ValidateStatus func(obj any) error
	// MaxStatus bounds the status, in bytes, if that is more than for other kinds.
	MaxStatus int
	// Warnings returns what may be a mistake in a valid object. It is not called when only metadata changed.
	Warnings func(ctx context.Context, r store.Reader, old, next any) []string
	// Prepare completes an object before it is written.
	Prepare func(old, next any, w *WriteOptions, now time.Time)
	// PrepareStatus returns the status that is written together with a changed spec, made of the stored one. Without it
	// only status writes change the status.
	PrepareStatus func(ctx context.Context, r store.Reader, old, next any, status []byte, now time.Time) ([]byte, error)
	// CheckDelete refuses a deletion by a user who doesn't force it.
	CheckDelete func(ctx context.Context, r store.Reader, obj any) error
	// SetReady sets the condition Ready of an object, from its spec and the rest of its status, whenever one of them is written. So a
	// client that has just written the spec doesn't take the Ready of the spec before for that of its own; nil: no such condition.
	SetReady func(obj any, now time.Time)
	// References returns the objects that this one uses, and that can't be deleted before it.
	References func(obj any) []store.Key
	// UsedBy is the kind whose References are objects of this one.
	UsedBy string
}

// APIVersion is the apiVersion of an object of the kind.
func (k *Kind) APIVersion() string {
	if k.Group == "" {
		return k.Version
	}
	return k.Group + "/" + k.Version
}

// Typed decodes an object into the Go type of the kind.
func (k *Kind) Typed(o *Object) (any, error) {
	if v := k.typedParts(o); v != nil {
		return v, nil
	}
	whole := *o
	whole.noSpec = k.NoSpec
	raw, err := whole.marshal()
	if err != nil {
		return nil, err
	}
	v := k.New()
	return v, json.Unmarshal(raw, v)
}

// typedParts decodes the parts of an object one by one, as its metadata is decoded already. It returns nil if the kind has no parts, or if one
// of them can't be decoded: decoding all of the object says which field is wrong.
func (k *Kind) typedParts(o *Object) any {
	if k.NoSpec {
		return nil
	}
	v := k.New()
	kind, meta, _ := commonFields(v)
	*kind, *meta = o.TypeMeta, o.Metadata
	meta.Labels, meta.Annotations = maps.Clone(meta.Labels), maps.Clone(meta.Annotations)
	meta.Finalizers, meta.OwnerReferences = slices.Clone(meta.Finalizers), slices.Clone(meta.OwnerReferences)
	for _, part := range []struct {
		field string
		raw   json.RawMessage
	}{{"Spec", o.Spec}, {"Status", o.Status}, {"DesiredMeta", o.DesiredMeta}} {
		if len(part.raw) == 0 {
			continue
		}
		field := reflect.ValueOf(v).Elem().FieldByName(part.field)
		if !field.IsValid() || json.Unmarshal(part.raw, field.Addr().Interface()) != nil {
			return nil
		}
	}
	return v
}

// withoutStatus is the object in the Go type of the kind, without its status, as validation looks at it.
func (k *Kind) withoutStatus(o *Object) (any, error) {
	if o.value == nil {
		bare := *o
		bare.Status = nil
		return k.Typed(&bare)
	}
	kind, meta, status := commonFields(o.value)
	*kind, *meta = o.TypeMeta, o.Metadata
	if status.IsValid() {
		status.SetZero()
	}
	return o.value, nil
}

// commonFields are the fields that all kinds' Go types have, and the status, which most of them have.
func commonFields(v any) (*resource.TypeMeta, *resource.Meta, reflect.Value) {
	s := reflect.ValueOf(v).Elem()
	return s.FieldByName("TypeMeta").Addr().Interface().(*resource.TypeMeta),
		s.FieldByName("Metadata").Addr().Interface().(*resource.Meta), s.FieldByName("Status")
}

// Untyped is the inverse of Typed.
func (k *Kind) Untyped(v any) (*Object, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	kind, meta, _ := commonFields(v)
	o := &Object{TypeMeta: *kind, Metadata: *meta, noSpec: k.NoSpec, value: v}
	if !k.NoSpec {
		p, _ := PartsOf(raw)
		o.Spec, o.Status, o.DesiredMeta = p.Spec, p.Status, p.DesiredMeta
		return o, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	for _, head := range []string{"apiVersion", "kind", "metadata"} {
		delete(fields, head)
	}
	o.Spec, err = json.Marshal(fields)
	return o, err
}

// withStatus is an object with the status of v.
func (k *Kind) withStatus(o *Object, v any) (*Object, error) {
	out := *o
	_, _, status := commonFields(v)
	if out.Status = nil; status.IsZero() {
		return &out, nil
	}
	raw, err := json.Marshal(status.Interface())
	out.Status = raw
	return &out, err
}

// OldValue is an object that is going to be replaced, in the Go type of the kind, as Validate gets it.
func (k *Kind) OldValue(old *Object) (v any, err error) {
	if k.OldStatus {
		return k.Typed(old)
	}
	old.value, err = k.withoutStatus(old)
	return old.value, err
}

func (k *Kind) references(o *Object) []store.Key {
	if o == nil {
		return nil
	}
	typed, err := k.withoutStatus(o)
	if err != nil {
		return nil
	}
	return k.References(typed)
}

// validateWith is Validate of a kind whose rules need only the object and the one before; update may be nil.
func validateWith[T any](valid func(T) error, update func(next, old T) error) func(context.Context, store.Reader, any, any) error {
	return func(_ context.Context, _ store.Reader, old, next any) error {
		n := next.(*T)
		if err := valid(*n); err != nil {
			return err
		}
		if o, ok := old.(*T); ok && update != nil {
			return update(*n, *o)
		}
		return nil
	}
}

// Selector is a selector in the form that matches labels. One that is empty, or that can't be read, matches nothing.
func Selector(s *resource.LabelSelector) labels.Selector {
	if s.Empty() {
		return labels.Nothing()
	}
	terms := make([]labels.Requirement, 0, len(s.MatchExpressions))
	for _, term := range s.MatchExpressions {
		r, err := labels.NewRequirement(term.Key, selectorOperators[term.Operator], term.Values)
		if err != nil { // it was validated when it was written
			return labels.Nothing()
		}
		terms = append(terms, *r)
	}
	return labels.SelectorFromSet(s.MatchLabels).Add(terms...) // each Add copies and sorts all
}

var selectorOperators = map[string]selection.Operator{
	"In": selection.In, "NotIn": selection.NotIn, "Exists": selection.Exists, "DoesNotExist": selection.DoesNotExist,
}
