// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// ConditionStalled is True while what an object asks for can't be reached without somebody's help, and otherwise not there.
	ConditionStalled = "Stalled"

	// reasonHalted is the reason of a rollout that has stopped because too many nodes have failed.
	reasonHalted = "Halted"
)

// readiness says whether all that an object asks for is done.
type readiness struct {
	status, reason, message string
	stalled                 bool
}

// readinessPending is the readiness of a spec that the controller has not looked at.
var readinessPending = readiness{status: "Unknown", reason: "Pending", message: "what is asked for now was not looked at yet"}

// set sets the condition Ready, and Stalled or not, in a list of its own.
func (r readiness) set(list []Condition, generation int64, now time.Time) []Condition {
	c := Condition{Type: ConditionReady, Status: r.status, Reason: r.reason, Message: r.message, ObservedGeneration: generation}
	list = SetCondition(slices.Clone(list), c, now)
	if !r.stalled {
		return slices.DeleteFunc(list, func(c Condition) bool { return c.Type == ConditionStalled })
	}
	c.Type, c.Status = ConditionStalled, "True"
	return SetCondition(list, c, now)
}

// SetReady sets the condition Ready from the spec and the rest of the status: the nodes have the newest version of the template, but for so many as may fail.
func (f *Fleet) SetReady(now time.Time) {
	f.Status.Conditions = f.readiness().set(f.Status.Conditions, f.Metadata.Generation, now)
}

func (f *Fleet) readiness() readiness {
	s, generation := f.Status.Rollout, f.Metadata.Generation
	if c := findCondition(f.Status.Conditions, TemplateResolved); c != nil && c.Status == "False" && c.ObservedGeneration >= generation {
		return readiness{"False", c.Reason, c.Message, false}
	}
	if s == nil || s.ObservedGeneration < generation {
		return readinessPending
	}
	have := fmt.Sprintf("%d of %d nodes have %s", s.Updated, s.Nodes, s.TemplateVersion)
	if s.FailedNodes > 0 {
		have += fmt.Sprintf("; %d failed", s.FailedNodes)
	}
	switch {
	case s.RolledBackFrom != "":
		return readiness{"False", "RolledBack", fmt.Sprintf("%s is rolled out instead of %s", s.TemplateVersion, s.RolledBackFrom), true}
	case s.Nodes == 0:
		return readiness{"True", "NoNodes", "it has no nodes", false}
	case s.FinishedAt == "" || s.Reason == reasonHalted:
		return readiness{"False", cmp.Or(s.Reason, "Progressing"), cmp.Or(s.Message, have), s.Reason == reasonHalted}
	case s.FailedNodes > 0 && f.Spec.RolloutPolicy == nil: // nothing says how many may fail
		return readiness{"False", "Failed", strings.TrimSuffix(have+": "+s.Message, ": "), true}
	}
	return readiness{"True", "RolledOut", have, false}
}

// SetReady sets the condition Ready from the spec and the rest of the status: all nodes have what the upgrade orders.
func (u *Upgrade) SetReady(now time.Time) {
	u.Status.Conditions = u.readiness().set(u.Status.Conditions, u.Metadata.Generation, now)
}

func (u *Upgrade) readiness() readiness {
	s := u.Status.Rollout
	begun := s != nil && s.Spec == u.Spec.RunOf()
	switch {
	case begun && s.Nodes > 0 && s.Succeeded == s.Nodes:
		message := fmt.Sprintf("all %d nodes have %s", s.Nodes, u.Spec.Goal())
		if s.Away > 0 {
			message += fmt.Sprintf("; %d of them have been away since soon after that", s.Away)
		}
		return readiness{"True", "Upgraded", message, false}
	case u.Spec.Aborted:
		return readiness{"False", "Aborted", "it was aborted", true}
	case !begun:
		return readinessPending
	case s.Failed > 0 && s.Pending == 0 && s.Upgrading == 0:
		return readiness{"False", "Failed", fmt.Sprintf("%d of %d nodes have failed", s.Failed, s.Nodes), true}
	}
	return readiness{"False", cmp.Or(s.Reason, "Progressing"), cmp.Or(s.Message, fmt.Sprintf("%d of %d nodes have %s", s.Succeeded, s.Nodes, u.Spec.Goal())), s.Reason == reasonHalted}
}

// SetReady sets the condition Ready from the rest of the status: all that the repository describes is applied.
func (r *ResourceSync) SetReady(now time.Time) {
	r.Status.Conditions = r.readiness().set(r.Status.Conditions, r.Metadata.Generation, now)
}

func (r *ResourceSync) readiness() readiness {
	if r.Status.ObservedGeneration < r.Metadata.Generation {
		return readinessPending
	}
	last := new(Condition)
	for _, kind := range []string{ConditionAccessible, "ResourceParsed", "Synced"} { // each is a step after the one before
		c := findCondition(r.Status.Conditions, kind)
		if c == nil {
			return readinessPending
		}
		if last = c; c.Status != "True" {
			return readiness{c.Status, c.Reason, c.Message, false}
		}
	}
	return readiness{"True", last.Reason, last.Message, false}
}
