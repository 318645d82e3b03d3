// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/tracing"
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/limits"
	"github.com/edgebus/edgebus/topics/resource"
	"github.com/edgebus/edgebus/topics/trace"
)

const (
	desiredWriteCost    = 512 // bytes of a waiting desired write besides its values
	desiredWriteTimeout = 30 * time.Second
)

// desiredWrite is one publish of desired values: accepted or refused as a whole.
type desiredWrite struct {
	node    string
	origin  string
	values  map[string]*resource.Value // nil: clear
	ts      int64
	until   int64
	trace   string            // the traceparent; empty: it belongs to none
	basedOn map[string]uint64 // only if these are still the desired versions; nil: whatever they are
	done    func(error)
	bytes   int // that it counts for
}

// desiredWrites holds the waiting desired writes by device. All that wait for one device are applied, in the order of arrival, in one
// update of its object, so that many writes of one device never conflict with each other.
type desiredWrites struct {
	opts       *Options
	devices    *devices
	deliveries *deliveryWaits

	mu      sync.Mutex
	pending map[string][]desiredWrite // a device that has an entry has a goroutine
	backlog *quota.Backlog            // bytes that wait, by origin
	count   atomic.Int64
	closed  bool
	running sync.WaitGroup
}

func newDesiredWrites(opts *Options, devices *devices, deliveries *deliveryWaits) *desiredWrites {
	return &desiredWrites{
		opts: opts, devices: devices, deliveries: deliveries, pending: make(map[string][]desiredWrite),
		backlog: quota.NewBacklog(int(limits.MemoryShare(1.0/64, 2<<20, 16<<20))),
	}
}

func (w *desiredWrites) waiting() int { return int(w.count.Load()) }

// add queues a desired write; serve is called in a goroutine of its own for a device that has none.
// It is false when the hub is stopping.
func (w *desiredWrites) add(device string, v desiredWrite) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	_, running := w.pending[device]
	w.pending[device] = append(w.pending[device], v)
	if !running {
		w.running.Go(func() { w.serve(device) })
	}
	return true
}

// close refuses further writes, and returns once those that wait have their answers.
func (w *desiredWrites) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.backlog.Wake()
	w.running.Wait()
}

// take removes and returns what waits for a device. If nothing does, the device's goroutine must end.
func (w *desiredWrites) take(device string) []desiredWrite {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.pending[device]
	if len(list) == 0 {
		delete(w.pending, device)
		return nil
	}
	w.pending[device] = list[:0:0]
	return list
}

// queue queues a desired write for a device. It blocks while as much waits of the same origin as is left for all others.
func (w *desiredWrites) queue(name string, v desiredWrite) {
	v.bytes = desiredWriteCost
	for property, value := range v.values {
		v.bytes += len(property)
		if value != nil {
			v.bytes += len(*value)
		}
	}
	if !w.backlog.Wait(v.origin, func() {}, w.isClosed) {
		v.done(errStopped)
		return
	}
	w.begin(v)
	if !w.add(name, v) {
		w.end(v)
		v.done(errStopped)
	}
}

func (w *desiredWrites) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

func (w *desiredWrites) begin(v desiredWrite) {
	w.count.Add(1)
	w.backlog.Add(v.origin, v.bytes)
}

func (w *desiredWrites) end(v desiredWrite) {
	w.count.Add(-1)
	w.backlog.Add(v.origin, -v.bytes)
}

var errStopped = resource.Errorf(resource.Unavailable, "", "the hub is stopping: publish again once it is back")

// serve ends by itself when nothing waits for the device any more.
func (w *desiredWrites) serve(name string) {
	for list := w.take(name); list != nil; list = w.take(name) {
		ctx, cancel := context.WithTimeout(context.Background(), desiredWriteTimeout)
		verdicts := w.accept(ctx, name, list)
		cancel()
		for i, v := range list {
			v.done(verdicts[i])
			w.end(v)
		}
	}
}

