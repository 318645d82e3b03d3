// Package resource holds the nouns of the bus: Device, DeviceModel, Node, and
// what they are made of. One type a noun: the same JSON on disk, in the API and
// on the bus. It validates, it never does I/O, and it imports only the standard
// library and package topics.
package resource

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Value is a property's value as text in the form of its model's type. In JSON it is
// a string; a number, boolean, object or array is taken for its own JSON text.
type Value string

// UnmarshalJSON reads a value; see Value.
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

// Device is a thing attached to a node, driven by a mapper.
type Device struct {
	TypeMeta
	Metadata Meta         `json:"metadata"`
	Spec     DeviceSpec   `json:"spec"`
	Status   DeviceStatus `json:"status,omitzero"`
	// DesiredMeta stands beside Spec.Desired in what the hub stores, and is written by
	// Stamp alone. The API neither shows nor takes it.
	DesiredMeta map[string]DesiredMeta `json:"desiredMeta,omitempty"`
}

// DeviceSpec is what is wanted of a device.
type DeviceSpec struct {
	// DeviceModelRef names the DeviceModel, in the device's own namespace.
	// +required
	DeviceModelRef Ref `json:"deviceModelRef,omitzero"`
	// NodeName is the node that the device belongs to; empty: not bound yet, desired values wait.
	NodeName string `json:"nodeName,omitempty"`
	// Protocol is how the device is reached.
	// +required
	Protocol Protocol `json:"protocol,omitzero"`
	// PropertyVisitors say how to reach properties of this device; they go before the model's.
	// +listType=map
	// +listMapKey=propertyName
	PropertyVisitors []Visitor `json:"propertyVisitors,omitempty"`
	// Commands set properties directly when they are called; drivers may know others.
	// +listType=map
	// +listMapKey=name
	Commands []DeviceCommand `json:"commands,omitempty"`
	// Local are properties whose reported values stay on the node: the hub is not told them.
	// +listType=set
	Local []string `json:"local,omitempty"`
	// LocalState says that the device's state stays on the node, too.
	LocalState bool `json:"localState,omitempty"`
	// Push says where the node sends reported values besides, by itself.
	// +listType=map
	// +listMapKey=propertyName
	Push []Push `json:"push,omitempty"`
	// Desired are the wanted values of properties, whoever wrote them.
	Desired map[string]Value `json:"desired,omitempty"`
	// DesiredUntil are times after which a wanted value is no longer to be applied.
	DesiredUntil map[string]string `json:"desiredUntil,omitempty"`
}

// DeviceCommand is a command that sets properties. Its payload is a value, if it has one property, or a JSON object of values.
type DeviceCommand struct {
	// Name is the command's name, as in its topic.
	Name string `json:"name"`
	// Description is for readers.
	Description string `json:"description,omitempty"`
	// Properties are those that it may set; they must be ReadWrite.
	// +listType=set
	Properties []string `json:"properties,omitempty"`
}

// Push says where a property's reported values go.
type Push struct {
	// PropertyName is the property, one of the model's.
	PropertyName string `json:"propertyName"`
	// MQTT is a topic of a broker.
	MQTT *PushMQTT `json:"mqtt,omitempty"`
	// HTTP is an endpoint, which is sent a POST.
	HTTP *PushHTTP `json:"http,omitempty"`
}

// PushMQTT is a topic of a broker.
type PushMQTT struct {
	// Address is the broker's: mqtt://host:1883, mqtts://host:8883; tcp:// is mqtt://.
	Address string `json:"address"`
	// Topic is where values are published.
	Topic string `json:"topic"`
	// QoS is 0, 1 or 2.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2
	QoS int64 `json:"qos,omitempty"`
	// Retain has the broker keep the last value.
	Retain bool `json:"retain,omitempty"`
}

// PushHTTP is an HTTP endpoint.
type PushHTTP struct {
	// URL is http://… or https://…
	URL string `json:"url"`
}

// PushServer is a broker's address as MQTT clients of ours write it.
func PushServer(address string) string {
	if rest, ok := strings.CutPrefix(address, "tcp://"); ok {
		return "mqtt://" + rest
	}
	return address
}

