// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics/resource"
)

// A copy follows the store of a node. It gets the node's log block by block, and makes the same file of it as the node does: so each
// sample is sent once. A file of which it lacks the log, or whose digest is another one, it gets whole.

// CopyPart is a part of a store for its copy, or, without bytes, the question what the copy wants next.
type CopyPart struct {
	// ID is the store's, and Number that of its file.
	ID     string `json:"id"`
	Number uint64 `json:"number"`
	// File says that the bytes are of the file, and not of its log.
	File bool `json:"file,omitempty"`
	// Digest and Size are the file's, once there is one.
	Digest string `json:"digest,omitempty"`
	Size   int64  `json:"size,omitempty"`
	// Offset is where the bytes stand.
	Offset int64  `json:"offset"`
	Bytes  []byte `json:"-"`
}

// WantedPart is what a copy wants next.
type WantedPart struct {
	ID     string `json:"id"`
	Number uint64 `json:"number"`
	File   bool   `json:"file,omitempty"`
	Offset int64  `json:"offset"`
	// Off says that there is no copy.
	Off bool `json:"off,omitempty"`
}

// Encode writes a part: a line of JSON, and the bytes.
func (p CopyPart) Encode() []byte {
	head, _ := json.Marshal(p) // strings and numbers
	return slices.Concat(head, []byte("\n"), p.Bytes)
}

// DecodePart reads a part. Its errors are Invalid.
func DecodePart(payload []byte) (p CopyPart, err error) {
	head, rest, ok := bytes.Cut(payload, []byte("\n"))
	if !ok || json.Unmarshal(head, &p) != nil || p.ID == "" || p.Offset < 0 || p.Size < 0 {
		return p, resource.Errorf(resource.Invalid, "", "it is not a part of a history: a line of JSON with id, number and offset, and the bytes")
	}
	p.Bytes = rest
	return p, nil
}

// NextPart is what a copy wants, at most so many bytes of it; false: it has everything.
func (s *Store) NextPart(w WantedPart, most int) (p CopyPart, ok bool, err error) {
	s.files.Lock()
	defer s.files.Unlock()
	if w.ID != s.id {
		return CopyPart{ID: s.id, Number: s.lowest()}, true, nil
	}
	number := max(w.Number, s.lowest())
	at, known := s.search(number)
	logged := s.log != nil && number == s.number || number == s.kept.number || slices.Contains(s.ended, number)
	if !known && !logged {
		if at == len(s.closed) || s.log != nil && number >= s.number {
			if number = s.number; s.log == nil || w.Number > number {
				return p, false, nil
			}
			logged = true
		} else {
			number, known = s.closed[at].number, true
		}
	}
	if number != w.Number {
		w = WantedPart{ID: s.id, Number: number}
	}
	p = CopyPart{ID: s.id, Number: number, Offset: w.Offset}
	if logged && !w.File {
		size := s.kept.size
		switch {
		case s.log != nil && number == s.number:
			size = s.log.size
		case number != s.kept.number:
			return p, false, nil // it is being closed
		}
		if w.Offset < size {
			p.Bytes, err = readPart(s.path(number, logSuffix), w.Offset, min(size-w.Offset, int64(most)))
			return p, err == nil, err
		}
		if !known {
			return p, false, nil
		}
	}
	f := s.find(number)
	if f == nil {
		return p, false, nil
	}
	if f.digest == "" {
		if f.digest, err = digestFile(s.path(number, fileSuffix)); err != nil {
			return p, false, err
		}
	}
	p.File, p.Digest, p.Size = true, f.digest, f.size
	if logged && !w.File {
		p.Offset = 0
		return p, true, nil // the copy has the log, and can make the file itself
	}
	p.Bytes, err = readPart(s.path(number, fileSuffix), w.Offset, min(f.size-w.Offset, int64(most)))
	return p, err == nil, err
}

// lowest is the number of the oldest file.
func (s *Store) lowest() uint64 {
	if len(s.closed) > 0 {
		return s.closed[0].number
	}
	return max(s.number, 1)
}

func readPart(path string, offset, size int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, max(size, 0))
	_, err = f.ReadAt(b, offset)
	return b, err
}

func digestFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return resource.FormatDigest([sha256.Size]byte(h.Sum(nil))), err
}

