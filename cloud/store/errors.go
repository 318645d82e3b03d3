// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"

	"github.com/edgebus/edgebus/topics/resource"
)

// ErrUnknown is in the chain of an error when the write may or may not have
// happened. Read the object again and compare. Its kind is Unavailable.
var ErrUnknown = errors.New("the outcome of the write is unknown")

// UnknownOutcome makes an error of kind Unavailable that matches ErrUnknown and cause.
func UnknownOutcome(cause error) error {
	failed := resource.Errorf(resource.Unavailable, "", "the store could not commit")
	return fmt.Errorf("%w: %w: %w", failed, ErrUnknown, cause)
}

// NotFound is the error for an object that doesn't exist.
func NotFound(key Key) error {
	return resource.Errorf(resource.NotFound, "", "%s not found", key)
}

// IgnoreNotFound is err, or nil if it is that an object doesn't exist.
func IgnoreNotFound(err error) error {
	if errors.Is(err, resource.NotFound) {
		return nil
	}
	return err
}

// AlreadyExists is the error for a key that is in use.
func AlreadyExists(key Key) error {
	return resource.Errorf(resource.AlreadyExists, "", "%s already exists", key)
}

// Conflict is the error for an expected revision that is not the object's.
func Conflict(key Key, expect, actual uint64) error {
	return resource.Errorf(resource.Conflict, "metadata.resourceVersion",
		"%s was changed by somebody else: expected revision %d, it is at %d", key, expect, actual)
}

// Gone is the error for a revision that is too old, or not of this store.
func Gone(kind string, from, oldest uint64) error {
	return resource.Errorf(resource.Gone, "",
		"revision %d of %s is too old or not of this store: the oldest to go on from is %d; list again", from, kind, oldest)
}

// ClosedError is the error after the store, or the stream, was closed.
func ClosedError(what string) error {
	return resource.Errorf(resource.Unavailable, "", "%s is closed", what)
}
