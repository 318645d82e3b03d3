// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Files are those of a hub's data directory that belong to its log, as patterns of their names.
type Files struct {
	Sent     []string // to who follows
	Compared []string // private keys: who follows is told their checksums, and they are copied by hand
}

func (f Files) isSent(name string) bool {
	return filepath.IsLocal(name) && slices.ContainsFunc(f.Sent, func(pattern string) bool {
		ok, _ := filepath.Match(pattern, name)
		return ok
	})
}

// matchingNames are the files of a directory that patterns match.
func matchingNames(dir string, patterns []string) (list []string) {
	for _, pattern := range patterns {
		found, _ := filepath.Glob(filepath.Join(dir, pattern)) // the patterns are valid
		for _, path := range found {
			if name, err := filepath.Rel(dir, path); err == nil {
				list = append(list, name)
			}
		}
	}
	slices.Sort(list)
	return list
}

// fileStamp tells a file from what it was.
type fileStamp struct {
	size int64
	time time.Time
}

// watchedFiles are files of which one stream has said what they are.
type watchedFiles struct {
	dir   string
	files Files
	seen  map[string]fileStamp
	keys  map[string]string
}

// changed reads the files that have changed, and hands them over.
func (w *watchedFiles) changed(send func(name string, content []byte)) error {
	for _, name := range matchingNames(w.dir, w.files.Sent) {
		content, is, err := w.read(name)
		if err != nil {
			return err
		}
		if is {
			send(name, content)
		}
	}
	compared := matchingNames(w.dir, w.files.Compared)
	for _, name := range compared {
		content, is, err := w.read(name)
		if err != nil {
			return err
		}
		if is {
			w.keys[name] = checksum(content)
		}
	}
	for name := range w.keys {
		if !slices.Contains(compared, name) {
			delete(w.keys, name)
			delete(w.seen, name)
		}
	}
	return nil
}

// read reads a file if it has changed.
func (w *watchedFiles) read(name string) (content []byte, is bool, err error) {
	path := filepath.Join(w.dir, name)
	info, err := os.Stat(path)
	if os.IsNotExist(err) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, err
	}
	now := fileStamp{info.Size(), info.ModTime()}
	if w.seen[name] == now {
		return nil, false, nil
	}
	if content, err = os.ReadFile(path); err != nil {
		return nil, false, err
	}
	w.seen[name] = now
	return content, true, nil
}

func checksum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// lackingKeys are the keys that a directory lacks of those that a hub has, or has others of.
func lackingKeys(dir string, keys map[string]string) (list []string) {
	for name, sum := range keys {
		if content, err := os.ReadFile(filepath.Join(dir, name)); err != nil || checksum(content) != sum {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}
