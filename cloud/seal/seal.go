// Package seal encrypts the content of Secrets for the hub's store. The key is a file beside the store: a copy of the store
// alone gives nothing away, while a copy of the data directory, or a backup of it, has the key as well.
//
// It never overwrites a key, and its errors never contain what it encrypts.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/edgebus/edgebus/configs/daemon/datadir"
)

// FileName is the key's file in the hub's data directory.
const FileName = "secrets.key"

const (
	header = "edgebus secrets key 1 "
	size   = 32 // AES-256
)

// Key encrypts and decrypts.
type Key struct{ aead cipher.AEAD }

// Load reads the key of a data directory. If there is none the error is fs.ErrNotExist. Errors name the file without the
// directory, which may be a temporary one.
func Load(dir string) (*Key, error) {
	path := filepath.Join(dir, FileName)
	info, err := os.Stat(path)
	if err != nil {
		return nil, withoutPath(err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others, with the mode %04o: chmod 600 it", FileName, info.Mode().Perm())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, withoutPath(err)
	}
	encoded, ok := strings.CutPrefix(strings.TrimSpace(string(text)), header)
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(raw) != size {
		return nil, fmt.Errorf("%s is not a key of Secrets, or is damaged: take it from a backup", FileName)
	}
	return newKey(raw)
}

// withoutPath is err without the path in it.
func withoutPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("%s: %w", FileName, err)
}

// Make makes a new key and its file. It fails if the file exists.
func Make(dir string) (*Key, error) {
	raw := make([]byte, size)
	_, _ = rand.Read(raw) // crypto/rand never fails
	text := header + base64.StdEncoding.EncodeToString(raw) + "\n"
	path := filepath.Join(dir, FileName)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, fs.ErrExist), err)
	}
	if err := datadir.WriteFile(path, []byte(text)); err != nil {
		return nil, err
	}
	return newKey(raw)
}

func newKey(raw []byte) (*Key, error) {
	block, err := aes.NewCipher(raw)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	return &Key{aead}, nil
}

// Seal encrypts a text. The result opens only with the same about, which is not in it.
func (k *Key) Seal(plain []byte, about string) ([]byte, error) {
	return k.aead.Seal(nil, nil, plain, []byte(about)), nil
}

// Open decrypts the result of Seal.
func (k *Key) Open(sealed []byte, about string) ([]byte, error) {
	plain, err := k.aead.Open(nil, nil, sealed, []byte(about))
	if err != nil {
		return nil, fmt.Errorf("%s doesn't open with the key in %s: it was encrypted with another one, or is damaged", about, FileName)
	}
	return plain, nil
}
