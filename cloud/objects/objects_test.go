// SPDX-License-Identifier: Apache-2.0

package objects_test

import (
	"errors"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/edgebus/edgebus/broker/daemon/seal"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics/resource"
)

// testRegistry is a store with the object layer on it, and what was audited.
type testRegistry struct {
	*disk.Store
	*objects.Registry
	mu      sync.Mutex
	audited []string
}

func newTestRegistry(t *testing.T) *testRegistry {
	t.Helper()
	dir := t.TempDir()
	s, err := disk.Open(disk.Options{Path: filepath.Join(dir, "log"), Tombstones: 16})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Check())
		require.NoError(t, s.Close())
	})
	key, err := seal.Create(dir)
	require.NoError(t, err)
	r := &testRegistry{Store: s}
	r.Registry = objects.New(objects.Options{
		Reader: s, Writer: s, Log: zerolog.Nop(), Seal: key,
		Audit: func(controller, action string, key store.Key, err error) {
			line := controller + " " + action + " " + key.String()
			if err != nil {
				line += ": " + err.Error()
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.audited = append(r.audited, line)
		},
	})
	return r
}

func newNode(name string) *resource.Node {
	n := new(resource.Node)
	n.Metadata.Name = name
	return n
}

func TestAControllerWritesByTheRules(t *testing.T) {
	r, ctx := newTestRegistry(t), t.Context()
	c := r.Controller("fleets")
	made, err := objects.Create(ctx, c, newNode("n1"))
	require.NoError(t, err)
	require.NotEmpty(t, made.Metadata.UID)
	require.EqualValues(t, 1, made.Metadata.Generation)
	_, err = objects.Create(ctx, c, newNode("n1"))
	require.ErrorIs(t, err, resource.AlreadyExists)

	key := store.Key{Name: "n1"}
	written := func(err error) *resource.Node {
		t.Helper()
		require.NoError(t, err)
		n, err := objects.Get[resource.Node](ctx, c, key)
		require.NoError(t, err)
		return n
	}
	changed := written(objects.Update(ctx, c, key, func(n *resource.Node) error {
		n.Metadata.Owner, n.Metadata.UID, n.Spec.OS = "Fleet/shops", "another", &resource.NodeOS{Image: "os:1"}
		n.Status.State = "nobody may say so here"
		return nil
	}))
	require.Equal(t, made.Metadata.UID, changed.Metadata.UID)
	require.EqualValues(t, 2, changed.Metadata.Generation)
	require.Equal(t, "Fleet/shops", changed.Metadata.Owner)
	require.Empty(t, changed.Status.State)

	same := written(objects.Update(ctx, c, key, func(n *resource.Node) error { n.Spec.OS = &resource.NodeOS{Image: "os:1"}; return nil }))
	require.Equal(t, changed, same, "nothing changed, so nothing was written")

	err = objects.Update(ctx, c, key, func(n *resource.Node) error { n.Spec.OS.Image = " "; return nil })
	require.ErrorIs(t, err, resource.Invalid)
	stop := errors.New("stop")
	err = objects.Update(ctx, c, key, func(*resource.Node) error { return stop })
	require.ErrorIs(t, err, stop)

	said := written(objects.UpdateStatus(ctx, c, key, func(n *resource.Node) error {
		n.Spec.OS, n.Metadata.Owner, n.Status.Version = nil, "", "v1"
		return nil
	}))
	require.Equal(t, "v1", said.Status.Version)
	require.Equal(t, "os:1", said.Spec.OS.Image)
	require.EqualValues(t, 2, said.Metadata.Generation)

	require.NoError(t, c.Delete(ctx, store.Key{Kind: resource.KindNode, Name: "n1"}))
	_, err = objects.Get[resource.Node](ctx, c, key)
	require.ErrorIs(t, err, resource.NotFound)
	require.Equal(t, []string{
		"fleets create Node n1", "fleets create Node n1: Node n1 already exists", "fleets update Node n1",
	}, r.audited[:3])
	require.Contains(t, r.audited[3], "fleets update Node n1: ")
	require.Equal(t, []string{"fleets update status Node n1", "fleets delete Node n1"}, r.audited[len(r.audited)-2:])

	_, err = objects.Get[resource.Node](ctx, c, store.Key{Kind: resource.KindDevice, Name: "n1"})
	require.ErrorContains(t, err, "is no key of")
}

// Many who change one object at the same time lose no change.
func TestUpdatesAreRepeatedAfterAConflict(t *testing.T) {
	r, ctx := newTestRegistry(t), t.Context()
	_, err := objects.Create(ctx, r.Controller("a"), newNode("n1"))
	require.NoError(t, err)
	const writers, each = 8, 20
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				err := objects.Update(ctx, r.Controller("w"), store.Key{Name: "n1"}, func(n *resource.Node) error {
					if n.Metadata.Labels == nil {
						n.Metadata.Labels = map[string]string{}
					}
					n.Metadata.Labels[strconv.Itoa(w)+"-"+strconv.Itoa(i)] = "x"
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	n, err := objects.Get[resource.Node](ctx, r.Controller("a"), store.Key{Name: "n1"})
	require.NoError(t, err)
	require.Len(t, n.Metadata.Labels, writers*each)
}

func TestListsArePaged(t *testing.T) {
	r, ctx := newTestRegistry(t), t.Context()
	c := r.Controller("a")
	const n = 1203
	for i := range n {
		_, err := objects.Create(ctx, c, newNode("n"+strconv.Itoa(10_000+i)))
		require.NoError(t, err)
	}
	var names []string
	for v, err := range objects.List[resource.Node](ctx, c, "") {
		require.NoError(t, err)
		names = append(names, v.Metadata.Name)
	}
	require.Len(t, names, n)
	require.True(t, slices.IsSorted(names))
}

// A selector is a user's: what it costs to read grows with its terms, not with their square.
func TestASelectorOfManyTerms(t *testing.T) {
	s := &resource.LabelSelector{MatchLabels: map[string]string{"site": "a"}}
	for i := range 5000 {
		s.MatchExpressions = append(s.MatchExpressions, resource.LabelTerm{Key: "k" + strconv.Itoa(i), Operator: "DoesNotExist"})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	selector := objects.Selector(s)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(50<<20))
	require.True(t, selector.Matches(labels.Set{"site": "a"}))
	require.False(t, selector.Matches(labels.Set{"site": "a", "k4999": ""}))
	require.False(t, selector.Matches(labels.Set{"site": "b"}))
}

func TestTextsAreClippedBetweenCharacters(t *testing.T) {
	require.Equal(t, strings.Repeat("ä", 148)+"…", objects.ClipText(strings.Repeat("ä", 300), 300))
	require.Equal(t, strings.Repeat("ä", 150), objects.ClipText(strings.Repeat("ä", 150), 300))
}
