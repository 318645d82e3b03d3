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

// Configuration says what to discover on nodes, and what to do with what is found.
type Configuration struct {
	TypeMeta
	Metadata Meta                `json:"metadata"`
	Spec     ConfigurationSpec   `json:"spec"`
	Status   ConfigurationStatus `json:"status,omitzero"`
}

// ConfigurationSpec is what to discover.
type ConfigurationSpec struct {
	// DiscoveryHandler does the discovering.
	DiscoveryHandler DiscoveryHandler `json:"discoveryHandler"`
	// NodeSelector chooses the nodes that look for devices by their labels; all nodes when it is empty.
	NodeSelector *LabelSelector `json:"nodeSelector,omitempty"`
	// GracePeriod is how long a found device that no node sees any more keeps its Instance, and a node that is offline its slots.
	GracePeriod *GracePeriod `json:"gracePeriod,omitempty"`
	// Failover says whether the slot of a shared device, and with it the Device or broker, moves to another node that sees the device when
	// its node is offline: Never, which is the default, or AfterGrace, once it has been offline for gracePeriod.offline. A node that is
	// offline may still run the device: AfterGrace is for devices that two nodes may drive at once.
	// +kubebuilder:validation:Enum=Never;AfterGrace
	// +default=Never
	Failover string `json:"failover,omitempty"`
	// DeviceTemplate is what to make a Device of for each found device; without it none is made.
	DeviceTemplate *DeviceTemplate `json:"deviceTemplate,omitempty"`
	// Capacity is how many nodes may use one found device at once; 1 when it is missing.
	// +kubebuilder:validation:Minimum=1
	// +default=1
	Capacity *int `json:"capacity,omitempty"`
	// BrokerProperties are given to all who use a found device.
	BrokerProperties map[string]string `json:"brokerProperties,omitempty"`
	// BrokerSpec is what to run for each found device: brokerPodSpec or brokerJobSpec, in the form of Kubernetes. What of it nodes
	// can do is done by their agents; the rest is named in the condition BrokerAccepted.
	BrokerSpec json.RawMessage `json:"brokerSpec,omitempty"`
	// InstanceServiceSpec is kept as it is.
	InstanceServiceSpec json.RawMessage `json:"instanceServiceSpec,omitempty"`
	// ConfigurationServiceSpec is kept as it is.
	ConfigurationServiceSpec json.RawMessage `json:"configurationServiceSpec,omitempty"`
}

// DiscoveryHandler names a program on nodes that discovers, and what it is told.
type DiscoveryHandler struct {
	// Name is the protocol under which the handler registers: onvif, udev, opcua, …
	Name string `json:"name"`
	// DiscoveryDetails are given to the handler with each request; often one of them is a whole document in YAML.
	DiscoveryDetails map[string]string `json:"discoveryDetails,omitempty"`
	// DiscoveryProperties are more values for the handler, which may be those of Secrets and ConfigMaps.
	// +listType=map
	// +listMapKey=name
	DiscoveryProperties []DiscoveryProperty `json:"discoveryProperties,omitempty"`
}

// DiscoveryProperty is a value for a discovery handler: given here, or referred to.
type DiscoveryProperty struct {
	// Name is what the handler calls it.
	Name string `json:"name"`
	// Value is the value itself.
	Value string `json:"value,omitempty"`
	// ValueFrom is where the value is, if it is not here.
	ValueFrom *DiscoveryPropertySource `json:"valueFrom,omitempty"`
}

// DiscoveryPropertySource is one of a Secret's and a ConfigMap's values.
type DiscoveryPropertySource struct {
	// SecretKeyRef is a value of a Secret.
	SecretKeyRef *KeyRef `json:"secretKeyRef,omitempty"`
	// ConfigMapKeyRef is a value of a ConfigMap.
	ConfigMapKeyRef *KeyRef `json:"configMapKeyRef,omitempty"`
}

// KeyRef is one value of a Secret or ConfigMap.
type KeyRef struct {
	// Name is the object's.
	Name string `json:"name"`
	// Namespace is the object's; that of the Configuration when empty.
	Namespace string `json:"namespace,omitempty"`
	// Key is the value's name in it.
	Key string `json:"key"`
	// Optional leaves the property out if there is no such value; otherwise nothing is discovered until there is.
	Optional bool `json:"optional,omitempty"`
}

