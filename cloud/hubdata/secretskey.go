// SPDX-License-Identifier: Apache-2.0

package hubdata

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/broker/daemon/seal"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics/resource"
)

// openSealKey reads the key of Secrets, or makes one if there are no Secrets yet. A key that doesn't decrypt all of them is
// refused: new Secrets would be encrypted with the wrong key.
func openSealKey(dir string, st store.Reader) (*seal.Key, error) {
	key, _, err := checkSealKey(dir, st)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", dir, err)
	case key == nil:
		return seal.Create(dir)
	}
	return key, nil
}

// checkSealKey checks that the key in the directory decrypts every Secret of the store, and counts them. It returns no key if there
// is none and there are no Secrets.
func checkSealKey(dir string, st store.Reader) (key *seal.Key, count int, err error) {
	page, err := st.List(context.Background(), resource.KindSecret, store.ListOptions{})
	if err != nil {
		return nil, 0, err
	}
	count = len(page.Items)
	key, err = seal.Load(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && count == 0:
		return nil, 0, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, count, fmt.Errorf("%s is missing, and %s: take it from a backup", seal.FileName, describeUnopened(page.Items, count))
	case err != nil:
		return nil, count, err
	}
	var closed []store.Object
	for _, o := range page.Items {
		if !opensSecret(key, o) {
			closed = append(closed, o)
		}
	}
	if len(closed) > 0 {
		return nil, count, fmt.Errorf("%s with %s: it is another hub's, or they are damaged: take the key, or all data, from a backup",
			describeUnopened(closed, count), seal.FileName)
	}
	return key, count, nil
}

func opensSecret(key *seal.Key, o store.Object) bool {
	var record struct {
		Sealed []byte `json:"sealed"`
	}
	if err := json.Unmarshal(o.Data, &record); err != nil {
		return false
	}
	_, err := key.Open(record.Sealed, o.Key.String())
	return err == nil
}

// describeUnopened names the Secrets that can't be decrypted.
func describeUnopened(closed []store.Object, of int) string {
	var names []string
	for _, o := range closed {
		names = append(names, o.Key.String())
	}
	return fmt.Sprintf("%s (%d of %d) can't be opened", objects.JoinFirst(names), len(closed), of)
}

// SecretStore is the hub's store of Secrets while their key may change. All Secrets are written through it.
//
// A rotation writes a new key before the old one into the key's file, encrypts each Secret anew by an ordinary write, and deletes the
// old key from the file once no Secret needs it. It may be interrupted anywhere: until its last step both keys are in the file, and the
// next start goes on with it.
type SecretStore struct {
	store.Reader
	store.Writer
	Key      *seal.Key
	log      zerolog.Logger
	Announce func() error // has other hubs have a new key before it is used; nil: there are none
	// rotating is held for reading by writes of Secrets: one that began before a rotation has ended before the rotation lists what it
	// has to encrypt anew, and one that begins later encrypts anew itself what was encrypted before.
	rotating sync.RWMutex
	onStep   func(done string) error // called after each step of a rotation, which an error ends; nil, except in tests
}

// OpenSecretStore checks the key of the Secrets, makes one if there is none, and ends a rotation that was interrupted. If that can't be
// ended, as on a full disk, both keys stay.
func OpenSecretStore(ctx context.Context, dir string, st *disk.Store, log zerolog.Logger) (*SecretStore, error) {
	key, err := openSealKey(dir, st)
	if err != nil {
		return nil, err
	}
	s := &SecretStore{Reader: st, Writer: st, Key: key, log: log}
	if !key.Rotating() {
		return s, nil
	}
	if count, err := s.finishRotation(ctx); err != nil {
		log.Error().Err(err).Msg("an interrupted rotation of the key of Secrets can't be finished: the next start, or cloudhub rotate-key, tries again")
	} else {
		log.Info().Int("secrets", count).Msg("an interrupted rotation of the key of Secrets is finished")
	}
	return s, nil
}

// Create stores a new object, which its writer (objects.Registry) has encrypted if it is a Secret. If the key was rotated meanwhile,
// its content is encrypted anew.
func (s *SecretStore) Create(ctx context.Context, o store.Object) (store.Object, error) {
	return s.write(o, func(o store.Object) (store.Object, error) { return s.Writer.Create(ctx, o) })
}

// Update replaces an object, as Create stores one.
func (s *SecretStore) Update(ctx context.Context, o store.Object, expect uint64) (store.Object, error) {
	return s.write(o, func(o store.Object) (store.Object, error) { return s.Writer.Update(ctx, o, expect) })
}

