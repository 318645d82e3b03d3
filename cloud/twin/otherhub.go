// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// Hub is the identity of this hub, and of the hubs that it replaces. A node whose map down came from another hub is left alone: most
// likely this hub has lost its data, or is not the hub that the node should connect to, and has fewer devices for the node than
// the node has.
//
// The hub that a map came from is part of its lineage: the upper half of the nonce is the identity of the hub that drew it. The link
// protocol doesn't interpret it. A node is left alone by disconnecting the owner of the map down before it has received the node's
// SEEN, as when a connection is lost. The map up is still synchronised.
type Hub struct {
	ID       resource.HubID
	Replaces []resource.HubID
}

func (h Hub) replaces(other resource.HubID) bool {
	return slices.Contains(h.Replaces, other)
}

// nonce draws the nonce of a new lineage.
func (ns *nodes) nonce() uint64 { return link.NonceOf(uint32(ns.opts.Hub.ID), ns.opts.Rand()) }

// ownerHub is the other hub that a node's map came from; 0 if it came from this one, or is empty.
func (n *node) ownerHub(m link.Message) resource.HubID {
	id := resource.HubID(m.Lineage.OwnerID())
	if id == n.nodes.opts.Hub.ID || m.Lineage.N == 0 || emptyMapDigests()[*m.Digest] {
		return 0
	}
	return id
}

// checkHub notes which hub the node's map came from, and reports whether the node is left alone.
func (n *node) checkHub(b *batch, m link.Message) bool {
	if m.Type == link.TypeSeen {
		n.recordOtherHub(b, n.ownerHub(m))
	}
	return n.leavesAlone()
}

func (n *node) leavesAlone() bool { return n.mapHub != 0 && !n.nodes.opts.Hub.replaces(n.mapHub) }

// recordOtherHub logs and records once that a node's map came from another hub, and whether it is replaced.
func (n *node) recordOtherHub(b *batch, id resource.HubID) {
	if n.mapHubKnown && n.mapHub == id {
		return
	}
	n.mapHubKnown, n.mapHub = true, id
	n.nodes.status.node(n.name)
	log := n.nodes.opts.Log.With().Str("node", n.name).Stringer("hub", id).Stringer("self", n.nodes.opts.Hub.ID).Logger()
	switch {
	case id == 0:
	case n.leavesAlone():
		b.addNodeEvent(n.name, resource.EventWarning, resource.OfAnotherHub, "", "%s", n.otherHubText())
		log.Error().Msg("the node has what another hub gave it, and keeps it: restore this hub's backup, or see replaces in hub.yaml")
	default:
		b.addNodeEvent(n.name, resource.EventNormal, "Replaced", "", "what %s gave it is replaced: this is %s", id, n.nodes.opts.Hub.ID)
		log.Warn().Msg("what another hub gave the node is replaced")
	}
}

// otherHubText is why a node is left alone; empty if it isn't.
func (n *node) otherHubText() string {
	if !n.leavesAlone() {
		return ""
	}
	return fmt.Sprintf("the node has what %s gave it, and keeps it: this is another hub, %s. If it has lost its data, restore its backup; "+
		"if it is to take the other's place, set replaces: [%s] in hub.yaml and start it again", n.mapHub, n.nodes.opts.Hub.ID, n.mapHub)
}

// otherHub is the hub because of which a node is left alone, as text; empty if it isn't.
func (n *node) otherHub() string {
	if !n.leavesAlone() {
		return ""
	}
	return n.mapHub.String()
}

// emptyMapDigests are the digests of maps without a device, which may be replaced without loss: one that never had
// a device, and one after its last device left, as putMembership writes it.
var emptyMapDigests = sync.OnceValue(func() map[link.Digest]bool {
	o := link.NewProjection(link.Down, func() uint64 { return 0 })
	never := o.Digest()
	text, _ := json.Marshal(resource.Membership{Devices: []string{}})              // never fails
	_, _, _ = o.Put(link.Entry{Key: membershipKey, Value: text, Ver: documentVer}) // never fails
	return map[link.Digest]bool{never: true, o.Digest(): true}
})
