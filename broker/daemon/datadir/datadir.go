// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

// LockName is the file in the directory that the process holds locked.
const LockName = "lock"

// DownloadsDir is the directory in a core's data directory with what it can download again. It is in no backup.
const DownloadsDir = "downloads"

// HistoryDir is the directory with what the properties of devices were. It is in no backup: it is large, and hub and node both have it.
const HistoryDir = "history"

// Dir is a data directory that this process has locked.
type Dir struct {
	Path string
	lock *os.File // nil if there is no lock file
	// The directory and the lock as they were when it was locked.
	dir, held FileIdentity
}

// RestoreDir is what an interrupted restore leaves in a directory.
const RestoreDir = ".restore"

// Open makes the directory, if it does not exist, and locks it for a program that uses its data. It refuses a directory
// with data of another program, or in which a restore was interrupted.
func Open(path, program string) (*Dir, error) {
	d, err := Lock(path, program)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(path, RestoreDir)); err == nil {
		_ = d.Close()
		return nil, fmt.Errorf("a restore into the data directory %s was not finished: repeat it, with --force", path)
	}
	if err := RefuseOtherProgram(path, program); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// markerFiles are the files by which the data of each program is recognised.
func markerFiles() map[string]string {
	return map[string]string{"cloudhub": "log", "edgecore": "tree"}
}

// OwningPrograms are the programs whose data a directory holds: one at most, unless files were mixed up.
func OwningPrograms(path string) (programs []string) {
	marks := markerFiles()
	for _, program := range slices.Sorted(maps.Keys(marks)) {
		if _, err := os.Stat(filepath.Join(path, marks[program])); err == nil {
			programs = append(programs, program)
		}
	}
	return programs
}

// RefuseOtherProgram fails if a directory holds data of another program: this one would find none of its own, and begin with none.
func RefuseOtherProgram(path, program string) error {
	for _, owner := range OwningPrograms(path) {
		if owner != program {
			return fmt.Errorf("the data directory %s holds data of %s (%s): %s needs a directory of its own, see --data-dir",
				path, owner, filepath.Join(path, markerFiles()[owner]), program)
		}
	}
	return nil
}

// Lock is Open without looking at what is in the directory.
func Lock(path, program string) (*Dir, error) {
	if err := MakeDir(path); err != nil {
		return nil, explainError(path, err)
	}
	lock, err := os.OpenFile(filepath.Join(path, LockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, explainError(path, err)
	}
	if err := lockFile(lock, path); err != nil {
		return nil, err
	}
	_ = lock.Truncate(0) // for the error that the next process gets
	_, _ = fmt.Fprintf(lock, "%s, process %d\n", program, os.Getpid())
	d := &Dir{Path: path, lock: lock}
	if d.dir, err = IdentifyFile(path); err == nil {
		d.held, err = IdentifyFile(filepath.Join(path, LockName))
	}
	if err != nil {
		_ = lock.Close()
		return nil, explainError(path, err)
	}
	return d, nil
}

// OpenReadOnly locks a directory that is only read, also on a read-only disk.
func OpenReadOnly(path string) (*Dir, error) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, explainError(path, err)
	}
	lock, err := os.Open(filepath.Join(path, LockName))
	if errors.Is(err, os.ErrNotExist) {
		return &Dir{Path: path}, nil
	}
	if err != nil {
		return nil, explainError(path, err)
	}
	if err := lockFile(lock, path); err != nil {
		return nil, err
	}
	return &Dir{Path: path, lock: lock}, nil
}

// Close unlocks the directory.
func (d *Dir) Close() error {
	if d.lock == nil {
		return nil
	}
	return d.lock.Close()
}

// lockFile locks the file or closes it.
func lockFile(lock *os.File, path string) error {
	err := flock(lock)
	if err == nil {
		return nil
	}
	defer lock.Close()
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return explainError(path, err)
	}
	text, _ := io.ReadAll(io.LimitReader(lock, 200))
	return &InUse{path, cmp.Or(strings.TrimSpace(string(text)), "another process")}
}

