// SPDX-License-Identifier: Apache-2.0

package homeassistant

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/topics/resource"
)

// haEntity is one entity of Home Assistant.
type haEntity struct {
	component string
	id        string // unique among those of its Device, as a topic has it
	config    map[string]any
}

const (
	payloadOn  = "ON"
	payloadOff = "OFF"

	maxState     = 255 // characters that a state has in Home Assistant
	leastStep    = 0.001
	defaultStep  = 0.01
	widestNumber = 1e9 // the range of a number that has none
)

// Templates of Home Assistant. A value that is cleared arrives as an empty message, which would leave the last one standing.
const (
	isOnline      = "{{ 'online' if value == 'online' else 'offline' }}" // unknown is not available
	hasValue      = "{{ 'online' if value != '' else 'offline' }}"
	orNoMembers   = "{{ value if value != '' else '{}' }}"
	orNone        = "{{ value if value != '' else 'None' }}"
	shortenedText = "{{ value[:255] }}"
	oneOfTypes    = `{{ {'event_type': value} | tojson }}`
)

// onWords are pairs of words for on and off.
var onWords = [][2]string{{"true", "false"}, {"on", "off"}, {"1", "0"}, {"yes", "no"}, {"enabled", "disabled"}}

// onOff returns the values of a property that is on or off.
func onOff(p resource.Property) (on, off string, ok bool) {
	if p.Type == resource.TypeBoolean {
		return "true", "false", true
	}
	if len(p.Enum) != 2 {
		return "", "", false
	}
	a, b := string(p.Enum[0]), string(p.Enum[1])
	for _, w := range onWords {
		switch {
		case strings.EqualFold(a, w[0]) && strings.EqualFold(b, w[1]):
			return a, b, true
		case strings.EqualFold(a, w[1]) && strings.EqualFold(b, w[0]):
			return b, a, true
		}
	}
	return "", "", false
}

func isNumber(p resource.Property) bool {
	return p.Type == resource.TypeInt || p.Type == resource.TypeFloat || p.Type == resource.TypeDouble
}

// escapeID is a name as topics and identifiers of Home Assistant may have it, without what would make two names one.
func escapeID(name string) string {
	id := strings.NewReplacer("_", "__", ".", "_").Replace(name)
	for i := 1; i < len(name); i++ {
		if strings.ContainsAny(name[i-1:i], "_.") && strings.ContainsAny(name[i:i+1], "_.") {
			sum := sha256.Sum256([]byte(name))
			return id + "-" + hex.EncodeToString(sum[:4])
		}
	}
	return id
}

// deviceID is unique among the Devices of all instances.
func (v *View) deviceID(d *views.Device) string {
	return escapeID(cmp.Or(v.o.Instance, "hub")) + "___" + escapeID(d.Name())
}

// entityBuilder makes the entities of one Device.
type entityBuilder struct {
	v            *View
	d            *views.Device
	device       map[string]any
	availability []map[string]any
	commands     map[string]bool
	used         map[string]bool // properties that are part of another's entity
	list         []haEntity
}

// entities are those of a Device.
func (v *View) entities(d *views.Device) []haEntity {
	b := &entityBuilder{v: v, d: d, used: make(map[string]bool), commands: make(map[string]bool)}
	b.device = map[string]any{"identifiers": []string{"edgebus_" + v.deviceID(d)}, "name": d.Title()}
	if model := cmp.Or(d.Model.Spec.Title, d.Model.Metadata.Name); model != "" {
		b.device["model"] = model
	}
	if area := d.Object.Metadata.Labels["area"]; area != "" {
		b.device["suggested_area"] = area
	}
	b.availability = v.availability(d)
	for _, c := range d.Model.Spec.Commands {
		b.commands[c.Name] = true
	}
	b.addLight()
	for _, p := range d.Model.Spec.Properties {
		if !b.used[p.Name] {
			b.addProperty(p)
		}
		for _, a := range p.Alarms {
			b.addAlarm(p, a)
		}
	}
	for _, e := range d.Model.Spec.Events {
		b.addEvent(e)
	}
	for _, c := range d.Model.Spec.Commands {
		if !b.used["commands/"+c.Name] {
			b.addCommand(c)
		}
	}
	return b.list
}

