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

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/topics/dialect/fit"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	// maxValues bounds the values in a body or an object: fields and items, nested ones included. Pruning, validating,
	// merging and tracking field managers cost up to 10 µs for each value.
	maxValues = 50_000
	// maxDepth bounds the nesting of lists and objects: a library that takes JSON apart level by level copies the
	// innermost value once for each level.
	maxDepth = 100
	// maxPath bounds the names on the path of a field, in bytes: the decoder writes the path of each duplicate or unknown
	// field, and a body may have many.
	maxPath = 4096
	// maxFaults bounds the faults of a body that an answer names: headers have limits.
	maxFaults = 20
	// maxYAML bounds a body in YAML, in bytes: the parser needs about 100 bytes of memory for each.
	maxYAML = 1 << 20
	// maxTags bounds the %TAG directives of a YAML body, which the parser compares with each other.
	maxTags = 16
)

// mediaType is the media type of a request's body, in lower case and without parameters. A header that can't be
// parsed is returned as it is, which is a media type that nothing accepts.
func mediaType(r *http.Request) string {
	header := r.Header.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(header); err == nil {
		return media
	}
	return header
}

// body reads the body of a request as JSON, and remembers its duplicate fields. Besides JSON, YAML and protobuf the
// body may be of one of the media types in more.
func (r *request) body(more ...string) ([]byte, error) {
	raw, err := readBody(r.Request, r.media, append(more, protobufType)...)
	if err == nil && r.media == protobufType {
		raw, err = fromProtobuf(raw, r.kind.storeKind())
	}
	if err != nil {
		return nil, err
	}
	most := maxValues
	if r.isApply() {
		most /= 2 // managedFields has another value for each of them
	}
	if err := checkValues(raw, most); err != nil {
		return nil, err
	}
	r.duplicates = duplicateFields(raw)
	return raw, nil
}

// readBody reads the body of a request. YAML becomes JSON; protobuf stays as it is.
func readBody(r *http.Request, media string, more ...string) ([]byte, error) {
	if !slices.Contains(append(more, "", "application/json", "application/yaml"), media) {
		return nil, refuse(http.StatusUnsupportedMediaType, "UnsupportedMediaType", "Content-Type %s is not understood: send application/json or application/yaml", media)
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil || media == protobufType {
		return raw, err
	}
	if json.Valid(raw) {
		return bytes.TrimSpace(raw), nil
	}
	if !slices.Contains(yamlTypes, media) {
		return nil, badRequest("", "the body is not one JSON value: %v", json.Unmarshal(raw, new(json.RawMessage)))
	}
	raw, err = fromYAML(raw)
	if err != nil {
		return nil, badRequest("", "the body is neither JSON nor YAML: %v", err)
	}
	return raw, nil
}

// yamlTypes are the media types of bodies that may be YAML; a body of no type is what it looks like.
var yamlTypes = []string{"", "application/yaml", applyPatch}

// checkValues refuses valid JSON with too many values, too deep nesting or too long paths.
func checkValues(raw []byte, most int) error {
	n, depth, path := countValues(raw)
	switch {
	case n > most:
		return refuse(http.StatusRequestEntityTooLarge, "RequestEntityTooLarge",
			"an object or a patch has at most %d fields and items, this one %d", most, n)
	case depth > maxDepth:
		return badRequest("", "lists and objects stand in each other at most %d deep, here %d", maxDepth, depth)
	case path > maxPath:
		return badRequest("", "the names on the path of a field have at most %d bytes together, here %d", maxPath, path)
	}
	return nil
}

// countValues returns the number of fields and items in valid JSON, how deep they are nested, and the length of the
// longest path.
func countValues(raw []byte) (n, deepest, longest int) {
	var paths [maxDepth + 1]int // of the field that is read at each depth
	depth := 0
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			end := rawjson.SkipString(raw, i)
			if colon := rawjson.SkipSpace(raw, end); colon < len(raw) && raw[colon] == ':' && 0 < depth && depth <= maxDepth {
				paths[depth] = paths[depth-1] + end - i
				longest = max(longest, paths[depth])
			}
			i = end - 1
		case ',':
			n++
		case '{', '[':
			n++
			depth++
			deepest = max(deepest, depth)
			if depth <= maxDepth {
				paths[depth] = paths[depth-1]
			}
		case '}', ']':
			depth--
		}
	}
	return n, deepest, longest
}

