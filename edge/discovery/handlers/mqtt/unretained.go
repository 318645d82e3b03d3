// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/network"
	"github.com/edgebus/edgebus/topics/sparkplug"
)

// shelly is what Shelly devices publish: of the first generation {topic}/announce, {topic}/{id}/announce and {topic}/{id}/online, of later ones
// {prefix}/online and {prefix}/events/rpc. Announcements are not retained, and online mostly is. The announcements are by prefix.
type shelly struct{ announcementTable }

func (s *shelly) filters() []string {
	return []string{"+/online", "+/events/rpc", "+/+/events/rpc", s.topic + "/+/online", s.topic + "/announce", s.topic + "/+/announce"}
}

func (s *shelly) message(topic string, payload []byte) (bool, error) {
	if strings.HasSuffix(topic, "/announce") {
		return s.announce(payload)
	}
	if prefix, ok := strings.CutSuffix(topic, "/events/rpc"); ok {
		return s.notification(prefix, payload)
	}
	prefix := strings.TrimSuffix(topic, "/online")
	id, first := strings.CutPrefix(prefix, s.topic+"/")
	known := len(s.announcements[prefix].devices) > 0
	switch string(payload) {
	case "true":
	case "false", "":
		return known, s.set(prefix)
	default:
		if !first && !known {
			return false, nil // another program's
		}
		return false, fmt.Errorf("%.20q is neither true nor false", payload)
	}
	if !first && !known && !strings.HasPrefix(id, "shelly") {
		return false, nil
	}
	if known {
		id = s.announcements[prefix].devices[0].id
	}
	return s.add(prefix, id, nil)
}

// add finds a device, or adds what is said of it.
func (s *shelly) add(prefix, id string, said map[string]string) (bool, error) {
	d := device{id: id, properties: map[string]string{"MQTT_ID": id, "MQTT_TOPIC": prefix, "MQTT_MANUFACTURER": "Shelly"}}
	model, _, ok := strings.Cut(id, "-")
	if ok {
		d.properties["MQTT_MODEL"] = model
	}
	if prefix == s.topic+"/"+id {
		d.properties["MQTT_GENERATION"] = "1"
	} else {
		d.properties["MQTT_GENERATION"] = "2"
		if m := laterGeneration.FindStringSubmatch(model); m != nil {
			d.properties["MQTT_GENERATION"] = m[1]
		}
		d.properties["MQTT_STATE_TOPIC"], d.properties["MQTT_COMMAND_TOPIC"] = prefix+"/status", prefix+"/command"
		d.properties["MQTT_RPC_TOPIC"], d.properties["MQTT_EVENTS_TOPIC"] = prefix+"/rpc", prefix+"/events/rpc"
	}
	d.available("all", availabilitySource{prefix + "/online", "", "true"})
	changed := s.unheard[prefix]
	for _, before := range s.announcements[prefix].devices {
		for name, value := range before.properties {
			if d.properties[name] == "" || name == "MQTT_MODEL" {
				d.properties[name] = value
			}
		}
		changed = changed || before.id != id
	}
	if len(s.announcements[prefix].devices) == 0 {
		changed = true
	}
	for name, value := range said {
		changed = changed || d.properties[name] != value
		d.properties[name] = value
	}
	if !changed {
		return false, nil
	}
	return true, s.set(prefix, d)
}

// laterGeneration is how names of models end: shelly1pmminig3.
var laterGeneration = regexp.MustCompile(`g([3-9])$`)

// know implements format.
func (s *shelly) know(d handler.Device) error {
	prefix := d.Properties["MQTT_TOPIC"]
	if d.Properties["MQTT_GENERATION"] == "1" && prefix != s.topic+"/"+d.ID {
		return nil // of another topic
	}
	return s.remember(prefix, d)
}

// forget implements format: what was announced once is not announced again.
func (s *shelly) forget() bool { return false }

func (s *shelly) announce(payload []byte) (bool, error) {
	var a struct {
		ID      string `json:"id"`
		Model   string `json:"model"`
		MAC     string `json:"mac"`
		IP      string `json:"ip"`
		Version string `json:"fw_ver"`
	}
	if err := json.Unmarshal(payload, &a); err != nil {
		return false, err
	}
	if a.ID == "" || strings.ContainsAny(a.ID, "/+#\x00") {
		return false, errors.New("id is missing, or can't be part of a topic")
	}
	return s.add(s.topic+"/"+a.ID, a.ID, map[string]string{"MQTT_MODEL": a.Model, "MQTT_MAC": a.MAC, "MQTT_IP": a.IP, "MQTT_VERSION": a.Version})
}

// notification finds a device by what it says while it is used: one whose prefix is a name of somebody's choice has nothing else by which it
// can be told from other programs.
func (s *shelly) notification(prefix string, payload []byte) (bool, error) {
	var n struct {
		Source string                     `json:"src"`
		Method string                     `json:"method"`
		Params map[string]json.RawMessage `json:"params"`
	}
	if err := json.Unmarshal(payload, &n); err != nil || !strings.HasPrefix(n.Source, "shelly") || !strings.HasPrefix(n.Method, "Notify") {
		return false, nil // another program's
	}
	components := map[string]bool{}
	for _, before := range s.announcements[prefix].devices {
		for _, name := range strings.Split(before.properties["MQTT_COMPONENTS"], ",") {
			components[name] = name != ""
		}
	}
	for name := range n.Params {
		if strings.Contains(name, ":") && len(name) <= 32 && len(components) < 32 {
			components[name] = true
		}
	}
	delete(components, "")
	return s.add(prefix, n.Source, map[string]string{"MQTT_COMPONENTS": strings.Join(slices.Sorted(maps.Keys(components)), ",")})
}

