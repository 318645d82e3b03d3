package dialect

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"time"

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
	case t == reflect.TypeFor[json.RawMessage]():
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
		return tree{"type": "array", "items": schema(t.Elem())}
	case reflect.Map:
		return tree{"type": "object", "additionalProperties": schema(t.Elem())}
	case reflect.Struct:
		props := tree{}
		for name, field := range fields(t) {
			props[name] = schema(field)
		}
		return tree{"type": "object", "properties": props, preserve: true}
	}
	return tree{"type": "integer", "format": "int64"}
}

const preserve = "x-kubernetes-preserve-unknown-fields"

// fields are those of a struct by their names in JSON, with those of embedded structs.
func fields(t reflect.Type) map[string]reflect.Type {
	out := make(map[string]reflect.Type)
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			maps.Copy(out, fields(f.Type))
		case name != "" && name != "-":
			out[name] = f.Type // an embedded field of this name came before, and gives way
		}
	}
	return out
}
