// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/edgebus/edgebus/test/stand"
)

// requestRecorder counts what an informer asks for.
type requestRecorder struct {
	next           http.RoundTripper
	lists, watches atomic.Int64
}

// RoundTrip counts a request and sends it. A watch that begins with all there is counts as a list. A hub that is killed either
// refuses a connection or resets it, as its kernel has got to; an informer goes on with its watch after the one and lists again
// after the other, whatever the hub would have answered. So both are a refusal here.
func (r *requestRecorder) RoundTrip(req *http.Request) (*http.Response, error) {
	q := req.URL.Query()
	if q.Get("watch") == "" || q.Get("sendInitialEvents") == "true" || q.Get("resourceVersion") == "" {
		r.lists.Add(1)
	} else {
		r.watches.Add(1)
	}
	resp, err := r.next.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", syscall.ECONNREFUSED, err)
	}
	return resp, nil
}

// eventJournal is what an informer told: the newest revision of each object, and what was wrong.
type eventJournal struct {
	mu     sync.Mutex
	newest map[string]uint64
	gone   map[string]bool
	faults []string
}

func (j *eventJournal) note(object any, gone bool) {
	if lost, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = lost.Obj
	}
	o := object.(*unstructured.Unstructured)
	rev, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil || rev <= j.newest[o.GetName()] {
		j.faults = append(j.faults, fmt.Sprintf("%s: %q after %d", o.GetName(), o.GetResourceVersion(), j.newest[o.GetName()]))
	}
	j.newest[o.GetName()], j.gone[o.GetName()] = rev, gone
}

func (j *eventJournal) live() map[string]string {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := make(map[string]string, len(j.newest))
	for name, rev := range j.newest {
		if !j.gone[name] {
			out[name] = strconv.FormatUint(rev, 10)
		}
	}
	return out
}

// deleted is the number of objects that the informer told to be deleted.
func (j *eventJournal) deleted() (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, gone := range j.gone {
		if gone {
			n++
		}
	}
	return n
}

// of is the newest revision of an object; 0: it was not told of.
func (j *eventJournal) of(name string) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.newest[name]
}

// An informer, which keeps a copy of all objects by one list and one watch, follows changes through a
// hub that is killed in their middle: it goes on where it was, and misses nothing.
func TestInformerFollowsThroughARestart(t *testing.T) {
	const objects, changes = 10_000, 1_000
	s := stand.New(t, 1)
	s.Up("hub")
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	c := newDynamicClient(t, s, nil)
	name := func(i int) string { return fmt.Sprintf("device-%05d", i) }
	require.NoError(t, inParallel(objects, func(i int) error {
		_, err := c.Create(ctx, newDevice(name(i)), metav1.CreateOptions{})
		return err
	}))

	counted := new(requestRecorder)
	seen := &eventJournal{newest: make(map[string]uint64), gone: make(map[string]bool)}
	informer := startInformer(ctx, t, newDynamicClient(t, s, func(next http.RoundTripper) http.RoundTripper {
		counted.next = next
		return counted
	}), seen)
	require.True(t, cache.WaitForCacheSync(ctx.Done(), informer.HasSynced))
	require.Len(t, informer.GetStore().ListKeys(), objects)
	require.EqualValues(t, 1, counted.lists.Load())

	// One change in ten deletes an object, and one makes another. What was deleted is known to the hub that goes on by its revision
	// alone: a watch from before that revision is Gone, and the informer lists again. So all deletions before the crash are
	// awaited, and around it there are none.
	const calm, again = 3 * changes / 10, 7 * changes / 10
	change := func(i int) error {
		switch {
		case i%10 == 3 && (i < calm || i >= again):
			err := c.Delete(ctx, name(i), metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil // an answer was lost
			}
			return err
		case i%10 == 7:
			_, err := c.Create(ctx, newDevice(name(objects+i)), metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		}
		patch := fmt.Sprintf(`{"metadata":{"labels":{"change":"%d"}}}`, i)
		_, err := c.Patch(ctx, name(i/20*20), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	changeAll := func(from, to int) error {
		return inParallel(to-from, func(i int) error {
			return retryRefused(ctx, func() error { return change(from + i) })
		})
	}
	require.NoError(t, changeAll(0, calm))
	s.Eventually(waitTimeout, func() error {
		if deleted := seen.deleted(); deleted < calm/10 {
			return fmt.Errorf("the informer told of %d deletions of %d", deleted, calm/10)
		}
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- changeAll(calm, again) }()
	s.Eventually(waitTimeout, func() error {
		if seen.of(name(objects+calm+7)) == 0 {
			return errors.New("no change was seen since the deletions")
		}
		return nil
	})
	require.NoError(t, s.Crash("hub"))
	s.Up("hub")
	require.NoError(t, <-ended)
	require.NoError(t, changeAll(again, changes))

	s.Eventually(waitTimeout, func() error {
		want := latestVersions(ctx, t, c) // each time: the hub may still be writing statuses
		if got := seen.live(); len(got) != len(want) {
			return fmt.Errorf("the informer told of %d objects; there are %d", len(got), len(want))
		}
		for name, rev := range seen.live() {
			if rev != want[name] {
				return fmt.Errorf("the informer told of %s at %s; it is at %q", name, rev, want[name])
			}
		}
		for _, o := range informer.GetStore().List() {
			if o := o.(*unstructured.Unstructured); o.GetResourceVersion() != want[o.GetName()] {
				return fmt.Errorf("the informer has %s at %s; it is at %q", o.GetName(), o.GetResourceVersion(), want[o.GetName()])
			}
		}
		return nil
	})
	require.Empty(t, seen.faults)
	require.EqualValues(t, 1, counted.lists.Load(), "after the restart it went on")
	require.Greater(t, counted.watches.Load(), int64(0))
}

// startInformer starts an informer that ends with the test.
func startInformer(ctx context.Context, t *testing.T, c dynamic.ResourceInterface, seen *eventJournal) cache.SharedIndexInformer {
	t.Helper()
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, o)
		},
	}, &unstructured.Unstructured{}, 0, cache.Indexers{})
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { seen.note(o, false) },
		UpdateFunc: func(_, o any) { seen.note(o, false) },
		DeleteFunc: func(o any) { seen.note(o, true) },
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		informer.RunWithContext(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return informer
}

// latestVersions is every object's revision, as a list says it now.
func latestVersions(ctx context.Context, t *testing.T, c dynamic.ResourceInterface) map[string]string {
	t.Helper()
	out := make(map[string]string)
	for from := ""; ; {
		page, err := c.List(ctx, metav1.ListOptions{Limit: 2000, Continue: from})
		require.NoError(t, err)
		for _, o := range page.Items {
			out[o.GetName()] = o.GetResourceVersion()
		}
		if from = page.GetContinue(); from == "" {
			return out
		}
	}
}

func isStatus(err error, status *apierrors.APIStatus) bool { return errors.As(err, status) }
