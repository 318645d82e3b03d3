package api

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// A name that is unique over all namespaces is taken by a record of its own, for
// the store has no transaction over several objects: the claim is made first,
// then the object. One whose object never came, because the hub stopped between
// the two, may be taken over after a while.
type claim struct {
	Namespace string `json:"namespace"`
	At        int64  `json:"at"` // milliseconds since 1970
}

// claimAge is how long a claim holds without its object: longer than any create takes.
const claimAge = time.Minute

func claimKey(key store.Key) store.Key {
	return store.Key{Kind: key.Kind + "Name", Name: key.Name}
}

// claimant reads who has a name. It fails when that is another namespace for good.
func (s *server) claimant(ctx context.Context, key store.Key) (rev uint64, err error) {
	stored, err := s.Reader.Get(ctx, claimKey(key))
	if errors.Is(err, resource.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var c claim
	if err := json.Unmarshal(stored.Data, &c); err != nil {
		return 0, err
	}
	if c.Namespace == key.Namespace {
		return stored.Rev, nil
	}
	other := key
	other.Namespace = c.Namespace
	_, err = s.Reader.Get(ctx, other)
	fresh := s.Now().UnixMilli() < c.At+claimAge.Milliseconds()
	switch {
	case err == nil, errors.Is(err, resource.NotFound) && fresh:
		return 0, resource.Errorf(resource.AlreadyExists, "metadata.name",
			"the names of %ss are unique over all namespaces, and %s has it", key.Kind, other)
	case errors.Is(err, resource.NotFound):
		return stored.Rev, nil
	}
	return 0, err
}

// claim takes a name for an object that is about to be created.
func (s *server) claim(ctx context.Context, key store.Key) error {
	for {
		rev, err := s.claimant(ctx, key)
		if err != nil {
			return err
		}
		data, err := json.Marshal(claim{key.Namespace, s.Now().UnixMilli()})
		if err != nil {
			return err
		}
		o := store.Object{Key: claimKey(key), Data: data}
		if rev == 0 {
			_, err = s.Writer.Create(ctx, o)
		} else {
			_, err = s.Writer.Update(ctx, o, rev)
		}
		raced := errors.Is(err, resource.AlreadyExists) || errors.Is(err, resource.Conflict) || errors.Is(err, resource.NotFound)
		if !raced || ctx.Err() != nil {
			return err
		}
	}
}

// unclaim gives a name back after its object has gone. A claim that was renewed
// meanwhile stays; one that can't be taken back lapses.
func (s *server) unclaim(ctx context.Context, key store.Key) {
	ctx = context.WithoutCancel(ctx)
	rev, err := s.claimant(ctx, key)
	if err != nil || rev == 0 {
		return
	}
	if _, err := s.Reader.Get(ctx, key); !errors.Is(err, resource.NotFound) {
		return
	}
	if _, err := s.Writer.Delete(ctx, claimKey(key), rev); err != nil && !errors.Is(err, resource.Conflict) && !errors.Is(err, resource.NotFound) {
		s.Log.Warn().Err(err).Stringer("object", key).Msg("the name was not given back")
	}
}
