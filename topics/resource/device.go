// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics"
)

// Value is the value of a property as text, in the form of the property's type in the model. In JSON it is a string. A number,
// boolean, object or array is accepted, and read as its own JSON text.
type Value string

// UnmarshalJSON reads a value. null is the empty value.
func (v *Value) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(v))
	}
	if bytes.Equal(b, []byte("null")) {
		*v = ""
		return nil
	}
	var buf bytes.Buffer
	if err := json.Compact(&buf, b); err != nil {
		return err
	}
	*v = Value(buf.String())
	return nil
}

// Device is a device that is attached to a node, and driven by a mapper.
type Device struct {
	TypeMeta
	Metadata Meta         `json:"metadata"`
	Spec     DeviceSpec   `json:"spec"`
	Status   DeviceStatus `json:"status,omitzero"`
	// DesiredMeta is metadata of Spec.Desired in what the hub stores, written by Stamp only. The API neither shows nor accepts
	// it.
	DesiredMeta map[string]DesiredMeta `json:"desiredMeta,omitempty"`
}

// DeviceSpec is the desired state of a device.
type DeviceSpec struct {
	// Title is the name of the device for people, such as Boiler in the cellar. At most 128 characters.
	Title string `json:"title,omitempty"`
	// DeviceModelRef names the DeviceModel, which must be in the Device's namespace.
	// +required
	DeviceModelRef ObjectRef `json:"deviceModelRef,omitzero"`
	// NodeName is the node to which the device is bound. While it is empty, desired values are not sent.
	NodeName string `json:"nodeName,omitempty"`
	// Protocol says how the mapper reaches the device.
	// +required
	Protocol Protocol `json:"protocol,omitzero"`
	// PropertyVisitors say how the mapper reaches properties, events and commands of this device. They replace the model's visitors
	// of the same ones. At most 4,096.
	// +listType=map
	// +listMapKey=propertyName
	// +listMapKey=eventName
	// +listMapKey=commandName
	PropertyVisitors []Visitor `json:"propertyVisitors,omitempty"`
	// Commands set properties when they are called. They add to the model's commands; a driver may have further ones of
	// its own. All of them together have at most 4,096 names and properties.
	// +listType=map
	// +listMapKey=name
	Commands []DeviceCommand `json:"commands,omitempty"`
	// Alarms are alarms of this device. They add to the model's, and replace those of the same property and name. At most 4,096.
	// +listType=map
	// +listMapKey=propertyName
	// +listMapKey=name
	Alarms []DeviceAlarm `json:"alarms,omitempty"`
	// AcknowledgedAlarms are the times, in RFC 3339, up to which somebody knows of an alarm, by property and name: temperature/hot.
	AcknowledgedAlarms map[string]string `json:"acknowledgedAlarms,omitempty"`
	// Local are the properties whose reported values stay on the node, and are not sent to the hub. At most 4,096.
	// +listType=set
	Local []string `json:"local,omitempty"`
	// LocalState says that the device's state stays on the node, too.
	LocalState bool `json:"localState,omitempty"`
	// Push has further targets to which the node sends reported values itself. At most 4,096.
	// +listType=map
	// +listMapKey=propertyName
	Push []Push `json:"push,omitempty"`
	// History says how the values that the device's properties had are kept.
	History *DeviceHistory `json:"history,omitempty"`
	// Desired are the desired values of properties, by name.
	Desired map[string]Value `json:"desired,omitempty"`
	// DesiredUntil are the times, in RFC 3339, after which a desired value is no longer applied, by the property's name.
	DesiredUntil map[string]string `json:"desiredUntil,omitempty"`
}

// DeviceCommand is a command that sets properties. The payload is the value if there is one property, or otherwise a JSON
// object of values by property.
type DeviceCommand struct {
	// Name is the name of the command, as in its topic.
	Name string `json:"name"`
	// Title is the name of the command for people. At most 128 characters.
	Title string `json:"title,omitempty"`
	// Description is for people.
	Description string `json:"description,omitempty"`
	// Properties are the properties that the command may set. They must be ReadWrite.
	// +listType=set
	Properties []string `json:"properties,omitempty"`
}

