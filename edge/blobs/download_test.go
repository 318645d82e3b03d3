// SPDX-License-Identifier: Apache-2.0

package blobs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const testTimeout = 20 * time.Second

// fakeHub answers requests for ranges, as the hub does.
type fakeHub struct {
	mu      sync.Mutex
	d       *Downloads
	blobs   map[string][]byte
	refuse  map[string]resource.ErrorKind
	change  func(r resource.BlobRequest, content []byte) []byte // what the network or the disk makes of an answer
	drop    func(r resource.BlobRequest) bool                   // the request is never answered
	sent    int64
	asked   []resource.BlobRequest
	connect int
	cuts    int
	cut     chan struct{} // ends the present connection
	gone    bool          // Connect returns at once
}

func (h *fakeHub) run(ctx context.Context) error {
	for ctx.Err() == nil {
		h.mu.Lock()
		if h.gone {
			h.mu.Unlock()
			return errors.New("gave up after 3 attempts")
		}
		h.connect++
		cut := h.cut
		h.mu.Unlock()
		h.d.Connected(&hubConnection{hub: h, cut: cut})
		select {
		case <-ctx.Done():
		case <-cut:
		}
		h.d.Disconnected()
	}
	return nil
}

func (h *fakeHub) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cuts++
	close(h.cut)
	h.cut = make(chan struct{})
}

type hubConnection struct {
	hub *fakeHub
	cut chan struct{}
}

func (c *hubConnection) Reconnect(error) { c.hub.reset() }

func (c *hubConnection) PublishAsync(m client.Message, done func(error)) {
	h := c.hub
	select {
	case <-c.cut:
		done(client.ErrConnectionLost)
		return
	default:
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var r resource.BlobRequest
	if err := json.Unmarshal(m.Payload, &r); err != nil || m.Topic != "v1/nodes/n1/blobs/get" || m.ResponseTopic != h.d.Filter() {
		panic(fmt.Sprint(err, m))
	}
	done(nil)
	h.asked = append(h.asked, r)
	if h.drop != nil && h.drop(r) {
		return
	}
	a := client.Message{Topic: m.ResponseTopic, Correlation: m.Correlation}
	content, ok := h.blobs[r.Digest]
	kind := h.refuse[r.Digest]
	if !ok && kind == "" {
		kind = resource.NotFound
	}
	if kind != "" {
		a.User = []client.UserProperty{{Key: topics.PropCode, Value: string(kind)}, {Key: topics.PropError, Value: "the hub says no"}}
	} else {
		a.Payload = content[min(int(r.Offset), len(content)):min(int(r.Offset)+r.Length, len(content))]
		if h.change != nil {
			a.Payload = h.change(r, bytes.Clone(a.Payload))
		}
		h.sent += int64(len(a.Payload))
	}
	h.d.Received(a)
}

type unlimitedBudget struct{}

func (unlimitedBudget) Wait() time.Duration { return 0 }
func (unlimitedBudget) Download(int)        {}

// testNode is what a test has of a core.
type testNode struct {
	*Downloads
	hub  *fakeHub
	o    Options
	stop func()
}

func newTestNode(t *testing.T, o Options, blobs ...[]byte) *testNode {
	t.Helper()
	h := &fakeHub{blobs: map[string][]byte{}, refuse: map[string]resource.ErrorKind{}, cut: make(chan struct{})}
	for _, b := range blobs {
		h.blobs[resource.DigestOf(b)] = b
	}
	o.Node, o.Connect = "n1", h.run
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.Bytes == 0 {
		o.Bytes = 1 << 30
	}
	if o.Budget == nil {
		o.Budget = unlimitedBudget{}
	}
	n := &testNode{hub: h, o: o}
	n.start(t)
	t.Cleanup(func() { n.stop() })
	return n
}

func (n *testNode) start(t *testing.T) {
	t.Helper()
	d, err := New(n.o)
	require.NoError(t, err)
	n.Downloads, n.hub.d = d, d
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- d.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

func (n *testNode) get(t *testing.T, content []byte) (string, error) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), testTimeout)
	defer stop()
	path, err := n.Want(ctx, resource.DigestOf(content), int64(len(content)))
	if err == nil {
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, got), "%d bytes, %d wanted", len(got), len(content))
	}
	return path, err
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func TestABlobIsDownloadedOnce(t *testing.T) {
	content := randomBytes(300_001)
	n := newTestNode(t, Options{}, content, nil, []byte("x"))
	for _, c := range [][]byte{content, content, {}, []byte("x")} {
		_, err := n.get(t, c)
		require.NoError(t, err)
	}
	require.Equal(t, int64(300_002), n.hub.sent)
	n.stop()
	n.start(t) // it is there after a restart, too
	_, err := n.get(t, content)
	require.NoError(t, err)
	require.Equal(t, int64(300_002), n.hub.sent)
}

