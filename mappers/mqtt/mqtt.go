// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/cmd"
	"github.com/edgebus/edgebus/mappers/jsonpath"
)

// DefaultTimeout is how long a device may take to publish its state after it was asked for it.
const DefaultTimeout = 5 * time.Second

// confirmWait is how long a write holds up everything else of its device for an answer.
const confirmWait = time.Second

// retainedWait is how long a new session waits for retained states.
const retainedWait = 200 * time.Millisecond

// Options configure the driver.
type Options struct {
	Broker  client.Options // where the broker is, and how to sign in
	Timeout time.Duration  // default DefaultTimeout
	// SparkplugHost is the id of a host application of Sparkplug B whose state is published; empty: none.
	SparkplugHost string
}

// Driver opens devices that speak MQTT. They share one connection, which exists while any of them is open.
type Driver struct {
	o        Options
	changing chan struct{} // has a value while a goroutine changes the subscriptions or the connection

	mu        sync.Mutex
	mqtt      *client.Client // nil: there is no session
	stop      func()
	sessions  map[*session]struct{}
	topics    map[string]map[*session]struct{} // who has subscribed to what; also to what has wildcards
	edgeNodes map[sparkplugSource]*edgeNode
	hostSince time.Time // of SparkplugHost: when the connection began
}

// New makes a driver.
func New(o Options) *Driver {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	return &Driver{
		o: o, changing: make(chan struct{}, 1),
		sessions: map[*session]struct{}{}, topics: map[string]map[*session]struct{}{}, edgeNodes: map[sparkplugSource]*edgeNode{},
	}
}

// Protocols implements mappers.Driver.
func (d *Driver) Protocols() []string { return []string{"mqtt"} }

// Open implements mappers.Driver: it subscribes to the device's topics and waits a moment for what is retained there.
func (d *Driver) Open(ctx context.Context, dev mappers.Device) (mappers.Session, error) {
	c, err := parseDevice(dev)
	if err != nil {
		return nil, err
	}
	s := &session{driver: d, config: c, presence: newPresence(len(c.availability.sources)), values: map[string]lastReading{}, changed: make(chan struct{})}
	if err := d.add(ctx, s); err != nil {
		return nil, err
	}
	err = s.await(ctx, retainedWait, s.complete)
	if err == nil || errors.Is(err, errNoMessage) {
		err = s.unavailableReason()
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// add gives a session a share of the connection and subscribes to its topics. One that others have as well is subscribed to again: the
// broker then sends what it retains there once more.
func (d *Driver) add(ctx context.Context, s *session) error {
	select {
	case d.changing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	subscriptions, err := d.enter(s)
	if err == nil && len(subscriptions) > 0 {
		err = s.mqtt.Subscribe(ctx, subscriptions...)
	}
	<-d.changing
	if err != nil && s.mqtt != nil {
		d.remove(s)
	}
	return err
}

func (d *Driver) enter(s *session) (subscriptions []client.Subscription, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mqtt == nil {
		if err := d.start(); err != nil {
			return nil, err
		}
	}
	s.mqtt = d.mqtt
	d.sessions[s] = struct{}{}
	if from := s.config.sparkplug.edgeNode(); from != (sparkplugSource{}) && d.edgeNodes[from] == nil {
		d.edgeNodes[from] = newEdgeNode(from)
	}
	for _, name := range s.config.topics() {
		if d.topics[name] == nil {
			d.topics[name] = map[*session]struct{}{}
		}
		d.topics[name][s] = struct{}{}
		subscriptions = append(subscriptions, client.Subscription{Filter: name, QoS: 1})
	}
	return subscriptions, nil
}

// start connects. mu is held.
func (d *Driver) start() error {
	o := d.o.Broker
	o.CleanStart = true
	o.OnConnect, o.OnDisconnect, o.OnMessage = d.onConnect, d.onDisconnect, d.onMessage
	c, err := client.New(o)
	if err != nil {
		return err
	}
	if err := d.beginHost(c); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx) // without Options.Attempts it returns nil
	}()
	d.mqtt = c
	d.stop = func() {
		d.endHost(c)
		cancel()
		<-done
	}
	return nil
}

// remove takes a session's share of the connection back. The last one ends it.
func (d *Driver) remove(s *session) {
	d.changing <- struct{}{}
	defer func() { <-d.changing }()
	unused, stop := d.leave(s)
	if stop != nil {
		stop()
		return
	}
	if len(unused) > 0 && s.mqtt.Connected() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := s.mqtt.Unsubscribe(ctx, unused...); err != nil { // then messages come that are for no session
			d.o.Broker.Log.Debug().Err(err).Msg("not unsubscribed")
		}
	}
}

