// SPDX-License-Identifier: Apache-2.0

package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

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
	entries, err := s.rules.check(ctx, want)
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
	room, ok = freeBytes(dir)
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
			o = &operation{Kind: opAdopt, Key: e.Key, Original: true, copied: allocatedBytes(at.info)}
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
