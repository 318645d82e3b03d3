package mqtt

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
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

func (h *homeAssistant) message(topic string, payload []byte) error {
	component, object, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(topic, h.topic+"/"), "/config"), "/")
	var entities []device
	if len(payload) > 0 {
		var config configFields
		if err := json.Unmarshal(payload, &config); err != nil {
			return err
		}
		if config == nil {
			return errors.New("null is no discovery payload")
		}
		var err error
		if entities, err = config.full().entities(component, object); err != nil {
			return err
		}
	}
	return h.set(topic, entities...)
}

// entities are those of a payload, in the order of their names in it.
func (f configFields) entities(component, object string) (list []device, err error) {
	if component != "device" {
		return []device{{cmp.Or(f.text("unique_id"), component+"/"+object), f.properties(component)}}, nil
	}
	parts, ok := f["components"].(map[string]any)
	if !ok {
		return nil, errors.New("components is missing, or no object")
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		members, ok := parts[name].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("components.%.80s is no object", name)
		}
		if base, ok := f["~"]; ok && members["~"] == nil {
			members["~"] = base
		}
		entity := maps.Clone(f) // what is common to all
		delete(entity, "components")
		maps.Copy(entity, configFields(members).full())
		kind := entity.text("platform")
		if kind == "" || len(members) == 1 { // one that was removed has its platform only
			continue
		}
		list = append(list, device{cmp.Or(entity.text("unique_id"), object+"/"+name), entity.properties(kind)})
	}
	return list, nil
}

// abbreviations are those of Home Assistant that are of use to a mapper.
var abbreviations = map[string]string{
	"act_t": "action_topic", "avty": "availability", "avty_mode": "availability_mode", "avty_t": "availability_topic", "avty_tpl": "availability_template",
	"bri_cmd_t": "brightness_command_topic", "bri_scl": "brightness_scale", "bri_stat_t": "brightness_state_topic", "bri_val_tpl": "brightness_value_template",
	"clr_temp_cmd_t": "color_temp_command_topic", "clr_temp_stat_t": "color_temp_state_topic", "cmd_t": "command_topic", "cmd_tpl": "command_template",
	"cmps": "components", "cns": "connections", "cu": "configuration_url", "curr_temp_t": "current_temperature_topic", "curr_temp_tpl": "current_temperature_template",
	"dev": "device", "dev_cla": "device_class", "en": "enabled_by_default", "ent_cat": "entity_category", "ent_pic": "entity_picture",
	"exp_aft": "expire_after", "frc_upd": "force_update", "hw": "hw_version", "ic": "icon", "ids": "identifiers", "json_attr_t": "json_attributes_topic",
	"mdl": "model", "mdl_id": "model_id", "mf": "manufacturer", "mode_cmd_t": "mode_command_topic",
	"mode_stat_t": "mode_state_topic", "obj_id": "object_id", "o": "origin", "ops": "options", "opt": "optimistic", "p": "platform",
	"pl_avail": "payload_available", "pl_cls": "payload_close", "pl_not_avail": "payload_not_available", "pl_off": "payload_off", "pl_on": "payload_on",
	"pl_open": "payload_open", "pl_prs": "payload_press", "pl_stop": "payload_stop", "pos_t": "position_topic", "ret": "retain", "sa": "suggested_area",
	"set_pos_t": "set_position_topic", "sn": "serial_number", "stat_cla": "state_class", "stat_off": "state_off", "stat_on": "state_on",
	"stat_t": "state_topic", "stat_tpl": "state_template", "stat_val_tpl": "state_value_template", "sug_dsp_prc": "suggested_display_precision",
	"sup_clrm": "supported_color_modes", "sw": "sw_version", "t": "topic", "temp_cmd_t": "temperature_command_topic", "temp_stat_t": "temperature_state_topic",
	"uniq_id": "unique_id", "unit_of_meas": "unit_of_measurement", "val_tpl": "value_template",
}

// full replaces abbreviations, and ~ in topics by what it stands for.
func (f configFields) full() configFields {
	base, _ := f["~"].(string)
	out := configFields{}
	for key, value := range f {
		if full, ok := abbreviations[key]; ok {
			key = full
		}
		switch v := value.(type) {
		case string:
			value = expandBase(key, v, base)
		case []any:
			for i, one := range v {
				if members, ok := one.(map[string]any); ok {
					if base != "" {
						members["~"] = base
					}
					v[i] = map[string]any(configFields(members).full())
				}
			}
		case map[string]any:
			if key == "device" || key == "origin" {
				value = map[string]any(configFields(v).full())
			}
		}
		out[key] = value
	}
	return out
}

func expandBase(key, value, base string) string {
	if base == "" || !strings.HasSuffix(key, "topic") {
		return value
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
const maxMembers = 100

// properties are all members that are texts or numbers, MQTT_STATE_TOPIC for state_topic, and what a mapper can't compute from them.
func (f configFields) properties(component string) map[string]string {
	p := map[string]string{}
	for key := range f {
		if key != "~" && len(p) < maxMembers && len(key) < 100 {
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
	p["MQTT_STATE_PATH"] = templatePath(cmp.Or(f.text("value_template"), f.text("state_value_template")))
	p["MQTT_COMMAND_PAYLOAD"] = "{value}"
	if f.text("schema") == "json" {
		p["MQTT_STATE_PATH"], p["MQTT_COMMAND_PAYLOAD"] = "state", `{"state":{json}}`
	}
	f.availability(p)
	if component == "switch" || component == "light" || component == "binary_sensor" {
		p["MQTT_PAYLOAD_ON"] = cmp.Or(p["MQTT_PAYLOAD_ON"], "ON")
		p["MQTT_PAYLOAD_OFF"] = cmp.Or(p["MQTT_PAYLOAD_OFF"], "OFF")
	}
	return p
}

// availability reads either form of it. Of several topics the last counts: those before it are of what the device is connected to.
func (f configFields) availability(p map[string]string) {
	topic, template, available := f.text("availability_topic"), f.text("availability_template"), f.text("payload_available")
	if list, ok := f["availability"].([]any); ok && topic == "" && len(list) > 0 {
		if members, ok := list[len(list)-1].(map[string]any); ok {
			one := configFields(members)
			topic, template, available = one.text("topic"), one.text("value_template"), one.text("payload_available")
		}
	}
	if topic != "" {
		p["MQTT_AVAILABILITY_TOPIC"], p["MQTT_AVAILABILITY_PATH"] = topic, templatePath(template)
		p["MQTT_PAYLOAD_AVAILABLE"] = cmp.Or(available, "online")
	}
}

var simpleTemplate = regexp.MustCompile(`^\{\{-?\s*value_json((?:\.\w+|\['[^'\]]+'\]|\["[^"\]]+"\]|\[\d+\])+)\s*(?:\|\s*(?:is_defined|float|int|float\(0\)|int\(0\)|round\(\d\)|string)\s*)*-?\}\}$`)

// templatePath is the path in JSON that a template of Home Assistant's reads; empty: it does more than that.
func templatePath(template string) string {
	m := simpleTemplate.FindStringSubmatch(strings.TrimSpace(template))
	if m == nil {
		return ""
	}
	return strings.TrimPrefix(m[1], ".")
}
