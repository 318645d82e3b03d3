// Package fit compares JSON with the Go type that it is to be decoded into, and names the paths of unknown fields and of values
// of the wrong type. It is used where decoding has failed, or to find fields that decoding ignores. It never decodes.
package fit

import (
	"encoding"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// fieldsOf remembers Fields by type: a body may have a hundred thousand items of one.
var fieldsOf sync.Map

// Fields returns the fields of a struct by their names in JSON, with those of embedded structs. Callers must not change the map.
func Fields(t reflect.Type) map[string]reflect.Type {
	if known, ok := fieldsOf.Load(t); ok {
		return known.(map[string]reflect.Type)
	}
	known, _ := fieldsOf.LoadOrStore(t, readFields(t))
	return known.(map[string]reflect.Type)
}

func readFields(t reflect.Type) map[string]reflect.Type {
	out := make(map[string]reflect.Type)
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			maps.Copy(out, Fields(f.Type))
		case name != "" && name != "-":
			out[name] = f.Type // an embedded field of this name came before, and gives way
		}
	}
	return out
}

// Opaque reports whether a type has its own JSON or text decoding, so that its fields are unknown.
func Opaque(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// Kept is implemented by types of fields that are kept as they are: Kept returns the type that the value must have.
type Kept interface{ Kept() reflect.Type }

// IsKept reports whether a type is one of fields that are kept as they are.
func IsKept(t reflect.Type) bool { return t.Implements(reflect.TypeFor[Kept]()) }

// Deref returns the type that a pointer type points to, or the type itself.
func Deref(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// maxUnknown is how many unknown fields are named. Those beyond it are pruned, and not named.
const maxUnknown = 1000

// Unknown returns the paths of fields that the type doesn't have, in order.
func Unknown(t reflect.Type, v any) []string { return find(t, v, false) }

// Prune removes fields that the type doesn't have, and returns their paths.
func Prune(t reflect.Type, v any) []string { return find(t, v, true) }

// KeptIn returns the paths of fields that are only kept, in order.
func KeptIn(t reflect.Type, v any) []string {
	f := finder{kept: true}
	f.look(t, v, nil)
	return f.out
}

func find(t reflect.Type, v any, prune bool) []string {
	f := finder{prune: prune}
	f.look(t, v, nil)
	return f.out
}

type finder struct {
	out   []string
	prune bool
	kept  bool // fields that are kept are looked for, and not those that the type doesn't have
}

// step is a place in a value. It is written out only where something is wrong.
type step struct {
	up   *step
	name string // of a field
	nth  int    // of an item; of a field it is -1
}

func (s *step) String() string {
	if s == nil {
		return ""
	}
	if s.nth >= 0 {
		return item(s.up.String(), s.nth)
	}
	return field(s.up.String(), Clip(s.name))
}

// Clip bounds a name or a path from a request for use in an answer.
func Clip(path string) string {
	const most = 256
	if len(path) <= most {
		return path
	}
	return strings.ToValidUTF8(path[:most], "") + "…"
}

func (f *finder) look(t reflect.Type, v any, at *step) {
	if t = Deref(t); Opaque(t) {
		if f.kept && IsKept(t) && len(f.out) < maxUnknown {
			f.out = append(f.out, at.String())
		}
		return
	}
	switch v := v.(type) {
	case []any:
		if t.Kind() == reflect.Slice {
			for i := range v {
				f.look(t.Elem(), v[i], &step{up: at, nth: i})
			}
		}
	case map[string]any:
		fields := map[string]reflect.Type{}
		if t.Kind() == reflect.Struct {
			fields = Fields(t)
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			below, known := fields[name]
			switch {
			case known:
				f.look(below, v[name], &step{up: at, name: name, nth: -1})
			case t.Kind() == reflect.Map:
				f.look(t.Elem(), v[name], &step{up: at, name: name, nth: -1})
			case t.Kind() == reflect.Struct:
				if len(f.out) < maxUnknown && !f.kept {
					f.out = append(f.out, (&step{up: at, name: name, nth: -1}).String())
				}
				if f.prune {
					delete(v, name)
				}
			}
		}
	}
}

func field(at, name string) string { return strings.TrimPrefix(at+"."+name, ".") }

func item(at string, i int) string { return fmt.Sprintf("%s[%d]", at, i) }

// Wrong finds the first place where a value is not of the type that belongs there, and says what does. Fields
// that the type doesn't have are passed over. why is empty when all is well.
func Wrong(t reflect.Type, v any) (at, why string) { return wrong(t, v, "") }

func wrong(t reflect.Type, v any, at string) (string, string) {
	t = Deref(t)
	if v == nil {
		return "", "" // nothing
	}
	switch {
	case IsKept(t):
		return wrong(reflect.Zero(t).Interface().(Kept).Kept(), v, at)
	case t.Kind() == reflect.Interface:
		return "", ""
	case Opaque(t):
		return leaf(t, v, at)
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		fields, ok := v.(map[string]any)
		if !ok {
			return at, must("an object", v)
		}
		return wrongIn(t, fields, at)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return leaf(t, v, at)
		}
		list, ok := v.([]any)
		if !ok {
			return at, must("a list", v)
		}
		for i := range list {
			if at, why := wrong(t.Elem(), list[i], item(at, i)); why != "" {
				return at, why
			}
		}
		return "", ""
	}
	return leaf(t, v, at)
}

func wrongIn(t reflect.Type, fields map[string]any, at string) (string, string) {
	known := map[string]reflect.Type{}
	if t.Kind() == reflect.Struct {
		known = Fields(t)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		below, place := known[name], field(at, name)
		if t.Kind() == reflect.Map {
			below, place = t.Elem(), at+"["+name+"]"
		}
		if below == nil {
			continue
		}
		if at, why := wrong(below, fields[name], place); why != "" {
			return at, why
		}
	}
	return "", ""
}

// leaf tries whether a value can be read as it is.
func leaf(t reflect.Type, v any, at string) (string, string) {
	raw, err := json.Marshal(v)
	if err != nil {
		return at, err.Error()
	}
	if err = json.Unmarshal(raw, reflect.New(t).Interface()); err == nil {
		return "", ""
	}
	if text, ok := v.(string); ok && t.Kind() == reflect.Slice {
		_, err := base64.StdEncoding.DecodeString(text)
		return at, fmt.Sprintf("must be base64: %v", err)
	}
	if want := words(t); want != "" {
		return at, must(want, v)
	}
	return at, err.Error()
}

func words(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "a time, such as 2026-11-21T10:00:00Z"
	case Opaque(t):
		return ""
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a string in base64"
	}
	return "a whole number"
}

func must(be string, v any) string {
	is := "this number"
	switch v.(type) {
	case string:
		is = "a string"
	case bool:
		is = "a boolean"
	case []any:
		is = "a list"
	case map[string]any:
		is = "an object"
	}
	why := "must be " + be + ", not " + is
	if be == "a string" && (is == "this number" || is == "a boolean") {
		why += ": write it in quotes"
	}
	return why
}
