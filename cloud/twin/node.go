// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/tracing"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
	"github.com/edgebus/edgebus/topics/trace"
)

// node is one node's two maps.
type node struct {
	nodes             *nodes // that it is one of
	name              string
	down              *link.Owner
	up                *link.Replica
	linkClient        string          // client id of the link while it listens on sync/down; empty: offline
	sentAt            time.Time       // when a message of down was last sent or received
	bound             map[string]bool // the devices that belong to it
	membershipWritten time.Time       // when the membership document was last written

	documentCount int // how many documents projections have put into its map
	fullPacer     fullPacer

	quotaError    string         // why no report of the node is accepted: its map exceeds the quota; empty: reports are accepted
	mapHub        resource.HubID // another hub that the node's map down came from; 0: none
	mapHubKnown   bool           // mapHub is known: the node has sent SEEN
	connections   connectionRecord
	missed        missedChanges
	formerDevices map[string]formerDevice // what is reported of Devices that left the node, by name, until the node reports anew
	away          bool                    // offline for longer than Options.AwayAfter, which its devices' statuses show
	traces        tree.LinkTraces         // of the keys of down that are to be sent
	lacksNode     bool                    // it has no Node object, and one is to be made
	writtenRev    atomic.Uint64           // revision of the last status that this process wrote
}

// sync is a message of the link to the node.
func (n *node) sync(payload []byte, traces []string) broker.Message {
	_, down := topics.SyncTopics(n.name)
	m := broker.Message{Topic: down, Payload: payload, QoS: 1}
	for _, t := range traces {
		m.Props.User = append(m.Props.User, broker.UserProperty{Key: trace.Property, Value: t})
	}
	return m
}

func (n *node) retained(key string, payload []byte) broker.Message {
	return tree.DocumentMessage(n.name, key, payload)
}

func (n *node) state() string {
	if n.linkClient != "" {
		return resource.Online
	}
	return resource.Offline
}

func edgeOwned(node, key string) (topics.Address, bool) {
	a, err := topics.ParseKey(node, key)
	if err != nil {
		return a, false
	}
	row := a.Kind.Row()
	return a, row.Owner == topics.OwnerEdge && row.Retain
}

// shows reports whether an address is shown: of devices' keys only those of devices that are bound to the node.
func (n *node) shows(a topics.Address) bool {
	return !strings.HasPrefix(a.Key(), "devices/") || n.bound[a.Device]
}

// formerDevice is what a node had reported of a Device when that left the node. A Device that is made with the same name while the node is
// away has none of it: the node clears it once it knows of the other one, and what it reports of that has other versions.
type formerDevice struct {
	uid     string
	entries map[string]reportVersion
}

type reportVersion struct {
	ver uint64
	ts  int64 // a node that was installed anew counts anew
}

// noteFormer notes what is reported of a Device that leaves the node.
func (n *node) noteFormer(d *device) {
	f := formerDevice{d.uid, make(map[string]reportVersion)}
	n.up.Range("devices/"+d.name+"/", func(e link.Entry) bool {
		f.entries[e.Key] = reportVersion{e.Ver, e.TS}
		return true
	})
	delete(n.formerDevices, d.name)
	if len(f.entries) == 0 {
		return
	}
	if n.formerDevices == nil {
		n.formerDevices = make(map[string]formerDevice)
	}
	n.formerDevices[d.name] = f
}

// isFormer reports whether an entry was reported of a former Device of the name.
func (n *node) isFormer(device string, e link.Entry) bool {
	id, noted := n.formerDevices[device].entries[e.Key]
	return noted && id == reportVersion{e.Ver, e.TS}
}

// currentEntry is a stored key of the map up, unless it is of a former Device.
func (n *node) currentEntry(device string) func(key string) (link.Entry, bool) {
	return func(key string) (link.Entry, bool) {
		e, ok := n.up.Stored().Get(key)
		return e, ok && !n.isFormer(device, e)
	}
}

// showReported publishes what a node had reported of a device before that was bound to it.
func (n *node) showReported(b *batch, device string) {
	if b.loading {
		return
	}
	n.up.Range("devices/"+device+"/", func(e link.Entry) bool {
		if _, ok := edgeOwned(n.name, e.Key); ok && !n.isFormer(device, e) {
			b.shown = append(b.shown, shownReport{n.name, e})
		}
		return true
	})
}

