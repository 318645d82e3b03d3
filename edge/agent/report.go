// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/edge/agent/host/apps"
	"github.com/edgebus/edgebus/topics/resource"
)

// The types of the agent's own conditions.
const (
	conditionApplied   = "SpecApplied"
	conditionDrifted   = "Drifted"
	conditionRebooted  = "Rebooted"
	conditionDamaged   = "StateDamaged"
	conditionTruncated = "ReportTruncated"
)

// reportNow is what there is to say. before are the conditions of the last report, whose times are kept.
func (a *agent) reportNow(before []resource.Condition) resource.AgentReport {
	a.mu.Lock()
	s, seen := a.state, a.live
	a.mu.Unlock()
	if seen.failed != nil {
		s.Failed = seen.failed
	}
	r := resource.AgentReport{
		Version: a.o.Version, RenderedVersion: s.Applied.RenderedVersion, Failed: s.Failed,
	}
	if seen.driftLeft {
		r.Drifted = seen.drifted
	}
	for _, b := range seen.blocked {
		r.Drifted = append(r.Drifted, b.path)
	}
	r.Conditions = agentConditions(s, seen)
	if a.monitor != nil {
		a.monitor.Report(&r)
	}
	for i, app := range r.Applications {
		if why, ok := seen.failingApps[app.Name]; ok && app.Status != apps.StatusRunning && app.Status != apps.StatusCompleted {
			r.Applications[i].Status, r.Applications[i].Message = apps.StatusFailed, truncateMessage(why)
		}
	}
	if r.SystemInfo != nil { // the boot that the agent has noted
		info := *r.SystemInfo
		info.BootID = s.Boot
		r.SystemInfo = &info
	}
	r.Conditions = withTransitionTimes(r.Conditions, before, a.now())
	return limitReport(r, a.now())
}

// agentConditions are the agent's own, without times.
func agentConditions(s agentState, seen liveStatus) []resource.Condition {
	updating := resource.Condition{Type: resource.ConditionUpdating, Status: "False", Reason: "Idle"}
	if seen.step != "" {
		updating = resource.Condition{Type: resource.ConditionUpdating, Status: "True", Reason: seen.step, Message: "version " + seen.version}
		if seen.step == stepWindow {
			updating.Status = "False"
		}
		if seen.waitReason != "" {
			updating.Message += ": " + seen.waitReason
		}
	}
	applied := resource.Condition{Type: conditionApplied, Status: "Unknown", Reason: "NoSpec", Message: "this node has not been given a spec"}
	switch {
	case seen.step == "" && seen.waitReason != "":
		applied = resource.Condition{Type: conditionApplied, Status: "False", Reason: resource.FailedInvalid, Message: seen.waitReason}
	case s.Failed != nil:
		applied = resource.Condition{Type: conditionApplied, Status: "False", Reason: s.Failed.Reason, Message: fmt.Sprintf("version %s: %s", s.Failed.RenderedVersion, s.Failed.Message)}
	case s.Applied.RenderedVersion != "":
		applied = resource.Condition{Type: conditionApplied, Status: "True", Reason: "Applied", Message: "version " + s.Applied.RenderedVersion}
	}
	list := []resource.Condition{updating, applied}
	if s.Rebooted {
		list = append(list, resource.Condition{Type: conditionRebooted, Status: "True", Reason: "BootIDChanged", Message: "the host was booted again, with the boot id " + s.Boot, LastTransitionTime: s.BootSeen.UTC().Truncate(time.Second)})
	}
	if seen.stateDamage != "" {
		list = append(list, resource.Condition{Type: conditionDamaged, Status: "True", Reason: "StateLost", Message: seen.stateDamage})
	}
	switch {
	case seen.driftError != "":
		list = append(list, resource.Condition{Type: conditionDrifted, Status: "Unknown", Reason: "CheckFailed", Message: seen.driftError})
	case len(seen.blocked) > 0:
		var paths []string
		for _, b := range seen.blocked {
			paths = append(paths, b.path+" ("+b.why+")")
		}
		list = append(list, driftCondition("True", "NotRestored", "changed by hand, and can't be put back", paths))
	case len(seen.drifted) > 0 && seen.driftLeft:
		list = append(list, driftCondition("True", "LeftAlone", "changed by hand, and left alone", seen.drifted))
	case len(seen.drifted) > 0:
		list = append(list, driftCondition("False", "Restored", "changed by hand, and put back", seen.drifted))
	case s.Applied.RenderedVersion != "":
		list = append(list, resource.Condition{Type: conditionDrifted, Status: "False", Reason: "AsSpecified"})
	}
	return list
}

