// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/drivertest"
	"github.com/edgebus/edgebus/mappers/jsonpath"
	"github.com/edgebus/edgebus/topics"
)

const waitTime = 30 * time.Second // a busy machine must not fail a test

// newBroker serves on a free port of loopback, with no rules for users' own topics.
func newBroker(t *testing.T) string {
	t.Helper()
	b, err := broker.New(broker.Options{
		Node: "n1", Listeners: []broker.Listener{{Address: "127.0.0.1:0"}},
		Auth: broker.Auth{Anonymous: []topics.Role{topics.RoleOperator, topics.RoleMapper}}, Log: zerolog.Nop(),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.Serve(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		closing, cancel := context.WithTimeout(context.Background(), waitTime)
		defer cancel()
		_ = b.Close(closing)
		<-done
	})
	return "mqtt://" + b.Addrs()[0].String()
}

// newClient is connected.
func newClient(t *testing.T, server, id string, onMessage func(client.Message), filters ...string) *client.Client {
	t.Helper()
	up := make(chan struct{}, 100)
	o := client.Options{
		Servers: []string{server}, ClientID: id, CleanStart: true, OnMessage: onMessage, Log: zerolog.Nop(),
		OnConnect: func(context.Context, bool) error { up <- struct{}{}; return nil },
	}
	for _, f := range filters {
		o.Subscriptions = append(o.Subscriptions, client.Subscription{Filter: f, QoS: 1})
	}
	c, err := client.New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	<-up
	return c
}

// simulatedLamp behaves as one of zigbee2mqtt: it keeps its state, and publishes all of it when it is set or asked.
type simulatedLamp struct {
	t    *testing.T
	mqtt *client.Client
	name string

	mu    sync.Mutex
	state map[string]any
	mute  bool
	took  []string
	play  func(set bool) drivertest.PlayedRequest // nil: it has no habits
}

func newLamp(t *testing.T, server, name string) *simulatedLamp {
	l := &simulatedLamp{t: t, name: name, state: map[string]any{"state": "OFF", "brightness": 100, "color": map[string]any{"x": 0.5}, "battery": nil}}
	l.mqtt = newClient(t, server, "lamp-"+name, l.message, name+"/set", name+"/get")
	l.available(true)
	return l
}

func (l *simulatedLamp) message(m client.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took = append(l.took, strings.TrimPrefix(m.Topic, l.name+"/")+" "+string(m.Payload))
	var set map[string]any
	if l.mute || json.Unmarshal(m.Payload, &set) != nil {
		return
	}
	var played drivertest.PlayedRequest
	isSet := strings.HasSuffix(m.Topic, "/set")
	if l.play != nil {
		played = l.play(isSet)
	}
	switch {
	case played.Ignored:
		return
	case isSet && played.Late:
		time.AfterFunc(drivertest.ReadLater, func() { l.change(set) })
	case isSet:
		maps.Copy(l.state, set)
	}
	switch {
	case played.Lost:
	case played.Delay > 0:
		time.AfterFunc(played.Delay, func() { l.change(nil) })
	default:
		l.tell()
	}
}

// change changes the state by itself, and publishes it.
func (l *simulatedLamp) change(set map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.Copy(l.state, set)
	l.tell()
}

// tell publishes the state. mu is held.
func (l *simulatedLamp) tell() {
	payload, _ := json.Marshal(l.state)
	l.mqtt.PublishAsync(client.Message{Topic: l.name, Payload: payload, QoS: 1}, nil)
}

func (l *simulatedLamp) publish(topic, payload string, retain bool) {
	require.NoError(l.t, l.mqtt.Publish(context.Background(), client.Message{Topic: topic, Payload: []byte(payload), QoS: 1, Retain: retain}))
}

func (l *simulatedLamp) available(yes bool) {
	state := "offline"
	if yes {
		state = "online"
	}
	l.publish(l.name+"/availability", `{"state":"`+state+`"}`, true)
}

func (l *simulatedLamp) silence(yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mute = yes
}

func (l *simulatedLamp) commands() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	took := l.took
	l.took = nil
	return took
}

