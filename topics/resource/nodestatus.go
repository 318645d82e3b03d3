// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
)

// NodeStatus is the observed state of a node.
type NodeStatus struct {
	// State is online or offline: whether the node is connected to the hub, or present over HTTP.
	State string `json:"state,omitempty"`
	// OverHTTP says that a node which is online has no link: it asks for its spec and reports over HTTP, as flightctl's agent does. It has no
	// devices, and takes no Upgrades.
	OverHTTP bool `json:"overHTTP,omitempty"`
	// LastSeen is the time when the state last changed.
	LastSeen string `json:"lastSeen,omitempty"`
	// Version is the version of the edge core.
	Version string `json:"version,omitempty"`
	// Devices is the number of Devices that are bound to the node and whose DeviceModel exists.
	Devices int `json:"devices,omitempty"`
	// SpecVersion is the version of the rendered spec that the hub sends to the node, a decimal number that rises with each
	// change.
	SpecVersion string `json:"specVersion,omitempty"`
	// RenderedVersion is the version of the rendered spec that the node has applied completely.
	RenderedVersion string `json:"renderedVersion,omitempty"`
	// SystemInfo describes the host.
	SystemInfo *SystemInfo `json:"systemInfo,omitempty"`
	// Containers are the containers that spec.monitoring selects.
	// +listType=map
	// +listMapKey=id
	Containers []ContainerStatus `json:"containers,omitempty"`
	// SystemdUnits are the systemd units that spec.monitoring selects.
	// +listType=map
	// +listMapKey=name
	SystemdUnits []SystemdUnit `json:"systemdUnits,omitempty"`
	// AgentVersion is the version of the node's agent.
	AgentVersion string `json:"agentVersion,omitempty"`
	// Failed is the version of the spec that the node last tried to apply and could not. The node kept or restored the state
	// that it had before.
	Failed *FailedVersion `json:"failed,omitempty"`
	// OS is the OS image that the host has booted.
	OS *OSStatus `json:"os,omitempty"`
	// Applications are the states of the spec's applications.
	// +listType=map
	// +listMapKey=name
	Applications []ApplicationStatus `json:"applications,omitempty"`
	// Resources are the states of the host's resources.
	Resources *ResourceStatus `json:"resources,omitempty"`
	// Drifted are files that were changed on the host by other means and that spec.drift leaves as they are.
	// +listType=atomic
	Drifted []string `json:"drifted,omitempty"`
	// CertificateExpires is the expiry time of the certificate with which the node last connected; empty if it had none.
	CertificateExpires string `json:"certificateExpires,omitempty"`
	// UpdatedAt is the time when the node last reported its status.
	UpdatedAt string `json:"updatedAt,omitempty"`
	// Conditions are those of the node, its agent and its rendered spec. Ready says whether the link to the hub is up.
	// QuotaExceeded, OfAnotherHub, RolledBack, Revoked and DiskPressure exist once they have been True, CertificateRenewal once a renewal has failed, and
	// SpecRendered and ReferencesResolved from the first spec on.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// AgentConditions are the types of the conditions that the node's agent reported. One that it no longer reports is removed
	// from conditions.
	// +listType=atomic
	AgentConditions []string `json:"agentConditions,omitempty"`
}

// ContainerStatus is the state of a container on a node.
type ContainerStatus struct {
	// ID is the container's identifier in its engine.
	ID string `json:"id"`
	// Name is the container's name.
	Name string `json:"name,omitempty"`
	// Status is the state in the engine's words: running, exited, …
	Status string `json:"status,omitempty"`
	// Image is the image of the container.
	Image string `json:"image,omitempty"`
	// Engine is the container engine: podman, docker, …
	Engine string `json:"engine,omitempty"`
}

// SystemdUnit is the state of a systemd unit on a node.
type SystemdUnit struct {
	// Name is the unit's name with its suffix, such as sshd.service.
	Name string `json:"name"`
	// LoadState is the load state in systemd's words: loaded, not-found, masked, …
	LoadState string `json:"loadState,omitempty"`
	// ActiveState is the active state in systemd's words: active, inactive, failed, …
	ActiveState string `json:"activeState,omitempty"`
}

// SystemInfo describes the host of a node.
type SystemInfo struct {
	// Architecture is the processor architecture: amd64, arm64, …
	Architecture string `json:"architecture,omitempty"`
	// OperatingSystem is the name of the system in its os-release file; without that file it is linux, …
	OperatingSystem string `json:"operatingSystem,omitempty"`
	// Kernel is the release of the kernel.
	Kernel string `json:"kernel,omitempty"`
	// Hostname is the host's own name.
	Hostname string `json:"hostname,omitempty"`
	// MachineID is the host's identifier in /etc/machine-id.
	MachineID string `json:"machineID,omitempty"`
	// BootID differs after each boot.
	BootID string `json:"bootID,omitempty"`
	// CPUs is the number of processors.
	CPUs int `json:"cpus,omitempty"`
	// Measurements are the SHA-256 registers of the host's TPM: pcr00, … Registers that were never extended are left out.
	Measurements map[string]string `json:"measurements,omitempty"`
}

// NodeReport is the payload of the topic status: what a core reports about itself.
type NodeReport struct {
	Version    string      `json:"version"`
	SystemInfo *SystemInfo `json:"systemInfo,omitempty"`
	StartedAt  string      `json:"startedAt,omitempty"`
	// RenewalError is why the node's certificate could not be renewed; empty if it was, or is not due yet.
	RenewalError string `json:"renewalError,omitempty"`
	// LowSpace is how little of the disk with the core's data directory is free, if it is nearly full.
	LowSpace string `json:"lowSpace,omitempty"`
}

// CheckStatus checks a status that a node's agent has reported.
func (n Node) CheckStatus() error {
	var p causeList
	n.Status.check(&p, "status")
	return p.err()
}

func (s NodeStatus) check(p *causeList, at string) {
	for i, c := range s.Containers {
		checkRequired(p, fmt.Sprintf("%s.containers[%d].id", at, i), c.ID)
	}
	for i, a := range s.Applications {
		checkRequired(p, fmt.Sprintf("%s.applications[%d].name", at, i), a.Name)
		checkRequired(p, fmt.Sprintf("%s.applications[%d].status", at, i), a.Status)
	}
	if f := s.Failed; f != nil {
		checkRequired(p, at+".failed.renderedVersion", f.RenderedVersion)
		checkRequired(p, at+".failed.reason", f.Reason)
	}
	for i, u := range s.SystemdUnits {
		checkRequired(p, fmt.Sprintf("%s.systemdUnits[%d].name", at, i), u.Name)
	}
}
