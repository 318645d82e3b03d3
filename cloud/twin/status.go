// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// statusWriters is how many statuses are written at the same time, to share commits.
const statusWriters = 256

// statusQueue holds the names of devices and nodes whose status is to be computed again. It is a set: a device that changes a
// thousand times before that is computed once.
type statusQueue struct {
	mu         sync.Mutex
	devices    map[string]bool
	nodes      map[string]bool
	inProgress int // names that were taken and are not done
}

func newStatusQueue() *statusQueue {
	return &statusQueue{devices: make(map[string]bool), nodes: make(map[string]bool)}
}

func (q *statusQueue) device(name string) { q.mark(func() { q.devices[name] = true }) }
func (q *statusQueue) node(name string)   { q.mark(func() { q.nodes[name] = true }) }
func (q *statusQueue) forget(name string) { q.mark(func() { delete(q.devices, name) }) }

func (q *statusQueue) mark(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f()
}

func (q *statusQueue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.devices) + len(q.nodes) + q.inProgress
}

func (q *statusQueue) take() (devices, nodes map[string]bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	devices, nodes = q.devices, q.nodes
	q.inProgress = len(devices) + len(nodes)
	q.devices, q.nodes = make(map[string]bool), make(map[string]bool)
	return devices, nodes
}

func (q *statusQueue) done() { q.mark(func() { q.inProgress-- }) }

// statusWriter computes the statuses of Devices and Nodes, and writes them.
type statusWriter struct {
	opts         *Options
	host         *tree.Host[*batch]
	nodes        *nodes
	devices      *devices
	httpPresence *httpPresence
	desired      *desiredWrites // takes adopted overrides
	queue        *statusQueue
	written      atomic.Uint64 // statuses since the start
}

