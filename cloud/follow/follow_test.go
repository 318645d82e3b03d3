// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

const smallSegment = 4 << 10

func openSmall(dir string) (*journal.Journal, error) {
	return journal.Open(journal.Options{Dir: dir, Segment: smallSegment})
}

// blobMap are blobs in memory, named by their contents.
type blobMap struct {
	mu  sync.Mutex
	has map[string]string
}

func (b *blobMap) Has(digest string) (int64, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	text, ok := b.has[digest]
	return int64(len(text)), ok
}

func (b *blobMap) Put(_ context.Context, r io.Reader, want string) (string, int64, error) {
	text, err := io.ReadAll(r)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.has[want] = string(text)
	return want, int64(len(text)), err
}

// rig is a hub's log that is served, and a directory for the copy.
type rig struct {
	t      *testing.T
	source *journal.Journal
	hub    *Server      // of source
	ahead  atomic.Int64 // of its clock, in ns
	dirs   struct{ hub, copy string }
	server *httptest.Server
	blobs  *blobMap
	asked  atomic.Int64
	sever  atomic.Int64 // bytes after which a connection ends; 0: it doesn't
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, blobs: &blobMap{has: map[string]string{}}}
	r.dirs.hub, r.dirs.copy = t.TempDir(), t.TempDir()
	r.open()
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s := r.hub
		serve := s.ServeHTTP
		switch {
		case strings.HasPrefix(req.URL.Path, BlobPath):
			serve = s.ServeBlob
		case req.URL.Path == AppliedPath:
			serve = func(_ http.ResponseWriter, req *http.Request) error { return s.ServeApplied(req, "standby") }
		}
		if err := serve(w, req); err != nil {
			kind := new(resource.Error)
			require.ErrorAs(t, err, &kind)
			http.Error(w, string(kind.Kind)+"|"+err.Error(), http.StatusTeapot)
		}
	}))
	t.Cleanup(r.server.Close)
	return r
}

func (r *rig) open() {
	var err error
	r.source, err = openSmall(filepath.Join(r.dirs.hub, "log"))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = r.source.Close() })
	r.hub = NewServer(ServerOptions{
		Source: journal.SourceOf(r.source), Dir: r.dirs.hub, Files: Files{Sent: []string{"public/*"}, Compared: []string{"*.key"}}, Log: zerolog.Nop(),
		Blobs: func() []string { return []string{"b1"} }, Blob: func(d string) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("content of " + d)), nil },
		Now: func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) },
	})
}

func (r *rig) put(id uint64, value string) {
	require.NoError(r.t, r.source.Sync([]journal.RecordChange{{ID: id, Value: []byte(value)}}))
}

// severedBody ends after some bytes.
type severedBody struct {
	io.ReadCloser
	left int64
}

func (s *severedBody) Read(b []byte) (int, error) {
	if s.left <= 0 {
		return 0, errors.New("severed")
	}
	n, err := s.ReadCloser.Read(b[:min(int64(len(b)), s.left)])
	s.left -= int64(n)
	return n, err
}

func (r *rig) get(ctx context.Context, path string) (io.ReadCloser, error) {
	r.asked.Add(1)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.server.URL+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusTeapot {
		text, _ := io.ReadAll(res.Body)
		kind, why, _ := strings.Cut(string(text), "|")
		return nil, resource.Errorf(resource.ErrorKind(kind), "", "%s", strings.TrimSpace(why))
	}
	if n := r.sever.Load(); n > 0 && !strings.HasPrefix(path, BlobPath) && !strings.HasPrefix(path, AppliedPath) {
		return &severedBody{res.Body, n}, nil
	}
	return res.Body, nil
}

func (r *rig) follow(ctx context.Context, change func(*Options)) error {
	o := Options{
		Dir: r.dirs.copy, LogDir: "log", Server: r.server.URL, Get: r.get, Open: openSmall,
		Files: Files{Sent: []string{"public/*"}, Compared: []string{"*.key"}}, Blobs: r.blobs, Log: zerolog.Nop(),
	}
	if change != nil {
		change(&o)
	}
	return Run(ctx, o)
}

