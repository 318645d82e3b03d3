// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
	"github.com/edgebus/edgebus/topics/trace"
)

// mapper is a running mapper.
type mapper struct {
	o      Options
	node   string
	log    zerolog.Logger
	driver Driver
	mqtt   *client.Client
	out    *outbox
	events *eventQueue
	drives *driveLog
	workCx context.Context // the workers'
	work   sync.WaitGroup

	mu        sync.Mutex
	devices   map[string]*device
	workers   map[string]*worker
	setups    map[string]uint64 // devices whose setup is due, and the number of the request
	setupSeq  uint64
	setupWake chan struct{} // capacity 1
	stopped   bool
}

// Run runs a mapper with driver until ctx ends. It connects and reconnects by itself. It returns an error if the options
// can't work, or if the driver doesn't stop.
func Run(ctx context.Context, o Options, driver Driver) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	m := &mapper{
		o: o, log: o.Log, driver: driver, devices: map[string]*device{}, workers: map[string]*worker{},
		setups: map[string]uint64{}, setupWake: make(chan struct{}, 1),
	}
	if m.drives, err = openDriveLog(o.DriveLog); err != nil {
		return err
	}
	defer m.drives.close()
	if m.node, err = findNode(ctx, o); err != nil || m.node == "" {
		return err
	}
	m.log = m.log.With().Str("node", m.node).Logger()
	if m.mqtt, err = client.New(m.clientOptions()); err != nil {
		return err
	}
	m.out = newOutbox(m.mqtt.PublishAsync, o.Log)
	m.events = newEventQueue(m.mqtt.PublishAsync, o.Log)
	m.out.now = o.Now
	m.out.tooLarge = m.valueTooLarge
	m.out.set(m.presence(resource.Online))
	if len(driver.Protocols()) > 0 {
		m.out.set(m.protocols())
	}
	if d, ok := driver.(Describer); ok {
		m.out.set(m.settings(d))
	}
	return m.run(ctx)
}

// run starts the mapper and, when ctx ends, stops it in order: the workers, the outbox, and last the state offline.
func (m *mapper) run(ctx context.Context) error {
	workCx, stopWork := context.WithCancel(ctx)
	defer stopWork()
	m.workCx = workCx
	mqttCx, stopMQTT := context.WithCancel(context.WithoutCancel(ctx))
	defer stopMQTT()
	mqttEnd := make(chan error, 1)
	go func() { mqttEnd <- m.mqtt.Run(mqttCx) }()
	m.work.Go(func() { m.runSetups(workCx) })

	<-ctx.Done()
	m.mu.Lock()
	m.stopped = true
	m.mu.Unlock()
	err := m.awaitWorkers()
	m.publishOffline()
	if n := m.events.lost(); n > 0 {
		m.log.Warn().Int("events", n).Msg("events are lost: the broker was away until the mapper ended")
	}
	stopMQTT()
	return errors.Join(err, <-mqttEnd)
}

func (m *mapper) awaitWorkers() error {
	done := make(chan struct{})
	go func() {
		m.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-time.After(3 * time.Second):
		return errors.New("the driver did not stop within 3 s: one of its calls has not returned after its context ended")
	}
}

// publishOffline waits for the last reports to be sent, and then publishes that the mapper is offline.
func (m *mapper) publishOffline() {
	if !m.mqtt.Connected() {
		return
	}
	offline := m.presence(resource.Offline)
	m.out.remove(offline.Topic)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	select {
	case <-m.out.drained():
	case <-ctx.Done():
	}
	if err := m.mqtt.Publish(ctx, offline); err != nil {
		m.log.Debug().Err(err).Msg("no goodbye: the will tells it")
	}
}

func (m *mapper) presence(state string) client.Message {
	return m.own(topics.KindMapperState, []byte(state))
}

// protocols publishes the mapper's protocols, for people who look for the mapper of a device.
func (m *mapper) protocols() client.Message {
	payload, _ := json.Marshal(m.driver.Protocols()) // texts can be written
	return m.own(topics.KindMapperProtocols, payload)
}

