// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Object is an object of any kind: what the rules for all kinds have to know of it, and the rest as JSON.
type Object struct {
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
	// value is the object in the Go type of its kind, if it has been decoded. Its metadata may be outdated, and its status is once
	// the status has been validated.
	value any
}

// Decode decodes a stored object. Spec and status stay JSON.
func (s *Registry) Decode(o store.Object) (*Object, error) {
	obj := new(Object)
	if err := obj.unmarshal(o.Data); err != nil {
		return nil, fmt.Errorf("the stored %s can't be read: %w", o.Key, err)
	}
	obj.APIVersion, obj.Kind = resource.APIVersion, o.Kind
	if k := s.Kind(o.Kind); k != nil {
		obj.APIVersion, obj.noSpec = k.APIVersion(), k.NoSpec
	}
	obj.Status, obj.rev = o.Status, o.Rev
	obj.Metadata.ResourceVersion = strconv.FormatUint(o.Rev, 10)
	if obj.Sealed == nil {
		return obj, nil
	}
	return obj, s.open(obj)
}

func (o *Object) unmarshal(data []byte) error {
	p, ok := PartsOf(data)
	if !ok || p.Sealed != nil {
		return json.Unmarshal(data, o)
	}
	o.Spec, o.DesiredMeta = p.Spec, p.DesiredMeta
	return json.Unmarshal(p.Metadata, &o.Metadata)
}

// Encode is an object as the store holds it: the status is a record of its own, and the revision is the store's.
func (s *Registry) Encode(key store.Key, o *Object) (store.Object, error) {
	record := *o
	record.Status, record.Metadata.ResourceVersion, record.noSpec = nil, "", false
	if k := s.Kind(o.Kind); k != nil && k.Sealed {
		if err := s.seal(&record); err != nil {
			return store.Object{}, err
		}
	}
	data, err := record.marshal()
	return store.Object{Key: key, Rev: o.rev, Data: data, Status: o.Status}, err
}

// ForClient is the object as clients of the canonical kind see it.
func (o *Object) ForClient() (json.RawMessage, error) {
	out := *o
	out.DesiredMeta, out.Sealed = nil, nil
	return out.marshal()
}

// Bare is the object without all but what names it.
func (o *Object) Bare() *Object {
	m := o.Metadata
	return &Object{TypeMeta: o.TypeMeta, Metadata: resource.Meta{Name: m.Name, Namespace: m.Namespace, UID: m.UID}, noSpec: o.noSpec, rev: o.rev}
}

// marshal encodes the object. Without a spec its content stands beside the metadata.
func (o *Object) marshal() (json.RawMessage, error) {
	meta, err := json.Marshal(&o.Metadata)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, 100+len(meta)+len(o.Spec)+len(o.Status)+len(o.DesiredMeta)+2*len(o.Sealed))
	out = AppendTypeMeta(out, o.TypeMeta)
	out = rawjson.AppendField(out, []byte("metadata"), meta)
	if o.noSpec {
		return append(rawjson.AppendContent(out, o.Spec), '}'), nil
	}
	out = rawjson.AppendPart(out, "spec", o.Spec)
	out = rawjson.AppendPart(out, "status", o.Status)
	out = rawjson.AppendPart(out, "desiredMeta", o.DesiredMeta)
	if len(o.Sealed) > 0 {
		sealed, err := json.Marshal(o.Sealed)
		if err != nil {
			return nil, err
		}
		out = rawjson.AppendPart(out, "sealed", sealed)
	}
	return append(out, '}'), nil
}

// RecordParts are the fields of an object's record; the store has the status elsewhere.
type RecordParts struct{ Metadata, Spec, Status, DesiredMeta, Sealed []byte }

// PartsOf finds the parts of a record without decoding it; ok is false for what is no object's record.
func PartsOf(data []byte) (p RecordParts, ok bool) {
	for f := rawjson.Fields(data); f.Next(); {
		switch string(f.Name) {
		case "metadata":
			p.Metadata = f.Value
		case "spec":
			p.Spec = f.Value
		case "status":
			p.Status = f.Value
		case "desiredMeta":
			p.DesiredMeta = f.Value
		case "sealed":
			p.Sealed = f.Value
		}
	}
	return p, len(p.Metadata) > 0 && p.Metadata[0] == '{'
}

// WithMetadata is a record with other metadata.
func WithMetadata(data, metadata []byte) []byte {
	return rawjson.WithField(data, "metadata", metadata)
}

// SameGeneration says whether the same is wanted of two versions of a record, which may differ in status, labels and annotations.
func SameGeneration(before, now store.Object) bool {
	was, is := rawjson.Field(before.Data, "metadata"), rawjson.Field(now.Data, "metadata")
	return bytes.Equal(rawjson.Field(was, "generation"), rawjson.Field(is, "generation")) && bytes.Equal(rawjson.Field(was, "uid"), rawjson.Field(is, "uid"))
}

// AppendTypeMeta begins an object. Nothing in it needs escaping.
func AppendTypeMeta(out []byte, t resource.TypeMeta) []byte {
	out = append(out, '{')
	if t.APIVersion != "" {
		out = append(append(append(out, `"apiVersion":"`...), t.APIVersion...), `",`...)
	}
	if t.Kind != "" {
		out = append(append(append(out, `"kind":"`...), t.Kind...), `",`...)
	}
	return out
}

// sameSpec reports whether two specs are the same text; no spec is {}.
func sameSpec(a, b *Object) bool {
	return bytes.Equal(orEmpty(a.Spec), orEmpty(b.Spec))
}

// sameReordered reports whether two specs differ in the order of fields only. They may, where a spec has JSON of free form. Most specs
// that differ don't consist of the same bytes, which is found out without decoding them.
func sameReordered(a, b *Object) bool {
	return len(a.Spec) == len(b.Spec) && byteSum(a.Spec) == byteSum(b.Spec) && jsonpatch.Equal(a.Spec, b.Spec)
}

// byteSum is the same for all orders of the same bytes.
func byteSum(raw []byte) (n int) {
	for _, c := range raw {
		n += int(c) * int(c)
	}
	return n
}

func orEmpty(raw json.RawMessage) []byte {
	if len(raw) == 0 {
		return []byte("{}")
	}
	return raw
}
