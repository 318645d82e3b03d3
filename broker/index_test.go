package broker

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
)

// Whether anybody is subscribed, and who, are answered by two walks that must agree
// with the contract's rule.
func TestIndexAgreesWithTheRule(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	pick := func(words ...string) string {
		levels := make([]string, rnd.IntN(4)+1)
		for i := range levels {
			levels[i] = words[rnd.IntN(len(words))]
		}
		return strings.Join(levels, "/")
	}
	for range 2000 {
		var x index
		var subs []*subscription
		for range rnd.IntN(4) {
			filter := pick("a", "b", "$c", "", "+")
			if rnd.IntN(3) == 0 {
				filter += "/#"
			}
			s := newSubscription(&client{}, filter)
			x.add(s)
			subs = append(subs, s)
			if rnd.IntN(4) == 0 {
				x.remove(s)
				subs = subs[:len(subs)-1]
			}
		}
		topic := pick("a", "b", "$c", "")
		want, found := 0, 0
		for _, s := range subs {
			if topics.Match(s.plain, topic) {
				want++
			}
		}
		x.match(topic, func(*subscription) { found++ })
		require.Equal(t, want, found, topic)
		require.Equal(t, want > 0, x.matches(topic), topic)
	}
}