func untilCaughtUp(o *Options) { o.Once = true }

func records(t *testing.T, j *journal.Journal) map[uint64]string {
	all := make(map[uint64]string)
	require.NoError(t, j.Load(func(id uint64, value []byte) error {
		if id>>56 != 0xff {
			all[id] = string(value)
		}
		return nil
	}))
	return all
}

func (r *rig) requireEqual() {
	r.t.Helper()
	j, err := openSmall(filepath.Join(r.dirs.copy, "log"))
	require.NoError(r.t, err)
	defer j.Close()
	require.Equal(r.t, records(r.t, r.source), records(r.t, j))
	o, is, err := journal.CopyIn(j).Origin()
	require.NoError(r.t, err)
	require.True(r.t, is && o.IsWhole())
}

func TestACopyHasTheLogTheFilesAndTheBlobsOfTheHubAndNoKey(t *testing.T) {
	r := newRig(t)
	require.NoError(t, os.MkdirAll(filepath.Join(r.dirs.hub, "public"), 0o700))
	for name, text := range map[string]string{"public/revoked.json": "[]", "secret.key": "secret", "other": "not named"} {
		require.NoError(t, os.WriteFile(filepath.Join(r.dirs.hub, name), []byte(text), 0o600))
	}
	for n := range 300 {
		r.put(uint64(n%50), fmt.Sprint("value ", n))
	}
	require.NoError(t, r.follow(t.Context(), untilCaughtUp))
	r.requireEqual()
	text, err := os.ReadFile(filepath.Join(r.dirs.copy, "public/revoked.json"))
	require.NoError(t, err)
	require.Equal(t, "[]", string(text))
	for _, name := range []string{"secret.key", "other"} {
		require.NoFileExists(t, filepath.Join(r.dirs.copy, name))
	}
	require.Equal(t, "content of b1", r.blobs.has["b1"])
	s, err := ReadState(r.dirs.copy)
	require.NoError(t, err)
	require.Equal(t, []string{"secret.key"}, s.Lacking)
	require.True(t, s.Whole)
	require.Zero(t, s.Behind)
	require.Less(t, s.Lag(time.Now()), time.Minute)
	require.Contains(t, s.String(), "lacking or others than the hub's: secret.key")

	// Once more: what is new, and the key, which was copied by hand.
	require.NoError(t, os.WriteFile(filepath.Join(r.dirs.copy, "secret.key"), []byte("secret"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(r.dirs.hub, "public/revoked.json"), []byte("[n1]"), 0o600))
	r.put(1, "new")
	require.NoError(t, r.follow(t.Context(), untilCaughtUp))
	r.requireEqual()
	text, _ = os.ReadFile(filepath.Join(r.dirs.copy, "public/revoked.json"))
	require.Equal(t, "[n1]", string(text))
	s, err = ReadState(r.dirs.copy)
	require.NoError(t, err)
	require.Empty(t, s.Lacking)
	metrics, err := os.ReadFile(filepath.Join(r.dirs.copy, MetricsFile))
	require.NoError(t, err)
	require.Contains(t, string(metrics), "edgebus_follow_connected 1\n")
}

// The connection ends anywhere, also amid a message; the log is written and compacted meanwhile.
func TestACopyGoesOnOverConnectionsThatEndAnywhere(t *testing.T) {
	r := newRig(t)
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 1))
	for n := range 100 {
		r.put(uint64(n), strings.Repeat("first ", n))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r.sever.Store(5000)
	ended := make(chan error, 1)
	go func() {
		ended <- r.follow(ctx, func(o *Options) { o.Retry = backoff.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond} })
	}()
	for n := range 1500 {
		r.put(uint64(rnd.IntN(200)), strings.Repeat("x", rnd.IntN(100)))
		r.sever.Store(1 + rnd.Int64N(20000))
		if n%500 == 0 { // and the follower comes along
			asked := r.asked.Load()
			require.Eventually(t, func() bool { r.put(1, strings.Repeat("x", 500)); return r.asked.Load() > asked }, 30*time.Second, time.Millisecond)
		}
	}
	r.sever.Store(0)
	require.Eventually(t, func() bool {
		s, err := ReadState(r.dirs.copy)
		return err == nil && s.Whole && s.Error == "" && s.Behind == 0
	}, 30*time.Second, 10*time.Millisecond)
	require.Greater(t, r.asked.Load(), int64(3), "it connected again")
	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, r.follow(t.Context(), untilCaughtUp))
	r.requireEqual()
}

