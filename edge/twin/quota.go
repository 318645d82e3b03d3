package twin

import (
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// roomFor says whether the node may own the entries, of which one that is Deleted makes room.
func (t *Twin) roomFor(entries ...link.Entry) error {
	if why := t.up.Exceeds(t.o.Quota, entries...); why != "" {
		return resource.Errorf(resource.Quota, entries[0].Key, "the node would own %s (limits.node)", why)
	}
	return nil
}

// noteOversize says once that the hub takes nothing of the node, and once that it does again.
func (t *Twin) noteOversize() {
	why := t.up.Refused()
	if why == t.oversize {
		return
	}
	t.oversize = why
	if why == "" {
		t.o.Log.Info().Msg("the hub takes what the node reports again")
		return
	}
	t.o.Log.Error().Str("reason", why).Msg("the hub takes nothing of what the node reports until it owns less: see limits.node of both")
}
