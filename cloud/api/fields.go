package api

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/cloud/api/fit"
)

// jsonField is a field of a Go type as JSON knows it.
type jsonField struct {
	name string
	typ  reflect.Type
}

// fieldsOf lists a struct's fields, with those of embedded structs.
func fieldsOf(t reflect.Type) []jsonField {
	var out []jsonField
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && tag == "":
			out = append(out, fieldsOf(f.Type)...)
		case !f.IsExported() || tag == "-":
		default:
			if tag == "" {
				tag = f.Name
			}
			out = append(out, jsonField{tag, f.Type})
		}
	}
	return out
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
	prune(reflect.TypeOf(k.New()), tree, "", &unknown)
	slices.Sort(unknown)
	return unknown
}

func prune(t reflect.Type, v any, at string, unknown *[]string) {
	t = fit.Deref(t)
	if fit.Opaque(t) {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		pruneMap(t, v, at, unknown)
	case []any:
		if t.Kind() == reflect.Slice {
			for i := range v {
				prune(t.Elem(), v[i], fmt.Sprintf("%s[%d]", at, i), unknown)
			}
		}
	}
}

func pruneMap(t reflect.Type, v map[string]any, at string, unknown *[]string) {
	if at != "" {
		at += "."
	}
	switch t.Kind() {
	case reflect.Map:
		for name := range v {
			prune(t.Elem(), v[name], at+name, unknown)
		}
	case reflect.Struct:
		known := make(map[string]reflect.Type)
		for _, f := range fieldsOf(t) {
			known[f.name] = f.typ
		}
		for name := range v {
			ft, ok := known[name]
			if !ok {
				*unknown = append(*unknown, at+name)
				delete(v, name)
				continue
			}
			prune(ft, v[name], at+name, unknown)
		}
	}
}
