package dialect

import (
	"reflect"
	"time"

	"github.com/edgebus/edgebus/topics/dialect/fit"
	"github.com/edgebus/edgebus/topics/resource"
)

// Schema describes the form in OpenAPI 3: the fields that have a meaning here. Others may stand beside them.
func (k Kind) Schema() map[string]any { return schema(reflect.TypeOf(k.Form)) }

// Of is what the kind is here, for readers.
func (k Kind) Of() string { return resource.Group + " " + k.Canonical }

func schema(t reflect.Type) tree {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[time.Time]():
		return tree{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[kept]():
		return tree{preserve: true, described: "It is kept as it is."}
	case fit.Opaque(t) && t.Kind() != reflect.String:
		return tree{preserve: true}
	}
	switch t.Kind() {
	case reflect.String:
		return tree{"type": "string"}
	case reflect.Bool:
		return tree{"type": "boolean"}
	case reflect.Float64:
		return tree{"type": "number"}
	case reflect.Slice:
		out := tree{"type": "array", "items": schema(t.Elem())}
		if key := keyOf(t.Elem()); key != "" { // who applies an element has that one, not the list
			out["x-kubernetes-list-type"], out["x-kubernetes-list-map-keys"] = "map", []any{key}
		}
		return out
	case reflect.Map:
		return tree{"type": "object", "additionalProperties": schema(t.Elem())}
	case reflect.Struct:
		props := tree{}
		for name, field := range fit.Fields(t) {
			prop := schema(field)
			if text := words[name]; text != "" && prop[described] == nil {
				prop[described] = text
			}
			props[name] = prop
		}
		return tree{"type": "object", "properties": props, preserve: true}
	}
	return tree{"type": "integer", "format": "int64"}
}

const (
	preserve  = "x-kubernetes-preserve-unknown-fields"
	described = "description"
)

// keyOf is the field that tells the elements of a list apart, if all of them must have it.
func keyOf(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return ""
	}
	for _, name := range names {
		for i := range t.NumField() {
			if t.Field(i).Tag.Get("json") == name {
				return name
			}
		}
	}
	return ""
}