func lampDevice(name string) mappers.Device {
	low, high := 0.0, 254.0
	return mappers.Device{
		Node: "n1", Name: name,
		Config: map[string]string{
			"topic": name, "availability": "{topic}/availability", "availabilityPath": "state", "get": "{topic}/get", "getPayload": `{"state":""}`,
		},
		Properties: []mappers.Property{
			{Name: "state", Type: mappers.String, Writable: true, Enum: []string{"ON", "OFF"}, Visited: true, Config: map[string]string{"state": "{topic}", "path": "state", "command": "{topic}/set"}},
			{
				Name: "on", Type: mappers.Boolean, Writable: true, Visited: true,
				Config: map[string]string{"state": "{topic}", "path": "state", "command": "{topic}/set"},
				Words:  []mappers.Word{{Value: "true", Read: []string{"ON"}, Write: "ON"}, {Value: "false", Read: []string{"OFF"}, Write: "OFF"}},
			},
			{Name: "brightness", Type: mappers.Int, Writable: true, Minimum: &low, Maximum: &high, Visited: true, Config: map[string]string{"state": "{topic}", "path": "brightness", "command": "{topic}/set", "payload": `{"brightness":{json}}`}},
			{Name: "x", Type: mappers.Float, Visited: true, Config: map[string]string{"state": "{topic}", "path": "$.color['x']"}},
		},
	}
}

func newDriver(server string, timeout time.Duration) *Driver {
	return New(Options{Timeout: timeout, Broker: client.Options{Servers: []string{server}, ClientID: "devices-mqtt", Log: zerolog.Nop()}})
}

func withConfig(d mappers.Device, property, key, value string) mappers.Device {
	if property == "" {
		d.Config = maps.Clone(d.Config)
		d.Config[key] = value
		return d
	}
	d.Properties = append([]mappers.Property(nil), d.Properties...)
	for i, p := range d.Properties {
		if p.Name == property {
			p.Config = maps.Clone(p.Config)
			p.Config[key] = value
			if value == "" {
				delete(p.Config, key)
			}
			d.Properties[i] = p
		}
	}
	return d
}

// pingingDriver is a driver whose sessions are pinged before use, as the SDK does, so that the device's state is known.
type pingingDriver struct{ *Driver }

