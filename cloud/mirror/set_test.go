// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/test/storetest"
)

// cluster is two hubs: the owner, which is another process after each restart, and one that stands by.
type cluster struct {
	*Set
	mu   sync.Mutex
	feed *Feed // nil: there is no owner
	ctx  context.Context
	stop context.CancelFunc
}

func newCluster(o disk.Options) *cluster {
	c := new(cluster)
	c.Set = New(Options{Copy: func(kind string) Copy { return disk.NewKindMirror(kind, o) }, Dial: func(context.Context) (net.Conn, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.feed == nil {
			return nil, errors.New("no owner")
		}
		here, there := net.Pipe()
		ctx, feed := c.ctx, c.feed
		context.AfterFunc(ctx, func() { _ = there.Close() })
		go func() {
			_ = feed.Serve(ctx, there)
			_ = there.Close()
		}()
		return here, nil
	}})
	return c
}

// await waits until the hub that stands by has what the owner has, which is that of a store from now on.
// startCluster opens the store of an owner, and the cluster that it is in.
func startCluster(t *testing.T) (*disk.Store, *cluster) {
	o := disk.Options{Path: filepath.Join(t.TempDir(), "log")}
	st, err := disk.Open(o)
	require.NoError(t, err)
	c := newCluster(o)
	t.Cleanup(func() { c.Close(); _ = st.Close() })
	return st, c
}

func (c *cluster) await(by *disk.Store, kind string) error {
	c.mu.Lock()
	if c.feed == nil {
		c.feed = &Feed{by, rand.Uint64()}
		c.ctx, c.stop = context.WithCancel(context.Background())
	}
	owner := c.feed.Owner
	c.mu.Unlock()
	c.Begin(kind)
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	rev, changed, _ := by.Changed(kind)
	return c.Await(ctx, kind, owner, changed, rev)
}

func (c *cluster) lost() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.feed != nil {
		c.stop()
		c.feed = nil
	}
}

// mirroredStore is written at the owner, and read at the hub that stands by when that is as far.
type mirroredStore struct {
	*disk.Store
	cluster *cluster
	closed  bool
}

func (s *mirroredStore) await(kind string) error {
	if s.closed {
		return store.ClosedError("the store")
	}
	return s.cluster.await(s.Store, kind)
}

func (s *mirroredStore) Get(ctx context.Context, key store.Key) (store.Object, error) {
	if err := s.await(key.Kind); err != nil {
		return store.Object{}, err
	}
	return s.cluster.Get(ctx, key)
}

func (s *mirroredStore) List(ctx context.Context, kind string, opts store.ListOptions) (store.Page, error) {
	if err := s.await(kind); err != nil {
		return store.Page{}, err
	}
	return s.cluster.List(ctx, kind, opts)
}

func (s *mirroredStore) Watch(ctx context.Context, of store.Key, from uint64) (store.Stream, error) {
	if err := s.await(of.Kind); err != nil {
		return nil, err
	}
	return s.cluster.Watch(ctx, of, from)
}

func (s *mirroredStore) Create(ctx context.Context, o store.Object) (store.Object, error) {
	o, err := s.Store.Create(ctx, o)
	if err == nil {
		err = s.await(o.Kind)
	}
	return o, err
}

func (s *mirroredStore) Update(ctx context.Context, o store.Object, expect uint64) (store.Object, error) {
	o, err := s.Store.Update(ctx, o, expect)
	if err == nil {
		err = s.await(o.Kind)
	}
	return o, err
}

func (s *mirroredStore) UpdateDerived(ctx context.Context, o store.Object, expect uint64) (store.Object, error) {
	o, err := s.Store.UpdateDerived(ctx, o, expect)
	if err == nil {
		err = s.await(o.Kind)
	}
	return o, err
}

func (s *mirroredStore) Delete(ctx context.Context, key store.Key, expect uint64) (store.Object, error) {
	o, err := s.Store.Delete(ctx, key, expect)
	if err == nil {
		err = s.await(o.Kind)
	}
	return o, err
}

func (s *mirroredStore) Close() error {
	s.closed = true
	s.cluster.lost()
	return s.Store.Close()
}

// What every store must do a mirror does, also when the owner has begun anew. What it does better, as it lasts longer than its owner, isn't looked at, nor whether the
// owner has derived statuses that nobody has read.
func TestConformance(t *testing.T) {
	clusters := map[string]*cluster{}
	storetest.Run(t, func(t testing.TB, dir string, limits storetest.Limits) store.Store {
		o := disk.Options{Path: filepath.Join(dir, "log"), Tombstones: limits.Tombstones, WatchBuffer: limits.WatchBuffer}
		st, err := disk.Open(o)
		require.NoError(t, err)
		s := &mirroredStore{Store: st, cluster: clusters[dir]}
		if s.cluster == nil || limits != (storetest.Limits{}) {
			s.cluster = newCluster(o)
			t.Cleanup(s.cluster.Close)
			clusters[dir] = s.cluster
			for _, kind := range []string{"Device", "Node"} { // from the beginning on
				require.NoError(t, s.await(kind))
			}
		}
		return s
	}, "pages that are no longer known", "closed", "watch is told Gone", "derived statuses after reopen")
}