// sparkplugB are births and deaths of Sparkplug B: {topic}/{group}/NBIRTH/{edge node}, and DBIRTH with a device below it. Births are
// not retained: a device is found when its birth is published while the handler is connected, and is known from then on until its death is. One
// whose birth nobody has heard is found by its data, by its names only. The announcements are by group/node[/device].
type sparkplugB struct {
	announcementTable
	sessions  map[string]string       // the number of the present session of an edge node, as its birth says it
	dead      map[string]announcement // what a birth has said of those whose death came after it
	deadBytes int
}

func newSparkplug(topic string) *sparkplugB {
	return &sparkplugB{announcementTable: newTable(topic, "spBv1.0"), sessions: map[string]string{}, dead: map[string]announcement{}}
}

func (s *sparkplugB) filters() []string {
	var list []string
	for _, kind := range []string{"NBIRTH/+", "NDEATH/+", "DBIRTH/+/+", "DDEATH/+/+", "NDATA/+", "DDATA/+/+"} {
		list = append(list, s.topic+"/+/"+kind)
	}
	return list
}

func (s *sparkplugB) message(topic string, payload []byte) (bool, error) {
	parts := strings.Split(strings.TrimPrefix(topic, s.topic+"/"), "/")
	if len(parts) < 3 {
		return false, errors.New("the topic is too short")
	}
	group, kind, node := parts[0], parts[1], parts[2]
	id := strings.Join(append([]string{group}, parts[2:]...), "/")
	if strings.HasSuffix(kind, "DATA") && len(s.announcements[id].devices) > 0 {
		delete(s.unheard, id)
		return false, nil // known: a plant sends thousands of them
	}
	p, err := sparkplug.Parse(payload)
	if err != nil {
		return false, err
	}
	switch kind {
	case "NDEATH": // its devices with it
		if session := sessionOf(p); session != "" && s.sessions[id] != "" && session != s.sessions[id] {
			return false, nil // of a connection before the last birth
		}
		for from := range s.announcements {
			if from == id || strings.HasPrefix(from, id+"/") {
				s.die(from)
			}
		}
		return true, nil
	case "DDEATH":
		s.die(id)
		return true, nil
	case "NDATA", "DDATA":
		if before, ok := s.dead[id]; ok {
			s.bury(id)
			return true, s.set(id, before.devices...)
		}
	case "NBIRTH":
		if len(s.sessions) < network.MaxDevices || s.sessions[id] != "" {
			s.sessions[id] = sessionOf(p)
		}
	case "DBIRTH":
	default:
		return false, fmt.Errorf("%.20q is no birth", kind)
	}
	s.bury(id)
	below := strings.Join(parts[2:], "/")
	properties := map[string]string{
		"MQTT_ID": id, "MQTT_GROUP": group, "MQTT_EDGE_NODE": node,
		"MQTT_STATE_TOPIC": s.topic + "/" + group + "/" + kind[:1] + "DATA/" + below, "MQTT_COMMAND_TOPIC": s.topic + "/" + group + "/" + kind[:1] + "CMD/" + below,
	}
	if len(parts) > 3 {
		properties["MQTT_DEVICE"] = parts[3]
	}
	var names []string
	for _, m := range p.Metrics {
		if m.Name == "" {
			continue // by its alias: in data
		}
		names = append(names, m.Name)
		if key, ok := strings.CutPrefix(m.Name, "Properties/"); ok && len(properties) < maxMembers && len(key) < 100 {
			properties["MQTT_"+network.PropertyName(key)], _ = m.Text(sparkplug.TypeUnspecified)
		}
	}
	slices.Sort(names)
	if strings.HasSuffix(kind, "BIRTH") {
		properties["MQTT_METRICS"] = strings.Join(slices.Compact(names), ",")
	}
	return true, s.set(id, device{id: id, properties: properties})
}

// sessionOf is the number of an edge node's session, which its birth and its death have; empty: none.
func sessionOf(p sparkplug.Payload) (number string) {
	for _, m := range p.Metrics {
		if m.Name == "bdSeq" {
			number, _ = m.Text(sparkplug.TypeUnspecified)
		}
	}
	return number
}

// die takes a device away, and keeps what its birth has said, as far as there is room.
func (s *sparkplugB) die(id string) {
	if a, ok := s.announcements[id]; ok && s.deadBytes+a.bytes <= maxBytes && len(s.dead) < network.MaxDevices {
		s.bury(id)
		s.dead[id], s.deadBytes = a, s.deadBytes+a.bytes
	}
	_ = s.set(id) // less always fits
}

// bury forgets what the birth of one that has died has said.
func (s *sparkplugB) bury(id string) {
	s.deadBytes -= s.dead[id].bytes
	delete(s.dead, id)
}

// know implements format.
func (s *sparkplugB) know(d handler.Device) error {
	if !strings.HasPrefix(d.Properties["MQTT_STATE_TOPIC"], s.topic+"/") {
		return nil // of another topic
	}
	return s.remember(d.ID, d)
}

// forget implements format: births are not repeated.
func (s *sparkplugB) forget() bool { return false }
