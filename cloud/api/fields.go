package api

import (
	"encoding/json"
	"reflect"
	"slices"

	"github.com/edgebus/edgebus/topics/dialect/fit"
)

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
