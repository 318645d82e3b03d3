// SPDX-License-Identifier: Apache-2.0

// Package kube runs client-go, the library that Kubernetes controllers are made of, against
// the real hub: whoever wrote a controller may expect of it what they know.
package kube

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics/backoff"
)

const (
	namespace = "default"
	// waitTimeout is for a busy machine; nobody waits for it who needn't.
	waitTimeout = 8 * time.Minute
	// parallelRequests is how many requests a test has under way at once.
	parallelRequests = 32
)

var devicesResource = schema.GroupVersionResource{Group: "edgebus.io", Version: "v1alpha1", Resource: "devices"}

// newDynamicClient makes a client of the hub's Devices. Each has connections of its own.
func newDynamicClient(t *testing.T, s *stand.Stand, wrap func(http.RoundTripper) http.RoundTripper) dynamic.ResourceInterface {
	t.Helper()
	c, err := dynamic.NewForConfig(&rest.Config{
		Host: "http://" + s.Hub.HTTP, QPS: -1, // as fast as it goes
		Timeout: 0, WrapTransport: wrap, UserAgent: t.Name(),
		// A new one for each client: they are shared by configuration otherwise.
		Transport: &http.Transport{MaxIdleConnsPerHost: parallelRequests},
	})
	require.NoError(t, err)
	return c.Resource(devicesResource).Namespace(namespace)
}

func newDevice(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": devicesResource.GroupVersion().String(), "kind": "Device",
		"metadata": map[string]any{"name": name, "namespace": namespace},
		"spec": map[string]any{
			"deviceModelRef": map[string]any{"name": "thing"}, "protocol": map[string]any{"type": "virtual"},
		},
	}}
}

// inParallel calls do for 0 to n-1, some at a time.
func inParallel(n int, do func(i int) error) error {
	var g errgroup.Group
	g.SetLimit(parallelRequests)
	for i := range n {
		g.Go(func() error { return do(i) })
	}
	return g.Wait()
}

// Two hundred clients add to ten counters, each of which is an annotation of a Device: who
// has read an old version is told so, and adds again. Nothing that was added is lost.
func TestWritersRace(t *testing.T) {
	const (
		objects, writers, rounds = 10, 200, 2
		counter                  = "test/counter"
	)
	s := stand.New(t, 1)
	s.Up("hub")
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	c := newDynamicClient(t, s, nil)
	require.NoError(t, inParallel(objects, func(i int) error {
		_, err := c.Create(ctx, newDevice(fmt.Sprintf("shared-%d", i)), metav1.CreateOptions{})
		return err
	}))
	add := func(name string) error {
		o, err := c.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n, _ := strconv.Atoi(o.GetAnnotations()[counter]) // none is zero
		o.SetAnnotations(map[string]string{counter: strconv.Itoa(n + 1)})
		_, err = c.Update(ctx, o, metav1.UpdateOptions{})
		return err
	}
	var conflicts atomic.Int64
	var g errgroup.Group
	for w := range writers {
		g.Go(func() error {
			for round := range rounds {
				name := fmt.Sprintf("shared-%d", (w+round)%objects)
				again := wait.Backoff{Steps: 100, Duration: 5 * time.Millisecond, Factor: 1.2, Jitter: 1}
				if err := retry.OnError(again, func(err error) bool {
					if !apierrors.IsConflict(err) || ctx.Err() != nil {
						return false
					}
					conflicts.Add(1)
					return true
				}, func() error { return add(name) }); err != nil {
					return fmt.Errorf("writer %d, round %d, %s: %w", w, round, name, err)
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	for i := range objects {
		o, err := c.Get(ctx, fmt.Sprintf("shared-%d", i), metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(writers*rounds/objects), o.GetAnnotations()[counter], o.GetName())
	}
	require.Positive(t, conflicts.Load(), "they did race")
	t.Logf("%d conflicts for %d writes", conflicts.Load(), writers*rounds)
}

// retryRefused tries a request again for as long as the hub isn't there.
func retryRefused(ctx context.Context, do func() error) error {
	for {
		err := do()
		var answered apierrors.APIStatus
		if err == nil || ctx.Err() != nil || isStatus(err, &answered) {
			return err
		}
		backoff.Sleep(ctx, 10*time.Millisecond)
	}
}
