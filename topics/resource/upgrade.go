package resource

import (
	"fmt"
)

// Upgrade brings the edge core on some nodes to a version.
type Upgrade struct {
	TypeMeta
	Metadata Meta          `json:"metadata"`
	Spec     UpgradeSpec   `json:"spec"`
	Status   UpgradeStatus `json:"status,omitzero"`
}

// UpgradeSpec is which nodes get which version. At least one of nodeNames and labelSelector must
// choose; neither can be changed later.
type UpgradeSpec struct {
	// Version is the version of the edge core that is wanted, such as v1.10.0. It can be changed once all nodes have answered.
	Version string `json:"version"`
	// UpgradeInstaller is the command that installs the upgrader; empty: the usual one. No shell reads it: a command and
	// its arguments between single blanks, of letters, digits and ._/+:=,@%-.
	UpgradeInstaller string `json:"upgradeInstaller,omitempty"`
	// UpgradeCmd is the command that upgrades a node; empty: the usual one. It has the form of upgradeInstaller.
	UpgradeCmd string `json:"upgradeCmd,omitempty"`
	// NodeNames are the nodes, if they are named.
	// +listType=set
	NodeNames []string `json:"nodeNames,omitempty"`
	// LabelSelector chooses nodes by their labels.
	LabelSelector *LabelSelector `json:"labelSelector,omitempty"`
}

// UpgradeStatus is how far an upgrade is.
type UpgradeStatus struct {
	// Nodes has an entry for each node that was asked.
	// +listType=map
	// +listMapKey=nodeName
	Nodes []UpgradeNode `json:"nodes,omitempty"`
	// Conditions say how the upgrade as a whole is.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// UpgradeNode is how far one node is.
type UpgradeNode struct {
	// NodeName is the node.
	NodeName string `json:"nodeName"`
	// History is what was tried, the newest last: at most 20 entries.
	// +kubebuilder:validation:MaxItems=20
	History []UpgradeAttempt `json:"history,omitempty"`
}

// UpgradeAttempt is one attempt to upgrade a node.
type UpgradeAttempt struct {
	// FromVersion is the version before.
	FromVersion string `json:"fromVersion,omitempty"`
	// ToVersion is the version that was wanted.
	ToVersion string `json:"toVersion,omitempty"`
	// OperationStatus is how it went.
	// +kubebuilder:validation:Enum=upgrading;upgrade_success;upgrade_failed_rollback_success;upgrade_failed_rollback_failed
	OperationStatus string `json:"operationStatus,omitempty"`
	// Reason is why it failed.
	Reason string `json:"reason,omitempty"`
}

// How an attempt to upgrade goes.
const (
	Upgrading             = "upgrading"
	UpgradeSuccess        = "upgrade_success"
	UpgradeRolledBack     = "upgrade_failed_rollback_success"
	UpgradeRollbackFailed = "upgrade_failed_rollback_failed"
)

// MaxUpgradeHistory is how many attempts a node's history holds.
const MaxUpgradeHistory = 20

// Validate checks an Upgrade.
func (u Upgrade) Validate() error {
	var p problems
	u.Metadata.check(&p)
	required(&p, "spec.version", u.Spec.Version)
	checkVersion(&p, "spec.version", u.Spec.Version)
	checkCommand(&p, "spec.upgradeInstaller", u.Spec.UpgradeInstaller)
	checkCommand(&p, "spec.upgradeCmd", u.Spec.UpgradeCmd)
	if len(u.Spec.NodeNames) == 0 && u.Spec.LabelSelector.Empty() {
		p.add("spec.nodeNames", "is required, unless labelSelector chooses nodes: an upgrade of none is a mistake")
	}
	nodes := names{}
	for i, name := range u.Spec.NodeNames {
		at := fmt.Sprintf("spec.nodeNames[%d]", i)
		checkName(&p, at, name)
		nodes.check(&p, at, name)
	}
	u.Spec.LabelSelector.check(&p, "spec.labelSelector")
	sortProblems(p)
	return p.err()
}

// CheckStatus checks what nodes have answered.
func (u Upgrade) CheckStatus() error {
	var p problems
	for i, n := range u.Status.Nodes {
		at := fmt.Sprintf("status.nodes[%d].history", i)
		required(&p, fmt.Sprintf("status.nodes[%d].nodeName", i), n.NodeName)
		if len(n.History) > MaxUpgradeHistory {
			p.add(at, "%d attempts; the last %d are kept", len(n.History), MaxUpgradeHistory)
		}
		for j, a := range n.History {
			oneOf(&p, fmt.Sprintf("%s[%d].operationStatus", at, j), a.OperationStatus,
				[]string{"", Upgrading, UpgradeSuccess, UpgradeRolledBack, UpgradeRollbackFailed})
		}
	}
	return p.err()
}

// CheckUpdate says whether an Upgrade may follow prev: which nodes it is for never
// changes, and the rest only once every node has answered.
func (u Upgrade) CheckUpdate(prev Upgrade) error {
	var p problems
	unchanged(&p, "spec.nodeNames", prev.Spec.NodeNames, u.Spec.NodeNames)
	unchanged(&p, "spec.labelSelector", prev.Spec.LabelSelector, u.Spec.LabelSelector)
	if waiting := prev.unfinished(); waiting != "" {
		for field, same := range map[string]bool{
			"spec.version":          u.Spec.Version == prev.Spec.Version,
			"spec.upgradeInstaller": u.Spec.UpgradeInstaller == prev.Spec.UpgradeInstaller,
			"spec.upgradeCmd":       u.Spec.UpgradeCmd == prev.Spec.UpgradeCmd,
		} {
			if !same {
				p.add(field, "can't be changed yet: %s", waiting)
			}
		}
	}
	sortProblems(p)
	return p.err()
}

// unfinished says for whose answer an upgrade waits, or nothing.
func (u Upgrade) unfinished() string {
	if len(u.Status.Nodes) == 0 {
		return "no node has answered"
	}
	for _, n := range u.Status.Nodes {
		if len(n.History) == 0 || n.History[len(n.History)-1].OperationStatus == Upgrading {
			return "the node " + n.NodeName + " is being upgraded"
		}
	}
	return ""
}
