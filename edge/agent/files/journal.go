// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics/resource"
)

// The data directory has two kinds of files. A manifest (manifest-ID.json) lists what a version consists of and is written once.
// The journal (journal.json) names the applied manifest, and has the operations of the update that is under way; it is replaced
// whole for each phase, so a change of phase and of what is applied is one rename.

// phase is how far an update is.
type phase string

const (
	// phaseIdle: there is no update. What is to be cleaned up may still be there.
	phaseIdle phase = ""
	// phaseStaging: new files and backups may exist under names of their own. Nothing of the old version is touched.
	phaseStaging phase = "staging"
	// phaseSwapping: any of the operations may have been done. All backups and all new files are on disk.
	phaseSwapping phase = "swapping"
	// phaseSwapped: all operations have been done and are on disk.
	phaseSwapped phase = "swapped"
	// phaseRollingBack: any of the operations may have been undone.
	phaseRollingBack phase = "rollingBack"
)

type journal struct {
	Format int `json:"format"`
	// Applied is the id of the manifest that is applied; empty: none.
	Applied string         `json:"applied,omitempty"`
	Phase   phase          `json:"phase,omitempty"`
	Update  *journalUpdate `json:"update,omitempty"`
	// Cleanup are files of ended updates that are to be removed, Dirs directories that are to be removed if they are empty.
	Cleanup []string `json:"cleanup,omitempty"`
	Dirs    []string `json:"dirs,omitempty"`
}

type journalUpdate struct {
	// ID is also that of the new manifest.
	ID      string       `json:"id"`
	Version string       `json:"version"`
	Ops     []*operation `json:"ops,omitempty"`
	// Originals are no longer needed when the update is committed; so are Dirs.
	Originals []string `json:"originals,omitempty"`
	Dirs      []string `json:"dirs,omitempty"`
}

// opKind is what an operation does.
type opKind string

// The kinds. rankOf has the order in which they are done; they are undone in the reverse order.
const (
	opAdopt    opKind = "adopt"  // keep a copy of the file that is there as the original; it is as wanted already
	opRemove   opKind = "remove" // remove a file or a link
	opRmdir    opKind = "rmdir"  // remove a directory that is in one where a file is wanted
	opMkdir    opKind = "mkdir"
	opExchange opKind = "exchange" // put the staged file in the place of a directory, or a directory in that of a file
	opAttrs    opKind = "attrs"    // change permissions and owner
	opWrite    opKind = "write"    // put the staged file or link in its place
)

var opKinds = []opKind{opAdopt, opRemove, opRmdir, opMkdir, opExchange, opAttrs, opWrite}

// operation is one operation of an update.
type operation struct {
	Kind opKind `json:"kind"`
	Key  string `json:"key"`
	// Path is how the spec calls it, Change what is reported; none if the operation is no change of its own.
	Path   string   `json:"path,omitempty"`
	Change ChangeOp `json:"change,omitempty"`
	// New is where a new file is staged, Old where what was there is kept, if Backup says that there was something.
	New    string `json:"new,omitempty"`
	Old    string `json:"old,omitempty"`
	Backup bool   `json:"backup,omitempty"`
	// Original: the backup is the original of a file that the spec manages from now on, and is kept after the commit.
	Original bool `json:"original,omitempty"`
	// Attrs are wanted, Was those before. An exchange has Attrs if a directory takes the place of a file.
	Attrs       *fileAttrs `json:"attrs,omitempty"`
	AttrsBefore *fileAttrs `json:"attrsBefore,omitempty"`

	entry *manifestEntry // what is staged at New, or
	from  string         // the original that is
	// copied is how much room a copy of what is there takes, in bytes.
	copied int64
}

// manifest is what a version consists of.
type manifest struct {
	Version string           `json:"version"`
	Entries []*manifestEntry `json:"entries"`
	byKey   map[string]*manifestEntry
}

// manifestEntry is a file, link or directory of a manifest.
type manifestEntry struct {
	resource.RenderedFile
	Key   string    `json:"key"`
	Attrs fileAttrs `json:"attrs"`
	Sum   string    `json:"sum,omitempty"` // SHA-256 of the content, in hex
	// Unmanaged was there already, and the spec leaves it as it is: it isn't the agent's.
	Unmanaged bool `json:"unmanaged,omitempty"`
	// Implicit is a directory that was made because something below it is wanted.
	Implicit bool `json:"implicit,omitempty"`
	// AttrsBefore are the attributes of a directory that was there before it was managed.
	AttrsBefore *fileAttrs `json:"attrsBefore,omitempty"`
	// Original is the key of what was in this place before it was managed.
	Original string `json:"original,omitempty"`
}

func (e *manifestEntry) dir() bool { return e.Type == resource.FileDirectory }

// madeByUpdate is whether the entry is a directory that an update made.
func (e *manifestEntry) madeByUpdate() bool { return e.dir() && e.AttrsBefore == nil && !e.Unmanaged }

// ownPrefix begins the names of all files that an update makes beside those it changes.
const ownPrefix = ".edgebus-"

var (
	idPattern            = regexp.MustCompile(`^[0-9a-f]{16}$`)
	ownNamePattern       = regexp.MustCompile(`^\.edgebus-[0-9a-f]{16}-[0-9]+\.(new|old)$`)
	kindsWithNew         = []opKind{opWrite, opExchange}
	kindsWithOld         = []opKind{opAdopt, opRemove, opWrite, opExchange}
	kindsWithAttrs       = []opKind{opMkdir, opAttrs}
	kindsWithAttrsBefore = []opKind{opRmdir, opAttrs}
)

