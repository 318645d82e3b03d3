package resource

import (
	"encoding/json"
	"fmt"
	"strings"
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
	// Capacity is how many nodes may use one found device at once; 1 when it is missing.
	// +kubebuilder:validation:Minimum=1
	// +default=1
	Capacity *int `json:"capacity,omitempty"`
	// BrokerProperties are given to all who use a found device.
	BrokerProperties map[string]string `json:"brokerProperties,omitempty"`
	// BrokerSpec is what to run for each found device. It is kept as it is.
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
}

// ConfigurationStatus is how discovery goes.
type ConfigurationStatus struct {
	// Instances is how many devices are found.
	Instances int `json:"instances,omitempty"`
	// Conditions: Accepted says whether handlers understood the details.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// Validate checks a Configuration.
func (c Configuration) Validate() error {
	var p problems
	c.Metadata.check(&p)
	required(&p, "spec.discoveryHandler.name", c.Spec.DiscoveryHandler.Name)
	if n := c.Spec.Capacity; n != nil && *n < 1 {
		p.add("spec.capacity", "%d: must be 1 or more", *n)
	}
	return p.err()
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
	// Conditions: Visible says whether any node sees it now.
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
	for i, m := range n.Spec.Mounts {
		at := fmt.Sprintf("spec.mounts[%d]", i)
		required(&p, at+".containerPath", m.ContainerPath)
		required(&p, at+".hostPath", m.HostPath)
	}
	for i, d := range n.Spec.DeviceSpecs {
		at := fmt.Sprintf("spec.deviceSpecs[%d]", i)
		required(&p, at+".containerPath", d.ContainerPath)
		required(&p, at+".hostPath", d.HostPath)
		if strings.Trim(d.Permissions, "rwm") != "" {
			p.add(at+".permissions", "%s: must be of the letters r, w and m", clip(d.Permissions))
		}
	}
	return p.err()
}

// CheckUpdate says whether an Instance may follow prev.
func (n Instance) CheckUpdate(prev Instance) error {
	var p problems
	unchanged(&p, "spec.configurationName", prev.Spec.ConfigurationName, n.Spec.ConfigurationName)
	unchanged(&p, "spec.id", prev.Spec.ID, n.Spec.ID)
	return p.err()
}
