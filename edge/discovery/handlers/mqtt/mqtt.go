// Package mqtt is the discovery handler for devices that announce themselves on the node's own broker: by Home Assistant's MQTT
// discovery, zigbee2mqtt's list of devices, Tasmota's and Shelly's announcements, and births of Sparkplug B. The devices have the
// properties that a Device for mapper-mqtt needs.
//
// It never publishes: it finds what is retained, and what devices publish while it is connected.
package mqtt

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/network"
)

// Program is the handler.
var Program = handler.Program{
	Name: "mqtt", Short: "Finds devices that announce themselves on the node's MQTT broker",
	New: func(env handler.Env) handler.Handler { return announcementListener{env: env, settle: settleTime} },
}

const (
	// settleTime is how long the handler waits after a message for more of them, and for what is retained.
	settleTime = 200 * time.Millisecond
	// maxAttempts to connect fail before a call of Discover does.
	maxAttempts = 5
)

// details are the discoveryDetails.
type details struct {
	// Format is the convention by which the devices announce themselves.
	Format string `yaml:"format"`
	// Topic is the first part of their topics, where it is not the usual one.
	Topic string `yaml:"topic"`
	// Filter has globs for properties.
	Filter network.Filter `yaml:"filter"`
}

// format is what is known of the devices of one convention. Only one goroutine uses it.
type format interface {
	// filters are what it subscribes to.
	filters() []string
	// message takes a message. After an error nothing has changed.
	message(topic string, payload []byte) error
	// devices are those that are there. Several may have one ID; then it is always the same one that comes first.
	devices() []handler.Device
}

// unretainedFormat is a format whose devices announce themselves when they connect, in messages that no broker keeps.
type unretainedFormat interface {
	format
	// know takes a device that was found earlier.
	know(handler.Device) error
}

// formats make a format for the first part of the topics, empty for the usual one.
var formats = map[string]func(topic string) format{
	"homeassistant": func(topic string) format { return &homeAssistant{newTable(topic, "homeassistant")} },
	"zigbee2mqtt":   func(topic string) format { return &zigbee2MQTT{newTable(topic, "zigbee2mqtt")} },
	"tasmota":       func(topic string) format { return &tasmota{newTable(topic, "tasmota/discovery")} },
	"shelly":        func(topic string) format { return &shelly{newTable(topic, "shellies"), map[string]map[string]string{}} },
	"sparkplug":     func(topic string) format { return &sparkplug{newTable(topic, "spBv1.0")} },
}

func parseDetails(text string) (d details, f format, err error) {
	if err := handler.Details(text, &d); err != nil {
		return d, nil, err
	}
	of, ok := formats[d.Format]
	if !ok {
		return d, nil, handler.InvalidArgument("discoveryDetails: format: %q is none of %s", d.Format, strings.Join(slices.Sorted(maps.Keys(formats)), ", "))
	}
	if d.Topic = strings.Trim(d.Topic, "/"); strings.ContainsAny(d.Topic, "+#\x00") || strings.HasPrefix(d.Topic, "$") || strings.HasPrefix(d.Topic+"/", "v1/nodes/") {
		return d, nil, handler.InvalidArgument("discoveryDetails: topic: %q: must be without wildcards, and not below $ and v1/nodes", d.Topic)
	}
	return d, of(d.Topic), d.Filter.Check()
}

// announcementListener is the handler.
type announcementListener struct {
	env    handler.Env
	settle time.Duration
}

// Discover implements handler.Handler.
func (l announcementListener) Discover(ctx context.Context, text string, properties map[string][]byte, found func([]handler.Device)) error {
	return l.Resume(ctx, text, properties, nil, found)
}

// Resume implements handler.Resumer.
func (l announcementListener) Resume(ctx context.Context, text string, _ map[string][]byte, known []handler.Device, found func([]handler.Device)) error {
	d, f, err := parseDetails(text)
	if err != nil {
		return err
	}
	if o, ok := f.(unretainedFormat); ok {
		for _, device := range known {
			if device.Properties["MQTT_FORMAT"] != d.Format {
				continue
			}
			if err := o.know(device); err != nil {
				return err
			}
		}
	}
	if len(l.env.Broker) == 0 {
		return errors.New("no address of the node's broker is known")
	}
	look := &discoverCall{
		details: d, make: formats[d.Format], format: f, dropped: network.NewDropCounter(l.env.Log),
		changed: make(chan struct{}, 1),
	}
	c, err := client.New(look.options(l.env.Broker, l.env.Log))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-look.changed:
		}
		// Retained messages arrive one by one, and so do the devices of a house after a power failure.
		select {
		case err := <-ended:
			return err
		case <-time.After(l.settle):
		}
		if devices, connected := look.devices(); connected {
			found(devices)
		}
	}
}