func TestManyWaitForOneDownload(t *testing.T) {
	content := randomBytes(200_000)
	n := newTestNode(t, Options{}, content)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if _, err := n.get(t, content); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.Equal(t, int64(200_000), n.hub.sent)
}

func TestADownloadGoesOnWhereItStopped(t *testing.T) {
	content := randomBytes(2 << 20)
	n := newTestNode(t, Options{}, content)
	var mu sync.Mutex
	stopAt := int64(100_000)
	n.hub.drop = func(r resource.BlobRequest) bool { // as when the link is cut: nothing comes any more
		mu.Lock()
		defer mu.Unlock()
		return r.Offset > stopAt
	}
	restarts := 0
	for ; stopAt < 2<<20; restarts++ {
		got := make(chan error, 1)
		go func() {
			_, err := n.get(t, content)
			got <- err
		}()
		part := filepath.Join(n.o.Dir, "downloads", strings.TrimPrefix(resource.DigestOf(content), "sha256:")+partSuffix)
		require.Eventually(t, func() bool {
			info, err := os.Stat(part)
			return err == nil && info.Size() >= stopAt
		}, testTimeout, time.Millisecond)
		if restarts%2 == 0 {
			n.stop()
			mu.Lock()
			stopAt += 100_000
			mu.Unlock()
			require.Error(t, <-got)
			n.start(t)
			continue
		}
		mu.Lock()
		stopAt += 100_000
		mu.Unlock()
		n.hub.reset()
		require.Eventually(t, func() bool {
			info, err := os.Stat(part)
			return err != nil || info.Size() >= min(stopAt, 2<<20)
		}, testTimeout, time.Millisecond)
		n.stop()
		<-got
		n.start(t)
	}
	_, err := n.get(t, content)
	require.NoError(t, err)
	require.Greater(t, restarts, 9)
	require.LessOrEqual(t, n.hub.sent, int64(2<<20)+int64(20*maxWindow))
	require.Less(t, n.hub.sent, int64(2<<20)*105/100)
}

func TestAContentWithAnotherDigestIsNeverShown(t *testing.T) {
	content := randomBytes(100_000)
	n := newTestNode(t, Options{}, content)
	flips := 2
	n.hub.change = func(r resource.BlobRequest, c []byte) []byte {
		if flips > 0 && r.Offset+int64(r.Length) == int64(len(content)) {
			flips--
			c[0] ^= 1
		}
		return c
	}
	_, err := n.get(t, content)
	require.NoError(t, err)
	damaged := 0
	for _, r := range n.hub.asked {
		if r.Damaged {
			require.Zero(t, r.Offset)
			damaged++
		}
	}
	require.Equal(t, 2, damaged, "the hub is told each time")

	flips = 1000
	another := randomBytes(50_000)
	n.hub.blobs[resource.DigestOf(another)] = randomBytes(50_000)
	_, err = n.get(t, another)
	require.ErrorIs(t, err, resource.Internal)
	require.ErrorContains(t, err, "another digest 3 times")
	require.Eventually(t, func() bool { return n.Stats().Bytes == 100_000 }, testTimeout, time.Millisecond)
	entries, err := os.ReadDir(filepath.Join(n.o.Dir, "downloads"))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing is left of it")
}