func (d *Driver) leave(s *session) (unused []string, stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range s.config.topics() {
		delete(d.topics[name], s)
		if len(d.topics[name]) == 0 {
			delete(d.topics, name)
			unused = append(unused, name)
		}
	}
	delete(d.sessions, s)
	from := s.config.sparkplug.edgeNode()
	used := false
	for other := range d.sessions {
		used = used || other.config.sparkplug.edgeNode() == from
	}
	if !used {
		delete(d.edgeNodes, from)
	}
	if len(d.sessions) == 0 {
		stop, d.stop, d.mqtt = d.stop, nil, nil
	}
	return unused, stop
}

// onConnect subscribes again after a reconnect. One topic that may not be read must not keep the others: its device's Open says so.
func (d *Driver) onConnect(ctx context.Context, _ bool) error {
	d.mu.Lock()
	c := d.mqtt
	var all []client.Subscription
	for name := range d.topics {
		all = append(all, client.Subscription{Filter: name, QoS: 1})
	}
	d.mu.Unlock()
	if err := d.bearHost(ctx, c); err != nil {
		d.o.Broker.Log.Warn().Err(err).Msg("it isn't said that the host is online")
	}
	for batch := range slices.Chunk(all, 100) {
		if c == nil {
			return nil
		}
		if err := c.Subscribe(ctx, batch...); err != nil {
			d.o.Broker.Log.Warn().Err(err).Msg("not subscribed")
		}
	}
	return nil
}

// onDisconnect forgets what the devices have: it may change before there is a connection again.
func (d *Driver) onDisconnect(error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.beginHost(d.mqtt) // the will was valid before
	for _, n := range d.edgeNodes {
		n.reset()
	}
	for s := range d.sessions {
		clear(s.values)
		s.presence = newPresence(len(s.config.availability.sources))
		s.wake()
	}
}

func (d *Driver) onMessage(m client.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.o.SparkplugHost != "" && m.Topic == stateTopic+d.o.SparkplugHost {
		d.hearHost(m)
	}
	for s := range d.topics[m.Topic] {
		msg := &jsonpath.Message{Source: m.Topic, Payload: m.Payload}
		s.take(msg)
		if !m.Retained {
			s.takeEvents(msg)
		}
		s.wake()
	}
	if len(d.edgeNodes) > 0 && strings.HasPrefix(m.Topic, sparkplugTopic) {
		d.onSparkplug(m)
	}
}

// topics are those that a device's session subscribes to, each once.
func (c deviceConfig) topics() (list []string) {
	for _, a := range c.availability.sources {
		list = append(list, a.topic)
	}
	if c.sparkplug != (sparkplugSource{}) {
		list = append(list, c.sparkplug.filters()...)
	}
	for _, f := range slices.Concat(c.order, c.events) {
		list = append(list, f.state.topic)
	}
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(name string) bool { return name == "" })
}

// session is one device. Driver.mu guards what messages change.
type session struct {
	driver *Driver
	config deviceConfig
	mqtt   *client.Client

	values   map[string]lastReading // by property: what the device said last
	events   []deviceEvent          // that were not told yet
	states   uint64                 // how many messages with a state there were
	presence presence
	changed  chan struct{} // closed at the next message, or when the connection is lost
}

// lastReading is what the device said last about a property.
type lastReading struct {
	value  string
	err    error
	quoted bool // it is a text in JSON
	at     time.Time
	count  uint64 // how often it did
}

// take takes a message. mu is held.
func (s *session) take(m *jsonpath.Message) {
	s.presence.take(s.config.availability, m)
	for _, f := range s.config.order {
		if m.Source != f.state.topic {
			continue
		}
		s.states++
		if r, ok := f.decode(m); ok {
			s.note(f, r)
		}
	}
}

// note takes what the device says about a property. mu is held.
func (s *session) note(f *mappedProperty, r lastReading) {
	r.at, r.count = time.Now(), s.values[f.name].count+1
	s.values[f.name] = r
}

// wake is called with mu held.
func (s *session) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// latest returns what is known of a property, and a channel that is closed when something changes.
func (s *session) latest(property string) (lastReading, <-chan struct{}) {
	s.driver.mu.Lock()
	defer s.driver.mu.Unlock()
	return s.values[property], s.changed
}