// accept writes those of the list that break no rule into the Device, in one update, and returns the answer to each.
func (w *desiredWrites) accept(ctx context.Context, name string, list []desiredWrite) []error {
	for {
		verdicts := make([]error, len(list))
		err := w.tryAccept(ctx, name, list, verdicts)
		if err == nil {
			return verdicts
		}
		if !errors.Is(err, resource.Conflict) || ctx.Err() != nil {
			return fillErrors(verdicts, err)
		}
	}
}

func fillErrors(verdicts []error, err error) []error {
	for i := range verdicts {
		if verdicts[i] == nil {
			verdicts[i] = err
		}
	}
	return verdicts
}

func (w *desiredWrites) tryAccept(ctx context.Context, name string, list []desiredWrite, verdicts []error) error {
	obj, err := w.opts.Reader.Get(ctx, store.Key{Kind: resource.KindDevice, Namespace: w.devices.namespace(name), Name: name})
	if errors.Is(err, resource.NotFound) {
		for i, v := range list {
			verdicts[i] = resource.Errorf(resource.NotFound, "", "there is no device %s%s", name, w.devices.suggestion(v.node, name))
		}
		return nil
	}
	if err != nil {
		return err
	}
	var dev resource.Device
	if err := json.Unmarshal(obj.Data, &dev); err != nil {
		return err
	}
	model, err := w.readModel(ctx, dev)
	if err != nil {
		fillErrors(verdicts, err)
		return nil
	}
	before := dev
	for i, v := range list {
		if verdicts[i] = checkDesired(v, dev, model); verdicts[i] != nil {
			continue
		}
		dev = v.apply(dev, w.opts.Now())
		if w.opts.Managed == nil || len(dev.Metadata.ManagedFields) == 0 {
			continue
		}
		if obj.Data, dev, err = w.withManager(obj, dev, v.origin); err != nil {
			return err
		}
	}
	if maps.Equal(before.DesiredMeta, dev.DesiredMeta) {
		return nil // unchanged values are no work
	}
	dev.Metadata.Generation++
	data, err := json.Marshal(dev)
	if err != nil {
		return err
	}
	status, err := dev.StatusAfter(&before, obj.Status, &model, w.opts.Now())
	if err != nil {
		return err
	}
	d, _, _ := w.devices.find(name)
	if d != nil { // before the update: its event may come before Update returns
		d.accepted.Store(&acceptedDevice{data, dev})
	}
	stored, err := w.opts.Writer.Update(ctx, store.Object{Key: obj.Key, Data: data, Status: status}, obj.Rev)
	if err == nil {
		w.logWanted(before, dev)
	} else if d != nil {
		d.accepted.Store(nil)
	}
	if err == nil && d != nil && w.reachesDurable(name, list, verdicts) {
		err = w.deliveries.wait(ctx, d, stored.Rev)
	}
	return err
}

// withManager is a Device that has been changed, with what has changed owned by the writer, and its data.
func (w *desiredWrites) withManager(before store.Object, dev resource.Device, origin string) ([]byte, resource.Device, error) {
	data, err := json.Marshal(dev)
	if err == nil {
		data, err = w.opts.Managed(before, data, origin)
	}
	var next resource.Device
	if err == nil {
		err = json.Unmarshal(data, &next)
	}
	return data, next, err
}

// reachesDurable reports whether a durable session gets a value that was accepted.
func (w *desiredWrites) reachesDurable(name string, list []desiredWrite, verdicts []error) bool {
	for i, v := range list {
		for property := range v.values {
			if verdicts[i] == nil && w.opts.Kept(topics.TopicOf(v.node, topics.DeviceKey(name, topics.KindDesired, property))) {
				return true
			}
		}
	}
	return false
}

// logWanted logs which desired values have changed, without the values.
func (w *desiredWrites) logWanted(before, after resource.Device) {
	if !w.opts.Log.Debug().Enabled() {
		return
	}
	for property, m := range after.DesiredMeta {
		if m != before.DesiredMeta[property] {
			w.opts.Log.Debug().Str("node", after.Spec.NodeName).Str("device", after.Metadata.Name).Str("property", property).
				Uint64("ver", m.Ver).Str("origin", m.Origin).Bool("cleared", m.Cleared).Str("trace_id", trace.IDOf(m.Trace)).Msg("wanted")
		}
	}
}

