package files

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/user"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// The limits of a spec.
const (
	MaxFiles  = 16 << 10
	maxPath   = 4095
	maxName   = 255
	maxTarget = 4095
	maxSecret = 1 << 20
	// reservedSpace is what an update leaves free of a file system, in bytes.
	reservedSpace = 1 << 20
)

// An allowedRoot is a directory below which files may be changed.
type allowedRoot struct {
	path string // as configured
	key  string // what it is resolved to
}

// resolveRoots resolves the symbolic links on the way to the data directory, the root, and what is allowed and forbidden.
func (s *Store) resolveRoots() (err error) {
	if s.o.Dir, err = resolvePath(s.o.Dir); err != nil {
		return err
	}
	if s.o.Root, err = resolvePath(s.o.Root); err != nil {
		return err
	}
	for _, dir := range s.o.Allowed {
		if !path.IsAbs(dir) || path.Clean(dir) != dir {
			return fmt.Errorf("allowed directory %q: must be absolute, without '..', '//' and a '/' at its end", dir)
		}
		key, ok, err := s.resolveKey(filepath.Join(s.o.Root, dir))
		if err != nil {
			return fmt.Errorf("allowed directory %s: %w", dir, err)
		}
		if !ok {
			return fmt.Errorf("allowed directory %s: leads out of %s", dir, s.o.Root)
		}
		s.allowed = append(s.allowed, allowedRoot{dir, key})
	}
	slices.SortFunc(s.allowed, func(a, b allowedRoot) int { return cmp.Compare(len(b.path), len(a.path)) })
	forbidden := []string{s.o.Dir}
	for _, p := range s.o.Forbidden {
		if !path.IsAbs(p) || path.Clean(p) != p {
			return fmt.Errorf("forbidden path %q: must be absolute, without '..', '//' and a '/' at its end", p)
		}
		forbidden = append(forbidden, filepath.Join(s.o.Root, p))
	}
	for _, p := range forbidden {
		key, ok, err := s.resolveKey(p)
		if err != nil {
			return fmt.Errorf("forbidden path %s: %w", p, err)
		}
		if ok {
			s.denied = append(s.denied, key)
		}
	}
	return nil
}

// resolveKey is the key of a path, if that is below the root.
func (s *Store) resolveKey(p string) (key string, ok bool, err error) {
	p, err = resolvePath(p)
	if err != nil {
		return "", false, err
	}
	rel, err := filepath.Rel(s.o.Root, p)
	if err != nil || !filepath.IsLocal(rel) {
		return "", false, nil
	}
	return strings.TrimPrefix(filepath.ToSlash(rel), "."), true, nil
}

// resolvePath follows the symbolic links of a path, of which the end may be missing.
func resolvePath(p string) (string, error) {
	p, err := filepath.Abs(p)
	if err != nil {
		return "", err
	}
	whole, err := filepath.EvalSymlinks(p)
	if !isMissing(err) || filepath.Dir(p) == p {
		return whole, err
	}
	if _, err := os.Lstat(p); err == nil {
		return "", fmt.Errorf("%s is a symbolic link to what isn't there", p)
	}
	dir, err := resolvePath(filepath.Dir(p))
	return filepath.Join(dir, filepath.Base(p)), err
}

// isWithin is whether a key or path is another or below it.
func isWithin(p, dir string) bool {
	return p == dir || dir == "" || strings.HasPrefix(p, dir+"/")
}

// keyOf is the key of a path of a spec.
func (s *Store) keyOf(p string) (string, error) {
	i := slices.IndexFunc(s.allowed, func(a allowedRoot) bool { return p != a.path && (a.path == "/" || isWithin(p, a.path)) })
	if i < 0 {
		return "", failf(resource.FailedPath, p, "is not below a directory that the node allows: %s", s.allowedText())
	}
	root := s.allowed[i]
	key := path.Join(root.key, strings.TrimPrefix(p, root.path))
	for _, denied := range s.denied {
		if isWithin(key, denied) || isWithin(denied, key) {
			return "", failf(resource.FailedPath, p, "is forbidden on the node: /%s", denied)
		}
	}
	if strings.HasPrefix(path.Base(key), ownPrefix) {
		return "", failf(resource.FailedPath, p, "names that begin with %s are the agent's own", ownPrefix)
	}
	return key, nil
}

