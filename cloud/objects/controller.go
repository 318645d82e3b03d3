// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"

	"github.com/edgebus/edgebus/cloud/store"
)

// controllerOrigin is what the origin of controllers begins with. Nobody reads warnings of what they write.
const controllerOrigin = "controller/"

// Controller reads and writes objects in a controller's name: the field manager of what it writes, and the user in the
// audit log. It may write status and owner. The functions of this file are its methods, with a type parameter: Go has none
// for methods. T is the Go type of a kind, such as resource.Node, and a key needs no Kind.
type Controller struct {
	registry *Registry
	name     string
}

// Controller is the identity of a controller.
func (s *Registry) Controller(name string) *Controller { return &Controller{s, name} }

// anyOwner is Owns of the hub's own controllers.
func anyOwner(string) bool { return true }

func (c *Controller) write(part WrittenPart) *WriteOptions {
	return &WriteOptions{Manager: c.name, Origin: controllerOrigin + c.name, MaySetOwner: anyOwner, Part: part}
}

func (c *Controller) audit(action string, key store.Key, err error) {
	if c.registry.Audit != nil {
		c.registry.Audit(c.name, action, key, err)
	}
}

// kindOf is the kind of a Go type, and the key with its name in it.
func kindOf[T any](c *Controller, key store.Key) (*Kind, store.Key, error) {
	k := c.registry.types[reflect.TypeFor[*T]()]
	if k == nil || key.Kind != "" && key.Kind != k.Name {
		return nil, key, fmt.Errorf("%s is no key of a %s", key, reflect.TypeFor[T]())
	}
	key.Kind = k.Name
	return k, key, nil
}

// decodeStored decodes a stored object with its status and its resourceVersion.
func decodeStored[T any](c *Controller, k *Kind, stored store.Object) (*T, error) {
	o, err := c.registry.Decode(stored)
	if err != nil {
		return nil, err
	}
	v, err := k.Typed(o)
	switch {
	case err == nil:
		return v.(*T), nil
	case k.Sealed: // the error could quote a value
		return nil, fmt.Errorf("the stored %s can't be read", stored.Key)
	}
	return nil, fmt.Errorf("the stored %s can't be read: %w", stored.Key, err)
}

// DecodeTyped decodes what a controller has read from the store by itself, as Get does.
func DecodeTyped[T any](c *Controller, o store.Object) (*T, error) {
	k, _, err := kindOf[T](c, o.Key)
	if err != nil {
		return nil, err
	}
	return decodeStored[T](c, k, o)
}

// Get reads an object.
func Get[T any](ctx context.Context, c *Controller, key store.Key) (*T, error) {
	k, key, err := kindOf[T](c, key)
	if err != nil {
		return nil, err
	}
	stored, err := c.registry.Reader.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	return decodeStored[T](c, k, stored)
}