// readModel is the model of a Device as it is now.
func (w *desiredWrites) readModel(ctx context.Context, d resource.Device) (m resource.DeviceModel, err error) {
	key := store.Key{Kind: resource.KindDeviceModel, Namespace: d.Metadata.Namespace, Name: d.Spec.DeviceModelRef.Name}
	obj, err := w.opts.Reader.Get(ctx, key)
	if errors.Is(err, resource.NotFound) {
		return m, resource.Errorf(resource.NotFound, "", "device %s has no properties yet: its model %s does not exist", d.Metadata.Name, key.Name)
	}
	if err != nil {
		return m, err
	}
	known := w.devices.findModel(modelKey{key.Namespace, key.Name})
	if known != nil && known.rev == obj.Rev {
		return known.DeviceModel, nil // a large one takes longer to read than all the rest
	}
	return m, json.Unmarshal(obj.Data, &m)
}

// checkDesired returns the rule that a desired write breaks, or nil.
func checkDesired(v desiredWrite, d resource.Device, m resource.DeviceModel) error {
	if d.Spec.NodeName != v.node {
		on := "is bound to no node"
		if d.Spec.NodeName != "" {
			on = "belongs to node " + d.Spec.NodeName
		}
		return resource.Errorf(resource.NotFound, "", "device %s %s, not to %s", d.Metadata.Name, on, v.node)
	}
	for property, value := range v.values {
		if v.basedOn != nil && currentVersion(d.DesiredMeta[property]) != v.basedOn[property] {
			return resource.Errorf(resource.Conflict, property, "another desired value was set in the meantime")
		}
		if value != nil {
			if err := m.CheckDesired(property, []byte(*value)); err != nil {
				return err
			}
		} else if _, there := d.Spec.Desired[property]; !there {
			if err := m.CheckWritable(property); err != nil {
				return err
			}
		}
	}
	return nil
}

// currentVersion is the version of a desired value that its node has; 0 if it is cleared.
func currentVersion(m resource.DesiredMeta) uint64 {
	if m.Cleared {
		return 0
	}
	return m.Ver
}

// apply returns the Device with the desired write in it, stamped.
func (v desiredWrite) apply(d resource.Device, now time.Time) resource.Device {
	next := d
	next.Spec.Desired = cloneMap(d.Spec.Desired)
	next.Spec.DesiredUntil = cloneMap(d.Spec.DesiredUntil)
	for property, value := range v.values {
		delete(next.Spec.DesiredUntil, property)
		if value == nil {
			delete(next.Spec.Desired, property)
			continue
		}
		next.Spec.Desired[property] = *value
		if v.until != 0 {
			next.Spec.DesiredUntil[property] = resource.FormatMillis(v.until)
		}
	}
	if v.ts != 0 {
		now = time.UnixMilli(v.ts)
	}
	resource.StampDesired(&d, &next, v.origin, v.trace, now)
	return next
}

func cloneMap[V any](m map[string]V) map[string]V {
	if m == nil {
		return make(map[string]V)
	}
	return maps.Clone(m)
}

// Publish takes a publish into a node's tree: a desired write, or a message of the node's
// end of the link. done is called with nil once it is stored, or with the rule that it breaks.
func (t *Twins) Publish(m broker.Message, done func(error)) {
	a, err := topics.Parse(m.Topic)
	if err != nil {
		done(resource.Errorf(resource.BadTopic, "", "%v", err))
		return
	}
	switch a.Kind {
	case topics.KindSyncUp:
		t.receiveFromNode(a.Node, m, done)
	case topics.KindDesired, topics.KindDesiredAll:
		t.publishDesired(a, m, done)
	case topics.KindGet:
		done(t.get(a, m))
	case topics.KindBridge:
		t.opts.Pass(m, done)
	case topics.KindTelemetry, topics.KindEvents:
		if err := t.devices.Has(a.Node, a.Device); err != nil {
			done(err)
			return
		}
		m.Retain = false
		t.opts.Pass(m, done)
	default:
		done(resource.Errorf(resource.Forbidden, "", "%s is written by %s, not by clients of the hub's broker", a.Key(), a.Kind.Owner()))
	}
}

