// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

func newItem(key, value string) store.ReplicaItem {
	return store.ReplicaItem{Key: key, Value: []byte(value)}
}

func (e *storeEnv) load(node string) store.Replica {
	e.t.Helper()
	r, err := e.Load(testContext(), node)
	require.NoError(e.t, err)
	require.Equal(e.t, node, r.Node)
	return r
}

func (e *storeEnv) all() (out []store.Replica) {
	e.t.Helper()
	for r, err := range e.All(testContext()) {
		require.NoError(e.t, err)
		out = append(out, r)
	}
	return out
}

func testReplicas(t *testing.T, e *storeEnv) {
	require.Empty(t, e.all())
	require.Equal(t, store.Replica{Node: "n1"}, e.load("n1"))
	require.NoError(t, e.Commit(testContext(), nil))
	require.NoError(t, e.Commit(testContext(), []store.NodeChange{
		{Node: "n1", Meta: []byte("m1"), Put: []store.ReplicaItem{newItem("b", "2"), newItem("a", "1")}},
		{Node: "n10", Put: []store.ReplicaItem{newItem("a", "10")}},
		{Node: "n0", Meta: []byte("m0")},
	}))
	n1 := store.Replica{Node: "n1", Meta: []byte("m1"), Items: []store.ReplicaItem{newItem("a", "1"), newItem("b", "2")}}
	n10 := store.Replica{Node: "n10", Items: []store.ReplicaItem{newItem("a", "10")}}
	n0 := store.Replica{Node: "n0", Meta: []byte("m0")}
	require.Equal(t, n1, e.load("n1"))
	require.Equal(t, []store.Replica{n0, n1, n10}, e.all())
	e.restart(Limits{})
	require.Equal(t, []store.Replica{n0, n1, n10}, e.all())

	require.NoError(t, e.Commit(testContext(), []store.NodeChange{{Node: "n1", Put: []store.ReplicaItem{newItem("a", "9")}, Delete: []string{"b", "none"}}}))
	require.Equal(t, store.Replica{Node: "n1", Meta: []byte("m1"), Items: []store.ReplicaItem{newItem("a", "9")}}, e.load("n1"))
	require.NoError(t, e.Commit(testContext(), []store.NodeChange{{Node: "n1", Reset: true, Put: []store.ReplicaItem{newItem("c", "3")}}}))
	require.Equal(t, store.Replica{Node: "n1", Items: []store.ReplicaItem{newItem("c", "3")}}, e.load("n1"))
	require.NoError(t, e.Commit(testContext(), []store.NodeChange{{Node: "n1", Drop: true}, {Node: "never", Drop: true}}))
	require.Equal(t, []store.Replica{n0, n10}, e.all(), "n10 is not n1's")

	requireKind(t, e.Commit(testContext(), []store.NodeChange{{Node: ""}}), resource.Invalid)
	requireKind(t, e.Commit(testContext(), []store.NodeChange{{Node: "n\x001"}}), resource.Invalid)
}

func testManyNodes(t *testing.T, e *storeEnv) {
	const nodes, rounds = 40, 20
	var wg sync.WaitGroup
	for n := range nodes {
		wg.Go(func() {
			for i := range rounds {
				change := store.NodeChange{
					Node: fmt.Sprintf("n%02d", n), Meta: fmt.Append(nil, i),
					Put: []store.ReplicaItem{newItem(fmt.Sprintf("k%02d", i), "v")},
				}
				if err := e.Commit(testContext(), []store.NodeChange{change}); err != nil {
					t.Error(err)
				}
				if _, err := e.Create(testContext(), newObject(fmt.Sprintf("d%d-%d", n, i), "{}")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	e.restart(Limits{})
	all := e.all()
	require.Len(t, all, nodes)
	for i, r := range all {
		require.Equal(t, fmt.Sprintf("n%02d", i), r.Node)
		require.Equal(t, fmt.Sprint(rounds-1), string(r.Meta))
		require.Len(t, r.Items, rounds)
	}
	require.Len(t, e.list(store.ListOptions{}).Items, nodes*rounds)
}
