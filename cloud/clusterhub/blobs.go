// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/cloud/blobs"
	"github.com/edgebus/edgebus/cloud/peer"
	"github.com/edgebus/edgebus/configs"
)

// hubBlobs copies blobs between the hubs of a cluster. Each has all that the owner has, so that any of them can go on in its place.
type hubBlobs struct {
	peers   *peers
	client  *http.Client
	dir     string
	limits  configs.HubBlobs
	log     zerolog.Logger
	content atomic.Pointer[blobs.Store]
	needed  atomic.Pointer[func(context.Context, func(string)) error] // what the owner needs; nil: this hub stands by
	asked   time.Time                                                 // when it was last asked what it needs, or looked itself what it lacks
}

const (
	purposeBlobs = "blobs"
	neededPath   = "needed"
	blobsEvery   = 2 * time.Second // that a hub that stands by asks which there are
	neededEvery  = time.Minute     // that the owner's specs are read for what it needs, if it lacks something
	blobTime     = time.Minute     // to have a blob from another hub while somebody waits
)

// openHubBlobs has a hub that stands by take the owner's blobs.
func openHubBlobs(o Options, p *peers) (*hubBlobs, error) {
	b := &hubBlobs{peers: p, client: p.Client(purposeBlobs), dir: o.Config.Data.Dir, limits: o.Config.Limits.Blobs, log: o.Log}
	content, err := b.open(blobs.Options{}) // how many there may be is the owner's to say
	b.content.Store(content)
	return b, err
}

func (b *hubBlobs) open(o blobs.Options) (*blobs.Store, error) {
	o.Dir, o.Age, o.Log = b.dir, b.limits.Age, b.log
	return blobs.Open(o)
}

// OpenBlobs opens the blobs of the hub that serves.
func (s *SharedLog) OpenBlobs(o blobs.Options) (*blobs.Store, error) {
	if s == nil {
		return blobs.Open(o)
	}
	b := s.blobs
	o.Kept, o.Missing = b.copyOut, b.fetchMissing
	b.needed.Store(&o.Refs)
	content, err := b.open(o)
	if err != nil {
		return nil, err
	}
	b.content.Store(content)
	return content, nil
}