// ExplainFull says of an error of a full disk which directory needs room.
func (d *Dir) ExplainFull(err error) error {
	if !IsFull(err) {
		return err
	}
	return explainError(d.Path, err)
}

// InUse is the error for a directory that another process uses.
type InUse struct{ Path, Holder string }

func (e *InUse) Error() string {
	return fmt.Sprintf("the data directory %s is in use by %s: stop it first, or give this one another directory with --data-dir", e.Path, e.Holder)
}

func explainError(path string, err error) error {
	var advice string
	switch {
	case errors.Is(err, syscall.EROFS):
		advice = ": mount it writable, or choose another directory with --data-dir"
	case errors.Is(err, os.ErrPermission):
		advice = ": give it to the user that this program runs as, or choose another directory with --data-dir"
	case IsFull(err):
		advice = ": make room on that disk"
	}
	return fmt.Errorf("the data directory %s can't be used: %w%s", path, err, advice)
}

// MakeDir makes a directory and those above it, and makes sure that they outlive a
// power cut.
func MakeDir(path string) error { return makeDir(path, SyncDir) }

func makeDir(path string, sync func(string) error) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	parent := filepath.Dir(path)
	if parent != path {
		if err := makeDir(parent, sync); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return sync(parent)
}

// SyncDir makes the names in a directory outlive a power cut.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// FileIdentity is a file or directory that must not be removed or replaced while a program uses it.
type FileIdentity struct {
	path string
	info os.FileInfo
}

// IdentifyFile notes which file is at a path. Call it just after the file was opened or made.
func IdentifyFile(path string) (FileIdentity, error) {
	info, err := os.Stat(path)
	return FileIdentity{path, info}, err
}

// CheckInPlace fails if the file was removed, moved or replaced: what is written to it is lost at the next start.
func (k FileIdentity) CheckInPlace() error {
	now, err := os.Stat(k.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s was removed or moved while it was in use; %s", k.path, removedAdvice)
	case err == nil && !os.SameFile(k.info, now):
		return fmt.Errorf("%s was replaced while it was in use; %s", k.path, removedAdvice)
	}
	return nil // any other error of Stat does not mean that it is gone
}

const removedAdvice = "stop the program, put the data directory back as it was or restore it from a backup, and start the program again"

// guardInterval is how often a DirGuard looks.
const guardInterval = 250 * time.Millisecond

// DirGuard checks again and again that a data directory in use is in place.
type DirGuard struct {
	checks []func() error
	log    zerolog.Logger
	gone   atomic.Pointer[error]
}

// Guard makes a DirGuard of the directory, with further checks.
func (d *Dir) Guard(log zerolog.Logger, checks ...func() error) *DirGuard {
	return &DirGuard{checks: append([]func() error{d.CheckInPlace}, checks...), log: log}
}

// CheckInPlace fails if the directory or its lock was removed, moved or replaced.
func (d *Dir) CheckInPlace() error {
	if err := d.dir.CheckInPlace(); err != nil {
		return err
	}
	return d.held.CheckInPlace()
}

// Err is what the last check found; nil: everything is in place.
func (g *DirGuard) Err() error {
	if p := g.gone.Load(); p != nil {
		return *p
	}
	return nil
}

// Run checks every 250 ms until ctx ends, and logs changes.
func (g *DirGuard) Run(ctx context.Context) error {
	tick := time.NewTicker(guardInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			g.look()
		}
	}
}

func (g *DirGuard) look() {
	var err error
	for _, check := range g.checks {
		if err = check(); err != nil {
			break
		}
	}
	switch was := g.Err(); {
	case err != nil && was == nil:
		g.log.Error().Err(err).Msg("the data directory is not what it was: nothing more is acknowledged")
	case err == nil && was != nil:
		g.log.Info().Msg("the data directory is what it was")
	}
	g.gone.Store(&err)
}
