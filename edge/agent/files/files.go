// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options say where a Store works.
type Options struct {
	// Dir is where the journal and the manifests are kept. It is made if it isn't there.
	Dir string
	// Root is the directory that all paths are below; "/" when empty. Tests give another one.
	Root string
	// Allowed are directories below which files may be changed, Forbidden those below which they may not, though they are
	// allowed; a file may be forbidden, too. Dir always is. An allowed directory may be a symbolic link, or be reached
	// through one: it is resolved once, by Open. Below it no link is followed.
	Allowed, Forbidden []string
	// Setuid lets files have the permissions setuid and setgid.
	Setuid bool
}

// Spec is a version of what is wanted.
type Spec struct {
	Version string
	Files   []resource.RenderedFile
	// Content opens a content that is a blob or a Secret's value. Others are in the file itself.
	Content func(resource.Content) (io.ReadCloser, error)
	// LeaveDrifted leaves files unchanged that are the same in the new version and the applied one, but were changed on the host.
	LeaveDrifted bool
}

// Error is why a version was not applied.
type Error struct {
	Reason string // as resource.FailedVersion has it
	Path   string // as the spec has it; empty: none in particular
	Err    error
}

func (e *Error) Error() string {
	if e.Path == "" {
		return e.Err.Error()
	}
	return e.Path + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

func failf(reason, path, format string, args ...any) *Error {
	return &Error{Reason: reason, Path: path, Err: fmt.Errorf(format, args...)}
}

// toWriteError is the Error of a system call. An obstacle in the path is an error of the spec, every other one an error of the host.
func toWriteError(path, doing string, err error) *Error {
	var b *blockedPath
	if errors.As(err, &b) {
		return &Error{Reason: resource.FailedPath, Path: path, Err: b}
	}
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = errno // the names of staged files say nothing to a reader
	}
	return failf(resource.FailedWrite, path, "%s: %w", doing, err)
}

// ChangeOp is what an update does to a path.
type ChangeOp string

// The operations, as resource.HookCondition names them.
const (
	Created ChangeOp = "created"
	Updated ChangeOp = "updated"
	Removed ChangeOp = "removed"
)

// Change is a path that an update changes.
type Change struct {
	Path string
	Op   ChangeOp
}

// Store changes files. Its methods may be called from several goroutines; each waits for the others.
type Store struct {
	mu             sync.Mutex
	o              Options
	rules          *pathRules
	host           *dirTree // Options.Root
	data           *dirTree // Options.Dir
	journal        journal
	applied        *manifest
	next           *manifest // of the update that is under way
	phaseUncertain bool      // whether the journal on disk says swapped already
	sums           map[string]cachedSum
}

// Open opens the data directory. Recover must be called before anything else.
func Open(o Options) (_ *Store, err error) {
	if o.Root == "" {
		o.Root = "/"
	}
	s := &Store{o: o, sums: map[string]cachedSum{}}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	if s.rules, err = newPathRules(&s.o); err != nil {
		return nil, err
	}
	if s.host, err = openDirTree(s.o.Root); err != nil {
		return nil, err
	}
	if s.data, err = openDirTree(s.o.Dir); err != nil {
		s.host.close()
		return nil, err
	}
	if err := s.load(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close ends the Store. An update that is under way stays as it is.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.host.close(), s.data.close())
}

// DamagedError is of a file of the Store that is not what was written, or is missing.
type DamagedError struct{ error }

// damaged says what to do about a file of the Store, of which there is no second one.
func (s *Store) damaged(name, format string, args ...any) error {
	return DamagedError{fmt.Errorf("%s %w. Move the directory %s away, and start the agent again: it applies its version of the spec anew, "+
		"takes files that are as the spec has them for the host's own, and knows nothing of what was there before: that is still beside them, as %s*.old",
		s.data.path(name), fmt.Errorf(format, args...), s.data.name, ownPrefix)}
}

