// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// Events of nodes and devices are recorded once a batch is through; those of what nodes reported, once it is stored.
// Only changes that need an explanation are events, not every write.

func (b *batch) addNodeEvent(name, kind, reason, about, format string, args ...any) {
	b.events = append(b.events, nodeEvent(name, kind, reason, about, format, args...))
}

func nodeEvent(name, kind, reason, about, format string, args ...any) resource.Occurrence {
	return resource.Occurrence{
		Kind: resource.KindNode, Name: name, Type: kind, Reason: reason, About: about, Message: fmt.Sprintf(format, args...),
	}
}

func (b *batch) addDeviceEvent(m resource.Meta, kind, reason, about, format string, args ...any) {
	if !b.loading {
		b.events = append(b.events, deviceEvent(m, kind, reason, about, format, args...))
	}
}

func deviceEvent(m resource.Meta, kind, reason, about, format string, args ...any) resource.Occurrence {
	if about != "" {
		format = about + ": " + format // a name has no % in it
	}
	return resource.Occurrence{
		Kind: resource.KindDevice, Namespace: m.Namespace, Name: m.Name, UID: m.UID,
		Type: kind, Reason: reason, About: about, Message: fmt.Sprintf(format, args...),
	}
}

// clipText keeps a long value from filling a message.
func clipText(s string) string {
	if len(s) > 80 {
		return fmt.Sprintf("%.80q… (%d bytes)", s, len(s))
	}
	return s
}

// missedChanges is what a node missed, from the beginning of a connection until it is in step.
type missedChanges struct {
	open    bool
	offline time.Duration // that it was offline; 0: not known
	keys    int           // that it lacks; -1: not known
}

func (n *node) recordJoined(b *batch, id *broker.Identity) {
	n.missed = missedChanges{open: true, keys: -1}
	if n.connections.links > 0 { // or this is the first time since the hub was started
		n.missed.keys = n.down.Dirty()
		n.missed.offline = max(b.now.Sub(time.UnixMilli(n.connections.since)), 0)
	}
	b.addNodeEvent(n.name, resource.EventNormal, "Joined", "", "connected from %s", id.Remote)
}

func (n *node) recordLeft(b *batch, takenOver bool) {
	n.missed.open = false
	if takenOver {
		b.addNodeEvent(n.name, resource.EventWarning, "TakenOver", "", "another connection in its name took the place of the one from %s", n.connections.remote)
		return
	}
	b.addNodeEvent(n.name, resource.EventWarning, "Left", "", "offline: %s", n.connections.ended)
}

// recordInStep says once in a connection that the node has everything.
func (n *node) recordInStep(b *batch) {
	o := &n.missed
	if !o.open || n.linkClient == "" || !n.down.InStep() {
		return
	}
	o.open = false
	if o.keys < 0 {
		b.addNodeEvent(n.name, resource.EventNormal, "InStep", "", "it has all %d keys that the cloud owns", n.down.Len())
		return
	}
	b.addNodeEvent(n.name, resource.EventNormal, "InStep", "", "in step after %s offline: it lacked %d of %d keys",
		o.offline.Round(time.Millisecond), o.keys, n.down.Len())
}

// maxLineageLead is how many lineages a node may be ahead of what it reported last before that is reported.
const maxLineageLead = 1 << 10

// recordAnomaly records that a core announces a state that can't follow from what it reported before: its data directory was
// replaced by an older copy, or another program uses its identity. The link goes on with the core's state, because the core owns it.
func (n *node) recordAnomaly(b *batch, m link.Message) {
	if m.Type != link.TypeHello && m.Type != link.TypeFull || n.connections.anomalyReported { // once a connection: a node may send any number
		return
	}
	a := resource.Anomaly{Time: resource.FormatTime(b.now)}
	had := n.up.Lineage()
	const advice = "the hub goes back to what the core has. An older copy of its data directory was put back, or its disk lost what was written"
	switch lead := m.Lineage.LeadOver(had); {
	case m.Type == link.TypeHello && m.Lineage == had && m.Seq < n.up.Applied():
		a.Reason = resource.RolledBack
		a.Message = fmt.Sprintf("the core's data is older than what it had reported: its last %d changes are gone, and %s", n.up.Applied()-m.Seq, advice)
	case n.connections.continues && lead > 0:
		a.Reason = resource.RolledBack
		a.Message = "the core's data is another than what it had reported under the same numbers: some of its changes are gone, and " + advice
	case m.Type == link.TypeHello && lead > maxLineageLead:
		a.Reason = resource.LineageLeap
		a.Message = fmt.Sprintf("what the core says of its state is %d generations ahead of what it had reported: most likely another program "+
			"has used this node's identity", lead)
	default:
		n.connections.continues = n.connections.continues || m.Type == link.TypeHello && m.Lineage == had
		return
	}
	n.connections.anomaly, n.connections.anomalyReported = &a, true
	n.nodes.status.node(n.name)
	b.addNodeEvent(n.name, resource.EventWarning, a.Reason, "", "%s", a.Message)
	n.nodes.opts.Log.Error().Str("node", n.name).Str("reason", a.Reason).Msg(a.Message)
}