func manifestName(id string) string { return "manifest-" + id + ".json" }

func isManifest(name string) bool { return strings.HasPrefix(name, "manifest-") }

const journalName = "journal.json"

// journalFormat is the format of the journal and of the manifests. It rises when a program with the present one would misread them.
const journalFormat = 1

// decodeJournal reads a journal, and refuses one that no update can have written: what it names is going to be renamed and removed.
func decodeJournal(text []byte) (journal, error) {
	var j journal
	if err := cmp.Or(datadir.CheckFormat(text, journalFormat), decodeStrict(text, &j)); err != nil {
		return journal{}, err
	}
	return j, j.check()
}

func decodeStrict(text []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if d.More() {
		return fmt.Errorf("there is something after the end")
	}
	return nil
}

func (j journal) check() error {
	if j.Applied != "" && !idPattern.MatchString(j.Applied) {
		return fmt.Errorf("applied: %q is no id", j.Applied)
	}
	for i, key := range j.Cleanup {
		if err := checkOwnKey(key); err != nil {
			return fmt.Errorf("cleanup[%d]: %w", i, err)
		}
	}
	for i, key := range j.Dirs {
		if err := checkKey(key); err != nil {
			return fmt.Errorf("dirs[%d]: %w", i, err)
		}
	}
	switch j.Phase {
	case phaseIdle:
		if j.Update != nil {
			return fmt.Errorf("update: must not be there without a phase")
		}
		return nil
	case phaseStaging, phaseSwapping, phaseSwapped, phaseRollingBack:
	default:
		return fmt.Errorf("phase: %q is none", j.Phase)
	}
	if j.Update == nil {
		return fmt.Errorf("update: is required in phase %s", j.Phase)
	}
	return j.Update.check()
}

func (u *journalUpdate) check() error {
	if !idPattern.MatchString(u.ID) {
		return fmt.Errorf("update.id: %q is no id", u.ID)
	}
	for i, o := range u.Ops {
		if o == nil {
			return fmt.Errorf("update.ops[%d]: is null", i)
		}
		if err := o.check(); err != nil {
			return fmt.Errorf("update.ops[%d]: %w", i, err)
		}
	}
	for i, key := range u.Originals {
		if err := checkOwnKey(key); err != nil {
			return fmt.Errorf("update.originals[%d]: %w", i, err)
		}
	}
	for i, key := range u.Dirs {
		if err := checkKey(key); err != nil {
			return fmt.Errorf("update.dirs[%d]: %w", i, err)
		}
	}
	return nil
}

func (o *operation) check() error {
	if !slices.Contains(opKinds, o.Kind) {
		return fmt.Errorf("kind: %q is no operation", o.Kind)
	}
	if err := checkKey(o.Key); err != nil {
		return fmt.Errorf("key: %w", err)
	}
	for _, own := range []struct {
		field, key string
		kinds      []opKind
	}{{"new", o.New, kindsWithNew}, {"old", o.Old, kindsWithOld}} {
		if wanted := slices.Contains(own.kinds, o.Kind); wanted != (own.key != "") {
			return fmt.Errorf("%s: %q doesn't belong to the operation %s", own.field, own.key, o.Kind)
		} else if wanted {
			if err := checkOwnKey(own.key); err != nil {
				return fmt.Errorf("%s: %w", own.field, err)
			}
		}
	}
	if o.Kind != opExchange && slices.Contains(kindsWithAttrs, o.Kind) != (o.Attrs != nil) {
		return fmt.Errorf("attrs: belong to the operations %v", kindsWithAttrs)
	}
	if slices.Contains(kindsWithAttrsBefore, o.Kind) != (o.AttrsBefore != nil) {
		return fmt.Errorf("attrsBefore: belongs to the operations %v", kindsWithAttrsBefore)
	}
	return nil
}

// checkKey checks that a key is one of something below the tree's directory.
func checkKey(key string) error {
	if key == "." || !filepath.IsLocal(key) || filepath.ToSlash(filepath.Clean(key)) != key || strings.ContainsRune(key, 0) {
		return fmt.Errorf("%q is no clean path below the root", key)
	}
	return nil
}

// checkOwnKey checks that a key is one of those files that an update makes for itself.
func checkOwnKey(key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if !ownNamePattern.MatchString(key[strings.LastIndexByte(key, '/')+1:]) {
		return fmt.Errorf("%q is no file of an update", key)
	}
	return nil
}

func decodeManifest(text []byte) (*manifest, error) {
	m := &manifest{}
	if err := decodeStrict(text, m); err != nil {
		return nil, err
	}
	for i, e := range m.Entries {
		if e == nil {
			return nil, fmt.Errorf("entries[%d]: is null", i)
		}
		if err := checkKey(e.Key); err != nil {
			return nil, fmt.Errorf("entries[%d].key: %w", i, err)
		}
		if e.Original != "" {
			if err := checkOwnKey(e.Original); err != nil {
				return nil, fmt.Errorf("entries[%d].original: %w", i, err)
			}
		}
	}
	m.index()
	return m, nil
}

func (m *manifest) index() {
	m.byKey = make(map[string]*manifestEntry, len(m.Entries))
	for _, e := range m.Entries {
		m.byKey[e.Key] = e
	}
}
