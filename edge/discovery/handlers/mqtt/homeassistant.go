// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/edge/discovery/handlers/network"
)

// homeAssistant is Home Assistant's MQTT discovery: {topic}/{component}/[{node}/]{object}/config has one entity each, and
// {topic}/device/[{node}/]{object}/config several. An entity is a device here.
type homeAssistant struct{ announcementTable }

func (h *homeAssistant) filters() []string {
	return []string{h.topic + "/+/+/config", h.topic + "/+/+/+/config"}
}

// configFields are the members of a discovery payload by their full names.
type configFields map[string]any

func (h *homeAssistant) message(topic string, payload []byte) (bool, error) {
	component, object, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(topic, h.topic+"/"), "/config"), "/")
	var entities []device
	if len(payload) > 0 {
		var config configFields
		if err := json.Unmarshal(payload, &config); err != nil {
			return false, err
		}
		if config == nil {
			return false, errors.New("null is no discovery payload")
		}
		var err error
		if full := config.full(abbreviations); !full.isOfView() {
			if entities, err = full.entities(component, object); err != nil {
				return false, err
			}
		}
	}
	return true, h.announce(topic, entities...)
}

// viewOrigin begins the name of the origin in what a view of ours announces: it is of Devices that there are already.
const viewOrigin = "Edgebus "

func (f configFields) isOfView() bool {
	origin, _ := f["origin"].(map[string]any)
	return strings.HasPrefix(configFields(origin).text("name"), viewOrigin)
}

// maxCommonMembers bounds the members that the components of a payload have in common, counted for each: a device of 200 components with 50 of them has a
// tenth, and a message that is as large as one may be could have a billion.
const maxCommonMembers = 100_000

// entities are those of a payload, in the order of their names in it.
func (f configFields) entities(component, object string) (list []device, err error) {
	if component != "device" {
		return []device{f.entity(cmp.Or(f.text("unique_id"), component+"/"+object), component)}, nil
	}
	parts, ok := f["components"].(map[string]any)
	if !ok {
		return nil, errors.New("components is missing, or no object")
	}
	common := len(f)
	if list, ok := f["availability"].([]any); ok {
		common += len(list)
	}
	if len(parts)*common > maxCommonMembers {
		return nil, fmt.Errorf("%d components with %d members in common are more than are read (%d together)", len(parts), common, maxCommonMembers)
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		members, ok := parts[name].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("components.%.80s is no object", name)
		}
		if len(members) <= 1 { // one that was removed has its platform only
			continue
		}
		if base, ok := f["~"]; ok && members["~"] == nil {
			members["~"] = base
		}
		own := configFields(members).full(abbreviations)
		entity := maps.Clone(f) // what is common to all
		delete(entity, "components")
		if own["availability"] != nil || own["availability_topic"] != nil { // its own, in whichever form
			for _, key := range []string{"availability", "availability_topic", "availability_template", "availability_mode"} {
				delete(entity, key)
			}
		}
		maps.Copy(entity, own)
		if kind := entity.text("platform"); kind != "" {
			list = append(list, entity.entity(cmp.Or(entity.text("unique_id"), object+"/"+name), kind))
		}
	}
	return list, nil
}

// full replaces abbreviations, and ~ in topics by what it stands for.
func (f configFields) full(names map[string]string) configFields {
	base, _ := f["~"].(string)
	out := configFields{}
	for key, value := range f {
		key = cmp.Or(names[key], key)
		switch v := value.(type) {
		case string:
			value = expandBase(key, v, base)
		case []any:
			for i, one := range v {
				if members, ok := one.(map[string]any); ok {
					v[i] = expandMembers(members, base, names)
				}
			}
		case map[string]any:
			switch key {
			case "device":
				value = expandMembers(v, "", deviceAbbreviations)
			case "origin":
				value = expandMembers(v, "", originAbbreviations)
			case "availability":
				value = expandMembers(v, base, names)
			}
		}
		out[key] = value
	}
	return out
}

func expandMembers(members map[string]any, base string, names map[string]string) map[string]any {
	if base != "" {
		members["~"] = base
	}
	return configFields(members).full(names)
}

// expandBase puts in what ~ stands for. With one that is longer than any property there is no topic: a message could have it a thousand times.
func expandBase(key, value, base string) string {
	if base == "" || !strings.HasSuffix(key, "topic") {
		return value
	}
	if len(base) > maxText && (strings.HasPrefix(value, "~") || strings.HasSuffix(value, "~")) {
		return ""
	}
	if rest, ok := strings.CutPrefix(value, "~"); ok {
		return base + rest
	}
	if rest, ok := strings.CutSuffix(value, "~"); ok {
		return rest + base
	}
	return value
}

