// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

type fleetV1alpha1 struct {
	Spec   fleetSpec            `json:"spec"`
	Status resource.FleetStatus `json:"status,omitzero"`
}

type fleetV1beta1 struct {
	Spec   fleetSpec          `json:"spec"`
	Status fleetStatusV1beta1 `json:"status,omitzero"`
}

type fleetSpec struct {
	Selector *resource.LabelSelector `json:"selector,omitempty"`
	Template flightctlTemplate       `json:"template"`
	Rollout  *rolloutPolicy          `json:"rolloutPolicy,omitempty"`
}

// rolloutPolicy is the canonical one, in which a batch's limit may be a number.
type rolloutPolicy struct {
	DeviceSelection      *deviceSelection           `json:"deviceSelection,omitempty"`
	DisruptionBudget     *resource.DisruptionBudget `json:"disruptionBudget,omitempty"`
	SuccessThreshold     string                     `json:"successThreshold,omitempty"`
	DefaultUpdateTimeout string                     `json:"defaultUpdateTimeout,omitempty"`
}

type deviceSelection struct {
	Strategy string           `json:"strategy"`
	Sequence []flightctlBatch `json:"sequence,omitempty"`
}

type flightctlBatch struct {
	Selector         *resource.LabelSelector `json:"selector,omitempty"`
	Limit            opaqueJSON              `json:"limit,omitempty"` // a number, or a percentage as text
	SuccessThreshold string                  `json:"successThreshold,omitempty"`
}

// fleetStatusV1beta1 has counts and conditions that follow from the canonical ones.
type fleetStatusV1beta1 struct {
	Rollout    *fleetRollout        `json:"rollout,omitempty"`
	Conditions []resource.Condition `json:"conditions,omitempty"`
	Devices    *devicesSummary      `json:"devicesSummary,omitempty"`
}

type fleetRollout struct {
	CurrentBatch int `json:"currentBatch,omitempty"`
}

type devicesSummary struct {
	Total             int            `json:"total"`
	UpdateStatus      map[string]int `json:"updateStatus"`
	SummaryStatus     map[string]int `json:"summaryStatus"`
	ApplicationStatus map[string]int `json:"applicationStatus"`
}

type flightctlTemplate struct {
	Metadata *resource.TemplateMeta `json:"metadata,omitempty"`
	Spec     hostSpec               `json:"spec"`
}

type templateVersionV1alpha1 struct {
	Spec struct {
		Fleet      string               `json:"fleet,omitempty"`
		Template   flightctlTemplate    `json:"template,omitzero"`
		References []resource.Reference `json:"references,omitempty"`
	} `json:"spec"`
	Status resource.TemplateVersionStatus `json:"status,omitzero"`
}

// templateVersionV1beta1 has the frozen template as its status.
type templateVersionV1beta1 struct {
	Spec struct {
		Fleet string `json:"fleet"`
	} `json:"spec"`
	Status struct {
		hostSpec
		UpdatedAt  string               `json:"updatedAt,omitempty"`
		Conditions []resource.Condition `json:"conditions,omitempty"`
	} `json:"status,omitzero"`
}

func (t flightctlTemplate) canonical() resource.NodeTemplate {
	return resource.NodeTemplate{Metadata: t.Metadata, Spec: t.Spec.canonical()}
}

func readFleet(f fleetV1alpha1) (out resource.Fleet, err error) {
	out.Status = f.Status
	out.Spec, err = f.Spec.canonical()
	return out, err
}

func readFleetV1beta1(f fleetV1beta1) (out resource.Fleet, err error) {
	out.Status.Conditions = slices.DeleteFunc(slices.Clone(f.Status.Conditions), func(c resource.Condition) bool {
		return c.Type == fleetValid || c.Type == fleetRolling
	})
	out.Spec, err = f.Spec.canonical()
	return out, err
}

func (s fleetSpec) canonical() (out resource.FleetSpec, err error) {
	out.Selector, out.Template = s.Selector, s.Template.canonical()
	p := s.Rollout
	if p == nil {
		return out, nil
	}
	out.RolloutPolicy = &resource.RolloutPolicy{DisruptionBudget: p.DisruptionBudget, SuccessThreshold: p.SuccessThreshold, DefaultUpdateTimeout: p.DefaultUpdateTimeout}
	if p.DeviceSelection == nil {
		return out, nil
	}
	selection := &resource.DeviceSelection{Strategy: p.DeviceSelection.Strategy}
	for i, b := range p.DeviceSelection.Sequence {
		limit := string(b.Limit)
		if len(b.Limit) > 0 && b.Limit[0] == '"' {
			err = json.Unmarshal(b.Limit, &limit)
		}
		if err != nil || len(b.Limit) > 0 && (b.Limit[0] == '{' || b.Limit[0] == '[') {
			return out, resource.Errorf(resource.Invalid, "spec.rolloutPolicy.deviceSelection.sequence["+strconv.Itoa(i)+"].limit", "must be a number, or a percentage such as 10%%")
		}
		selection.Sequence = append(selection.Sequence, resource.RolloutBatch{Selector: b.Selector, Limit: limit, SuccessThreshold: b.SuccessThreshold})
	}
	out.RolloutPolicy.DeviceSelection = selection
	return out, nil
}

