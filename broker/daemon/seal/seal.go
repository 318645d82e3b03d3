// SPDX-License-Identifier: Apache-2.0

// Package seal encrypts values of Secrets for the store of a program. The key is a file in the data directory: a copy of the
// store alone gives nothing away, while a copy of the data directory, or a backup of it, has the key as well.
//
// It never loses a key that may still be needed, and its errors never contain what it encrypts.
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
	"sync/atomic"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
)

// FileName is the key's file in a data directory. It has a line for each key: the first one encrypts, and the others, of which
// there are some only during a rotation, decrypt what was encrypted before it.
const FileName = "secrets.key"

const (
	keyHeader = "edgebus secrets key 1 "
	keySize   = 32 // AES-256
)

// Key encrypts and decrypts. Its methods may be called from any goroutine, but Rotate and Retire by one at a time.
type Key struct {
	dir    string
	keys   atomic.Pointer[[]aesKey] // the newest first
	stored atomic.Int32             // how many of them are in the file
}

type aesKey struct {
	raw  []byte
	aead cipher.AEAD
}

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
	var keys []aesKey
	for line := range strings.Lines(strings.TrimSpace(string(text)) + "\n") {
		encoded, ok := strings.CutPrefix(strings.TrimSpace(line), keyHeader)
		raw, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || err != nil || len(raw) != keySize {
			return nil, fmt.Errorf("%s is not a key of Secrets, or is damaged: take it from a backup", FileName)
		}
		one, err := newAESKey(raw)
		if err != nil {
			return nil, err
		}
		keys = append(keys, one)
	}
	return newKeys(dir, keys), nil
}

func newKeys(dir string, keys []aesKey) *Key {
	k := &Key{dir: dir}
	k.keys.Store(&keys)
	k.stored.Store(int32(len(keys)))
	return k
}

// withoutPath is err without the path in it.
func withoutPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("%s: %w", FileName, err)
}

// Create makes a new key and its file. It fails if the file exists.
func Create(dir string) (*Key, error) {
	k, err := NewInMemory()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, FileName)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, fs.ErrExist), err)
	}
	k.dir = dir
	return k, k.write(*k.keys.Load())
}

// NewInMemory makes a key without a file: what it encrypts can't be decrypted after the end of the process.
func NewInMemory() (*Key, error) {
	one, err := randomKey()
	return newKeys("", []aesKey{one}), err
}

func randomKey() (aesKey, error) {
	raw := make([]byte, keySize)
	_, _ = rand.Read(raw) // crypto/rand never fails
	return newAESKey(raw)
}

func newAESKey(raw []byte) (aesKey, error) {
	block, err := aes.NewCipher(raw)
	if err != nil {
		return aesKey{}, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return aesKey{raw, aead}, err
}

// write replaces the file.
func (k *Key) write(keys []aesKey) error {
	text := &strings.Builder{}
	for _, one := range keys {
		fmt.Fprintf(text, "%s%s\n", keyHeader, base64.StdEncoding.EncodeToString(one.raw))
	}
	return datadir.WriteFile(filepath.Join(k.dir, FileName), []byte(text.String()))
}

// Rotate makes a new key, with which Seal encrypts from now on. Open decrypts with the former ones too. If it fails
// the keys are the same as before, in memory; the file may have the new one as well, which nothing is encrypted with.
func (k *Key) Rotate() error {
	one, err := randomKey()
	if err != nil {
		return err
	}
	keys := append([]aesKey{one}, *k.keys.Load()...)
	stored := k.stored.Load() + 1
	if err := k.write(keys[:stored]); err != nil {
		return err
	}
	k.keys.Store(&keys)
	k.stored.Store(stored)
	return nil
}

// Rotating reports whether the file has former keys.
func (k *Key) Rotating() bool { return k.stored.Load() > 1 }

// Rotated reports whether there are former keys, in the file or in memory.
func (k *Key) Rotated() bool { return len(*k.keys.Load()) > 1 }

// Retire deletes the former keys from the file. The caller has seen that nothing stored is encrypted with them. In memory they stay, for
// what was encrypted before the rotation and is about to be stored.
func (k *Key) Retire() error {
	if err := k.write((*k.keys.Load())[:1]); err != nil {
		return err
	}
	k.stored.Store(1)
	return nil
}

// Seal encrypts a text. The result opens only with the same about, which is not in it.
func (k *Key) Seal(plain []byte, about string) ([]byte, error) {
	return (*k.keys.Load())[0].aead.Seal(nil, nil, plain, []byte(about)), nil
}

// Open decrypts the result of Seal.
func (k *Key) Open(sealed []byte, about string) (plain []byte, err error) {
	for _, one := range *k.keys.Load() {
		if plain, err = one.aead.Open(nil, nil, sealed, []byte(about)); err == nil {
			return plain, nil
		}
	}
	return nil, fmt.Errorf("%s doesn't open with the key in %s: it was encrypted with another one, or is damaged", about, FileName)
}

// Current reports whether a text was encrypted with the newest key.
func (k *Key) Current(sealed []byte, about string) bool {
	_, err := (*k.keys.Load())[0].aead.Open(nil, nil, sealed, []byte(about))
	return err == nil
}