func stateEvent(add func(kind, reason, format string, args ...any), state string) {
	switch state {
	case resource.Online:
		add(resource.EventNormal, "Online", "its mapper reaches it")
	case resource.Offline:
		add(resource.EventWarning, "Offline", "its mapper does not reach it")
	default:
		add(resource.EventWarning, "StateUnknown", "no mapper speaks for it")
	}
}

func mapperEvents(node, mapper, state string) []resource.Occurrence {
	switch state {
	case resource.Online:
		return []resource.Occurrence{nodeEvent(node, resource.EventNormal, "MapperOnline", mapper, "mapper %s is there", mapper)}
	case resource.Offline:
		return []resource.Occurrence{nodeEvent(node, resource.EventWarning, "MapperGone", mapper, "mapper %s is gone: its devices are in an unknown state", mapper)}
	}
	return nil
}

// recordBound records that a device moves to a node, or to none: to is empty.
func (ds *devices) recordBound(b *batch, d *device, m resource.Meta, to string, modelled bool) {
	switch {
	case to != "" && d.node == "":
		b.addDeviceEvent(m, resource.EventNormal, "Bound", "", "belongs to node %s", to)
	case to != "":
		b.addDeviceEvent(m, resource.EventNormal, "Moved", "", "from node %s to node %s", d.node, to)
	case !modelled:
		b.addDeviceEvent(m, resource.EventWarning, "ModelMissing", "", "taken off node %s until there is a DeviceModel %s", d.node, d.model.name)
	default:
		b.addDeviceEvent(m, resource.EventNormal, "Unbound", "", "taken off node %s", d.node)
	}
}

// recordReported records what a node reported, except reported values.
func (ds *devices) recordReported(b *batch, n *node, a topics.Address, c *link.Entry) {
	if a.Kind == topics.KindMapperState {
		b.reportedEvents = append(b.reportedEvents, mapperEvents(n.name, a.Device, string(c.Value))...)
		return
	}
	d := ds.byName[a.Device]
	if d == nil || !n.bound[a.Device] || c.Deleted {
		return
	}
	add := func(kind, reason, format string, args ...any) {
		o := deviceEvent(d.read().Metadata, kind, reason, a.Name, format, args...)
		o.Node = d.node
		b.reportedEvents = append(b.reportedEvents, o)
	}
	switch a.Kind {
	case topics.KindRefused:
		var r resource.Refusal
		if json.Unmarshal(c.Value, &r) == nil {
			add(resource.EventWarning, "Refused", "%s refused: %s: %s", clipText(string(d.read().Spec.Desired[a.Name])), r.Code, r.Message)
		}
	case topics.KindConflict:
		var x resource.OverrideConflict
		if json.Unmarshal(c.Value, &x) == nil {
			add(resource.EventWarning, "Conflict", "override %s against desired %s: %s won (policy %s)", clipText(x.Override), clipText(x.Desired), x.Winner, x.Policy)
		}
	case topics.KindOverride:
		add(resource.EventNormal, "Overridden", "%s on the node, by %s", clipText(string(c.Value)), c.Origin)
	case topics.KindProblem:
		if p, err := resource.ParseProblem(c.Value); err == nil && p.Online {
			add(resource.EventWarning, resource.ConditionDegraded, "%s: %s", p.Code, p.Message)
		} else if err == nil {
			add(resource.EventWarning, "Offline", "%s: %s", p.Code, p.Message)
		}
	case topics.KindReadProblem:
		if p, err := resource.ParseProblem(c.Value); err == nil {
			add(resource.EventWarning, resource.ReadFailed, "can't be read: %s: %s", p.Code, p.Message)
		}
	case topics.KindDeviceState:
		if string(c.Value) == resource.Offline && tree.ProblemOf(a.Device, n.up.Get) != nil {
			return // the event of the problem says it, with the reason
		}
		stateEvent(add, string(c.Value))
	}
}

