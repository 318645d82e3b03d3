// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// DriverBench drives devices as Run does, without a broker: it is for tests of drivers, such as drivertest's. Every report is taken at once.
type DriverBench struct {
	m    *mapper
	stop context.CancelFunc

	mu   sync.Mutex
	said map[string][]string // the payloads of each topic below devices/, in order
	ver  uint64
}

// NewDriverBench makes a DriverBench of a driver, which has no devices yet.
func NewDriverBench(o Options, driver Driver) (*DriverBench, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &DriverBench{said: map[string][]string{}}
	b.m = &mapper{
		o: o, log: o.Log, driver: driver, node: "bench", devices: map[string]*device{}, workers: map[string]*worker{},
		setups: map[string]uint64{}, setupWake: make(chan struct{}, 1), drives: &driveLog{},
	}
	b.m.workCx, b.stop = context.WithCancel(context.Background())
	b.m.out = newOutbox(b.take, o.Log)
	b.m.out.now = o.Now
	b.m.events = newEventQueue(b.take, o.Log)
	b.m.out.connected()
	return b, nil
}

// take is the broker.
func (b *DriverBench) take(m client.Message, done func(error)) {
	b.mu.Lock()
	key := strings.TrimPrefix(m.Topic, topics.Prefix+"bench/devices/")
	b.said[key] = append(b.said[key], string(m.Payload))
	b.mu.Unlock()
	done(nil)
}

// Attach adds a device. A property is read as often as its Collect says.
func (b *DriverBench) Attach(info Device) {
	info.Node = b.m.node
	info.Properties = slices.Clone(info.Properties)
	var model resource.DeviceModel
	for i := range info.Properties {
		p := &info.Properties[i]
		if p.Collect == 0 {
			p.Collect = b.m.o.Collect
		}
		spec := p.spec()
		if p.Writable {
			spec.AccessMode = resource.ReadWrite
		}
		model.Spec.Properties = append(model.Spec.Properties, spec)
	}
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	bus, err := b.m.busOf(info)
	d := &device{key: info.Name, bus: bus, schedule: schedule{phase: newPhase()}}
	b.m.devices[d.key] = d
	b.m.adopt(d)
	d.configure(info, model)
	d.isSetUp, d.changed, d.unusable = true, true, err
	b.m.workers[bus].wakeUp()
}

// Want sets the desired value of a property.
func (b *DriverBench) Want(device, property, value string) {
	b.mu.Lock()
	b.ver++
	ver := b.ver
	b.mu.Unlock()
	b.m.want(topics.Address{Device: device, Name: property}, client.Message{
		Payload: []byte(value), User: []client.UserProperty{{Key: "ver", Value: strconv.FormatUint(ver, 10)}},
	})
}

// Said are the payloads that were published on a topic of a device, such as "state" or "reported/level", in order.
func (b *DriverBench) Said(device, topic string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.said[device+"/"+topic])
}

// Topics are those of a device on which anything was published.
func (b *DriverBench) Topics(device string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []string
	for key := range maps.Keys(b.said) {
		if topic, ok := strings.CutPrefix(key, device+"/"); ok {
			list = append(list, topic)
		}
	}
	slices.Sort(list)
	return list
}

// Close lets go of the devices. It returns an error if the driver doesn't.
func (b *DriverBench) Close() error {
	b.m.mu.Lock()
	b.m.stopped = true
	b.m.mu.Unlock()
	b.stop()
	return b.m.awaitWorkers()
}