// load reads the journal and the manifests that it names.
func (s *Store) load() error {
	text, err := s.readData(journalName)
	if isMissing(err) {
		s.journal, s.applied = journal{}, &manifest{}
		names, err := s.data.names("")
		if slices.ContainsFunc(names, isManifest) {
			return s.damaged(journalName, "is missing, and there are manifests of versions")
		}
		return err
	}
	if err != nil {
		return err
	}
	switch s.journal, err = decodeJournal(text); {
	case errors.As(err, new(datadir.FormatError)):
		return s.damaged(journalName, "%w", err)
	case err != nil:
		return s.damaged(journalName, "is damaged: %w", err)
	}
	if s.applied, err = s.readManifest(s.journal.Applied); err != nil {
		return err
	}
	if s.journal.Phase == phaseSwapped {
		s.next, err = s.readManifest(s.journal.Update.ID)
	}
	return err
}

func (s *Store) readManifest(id string) (*manifest, error) {
	if id == "" {
		return &manifest{}, nil
	}
	text, err := s.readData(manifestName(id))
	if isMissing(err) {
		return nil, s.damaged(manifestName(id), "is missing")
	}
	if err != nil {
		return nil, err
	}
	m, err := decodeManifest(text)
	if err != nil {
		return nil, s.damaged(manifestName(id), "is damaged: %w", err)
	}
	return m, nil
}

func (s *Store) readData(name string) ([]byte, error) {
	f, err := s.data.read(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// save makes a journal the one on disk. After an error either may be.
func (s *Store) save(j journal) error {
	j.Format = journalFormat
	text, err := json.Marshal(j)
	if err == nil {
		err = s.data.replace(journalName, text)
	}
	if err != nil {
		return toWriteError("", "writing the journal in "+s.o.Dir, err)
	}
	s.journal = j
	return nil
}

// Recovery is what Recover found and did.
type Recovery string

// What Recover finds.
const (
	// RecoveryClean: no update was under way.
	RecoveryClean Recovery = "clean"
	// RecoveryRolledBack: an update was being staged, swapped or rolled back; the old version is whole again.
	RecoveryRolledBack Recovery = "rolledBack"
	// RecoverySwapped: the new version is whole, but not committed. The caller goes on with hooks and health checks, and commits it
	// or rolls it back.
	RecoverySwapped Recovery = "swapped"
)

// Recover ends what was interrupted. It returns the version of the update that was under way, if there was one.
// After an error it can be called again.
func (s *Store) Recover() (Recovery, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.journal.Phase {
	case phaseIdle:
		_, err := s.cleanUp()
		return RecoveryClean, "", err
	case phaseSwapped:
		return RecoverySwapped, s.journal.Update.Version, nil
	}
	version := s.journal.Update.Version
	return RecoveryRolledBack, version, s.rollBack()
}

// Version is the one that is applied; empty: none is, or the Store knows nothing of it any more.
func (s *Store) Version() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applied.Version
}

// Changes are the paths that the update which is under way changes, in their order.
func (s *Store) Changes() []Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.journal.Update == nil {
		return nil
	}
	return changesOf(s.journal.Update.Ops)
}

