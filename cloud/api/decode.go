// SPDX-License-Identifier: Apache-2.0

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/edgebus/edgebus/cloud/api/protobuf"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/topics/dialect/fit"
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
	raw, err := readBody(r.Request, r.media, append(more, protobuf.MediaType)...)
	if err != nil {
		return nil, err
	}
	if r.media == protobuf.MediaType {
		if raw, err = r.fromProtobuf(raw); err != nil {
			return nil, err
		}
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

func (r *request) fromProtobuf(raw []byte) ([]byte, error) {
	if !protobuf.IsKnown(r.kind.APIVersion(), r.kind.Name) {
		return nil, statusErrorf(http.StatusUnsupportedMediaType, "UnsupportedMediaType",
			"of what clients send in protobuf the hub reads Secrets, ConfigMaps, Events, Leases and the options of a deletion: "+
				"send application/json or application/yaml, as kubectl apply -f does")
	}
	out, err := protobuf.Object(raw, r.kind.APIVersion(), r.kind.Name)
	if err != nil {
		return nil, badRequest("", "%v", err)
	}
	return out, nil
}

// readBody reads the body of a request. YAML becomes JSON; protobuf stays as it is.
func readBody(r *http.Request, media string, more ...string) ([]byte, error) {
	if !slices.Contains(append(more, "", "application/json", "application/yaml"), media) {
		return nil, statusErrorf(http.StatusUnsupportedMediaType, "UnsupportedMediaType", "Content-Type %s is not understood: send application/json or application/yaml", media)
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil || media == protobuf.MediaType {
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
		return statusErrorf(http.StatusRequestEntityTooLarge, "RequestEntityTooLarge",
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
			paths = append(paths, fit.ClipPath(field.FieldPath()))
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
		return nil, nil, badFieldError(err)
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
	if at, why := fit.FindMismatch(reflect.TypeOf(v), tree); why != "" {
		return badRequest(at, "%s: %s", at, why)
	}
	return badFieldError(err)
}

// badFieldError names the field of a decoding error, if the error knows it.
func badFieldError(err error) error {
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
	fit.PruneUnknown(reflect.TypeOf(k.New()), tree)
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
			addWarning(w, "%s %q", f.Message, f.Field)
		}
	case mode == "Strict":
		e := statusErrorf(http.StatusBadRequest, "BadRequest", "%s in version %q cannot be handled as a %s: strict decoding error", r.kind.Name, r.kind.Version, r.kind.Name).
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

// addWarning adds a Warning header, which kubectl shows to its user.
func addWarning(w http.ResponseWriter, format string, args ...any) {
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
