// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
)

// Dir is the folder of a data directory that has the records of views.
const Dir = "views"

const recordFormat = 1

// record is what is on disk of a view at a peer, from before its first connection there until what it has published is cleared.
type record struct {
	path string

	mu sync.Mutex
	recordFile
}

type recordFile struct {
	Format int    `json:"format"`
	View   string `json:"view"`
	// Settings are those that the view is made from, to clear what it has published once it is switched off.
	Settings json.RawMessage `json:"settings"`
	// Connections is how many there were, by node if the view has a connection a node, or else under an empty name.
	Connections map[string]uint64 `json:"connections"`
}

func recordPath(dir string, v View) string {
	sum := sha256.Sum256([]byte(v.Place))
	return filepath.Join(dir, Dir, v.Name+"-"+hex.EncodeToString(sum[:6])+".json")
}

// openRecord reads the record of a view at its place, or begins one. A damaged one is begun anew.
func openRecord(dir string, v View) (r *record, damage error) {
	r = &record{path: recordPath(dir, v)}
	r.recordFile, damage = readRecord(r.path)
	if errors.Is(damage, fs.ErrNotExist) {
		damage = nil
	}
	r.Format, r.View, r.Settings = recordFormat, v.Name, v.Settings
	if r.Connections == nil {
		r.Connections = make(map[string]uint64)
	}
	return r, damage
}

func readRecord(path string) (f recordFile, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return f, err
	}
	if err := errors.Join(datadir.CheckFormat(text, recordFormat), json.Unmarshal(text, &f)); err != nil {
		return recordFile{}, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// next counts a connection, and returns its number once it is on disk.
func (r *record) next(node string) (n uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Connections[node]++
	text, err := json.Marshal(r.recordFile)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(r.path), 0o700)
	}
	if err == nil {
		err = datadir.WriteFile(r.path, text)
	}
	return r.Connections[node], err
}

// remove deletes a record: there is nothing left of the view at its place.
func (r *record) remove() error {
	err := os.Remove(r.path)
	_ = os.Remove(filepath.Dir(r.path)) // unless there are others
	return err
}

// otherRecords are the records of views that are not among the paths, and those that can't be read.
func otherRecords(dir string, paths map[string]bool) (list []*record, damaged error) {
	entries, err := os.ReadDir(filepath.Join(dir, Dir))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, Dir, e.Name())
		if paths[path] || !strings.HasSuffix(path, ".json") {
			continue
		}
		f, err := readRecord(path)
		if err != nil {
			damaged = errors.Join(damaged, err)
			continue
		}
		list = append(list, &record{path: path, recordFile: f})
	}
	return list, damaged
}
