// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"slices"
	"time"
)

// ConditionDiskPressure is True while less than 5 % of the disk with the core's data is free. Kubernetes' nodes have a condition of this
// name, too.
const ConditionDiskPressure = "DiskPressure"

// DiskCondition sets the condition DiskPressure. low is how little of the disk is free, empty if there is enough. The condition is not
// added before it is first True.
func DiskCondition(prev []Condition, low string, now time.Time) []Condition {
	return setException(prev, low, Condition{Type: ConditionDiskPressure, Status: "True", Reason: "LowSpace"}, Condition{Status: "False", Reason: "EnoughSpace"}, now)
}

// ConditionRenewal is False while a node's certificate can't be renewed.
const ConditionRenewal = "CertificateRenewal"

// RenewalCondition sets the condition CertificateRenewal. why is why the last renewal failed, empty if it did not. The
// condition is not added before the first failure.
func RenewalCondition(prev []Condition, why string, now time.Time) []Condition {
	return setException(prev, why, Condition{Type: ConditionRenewal, Status: "False", Reason: "Failed"}, Condition{Status: "True", Reason: "Renewed"}, now)
}

// ConditionReady says whether a node's link to the hub is up.
const ConditionReady = "Ready"

// SetNodeGeneration sets the observedGeneration of the conditions of a Node that nothing in its spec affects.
func SetNodeGeneration(list []Condition, generation int64) {
	SetObservedGeneration(list, generation, ConditionReady, QuotaExceeded, OfAnotherHub, ConditionRenewal, ConditionDiskPressure, RolledBack, ReportUntrue,
		ConditionAgentOnline, ConditionDiscovererOnline)
}

// ReadyCondition sets the condition Ready. ended is why the last connection of an offline node ended. It is empty if the node
// has not connected since the hub started; the message in prev is then kept.
func ReadyCondition(prev []Condition, state, ended string, now time.Time) []Condition {
	c := Condition{Type: ConditionReady, Status: "True", Reason: "NodeOnline", Message: "its link to the hub is up"}
	if state != Online {
		c.Status, c.Reason, c.Message = "False", ReasonAway, "its link to the hub is down: "+ended
	}
	if state != Online && ended == "" {
		c.Message = "it has not connected since the hub was started"
		if old := findCondition(prev, ConditionReady); old != nil && old.Status == "False" {
			c.Message = old.Message
		}
	}
	return SetCondition(slices.Clone(prev), c, now)
}

// HTTPReadyCondition sets the condition Ready of a node that speaks HTTP only. ended is why it is no longer present; empty: it is.
func HTTPReadyCondition(prev []Condition, ended string, now time.Time) []Condition {
	c := Condition{Type: ConditionReady, Status: "True", Reason: "NodeOnline", Message: "it asks for its spec and reports over HTTP; it has no link"}
	if ended != "" {
		c.Status, c.Reason, c.Message = "False", ReasonAway, ended
	}
	return SetCondition(slices.Clone(prev), c, now)
}

// The conditions that say whether programs of a node run, beside its core. A node on which one has never run does not have its condition. They
// are Unknown while the node is offline.
const (
	ConditionAgentOnline      = "AgentOnline"
	ConditionDiscovererOnline = "DiscovererOnline"
)

// ReasonStopped is the reason of these conditions, and of Updating, while the program does not run.
const ReasonStopped = "Stopped"

// PresenceConditions sets the conditions AgentOnline and DiscovererOnline from the state of the node and those of the programs, which are empty
// if they never ran. An update of an agent that does not run is Unknown. before are the conditions of the last status.
func PresenceConditions(list, before []Condition, node, agent, discoverer string, now time.Time) []Condition {
	list = slices.Clone(list)
	for _, p := range []struct{ kind, program, state string }{
		{ConditionAgentOnline, "edgeagent", agent}, {ConditionDiscovererOnline, "edgediscovery", discoverer},
	} {
		c := Condition{Type: p.kind, Status: "True", Reason: "Running", Message: p.program + " is connected to the node's broker"}
		switch {
		case p.state == "" && findCondition(list, p.kind) == nil:
			continue
		case node != Online:
			c.Status, c.Reason, c.Message = "Unknown", ReasonAway, "the node is offline"
		case p.state != Online:
			c.Status, c.Reason, c.Message = "False", ReasonStopped, p.program+" does not run on the node"
		}
		list = SetCondition(list, c, now)
	}
	if c := findCondition(list, ConditionUpdating); c != nil && c.Status == "True" && node == Online && agent == Offline {
		stopped := Condition{Type: ConditionUpdating, Status: "Unknown", Reason: ReasonStopped, Message: "edgeagent does not run on the node; before it ended: " + c.Reason + ": " + c.Message}
		if was := findCondition(before, ConditionUpdating); was != nil && was.Status == stopped.Status {
			stopped.LastTransitionTime = was.LastTransitionTime
		} else {
			stopped.LastTransitionTime = now.UTC().Truncate(time.Second)
		}
		*c = stopped
	}
	return list
}

