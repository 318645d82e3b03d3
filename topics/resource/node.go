package resource

import (
	"encoding/json"
	"slices"
	"time"
)

// Node is a host that runs the edge core.
type Node struct {
	TypeMeta
	Metadata Meta       `json:"metadata"`
	Spec     NodeSpec   `json:"spec,omitzero"`
	Status   NodeStatus `json:"status,omitzero"`
}

// NodeSpec is what is wanted of a node.
type NodeSpec struct {
	OS         *NodeOS         `json:"os,omitempty"`
	Config     json.RawMessage `json:"config,omitempty"`
	Monitoring json.RawMessage `json:"monitoring,omitempty"`
}

// NodeOS is the operating system that is wanted.
type NodeOS struct {
	Image string `json:"image,omitempty"`
}

// NodeStatus is what is known of a node.
type NodeStatus struct {
	State      string      `json:"state,omitempty"` // online, offline
	LastSeen   string      `json:"lastSeen,omitempty"`
	Version    string      `json:"version,omitempty"` // of the core
	SystemInfo *SystemInfo `json:"systemInfo,omitempty"`
	Conditions []Condition `json:"conditions,omitempty"`
}

// SystemInfo describes the host of a node.
type SystemInfo struct {
	Architecture    string `json:"architecture,omitempty"`
	OperatingSystem string `json:"operatingSystem,omitempty"`
	MachineID       string `json:"machineID,omitempty"`
	BootID          string `json:"bootID,omitempty"`
	CPUs            int    `json:"cpus,omitempty"`
}

// NodeReport is the payload of status: what a core says of itself.
type NodeReport struct {
	Version    string      `json:"version"`
	SystemInfo *SystemInfo `json:"systemInfo,omitempty"`
	StartedAt  string      `json:"startedAt,omitempty"`
}

// QuotaExceeded is the condition of a Node that owns more than the hub takes.
const QuotaExceeded = "QuotaExceeded"

// QuotaCondition says why nothing is taken of what a node reports; why is empty when it is
// taken. A node that never was too large has no such condition.
func QuotaCondition(prev []Condition, why string, now time.Time) []Condition {
	known := slices.ContainsFunc(prev, func(c Condition) bool { return c.Type == QuotaExceeded })
	switch {
	case why != "":
		return SetCondition(slices.Clone(prev), Condition{
			Type: QuotaExceeded, Status: "True", Reason: "NodeTooLarge",
			Message: "the node owns " + why + ": what it reports is not taken until it owns less",
		}, now)
	case known:
		return SetCondition(slices.Clone(prev), Condition{Type: QuotaExceeded, Status: "False", Reason: "WithinQuota"}, now)
	}
	return prev
}
