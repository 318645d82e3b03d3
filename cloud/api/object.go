package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strconv"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// object is any object: what the verbs need to know of it, and the rest as JSON.
type object struct {
	resource.TypeMeta
	Metadata resource.Meta   `json:"metadata"`
	Spec     json.RawMessage `json:"spec,omitempty"`
	Status   json.RawMessage `json:"status,omitempty"`
	// DesiredMeta is a Device's, and stays between the store and Prepare.
	DesiredMeta json.RawMessage `json:"desiredMeta,omitempty"`

	// Sealed is what the store has of a Secret: its values and annotations, encrypted.
	Sealed []byte `json:"sealed,omitempty"`

	rev  uint64 // of the store
	flat bool   // see Kind.Flat
	// value is the object in the kind's Go type, if it was decoded already. Its metadata and status may be others'.
	value any
}

// fromStore reads what the store holds. Spec and status stay as they are.
func (s *server) fromStore(o store.Object) (*object, error) {
	obj := new(object)
	if err := obj.read(o.Data); err != nil {
		return nil, fmt.Errorf("the stored %s can't be read: %w", o.Key, err)
	}
	obj.APIVersion, obj.Kind = resource.APIVersion, o.Kind
	if k := s.kindNamed(o.Kind); k != nil {
		obj.APIVersion, obj.flat = k.apiVersion(), k.Flat
	}
	obj.Status = o.Status
	obj.rev = o.Rev
	obj.Metadata.ResourceVersion = strconv.FormatUint(o.Rev, 10)
	if obj.Sealed == nil {
		return obj, nil
	}
	return obj, s.open(obj)
}

func (o *object) read(data []byte) error {
	p, ok := partsOf(data)
	if !ok || p.sealed != nil {
		return json.Unmarshal(data, o)
	}
	o.Spec, o.DesiredMeta = p.spec, p.desiredMeta
	return json.Unmarshal(p.metadata, &o.Metadata)
}

// data is the object's main record, as the store is to hold it.
func (s *server) data(o *object) ([]byte, error) {
	stored := *o
	stored.Status, stored.Metadata.ResourceVersion = nil, ""
	if k := s.kindNamed(o.Kind); k != nil && k.Sealed {
		if err := s.seal(&stored); err != nil {
			return nil, err
		}
	}
	stored.flat = false
	return stored.encode()
}

// shown is the object as a client sees it.
func (o *object) shown() (json.RawMessage, error) {
	out := *o
	out.DesiredMeta, out.Sealed = nil, nil
	return out.encode()
}

// encode writes the object. A flat one has no spec: what is in it stands beside the metadata.
func (o *object) encode() (json.RawMessage, error) {
	meta, err := json.Marshal(&o.Metadata)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, 100+len(meta)+len(o.Spec)+len(o.Status)+len(o.DesiredMeta)+2*len(o.Sealed))
	out = appendHead(out, o.TypeMeta)
	out = appendMember(out, []byte("metadata"), meta)
	if o.flat {
		return append(appendInside(out, o.Spec), '}'), nil
	}
	out = appendPart(out, "spec", o.Spec)
	out = appendPart(out, "status", o.Status)
	out = appendPart(out, "desiredMeta", o.DesiredMeta)
	if len(o.Sealed) > 0 {
		sealed, err := json.Marshal(o.Sealed)
		if err != nil {
			return nil, err
		}
		out = appendPart(out, "sealed", sealed)
	}
	return append(out, '}'), nil
}

// typed decodes the object into the kind's Go type.
func (k *Kind) typed(o *object) (any, error) {
	form := *o
	form.flat = k.Flat
	raw, err := form.encode()
	if err != nil {
		return nil, err
	}
	v := k.New()
	return v, json.Unmarshal(raw, v)
}

// ruled is the object in the kind's Go type as rules look at it: without the status.
func (k *Kind) ruled(o *object) (any, error) {
	if o.value == nil {
		form := *o
		form.Status = nil
		return k.typed(&form)
	}
	head := headOf(o.value)
	*head.kind, *head.meta = o.TypeMeta, o.Metadata
	if head.status.IsValid() {
		head.status.SetZero()
	}
	return o.value, nil
}

// head is what all kinds' Go types have, and a status.
type head struct {
	kind   *resource.TypeMeta
	meta   *resource.Meta
	status reflect.Value
}

func headOf(v any) head {
	s := reflect.ValueOf(v).Elem()
	return head{
		s.FieldByName("TypeMeta").Addr().Interface().(*resource.TypeMeta),
		s.FieldByName("Metadata").Addr().Interface().(*resource.Meta),
		s.FieldByName("Status"),
	}
}

// untyped is the inverse of typed.
func (k *Kind) untyped(v any) (*object, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	head := headOf(v)
	o := &object{TypeMeta: *head.kind, Metadata: *head.meta, flat: k.Flat, value: v}
	if !k.Flat {
		for w := fieldsIn(raw); w.next(); {
			switch string(w.name) {
			case "spec":
				o.Spec = w.value
			case "status":
				o.Status = w.value
			case "desiredMeta":
				o.DesiredMeta = w.value
			}
		}
		return o, nil
	}
	fields := make(map[string]json.RawMessage)
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	for _, name := range []string{"apiVersion", "kind", "metadata"} {
		delete(fields, name)
	}
	o.Spec, err = json.Marshal(fields)
	return o, err
}

// hidden is what the store must not show of a sealed object. Annotations are in it, for
// kubectl apply leaves a copy of the whole object in one.
type hidden struct {
	Spec        json.RawMessage   `json:"spec,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// about binds an encrypted text to its object: moved to another one, it doesn't open.
func about(o *object) string {
	return o.Kind + " " + o.Metadata.Namespace + "/" + o.Metadata.Name
}

func (s *server) seal(o *object) error {
	if s.Seal == nil {
		return resource.Errorf(resource.Unavailable, "", "this hub has no key, and keeps no %ss", o.Kind)
	}
	if o.Sealed == nil { // or nothing has changed: the same bytes are no write
		plain, err := json.Marshal(hidden{o.Spec, o.Metadata.Annotations})
		if err != nil {
			return err
		}
		if o.Sealed, err = s.Seal.Seal(plain, about(o)); err != nil {
			return err
		}
	}
	o.Spec, o.Metadata.Annotations = nil, nil
	return nil
}

func (s *server) open(o *object) error {
	if s.Seal == nil {
		return resource.Errorf(resource.Unavailable, "", "this hub has no key for %s", about(o))
	}
	plain, err := s.Seal.Open(o.Sealed, about(o))
	if err != nil {
		return err
	}
	var h hidden
	if err := json.Unmarshal(plain, &h); err != nil {
		return err
	}
	o.Spec, o.Metadata.Annotations = h.Spec, h.Annotations
	return nil
}

// keepSealed lets next have old's encrypted text, if that is still true.
func keepSealed(old, next *object) {
	next.Sealed = nil
	if sameSpec(old, next) && maps.Equal(old.Metadata.Annotations, next.Metadata.Annotations) {
		next.Sealed = old.Sealed
	}
}
