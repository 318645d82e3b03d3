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
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/edgebus/edgebus/topics/dialect/fit"
	"github.com/edgebus/edgebus/topics/resource"
)

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

// prune takes out of tree what the kind has no field for, and returns the paths.
func (k *Kind) prune(tree map[string]any) []string {
	var unknown []string
	for _, name := range k.Private {
		if _, ok := tree[name]; ok {
			unknown = append(unknown, name)
			delete(tree, name)
		}
	}
	unknown = append(unknown, fit.Prune(reflect.TypeOf(k.New()), tree)...)
	slices.Sort(unknown)
	return unknown
}

// shape is what a Go type has fields for, to see at a glance that a body has no others.
type shape struct {
	fields map[string]shapeField // of a struct
	elem   *shape                // of a map or a list
	any    bool                  // anything goes
	raw    bool                  // kept as it comes, and so in a form of ours
	opaque bool
}

type shapeField struct {
	*shape
	number int
}

// shapeOf is the shape of a kind; private fields are none.
func (k *Kind) shapeOf() *shape {
	made := make(map[reflect.Type]*shape)
	s := shapeOf(reflect.TypeOf(k.New()), made)
	for _, name := range k.Private {
		delete(s.fields, name)
	}
	return s
}

func shapeOf(t reflect.Type, made map[reflect.Type]*shape) *shape {
	t = fit.Deref(t)
	if s := made[t]; s != nil {
		return s
	}
	s := &shape{opaque: fit.Opaque(t), any: t.Kind() == reflect.Interface, raw: t == reflect.TypeFor[json.RawMessage]()}
	made[t] = s
	switch {
	case s.opaque:
	case t.Kind() == reflect.Map || t.Kind() == reflect.Slice:
		s.elem = shapeOf(t.Elem(), made)
	case t.Kind() == reflect.Struct:
		s.fields = make(map[string]shapeField)
		for name, below := range fit.Fields(t) {
			s.fields[name] = shapeField{shapeOf(below, made), len(s.fields)}
		}
	}
	return s
}

// fits says that all fields in raw are known, none stands twice, and what reads its own JSON is a plain value: then
// raw can be decoded as it is. Otherwise more has to be done, and said. raw must be valid.
func (s *shape) fits(raw []byte) bool {
	switch {
	case s.any:
		return true
	case s.raw:
		return false
	case raw[0] != '{' && raw[0] != '[':
		return true // if the type is wrong, decoding says so
	case s.opaque:
		return false
	case raw[0] == '[':
		return s.elem != nil && s.fitItems(raw)
	case s.elem != nil:
		for w := fieldsIn(raw); w.next(); {
			if !s.elem.fits(w.value) {
				return false
			}
		}
		return true
	}
	var seen uint64
	for w := fieldsIn(raw); w.next(); {
		f, known := s.fields[string(w.name)]
		bit := uint64(1) << f.number // none, beyond 64 fields
		if !known || bit == 0 || seen&bit != 0 || !f.fits(w.value) {
			return false
		}
		seen |= bit
	}
	return true
}

func (s *shape) fitItems(raw []byte) bool {
	for w := itemsIn(raw); w.next(); {
		if !s.elem.fits(w.value) {
			return false
		}
	}
	return true
}

// maxTwice is how many fields that stand twice are told of.
const maxTwice = maxFaults

// place is where a value stands in a body. It is written out only where something is wrong.
type place struct {
	up   *place
	name []byte // of a field; nil: an item
	nth  int
}

func (p *place) field(name string) *place { return &place{up: p, name: []byte(name)} }
func (p *place) item(i int) *place        { return &place{up: p, nth: i} }

func (p *place) String() string {
	var steps []string
	for ; p != nil; p = p.up {
		if p.name == nil {
			steps = append(steps, "["+strconv.Itoa(p.nth)+"]")
		} else {
			steps = append(steps, "."+string(p.name))
		}
	}
	slices.Reverse(steps)
	return strings.TrimPrefix(strings.Join(steps, ""), ".")
}

// twice collects the fields that stand more than once in their object: all but one value are lost.
type twice []string

func (t *twice) add(at *place) {
	if len(*t) < maxTwice {
		*t = append(*t, fit.Clip(at.String()))
	}
}

// twiceIn finds them in JSON that is valid.
func twiceIn(raw []byte) (out twice) {
	out.value(raw, blank(raw, 0), nil)
	return out
}

// value looks through the value that begins at i, and returns where it ends.
func (t *twice) value(raw []byte, i int, at *place) int {
	switch raw[i] {
	case '[':
		i = blank(raw, i+1)
		for n := 0; raw[i] != ']'; n++ {
			i = next(raw, t.value(raw, i, at.item(n)))
		}
		return i + 1
	case '{':
		var names seen
		for i = blank(raw, i+1); raw[i] != '}'; {
			end := skipString(raw, i)
			here := place{up: at, name: unquoted(raw[i:end])}
			if names.second(here.name) {
				t.add(&here)
			}
			i = blank(raw, blank(raw, end)+1) // past the colon
			i = next(raw, t.value(raw, i, &here))
		}
		return i + 1
	}
	return skip(raw, i)
}

