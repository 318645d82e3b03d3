// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/edgebus/edgebus/topics"
)

// Configuration is a request to discover devices on nodes, with what is done with each device that is found.
type Configuration struct {
	TypeMeta
	Metadata Meta                `json:"metadata"`
	Spec     ConfigurationSpec   `json:"spec"`
	Status   ConfigurationStatus `json:"status,omitzero"`
}

// ConfigurationSpec is the desired state of a Configuration.
type ConfigurationSpec struct {
	// DiscoveryHandler is the discovery handler and its input.
	DiscoveryHandler DiscoveryHandler `json:"discoveryHandler"`
	// NodeSelector selects, by their labels, the nodes on which devices are discovered; all nodes when it is empty.
	NodeSelector *LabelSelector `json:"nodeSelector,omitempty"`
	// GracePeriod is the time after which the Instance of a device that no node sees is deleted, and the time for which a node that is
	// offline keeps its slots.
	GracePeriod *GracePeriod `json:"gracePeriod,omitempty"`
	// Failover says whether the slot of a shared device moves to another node that sees the device when its node is offline. The Device
	// or broker moves with the slot. Never, the default: it does not move. AfterGrace: it moves when the node has been offline for
	// gracePeriod.offline. A node that is offline may still use the device, so AfterGrace is for devices that two nodes may use at once.
	// +kubebuilder:validation:Enum=Never;AfterGrace
	// +default=Never
	Failover string `json:"failover,omitempty"`
	// DeviceTemplate is the template from which a Device is created for each device that is found. No Device is created without it.
	DeviceTemplate *DeviceTemplate `json:"deviceTemplate,omitempty"`
	// Capacity is the number of nodes that may use one device at once; 1 when missing.
	// +kubebuilder:validation:Minimum=1
	// +default=1
	Capacity *int `json:"capacity,omitempty"`
	// BrokerProperties are passed to every user of a discovered device, as environment variables.
	BrokerProperties map[string]string `json:"brokerProperties,omitempty"`
	// BrokerSpec is what is run for each discovered device: brokerPodSpec or brokerJobSpec, as in Kubernetes. The agents of nodes
	// support part of it; the condition BrokerAccepted names the fields that they do not support.
	BrokerSpec json.RawMessage `json:"brokerSpec,omitempty"`
	// InstanceServiceSpec is stored for compatibility with Akri and has no effect.
	InstanceServiceSpec json.RawMessage `json:"instanceServiceSpec,omitempty"`
	// ConfigurationServiceSpec is stored for compatibility with Akri and has no effect.
	ConfigurationServiceSpec json.RawMessage `json:"configurationServiceSpec,omitempty"`
}

// DiscoveryHandler names a discovery handler, which is a program on nodes, and has its input.
type DiscoveryHandler struct {
	// Name is the name under which the handler registers: onvif, udev, opcua, …
	Name string `json:"name"`
	// DiscoveryDetails are passed to the handler with each request: its fields, or one text that has them in YAML. A value that is an object or a
	// list is read as its JSON text.
	DiscoveryDetails map[string]Value `json:"discoveryDetails,omitempty"`
	// DiscoveryProperties are further values for the handler, which may come from Secrets and ConfigMaps.
	// +listType=map
	// +listMapKey=name
	DiscoveryProperties []DiscoveryProperty `json:"discoveryProperties,omitempty"`
}

// DiscoveryProperty is a value for a discovery handler, or a reference to one.
type DiscoveryProperty struct {
	// Name is the name by which the handler knows the value.
	Name string `json:"name"`
	// Value is the value.
	Value string `json:"value,omitempty"`
	// ValueFrom refers to the value.
	ValueFrom *DiscoveryPropertySource `json:"valueFrom,omitempty"`
}

// DiscoveryPropertySource refers to a value in a Secret or a ConfigMap.
type DiscoveryPropertySource struct {
	// SecretKeyRef refers to a value in a Secret.
	SecretKeyRef *KeyRef `json:"secretKeyRef,omitempty"`
	// ConfigMapKeyRef refers to a value in a ConfigMap.
	ConfigMapKeyRef *KeyRef `json:"configMapKeyRef,omitempty"`
}

