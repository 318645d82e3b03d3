// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ProtocolSettings is the payload of mappers/{mapper}/settings: which settings a mapper takes, for forms and help.
type ProtocolSettings struct {
	Protocols []string `json:"protocols"` // the usual name first
	// Device are those of spec.protocol.config, and the others of the config of visitors of a property, an event and a command.
	Device   []ProtocolSetting `json:"device,omitempty"`
	Property []ProtocolSetting `json:"property,omitempty"`
	Event    []ProtocolSetting `json:"event,omitempty"`
	Command  []ProtocolSetting `json:"command,omitempty"`
	// Free says that a Device may have settings of its own names, to which visitors refer.
	Free bool `json:"free,omitempty"`
}

// ProtocolSetting is one setting of a protocol.
type ProtocolSetting struct {
	Name     string   `json:"name"`
	Type     string   `json:"type"` // string, int, number, boolean or duration
	Default  string   `json:"default,omitempty"`
	Minimum  *float64 `json:"minimum,omitempty"`
	Maximum  *float64 `json:"maximum,omitempty"`
	Enum     []string `json:"enum,omitempty"`
	Required bool     `json:"required,omitempty"`
	Address  bool     `json:"address,omitempty"` // it says where the device is: the ADDRESS of edgebus device add
	Aliases  []string `json:"aliases,omitempty"` // other names that are understood
	Help     string   `json:"help"`
}

// SettingsFor are the places of settings, in the order in which people read them.
func (s ProtocolSettings) SettingsFor(place string) []ProtocolSetting {
	return map[string][]ProtocolSetting{"device": s.Device, "property": s.Property, "event": s.Event, "command": s.Command}[place]
}

// SettingPlaces are the places of settings.
var SettingPlaces = []string{"device", "property", "event", "command"}

// names reports whether the setting is meant by a key, whose case doesn't matter.
func (s ProtocolSetting) names(key string) bool {
	return strings.EqualFold(s.Name, key) || slices.ContainsFunc(s.Aliases, func(alias string) bool { return strings.EqualFold(alias, key) })
}

// Check says what is wrong with a value; empty: nothing. What a mapper knows better it refuses itself.
func (s ProtocolSetting) Check(value string) string {
	value = strings.TrimSpace(value)
	number, isNumber := 0.0, true
	switch s.Type {
	case "int":
		n, err := strconv.ParseInt(value, 0, 64)
		number, isNumber = float64(n), err == nil
	case "number":
		f, err := strconv.ParseFloat(value, 64)
		number, isNumber = f, err == nil
	case "boolean":
		if _, err := strconv.ParseBool(strings.ToLower(value)); err != nil {
			return fmt.Sprintf("%q is neither true nor false", value)
		}
	case "duration":
		if _, err := time.ParseDuration(value); err != nil {
			return fmt.Sprintf("%q is no duration, such as 500ms or 2m", value)
		}
	}
	switch {
	case !isNumber:
		return fmt.Sprintf("%q is no %s", value, map[string]string{"int": "whole number", "number": "number"}[s.Type])
	case len(s.Enum) > 0 && !slices.ContainsFunc(s.Enum, func(word string) bool { return strings.EqualFold(word, value) }):
		return fmt.Sprintf("%q is none of %s", value, strings.Join(s.Enum, ", "))
	case s.Minimum != nil && number < *s.Minimum || s.Maximum != nil && number > *s.Maximum:
		return fmt.Sprintf("%s is not from %s to %s", value, limitText(s.Minimum), limitText(s.Maximum))
	}
	return ""
}

func limitText(limit *float64) string {
	if limit == nil {
		return "any"
	}
	return strconv.FormatFloat(*limit, 'f', -1, 64)
}

// CheckDevice says what a mapper with these settings won't take of a Device's spec.protocol.config, or of what a model has for it: each the field and the rule.
// Empty values are none, and what is left out may be the model's.
func (s ProtocolSettings) CheckDevice(at string, config map[string]Value) (wrong []string) {
	return s.check(at, s.Device, config, s.Free)
}

// CheckVisitor names the settings in the config of a visitor that a mapper with these settings hasn't. Their values are the mapper's to check: they may have
// parameters, and words beside those of the table, as KubeEdge's HoldingRegister.
func (s ProtocolSettings) CheckVisitor(at string, v Visitor) (wrong []string) {
	list := s.Property
	switch {
	case v.EventName != "":
		list = s.Event
	case v.CommandName != "":
		list = s.Command
	}
	names := maps.Clone(v.Config)
	maps.DeleteFunc(names, func(key string, _ Value) bool {
		return slices.ContainsFunc(list, func(setting ProtocolSetting) bool { return setting.names(key) })
	})
	return s.check(at, list, names, false)
}

func (s ProtocolSettings) check(at string, list []ProtocolSetting, config map[string]Value, free bool) (wrong []string) {
	if len(list) == 0 {
		return nil
	}
	var known []string
	for _, setting := range list {
		known = append(known, setting.Name)
	}
	for _, key := range slices.Sorted(maps.Keys(config)) {
		value := strings.TrimSpace(string(config[key]))
		i := slices.IndexFunc(list, func(setting ProtocolSetting) bool { return setting.names(key) })
		switch {
		case value == "" || key == settingOfAll || i < 0 && free:
		case i < 0:
			wrong = append(wrong, fmt.Sprintf("%s.%s: is no setting of %s%s; its settings are %s", at, key, s.Protocols[0], DidYouMean(key, known), strings.Join(known, ", ")))
		default:
			if why := list[i].Check(value); why != "" {
				wrong = append(wrong, fmt.Sprintf("%s.%s: %s", at, key, why))
			}
		}
	}
	return wrong
}

// settingOfAll is a setting that every mapper takes.
const settingOfAll = "offlineAfter"

const maxProtocolSettings = 256

// ParseProtocolSettings reads the payload of mappers/{mapper}/settings.
func ParseProtocolSettings(payload []byte) (s ProtocolSettings, err error) {
	if err := json.Unmarshal(payload, &s); err != nil || len(s.Protocols) == 0 {
		return s, Errorf(Invalid, "settings", "the payload must be JSON such as {\"protocols\":[\"modbus\"],\"device\":[{\"name\":\"address\",\"type\":\"string\",\"help\":\"…\"}]}")
	}
	for _, place := range SettingPlaces {
		list := s.SettingsFor(place)
		if len(list) > maxProtocolSettings {
			return s, Errorf(Invalid, "settings."+place, "has %d entries; at most %d are taken", len(list), maxProtocolSettings)
		}
		for i, setting := range list {
			if setting.Name == "" || setting.Type == "" {
				return s, Errorf(Invalid, fmt.Sprintf("settings.%s[%d]", place, i), "must have a name and a type")
			}
		}
	}
	return s, nil
}