// next is where the next item or field begins, or the end of all of them stands.
func next(raw []byte, i int) int {
	if i = blank(raw, i); raw[i] == ',' {
		i = blank(raw, i+1)
	}
	return i
}

// unquoted is a name without its quotes and escapes.
func unquoted(name []byte) []byte {
	plain := name[1 : len(name)-1]
	if bytes.IndexByte(plain, '\\') < 0 {
		return plain
	}
	var text string
	_ = json.Unmarshal(name, &text) // valid
	return []byte(text)
}

// seen are the names of one object. Most have few, and a map for each object would be most of the work.
type seen struct {
	few  [12][]byte
	told uint16 // which of few were there twice
	n    int
	many map[string]int
}

// second says whether a name is there for the second time.
func (s *seen) second(name []byte) bool {
	if s.many != nil {
		s.many[string(name)]++
		return s.many[string(name)] == 2
	}
	for i := range s.n {
		if bytes.Equal(s.few[i], name) {
			first := s.told&(1<<i) == 0
			s.told |= 1 << i
			return first
		}
	}
	if s.n < len(s.few) {
		s.few[s.n] = name
		s.n++
		return false
	}
	s.many = make(map[string]int, 4*len(s.few))
	for i := range s.n {
		s.many[string(s.few[i])] = 1 + int(s.told>>i&1)
	}
	s.many[string(name)] = 1
	return false
}

// maxYAML bounds a body in YAML, in bytes. Of each two bytes the library makes a node of some 200; JSON has no such cost.
const maxYAML = 1 << 20

// maxTags bounds %TAG directives, of which the library compares each with each.
const maxTags = 16

// fromYAML makes JSON of YAML, which has nothing but what JSON has: an anchor would let a small body stand for a large one.
// Words such as ON and no are text, as in YAML 1.2; the reader that kubectl has makes booleans of them. Times are text, and so
// are keys. Of a key that stands twice the last counts, as with kubectl; these are returned.
func fromYAML(raw []byte) ([]byte, twice, error) {
	if len(raw) > maxYAML {
		return nil, nil, fmt.Errorf("it has %d bytes, and YAML at most %d: send JSON", len(raw), maxYAML)
	}
	if bytes.Count(raw, []byte("%TAG")) > maxTags {
		return nil, nil, errors.New("it has more %TAG directives than anybody needs")
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, nil, err
	}
	if doc.IsZero() {
		return []byte("null"), nil, nil
	}
	var w yamlWriter
	err := w.value(&doc, nil)
	return w.out, w.again, err
}

// yamlWriter writes each node once.
type yamlWriter struct {
	out   []byte
	again twice
}

func (w *yamlWriter) value(n *yaml.Node, at *place) error {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return yamlFault(n, "anchors (&name) and aliases (*name) are not taken: write the value wherever it is wanted")
	}
	switch n.Kind {
	case yaml.DocumentNode:
		return w.value(n.Content[0], at)
	case yaml.MappingNode:
		return w.mapping(n, at)
	case yaml.SequenceNode:
		w.out = append(w.out, '[')
		for i, item := range n.Content {
			if i > 0 {
				w.out = append(w.out, ',')
			}
			if err := w.value(item, at.item(i)); err != nil {
				return err
			}
		}
		w.out = append(w.out, ']')
		return nil
	}
	var v any = n.Value
	if tag := n.ShortTag(); tag != "!!str" && tag != "!!timestamp" {
		if err := n.Decode(&v); err != nil {
			return err
		}
	}
	return w.scalar(n, v)
}

func (w *yamlWriter) scalar(n *yaml.Node, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return yamlFault(n, "%.40q has no form in JSON", n.Value)
	}
	w.out = append(w.out, text...)
	return nil
}

func (w *yamlWriter) mapping(n *yaml.Node, at *place) error {
	last := make(map[string]int, len(n.Content)/2) // where a key stands for the last time
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case key.Kind == yaml.AliasNode || key.Anchor != "":
			return w.value(key, at)
		case key.Kind != yaml.ScalarNode:
			return yamlFault(key, "a key is text, no list and no mapping")
		case key.ShortTag() == "!!merge":
			return yamlFault(key, "merge keys (<<) are not taken: write the fields wherever they are wanted")
		}
		if _, known := last[key.Value]; known {
			w.again.add(at.field(key.Value))
		}
		last[key.Value] = i
	}
	w.out = append(w.out, '{')
	for i, more := 0, false; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if last[key.Value] != i {
			continue
		}
		if more {
			w.out = append(w.out, ',')
		}
		more = true
		if err := w.scalar(key, key.Value); err != nil {
			return err
		}
		w.out = append(w.out, ':')
		if err := w.value(n.Content[i+1], at.field(key.Value)); err != nil {
			return err
		}
	}
	w.out = append(w.out, '}')
	return nil
}

