package twin

import (
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// room says whether the node may own an entry, or another value of it.
func (t *Twin) room(key string, v *resource.Value) error { return t.roomFor(entry(key, v)) }

// roomForAll says whether it may own all of a device's values.
func (t *Twin) roomForAll(device string, kind topics.Kind, values map[string]*resource.Value) error {
	entries := make([]link.Entry, 0, len(values))
	for property, v := range values {
		entries = append(entries, entry(topics.DeviceKey(device, kind, property), v))
	}
	return t.roomFor(entries...)
}

func entry(key string, v *resource.Value) link.Entry {
	if v == nil {
		return link.Entry{Key: key, Deleted: true}
	}
	return link.Entry{Key: key, Value: []byte(*v)}
}

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
