// SPDX-License-Identifier: Apache-2.0

package blobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// DirName is the directory of the blobs in the hub's data directory: a blob is DirName/sha256/ab/abcd…, named by its SHA-256.
// What was found damaged is in DirName/damaged, and what is being written in DirName itself.
const (
	DirName          = "blobs"
	sumsDir          = "sha256"
	damagedDir       = "damaged"
	unfinishedSuffix = ".new" // such files are not in backups
	copyBufferSize   = 64 << 10
	touchInterval    = time.Minute    // the time of a blob's last Put is not written more often
	collectInterval  = time.Hour      // between two collections
	verifyInterval   = 24 * time.Hour // between two readings of all blobs
	verifyRate       = 16 << 20       // bytes a second of it
	suspectInterval  = time.Minute    // a blob that nodes suspect is not read more often
)

// Options are what a Store is made from.
type Options struct {
	// Dir is the hub's data directory.
	Dir string
	// Bytes bounds the contents of all blobs; 0: no bound.
	Bytes int64
	// Age is for how long a blob is kept that nothing refers to, after its last Put.
	Age time.Duration
	// Refs calls use with the digest of every blob that must be kept, once or more often; nil: there is none.
	Refs func(ctx context.Context, use func(digest string)) error
	// Kept is called with each blob that was stored, before Put says so; Missing is asked for one that isn't there, which it may Receive. Either may be nil.
	Kept    func(ctx context.Context, digest string)
	Missing func(digest string) error
	Log     zerolog.Logger
	Now     func() time.Time // nil: time.Now
}

// Store keeps contents by their SHA-256.
type Store struct {
	o    Options
	root string

	files sync.Mutex // held while a blob gets or loses its name on disk, or its time; locked before mu
	mu    sync.Mutex
	blobs map[[sha256.Size]byte]*blobEntry
	bytes int64 // of blobs, and of what is being written
	held  int   // backups that read blobs: nothing is removed meanwhile

	suspects                   chan [sha256.Size]byte
	damaged, collected, served atomic.Int64 // since the start
}

// blobEntry is a blob. One whose content is put anew has another entry.
type blobEntry struct {
	size      int64
	lastPut   time.Time // the last Put; on disk it may be touchInterval older
	touched   time.Time // as it is on disk
	puts      int       // of this entry
	verified  time.Time
	suspected bool // a node suspects it, and it was not verified since
}

// Info describes a blob.
type Info struct {
	Digest  string    `json:"digest"`
	Size    int64     `json:"size"`
	LastPut time.Time `json:"lastPut"` // when it was last put
}