func yamlFault(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("line %d: "+format, append([]any{n.Line}, args...)...)
}

// protobufType is what clients such as kubectl create send where they know a kind since they were compiled.
const protobufType = "application/vnd.kubernetes.protobuf"

// protobufMagic begins a body in that form; a runtime.Unknown follows.
var protobufMagic = []byte("k8s\x00")

// packed is a field of a kind in protobuf, as k8s.io/api documents it. Linking its types for these
// two kinds would make the hub one and a half megabytes larger.
type packed struct {
	name  string
	kind  protowire.Type
	entry func([]byte) any // of a map, the value
}

func asText(raw []byte) any  { return string(raw) }
func asBytes(raw []byte) any { return append([]byte{}, raw...) } // JSON has it in base64

var packedFields = map[string]map[protowire.Number]packed{
	resource.KindSecret: {
		2: {name: "data", entry: asBytes}, 3: {name: "type", kind: protowire.BytesType},
		4: {name: "stringData", entry: asText}, 5: {name: "immutable", kind: protowire.VarintType},
	},
	resource.KindConfigMap: {
		2: {name: "data", entry: asText}, 3: {name: "binaryData", entry: asBytes}, 4: {name: "immutable", kind: protowire.VarintType},
	},
}

var errProtobuf = errors.New("the body is not the protobuf that it says it is")

// fromProtobuf makes JSON of a Secret or ConfigMap in protobuf.
func fromProtobuf(raw []byte, kind string) ([]byte, error) {
	fields, known := packedFields[kind]
	if !known {
		return nil, refuse(http.StatusUnsupportedMediaType, "UnsupportedMediaType",
			"of what kubectl sends in protobuf the hub reads Secrets and ConfigMaps: send application/json or application/yaml, as kubectl apply -f does")
	}
	inner, ok := bytes.CutPrefix(raw, protobufMagic)
	if !ok {
		return nil, badRequest("", "%v", errProtobuf)
	}
	var wrapped runtime.Unknown
	if err := wrapped.Unmarshal(inner); err != nil {
		return nil, badRequest("", "%v: %v", errProtobuf, err)
	}
	if wrapped.ContentEncoding != "" {
		return nil, badRequest("", "%v: encoded as %.40q", errProtobuf, wrapped.ContentEncoding)
	}
	o := map[string]any{"apiVersion": wrapped.APIVersion, "kind": wrapped.Kind}
	if err := unpack(wrapped.Raw, fields, o); err != nil {
		return nil, badRequest("", "%v", err)
	}
	return json.Marshal(o)
}

// unpack reads an object's fields. Those that nobody knows are left out, as protobuf wants it.
func unpack(raw []byte, fields map[protowire.Number]packed, o map[string]any) error {
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return errProtobuf
		}
		raw = raw[n:]
		if n = protowire.ConsumeFieldValue(number, kind, raw); n < 0 {
			return errProtobuf
		}
		if err := unpackField(number, kind, raw[:n], fields[number], o); err != nil {
			return err
		}
		raw = raw[n:]
	}
	return nil
}

func unpackField(number protowire.Number, kind protowire.Type, raw []byte, f packed, o map[string]any) error {
	want := f.kind
	if number == 1 || f.entry != nil {
		want = protowire.BytesType
	}
	switch {
	case number != 1 && f.name == "":
		return nil
	case kind != want:
		return fmt.Errorf("%w: field %d", errProtobuf, number)
	case kind == protowire.VarintType:
		v, _ := protowire.ConsumeVarint(raw)
		o[f.name] = v != 0
		return nil
	}
	value, _ := protowire.ConsumeBytes(raw)
	switch {
	case number == 1:
		var meta metav1.ObjectMeta
		if err := meta.Unmarshal(value); err != nil {
			return fmt.Errorf("%w: metadata: %w", errProtobuf, err)
		}
		o["metadata"] = meta
	case f.entry == nil:
		o[f.name] = string(value)
	default:
		return unpackEntry(value, f, o)
	}
	return nil
}

// unpackEntry reads one entry of a map: field 1 is its key, field 2 its value.
func unpackEntry(raw []byte, f packed, o map[string]any) error {
	var part [3][]byte
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 || kind != protowire.BytesType || number > 2 {
			return fmt.Errorf("%w: an entry of %s", errProtobuf, f.name)
		}
		value, m := protowire.ConsumeBytes(raw[n:])
		if m < 0 {
			return fmt.Errorf("%w: an entry of %s", errProtobuf, f.name)
		}
		part[number], raw = value, raw[n+m:]
	}
	entries, _ := o[f.name].(map[string]any)
	if entries == nil {
		entries = make(map[string]any)
		o[f.name] = entries
	}
	entries[string(part[1])] = f.entry(part[2])
	return nil
}
