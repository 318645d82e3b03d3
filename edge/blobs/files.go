// SPDX-License-Identifier: Apache-2.0

package blobs

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	partSuffix = ".part"
	inUseTime  = 10 * time.Minute // after its path was told, a file is not removed
)

// blobFiles are the blobs in a directory: complete ones, named by the SHA-256 in hex, and what there is of others, with
// partSuffix. Content is only ever appended to a part, so its length is how far the download is, also after the process
// was killed. After a power cut it may be shorter than it was, and in the worst case wrong, which the digest shows.
//
// It is used by one goroutine.
type blobFiles struct {
	dir   string
	quota int64
	now   func() time.Time

	bytes    int64 // of all files, and what is missing of those that are being downloaded
	complete map[string]*blobFile
	parts    map[string]*blobFile // that are not being downloaded
	removed  int64                // files, since the start
}

type blobFile struct {
	size     int64
	used     time.Time
	verified bool // since the start
}

func openBlobFiles(dir string, quota int64, now func() time.Time) (*blobFiles, error) {
	f := &blobFiles{dir: dir, quota: quota, now: now, complete: make(map[string]*blobFile), parts: make(map[string]*blobFile)}
	if err := datadir.MakeDir(dir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name, isPart := strings.CutSuffix(e.Name(), partSuffix)
		digest := resource.DigestPrefix + name
		info, err := e.Info()
		if _, bad := resource.ParseDigest(digest); bad != nil || err != nil || !info.Mode().IsRegular() {
			continue // it is not ours
		}
		list := f.complete
		if isPart {
			list = f.parts
		}
		used := info.ModTime()
		if used.After(now()) { // a clock was set back: it would be in use until then
			used = now()
		}
		list[digest] = &blobFile{size: info.Size(), used: used}
		f.bytes += info.Size()
	}
	return f, nil
}

// path is where a complete blob is.
func (f *blobFiles) path(digest string) string {
	return filepath.Join(f.dir, strings.TrimPrefix(digest, resource.DigestPrefix))
}

// unverified reports whether there is a complete blob whose digest was not compared since the start.
func (f *blobFiles) unverified(digest string) bool {
	c := f.complete[digest]
	return c != nil && !c.verified
}

// verified takes the outcome of comparing its digest: if it was another, the blob is downloaded again.
func (f *blobFiles) verified(digest string, matches bool) {
	if c := f.complete[digest]; c != nil {
		if c.verified = matches; !matches {
			f.discard(digest)
		}
	}
}

// use returns the path of a complete blob whose digest was compared, and notes that it is in use; empty: there is none.
func (f *blobFiles) use(digest string, size int64) (path string, err error) {
	c := f.complete[digest]
	if c == nil {
		return "", nil
	}
	path = f.path(digest)
	if info, err := os.Stat(path); err != nil || info.Size() != c.size {
		f.discard(digest)
		return "", nil
	}
	if c.size != size {
		return "", resource.Errorf(resource.Invalid, "size", "the blob %s has %d bytes, and not %d", digest, c.size, size)
	}
	c.used = f.now()
	_ = os.Chtimes(path, c.used, c.used) // it is for the next start only
	return path, nil
}

// begin opens the part of a blob, of which there may be something already.
func (f *blobFiles) begin(digest string, size int64) (part *os.File, written int64, err error) {
	path := f.path(digest) + partSuffix
	if p := f.parts[digest]; p != nil {
		delete(f.parts, digest)
		f.bytes -= p.size
		if p.size <= size {
			written = p.size
		}
		defer func() {
			if err != nil { // what there is stays, and counts
				f.parts[digest] = p
				f.bytes += p.size
			}
		}()
	}
	if err := f.makeRoom(size); err != nil {
		return nil, 0, err
	}
	if part, written, err = openPart(path, written); err != nil {
		return nil, 0, err
	}
	f.bytes += size
	return part, written, nil
}

// openPart opens a part for appending. One that is not as long as it is to be was changed by another program, and is emptied.
func openPart(path string, size int64) (part *os.File, written int64, err error) {
	part, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, err
	}
	if info, err := part.Stat(); err != nil || info.Size() != size {
		if err := part.Truncate(0); err != nil {
			return nil, 0, errors.Join(err, part.Close())
		}
		return part, 0, nil
	}
	return part, size, nil
}

// pause keeps what there is of a blob whose download ends before it is complete.
func (f *blobFiles) pause(digest string, written, size int64) {
	f.bytes -= size - written
	f.parts[digest] = &blobFile{size: written, used: f.now()}
}

// drop removes what there is of a blob whose download ends, which is nothing.
func (f *blobFiles) drop(digest string, size int64) error {
	f.bytes -= size
	return os.Remove(f.path(digest) + partSuffix)
}

// finish gives a part, which was verified, the name of a complete blob.
func (f *blobFiles) finish(digest string, size int64) (path string, err error) {
	path = f.path(digest)
	if err := errors.Join(os.Rename(path+partSuffix, path), datadir.SyncDir(f.dir)); err != nil {
		return "", err
	}
	f.complete[digest] = &blobFile{size: size, used: f.now(), verified: true}
	return path, nil
}

// makeRoom removes files that are not in use, those that were not used for longest first, until there is room for so many bytes.
func (f *blobFiles) makeRoom(size int64) error {
	for f.bytes+size > f.quota {
		if !f.evict() {
			return resource.Errorf(resource.Quota, "", "there is no room for %d bytes: downloaded blobs may have %d bytes together (limits.blobs.bytes), of which %d are in use", size, f.quota, f.bytes)
		}
	}
	return nil
}

// evict removes the file that was not used for longest. It reports false if there is none, or it can't be removed.
func (f *blobFiles) evict() bool {
	oldest, suffix, at := "", "", f.now().Add(-inUseTime)
	for digest, c := range f.complete {
		if c.used.Before(at) {
			oldest, suffix, at = digest, "", c.used
		}
	}
	if oldest == "" { // parts cost more to get again than to keep, but nobody waits for these
		at = f.now()
	}
	for digest, p := range f.parts {
		if !p.used.After(at) {
			oldest, suffix, at = digest, partSuffix, p.used
		}
	}
	if oldest == "" {
		return false
	}
	return f.remove(oldest, suffix)
}

// discard removes a complete blob whose content is not what it was, so that it is downloaded again. If its file can't be removed, that
// counts until the next start.
func (f *blobFiles) discard(digest string) {
	if !f.remove(digest, "") {
		delete(f.complete, digest)
	}
}

// remove removes a file, unless it can't be removed: then it goes on counting.
func (f *blobFiles) remove(digest, suffix string) (ok bool) {
	list := f.complete
	if suffix != "" {
		list = f.parts
	}
	if err := os.Remove(f.path(digest) + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false
	}
	f.bytes -= list[digest].size
	delete(list, digest)
	f.removed++
	return true
}

func digestFile(path string) (digest string, err error) {
	in, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer in.Close()
	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return resource.FormatDigest([sha256.Size]byte(h.Sum(nil))), nil
}