// KeyRef refers to a value in a Secret or ConfigMap.
type KeyRef struct {
	// Name is the name of the Secret or ConfigMap.
	Name string `json:"name"`
	// Namespace is its namespace; the namespace of the Configuration when empty.
	Namespace string `json:"namespace,omitempty"`
	// Key is the key of the value in its data.
	Key string `json:"key"`
	// Optional allows the value to be missing: the property is then left out. If it is false, nothing is discovered until the value exists.
	Optional bool `json:"optional,omitempty"`
}

// GracePeriod has the times after which the Instance of a device that no node sees is deleted. The Instance's condition Visible is
// False at once.
type GracePeriod struct {
	// Shared is the time for devices that several nodes may see; 5m when empty.
	Shared string `json:"shared,omitempty"`
	// Local is the time for devices that only one node can see; 30s when empty.
	Local string `json:"local,omitempty"`
	// Offline is the time for which a node is offline before its slots of shared devices move to other nodes, if failover is
	// AfterGrace; 5m when empty.
	Offline string `json:"offline,omitempty"`
}

// The values of ConfigurationSpec.Failover.
const (
	FailoverNever      = "Never"
	FailoverAfterGrace = "AfterGrace"
)

// Of returns the grace period of shared or local devices.
func (g *GracePeriod) Of(shared bool) time.Duration {
	switch {
	case g == nil:
		return new(GracePeriod).Of(shared)
	case shared:
		return durationOr(g.Shared, 5*time.Minute)
	}
	return durationOr(g.Local, 30*time.Second)
}

// OfNode returns the grace period of a node that is offline.
func (g *GracePeriod) OfNode() time.Duration {
	const byDefault = 5 * time.Minute
	if g == nil {
		return byDefault
	}
	return durationOr(g.Offline, byDefault)
}

// durationOr parses a duration that was validated; the default if it is empty.
func durationOr(text string, byDefault time.Duration) time.Duration {
	if d, err := time.ParseDuration(text); err == nil {
		return d
	}
	return byDefault
}

// DeviceTemplate is the template from which Devices are created. A string that contains {{ is a Go template, whose data are .id,
// .name (of the Instance), .configuration, .node, .shared and .properties, such as {{ index .properties "MODBUS_ADDRESS" }}.
type DeviceTemplate struct {
	// Approval says when a Device is created. Automatic, the default: at once. Manual: when spec.approval of the Instance is Approved.
	// +kubebuilder:validation:Enum=Automatic;Manual
	// +default=Automatic
	Approval string `json:"approval,omitempty"`
	// WhenGone says what happens to the Device when its Instance is deleted. Delete, the default: it is deleted. Keep: it stays, and is
	// offline.
	// +kubebuilder:validation:Enum=Delete;Keep
	// +default=Delete
	WhenGone string `json:"whenGone,omitempty"`
	// Metadata is the metadata of the Device.
	Metadata *DeviceTemplateMeta `json:"metadata,omitempty"`
	// Spec is the spec of the Device.
	Spec DeviceTemplateSpec `json:"spec"`
}

// DeviceTemplateSpec is the spec of the Devices of a DeviceTemplate. A Device's node is the one that uses the discovered device.
type DeviceTemplateSpec struct {
	// DeviceModelRef names the DeviceModel, in the Configuration's namespace.
	// +required
	DeviceModelRef ObjectRef `json:"deviceModelRef,omitzero"`
	// Protocol says how the mapper reaches the device.
	// +required
	Protocol Protocol `json:"protocol,omitzero"`
	// Desired are the desired values of properties.
	Desired map[string]Value `json:"desired,omitempty"`
}

// The values of DeviceTemplate.
const (
	ApprovalAutomatic = "Automatic"
	ApprovalManual    = "Manual"
	WhenGoneDelete    = "Delete"
	WhenGoneKeep      = "Keep"
)

