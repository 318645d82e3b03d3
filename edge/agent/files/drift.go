// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

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