func changesOf(ops []*operation) (changes []Change) {
	for _, o := range ops {
		if o.Change != "" {
			changes = append(changes, Change{o.Path, o.Change})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return changes
}

// Plan says what Stage and Swap would change. It changes nothing.
func (s *Store) Plan(ctx context.Context, want Spec) ([]Change, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.plan(ctx, want)
	if err != nil {
		return nil, err
	}
	return changesOf(p.ops), nil
}

// Stage verifies a version and writes its new contents to disk, beside their places. Nothing that is in use is changed. After an
// error there is no update.
func (s *Store) Stage(ctx context.Context, want Spec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.journal.Phase != phaseIdle {
		return s.outOfOrder("Stage")
	}
	if err := s.endCleanUp(); err != nil {
		return toWriteError("", "removing what earlier updates left", err)
	}
	p, err := s.plan(ctx, want)
	if err != nil {
		return err
	}
	return s.stagePlan(ctx, want, p)
}

func (s *Store) stagePlan(ctx context.Context, want Spec, p *updatePlan) error {
	if err := s.begin(p); err != nil {
		return err
	}
	if err := s.stage(ctx, want, p); err != nil {
		return s.abandon(err)
	}
	s.next = p.manifest
	return nil
}

// Restore is Stage for what is applied already: it puts back those of its files that are named, and leaves all others as they are.
func (s *Store) Restore(ctx context.Context, paths []string, content func(resource.Content) (io.ReadCloser, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.journal.Phase != phaseIdle {
		return s.outOfOrder("Restore")
	}
	if err := s.endCleanUp(); err != nil {
		return toWriteError("", "removing what earlier updates left", err)
	}
	p, err := s.planRestore(ctx, paths)
	if err != nil {
		return err
	}
	return s.stagePlan(ctx, Spec{Content: content}, p)
}

func (s *Store) outOfOrder(call string) error {
	return fmt.Errorf("%s in phase %q: an update is staged, swapped, and then committed or rolled back", call, s.journal.Phase)
}

// begin writes the manifest, and the journal of the phase staging.
func (s *Store) begin(p *updatePlan) error {
	var id [8]byte
	_, _ = rand.Read(id[:]) // crypto/rand never fails
	u := &journalUpdate{ID: hex.EncodeToString(id[:]), Version: p.manifest.Version, Ops: p.ops, Originals: p.originals, Dirs: p.dirs}
	p.nameOwnFiles(u.ID)
	text, err := json.Marshal(p.manifest)
	if err == nil {
		err = s.data.replace(manifestName(u.ID), text)
	}
	if err != nil {
		return toWriteError("", "writing the manifest in "+s.o.Dir, err)
	}
	return s.save(journal{Applied: s.journal.Applied, Phase: phaseStaging, Update: u})
}

// endCleanUp makes sure that what was cleaned up stays so, since the journal is going to forget it.
func (s *Store) endCleanUp() error {
	if _, err := s.cleanUp(); err != nil {
		return err
	}
	dirs := unsyncedKeys{}
	for _, key := range s.journal.Cleanup {
		dirs[parentKey(key)] = true
	}
	return s.host.flush(dirs)
}

// stage writes the new files.
func (s *Store) stage(ctx context.Context, want Spec, p *updatePlan) error {
	written := unsyncedKeys{}
	batch := len(p.ops) >= s.host.many
	for _, o := range p.ops {
		if o.New == "" {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.stageOne(ctx, want, o, !batch); err != nil {
			return err
		}
		if o.entry != nil && o.entry.Type == resource.FileRegular {
			written[o.New] = true
		}
	}
	if batch {
		if err := s.host.flush(written); err != nil {
			return toWriteError("", "syncing the new files", err)
		}
	}
	return nil
}

// Swap puts the staged files in their places and removes what the version no longer has. After an error the old version is whole
// again, unless the error says that this failed, too; then Recover is called.
func (s *Store) Swap() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.journal.Phase != phaseStaging {
		return s.outOfOrder("Swap")
	}
	if err := s.swap(); err != nil {
		return s.abandon(err)
	}
	return nil
}

func (s *Store) swap() error {
	j := s.journal
	dirs := unsyncedKeys{}
	for _, o := range j.Update.Ops {
		if err := s.hostOps().backUp(o); err != nil {
			return toWriteError(o.Path, "keeping what is there", err)
		}
		for _, key := range []string{o.New, o.Old} {
			if key != "" {
				dirs[parentKey(key)] = true
			}
		}
	}
	if err := s.host.flush(dirs); err != nil {
		return toWriteError("", "syncing directories", err)
	}
	j.Phase = phaseSwapping
	if err := s.save(j); err != nil {
		return err
	}
	for _, o := range j.Update.Ops {
		if err := s.hostOps().apply(o); err != nil {
			return toWriteError(o.Path, "putting the new version in its place", err)
		}
	}
	if err := s.host.flush(keysOf(j.Update.Ops)); err != nil {
		return toWriteError("", "syncing directories", err)
	}
	j.Phase = phaseSwapped
	s.phaseUncertain = true
	return s.save(j)
}

// Commit makes the swapped version the applied one. It returns what it left though no version has it any more: directories that
// have others' files in them. After an error it can be called again.
func (s *Store) Commit() (left []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.journal.Phase != phaseSwapped {
		return nil, s.outOfOrder("Commit")
	}
	u := s.journal.Update
	next := journal{Applied: u.ID, Cleanup: u.Originals, Dirs: u.Dirs}
	for _, o := range u.Ops {
		if o.New != "" { // of an exchange, or a name of a file that had its place already
			next.Cleanup = append(next.Cleanup, o.New)
		}
		if o.Old != "" && !o.Original {
			next.Cleanup = append(next.Cleanup, o.Old)
		}
	}
	if err := s.save(next); err != nil {
		return nil, err
	}
	s.applied, s.next = s.next, nil
	left, _ = s.cleanUp() // what fails is done again by the next Stage or Recover
	return left, nil
}

// RollBack undoes an update that is staged or swapped. After an error Recover is called.
func (s *Store) RollBack() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.journal.Phase == phaseIdle {
		return s.outOfOrder("RollBack")
	}
	return s.rollBack()
}

// abandon rolls back what failed, and returns why it failed.
func (s *Store) abandon(err error) error {
	if back := s.rollBack(); back != nil {
		return fmt.Errorf("%w; it could not be rolled back: %w", err, back)
	}
	return err
}

func (s *Store) rollBack() error {
	j := s.journal
	if j.Phase != phaseStaging {
		if err := s.undoAll(j); err != nil {
			return err
		}
	}
	next := journal{Applied: j.Applied}
	for _, o := range j.Update.Ops {
		for _, key := range []string{o.New, o.Old} {
			if key != "" {
				next.Cleanup = append(next.Cleanup, key)
			}
		}
	}
	// What was staged goes before the journal is written, which needs room on a disk that may be full.
	if err := s.removeOwn(next.Cleanup); err != nil {
		return err
	}
	if err := s.save(next); err != nil {
		return err
	}
	s.next = nil
	_, _ = s.cleanUp() // what fails is done again by the next Stage or Recover
	return nil
}

func (s *Store) undoAll(j journal) error {
	if j.Phase == phaseSwapped || s.phaseUncertain { // else the journal says already that this is to be rolled back
		j.Phase = phaseRollingBack
		if err := s.save(j); err != nil {
			return err
		}
		s.phaseUncertain = false
	}
	for _, o := range slices.Backward(j.Update.Ops) {
		if err := s.hostOps().undo(o); err != nil {
			return toWriteError(o.Path, "putting the old version back", err)
		}
	}
	if err := s.host.flush(keysOf(j.Update.Ops)); err != nil {
		return toWriteError("", "syncing directories", err)
	}
	return nil
}

// cleanUp removes what ended updates left. It can be done again at any time, but for the directories: so these are forgotten.
func (s *Store) cleanUp() (left []string, err error) {
	if err := s.removeOwn(s.journal.Cleanup); err != nil {
		return nil, err
	}
	changed := unsyncedKeys{}
	for _, key := range s.journal.Dirs {
		switch err := s.host.removeIf(key, foundFile.dir); {
		case isNotEmpty(err), errors.Is(err, syscall.EBUSY), errors.Is(err, fs.ErrPermission):
			left = append(left, "/"+key)
		case err != nil:
			return left, toWriteError("/"+key, "removing a directory that is no longer needed", err)
		}
		changed[parentKey(key)] = true
	}
	if len(changed) > 0 {
		if err := s.host.flush(changed); err != nil {
			return left, toWriteError("", "syncing directories", err)
		}
		next := s.journal
		next.Dirs = nil
		if err := s.save(next); err != nil {
			return left, err
		}
	}
	return left, s.removeManifests()
}

// removeOwn removes files that updates made for themselves.
func (s *Store) removeOwn(keys []string) error {
	for _, key := range keys {
		err := s.host.remove(key)
		if isNotEmpty(err) { // a directory in which somebody has put files since it was replaced
			err = s.host.rename(key, key+".moved-aside")
		}
		if err != nil {
			return toWriteError("/"+key, "removing what is no longer needed", err)
		}
	}
	return nil
}

// removeManifests removes those that the journal doesn't name.
func (s *Store) removeManifests() error {
	names, err := s.data.names("")
	if err != nil {
		return err
	}
	for _, name := range names {
		if isManifest(name) && name != manifestName(s.journal.Applied) {
			if err := s.data.remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}