func TestACopyThatWasAwayForTooLongBeginsAnewAndKeepsTheOldOneMeanwhile(t *testing.T) {
	r := newRig(t)
	r.put(1, "first")
	require.NoError(t, r.follow(t.Context(), untilCaughtUp))
	for n := range 3000 {
		r.put(2, strings.Repeat("x", n%200))
	}
	floor, _, _ := journal.SourceOf(r.source).Bounds(t.Context())
	require.Positive(t, floor, "what follows the copy is gone")

	// The new copy is cut short: the old one is there as it was.
	r.sever.Store(600)
	require.Error(t, r.follow(t.Context(), untilCaughtUp), "severed")
	j, err := openSmall(filepath.Join(r.dirs.copy, "log"))
	require.NoError(t, err)
	require.Equal(t, map[uint64]string{1: "first"}, records(t, j))
	require.NoError(t, j.Close())

	r.sever.Store(0)
	require.NoError(t, r.follow(t.Context(), untilCaughtUp))
	r.requireEqual()
	require.NoDirExists(t, filepath.Join(r.dirs.copy, "log.new"))
}

func TestALogThatWasMadeAnewIsRefusedUntilSomebodySaysSo(t *testing.T) {
	r := newRig(t)
	r.put(1, "first")
	require.NoError(t, r.follow(t.Context(), untilCaughtUp))
	require.NoError(t, r.source.Renew())
	r.put(2, "second")
	err := r.follow(t.Context(), nil) // it doesn't try again
	require.ErrorAs(t, err, new(Refused))
	require.ErrorContains(t, err, "made anew")
	require.ErrorContains(t, err, "--anew")
	j, err := openSmall(filepath.Join(r.dirs.copy, "log"))
	require.NoError(t, err)
	require.Equal(t, map[uint64]string{1: "first"}, records(t, j))
	require.NoError(t, j.Close())
	require.NoError(t, r.follow(t.Context(), func(o *Options) { o.Once, o.Anew = true, true }))
	r.requireEqual()
}

func TestAHubThatHasLostItsEndIsRefused(t *testing.T) {
	r := newRig(t)
	r.put(1, "first")
	_, end, err := journal.SourceOf(r.source).Bounds(t.Context())
	require.NoError(t, err)
	r.put(2, "lost")
	require.NoError(t, r.follow(t.Context(), untilCaughtUp))
	require.NoError(t, r.source.Close())
	require.NoError(t, os.Remove(filepath.Join(r.dirs.hub, "log", "confirmed")))
	require.NoError(t, os.Truncate(filepath.Join(r.dirs.hub, "log", "000000000001.log"), int64(uint32(end))))
	r.open()
	err = r.follow(t.Context(), nil)
	require.ErrorAs(t, err, new(Refused))
	require.ErrorContains(t, err, "it has lost what the copy has")
}

func TestTheLogOfAHubIsNeverWrittenOver(t *testing.T) {
	r := newRig(t)
	r.put(1, "first")
	r.dirs.copy = r.dirs.hub
	require.NoError(t, r.source.Close())
	err := r.follow(t.Context(), untilCaughtUp)
	require.ErrorAs(t, err, new(Refused))
	require.ErrorContains(t, err, "is the log of a hub, and no copy")
}

