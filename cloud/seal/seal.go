// Package seal encrypts what the hub's store must not show: the values of Secrets. The
// key is a file of its own beside the store, so whoever has only a copy of the store has
// no values; whoever has the whole data directory, or a backup of it, has both.
//
// It never writes a key over another one, and never says what it encrypts.
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
)

// FileName is the key's file in the hub's data directory.
const FileName = "secrets.key"

const (
	header = "edgebus secrets key 1 "
	size   = 32 // AES-256
)

// Key encrypts and decrypts.
type Key struct{ aead cipher.AEAD }

// Load reads the key of a data directory. Without one the error is fs.ErrNotExist. Errors name the file without
// the directory, which the caller knows, and which may be one that a backup was unpacked into.
func Load(dir string) (*Key, error) {
	path := filepath.Join(dir, FileName)
	info, err := os.Stat(path)
	if err != nil {
		return nil, unread(err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others, with the mode %04o: chmod 600 it", FileName, info.Mode().Perm())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, unread(err)
	}
	encoded, ok := strings.CutPrefix(strings.TrimSpace(string(text)), header)
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(raw) != size {
		return nil, fmt.Errorf("%s is not a key of Secrets, or is damaged: take it from a backup", FileName)
	}
	return newKey(raw)
}

// unread is err without the path in it.
func unread(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("%s: %w", FileName, err)
}

// Make makes a new key and its file. It fails if there is one.
func Make(dir string) (*Key, error) {
	raw := make([]byte, size)
	_, _ = rand.Read(raw) // crypto/rand never fails
	text := header + base64.StdEncoding.EncodeToString(raw) + "\n"
	path := filepath.Join(dir, FileName)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, fs.ErrExist), err)
	}
	// A stop in between must not leave half a key.
	if err := write(path+".new", text); err != nil {
		return nil, err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return nil, err
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return nil, err
	}
	return newKey(raw)
}

func write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
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

// Seal encrypts a text. about says what it belongs to; it is not in the result.
func (k *Key) Seal(plain []byte, about string) ([]byte, error) {
	return k.aead.Seal(nil, nil, plain, []byte(about)), nil
}

// Open is the inverse of Seal, with the same about.
func (k *Key) Open(sealed []byte, about string) ([]byte, error) {
	plain, err := k.aead.Open(nil, nil, sealed, []byte(about))
	if err != nil {
		return nil, fmt.Errorf("%s doesn't open with the key in %s: it was encrypted with another one, or is damaged", about, FileName)
	}
	return plain, nil
}