func (t *Twins) publishDesired(a topics.Address, m broker.Message, done func(error)) {
	members, err := tree.PropertyValues(nil, a, m)
	if err != nil {
		done(err)
		return
	}
	values := make(map[string]*resource.Value, len(members))
	for _, v := range members {
		values[v.Property] = tree.PayloadValue(v.Value)
	}
	s, err := tree.ParseStored(m, t.opts.Now().UnixMilli())
	if err != nil {
		done(err)
		return
	}
	span := t.opts.Traces.Start(s.Trace, "publish desired", tracing.Consumer, "messaging.system", "mqtt", "edgebus.node", a.Node, "edgebus.device", a.Device)
	t.desired.queue(a.Device, desiredWrite{
		node: a.Node, origin: tree.OriginOf(m), values: values, ts: s.TS, until: s.Until, trace: span.Traceparent(),
		done: func(err error) { span.End(err); done(err) },
	})
}

// get answers with the whole twin, as JSON, on the asker's response topic. Its desired values are those of the stored
// object: a client whose write was acknowledged reads that write.
func (t *Twins) get(a topics.Address, m broker.Message) error {
	if err := t.devices.Has(a.Node, a.Device); err != nil {
		return err
	}
	key := store.Key{Kind: resource.KindDevice, Namespace: t.devices.namespace(a.Device), Name: a.Device}
	obj, err := t.opts.Reader.Get(context.Background(), key)
	if err != nil {
		return err
	}
	var whole resource.Device
	if err := json.Unmarshal(obj.Data, &whole); err != nil {
		return err
	}
	t.host.RLock()
	d := t.devices.byName[a.Device]
	if d == nil || d.node != a.Node {
		t.host.RUnlock()
		return t.devices.notOn(a.Node, a.Device)
	}
	whole.Status = t.devices.reportedStatus(d)
	model := t.devices.models[d.model]
	t.host.RUnlock()
	whole.FollowSpec(model.known(), t.opts.Now())
	reply, err := tree.ResponseTopic(m)
	if err != nil {
		return err
	}
	payload, err := json.Marshal(whole.Status.Twin)
	if err != nil {
		return err
	}
	t.opts.Publish(tree.ResponseMessage(m, reply, payload))
	return nil
}

// deliveryWaits have desired writes wait until durable sessions have what follows from them on disk. What it knows of a device is in the
// device, guarded by mu.
type deliveryWaits struct {
	mu     sync.Mutex
	change sync.Cond
	closed bool
}

// deliveryState is up to which revision of a Device the messages are settled, and the last outcome.
type deliveryState struct {
	rev     uint64
	err     error
	removed bool
}

func newDeliveryWaits() *deliveryWaits {
	s := new(deliveryWaits)
	s.change.L = &s.mu
	return s
}

// note notes that the messages of Devices of these revisions have an outcome.
func (s *deliveryWaits) note(revs map[*device]uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, rev := range revs {
		d.delivery = deliveryState{max(rev, d.delivery.rev), err, d.delivery.removed}
	}
	s.change.Broadcast()
}

// remove ends waiting for a device that was removed.
func (s *deliveryWaits) remove(d *device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.delivery.removed = true
	s.change.Broadcast()
}

// wait waits for the outcome of the messages of a Device's revision.
func (s *deliveryWaits) wait(ctx context.Context, d *device, rev uint64) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.change.Broadcast()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for d.delivery.rev < rev && !d.delivery.removed && !s.closed && ctx.Err() == nil {
		s.change.Wait()
	}
	switch {
	case d.delivery.rev >= rev:
		return d.delivery.err
	case d.delivery.removed:
		return nil
	case s.closed:
		return errStopped
	}
	return ctx.Err()
}

func (s *deliveryWaits) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.change.Broadcast()
}
