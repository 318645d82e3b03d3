// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// zigbee2MQTT is the list that zigbee2mqtt retains at {topic}/bridge/devices.
type zigbee2MQTT struct{ announcementTable }

func (z *zigbee2MQTT) filters() []string { return []string{z.topic + "/bridge/devices"} }

// exposedFeature is something that a zigbee device has: a value, or several of a kind such as light.
type exposedFeature struct {
	Type     string           `json:"type"`
	Property string           `json:"property"`
	Features []exposedFeature `json:"features"`
}

// names are the types and properties in it.
func (e exposedFeature) names(to map[string]bool) {
	if len(e.Features) > 0 {
		to[e.Type] = true
	}
	if e.Property != "" {
		to[e.Property] = true
	}
	for _, f := range e.Features {
		if f.Property != "" {
			to[f.Property] = true
		}
	}
}

func (z *zigbee2MQTT) message(topic string, payload []byte) (bool, error) {
	var list []struct {
		Address     string `json:"ieee_address"`
		Name        string `json:"friendly_name"`
		Type        string `json:"type"`
		Power       string `json:"power_source"`
		Version     string `json:"software_build_id"`
		Disabled    bool   `json:"disabled"`
		Interview   *bool  `json:"interview_completed"` // to version 1
		Interviewed string `json:"interview_state"`     // since version 2
		// Definition is null for a device that zigbee2mqtt does not know.
		Definition *struct {
			Model       string           `json:"model"`
			Vendor      string           `json:"vendor"`
			Description string           `json:"description"`
			Exposes     []exposedFeature `json:"exposes"`
		} `json:"definition"`
	}
	if len(payload) > 0 {
		if err := json.Unmarshal(payload, &list); err != nil {
			return false, err
		}
	}
	var devices []device
	for _, d := range list {
		interviewed := d.Interviewed == "SUCCESSFUL" || d.Interviewed == "" && (d.Interview == nil || *d.Interview)
		if d.Type == "Coordinator" || d.Disabled || !interviewed || d.Name == "" || strings.ContainsAny(d.Name, "+#\x00") {
			continue
		}
		topic := z.topic + "/" + d.Name
		found := device{id: d.Address, properties: map[string]string{
			"MQTT_ID": d.Address, "MQTT_NAME": d.Name, "MQTT_TYPE": d.Type, "MQTT_POWER_SOURCE": d.Power, "MQTT_VERSION": d.Version,
			"MQTT_STATE_TOPIC": topic, "MQTT_COMMAND_TOPIC": topic + "/set", "MQTT_GET_TOPIC": topic + "/get",
		}}
		p := found.properties
		found.available("all", availabilitySource{z.topic + "/bridge/state", "state", "online"}, availabilitySource{topic + "/availability", "state", "online"})
		if def := d.Definition; def != nil {
			p["MQTT_MODEL"], p["MQTT_MANUFACTURER"], p["MQTT_DESCRIPTION"] = def.Model, def.Vendor, def.Description
			names := map[string]bool{}
			for _, e := range def.Exposes {
				e.names(names)
			}
			p["MQTT_EXPOSES"] = strings.Join(slices.Sorted(maps.Keys(names)), ",")
		}
		devices = append(devices, found)
	}
	return true, z.announce(topic, devices...)
}

// tasmota is what Tasmota retains at {topic}/{MAC address}/config.
type tasmota struct{ announcementTable }

func (t *tasmota) filters() []string { return []string{t.topic + "/+/config"} }

func (t *tasmota) message(topic string, payload []byte) (bool, error) {
	if len(payload) == 0 {
		return true, t.set(topic)
	}
	var c struct {
		IP       string   `json:"ip"`
		Name     string   `json:"dn"`
		Host     string   `json:"hn"`
		MAC      string   `json:"mac"`
		Module   string   `json:"md"`
		Online   string   `json:"onln"`
		State    []string `json:"state"`
		Version  string   `json:"sw"`
		Topic    string   `json:"t"`
		Full     string   `json:"ft"`
		Prefixes []string `json:"tp"` // of commands, states and telemetry
		Relays   []int    `json:"rl"`
	}
	if err := json.Unmarshal(payload, &c); err != nil {
		return false, err
	}
	if c.MAC == "" || c.Topic == "" || len(c.Prefixes) != 3 {
		return false, errors.New("mac, t, or the three of tp are missing")
	}
	full := func(prefix int) string {
		return strings.TrimSuffix(strings.NewReplacer("%prefix%", c.Prefixes[prefix], "%topic%", c.Topic).Replace(cmp.Or(c.Full, "%prefix%/%topic%/")), "/")
	}
	d := device{id: c.MAC, properties: map[string]string{
		"MQTT_ID": c.MAC, "MQTT_NAME": c.Name, "MQTT_HOST": c.Host, "MQTT_IP": c.IP, "MQTT_MODEL": c.Module, "MQTT_VERSION": c.Version, "MQTT_MANUFACTURER": "Tasmota",
		"MQTT_TOPIC": c.Topic, "MQTT_COMMAND_TOPIC": full(0), "MQTT_STATE_TOPIC": full(1), "MQTT_TELEMETRY_TOPIC": full(2),
		"MQTT_RELAYS": strconv.Itoa(len(slices.DeleteFunc(c.Relays, func(kind int) bool { return kind == 0 }))),
	}}
	d.available("all", availabilitySource{full(2) + "/LWT", "", cmp.Or(c.Online, "Online")})
	if len(c.State) > 1 {
		d.properties["MQTT_PAYLOAD_OFF"], d.properties["MQTT_PAYLOAD_ON"] = c.State[0], c.State[1]
		d.properties["MQTT_STATE_OFF"], d.properties["MQTT_STATE_ON"] = c.State[0], c.State[1]
	}
	return true, t.announce(topic, d)
}