// Open opens the blobs in the hub's data directory, and removes what was not finished.
func Open(o Options) (*Store, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Store{o: o, root: filepath.Join(o.Dir, DirName), blobs: make(map[[sha256.Size]byte]*blobEntry), suspects: make(chan [sha256.Size]byte, 64)}
	if err := datadir.MakeDir(filepath.Join(s.root, sumsDir)); err != nil {
		return nil, err
	}
	left, err := filepath.Glob(filepath.Join(s.root, "*"+unfinishedSuffix))
	if err != nil {
		return nil, err
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return s, walkBlobs(o.Dir, func(sum [sha256.Size]byte, _ string, info fs.FileInfo) error {
		put := info.ModTime()
		if now := s.o.Now(); put.After(now) { // a clock was set back: it would be kept until then
			put = now
		}
		s.blobs[sum] = &blobEntry{size: info.Size(), lastPut: put, touched: put}
		s.bytes += info.Size()
		return nil
	})
}

// walkBlobs calls f for each blob in a data directory. Files with other names are ignored.
func walkBlobs(dir string, f func(sum [sha256.Size]byte, path string, info fs.FileInfo) error) error {
	err := filepath.WalkDir(filepath.Join(dir, DirName, sumsDir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		sum, err := resource.ParseDigest(resource.DigestPrefix + d.Name())
		if err != nil {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return f(sum, path, info)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (s *Store) path(sum [sha256.Size]byte) string {
	name := hex.EncodeToString(sum[:])
	return filepath.Join(s.root, sumsDir, name[:2], name)
}

// Put keeps what r gives, and returns its digest and size once they are on disk. With want, a digest that the content must
// have, it reads nothing if there is such a blob already. A blob that nothing refers to is removed Options.Age after its last
// Put: put a content before each write of a reference to it, also when it is there already.
//
// If the content has another digest than want the error is Invalid; if there is no room for it, Quota. Memory is bounded, whatever
// the size.
func (s *Store) Put(ctx context.Context, r io.Reader, want string) (digest string, size int64, err error) {
	digest, size, err = s.Receive(ctx, r, want)
	if err == nil && s.o.Kept != nil {
		s.o.Kept(ctx, digest)
	}
	return digest, size, err
}

// Receive is Put of a blob that another store has: nobody else is told.
func (s *Store) Receive(ctx context.Context, r io.Reader, want string) (digest string, size int64, err error) {
	if want != "" {
		sum, err := resource.ParseDigest(want)
		if err != nil {
			return "", 0, err
		}
		if size, ok, err := s.renew(sum); ok || err != nil {
			return want, size, err
		}
	}
	f, err := os.CreateTemp(s.root, "put-*"+unfinishedSuffix)
	if err != nil {
		return "", 0, err
	}
	w := &quotaWriter{s: s, ctx: ctx, f: f}
	defer func() {
		if err != nil {
			w.undo()
		}
	}()
	h := sha256.New()
	if _, err = io.CopyBuffer(io.MultiWriter(w, h), struct{ io.Reader }{r}, make([]byte, copyBufferSize)); err != nil {
		return "", 0, err
	}
	sum := [sha256.Size]byte(h.Sum(nil))
	digest = resource.FormatDigest(sum)
	if want != "" && digest != want {
		return "", 0, resource.Errorf(resource.Invalid, "digest", "the content has the digest %s (%d bytes), and not %s: it was not stored", digest, w.n, want)
	}
	if err = errors.Join(f.Sync(), f.Close()); err != nil {
		return "", 0, err
	}
	return digest, w.n, s.keep(sum, w)
}

// quotaWriter counts what it writes against the store's quota.
type quotaWriter struct {
	s   *Store
	ctx context.Context
	f   *os.File
	n   int64
}

func (w *quotaWriter) Write(b []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	if err := w.s.reserve(w.ctx, int64(len(b))); err != nil {
		return 0, err
	}
	w.n += int64(len(b))
	return w.f.Write(b)
}

func (w *quotaWriter) undo() {
	_ = w.f.Close()
	_ = os.Remove(w.f.Name())
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.bytes -= w.n
}

// reserve counts bytes that are to be written. At the limit it first removes what is no longer needed.
func (s *Store) reserve(ctx context.Context, n int64) error {
	for again := range 2 {
		s.mu.Lock()
		if s.o.Bytes == 0 || s.bytes+n <= s.o.Bytes {
			s.bytes += n
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		if again == 0 {
			if err := s.Collect(ctx); err != nil {
				return err
			}
		}
	}
	return resource.Errorf(resource.Quota, "", "there is no room for the blob: all blobs together may have %d bytes (limits.blobs.bytes)", s.o.Bytes)
}

// renew notes another Put of a blob that is there.
func (s *Store) renew(sum [sha256.Size]byte) (size int64, ok bool, err error) {
	s.files.Lock()
	defer s.files.Unlock()
	now := s.o.Now()
	s.mu.Lock()
	e := s.blobs[sum]
	if e == nil || e.suspected { // it may be damaged: the content is taken anew
		s.mu.Unlock()
		return 0, false, nil
	}
	e.lastPut = now
	e.puts++
	touch := now.Sub(e.touched) >= touchInterval
	s.mu.Unlock()
	if !touch {
		return e.size, true, nil
	}
	err = os.Chtimes(s.path(sum), now, now)
	if errors.Is(err, fs.ErrNotExist) { // another process has removed it
		s.forget(sum)
		return 0, false, nil
	}
	s.mu.Lock()
	e.touched = now
	s.mu.Unlock()
	return e.size, true, err
}

// keep gives a written file its name.
func (s *Store) keep(sum [sha256.Size]byte, w *quotaWriter) error {
	s.files.Lock()
	defer s.files.Unlock()
	path := s.path(sum)
	if err := datadir.MakeDir(filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Rename(w.f.Name(), path); err != nil {
		return err
	}
	if err := datadir.SyncDir(filepath.Dir(path)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.blobs[sum]; old != nil { // the same was put at the same time
		s.bytes -= old.size
	}
	now := s.o.Now()
	s.blobs[sum] = &blobEntry{size: w.n, lastPut: now, touched: now, verified: now}
	_ = os.Remove(s.damagedPath(sum)) // there is a good one again
	return nil
}

// forget drops a blob whose file is gone or not to be used. The caller holds files.
func (s *Store) forget(sum [sha256.Size]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.blobs[sum]; e != nil {
		s.bytes -= e.size
		delete(s.blobs, sum)
	}
}

// Has reports whether there is a blob with that digest, and its size.
func (s *Store) Has(digest string) (size int64, ok bool) {
	sum, err := resource.ParseDigest(digest)
	if err != nil {
		return 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.blobs[sum]
	if e == nil {
		return 0, false
	}
	return e.size, true
}

// List describes all blobs, in the order of their digests.
func (s *Store) List() []Info {
	s.mu.Lock()
	list := make([]Info, 0, len(s.blobs))
	for sum, e := range s.blobs {
		list = append(list, Info{resource.FormatDigest(sum), e.size, e.lastPut.UTC().Truncate(time.Second)})
	}
	s.mu.Unlock()
	slices.SortFunc(list, func(a, b Info) int { return strings.Compare(a.Digest, b.Digest) })
	return list
}

// Blob is a blob that is open for reading. It can be read to its end even if it is removed meanwhile.
type Blob struct {
	*os.File
	Size int64
}

// Open opens a blob. The error is NotFound if there is none, also where its file was damaged.
func (s *Store) Open(digest string) (*Blob, error) {
	b, _, err := s.open(digest)
	if errors.Is(err, resource.NotFound) && s.o.Missing != nil && s.o.Missing(digest) == nil {
		b, _, err = s.open(digest)
	}
	return b, err
}

func (s *Store) open(digest string) (*Blob, *blobEntry, error) {
	sum, err := resource.ParseDigest(digest)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	known := s.blobs[sum]
	var e blobEntry
	if known != nil {
		e = *known
	}
	s.mu.Unlock()
	if known == nil {
		return nil, nil, resource.Errorf(resource.NotFound, "", "there is no blob %s", digest)
	}
	f, err := os.Open(s.path(sum))
	if errors.Is(err, fs.ErrNotExist) {
		s.quarantine(sum, known, "its file is gone")
		return nil, nil, resource.Errorf(resource.NotFound, "", "there is no blob %s any more: its file is gone", digest)
	}
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	if info.Size() != e.size {
		_ = f.Close()
		s.quarantine(sum, known, fmt.Sprintf("its file has %d bytes instead of %d", info.Size(), e.size))
		return nil, nil, resource.Errorf(resource.NotFound, "", "there is no blob %s any more: its file was damaged", digest)
	}
	return &Blob{File: f, Size: e.size}, known, nil
}

// ReadAt reads part of a blob into p, and returns fewer bytes than p has only at the blob's end.
func (s *Store) ReadAt(digest string, p []byte, offset int64) (int, error) {
	b, err := s.Open(digest)
	if err != nil {
		return 0, err
	}
	defer b.Close()
	if offset < 0 || offset > b.Size {
		return 0, resource.Errorf(resource.Invalid, "offset", "%d is outside the blob, which has %d bytes", offset, b.Size)
	}
	n, err := b.ReadAt(p, offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	s.served.Add(int64(n))
	return n, err
}

func (s *Store) damagedPath(sum [sha256.Size]byte) string {
	return filepath.Join(s.root, damagedDir, hex.EncodeToString(sum[:]))
}

// quarantine moves a blob that is not what it was aside, so that it is not given to anybody and can be put again, unless that has
// happened.
func (s *Store) quarantine(sum [sha256.Size]byte, which *blobEntry, why string) {
	s.files.Lock()
	defer s.files.Unlock()
	s.mu.Lock()
	same := s.blobs[sum] == which
	s.mu.Unlock()
	if !same {
		return
	}
	s.forget(sum)
	s.damaged.Add(1)
	aside := s.damagedPath(sum)
	err := datadir.MakeDir(filepath.Dir(aside))
	if err == nil {
		err = os.Rename(s.path(sum), aside)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err, aside = nil, ""
	}
	s.o.Log.Error().Err(err).Str("digest", resource.FormatDigest(sum)).Str("reason", why).Str("moved_to", aside).
		Msg("a blob is damaged: it is not served until the same content is put again")
}

// Suspect has a blob verified soon, because what a node got of it had another digest.
func (s *Store) Suspect(digest string) {
	sum, err := resource.ParseDigest(digest)
	if err != nil {
		return
	}
	s.mu.Lock()
	e := s.blobs[sum]
	due := e != nil && !e.suspected && s.o.Now().Sub(e.verified) > suspectInterval
	if due {
		select {
		case s.suspects <- sum:
			e.suspected = true
		default: // others are read first; the node asks again
		}
	}
	s.mu.Unlock()
}

// Remove removes a blob that nothing refers to. The error is Conflict if something does, or if the blob is put meanwhile: a reference to
// it is about to be written.
func (s *Store) Remove(ctx context.Context, digest string) error {
	sum, err := resource.ParseDigest(digest)
	if err != nil {
		return err
	}
	s.mu.Lock()
	e, puts := s.blobs[sum], 0
	if e != nil {
		puts = e.puts
	}
	s.mu.Unlock()
	if e == nil {
		return resource.Errorf(resource.NotFound, "", "there is no blob %s", digest)
	}
	used, err := s.used(ctx)
	if err != nil {
		return err
	}
	if used[sum] {
		return resource.Errorf(resource.Conflict, "", "the blob %s is in use: it can be removed when no spec refers to it", digest)
	}
	again := false
	err = s.remove(sum, func(now *blobEntry) bool {
		again = now != e || now.puts != puts
		return !again
	})
	if again {
		return resource.Errorf(resource.Conflict, "", "the blob %s was put again just now: it can be removed when no spec refers to it", digest)
	}
	return err
}

func (s *Store) used(ctx context.Context) (map[[sha256.Size]byte]bool, error) {
	used := make(map[[sha256.Size]byte]bool)
	if s.o.Refs == nil {
		return used, nil
	}
	err := s.o.Refs(ctx, func(digest string) {
		if sum, err := resource.ParseDigest(digest); err == nil {
			used[sum] = true
		}
	})
	if err != nil {
		return nil, fmt.Errorf("it is not known which blobs are in use: %w", err)
	}
	return used, nil
}

// remove removes a blob if it is still to be.
func (s *Store) remove(sum [sha256.Size]byte, still func(*blobEntry) bool) error {
	s.files.Lock()
	defer s.files.Unlock()
	s.mu.Lock()
	e := s.blobs[sum]
	held := s.held > 0
	ok := e != nil && !held && still(e)
	s.mu.Unlock()
	switch {
	case held:
		return resource.Errorf(resource.Unavailable, "", "a backup is being made: try again when it is finished")
	case !ok:
		return nil
	}
	if err := os.Remove(s.path(sum)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.forget(sum)
	s.collected.Add(1)
	return nil
}

// Collect removes the blobs that nothing refers to and that were not put within Options.Age.
func (s *Store) Collect(ctx context.Context) error {
	s.mu.Lock()
	var old [][sha256.Size]byte
	limit := s.o.Now().Add(-s.o.Age)
	for sum, e := range s.blobs {
		if e.lastPut.Before(limit) {
			old = append(old, sum)
		}
	}
	held := s.held > 0
	s.mu.Unlock()
	if len(old) == 0 || held {
		return nil
	}
	used, err := s.used(ctx)
	if err != nil {
		return err
	}
	for _, sum := range old {
		if used[sum] {
			continue
		}
		if err := s.remove(sum, func(e *blobEntry) bool { return e.lastPut.Before(limit) }); err != nil {
			return err
		}
	}
	return nil
}

// Hold keeps every blob from being removed until release is called.
func (s *Store) Hold() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held--
	})
}

// Run removes what is no longer needed every hour, and reads all blobs once a day to find damage, until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	collect, verify := time.NewTicker(collectInterval), time.NewTicker(verifyInterval)
	defer collect.Stop()
	defer verify.Stop()
	s.collect(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-collect.C:
			s.collect(ctx)
		case sum := <-s.suspects:
			s.verify(ctx, sum, 0)
		case <-verify.C:
			for _, b := range s.List() {
				sum, _ := resource.ParseDigest(b.Digest) // it is a digest
				s.verify(ctx, sum, verifyRate)
			}
		}
	}
}

func (s *Store) collect(ctx context.Context) {
	if err := s.Collect(ctx); err != nil && ctx.Err() == nil {
		s.o.Log.Error().Err(err).Msg("blobs that nothing refers to can't be removed: trying again later")
	}
}

// verify reads a blob and compares its digest, at no more than rate bytes a second; 0: at full speed.
func (s *Store) verify(ctx context.Context, sum [sha256.Size]byte, rate int64) {
	b, e, err := s.open(resource.FormatDigest(sum))
	if err != nil {
		return // it is gone, or open has said why
	}
	defer b.Close()
	found, err := hashContent(ctx, b, rate)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		s.o.Log.Error().Err(err).Str("digest", resource.FormatDigest(sum)).Msg("a blob can't be read")
	case found != sum:
		s.quarantine(sum, e, "its content has the digest "+resource.FormatDigest(found))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.suspected = false; err == nil {
		e.verified = s.o.Now()
	}
}

func hashContent(ctx context.Context, r io.Reader, rate int64) (sum [sha256.Size]byte, err error) {
	const piece = 1 << 20
	h := sha256.New()
	for ctx.Err() == nil {
		n, err := io.CopyN(h, r, piece)
		if errors.Is(err, io.EOF) {
			return [sha256.Size]byte(h.Sum(nil)), nil
		}
		if err != nil {
			return sum, err
		}
		if rate > 0 {
			backoff.Sleep(ctx, time.Duration(n)*time.Second/time.Duration(rate))
		}
	}
	return sum, ctx.Err()
}

// Survey reads all blobs in a data directory, and says what is there; empty: none. The error names those that are damaged.
func Survey(dir string) (has string, err error) {
	const most = 5
	count, size := 0, int64(0)
	var bad []string
	err = walkBlobs(dir, func(sum [sha256.Size]byte, path string, info fs.FileInfo) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		found, err := hashContent(context.Background(), f, 0)
		if err != nil || found != sum {
			bad = append(bad, path)
		}
		count, size = count+1, size+info.Size()
		return nil
	})
	if err != nil {
		return "", err
	}
	if len(bad) > 0 {
		more := ""
		if len(bad) > most {
			more = fmt.Sprintf(" and %d more", len(bad)-most)
		}
		return "", fmt.Errorf("the content of %s%s is not what the name says (%d of %d blobs)", strings.Join(bad[:min(len(bad), most)], ", "), more, len(bad), count)
	}
	if count == 0 {
		return "", nil
	}
	return fmt.Sprintf("%d blobs, %d bytes", count, size), nil
}