// DeviceTemplateMeta is the metadata of a DeviceTemplate.
type DeviceTemplateMeta struct {
	// Name is the name of the Device; the name of the Instance when empty.
	Name string `json:"name,omitempty"`
	// Labels are the labels of the Device.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations are the annotations of the Device.
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ConfigurationStatus is the observed state of a Configuration.
type ConfigurationStatus struct {
	// Instances is the number of devices that were found and have an Instance.
	Instances int `json:"instances,omitempty"`
	// Nodes is the number of nodes on which devices are discovered.
	Nodes int `json:"nodes,omitempty"`
	// Conditions are PropertiesResolved (the values to which discoveryProperties refer exist), HandlerReady (all nodes have the
	// handler), DetailsAccepted (the handlers accept the details), DeviceTemplateAccepted and BrokerAccepted (Devices and brokers
	// can be created), and BrokerReady (the brokers of all Instances run).
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// The conditions of Configurations and Instances.
const (
	ConditionPropertiesResolved = "PropertiesResolved"
	ConditionHandlerReady       = "HandlerReady"
	ConditionDetailsAccepted    = "DetailsAccepted"
	ConditionTemplateAccepted   = "DeviceTemplateAccepted"
	ConditionBrokerAccepted     = "BrokerAccepted"
	ConditionBrokerReady        = "BrokerReady"
	ConditionVisible            = "Visible"
	ConditionOnboarded          = "Onboarded"
)

const (
	// maxConfigurationName leaves room in the names of Instances for a dash and a hash.
	maxConfigurationName = 220
	// maxDetails is the largest size of a Configuration's details and properties in bytes: a node gets them as one value.
	maxDetails    = 48 << 10
	maxProperties = 256
)

// Validate checks the Configuration.
func (c Configuration) Validate() error {
	var p causeList
	c.Metadata.check(&p)
	if n := len(c.Metadata.Name); n > maxConfigurationName {
		p.add("metadata.name", "has %d characters; a Configuration's has at most %d, for its Instances add a dash and 32 digits", n, maxConfigurationName)
	}
	c.Spec.DiscoveryHandler.check(&p, "spec.discoveryHandler")
	if n := c.Spec.Capacity; n != nil && (*n < 1 || *n > maxCapacity) {
		p.add("spec.capacity", "%d: must be from 1 to %d", *n, maxCapacity)
	}
	c.Spec.NodeSelector.check(&p, "spec.nodeSelector")
	if g := c.Spec.GracePeriod; g != nil {
		checkDuration(&p, "spec.gracePeriod.shared", g.Shared, 0)
		checkDuration(&p, "spec.gracePeriod.local", g.Local, 0)
		checkDuration(&p, "spec.gracePeriod.offline", g.Offline, time.Second)
	}
	checkOneOf(&p, "spec.failover", c.Spec.Failover, []string{"", FailoverNever, FailoverAfterGrace})
	if t := c.Spec.DeviceTemplate; t != nil {
		checkOneOf(&p, "spec.deviceTemplate.approval", t.Approval, []string{"", ApprovalAutomatic, ApprovalManual})
		checkOneOf(&p, "spec.deviceTemplate.whenGone", t.WhenGone, []string{"", WhenGoneDelete, WhenGoneKeep})
		checkRequired(&p, "spec.deviceTemplate.spec.deviceModelRef.name", t.Spec.DeviceModelRef.Name)
		checkRequired(&p, "spec.deviceTemplate.spec.protocol.type", t.Spec.Protocol.Type)
	}
	return p.err()
}

// maxCapacity is the largest number of an Instance's slots, which are all listed in it.
const maxCapacity = 1024

func (h DiscoveryHandler) check(p *causeList, at string) {
	checkRequired(p, at+".name", h.Name)
	size := len(h.Name)
	for name, text := range h.DiscoveryDetails {
		size += len(name) + len(text)
	}
	if len(h.DiscoveryProperties) > maxProperties {
		p.add(at+".discoveryProperties", "has %d entries; at most %d are taken", len(h.DiscoveryProperties), maxProperties)
		return
	}
	seen := uniqueNames{}
	for i, d := range h.DiscoveryProperties {
		at := fmt.Sprintf("%s.discoveryProperties[%d]", at, i)
		checkRequired(p, at+".name", d.Name)
		seen.check(p, at+".name", d.Name)
		size += len(d.Name) + len(d.Value)
		if d.ValueFrom == nil {
			continue
		}
		secret, config := d.ValueFrom.SecretKeyRef, d.ValueFrom.ConfigMapKeyRef
		switch {
		case d.Value != "":
			p.add(at+".valueFrom", "must not be given beside value")
		case (secret == nil) == (config == nil):
			p.add(at+".valueFrom", "must be one of secretKeyRef and configMapKeyRef")
		}
		secret.check(p, at+".valueFrom.secretKeyRef")
		config.check(p, at+".valueFrom.configMapKeyRef")
	}
	if size > maxDetails {
		p.add(at, "has %d bytes of details and properties; at most %d are taken", size, maxDetails)
	}
}

func (k *KeyRef) check(p *causeList, at string) {
	if k == nil {
		return
	}
	checkName(p, at+".name", k.Name)
	checkRequired(p, at+".key", k.Key)
	if k.Namespace != "" {
		checkName(p, at+".namespace", k.Namespace)
	}
}

// Instance is a discovered device.
type Instance struct {
	TypeMeta
	Metadata Meta           `json:"metadata"`
	Spec     InstanceSpec   `json:"spec"`
	Status   InstanceStatus `json:"status,omitzero"`
}

// InstanceSpec describes the discovered device and the nodes that use it.
type InstanceSpec struct {
	// ConfigurationName is the name of the Configuration, in the same namespace. It is immutable.
	ConfigurationName string `json:"configurationName"`
	// ID is the identifier that the handler gave the device. It is immutable.
	ID string `json:"id,omitempty"`
	// Shared says that several nodes may see the device, such as an IP camera.
	Shared bool `json:"shared,omitempty"`
	// ShortName is the name that Akri would give the Instance. A label of the Instance has it, too.
	ShortName string `json:"shortName,omitempty"`
	// Approval says whether a Device is created for it, if the Configuration's deviceTemplate requires approval.
	// +kubebuilder:validation:Enum=Approved;Denied
	Approval string `json:"approval,omitempty"`
	// Capacity is the number of nodes that may use the device at once.
	Capacity int `json:"capacity,omitempty"`
	// Nodes are the names of the nodes that see the device.
	// +listType=set
	Nodes []string `json:"nodes,omitempty"`
	// DeviceUsage has the node that uses each slot of the capacity; empty if the slot is free.
	DeviceUsage map[string]string `json:"deviceUsage,omitempty"`
	// BrokerProperties are the brokerProperties of the Configuration together with the properties that the handler reported, such as an
	// address or a device file. Of two with one name the handler's is used.
	BrokerProperties map[string]string `json:"brokerProperties,omitempty"`
	// Mounts are the files and directories of the host that the user of the device needs.
	Mounts []InstanceMount `json:"mounts,omitempty"`
	// DeviceSpecs are the device files of the host that the user of the device needs.
	DeviceSpecs []InstanceDevice `json:"deviceSpecs,omitempty"`
}

// InstanceMount is a file or directory of the host that the user of a device needs.
type InstanceMount struct {
	// ContainerPath is its path in the container.
	ContainerPath string `json:"containerPath"`
	// HostPath is its path on the host.
	HostPath string `json:"hostPath"`
	// ReadOnly says that the container may not write to it.
	ReadOnly bool `json:"readOnly,omitempty"`
}

// InstanceDevice is a device file of the host that the user of a device needs.
type InstanceDevice struct {
	// ContainerPath is its path in the container.
	ContainerPath string `json:"containerPath"`
	// HostPath is its path on the host.
	HostPath string `json:"hostPath"`
	// Permissions are any of r, w and m: read, write, and create device files.
	// +kubebuilder:validation:Pattern=`^[rwm]*$`
	Permissions string `json:"permissions,omitempty"`
}

// InstanceStatus is the observed state of an Instance.
type InstanceStatus struct {
	// Device is the name of the Device that was created for it; empty if there is none.
	Device string `json:"device,omitempty"`
	// LastSeen is when the last node stopped seeing the device; empty while a node sees it.
	LastSeen string `json:"lastSeen,omitempty"`
	// Conditions are Visible (a node sees the device now), Onboarded (a Device was created for it) and BrokerReady (its broker runs on all
	// nodes that use it).
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// Validate checks the Instance.
func (n Instance) Validate() error {
	var p causeList
	n.Metadata.check(&p)
	checkName(&p, "spec.configurationName", n.Spec.ConfigurationName)
	nodes := uniqueNames{}
	for i, name := range n.Spec.Nodes {
		nodes.check(&p, fmt.Sprintf("spec.nodes[%d]", i), name)
	}
	checkOneOf(&p, "spec.approval", n.Spec.Approval, []string{"", Approved, Denied})
	checkHostPaths(&p, "spec.", n.Spec.Mounts, n.Spec.DeviceSpecs)
	return p.err()
}

func checkHostPaths(p *causeList, prefix string, mounts []InstanceMount, devices []InstanceDevice) {
	for i, m := range mounts {
		at := fmt.Sprintf("%smounts[%d]", prefix, i)
		checkRequired(p, at+".containerPath", m.ContainerPath)
		checkRequired(p, at+".hostPath", m.HostPath)
	}
	for i, d := range devices {
		at := fmt.Sprintf("%sdeviceSpecs[%d]", prefix, i)
		checkRequired(p, at+".containerPath", d.ContainerPath)
		checkRequired(p, at+".hostPath", d.HostPath)
		if strings.Trim(d.Permissions, "rwm") != "" {
			p.add(at+".permissions", "%s: must be of the letters r, w and m", clipText(d.Permissions))
		}
	}
}

// CheckUpdate reports whether an Instance may follow prev.
func (n Instance) CheckUpdate(prev Instance) error {
	var p causeList
	checkUnchanged(&p, "spec.configurationName", prev.Spec.ConfigurationName, n.Spec.ConfigurationName)
	checkUnchanged(&p, "spec.id", prev.Spec.ID, n.Spec.ID)
	return p.err()
}

// DiscoveryRequest is the payload of discovery/{configuration}: what a node discovers. A node has one for each Configuration that
// selects it. When the payload is cleared, the node removes what was found for it.
type DiscoveryRequest struct {
	// Version changes with each change of the request and of a Secret's value. The handlers then get a new request.
	Version string `json:"version"`
	// Handler is the name under which the discovery handler registers.
	Handler string `json:"handler"`
	// Details are the details for the handler. See Text.
	Details map[string]string `json:"details,omitempty"`
	// Properties are the properties for the handler whose values are in the Configuration itself.
	Properties map[string]string `json:"properties,omitempty"`
	// Secrets is the version of the SecretValues at secrets/discovery/{configuration}, whose data are further properties. A handler
	// gets no request before they exist in this version. It is empty if there are none.
	Secrets string `json:"secrets,omitempty"`
}

// OnlyDetail is the name of the only detail of a Configuration whose details are a string.
const OnlyDetail = "protocolHandler"

// Text returns the details as one string, as Akri's discovery handlers get them: the string if there is only one, or else a JSON
// object, which is YAML as well.
func (r DiscoveryRequest) Text() string {
	if only, ok := r.Details[OnlyDetail]; ok && len(r.Details) == 1 {
		return only
	}
	if len(r.Details) == 0 {
		return ""
	}
	text, _ := json.Marshal(r.Details) // texts by name
	return string(text)
}

// HandlerReport is the payload of discovery/{configuration}/handler: the state of a Configuration's discovery handler on a node.
type HandlerReport struct {
	// Version is the version of the DiscoveryRequest that the report is about; the current one when empty.
	Version string `json:"version,omitempty"`
	// State is the state of all endpoints together: Accepted if any endpoint has accepted the details.
	// +kubebuilder:validation:Enum=NoHandler;Accepted;Refused;Failing
	State string `json:"state"`
	// Message is the reason for the state, for people.
	Message string `json:"message,omitempty"`
	// Endpoints are the handlers of that name and their states, if these differ.
	Endpoints []HandlerEndpoint `json:"endpoints,omitempty"`
}

// HandlerEndpoint is one of a node's discovery handlers that have the same name.
type HandlerEndpoint struct {
	// Endpoint is the address of the handler, such as /run/edgebus/discovery/onvif.sock, or embedded.
	Endpoint string `json:"endpoint"`
	// State is Accepted, Refused or Failing.
	State string `json:"state"`
	// Message says why, for people.
	Message string `json:"message,omitempty"`
}

// The states of a HandlerReport.
const (
	HandlerMissing  = "NoHandler" // no handler has registered under the name
	HandlerAccepted = "Accepted"  // it discovers
	HandlerRefused  = "Refused"   // it says that the details or properties are wrong
	HandlerFailing  = "Failing"   // it can't be reached, or breaks the rules; it is asked again
)

var handlerStates = []string{HandlerMissing, HandlerAccepted, HandlerRefused, HandlerFailing}

const (
	// MaxDiscovered is the largest size of a DiscoveredDevice or HandlerReport as JSON in bytes.
	MaxDiscovered     = 32 << 10
	maxDiscoveredID   = 1024
	maxEndpoints      = 64
	maxHandlerMessage = 2 << 10
)

// ParseHandlerReport parses the payload of discovery/{configuration}/handler. Unknown fields are ignored.
func ParseHandlerReport(payload []byte) (r HandlerReport, err error) {
	if len(payload) > MaxDiscovered {
		return r, Errorf(TooLarge, "handler", "%d bytes; a report is at most %d", len(payload), MaxDiscovered)
	}
	if err := json.Unmarshal(payload, &r); err != nil {
		return r, Errorf(Invalid, "handler", `the payload must be JSON such as {"state":"Accepted"}: %v`, err)
	}
	var p causeList
	checkOneOf(&p, "handler.state", r.State, handlerStates)
	checkHandlerMessage(&p, "handler.message", r.Message)
	if len(r.Endpoints) > maxEndpoints {
		p.add("handler.endpoints", "has %d entries; at most %d are taken", len(r.Endpoints), maxEndpoints)
		return r, p.err()
	}
	for i, e := range r.Endpoints {
		at := fmt.Sprintf("handler.endpoints[%d]", i)
		checkRequired(&p, at+".endpoint", e.Endpoint)
		checkOneOf(&p, at+".state", e.State, handlerStates[1:])
		checkHandlerMessage(&p, at+".message", e.Message)
	}
	return r, p.err()
}

func checkHandlerMessage(p *causeList, at, text string) {
	if len(text) > maxHandlerMessage {
		p.add(at, "has %d bytes; at most %d are taken", len(text), maxHandlerMessage)
	}
}

// MaxDiscoveredDevices is the most devices that a node reports for a Configuration, and that Instances are made of.
const MaxDiscoveredDevices = 10_000

// DiscoveredDevice is the payload of discovery/{configuration}/instances/{instance}: a device that a node sees. It is retained while
// the node sees the device, and then cleared. {instance} is any valid name that the Configuration has for only this ID: see
// DiscoveredName.
type DiscoveredDevice struct {
	// ID identifies the device among those of the Configuration: on all nodes for a shared device, otherwise on this node. It
	// is the {instance} of the topic when empty.
	ID string `json:"id,omitempty"`
	// Shared says that other nodes may see the same device, with the same ID.
	Shared bool `json:"shared,omitempty"`
	// Properties describe the device, such as an address or a device file. A user of the device gets them as environment variables.
	Properties map[string]string `json:"properties,omitempty"`
	// Mounts are what its user needs of the host's files.
	Mounts []InstanceMount `json:"mounts,omitempty"`
	// DeviceSpecs are what its user needs of the host's devices.
	DeviceSpecs []InstanceDevice `json:"deviceSpecs,omitempty"`
}

// ParseDiscoveredDevice parses the payload of discovery/{configuration}/instances/{instance}. Unknown fields are ignored.
func ParseDiscoveredDevice(instance string, payload []byte) (d DiscoveredDevice, err error) {
	if len(payload) > MaxDiscovered {
		return d, Errorf(TooLarge, "instance", "%d bytes; a discovered device is at most %d", len(payload), MaxDiscovered)
	}
	if err := json.Unmarshal(payload, &d); err != nil {
		return d, Errorf(Invalid, "instance", `the payload must be JSON such as {"id":"…","properties":{"ADDRESS":"…"}}: %v`, err)
	}
	if d.ID == "" {
		d.ID = instance
	}
	return d, d.Validate()
}

// Validate checks the device, which comes unchecked from a handler.
func (d DiscoveredDevice) Validate() error {
	var p causeList
	switch {
	case d.ID == "":
		p.add("id", "is required")
	case len(d.ID) > maxDiscoveredID || !utf8.ValidString(d.ID) || strings.ContainsRune(d.ID, 0):
		p.add("id", "%s: must be UTF-8 of at most %d bytes", clipText(d.ID), maxDiscoveredID)
	}
	if len(d.Properties) > maxProperties {
		p.add("properties", "has %d entries; at most %d are taken", len(d.Properties), maxProperties)
		return p.err()
	}
	for name, value := range d.Properties {
		if name == "" || len(name) > 256 || !utf8.ValidString(name) || strings.ContainsAny(name, "=\x00") {
			p.add("properties", "%s: a name has 1 to 256 bytes of UTF-8, without = and NUL", clipText(name))
		}
		if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
			p.add("properties["+name+"]", "%s: must be UTF-8 without NUL", clipText(value))
		}
	}
	if len(d.Mounts)+len(d.DeviceSpecs) > maxProperties {
		p.add("mounts", "and deviceSpecs have more than %d entries", maxProperties)
		return p.err()
	}
	checkHostPaths(&p, "", d.Mounts, d.DeviceSpecs)
	absolute := func(at, file string) {
		if file != "" && (!path.IsAbs(file) || path.Clean(file) != file || strings.ContainsAny(file, ":,\x00\n")) {
			p.add(at, "%s: must be an absolute path without '.', '..', ':' and ','", clipText(file))
		}
	}
	for i, m := range d.Mounts {
		absolute(fmt.Sprintf("mounts[%d].containerPath", i), m.ContainerPath)
		absolute(fmt.Sprintf("mounts[%d].hostPath", i), m.HostPath)
	}
	for i, m := range d.DeviceSpecs {
		absolute(fmt.Sprintf("deviceSpecs[%d].containerPath", i), m.ContainerPath)
		absolute(fmt.Sprintf("deviceSpecs[%d].hostPath", i), m.HostPath)
	}
	return p.err()
}

// DiscoveredName returns the name in the topic for a device whose ID may not be a valid name: the first half of the ID's SHA-256 in
// hexadecimal.
func DiscoveredName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:16])
}

// NormalizeDiscovered returns the stored form of a payload of one of the two topics to which discoverers publish. Payloads with the
// same content have the same stored form.
func NormalizeDiscovered(a topics.Address, payload []byte) ([]byte, error) {
	var content any
	var err error
	if a.Kind == topics.KindDiscoveryHandler {
		content, err = ParseHandlerReport(payload)
	} else {
		content, err = ParseDiscoveredDevice(a.Name, payload)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(content)
}
