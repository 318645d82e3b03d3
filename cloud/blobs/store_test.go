// SPDX-License-Identifier: Apache-2.0

package blobs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// fakeClock is a time that a test sets.
type fakeClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func openTestStore(t *testing.T, o Options) *Store {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	s, err := Open(o)
	require.NoError(t, err)
	return s
}

func putContent(t *testing.T, s *Store, content []byte) string {
	t.Helper()
	digest, size, err := s.Put(context.Background(), bytes.NewReader(content), "")
	require.NoError(t, err)
	require.Equal(t, int64(len(content)), size)
	require.Equal(t, resource.DigestOf(content), digest)
	return digest
}

func readContent(t *testing.T, s *Store, digest string) []byte {
	t.Helper()
	b, err := s.Open(digest)
	require.NoError(t, err)
	defer b.Close()
	all, err := io.ReadAll(b)
	require.NoError(t, err)
	require.Len(t, all, int(b.Size))
	return all
}

func randomContent(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func blobFile(s *Store, digest string) string {
	name := strings.TrimPrefix(digest, resource.DigestPrefix)
	return filepath.Join(s.root, sumsDir, name[:2], name)
}

func TestAContentIsKeptOnceByItsDigest(t *testing.T) {
	dir := t.TempDir()
	s := openTestStore(t, Options{Dir: dir})
	big := randomContent(300_000)
	for _, c := range [][]byte{nil, []byte("hello\n"), big} {
		digest := putContent(t, s, c)
		require.Equal(t, digest, putContent(t, s, c))
		require.Equal(t, c, append([]byte(nil), readContent(t, s, digest)...))
	}
	require.Len(t, s.List(), 3)
	s = openTestStore(t, Options{Dir: dir}) // as after a restart
	require.Len(t, s.List(), 3)
	require.Equal(t, big, readContent(t, s, resource.DigestOf(big)))
	p := make([]byte, 1000)
	n, err := s.ReadAt(resource.DigestOf(big), p, 299_500)
	require.NoError(t, err)
	require.Equal(t, big[299_500:], p[:n])
	_, err = s.ReadAt(resource.DigestOf(big), p, 300_001)
	require.ErrorIs(t, err, resource.Invalid)
	_, err = s.Open(resource.DigestOf([]byte("another")))
	require.ErrorIs(t, err, resource.NotFound)
	_, err = s.Open("sha256:../../etc/passwd")
	require.ErrorIs(t, err, resource.Invalid)
}

func TestAContentWithAnotherDigestIsNotKept(t *testing.T) {
	s := openTestStore(t, Options{})
	want := resource.DigestOf([]byte("right"))
	_, _, err := s.Put(context.Background(), strings.NewReader("wrong"), want)
	require.ErrorIs(t, err, resource.Invalid)
	require.ErrorContains(t, err, want)
	_, _, err = s.Put(context.Background(), strings.NewReader("x"), "sha256:12")
	require.ErrorIs(t, err, resource.Invalid)
	require.Empty(t, s.List())
	require.Zero(t, s.bytes)
	left, err := filepath.Glob(filepath.Join(s.root, "*"+unfinishedSuffix))
	require.NoError(t, err)
	require.Empty(t, left)
	_, _, err = s.Put(context.Background(), strings.NewReader("right"), want)
	require.NoError(t, err)
	_, _, err = s.Put(context.Background(), failingReader{}, want) // it is there: nothing is read
	require.NoError(t, err)
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("the sender is gone") }

func TestAPutThatEndsEarlyLeavesNothing(t *testing.T) {
	s := openTestStore(t, Options{})
	_, _, err := s.Put(context.Background(), io.MultiReader(bytes.NewReader(randomContent(200_000)), failingReader{}), "")
	require.ErrorContains(t, err, "the sender is gone")
	ctx, stop := context.WithCancel(context.Background())
	stop()
	_, _, err = s.Put(ctx, bytes.NewReader(randomContent(200_000)), "")
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, s.bytes)
	require.NoError(t, os.WriteFile(filepath.Join(s.root, "put-1"+unfinishedSuffix), []byte("of a process that was killed"), 0o600))
	s = openTestStore(t, Options{Dir: s.o.Dir})
	require.Empty(t, s.List())
	entries, err := os.ReadDir(s.root)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestTheQuotaCountsAllBlobsAndMakesRoom(t *testing.T) {
	var c fakeClock
	s := openTestStore(t, Options{Bytes: 1000, Age: time.Hour, Now: c.Now})
	old := putContent(t, s, randomContent(600))
	_, _, err := s.Put(context.Background(), bytes.NewReader(randomContent(600)), "")
	require.ErrorIs(t, err, resource.Quota)
	require.ErrorContains(t, err, "limits.blobs.bytes")
	require.Equal(t, int64(600), s.bytes)
	c.Add(2 * time.Hour)
	putContent(t, s, randomContent(600)) // nothing refers to the old one, and its time is over
	_, there := s.Has(old)
	require.False(t, there)
	require.Equal(t, int64(600), s.bytes)
}

func TestWhatNothingRefersToIsRemovedAfterItsTime(t *testing.T) {
	var c fakeClock
	refs := map[string]bool{}
	var refsErr error
	s := openTestStore(t, Options{Age: time.Hour, Now: c.Now, Refs: func(_ context.Context, use func(string)) error {
		for digest := range refs {
			use(digest)
		}
		return refsErr
	}})
	used, unused, again := putContent(t, s, []byte("used")), putContent(t, s, []byte("unused")), putContent(t, s, []byte("again"))
	refs[used] = true
	has := func() (n int) {
		require.NoError(t, s.Collect(context.Background()))
		return len(s.List())
	}
	c.Add(59 * time.Minute)
	require.Equal(t, 3, has())
	putContent(t, s, []byte("again"))
	c.Add(2 * time.Minute)
	release := s.Hold()
	require.Equal(t, 3, has(), "a backup is being made")
	release()
	release()
	refsErr = errors.New("the store can't be read")
	require.ErrorContains(t, s.Collect(context.Background()), "the store can't be read")
	require.Len(t, s.List(), 3)
	refsErr = nil
	require.Equal(t, 2, has())
	require.NoFileExists(t, blobFile(s, unused))
	require.ErrorIs(t, s.Remove(context.Background(), used), resource.Conflict)
	require.NoError(t, s.Remove(context.Background(), again))
	require.ErrorIs(t, s.Remove(context.Background(), again), resource.NotFound)
	delete(refs, used)
	require.Zero(t, has())
	require.Zero(t, s.bytes)
}

func TestADamagedBlobIsSetAsideAndCanBePutAgain(t *testing.T) {
	var log bytes.Buffer
	s := openTestStore(t, Options{Log: zerolog.New(&log)})
	flipped, short, gone, good := putContent(t, s, []byte("flipped")), putContent(t, s, []byte("short")), putContent(t, s, []byte("gone")), putContent(t, s, []byte("good"))
	require.NoError(t, os.WriteFile(blobFile(s, flipped), []byte("flippeD"), 0o600))
	_, err := Survey(s.o.Dir)
	require.ErrorContains(t, err, blobFile(s, flipped))
	require.ErrorContains(t, err, "1 of 4")
	require.NoError(t, os.Truncate(blobFile(s, short), 2))
	require.NoError(t, os.Remove(blobFile(s, gone)))
	for _, b := range s.List() {
		sum, err := resource.ParseDigest(b.Digest)
		require.NoError(t, err)
		s.verify(context.Background(), sum, 0)
	}
	require.Equal(t, int64(3), s.damaged.Load())
	require.Contains(t, log.String(), flipped)
	require.Equal(t, []byte("good"), readContent(t, s, good))
	for _, digest := range []string{flipped, short, gone} {
		_, err := s.Open(digest)
		require.ErrorIs(t, err, resource.NotFound, digest)
	}
	sum, err := resource.ParseDigest(flipped)
	require.NoError(t, err)
	aside := filepath.Join(s.root, damagedDir, hex.EncodeToString(sum[:]))
	require.FileExists(t, aside)
	putContent(t, s, []byte("flipped"))
	require.NoFileExists(t, aside)
	require.Equal(t, []byte("flipped"), readContent(t, s, flipped))
	has, err := Survey(s.o.Dir)
	require.NoError(t, err)
	require.Equal(t, "2 blobs, 11 bytes", has)
}

func TestWhatANodeSuspectsIsVerifiedSoon(t *testing.T) {
	var c fakeClock
	s := openTestStore(t, Options{Now: c.Now})
	digest := putContent(t, s, []byte("content"))
	require.NoError(t, os.WriteFile(blobFile(s, digest), []byte("CONTENT"), 0o600))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	s.Suspect(digest) // it was put just now: a second look would cost, and find nothing
	require.Empty(t, s.suspects)
	c.Add(2 * suspectInterval)
	s.Suspect(digest)
	require.Eventually(t, func() bool { _, there := s.Has(digest); return !there }, 10*time.Second, time.Millisecond)
	stop()
	require.NoError(t, <-done)
}

func TestManyPutTheSameAtATimeWhileOthersAreRemoved(t *testing.T) {
	s := openTestStore(t, Options{})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 20 {
				body := []byte(strings.Repeat("shared", 1000))
				digest, _, err := s.Put(context.Background(), bytes.NewReader(body), "")
				if err != nil {
					t.Error(err)
					return
				}
				if i == 0 {
					if err := s.Remove(context.Background(), digest); err != nil && !errors.Is(err, resource.NotFound) && !errors.Is(err, resource.Conflict) {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	digest := putContent(t, s, []byte(strings.Repeat("shared", 1000)))
	require.Equal(t, int64(6000), s.bytes)
	require.Len(t, readContent(t, s, digest), 6000)
}

func TestAThousandNodesShareAContent(t *testing.T) {
	s := openTestStore(t, Options{})
	shared := randomContent(1 << 20)
	digest := resource.DigestOf(shared)
	server, answers, _ := newTestServer(t, s, map[string]bool{digest: true})
	server.o.Allowed = func(context.Context, string, string) (bool, error) { return true, nil }
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range 1000 { // each spec is rendered with it, and each node begins to download it
		_, _, err := s.Put(context.Background(), bytes.NewReader(shared), []string{digest, ""}[i%2])
		require.NoError(t, err)
		require.NoError(t, requestRange(server, rangeMessage(fmt.Sprintf("n%d", i), resource.BlobRequest{Digest: digest, Offset: int64(i) * 1000, Length: resource.MaxBlobRange})))
		require.Len(t, (<-answers).Payload, min(resource.MaxBlobRange, len(shared)-i*1000))
	}
	memory := heap() - before
	disk := int64(0)
	require.NoError(t, filepath.WalkDir(s.o.Dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			info, _ := d.Info()
			disk += info.Size()
		}
		return err
	}))
	t.Logf("1 MiB shared by 1,000 nodes: %d bytes on disk, %d bytes of memory", disk, memory)
	require.Equal(t, int64(1<<20), disk)
	require.Less(t, memory, int64(1<<20)*11/10)
	runtime.KeepAlive(shared)
}

// A blob that is put while it is being removed stays: whoever put it is about to write a reference to it.
func TestABlobThatIsPutWhileItIsRemovedStays(t *testing.T) {
	c := &fakeClock{now: time.Now()}
	var during func()
	s := openTestStore(t, Options{Now: c.Now, Age: time.Hour, Refs: func(context.Context, func(string)) error {
		if during != nil {
			during()
		}
		return nil
	}})
	digest := putContent(t, s, []byte("shared"))
	again := func() {
		_, _, err := s.Put(context.Background(), failingReader{}, digest) // its content is there
		require.NoError(t, err)
	}
	for _, during = range []func(){again, func() { putContent(t, s, []byte("shared")) }} {
		require.ErrorIs(t, s.Remove(context.Background(), digest), resource.Conflict)
		require.Equal(t, []byte("shared"), readContent(t, s, digest))
		c.Add(2 * time.Hour)
		require.NoError(t, s.Collect(context.Background()))
		require.Equal(t, []byte("shared"), readContent(t, s, digest))
	}
	during = nil
	require.NoError(t, s.Remove(context.Background(), digest))
	require.Empty(t, s.List())
	require.Zero(t, s.bytes)
}

// A blob that is put again while a damaged one is read is not taken for the damaged one; and one that a node suspects is not
// taken for granted by who puts it.
func TestABlobThatIsPutWhileItIsVerifiedStays(t *testing.T) {
	c := &fakeClock{now: time.Now()}
	s := openTestStore(t, Options{Now: c.Now})
	body := randomContent(3 << 20)
	digest := putContent(t, s, body)
	sum, err := resource.ParseDigest(digest)
	require.NoError(t, err)
	broken := bytes.Clone(body)
	broken[7] ^= 1
	require.NoError(t, os.WriteFile(blobFile(s, digest), broken, 0o600))

	_, e, err := s.open(digest) // what verify has begun with
	require.NoError(t, err)
	putContent(t, s, body)
	s.quarantine(sum, e, "its content has another digest") // what it finds
	require.Equal(t, body, readContent(t, s, digest))

	require.NoError(t, os.WriteFile(blobFile(s, digest), broken, 0o600))
	c.Add(2 * suspectInterval)
	s.Suspect(digest)
	_, _, err = s.Put(context.Background(), bytes.NewReader(body), digest)
	require.NoError(t, err)
	require.Equal(t, body, readContent(t, s, digest))
	s.verify(context.Background(), <-s.suspects, 0)
	require.Equal(t, body, readContent(t, s, digest))
}

// A blob of a time that has not come, since the clock was set back, is removed Age after the hub has found it.
func TestABlobOfTheFutureIsRemoved(t *testing.T) {
	c := &fakeClock{now: time.Now()}
	s := openTestStore(t, Options{Now: c.Now, Age: time.Hour})
	digest := putContent(t, s, []byte("x"))
	year := c.Now().AddDate(1, 0, 0)
	require.NoError(t, os.Chtimes(blobFile(s, digest), year, year))
	s = openTestStore(t, Options{Dir: s.o.Dir, Now: c.Now, Age: time.Hour})
	c.Add(time.Hour + time.Second)
	require.NoError(t, s.Collect(context.Background()))
	require.Empty(t, s.List())
}
