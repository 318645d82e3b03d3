// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// packCache are commits as servers have sent them, on disk, for as long as somebody reads them and a minute longer in a
// directory of their own: what refers to several
// paths of a commit, or several Nodes and Fleets that refer to it, fetch it once.
type packCache struct {
	dir string

	mu    sync.Mutex
	byKey map[[sha256.Size]byte]*cachedPack
	idle  int // how many nobody reads
}

// cachedPack is one of them.
type cachedPack struct {
	key     [sha256.Size]byte
	fetched chan struct{} // closed when it was
	err     error
	dir     string
	readers int
	expires *time.Timer // while nobody reads it
}

const (
	packFile         = "pack"
	packPrefix       = "git-"
	artifactPrefix   = "artifact-"
	idlePackLifetime = time.Minute
	// maxIdlePacks bounds the packs on disk that nobody reads: each has at most Options.MaxBytes, and an index.
	maxIdlePacks = 8
)

func newPackCache(dir string) *packCache {
	if dir != "" {
		for _, prefix := range []string{packPrefix, artifactPrefix} {
			left, _ := filepath.Glob(filepath.Join(dir, prefix+"*")) // of a hub that was killed
			for _, name := range left {
				_ = os.RemoveAll(name)
			}
		}
	}
	return &packCache{dir: dir, byKey: make(map[[sha256.Size]byte]*cachedPack)}
}

// packKey is what a pack depends on: who may not read a repository doesn't get what somebody else has fetched from it.
func packKey(r RepositoryAccess, commit string) [sha256.Size]byte {
	text, _ := json.Marshal([]any{r.Spec, r.Secret, commit})
	return sha256.Sum256(text)
}

// get is a pack, which fetch writes to a file unless it is there. Who gets one releases it.
func (x *packCache) get(ctx context.Context, key [sha256.Size]byte, fetch func(file string) error) (*cachedPack, error) {
	x.mu.Lock()
	p, known := x.byKey[key]
	if !known {
		p = &cachedPack{key: key, fetched: make(chan struct{})}
		x.byKey[key] = p
	}
	if p.expires != nil {
		p.expires.Stop()
		p.expires = nil
		x.idle--
	}
	p.readers++
	x.mu.Unlock()
	if !known {
		p.err = x.fetch(p, fetch)
		close(p.fetched)
	}
	select {
	case <-p.fetched:
	case <-ctx.Done():
		x.release(p)
		return nil, ctx.Err()
	}
	if p.err != nil {
		x.release(p)
		return nil, p.err
	}
	return p, nil
}

func (x *packCache) fetch(p *cachedPack, fetch func(file string) error) error {
	dir, err := x.makeDir(packPrefix)
	if err != nil {
		return err
	}
	p.dir = dir
	return fetch(filepath.Join(dir, packFile))
}

// makeDir makes a directory for what is being read.
func (x *packCache) makeDir(prefix string) (string, error) {
	if x.dir != "" {
		if err := os.MkdirAll(x.dir, 0o700); err != nil {
			return "", err
		}
	}
	return os.MkdirTemp(x.dir, prefix+"*")
}

// release says that a pack is not read any more.
func (x *packCache) release(p *cachedPack) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p.readers--; p.readers > 0 {
		return
	}
	if p.err != nil || x.dir == "" || x.idle == maxIdlePacks {
		x.remove(p)
		return
	}
	x.idle++
	var expires *time.Timer
	expires = time.AfterFunc(idlePackLifetime, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if p.expires == expires {
			x.idle--
			x.remove(p)
		}
	})
	p.expires = expires
}

// remove removes a pack. x.mu is held.
func (x *packCache) remove(p *cachedPack) {
	if x.byKey[p.key] == p {
		delete(x.byKey, p.key)
	}
	if p.dir != "" {
		_ = os.RemoveAll(p.dir) // the next start does it otherwise
	}
}
