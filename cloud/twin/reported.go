package twin

import (
	"bytes"

	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// model is the model of a device, empty if it doesn't exist.
func (ds *devices) model(d *device) (m resource.DeviceModel) {
	if known := ds.models[d.model]; known != nil {
		m = known.DeviceModel
	}
	return m
}

// reportedStatus is the part of a device's status that its node reported.
func (ds *devices) reportedStatus(d *device) resource.DeviceStatus {
	up, m := ds.reportedBy(d), ds.model(d)
	s := resource.DeviceStatus{State: resource.Unknown}
	s.Twin = resource.Twin(m, func(branch, property string) (resource.StoredValue, bool) {
		v, ok := up[branch+"/"+property]
		return v, ok
	})
	state, ok := up[stateKey]
	last := state.TS
	if ok {
		s.State = string(state.Value)
	}
	for _, p := range m.Spec.Properties {
		last = max(last, up["reported/"+p.Name].TS)
	}
	s.LastSeen = resource.FormatMillis(last)
	return s
}

// reach is what is known of why a device can or can't be reached.
func (ds *devices) reach(d *device, whole resource.Device, state string) resource.Reachability {
	r := resource.Reachability{Local: whole.Spec.LocalState, Node: whole.Spec.NodeName, Registered: ds.nodes.registered[whole.Spec.NodeName], Protocol: whole.Spec.Protocol.Type, State: state}
	if n := ds.nodes.byName[r.Node]; n != nil {
		r.Away, r.Problem = n.away, tree.ProblemOf(d.name, n.currentEntry(d.name))
		if e, ok := n.currentEntry(d.name)(topics.Address{Kind: topics.KindDeviceState, Device: d.name}.Key()); ok {
			r.Heard, r.Since = true, resource.FormatMillis(e.TS)
		}
		if r.Away && n.connections.since != 0 {
			r.Since = resource.FormatMillis(n.connections.since)
		}
		if state == resource.Unknown {
			r.Mappers = tree.Mappers(n.name, n.up.Range)
		}
	}
	return r
}

// reportedBy is what a device's node reported of it, under the keys below the device's.
func (ds *devices) reportedBy(d *device) map[string]resource.StoredValue {
	up := make(map[string]resource.StoredValue)
	if n := ds.nodes.byName[d.node]; n != nil {
		prefix := "devices/" + d.name + "/"
		n.up.Range(prefix, func(e link.Entry) bool {
			if !n.isFormer(d.name, e) {
				up[e.Key[len(prefix):]] = tree.StoredValue(e)
			}
			return true
		})
	}
	return up
}

// recallAway restores from a Device's stored status that its node was away when the hub stopped.
func (ds *devices) recallAway(o store.Object) {
	d := ds.byName[o.Name]
	if d == nil || ds.nodes.byName[d.node] == nil || ds.nodes.byName[d.node].away || !bytes.Contains(o.Status, []byte(resource.ConditionNodeOnline)) {
		return
	}
	ds.nodes.byName[d.node].away = resource.ConditionOf(conditionsOf(o.Status), resource.ConditionNodeOnline).Status == "False"
}