// Push is a target for the reported values of a property.
type Push struct {
	// PropertyName is the property, one of the model's.
	PropertyName string `json:"propertyName"`
	// MQTT is a topic of an MQTT broker.
	MQTT *PushMQTT `json:"mqtt,omitempty"`
	// HTTP is an HTTP endpoint, to which values are sent with POST.
	HTTP *PushHTTP `json:"http,omitempty"`
}

// PushMQTT is a topic of an MQTT broker.
type PushMQTT struct {
	// Address is the address of the broker, such as mqtt://host:1883 or mqtts://host:8883; tcp:// is the same as mqtt://.
	Address string `json:"address"`
	// Topic is the topic to which values are published.
	Topic string `json:"topic"`
	// QoS is the quality of service: 0, 1 or 2; 0 when missing.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2
	QoS int64 `json:"qos,omitempty"`
	// Retain asks the broker to keep the last value.
	Retain bool `json:"retain,omitempty"`
}

// PushHTTP is an HTTP endpoint.
type PushHTTP struct {
	// URL is the address of the endpoint: http://… or https://…
	URL string `json:"url"`
}

// PushServer returns a broker's address with the scheme that our MQTT clients use: mqtt:// instead of tcp://.
func PushServer(address string) string {
	if rest, ok := strings.CutPrefix(address, "tcp://"); ok {
		return "mqtt://" + rest
	}
	return address
}

func (x Push) check(p *causeList, at string) {
	checkRequired(p, at+".propertyName", x.PropertyName)
	address := func(field, text string, schemes ...string) {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || !slices.Contains(schemes, u.Scheme) {
			p.add(at+field, "%s: must be an address with one of %s://", clipText(text), strings.Join(schemes, "://, "))
		} else if u.User != nil {
			p.add(at+field, "must hold no name or password: everybody who may see the Device would see it")
		}
	}
	if m := x.MQTT; m != nil {
		address(".mqtt.address", m.Address, "mqtt", "mqtts", "tcp")
		if m.Topic == "" || strings.ContainsAny(m.Topic, "+#\x00") {
			p.add(at+".mqtt.topic", "%s: must be a topic, without + and #", clipText(m.Topic))
		}
		if m.QoS < 0 || m.QoS > 2 {
			p.add(at+".mqtt.qos", "%d: must be 0, 1 or 2", m.QoS)
		}
	}
	if x.HTTP != nil {
		address(".http.url", x.HTTP.URL, "http", "https")
	}
}

// ObjectRef names an object.
type ObjectRef struct {
	// Name is the object's name.
	Name string `json:"name,omitempty"`
}

// Protocol says how a mapper reaches a device.
type Protocol struct {
	// Name distinguishes several configurations of one protocol.
	Name string `json:"name,omitempty"`
	// Type is the protocol: modbus, opcua, bluetoothle, … Upper and lower case are the same. none is for a device that no mapper drives yet.
	// +required
	Type string `json:"type,omitempty"`
	// Config is the configuration for the protocol, such as an address or a unit. Numbers and booleans are taken for their text.
	Config map[string]Value `json:"config,omitempty"`
}

// NoProtocol is the type of the protocol of a device that no mapper drives.
const NoProtocol = "none"

// DesiredMeta is metadata of a desired value, stored in the same commit.
type DesiredMeta struct {
	Ver     uint64 `json:"ver"`               // incremented by each change, also when the value is cleared
	TS      int64  `json:"ts"`                // milliseconds since 1970
	Origin  string `json:"origin,omitempty"`  // the writer: a user or client
	Cleared bool   `json:"cleared,omitempty"` // there is no value; the version is kept
	Trace   string `json:"trace,omitempty"`   // the traceparent of the write
}

// StampDesired sets next.DesiredMeta. A desired value that differs from prev's gets a new version and time, and the origin and trace that are given;
// others keep those of prev. prev is nil for a new Device. The DesiredMeta that next had is ignored.
func StampDesired(prev, next *Device, origin, traceparent string, now time.Time) {
	var old Device
	if prev != nil {
		old = *prev
	}
	meta := maps.Clone(old.DesiredMeta)
	if meta == nil {
		meta = make(map[string]DesiredMeta, len(next.Spec.Desired))
	}
	ts := now.UnixMilli()
	for name, value := range next.Spec.Desired {
		m, known := meta[name]
		same := known && !m.Cleared && old.Spec.Desired[name] == value &&
			old.Spec.DesiredUntil[name] == next.Spec.DesiredUntil[name]
		if !same {
			meta[name] = DesiredMeta{Ver: m.Ver + 1, TS: ts, Origin: origin, Trace: traceparent}
		}
	}
	for name, m := range meta {
		if _, wanted := next.Spec.Desired[name]; !wanted && !m.Cleared {
			meta[name] = DesiredMeta{Ver: m.Ver + 1, TS: ts, Origin: origin, Cleared: true, Trace: traceparent}
		}
	}
	if len(meta) == 0 {
		meta = nil
	}
	next.DesiredMeta = meta
}

