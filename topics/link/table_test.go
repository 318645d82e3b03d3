// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tableContent is the content of a table as it says itself; it fails if a record could be shorter.
func tableContent(t *testing.T, x *keyTable) map[string]string {
	t.Helper()
	all, last := map[string]string{}, ""
	x.scan("", func(key, body []byte) bool {
		require.Less(t, last, string(key))
		last = string(key)
		all[last] = string(body)
		return true
	})
	for _, b := range x.blocks {
		require.NotEmpty(t, b)
		prev := ""
		for at := 0; at < len(b); {
			r := parseRecord(b, at)
			key := prev[:r.shared] + string(r.rest)
			require.Equal(t, commonPrefix([]byte(prev), key), r.shared, "%q after %q", key, prev)
			prev, at = key, r.to
		}
	}
	require.Len(t, all, x.len)
	return all
}

func TestTableIsAMap(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var x keyTable
		want := map[string]string{}
		alphabet := []string{"a", "b", "ab", "devices/", "press-0042/", "é", "\x00", "z"}
		key := func() string {
			var k strings.Builder
			for range 1 + rng.IntN(5) {
				k.WriteString(alphabet[rng.IntN(len(alphabet))])
			}
			return k.String()
		}
		grow := rng.Float64()
		for i := range 1500 {
			k := key()
			if rng.Float64() < grow || i < 200 {
				body := strings.Repeat("v", rng.IntN(40))
				if rng.IntN(100) == 0 {
					body = strings.Repeat("v", 3*blockSize)
				}
				x.put(k, []byte(body))
				want[k] = body
			} else {
				_, had := want[k]
				require.Equal(t, had, x.del(k))
				delete(want, k)
			}
			body, ok := x.get(k)
			require.Equal(t, want[k], string(body))
			_, have := want[k]
			require.Equal(t, have, ok)
			if i%100 == 0 {
				require.Equal(t, want, tableContent(t, &x), "seed %d", seed)
			}
		}
		for _, k := range slices.Sorted(maps.Keys(want)) {
			require.True(t, x.del(k))
		}
		require.Empty(t, x.blocks)
	}
}

func TestTableScansFromAnywhere(t *testing.T) {
	var x keyTable
	var keys []string
	for i := range 2000 {
		k := fmt.Sprintf("k/%04d", i)
		keys = append(keys, k)
		x.put(k, []byte(k))
	}
	for _, from := range []int{0, 1, 77, 1999} {
		var got []string
		x.scan(keys[from], func(key, body []byte) bool {
			require.Equal(t, string(key), string(body))
			got = append(got, string(key))
			return len(got) < 100
		})
		require.Equal(t, keys[from:min(from+100, len(keys))], got)
	}
	x.scan("l", func(_, _ []byte) bool { t.Fatal("nothing is there"); return false })
}

func TestTableStaysDense(t *testing.T) {
	order := map[string]func(i int) int{
		"rising": func(i int) int { return i }, "falling": func(i int) int { return 20000 - i },
		"random": func(i int) int { return i * 7919 % 20011 },
	}
	for name, f := range order {
		var x keyTable
		for i := range 20000 {
			x.put(fmt.Sprintf("devices/press-%05d/reported/temperature", f(i)), make([]byte, 30))
		}
		held := 0
		for _, b := range x.blocks {
			held += cap(b) + 24
		}
		require.Less(t, held/x.len, 75, name)
		for i := range 20000 {
			if i%16 != 0 {
				x.del(fmt.Sprintf("devices/press-%05d/reported/temperature", i))
			}
		}
		require.Less(t, len(x.blocks), x.len/4, name)
	}
}
