// SPDX-License-Identifier: Apache-2.0

package hubdata

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon/seal"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics/resource"
)

var errKilled = errors.New("killed")

func keysIn(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, seal.FileName))
	require.NoError(t, err)
	return strings.Count(string(text), "\n")
}

// allSecrets are the contents of the Secrets that a directory's key opens, by name.
func allSecrets(t *testing.T, dir string) (values map[string]string) {
	t.Helper()
	key, err := seal.Load(dir)
	require.NoError(t, err)
	values = make(map[string]string)
	withHub(t, dir, func(st *disk.Store) {
		page, err := st.List(t.Context(), resource.KindSecret, store.ListOptions{})
		require.NoError(t, err)
		for _, o := range page.Items {
			var record struct{ Sealed []byte }
			require.NoError(t, json.Unmarshal(o.Data, &record))
			plain, err := key.Open(record.Sealed, o.Key.String())
			require.NoError(t, err)
			values[o.Name] = string(plain)
		}
	})
	return values
}

// A rotation that ends after any of its steps leaves Secrets that open, and the next start finishes it.
func TestARotationThatIsInterrupted(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	for last := 0; ; last++ {
		dir := dirWithSecrets(t, names...)
		first, err := os.ReadFile(filepath.Join(dir, seal.FileName))
		require.NoError(t, err)
		was := allSecrets(t, dir)
		var mu sync.Mutex
		var steps []string
		ended := false
		withHub(t, dir, func(st *disk.Store) {
			s, err := OpenSecretStore(t.Context(), dir, st, zerolog.Nop())
			require.NoError(t, err)
			s.onStep = func(done string) error {
				mu.Lock()
				defer mu.Unlock()
				if steps = append(steps, done); len(steps) > last {
					return errKilled
				}
				return nil
			}
			_, err = s.Rotate(t.Context())
			if ended = err == nil; !ended {
				require.ErrorIs(t, err, errKilled)
			}
		})
		require.Equal(t, was, allSecrets(t, dir), "%d: %v", last, steps)
		require.NoError(t, Program().CheckRelated(dir), "a backup of this moment is whole")
		withHub(t, dir, func(st *disk.Store) {
			_, err := OpenSecretStore(t.Context(), dir, st, zerolog.Nop())
			require.NoError(t, err)
		})
		require.Equal(t, was, allSecrets(t, dir), "%d: %v", last, steps)
		require.Equal(t, 1, keysIn(t, dir), "%d: %v", last, steps)
		now, err := os.ReadFile(filepath.Join(dir, seal.FileName))
		require.NoError(t, err)
		require.NotEqual(t, string(first), string(now))
		require.NoError(t, os.WriteFile(filepath.Join(dir, seal.FileName), first, 0o600))
		require.ErrorContains(t, Program().CheckRelated(dir), "(4 of 4) can't be opened", "the old key opens nothing")
		if ended {
			require.ElementsMatch(t, append([]string{"a new key", "all Secrets", "the old key"},
				"Secret default/a", "Secret default/b", "Secret default/c", "Secret default/d"), steps)
			return
		}
	}
}

// A crash while the key's file is written leaves an unfinished one beside it, which stops nothing.
func TestARotationBesideAnUnfinishedFile(t *testing.T) {
	dir := dirWithSecrets(t, "a")
	require.NoError(t, os.WriteFile(filepath.Join(dir, seal.FileName+".new"), []byte("half"), 0o600))
	said, err := rotateOffline(t.Context(), dir)
	require.NoError(t, err)
	require.Equal(t, "secrets.key has a new key; 1 Secrets were encrypted with it, and the old key is deleted", said)
	require.Len(t, allSecrets(t, dir), 1)
}

// What cannot be decrypted ends a rotation, and both keys stay.
func TestARotationWithADamagedSecret(t *testing.T) {
	dir := dirWithSecrets(t, "a", "b")
	withHub(t, dir, func(st *disk.Store) {
		s, err := OpenSecretStore(t.Context(), dir, st, zerolog.Nop())
		require.NoError(t, err)
		o, err := st.Get(t.Context(), store.Key{Kind: "Secret", Namespace: "default", Name: "a"})
		require.NoError(t, err)
		o.Name = "b" // sealed for another name
		_, err = st.Update(t.Context(), o, 0)
		require.NoError(t, err)
		_, err = s.Rotate(t.Context())
		require.ErrorContains(t, err, "Secret default/b doesn't open")
		require.ErrorContains(t, err, "both keys stay")
	})
	require.Equal(t, 2, keysIn(t, dir))
}

// Secrets are written while the key changes, again and again: each opens with the keys that are there, and in the end with one.
func TestWritesDuringRotations(t *testing.T) {
	dir := dirWithSecrets(t)
	withHub(t, dir, func(st *disk.Store) {
		s, err := OpenSecretStore(t.Context(), dir, st, zerolog.Nop())
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for i := range 4 {
			group.Go(func() {
				of := store.Key{Kind: "Secret", Namespace: "default", Name: fmt.Sprint("s", i)}
				for n := 0; ctx.Err() == nil; n++ {
					sealed, err := s.Key.Seal([]byte(fmt.Sprint(n)), of.String())
					data, failed := json.Marshal(map[string]any{"sealed": sealed})
					if err = errors.Join(err, failed); err == nil && n == 0 {
						_, err = s.Create(t.Context(), store.Object{Key: of, Data: data})
					} else if err == nil {
						_, err = s.Update(t.Context(), store.Object{Key: of, Data: data}, 0)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range 20 {
			_, err := s.Rotate(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, keysIn(t, dir))
		}
		stop()
		group.Wait()
	})
	require.Len(t, allSecrets(t, dir), 4)
	require.NoError(t, Program().CheckRelated(dir))
}

// What was encrypted before a rotation began may be stored after it has ended.
func TestAWriteAcrossARotation(t *testing.T) {
	dir := dirWithSecrets(t)
	withHub(t, dir, func(st *disk.Store) {
		s, err := OpenSecretStore(t.Context(), dir, st, zerolog.Nop())
		require.NoError(t, err)
		of := store.Key{Kind: "Secret", Namespace: "default", Name: "late"}
		sealed, err := s.Key.Seal([]byte("plain"), of.String())
		require.NoError(t, err)
		data, err := json.Marshal(map[string]any{"sealed": sealed})
		require.NoError(t, err)
		_, err = s.Rotate(t.Context())
		require.NoError(t, err)
		_, err = s.Create(t.Context(), store.Object{Key: of, Data: data})
		require.NoError(t, err)
	})
	require.Equal(t, map[string]string{"late": "plain"}, allSecrets(t, dir))
}
