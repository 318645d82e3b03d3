// Package datadir makes a program's data directory, and sees to it that only one
// process uses it at a time: who comes second is told who is there.
//
// It never reads what is in the directory; by names alone it knows whose data is there.
package datadir

import (
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

// LockName is the file in the directory that the process using it holds locked.
const LockName = "lock"

// Dir is a data directory that no other process uses.
type Dir struct {
	Path string
	lock *os.File // nil where there is none to hold
	// What was there when it was claimed: the directory, and the lock.
	dir, held Kept
}

// Unfinished is what a restore leaves in a directory when it was interrupted.
const Unfinished = ".restore"

// Open makes the directory, if need be, and takes it for a program that works with
// what is in it.
func Open(path, program string) (*Dir, error) {
	d, err := Claim(path, program)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(path, Unfinished)); err == nil {
		_ = d.Close()
		return nil, fmt.Errorf("a restore into the data directory %s was not finished: repeat it, with --force", path)
	}
	if err := Refuse(path, program); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// markers are the names by which a directory tells whose data it holds.
func markers() map[string]string { return map[string]string{"cloudhub": "hub.db", "edgecore": "tree"} }

// Owners are the programs whose data a directory holds: one, unless somebody has mixed them up.
func Owners(path string) (programs []string) {
	marks := markers()
	for _, program := range slices.Sorted(maps.Keys(marks)) {
		if _, err := os.Stat(filepath.Join(path, marks[program])); err == nil {
			programs = append(programs, program)
		}
	}
	return programs
}

// Refuse fails if a directory holds data of another program than this one: neither would
// find its own in it, and begin anew.
func Refuse(path, program string) error {
	for _, owner := range Owners(path) {
		if owner != program {
			return fmt.Errorf("the data directory %s holds data of %s (%s): %s needs a directory of its own, see --data-dir",
				path, owner, filepath.Join(path, markers()[owner]), program)
		}
	}
	return nil
}

// Claim is Open for who doesn't mind what is in the directory.
func Claim(path, program string) (*Dir, error) {
	if err := Make(path); err != nil {
		return nil, explain(path, err)
	}
	lock, err := os.OpenFile(filepath.Join(path, LockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, explain(path, err)
	}
	if err := hold(lock, path); err != nil {
		return nil, err
	}
	_ = lock.Truncate(0) // a name of whoever is here is a courtesy
	_, _ = fmt.Fprintf(lock, "%s, process %d\n", program, os.Getpid())
	d := &Dir{Path: path, lock: lock}
	if d.dir, err = Keep(path); err == nil {
		d.held, err = Keep(filepath.Join(path, LockName))
	}
	if err != nil {
		_ = lock.Close()
		return nil, explain(path, err)
	}
	return d, nil
}

// Look takes a directory for somebody who only reads it, which may be on a disk that
// can't be written.
func Look(path string) (*Dir, error) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, explain(path, err)
	}
	lock, err := os.Open(filepath.Join(path, LockName))
	if errors.Is(err, os.ErrNotExist) {
		return &Dir{Path: path}, nil
	}
	if err != nil {
		return nil, explain(path, err)
	}
	if err := hold(lock, path); err != nil {
		return nil, err
	}
	return &Dir{Path: path, lock: lock}, nil
}

// Close lets others use it.
func (d *Dir) Close() error {
	if d.lock == nil {
		return nil
	}
	return d.lock.Close()
}

// hold locks the file or closes it.
func hold(lock *os.File, path string) error {
	err := flock(lock)
	if err == nil {
		return nil
	}
	defer lock.Close()
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return explain(path, err)
	}
	text, _ := io.ReadAll(io.LimitReader(lock, 200))
	holder := strings.TrimSpace(string(text))
	if holder == "" {
		holder = "another process"
	}
	return &InUse{path, holder}
}

// InUse is the error for a directory that another process uses.
type InUse struct{ Path, Holder string }

func (e *InUse) Error() string {
	return fmt.Sprintf("the data directory %s is in use by %s: stop it first, or give this one another directory with --data-dir", e.Path, e.Holder)
}

func explain(path string, err error) error {
	var advice string
	switch {
	case errors.Is(err, syscall.EROFS):
		advice = ": mount it writable, or choose another directory with --data-dir"
	case errors.Is(err, os.ErrPermission):
		advice = ": give it to the user that this program runs as, or choose another directory with --data-dir"
	case errors.Is(err, syscall.ENOSPC):
		advice = ": make room on that disk"
	}
	return fmt.Errorf("the data directory %s can't be used: %w%s", path, err, advice)
}

// Make makes a directory and those above it, and makes sure that they outlive a
// power cut.
func Make(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	parent := filepath.Dir(path)
	if parent != path {
		if err := Make(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return Sync(parent)
}

// Sync makes the names in a directory outlive a power cut.
func Sync(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Kept is a file, or a directory, that has to stay where it is while a program uses it.
type Kept struct {
	path string
	info os.FileInfo
}

// Keep takes note of what is at a path, which the program has just opened or made.
func Keep(path string) (Kept, error) {
	info, err := os.Stat(path)
	return Kept{path, info}, err
}

// InPlace says whether it was removed, moved or replaced: what is written to it now is not there
// at the next start.
func (k Kept) InPlace() error {
	now, err := os.Stat(k.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s was removed or moved while it was in use; %s", k.path, goneAdvice)
	case err == nil && !os.SameFile(k.info, now):
		return fmt.Errorf("%s was replaced while it was in use; %s", k.path, goneAdvice)
	}
	return nil // whatever else keeps it from being looked at, says nothing of it
}

const goneAdvice = "stop the program, put the data directory back as it was or restore it from a backup, and start the program again"

// checkEvery is how often a Guard looks.
const checkEvery = 250 * time.Millisecond

// Guard watches over a data directory that is in use.
type Guard struct {
	checks []func() error
	log    zerolog.Logger
	gone   atomic.Pointer[error]
}

// Guard makes a guard of the directory, and of what else the checks look at.
func (d *Dir) Guard(log zerolog.Logger, checks ...func() error) *Guard {
	return &Guard{checks: append([]func() error{d.InPlace}, checks...), log: log}
}

// InPlace says whether the directory was removed, moved or replaced, or its lock.
func (d *Dir) InPlace() error {
	if err := d.dir.InPlace(); err != nil {
		return err
	}
	return d.held.InPlace()
}

// Err says what is gone; nil: nothing.
func (g *Guard) Err() error {
	if p := g.gone.Load(); p != nil {
		return *p
	}
	return nil
}

// Run looks until ctx ends, and tells the log what is gone, once.
func (g *Guard) Run(ctx context.Context) error {
	tick := time.NewTicker(checkEvery)
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

func (g *Guard) look() {
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
