// SPDX-License-Identifier: Apache-2.0

package views

import (
	"crypto/sha256"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"
	"weak"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// Tree is what topics of the tree tell of Devices and nodes. It takes them in any order, and gives what has changed as events, however many
// changes there were.
type Tree struct {
	local   string // the node whose own tree it is; empty: the hub's
	selects func(Node, *Device) bool

	nodes   map[string]*nodeState
	devices int            // that the view knows of
	changed []*deviceState // in the order in which they changed
	nodeNew []*nodeState
	models  map[[sha256.Size]byte]weak.Pointer[resource.DeviceModel]
	sweepAt int // models: those that nobody has any more are forgotten then
}

type nodeState struct {
	Node
	state   string
	told    bool // the view knows of it
	changed bool
	devices map[string]*deviceState
	// Documents that are too large for one message: what stands in their place, and their parts, by key.
	manifests, parts map[string][]byte
}

type deviceState struct {
	name   string
	node   *nodeState
	object *resource.Device
	model  *resource.DeviceModel
	state  string
	values map[string]Value

	device     *Device // as it was last told; nil: the view doesn't know of it
	changed    bool
	whole      bool
	stateNew   bool
	properties map[string]bool
}

// NewTree makes a tree that tells of the Devices that selects takes; nil: all. local is the node on which the program is, empty on the hub.
func NewTree(local string, selects func(Node, *Device) bool) *Tree {
	if selects == nil {
		selects = func(Node, *Device) bool { return true }
	}
	return &Tree{local: local, selects: selects, nodes: make(map[string]*nodeState), models: make(map[[sha256.Size]byte]weak.Pointer[resource.DeviceModel])}
}

// Apply takes a retained message of the tree; an empty payload clears the topic. at is when the value was so, or zero.
func (t *Tree) Apply(topic string, payload []byte, at time.Time) {
	a, err := topics.Parse(topic)
	if err != nil {
		return
	}
	n := t.nodes[a.Node]
	if n == nil {
		n = &nodeState{
			Node: Node{Name: a.Node, Online: a.Node == t.local}, devices: make(map[string]*deviceState),
			manifests: make(map[string][]byte), parts: make(map[string][]byte),
		}
		t.nodes[a.Node] = n
		t.noteNode(n)
	}
	switch a.Kind {
	case topics.KindState:
		if n.state = string(payload); t.local == "" {
			n.Online = n.state == resource.Online
			t.noteNode(n)
		}
	case topics.KindMembership, topics.KindMembershipPart, topics.KindDevice, topics.KindDevicePart:
		t.applyDocument(n, a, payload)
	case topics.KindDeviceState:
		d := t.deviceOf(n, a.Device)
		if d.state != string(payload) {
			d.state, d.stateNew = string(payload), true
			t.note(d)
		}
	case topics.KindReported, topics.KindReadProblem, topics.KindAlarms:
		t.deviceOf(n, a.Device).applyValue(t, a, payload, at)
	}
}

// MadeOf reports whether a tree is made of topics of a kind.
func MadeOf(k topics.Kind) bool {
	switch k {
	case topics.KindState, topics.KindMembership, topics.KindMembershipPart, topics.KindDevice, topics.KindDevicePart, topics.KindDeviceState,
		topics.KindReported, topics.KindReadProblem, topics.KindAlarms:
		return true
	}
	return false
}

func (d *deviceState) applyValue(t *Tree, a topics.Address, payload []byte, at time.Time) {
	v := d.values[a.Name]
	switch a.Kind {
	case topics.KindReported:
		v.Known, v.Text, v.At = len(payload) > 0, string(payload), at
	case topics.KindReadProblem:
		v.Problem = nil
		if p, err := resource.ParseProblem(payload); len(payload) > 0 && err == nil {
			v.Problem = &p
		}
	case topics.KindAlarms:
		v.Alarms, _ = resource.ParseAlarms(payload) // of a newer node: none
	}
	if d.values[a.Name] = v; !v.Known && v.Problem == nil && v.Alarms == nil {
		delete(d.values, a.Name)
	}
	d.properties[a.Name] = true
	t.note(d)
}

func (t *Tree) deviceOf(n *nodeState, name string) *deviceState {
	d := n.devices[name]
	if d == nil {
		d = &deviceState{name: name, node: n, values: make(map[string]Value), properties: make(map[string]bool)}
		n.devices[name] = d
	}
	return d
}

func (t *Tree) note(d *deviceState) {
	if !d.changed {
		d.changed = true
		t.changed = append(t.changed, d)
	}
}

func (t *Tree) noteNode(n *nodeState) {
	if !n.changed {
		n.changed = true
		t.nodeNew = append(t.nodeNew, n)
	}
}

// applyDocument takes a document, or a part of one. What isn't whole yet changes nothing.
func (t *Tree) applyDocument(n *nodeState, a topics.Address, payload []byte) {
	of := a
	of.Name = ""
	switch a.Kind {
	case topics.KindMembershipPart:
		of.Kind, of.Device = topics.KindMembership, ""
	case topics.KindDevicePart:
		of.Kind = topics.KindDevice
	}
	key := of.Key()
	if a.Kind == of.Kind {
		delete(n.manifests, key)
		if whole, ok := topics.JoinDocument(payload, func(int) ([]byte, bool) { return nil, false }); ok {
			t.setDocument(n, of, whole)
			return
		}
		n.manifests[key] = payload
	} else if n.parts[a.Key()] = payload; len(payload) == 0 {
		delete(n.parts, a.Key())
	}
	manifest, ok := n.manifests[key]
	if !ok {
		return
	}
	whole, ok := topics.JoinDocument(manifest, func(part int) ([]byte, bool) {
		b, ok := n.parts[topics.PartKey(key, part)]
		return b, ok
	})
	if ok {
		t.setDocument(n, of, whole)
	}
}

func (t *Tree) setDocument(n *nodeState, a topics.Address, document []byte) {
	if a.Kind == topics.KindMembership {
		var m resource.Membership
		_ = json.Unmarshal(document, &m) // of a newer hub: no labels
		if maps.Equal(m.Labels, n.Labels) {
			return
		}
		n.Labels = m.Labels
		t.noteNode(n)
		for _, name := range slices.Sorted(maps.Keys(n.devices)) {
			if d := n.devices[name]; d.object != nil {
				d.whole = true
				t.note(d)
			}
		}
		return
	}
	d := t.deviceOf(n, a.Device)
	if len(document) == 0 {
		d.object, d.model = nil, nil
	} else {
		var b struct {
			Device *resource.Device
			Model  json.RawMessage
		}
		if json.Unmarshal(document, &b) != nil || b.Device == nil {
			return // of a newer hub: it stays as it was
		}
		model := t.model(b.Model)
		if model == nil {
			return
		}
		d.object, d.model = b.Device, model
	}
	d.whole = true
	t.note(d)
}

// model reads a model. Devices whose models are the same share one; nil: it can't be read.
func (t *Tree) model(document []byte) *resource.DeviceModel {
	key := sha256.Sum256(document)
	if m := t.models[key].Value(); m != nil {
		return m
	}
	m := new(resource.DeviceModel)
	if json.Unmarshal(document, m) != nil {
		return nil
	}
	t.models[key] = weak.Make(m)
	if len(t.models) >= t.sweepAt {
		maps.DeleteFunc(t.models, func(_ [sha256.Size]byte, of weak.Pointer[resource.DeviceModel]) bool { return of.Value() == nil })
		t.sweepAt = 2*len(t.models) + 64
	}
	return m
}

// Repeat has Next tell of everything anew.
func (t *Tree) Repeat() {
	for _, name := range slices.Sorted(maps.Keys(t.nodes)) {
		n := t.nodes[name]
		n.told = false
		t.noteNode(n)
		for _, name := range slices.Sorted(maps.Keys(n.devices)) {
			if d := n.devices[name]; d.object != nil {
				t.tell(d, nil)
				d.whole = true
				t.note(d)
			}
		}
	}
}

// Next returns the next event; nil: all has been told. A node is told before its Devices.
func (t *Tree) Next() Event {
	for len(t.nodeNew) > 0 {
		n := t.nodeNew[0]
		t.nodeNew[0], t.nodeNew = nil, t.nodeNew[1:]
		n.changed = false
		if there := n.Name == t.local || n.state != "" || n.Labels != nil || len(n.devices) > 0; there {
			n.told = true
			return &NodeChanged{Node: n.Node}
		}
		if delete(t.nodes, n.Name); n.told {
			return &NodeChanged{Node: n.Node, Gone: true}
		}
	}
	for len(t.changed) > 0 {
		d := t.changed[0]
		t.changed[0], t.changed = nil, t.changed[1:]
		if e := d.event(t); e != nil {
			return e
		}
	}
	return nil
}

// event is what is to be told of a Device; nil: nothing.
func (d *deviceState) event(t *Tree) Event {
	now := &Device{Node: d.node.Name, Object: d.object, Model: d.model, State: d.state, Values: d.values}
	shown := d.object != nil && t.selects(d.node.Node, now)
	e := &DeviceChanged{
		Device: now, Whole: d.whole || d.device == nil, State: d.stateNew, Properties: slices.Sorted(maps.Keys(d.properties)),
	}
	d.changed, d.whole, d.stateNew = false, false, false
	clear(d.properties)
	if d.object == nil && d.state == "" && len(d.values) == 0 {
		delete(d.node.devices, d.name)
		t.noteNode(d.node)
	}
	switch {
	case shown:
		t.tell(d, now)
		return e
	case d.device == nil:
		return nil
	}
	e = &DeviceChanged{Device: d.device, Gone: true}
	t.tell(d, nil)
	return e
}

// tell notes what the view knows of a Device; nil: nothing.
func (t *Tree) tell(d *deviceState, now *Device) {
	switch {
	case d.device == nil && now != nil:
		t.devices++
	case d.device != nil && now == nil:
		t.devices--
	}
	d.device = now
}

// Device returns a Device that the view knows of.
func (t *Tree) Device(node, name string) *Device {
	if n := t.nodes[node]; n != nil && n.devices[name] != nil {
		return n.devices[name].device
	}
	return nil
}

// Devices is how many Devices the view knows of.
func (t *Tree) Devices() int { return t.devices }

// SelectLabels selects the Devices that have all of the labels, as key=value, themselves or by their node.
func SelectLabels(labels []string) func(Node, *Device) bool {
	if len(labels) == 0 {
		return nil
	}
	return func(n Node, d *Device) bool {
		for _, label := range labels {
			key, value, _ := strings.Cut(label, "=")
			if d.Object.Metadata.Labels[key] != value && n.Labels[key] != value {
				return false
			}
		}
		return true
	}
}
