package twin

import (
	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics"
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

// before is whose the mappers are that have not been heard of since the start.
const before = "(before the restart)"

// roomForMapper says whether a user may make the node know one more mapper.
func (t *Twin) roomForMapper(name string, m broker.Message) error {
	state, protocols := mapperKey(name), topics.Address{Kind: topics.KindMapperProtocols, Device: name}.Key()
	if _, known := t.up.Get(state); known || len(m.Payload) == 0 {
		return nil
	}
	if _, known := t.up.Get(protocols); known {
		return nil
	}
	q := quota.NewShared("mappers", "user", quota.Limit{Most: int64(t.o.Mappers), Setting: "limits.mappers"})
	for _, known := range tree.Mappers(t.o.Node, t.up.Range) {
		user, seen := t.seen[mapperKey(known.Name)]
		if !seen {
			user = before
		}
		q.Add(user, 1)
	}
	return q.Take(m.Publisher.User, 1)
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