// AgentStopped reports whether the node's agent is known not to run.
func (s NodeStatus) AgentStopped() bool {
	c := findCondition(s.Conditions, ConditionAgentOnline)
	return c != nil && c.Status == "False"
}

// The conditions of a Node's rendered spec, which a Node has from its first spec on.
const (
	// ConditionUpdating is True while the node's agent applies an update.
	ConditionUpdating = "Updating"
	// ConditionSpecRendered is False while the spec can't be rendered. The node keeps the spec that it was sent before.
	ConditionSpecRendered = "SpecRendered"
	// ConditionReferencesResolved is False while the spec refers to something that can't be read. A Node whose spec has
	// never had a reference does not have the condition.
	ConditionReferencesResolved = "ReferencesResolved"
)

// ConditionRevoked is True once the certificates of a node were revoked, and False when the node has joined again.
const ConditionRevoked = "Revoked"

// Reasons of the condition Revoked.
const (
	ReasonRevoked         = "Revoked"
	ReasonDecommissioning = "Decommissioning" // the node has not been notified yet
	ReasonDecommissioned  = "Decommissioned"  // the node was notified, and deletes its keys
	ReasonJoined          = "Joined"          // the status is False: it has joined again
)

// RevokedReason is the reason of the condition Revoked; empty if it is not True.
func (s NodeStatus) RevokedReason() string { return reasonOf(s.Conditions, ConditionRevoked) }

// OfHub reports whether only the hub sets a Node's condition of this type.
func OfHub(condition string) bool {
	return slices.Contains([]string{
		ConditionReady, ConditionRevoked, QuotaExceeded, OfAnotherHub, RolledBack, ConditionRenewal, ConditionDiskPressure, ConditionSpecRendered, ConditionReferencesResolved,
		ReportUntrue, ConditionAgentOnline, ConditionDiscovererOnline,
	}, condition)
}

// QuotaExceeded is the condition of a Node that owns more than the hub stores.
const QuotaExceeded = "QuotaExceeded"

// OfAnotherHub is the condition of a Node whose data is from another hub, and which this hub therefore does not write to.
const OfAnotherHub = "OfAnotherHub"

// OtherHubCondition sets the condition OfAnotherHub. why is why the hub does not write to the node, empty if it does. The
// condition is not added before it is first True.
func OtherHubCondition(prev []Condition, why string, now time.Time) []Condition {
	return setException(prev, why, Condition{Type: OfAnotherHub, Status: "True", Reason: "LeftAlone"}, Condition{Status: "False", Reason: "OfThisHub"}, now)
}

// rolledBackFor is how long the condition RolledBack is True after the node's state was found to be older than what it had reported.
const rolledBackFor = 24 * time.Hour

// RolledBackCondition sets the condition RolledBack: the node's core came back with data older than what the hub had acknowledged to it. It is
// False at the first change of the status a day later, and not added before it is first True. last is the last anomaly since the hub started.
func RolledBackCondition(prev []Condition, last *Anomaly, now time.Time) []Condition {
	why := ""
	if last != nil && last.Reason == RolledBack {
		if at, err := ParseTime(last.Time); err == nil && now.Sub(at) < rolledBackFor {
			why = last.Message
		}
	}
	if old := findCondition(prev, RolledBack); why == "" && old != nil && old.Status == "True" && now.Sub(old.LastTransitionTime) < rolledBackFor {
		why = old.Message
	}
	return setException(prev, why, Condition{Type: RolledBack, Status: "True", Reason: "OlderData"}, Condition{Status: "False", Reason: "Past"}, now)
}

// QuotaCondition sets the condition QuotaExceeded. why is the limit that the node exceeds, empty if none. The condition is not
// added before it is first True.
func QuotaCondition(prev []Condition, why string, now time.Time) []Condition {
	if why != "" {
		why = "the node owns " + why + ": what it reports is not taken until it owns less"
	}
	return setException(prev, why, Condition{Type: QuotaExceeded, Status: "True", Reason: "NodeTooLarge"}, Condition{Status: "False", Reason: "WithinQuota"}, now)
}

// setException sets a condition to failed, with the message why, or to normal if why is empty. A list without the condition
// does not get it with normal.
func setException(prev []Condition, why string, failed, normal Condition, now time.Time) []Condition {
	c := failed
	switch {
	case why != "":
		c.Message = why
	case findCondition(prev, c.Type) == nil:
		return prev
	default:
		c.Status, c.Reason = normal.Status, normal.Reason
	}
	return SetCondition(slices.Clone(prev), c, now)
}