// run writes the statuses of what has changed, every Options.StatusEvery.
func (sw *statusWriter) run(ctx context.Context) {
	tick := time.NewTicker(sw.opts.StatusEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			sw.writeStatuses(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (sw *statusWriter) writeStatuses(ctx context.Context) {
	devices, nodes := sw.queue.take()
	if len(devices)+len(nodes) == 0 {
		return
	}
	work := make(chan func())
	var wg sync.WaitGroup
	for range min(statusWriters, len(devices)+len(nodes)) {
		wg.Go(func() {
			for f := range work {
				f()
				sw.queue.done()
			}
		})
	}
	for name := range devices {
		work <- func() { sw.retry(ctx, sw.writeDevice(ctx, name), func() { sw.queue.device(name) }) }
	}
	for name := range nodes {
		work <- func() { sw.retry(ctx, sw.writeNode(ctx, name), func() { sw.queue.node(name) }) }
	}
	close(work)
	wg.Wait()
}

// retry queues a status that could not be written again; it is computed again at the next tick.
func (sw *statusWriter) retry(ctx context.Context, err error, again func()) {
	if err == nil || ctx.Err() != nil || errors.Is(err, resource.NotFound) {
		return
	}
	sw.opts.Log.Debug().Err(err).Msg("a status was not written: trying again")
	again()
}

// writeDevice gives a Device the status that follows from what its node reported. It is computed from one version of the object, and
// taken only if the object still has that version; otherwise it is computed again. What nodes reported is stored: the status isn't,
// unless it says that the node comes or goes.
func (sw *statusWriter) writeDevice(ctx context.Context, name string) error {
	sw.host.RLock()
	d := sw.devices.byName[name]
	sw.host.RUnlock()
	if d == nil {
		return nil
	}
	key := store.Key{Kind: resource.KindDevice, Namespace: d.model.namespace, Name: name}
	for try := 1; ; try++ {
		err := sw.tryWriteDevice(ctx, d, key)
		if try == statusTries || !errors.Is(err, resource.Conflict) {
			return err
		}
	}
}

// statusTries is how often a status is computed at once while other writes of the object come first. After that it waits for the
// next tick.
const statusTries = 5

func (sw *statusWriter) tryWriteDevice(ctx context.Context, d *device, key store.Key) error {
	obj, err := sw.opts.Reader.Get(ctx, key)
	if err != nil {
		return err
	}
	before := obj.Status
	var whole resource.Device
	if err := json.Unmarshal(obj.Data, &whole); err != nil {
		return err
	}
	if !sw.followReports(d, &whole, before, sw.opts.Now()) {
		return nil // it has just moved: its status is written once the store's watch has delivered that
	}
	sw.host.RLock()
	adopted, found := sw.adoption(d, whole)
	sw.host.RUnlock()
	if found {
		sw.desired.queue(d.name, adopted)
	}
	write := sw.opts.Derived.UpdateDerived
	if d.unstoredOnline.Load() || nodeOnline(conditionsOf(before)) != nodeOnline(whole.Status.Conditions) {
		write = sw.opts.Writer.Update // it doesn't follow from what nodes report
	}
	if d.writtenRev.Load() == 0 {
		obj.Status = nil // it may have been derived just now, and nobody has it: this one is written in any case
	}
	rev, err := sw.writeStatus(ctx, obj, nil, whole.Status, write)
	if rev != 0 {
		d.unstoredOnline.Store(false)
		d.writtenRev.Store(rev)
		if first := d.first.Swap(nil); first != nil {
			before = *first
		}
		sw.recordAlarms(whole.Metadata, before, whole.Status.Alarms)
	}
	return err
}

// nodeOnline is what the condition says that is kept for after a restart.
func nodeOnline(list []resource.Condition) string {
	return resource.ConditionOf(list, resource.ConditionNodeOnline).Status
}

// derivedDevice is a Device's status when it is read for the first time after a restart; no other status is computed then. It is given
// what was stored, of which only conditions are needed.
func (sw *statusWriter) derivedDevice(o store.Object) []byte {
	sw.host.RLock()
	d := sw.devices.byName[o.Name]
	sw.host.RUnlock()
	var whole resource.Device
	if d == nil || json.Unmarshal(o.Data, &whole) != nil || !sw.followReports(d, &whole, o.Status, time.Time{}) {
		return o.Status
	}
	status, err := json.Marshal(whole.Status)
	if err != nil {
		return o.Status
	}
	if nodeOnline(conditionsOf(o.Status)) != nodeOnline(whole.Status.Conditions) {
		d.unstoredOnline.Store(true)
	}
	return status
}

// deriveFirst has the status of a Device derived before its alarms change, unless it was: what it was before tells which of them are new.
func (sw *statusWriter) deriveFirst(ctx context.Context, name string) {
	if d, _, _ := sw.devices.find(name); d != nil && d.writtenRev.Load() == 0 {
		if o, err := sw.opts.Reader.Get(ctx, store.Key{Kind: resource.KindDevice, Namespace: d.model.namespace, Name: name}); err == nil {
			d.first.CompareAndSwap(nil, &o.Status) // a change of the spec would have it derived again, with the alarm
		}
	}
}

// followReports makes a Device's status of what its node reported, and of the conditions of its status before. It reports false if the
// Device is another than the maps have. Conditions that change have changed now; zero: when the node last reported.
func (sw *statusWriter) followReports(d *device, whole *resource.Device, before []byte, now time.Time) bool {
	sw.host.RLock()
	if sw.devices.byName[d.name] != d || d.model.name != whole.Spec.DeviceModelRef.Name || d.node != sw.devices.target(d, *whole) {
		sw.host.RUnlock()
		return false
	}
	whole.Status = sw.devices.reportedStatus(d)
	model := sw.devices.models[d.model]
	reach := sw.devices.reach(d, *whole, whole.Status.State)
	sw.host.RUnlock()
	s := &whole.Status
	if now.IsZero() {
		now = sw.nodes.started
		if at, err := resource.ParseTime(s.LastSeen); err == nil {
			now = at
		}
	}
	s.Conditions = conditionsOf(before)
	whole.FollowReports(model.known(), reach, now)
	online := reach.Condition()
	if model == nil {
		online = resource.ModelMissing(resource.ConditionOnline, whole.Spec.DeviceModelRef.Name)
	}
	if reach.Away {
		s.State = resource.Unknown // what the node reported last may be outdated
	}
	s.Conditions = resource.SetCondition(s.Conditions, online, now)
	s.Conditions = reach.SetDegraded(setNodeOnline(s.Conditions, reach, now), now)
	resource.SetObservedGeneration(s.Conditions, whole.Metadata.Generation, resource.ConditionOnline, resource.ConditionNodeOnline, resource.ConditionDegraded)
	return true
}

// conditionsOf decodes the conditions of a stored status. If that fails, only their transition times are lost.
func conditionsOf(status []byte) []resource.Condition {
	var s struct {
		Conditions []resource.Condition `json:"conditions"`
	}
	_ = json.Unmarshal(status, &s)
	return s.Conditions
}

// adoption is the desired write that turns a node's overrides into desired values: overrides of properties with adopt: true, that
// are not in conflict and have no end. It is looked for with each status of the device, so after a restart or a failure it
// is found again.
func (sw *statusWriter) adoption(d *device, whole resource.Device) (w desiredWrite, found bool) {
	n := sw.nodes.byName[d.node]
	if n == nil {
		return w, false
	}
	w = desiredWrite{node: n.name, origin: "node/" + n.name, values: make(map[string]*resource.Value), basedOn: make(map[string]uint64)}
	model := sw.devices.model(d)
	for _, p := range model.Spec.Properties {
		if !p.Adopt {
			continue
		}
		o, ok := n.currentEntry(d.name)(topics.DeviceKey(d.name, topics.KindOverride, p.Name))
		if !ok || o.Meta.Until != 0 || o.Meta.BasedOn != currentVersion(whole.DesiredMeta[p.Name]) ||
			model.CheckDesired(p.Name, o.Value) != nil {
			continue
		}
		v := resource.Value(o.Value)
		w.values[p.Name], w.basedOn[p.Name] = &v, o.Meta.BasedOn
	}
	name := d.name
	w.done = func(err error) {
		if err != nil && !errors.Is(err, resource.NotFound) {
			sw.queue.device(name) // look again
		}
	}
	return w, len(w.values) > 0
}

// nodeFacts are what a Node's status is made from.
type nodeFacts struct {
	node                                 *node  // nil: it never joined
	state, oversize, otherHub, lastError string // state is that of the link
	exists, otherHubKnown                bool   // the node must have a Node; alone is known
	overHTTP                             bool   // it is present, and has no link
	httpEnded                            string
	devices                              int
	connections                          uint32
	expires                              int64
	core                                 resource.NodeReport
	agent                                *resource.AgentReport // nil: the node has none
	agentAt                              int64
	agentState, discovererState          string // as they say themselves; empty: never
	anomaly                              *resource.Anomaly
}

// stoppedPrograms are the node's programs that have ended.
func (f nodeFacts) stoppedPrograms() (programs []string) {
	if f.agentState == resource.Offline {
		programs = append(programs, "edgeagent")
	}
	if f.discovererState == resource.Offline {
		programs = append(programs, "edgediscovery")
	}
	return programs
}

// setReady sets the condition Ready.
func (f nodeFacts) setReady(list []resource.Condition, now time.Time) []resource.Condition {
	if !f.overHTTP && (f.httpEnded == "" || f.state == resource.Online) {
		return resource.ReadyCondition(list, f.state, f.lastError, now)
	}
	return resource.HTTPReadyCondition(list, f.httpEnded, now)
}

func (sw *statusWriter) nodeFacts(name string) (f nodeFacts) {
	sw.host.RLock()
	defer sw.host.RUnlock()
	f.state = resource.Offline
	f.overHTTP, f.httpEnded = sw.httpPresence.ofNode(name, sw.opts.HTTPPresence)
	n := sw.nodes.byName[name]
	if n == nil {
		return f
	}
	f.node, f.anomaly = n, n.connections.anomaly
	f.connections, f.expires = n.connections.links, n.connections.expires
	f.devices = len(n.bound)
	f.state, f.oversize, f.exists = n.state(), n.quotaError, n.linkClient != "" || n.lacksNode
	f.overHTTP = f.overHTTP && n.linkClient == ""
	f.otherHub, f.otherHubKnown, f.lastError = n.otherHubText(), n.mapHubKnown, n.connections.ended
	if e, ok := n.up.Stored().Get(topics.Address{Kind: topics.KindStatus}.Key()); ok {
		_ = json.Unmarshal(e.Value, &f.core) // a report that can't be decoded has no version
	}
	if e, ok := n.up.Stored().Get(topics.Address{Kind: topics.KindAgent}.Key()); ok {
		if r, err := resource.ParseAgentReport(e.Value); err == nil { // the node's broker has checked it
			f.agent, f.agentAt = &r, e.TS
		}
	}
	if e, ok := n.up.Stored().Get(topics.Address{Kind: topics.KindAgentState}.Key()); ok {
		f.agentState = string(e.Value)
	}
	if e, ok := n.up.Stored().Get(topics.Address{Kind: topics.KindDiscovererState}.Key()); ok {
		f.discovererState = string(e.Value)
	}
	return f
}

// writeNode writes a Node's status. As a Device's it is stored only if the object still has the version that it was computed
// from: controllers, and agents over HTTP, write it too.
func (sw *statusWriter) writeNode(ctx context.Context, name string) error {
	for try := 1; ; try++ {
		err := sw.tryWriteNode(ctx, name)
		if try == statusTries || !errors.Is(err, resource.Conflict) {
			return err
		}
	}
}

func (sw *statusWriter) tryWriteNode(ctx context.Context, name string) error {
	f := sw.nodeFacts(name)
	key := store.Key{Kind: resource.KindNode, Name: name}
	obj, err := sw.opts.Reader.Get(ctx, key)
	if f.exists && errors.Is(err, resource.NotFound) {
		if err = sw.createNode(ctx, key); err == nil {
			obj, err = sw.opts.Reader.Get(ctx, key)
		}
	}
	if err != nil {
		return err
	}
	was, s, err := sw.nodeStatus(ctx, f, obj, sw.opts.Now())
	if err != nil {
		return err
	}
	write := sw.opts.Writer.Update
	if f.follows(was, s) {
		write = sw.opts.Derived.UpdateDerived
	}
	rev, err := sw.writeStatus(ctx, obj, sw.opts.NoteVersion(obj, s), s, write)
	if rev != 0 {
		if f.node != nil {
			f.node.writtenRev.Store(rev)
		}
		sw.recordAgent(obj, was, s)
	}
	return err
}

// follows reports whether what has changed in a Node's status follows from what the node reported last, which is stored. Presence, and
// what the hub has found of a report, do not.
func (f nodeFacts) follows(was, s resource.NodeStatus) bool {
	return was.State == s.State && was.OverHTTP == s.OverHTTP && was.CertificateExpires == s.CertificateExpires &&
		resource.ConditionOf(s.Conditions, resource.ReportUntrue).Status != "True" &&
		resource.SameConditions(was.Conditions, s.Conditions, slices.Concat(was.AgentConditions, s.AgentConditions))
}

// derivedNode is a Node's status when it is read for the first time after a restart.
func (sw *statusWriter) derivedNode(o store.Object) []byte {
	_, s, err := sw.nodeStatus(context.Background(), sw.nodeFacts(o.Name), o, sw.nodes.started)
	if err != nil {
		return o.Status
	}
	status, err := json.Marshal(s)
	if err != nil {
		return o.Status
	}
	return status
}

// nodeStatus is the status of a Node, and the one before, which it is made from with what is known of the node.
func (sw *statusWriter) nodeStatus(ctx context.Context, f nodeFacts, obj store.Object, now time.Time) (was, s resource.NodeStatus, err error) {
	_ = json.Unmarshal(obj.Status, &s) // if that fails, only the time of the last change is lost
	was = s
	was.Conditions = slices.Clone(s.Conditions) // they are changed in place
	present := f.state
	if s.OverHTTP = f.overHTTP; f.overHTTP {
		present = resource.Online
	}
	if s.State != present {
		s.State, s.LastSeen = present, resource.FormatTime(now)
	}
	s.Version, s.Devices = f.core.Version, f.devices
	sent := ""
	if f.agent != nil {
		if sent, err = sw.sentVersion(ctx, obj.Name); err != nil {
			return was, s, err
		}
	}
	s.FollowAgent(f.agent, resource.FormatMillis(f.agentAt), sent, f.core.SystemInfo, now)
	s.Conditions = resource.PresenceConditions(s.Conditions, was.Conditions, f.state, f.agentState, f.discovererState, now)
	s.Conditions = f.setReady(s.Conditions, now)
	s.Conditions = resource.QuotaCondition(s.Conditions, f.oversize, now)
	s.Conditions = resource.RenewalCondition(s.Conditions, f.core.RenewalError, now)
	s.Conditions = resource.DiskCondition(s.Conditions, f.core.LowSpace, now)
	s.Conditions = resource.RolledBackCondition(s.Conditions, f.anomaly, now)
	if f.connections > 0 { // otherwise the former value still holds
		s.CertificateExpires = resource.FormatMillis(f.expires)
	}
	if f.otherHubKnown { // otherwise the former condition still holds
		s.Conditions = resource.OtherHubCondition(s.Conditions, f.otherHub, now)
	}
	resource.SetNodeGeneration(s.Conditions, generationOf(obj.Data))
	return was, s, nil
}

// sentVersion is the newest version of the spec that a node has been sent; empty: none.
func (sw *statusWriter) sentVersion(ctx context.Context, node string) (version string, err error) {
	record, err := sw.opts.Reader.Get(ctx, store.Key{Kind: resource.KindRenderedSpec, Name: node})
	if err != nil {
		return "", store.IgnoreNotFound(err)
	}
	_ = json.Unmarshal(rawjson.Field(record.Data, "renderedVersion"), &version) // the hub has written it
	return version, nil
}

// generationOf is the generation of a stored object; 0 if it has none.
func generationOf(data []byte) int64 {
	generation, _ := strconv.ParseInt(string(rawjson.Field(rawjson.Field(data, "metadata"), "generation")), 10, 64)
	return generation
}

// writeStatus writes an object's status if it has changed, with its data unless that is nil, and returns its new revision, or 0. If the object has
// another revision than obj, it fails with Conflict.
func (sw *statusWriter) writeStatus(ctx context.Context, obj store.Object, data []byte, next any, write func(context.Context, store.Object, uint64) (store.Object, error)) (rev uint64, err error) {
	status, err := json.Marshal(next)
	if err != nil || data == nil && bytes.Equal(status, obj.Status) {
		return 0, err
	}
	sw.written.Add(1)
	obj, err = write(ctx, store.Object{Key: obj.Key, Data: data, Status: status}, obj.Rev)
	return obj.Rev, err
}

// createNode makes the Node of a node that was accepted and has none.
func (sw *statusWriter) createNode(ctx context.Context, key store.Key) error {
	err := sw.opts.CreateNode(ctx, key.Name)
	if errors.Is(err, resource.AlreadyExists) {
		return nil
	}
	return err
}

// setNodeOnline sets a Device's condition NodeOnline. A Device whose node was never away has none.
func setNodeOnline(list []resource.Condition, r resource.Reachability, now time.Time) []resource.Condition {
	switch {
	case r.OnUnknownNode():
		c := r.Condition()
		c.Type, c.Status = resource.ConditionNodeOnline, "False"
		return resource.SetCondition(list, c, now)
	case r.Away:
		return resource.SetCondition(list, resource.Condition{
			Type: resource.ConditionNodeOnline, Status: "False", Reason: resource.ReasonAway,
			Message: "node " + r.Node + " is offline: all else is what it reported last",
		}, now)
	case resource.ConditionOf(list, resource.ConditionNodeOnline).Type != "":
		return resource.SetCondition(list, resource.Condition{Type: resource.ConditionNodeOnline, Status: "True", Reason: "NodeOnline"}, now)
	}
	return list
}

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
	s.Alarms = resource.RaisedAlarms(m, func(property string) []byte { return up["alarms/"+property].Value })
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
			r.Mappers = tree.Mappers(n.name, n.up.Stored().Range)
		}
	}
	return r
}

// reportedBy is what a device's node reported of it, under the keys below the device's.
func (ds *devices) reportedBy(d *device) map[string]resource.StoredValue {
	up := make(map[string]resource.StoredValue)
	if n := ds.nodes.byName[d.node]; n != nil {
		prefix := "devices/" + d.name + "/"
		n.up.Stored().Range(prefix, func(e link.Entry) bool {
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