// restoreReplica is a node's map up as it is stored.
func restoreReplica(r store.Replica, q link.Quota) (*link.Replica, error) {
	up := link.NewReplica(link.Up)
	if r.Meta != nil {
		var state link.MapState
		if err := state.UnmarshalBinary(r.Meta); err != nil {
			return nil, fmt.Errorf("the stored map of node %s: %w", r.Node, err)
		}
		var damaged error
		restored, err := link.RestoreReplica(link.Up, state, parseItems(r.Items, &damaged))
		if err = errors.Join(err, damaged); err != nil {
			return nil, fmt.Errorf("the stored map of node %s: %w", r.Node, err)
		}
		up = restored
	}
	up.SetQuota(q)
	return up, nil
}

func parseItems(items []store.ReplicaItem, bad *error) iter.Seq[link.Entry] {
	return func(yield func(link.Entry) bool) {
		for _, item := range items {
			e, err := link.ParseEntry(item.Key, item.Value)
			if err != nil {
				*bad = fmt.Errorf("key %q: %w", item.Key, err)
				return
			}
			if !yield(e) {
				return
			}
		}
	}
}

func nodeChange(name string, j link.JournalChanges) (store.NodeChange, error) {
	meta, err := j.State.MarshalBinary()
	c := store.NodeChange{Node: name, Reset: j.Reset, Meta: meta, Delete: j.Dropped, Put: make([]store.ReplicaItem, 0, len(j.Entries))}
	for _, e := range j.Entries {
		c.Put = append(c.Put, store.ReplicaItem{Key: e.Key, Value: link.EncodeEntry(e)})
	}
	return c, err
}

// reported reports whether anything that a node reported is stored.
func reported(up *link.Replica) bool { return up.Lineage() != (link.Lineage{}) }

// recordQuota logs and records when a node's reports are first refused by the quota, and when they are first accepted again.
func (n *node) recordQuota(b *batch) {
	why := n.up.Refused()
	if why == n.quotaError {
		return
	}
	n.quotaError = why
	n.nodes.status.node(n.name)
	if why == "" {
		b.addNodeEvent(n.name, resource.EventNormal, "WithinQuota", "", "what the node reports is taken again")
		n.nodes.opts.Log.Info().Str("node", n.name).Msg("what the node reports is taken again")
		return
	}
	b.addNodeEvent(n.name, resource.EventWarning, resource.QuotaExceeded, "",
		"the node owns %s: nothing is taken of what it reports until it owns less", why)
	n.nodes.opts.Log.Error().Str("node", n.name).Str("reason", why).
		Msg("nothing is taken of what the node reports until it owns less: see limits.node")
}

// CheckReplica reads a node's stored map as the hub does when it starts, and counts its keys.
func CheckReplica(r store.Replica) (keys int, err error) {
	up, err := restoreReplica(r, link.Quota{})
	if err != nil {
		return 0, err
	}
	return up.Len(), nil
}

// documentVer is the version of every document: documents are compared by content, not by version.
const documentVer = 1

const membershipKey = "membership"

func desiredKey(device, property string) string {
	return topics.DeviceKey(device, topics.KindDesired, property)
}

// projectDesired writes the desired values. A value that the model does not allow, because the model has changed since, stays in the
// spec and is not sent to the node.
func (n *node) projectDesired(b *batch, d *device, whole resource.Device, m *model) {
	var keys []string
	if !b.loading { // nothing is there yet
		keys = n.down.Keys(desiredKey(d.name, ""))
	}
	for _, key := range keys {
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
		span := n.traceDesired(b, d, property, m.Trace, e.Key)
		b.publish(func() broker.Message {
			s := tree.StoredValue(e)
			s.Trace = span.Traceparent()
			return tree.ValueMessage(n.name, e.Key, topics.KindDesired, s)
		})
		b.activeLinks[n] = true
	}
}

// traceDesired begins the span of a desired value's way to the node. It ends when the value is sent.
func (n *node) traceDesired(b *batch, d *device, property, traceparent, key string) tracing.Span {
	if b.loading {
		return tracing.Span{} // what was written before this start
	}
	span := n.nodes.opts.Traces.Follow(traceparent, "send desired", tracing.Producer, "edgebus.node", n.name, "edgebus.device", d.name, "edgebus.property", property)
	if n.traces == nil && span.Traceparent() != "" {
		n.traces = make(tree.LinkTraces)
	}
	if n.traces != nil {
		n.traces.Put(key, span)
	}
	return span
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

// putDocument writes a document that may end with a text which many documents end with, in parts if it is large, and publishes it whole.
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