// GracePeriod is how long a found device that no node sees any more keeps its Instance. Its condition Visible is False at once.
type GracePeriod struct {
	// Shared is for devices that several nodes may see; 5m when empty.
	Shared string `json:"shared,omitempty"`
	// Local is for devices that one node sees; 30s when empty.
	Local string `json:"local,omitempty"`
	// Offline is how long a node is offline before its slots of shared devices move to other nodes, if failover is AfterGrace; 5m when empty.
	Offline string `json:"offline,omitempty"`
}

// The values of ConfigurationSpec.Failover.
const (
	FailoverNever      = "Never"
	FailoverAfterGrace = "AfterGrace"
)

// Of is the grace period of shared or local devices.
func (g *GracePeriod) Of(shared bool) time.Duration {
	switch {
	case g == nil:
		return new(GracePeriod).Of(shared)
	case shared:
		return durationOr(g.Shared, 5*time.Minute)
	}
	return durationOr(g.Local, 30*time.Second)
}

// OfNode is the grace period of a node that is offline.
func (g *GracePeriod) OfNode() time.Duration {
	const byDefault = 5 * time.Minute
	if g == nil {
		return byDefault
	}
	return durationOr(g.Offline, byDefault)
}

// durationOr reads a duration that was checked; an empty one is the default.
func durationOr(text string, byDefault time.Duration) time.Duration {
	if d, err := time.ParseDuration(text); err == nil {
		return d
	}
	return byDefault
}

// DeviceTemplate is what a Device is made of for a found device. Texts with {{ are Go templates over the found device: .id, .name
// (the Instance's), .configuration, .node, .shared and .properties, such as {{ index .properties "MODBUS_ADDRESS" }}.
type DeviceTemplate struct {
	// Approval says when a Device is made: Automatic at once, which is the default, Manual once spec.approval of the Instance is
	// Approved.
	// +kubebuilder:validation:Enum=Automatic;Manual
	// +default=Automatic
	Approval string `json:"approval,omitempty"`
	// WhenGone says what becomes of the Device when its Instance goes: Delete deletes it, which is the default; Keep keeps it, offline.
	// +kubebuilder:validation:Enum=Delete;Keep
	// +default=Delete
	WhenGone string `json:"whenGone,omitempty"`
	// Metadata is the Device's.
	Metadata *DeviceTemplateMeta `json:"metadata,omitempty"`
	// Spec is what is wanted of the Device.
	Spec DeviceTemplateSpec `json:"spec"`
}

