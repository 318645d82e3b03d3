// SPDX-License-Identifier: Apache-2.0

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
	New: func(env handler.Env) handler.Handler {
		return announcementListener{env: env, settle: settleTime, hold: holdTime}
	},
}

const (
	// settleTime is how long the handler waits after a message for more of them, and for what is retained.
	settleTime = 200 * time.Millisecond
	// holdTime is how long a device that was found earlier stays without being announced again: after a restart of the node, its broker has
	// nothing until those have connected that announce it.
	holdTime = time.Minute
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
	// message takes a message, and reports whether the devices may have changed. After an error nothing has.
	message(topic string, payload []byte) (changed bool, err error)
	// devices are those that are there. Several may have one ID; then it is always the same one that comes first.
	devices() []device
	// know takes a device that was found earlier, unless it was found elsewhere. It counts as not heard of.
	know(handler.Device) error
	// unhear notes that nothing of what was announced has been heard on the present connection.
	unhear()
	// forget drops what has not been heard of, and reports whether there was any. Announcements that no broker retains are not dropped.
	forget() bool
}

// formats make a format for the first part of the topics, empty for the usual one.
var formats = map[string]func(topic string) format{
	"homeassistant": func(topic string) format { return &homeAssistant{newTable(topic, "homeassistant")} },
	"zigbee2mqtt":   func(topic string) format { return &zigbee2MQTT{newTable(topic, "zigbee2mqtt")} },
	"tasmota":       func(topic string) format { return &tasmota{newTable(topic, "tasmota/discovery")} },
	"shelly":        func(topic string) format { return &shelly{newTable(topic, "shellies")} },
	"sparkplug":     func(topic string) format { return newSparkplug(topic) },
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
	env          handler.Env
	settle, hold time.Duration
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
	for _, device := range known {
		if device.Properties["MQTT_FORMAT"] != d.Format {
			continue
		}
		if err := f.know(device); err != nil {
			return err
		}
	}
	if len(l.env.Broker) == 0 {
		return errors.New("no address of the node's broker is known")
	}
	look := &discoverCall{
		details: d, format: f, dropped: network.NewDropCounter(l.env.Log), changed: make(chan struct{}, 1), hold: l.hold,
	}
	defer look.disconnected()
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
		if devices, leftOut, connected := look.devices(); connected {
			handler.TellUser(ctx, leftOut)
			found(devices)
		}
	}
}

// discoverCall is one call of Discover.
type discoverCall struct {
	details details
	dropped *network.DropCounter
	changed chan struct{} // capacity 1
	hold    time.Duration

	mu        sync.Mutex
	format    format
	connected bool
	holding   *time.Timer // until what has not been heard of is forgotten; nil: not connected
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
			l.holding = time.AfterFunc(l.hold, l.forget)
			l.change()
			return nil
		},
		OnDisconnect: func(error) { l.disconnected() },
		OnMessage:    l.message,
	}
	for _, filter := range l.format.filters() {
		o.Subscriptions = append(o.Subscriptions, client.Subscription{Filter: filter, QoS: 1})
	}
	return o
}

func (l *discoverCall) disconnected() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.connected = false; l.holding != nil {
		l.holding.Stop()
		l.holding = nil
	}
	l.format.unhear()
}

// forget ends the time in which what was found earlier is waited for.
func (l *discoverCall) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.connected && l.format.forget() {
		l.change()
	}
}

func (l *discoverCall) message(m client.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed, err := l.format.message(m.Topic, m.Payload)
	if err != nil {
		l.dropped.Add(m.Topic, err)
	}
	if changed {
		l.change()
	}
}

