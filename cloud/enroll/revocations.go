// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	revokedName = "revoked.json"
	// issuedName is the file that holds a time, in ms since 1970, before which all certificates were made.
	issuedName = "issued.json"
	// issuedAhead is how far ahead of the certificates that time is written, so that it is rarely written.
	issuedAhead = time.Minute
)

// Revocation is the time up to which a node's certificates are invalid. Later ones are valid.
type Revocation struct {
	Node string `json:"node"`
	// At is in milliseconds since 1970, like the upper half of a certificate's serial number.
	At             int64  `json:"revokedUpTo"`
	Decommissioned bool   `json:"decommissioned,omitempty"`
	By             string `json:"by,omitempty"`
	// SupersededBy is the key that the node joined with again, and for which its earlier certificates were revoked; empty: it was for another reason.
	SupersededBy string `json:"supersededByKey,omitempty"`
}

// Revocations are kept in a file of their own, and not in the store: a restored backup takes them over from the data
// that it replaces.
type Revocations struct {
	path      string
	now       func() time.Time
	onRevoked func(node string) error // called when there is a new revocation; nil: nobody wants to know
	onIssued  func() error            // called when what issuedName holds has risen; nil likewise

	mu    sync.RWMutex
	nodes map[string]Revocation
	// issued is the time of the newest certificate or later, in ms since 1970, and bound is what issuedName holds.
	// A revocation is not earlier: the clock may have been set back since the certificate was made.
	issued, bound int64
}

func openRevocations(dir string, now func() time.Time) (*Revocations, error) {
	r := &Revocations{path: filepath.Join(dir, revokedName), now: now, nodes: map[string]Revocation{}}
	list, err := readRevocations(r.path)
	for _, e := range list {
		r.nodes[e.Node] = e
	}
	if err != nil {
		return nil, err
	}
	if err := readJSON(filepath.Join(dir, issuedName), &r.issued); err != nil {
		return nil, err
	}
	r.bound = r.issued
	// From the first start on they are there: that one is missing is damage.
	for _, made := range []struct {
		name  string
		value any
	}{{revokedName, []Revocation{}}, {issuedName, 0}} {
		if _, err := os.Stat(filepath.Join(dir, made.name)); errors.Is(err, fs.ErrNotExist) {
			if err := writeJSON(filepath.Join(dir, made.name), made.value); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

func readRevocations(path string) (list []Revocation, err error) {
	err = readJSON(path, &list)
	return list, err
}

// checkedFile is what the files hold: a value and its checksum, so that no damage lets a revoked node in.
type checkedFile struct {
	Value    json.RawMessage `json:"value"`
	Checksum string          `json:"crc32c"`
}

func checksum(value []byte) string {
	var compact bytes.Buffer
	if json.Compact(&compact, value) != nil {
		return ""
	}
	return fmt.Sprintf("%08x", crc32.Checksum(compact.Bytes(), crc32.MakeTable(crc32.Castagnoli)))
}

// readJSON reads a file, which is missing at the first start alone: see record. One that is damaged is an error: starting without it would
// admit revoked nodes.
func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var c checkedFile
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err == nil && (c.Checksum == "" || c.Checksum != checksum(c.Value)) {
		err = errors.New("its checksum is wrong")
	}
	if err == nil {
		err = json.Unmarshal(c.Value, into)
	}
	if err != nil {
		return fmt.Errorf("%s/%s can't be read: take it from a backup (%w)", DirName, filepath.Base(path), err)
	}
	return nil
}

func writeJSON(path string, value any) error {
	text, err := json.Marshal(value)
	if err == nil {
		text, err = json.MarshalIndent(checkedFile{text, checksum(text)}, "", " ")
	}
	if err != nil {
		return err
	}
	return datadir.WriteFile(path, append(text, '\n'))
}

func writeRevocations(path string, nodes map[string]Revocation) error {
	list := []Revocation{}
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		list = append(list, nodes[node])
	}
	return writeJSON(path, list)
}

// newest is the time of the last revocation, in ms since 1970; 0: there is none.
func (r *Revocations) newest() (at int64) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.last()
}

func (r *Revocations) last() (at int64) {
	for _, e := range r.nodes {
		at = max(at, e.At)
	}
	return at
}

// add revokes a node's present certificates. The revocation is on disk when it returns.
func (r *Revocations) add(node, by string, decommissioned bool) error {
	r.mu.Lock()
	err := r.put(Revocation{Node: node, Decommissioned: decommissioned, By: by})
	r.mu.Unlock()
	return r.notify(node, err)
}

// notify has the new revocation noted elsewhere, if there is one.
func (r *Revocations) notify(node string, err error) error {
	if err == nil && r.onRevoked != nil {
		err = r.onRevoked(node)
	}
	return err
}

// supersede revokes the certificates of a node that joins again with another key. It fails if the last revocation is not the one that the
// caller knows, and returns the new one.
func (r *Revocations) supersede(node, key string, known int64) (at int64, err error) {
	r.mu.Lock()
	if err = errRevokedMeanwhile(node); r.nodes[node].At == known {
		err = r.put(Revocation{Node: node, SupersededBy: key})
		at = r.nodes[node].At
	}
	r.mu.Unlock()
	return at, r.notify(node, err)
}

// supersededBy is the key for which a node's certificates were revoked; empty: it was for another reason.
func (r *Revocations) supersededBy(node string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.nodes[node].SupersededBy
}

func errRevokedMeanwhile(node string) error {
	return resource.Errorf(resource.Unauthorized, "", "node %s was revoked in the meantime: it can join again with a new invitation", node)
}