func (a pingingDriver) Open(ctx context.Context, d mappers.Device) (mappers.Session, error) {
	s, err := a.Driver.Open(ctx, d)
	if err != nil {
		return nil, err
	}
	if err := s.(mappers.Pinger).Ping(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

func TestDriver(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Rig {
		server := newBroker(t)
		l := newLamp(t, server, "zigbee2mqtt/lamp")
		newLamp(t, server, "zigbee2mqtt/other")
		d, another := lampDevice("zigbee2mqtt/lamp"), lampDevice("zigbee2mqtt/other")
		unnamed := lampDevice("")
		delete(unnamed.Config, "topic")
		return drivertest.Rig{
			Driver: pingingDriver{newDriver(server, waitTime)}, Device: d, Another: &another,
			Stop: func() { l.available(false) }, Start: func() { l.available(true) },
			Broken: map[string]mappers.Device{
				"spec.protocol.config.topic":             unnamed,
				"spec.protocol.config.topc":              withConfig(d, "", "topc", "x"),
				"spec.protocol.config.get":               withConfig(d, "", "get", "a/#"),
				"spec.protocol.config.availability":      withConfig(d, "", "availability", "v1/nodes/n1/state"),
				"spec.protocol.config.availabilityPath":  withConfig(d, "", "availabilityPath", "a..b"),
				"visitors[state].config.stat":            withConfig(d, "state", "stat", "x"),
				"visitors[state].config.state":           withConfig(d, "state", "state", "$SYS/broker/uptime"),
				"visitors[state].config.command":         withConfig(d, "state", "command", ""),
				"visitors[state].config.path":            withConfig(d, "state", "path", "list[x]"),
				"visitors[state].config.on":              withConfig(d, "state", "on", "1"),
				"visitors[state].config.qos":             withConfig(d, "state", "qos", "3"),
				"visitors[state].config.retain":          withConfig(d, "state", "retain", "maybe"),
				"visitors[brightness].config.payload":    withConfig(d, "brightness", "payload", `{"brightness":1}`),
				"visitors[brightness].config.brightness": withConfig(d, "brightness", "brightness", "x"),
			},
		}
	})
}

func openDevice(t *testing.T, driver mappers.Driver, d mappers.Device) *mappers.Opened {
	t.Helper()
	s, err := mappers.Open(t.Context(), driver, d)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestCommandsAreJSONAtTheirPath(t *testing.T) {
	server := newBroker(t)
	l := newLamp(t, server, "lamp")
	s := openDevice(t, pingingDriver{newDriver(server, waitTime)}, lampDevice("lamp"))
	require.Equal(t, []string{`get {"state":""}`}, l.commands())
	require.NoError(t, s.Write(t.Context(), "state", "ON"))
	require.NoError(t, s.Write(t.Context(), "on", "false"))
	require.NoError(t, s.Write(t.Context(), "brightness", "40"))
	require.Equal(t, []string{`set {"state":"ON"}`, `set {"state":"OFF"}`, `set {"brightness":40}`}, l.commands())
}

func TestWhatADevicePublishesIsPushed(t *testing.T) {
	server := newBroker(t)
	l := newLamp(t, server, "lamp")
	s := openDevice(t, pingingDriver{newDriver(server, waitTime)}, lampDevice("lamp"))
	got := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Session.(mappers.Pusher).Push(ctx, func(p, v string) { got <- p + " " + v }) }()
	for _, want := range []string{"state OFF", "on OFF", "brightness 100", "x 0.5"} {
		require.Equal(t, want, <-got)
	}
	l.publish("lamp", `{"brightness":127.0}`, false) // a part: what it leaves out is as it was
	require.Equal(t, "brightness 127", <-got)
	l.publish("lamp", `{"brightness":`, false) // malformed
	l.publish("lamp", `{"state":"ON","brightness":"hot","x":[]}`, false)
	require.Equal(t, "state ON", <-got)
	require.Equal(t, "on ON", <-got, "the SDK has the words")
	require.Equal(t, "brightness hot", <-got, "the SDK says that it is no int")
	cancel()
	require.NoError(t, <-ended)

	go func() { ended <- s.Session.(mappers.Pusher).Push(t.Context(), func(string, string) {}) }()
	l.available(false)
	require.ErrorContains(t, <-ended, "not available: lamp/availability is offline")
}

func TestACommandWithoutAnAnswerIsUnconfirmed(t *testing.T) {
	server := newBroker(t)
	l := newLamp(t, server, "lamp")
	driver := newDriver(server, 50*time.Millisecond)
	d := lampDevice("lamp")
	delete(d.Config, "get")
	delete(d.Config, "getPayload")
	l.silence(true)
	s := openDevice(t, driver, d)
	require.ErrorIs(t, s.Write(t.Context(), "state", "ON"), mappers.ErrUnconfirmed)
	l.silence(false)
	require.Eventually(t, func() bool { return s.Write(t.Context(), "state", "ON") == nil }, waitTime, time.Millisecond)
}

func TestPingWaitsForAnAnswer(t *testing.T) {
	server := newBroker(t)
	l := newLamp(t, server, "lamp")
	l.silence(true)
	s := openDevice(t, newDriver(server, 50*time.Millisecond), lampDevice("lamp"))
	ping := s.Session.(mappers.Pinger).Ping
	require.EqualError(t, ping(t.Context()), "mqtt: no state within 50ms after a request on lamp/get")
	l.silence(false)
	require.Eventually(t, func() bool { return ping(t.Context()) == nil }, waitTime, time.Millisecond)
}

func TestSessionsShareOneConnectionThatTheLastOneEnds(t *testing.T) {
	server := newBroker(t)
	newLamp(t, server, "a")
	newLamp(t, server, "b")
	driver := newDriver(server, waitTime)
	a, b := openDevice(t, driver, lampDevice("a")), openDevice(t, driver, lampDevice("b"))
	require.Same(t, a.Session.(*session).mqtt, b.Session.(*session).mqtt)
	require.NoError(t, a.Close())
	require.Len(t, driver.topics, 2)
	require.True(t, b.Session.(*session).mqtt.Connected())
	require.NoError(t, b.Close())
	require.Empty(t, driver.topics)
	require.Nil(t, driver.mqtt)
	require.False(t, b.Session.(*session).mqtt.Connected())
}

func TestWithoutABrokerADeviceIsOffline(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	driver := newDriver("mqtt://"+l.Addr().String(), waitTime)
	_, err = driver.Open(ctx, lampDevice("lamp"))
	require.ErrorContains(t, err, "no connection to mqtt://127.0.0.1:"+strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	require.Nil(t, driver.mqtt)
}

func TestPaths(t *testing.T) {
	const doc = `{"a":{"b":[10,{"c d":"x"}]},"n":null,"big":12345678901234567890,"l":[]}`
	for text, want := range map[string]string{
		"a.b[0]": "10", "$.a.b[1]['c d']": "x", `a["b"][1]["c d"]`: "x", "a.b": `[10,{"c d":"x"}]`, "big": "12345678901234567890",
		"": doc, "a.b[2]": "-", "a.b.c": "-", "l[0]": "-", "nothing": "-", "a[0]": "-",
	} {
		p, err := jsonpath.Parse(text)
		require.NoError(t, err, text)
		got, _, ok, err := (&jsonpath.Message{Payload: []byte(doc)}).Find(p)
		require.NoError(t, err, text)
		if !ok {
			got = "-"
		}
		require.Equal(t, want, got, text)
	}
	null, err := jsonpath.Parse("n")
	require.NoError(t, err)
	_, _, ok, err := (&jsonpath.Message{Source: "lamp", Payload: []byte(doc)}).Find(null)
	require.False(t, ok)
	require.EqualError(t, err, "Unknown: the device says null on lamp")
	for _, text := range []string{"$", "a..b", "a.", "[x]", "a[", "a['b]", "a[0]b", "a[-1]"} {
		_, err := jsonpath.Parse(text)
		require.Error(t, err, text)
	}
}

func TestValuesOfEveryType(t *testing.T) {
	for _, tt := range []struct {
		typ           mappers.Type
		path, payload string // of the visitor
		state, value  string
		command       string
	}{
		{mappers.String, "", "", "hello", "hello", "hello"},
		{mappers.String, "s", "", `{"s":"h\"i"}`, `h"i`, `{"s":"h\"i"}`},
		{mappers.Int, "", "", "42", "42", "42"},
		{mappers.Int, "n.m", "", `{"n":{"m":42}}`, "42", `{"n":{"m":42}}`},
		{mappers.Float, "", `{"t":{value}}`, "21.50", "21.50", `{"t":21.50}`},
		{mappers.Boolean, "", "", "ON", "true", "true"},
		{mappers.Boolean, "b", "", `{"b":false}`, "false", `{"b":false}`},
		{mappers.Bytes, "", "", "\x00\xff", "AP8=", "\x00\xff"},
		{mappers.Bytes, "b", "", `{"b":"AP8="}`, "AP8=", `{"b":"AP8="}`},
		{mappers.Object, "o", "", `{"o":{"x":1}}`, `{"x":1}`, `{"o":{"x":1}}`},
		{mappers.Array, "", `{"all":{json}}`, `[1,2]`, `[1,2]`, `{"all":[1,2]}`},
	} {
		p, err := jsonpath.Parse(tt.path)
		require.NoError(t, err)
		f := &mappedProperty{name: "p", typ: tt.typ, state: valueSource{"t", p}, payload: tt.payload}
		r, ok := f.decode(&jsonpath.Message{Source: "t", Payload: []byte(tt.state)})
		require.NoError(t, r.err)
		require.True(t, ok)
		require.Equal(t, tt.value, r.value)
		require.NoError(t, drivertest.CheckType(tt.typ, r.value))
		command, err := f.encode(r.value, r)
		require.NoError(t, err)
		require.Equal(t, tt.command, string(command))
	}
}

// FuzzState has payloads of any kind: they are values, or errors, and never more.
func FuzzState(f *testing.F) {
	f.Add("a.b[0]", []byte(`{"a":{"b":[1]}}`))
	f.Add("", []byte("ON"))
	f.Add("$['x']", []byte(`{"x":{"y":null}}`))
	f.Fuzz(func(t *testing.T, text string, payload []byte) {
		p, err := jsonpath.Parse(text)
		if err != nil {
			return
		}
		for _, typ := range []mappers.Type{mappers.Int, mappers.Boolean, mappers.Bytes, mappers.Object} {
			r, ok := (&mappedProperty{typ: typ, state: valueSource{"t", p}}).decode(&jsonpath.Message{Source: "t", Payload: payload})
			if r.value != "" && (r.err != nil || !ok) {
				t.Fatalf("a value %q and an error %v", r.value, r.err)
			}
		}
		if !p.Indexed() && p != nil {
			value, _, ok, err := (&jsonpath.Message{Payload: []byte(p.Wrap(`"x"`))}).Find(p)
			if err != nil || !ok || value != "x" {
				t.Fatalf("%q does not lead to what was put there: %q %v %v", text, value, ok, err)
			}
		}
	})
}