// duplicateFields are the paths of fields that occur more than once in their object; the last one counts.
func duplicateFields(raw []byte) []string {
	var v any
	strict, _ := kjson.UnmarshalStrict(raw, &v, kjson.DisallowDuplicateFields) // whether it can be decoded is said later
	return fieldPaths(strict)
}

// fieldPaths are the fields that strict decoding found at fault.
func fieldPaths(strict []error) (paths []string) {
	for _, err := range strict {
		var field kjson.FieldError
		if errors.As(err, &field) {
			paths = append(paths, fit.Clip(field.FieldPath()))
		}
	}
	return paths
}

// decode decodes an object of a client. It returns the fields that the kind doesn't have, which are dropped.
func (k *Kind) decode(raw []byte) (*objects.Object, []string, error) {
	v, unknown, err := k.decodeStrict(raw)
	if err != nil {
		return nil, nil, err
	}
	o, err := k.Untyped(v)
	if err != nil {
		return nil, nil, badField(err)
	}
	if err := k.checkType(o.TypeMeta); err != nil {
		return nil, nil, err
	}
	o.APIVersion, o.Kind = k.APIVersion(), k.Name
	return o, unknown, nil
}

// decodeStrict decodes an object into the kind's Go type.
func (k *Kind) decodeStrict(raw []byte) (v any, unknown []string, err error) {
	if raw, err = k.canonical(raw); err != nil {
		return nil, nil, err
	}
	v = k.New()
	strict, err := kjson.UnmarshalStrict(raw, v, kjson.DisallowUnknownFields)
	if err != nil || len(raw) == 0 || raw[0] != '{' {
		return nil, nil, decodingError(v, raw, err)
	}
	unknown = fieldPaths(strict)
	if k.Reset != nil {
		unknown = append(unknown, k.Reset(v)...)
	}
	return v, unknown, nil
}

// decodingError names the field of a body whose value has the wrong type, and the type that it must have.
func decodingError(v any, raw []byte, err error) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var tree map[string]any
	if d.Decode(&tree) != nil || tree == nil {
		return badRequest("", "the body must be an object")
	}
	if at, why := fit.Wrong(reflect.TypeOf(v), tree); why != "" {
		return badRequest(at, "%s: %s", at, why)
	}
	return badField(err)
}

// badField names the field of a decoding error, if the error knows it.
func badField(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return badRequest(wrong.Field, "%s: a %s is not what belongs here", wrong.Field, wrong.Value)
	}
	return badRequest("", "the object can't be read: %v", err)
}

// prune removes unknown fields: those that the Go type doesn't have, and those that Reset clears.
func (k *Kind) prune(tree map[string]any, unknown []string) {
	for _, field := range unknown {
		delete(tree, field)
	}
	fit.Prune(reflect.TypeOf(k.New()), tree)
}

// checkFields does what fieldValidation asks for about unknown and duplicate fields.
func checkFields(w http.ResponseWriter, r *request, unknown []string) error {
	var faults []metav1.StatusCause
	for _, field := range r.duplicates {
		faults = append(faults, metav1.StatusCause{Type: metav1.CauseTypeFieldValueDuplicate, Message: "duplicate field", Field: field})
	}
	for _, field := range unknown {
		faults = append(faults, metav1.StatusCause{Type: metav1.CauseTypeFieldValueNotSupported, Message: "unknown field", Field: field})
	}
	all := len(faults)
	faults = faults[:min(all, maxFaults)]
	switch mode := r.FormValue("fieldValidation"); {
	case mode == "Ignore", len(faults) == 0 && (mode == "" || mode == "Warn" || mode == "Strict"):
	case mode == "" || mode == "Warn":
		for _, f := range faults {
			warn(w, "%s %q", f.Message, f.Field)
		}
	case mode == "Strict":
		e := refuse(http.StatusBadRequest, "BadRequest", "%s in version %q cannot be handled as a %s: strict decoding error", r.kind.Name, r.kind.Version, r.kind.Name).
			withCauses(faults...)
		sep := ": "
		for _, f := range faults {
			e.status.Message += fmt.Sprintf("%s%s %q", sep, f.Message, f.Field)
			sep = ", "
		}
		if all > len(faults) {
			e.status.Message += ", and more"
		}
		return e
	default:
		return badRequest("", "fieldValidation must be Ignore, Warn or Strict, not %q", mode)
	}
	return nil
}

