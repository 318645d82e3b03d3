// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A list as long as a body may have is gone through once, not once for each of its elements, which would take hours here.
func TestLongListsAreGoneThroughOnce(t *testing.T) {
	const long = 100_000
	list := func(last string) []any {
		out := make([]any, long)
		for i := range out {
			out[i] = jsonObject{"name": fmt.Sprint("p", i), "value": "same"}
		}
		out[long-1].(jsonObject)["value"] = last
		return out
	}
	began := time.Now()
	found := findDifferences("/spec", list("a"), list("b"))
	require.Equal(t, []formDifference{{At: "/spec/name=p99999/value", Was: "a", Is: "b"}}, found)
	require.Less(t, time.Since(began), 2*time.Minute, "a safety net")

	each := list("a")
	for _, element := range each {
		element.(jsonObject)["value"] = "another"
	}
	require.Len(t, findDifferences("/spec", list("a"), each), long)
}

// What apply can't make of a list is one difference, that of the whole.
func TestDifferencesOfListsCanBeApplied(t *testing.T) {
	named := func(names ...string) (list []any) {
		for _, n := range names {
			list = append(list, jsonObject{"name": n, "of": jsonObject{"its": n}})
		}
		return list
	}
	for _, c := range []struct {
		was, is []any
		found   int
	}{
		{named("a", "b", "c"), named("a", "c"), 1},
		{named("a", "b", "c"), named("c"), 2},
		{named("a", "b"), named("b", "a"), 1},
		{named("a"), named("a", "b"), 1},
		{named("a", "b"), named("b", "c"), 1},
		{named("a"), []any{jsonObject{"name": "a", "of": jsonObject{"its": "b", "x": "y"}}}, 2},
	} {
		found := findDifferences("/at", c.was, c.is)
		require.Len(t, found, c.found)
		require.Equal(t, any(c.is), applyDifferences("/at", c.was, found))
	}
}