// run answers other hubs, and has this one have what it should, until ctx ends.
func (b *hubBlobs) run(ctx context.Context) {
	go func() {
		if err := b.peers.Serve(ctx, purposeBlobs, b.handler()); err != nil {
			b.log.Error().Err(err).Msg("other hubs can't take blobs from this one")
		}
	}()
	tick := time.NewTicker(blobsEvery)
	defer tick.Stop()
	var others []string // whom the owner has asked
	lacks, said := false, ""
	for {
		var err error
		if needed := b.needed.Load(); needed == nil {
			if owner := b.peers.owner(); owner != "" && owner != b.peers.name {
				err = b.follow(ctx, owner)
			}
		} else if now := b.peers.Connected(); !slices.Equal(now, others) || lacks && time.Since(b.asked) > neededEvery {
			others, b.asked = now, time.Now()
			err = b.complete(ctx, *needed)
			lacks = err != nil
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, peer.ErrRefused) && err.Error() != said {
			said = err.Error()
			b.log.Info().Err(err).Msg("blobs are not all copied yet; trying again")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (b *hubBlobs) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(b.content.Load().List())
	})
	mux.HandleFunc("GET /"+neededPath, func(w http.ResponseWriter, r *http.Request) {
		needed := b.needed.Load()
		if needed == nil {
			http.Error(w, "this hub stands by", http.StatusServiceUnavailable)
			return
		}
		all := map[string]bool{}
		if err := (*needed)(r.Context(), func(digest string) { all[digest] = true }); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(all)
	})
	mux.HandleFunc("GET /{digest}", func(w http.ResponseWriter, r *http.Request) {
		digest := r.PathValue("digest")
		if _, has := b.content.Load().Has(digest); !has { // asking for it would have this hub ask the others
			http.NotFound(w, r)
			return
		}
		blob, err := b.content.Load().Open(digest)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		defer blob.Close()
		if r.Method != http.MethodHead {
			_, _ = io.Copy(w, blob)
		}
	})
	mux.HandleFunc("POST /{digest}", func(w http.ResponseWriter, r *http.Request) { // the owner has it, and waits until this hub has it as well
		digest, err := r.PathValue("digest"), error(nil)
		if _, has := b.content.Load().Has(digest); has { // it was put once more, and is kept for as long from now on
			_, _, err = b.content.Load().Receive(r.Context(), http.NoBody, digest)
		} else {
			err = b.fetch(r.Context(), b.peers.owner(), digest)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	return mux
}

// follow takes what the owner has and this hub lacks, and gives up what the owner has given up long ago.
func (b *hubBlobs) follow(ctx context.Context, owner string) error {
	var list []blobs.Info
	if err := b.read(ctx, owner, "", &list); err != nil {
		return err
	}
	there := make(map[string]bool, len(list))
	var errs []error
	for _, info := range list {
		there[info.Digest] = true
		errs = append(errs, b.fetch(ctx, owner, info.Digest))
	}
	var old []string
	for _, own := range b.content.Load().List() {
		if !there[own.Digest] && time.Since(own.LastPut) > b.limits.Age {
			old = append(old, own.Digest)
		}
	}
	return errors.Join(append(errs, b.giveUp(ctx, owner, old))...)
}

// giveUp removes blobs that the owner hasn't, but those that it needs: it has lost them, and this hub may be the only one that has one.
func (b *hubBlobs) giveUp(ctx context.Context, owner string, old []string) error {
	if len(old) == 0 || time.Since(b.asked) < neededEvery {
		return nil
	}
	b.asked = time.Now()
	var needed map[string]bool
	err := b.read(ctx, owner, neededPath, &needed)
	for _, digest := range old {
		if err == nil && !needed[digest] && b.needed.Load() == nil {
			err = b.content.Load().Remove(ctx, digest)
		}
	}
	return err
}

// read has a hub say something in JSON.
func (b *hubBlobs) read(ctx context.Context, hub, path string, into any) error {
	answer, err := b.do(ctx, http.MethodGet, hub, path)
	if err != nil {
		return err
	}
	return errors.Join(json.NewDecoder(answer.Body).Decode(into), answer.Body.Close())
}

// complete takes from any hub what the owner needs and lacks.
func (b *hubBlobs) complete(ctx context.Context, needed func(context.Context, func(string)) error) error {
	lacks := map[string]bool{}
	err := needed(ctx, func(digest string) {
		if _, has := b.content.Load().Has(digest); !has {
			lacks[digest] = true
		}
	})
	for digest := range lacks {
		err = errors.Join(err, b.fetchAny(ctx, digest))
	}
	return err
}

// fetchMissing is asked for a blob that isn't here. One that nothing refers to may have been removed.
func (b *hubBlobs) fetchMissing(digest string) error {
	ctx, stop := context.WithTimeout(context.Background(), blobTime)
	defer stop()
	if !b.isElsewhere(ctx, digest) { // anybody may ask for any: all specs are read for those that there are
		return fmt.Errorf("%s: no other hub has it", digest)
	}
	is := false
	err := (*b.needed.Load())(ctx, func(needed string) { is = is || needed == digest })
	if err != nil || !is {
		return errors.Join(err, fmt.Errorf("nothing refers to %s", digest))
	}
	return b.fetchAny(ctx, digest)
}

// isElsewhere reports whether another hub that is there has a blob.
func (b *hubBlobs) isElsewhere(ctx context.Context, digest string) bool {
	return slices.ContainsFunc(b.peers.Connected(), func(hub string) bool {
		answer, err := b.do(ctx, http.MethodHead, hub, digest)
		return err == nil && answer.Body.Close() == nil
	})
}

func (b *hubBlobs) fetchAny(ctx context.Context, digest string) error {
	err := fmt.Errorf("%s: no other hub is there to take it from", digest)
	for _, hub := range b.peers.Connected() {
		if err = b.fetch(ctx, hub, digest); err == nil {
			b.log.Info().Str("digest", digest).Str("hub", hub).Msg("a blob that was missing here was taken from another hub")
			return nil
		}
	}
	return err
}

// fetch takes a blob from a hub, unless it is here.
func (b *hubBlobs) fetch(ctx context.Context, hub, digest string) error {
	if _, has := b.content.Load().Has(digest); has {
		return nil
	}
	answer, err := b.do(ctx, http.MethodGet, hub, digest)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, _, err = b.content.Load().Receive(ctx, answer.Body, digest)
	return err
}

func (b *hubBlobs) do(ctx context.Context, method, hub, digest string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, peer.HubURL(hub)+digest, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := b.client.Do(r)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.Join(fmt.Errorf("%s: %s: %s", hub, digest, answer.Status), answer.Body.Close())
	}
	return answer, err
}

// copyOut returns when one of the hubs that are there has a blob as well, or none can have it: then it is as with one hub.
func (b *hubBlobs) copyOut(ctx context.Context, digest string) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), blobTime)
	hubs := b.peers.Connected()
	had := make(chan struct{}, len(hubs))
	var all sync.WaitGroup
	for _, hub := range hubs {
		all.Go(func() {
			answer, err := b.do(ctx, http.MethodPost, hub, digest)
			if err != nil {
				b.log.Info().Err(err).Msg("a hub has not taken a blob yet")
				return
			}
			_ = answer.Body.Close()
			had <- struct{}{}
		})
	}
	ended := make(chan struct{})
	go func() {
		defer stop()
		all.Wait()
		close(ended)
	}()
	select {
	case <-had:
	case <-ended:
	}
}
