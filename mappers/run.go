package mappers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// mapper is a running mapper.
type mapper struct {
	o      Options
	node   string
	log    zerolog.Logger
	driver Driver
	mqtt   *client.Client
	out    *outbox
	drives *driveLog
	workCx context.Context // the workers'
	work   sync.WaitGroup

	mu      sync.Mutex
	devices map[string]*device
	workers map[string]*worker
	setups  map[string]uint64 // devices to ask the core about, and the number of the asking
	asked   uint64
	setup   chan struct{} // capacity 1
	stopped bool
}

// Run is a mapper for driver, until ctx ends. It connects and reconnects by itself; it returns an error when the
// options can't work, or when the driver doesn't stop.
func Run(ctx context.Context, o Options, driver Driver) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	m := &mapper{
		o: o, log: o.Log, driver: driver, devices: map[string]*device{}, workers: map[string]*worker{},
		setups: map[string]uint64{}, setup: make(chan struct{}, 1),
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
	m.out.set(m.presence(resource.Online))
	m.out.set(m.protocols())
	return m.run(ctx)
}

// run starts everything, and stops it in reverse: the devices, then what they still have to say, then the goodbye.
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
	m.goodbye()
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
		return errors.New("the driver did not stop within 3 s: a call of it doesn't heed its context")
	}
}

// goodbye lets the last reports go, and then says that the mapper is offline.
func (m *mapper) goodbye() {
	if !m.mqtt.Connected() {
		return
	}
	offline := m.presence(resource.Offline)
	m.out.remove(offline.Topic)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	select {
	case <-m.out.settled():
	case <-ctx.Done():
	}
	if err := m.mqtt.Publish(ctx, offline); err != nil {
		m.log.Debug().Err(err).Msg("no goodbye: the will tells it")
	}
}

func (m *mapper) presence(state string) client.Message {
	a := topics.Address{Node: m.node, Kind: topics.KindMapperState, Device: m.o.Name}
	return client.Message{Topic: a.String(), Payload: []byte(state), QoS: 1, Retain: true}
}

// protocols are for people who look for a mapper that speaks another.
func (m *mapper) protocols() client.Message {
	a := topics.Address{Node: m.node, Kind: topics.KindMapperProtocols, Device: m.o.Name}
	payload, _ := json.Marshal(m.driver.Protocols()) // texts can be written
	return client.Message{Topic: a.String(), Payload: payload, QoS: 1, Retain: true}
}

func (m *mapper) clientOptions() client.Options {
	will := m.presence(resource.Offline)
	return client.Options{
		Servers: m.o.Servers, ClientID: "mapper-" + m.o.Name, User: m.o.User, Secret: m.o.Secret, TLS: m.o.TLS,
		CleanStart: true, KeepAlive: 10 * time.Second, Backoff: m.o.Reconnect, Will: &will, Log: m.log,
		Subscriptions: []client.Subscription{
			{Filter: topics.Prefix + m.node + "/devices/+", QoS: 1},
			others(topics.Prefix + m.node + "/mappers/" + m.o.Name + "/+"),
		},
		OnConnect: func(ctx context.Context, _ bool) error {
			if err := m.mqtt.Publish(ctx, m.presence(resource.Online)); err != nil {
				return fmt.Errorf("can't say that mapper %s is online: %w", m.o.Name, err)
			}
			m.out.connected()
			m.checkAll()
			return nil
		},
		OnDisconnect: func(error) { m.out.disconnected() },
		OnMessage:    m.message,
	}
}

// message takes what the broker sends. It never waits for a device.
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
		topics.KindMapperState, topics.KindMapperProtocols:
		m.out.contradict(msg, m.o.Now())
	}
}

// others subscribes to what others write to topics of this mapper's.
func others(filter string) client.Subscription {
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
	if len(msg.Payload) == 0 || !speaks(m.driver, b.Device.Spec.Protocol.Type) {
		if d != nil {
			m.drop(d)
		}
		return
	}
	info := convert(m.driver, a.Node, b, m.o.Collect)
	bus := a.Device
	if s, ok := m.driver.(Sharer); ok {
		bus = s.Bus(info)
	}
	// On another bus it is another goroutine's; and another device of the same name, which
	// came while the broker was away, has nothing of the old one's.
	if uid := b.Device.Metadata.UID; d != nil && (d.bus != bus || d.uid != uid) {
		m.drop(d)
		d = nil
	}
	if d == nil {
		d = &device{key: a.Device, bus: bus, uid: b.Device.Metadata.UID}
		m.devices[a.Device] = d
		m.adopt(d)
	}
	d.methods = b.Device.Spec.Commands
	if d.gen > 0 && same(d, info, b.Model) {
		m.out.renew(d.topics())
		return
	}
	before := d.topics()
	d.configure(info, b.Model)
	after := make(map[string]bool)
	for _, topic := range d.topics() {
		after[topic] = true
	}
	for _, topic := range before {
		if !after[topic] { // of a property that the model has no more
			m.out.remove(topic)
		}
	}
	m.ask(d.key)
	m.workers[bus].poke()
}

// same says whether a bundle brings nothing new, as after every reconnect.
func same(d *device, info Device, model resource.DeviceModel) bool {
	was, err1 := json.Marshal(d.info)
	is, err2 := json.Marshal(info)
	if err1 != nil || err2 != nil || string(was) != string(is) {
		return false
	}
	for _, p := range model.Spec.Properties {
		a, err1 := json.Marshal(d.props[p.Name].spec)
		b, err2 := json.Marshal(p)
		if err1 != nil || err2 != nil || string(a) != string(b) {
			return false
		}
	}
	return true
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
	m.ask(d.key)
	for _, topic := range d.topics() {
		m.out.remove(topic)
	}
	if w := m.workers[d.bus]; w != nil {
		w.poke()
	}
	m.log.Info().Str("device", d.key).Msg("device removed")
}

// want takes the value in force for a property.
func (m *mapper) want(a topics.Address, msg client.Message) {
	w := wish{value: string(msg.Payload), none: len(msg.Payload) == 0}
	w.ver, _ = strconv.ParseUint(msg.Property("ver"), 10, 64)
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
	w.old = msg.Retained && p.wish.ver == 0 && d.setups == 1
	if p.want(w, msg.Retained) && d.ready {
		m.workers[d.bus].poke()
	}
}

// driveLog is the file of Options.DriveLog. Each line is one write, so that lines of several processes don't mix.
type driveLog struct{ f *os.File }

// driveLine is one line of it: a write, or a command.
type driveLine struct {
	Device   string `json:"device"`
	Property string `json:"property,omitempty"`
	Command  string `json:"command,omitempty"`
	Value    string `json:"value"`
	Ver      uint64 `json:"ver,omitempty"`
	Time     string `json:"time"`
}

func openDriveLog(name string) (*driveLog, error) {
	if name == "" {
		return &driveLog{}, nil
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("drive log: %w", err)
	}
	return &driveLog{f}, nil
}

func (l *driveLog) close() {
	if l.f != nil {
		_ = l.f.Close()
	}
}

func (l *driveLog) add(d driveLine, now time.Time) error {
	if l.f == nil {
		return nil
	}
	d.Time = resource.Time(now)
	line, err := json.Marshal(d)
	if err == nil {
		_, err = l.f.Write(append(line, '\n'))
	}
	return err
}
