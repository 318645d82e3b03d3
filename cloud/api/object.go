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
		raw, err = fromProtobuf(raw, r.kind.record())
	}
	most := maxValues
	if r.applies() {
		most /= 2 // for each there is one more in the record of who owns it
	}
	if err == nil {
		err = checkValues(raw, most)
	}
	return raw, err
}

// maxValues is how many values a body or an object may have: fields and items, those inside others included. What is
// done with an object (pruning, validating, merging, recording who owns its fields) costs up to some 10 µs for each.
const maxValues = 50_000

// maxDepth is how deep lists and objects may stand in each other. What takes a tree apart level by level would
// copy the innermost as often.
const maxDepth = 100

// checkValues refuses JSON with too many values, or too deep.
func checkValues(raw []byte, most int) error {
	n, depth := valuesIn(raw)
	if n > most {
		return refuse(http.StatusRequestEntityTooLarge, "RequestEntityTooLarge",
			"an object or a patch has at most %d fields and items, this one %d", most, n)
	}
	if depth > maxDepth {
		return badRequest("", "lists and objects stand in each other at most %d deep, here %d", maxDepth, depth)
	}
	return nil
}

// valuesIn counts the fields and items in JSON that is valid, and how deep they stand in each other.
func valuesIn(raw []byte) (n, deepest int) {
	depth := 0
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			i = skipString(raw, i) - 1
		case ',':
			n++
		case '{', '[':
			n++
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		}
	}
	return n, deepest
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

// maxFaults is how many faults of a body an answer names: there may be a hundred thousand, and headers have limits.
const maxFaults = 20

// validation is what fieldValidation asks to do about fields that are unknown or stand twice.
func validation(w http.ResponseWriter, r *request, unknown []string) error {
	faults := make([]StatusCause, 0, min(len(r.twice)+len(unknown), maxFaults))
	fault := func(reason, message, field string) {
		if len(faults) < maxFaults {
			faults = append(faults, StatusCause{Reason: reason, Message: message, Field: field})
		}
	}
	for _, field := range r.twice {
		fault("FieldValueDuplicate", "duplicate field", field)
	}
	for _, field := range unknown {
		fault("FieldValueNotSupported", "unknown field", field)
	}
	mode := r.FormValue("fieldValidation")
	switch mode {
	case "", "Warn":
		for _, f := range faults {
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
		if len(r.twice)+len(unknown) > len(faults) {
			e.message += ", and more"
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
