// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/daemon/seal"
	"github.com/edgebus/edgebus/cloud/enroll"
	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/cloud/peer"
	"github.com/edgebus/edgebus/configs"
)

// hubKeys copies the authority's files and the key of Secrets between the hubs of a cluster. They are in no log; which keys the owner has is, by their
// hashes, before anything is written with one. So a hub that lacks one knows that, and doesn't own the log before it has it.
type hubKeys struct {
	peers  *peers
	client *http.Client
	cfg    configs.Hub
	log    zerolog.Logger

	taking sync.Mutex
}

const (
	purposeKeys = "keys"
	keysEvery   = time.Second
	keysTime    = 5 * time.Second // to have other hubs take a new key
	keysMost    = 1 << 20         // bytes
	unusedKey   = ".unused"       // of files that no other hub has
)

// keyFiles are the files that a hub has of the authority, and the key of Secrets, by their paths in the data directory.
func keyFiles(dir string) (map[string][]byte, error) {
	all := map[string][]byte{}
	for _, pattern := range []string{enroll.DirName + "/*.key", enroll.DirName + "/*.pem", enroll.DirName + "/" + enroll.StateName, seal.FileName} {
		names, err := fs.Glob(os.DirFS(dir), pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			all[name] = text
		}
	}
	return all, nil
}

// keyHashes tell files apart: each key and certificate of the authority, and each line of the key of Secrets.
func keyHashes(files map[string][]byte) (all []string) {
	for name, text := range files {
		parts := [][]byte{text}
		switch {
		case name == seal.FileName:
			parts = bytes.Split(bytes.TrimSpace(text), []byte("\n"))
		case filepath.Ext(name) == ".json":
			continue
		}
		for _, part := range parts {
			sum := sha256.Sum256(bytes.TrimSpace(part))
			all = append(all, fmt.Sprintf("%x", sum[:8]))
		}
	}
	slices.Sort(all)
	return all
}

// says is what this hub writes into the log of its keys.
func (k *hubKeys) says() string {
	files, err := keyFiles(k.cfg.Data.Dir)
	if err != nil {
		k.log.Error().Err(err).Msg("this hub's keys can't be read")
	}
	return strings.Join(keyHashes(files), ",")
}

// lacks says how many keys the owner has, or had when it was heard last, that this hub has not.
func (k *hubKeys) lacks() error {
	m := k.peers.member.Load()
	if m == nil || m.Said() == "" {
		return nil
	}
	files, err := keyFiles(k.cfg.Data.Dir)
	if err != nil {
		return err
	}
	own, missing := keyHashes(files), 0
	for key := range strings.SplitSeq(m.Said(), ",") {
		if !slices.Contains(own, key) {
			missing++
		}
	}
	if missing > 0 {
		return fmt.Errorf("it lacks %d of the keys that %s had, of the authority or of Secrets, which were rotated: it takes them from a hub that has them, which has to serve first", missing, m.Owner())
	}
	return nil
}

// run answers other hubs, and has this one have the owner's keys, until ctx ends.
func (k *hubKeys) run(ctx context.Context) {
	go func() {
		if err := k.peers.Serve(ctx, purposeKeys, k.handler()); err != nil {
			k.log.Error().Err(err).Msg("other hubs can't take keys from this one")
		}
	}()
	tick := time.NewTicker(keysEvery)
	defer tick.Stop()
	said := ""
	for {
		if err := k.follow(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, peer.ErrRefused) && err.Error() != said {
			said = err.Error()
			k.log.Info().Err(err).Msg("the keys of the hub that serves are not copied; trying again")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (k *hubKeys) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		files, err := keyFiles(k.cfg.Data.Dir)
		if err == nil {
			err = json.NewEncoder(w).Encode(files)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) { // the owner is about to use a new one
		if err := k.follow(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	return mux
}

// follow has this hub have the owner's files, if it isn't the owner.
func (k *hubKeys) follow(ctx context.Context) error {
	k.taking.Lock()
	defer k.taking.Unlock()
	owner := k.peers.owner()
	if owner == "" || owner == k.peers.name {
		return nil
	}
	text, err := k.do(ctx, http.MethodGet, owner)
	if err != nil {
		return err
	}
	var theirs map[string][]byte
	if err := json.Unmarshal(text, &theirs); err != nil {
		return err
	}
	own, err := keyFiles(k.cfg.Data.Dir)
	if err != nil || maps.EqualFunc(own, theirs, bytes.Equal) || len(keyHashes(theirs)) == 0 {
		return err
	}
	if owner != k.peers.owner() || k.peers.ownsNow() {
		return nil // another one has them now
	}
	if err := k.take(own, theirs); err != nil {
		return err
	}
	authority, err := enroll.OpenReplica(hubdata.AuthorityOptions(k.cfg, k.log))
	if err != nil {
		return err
	}
	k.peers.authority.Store(authority)
	k.log.Info().Str("hub", owner).Msg("the authority's files and the key of Secrets were taken from the hub that serves: they were rotated")
	return nil
}

// settle returns when files are no more written here: this hub owns the log.
func (k *hubKeys) settle() {
	k.taking.Lock()
	defer k.taking.Unlock()
}

// take writes the owner's files: of the authority its state first, and a key before its certificate. What the owner hasn't is of a rotation that was never in the log.
func (k *hubKeys) take(own, theirs map[string][]byte) error {
	order := func(name string) int { return slices.Index([]string{".json", ".key", ".pem"}, filepath.Ext(name)) }
	for _, name := range slices.SortedFunc(maps.Keys(theirs), func(x, y string) int { return order(x) - order(y) }) {
		if !filepath.IsLocal(name) || bytes.Equal(own[name], theirs[name]) {
			continue
		}
		path := filepath.Join(k.cfg.Data.Dir, name)
		if err := errors.Join(datadir.MakeDir(filepath.Dir(path)), datadir.WriteFile(path, theirs[name])); err != nil {
			return err
		}
	}
	for name := range own {
		if theirs[name] == nil {
			path := filepath.Join(k.cfg.Data.Dir, name)
			if err := os.Rename(path, path+unusedKey); err != nil {
				return err
			}
		}
	}
	return nil
}

// announce returns when a new key in this hub's files may be used: hubs that are there have taken it, or were asked, and the log says that it is there.
func (k *hubKeys) announce() error {
	ctx, stop := context.WithTimeout(context.Background(), keysTime)
	defer stop()
	var all sync.WaitGroup
	for _, hub := range k.peers.Connected() {
		all.Go(func() {
			if _, err := k.do(ctx, http.MethodPost, hub); err != nil {
				k.log.Warn().Err(err).Str("hub", hub).Msg("a hub has not taken a new key yet, and can't take over before it has")
			}
		})
	}
	all.Wait()
	return k.peers.member.Load().Say()
}

func (k *hubKeys) do(ctx context.Context, method, hub string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, peer.HubURL(hub), http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := k.client.Do(r)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, keysMost))
	if err = errors.Join(err, answer.Body.Close()); err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", hub, answer.Status, strings.TrimSpace(string(text)))
	}
	return text, err
}