// warn adds a Warning header, which kubectl shows to its user.
func warn(w http.ResponseWriter, format string, args ...any) {
	w.Header().Add("Warning", "299 - "+strconv.QuoteToASCII(fmt.Sprintf(format, args...)))
}

// fromYAML turns YAML into JSON. Anchors and aliases are refused: with them a small body can stand for a large one.
// Words such as ON and no are text, as in YAML 1.2, while kubectl's own reader makes booleans of them. Timestamps and
// keys are text too. Duplicate keys stay duplicate.
func fromYAML(raw []byte) ([]byte, error) {
	if len(raw) > maxYAML {
		return nil, fmt.Errorf("it has %d bytes, and YAML at most %d: send JSON", len(raw), maxYAML)
	}
	if bytes.Count(raw, []byte("%TAG")) > maxTags {
		return nil, fmt.Errorf("it has more than %d %%TAG directives", maxTags)
	}
	doc, err := onlyDocument(raw)
	if err != nil || doc == nil {
		return []byte("null"), err
	}
	return appendYAML(nil, doc)
}

// onlyDocument is the content of the only YAML document that has any; nil: there is none. Of several, all but the first would
// be dropped without a word.
func onlyDocument(raw []byte) (only *yaml.Node, err error) {
	for d := yaml.NewDecoder(bytes.NewReader(raw)); ; {
		var doc yaml.Node
		if err := d.Decode(&doc); errors.Is(err, io.EOF) {
			return only, nil
		} else if err != nil {
			return nil, err
		}
		content := doc.Content[0]
		switch {
		case content.ShortTag() == "!!null" && content.Value == "": // between two lines of ---
		case only != nil:
			return nil, yamlError(content, "a second document begins: send each in a request of its own")
		default:
			only = content
		}
	}
}

// appendYAML writes a YAML node as JSON.
func appendYAML(out []byte, n *yaml.Node) (_ []byte, err error) {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return nil, yamlError(n, "anchors (&name) and aliases (*name) are not taken: write the value wherever it is wanted")
	case n.Kind == yaml.ScalarNode:
		return appendScalar(out, n)
	}
	mapping := n.Kind == yaml.MappingNode
	out = append(out, map[bool]byte{true: '{', false: '['}[mapping])
	for i, child := range n.Content {
		isKey := mapping && i%2 == 0
		switch {
		case mapping && !isKey:
			out = append(out, ':')
		case i > 0:
			out = append(out, ',')
		}
		if isKey {
			out, err = appendKey(out, child)
		} else {
			out, err = appendYAML(out, child)
		}
		if err != nil {
			return nil, err
		}
	}
	return append(out, map[bool]byte{true: '}', false: ']'}[mapping]), nil
}

func appendKey(out []byte, key *yaml.Node) ([]byte, error) {
	switch {
	case key.Kind == yaml.AliasNode || key.Anchor != "":
		return appendYAML(out, key)
	case key.Kind != yaml.ScalarNode:
		return nil, yamlError(key, "a key is text, no list and no mapping")
	case key.ShortTag() == "!!merge":
		return nil, yamlError(key, "merge keys (<<) are not taken: write the fields wherever they are wanted")
	}
	name, err := json.Marshal(key.Value)
	return append(out, name...), err
}

func appendScalar(out []byte, n *yaml.Node) ([]byte, error) {
	var v any = n.Value
	if tag := n.ShortTag(); tag != "!!str" && tag != "!!timestamp" {
		if err := n.Decode(&v); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, yamlError(n, "%.40q has no form in JSON", n.Value)
	}
	return append(out, text...), nil
}

func yamlError(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("line %d: "+format, append([]any{n.Line}, args...)...)
}

