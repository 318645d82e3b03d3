// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/seal"
)

// unusableKeyName is where a key is put that can't be used.
const unusableKeyName = seal.FileName + ".unusable"

// openSecretsKey reads the key of the Secrets in the core's store, or makes one. A node goes on without its Secrets rather than not at all,
// since the hub has them: a key that can't be used is put aside, and if none can be written the Secrets are kept until the core ends.
func openSecretsKey(dir string, log zerolog.Logger) (*seal.Key, error) {
	key, err := seal.Load(dir)
	if err == nil {
		return key, nil
	}
	path := filepath.Join(dir, seal.FileName)
	if !errors.Is(err, fs.ErrNotExist) {
		log.Error().Err(err).Str("aside", filepath.Join(dir, unusableKeyName)).Msg("the key of the node's Secrets can't be used and is put aside: a new one is made, and the hub sends the Secrets again")
		err = os.Rename(path, filepath.Join(dir, unusableKeyName))
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		if key, err = seal.Create(dir); err == nil {
			return key, nil
		}
	}
	log.Error().Err(err).Str("key", path).Msg("no key of the node's Secrets can be stored: after the next start the hub has to send the Secrets again")
	return seal.NewInMemory()
}

// readSecretsKey opens the key for the command check, which changes nothing; nil: there is none that can be used.
func readSecretsKey(dir string) (*seal.Key, string) {
	key, err := seal.Load(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, "is missing"
	case err != nil:
		return nil, err.Error()
	}
	return key, ""
}