// copyState is how far a copy is.
type copyState struct {
	ID   string `json:"id"`
	Base uint64 `json:"base"` // the number here of the store's file 0
	Next uint64 `json:"next"` // the number there of the file that is wanted next
	File bool   `json:"file"` // the file is wanted, and not its log
}

const (
	copyFile   = "copy"
	partSuffix = ".part" // of a file that isn't whole
)

// OpenCopy opens the copy of a store in a directory, which it makes.
func OpenCopy(o Options) (*StoreCopy, error) {
	o.copies = true
	s, err := Open(o)
	if err != nil {
		return nil, err
	}
	c := &StoreCopy{Store: s}
	text, err := os.ReadFile(filepath.Join(o.Dir, copyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil && json.Unmarshal(text, &c.state) != nil {
		// The copy begins anew behind what it has, as that of a node whose store did: nothing of the past keeps a hub from starting.
		o.Log.Error().Str("file", filepath.Join(o.Dir, copyFile)).Msg("what was copied of a node's history is damaged: it is copied anew")
		c.state = copyState{}
		return c, nil
	}
	if info, failed := os.Stat(c.logPath()); failed == nil {
		c.number, c.logged = c.local(), info.Size()
	}
	return c, err
}

// StoreCopy is a store that follows another one. One goroutine at a time adds to it.
type StoreCopy struct {
	*Store
	state  copyState
	logged int64 // bytes of the log that it has
}

func (c *StoreCopy) local() uint64   { return c.state.Base + c.state.Next }
func (c *StoreCopy) logPath() string { return c.path(c.local(), logSuffix) }

// newest is the greatest number here, after which those of another store begin.
func (c *StoreCopy) newest() uint64 {
	c.files.Lock()
	defer c.files.Unlock()
	newest := c.local()
	if n := len(c.closed); n > 0 {
		newest = max(newest, c.closed[n-1].number)
	}
	return newest
}

func (c *StoreCopy) save() error {
	text, err := json.Marshal(c.state)
	if err != nil {
		return err
	}
	return datadir.WriteFile(filepath.Join(c.o.Dir, copyFile), text)
}

// Add takes a part, and says what is wanted next.
func (c *StoreCopy) Add(p CopyPart) (WantedPart, error) {
	err := c.add(p)
	w := WantedPart{ID: c.state.ID, Number: c.state.Next, File: c.state.File, Offset: c.logged}
	if w.File {
		w.Offset = 0
		if info, failed := os.Stat(c.path(c.local(), partSuffix)); failed == nil {
			w.Offset = info.Size()
		}
	}
	return w, err
}

func (c *StoreCopy) add(p CopyPart) error {
	if p.ID != c.state.ID || p.Number > c.state.Next {
		if err := c.begin(p); err != nil {
			return err
		}
	}
	switch {
	case p.Number != c.state.Next:
		return nil
	case p.File && len(p.Bytes) == 0 && !c.state.File:
		return c.closeCopied(p)
	case len(p.Bytes) == 0 && p.File: // the file was replaced by a smaller one: what there is of it is of no use
		return c.removePart()
	case len(p.Bytes) == 0:
		return nil
	case c.o.Bytes > 0 && p.Offset+int64(len(p.Bytes)) > c.o.Bytes:
		return c.skip()
	case p.File:
		return c.addToFile(p)
	case c.state.File || p.Offset != c.logged:
		return nil
	}
	if err := appendAt(c.logPath(), p.Offset, p.Bytes); err != nil {
		return err
	}
	c.files.Lock()
	defer c.files.Unlock()
	c.number, c.logged = c.local(), p.Offset+int64(len(p.Bytes))
	return nil
}

// begin goes on with another file: the store is another one, or has dropped files. Of the log that it was at it keeps what it has.
func (c *StoreCopy) begin(p CopyPart) error {
	if c.logged > 0 {
		if err := c.closeOwn(); err != nil {
			return err
		}
	}
	if err := c.removePart(); err != nil {
		return err
	}
	if p.ID != c.state.ID {
		c.state = copyState{ID: p.ID, Base: c.newest()}
	}
	c.state.Next, c.state.File = p.Number, false
	return c.save()
}

// removePart removes what there is of a file that isn't whole.
func (c *StoreCopy) removePart() error {
	err := os.Remove(c.path(c.local(), partSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// skip goes on after a file that is larger than all that is kept here. Of its log there is the beginning.
func (c *StoreCopy) skip() error {
	c.o.Log.Warn().Uint64("file", c.state.Next).Int64("limit", c.o.Bytes).Msg("a file of a node's history is larger than all that the hub keeps of it (limits.history.bytes): the rest of it is left out")
	if c.logged > 0 {
		if err := c.closeOwn(); err != nil {
			return err
		}
	}
	if err := c.removePart(); err != nil {
		return err
	}
	return c.goOn()
}

// closeOwn makes a file of the part of a log that there is.
func (c *StoreCopy) closeOwn() error {
	path := c.logPath()
	if err := cutLog(path); err != nil {
		return err
	}
	kept, err := closeLog(path, c.path(c.local(), fileSuffix))
	if err != nil && !errors.Is(err, errDamaged) {
		return err
	}
	return c.take(kept > 0 && err == nil)
}

// take counts the file of the log, and removes the log.
func (c *StoreCopy) take(whole bool) (err error) {
	c.files.Lock()
	defer c.files.Unlock()
	if whole {
		err = c.addFile(c.local())
	}
	c.logged = 0
	if failed := os.Remove(c.logPath()); !errors.Is(failed, fs.ErrNotExist) {
		err = errors.Join(err, failed)
	}
	return errors.Join(err, c.fit())
}

// closeCopied makes the file of a log that is whole. If it isn't the same as the store's, the store's is wanted.
func (c *StoreCopy) closeCopied(p CopyPart) error {
	path := c.path(c.local(), fileSuffix)
	kept, err := closeLog(c.logPath(), path)
	same := false
	if err == nil && kept > 0 {
		var digest string
		digest, err = digestFile(path)
		same = err == nil && digest == p.Digest
	}
	if err != nil && !errors.Is(err, errDamaged) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !same {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		c.state.File = true
		return errors.Join(c.take(false), c.save())
	}
	if err := c.take(true); err != nil {
		return err
	}
	return c.goOn()
}

func (c *StoreCopy) goOn() error {
	c.state.Next++
	c.state.File = false
	return c.save()
}

// addToFile takes a part of a file. The last one makes it whole: then it must have its digest.
func (c *StoreCopy) addToFile(p CopyPart) error {
	path := c.path(c.local(), partSuffix)
	info, err := os.Stat(path)
	have := int64(0)
	if err == nil {
		have = info.Size()
	}
	if !c.state.File { // there is no log of it
		c.state.File = true
		if err := c.save(); err != nil {
			return err
		}
	}
	if p.Offset != have {
		return nil
	}
	if err := appendAt(path, p.Offset, p.Bytes); err != nil {
		return err
	}
	if have += int64(len(p.Bytes)); have < p.Size {
		return nil
	}
	digest, err := digestFile(path)
	if err != nil {
		return err
	}
	if digest != p.Digest {
		c.o.Log.Warn().Str("file", path).Msg("a file of a node's history came with another digest, and is requested again")
		return os.Remove(path)
	}
	r, err := openFile(path)
	if err != nil { // it is as the store has it, and damaged there
		c.o.Log.Warn().Err(err).Msg("a file of a node's history is damaged on the node, and is left out")
		return errors.Join(os.Remove(path), c.goOn())
	}
	if err := errors.Join(r.Close(), os.Rename(path, c.path(c.local(), fileSuffix)), datadir.SyncDir(c.o.Dir)); err != nil {
		return err
	}
	if err := c.take(true); err != nil {
		return err
	}
	return c.goOn()
}

// appendAt appends to a file that has so many bytes.
func appendAt(path string, offset int64, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, offset)
	return errors.Join(err, f.Close())
}

// cutLog cuts off what is not whole at the end of a log.
func cutLog(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	r, err := newLogReader(f, end)
	if err != nil {
		return f.Truncate(0)
	}
	for r.next(func(logEntry) {}) {
	}
	return f.Truncate(r.at)
}

// lastBlock is when the last whole block of a log was written; 0: there is none.
func lastBlock(path string) int64 {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0
	}
	r, err := newLogReader(f, end)
	if err != nil {
		return 0
	}
	for r.next(func(logEntry) {}) {
	}
	return r.time
}