func TestWhatTheHubRefusesIsSaid(t *testing.T) {
	n := newTestNode(t, Options{})
	content := randomBytes(1000)
	_, err := n.get(t, content)
	require.ErrorIs(t, err, resource.NotFound)
	require.ErrorContains(t, err, "the hub says no")
	n.hub.mu.Lock()
	n.hub.refuse[resource.DigestOf(content)] = resource.Forbidden
	n.hub.mu.Unlock()
	_, err = n.get(t, content)
	require.ErrorIs(t, err, resource.Forbidden)

	ctx := context.Background()
	for name, r := range map[string]resource.BlobRequest{
		"digest": {Digest: "sha256:1", Size: 1}, "size": {Digest: resource.DigestOf(content)},
		"not the size": {Digest: resource.DigestOf(nil), Size: 5},
	} {
		_, err = n.Want(ctx, r.Digest, r.Size)
		require.ErrorIs(t, err, resource.Invalid, name)
		require.ErrorContains(t, err, name)
	}
	n.hub.mu.Lock()
	n.hub.blobs[resource.DigestOf(content)], n.hub.refuse = content, nil
	n.hub.mu.Unlock()
	_, err = n.Want(ctx, resource.DigestOf(content), 1001)
	require.ErrorIs(t, err, resource.Invalid)
	require.ErrorContains(t, err, "1000 bytes at the hub, and not 1001")
	_, err = n.get(t, content)
	require.NoError(t, err)
	_, err = n.Want(ctx, resource.DigestOf(content), 1001)
	require.ErrorIs(t, err, resource.Invalid)
	_, err = n.get(t, content)
	require.NoError(t, err, "it is still there")
}

func TestAHubThatIsBusyIsAskedAgain(t *testing.T) {
	content := randomBytes(1000)
	n := newTestNode(t, Options{}, content)
	n.hub.refuse[resource.DigestOf(content)] = resource.Unavailable
	got := make(chan error, 1)
	go func() {
		_, err := n.get(t, content)
		got <- err
	}()
	require.Eventually(t, func() bool {
		n.hub.mu.Lock()
		defer n.hub.mu.Unlock()
		return len(n.hub.asked) > 1
	}, testTimeout, time.Millisecond)
	n.hub.mu.Lock()
	delete(n.hub.refuse, resource.DigestOf(content))
	n.hub.mu.Unlock()
	require.NoError(t, <-got)
}

func TestWithoutAHubItIsSaidAtOnce(t *testing.T) {
	n := newTestNode(t, Options{})
	n.hub.mu.Lock()
	n.hub.gone = true
	n.hub.mu.Unlock()
	_, err := n.get(t, randomBytes(10))
	require.ErrorIs(t, err, resource.Unavailable)
	require.ErrorContains(t, err, "gave up")
	n.stop()
	n.o.Connect = nil
	n.start(t)
	_, err = n.get(t, randomBytes(10))
	require.ErrorContains(t, err, "works alone")
}

func TestALargeDownloadDoesNotHoldUpASmallOne(t *testing.T) {
	large, small := randomBytes(1<<20), randomBytes(5000)
	n := newTestNode(t, Options{}, large, small)
	var mu sync.Mutex
	held := true
	n.hub.drop = func(r resource.BlobRequest) bool { // the large one stands still after its first half
		mu.Lock()
		defer mu.Unlock()
		return held && r.Digest == resource.DigestOf(large) && r.Offset > 1<<19
	}
	got := make(chan error, 1)
	go func() {
		_, err := n.get(t, large)
		got <- err
	}()
	require.Eventually(t, func() bool { return n.Stats().Received > 1<<18 }, testTimeout, time.Millisecond)
	_, err := n.get(t, small)
	require.NoError(t, err)
	require.Empty(t, got)
	mu.Lock()
	held = false
	mu.Unlock()
	n.hub.reset()
	require.NoError(t, <-got)
}

