// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

// testRange is a map as a Part ranges over it; it counts what was looked at.
type testRange struct {
	keys   []string
	looked int
}

func (s *testRange) Range(prefix, from string, fn func(link.Entry) bool) {
	i, _ := slices.BinarySearch(s.keys, max(prefix, from))
	for _, k := range s.keys[i:] {
		s.looked++
		if !strings.HasPrefix(k, prefix) || !fn(link.Entry{Key: k}) {
			return
		}
	}
}

func entryDocument(e link.Entry) (broker.Message, bool) {
	return DocumentMessage("n1", e.Key, []byte(e.Key)), true
}

// readWalk walks with steps of so many messages, and has between called in between.
func readWalk(t *testing.T, filter string, shelves []*testRange, most int, between func()) []string {
	t.Helper()
	f, ok := ParseFilter(filter)
	if name, one := f.One(); !ok || one && name != "n1" {
		return nil
	}
	one := func(key string) (m broker.Message, ok bool) {
		for _, s := range shelves {
			if slices.Contains(s.keys, key) {
				return entryDocument(link.Entry{Key: key})
			}
		}
		return m, false
	}
	var got []string
	w := Walk{Filter: f}
	for more := true; more; {
		var parts []EntryRange
		before := 0
		for _, s := range shelves {
			parts = append(parts, EntryRange{s.Range, entryDocument})
			before += s.looked
		}
		var out []broker.Message
		more = w.Step(one, parts, &out, most)
		for _, s := range shelves {
			before -= s.looked
		}
		require.LessOrEqual(t, -before, maxWalkKeys+2*len(shelves), "keys looked at in one step")
		require.LessOrEqual(t, len(out), most+1)
		for _, m := range out {
			got = append(got, m.Topic)
		}
		between()
	}
	return got
}

func TestAWalkGivesWhatTheFilterCovers(t *testing.T) {
	var shelves []*testRange
	all := map[string]bool{}
	for i, branch := range []string{"", "/desired/power", "/reported/power"} {
		s := &testRange{}
		for d := range 700 {
			s.keys = append(s.keys, fmt.Sprintf("devices/d%d%s", d, branch))
		}
		s.keys = append(s.keys, []string{"membership", "spec", "status"}[i])
		slices.Sort(s.keys)
		for _, k := range s.keys {
			all[topics.TopicOf("n1", k)] = true
		}
		shelves = append(shelves, s)
	}
	for _, filter := range []string{
		"#", "+/#", "v1/#", "v1/nodes/#", "v1/nodes/n1/#", "v1/nodes/+/#", "v1/+/+/devices/#", "+/+/+/+/+/desired/+",
		"v1/nodes/n1/devices/d1/#", "v1/nodes/n1/devices/d1/+/power", "v1/nodes/n1/devices/+", "v1/nodes/n1/devices/d12",
		"v1/nodes/n1/devices/d12/reported/power", "v1/nodes/n1/status", "v1/nodes/+/status", "v1/nodes/n1/+", "v1/nodes/n1/devices/d1/reported/#",
		"v1/nodes/n2/#", "v1/nodes/n1", "v1/nodes/+", "v2/#", "other", "v1/refused/#", "v1/nodes/n1/devices/none/#", "$SYS/#",
	} {
		want := slices.Sorted(maps.Keys(all))
		want = slices.DeleteFunc(want, func(topic string) bool { return !topics.Match(filter, topic) })
		for _, most := range []int{1, 7, 64, 5000} {
			got := readWalk(t, filter, shelves, most, func() {})
			slices.Sort(got)
			require.ElementsMatch(t, want, got, "%s by %d", filter, most)
		}
	}
}

func TestAWalkGoesOnWhateverComesAndGoes(t *testing.T) {
	s := &testRange{}
	for i := range 1000 {
		s.keys = append(s.keys, fmt.Sprintf("devices/d%03d", i*7%1000))
	}
	slices.Sort(s.keys)
	stays := slices.DeleteFunc(slices.Clone(s.keys), func(k string) bool { return strings.HasSuffix(k, "5") })
	turn := 0
	got := readWalk(t, "#", []*testRange{s}, 10, func() {
		turn++
		s.keys = slices.DeleteFunc(s.keys, func(k string) bool { return strings.HasSuffix(k, "5") && len(k)%2 == turn%2 })
		s.keys = append(s.keys, fmt.Sprintf("a%d", turn), fmt.Sprintf("z%d", turn))
		slices.Sort(s.keys)
	})
	require.True(t, slices.IsSorted(got))
	for _, k := range stays {
		require.Contains(t, got, topics.TopicOf("n1", k))
	}
}