func (x Push) check(p *problems, at string) {
	required(p, at+".propertyName", x.PropertyName)
	address := func(field, text string, schemes ...string) {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || !slices.Contains(schemes, u.Scheme) {
			p.add(at+field, "%s: must be an address with one of %s://", clip(text), strings.Join(schemes, "://, "))
		} else if u.User != nil {
			p.add(at+field, "must hold no name or password: everybody who may see the Device would see it")
		}
	}
	if m := x.MQTT; m != nil {
		address(".mqtt.address", m.Address, "mqtt", "mqtts", "tcp")
		if m.Topic == "" || strings.ContainsAny(m.Topic, "+#\x00") {
			p.add(at+".mqtt.topic", "%s: must be a topic, without + and #", clip(m.Topic))
		}
		if m.QoS < 0 || m.QoS > 2 {
			p.add(at+".mqtt.qos", "%d: must be 0, 1 or 2", m.QoS)
		}
	}
	if x.HTTP != nil {
		address(".http.url", x.HTTP.URL, "http", "https")
	}
}

// Ref names an object.
type Ref struct {
	// Name is the object's name.
	Name string `json:"name,omitempty"`
}

// Protocol is how to connect to a device.
type Protocol struct {
	// Name tells several configurations of one protocol apart.
	Name string `json:"name,omitempty"`
	// +required
	// Type is the protocol: modbus, opcua, bluetoothle, … upper and lower case are alike.
	Type string `json:"type,omitempty"`
	// Config is the protocol's own: an address, a unit.
	Config map[string]string `json:"config,omitempty"`
}

// DesiredMeta is kept with each wanted value, in the same commit.
type DesiredMeta struct {
	Ver     uint64 `json:"ver"`               // rises with each change, also when the value is cleared
	TS      int64  `json:"ts"`                // milliseconds since 1970
	Origin  string `json:"origin,omitempty"`  // who wrote it
	Cleared bool   `json:"cleared,omitempty"` // no value now; the counter is kept
}

// Stamp gives every wanted value of next that differs from prev's its version,
// time and origin, and keeps the others'. prev is nil for a new Device. next's
// own DesiredMeta is ignored: nobody but Stamp writes it.
func Stamp(prev, next *Device, origin string, now time.Time) {
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
			meta[name] = DesiredMeta{Ver: m.Ver + 1, TS: ts, Origin: origin}
		}
	}
	for name, m := range meta {
		if _, wanted := next.Spec.Desired[name]; !wanted && !m.Cleared {
			meta[name] = DesiredMeta{Ver: m.Ver + 1, TS: ts, Origin: origin, Cleared: true}
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

// DeviceStatus is what is known of a device.
type DeviceStatus struct {
	// State is online, offline or unknown, as the device's mapper says.
	State string `json:"state,omitempty"`
	// LastSeen is when the device last reported anything.
	LastSeen string `json:"lastSeen,omitempty"`
	// Twin has an entry for each property that is wanted or was reported.
	Twin map[string]TwinProperty `json:"twin,omitempty"`
	// Conditions are Online, InSync, Refused, TwinConflict, NodeOnline.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// Change is when a device of a node last changed, or left it: a revision of the node's. One that comes back in
// another namespace is another device, though the node knows both by one name: the one that was before has left.
type Change struct {
	Name, Namespace string
	Rev             uint64
	Gone            bool
}

// Bundle is the payload of devices/{device}: the Device, without what travels
// on topics of its own (desired values, status), and its model.
type Bundle struct {
	Device Device      `json:"device"`
	Model  DeviceModel `json:"model"`
}

// NewBundle makes the bundle of a device and its model. The device's own visitors
// stand among the model's there, and the model's configuration of the protocol in the device's: a mapper looks in one place.
func NewBundle(d Device, m DeviceModel) Bundle {
	d.Spec.Protocol.Config = m.config(d.Spec.Protocol)
	m = m.with(d.Spec.Protocol.Type, d.Spec.PropertyVisitors)
	d.Spec.Desired, d.Spec.DesiredUntil, d.DesiredMeta, d.Spec.PropertyVisitors = nil, nil, nil, nil
	d.Status = DeviceStatus{}
	// What changes with every write of the object would make a bundle of its own of each.
	for _, meta := range []*Meta{&d.Metadata, &m.Metadata} {
		meta.ResourceVersion, meta.ManagedFields = "", nil
	}
	d.Metadata.Generation = 0
	return Bundle{d, m}
}

// Membership is the payload of membership.
type Membership struct {
	Devices []string `json:"devices"`
}
