// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// hostOps do and undo the operations of an update. Undoing one that was not done, or was undone already, does nothing.
type hostOps struct {
	*dirTree
	id string // of the update
}

func (s *Store) hostOps() hostOps { return hostOps{s.host, s.journal.Update.ID} }

// keysOf are the keys that operations change, done or undone.
func keysOf(ops []*operation) unsyncedKeys {
	keys := unsyncedKeys{}
	for _, o := range ops {
		keys[parentKey(o.Key)] = true
		if o.Attrs != nil || o.AttrsBefore != nil || o.Kind == opAdopt {
			keys[o.Key] = true
		}
		if o.Kind == opExchange { // the directory that was emptied is there
			keys[o.New] = true
		}
		for _, key := range []string{o.New, o.Old} {
			if key != "" {
				keys[parentKey(key)] = true
			}
		}
	}
	return keys
}

// backUp gives what is in an operation's place a second name. A file that stays there is copied: it may be changed in its place.
func (h hostOps) backUp(o *operation) error {
	if o.Old == "" || o.Kind == opExchange {
		return nil
	}
	at, err := h.stat(o.Key)
	var b *blockedPath
	if errors.As(err, &b) {
		err = nil // a file of the old version, that is removed before
	}
	if err != nil || !at.file() {
		return err
	}
	o.Backup = true
	if o.Kind == opAdopt {
		return h.copy(o.Key, o.Old)
	}
	return h.duplicate(o.Key, o.Old)
}

// apply does an operation.
func (h hostOps) apply(o *operation) error {
	switch o.Kind {
	case opRemove, opRmdir:
		return h.remove(o.Key)
	case opMkdir:
		return h.mkdir(o.Key, *o.Attrs)
	case opAttrs:
		return h.setAttrs(o.Key, *o.Attrs)
	case opWrite:
		return h.rename(o.New, o.Key)
	case opExchange:
		err := h.exchange(o.New, o.Key)
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.ENOTSUP) || errors.Is(err, errors.ErrUnsupported) {
			if err = h.rename(o.Key, o.Old); err == nil {
				err = h.rename(o.New, o.Key)
			}
		}
		return err
	}
	return nil
}

// undo undoes an operation that may have been done, or undone already.
func (h hostOps) undo(o *operation) error {
	switch o.Kind {
	case opWrite:
		staged, err := h.stat(o.New)
		if err != nil || staged.exists() {
			return err // it is not in its place
		}
		if o.Backup {
			return h.putBack(o)
		}
		return h.removeIf(o.Key, foundFile.file)
	case opExchange:
		return h.undoExchange(o)
	case opRemove:
		if o.Backup {
			return h.putBack(o)
		}
	case opMkdir:
		err := h.removeIf(o.Key, foundFile.dir)
		if isNotEmpty(err) {
			return nil // somebody put files there
		}
		return err
	case opRmdir:
		if err := h.makeWay(o.Key); err != nil {
			return err
		}
		at, err := h.stat(o.Key)
		if err == nil && at.exists() && !at.dir() {
			err = h.moveAside(o.Key)
		}
		if err != nil {
			return err
		}
		return h.mkdirAs(o.Key, *o.AttrsBefore)
	case opAttrs:
		at, err := h.stat(o.Key)
		var b *blockedPath
		if errors.As(err, &b) || err == nil && !at.dir() && !at.regular() {
			return nil // somebody removed it
		}
		if err != nil {
			return err
		}
		return h.setAttrs(o.Key, *o.AttrsBefore)
	}
	return nil
}

// undoExchange has the former file or directory in its place again. A directory that was made and has others' files is kept beside it.
func (h hostOps) undoExchange(o *operation) error {
	wasDir := o.Attrs == nil
	if !wasDir { // what was removed from the directory must not be in it again after a power cut that the exchange outlives
		if err := h.flush(unsyncedKeys{o.Key: true}); err != nil {
			return err
		}
	}
	old, err := h.stat(o.Old)
	if err != nil {
		return err
	}
	staged, err := h.stat(o.New)
	if err != nil {
		return err
	}
	switch {
	case old.exists(): // the file system exchanges nothing
		err = h.putDirBack(o, o.Old, !staged.exists())
	case staged.exists() && staged.dir() == wasDir:
		err = h.putDirBack(o, o.New, true)
	}
	if err != nil {
		return err
	}
	err = h.removeIf(o.New, foundFile.dir)
	if isNotEmpty(err) {
		err = h.rename(o.New, o.Key+".moved-aside-"+h.id)
	}
	return err
}

// putDirBack puts what is at another key in an operation's place. What is there takes the other key, or that of the staged file.
func (h hostOps) putDirBack(o *operation, from string, keep bool) error {
	if err := h.makeWay(o.Key); err != nil {
		return err
	}
	at, err := h.stat(o.Key)
	switch {
	case err != nil:
		return err
	case !at.exists():
	case from == o.New:
		return h.exchange(from, o.Key)
	case keep:
		err = h.rename(o.Key, o.New)
	default:
		err = h.moveAside(o.Key)
	}
	if err != nil {
		return err
	}
	return h.rename(from, o.Key)
}

// putBack renames a backup to where it was.
func (h hostOps) putBack(o *operation) error {
	old, err := h.stat(o.Old)
	if err != nil || !old.exists() {
		return err // it is back already
	}
	if err := h.makeWay(o.Key); err != nil {
		return err
	}
	at, err := h.stat(o.Key)
	if err == nil && at.dir() {
		err = h.moveAside(o.Key)
	}
	if err != nil {
		return err
	}
	err = h.rename(o.Old, o.Key)
	if errors.Is(err, fs.ErrPermission) && o.Kind == opRemove && at.file() {
		return nil // it is locked, and so could not be removed
	}
	return err
}

// makeWay makes sure that the directory of a key exists, even if it was removed or replaced since the update.
func (h hostOps) makeWay(key string) error {
	dir := parentKey(key)
	if dir == "" {
		return nil
	}
	if err := h.makeWay(dir); err != nil {
		return err
	}
	at, err := h.stat(dir)
	if err != nil || at.dir() {
		return err
	}
	if at.exists() {
		if err := h.moveAside(dir); err != nil {
			return err
		}
	}
	return h.mkdir(dir, fileAttrs{Mode: 0o755, UID: os.Geteuid(), GID: os.Getegid()})
}

func (h hostOps) moveAside(key string) error {
	return h.rename(key, key+".moved-aside-"+h.id)
}

func isNotEmpty(err error) bool {
	return errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrExist)
}