// availability is what must be so for each entity of a Device: the view and the node are there, and the Device is online.
func (v *View) availability(d *views.Device) (all []map[string]any) {
	if !v.o.Own {
		all = append(all, map[string]any{"topic": v.root + "/state"})
	}
	switch {
	case v.o.Instance != "":
	case v.o.Own:
		all = append(all, map[string]any{"topic": "v1/nodes/" + d.Node + "/state"})
	default:
		all = append(all, map[string]any{"topic": v.root + "/nodes/" + d.Node})
	}
	return append(all, map[string]any{"topic": v.topic(d) + "state", "value_template": isOnline})
}

// add adds an entity. name is for people; empty: the Device's own.
func (b *entityBuilder) add(component, id, name string, config map[string]any, availability ...map[string]any) {
	config["unique_id"] = "edgebus_" + b.v.deviceID(b.d) + "___" + id
	config["name"] = any(nil)
	if name != "" {
		config["name"] = name
	}
	config["device"] = b.device
	config["origin"] = map[string]any{"name": b.v.origin}
	config["availability"] = slices.Concat(b.availability, availability)
	config["availability_mode"] = "all"
	config["qos"] = 1
	b.list = append(b.list, haEntity{component, id, config})
}

// titleOf is a name for people.
func titleOf(title, name string) string {
	if title != "" {
		return title
	}
	words := strings.NewReplacer("_", " ", ".", " ", "-", " ").Replace(name)
	return strings.ToUpper(words[:1]) + words[1:]
}

func (b *entityBuilder) reported(p resource.Property) string {
	return b.v.topic(b.d) + "reported/" + p.Name
}

func (b *entityBuilder) desired(p resource.Property) string {
	return b.v.topic(b.d) + "desired/" + p.Name
}

// isKnown is what must be so for an entity that shows a property: it has a value.
func (b *entityBuilder) isKnown(p resource.Property) map[string]any {
	return map[string]any{"topic": b.reported(p), "value_template": hasValue}
}

// addLight makes a light of what is switched on and off, and has a brightness beside it.
func (b *entityBuilder) addLight() {
	var power, brightness *resource.Property
	for i, p := range b.d.Model.Spec.Properties {
		_, _, switched := onOff(p)
		least, _, dimmed := positions(p)
		switch {
		case !p.Writable():
		case switched && (p.Quantity == "light" || power == nil && p.Quantity == ""):
			power = &b.d.Model.Spec.Properties[i]
		case p.Name == "brightness" && dimmed && least == 0:
			brightness = &b.d.Model.Spec.Properties[i]
		}
	}
	if power == nil || brightness == nil && power.Quantity != "light" {
		return
	}
	on, off, _ := onOff(*power)
	config := map[string]any{
		"state_topic": b.reported(*power), "command_topic": b.desired(*power), "payload_on": on, "payload_off": off, "state_value_template": orNone,
	}
	if b.used[power.Name] = true; brightness != nil {
		b.used[brightness.Name] = true
		config["brightness_state_topic"], config["brightness_command_topic"] = b.reported(*brightness), b.desired(*brightness)
		config["brightness_scale"] = *brightness.Maximum
		config["on_command_type"] = "last"
	}
	b.add("light", escapeID(power.Name), "", config)
}

// positions is the range of a number whose values are whole numbers, more than two, as those of lights and covers are in Home Assistant.
func positions(p resource.Property) (closed, open int, ok bool) {
	least, most := valueOf(p.Minimum), valueOf(p.Maximum)
	closed, open = int(least), int(most)
	return closed, open, isNumber(p) && len(p.Enum) == 0 && least == float64(closed) && most == float64(open) && open-closed > 1
}

func valueOf(f *float64) float64 {
	if f == nil {
		return 0
	}
	return *f
}

