// Package files brings a list of a host's files, directories and links to what a rendered spec says, whole or not at all: after a
// kill or a power cut at any moment, Recover makes the old version or the new one of what is there.
//
// While it is being swapped, and between a kill and the next Recover, the host has files of both: each file is that of one version,
// whole, and no path that both versions have is ever missing.
//
// It never follows a symbolic link, and changes nothing outside the allowed directories but files of its own beside those that it
// changes (.edgebus-…). It runs no commands, and fetches nothing.
//
// An update is Stage, Swap, and then Commit or RollBack. Stage writes the new contents beside their places, on the same file system.
// Swap keeps what is there under a second name and renames each new file into its place. Until Commit everything can be rolled
// back, also after a restart in between. Each phase is in the journal, synced, before it begins (journal.go).
//
// What was there before a spec named it is kept, beside it, and put back when no spec names it any more. A directory is removed
// when no spec needs it any more, if an update made it and it is empty. A file that is replaced hands its extended attributes on,
// SELinux's label among them, those that belong to its content excepted (capabilities, IMA); a new file has the label that the
// kernel gives to what is made in its directory. ACLs are extended attributes.
//
// The caller holds the lock on the data directory: there is one Store for it at a time.
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
	allowed        []allowedRoot
	denied         []string // keys
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
	if err := s.resolveRoots(); err != nil {
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
	if s.journal, err = decodeJournal(text); err != nil {
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

func (s *Store) stageOne(ctx context.Context, want Spec, o *operation, sync bool) error {
	switch {
	case o.Attrs != nil:
		if err := s.host.mkdir(o.New, *o.Attrs); err != nil {
			return toWriteError(o.Path, "making the new directory", err)
		}
		return nil
	case o.from != "":
		if err := s.duplicate(o.from, o.New); err != nil {
			return toWriteError(o.Path, "restoring the former file", err)
		}
		return nil
	case o.entry.Type == resource.FileLink:
		if err := s.host.symlink(o.entry.Target, o.New, o.entry.Attrs); err != nil {
			return toWriteError(o.Path, "making the link", err)
		}
		return nil
	}
	content, err := want.open(o.entry.RenderedFile)
	if err != nil {
		return err
	}
	defer content.Close()
	return s.write(ctx, o, content, sync)
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
		if err := s.backUp(o); err != nil {
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
		if err := s.apply(o); err != nil {
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
func (s *Store) backUp(o *operation) error {
	if o.Old == "" || o.Kind == opExchange {
		return nil
	}
	at, err := s.host.stat(o.Key)
	var b *blockedPath
	if errors.As(err, &b) {
		err = nil // a file of the old version, that is removed before
	}
	if err != nil || !at.file() {
		return err
	}
	o.Backup = true
	if o.Kind == opAdopt {
		return s.copy(o.Key, o.Old)
	}
	return s.duplicate(o.Key, o.Old)
}

// duplicate gives a file or link a second name, or copies it where a file system has no such names.
func (s *Store) duplicate(key, other string) error {
	err := s.host.link(key, other)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.EMLINK) || errors.Is(err, errors.ErrUnsupported) {
		return s.copy(key, other)
	}
	return err
}

func (s *Store) copy(key, other string) error {
	from, err := s.host.stat(key)
	if err != nil {
		return err
	}
	if from.link() {
		return s.host.symlink(from.target, other, from.fileAttrs)
	}
	r, err := s.host.read(key)
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := s.host.create(other)
	if err != nil {
		return err
	}
	err = f.copyFrom(r)
	if err == nil {
		err = f.setAttrs(from.fileAttrs)
	}
	if err == nil { // after the owner, whose change takes capabilities away
		err = f.keepXattrs(r, contentCopied)
	}
	if err == nil {
		err = f.sync()
	}
	return errors.Join(err, f.Close())
}

// apply does an operation.
func (s *Store) apply(o *operation) error {
	switch o.Kind {
	case opRemove, opRmdir:
		return s.host.remove(o.Key)
	case opMkdir:
		return s.host.mkdir(o.Key, *o.Attrs)
	case opAttrs:
		return s.host.setAttrs(o.Key, *o.Attrs)
	case opWrite:
		return s.host.rename(o.New, o.Key)
	case opExchange:
		err := s.host.exchange(o.New, o.Key)
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.ENOTSUP) || errors.Is(err, errors.ErrUnsupported) {
			if err = s.host.rename(o.Key, o.Old); err == nil {
				err = s.host.rename(o.New, o.Key)
			}
		}
		return err
	}
	return nil
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
		if err := s.undo(o); err != nil {
			return toWriteError(o.Path, "putting the old version back", err)
		}
	}
	if err := s.host.flush(keysOf(j.Update.Ops)); err != nil {
		return toWriteError("", "syncing directories", err)
	}
	return nil
}

// undo undoes an operation that may have been done, or undone already.
func (s *Store) undo(o *operation) error {
	switch o.Kind {
	case opWrite:
		staged, err := s.host.stat(o.New)
		if err != nil || staged.exists() {
			return err // it is not in its place
		}
		if o.Backup {
			return s.putBack(o)
		}
		return s.removeIf(o.Key, foundFile.file)
	case opExchange:
		return s.undoExchange(o)
	case opRemove:
		if o.Backup {
			return s.putBack(o)
		}
	case opMkdir:
		err := s.removeIf(o.Key, foundFile.dir)
		if isNotEmpty(err) {
			return nil // somebody put files there
		}
		return err
	case opRmdir:
		if err := s.makeWay(o.Key); err != nil {
			return err
		}
		at, err := s.host.stat(o.Key)
		if err == nil && at.exists() && !at.dir() {
			err = s.moveAside(o.Key)
		}
		if err != nil {
			return err
		}
		return s.host.mkdirAs(o.Key, *o.AttrsBefore)
	case opAttrs:
		at, err := s.host.stat(o.Key)
		var b *blockedPath
		if errors.As(err, &b) || err == nil && !at.dir() && !at.regular() {
			return nil // somebody removed it
		}
		if err != nil {
			return err
		}
		return s.host.setAttrs(o.Key, *o.AttrsBefore)
	}
	return nil
}

// undoExchange has the former file or directory in its place again. A directory that was made and has others' files is kept beside it.
func (s *Store) undoExchange(o *operation) error {
	wasDir := o.Attrs == nil
	if !wasDir { // what was removed from the directory must not be in it again after a power cut that the exchange outlives
		if err := s.host.flush(unsyncedKeys{o.Key: true}); err != nil {
			return err
		}
	}
	old, err := s.host.stat(o.Old)
	if err != nil {
		return err
	}
	staged, err := s.host.stat(o.New)
	if err != nil {
		return err
	}
	switch {
	case old.exists(): // the file system exchanges nothing
		err = s.putDirBack(o, o.Old, !staged.exists())
	case staged.exists() && staged.dir() == wasDir:
		err = s.putDirBack(o, o.New, true)
	}
	if err != nil {
		return err
	}
	err = s.removeIf(o.New, foundFile.dir)
	if isNotEmpty(err) {
		err = s.host.rename(o.New, o.Key+".moved-aside-"+s.journal.Update.ID)
	}
	return err
}

// putDirBack puts what is at another key in an operation's place. What is there takes the other key, or that of the staged file.
func (s *Store) putDirBack(o *operation, from string, keep bool) error {
	if err := s.makeWay(o.Key); err != nil {
		return err
	}
	at, err := s.host.stat(o.Key)
	switch {
	case err != nil:
		return err
	case !at.exists():
	case from == o.New:
		return s.host.exchange(from, o.Key)
	case keep:
		err = s.host.rename(o.Key, o.New)
	default:
		err = s.moveAside(o.Key)
	}
	if err != nil {
		return err
	}
	return s.host.rename(from, o.Key)
}

func (s *Store) removeIf(key string, is func(foundFile) bool) error {
	at, err := s.host.stat(key)
	var b *blockedPath
	if errors.As(err, &b) || err == nil && !is(at) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.host.remove(key)
}

func isNotEmpty(err error) bool {
	return errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrExist)
}

// putBack renames a backup to where it was.
func (s *Store) putBack(o *operation) error {
	old, err := s.host.stat(o.Old)
	if err != nil || !old.exists() {
		return err // it is back already
	}
	if err := s.makeWay(o.Key); err != nil {
		return err
	}
	at, err := s.host.stat(o.Key)
	if err == nil && at.dir() {
		err = s.moveAside(o.Key)
	}
	if err != nil {
		return err
	}
	err = s.host.rename(o.Old, o.Key)
	if errors.Is(err, fs.ErrPermission) && o.Kind == opRemove && at.file() {
		return nil // it is locked, and so could not be removed
	}
	return err
}

// makeWay makes sure that the directory of a key exists, even if it was removed or replaced since the update.
func (s *Store) makeWay(key string) error {
	dir := parentKey(key)
	if dir == "" {
		return nil
	}
	if err := s.makeWay(dir); err != nil {
		return err
	}
	at, err := s.host.stat(dir)
	if err != nil || at.dir() {
		return err
	}
	if at.exists() {
		if err := s.moveAside(dir); err != nil {
			return err
		}
	}
	return s.host.mkdir(dir, fileAttrs{Mode: 0o755, UID: os.Geteuid(), GID: os.Getegid()})
}

func (s *Store) moveAside(key string) error {
	return s.host.rename(key, key+".moved-aside-"+s.journal.Update.ID)
}

// cleanUp removes what ended updates left. It can be done again at any time, but for the directories: so these are forgotten.
func (s *Store) cleanUp() (left []string, err error) {
	if err := s.removeOwn(s.journal.Cleanup); err != nil {
		return nil, err
	}
	changed := unsyncedKeys{}
	for _, key := range s.journal.Dirs {
		switch err := s.removeIf(key, foundFile.dir); {
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