// text is a member as text; empty if there is none, or it is an object or a list of them.
func (f configFields) text(key string) string { return memberText(f[key]) }

func memberText(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case bool, float64:
		out, _ := json.Marshal(v) // can be written
		return string(out)
	case []any:
		var parts []string
		for _, one := range v {
			if part := memberText(one); part != "" {
				parts = append(parts, part)
			}
		}
		return strings.Join(parts, ",")
	}
	return ""
}

// maxMembers bounds the properties of an entity.
const maxMembers = 150

// defaultWords are what a payload leaves out, by component: what is published to the entity, and what it says.
var defaultWords = map[string][]string{
	"binary_sensor": {"MQTT_PAYLOAD_ON=ON", "MQTT_PAYLOAD_OFF=OFF"},
	"button":        {"MQTT_PAYLOAD_PRESS=PRESS"},
	"cover":         {"MQTT_PAYLOAD_OPEN=OPEN", "MQTT_PAYLOAD_CLOSE=CLOSE", "MQTT_PAYLOAD_STOP=STOP", "MQTT_STATE_OPEN=open", "MQTT_STATE_CLOSED=closed", "MQTT_STATE_OPENING=opening", "MQTT_STATE_CLOSING=closing", "MQTT_STATE_STOPPED=stopped"},
	"fan":           {"MQTT_PAYLOAD_ON=ON", "MQTT_PAYLOAD_OFF=OFF"},
	"light":         {"MQTT_PAYLOAD_ON=ON", "MQTT_PAYLOAD_OFF=OFF"},
	"lock":          {"MQTT_PAYLOAD_LOCK=LOCK", "MQTT_PAYLOAD_UNLOCK=UNLOCK", "MQTT_STATE_LOCKED=LOCKED", "MQTT_STATE_UNLOCKED=UNLOCKED"},
	"siren":         {"MQTT_PAYLOAD_ON=ON", "MQTT_PAYLOAD_OFF=OFF"},
	"switch":        {"MQTT_PAYLOAD_ON=ON", "MQTT_PAYLOAD_OFF=OFF"},
	"valve":         {"MQTT_PAYLOAD_OPEN=OPEN", "MQTT_PAYLOAD_CLOSE=CLOSE", "MQTT_STATE_OPEN=open", "MQTT_STATE_CLOSED=closed"},
}

// entity is the device that a payload describes. Its properties are all members that are texts or numbers, MQTT_STATE_TOPIC for state_topic,
// and what a mapper can't compute from them.
func (f configFields) entity(id, component string) device {
	d := device{id: id, properties: map[string]string{}, withheld: map[string]string{}}
	p := d.properties
	for _, key := range slices.Sorted(maps.Keys(f)) {
		switch {
		case key == "~" || key == "availability" || len(key) >= 100 || len(p) >= maxMembers:
		case isUnknownAbbreviation(key):
			d.leaveOut(key, "an unknown abbreviation")
		default:
			p["MQTT_"+network.PropertyName(key)] = f.text(key)
		}
	}
	p["MQTT_COMPONENT"] = component
	if device, ok := f["device"].(map[string]any); ok {
		for _, key := range []string{"name", "model", "manufacturer", "identifiers", "sw_version", "serial_number", "suggested_area"} {
			p["MQTT_DEVICE_"+strings.ToUpper(key)] = memberText(device[key])
		}
	}
	p["MQTT_NAME"] = cmp.Or(p["MQTT_NAME"], p["MQTT_DEVICE_NAME"])
	p["MQTT_MODEL"], p["MQTT_MANUFACTURER"] = cmp.Or(p["MQTT_MODEL"], p["MQTT_DEVICE_MODEL"]), cmp.Or(p["MQTT_MANUFACTURER"], p["MQTT_DEVICE_MANUFACTURER"])
	for _, word := range defaultWords[component] {
		name, usual, _ := strings.Cut(word, "=")
		p[name] = cmp.Or(p[name], usual)
	}
	if p["MQTT_PAYLOAD_ON"] != "" {
		p["MQTT_STATE_ON"], p["MQTT_STATE_OFF"] = cmp.Or(p["MQTT_STATE_ON"], p["MQTT_PAYLOAD_ON"]), cmp.Or(p["MQTT_STATE_OFF"], p["MQTT_PAYLOAD_OFF"])
	}
	if component == "device_automation" { // a trigger says what happens on a topic of that name
		p["MQTT_STATE_TOPIC"] = p["MQTT_TOPIC"]
	}
	f.state(&d)
	f.command(&d)
	f.availability(&d)
	return d
}

