// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/json"
	"maps"

	"github.com/edgebus/edgebus/topics/resource"
)

// sealedContent is what the store has encrypted of an object. Annotations are in it because kubectl apply keeps a copy
// of the whole object in one.
type sealedContent struct {
	Spec        json.RawMessage   `json:"spec,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// sealedFor binds encrypted content to its object: it can't be decrypted as that of another one.
func sealedFor(o *Object) string {
	return o.Kind + " " + o.Metadata.Namespace + "/" + o.Metadata.Name
}

// seal encrypts the content of an object. What is encrypted already stays, so that an unchanged object is no write.
func (s *Registry) seal(o *Object) error {
	if s.Seal == nil {
		return resource.Errorf(resource.Unavailable, "", "this hub has no key, and keeps no %ss", o.Kind)
	}
	if o.Sealed == nil {
		plain, err := json.Marshal(sealedContent{o.Spec, o.Metadata.Annotations})
		if err != nil {
			return err
		}
		if o.Sealed, err = s.Seal.Seal(plain, sealedFor(o)); err != nil {
			return err
		}
	}
	o.Spec, o.Metadata.Annotations = nil, nil
	return nil
}

// open decrypts the content of an object.
func (s *Registry) open(o *Object) error {
	if s.Seal == nil {
		return resource.Errorf(resource.Unavailable, "", "this hub has no key for %s", sealedFor(o))
	}
	plain, err := s.Seal.Open(o.Sealed, sealedFor(o))
	if err != nil {
		return err
	}
	var c sealedContent
	if err := json.Unmarshal(plain, &c); err != nil {
		return err
	}
	o.Spec, o.Metadata.Annotations = c.Spec, c.Annotations
	return nil
}

// keepSealed gives next the encrypted content of old, if the content is the same.
func keepSealed(old, next *Object) {
	next.Sealed = nil
	if sameSpec(old, next) && maps.Equal(old.Metadata.Annotations, next.Metadata.Annotations) {
		next.Sealed = old.Sealed
	}
}
