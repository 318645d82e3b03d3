// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestNodesAreOwnedByOneFleetOfThoseThatMatch(t *testing.T) {
	h := newTestHub(t)
	h.makeNode("n1", "site=a")
	h.makeNode("n2", "site=b")
	h.makeNode("n3", "site=none")
	h.editNode("n3", func(n *resource.Node) { n.Spec = motdSpec("by hand") })
	h.makeFleet("a", "site=a", "one")
	h.untilOwner("n1", "Fleet/a")
	h.untilMotd("n1", "one")
	require.Empty(t, h.node("n2").Metadata.Owner)

	h.editNode("n1", func(n *resource.Node) { n.Metadata.Labels["site"] = "b" }) // 14: released, and the spec stays
	h.untilOwner("n1", "")
	h.untilMotd("n1", "one")
	require.Empty(t, h.node("n1").Metadata.Annotations)
	h.makeFleet("b", "site=b", "two")
	h.untilMotd("n1", "two")
	h.untilMotd("n2", "two")
	h.editNode("n1", func(n *resource.Node) { n.Metadata.Labels["site"] = "a" }) // 15: moved
	h.untilOwner("n1", "Fleet/a")
	h.untilMotd("n1", "one")

	h.editNode("n1", func(n *resource.Node) { n.Metadata.Labels["fleet-controller"] = "paused" }) // 16
	h.untilOwner("n1", "")
	h.editNode("n1", func(n *resource.Node) { n.Spec = motdSpec("by hand") })
	h.untilMotd("n1", "by hand")
	h.editNode("n1", func(n *resource.Node) { delete(n.Metadata.Labels, "fleet-controller") }) // 17
	h.untilMotd("n1", "one")

	h.editNode("n3", func(n *resource.Node) { n.Metadata.Owner = "ResourceSync/git"; n.Metadata.Labels["site"] = "a" }) // 19
	h.makeFleet("a2", "site=a", "three")                                                                                // 20
	h.until("both say that they overlap", func() bool {
		return conditionStatus(h.fleet("a").Status.Conditions, "OverlappingSelectors") == "True nodes of it match a2" &&
			conditionStatus(h.fleet("a2").Status.Conditions, "OverlappingSelectors") == "True nodes of it match a" &&
			conditionStatus(h.node("n1").Status.Conditions, "MultipleOwners") == "True the fleets a, a2 match"
	})
	require.Equal(t, "Fleet/a", h.node("n1").Metadata.Owner)
	require.Equal(t, "ResourceSync/git", h.node("n3").Metadata.Owner)
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Selector.MatchLabels = map[string]string{"site": "c"} })
	h.untilMotd("n1", "three")
	h.until("they overlap no more", func() bool {
		return strings.HasPrefix(conditionStatus(h.fleet("a").Status.Conditions, "OverlappingSelectors"), "False") &&
			strings.HasPrefix(conditionStatus(h.node("n1").Status.Conditions, "MultipleOwners"), "False")
	})

	require.NoError(t, h.User.Delete(t.Context(), store.Key{Kind: resource.KindFleet, Name: "a2"}))
	h.untilOwner("n1", "")
	h.until("the fleet is gone", func() bool {
		_, err := objects.Get[resource.Fleet](t.Context(), h.User, store.Key{Kind: resource.KindFleet, Name: "a2"})
		return errors.Is(err, resource.NotFound)
	})
	require.Equal(t, "by hand", h.node("n3").Spec.Config[0].Files[0].Content)
}

// A node is released when its fleet goes, also one that never had a finalizer; and the fleet's versions go with it.
func TestNodesOfADeletedFleetAreReleased(t *testing.T) {
	h := newTestHub(t)
	h.makeNode("n1", "site=a")
	vanish := func() {
		key := store.Key{Kind: resource.KindFleet, Name: "a"}
		h.until("it is deleted", func() bool {
			o, err := h.Store.Get(t.Context(), key)
			require.NoError(t, err)
			_, err = h.Store.Delete(t.Context(), key, o.Rev)
			return err == nil
		})
	}
	noVersions := func() bool {
		for range objects.List[resource.TemplateVersion](t.Context(), h.User, "") {
			return false
		}
		return true
	}
	h.makeFleet("a", "site=a", "one")
	h.untilMotd("n1", "one")
	vanish()
	h.untilOwner("n1", "")
	h.until("its versions are gone", noVersions)
	require.Equal(t, "one", h.node("n1").Spec.Config[0].Files[0].Content)

	h.makeFleet("a", "site=a", "two")
	h.untilMotd("n1", "two")
	h.stop()
	vanish()
	h.start()
	h.untilOwner("n1", "")
	h.until("its versions are gone", noVersions)
}

// Overlaps are said also after a write has failed, and are right after a restart.
func TestAnOverlapThatCouldNotBeWrittenIsSaidLater(t *testing.T) {
	h := newTestHub(t)
	h.makeFleet("a", "site=a", "one")
	h.makeFleet("b", "line=1", "two")
	h.makeNode("n1", "site=a")
	h.untilMotd("n1", "one")
	says := func(fleet, text string) {
		h.until(text, func() bool { return conditionStatus(h.fleet(fleet).Status.Conditions, "OverlappingSelectors") == text })
	}
	says("a", "False no node of it matches another fleet")
	h.broken.Store(true)
	h.editNode("n1", func(n *resource.Node) { n.Metadata.Labels["line"] = "1" })
	h.until("the node says so", func() bool {
		return conditionStatus(h.node("n1").Status.Conditions, "MultipleOwners") == "True the fleets a, b match"
	})
	h.broken.Store(false)
	says("a", "True nodes of it match b")
	says("b", "True nodes of it match a")
	h.stop()
	h.editNode("n1", func(n *resource.Node) { delete(n.Metadata.Labels, "line") })
	h.start()
	says("a", "False no node of it matches another fleet")
	says("b", "False no node of it matches another fleet")
}