// settings publishes which settings the mapper takes, for forms and help.
func (m *mapper) settings(d Describer) client.Message {
	s := d.Settings()
	s.Protocols = m.driver.Protocols()
	payload, _ := json.Marshal(s) // texts and numbers can be written
	return m.own(topics.KindMapperSettings, payload)
}

// own is a message about the mapper itself.
func (m *mapper) own(kind topics.Kind, payload []byte) client.Message {
	a := topics.Address{Node: m.node, Kind: kind, Device: m.o.Name}
	return client.Message{Topic: a.String(), Payload: payload, QoS: 1, Retain: true}
}

func (m *mapper) clientOptions() client.Options {
	will := m.presence(resource.Offline)
	o := m.o.client()
	o.Will, o.Log = &will, m.log
	o.Subscriptions = []client.Subscription{
		{Filter: topics.Prefix + m.node + "/devices/+", QoS: 1},
		othersOnly(topics.Prefix + m.node + "/mappers/" + m.o.Name + "/+"),
	}
	o.OnConnect = func(ctx context.Context, _ bool) error {
		if err := m.mqtt.Publish(ctx, m.presence(resource.Online)); err != nil {
			return fmt.Errorf("can't say that mapper %s is online: %w", m.o.Name, err)
		}
		m.out.connected()
		m.events.connected(true)
		m.requestSetupAll()
		if m.o.OnConnect != nil {
			m.o.OnConnect()
		}
		return nil
	}
	o.OnDisconnect = func(error) {
		m.out.disconnected()
		m.events.connected(false)
	}
	o.OnMessage = m.message
	return o
}

// message handles a message of the broker. It never waits for a device.
func (m *mapper) message(msg client.Message) {
	a, err := topics.Parse(msg.Topic)
	if err != nil {
		return
	}
	switch a.Kind {
	case topics.KindDevice:
		m.configure(a, msg)
	case topics.KindDesired:
		m.want(a, msg)
	case topics.KindCommand:
		m.command(a, msg)
	case topics.KindReported, topics.KindRefused, topics.KindProblem, topics.KindReadProblem, topics.KindDeviceState,
		topics.KindMapperState, topics.KindMapperProtocols, topics.KindMapperSettings:
		m.out.reassert(msg, m.o.Now())
	}
}

// othersOnly makes a subscription to topics of this mapper that delivers only messages of other clients.
func othersOnly(filter string) client.Subscription {
	return client.Subscription{Filter: filter, QoS: 1, NoLocal: true, RetainHandling: 2}
}

// configure takes a Device with its model: new, changed or gone.
func (m *mapper) configure(a topics.Address, msg client.Message) {
	var b resource.Bundle
	if len(msg.Payload) > 0 {
		if err := json.Unmarshal(msg.Payload, &b); err != nil {
			m.log.Error().Err(err).Str("device", a.Device).Msg("can't read the Device")
			return
		}
	}
	b.Device.Metadata.Name = a.Device
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.devices[a.Device]
	if len(msg.Payload) == 0 || !hasProtocol(m.driver, b.Device.Spec.Protocol.Type) {
		if d != nil {
			m.drop(d)
		}
		return
	}
	info, wrong := DeviceOf(m.driver, a.Node, b, m.o.Collect)
	bus, noBus := m.busOf(info)
	// On another bus the device belongs to another goroutine. A new device of the same name, created while the connection was down,
	// inherits nothing.
	if uid := b.Device.Metadata.UID; d != nil && (d.bus != bus || d.uid != uid) {
		m.drop(d)
		d = nil
	}
	if d == nil {
		d = &device{key: a.Device, bus: bus, uid: b.Device.Metadata.UID, schedule: schedule{phase: newPhase()}}
		m.devices[a.Device] = d
		m.adopt(d)
	}
	d.methods, d.online, d.model = b.Device.Spec.Commands, onlineRule(m.driver, b.Model), &b.Model
	if d.gen > 0 && isUnchanged(d, info, b.Model) {
		m.out.resendRefused(d.topics())
		return
	}
	before := d.topics()
	d.configure(info, b.Model)
	d.unusable = cmp.Or(noBus, wrong)
	after := d.topics()
	for _, topic := range before {
		if !slices.Contains(after, topic) { // of a property that the model has no longer
			m.out.remove(topic)
		}
	}
	m.requestSetup(d.key)
	m.workers[bus].wakeUp()
}

