package twin

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// Hub says which hub this is, and in whose place. A node that has something of another hub is
// left alone: most likely this hub has lost its data, or is not the one that the node should
// talk to, and what it has for the node is less than what the node has.
//
// Whose a node's map is its lineage says: the mark in the nonce is the identity of the hub
// that drew it. The link knows nothing of that. To leave a node alone is to end the
// conversation about the cloud's map before the owner has heard where the node is, as a
// connection that is lost does; what the node reports is not concerned.
type Hub struct {
	ID       resource.HubID
	Replaces []resource.HubID
}

func (h Hub) replaces(other resource.HubID) bool {
	return slices.Contains(h.Replaces, other)
}

// nonce gives those of lineages.
func (t *Twins) nonce() uint64 { return link.NonceOf(uint32(t.o.Hub.ID), t.o.Rand()) }

// whose is the other hub that a node's map is of; 0 if it is of this one, or nothing.
func (t *Twins) whose(m link.Message) resource.HubID {
	id := resource.HubID(m.Lineage.OwnerID())
	if id == t.o.Hub.ID || m.Lineage.N == 0 || t.nothing[*m.Digest] {
		return 0
	}
	return id
}

// meet hears where a node is in the cloud's map, and says whether it is left alone.
func (t *Twins) meet(b *batch, n *node, m link.Message) bool {
	if m.Type == link.Seen {
		t.noteOtherHub(b, n, t.whose(m))
	}
	return t.leavesAlone(n)
}

func (t *Twins) leavesAlone(n *node) bool { return n.other != 0 && !t.o.Hub.replaces(n.other) }

// noteOtherHub says once that a node has what another hub gave it, and what becomes of that.
func (t *Twins) noteOtherHub(b *batch, n *node, id resource.HubID) {
	if n.met && n.other == id {
		return
	}
	n.met, n.other = true, id
	t.status.node(n.name)
	log := t.o.Log.With().Str("node", n.name).Stringer("hub", id).Stringer("self", t.o.Hub.ID).Logger()
	switch {
	case id == 0:
	case t.leavesAlone(n):
		b.tellNode(n.name, resource.EventWarning, resource.OfAnotherHub, "", "%s", t.aloneText(n))
		log.Error().Msg("the node has what another hub gave it, and keeps it: restore this hub's backup, or see replaces in hub.yaml")
	default:
		b.tellNode(n.name, resource.EventNormal, "Replaced", "", "what %s gave it is replaced: this is %s", id, t.o.Hub.ID)
		log.Warn().Msg("what another hub gave the node is replaced")
	}
}

// aloneText says why a node is left alone; it is empty if it isn't.
func (t *Twins) aloneText(n *node) string {
	if !t.leavesAlone(n) {
		return ""
	}
	return fmt.Sprintf("the node has what %s gave it, and keeps it: this is another hub, %s. If it has lost its data, restore its backup; "+
		"if it is to take the other's place, set replaces: [%s] in hub.yaml and start it again", n.other, t.o.Hub.ID, n.other)
}

// otherHub is the hub for whose sake a node is left alone, as people see it.
func (t *Twins) otherHub(n *node) string {
	if !t.leavesAlone(n) {
		return ""
	}
	return n.other.String()
}

// nothings are the digests of maps that it is no loss to replace: without any device so far, and
// after the last one left, as putMembership writes it.
func nothings() map[link.Digest]bool {
	o := link.NewProjection(link.Down, func() uint64 { return 0 })
	never := o.Digest()
	text, _ := json.Marshal(resource.Membership{Devices: []string{}})              // it has nothing that can't be written
	_, _, _ = o.Put(link.Entry{Key: membershipKey, Value: text, Ver: documentVer}) // nor anything that can't be sent
	return map[link.Digest]bool{never: true, o.Digest(): true}
}