func (s *SecretStore) write(o store.Object, write func(store.Object) (store.Object, error)) (store.Object, error) {
	if o.Kind != resource.KindSecret {
		return write(o)
	}
	s.rotating.RLock()
	defer s.rotating.RUnlock()
	o, _, err := s.reseal(o)
	if err != nil {
		return o, err
	}
	return write(o)
}

// reseal is a Secret with its content encrypted with the newest key, and whether that changed anything.
func (s *SecretStore) reseal(o store.Object) (_ store.Object, changed bool, err error) {
	if o.Data == nil || !s.Key.Rotated() {
		return o, false, nil
	}
	fields := make(map[string]json.RawMessage)
	var old []byte
	if err := json.Unmarshal(o.Data, &fields); err != nil {
		return o, false, fmt.Errorf("%s: %w", o.Key, err)
	}
	if err := json.Unmarshal(fields["sealed"], &old); err != nil {
		return o, false, fmt.Errorf("%s: %w", o.Key, err)
	}
	if s.Key.Current(old, o.Key.String()) {
		return o, false, nil
	}
	plain, err := s.Key.Open(old, o.Key.String())
	if err != nil {
		return o, false, err
	}
	sealed, err := s.Key.Seal(plain, o.Key.String())
	if err != nil {
		return o, false, err
	}
	if fields["sealed"], err = json.Marshal(sealed); err != nil {
		return o, false, err
	}
	o.Data, err = json.Marshal(fields)
	return o, true, err
}

// Rotate makes a new key, and encrypts all Secrets with it.
func (s *SecretStore) Rotate(ctx context.Context) (said string, err error) {
	s.rotating.Lock()
	if err = s.Key.Rotate(); err == nil && s.Announce != nil {
		err = s.Announce()
	}
	s.rotating.Unlock()
	if err == nil {
		err = s.afterStep("a new key")
	}
	if err != nil {
		return "", err
	}
	count, err := s.finishRotation(ctx)
	if err != nil {
		return "", fmt.Errorf("%w: both keys stay, and the next start of the hub, or rotate-key, goes on", err)
	}
	s.log.Info().Int("secrets", count).Msg("the key of Secrets was rotated")
	return fmt.Sprintf("%s has a new key; %d Secrets were encrypted with it, and the old key is deleted", seal.FileName, count), nil
}

func (s *SecretStore) afterStep(step string) error {
	if s.onStep == nil {
		return nil
	}
	return s.onStep(step)
}

// finishRotation encrypts what former keys have encrypted, and deletes these keys.
func (s *SecretStore) finishRotation(ctx context.Context) (count int, err error) {
	for {
		n, err := s.resealAll(ctx)
		if err != nil {
			return count, err
		}
		if count += n; n == 0 {
			break
		}
	}
	if err := s.afterStep("all Secrets"); err != nil {
		return count, err
	}
	if err := s.Key.Retire(); err != nil {
		return count, err
	}
	return count, s.afterStep("the old key")
}

// resealAll writes the Secrets that former keys have encrypted. One that somebody else writes or deletes meanwhile is left to the next
// call.
func (s *SecretStore) resealAll(ctx context.Context) (count int, err error) {
	page, err := s.List(ctx, resource.KindSecret, store.ListOptions{})
	if err != nil {
		return 0, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrentWrites)
	for _, o := range page.Items {
		next, changed, err := s.reseal(o)
		if err != nil {
			return count, errors.Join(err, g.Wait())
		}
		if !changed {
			continue
		}
		count++
		g.Go(func() error {
			_, err := s.Writer.Update(ctx, store.Object{Key: o.Key, Data: next.Data}, o.Rev)
			switch {
			case errors.Is(err, resource.Conflict), errors.Is(err, resource.NotFound):
				return nil
			case err != nil:
				return fmt.Errorf("%s: %w", o.Key, err)
			}
			return s.afterStep(o.Key.String())
		})
	}
	return count, g.Wait()
}

// rotateOffline is Rotate for a hub that is stopped.
func rotateOffline(ctx context.Context, dir string) (said string, err error) {
	if _, err := os.Stat(filepath.Join(dir, ClusterKeyFile)); err == nil {
		return "", fmt.Errorf("%s is the data of a hub of a cluster, which doesn't run: run rotate-key at the hub that serves", dir)
	}
	records, err := OpenLog(dir, zerolog.Nop(), nil, nil)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	st, err := disk.Open(disk.Options{Journal: records})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	key, err := openSealKey(dir, st)
	if err != nil {
		return "", err
	}
	return (&SecretStore{Reader: st, Writer: st, Key: key, log: zerolog.Nop()}).Rotate(ctx)
}
