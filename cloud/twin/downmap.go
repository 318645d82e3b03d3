package twin

import (
	"encoding/json"
	"strings"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// documentVer is the version of every document: documents are compared by content, not by version.
const documentVer = 1

const membershipKey = "membership"

func desiredKey(device, property string) string {
	return topics.DeviceKey(device, topics.KindDesired, property)
}

// projectDesired writes the desired values. A value that the model does not allow, because the model has changed since, stays in the
// spec and is not sent to the node.
func (n *node) projectDesired(b *batch, d *device, whole resource.Device, m *model) {
	for _, key := range n.down.Keys(desiredKey(d.name, "")) {
		property := strings.TrimPrefix(key, desiredKey(d.name, ""))
		value, wanted := whole.Spec.Desired[property]
		err := m.CheckDesired(property, []byte(value))
		if wanted && err != nil {
			b.addDeviceEvent(whole.Metadata, resource.EventWarning, "NotAllowed", property, "%s is desired and is not sent, because the model has changed: %v",
				clipText(string(value)), err)
		}
		if meta := whole.DesiredMeta[property]; !wanted && meta.Cleared {
			was, _ := n.down.Get(key)
			b.addDeviceEvent(whole.Metadata, resource.EventNormal, "Cleared", property, "%s is no longer desired: cleared by %s", clipText(string(was.Value)), meta.Origin)
		}
		if !wanted || err != nil {
			n.deleteDown(b, key)
		}
	}
	for property, value := range whole.Spec.Desired {
		if m.CheckDesired(property, []byte(value)) == nil {
			n.putDesired(b, d, whole, property)
		}
	}
}

func (n *node) putDesired(b *batch, d *device, whole resource.Device, property string) {
	m := whole.DesiredMeta[property]
	e := link.Entry{
		Key:   desiredKey(d.name, property),
		Value: []byte(whole.Spec.Desired[property]), Ver: max(m.Ver, 1), TS: m.TS, Origin: m.Origin,
	}
	if until, err := resource.ParseTime(whole.Spec.DesiredUntil[property]); err == nil {
		e.Meta.Until = until.UnixMilli()
	}
	e, changed, err := n.down.Put(e)
	if err != nil {
		n.nodes.opts.Log.Error().Err(err).Str("node", n.name).Str("device", d.name).Str("property", property).Uint64("ver", m.Ver).
			Msg("a desired value can't be sent")
		b.addDeviceEvent(whole.Metadata, resource.EventWarning, "NotSent", property, "the desired value can't be sent: %v", err)
		return
	}
	if changed {
		b.publish(func() broker.Message {
			return tree.ValueMessage(n.name, e.Key, topics.KindDesired, tree.StoredValue(e))
		})
		b.activeLinks[n] = true
	}
}

func (n *node) deleteDown(b *batch, key string) {
	if _, had := n.down.Delete(key, b.now.UnixMilli(), ""); !had {
		return
	}
	b.activeLinks[n] = true
	if readableByClients(key) {
		b.publish(func() broker.Message { return n.retained(key, nil) })
	}
}

func (n *node) deleteParts(b *batch, key string, from int) {
	for i := from; ; i++ {
		if _, had := n.down.Delete(topics.PartKey(key, i), b.now.UnixMilli(), ""); !had {
			return
		}
		b.activeLinks[n] = true
	}
}

// putShared writes a document as JSON that may end with a text which many documents end with.
func (n *node) putShared(b *batch, key string, v any, tail string) {
	doc, err := json.Marshal(v)
	if err != nil {
		n.nodes.opts.Log.Error().Err(err).Str("node", n.name).Str("key", key).Msg("a document can't be written")
		return
	}
	n.putDocument(b, key, doc, tail)
}

// putDocument writes a document, in parts if it is large, and publishes it whole.
func (n *node) putDocument(b *batch, key string, doc []byte, tail string) {
	value, parts := topics.SplitDocument(doc)
	ts := b.now.UnixMilli()
	put := func(key string, value []byte) bool {
		if old, ok := n.down.Get(key); ok && string(old.Value) == string(value) {
			return false
		}
		_, changed, err := n.down.PutShared(link.Entry{Key: key, Value: value, Ver: documentVer, TS: ts}, tail)
		if err != nil {
			n.nodes.opts.Log.Error().Err(err).Str("node", n.name).Str("key", key).Msg("a document can't be sent")
		}
		return changed
	}
	// Parts first: the replica then has them when the document's own key arrives.
	for i, part := range parts {
		put(topics.PartKey(key, i), part)
	}
	n.deleteParts(b, key, len(parts))
	if put(key, value) && readableByClients(key) {
		b.publish(func() broker.Message { return n.retained(key, doc) })
	}
	b.activeLinks[n] = true
}
