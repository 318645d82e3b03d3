package mqtt

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/network"
	"github.com/edgebus/edgebus/edge/discovery/wire"
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

func (z *zigbee2MQTT) message(_ string, payload []byte) error {
	var list []struct {
		Address   string `json:"ieee_address"`
		Name      string `json:"friendly_name"`
		Type      string `json:"type"`
		Power     string `json:"power_source"`
		Version   string `json:"software_build_id"`
		Disabled  bool   `json:"disabled"`
		Interview *bool  `json:"interview_completed"`
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
			return err
		}
	}
	var devices []device
	for _, d := range list {
		if d.Type == "Coordinator" || d.Disabled || d.Interview != nil && !*d.Interview || d.Name == "" || strings.ContainsAny(d.Name, "+#\x00") {
			continue
		}
		topic := z.topic + "/" + d.Name
		p := map[string]string{
			"MQTT_ID": d.Address, "MQTT_NAME": d.Name, "MQTT_TYPE": d.Type, "MQTT_POWER_SOURCE": d.Power, "MQTT_VERSION": d.Version,
			"MQTT_STATE_TOPIC": topic, "MQTT_COMMAND_TOPIC": topic + "/set", "MQTT_GET_TOPIC": topic + "/get",
			"MQTT_AVAILABILITY_TOPIC": topic + "/availability",
		}
		if def := d.Definition; def != nil {
			p["MQTT_MODEL"], p["MQTT_MANUFACTURER"], p["MQTT_DESCRIPTION"] = def.Model, def.Vendor, def.Description
			names := map[string]bool{}
			for _, e := range def.Exposes {
				e.names(names)
			}
			p["MQTT_EXPOSES"] = strings.Join(slices.Sorted(maps.Keys(names)), ",")
		}
		devices = append(devices, device{d.Address, p})
	}
	return z.set("", devices...)
}

// tasmota is what Tasmota retains at {topic}/{MAC address}/config.
type tasmota struct{ announcementTable }

func (t *tasmota) filters() []string { return []string{t.topic + "/+/config"} }

func (t *tasmota) message(topic string, payload []byte) error {
	if len(payload) == 0 {
		return t.set(topic)
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
		return err
	}
	if c.MAC == "" || c.Topic == "" || len(c.Prefixes) != 3 {
		return errors.New("mac, t, or the three of tp are missing")
	}
	full := func(prefix int) string {
		return strings.TrimSuffix(strings.NewReplacer("%prefix%", c.Prefixes[prefix], "%topic%", c.Topic).Replace(cmp.Or(c.Full, "%prefix%/%topic%/")), "/")
	}
	p := map[string]string{
		"MQTT_ID": c.MAC, "MQTT_NAME": c.Name, "MQTT_HOST": c.Host, "MQTT_IP": c.IP, "MQTT_MODEL": c.Module, "MQTT_VERSION": c.Version, "MQTT_MANUFACTURER": "Tasmota",
		"MQTT_TOPIC": c.Topic, "MQTT_COMMAND_TOPIC": full(0), "MQTT_STATE_TOPIC": full(1), "MQTT_TELEMETRY_TOPIC": full(2),
		"MQTT_AVAILABILITY_TOPIC": full(2) + "/LWT", "MQTT_PAYLOAD_AVAILABLE": cmp.Or(c.Online, "Online"),
		"MQTT_RELAYS": strconv.Itoa(len(slices.DeleteFunc(c.Relays, func(kind int) bool { return kind == 0 }))),
	}
	if len(c.State) > 1 {
		p["MQTT_PAYLOAD_OFF"], p["MQTT_PAYLOAD_ON"] = c.State[0], c.State[1]
	}
	return t.set(topic, device{c.MAC, p})
}

// shelly is what Shelly devices publish at {prefix}/online, shellies/{id}/online in the first generation, while they are connected, mostly
// retained, and the announcements of the first generation at shellies/announce, which are not.
type shelly struct {
	announcementTable
	about map[string]map[string]string // what was announced, by id
}

func (s *shelly) filters() []string {
	return []string{"+/online", s.topic + "/+/online", s.topic + "/announce", s.topic + "/+/announce"}
}

func (s *shelly) message(topic string, payload []byte) error {
	if strings.HasSuffix(topic, "/announce") {
		return s.announce(payload)
	}
	prefix := strings.TrimSuffix(topic, "/online")
	id, first := strings.CutPrefix(prefix, s.topic+"/")
	switch string(payload) {
	case "true":
	case "false", "":
		return s.set(prefix)
	default:
		if !first && !strings.HasPrefix(id, "shelly") {
			return nil // another program's
		}
		return fmt.Errorf("%.20q is neither true nor false", payload)
	}
	if !first && !strings.HasPrefix(id, "shelly") {
		return nil
	}
	p := map[string]string{
		"MQTT_ID": id, "MQTT_TOPIC": prefix, "MQTT_MANUFACTURER": "Shelly", "MQTT_GENERATION": "2",
		"MQTT_AVAILABILITY_TOPIC": topic, "MQTT_PAYLOAD_AVAILABLE": "true",
	}
	if first {
		p["MQTT_GENERATION"] = "1"
	} else {
		p["MQTT_STATE_TOPIC"], p["MQTT_COMMAND_TOPIC"] = prefix+"/status", prefix+"/command"
	}
	if model, _, ok := strings.Cut(id, "-"); ok {
		p["MQTT_MODEL"] = model
	}
	maps.Copy(p, s.about[id])
	return s.set(prefix, device{id, p})
}