// busOf names the bus of a device. A device of which the driver fails to name it is served alone, and is not opened until its configuration changes:
// it could use a connection that another goroutine uses.
func (m *mapper) busOf(info Device) (bus string, err error) {
	s, ok := m.driver.(Sharer)
	if !ok {
		return info.Name, nil
	}
	err = recoverPanic(func() error {
		bus = s.Bus(info.untranslated())
		return nil
	})
	if err != nil {
		return info.Name, BadConfig("spec.protocol", "its bus is unknown: %v", err)
	}
	return bus, nil
}

// isUnchanged reports whether a bundle brings nothing new, as after every reconnect.
func isUnchanged(d *device, info Device, model resource.DeviceModel) bool {
	return reflect.DeepEqual(d.info, info) && !slices.ContainsFunc(model.Spec.Properties, func(p resource.Property) bool {
		was := d.props[p.Name].spec
		was.Alarms, p.Alarms = nil, nil // they are the core's
		return !reflect.DeepEqual(was, p)
	})
}

// adopt gives d to the worker of its bus. mu is held.
func (m *mapper) adopt(d *device) {
	w := m.workers[d.bus]
	if w == nil {
		w = &worker{m: m, bus: d.bus, wake: make(chan struct{}, 1)}
		m.workers[d.bus] = w
		if !m.stopped {
			m.work.Go(func() { w.run(m.workCx) })
		}
	}
	w.devices = append(w.devices, d)
	m.log.Info().Str("device", d.key).Str("bus", d.bus).Msg("device added")
}

// drop lets go of a device. Its worker closes it. mu is held.
func (m *mapper) drop(d *device) {
	d.gone = true
	delete(m.devices, d.key)
	m.requestSetup(d.key)
	for _, topic := range d.topics() {
		m.out.remove(topic)
	}
	if w := m.workers[d.bus]; w != nil {
		w.wakeUp()
	}
	m.log.Info().Str("device", d.key).Msg("device removed")
}

// want takes the desired value that is in force for a property.
func (m *mapper) want(a topics.Address, msg client.Message) {
	w := desiredValue{value: string(msg.Payload), cleared: len(msg.Payload) == 0}
	w.ver, _ = strconv.ParseUint(msg.Property("ver"), 10, 64)
	w.trace = trace.ValidTraceparent(msg.Property(trace.Property))
	if t, err := resource.ParseTime(msg.Property("validUntil")); err == nil {
		w.until = t
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.devices[a.Device]
	if d == nil || d.props[a.Name] == nil {
		return
	}
	p := d.props[a.Name]
	w.preexisting = msg.Retained && p.desired.ver == 0 && d.setupAttempts == 1
	if p.setDesired(w, msg.Retained) && d.isSetUp {
		d.changed = true
		m.workers[d.bus].wakeUp()
	}
}

// findNode reads the node's name from the first retained topic that the broker sends. The will's topic has the name, so it
// is needed before the mapper connects. It waits until there is such a topic; if ctx ends it returns "".
func findNode(ctx context.Context, o Options) (string, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	found := ""
	options := o.client()
	for _, key := range []string{"status", "membership", "devices/+"} {
		options.Subscriptions = append(options.Subscriptions, client.Subscription{Filter: topics.Prefix + "+/" + key, QoS: 1})
	}
	options.OnMessage = func(m client.Message) {
		if a, err := topics.Parse(m.Topic); err == nil && found == "" {
			found = a.Node
			stop()
		}
	}
	c, err := client.New(options)
	if err != nil {
		return "", err
	}
	err = c.Run(ctx)
	return found, err
}
