// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// maxUsers is how many users of an object are named.
const maxUsers = 10

// referenceIndex is an index: by the key of an object, the keys of those that may refer to it. A key stands in it before its object is
// stored, and may stand in it after the object has changed, so who asks looks at the objects themselves. Nothing is missing.
type referenceIndex struct {
	mu       sync.Mutex
	byTarget map[store.Key]map[store.Key]bool
}

// storeIndexed stores an object, whose references are in the index before and after: in between somebody may have found them stale.
func (s *Registry) storeIndexed(k *Kind, key store.Key, o *Object, write func() (store.Object, error)) (store.Object, error) {
	if k.References == nil {
		return write()
	}
	refs := k.references(o)
	s.index.add(key, refs)
	stored, err := write()
	if err == nil {
		s.index.add(key, refs)
	}
	return stored, err
}

func (u *referenceIndex) add(user store.Key, refs []store.Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byTarget == nil {
		u.byTarget = make(map[store.Key]map[store.Key]bool)
	}
	for _, ref := range refs {
		if u.byTarget[ref] == nil {
			u.byTarget[ref] = make(map[store.Key]bool)
		}
		u.byTarget[ref][user] = true
	}
}

func (u *referenceIndex) drop(user, ref store.Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if delete(u.byTarget[ref], user); len(u.byTarget[ref]) == 0 {
		delete(u.byTarget, ref)
	}
}

// some are up to n keys that may refer to an object.
func (u *referenceIndex) some(ref store.Key, n int) (keys []store.Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for key := range u.byTarget[ref] {
		if keys = append(keys, key); len(keys) == n {
			break
		}
	}
	return keys
}

// usersOf returns the names of objects that refer to an object, one more than maxUsers at most: 4,000 Devices may have one model, and each
// deletion asks anew.
func (s *Registry) usersOf(ctx context.Context, k *Kind, ref store.Key) ([]string, error) {
	by := s.Kind(k.UsedBy)
	if by == nil {
		return nil, nil
	}
	if err := s.fillIndex(ctx, by); err != nil {
		return nil, err
	}
	for {
		var names []string
		stale := false
		for _, user := range s.index.some(ref, maxUsers+1) {
			refers, err := s.refers(ctx, by, user, ref)
			switch {
			case err != nil:
				return nil, err
			case refers:
				names = append(names, user.Name)
			default:
				stale = true
				s.index.drop(user, ref)
			}
		}
		if !stale {
			slices.Sort(names)
			return names, nil
		}
	}
}

func (s *Registry) refers(ctx context.Context, k *Kind, user, ref store.Key) (bool, error) {
	stored, err := s.Reader.Get(ctx, user)
	if errors.Is(err, resource.NotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	o, err := s.Decode(stored)
	return err == nil && slices.Contains(k.references(o), ref), err
}

// fillIndex fills the index, once, with what the stored objects of the only kind with references refer to.
func (s *Registry) fillIndex(ctx context.Context, k *Kind) error {
	s.indexing.Lock()
	defer s.indexing.Unlock()
	if s.indexed {
		return nil
	}
	for stored, err := range store.All(ctx, s.Reader, k.Name, store.ListOptions{DataOnly: true}) {
		if err != nil {
			return err
		}
		if o, err := s.Decode(stored); err == nil {
			s.index.add(stored.Key, k.references(o))
		}
	}
	s.indexed = true
	return nil
}