func TestLongUnusedBlobsMakeRoom(t *testing.T) {
	var mu sync.Mutex
	now := time.Now()
	later := func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(d)
	}
	a, b, c, huge := randomBytes(400), randomBytes(401), randomBytes(402), randomBytes(1001)
	n := newTestNode(t, Options{Bytes: 1000, Now: func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}}, a, b, c, huge)
	pathA, err := n.get(t, a)
	require.NoError(t, err)
	later(time.Second)
	pathB, err := n.get(t, b)
	require.NoError(t, err)
	_, err = n.get(t, c)
	require.ErrorIs(t, err, resource.Quota, "both are in use")
	require.ErrorContains(t, err, "limits.blobs.bytes")
	later(inUseTime + time.Minute)
	_, err = n.get(t, a)
	require.NoError(t, err)
	_, err = n.get(t, c)
	require.NoError(t, err)
	require.FileExists(t, pathA)
	require.NoFileExists(t, pathB)
	_, err = n.get(t, huge)
	require.ErrorIs(t, err, resource.Quota)
	require.Equal(t, int64(802), n.Stats().Bytes)
}

func TestADamagedFileIsDownloadedAgain(t *testing.T) {
	content := randomBytes(5000)
	n := newTestNode(t, Options{}, content)
	path, err := n.get(t, content)
	require.NoError(t, err)
	n.stop()
	broken := bytes.Clone(content)
	broken[77] ^= 1
	require.NoError(t, os.WriteFile(path, broken, 0o600))
	n.start(t)
	_, err = n.get(t, content)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	_, err = n.get(t, content)
	require.NoError(t, err)
}

// meteredBudget is a budget that says when nothing is left.
type meteredBudget struct {
	mu     sync.Mutex
	left   int
	waited bool
}

func (m *meteredBudget) Wait() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left <= 0 {
		m.waited = true
		m.left += 20_000
		return time.Millisecond
	}
	return 0
}

func (m *meteredBudget) Download(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left -= n
}

func TestADownloadWaitsForTheBudget(t *testing.T) {
	content, budget := randomBytes(100_000), &meteredBudget{}
	n := newTestNode(t, Options{Budget: budget}, content)
	_, err := n.get(t, content)
	require.NoError(t, err)
	budget.mu.Lock()
	defer budget.mu.Unlock()
	require.True(t, budget.waited)
}

type recordingTree struct{ got []string }

func (b *recordingTree) Publish(m broker.Message, done func(error)) {
	b.got = append(b.got, m.Topic)
	done(nil)
}

func (b *recordingTree) Retained(string) func(int) []broker.Message { return nil }

func TestAnAgentIsAnsweredOnItsResponseTopic(t *testing.T) {
	content := randomBytes(100_000)
	answers, rest := make(chan broker.Message, 1000), &recordingTree{}
	n := newTestNode(t, Options{Publish: func(m broker.Message) { answers <- m }, Tree: rest}, content)
	ask := func(payload, reply string) error {
		got := make(chan error, 1)
		n.Publish(broker.Message{Topic: "v1/nodes/n1/blobs/get", Payload: []byte(payload), Props: broker.Properties{ResponseTopic: reply, Correlation: []byte("c")}},
			func(err error) { got <- err })
		return <-got
	}
	const reply = "v1/nodes/n1/blobs/answers/me"
	last := func() (a resource.BlobAnswer) {
		for received := int64(0); !a.Done(); {
			m := <-answers
			require.Equal(t, reply, m.Topic)
			require.Equal(t, []byte("c"), m.Props.Correlation)
			a = resource.BlobAnswer{}
			require.NoError(t, json.Unmarshal(m.Payload, &a))
			require.GreaterOrEqual(t, a.Received, received)
			received = a.Received
		}
		return a
	}
	want := fmt.Sprintf(`{"digest":%q,"size":100000}`, resource.DigestOf(content))
	require.NoError(t, ask(want, reply))
	a := last()
	require.Empty(t, a.Error)
	got, err := os.ReadFile(a.Path)
	require.NoError(t, err)
	require.Equal(t, content, got)
	require.True(t, filepath.IsAbs(a.Path))
	require.NoError(t, ask(strings.Replace(want, "100000", "99999", 1), reply))
	require.Equal(t, string(resource.Invalid), last().Reason)
	for payload, reply := range map[string]string{"{": reply, `{"digest":"x","size":1}`: reply, want: "reply/x", want + " ": "v1/nodes/n2/blobs/answers/me"} {
		require.ErrorIs(t, ask(payload, reply), resource.Invalid)
	}
	n.Publish(broker.Message{Topic: "v1/nodes/n1/status"}, func(error) {})
	require.Equal(t, []string{"v1/nodes/n1/status"}, rest.got)
}