// A process that is killed while the new copy takes the place of the old one leaves one of them.
func TestAReplacementThatIsInterruptedIsEnded(t *testing.T) {
	for _, at := range []string{"old aside", "both there"} {
		t.Run(at, func(t *testing.T) {
			r := newRig(t)
			r.put(1, "first")
			require.NoError(t, r.follow(t.Context(), untilCaughtUp))
			log := filepath.Join(r.dirs.copy, "log")
			require.NoError(t, os.CopyFS(log+".old", os.DirFS(log)))
			if at == "old aside" {
				require.NoError(t, os.Rename(log, log+".new"))
			}
			require.NoError(t, r.follow(t.Context(), untilCaughtUp))
			r.requireEqual()
			require.NoDirExists(t, log+".old")
		})
	}
}

// The hub knows what a copy has from the one who keeps it, also when that one is gone.
func TestAHubKnowsHowOldItsCopiesAre(t *testing.T) {
	r := newRig(t)
	r.put(1, "first")
	require.NoError(t, r.follow(t.Context(), untilCaughtUp))
	require.Empty(t, r.hub.copies.known(time.Now()), "one that comes now and then isn't missed")
	require.Equal(t, followStats{}, r.hub.stats())

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- r.follow(ctx, nil) }()
	require.Eventually(t, func() bool {
		c, is := r.hub.copies.known(time.Now())["standby"]
		return is && r.hub.Source.Behind(c.at) == 0
	}, 30*time.Second, 5*time.Millisecond)
	s := r.hub.stats()
	require.Equal(t, 1, s.connected)
	require.Less(t, s.age, lateAge)
	require.Empty(t, r.hub.Late())

	cancel()
	require.NoError(t, <-ended)
	r.put(2, strings.Repeat("x", 1000))
	require.Eventually(t, func() bool { return r.hub.stats().connected == 0 }, 30*time.Second, 5*time.Millisecond)
	r.ahead.Store(int64(10 * time.Minute))
	s = r.hub.stats()
	require.Greater(t, s.age, 9*time.Minute)
	require.Greater(t, s.behind, int64(1000))
	require.Contains(t, r.hub.Late()["standby"], "was last heard of at ")
	r.ahead.Store(int64(forgetAge + time.Minute))
	require.Empty(t, r.hub.Late(), "it was given up")

	// One that is there and can't keep up; what it says is no more than the truth.
	r.ahead.Store(0)
	say := func(query string) error {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, AppliedPath+query, nil)
		return r.hub.ServeApplied(req, "slow")
	}
	log := fmt.Sprintf("?log=%x", uint64(r.hub.Source.ID()))
	require.NoError(t, say(log+"&at=0&asOf=0"), "it is not whole")
	require.Less(t, r.hub.stats().age, lateAge)
	require.NoError(t, say(fmt.Sprintf("%s&at=0&asOf=%d", log, time.Now().Add(time.Hour).UnixMilli())))
	r.ahead.Store(int64(lateAge + time.Second))
	require.NoError(t, say(log+"&at=0&asOf=0"), "it was begun anew")
	require.Contains(t, r.hub.Late()["slow"], "lacks about ")
	require.NotContains(t, r.hub.Late()["slow"], "heard of")
	require.ErrorIs(t, say("?log=1&at=0&asOf=0"), resource.Conflict)
	require.ErrorIs(t, say(log), resource.Invalid)
}

func TestAHubSendsNoFileOutsideOfACopy(t *testing.T) {
	f := &logFollower{Options: Options{Dir: t.TempDir(), Files: Files{Sent: []string{"public/*"}}}}
	for _, name := range []string{"../public/x", "secret.key", "/etc/passwd", "public/../x", "public/a/b", "log/000000000001.log"} {
		err := f.take(message{kind: kindFile, body: append([]byte(name), 0, 'x')})
		require.ErrorAs(t, err, new(Refused), name)
	}
	require.NoError(t, f.take(message{kind: kindFile, body: []byte("public/x\x00y")}))
	text, err := os.ReadFile(filepath.Join(f.Dir, "public/x"))
	require.NoError(t, err)
	require.True(t, bytes.Equal([]byte("y"), text))
}
