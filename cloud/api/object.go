package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"

	"sigs.k8s.io/yaml"

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

	rev uint64 // of the store
}

// fromStore reads what the store holds.
func fromStore(o store.Object) (*object, error) {
	obj := new(object)
	if err := json.Unmarshal(o.Data, obj); err != nil {
		return nil, fmt.Errorf("the stored %s can't be read: %w", o.Key, err)
	}
	obj.APIVersion, obj.Kind = resource.APIVersion, o.Kind
	obj.Status = o.Status
	obj.rev = o.Rev
	obj.Metadata.ResourceVersion = strconv.FormatUint(o.Rev, 10)
	return obj, nil
}

// data is the object's main record, as the store is to hold it.
func (o *object) data() ([]byte, error) {
	stored := *o
	stored.Status, stored.Metadata.ResourceVersion = nil, ""
	return json.Marshal(&stored)
}

// shown is the object as a client sees it.
func (o *object) shown() *object {
	out := *o
	out.DesiredMeta = nil
	return &out
}

// typed decodes the object into the kind's Go type.
func (k *Kind) typed(o *object) (any, error) {
	raw, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	v := k.New()
	return v, json.Unmarshal(raw, v)
}

// untyped is the inverse of typed.
func untyped(v any) (*object, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	o := new(object)
	return o, json.Unmarshal(raw, o)
}

// body reads a request's body as JSON; it may be YAML.
func body(r *http.Request, also ...string) ([]byte, error) {
	media := r.Header.Get("Content-Type")
	if media == "" {
		media = "application/json"
	}
	kind, _, err := mime.ParseMediaType(media)
	if err != nil {
		return nil, refuse(http.StatusUnsupportedMediaType, "UnsupportedMediaType", "Content-Type %q can't be read", media)
	}
	if !contains(append(also, "application/json", "application/yaml"), kind) {
		return nil, refuse(http.StatusUnsupportedMediaType, "UnsupportedMediaType", "Content-Type %s is not understood: send application/json or application/yaml", kind)
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if json.Valid(raw) {
		return raw, nil
	}
	out, err := yaml.YAMLToJSON(raw)
	if err != nil {
		return nil, badRequest("", "the body is neither JSON nor YAML: %v", err)
	}
	return out, nil
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

// decode reads a client's object into the kind's form. It returns the fields that
// the kind doesn't have, which are left out.
func (k *Kind) decode(raw []byte) (*object, []string, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var tree map[string]any
	if err := d.Decode(&tree); err != nil || tree == nil {
		return nil, nil, badRequest("", "the body must be an object")
	}
	unknown := k.prune(tree)
	pruned, err := json.Marshal(tree)
	if err != nil {
		return nil, nil, err
	}
	v := k.New()
	if err := json.Unmarshal(pruned, v); err != nil {
		return nil, nil, badField(err)
	}
	o, err := untyped(v)
	if err != nil {
		return nil, nil, badField(err)
	}
	if o.APIVersion != "" && o.APIVersion != resource.APIVersion {
		return nil, nil, badRequest("apiVersion", "apiVersion %q does not match the path: it must be %s", o.APIVersion, resource.APIVersion)
	}
	if o.Kind != "" && o.Kind != k.Name {
		return nil, nil, badRequest("kind", "kind %q does not match the path: it must be %s", o.Kind, k.Name)
	}
	o.APIVersion, o.Kind = resource.APIVersion, k.Name
	return o, unknown, nil
}

// badField says where a value has the wrong type.
func badField(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return badRequest(wrong.Field, "%s: a %s is not what belongs here", wrong.Field, wrong.Value)
	}
	return badRequest("", "the object can't be read: %v", err)
}

// validation is what fieldValidation asks to do about unknown fields.
func validation(w http.ResponseWriter, r *request, unknown []string) error {
	mode := r.FormValue("fieldValidation")
	switch mode {
	case "", "Warn":
		for i, field := range unknown {
			if i == 20 {
				break // headers have limits
			}
			warn(w, "unknown field %q", field)
		}
	case "Strict":
		if len(unknown) == 0 {
			return nil
		}
		e := &httpError{code: http.StatusBadRequest, reason: "BadRequest", details: new(StatusDetails)}
		e.message = fmt.Sprintf("%s in version %q cannot be handled as a %s: strict decoding error", r.kind.Name, resource.Version, r.kind.Name)
		for i, field := range unknown {
			sep := ": "
			if i > 0 {
				sep = ", "
			}
			e.message += fmt.Sprintf("%sunknown field %q", sep, field)
			e.details.Causes = append(e.details.Causes, StatusCause{Reason: "FieldValueNotSupported", Message: "unknown field", Field: field})
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
