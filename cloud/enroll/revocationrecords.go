// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// kindRevocation is the kind of the records of revocations, by node, that hubs with a log in common have beside the file that each keeps: what one revokes the
// others must know when they go on in its place.
const kindRevocation = "Revocation"

func revocationKey(node string) store.Key { return store.Key{Kind: kindRevocation, Name: node} }

// storedRevocations are the records; a hub that is alone has none.
func storedRevocations(ctx context.Context, r store.Reader) (map[string]Revocation, error) {
	known := map[string]Revocation{}
	if r == nil {
		return known, nil
	}
	page, err := r.List(ctx, kindRevocation, store.ListOptions{})
	for _, o := range page.Items {
		var e Revocation
		if err == nil {
			err = json.Unmarshal(o.Data, &e)
		}
		known[o.Key.Name] = e
	}
	if err != nil {
		return nil, fmt.Errorf("the records of revocations can't be read: %w", err)
	}
	return known, nil
}

// merge takes over revocations that are later than those in the file, and a time before which all certificates were made.
func (r *Revocations) merge(known map[string]Revocation, issued int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.issued, r.bound = max(r.issued, issued), max(r.bound, issued)
	next, later := maps.Clone(r.nodes), false
	for node, e := range known {
		if e.At > next[node].At {
			next[node], later = e, true
		}
	}
	if !later {
		return nil
	}
	err := writeRevocations(r.path, next)
	if err == nil {
		r.nodes = next
	}
	return err
}

// mergeStored takes over what other hubs have revoked, and has the store keep what only this one's file has, if there are others.
func (a *Authority) mergeStored(ctx context.Context, rec *authorityRecord) error {
	known, err := storedRevocations(ctx, a.o.Reader)
	if err != nil {
		return err
	}
	var issued int64
	if rec != nil {
		issued = rec.Issued
	}
	if err := a.revoked.merge(known, issued); err != nil || !a.o.Shared {
		return err
	}
	for node, e := range a.revoked.nodes {
		if e.At > known[node].At {
			if err := a.storeRevocation(ctx, node); err != nil {
				return err
			}
		}
	}
	return nil
}

// storeRevocation has the store keep a node's last revocation.
func (a *Authority) storeRevocation(ctx context.Context, node string) error {
	a.storing.Lock()
	defer a.storing.Unlock()
	a.revoked.mu.RLock()
	e := a.revoked.nodes[node]
	a.revoked.mu.RUnlock()
	was, err := a.o.Reader.Get(ctx, revocationKey(node))
	if err != nil && !errors.Is(err, resource.NotFound) {
		return err
	}
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return store.Put(ctx, a.o.Writer, store.Object{Key: revocationKey(node), Data: data}, was.Rev)
}

// CarryRevocations has a restored data directory know what another hub's records say: revocations, and up to when certificates were made.
func CarryRevocations(ctx context.Context, from store.Reader, dir string) error {
	known, err := storedRevocations(ctx, from)
	if err != nil {
		return err
	}
	rec, _, err := readRecord(ctx, from)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, DirName)
	list, err := readRevocations(filepath.Join(path, revokedName))
	if err != nil {
		return err
	}
	for _, e := range list {
		if e.At > known[e.Node].At {
			known[e.Node] = e
		}
	}
	if len(known) > 0 {
		if err := writeRevocations(filepath.Join(path, revokedName), known); err != nil {
			return err
		}
	}
	var issued int64
	if err := readJSON(filepath.Join(path, issuedName), &issued); err != nil || rec == nil || rec.Issued <= issued {
		return err
	}
	return writeJSON(filepath.Join(path, issuedName), rec.Issued)
}