// protobufType is the media type that clients use for kinds whose Go types they are compiled with: kubectl create
// secret, for example.
const protobufType = "application/vnd.kubernetes.protobuf"

// protobufMagic begins a body in protobuf; a runtime.Unknown follows.
var protobufMagic = []byte("k8s\x00")

var errProtobuf = errors.New("the body is not the protobuf that it says it is")

// protobufFields are the fields of a kind by their protobuf numbers, as k8s.io/api documents them. Linking the types of
// k8s.io/api would make the hub one and a half megabytes larger.
var protobufFields = map[string]map[protowire.Number]protobufField{
	resource.KindSecret:    {2: {"data", protobufBytesMap}, 3: {"type", protobufString}, 4: {"stringData", protobufStringMap}, 5: {"immutable", protobufBool}},
	resource.KindConfigMap: {2: {"data", protobufStringMap}, 3: {"binaryData", protobufBytesMap}, 4: {"immutable", protobufBool}},
}

type protobufField struct {
	name string
	kind protobufKind
}

type protobufKind int

const (
	protobufString protobufKind = iota
	protobufBool
	protobufStringMap
	protobufBytesMap
)

// fromProtobuf turns a Secret or ConfigMap in protobuf into JSON.
func fromProtobuf(raw []byte, kind string) ([]byte, error) {
	fields, known := protobufFields[kind]
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
	o := dict{"apiVersion": wrapped.APIVersion, "kind": wrapped.Kind}
	err := eachProtobufField(wrapped.Raw, func(n protowire.Number, value []byte, varint uint64) error {
		if n == 1 {
			var meta metav1.ObjectMeta
			o["metadata"] = &meta
			return meta.Unmarshal(value)
		}
		if f, known := fields[n]; known {
			return f.set(o, value, varint)
		}
		return nil // as protobuf wants it
	})
	if err != nil {
		return nil, badRequest("", "%v: %v", errProtobuf, err)
	}
	return json.Marshal(o)
}

// set sets the field of an object to what a protobuf message has for it; value is nil for a number.
func (f protobufField) set(o dict, value []byte, varint uint64) error {
	if (f.kind == protobufBool) != (value == nil) {
		return fmt.Errorf("%s has the wrong type", f.name)
	}
	switch f.kind {
	case protobufBool:
		o[f.name] = varint != 0
		return nil
	case protobufString:
		o[f.name] = string(value)
		return nil
	}
	entry, err := protobufStrings(value) // field 1 is the key, field 2 the value
	if err != nil {
		return fmt.Errorf("an entry of %s: %w", f.name, err)
	}
	entries, _ := o[f.name].(dict)
	if entries == nil {
		entries = dict{}
		o[f.name] = entries
	}
	if f.kind == protobufStringMap {
		entries[string(entry[1])] = string(entry[2])
	} else {
		entries[string(entry[1])] = append([]byte{}, entry[2]...) // base64 in JSON
	}
	return nil
}

// protobufStrings are the fields of a message that are strings or messages themselves, the last of each number.
func protobufStrings(raw []byte) (map[protowire.Number][]byte, error) {
	fields := make(map[protowire.Number][]byte)
	return fields, eachProtobufField(raw, func(n protowire.Number, value []byte, _ uint64) error {
		if value != nil {
			fields[n] = value
		}
		return nil
	})
}

// eachProtobufField visits the fields of a message. Only a string or a message has a value that is not nil.
func eachProtobufField(raw []byte, visit func(n protowire.Number, value []byte, varint uint64) error) error {
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return protowire.ParseError(n)
		}
		raw = raw[n:]
		size := protowire.ConsumeFieldValue(number, kind, raw)
		if size < 0 {
			return protowire.ParseError(size)
		}
		var value []byte
		var varint uint64
		switch kind {
		case protowire.BytesType:
			value, _ = protowire.ConsumeBytes(raw)
			value = append([]byte{}, value...)
		case protowire.VarintType:
			varint, _ = protowire.ConsumeVarint(raw)
		}
		if err := visit(number, value, varint); err != nil {
			return err
		}
		raw = raw[size:]
	}
	return nil
}
