// SPDX-License-Identifier: Apache-2.0

// Package virtual drives simulated devices: a lamp that warms up, or any model whose properties behave as its visitors
// say. They are for trying things out, demonstrations and tests: no hardware is touched, and a device forgets
// everything when it is closed, as hardware does that loses power.
//
// A property that can be written keeps what was written. One that can't moves by itself, by its visitor's config:
//
//	generator: sine | random-walk | sawtooth | constant
//	min, max:  between them (default: the model's range, else 0 to 100)
//	period:    of sine and sawtooth (default 60s); a random walk crosses its range in about that time
//	value:     of constant, and what a writable property begins with (also: initial, minimum, maximum)
//
// Without a generator a property called temperature warms with brightness while power is ON, as a lamp does; other
// numbers walk at random, booleans and enumerations stay.
//
// Two commands are known: beep, once or twice as the payload says, and reset, after which all is as it began. A command of the model
// that has a visitor does nothing, but for the events that it causes. An event happens by its visitor's config:
//
//	every:   each time after so long, with the next value of its enum (default: never)
//	command: one with whose input it happens
package virtual

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/cmd"
)

// Options configure the driver. The zero value is usable.
type Options struct {
	Now func() time.Time // default time.Now
	// Seed makes the devices' behaviour repeatable; each device has its own course.
	Seed uint64
	// Habits are what the devices do besides; nil: nothing. With them each property is read in a request of its own.
	Habits *Habits
}

// Driver makes simulated devices.
type Driver struct{ o Options }

// New makes a driver.
func New(o Options) *Driver {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Driver{o}
}

// Protocols implements mappers.Driver.
func (d *Driver) Protocols() []string { return []string{"virtual", "simulated", "mock"} }

// Bus implements mappers.Sharer: simulated devices answer at once, so that one goroutine serves many.
func (d *Driver) Bus(mappers.Device) string { return "virtual" }

// Open implements mappers.Driver.
func (d *Driver) Open(_ context.Context, dev mappers.Device) (mappers.Session, error) {
	s := &session{now: d.o.Now, habits: d.o.Habits, device: dev, props: map[string]*simulatedProperty{}, caused: make(chan [2]string, maxCaused)}
	random := rand.New(rand.NewPCG(d.o.Seed, hashText(dev.Name))) //nolint:gosec // G404: simulates a device
	for _, p := range dev.Properties {
		prop, err := newProperty(p, d.o.Now(), random)
		if err != nil {
			return nil, err
		}
		s.props[p.Name] = prop
	}
	for _, p := range dev.Events {
		event, err := newEvent(p, dev)
		if err != nil {
			return nil, err
		}
		s.events = append(s.events, event)
	}
	s.findLamp()
	return s, nil
}

func hashText(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return h.Sum64()
}

// session is one simulated device.
type session struct {
	now    func() time.Time
	habits *Habits
	device mappers.Device

	mu     sync.Mutex
	props  map[string]*simulatedProperty
	lamp   *lampDevice
	events []*simulatedEvent
	caused chan [2]string // events that commands caused, and their values
}

// Group implements mappers.Grouper.
func (s *session) Group(properties []string) [][]string {
	if s.habits == nil {
		return [][]string{properties}
	}
	return slices.Collect(slices.Chunk(properties, 1))
}

// Reconnect implements mappers.Reconnector: the device remembers what it has.
func (s *session) Reconnect() { s.habits.reconnected(s.device.Name) }

// isFirst reports whether a property is the device's first.
func (s *session) isFirst(property string) bool { return s.device.Properties[0].Name == property }

