// SPDX-License-Identifier: Apache-2.0

// Package homeassistant is the view of devices for Home Assistant: each property, event, command and alarm is an entity there, by a retained
// message of MQTT discovery of its own.
//
//	homeassistant.go  the view: what is published when
//	entities.go       which entities a Device has, and their configurations
//	classes.go        Home Assistant's device classes and their units
package homeassistant

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// Origin begins the name of the origin in all discovery messages of this view: who reads them knows that they are ours.
const Origin = "Edgebus"

// Options are what the view is made from.
type Options struct {
	// Instance tells what this program publishes from what others do: the node's name; empty on the hub.
	Instance string
	// Prefix is Home Assistant's prefix of discovery: homeassistant.
	Prefix string
	// Base is the topic below which the view publishes what the tree doesn't say, or all values if the peer isn't the tree's own broker: edgebus.
	Base string
	// Own says that the peer is the tree's own broker: entities use the topics of the tree.
	Own bool
}

// View is the view. It remembers the nodes of Devices.
type View struct {
	o      Options
	origin string
	root   string            // below which it publishes, besides discovery
	nodes  map[string]string // by Device
}

// New makes the view.
func New(o Options) *View {
	instance := o.Instance
	if instance == "" {
		instance = "hub"
	}
	return &View{o: o, origin: Origin + " " + instance, root: o.Base + "/" + instance}
}

const (
	online  = "online"
	offline = "offline"
)

// Connect is of views.View.
func (v *View) Connect(uint64) views.Connection {
	v.nodes = make(map[string]string)
	c := views.Connection{
		Filters:  []string{v.o.Prefix + "/status", v.root + "/devices/+/call"},
		Retained: []string{v.o.Prefix + "/+/+/+/config", v.root + "/#"},
		Owns:     v.owns,
	}
	if !v.o.Own {
		c.Will = &views.Message{Topic: v.root + "/state", Payload: []byte(offline), QoS: 1, Retain: true}
		c.Filters = append(c.Filters, v.root+"/devices/+/desired/+", v.root+"/devices/+/commands/+")
	}
	return c
}

// owns says whether a retained message is of this view: its values by their topics, its discovery messages by their origin.
func (v *View) owns(m views.Message) bool {
	if strings.HasPrefix(m.Topic, v.root+"/") {
		return true
	}
	var config struct {
		Origin struct {
			Name string `json:"name"`
		} `json:"origin"`
	}
	return json.Unmarshal(m.Payload, &config) == nil && config.Origin.Name == v.origin
}

// Next is of views.View.
func (v *View) Next(_ time.Time, e views.Event) []views.Action {
	switch e := e.(type) {
	case *views.DeviceChanged:
		return v.deviceChanged(e)
	case *views.NodeChanged:
		if v.o.Own || v.o.Instance != "" || e.Gone {
			return nil
		}
		return retain(v.root+"/nodes/"+e.Node.Name, presence(e.Node.Online))
	case *views.Happened:
		if !v.o.Own {
			return []views.Action{&views.Publish{Message: views.Message{Topic: v.topic(e.Device) + "events/" + e.Name, Payload: e.Payload, QoS: 1}}}
		}
	case *views.Received:
		return v.received(e.Message)
	case *views.Settled:
		if !v.o.Own {
			return retain(v.root+"/state", online)
		}
	case *views.Ending:
		if !v.o.Own {
			return retain(v.root+"/state", offline)
		}
	}
	return nil
}

func presence(is bool) string {
	if is {
		return online
	}
	return offline
}

func retain(topic, payload string) []views.Action {
	return []views.Action{&views.Publish{Message: views.Message{Topic: topic, Payload: []byte(payload), QoS: 1, Retain: true}}}
}

// topic is the topic below which a Device's values are for Home Assistant.
func (v *View) topic(d *views.Device) string {
	if v.o.Own {
		return topics.Prefix + d.Node + "/devices/" + d.Name() + "/"
	}
	return v.ownTopic(d)
}

// ownTopic is the topic below which the view publishes what the tree doesn't say of a Device.
func (v *View) ownTopic(d *views.Device) string { return v.root + "/devices/" + d.Name() + "/" }

func (v *View) deviceChanged(e *views.DeviceChanged) (do []views.Action) {
	d := e.Device
	if e.Gone {
		if v.nodes[d.Name()] == d.Node { // or it has come to another node
			delete(v.nodes, d.Name())
		}
		return nil
	}
	v.nodes[d.Name()] = d.Node
	if e.Whole {
		for _, entity := range v.entities(d) {
			config, _ := json.Marshal(entity.config) // texts, numbers, and lists and maps of them
			do = append(do, retain(v.o.Prefix+"/"+entity.component+"/"+v.deviceID(d)+"/"+entity.id+"/config", string(config))...)
		}
	}
	if !v.o.Own && (e.Whole || e.State) {
		state := d.State
		if state == "" {
			state = resource.Unknown
		}
		do = append(do, retain(v.topic(d)+"state", state)...)
	}
	changed := make(map[string]bool, len(e.Properties))
	for _, name := range e.Properties {
		changed[name] = true
	}
	for _, p := range d.Model.Spec.Properties {
		if !e.Whole && !changed[p.Name] {
			continue
		}
		value := d.Values[p.Name]
		if !v.o.Own && p.Type != resource.TypeBytes {
			do = append(do, retain(v.topic(d)+"reported/"+p.Name, value.Text)...) // an empty one clears
		}
		for _, a := range p.Alarms {
			state := payloadOff
			for _, r := range value.Alarms {
				if r.Name == a.Name {
					state = payloadOn
				}
			}
			do = append(do, retain(v.ownTopic(d)+"alarms/"+p.Name+"/"+a.Name, state)...)
		}
	}
	return do
}

// received takes what Home Assistant says: its birth, and at another broker than the tree's own what it wants of a Device.
func (v *View) received(m views.Message) []views.Action {
	if m.Topic == v.o.Prefix+"/status" {
		if string(m.Payload) == online {
			return []views.Action{&views.Repeat{}}
		}
		return nil
	}
	rest, ok := strings.CutPrefix(m.Topic, v.root+"/devices/")
	level := strings.Split(rest, "/")
	if !ok || len(level) < 2 || m.Retain { // nobody wants it now
		return nil
	}
	device := level[0]
	node, known := v.nodes[device]
	switch {
	case !known:
	case level[1] == "call" && topics.ValidProperty(string(m.Payload)):
		return []views.Action{&views.Call{Node: node, Device: device, Command: string(m.Payload)}}
	case len(level) < 3:
	case level[1] == "desired":
		return []views.Action{&views.Set{Node: node, Device: device, Values: map[string]string{level[2]: string(m.Payload)}}}
	case level[1] == "commands":
		return []views.Action{&views.Call{Node: node, Device: device, Command: level[2], Payload: m.Payload}}
	}
	return nil
}