// List reads the objects of a namespace, or of all of them, as store.All does.
func List[T any](ctx context.Context, c *Controller, namespace string) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		k, key, err := kindOf[T](c, store.Key{})
		if err != nil {
			yield(nil, err)
			return
		}
		for o, err := range store.All(ctx, c.registry.Reader, key.Kind, store.ListOptions{Namespace: namespace}) {
			var v *T
			if err == nil {
				v, err = decodeStored[T](c, k, o)
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}

// Create stores a new object, with the name and namespace in its metadata, and returns it as it is stored.
func Create[T any](ctx context.Context, c *Controller, v *T) (*T, error) {
	k, key, err := kindOf[T](c, store.Key{})
	if err != nil {
		return nil, err
	}
	o, err := c.untyped(k, v)
	if err != nil {
		return nil, err
	}
	if k.Namespaced {
		key.Namespace = o.Metadata.Namespace
	}
	stored, err := c.registry.Create(ctx, key, o, c.write(Spec))
	key.Name = o.Metadata.Name
	c.audit("create", key, err)
	if err != nil {
		return nil, err
	}
	return decodeStored[T](c, k, stored)
}

func (c *Controller) untyped(k *Kind, v any) (*Object, error) {
	o, err := k.Untyped(v)
	if err != nil {
		return nil, err
	}
	o.APIVersion, o.Kind, o.value = k.APIVersion(), k.Name, nil // the caller keeps v
	return o, nil
}

// Update changes an object, but for its status: read, change, validate, write; again if somebody else wrote meanwhile. change
// may be called more than once, and nothing is written if it changes nothing or returns an error. It must not keep its argument.
func Update[T any](ctx context.Context, c *Controller, key store.Key, change func(*T) error) error {
	return updatePart(ctx, c, key, c.write(Spec), "update", change)
}

// UpdateStatus changes the status of an object as Update changes the rest.
func UpdateStatus[T any](ctx context.Context, c *Controller, key store.Key, change func(*T) error) error {
	return updatePart(ctx, c, key, c.write(Status), "update status", change)
}

// UpdateDerived is UpdateStatus of what follows from what is stored elsewhere, and is written again after a restart: it needn't be stored.
// change reports whether that is so of what it changes, and is given no spec.
func UpdateDerived[T any](ctx context.Context, c *Controller, key store.Key, change func(*T) (derived bool, err error)) error {
	w := c.write(Status)
	w.statusOnly = true
	return updatePart(ctx, c, key, w, "update status", func(v *T) (err error) {
		w.Derived, err = change(v)
		return err
	})
}

// UpdateSpec is Update by who looks at no status: change is given none.
func UpdateSpec[T any](ctx context.Context, c *Controller, key store.Key, change func(*T) error) error {
	w := c.write(Spec)
	w.specOnly = true
	return updatePart(ctx, c, key, w, "update", change)
}

// AnnotateDerived is UpdateSpec of annotations that follow from what is stored elsewhere, and are written again after a restart: they needn't be
// stored until something else of the object is. change changes nothing but these.
func AnnotateDerived[T any](ctx context.Context, c *Controller, key store.Key, change func(*T) error) error {
	w := c.write(Spec)
	w.Derived, w.specOnly = true, true
	return updatePart(ctx, c, key, w, "update", change)
}

func updatePart[T any](ctx context.Context, c *Controller, key store.Key, w *WriteOptions, action string, change func(*T) error) error {
	k, key, err := kindOf[T](c, key)
	if err != nil {
		return err
	}
	var before uint64
	stored, err := c.registry.Change(ctx, key, w, func(old *Object) (*Object, error) {
		before = old.rev
		read := *old
		if w.statusOnly {
			read.Spec = nil
		}
		if w.specOnly {
			read.Status = nil
		}
		v, err := k.Typed(&read)
		if err == nil {
			err = change(v.(*T))
		}
		if err != nil {
			return nil, err
		}
		var wanted *Object
		if w.Part == Status {
			wanted, err = k.withStatus(old, v)
		} else {
			wanted, err = c.untyped(k, v)
		}
		if err == nil {
			wanted.value = v                     // it was decoded for change alone
			wanted.Metadata.ResourceVersion = "" // repeat after a conflict
		}
		return wanted, err
	})
	if err != nil || stored.Rev != before {
		c.audit(action, key, err)
	}
	return err
}

// Delete deletes an object, or begins its deletion if it has finalizers, whatever it is by now: who decides by what he has read uses DeleteIf.
func (c *Controller) Delete(ctx context.Context, key store.Key) error {
	if c.registry.Kind(key.Kind) == nil {
		return fmt.Errorf("%s is no key of an object", key)
	}
	return c.deleteIf(ctx, key, nil)
}

// DeleteIf is Delete if goes holds of it as it is then: what its caller has read may have been
// changed since, or be another object of that name by now. What stays is no error.
func DeleteIf[T any](ctx context.Context, c *Controller, key store.Key, goes func(*T) bool) error {
	k, key, err := kindOf[T](c, key)
	if err != nil {
		return err
	}
	return c.deleteIf(ctx, key, func(old *Object) error {
		v, err := k.Typed(old)
		if err == nil && !goes(v.(*T)) {
			err = errStays
		}
		return err
	})
}

func (c *Controller) deleteIf(ctx context.Context, key store.Key, check func(*Object) error) error {
	_, err := c.registry.Delete(ctx, key, c.write(Spec), check)
	if errors.Is(err, errStays) {
		return nil
	}
	c.audit("delete", key, err)
	return err
}

var errStays = errors.New("it is not to be deleted")
