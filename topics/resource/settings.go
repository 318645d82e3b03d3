package resource

import (
	"encoding/json"
	"fmt"
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
	Help     string   `json:"help"`
}

// SettingsFor are the places of settings, in the order in which people read them.
func (s ProtocolSettings) SettingsFor(place string) []ProtocolSetting {
	return map[string][]ProtocolSetting{"device": s.Device, "property": s.Property, "event": s.Event, "command": s.Command}[place]
}

// SettingPlaces are the places of settings.
var SettingPlaces = []string{"device", "property", "event", "command"}

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