func (s *Store) allowedText() string {
	var names []string
	for _, a := range s.allowed {
		names = append(names, a.path)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// updatePlan is what brings the host to a version.
type updatePlan struct {
	manifest  *manifest
	ops       []*operation
	dirs      []string        // to be removed after the commit
	originals []string        // of no use after it
	replaced  map[string]bool // directories in whose places files go
	anchors   map[string]string
}

// plan compares a version with what is applied and what is on disk.
func (s *Store) plan(ctx context.Context, want Spec) (*updatePlan, error) {
	entries, err := s.check(ctx, want)
	if err != nil {
		return nil, err
	}
	p := s.planner(ctx, want.Version, entries)
	p.leaveDrifted = want.LeaveDrifted
	if err := p.build(); err != nil {
		return nil, err
	}
	return p.updatePlan, s.checkSpace(p.updatePlan)
}

func (s *Store) planner(ctx context.Context, version string, entries []*manifestEntry) *updatePlanner {
	p := &updatePlanner{Store: s, ctx: ctx, hosts: map[string]bool{}, updatePlan: &updatePlan{
		manifest: &manifest{Version: version, Entries: entries}, replaced: map[string]bool{}, anchors: map[string]string{},
	}}
	p.manifest.index()
	return p
}

// planRestore plans that some paths are as the applied version has them, and what is above them.
func (s *Store) planRestore(ctx context.Context, paths []string) (*updatePlan, error) {
	var entries []*manifestEntry
	for _, e := range s.applied.Entries {
		if !e.Implicit {
			same := *e
			entries = append(entries, &same)
		}
	}
	p := s.planner(ctx, s.applied.Version, entries)
	for _, e := range entries {
		if e.Unmanaged || !slices.Contains(paths, e.Path) {
			continue
		}
		if err := p.parents(e); err != nil {
			return nil, err
		}
		if err := p.planEntry(e); err != nil {
			return nil, err
		}
	}
	for _, e := range s.applied.Entries {
		if e.Implicit && p.manifest.byKey[e.Key] == nil {
			p.manifest.Entries = append(p.manifest.Entries, e)
		}
	}
	p.order()
	p.manifest.index()
	return p.updatePlan, s.checkSpace(p.updatePlan)
}

// check checks a spec's entries, and finds their keys, owners and digests.
func (s *Store) check(ctx context.Context, want Spec) ([]*manifestEntry, error) {
	if len(want.Files) > MaxFiles {
		return nil, failf(resource.FailedInvalid, "", "has %d files; at most %d are allowed", len(want.Files), MaxFiles)
	}
	byKey := make(map[string]*manifestEntry, len(want.Files))
	entries := make([]*manifestEntry, 0, len(want.Files))
	owners := ownerIDs{}
	for _, f := range want.Files {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		e, err := s.checkFile(f, owners)
		if err != nil {
			return nil, err
		}
		if same := byKey[e.Key]; same != nil {
			return nil, failf(resource.FailedInvalid, f.Path, "is there twice: it is the same file as %s", same.Path)
		}
		byKey[e.Key] = e
		if f.Type == resource.FileRegular {
			if e.Sum, e.Size, err = want.sum(f); err != nil {
				return nil, err
			}
		}
		entries = append(entries, e)
	}
	for _, e := range entries {
		for dir := parentKey(e.Key); dir != ""; dir = parentKey(dir) {
			if above := byKey[dir]; above != nil && !above.dir() {
				return nil, failf(resource.FailedInvalid, e.Path, "is below %s, which is a %s", above.Path, above.Type)
			}
		}
	}
	return entries, nil
}

func (s *Store) checkFile(f resource.RenderedFile, owners ownerIDs) (*manifestEntry, error) {
	if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || len(f.Path) > maxPath || strings.ContainsRune(f.Path, 0) {
		return nil, failf(resource.FailedInvalid, f.Path, "must be absolute, without '..', '//', NUL and a '/' at its end, and have at most %d bytes", maxPath)
	}
	if len(path.Base(f.Path)) > maxName {
		return nil, failf(resource.FailedInvalid, f.Path, "a name must have at most %d bytes", maxName)
	}
	key, err := s.keyOf(f.Path)
	if err != nil {
		return nil, err
	}
	e := &manifestEntry{RenderedFile: f, Key: key}
	if err := e.checkType(); err != nil {
		return nil, err
	}
	if e.Attrs.Mode, err = s.mode(f); err != nil {
		return nil, err
	}
	if e.Attrs.UID, err = owners.id("user", f.User, f.Path); err != nil {
		return nil, err
	}
	if e.Attrs.GID, err = owners.id("group", f.Group, f.Path); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *manifestEntry) checkType() error {
	c := e.Content
	set := 0
	for _, is := range []bool{c.Text != "", len(c.Base64) > 0, c.Digest != "", c.Secret != nil} {
		if is {
			set++
		}
	}
	switch {
	case e.Type != resource.FileRegular && e.Type != resource.FileDirectory && e.Type != resource.FileLink:
		return failf(resource.FailedInvalid, e.Path, "type: %q must be file, directory or link", e.Type)
	case set > 1:
		return failf(resource.FailedInvalid, e.Path, "has more than one content")
	case set > 0 && e.Type != resource.FileRegular:
		return failf(resource.FailedInvalid, e.Path, "a %s has no content", e.Type)
	case e.Type == resource.FileLink && (e.Target == "" || len(e.Target) > maxTarget || strings.ContainsRune(e.Target, 0)):
		return failf(resource.FailedInvalid, e.Path, "target: is required for a link, without NUL and at most %d bytes long", maxTarget)
	case e.Type != resource.FileLink && e.Target != "":
		return failf(resource.FailedInvalid, e.Path, "target: belongs to a link only")
	case c.Digest != "" && !validDigest(c.Digest):
		return failf(resource.FailedInvalid, e.Path, "digest: must be sha256: and 64 digits in hex")
	case c.Size < 0:
		return failf(resource.FailedInvalid, e.Path, "size: %d must not be negative", c.Size)
	}
	return nil
}

func validDigest(d string) bool {
	sum, ok := strings.CutPrefix(d, "sha256:")
	b, err := hex.DecodeString(sum)
	return ok && err == nil && len(b) == sha256.Size && sum == strings.ToLower(sum)
}

// mode are a file's permissions: 0644 for a file and 0755 for a directory, if the spec has none.
func (s *Store) mode(f resource.RenderedFile) (uint32, error) {
	switch {
	case f.Type == resource.FileLink:
		return 0, nil
	case f.Mode == "" && f.Type == resource.FileDirectory:
		return 0o755, nil
	case f.Mode == "":
		return 0o644, nil
	}
	m, err := strconv.ParseUint(f.Mode, 8, 32)
	if err != nil || m > 0o7777 {
		return 0, failf(resource.FailedInvalid, f.Path, "mode: %q must be octal, from 0 to 7777", f.Mode)
	}
	if f.Type == resource.FileRegular && m&0o6000 != 0 && !s.o.Setuid {
		return 0, failf(resource.FailedPath, f.Path, "mode: %s has setuid or setgid, which the node doesn't allow", f.Mode)
	}
	return uint32(m), nil
}

// ownerIDs are users and groups that were looked up.
type ownerIDs map[string]int

// id is the number of a user or group. Without a name it is root, or the agent's own user, since only root can change owners.
func (o ownerIDs) id(kind, name, path string) (int, error) {
	if name == "" {
		if kind == "user" {
			return os.Geteuid(), nil
		}
		return os.Getegid(), nil
	}
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	if n, ok := o[kind+name]; ok {
		return n, nil
	}
	var text string
	var err error
	if kind == "user" {
		var u *user.User
		if u, err = user.Lookup(name); err == nil {
			text = u.Uid
		}
	} else {
		var g *user.Group
		if g, err = user.LookupGroup(name); err == nil {
			text = g.Gid
		}
	}
	n, bad := strconv.Atoi(text)
	if err != nil || bad != nil {
		return 0, failf(resource.FailedInvalid, path, "%s: the host has no %s %q", kind, kind, name)
	}
	o[kind+name] = n
	return n, nil
}

// sum is the SHA-256 of a file's content, and its size as far as it is known.
func (w Spec) sum(f resource.RenderedFile) (string, int64, error) {
	switch {
	case f.Digest != "":
		return strings.TrimPrefix(f.Digest, "sha256:"), f.Size, nil
	case f.Secret == nil:
		text := inlineContent(f.Content)
		sum := sha256.Sum256(text)
		return hex.EncodeToString(sum[:]), 0, nil
	}
	r, err := w.open(f)
	if err != nil {
		return "", 0, err
	}
	defer r.Close()
	hash := sha256.New()
	n, err := io.Copy(hash, io.LimitReader(r, maxSecret+1))
	if err == nil && n > maxSecret {
		err = fmt.Errorf("has more than %d bytes", maxSecret)
	}
	if err != nil {
		return "", 0, &Error{Reason: resource.FailedContent, Path: f.Path, Err: err}
	}
	return hex.EncodeToString(hash.Sum(nil)), 0, nil
}

func inlineContent(c resource.Content) []byte {
	if len(c.Base64) > 0 {
		return c.Base64
	}
	return []byte(c.Text)
}

// open opens a file's content.
func (w Spec) open(f resource.RenderedFile) (io.ReadCloser, error) {
	if f.Digest == "" && f.Secret == nil {
		return io.NopCloser(bytes.NewReader(inlineContent(f.Content))), nil
	}
	if w.Content == nil {
		return nil, failf(resource.FailedContent, f.Path, "nothing supplies its content")
	}
	r, err := w.Content(f.Content)
	if err != nil {
		return nil, &Error{Reason: resource.FailedContent, Path: f.Path, Err: err}
	}
	return r, nil
}

// write stages a regular file.
func (s *Store) write(ctx context.Context, o *operation, content io.Reader, sync bool) error {
	f, err := s.host.create(o.New)
	if err != nil {
		return toWriteError(o.Path, "making the new file", err)
	}
	if err := s.fill(ctx, f, o, content, sync); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func (s *Store) fill(ctx context.Context, f *newFile, o *operation, content io.Reader, sync bool) error {
	e := o.entry
	hash := sha256.New()
	in := &contentReader{ctx: ctx, r: content}
	n, err := io.Copy(f, io.TeeReader(in, hash))
	if in.err != nil {
		return &Error{Reason: resource.FailedContent, Path: o.Path, Err: in.err}
	}
	if err != nil {
		return toWriteError(o.Path, "writing the new content", err)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != e.Sum {
		return failf(resource.FailedContent, o.Path, "the content that came has %d bytes and the digest sha256:%s; sha256:%s is wanted", n, got, e.Sum)
	}
	if old, err := s.host.read(o.Key); err == nil {
		err = f.keepXattrs(old, contentReplaced)
		old.Close()
		if err != nil {
			return toWriteError(o.Path, "keeping extended attributes", err)
		}
	}
	if err := f.setAttrs(e.Attrs); err != nil {
		return toWriteError(o.Path, "setting owner and mode", err)
	}
	if sync {
		if err := f.sync(); err != nil {
			return toWriteError(o.Path, "syncing the new content", err)
		}
	}
	return nil
}

// contentReader tells an error of the content from one of the disk.
type contentReader struct {
	ctx context.Context
	r   io.Reader
	err error
}

func (s *contentReader) Read(p []byte) (int, error) {
	if s.err = s.ctx.Err(); s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// checkSpace checks that the new files fit.
func (s *Store) checkSpace(p *updatePlan) error {
	need := map[uint64]int64{}
	for _, o := range p.ops {
		size := o.copied
		if o.entry != nil {
			size = min(o.entry.Size, 1<<60) + int64(len(inlineContent(o.entry.Content)))
		}
		if size == 0 {
			continue
		}
		dir, err := s.host.openAny(p.anchors[o.Key])
		if err != nil {
			return toWriteError(o.Path, "looking for room", err)
		}
		room, device, ok := spaceOf(dir)
		dir.Close()
		if need[device] += size; ok && uint64(need[device])+reservedSpace > room {
			return failf(resource.FailedWrite, o.Path, "no space left on the file system: %d bytes are free, and %d are needed so far", room, uint64(need[device])+reservedSpace)
		}
	}
	return nil
}

func spaceOf(dir *os.File) (room, device uint64, ok bool) {
	info, err := dir.Stat()
	if err != nil {
		return 0, 0, false
	}
	device, ok = deviceOf(info)
	if !ok {
		return 0, 0, false
	}
	room, ok = free(dir)
	return room, device, ok
}

// updatePlanner makes a plan.
type updatePlanner struct {
	*Store
	*updatePlan
	ctx          context.Context
	leaveDrifted bool
	hosts        map[string]bool // directories that are the host's own
}

func (p *updatePlanner) build() error {
	for _, e := range slices.Clone(p.manifest.Entries) {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		if err := p.parents(e); err != nil {
			return err
		}
		if err := p.planEntry(e); err != nil {
			return err
		}
	}
	for _, old := range p.applied.Entries {
		if err := p.planDropped(old); err != nil {
			return err
		}
	}
	if err := p.replaceDirs(); err != nil {
		return err
	}
	p.order()
	return nil
}

// stat is what there is at a key, but for what the applied version has there as a file where the new one has a directory: that
// will be gone.
func (p *updatePlanner) stat(e *manifestEntry) (foundFile, error) {
	at, err := p.host.stat(e.Key)
	var b *blockedPath
	if errors.As(err, &b) && p.makesWay(b.key) {
		return foundFile{}, nil
	}
	if err != nil {
		return foundFile{}, toWriteError(e.Path, "looking at what is there", err)
	}
	return at, nil
}

// makesWay is whether a file of the applied version is in the place of a directory of the new one.
func (p *updatePlanner) makesWay(key string) bool {
	old, wanted := p.applied.byKey[key], p.manifest.byKey[key]
	return old != nil && !old.dir() && !old.Unmanaged && (wanted == nil || wanted.dir())
}

// parents adds the missing directories above an entry.
func (p *updatePlanner) parents(e *manifestEntry) error {
	for key := parentKey(e.Key); key != "" && p.manifest.byKey[key] == nil; key = parentKey(key) {
		if p.hosts[key] {
			continue
		}
		implicit := &manifestEntry{
			RenderedFile: resource.RenderedFile{Path: "/" + key, Type: resource.FileDirectory},
			Key:          key, Implicit: true, Attrs: fileAttrs{Mode: 0o755, UID: os.Geteuid(), GID: os.Getegid()},
		}
		at, err := p.stat(&manifestEntry{Key: key, RenderedFile: e.RenderedFile})
		if err != nil {
			return err
		}
		old := p.applied.byKey[key]
		switch {
		case at.dir() && (old == nil || !old.madeByUpdate()):
			p.hosts[key] = true
			continue
		case at.dir():
			implicit.Attrs = at.fileAttrs
		case !at.exists():
			p.add(&operation{Kind: opMkdir, Key: key, Path: e.Path, Attrs: &implicit.Attrs})
		case at.file() && p.makesWay(key):
			p.add(&operation{Kind: opExchange, Key: key, Path: e.Path, Attrs: &implicit.Attrs})
		default:
			return failf(resource.FailedPath, e.Path, "%w", p.inTheWay(key, at))
		}
		if old != nil {
			implicit.Original = old.Original
		}
		p.manifest.Entries = append(p.manifest.Entries, implicit)
		p.manifest.byKey[key] = implicit
	}
	return nil
}

func (p *updatePlanner) inTheWay(key string, at foundFile) error {
	return &blockedPath{key: key, target: at.target, link: at.link()}
}

func (p *updatePlanner) add(o *operation) { p.ops = append(p.ops, o) }

// planEntry plans what an entry of the new version needs.
func (p *updatePlanner) planEntry(e *manifestEntry) error {
	at, err := p.stat(e)
	if err != nil {
		return err
	}
	old := p.applied.byKey[e.Key]
	if old != nil && old.Unmanaged {
		old = nil
	}
	if e.Keep && at.exists() {
		e.Unmanaged = old == nil || old.dir() != e.dir()
		if old != nil && !e.Unmanaged {
			e.AttrsBefore, e.Original = old.AttrsBefore, old.Original
			e.Sum, e.Target, e.Attrs = old.Sum, old.Target, old.Attrs // as it was made
		}
		return nil
	}
	if e.dir() {
		return p.planDir(e, old, at)
	}
	return p.planFile(e, old, at)
}

func (p *updatePlanner) planDir(e, old *manifestEntry, at foundFile) error {
	if old != nil {
		e.Original = old.Original
	}
	switch {
	case at.dir():
		if old == nil || !old.dir() {
			e.AttrsBefore = &fileAttrs{at.Mode, at.UID, at.GID}
		} else {
			e.AttrsBefore = old.AttrsBefore
		}
		if e.AttrsBefore != nil && e.Mode == "" && e.User == "" && e.Group == "" {
			e.Attrs = *e.AttrsBefore // the spec says nothing about a directory of the host's own
		}
		if e.Attrs == at.fileAttrs || p.leaves(e, old) {
			return nil
		}
		p.add(&operation{Kind: opAttrs, Key: e.Key, Path: e.Path, Change: Updated, Attrs: &e.Attrs, AttrsBefore: &fileAttrs{at.Mode, at.UID, at.GID}})
	case !at.exists():
		p.add(&operation{Kind: opMkdir, Key: e.Key, Path: e.Path, Change: Created, Attrs: &e.Attrs})
	case at.file() && p.makesWay(e.Key):
		p.add(&operation{Kind: opExchange, Key: e.Key, Path: e.Path, Change: Updated, Attrs: &e.Attrs})
	default:
		return failf(resource.FailedWrite, e.Path, "a file stands where the directory is wanted, and no spec made it")
	}
	return nil
}

func (p *updatePlanner) planFile(e, old *manifestEntry, at foundFile) error {
	o := &operation{Kind: opWrite, Key: e.Key, Path: e.Path, Change: Updated, entry: e}
	if old != nil {
		e.Original = old.Original
	}
	switch {
	case !at.exists():
		o.Change = Created
	case at.dir() && old != nil && old.madeByUpdate():
		o.Kind = opExchange
		p.replaced[e.Key] = true
	case !at.file():
		return failf(resource.FailedWrite, e.Path, "a %s stands where the %s is wanted, and no spec made it", foundTypeName(at), e.Type)
	case old == nil || old.dir():
		what, err := p.differs(e, at)
		if err != nil {
			return err
		}
		o.Original = e.Original == ""
		if what == "" && !o.Original {
			return nil
		}
		if what == "" {
			o = &operation{Kind: opAdopt, Key: e.Key, Original: true, copied: allocated(at.info)}
		}
	default:
		return p.planKnownFile(e, old, at, o)
	}
	p.add(o)
	return nil
}

// planKnownFile plans a file or link that the applied version has, too.
func (p *updatePlanner) planKnownFile(e, old *manifestEntry, at foundFile, o *operation) error {
	what, err := p.differs(e, at)
	if err != nil || what == "" || p.leaves(e, old) {
		return err
	}
	if at.regular() && e.Type == resource.FileRegular && (what == "mode" || what == "owner") {
		o = &operation{Kind: opAttrs, Key: e.Key, Path: e.Path, Change: Updated, Attrs: &e.Attrs, AttrsBefore: &fileAttrs{at.Mode, at.UID, at.GID}}
	}
	p.add(o)
	return nil
}

// leaves reports whether an entry that is the same as in the applied version keeps a change made on the host.
func (p *updatePlanner) leaves(e, old *manifestEntry) bool {
	return p.leaveDrifted && old != nil && e.Type == old.Type && e.Sum == old.Sum && e.Target == old.Target && e.Attrs == old.Attrs
}

func foundTypeName(at foundFile) string {
	switch {
	case at.dir():
		return "directory"
	case at.link():
		return "link"
	case at.regular():
		return "file"
	}
	return "special file"
}

// differs is in what a file, link or directory is not as an entry says: gone, type, content, mode or owner; nothing if it is.
func (s *Store) differs(e *manifestEntry, at foundFile) (string, error) {
	link := e.Type == resource.FileLink
	switch {
	case !at.exists():
		return "gone", nil
	case at.dir() != e.dir(), at.link() != link, at.regular() != (e.Type == resource.FileRegular):
		return "type", nil
	case link && at.target != e.Target:
		return "content", nil
	case at.regular():
		sum, err := s.sumAt(e.Key, at)
		if err != nil {
			return "", toWriteError(e.Path, "reading what is there", err)
		}
		if sum != e.Sum {
			return "content", nil
		}
	}
	switch {
	case at.UID != e.Attrs.UID || at.GID != e.Attrs.GID:
		return "owner", nil
	case !link && at.Mode != e.Attrs.Mode:
		return "mode", nil
	}
	return "", nil
}

// planDropped plans what becomes of an entry of the applied version that the new one doesn't have, or has as another type.
func (p *updatePlanner) planDropped(old *manifestEntry) error {
	e := p.manifest.byKey[old.Key]
	if old.Unmanaged || e != nil && (e.Unmanaged || e.dir() == old.dir()) {
		return nil
	}
	at, err := p.host.stat(old.Key)
	var b *blockedPath
	if errors.As(err, &b) {
		return nil // somebody put something else there
	}
	if err != nil {
		return toWriteError(old.Path, "looking at what is there", err)
	}
	if old.dir() {
		return p.planDroppedDir(old, e, at)
	}
	o := &operation{Kind: opRemove, Key: old.Key}
	if e == nil {
		o.Path, o.Change = old.Path, Removed
	}
	switch {
	case at.exists() && !at.file():
		return nil // somebody put something else there
	case e == nil && old.Original != "":
		if o := p.originalBack(old, at); o != nil {
			p.add(o)
			return nil
		}
		if !at.file() {
			return nil
		}
	case !at.exists(), e != nil: // or a directory takes its place
		return nil
	case old.Keep && e == nil:
		if what, err := p.differs(old, at); err != nil || what != "" {
			return err // somebody made it theirs
		}
	}
	p.add(o)
	return nil
}

// originalBack has what was there before a spec named a file there again; nil: somebody removed it.
func (p *updatePlanner) originalBack(old *manifestEntry, at foundFile) *operation {
	original, err := p.host.stat(old.Original)
	if err != nil || !original.file() {
		return nil
	}
	o := &operation{Kind: opWrite, Key: old.Key, Path: old.Path, Change: Updated, from: old.Original}
	if !at.exists() {
		o.Change = Created
	}
	p.originals = append(p.originals, old.Original)
	return o
}

func (p *updatePlanner) planDroppedDir(old, e *manifestEntry, at foundFile) error {
	switch {
	case !at.dir():
	case e != nil: // a file is wanted here
		p.replaced[old.Key] = true
	case old.AttrsBefore != nil:
		if at.fileAttrs != *old.AttrsBefore {
			p.add(&operation{Kind: opAttrs, Key: old.Key, Path: old.Path, Change: Updated, Attrs: old.AttrsBefore, AttrsBefore: &fileAttrs{at.Mode, at.UID, at.GID}})
		}
	default:
		p.dirs = append(p.dirs, old.Key)
	}
	return nil
}

// replaceDirs plans the removal of directories in whose places files go. There must be nothing in them but what goes with them.
func (p *updatePlanner) replaceDirs() error {
	goes := map[string]bool{}
	for _, o := range p.ops {
		if o.Kind == opRemove {
			goes[o.Key] = true
		}
	}
	for _, key := range slices.Collect(maps.Keys(p.replaced)) {
		dirs, err := p.planEmptying(key, goes)
		if err != nil {
			return toWriteError(p.manifest.byKey[key].Path, "looking at the directory in its place", err)
		}
		p.addRmdirs(dirs[1:])
	}
	for _, key := range slices.Clone(p.dirs) {
		old := p.applied.byKey[key]
		if old.Original == "" || p.replaced[key] {
			continue
		}
		dirs, err := p.planEmptying(key, goes)
		if err != nil { // it stays, and with it what is to be put back when it can be
			stays := *old
			stays.Implicit = true
			p.manifest.Entries = append(p.manifest.Entries, &stays)
			p.manifest.byKey[key] = &stays
			p.dirs = slices.DeleteFunc(p.dirs, func(dir string) bool { return dir == key })
			continue
		}
		if o := p.originalBack(old, foundFile{}); o != nil {
			o.Kind, dirs = opExchange, dirs[1:]
			p.replaced[key] = true
			p.add(o)
		}
		p.addRmdirs(dirs)
	}
	p.dirs = slices.DeleteFunc(p.dirs, func(dir string) bool { return p.replaced[dir] })
	return nil
}

func (p *updatePlanner) addRmdirs(ops []*operation) {
	for _, o := range ops {
		p.replaced[o.Key] = true
		p.add(o)
	}
}

// planEmptying is what removes a directory and those below it, when the files in goes are gone.
func (p *updatePlanner) planEmptying(key string, goes map[string]bool) ([]*operation, error) {
	if goes[key] {
		return nil, nil
	}
	at, err := p.host.stat(key)
	if err != nil {
		return nil, err
	}
	if old := p.applied.byKey[key]; !at.dir() || old == nil || !old.madeByUpdate() {
		return nil, fmt.Errorf("it has /%s, which no spec made", key)
	}
	names, err := p.host.names(key)
	if err != nil {
		return nil, err
	}
	ops := []*operation{{Kind: opRmdir, Key: key, AttrsBefore: &fileAttrs{at.Mode, at.UID, at.GID}}}
	for _, name := range names {
		below, err := p.planEmptying(path.Join(key, name), goes)
		if err != nil {
			return nil, err
		}
		ops = append(ops, below...)
	}
	return ops, nil
}

// order puts the operations in the order in which they are done, and finds the directories for new files and backups.
func (p *updatePlan) order() {
	slices.SortFunc(p.ops, func(a, b *operation) int {
		up := 1
		if a.Kind == opRemove || a.Kind == opRmdir {
			up = -1 // what is below goes first
		}
		return cmp.Or(cmp.Compare(p.rankOf(a), p.rankOf(b)), up*strings.Compare(a.Key, b.Key))
	})
	slices.SortFunc(p.dirs, func(a, b string) int { return strings.Compare(b, a) })
	slices.SortFunc(p.manifest.Entries, func(a, b *manifestEntry) int { return strings.Compare(a.Key, b.Key) })
	missing := map[string]bool{}
	for _, o := range p.ops {
		if o.Kind == opMkdir || o.Kind == opExchange && o.Attrs != nil {
			missing[o.Key] = true
		}
	}
	for _, o := range p.ops {
		dir := parentKey(o.Key)
		for missing[dir] || p.insideReplaced(dir) {
			dir = parentKey(dir)
		}
		p.anchors[o.Key] = dir
	}
}

// rankOf is when an operation is done. What the new version doesn't have is removed last, but for what is in a directory whose place a
// file takes. So a path that both versions have is never missing, and a reader finds what is new before it misses what is gone.
func (p *updatePlan) rankOf(o *operation) int {
	switch o.Kind {
	case opAdopt:
		return 0
	case opRemove:
		if !p.insideReplaced(parentKey(o.Key)) {
			return 6
		}
		return 1
	case opRmdir:
		return 2
	case opMkdir, opExchange: // what is above goes first
		return 3
	case opAttrs:
		return 4
	}
	return 5
}

func (p *updatePlan) insideReplaced(dir string) bool {
	for ; dir != ""; dir = parentKey(dir) {
		if p.replaced[dir] {
			return true
		}
	}
	return false
}

// nameOwnFiles gives the files that an update makes for itself their names.
func (p *updatePlan) nameOwnFiles(id string) {
	for i, o := range p.ops {
		own := path.Join(p.anchors[o.Key], fmt.Sprintf("%s%s-%d", ownPrefix, id, i))
		if slices.Contains(kindsWithNew, o.Kind) {
			o.New = own + ".new"
		}
		if slices.Contains(kindsWithOld, o.Kind) {
			o.Old = own + ".old"
		}
		if o.Original {
			p.manifest.byKey[o.Key].Original = o.Old
		}
	}
}

// Drift is a file that isn't as the applied version has it.
type Drift struct {
	Path string
	// What is in which way: gone, type, content, mode, owner, or why it can't be read.
	What string
}

// Drift lists the files that were changed on the host, or of which that can't be told. Restore puts them back.
func (s *Store) Drift(ctx context.Context) (drifted []Drift, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.applied.Entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if e.Unmanaged || e.Implicit {
			continue
		}
		at, err := s.host.stat(e.Key)
		var b *blockedPath
		if errors.As(err, &b) {
			err = nil // the directory that it is in is gone
		}
		what, gone := "", false
		if err == nil {
			what, err = s.differs(e, at)
			gone = what == "gone"
		}
		if err != nil {
			what = err.Error()
		}
		if what != "" && (!e.Keep || gone) {
			drifted = append(drifted, Drift{e.Path, what})
		}
	}
	return drifted, nil
}

// cachedSum is the digest of a file as it was then.
type cachedSum struct {
	info fs.FileInfo
	at   time.Time
	sum  string
}

// sumAt is the digest of a file. It is read again only if it may have changed.
func (s *Store) sumAt(key string, at foundFile) (string, error) {
	// A file that was changed just before it was read may be changed again without another time.
	const tick = time.Second
	known, ok := s.sums[key]
	if ok && os.SameFile(known.info, at.info) && known.info.Size() == at.info.Size() && known.info.ModTime().Equal(at.info.ModTime()) &&
		changedAt(known.info).Equal(changedAt(at.info)) && changedAt(at.info).Add(tick).Before(known.at) {
		return known.sum, nil
	}
	now := time.Now()
	f, err := s.host.read(key)
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	s.sums[key] = cachedSum{at.info, now, sum}
	return sum, nil
}
