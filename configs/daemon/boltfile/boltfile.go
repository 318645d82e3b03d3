// Package boltfile opens bbolt files as hub and core keep them: made whole or not at
// all, for their owner only, with damage told as an error that names the file.
//
// It knows nothing of what is in a file.
package boltfile

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/edgebus/edgebus/topics/resource"
)

// Options say which file, and how.
type Options struct {
	File
	Make     func(*bbolt.Tx) error // fills a new file; nil: the file must be there
	ReadOnly bool
	// LockTimeout is how long to wait for a process that has the file open.
	LockTimeout time.Duration
	// NoFreelistSync makes commits smaller, and opening slower: it reads the whole file.
	NoFreelistSync bool
}

// File names a file.
type File struct {
	Path   string
	Advice string // what to do when it is damaged
}

// damage is the error for a file that can't be trusted.
type damage struct {
	file File
	what error
}

func (d damage) Error() string {
	return fmt.Sprintf("the store's file %s is damaged: %v; %s", d.file.Path, d.what, d.file.Advice)
}

func (d damage) Unwrap() error { return d.what }

// Damaged makes an error of what is wrong with a file that can't be trusted.
func (f File) Damaged(what error) error {
	if errors.As(what, new(damage)) { // it says so
		return what
	}
	return damage{f, what}
}

// Safely makes damage of what bbolt panics about: it asserts what it reads, and a file
// that is shorter than it says faults.
func (f File) Safely(do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = f.Damaged(fmt.Errorf("%v", r))
		}
	}()
	return do()
}

// Open opens a file, or makes it.
func Open(o Options) (*bbolt.DB, error) {
	switch info, err := os.Stat(o.Path); {
	case errors.Is(err, os.ErrNotExist) && !o.ReadOnly && o.Make != nil:
		if err := makeFile(o); err != nil {
			return nil, fmt.Errorf("a new file for the store: %w", err)
		}
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("the store's file: %w", err)
	case err == nil && info.Size() == 0:
		return nil, o.Damaged(errors.New("it is empty"))
	}
	db, err := openWhole(o)
	if err == nil && !o.ReadOnly {
		if err = os.Chmod(o.Path, 0o600); err != nil { // it holds secrets
			_ = db.Close()
		}
	}
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, resource.Errorf(resource.Unavailable, "", "the store's file %s is open in another process", o.Path)
	case errors.Is(err, os.ErrPermission), errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.EROFS):
		return nil, fmt.Errorf("the store's file: %w", err)
	case err != nil:
		return nil, o.Damaged(err)
	}
	return db, nil
}

// makeFile makes a new file under another name, and gives it its own when all of it
// is on disk: a file that is empty, or has no beginning, is damaged.
func makeFile(o Options) error {
	if err := os.MkdirAll(filepath.Dir(o.Path), 0o700); err != nil {
		return fmt.Errorf("the store's directory: %w", err)
	}
	path := o.Path + ".new"
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	db, err := open(o, path)
	if err != nil {
		return err
	}
	if err := errors.Join(db.Update(o.Make), db.Close()); err != nil {
		return err
	}
	if err := os.Rename(path, o.Path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// openWhole opens a file when all of its pages have been looked at.
func openWhole(o Options) (*bbolt.DB, error) {
	look := o
	look.ReadOnly = true
	db, err := open(look, o.Path)
	if err != nil || o.ReadOnly {
		return db, err
	}
	if err := db.Close(); err != nil {
		return nil, err
	}
	return open(o, o.Path)
}

// open opens a file, and looks at its pages if that is all that is done with it.
func open(o Options, path string) (db *bbolt.DB, err error) {
	var file *os.File
	err = o.Safely(func() (err error) {
		db, err = bbolt.Open(path, 0o600, &bbolt.Options{
			Timeout:        o.LockTimeout,
			FreelistType:   bbolt.FreelistMapType,
			NoFreelistSync: o.NoFreelistSync,
			ReadOnly:       o.ReadOnly,
			// Room to grow in the address space, which costs nothing: bbolt lets go of the old
			// mapping before it asks for a larger one, and a disk that fails may not give it; and it
			// makes writers wait for it while somebody reads, as a backup does for long.
			InitialMmapSize: int(min(int64(16<<30), math.MaxInt>>3)),
			OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
				file, err = os.OpenFile(name, flag, mode)
				return file, err
			},
		})
		return err
	})
	if err == nil && o.ReadOnly {
		if err = checkPages(file, db.Info().PageSize); err != nil {
			_ = db.Close()
			return nil, err
		}
	}
	if err != nil {
		if file != nil {
			_ = file.Close()
		}
		return nil, err
	}
	db.AllocSize = 1 << 20 // what the file grows by, now that the mapping doesn't say it
	return db, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