func TestErrorsOfTheDiskHaveAKind(t *testing.T) {
	require.ErrorIs(t, toUnavailable(syscall.ENOSPC), resource.Unavailable)
	require.ErrorIs(t, toUnavailable(resource.Errorf(resource.Quota, "", "x")), resource.Quota)
}

// TestFlowKeepsTheQueueShort simulates a link: its rate in bytes a millisecond, and its round-trip time.
func TestFlowKeepsTheQueueShort(t *testing.T) {
	for _, link := range []struct {
		name        string
		rate        float64 // bytes a millisecond
		rtt, jitter float64 // ms
		share, late float64 // of the rate at least, and the queue at most, in ms
	}{
		{"2 Mbit/s, 40 ms", 250, 40, 0, 0.7, 20},
		{"2 Mbit/s, 40 ms and up to 30 ms more", 250, 40, 30, 0.5, 50},
		{"10 Mbit/s, 20 ms", 1250, 20, 0, 0.7, 12},
		{"64 kbit/s, 100 ms", 8, 100, 0, 0.7, 300}, // one of the smallest ranges takes 128 ms
		{"1 Gbit/s, 1 ms", 125_000, 1, 0, 0.2, 5},
	} {
		var f flowControl
		f.reset()
		var now, free, worst float64
		type flight struct {
			n        int
			sent, at float64
		}
		var flying []flight
		chance := mathrand.New(mathrand.NewPCG(1, 2))
		at := func(ms float64) time.Time { return time.UnixMicro(int64(ms * 1000)) }
		total, counted := 0, 0.0
		for now < 30_000 {
			for n := f.length(); f.room(n); n = f.length() {
				f.sent(n)
				start := max(free, now+link.rtt/2) // the range leaves the hub
				if now > 5000 {
					worst = max(worst, start+float64(n)/link.rate-(now+link.rtt/2))
				}
				free = start + float64(n)/link.rate
				flying = append(flying, flight{n, now, free + link.rtt/2 + chance.Float64()*link.jitter})
			}
			next := flying[0]
			flying = flying[1:]
			now = max(now, next.at) // in order
			f.received(next.n, time.Duration((now-next.sent)*float64(time.Millisecond)), at(now))
			if now > 5000 {
				total += next.n
				counted = now - 5000
			}
		}
		share := float64(total) / counted / link.rate
		if link.rate > 10_000 { // the window is what bounds it
			share *= link.rate / (maxWindow / link.rtt)
		}
		t.Logf("%s: %.0f %% of the link, queue at most %.1f ms, window %d", link.name, share*100, worst, f.window)
		require.GreaterOrEqual(t, share, link.share, link.name)
		require.LessOrEqual(t, worst, link.late, link.name)
	}
}