func (l *discoverCall) change() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// devices are those that the filter takes. leftOut says of which devices something isn't understood, for people: also of those that the filter
// doesn't take for that.
func (l *discoverCall) devices() (list []handler.Device, leftOut string, connected bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var partly []string
	for _, d := range l.format.devices() {
		d.properties["MQTT_FORMAT"] = l.details.Format
		for _, name := range commonProperties {
			d.properties[name] += "" // there, if only empty
		}
		taken := l.details.Filter.Takes(d.properties)
		if taken {
			list = append(list, handler.Device{ID: d.id, Properties: d.properties})
		}
		if why := d.properties["MQTT_LEFT_OUT"]; why != "" {
			whole := maps.Clone(d.properties)
			maps.Copy(whole, d.withheld)
			if taken || l.details.Filter.Takes(whole) {
				partly = append(partly, fmt.Sprintf("%.80s (%.200s)", d.id, why))
			}
		}
	}
	if slices.Sort(partly); len(partly) > 0 {
		leftOut = fmt.Sprintf("of %d devices not everything is understood, and that is left out: %s", len(partly), strings.Join(partly[:min(3, len(partly))], ", "))
		if len(partly) > 3 {
			leftOut += ", …"
		}
	}
	return network.SortAll(list), leftOut, l.connected
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
	unheard       map[string]bool // what has been announced on an earlier connection only
}

type announcement struct {
	devices []device
	bytes   int
}

func newTable(topic, usual string) announcementTable {
	return announcementTable{topic: cmp.Or(topic, usual), announcements: map[string]announcement{}, unheard: map[string]bool{}}
}

// announce is set of devices that are announced on a retained topic, which is known afterwards from a property of theirs.
func (t *announcementTable) announce(topic string, devices ...device) error {
	for _, d := range devices {
		d.properties["MQTT_DISCOVERY_TOPIC"] = topic
	}
	return t.set(topic, devices...)
}

// set takes all devices of an announcement in place of those that were there; none: they are gone.
func (t *announcementTable) set(from string, devices ...device) error {
	var a announcement
	for _, d := range devices {
		kept := device{d.id, map[string]string{}, d.withheld}
		if d.id == "" || len(d.id) > 1024 || d.id != cleanText(d.id) {
			return fmt.Errorf("%.80q: an ID has 1 to 1024 bytes of UTF-8", d.id)
		}
		size := len(d.id)
		for name, value := range d.properties {
			if value == "" {
				continue
			}
			kept.properties[name] = cleanText(value)
			size += len(name) + len(kept.properties[name])
		}
		if size > maxDevice {
			return fmt.Errorf("%.80q is described by more than %d bytes", d.id, maxDevice)
		}
		a.devices = append(a.devices, kept)
		a.bytes += size
	}
	old := t.announcements[from]
	count, bytes := t.count+len(a.devices)-len(old.devices), t.bytes+a.bytes-old.bytes
	if count > network.MaxDevices || bytes > maxBytes {
		return fmt.Errorf("more than %d devices or %d bytes are announced", network.MaxDevices, maxBytes)
	}
	delete(t.unheard, from)
	if t.count, t.bytes = count, bytes; len(a.devices) == 0 {
		delete(t.announcements, from)
	} else {
		t.announcements[from] = a
	}
	return nil
}

func (t *announcementTable) devices() (list []device) {
	for _, from := range slices.Sorted(maps.Keys(t.announcements)) {
		for _, d := range t.announcements[from].devices {
			list = append(list, device{d.id, maps.Clone(d.properties), d.withheld})
		}
	}
	return list
}

// know implements format.
func (t *announcementTable) know(d handler.Device) error {
	from := d.Properties["MQTT_DISCOVERY_TOPIC"]
	if !strings.HasPrefix(from, t.topic+"/") {
		return nil // of another topic
	}
	return t.remember(from, d)
}

// remember takes a device that was found earlier as one of those that were announced from there.
func (t *announcementTable) remember(from string, d handler.Device) error {
	properties := maps.Clone(d.Properties)
	delete(properties, "MQTT_FORMAT")
	if err := t.set(from, append(slices.Clone(t.announcements[from].devices), device{id: d.ID, properties: properties})...); err != nil {
		return err
	}
	t.unheard[from] = true
	return nil
}

// unhear implements format.
func (t *announcementTable) unhear() {
	for from := range t.announcements {
		t.unheard[from] = true
	}
}

// forget implements format.
func (t *announcementTable) forget() bool {
	any := len(t.unheard) > 0
	for from := range t.unheard {
		_ = t.set(from) // less always fits
	}
	return any
}

func cleanText(text string) string { return network.CleanText(text, maxText) }
