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
	s, seen := a.state, a.seen
	a.mu.Unlock()
	if seen.failed != nil {
		s.Failed = seen.failed
	}
	r := resource.AgentReport{
		Version: a.o.Version, RenderedVersion: s.Applied.RenderedVersion, Failed: s.Failed,
	}
	if seen.left {
		r.Drifted = seen.drifted
	}
	for _, b := range seen.blocked {
		r.Drifted = append(r.Drifted, b.path)
	}
	r.Conditions = conditions(s, seen)
	if a.monitor != nil {
		a.monitor.Report(&r)
	}
	for i, app := range r.Applications {
		if why, ok := seen.failing[app.Name]; ok && app.Status != apps.Running && app.Status != apps.Completed {
			r.Applications[i].Status, r.Applications[i].Message = apps.Failed, cut(why)
		}
	}
	if r.SystemInfo != nil { // the boot that the agent has noted
		info := *r.SystemInfo
		info.BootID = s.Boot
		r.SystemInfo = &info
	}
	r.Conditions = timed(r.Conditions, before, a.o.Now())
	return fit(r, a.o.Now())
}

// conditions are the agent's own, without times.
func conditions(s state, seen seen) []resource.Condition {
	updating := resource.Condition{Type: resource.ConditionUpdating, Status: "False", Reason: "Idle"}
	if seen.step != "" {
		updating = resource.Condition{Type: resource.ConditionUpdating, Status: "True", Reason: seen.step, Message: "version " + seen.version}
		if seen.step == stepWindow {
			updating.Status = "False"
		}
		if seen.problem != "" {
			updating.Message += ": " + seen.problem
		}
	}
	applied := resource.Condition{Type: conditionApplied, Status: "Unknown", Reason: "NoSpec", Message: "this node has not been given a spec"}
	switch {
	case seen.step == "" && seen.problem != "":
		applied = resource.Condition{Type: conditionApplied, Status: "False", Reason: resource.FailedInvalid, Message: seen.problem}
	case s.Failed != nil:
		applied = resource.Condition{Type: conditionApplied, Status: "False", Reason: s.Failed.Reason, Message: fmt.Sprintf("version %s: %s", s.Failed.RenderedVersion, s.Failed.Message)}
	case s.Applied.RenderedVersion != "":
		applied = resource.Condition{Type: conditionApplied, Status: "True", Reason: "Applied", Message: "version " + s.Applied.RenderedVersion}
	}
	list := []resource.Condition{updating, applied}
	if s.Rebooted {
		list = append(list, resource.Condition{Type: conditionRebooted, Status: "True", Reason: "BootIDChanged", Message: "the host was booted again, with the boot id " + s.Boot, LastTransitionTime: s.BootSeen.UTC().Truncate(time.Second)})
	}
	if seen.damage != "" {
		list = append(list, resource.Condition{Type: conditionDamaged, Status: "True", Reason: "StateLost", Message: seen.damage})
	}
	switch {
	case seen.drift != "":
		list = append(list, resource.Condition{Type: conditionDrifted, Status: "Unknown", Reason: "CheckFailed", Message: seen.drift})
	case len(seen.blocked) > 0:
		var paths []string
		for _, b := range seen.blocked {
			paths = append(paths, b.path+" ("+b.why+")")
		}
		list = append(list, drifted("True", "NotRestored", "changed by hand, and can't be put back", paths))
	case len(seen.drifted) > 0 && seen.left:
		list = append(list, drifted("True", "LeftAlone", "changed by hand, and left alone", seen.drifted))
	case len(seen.drifted) > 0:
		list = append(list, drifted("False", "Restored", "changed by hand, and put back", seen.drifted))
	case s.Applied.RenderedVersion != "":
		list = append(list, resource.Condition{Type: conditionDrifted, Status: "False", Reason: "AsSpecified"})
	}
	return list
}

func drifted(status, reason, what string, paths []string) resource.Condition {
	text := strings.Join(paths[:min(len(paths), 5)], ", ")
	if len(paths) > 5 {
		text += fmt.Sprintf(" and %d others", len(paths)-5)
	}
	return resource.Condition{Type: conditionDrifted, Status: status, Reason: reason, Message: what + ": " + text}
}

// timed gives each condition the time since which it has its status: that of the condition before, or now.
func timed(list, before []resource.Condition, now time.Time) (timed []resource.Condition) {
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

// fit cuts a report down to what one may have. It says so in a condition.
func fit(r resource.AgentReport, now time.Time) resource.AgentReport {
	for i := range r.Conditions {
		r.Conditions[i].Message = cut(r.Conditions[i].Message)
	}
	if r.Failed != nil {
		f := *r.Failed
		f.Message = cut(f.Message)
		r.Failed = &f
	}
	var gone []string
	for size(r) > resource.MaxAgentReport-512 {
		lists := []struct {
			name string
			size int
			half func()
		}{
			{"containers", size(r.Containers), func() { r.Containers = half(r.Containers) }},
			{"systemdUnits", size(r.SystemdUnits), func() { r.SystemdUnits = half(r.SystemdUnits) }},
			{"applications", size(r.Applications), func() { r.Applications = half(r.Applications) }},
			{"drifted", size(r.Drifted), func() { r.Drifted = half(r.Drifted) }},
			{"conditions", size(r.Conditions), func() { r.Conditions = half(r.Conditions) }},
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

func half[T any](list []T) []T { return list[:len(list)/2] }

func cut(text string) string {
	if len(text) > maxMessage {
		return strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return text
}

func size(v any) int {
	text, _ := json.Marshal(v) // texts and numbers
	return len(text)
}