// A mirror is there for as long as somebody watches it, or has read it not long ago.
func TestAMirrorThatNobodyReadsIsGivenUp(t *testing.T) {
	st, c := startCluster(t)
	c.o.Unread = 20 * time.Millisecond
	dialed, dial := make(chan struct{}), c.o.Dial
	c.o.Dial = func(ctx context.Context) (net.Conn, error) {
		select {
		case dialed <- struct{}{}:
		default:
		}
		return dial(ctx)
	}
	node, err := st.Create(t.Context(), store.Object{Key: store.Key{Kind: "Node", Name: "n"}, Data: []byte("{}")})
	require.NoError(t, err)
	var watch store.Stream
	require.Eventually(t, func() bool { // it may be given up before the watch is there
		if err = c.await(st, "Node"); err == nil {
			watch, err = c.Watch(t.Context(), store.Key{Kind: "Node"}, node.Rev)
		}
		return err == nil
	}, time.Minute, time.Millisecond)
	for range 5 {
		<-dialed // it goes on after each time
	}
	require.Equal(t, 1, c.Objects())
	watch.Close()
	require.Eventually(t, func() bool { return c.Objects() == 0 }, time.Minute, time.Millisecond)
}

// A mirror that isn't where the owner is in time isn't offered before the owner is heard again.
func TestAMirrorThatIsLateIsNone(t *testing.T) {
	st, c := startCluster(t)
	require.NoError(t, c.await(st, "Node"))
	owner, _ := c.Of("Node")
	require.Equal(t, c.feed.Owner, owner)
	ctx, stop := context.WithTimeout(t.Context(), time.Millisecond)
	defer stop()
	require.ErrorIs(t, c.Await(ctx, "Node", owner, 1<<40, 1<<40), context.DeadlineExceeded)
	late, _ := c.Of("Node")
	require.Zero(t, late)
	_, err := st.Create(t.Context(), store.Object{Key: store.Key{Kind: "Node", Name: "n"}, Data: []byte("{}")})
	require.NoError(t, err)
	require.NoError(t, c.await(st, "Node"))
	again, _ := c.Of("Node")
	require.Equal(t, owner, again)
}

// heldStore has watches whose events come when they are let.
type heldStore struct {
	*disk.Store
	next chan struct{}
}

type heldStream struct {
	store.Stream
	next chan struct{}
}

func (s heldStore) Watch(ctx context.Context, of store.Key, from uint64) (store.Stream, error) {
	stream, err := s.Store.Watch(ctx, of, from)
	return heldStream{stream, s.next}, err
}

func (s heldStream) Next(ctx context.Context) ([]store.Event, error) {
	<-s.next
	return s.Stream.Next(ctx)
}

// An object that has changed again since comes with its last change, and so after others that were written later than it was made: until then the mirror lacks what its
// owner had.
func TestAMirrorHasAllOnlyWhenItHasCaughtUp(t *testing.T) {
	st, c := startCluster(t)
	node := store.Object{Key: store.Key{Kind: "Node", Name: "before"}, Data: []byte("{}")}
	_, err := st.Create(t.Context(), node)
	require.NoError(t, err)
	require.NoError(t, c.await(st, "Node"))
	c.lost()
	node.Name = "twice"
	twice, err := st.Create(t.Context(), node)
	require.NoError(t, err)
	for i := range 256 { // as many as a watch returns at a time
		node.Name = fmt.Sprint("n", i)
		_, err := st.Create(t.Context(), node)
		require.NoError(t, err)
	}
	rev, changed, _ := st.Changed("Node")
	twice.Data = []byte(`{"a":1}`)
	_, err = st.Update(t.Context(), twice, 0)
	require.NoError(t, err)

	held := heldStore{st, make(chan struct{})}
	c.mu.Lock()
	c.feed = &Feed{held, 7}
	c.ctx, c.stop = context.WithCancel(t.Context())
	c.mu.Unlock()
	defer c.lost()
	held.next <- struct{}{}
	k, err := c.of("Node")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, has := k.Extent()
		return has >= changed
	}, time.Minute, time.Millisecond)
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	require.ErrorIs(t, c.Await(ctx, "Node", 7, changed, rev), context.DeadlineExceeded)
	close(held.next)
	require.NoError(t, c.Await(t.Context(), "Node", 7, changed, rev))
	_, err = c.Get(t.Context(), twice.Key)
	require.NoError(t, err)
}

// What is told at a time has a bound, however large objects are, and there is everything up to its revision only with the last part.
func TestFramesHaveABound(t *testing.T) {
	event := func(size int) store.Event {
		return store.Event{Object: store.Object{Data: make([]byte, size/2), Status: make([]byte, size/2)}}
	}
	for name, c := range map[string]struct {
		sizes []int
		want  []int // events of each part
	}{
		"nothing":                         {nil, []int{0}},
		"as many as fit":                  {[]int{frameBytes / 2, frameBytes / 2}, []int{2}},
		"one that is too large by itself": {[]int{10, 2 * frameBytes, 10}, []int{1, 1, 1}},
		"more than fit":                   {[]int{frameBytes / 2, frameBytes / 2, 2, frameBytes - 2, 2}, []int{2, 2, 1}},
	} {
		whole := frame{Listed: true, Whole: true, Rev: 7}
		for _, size := range c.sizes {
			whole.Events = append(whole.Events, event(size))
		}
		var has []int
		for part := range whole.parts() {
			has = append(has, len(part.Events))
			require.True(t, part.Listed)
			require.Equal(t, len(has) == len(c.want), part.Whole, name)
			require.Equal(t, part.Whole, part.Rev == 7, name)
			require.Equal(t, part.Whole, !part.More, name)
		}
		require.Equal(t, c.want, has, name)
	}
}