// ReadBatch implements mappers.BatchReader.
func (s *session) ReadBatch(ctx context.Context, properties []string) (map[string]mappers.Reading, error) {
	if err := s.habits.request(ctx, s.device.Name, "read "+strings.Join(properties, " "), slices.ContainsFunc(properties, s.isFirst)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	now := s.now()
	got := make(map[string]mappers.Reading, len(properties))
	for _, name := range properties {
		p := s.props[name]
		value := p.read(now)
		if s.lamp != nil && s.lamp.temperature == p {
			value = p.format(s.lamp.read(now))
		}
		got[name] = mappers.Reading{Value: s.habits.read(s.device.Name, name, value, s.isFirst(name))}
	}
	return got, nil
}

// Write implements mappers.Writer.
func (s *session) Write(ctx context.Context, property, value string) error {
	lost := s.habits.request(ctx, s.device.Name, "write "+property, false)
	if lost != nil && !errors.Is(lost, errAnswerLost) {
		return lost
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.lamp != nil {
		s.lamp.read(s.now()) // what was until now counts with the old setting
	}
	before := s.props[property].text
	s.props[property].text = value
	return cmp.Or(s.habits.wrote(s.device.Name, property, before), lost)
}

// Command implements mappers.Commander: "beep" makes a noise, "reset" brings the device back to how it began.
func (s *session) Command(ctx context.Context, name string, payload []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if _, known := s.device.Command(name); known {
		if err := s.cause(name, string(payload)); err != nil {
			return nil, err
		}
		if name != "reset" {
			return []byte("ok"), nil
		}
	}
	switch name {
	case "beep":
		return runBeep(string(payload))
	case "reset":
		for _, p := range s.props {
			p.text = p.first
		}
		return []byte("ok"), nil
	}
	return nil, mappers.Refuse(mappers.Rejected, "%s knows the commands beep and reset, not %s", s.device.Name, name)
}

func runBeep(times string) ([]byte, error) {
	switch times {
	case "", "once":
		return []byte("beep"), nil
	case "twice":
		return []byte("beep beep"), nil
	}
	return nil, mappers.Refuse(mappers.Invalid, "beep once or twice, not %q", times)
}

// Close implements mappers.Session.
func (s *session) Close() error { return nil }

// simulatedProperty is one simulated property.
type simulatedProperty struct {
	mappers.Property
	text, first string // of one that doesn't move
	move        func(now time.Time) float64
}

// normalizeConfig brings the settings to their usual names, and refuses those that mean nothing.
func normalizeConfig(config map[string]string, at string) (map[string]string, error) {
	out := make(map[string]string, len(config))
	for key, value := range config {
		name := settingName(protocolSettings.Property, key)
		if name == "" {
			return nil, mappers.BadConfig(at+key, "is no setting of a virtual device")
		}
		out[name] = value
	}
	return out, nil
}

func newProperty(p mappers.Property, now time.Time, random *rand.Rand) (*simulatedProperty, error) {
	prop := &simulatedProperty{Property: p}
	at := fmt.Sprintf("properties[%s].config.", p.Name)
	config, err := normalizeConfig(p.Config, at)
	if err != nil {
		return nil, err
	}
	p.Config, prop.Config = config, config
	low, high, err := valueRange(p, at)
	if err != nil {
		return nil, err
	}
	period := 60 * time.Second
	if text := p.Config["period"]; text != "" {
		if period, err = time.ParseDuration(text); err != nil || period <= 0 {
			return nil, mappers.BadConfig(at+"period", "%q is no duration above 0, such as 60s", text)
		}
	}
	prop.text = prop.start(low)
	if text, ok := p.Config["value"]; ok {
		if err := p.Check(text); err != nil && text != "" {
			return nil, mappers.BadConfig(at+"value", "%s", err.Message)
		}
		prop.text = text
	}
	prop.first = prop.text
	generator := p.Config["generator"]
	if generator == "" && !p.Writable && p.Type.Numeric() && p.Config["value"] == "" {
		generator = "random-walk"
	}
	switch phase := random.Float64(); generator {
	case "", "constant":
	case "sine":
		prop.move = func(t time.Time) float64 {
			return low + (high-low)*(1+math.Sin(2*math.Pi*(phase+periodsSince(t, now, period))))/2
		}
	case "sawtooth":
		prop.move = func(t time.Time) float64 {
			_, part := math.Modf(phase + periodsSince(t, now, period))
			return low + (high-low)*part
		}
	case "random-walk":
		prop.move = randomWalk(low, high, period, now, random.Uint64())
	default:
		return nil, mappers.BadConfig(at+"generator", "%q is none of sine, random-walk, sawtooth, constant", generator)
	}
	if prop.move != nil && (p.Writable || !p.Type.Numeric()) {
		return nil, mappers.BadConfig(at+"generator", "%s is for numbers that can't be written; %s is a %s", generator, p.Name, p.Type)
	}
	return prop, nil
}

func periodsSince(t, since time.Time, period time.Duration) float64 {
	return float64(t.Sub(since)) / float64(period)
}

// randomWalk is a random walk that turns back softly at its limits. It goes a hundred steps a period, however often it is read.
func randomWalk(low, high float64, period time.Duration, now time.Time, seed uint64) func(time.Time) float64 {
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // G404: simulates a device
	step := max(period/100, time.Millisecond)
	at, last := low+(high-low)*random.Float64(), now
	return func(t time.Time) float64 {
		n := min(int(t.Sub(last)/step), 10_000)
		for range n {
			pull := ((low+high)/2 - at) * 0.01
			at = min(high, max(low, at+pull+(random.Float64()-0.5)*(high-low)*0.1))
		}
		if n > 0 {
			last = t
		}
		return at
	}
}

func valueRange(p mappers.Property, at string) (low, high float64, err error) {
	low, high = 0, 100
	if p.Minimum != nil {
		low, high = *p.Minimum, max(*p.Minimum+100, high)
	}
	if p.Maximum != nil {
		high = *p.Maximum
	}
	for key, v := range map[string]*float64{"min": &low, "max": &high} {
		if text := p.Config[key]; text != "" {
			if *v, err = strconv.ParseFloat(text, 64); err != nil || math.IsNaN(*v) || math.IsInf(*v, 0) {
				return 0, 0, mappers.BadConfig(at+key, "%q is no number", text)
			}
		}
	}
	if low > high {
		return 0, 0, mappers.BadConfig(at+"min", "%g is above the maximum %g", low, high)
	}
	return low, high, nil
}

// start is what a property has before anybody wrote it: off, closed, the least.
func (p *simulatedProperty) start(low float64) string {
	switch {
	case slices.Contains(p.Enum, "OFF"):
		return "OFF"
	case len(p.Enum) > 0:
		return p.Enum[0]
	}
	switch p.Type {
	case mappers.Int, mappers.Float, mappers.Double:
		return p.format(low)
	case mappers.Boolean:
		return "false"
	case mappers.Object:
		return "{}"
	case mappers.Array:
		return "[]"
	}
	return ""
}

func (p *simulatedProperty) read(now time.Time) string {
	if p.move == nil {
		return p.text
	}
	return p.format(p.move(now))
}

// format gives a number as many digits as a cheap sensor has.
func (p *simulatedProperty) format(f float64) string {
	if p.Type == mappers.Int {
		return strconv.FormatInt(int64(math.Round(f)), 10)
	}
	return strconv.FormatFloat(math.Round(f*100)/100, 'f', -1, 64)
}

// A lamp at full brightness ends this much warmer than the room, and gets two thirds of the way in warming.
const (
	roomTemperature = 21.0
	fullWarmth      = 38.0
	lampInertia     = 20 * time.Second
)

// lampDevice couples a temperature to power and brightness: it follows them slowly, as metal does.
type lampDevice struct {
	temperature, power, brightness *simulatedProperty
	warmth                         float64
	last                           time.Time
}

// findLamp makes a lamp of a device that looks like one: a temperature without a generator, and a power.
func (s *session) findLamp() {
	t, p := s.props["temperature"], s.props["power"]
	if t == nil || p == nil || t.Writable || !t.Type.Numeric() || t.Config["generator"] != "" || t.Config["value"] != "" {
		return
	}
	s.lamp = &lampDevice{temperature: t, power: p, brightness: s.props["brightness"], last: s.now()}
}

// target is how much warmer than the room the lamp ends up as it is set now.
func (l *lampDevice) target() float64 {
	switch l.power.text {
	case "ON", "on", "true", "1":
	default:
		return 0
	}
	if l.brightness == nil {
		return fullWarmth
	}
	b, err := strconv.ParseFloat(l.brightness.text, 64)
	if err != nil {
		return 0
	}
	high := 100.0
	if m := l.brightness.Maximum; m != nil && *m > 0 {
		high = *m
	}
	return fullWarmth * b / high
}

// read lets the time since the last reading pass, and returns the temperature.
func (l *lampDevice) read(now time.Time) float64 {
	dt := now.Sub(l.last)
	l.last = now
	if dt > 0 {
		l.warmth += (l.target() - l.warmth) * (1 - math.Exp(-float64(dt)/float64(lampInertia)))
	}
	draught := 0.3 * math.Sin(2*math.Pi*float64(now.UnixMilli()%600_000)/600_000)
	return roomTemperature + draught + l.warmth
}

// Main is the program mapper-virtual.
func Main(args []string, stdout, stderr io.Writer) int {
	return cmd.Program[configs.Virtual]{
		Name:  "mapper-virtual",
		Short: "The mapper for simulated devices",
		Long: `mapper-virtual connects to a node's broker and simulates every Device of that node whose
protocol is "virtual". Properties that can be written keep what is wanted; the others move by
themselves, as their visitors say.

Two commands are known: beep (once or twice, as the payload says) and reset.
A read-only temperature without a generator warms with power and brightness, as a lamp does.`,
		Example: `  mapper-virtual                                   # the node on this host
  mapper-virtual --server mqtt://10.0.0.7:2883 --name sim2
  mapper-virtual --print-config > /etc/edgebus/mapper-virtual.yaml

  mosquitto_pub -V 5 -q 1 -p 2883 -t v1/nodes/demo/devices/lamp/desired/power -m ON`,
		Table: protocolSettings,
		Driver: func(c configs.Virtual, o *mappers.Options) (mappers.Driver, error) {
			o.Collect = c.Interval
			return New(Options{}), nil
		},
	}.Main(args, stdout, stderr)
}