// The digest of a complete blob is compared beside the loop: whoever wants another blob doesn't wait for it.
func TestAnotherBlobIsServedWhileOneIsVerified(t *testing.T) {
	large, small := randomBytes(5000), randomBytes(100)
	n := newTestNode(t, Options{}, large, small)
	path, err := n.get(t, large)
	require.NoError(t, err)
	n.stop()
	require.NoError(t, os.Remove(path)) // a pipe holds who reads it until the test writes
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	held := &blobFile{size: int64(len(large)), used: time.Now()}
	n.start(t)
	wait := func(f func()) {
		done := make(chan struct{})
		n.post(func() { f(); close(done) })
		<-done
	}
	wait(func() { n.files.complete[resource.DigestOf(large)] = held })
	answers := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := n.Want(t.Context(), resource.DigestOf(large), int64(len(large)))
			answers <- err
		}()
	}
	require.Eventually(t, func() (both bool) {
		wait(func() { both = len(n.verifying[resource.DigestOf(large)]) == 2 })
		return both
	}, testTimeout, time.Millisecond)
	_, err = n.get(t, small)
	require.NoError(t, err)
	pipe, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = pipe.Write(large)
	require.NoError(t, err)
	require.NoError(t, os.Rename(path, path+".pipe"))
	require.NoError(t, os.WriteFile(path, large, 0o600)) // what use looks at
	require.NoError(t, pipe.Close())
	for range 2 {
		require.NoError(t, <-answers)
	}
	require.Equal(t, int64(len(large)+len(small)), n.hub.sent, "it was not downloaded again")
}

// What is on disk counts, whatever fails: a part that can't be opened, or a file that can't be removed.
func TestWhatIsOnDiskCounts(t *testing.T) {
	dir := t.TempDir()
	digest, other := resource.DigestOf([]byte("a")), resource.DigestOf([]byte("b"))
	now := time.Now()
	open := func() *blobFiles {
		f, err := openBlobFiles(dir, 1000, func() time.Time { return now })
		require.NoError(t, err)
		return f
	}
	f := open()
	part := f.path(digest) + partSuffix
	require.NoError(t, os.WriteFile(part, make([]byte, 400), 0o600))
	f = open()
	require.EqualValues(t, 400, f.bytes)
	require.NoError(t, os.Remove(part))
	require.NoError(t, os.MkdirAll(filepath.Join(part, "full"), 0o700)) // nobody can open or remove it
	_, _, err := f.begin(digest, 500)
	require.Error(t, err)
	require.EqualValues(t, 400, f.bytes)
	now = now.Add(time.Hour)
	_, _, err = f.begin(other, 700)
	require.ErrorIs(t, err, resource.Quota, "the part can't be removed")
	require.EqualValues(t, 400, f.bytes)
	require.NoError(t, os.RemoveAll(part))
	p, _, err := f.begin(other, 700)
	require.NoError(t, err)
	require.EqualValues(t, 700, f.bytes)
	require.NoError(t, p.Close())
}

// A file of a time that has not come, since the clock was set back, makes room like any other.
func TestABlobOfTheFutureMakesRoom(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	f, err := openBlobFiles(dir, 1000, func() time.Time { return now })
	require.NoError(t, err)
	path := f.path(resource.DigestOf([]byte("a")))
	require.NoError(t, os.WriteFile(path, make([]byte, 600), 0o600))
	year := now.AddDate(1, 0, 0)
	require.NoError(t, os.Chtimes(path, year, year))
	f, err = openBlobFiles(dir, 1000, func() time.Time { return now })
	require.NoError(t, err)
	require.ErrorIs(t, f.makeRoom(600), resource.Quota, "it may have been used just now")
	now = now.Add(inUseTime + time.Second)
	require.NoError(t, f.makeRoom(600))
	require.NoFileExists(t, path)
}

// The error about a blob of another size has that size.
func TestTheSizeAtTheHubIsSaid(t *testing.T) {
	content := randomBytes(100_000)
	n := newTestNode(t, Options{}, content)
	_, err := n.Want(t.Context(), resource.DigestOf(content), 100_007)
	require.ErrorContains(t, err, "the blob has 100000 bytes at the hub, and not 100007")
}