// Close implements mappers.Session.
func (s *session) Close() error {
	s.driver.remove(s)
	return nil
}

var (
	errNoMessage = errors.New("mqtt: no message came in time")
	errNoBroker  = errors.New("mqtt: not connected to the node's broker")
)

// await waits until enough is true, at most for d. It is asked after each message.
func (s *session) await(ctx context.Context, d time.Duration, enough func() bool) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		_, changed := s.latest("")
		if enough() {
			return nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return errNoMessage
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// complete reports whether the device has said everything that it can say.
func (s *session) complete() bool {
	s.driver.mu.Lock()
	defer s.driver.mu.Unlock()
	if !s.presence.complete() {
		return false
	}
	return !slices.ContainsFunc(s.config.order, func(f *mappedProperty) bool {
		_, known := s.values[f.name]
		return f.state.topic != "" && !known
	})
}

// unavailableReason returns why the device can't be used at the moment. One that has never said whether it is available is.
func (s *session) unavailableReason() error {
	s.driver.mu.Lock()
	defer s.driver.mu.Unlock()
	if !s.mqtt.Connected() {
		return mappers.NotSent(errNoBroker)
	}
	if why := s.presence.absence(s.config.availability.mode); why != "" {
		return mappers.SaysOffline(fmt.Errorf("mqtt: the device is not available: %s", why))
	}
	return s.sparkplugAbsence()
}

// Ping implements mappers.Pinger: a device that can be asked for its state has to answer.
func (s *session) Ping(ctx context.Context) error {
	if err := s.unavailableReason(); err != nil {
		return err
	}
	if s.config.sparkplug != (sparkplugSource{}) {
		return s.awaitBirth(ctx)
	}
	if s.config.get == "" {
		return nil
	}
	before := s.messages()
	if err := s.mqtt.Publish(ctx, s.config.request()); err != nil {
		return err
	}
	err := s.await(ctx, s.driver.o.Timeout, func() bool { return s.messages() != before || s.unavailableReason() != nil })
	if errors.Is(err, errNoMessage) {
		return fmt.Errorf("mqtt: no state within %s after a request on %s", s.driver.o.Timeout, s.config.get)
	}
	return errors.Join(err, s.unavailableReason())
}

// request asks the device for its state.
func (c deviceConfig) request() client.Message {
	return client.Message{Topic: c.get, Payload: []byte(c.getPayload), QoS: 1}
}

func (s *session) messages() uint64 {
	s.driver.mu.Lock()
	defer s.driver.mu.Unlock()
	return s.states
}

// Push implements mappers.Pusher.
func (s *session) Push(ctx context.Context, emit func(property, value string)) error {
	seen := map[string]uint64{}
	var ask <-chan time.Time
	if s.config.getEvery > 0 {
		ticker := time.NewTicker(s.config.getEvery)
		defer ticker.Stop()
		ask = ticker.C
	}
	for {
		_, changed := s.latest("")
		if err := s.unavailableReason(); err != nil {
			return err
		}
		for _, f := range s.config.order {
			r, _ := s.latest(f.name)
			if r.count != seen[f.name] && r.err == nil { // reads return the errors
				emit(f.name, r.value)
			}
			seen[f.name] = r.count
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ask:
			s.mqtt.PublishAsync(s.config.request(), nil)
		case <-changed:
		}
	}
}

// ReadBatch implements mappers.BatchReader: the last values that the device has published. One that it has not is missing. A device of
// Sparkplug whose birth isn't known may be dead: it has no values, which is no answer of it.
func (s *session) ReadBatch(ctx context.Context, properties []string) (map[string]mappers.Reading, error) {
	if err := s.unavailableReason(); err != nil {
		return nil, err
	}
	if s.config.sparkplug != (sparkplugSource{}) {
		if err := s.awaitBirth(ctx); err != nil {
			return nil, err
		}
	}
	got := make(map[string]mappers.Reading, len(properties))
	for _, name := range properties {
		r, _ := s.latest(name)
		if s.config.fields[name] == nil {
			r = lastReading{err: mappers.Refuse(mappers.NotReachable, "the model has no mqtt visitor for %s", name), count: 1}
		}
		if r.count > 0 {
			got[name] = mappers.Reading{Value: r.value, Err: r.err, At: r.at}
		}
	}
	return got, nil
}

// Write implements mappers.Writer: it publishes the command, once, and waits a moment for the device to say what it has.
func (s *session) Write(ctx context.Context, property, value string) error {
	f := s.config.fields[property]
	if f == nil || f.command == "" && f.metric == "" {
		return mappers.Refuse(mappers.NotReachable, "the model has no mqtt visitor with a command topic or a metric for %s", property)
	}
	if err := s.unavailableReason(); err != nil {
		return err
	}
	before, _ := s.latest(property)
	command, err := s.command(f, value, before)
	if err != nil {
		return err
	}
	err = s.mqtt.Publish(ctx, command)
	if refused := new(client.Refused); errors.As(err, &refused) {
		return mappers.Refuse(mappers.Rejected, "%v", err)
	}
	if err != nil || f.state.topic == "" && f.metric == "" {
		return err
	}
	if f.within > s.driver.o.Timeout { // who answers in minutes doesn't in a second
		return mappers.ErrUnconfirmed
	}
	return s.confirm(ctx, f, value, before.count)
}

// command makes the message that sets a property.
func (s *session) command(f *mappedProperty, value string, said lastReading) (client.Message, error) {
	if f.metric != "" {
		return s.metricCommand(f, value)
	}
	payload, err := f.encode(value, said)
	if err != nil {
		return client.Message{}, mappers.Refuse(mappers.Invalid, "%s: %v", f.name, err)
	}
	return client.Message{Topic: f.command, Payload: payload, QoS: f.qos, Retain: f.retain}, nil
}

// confirm waits a moment for what the device says after a command. Any answer is one, also with another value: the SDK reads on until the
// device has the value, or confirmWithin has passed. Without one nobody knows.
func (s *session) confirm(ctx context.Context, f *mappedProperty, value string, before uint64) error {
	answered := false
	err := s.await(ctx, min(s.driver.o.Timeout, confirmWait), func() bool {
		r, _ := s.latest(f.name)
		answered = r.count != before
		return answered && (r.err != nil || f.same(r.value, value)) || s.unavailableReason() != nil
	})
	switch {
	case errors.Is(err, errNoMessage) && !answered:
		return mappers.ErrUnconfirmed
	case errors.Is(err, errNoMessage):
		return nil
	}
	return errors.Join(err, s.unavailableReason())
}

// Main is the program mapper-mqtt.
func Main(args []string, stdout, stderr io.Writer) int {
	return cmd.Program[configs.MapperMQTT]{
		Name:  "mapper-mqtt",
		Short: "The mapper for devices that speak MQTT",
		Long: `mapper-mqtt connects to a node's broker and drives every Device of that node whose protocol is
"mqtt": one that publishes its state to that broker and takes commands from it, as those of zigbee2mqtt,
Tasmota or Shelly do. The Device says which topics are its own:

  protocol: {type: mqtt, config: {topic: zigbee2mqtt/lamp, availability: "{topic}/availability"}}

and its model's visitors say which topic and which part of the JSON is which property:

  state: "{topic}"         path: state         where the value is read
  command: "{topic}/set"   payload: '{"state":{json}}'   where it is written, and how

{topic} stands for the Device's setting of that name. Without a payload the value is sent as JSON at the
path, and by itself where there is no path. A device of Sparkplug B has sparkplug: group/edge node/device,
and its visitors have metric: Level. docs/mqtt-devices.md has examples.`,
		Example: `  mapper-mqtt                                      # the node on this host
  mapper-mqtt browse --node house                  # what zigbee2mqtt has, as manifests
  mapper-mqtt --server unix:///run/edgebus/mqtt.sock`,
		Table: protocolSettings,
		Driver: func(c configs.MapperMQTT, o *mappers.Options) (mappers.Driver, error) {
			o.Collect = collectCycle
			return New(Options{Timeout: c.Timeout, SparkplugHost: c.SparkplugHost, Broker: client.Options{
				Servers: o.Servers, ClientID: "devices-" + o.Name, User: o.User, Secret: o.Secret, TLS: o.TLS,
				KeepAlive: 10 * time.Second, Backoff: client.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}, Log: o.Log,
			}}), nil
		},
		Commands: []*cobra.Command{browseCommand(stdout)},
	}.Main(args, stdout, stderr)
}

// collectCycle is how often what can't be read is looked at. Values are reported when they come.
const collectCycle = 3 * time.Second