func (b *entityBuilder) addProperty(p resource.Property) {
	on, off, switched := onOff(p)
	switch {
	case p.Type == resource.TypeBytes:
	case slices.Contains(coverClasses, p.Quantity) && p.Writable() && b.addCover(p):
	case switched && p.Writable():
		config := map[string]any{
			"state_topic": b.reported(p), "command_topic": b.desired(p), "payload_on": on, "payload_off": off, "state_on": on, "state_off": off,
			"value_template": orNone,
		}
		setClass(config, p.Quantity, switchClasses)
		b.add("switch", escapeID(p.Name), titleOf(p.Title, p.Name), config)
	case switched:
		config := map[string]any{"state_topic": b.reported(p), "payload_on": on, "payload_off": off}
		setClass(config, p.Quantity, binaryClasses)
		b.add("binary_sensor", escapeID(p.Name), titleOf(p.Title, p.Name), config, b.isKnown(p))
	case len(p.Enum) > 0 && p.Writable():
		b.add("select", escapeID(p.Name), titleOf(p.Title, p.Name), map[string]any{
			"state_topic": b.reported(p), "command_topic": b.desired(p), "options": p.Enum, "value_template": orNone,
		})
	case isNumber(p) && p.Writable() && minimumOf(p.Minimum) < maximumOf(p.Maximum):
		config := numberRange(p)
		config["state_topic"], config["command_topic"], config["value_template"] = b.reported(p), b.desired(p), orNone
		setUnit(config, p)
		b.add("number", escapeID(p.Name), titleOf(p.Title, p.Name), config)
	case p.Writable() && cmp.Or(p.Type, resource.TypeString) == resource.TypeString:
		b.add("text", escapeID(p.Name), titleOf(p.Title, p.Name), map[string]any{
			"state_topic": b.reported(p), "command_topic": b.desired(p), "max": maxState, "value_template": shortenedText,
		})
	default:
		b.addSensor(p)
	}
}

func setClass(config map[string]any, quantity string, classes []string) {
	if slices.Contains(classes, quantity) {
		config["device_class"] = quantity
	}
}

// setUnit sets the unit and class of a number, and returns the class.
func setUnit(config map[string]any, p resource.Property) string {
	if unit := unitOf(p); unit != "" {
		config["unit_of_measurement"] = unit
	}
	class := classOf(p)
	if class != "" {
		config["device_class"] = class
	}
	return class
}

func minimumOf(f *float64) float64 {
	if f == nil {
		return -widestNumber
	}
	return *f
}

func maximumOf(f *float64) float64 {
	if f == nil {
		return widestNumber
	}
	return *f
}

// numberRange is what Home Assistant must know of a number that is written.
func numberRange(p resource.Property) map[string]any {
	step := max(cmp.Or(p.Step, defaultStep), leastStep)
	if p.Type == resource.TypeInt {
		step = max(math.Round(p.Step), 1)
	}
	return map[string]any{"min": minimumOf(p.Minimum), "max": maximumOf(p.Maximum), "step": step, "mode": "box"}
}

// addSensor shows what is only read here.
func (b *entityBuilder) addSensor(p resource.Property) {
	config := map[string]any{"state_topic": b.reported(p)}
	switch {
	case isNumber(p) && len(p.Enum) == 0:
		class := setUnit(config, p)
		if state := stateClassOf(p, class); state != "" {
			config["state_class"] = state
		}
		if p.Step > 0 && p.Step <= 1 {
			config["suggested_display_precision"] = countDecimals(p.Step)
		}
	case len(p.Enum) > 0:
		config["device_class"], config["options"] = "enum", p.Enum
	default:
		setClass(config, p.Quantity, textClasses)
		config["value_template"] = shortenedText
		if p.Type == resource.TypeObject {
			config["json_attributes_topic"], config["json_attributes_template"] = b.reported(p), orNoMembers
		}
	}
	if p.Quantity == "battery" || p.Quantity == "signal_strength" {
		config["entity_category"] = "diagnostic"
	}
	b.add("sensor", escapeID(p.Name), titleOf(p.Title, p.Name), config, b.isKnown(p))
}