// state says how the value is read from the state topic. Without that there is no state topic: what it says would be taken for the value.
func (f configFields) state(d *device) {
	if f.text("schema") == "json" {
		d.properties["MQTT_STATE_PATH"] = "state"
		return
	}
	name := "value_template"
	for _, other := range []string{"state_value_template", "state_template"} {
		if f.text(name) == "" && f.text(other) != "" {
			name = other
		}
	}
	t, ok := parseTemplate(f.text(name))
	d.properties["MQTT_STATE_PATH"] = t.path
	for _, property := range slices.Sorted(maps.Keys(d.properties)) {
		reads := strings.HasPrefix(property, "MQTT_STATE_") && !slices.Contains([]string{"MQTT_STATE_TOPIC", "MQTT_STATE_PATH", "MQTT_STATE_CLASS"}, property) && !strings.HasSuffix(property, "_TEMPLATE")
		reads = reads || d.properties["MQTT_COMPONENT"] == "binary_sensor" && (property == "MQTT_PAYLOAD_ON" || property == "MQTT_PAYLOAD_OFF")
		if !ok || !reads {
			continue
		}
		word, one := t.says(d.properties[property])
		if !one && (strings.HasSuffix(property, "_ON") || strings.HasSuffix(property, "_OFF")) {
			ok = false
		}
		d.properties[property] = word
	}
	if t.words != nil && d.properties["MQTT_STATE_ON"] == "" { // the words are not those of a switch: nobody translates them
		ok = false
	}
	if !ok {
		d.leaveOut(name, f.text(name))
		d.withhold("MQTT_STATE_TOPIC", "MQTT_STATE_PATH")
	}
}

// command says what is published to the command topic. Without that there is none: the entity would be told something else.
func (f configFields) command(d *device) {
	if f.text("schema") == "json" {
		d.properties["MQTT_COMMAND_PAYLOAD"] = `{"state":{json}}`
		return
	}
	for _, name := range []string{"command_template", "command_on_template", "command_off_template"} {
		text := f.text(name)
		payload, ok := commandPayload(text, d.properties["MQTT_COMPONENT"] == "button" || d.properties["MQTT_COMPONENT"] == "scene")
		if text != "" && (!ok || name != "command_template") {
			d.leaveOut(name, text)
			d.withhold("MQTT_COMMAND_TOPIC", "MQTT_COMMAND_PAYLOAD")
			return
		}
		if name == "command_template" {
			d.properties["MQTT_COMMAND_PAYLOAD"] = payload
		}
	}
}

// availabilitySource is where a device, or what it is connected to, says that it is there, as mapper-mqtt has it.
type availabilitySource struct {
	Topic     string `json:"topic"`
	Path      string `json:"path,omitempty"`
	Available string `json:"available"`
}

// availability reads all forms of it: a topic, an object, and a list of them with a mode. One that isn't understood is left out, and where any
// of several is enough, or the latest counts, the others with it: they could say that the device isn't there although it is.
func (f configFields) availability(d *device) {
	type form struct{ topic, template, available string }
	var forms []form
	switch v := f["availability"].(type) {
	case map[string]any:
		forms = append(forms, form{memberText(v["topic"]), memberText(v["value_template"]), memberText(v["payload_available"])})
	case []any:
		for _, one := range v {
			members, _ := one.(map[string]any)
			forms = append(forms, form{memberText(members["topic"]), memberText(members["value_template"]), memberText(members["payload_available"])})
		}
	}
	if topic := f.text("availability_topic"); topic != "" {
		forms = []form{{topic, f.text("availability_template"), f.text("payload_available")}}
	}
	mode := cmp.Or(f.text("availability_mode"), "latest")
	var list []availabilitySource
	for _, one := range forms {
		if one.topic == "" {
			continue
		}
		t, ok := parseTemplate(one.template)
		available, known := t.says(cmp.Or(one.available, "online"))
		if !ok || !known {
			d.leaveOut("the availability on "+one.topic, one.template)
			if mode != "all" {
				list = nil
				break
			}
			continue
		}
		list = append(list, availabilitySource{one.topic, t.path, available})
	}
	d.properties["MQTT_PAYLOAD_AVAILABLE"] = ""
	d.properties["MQTT_AVAILABILITY_TOPIC"], d.properties["MQTT_AVAILABILITY_MODE"] = "", ""
	d.available(mode, list...)
}