func showFleetSpec(in resource.FleetSpec) (s fleetSpec) {
	s.Selector, s.Template = in.Selector, flightctlTemplate{in.Template.Metadata, showHostSpec(in.Template.Spec)}
	p := in.RolloutPolicy
	if p == nil {
		return s
	}
	s.Rollout = &rolloutPolicy{DisruptionBudget: p.DisruptionBudget, SuccessThreshold: p.SuccessThreshold, DefaultUpdateTimeout: p.DefaultUpdateTimeout}
	if p.DeviceSelection == nil {
		return s
	}
	s.Rollout.DeviceSelection = &deviceSelection{Strategy: p.DeviceSelection.Strategy}
	for _, b := range p.DeviceSelection.Sequence {
		out := flightctlBatch{Selector: b.Selector, SuccessThreshold: b.SuccessThreshold}
		if _, err := strconv.ParseUint(b.Limit, 10, 31); err == nil && (b.Limit == "0" || b.Limit[0] != '0') {
			out.Limit = opaqueJSON(b.Limit)
		} else if b.Limit != "" {
			out.Limit, _ = json.Marshal(b.Limit) // it is text
		}
		s.Rollout.DeviceSelection.Sequence = append(s.Rollout.DeviceSelection.Sequence, out)
	}
	return s
}

func showFleet(in resource.Fleet) fleetV1alpha1 {
	return fleetV1alpha1{showFleetSpec(in.Spec), in.Status}
}

func showFleetV1beta1(in resource.Fleet) (f fleetV1beta1) {
	f.Spec = showFleetSpec(in.Spec)
	f.Spec.Template.Spec = f.Spec.Template.Spec.newer()
	f.Status.Conditions = fleetConditions(in)
	if r := in.Status.Rollout; r != nil {
		f.Status.Rollout = &fleetRollout{r.Batch}
	}
	if n := in.Status.Summary; n != nil {
		f.Status.Devices = &devicesSummary{n.Nodes, orEmptyCounts(n.UpdateStatus), orEmptyCounts(n.SummaryStatus), orEmptyCounts(n.ApplicationStatus)}
	}
	return f
}

func orEmptyCounts(counts map[string]int) map[string]int {
	if counts == nil {
		return map[string]int{}
	}
	return counts
}

// The conditions of a Fleet that follow from canonical ones.
const fleetValid, fleetRolling = "Valid", "RolloutInProgress"

// fleetConditions adds those by which flightctl's clients see whether the template could be resolved, and whether it is being rolled out.
func fleetConditions(f resource.Fleet) []resource.Condition {
	list := slices.Clone(f.Status.Conditions)
	if i := slices.IndexFunc(list, func(c resource.Condition) bool { return c.Type == resource.TemplateResolved }); i >= 0 {
		c := list[i]
		c.Type = fleetValid
		list = append(list, c)
	}
	r := f.Status.Rollout
	if r == nil {
		return list
	}
	c := resource.Condition{Type: fleetRolling, Status: "True", Reason: "Active", Message: r.Message, ObservedGeneration: r.ObservedGeneration}
	switch {
	case r.Updated == r.Nodes || r.FinishedAt != "" && r.Updating == 0:
		c.Status, c.Reason = "False", "Inactive"
	case r.Reason == "Halted" || r.Reason == "Paused":
		c.Status, c.Reason = "False", "Suspended"
	case r.Reason == "OutsideTargetsWindow" && r.Updating == 0:
		c.Status, c.Reason = "False", "Waiting"
	}
	c.LastTransitionTime, _ = time.Parse(time.RFC3339, cmp.Or(r.FinishedAt, r.BatchStarted))
	return append(list, c)
}

func readVersionV1beta1(f templateVersionV1beta1) (out resource.TemplateVersion, err error) {
	out.Spec.Fleet, out.Spec.Template.Spec = f.Spec.Fleet, f.Status.canonical()
	out.Status = resource.TemplateVersionStatus{UpdatedAt: f.Status.UpdatedAt, Conditions: f.Status.Conditions}
	return out, nil
}

func showVersionV1beta1(in resource.TemplateVersion) (f templateVersionV1beta1) {
	f.Spec.Fleet = in.Spec.Fleet
	f.Status.hostSpec = showHostSpec(in.Spec.Template.Spec.Freeze(in.Spec.References)).newer()
	f.Status.UpdatedAt, f.Status.Conditions = in.Status.UpdatedAt, in.Status.Conditions
	return f
}

func readVersion(f templateVersionV1alpha1) (out resource.TemplateVersion, err error) {
	out.Spec = resource.TemplateVersionSpec{Fleet: f.Spec.Fleet, Template: f.Spec.Template.canonical(), References: f.Spec.References}
	out.Status = f.Status
	return out, nil
}

func showVersion(in resource.TemplateVersion) (f templateVersionV1alpha1) {
	f.Spec.Fleet, f.Spec.References, f.Status = in.Spec.Fleet, in.Spec.References, in.Status
	f.Spec.Template = flightctlTemplate{in.Spec.Template.Metadata, showHostSpec(in.Spec.Template.Spec)}
	return f
}