// recordAlarms records which alarms of a device were raised and cleared since its status was stored.
func (sw *statusWriter) recordAlarms(m resource.Meta, stored []byte, is []resource.AlarmStatus) {
	var was struct {
		Alarms []resource.AlarmStatus `json:"alarms"`
	}
	if err := json.Unmarshal(stored, &was); err != nil && len(stored) > 0 {
		return
	}
	find := func(list []resource.AlarmStatus, a resource.AlarmStatus) bool {
		return slices.ContainsFunc(list, func(o resource.AlarmStatus) bool { return o.Key() == a.Key() && o.Since == a.Since })
	}
	for _, a := range was.Alarms {
		if !find(is, a) {
			sw.opts.Record(deviceEvent(m, resource.EventNormal, "AlarmCleared", a.Key(), "was: %s", a.Message))
		}
	}
	for _, a := range is {
		if !find(was.Alarms, a) {
			sw.opts.Record(deviceEvent(m, resource.EventWarning, "AlarmRaised", a.Key(), "%s (%s)", a.Message, a.Severity))
		}
	}
}

// recordAgent records what a node's agent says of its spec, of the host's resources and of the applications, where that has changed. That the spec is
// applied is no event of a node that a fleet owns: the fleet's RolledOut says so of all, and ten thousand events would push out all others.
func (sw *statusWriter) recordAgent(o store.Object, was, is resource.NodeStatus) {
	name := o.Name
	if is.AgentVersion == "" {
		return // nothing is known on the bus
	}
	for _, monitor := range []string{resource.MonitorCPU, resource.MonitorMemory, resource.MonitorDisk} {
		sw.recordAlert(name, monitor, was.Conditions, is.Conditions)
	}
	sw.recordApplications(name, was.Applications, is.Applications)
	if v := is.RenderedVersion; v != "" && v != was.RenderedVersion && !bytes.HasPrefix(rawjson.Field(rawjson.Field(o.Data, "metadata"), "owner"), []byte(`"`+resource.KindFleet+"/")) {
		sw.opts.Record(nodeEvent(name, resource.EventNormal, "SpecApplied", "", "version %s of its spec is applied", v))
	}
	if f := is.Failed; f != nil && (was.Failed == nil || *f != *was.Failed) {
		sw.opts.Record(nodeEvent(name, resource.EventWarning, "SpecFailed", "", "its spec is not applied: %s", f))
	}
}

// recordAlert records that an alert on one of the host's resources begins, gets another severity, or ends.
func (sw *statusWriter) recordAlert(name, monitor string, was, is []resource.Condition) {
	kind := resource.HealthCondition(monitor)
	alert := func(c resource.Condition) bool {
		return c.Reason == resource.SeverityWarning || c.Reason == resource.SeverityCritical
	}
	before, now := resource.ConditionOf(was, kind), resource.ConditionOf(is, kind)
	switch {
	case before.Reason == now.Reason:
	case alert(now):
		sw.opts.Record(nodeEvent(name, resource.EventWarning, monitor+now.Reason, "", "%s", now.Message))
	case !alert(before):
	case now.Status == "True":
		sw.opts.Record(nodeEvent(name, resource.EventNormal, monitor+"Normal", "", "%s", cmp.Or(now.Message, "no alert rule holds")))
	default:
		sw.opts.Record(nodeEvent(name, resource.EventNormal, monitor+"Unknown", "", "%s", cmp.Or(now.Message, "it is not watched any more")))
	}
}

// recordApplications records that applications fail, and that they run after they did not. One that runs when it is reported for the
// first time has no event: all of them do that when a hub sees a node first.
func (sw *statusWriter) recordApplications(name string, was, is []resource.ApplicationStatus) {
	before := make(map[string]resource.ApplicationStatus)
	for _, a := range was {
		before[a.Name] = a
	}
	for _, now := range is {
		old, known := before[now.Name]
		switch {
		case now.Failed() && !old.Failed():
			sw.opts.Record(nodeEvent(name, resource.EventWarning, "ApplicationError", now.Name, "%s: %s", now.Name, cmp.Or(now.Message, now.Status)))
		case now.Runs() && known && !old.Runs():
			sw.opts.Record(nodeEvent(name, resource.EventNormal, "ApplicationHealthy", now.Name, "%s: %s, it was %s", now.Name, now.Status, old.Status))
		}
	}
}