// discoverCall is one call of Discover.
type discoverCall struct {
	details details
	make    func(string) format
	dropped *network.DropCounter
	changed chan struct{} // capacity 1

	mu        sync.Mutex
	format    format
	connected bool
}

func (l *discoverCall) options(servers []string, log zerolog.Logger) client.Options {
	o := client.Options{
		Servers: servers, ClientID: "discovery-mqtt-" + rand.Text()[:8], CleanStart: true, KeepAlive: 10 * time.Second,
		Attempts: maxAttempts * len(servers), Backoff: client.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}, Log: log,
		// Retained messages are sent again on each connection. What an earlier connection delivered may be obsolete.
		OnConnect: func(context.Context, bool) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.connected = true
			l.change()
			return nil
		},
		OnDisconnect: func(error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.connected = false; !l.announcesOnce() {
				l.format = l.make(l.details.Topic)
			}
		},
		OnMessage: l.message,
	}
	for _, filter := range l.format.filters() {
		o.Subscriptions = append(o.Subscriptions, client.Subscription{Filter: filter, QoS: 1})
	}
	return o
}

func (l *discoverCall) announcesOnce() bool {
	_, yes := l.format.(unretainedFormat)
	return yes
}

func (l *discoverCall) message(m client.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.format.message(m.Topic, m.Payload); err != nil {
		l.dropped.Add(m.Topic, err)
		return
	}
	l.change()
}

func (l *discoverCall) change() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *discoverCall) devices() (list []handler.Device, connected bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.format.devices() {
		d.Properties["MQTT_FORMAT"] = l.details.Format
		if l.details.Filter.Takes(d.Properties) {
			list = append(list, d)
		}
	}
	return network.SortAll(list), l.connected
}

// The bounds of what is remembered of announcements.
const (
	maxText   = 2048     // of one property
	maxDevice = 24 << 10 // of all of a device
	maxBytes  = 32 << 20 // of all devices
)

// announcementTable has what was announced below a topic: by the topic, or whatever else the next announcement replaces, and then by the device's ID.
type announcementTable struct {
	topic         string
	announcements map[string]announcement
	count, bytes  int
}

type announcement struct {
	devices []device
	bytes   int
}

// device is what an announcement says of one.
type device struct {
	id         string
	properties map[string]string
}

func newTable(topic, usual string) announcementTable {
	return announcementTable{topic: cmp.Or(topic, usual), announcements: map[string]announcement{}}
}

// set takes all devices of an announcement in place of those that were there; none: they are gone.
func (t *announcementTable) set(from string, devices ...device) error {
	var a announcement
	for _, d := range devices {
		id, properties := d.id, d.properties
		if id == "" || len(id) > 1024 || id != cleanText(id) {
			return fmt.Errorf("%.80q: an ID has 1 to 1024 bytes of UTF-8", id)
		}
		kept, size := map[string]string{}, len(id)
		for name, value := range properties {
			if value == "" {
				continue
			}
			kept[name] = cleanText(value)
			size += len(name) + len(kept[name])
		}
		if size > maxDevice {
			return fmt.Errorf("%.80q is described by more than %d bytes", id, maxDevice)
		}
		a.devices = append(a.devices, device{id, kept})
		a.bytes += size
	}
	old := t.announcements[from]
	count, bytes := t.count+len(a.devices)-len(old.devices), t.bytes+a.bytes-old.bytes
	if count > network.MaxDevices || bytes > maxBytes {
		return fmt.Errorf("more than %d devices or %d bytes are announced", network.MaxDevices, maxBytes)
	}
	if t.count, t.bytes = count, bytes; len(a.devices) == 0 {
		delete(t.announcements, from)
	} else {
		t.announcements[from] = a
	}
	return nil
}

func (t *announcementTable) devices() (list []handler.Device) {
	for _, from := range slices.Sorted(maps.Keys(t.announcements)) {
		for _, d := range t.announcements[from].devices {
			list = append(list, handler.Device{ID: d.id, Properties: maps.Clone(d.properties)})
		}
	}
	return list
}

// remember takes a device that was found earlier as what was announced from there.
func (t *announcementTable) remember(from string, d handler.Device) error {
	properties := maps.Clone(d.Properties)
	delete(properties, "MQTT_FORMAT")
	return t.set(from, device{d.ID, properties})
}

func cleanText(text string) string { return network.CleanText(text, maxText) }
