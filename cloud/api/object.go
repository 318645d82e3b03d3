package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strconv"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/dialect/fit"
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

// mediaType is what a body says that it is, without parameters and as it is written everywhere else. What
// can't be parsed stays as it is: no type that anybody understands.
func mediaType(r *http.Request) string {
	said := r.Header.Get("Content-Type")
	if kind, _, err := mime.ParseMediaType(said); err == nil {
		return kind
	}
	return said
}

// body reads a request's body as JSON, and remembers which fields stand twice in it.
func (r *request) body(also ...string) ([]byte, error) {
	raw, again, err := body(r.Request, r.media, append(also, protobufType)...)
	r.twice = again
	if err == nil && r.media == protobufType {
		return fromProtobuf(raw, r.kind.record())
	}
	return raw, err
}

// body reads a request's body as JSON; it may be YAML. It says which fields stand twice.
func body(r *http.Request, kind string, also ...string) ([]byte, twice, error) {
	if !slices.Contains(append(also, "", "application/json", "application/yaml"), kind) {
		return nil, nil, refuse(http.StatusUnsupportedMediaType, "UnsupportedMediaType", "Content-Type %s is not understood: send application/json or application/yaml", kind)
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case kind == protobufType:
		return raw, nil, nil
	case json.Valid(raw):
		return raw, twiceIn(raw), nil
	}
	out, again, err := fromYAML(raw)
	if err != nil {
		return nil, nil, badRequest("", "the body is neither JSON nor YAML: %v", err)
	}
	return out, again, nil
}

// decode reads a client's object into the kind's form. It returns the fields that
// the kind doesn't have, which are left out.
func (k *Kind) decode(raw []byte) (*object, []string, error) {
	v, unknown, err := k.fill(raw)
	if err != nil {
		return nil, nil, err
	}
	o, err := k.untyped(v)
	if err != nil {
		return nil, nil, badField(err)
	}
	if err := k.checkType(o.TypeMeta); err != nil {
		return nil, nil, err
	}
	o.APIVersion, o.Kind = k.apiVersion(), k.Name
	return o, unknown, nil
}

// fill decodes a client's object into the kind's Go type.
func (k *Kind) fill(raw []byte) (v any, unknown []string, err error) {
	if k.shape != nil && len(k.Names) == 0 && len(raw) > 0 && raw[0] == '{' && k.shape.fits(raw) {
		if v = k.New(); json.Unmarshal(raw, v) == nil {
			return v, nil, nil
		}
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var tree map[string]any
	if err := d.Decode(&tree); err != nil || tree == nil {
		return nil, nil, badRequest("", "the body must be an object")
	}
	k.canonical(tree)
	unknown = k.prune(tree)
	pruned, err := json.Marshal(tree)
	if err != nil {
		return nil, nil, err
	}
	v = k.New()
	if err := json.Unmarshal(pruned, v); err != nil {
		return nil, nil, misfit(v, tree, err)
	}
	return v, unknown, nil
}

// misfit says where a tree doesn't fit the kind's form.
func misfit(form any, tree map[string]any, err error) error {
	at, why := fit.Wrong(reflect.TypeOf(form), tree)
	if why == "" {
		return badField(err)
	}
	return badRequest(at, "%s: %s", at, why)
}

// badField says where a value has the wrong type.
func badField(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return badRequest(wrong.Field, "%s: a %s is not what belongs here", wrong.Field, wrong.Value)
	}
	return badRequest("", "the object can't be read: %v", err)
}

// validation is what fieldValidation asks to do about fields that are unknown or stand twice.
func validation(w http.ResponseWriter, r *request, unknown []string) error {
	faults := make([]StatusCause, 0, len(r.twice)+len(unknown))
	for _, field := range r.twice {
		faults = append(faults, StatusCause{Reason: "FieldValueDuplicate", Message: "duplicate field", Field: field})
	}
	for _, field := range unknown {
		faults = append(faults, StatusCause{Reason: "FieldValueNotSupported", Message: "unknown field", Field: field})
	}
	mode := r.FormValue("fieldValidation")
	switch mode {
	case "", "Warn":
		for i, f := range faults {
			if i == 20 {
				break // headers have limits
			}
			warn(w, "%s %q", f.Message, f.Field)
		}
	case "Strict":
		if len(faults) == 0 {
			return nil
		}
		e := &httpError{code: http.StatusBadRequest, reason: "BadRequest", details: &StatusDetails{Causes: faults}}
		e.message = fmt.Sprintf("%s in version %q cannot be handled as a %s: strict decoding error", r.kind.Name, r.kind.Version, r.kind.Name)
		for i, f := range faults {
			sep := ": "
			if i > 0 {
				sep = ", "
			}
			e.message += fmt.Sprintf("%s%s %q", sep, f.Message, f.Field)
		}
		return e
	case "Ignore":
	default:
		return badRequest("", "fieldValidation must be Ignore, Warn or Strict, not %q", mode)
	}
	return nil
}

// warn adds a warning that kubectl shows to its user.
func warn(w http.ResponseWriter, format string, args ...any) {
	w.Header().Add("Warning", "299 - "+strconv.QuoteToASCII(fmt.Sprintf(format, args...)))
}
