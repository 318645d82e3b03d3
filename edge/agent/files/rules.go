// SPDX-License-Identifier: Apache-2.0

package files

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/user"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

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

// pathRules say which files of the host a spec may change, and what its entries have to be.
type pathRules struct {
	root    string
	allowed []allowedRoot
	denied  []string // keys
	setuid  bool
}

// newPathRules resolves the symbolic links on the way to the data directory, the root, and what is allowed and forbidden.
func newPathRules(o *Options) (_ *pathRules, err error) {
	if o.Dir, err = resolvePath(o.Dir); err != nil {
		return nil, err
	}
	if o.Root, err = resolvePath(o.Root); err != nil {
		return nil, err
	}
	r := &pathRules{root: o.Root, setuid: o.Setuid}
	for _, dir := range o.Allowed {
		if !path.IsAbs(dir) || path.Clean(dir) != dir {
			return nil, fmt.Errorf("allowed directory %q: must be absolute, without '..', '//' and a '/' at its end", dir)
		}
		key, ok, err := r.resolveKey(filepath.Join(o.Root, dir))
		if err != nil {
			return nil, fmt.Errorf("allowed directory %s: %w", dir, err)
		}
		if !ok {
			return nil, fmt.Errorf("allowed directory %s: leads out of %s", dir, o.Root)
		}
		r.allowed = append(r.allowed, allowedRoot{dir, key})
	}
	slices.SortFunc(r.allowed, func(a, b allowedRoot) int { return cmp.Compare(len(b.path), len(a.path)) })
	forbidden := []string{o.Dir}
	for _, p := range o.Forbidden {
		if !path.IsAbs(p) || path.Clean(p) != p {
			return nil, fmt.Errorf("forbidden path %q: must be absolute, without '..', '//' and a '/' at its end", p)
		}
		forbidden = append(forbidden, filepath.Join(o.Root, p))
	}
	for _, p := range forbidden {
		key, ok, err := r.resolveKey(p)
		if err != nil {
			return nil, fmt.Errorf("forbidden path %s: %w", p, err)
		}
		if ok {
			r.denied = append(r.denied, key)
		}
	}
	return r, nil
}

// resolveKey is the key of a path, if that is below the root.
func (r *pathRules) resolveKey(p string) (key string, ok bool, err error) {
	p, err = resolvePath(p)
	if err != nil {
		return "", false, err
	}
	rel, err := filepath.Rel(r.root, p)
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
func (r *pathRules) keyOf(p string) (string, error) {
	i := slices.IndexFunc(r.allowed, func(a allowedRoot) bool { return p != a.path && (a.path == "/" || isWithin(p, a.path)) })
	if i < 0 {
		return "", failf(resource.FailedPath, p, "is not below a directory that the node allows: %s", r.allowedText())
	}
	root := r.allowed[i]
	key := path.Join(root.key, strings.TrimPrefix(p, root.path))
	for _, denied := range r.denied {
		if isWithin(key, denied) || isWithin(denied, key) {
			return "", failf(resource.FailedPath, p, "is forbidden on the node: /%s", denied)
		}
	}
	if strings.HasPrefix(path.Base(key), ownPrefix) {
		return "", failf(resource.FailedPath, p, "names that begin with %s are the agent's own", ownPrefix)
	}
	return key, nil
}

func (r *pathRules) allowedText() string {
	var names []string
	for _, a := range r.allowed {
		names = append(names, a.path)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// check checks a spec's entries, and finds their keys, owners and digests.
func (r *pathRules) check(ctx context.Context, want Spec) ([]*manifestEntry, error) {
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
		e, err := r.checkFile(f, owners)
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

func (r *pathRules) checkFile(f resource.RenderedFile, owners ownerIDs) (*manifestEntry, error) {
	if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || len(f.Path) > maxPath || strings.ContainsRune(f.Path, 0) {
		return nil, failf(resource.FailedInvalid, f.Path, "must be absolute, without '..', '//', NUL and a '/' at its end, and have at most %d bytes", maxPath)
	}
	if len(path.Base(f.Path)) > maxName {
		return nil, failf(resource.FailedInvalid, f.Path, "a name must have at most %d bytes", maxName)
	}
	key, err := r.keyOf(f.Path)
	if err != nil {
		return nil, err
	}
	e := &manifestEntry{RenderedFile: f, Key: key}
	if err := e.checkType(); err != nil {
		return nil, err
	}
	if e.Attrs.Mode, err = r.mode(f); err != nil {
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
func (r *pathRules) mode(f resource.RenderedFile) (uint32, error) {
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
	if f.Type == resource.FileRegular && m&0o6000 != 0 && !r.setuid {
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