// DeviceTemplateSpec is what a DeviceTemplate says of a Device. Its node is the one that uses the found device.
type DeviceTemplateSpec struct {
	// DeviceModelRef names the DeviceModel, in the Configuration's namespace.
	// +required
	DeviceModelRef Ref `json:"deviceModelRef,omitzero"`
	// Protocol is how the device is reached.
	// +required
	Protocol Protocol `json:"protocol,omitzero"`
	// Desired are the wanted values of properties.
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
	// Name is the Device's; the Instance's when empty.
	Name string `json:"name,omitempty"`
	// Labels are the Device's.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations are the Device's.
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ConfigurationStatus is how discovery goes.
type ConfigurationStatus struct {
	// Instances is how many devices are found.
	Instances int `json:"instances,omitempty"`
	// Nodes is how many nodes look for devices.
	Nodes int `json:"nodes,omitempty"`
	// Conditions: PropertiesResolved says whether the values that discoveryProperties refer to are there; HandlerReady whether
	// all nodes have the handler; DetailsAccepted whether the handlers accept the details; DeviceTemplateAccepted and
	// BrokerAccepted whether Devices and brokers can be made; BrokerReady whether the brokers of all Instances run.
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
	// maxDetails bounds what a Configuration tells handlers, in bytes: a node gets it as one value.
	maxDetails    = 48 << 10
	maxProperties = 256
)

// Validate checks a Configuration.
func (c Configuration) Validate() error {
	var p problems
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
	oneOf(&p, "spec.failover", c.Spec.Failover, []string{"", FailoverNever, FailoverAfterGrace})
	if t := c.Spec.DeviceTemplate; t != nil {
		oneOf(&p, "spec.deviceTemplate.approval", t.Approval, []string{"", ApprovalAutomatic, ApprovalManual})
		oneOf(&p, "spec.deviceTemplate.whenGone", t.WhenGone, []string{"", WhenGoneDelete, WhenGoneKeep})
		required(&p, "spec.deviceTemplate.spec.deviceModelRef.name", t.Spec.DeviceModelRef.Name)
		required(&p, "spec.deviceTemplate.spec.protocol.type", t.Spec.Protocol.Type)
	}
	return p.err()
}

// maxCapacity bounds the slots of an Instance, which are all listed in it.
const maxCapacity = 1024

func (h DiscoveryHandler) check(p *problems, at string) {
	required(p, at+".name", h.Name)
	size := len(h.Name)
	for name, text := range h.DiscoveryDetails {
		size += len(name) + len(text)
	}
	if len(h.DiscoveryProperties) > maxProperties {
		p.add(at+".discoveryProperties", "has %d entries; at most %d are taken", len(h.DiscoveryProperties), maxProperties)
		return
	}
	seen := names{}
	for i, d := range h.DiscoveryProperties {
		at := fmt.Sprintf("%s.discoveryProperties[%d]", at, i)
		required(p, at+".name", d.Name)
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

func (k *KeyRef) check(p *problems, at string) {
	if k == nil {
		return
	}
	checkName(p, at+".name", k.Name)
	required(p, at+".key", k.Key)
	if k.Namespace != "" {
		checkName(p, at+".namespace", k.Namespace)
	}
}

// Instance is a device that was discovered.
type Instance struct {
	TypeMeta
	Metadata Meta           `json:"metadata"`
	Spec     InstanceSpec   `json:"spec"`
	Status   InstanceStatus `json:"status,omitzero"`
}

// InstanceSpec is what was found, and who uses it.
type InstanceSpec struct {
	// ConfigurationName is the Configuration that asked for it, in the same namespace. It is immutable.
	ConfigurationName string `json:"configurationName"`
	// ID is the handler's name for the device. It is immutable.
	ID string `json:"id,omitempty"`
	// Shared says that several nodes see the same device, such as an IP camera.
	Shared bool `json:"shared,omitempty"`
	// ShortName is the name that Akri would give the Instance; a label of the Instance has it, too.
	ShortName string `json:"shortName,omitempty"`
	// Approval says whether a Device is made of it, where the Configuration's deviceTemplate asks for approval.
	// +kubebuilder:validation:Enum=Approved;Denied
	Approval string `json:"approval,omitempty"`
	// Capacity is how many nodes may use it at once.
	Capacity int `json:"capacity,omitempty"`
	// Nodes are those that see it.
	// +listType=set
	Nodes []string `json:"nodes,omitempty"`
	// DeviceUsage says for each slot of the capacity which node uses it; empty: none.
	DeviceUsage map[string]string `json:"deviceUsage,omitempty"`
	// BrokerProperties are what the handler says of the device: an address, a device file.
	BrokerProperties map[string]string `json:"brokerProperties,omitempty"`
	// Mounts are what its user needs of the host's files.
	Mounts []InstanceMount `json:"mounts,omitempty"`
	// DeviceSpecs are what its user needs of the host's devices.
	DeviceSpecs []InstanceDevice `json:"deviceSpecs,omitempty"`
}

// InstanceMount is a file or directory of the host that the user of a device needs.
type InstanceMount struct {
	// ContainerPath is where it is to be seen.
	ContainerPath string `json:"containerPath"`
	// HostPath is where it is on the host.
	HostPath string `json:"hostPath"`
	// ReadOnly says that it isn't to be written.
	ReadOnly bool `json:"readOnly,omitempty"`
}

// InstanceDevice is a device file of the host that the user of a device needs.
type InstanceDevice struct {
	// ContainerPath is where it is to be seen.
	ContainerPath string `json:"containerPath"`
	// HostPath is where it is on the host.
	HostPath string `json:"hostPath"`
	// Permissions are one or more of r, w, m: read, write, make device files.
	// +kubebuilder:validation:Pattern=`^[rwm]*$`
	Permissions string `json:"permissions,omitempty"`
}

// InstanceStatus is what is known of a found device.
type InstanceStatus struct {
	// Device is the Device that was made of it; empty: none.
	Device string `json:"device,omitempty"`
	// LastSeen is when the last node stopped seeing it; empty: a node sees it.
	LastSeen string `json:"lastSeen,omitempty"`
	// Conditions: Visible says whether any node sees it now; Onboarded whether a Device was made of it; BrokerReady whether its broker runs
	// on all nodes that use it.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// Validate checks an Instance.
func (n Instance) Validate() error {
	var p problems
	n.Metadata.check(&p)
	checkName(&p, "spec.configurationName", n.Spec.ConfigurationName)
	nodes := names{}
	for i, name := range n.Spec.Nodes {
		nodes.check(&p, fmt.Sprintf("spec.nodes[%d]", i), name)
	}
	oneOf(&p, "spec.approval", n.Spec.Approval, []string{"", Approved, Denied})
	checkHostPaths(&p, "spec.", n.Spec.Mounts, n.Spec.DeviceSpecs)
	return p.err()
}

func checkHostPaths(p *problems, prefix string, mounts []InstanceMount, devices []InstanceDevice) {
	for i, m := range mounts {
		at := fmt.Sprintf("%smounts[%d]", prefix, i)
		required(p, at+".containerPath", m.ContainerPath)
		required(p, at+".hostPath", m.HostPath)
	}
	for i, d := range devices {
		at := fmt.Sprintf("%sdeviceSpecs[%d]", prefix, i)
		required(p, at+".containerPath", d.ContainerPath)
		required(p, at+".hostPath", d.HostPath)
		if strings.Trim(d.Permissions, "rwm") != "" {
			p.add(at+".permissions", "%s: must be of the letters r, w and m", clip(d.Permissions))
		}
	}
}

// CheckUpdate reports whether an Instance may follow prev.
func (n Instance) CheckUpdate(prev Instance) error {
	var p problems
	unchanged(&p, "spec.configurationName", prev.Spec.ConfigurationName, n.Spec.ConfigurationName)
	unchanged(&p, "spec.id", prev.Spec.ID, n.Spec.ID)
	return p.err()
}

// DiscoveryRequest is the payload of discovery/{configuration}: what a node is to look for. A node has one for each Configuration that
// concerns it; when the payload is cleared, what was found for it is removed from the node.
type DiscoveryRequest struct {
	// Version is another one after each change of what is to be looked for, of a Secret's value, too. Handlers are then asked again.
	Version string `json:"version"`
	// Handler is the name under which the discovery handler registers.
	Handler string `json:"handler"`
	// Details are for the handler. See Text.
	Details map[string]string `json:"details,omitempty"`
	// Properties are for the handler: those whose values stand in the Configuration.
	Properties map[string]string `json:"properties,omitempty"`
	// Secrets is the version of the SecretValues at secrets/discovery/{configuration}, whose data are more properties. A handler is
	// not asked before they are there in this version. Empty: there are none.
	Secrets string `json:"secrets,omitempty"`
}

// OnlyDetail is the name of the detail of a Configuration whose details are one text.
const OnlyDetail = "protocolHandler"

// Text is the details as one text, as discovery handlers of Akri are given them: the text itself if they are one, or else a JSON
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

// HandlerReport is the payload of discovery/{configuration}/handler: what a node says of a Configuration's discovery handler.
type HandlerReport struct {
	// Version is that of the DiscoveryRequest that it is about. Without it the report is about the present one.
	Version string `json:"version,omitempty"`
	// State is how it is altogether: Accepted if any endpoint has accepted the details.
	// +kubebuilder:validation:Enum=NoHandler;Accepted;Refused;Failing
	State string `json:"state"`
	// Message says why, for people.
	Message string `json:"message,omitempty"`
	// Endpoints are the handlers of that name, if more is to be said of them than of all.
	Endpoints []HandlerEndpoint `json:"endpoints,omitempty"`
}

// HandlerEndpoint is one of the programs that discover under one name on a node.
type HandlerEndpoint struct {
	// Endpoint is its address, such as /run/edgebus/discovery/onvif.sock, or embedded.
	Endpoint string `json:"endpoint"`
	// State is one of those of HandlerReport, but NoHandler.
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
	// MaxDiscovered bounds a DiscoveredDevice, and a HandlerReport, as JSON in bytes.
	MaxDiscovered     = 32 << 10
	maxDiscoveredID   = 1024
	maxEndpoints      = 64
	maxHandlerMessage = 2 << 10
)

// ParseHandlerReport reads the payload of discovery/{configuration}/handler. Fields that are not known are ignored.
func ParseHandlerReport(payload []byte) (r HandlerReport, err error) {
	if len(payload) > MaxDiscovered {
		return r, Errorf(TooLarge, "handler", "%d bytes; a report is at most %d", len(payload), MaxDiscovered)
	}
	if err := json.Unmarshal(payload, &r); err != nil {
		return r, Errorf(Invalid, "handler", `the payload must be JSON such as {"state":"Accepted"}: %v`, err)
	}
	var p problems
	oneOf(&p, "handler.state", r.State, handlerStates)
	checkHandlerMessage(&p, "handler.message", r.Message)
	if len(r.Endpoints) > maxEndpoints {
		p.add("handler.endpoints", "has %d entries; at most %d are taken", len(r.Endpoints), maxEndpoints)
		return r, p.err()
	}
	for i, e := range r.Endpoints {
		at := fmt.Sprintf("handler.endpoints[%d]", i)
		required(&p, at+".endpoint", e.Endpoint)
		oneOf(&p, at+".state", e.State, handlerStates[1:])
		checkHandlerMessage(&p, at+".message", e.Message)
	}
	return r, p.err()
}

func checkHandlerMessage(p *problems, at, text string) {
	if len(text) > maxHandlerMessage {
		p.add(at, "has %d bytes; at most %d are taken", len(text), maxHandlerMessage)
	}
}

// DiscoveredDevice is the payload of discovery/{configuration}/instances/{instance}: a device that a node sees. While it is retained the
// node sees the device; it is cleared when it doesn't. {instance} is any valid name that is the Configuration's one for the id:
// see DiscoveredName.
type DiscoveredDevice struct {
	// ID is what tells the device from all others of the Configuration: for a shared device wherever it is seen, else on the node. It
	// is the {instance} of the topic when it is empty.
	ID string `json:"id,omitempty"`
	// Shared says that other nodes may see the same device, under the same id.
	Shared bool `json:"shared,omitempty"`
	// Properties describe the device: an address, a device file. Who uses it gets them as variables of the environment.
	Properties map[string]string `json:"properties,omitempty"`
	// Mounts are what its user needs of the host's files.
	Mounts []InstanceMount `json:"mounts,omitempty"`
	// DeviceSpecs are what its user needs of the host's devices.
	DeviceSpecs []InstanceDevice `json:"deviceSpecs,omitempty"`
}

// ParseDiscoveredDevice reads the payload of discovery/{configuration}/instances/{instance}. Fields that are not known are ignored.
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

// Validate checks what was found. It is for what comes from handlers, which nobody has checked.
func (d DiscoveredDevice) Validate() error {
	var p problems
	switch {
	case d.ID == "":
		p.add("id", "is required")
	case len(d.ID) > maxDiscoveredID || !utf8.ValidString(d.ID) || strings.ContainsRune(d.ID, 0):
		p.add("id", "%s: must be UTF-8 of at most %d bytes", clip(d.ID), maxDiscoveredID)
	}
	if len(d.Properties) > maxProperties {
		p.add("properties", "has %d entries; at most %d are taken", len(d.Properties), maxProperties)
		return p.err()
	}
	for name, value := range d.Properties {
		if name == "" || len(name) > 256 || !utf8.ValidString(name) || strings.ContainsAny(name, "=\x00") {
			p.add("properties", "%s: a name has 1 to 256 bytes of UTF-8, without = and NUL", clip(name))
		}
		if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
			p.add("properties["+name+"]", "%s: must be UTF-8 without NUL", clip(value))
		}
	}
	if len(d.Mounts)+len(d.DeviceSpecs) > maxProperties {
		p.add("mounts", "and deviceSpecs have more than %d entries", maxProperties)
		return p.err()
	}
	checkHostPaths(&p, "", d.Mounts, d.DeviceSpecs)
	absolute := func(at, file string) {
		if file != "" && (!path.IsAbs(file) || path.Clean(file) != file || strings.ContainsAny(file, ":,\x00\n")) {
			p.add(at, "%s: must be an absolute path without '.', '..', ':' and ','", clip(file))
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

// DiscoveredName is a name for the topic of a device with an id that may be no name: the first half of its SHA-256 in hexadecimal.
func DiscoveredName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:16])
}

// NormalizeDiscovered is a payload of one of the two topics that discoverers publish in the form in which it is stored: unchanged
// content is an unchanged value.
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