// know implements once.
func (s *shelly) know(d handler.Device) error {
	prefix := d.Properties["MQTT_TOPIC"]
	if d.Properties["MQTT_GENERATION"] == "1" && prefix != s.topic+"/"+d.ID {
		return nil // of another topic
	}
	return s.remember(prefix, d)
}

func (s *shelly) announce(payload []byte) error {
	var a struct {
		ID      string `json:"id"`
		Model   string `json:"model"`
		MAC     string `json:"mac"`
		IP      string `json:"ip"`
		Version string `json:"fw_ver"`
	}
	if err := json.Unmarshal(payload, &a); err != nil {
		return err
	}
	if a.ID == "" || len(payload) > maxText || len(s.about) >= 1000 && s.about[a.ID] == nil {
		return errors.New("no id, or too much")
	}
	s.about[a.ID] = map[string]string{"MQTT_MODEL": a.Model, "MQTT_MAC": a.MAC, "MQTT_IP": a.IP, "MQTT_VERSION": a.Version}
	prefix := s.topic + "/" + a.ID
	for _, known := range s.announcements[prefix].devices {
		p := maps.Clone(known.properties)
		maps.Copy(p, s.about[a.ID])
		return s.set(prefix, device{a.ID, p})
	}
	return nil
}

// sparkplug are births and deaths of Sparkplug B: {topic}/{group}/NBIRTH/{edge node}, and DBIRTH with a device below it. Births are
// not retained: a device is found when its birth is published while the handler is connected, and is known from then on until its death is.
type sparkplug struct{ announcementTable }

func (s *sparkplug) filters() []string {
	var list []string
	for _, kind := range []string{"NBIRTH/+", "NDEATH/+", "DBIRTH/+/+", "DDEATH/+/+"} {
		list = append(list, s.topic+"/+/"+kind)
	}
	return list
}

func (s *sparkplug) message(topic string, payload []byte) error {
	parts := strings.Split(strings.TrimPrefix(topic, s.topic+"/"), "/")
	if len(parts) < 3 {
		return errors.New("the topic is too short")
	}
	group, kind, node := parts[0], parts[1], parts[2]
	id := strings.Join(append([]string{group}, parts[2:]...), "/")
	switch kind {
	case "NDEATH": // its devices with it
		for from := range s.announcements {
			if from == id || strings.HasPrefix(from, id+"/") {
				_ = s.set(from) // less always fits
			}
		}
		return nil
	case "DDEATH":
		return s.set(id)
	case "NBIRTH", "DBIRTH":
	default:
		return fmt.Errorf("%.20q is no birth", kind)
	}
	metrics, err := parseBirth(payload)
	if err != nil {
		return err
	}
	p := map[string]string{
		"MQTT_ID": id, "MQTT_GROUP": group, "MQTT_EDGE_NODE": node,
		"MQTT_STATE_TOPIC": s.topic + "/" + group + "/" + kind[:1] + "DATA/" + strings.Join(parts[2:], "/"), "MQTT_COMMAND_TOPIC": s.topic + "/" + group + "/" + kind[:1] + "CMD/" + strings.Join(parts[2:], "/"),
	}
	if len(parts) > 3 {
		p["MQTT_DEVICE"] = parts[3]
	}
	var names []string
	for _, m := range metrics {
		names = append(names, m.name)
		if key, ok := strings.CutPrefix(m.name, "Properties/"); ok && len(p) < maxMembers && len(key) < 100 {
			p["MQTT_"+network.PropertyName(key)] = m.value
		}
	}
	slices.Sort(names)
	p["MQTT_METRICS"] = strings.Join(slices.Compact(names), ",")
	return s.set(id, device{id, p})
}

// know implements once.
func (s *sparkplug) know(d handler.Device) error {
	if !strings.HasPrefix(d.Properties["MQTT_STATE_TOPIC"], s.topic+"/") {
		return nil // of another topic
	}
	return s.remember(d.ID, d)
}

// metric is a value in a birth.
type metric struct{ name, value string }

const maxMetrics = 10000

// parseBirth reads the metrics of a payload of Sparkplug B (org.eclipse.tahu.protobuf.Payload): the field 2 has them.
func parseBirth(payload []byte) (metrics []metric, err error) {
	err = wire.EachField(payload, func(number protowire.Number, _ uint64, value []byte) error {
		if number != 2 || value == nil {
			return nil
		}
		if len(metrics) == maxMetrics {
			return fmt.Errorf("more than %d metrics", maxMetrics)
		}
		var m metric
		err := wire.EachField(value, func(number protowire.Number, n uint64, text []byte) error {
			switch number {
			case 1:
				m.name = string(text)
			case 10, 11:
				m.value = strconv.FormatUint(n, 10)
			case 12:
				m.value = strconv.FormatFloat(float64(math.Float32frombits(uint32(n))), 'g', -1, 32)
			case 13:
				m.value = strconv.FormatFloat(math.Float64frombits(n), 'g', -1, 64)
			case 14:
				m.value = strconv.FormatBool(n != 0)
			case 15:
				m.value = string(text)
			}
			return nil
		})
		metrics = append(metrics, m)
		return err
	})
	return metrics, err
}
