package api

import (
	"encoding/json"
	"maps"

	"github.com/edgebus/edgebus/topics/resource"
)

// hidden is what the store must not show of a sealed object. Annotations are in it, for
// kubectl apply leaves a copy of the whole object in one.
type hidden struct {
	Spec        json.RawMessage   `json:"spec,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// about binds an encrypted text to its object: moved to another one, it doesn't open.
func about(o *object) string {
	return o.Kind + " " + o.Metadata.Namespace + "/" + o.Metadata.Name
}

func (s *server) seal(o *object) error {
	if s.Seal == nil {
		return resource.Errorf(resource.Unavailable, "", "this hub has no key, and keeps no %ss", o.Kind)
	}
	if o.Sealed == nil { // or nothing has changed: the same bytes are no write
		plain, err := json.Marshal(hidden{o.Spec, o.Metadata.Annotations})
		if err != nil {
			return err
		}
		if o.Sealed, err = s.Seal.Seal(plain, about(o)); err != nil {
			return err
		}
	}
	o.Spec, o.Metadata.Annotations = nil, nil
	return nil
}

func (s *server) open(o *object) error {
	if s.Seal == nil {
		return resource.Errorf(resource.Unavailable, "", "this hub has no key for %s", about(o))
	}
	plain, err := s.Seal.Open(o.Sealed, about(o))
	if err != nil {
		return err
	}
	var h hidden
	if err := json.Unmarshal(plain, &h); err != nil {
		return err
	}
	o.Spec, o.Metadata.Annotations = h.Spec, h.Annotations
	return nil
}

// keepSealed lets next have old's encrypted text, if that is still true.
func keepSealed(old, next *object) {
	next.Sealed = nil
	if sameSpec(old, next) && maps.Equal(old.Metadata.Annotations, next.Metadata.Annotations) {
		next.Sealed = old.Sealed
	}
}
