// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// uniqueNames has the names that are unique over all namespaces.
type uniqueNames struct {
	reader   store.Reader
	writer   store.Writer
	log      zerolog.Logger
	creating ongoingCreations
}

// A claim reserves a name that is unique over all namespaces. It is a record of its own, made before the object, since the store has no
// transactions over several objects. A claim whose object isn't there, because the hub stopped in between or the object was deleted, may
// be taken over, unless its object is being created at this moment: see ongoingCreations.
type nameClaim struct {
	Namespace string `json:"namespace"`
	// Nonce makes each claim another record, so that of two that take over one claim one has a conflict.
	Nonce string `json:"nonce"`
}

// ongoingCreations has the objects with unique names that are being created. The hub is the only writer of its store, so no other creation is under
// way, and no clock decides.
type ongoingCreations struct {
	mu sync.Mutex
	n  map[store.Key]int
}

// begin notes the creation of an object until end is called.
func (c *ongoingCreations) begin(key store.Key) (end func()) {
	c.add(key, 1)
	return func() { c.add(key, -1) }
}

func (c *ongoingCreations) add(key store.Key, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[store.Key]int)
	}
	if c.n[key] += n; c.n[key] == 0 {
		delete(c.n, key)
	}
}

func (c *ongoingCreations) has(key store.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[key] > 0
}

func claimKey(key store.Key) store.Key {
	return store.Key{Kind: key.Kind + "Name", Name: key.Name}
}

// checkClaim fails if another namespace has claimed a name. It returns the revision of a claim that may be renewed, or 0.
func (u *uniqueNames) checkClaim(ctx context.Context, key store.Key) (rev uint64, err error) {
	stored, err := u.reader.Get(ctx, claimKey(key))
	if errors.Is(err, resource.NotFound) {
		return 0, nil
	}
	var c nameClaim
	if err == nil {
		err = json.Unmarshal(stored.Data, &c)
	}
	if err != nil || c.Namespace == key.Namespace {
		return stored.Rev, err
	}
	other := key
	other.Namespace = c.Namespace
	created := u.creating.has(other) // asked before: whoever ends its creation meanwhile is there, and whoever begins one writes the claim
	_, err = u.reader.Get(ctx, other)
	switch {
	case err == nil, errors.Is(err, resource.NotFound) && created:
		return 0, resource.Errorf(resource.AlreadyExists, "metadata.name",
			"the names of %ss are unique over all namespaces, and %s has it", key.Kind, other)
	case errors.Is(err, resource.NotFound):
		return stored.Rev, nil
	}
	return 0, err
}

// claim reserves the name of an object that is going to be created.
func (u *uniqueNames) claim(ctx context.Context, key store.Key) error {
	for {
		rev, err := u.checkClaim(ctx, key)
		if err != nil {
			return err
		}
		data, err := json.Marshal(nameClaim{key.Namespace, resource.NewUID()})
		if err != nil {
			return err
		}
		err = store.Put(ctx, u.writer, store.Object{Key: claimKey(key), Data: data}, rev)
		raced := errors.Is(err, resource.AlreadyExists) || errors.Is(err, resource.Conflict) || errors.Is(err, resource.NotFound)
		if !raced || ctx.Err() != nil {
			return err
		}
	}
}

// unclaim releases the name of a deleted object, unless it has been claimed again. A claim that can't be deleted
// may be taken over.
func (u *uniqueNames) unclaim(ctx context.Context, key store.Key) {
	ctx = context.WithoutCancel(ctx)
	rev, err := u.checkClaim(ctx, key)
	if err != nil || rev == 0 {
		return
	}
	if _, err := u.reader.Get(ctx, key); !errors.Is(err, resource.NotFound) {
		return
	}
	if _, err := u.writer.Delete(ctx, claimKey(key), rev); err != nil && !errors.Is(err, resource.Conflict) && !errors.Is(err, resource.NotFound) {
		u.log.Warn().Err(err).Stringer("object", key).Msg("the claim of a deleted object's name could not be removed")
	}
}