// The states of a device.
const (
	Online  = "online"
	Offline = "offline"
	Unknown = "unknown"
)

// DeviceStatus is the observed state of a device.
type DeviceStatus struct {
	// State is online, offline or unknown, as reported by the device's mapper.
	State string `json:"state,omitempty"`
	// LastSeen is the time when the device last reported anything.
	LastSeen string `json:"lastSeen,omitempty"`
	// Twin has an entry for each property that has a value, desired or reported.
	Twin map[string]TwinProperty `json:"twin,omitempty"`
	// Alarms are the alarms that are raised.
	// +listType=atomic
	Alarms []AlarmStatus `json:"alarms,omitempty"`
	// Conditions are Online, InSync, Readable, Refused, TwinConflict, NodeOnline, Degraded and Alarm.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// DeviceChange is the revision at which a device of a node last changed or was removed. A Device of the same name in another
// namespace is another device: when it replaces an earlier one, the earlier one counts as removed, although the node has both
// under the same name.
type DeviceChange struct {
	Name, Namespace string
	Rev             uint64
	Removed         bool
	// UID tells a device from one of the same name that was removed before.
	UID string
	// Added is the revision at which it was first there.
	Added uint64
}

// Bundle is the payload of devices/{device}: the Device with its model. Desired values and the status are not part of it, as
// they have topics of their own.
type Bundle struct {
	Device Device      `json:"device"`
	Model  DeviceModel `json:"model"`
}

// NewBundle returns the bundle of a device and its model. The device's visitors and alarms become part of the model's, and the model's
// protocol configuration becomes part of the device's, so that a mapper finds each in one place.
func NewBundle(d Device, m DeviceModel) Bundle {
	d.Spec.Protocol.Config = m.config(d.Spec.Protocol)
	m = m.withVisitors(d.Spec.Protocol.Type, d.Spec.PropertyVisitors).withAlarms(d.Spec.Alarms)
	d.Spec.Desired, d.Spec.DesiredUntil, d.DesiredMeta, d.Spec.PropertyVisitors, d.Spec.Alarms = nil, nil, nil, nil, nil
	d.Status = DeviceStatus{}
	// Fields that change with every write would make a new bundle of each write.
	for _, meta := range []*Meta{&d.Metadata, &m.Metadata} {
		meta.ResourceVersion, meta.ManagedFields = "", nil
	}
	d.Metadata.Generation = 0
	return Bundle{d, m}
}

// Membership is the payload of membership.
type Membership struct {
	Devices []string `json:"devices"`
	// Labels are those of the Node on the hub. A node without devices is told none.
	Labels map[string]string `json:"labels,omitempty"`
}

// Problem is the payload of devices/{device}/problem, why a device is not online or what else is wrong with it, and of
// devices/{device}/problem/{property}, why a property can't be read. Both are from the device's mapper.
type Problem struct {
	Code    string `json:"code"`              // the reason, in one word
	Message string `json:"message,omitempty"` // the reason, for people
	Since   string `json:"since,omitempty"`   // for a property: when it was last read
	Online  bool   `json:"online,omitempty"`  // for a device: it is online nevertheless
}

// The codes of Problems from mappers that use the SDK. For a property that can't be read they also use the codes of refusals.
const (
	BadConfig   = "BadConfig"   // the configuration in the Device or its model is wrong
	Unreachable = "Unreachable" // the device does not answer, or not correctly
	SaysOffline = "SaysOffline" // the device answers, and its values say that it isn't online
	ReadFailed  = "ReadFailed"  // the reason of the condition Readable
	ValueUnread = "Unread"      // the property can't be read, while others can; what was reported stays
	// ValueUnknown: the device says that it has no value, or none that can be understood. The core clears the reported value.
	ValueUnknown = "Unknown"
	// ValueStale: the value was not said again for as long as its visitor's expireAfter. The core clears the reported value.
	ValueStale = "Stale"
	ClockAhead = "ClockAhead" // its reports are refused for timestamps in the future: a code of the core
)

// Clears reports whether a problem of a property says that it has no value: what was reported before is cleared.
func (p Problem) Clears() bool { return p.Code == ValueUnknown || p.Code == ValueStale }

// ParseProblem reads the payload of the topics of a Problem.
func ParseProblem(payload []byte) (Problem, error) {
	var p Problem
	if err := json.Unmarshal(payload, &p); err != nil {
		return p, Errorf(Invalid, "problem", "the payload must be JSON such as {\"code\":\"Unreachable\",\"message\":\"…\"}")
	}
	if p.Code == "" {
		return p, Errorf(Invalid, "problem.code", "must say why in one word, such as Unreachable")
	}
	if _, err := ParseTime(p.Since); p.Since != "" && err != nil {
		return p, Errorf(Invalid, "problem.since", "%v", err)
	}
	return p, nil
}

// ParseProtocols reads the payload of mappers/{mapper}/protocols.
func ParseProtocols(payload []byte) ([]string, error) {
	var list []string
	if err := json.Unmarshal(payload, &list); err != nil || len(list) == 0 || slices.Contains(list, "") {
		return nil, Errorf(Invalid, "protocols", "the payload must be a JSON array of names, such as [\"modbus\"]")
	}
	return list, nil
}

// SameProtocol reports whether two names mean the same protocol, such as Modbus-TCP and modbustcp.
func SameProtocol(a, b string) bool { return ProtocolKey(a) == ProtocolKey(b) }

// ProtocolKey is the same text for names of the same protocol: case, hyphens, underscores and spaces don't matter.
func ProtocolKey(protocol string) string {
	return strings.ToLower(strings.NewReplacer("-", "", "_", "", " ", "").Replace(protocol))
}

// Mapper is a mapper of a node.
type Mapper struct {
	Name      string
	Online    bool
	Protocols []string // none: it has not reported them
}

func (m Mapper) speaks(protocol string) bool {
	return slices.ContainsFunc(m.Protocols, func(p string) bool { return SameProtocol(p, protocol) })
}

func (m Mapper) String() string {
	if len(m.Protocols) == 0 {
		return m.Name + " (has not said what it speaks)"
	}
	return m.Name + " (" + strings.Join(m.Protocols, ", ") + ")"
}

// Reachability is what the condition Online of a Device is derived from.
type Reachability struct {
	Node       string // empty: the device is not bound to a node
	Registered bool   // there is a Node of that name
	Away       bool   // the node is offline
	Local      bool   // the state stays on the node, and this is the hub
	Protocol   string
	State      string   // as reported by the mapper; empty: it was not reported
	Problem    *Problem // as reported by the mapper, or nil
	Mappers    []Mapper // of the node
	Since      string   // since when the state, or the node's absence, is as it is; empty: not known
	Heard      bool     // the state was reported, so that Unknown means that its mapper has gone
}

// ConditionOnline says whether a device is online, and why if it is not.
const ConditionOnline = "Online"

// ConditionNodeOnline says whether a device's node is online. It is not added before the node was offline for the first time.
const ConditionNodeOnline = "NodeOnline"

// The reasons of the condition Online, besides the codes of Problem.
const (
	ReasonNoNode   = "NoNode"      // the device is not bound to a node
	ReasonNoSuch   = "NoSuchNode"  // its node has never connected
	ReasonAway     = "NodeOffline" // the node is offline, so the state is not known
	ReasonNoMapper = "NoMapper"    // no connected mapper supports the device's protocol
	ReasonNotHeard = "NotHeard"    // a mapper does, and has not reported the device's state
)

// Condition returns the condition Online.
func (r Reachability) Condition() Condition {
	c := Condition{Type: ConditionOnline, Status: "Unknown"}
	switch {
	case r.Node == "":
		c.Reason, c.Message = ReasonNoNode, "it belongs to no node: spec.nodeName is empty"
	case r.OnUnknownNode():
		c.Reason, c.Message = ReasonNoSuch, "no Node "+r.Node+" is registered: one is when its core first connects; is spec.nodeName right?"
	case r.Away:
		c.Reason, c.Message = ReasonAway, "node "+r.Node+" is offline"
	case r.Local:
		c.Reason, c.Message = ReasonLocal, "its state stays on node "+r.Node+" (spec.localState)"
	case r.State == Online:
		c.Status, c.Reason = "True", "Online"
	case r.Problem != nil && !r.Problem.Online:
		c.Status, c.Reason, c.Message = "False", r.Problem.Code, r.Problem.Message
	case r.State == Offline:
		c.Status, c.Reason, c.Message = "False", "Offline", "its mapper does not reach it, and has not said why"
	default:
		c.Reason, c.Message = r.noMapperReason()
	}
	return c
}

// ConditionDegraded says what is wrong with a device that is online, such as that it isn't read as often as it is to be. A device of which that
// was never so has none.
const ConditionDegraded = "Degraded"

// SetDegraded sets the condition Degraded in the list.
func (r Reachability) SetDegraded(list []Condition, now time.Time) []Condition {
	switch {
	case r.State == Online && !r.Away && r.Problem != nil && r.Problem.Online:
		return SetCondition(list, Condition{Type: ConditionDegraded, Status: "True", Reason: r.Problem.Code, Message: r.Problem.Message}, now)
	case findCondition(list, ConditionDegraded) != nil:
		return SetCondition(list, Condition{Type: ConditionDegraded, Status: "False", Reason: "AsConfigured"}, now)
	}
	return list
}

// Outdated says since when and why what was last reported of the device may no longer be so; empty: it is.
func (r Reachability) Outdated() string {
	c := r.Condition()
	switch {
	case c.Status == "False", c.Reason == ReasonNoNode, c.Reason == ReasonNoSuch, c.Reason == ReasonAway:
	case r.Heard && !r.Local && c.Status == "Unknown":
	default:
		return ""
	}
	text := "not known"
	if r.Since != "" {
		text += " since " + r.Since
	}
	return text + ": the device is not online (" + c.Reason + ")"
}

// OnUnknownNode reports whether the device is bound to a node for which there is no Node.
func (r Reachability) OnUnknownNode() bool { return r.Node != "" && !r.Registered }

// noMapperReason says why no mapper has reported the device's state.
func (r Reachability) noMapperReason() (reason, message string) {
	if r.Protocol == NoProtocol {
		return ReasonNoMapper, "it has no protocol, so no mapper drives it: spec.protocol.type is " + NoProtocol
	}
	var there, gone []string // connected mappers; disconnected ones that support the protocol
	said := true
	for _, m := range r.Mappers {
		switch {
		case m.Online && m.speaks(r.Protocol):
			return ReasonNotHeard, fmt.Sprintf("mapper %s is connected and has not reported the device's state", m.Name)
		case m.Online:
			there = append(there, m.String())
			said = said && len(m.Protocols) > 0
		case m.speaks(r.Protocol):
			gone = append(gone, m.Name)
		}
	}
	switch {
	case len(gone) > 0:
		return ReasonNoMapper, fmt.Sprintf("mapper %s, which speaks %s, is not connected to node %s", strings.Join(gone, ", "), clipText(r.Protocol), r.Node)
	case len(there) == 0:
		return ReasonNoMapper, fmt.Sprintf("no mapper is connected to node %s", r.Node)
	case !said:
		return ReasonNoMapper, fmt.Sprintf("no mapper on %s has said that it speaks %s; connected mappers: %s", r.Node, clipText(r.Protocol), strings.Join(there, ", "))
	}
	return ReasonNoMapper, fmt.Sprintf("no mapper on %s speaks %s; connected mappers: %s", r.Node, clipText(r.Protocol), strings.Join(there, ", "))
}

// Validate checks a Device without its model. See CheckModel for the rules of the model.
func (d Device) Validate() error {
	var p causeList
	d.Metadata.check(&p)
	checkTitle(&p, "spec.title", d.Spec.Title)
	if d.Spec.DeviceModelRef.Name == "" {
		p.add("spec.deviceModelRef.name", "is required: the DeviceModel that describes the device's properties")
	} else if !topics.ValidName(d.Spec.DeviceModelRef.Name) {
		p.add("spec.deviceModelRef.name", "%s: must be %s", clipText(d.Spec.DeviceModelRef.Name), topics.NameRule())
	}
	if d.Spec.NodeName != "" && !topics.ValidName(d.Spec.NodeName) {
		p.add("spec.nodeName", "%s: must be %s", clipText(d.Spec.NodeName), topics.NameRule())
	}
	if d.Spec.Protocol.Type == "" {
		p.add("spec.protocol.type", "is required: the protocol that a mapper speaks with the device, such as modbus")
	}
	p.tooMany("spec.propertyVisitors", len(d.Spec.PropertyVisitors))
	p.tooMany("spec.push", len(d.Spec.Push))
	p.tooMany("spec.local", len(d.Spec.Local))
	p.tooMany("spec.alarms", len(d.Spec.Alarms))
	p.tooMany("spec.acknowledgedAlarms", len(d.Spec.AcknowledgedAlarms))
	properties := len(d.Spec.Commands)
	for _, c := range d.Spec.Commands {
		properties += len(c.Properties)
	}
	if p.tooMany("spec.commands", properties); len(p) > 0 {
		return p.err()
	}
	for name := range d.Spec.Desired {
		if !topics.ValidProperty(name) {
			p.add("spec.desired["+name+"]", "bad property name: must be %s", topics.PropertyRule())
		}
	}
	for name, until := range d.Spec.DesiredUntil {
		if _, ok := d.Spec.Desired[name]; !ok {
			p.add("spec.desiredUntil["+name+"]", "has no desired value to end")
		}
		if _, err := ParseTime(until); err != nil {
			p.addErr("spec.desiredUntil["+name+"]", err)
		}
	}
	checkDeviceAlarms(&p, d.Spec.Alarms)
	for name, at := range d.Spec.AcknowledgedAlarms {
		if _, err := ParseTime(at); err != nil {
			p.addErr("spec.acknowledgedAlarms["+name+"]", err)
		}
	}
	for i, x := range d.Spec.Push {
		x.check(&p, fmt.Sprintf("spec.push[%d]", i))
	}
	d.Spec.History.check(&p, "spec.history")
	commands, visited := uniqueNames{}, map[visitorTarget]bool{}
	for i, c := range d.Spec.Commands {
		at := fmt.Sprintf("spec.commands[%d]", i)
		checkPropertyName(&p, at+".name", c.Name)
		commands.check(&p, at+".name", c.Name)
		checkTitle(&p, at+".title", c.Title)
	}
	for i, v := range d.Spec.PropertyVisitors {
		at := fmt.Sprintf("spec.propertyVisitors[%d]", i)
		v.check(&p, at)
		r := v.reaches()
		if visited[r] && r.name != "" {
			p.add(at+"."+r.kind, "%s occurs twice in the list", clipText(r.name))
		}
		visited[r] = true
	}
	return p.err()
}

// ResolveBooleans applies Property.ResolveBoolean to each desired value.
func (d *Device) ResolveBooleans(m DeviceModel) {
	for name, value := range d.Spec.Desired {
		if p, ok := m.Property(name); ok {
			d.Spec.Desired[name] = p.ResolveBoolean(value)
		}
	}
}

// CheckModel checks a Device against its model.
func (d Device) CheckModel(m DeviceModel) error {
	var p causeList
	for name, value := range d.Spec.Desired {
		p.addErr("spec.desired["+name+"]", m.CheckDesired(name, []byte(value)))
	}
	for i, v := range d.Spec.PropertyVisitors {
		v.checkModel(&p, fmt.Sprintf("spec.propertyVisitors[%d]", i), m)
	}
	d.checkAlarms(&p, m)
	for i, x := range d.Spec.Push {
		p.addErr(fmt.Sprintf("spec.push[%d].propertyName", i), m.CheckKnown(x.PropertyName))
	}
	for i, name := range d.Spec.Local {
		p.addErr(fmt.Sprintf("spec.local[%d]", i), m.CheckKnown(name))
	}
	for i, c := range d.Spec.Commands {
		if _, known := m.Command(c.Name); known {
			p.add(fmt.Sprintf("spec.commands[%d].name", i), "%s is a command of the model: choose another name", clipText(c.Name))
		}
		for j, name := range c.Properties {
			p.addErr(fmt.Sprintf("spec.commands[%d].properties[%d]", i, j), m.CheckWritable(name))
		}
	}
	return p.err()
}
