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

// object is an object of any kind: what the verbs have to know of it, and the rest as JSON.
type object struct {
	resource.TypeMeta
	Metadata resource.Meta   `json:"metadata"`
	Spec     json.RawMessage `json:"spec,omitempty"`
	Status   json.RawMessage `json:"status,omitempty"`
	// DesiredMeta is a Device's: see resource.Device. Clients never see it.
	DesiredMeta json.RawMessage `json:"desiredMeta,omitempty"`
	// Sealed is the content of a sealed object, encrypted.
	Sealed []byte `json:"sealed,omitempty"`

	rev    uint64 // of the store; 0: not stored
	noSpec bool   // see Kind.NoSpec
	// value is the object in the Go type of its kind, if it has been decoded. Its metadata and status may be outdated.
	value any
}

// fromStore decodes a stored object. Spec and status stay JSON.
func (s *server) fromStore(o store.Object) (*object, error) {
	obj := new(object)
	if err := obj.unmarshal(o.Data); err != nil {
		return nil, fmt.Errorf("the stored %s can't be read: %w", o.Key, err)
	}
	obj.APIVersion, obj.Kind = resource.APIVersion, o.Kind
	if k := s.kindNamed(o.Kind); k != nil {
		obj.APIVersion, obj.noSpec = k.apiVersion(), k.NoSpec
	}
	obj.Status, obj.rev = o.Status, o.Rev
	obj.Metadata.ResourceVersion = strconv.FormatUint(o.Rev, 10)
	if obj.Sealed == nil {
		return obj, nil
	}
	return obj, s.open(obj)
}

func (o *object) unmarshal(data []byte) error {
	p, ok := partsOf(data)
	if !ok || p.sealed != nil {
		return json.Unmarshal(data, o)
	}
	o.Spec, o.DesiredMeta = p.spec, p.desiredMeta
	return json.Unmarshal(p.metadata, &o.Metadata)
}

// toStore is an object as the store holds it: the status is a record of its own, and the revision is the store's.
func (s *server) toStore(key store.Key, o *object) (store.Object, error) {
	record := *o
	record.Status, record.Metadata.ResourceVersion, record.noSpec = nil, "", false
	if k := s.kindNamed(o.Kind); k != nil && k.Sealed {
		if err := s.seal(&record); err != nil {
			return store.Object{}, err
		}
	}
	data, err := record.marshal()
	return store.Object{Key: key, Rev: o.rev, Data: data, Status: o.Status}, err
}

// forClient is the object as clients of the canonical kind see it.
func (o *object) forClient() (json.RawMessage, error) {
	out := *o
	out.DesiredMeta, out.Sealed = nil, nil
	return out.marshal()
}

// marshal encodes the object. Without a spec its content stands beside the metadata.
func (o *object) marshal() (json.RawMessage, error) {
	meta, err := json.Marshal(&o.Metadata)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, 100+len(meta)+len(o.Spec)+len(o.Status)+len(o.DesiredMeta)+2*len(o.Sealed))
	out = appendTypeMeta(out, o.TypeMeta)
	out = appendField(out, []byte("metadata"), meta)
	if o.noSpec {
		return append(appendContent(out, o.Spec), '}'), nil
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

// typed decodes an object into the Go type of the kind.
func (k *Kind) typed(o *object) (any, error) {
	whole := *o
	whole.noSpec = k.NoSpec
	raw, err := whole.marshal()
	if err != nil {
		return nil, err
	}
	v := k.New()
	return v, json.Unmarshal(raw, v)
}

// withoutStatus is the object in the Go type of the kind, without its status, as validation looks at it.
func (k *Kind) withoutStatus(o *object) (any, error) {
	if o.value == nil {
		bare := *o
		bare.Status = nil
		return k.typed(&bare)
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

// untyped is the inverse of typed.
func (k *Kind) untyped(v any) (*object, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	kind, meta, _ := commonFields(v)
	o := &object{TypeMeta: *kind, Metadata: *meta, noSpec: k.NoSpec, value: v}
	if !k.NoSpec {
		p, _ := partsOf(raw)
		o.Spec, o.Status, o.DesiredMeta = p.spec, p.status, p.desiredMeta
		return o, nil
	}
	o.Spec, err = renameFields(raw, map[string]string{"apiVersion": "", "kind": "", "metadata": ""})
	return o, err
}

// sealedContent is what the store has encrypted of an object. Annotations are in it because kubectl apply keeps a copy
// of the whole object in one.
type sealedContent struct {
	Spec        json.RawMessage   `json:"spec,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// sealedFor binds encrypted content to its object: it can't be decrypted as that of another one.
func sealedFor(o *object) string {
	return o.Kind + " " + o.Metadata.Namespace + "/" + o.Metadata.Name
}

// seal encrypts the content of an object. What is encrypted already stays, so that an unchanged object is no write.
func (s *server) seal(o *object) error {
	if s.Seal == nil {
		return resource.Errorf(resource.Unavailable, "", "this hub has no key, and keeps no %ss", o.Kind)
	}
	if o.Sealed == nil {
		plain, err := json.Marshal(sealedContent{o.Spec, o.Metadata.Annotations})
		if err != nil {
			return err
		}
		if o.Sealed, err = s.Seal.Seal(plain, sealedFor(o)); err != nil {
			return err
		}
	}
	o.Spec, o.Metadata.Annotations = nil, nil
	return nil
}

// open decrypts the content of an object.
func (s *server) open(o *object) error {
	if s.Seal == nil {
		return resource.Errorf(resource.Unavailable, "", "this hub has no key for %s", sealedFor(o))
	}
	plain, err := s.Seal.Open(o.Sealed, sealedFor(o))
	if err != nil {
		return err
	}
	var c sealedContent
	if err := json.Unmarshal(plain, &c); err != nil {
		return err
	}
	o.Spec, o.Metadata.Annotations = c.Spec, c.Annotations
	return nil
}

// keepSealed gives next the encrypted content of old, if the content is the same.
func keepSealed(old, next *object) {
	next.Sealed = nil
	if sameSpec(old, next) && maps.Equal(old.Metadata.Annotations, next.Metadata.Annotations) {
		next.Sealed = old.Sealed
	}
}
