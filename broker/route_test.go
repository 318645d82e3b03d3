package broker

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
)

// inUse is what is left when all that nobody needs is gone.
func inUse() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// subscribed is a router with clients who subscribed to a filter.
func subscribed(clients int, filter string) *router {
	r := newRouter(newACL(Options{}))
	b := &Broker{router: r}
	b.quotas = newQuotas(Limits{})
	b.opts.Limits = Limits{}.Complete()
	for i := range clients {
		c := b.newClient(Identity{ClientID: fmt.Sprint(i), Roles: []topics.Role{topics.RoleOperator}}, false)
		r.index.add(newSubscription(c, filter))
	}
	return r
}

// However many topics are published on, and however long or widely read they are, what
// is remembered of them is bounded, and the packets they came in aren't kept.
func TestRoutesAreBounded(t *testing.T) {
	const most = 256 << 10
	for name, c := range map[string]struct {
		readers int
		filter  string
		topics  int
		length  int // of a topic
		packet  int // in which it came
	}{
		"short topics in large packets": {1, "#", 1_000, 10, 64 << 10},
		"topics of 1 KiB":               {1, "#", 5_000, routeTopic, routeTopic},
		"the longest topics":            {1, "#", 300, 65_535, 65_535},
		"many readers":                  {100, "#", 700, 10, 10},
		"very many readers":             {1_000, "#", 70, 10, 10},
		"shared by many":                {1_000, "$share/g/#", 600, 10, 10},
	} {
		t.Run(name, func(t *testing.T) {
			r := subscribed(c.readers, c.filter)
			r.most = most
			before, taken := inUse(), 0
			for i := range c.topics {
				packet := fmt.Sprintf("%0*d", c.length, i) + strings.Repeat("x", c.packet-c.length)
				r.route(packet[:c.length])
				if (i+1)%(c.topics/3) == 0 {
					taken = max(taken, inUse()-before)
				}
			}
			require.Less(t, taken, 8*most)
			runtime.KeepAlive(r)
		})
	}
}

// A shared group's name is remembered for its turn, when nobody is in it any more, too.
func TestTurnsAreBounded(t *testing.T) {
	r := subscribed(0, "")
	r.most = 8 << 20
	before := inUse()
	long := strings.Repeat("x", 60_000)
	for i := range 300 {
		r.turn(groupKey{"", "g", fmt.Sprint(i, long)})
	}
	require.Less(t, inUse()-before, r.most)
	runtime.KeepAlive(r)
}

// A route that is outdated is no reason to keep those who were subscribed.
func TestRoutesKeepNobodyWhoHasGone(t *testing.T) {
	r := subscribed(1, "a")
	for i := range 100 {
		r.route(fmt.Sprint("b/", i))
	}
	require.Len(t, r.routes, 100)
	require.Same(t, r.route("b/7"), r.route("b/7"))
	r.index.gen.Add(1)
	rt := r.route("a")
	require.Equal(t, map[string]*route{"a": rt}, r.routes)
	require.Same(t, rt, r.known([]byte("a")))
	require.Nil(t, r.known([]byte("b/7")))
}

func BenchmarkRoute(b *testing.B) {
	for _, n := range []int{1, 1_000} {
		r := subscribed(n, "#")
		known := make([]string, 64)
		for i := range known {
			known[i] = fmt.Sprint("some/topic/", i)
		}
		b.Run(fmt.Sprintf("known/readers=%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				r.route(known[i%len(known)])
			}
		})
		b.Run(fmt.Sprintf("new/readers=%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				r.route(fmt.Sprint("some/other/", i))
			}
		})
	}
}