// put stores a revocation, as of now. Each is later than all before it, so that an older list is known by its last one.
func (r *Revocations) put(e Revocation) error {
	e.At = max(r.now().UnixMilli(), r.last()+1, r.issued)
	next := maps.Clone(r.nodes)
	next[e.Node] = e
	if err := writeRevocations(r.path, next); err != nil {
		return err
	}
	r.nodes = next
	return nil
}

// issue returns the time for a certificate that is made now, in ms: later than the node's last revocation, and not later than the
// next one. It fails if the last revocation is not the one that the caller knows.
func (r *Revocations) issue(node string, known int64) (ms int64, err error) {
	ms, risen, err := r.nextIssue(node, known)
	if err == nil && risen && r.onIssued != nil {
		err = r.onIssued()
	}
	return ms, err
}

// nextIssue is issue that says whether what issuedName holds has risen.
func (r *Revocations) nextIssue(node string, known int64) (ms int64, risen bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.nodes[node].At
	if last != known {
		return 0, false, errRevokedMeanwhile(node)
	}
	ms = max(r.now().UnixMilli(), last+1)
	if risen = ms > r.bound; risen {
		bound := ms + issuedAhead.Milliseconds()
		if err := writeJSON(filepath.Join(filepath.Dir(r.path), issuedName), bound); err != nil {
			return 0, false, err
		}
		r.bound = bound
	}
	r.issued = max(r.issued, ms)
	return ms, risen, nil
}

// at is the node's last revocation; 0: there is none.
func (r *Revocations) at(node string) int64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.nodes[node].At
}

// issuedBefore is a time before which all certificates were made.
func (r *Revocations) issuedBefore() int64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.bound
}

// Why returns the reason why a node is refused with a certificate, or without one (nil); empty: it was not revoked.
func (r *Revocations) Why(node string, cert *x509.Certificate) string {
	r.mu.RLock()
	e, revoked := r.nodes[node]
	r.mu.RUnlock()
	if !revoked {
		return ""
	}
	if cert != nil {
		if ms, ours := issuedAt(cert); ours && ms > e.At {
			return ""
		}
	}
	if e.Decommissioned {
		return fmt.Sprintf("this node was decommissioned: %s can join again with a new invitation", node)
	}
	if e.SupersededBy != "" {
		return fmt.Sprintf("node %s has joined again at %s, with another key: this one can join again with a new invitation", node, resource.FormatTime(time.UnixMilli(e.At)))
	}
	return fmt.Sprintf("the certificates of node %s were revoked at %s: it can join again with a new invitation", node, resource.FormatTime(time.UnixMilli(e.At)))
}

// decommissioned reports whether the node is refused with this certificate because it was decommissioned.
func (r *Revocations) decommissioned(node string, cert *x509.Certificate) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e := r.nodes[node]
	ms, ours := issuedAt(cert)
	return e.Decommissioned && (!ours || ms <= e.At)
}

// condition is what a Node says of its last revocation. told says that the node knows of it.
func (r *Revocations) condition(node string, told bool) resource.Condition {
	r.mu.RLock()
	e := r.nodes[node]
	r.mu.RUnlock()
	c := resource.Condition{Type: resource.ConditionRevoked, Status: "True", Reason: resource.ReasonRevoked}
	c.Message = "the certificates that it had were revoked"
	switch {
	case e.Decommissioned && told:
		c.Reason, c.Message = resource.ReasonDecommissioned, c.Message+", and it was told to give up its keys"
	case e.Decommissioned:
		c.Reason, c.Message = resource.ReasonDecommissioning, c.Message+", and it is told to give up its keys when it connects"
	}
	return c
}

// MergeRestored copies into a restored data directory what a backup can't contain: revocations and rotations of the authority after it was
// made. from is the data directory that the backup replaces; if it belongs to another hub, nothing is copied.
func MergeRestored(from, into string) error {
	old, fresh := filepath.Join(from, DirName), filepath.Join(into, DirName)
	if same, err := sameHub(old, fresh); err != nil || !same {
		return err
	}
	later, err := readRevocations(filepath.Join(old, revokedName))
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	known, err := readRevocations(filepath.Join(fresh, revokedName))
	if err != nil {
		return err
	}
	nodes := map[string]Revocation{}
	for _, e := range append(known, later...) {
		if e.At >= nodes[e.Node].At {
			nodes[e.Node] = e
		}
	}
	if len(nodes) > 0 {
		if err := writeRevocations(filepath.Join(fresh, revokedName), nodes); err != nil {
			return err
		}
	}
	names, err := filepath.Glob(filepath.Join(old, "*"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if base := filepath.Base(name); base != revokedName && filepath.Ext(base) != ".new" {
			text, err := os.ReadFile(name)
			if err == nil {
				err = datadir.WriteFile(filepath.Join(fresh, base), text)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// sameHub reports whether both directories have an authority in common, or neither has one because the configuration names it.
func sameHub(old, fresh string) (bool, error) {
	names, err := filepath.Glob(filepath.Join(fresh, "*.pem"))
	if err != nil {
		return false, err
	}
	if len(names) == 0 {
		theirs, err := filepath.Glob(filepath.Join(old, "*.pem"))
		return len(theirs) == 0, errors.Join(err, os.MkdirAll(fresh, 0o700))
	}
	for _, name := range names {
		ours, err := os.ReadFile(name)
		if err != nil {
			return false, err
		}
		theirs, err := os.ReadFile(filepath.Join(old, filepath.Base(name)))
		if err == nil && string(ours) == string(theirs) {
			return true, nil
		}
	}
	return false, nil
}