func driftCondition(status, reason, what string, paths []string) resource.Condition {
	text := strings.Join(paths[:min(len(paths), 5)], ", ")
	if len(paths) > 5 {
		text += fmt.Sprintf(" and %d others", len(paths)-5)
	}
	return resource.Condition{Type: conditionDrifted, Status: status, Reason: reason, Message: what + ": " + text}
}

// withTransitionTimes gives each condition the time since which it has its status: that of the condition before, or now.
func withTransitionTimes(list, before []resource.Condition, now time.Time) (timed []resource.Condition) {
	for _, c := range list {
		var was []resource.Condition
		if i := slices.IndexFunc(before, func(o resource.Condition) bool { return o.Type == c.Type }); i >= 0 {
			was = []resource.Condition{before[i]}
		}
		at := c.LastTransitionTime
		c = resource.SetCondition(was, c, now)[0]
		if !at.IsZero() { // known better
			c.LastTransitionTime = at
		}
		timed = append(timed, c)
	}
	return timed
}

// maxMessage bounds a message in a report, in bytes.
const maxMessage = 4 << 10

// limitReport cuts a report down to what one may have. It says so in a condition.
func limitReport(r resource.AgentReport, now time.Time) resource.AgentReport {
	for i := range r.Conditions {
		r.Conditions[i].Message = truncateMessage(r.Conditions[i].Message)
	}
	if r.Failed != nil {
		f := *r.Failed
		f.Message = truncateMessage(f.Message)
		r.Failed = &f
	}
	var gone []string
	for jsonSize(r) > resource.MaxAgentReport-512 {
		lists := []struct {
			name string
			size int
			half func()
		}{
			{"containers", jsonSize(r.Containers), func() { r.Containers = firstHalf(r.Containers) }},
			{"systemdUnits", jsonSize(r.SystemdUnits), func() { r.SystemdUnits = firstHalf(r.SystemdUnits) }},
			{"applications", jsonSize(r.Applications), func() { r.Applications = firstHalf(r.Applications) }},
			{"drifted", jsonSize(r.Drifted), func() { r.Drifted = firstHalf(r.Drifted) }},
			{"conditions", jsonSize(r.Conditions), func() { r.Conditions = firstHalf(r.Conditions) }},
		}
		largest := slices.MaxFunc(lists, func(a, b struct {
			name string
			size int
			half func()
		},
		) int {
			return a.size - b.size
		})
		largest.half()
		if !slices.Contains(gone, largest.name) {
			gone = append(gone, largest.name)
		}
	}
	if len(gone) > 0 {
		c := resource.Condition{Type: conditionTruncated, Status: "True", Reason: "TooLarge", Message: "cut, so that the report is not larger than allowed: " + strings.Join(gone, ", ")}
		r.Conditions = resource.SetCondition(r.Conditions, c, now)
	}
	return r
}

func firstHalf[T any](list []T) []T { return list[:len(list)/2] }

func truncateMessage(text string) string {
	if len(text) > maxMessage {
		return strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return text
}

func jsonSize(v any) int {
	text, _ := json.Marshal(v) // texts and numbers
	return len(text)
}
