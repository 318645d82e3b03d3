// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"slices"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// records is a Writer that takes no objects.
type records struct {
	store.Writer
	kinds []string // of objects
}

// Records is the Writer of internal records, such as invitations and rendered specs: records of kinds that are no objects. It refuses
// objects, which are written through a Registry, by the rules for them.
func Records(w store.Writer) store.Writer {
	r := records{Writer: w}
	for _, k := range Kinds() {
		r.kinds = append(r.kinds, k.Name)
	}
	return r
}

func (r records) check(key store.Key) error {
	if slices.Contains(r.kinds, key.Kind) {
		return resource.Errorf(resource.Forbidden, "", "%s is an object: it is written through the object layer, not as a record", key)
	}
	return nil
}

// Create implements store.Writer.
func (r records) Create(ctx context.Context, o store.Object) (store.Object, error) {
	if err := r.check(o.Key); err != nil {
		return store.Object{}, err
	}
	return r.Writer.Create(ctx, o)
}

// Update implements store.Writer.
func (r records) Update(ctx context.Context, o store.Object, expect uint64) (store.Object, error) {
	if err := r.check(o.Key); err != nil {
		return store.Object{}, err
	}
	return r.Writer.Update(ctx, o, expect)
}

// Delete implements store.Writer.
func (r records) Delete(ctx context.Context, key store.Key, expect uint64) (store.Object, error) {
	if err := r.check(key); err != nil {
		return store.Object{}, err
	}
	return r.Writer.Delete(ctx, key, expect)
}
