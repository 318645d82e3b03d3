package storetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

func item(key, value string) store.Item { return store.Item{Key: key, Value: []byte(value)} }

func (e *env) load(node string) store.Replica {
	e.t.Helper()
	r, err := e.Load(ctx(), node)
	require.NoError(e.t, err)
	require.Equal(e.t, node, r.Node)
	return r
}

func (e *env) all() (out []store.Replica) {
	e.t.Helper()
	for r, err := range e.All(ctx()) {
		require.NoError(e.t, err)
		out = append(out, r)
	}
	return out
}

func testReplicas(t *testing.T, e *env) {
	require.Empty(t, e.all())
	require.Equal(t, store.Replica{Node: "n1"}, e.load("n1"))
	require.NoError(t, e.Commit(ctx(), nil))
	require.NoError(t, e.Commit(ctx(), []store.NodeChange{
		{Node: "n1", Meta: []byte("m1"), Put: []store.Item{item("b", "2"), item("a", "1")}},
		{Node: "n10", Put: []store.Item{item("a", "10")}},
		{Node: "n0", Meta: []byte("m0")},
	}))
	n1 := store.Replica{Node: "n1", Meta: []byte("m1"), Items: []store.Item{item("a", "1"), item("b", "2")}}
	n10 := store.Replica{Node: "n10", Items: []store.Item{item("a", "10")}}
	n0 := store.Replica{Node: "n0", Meta: []byte("m0")}
	require.Equal(t, n1, e.load("n1"))
	require.Equal(t, []store.Replica{n0, n1, n10}, e.all())
	e.restart(Limits{})
	require.Equal(t, []store.Replica{n0, n1, n10}, e.all())

	require.NoError(t, e.Commit(ctx(), []store.NodeChange{{Node: "n1", Put: []store.Item{item("a", "9")}, Delete: []string{"b", "none"}}}))
	require.Equal(t, store.Replica{Node: "n1", Meta: []byte("m1"), Items: []store.Item{item("a", "9")}}, e.load("n1"))
	require.NoError(t, e.Commit(ctx(), []store.NodeChange{{Node: "n1", Reset: true, Put: []store.Item{item("c", "3")}}}))
	require.Equal(t, store.Replica{Node: "n1", Items: []store.Item{item("c", "3")}}, e.load("n1"))
	require.NoError(t, e.Commit(ctx(), []store.NodeChange{{Node: "n1", Drop: true}, {Node: "never", Drop: true}}))
	require.Equal(t, []store.Replica{n0, n10}, e.all(), "n10 is not n1's")

	isKind(t, e.Commit(ctx(), []store.NodeChange{{Node: ""}}), resource.Invalid)
	isKind(t, e.Commit(ctx(), []store.NodeChange{{Node: "n\x001"}}), resource.Invalid)
}

func testManyNodes(t *testing.T, e *env) {
	const nodes, rounds = 40, 20
	var wg sync.WaitGroup
	for n := range nodes {
		wg.Go(func() {
			for i := range rounds {
				change := store.NodeChange{
					Node: fmt.Sprintf("n%02d", n), Meta: fmt.Append(nil, i),
					Put: []store.Item{item(fmt.Sprintf("k%02d", i), "v")},
				}
				if err := e.Commit(ctx(), []store.NodeChange{change}); err != nil {
					t.Error(err)
				}
				if _, err := e.Create(ctx(), object(fmt.Sprintf("d%d-%d", n, i), "{}")); err != nil {
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