// countDecimals is how many a step has.
func countDecimals(step float64) int {
	_, after, _ := strings.Cut(strconv.FormatFloat(step, 'f', -1, 64), ".")
	return len(after)
}

// addCover makes a cover of a position, or of words for open and closed; false: the property is neither.
func (b *entityBuilder) addCover(p resource.Property) bool {
	config := map[string]any{"device_class": p.Quantity}
	name := titleOf(p.Title, p.Name)
	closed, open, moved := positions(p)
	switch {
	case moved:
		config["position_topic"], config["set_position_topic"] = b.reported(p), b.desired(p)
		config["position_closed"], config["position_open"] = closed, open
		name = ""
		config["command_topic"], config["payload_stop"] = b.desired(p), any(nil)
		config["payload_open"], config["payload_close"] = strconv.Itoa(open), strconv.Itoa(closed)
		if b.commands["open"] && b.commands["close"] {
			config["command_topic"], config["payload_open"], config["payload_close"] = b.v.ownTopic(b.d)+"call", "open", "close"
			b.used["commands/open"], b.used["commands/close"] = true, true
			if b.commands["stop"] {
				config["payload_stop"], b.used["commands/stop"] = "stop", true
			}
		}
	case slices.Contains(p.Enum, "open") && slices.Contains(p.Enum, "closed"):
		config["state_topic"], config["command_topic"] = b.reported(p), b.desired(p)
		config["state_open"], config["state_closed"], config["payload_open"], config["payload_close"] = "open", "closed", "open", "closed"
		config["payload_stop"] = any(nil)
		if slices.Contains(p.Enum, "stop") {
			config["payload_stop"], config["state_stopped"] = "stop", "stop"
		}
	default:
		return false
	}
	b.add("cover", escapeID(p.Name), name, config, b.isKnown(p)) // no message says that a cover's state is unknown
	return true
}

func (b *entityBuilder) addAlarm(p resource.Property, a resource.PropertyAlarm) {
	b.add("binary_sensor", "alarm-"+escapeID(p.Name)+"___"+escapeID(a.Name), titleOf(a.Title, a.Name), map[string]any{
		"state_topic": b.v.ownTopic(b.d) + "alarms/" + p.Name + "/" + a.Name, "payload_on": payloadOn, "payload_off": payloadOff,
		"device_class": "problem", "entity_category": "diagnostic",
	})
}

func (b *entityBuilder) addEvent(e resource.ModelEvent) {
	config := map[string]any{"state_topic": b.v.topic(b.d) + "events/" + e.Name, "event_types": e.Enum, "value_template": oneOfTypes}
	if len(e.Enum) == 0 {
		config["event_types"] = []string{e.Name}
		config["value_template"] = "{{ {'event_type': '" + e.Name + "', 'value': value} | tojson }}"
	}
	b.add("event", "event-"+escapeID(e.Name), titleOf(e.Title, e.Name), config)
}

// addCommand makes a button of a command, or what its input is chosen with.
func (b *entityBuilder) addCommand(c resource.ModelCommand) {
	id, name := "command-"+escapeID(c.Name), titleOf(c.Title, c.Name)
	config := map[string]any{"command_topic": b.v.topic(b.d) + "commands/" + c.Name}
	p := c.Property()
	switch {
	case c.Input == nil:
		config["payload_press"] = ""
		b.add("button", id, name, config)
	case len(p.Enum) > 0:
		config["options"] = p.Enum
		b.add("select", id, name, config)
	case isNumber(p) && minimumOf(p.Minimum) < maximumOf(p.Maximum):
		for key, value := range numberRange(p) {
			config[key] = value
		}
		b.add("number", id, name, config)
	case cmp.Or(p.Type, resource.TypeString) == resource.TypeString:
		config["max"] = maxState
		b.add("text", id, name, config)
	}
}
