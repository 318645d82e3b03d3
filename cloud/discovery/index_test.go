package discovery

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// What nodes no longer report leaves nothing behind.
func TestTheIndexForgets(t *testing.T) {
	x := newIndex(nil)
	at := func(kind topics.Kind, name string) topics.Address {
		return topics.Address{Node: "n1", Kind: kind, Device: "cams", Name: name}
	}
	for range 2 {
		x.handler(at(topics.KindDiscoveryHandler, ""), resource.HandlerReport{State: resource.HandlerAccepted}, true)
		for _, name := range []string{"a", "b", "again"} {
			id := map[string]string{"a": "a", "b": "b", "again": "a"}[name]
			_, turned := x.sight(at(topics.KindInstance, name), &resource.DiscoveredDevice{ID: id, Shared: true})
			require.Equal(t, name == "a", turned, "the first device")
		}
		require.Equal(t, map[string]int{"n1": 3}, x.handlers("cams").Finding)
		require.Len(t, x.sharedBy("n1"), 2)
		for _, name := range []string{"a", "b", "again", "never"} {
			_, turned := x.sight(at(topics.KindInstance, name), nil)
			require.Equal(t, name == "again", turned, "the last device")
		}
		x.handler(at(topics.KindDiscoveryHandler, ""), resource.HandlerReport{}, false)
		require.Empty(t, x.finding)
		require.Empty(t, x.handling)
		require.Empty(t, x.at)
		require.Empty(t, x.seenAt)
		require.Empty(t, x.of)
		require.Empty(t, x.sharing)
	}
}
