// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// operations.kubeedge.io: jobs that upgrade nodes' cores, change their settings or have them pull images. Each is an Upgrade that wants the one
// or the other, and shows those alone.

const operationsGroup = "operations.kubeedge.io"

// jobTerms are the fields by which all jobs say which nodes are meant, and how many at a time.
type jobTerms struct {
	NodeNames       []string                `json:"nodeNames,omitempty"`
	LabelSelector   *resource.LabelSelector `json:"labelSelector,omitempty"`
	TimeoutSeconds  int64                   `json:"timeoutSeconds,omitempty"`
	Concurrency     int                     `json:"concurrency,omitempty"`
	CheckItems      []string                `json:"checkItems,omitempty"`
	FailureTolerate scalarText              `json:"failureTolerate,omitempty"`
}

type nodeUpgradeJob struct {
	Spec struct {
		jobTerms
		Version             string                `json:"version,omitempty"`
		RequireConfirmation bool                  `json:"requireConfirmation,omitempty"`
		Image               keptField[string]     `json:"image,omitempty"`
		ImageDigestGatter   keptField[jsonObject] `json:"imageDigestGatter,omitempty"`
	} `json:"spec"`
	Status jobStatus `json:"status,omitzero"`
}

type configUpdateJob struct {
	Spec struct {
		jobTerms
		UpdateFields map[string]scalarText `json:"updateFields,omitempty"`
	} `json:"spec"`
	Status jobStatus `json:"status,omitzero"`
}

type imagePrePullJob struct {
	Spec struct {
		ImagePrePullTemplate struct {
			jobTerms
			Images       []string          `json:"images,omitempty"`
			ImageSecrets keptField[string] `json:"imageSecrets,omitempty"`
			RetryTimes   keptField[int64]  `json:"retryTimes,omitempty"`
		} `json:"imagePrePullTemplate"`
	} `json:"spec"`
	Status jobStatus `json:"status,omitzero"`
}

// jobStatus is a status in the forms of both versions: v1alpha1 has a state, v1alpha2 a phase. It is never taken from a manifest.
type jobStatus struct {
	Phase      string    `json:"phase,omitempty"`
	State      string    `json:"state,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	NodeStatus []jobNode `json:"nodeStatus,omitempty"`
	// Status is where an ImagePrePullJob of v1alpha1 has its nodes.
	Status []pulledNode `json:"status,omitempty"`
}

type jobNode struct {
	NodeName        string      `json:"nodeName"`
	Phase           string      `json:"phase,omitempty"`
	State           string      `json:"state,omitempty"`
	Reason          string      `json:"reason,omitempty"`
	Time            string      `json:"time,omitempty"`
	CurrentVersion  string      `json:"currentVersion,omitempty"`
	HistoricVersion string      `json:"historicVersion,omitempty"`
	ActionFlow      []jobAction `json:"actionFlow,omitempty"`
}

type pulledNode struct {
	NodeStatus jobNode `json:"nodeStatus"`
}

// jobAction is what a node does, or has done: with the status of a condition, Unknown while it does it.
type jobAction struct {
	Action string `json:"action"`
	Status string `json:"status"`
	Reason string `json:"reason,omitempty"`
	Time   string `json:"time,omitempty"`
}

func operationsKinds() (list []Kind) {
	for _, version := range []string{"v1alpha2", "v1alpha1"} {
		job := func(name, action string) Kind {
			lower := strings.ToLower(name)
			return Kind{
				Group: operationsGroup, Version: version, Name: name, Plural: lower + "s", Singular: lower,
				Canonical: resource.KindUpgrade, Selector: "action=" + action, BareStatus: true,
			}
		}
		list = append(list, job("NodeUpgradeJob", "version").pair(typedConversion(
			func(f nodeUpgradeJob) (u resource.Upgrade, err error) {
				u.Spec, err = f.Spec.spec("spec")
				u.Spec.Version, u.Spec.RequireConfirmation = f.Spec.Version, f.Spec.RequireConfirmation
				return u, cmp.Or(err, checkNeeded("spec.version", f.Spec.Version == ""))
			},
			func(u resource.Upgrade) (f nodeUpgradeJob) {
				f.Spec.jobTerms, f.Spec.Version, f.Spec.RequireConfirmation = termsOf(u.Spec), u.Spec.Version, u.Spec.RequireConfirmation
				f.Status = showJob(u, version, "Upgrade")
				return f
			})))
		if version == "v1alpha2" {
			list = append(list, job("ConfigUpdateJob", "settings").pair(typedConversion(
				func(f configUpdateJob) (u resource.Upgrade, err error) {
					u.Spec, err = f.Spec.spec("spec")
					u.Spec.Settings = plainConfig(f.Spec.UpdateFields)
					return u, cmp.Or(err, checkNeeded("spec.updateFields", len(f.Spec.UpdateFields) == 0))
				},
				func(u resource.Upgrade) (f configUpdateJob) {
					f.Spec.jobTerms, f.Spec.UpdateFields = termsOf(u.Spec), textConfig(u.Spec.Settings)
					f.Status = showJob(u, version, "Update")
					return f
				})))
		}
		list = append(list, job("ImagePrePullJob", "images").pair(typedConversion(
			func(f imagePrePullJob) (u resource.Upgrade, err error) {
				t := f.Spec.ImagePrePullTemplate
				u.Spec, err = t.spec("spec.imagePrePullTemplate")
				u.Spec.Images = t.Images
				return u, cmp.Or(err, checkNeeded("spec.imagePrePullTemplate.images", len(t.Images) == 0))
			},
			func(u resource.Upgrade) (f imagePrePullJob) {
				f.Spec.ImagePrePullTemplate.jobTerms, f.Spec.ImagePrePullTemplate.Images = termsOf(u.Spec), u.Spec.Images
				f.Status = showJob(u, version, "Pull")
				if version == "v1alpha1" {
					for _, n := range f.Status.NodeStatus {
						f.Status.Status = append(f.Status.Status, pulledNode{n})
					}
					f.Status.NodeStatus = nil
				}
				return f
			})))
	}
	return list
}

func checkNeeded(field string, missing bool) error {
	if missing {
		return resource.Errorf(resource.Invalid, field, "is required")
	}
	return nil
}

// checkThreshold is how much of a resource may be used for a check to pass, in percent, as it is in KubeEdge.
const checkThreshold = 80

func (t jobTerms) spec(at string) (s resource.UpgradeSpec, err error) {
	s.NodeNames, s.LabelSelector, s.Concurrency = t.NodeNames, t.LabelSelector, t.Concurrency
	switch n := t.TimeoutSeconds; {
	case n < 0 || n > math.MaxUint32:
		return s, resource.Errorf(resource.Invalid, at+".timeoutSeconds", "%d: must be a number of seconds", n)
	case n > 0:
		s.Timeout = (time.Duration(n) * time.Second).String()
	}
	for i, item := range t.CheckItems {
		if s.Checks == nil {
			s.Checks = new(resource.UpgradeChecks)
		}
		switch item {
		case "cpu":
			s.Checks.CPU = checkThreshold
		case "mem":
			s.Checks.Memory = checkThreshold
		case "disk":
			s.Checks.Disk = checkThreshold
		default:
			return s, resource.Errorf(resource.Invalid, fmt.Sprintf("%s.checkItems[%d]", at, i), "%.40q: must be cpu, mem or disk", item)
		}
	}
	if t.FailureTolerate != "" {
		share, err := strconv.ParseFloat(string(t.FailureTolerate), 64)
		if err != nil || !(share >= 0 && share <= 1) {
			return s, resource.Errorf(resource.Invalid, at+".failureTolerate", "%.40q: must be a share of the nodes, from 0 to 1, such as 0.1", string(t.FailureTolerate))
		}
		s.FailureBudget = fmt.Sprintf("%.0f%%", share*100)
	}
	return s, nil
}

func termsOf(s resource.UpgradeSpec) (t jobTerms) {
	t.NodeNames, t.LabelSelector, t.Concurrency = s.NodeNames, s.LabelSelector, s.Concurrency
	if d, err := time.ParseDuration(s.Timeout); err == nil && d >= time.Second && d.Seconds() <= math.MaxUint32 {
		t.TimeoutSeconds = int64(d / time.Second)
	}
	if c := s.Checks; c != nil {
		for _, check := range []struct {
			item string
			most int
		}{{"cpu", c.CPU}, {"mem", c.Memory}, {"disk", c.Disk}} {
			if check.most > 0 {
				t.CheckItems = append(t.CheckItems, check.item)
			}
		}
	}
	if n, err := resource.ParsePercent(s.FailureBudget); err == nil {
		t.FailureTolerate = scalarText(strconv.FormatFloat(float64(n)/100, 'f', -1, 64))
	}
	return t
}

// jobWarnings returns warnings about fields that are kept and have no effect.
func jobWarnings(spec jsonObject) (warnings []string) {
	at, fields := "spec", spec
	if template, ok := spec["imagePrePullTemplate"].(jsonObject); ok {
		at, fields = "spec.imagePrePullTemplate", template
	}
	for _, unused := range []struct{ field, why string }{
		{"image", "nodes get the programs of the Artifact of that version: edgebus artifact push"},
		{"imageDigestGatter", "the programs of an Artifact are verified by its signature"},
		{"imageSecrets", "nodes use the credentials that podman has there"},
		{"retryTimes", "an image that can't be pulled fails the node; a raised spec.attempt of the Upgrade tries it again"},
	} {
		if fields[unused.field] != nil {
			warnings = append(warnings, fmt.Sprintf("%s.%s is kept and not used: %s", at, unused.field, unused.why))
		}
	}
	return warnings
}

// showJob is how far an Upgrade is, in the words of a job. action is what its nodes do.
func showJob(u resource.Upgrade, version, action string) (s jobStatus) {
	r := u.Status.Rollout
	switch {
	case r == nil: // not observed yet
	case r.Reason == "Halted", r.Reason == "Aborted", r.Nodes > 0 && r.Failed == r.Nodes:
		s.Phase, s.Reason = "Failure", r.Message
	case r.Pending+r.Upgrading > 0:
		s.Phase, s.Reason = "InProgress", r.Message
	default:
		s.Phase, s.Reason = "Completed", r.Message
	}
	for _, n := range u.Status.Nodes {
		s.NodeStatus = append(s.NodeStatus, showJobNode(n, action))
	}
	if version == "v1alpha2" {
		return s
	}
	states := map[string]string{
		"Init": "Init", "InProgress": "Upgrading", "Completed": "Successful", "Failure": "Failed",
		"Pending": "Init", "Successful": "Successful", "Unknown": "Failed",
	}
	if action == "Pull" {
		states["InProgress"] = "Pulling"
	}
	s.State, s.Phase = states[s.Phase], ""
	for i := range s.NodeStatus {
		n := &s.NodeStatus[i]
		n.State, n.Phase, n.ActionFlow, n.CurrentVersion, n.HistoricVersion = states[n.Phase], "", nil, "", ""
	}
	return s
}

func showJobNode(n resource.UpgradeNode, action string) jobNode {
	a := n.Last()
	out := jobNode{NodeName: n.NodeName, Reason: a.Reason, Time: cmp.Or(a.EndedAt, a.StartedAt)}
	if action == "Upgrade" {
		out.CurrentVersion, out.HistoricVersion = a.FromVersion, a.FromVersion
	}
	did := func(action, status, why string) {
		out.ActionFlow = append(out.ActionFlow, jobAction{Action: action, Status: status, Reason: why, Time: out.Time})
	}
	switch {
	case a.OperationStatus == resource.UpgradeSuccess:
		out.Phase = "Successful"
		if action == "Upgrade" {
			out.CurrentVersion = a.ToVersion
		}
		did(action, "True", "")
	case a.OperationStatus == resource.UpgradeRolledBack, a.OperationStatus == resource.UpgradeRollbackFailed:
		out.Phase = "Failure"
		did(action, "False", a.Reason)
		if action != "Pull" {
			did("RollBack", map[bool]string{true: "True", false: "False"}[a.OperationStatus == resource.UpgradeRolledBack], "")
		}
	case a.OperationStatus == resource.Upgrading && !a.Open():
		out.Phase = "Unknown" // it has not answered in time
	case a.OperationStatus == resource.Upgrading:
		out.Phase = "InProgress"
		did(stepAction(a.Step, action), "Unknown", a.Reason)
	default:
		out.Phase = "Pending"
	}
	return out
}

// stepAction is the action that a step of a node belongs to.
func stepAction(step, action string) string {
	switch {
	case action == "Pull" && step == resource.StepPulling:
		return action
	case slices.Contains([]string{"", resource.StepReady, resource.StepWaiting, resource.StepDownloading}, step):
		return "Check"
	case step == resource.StepHeld && action == "Upgrade":
		return "WaitingConfirmation"
	case step == resource.StepHeld:
		return "Check"
	case step == resource.StepBackingUp:
		return "BackUp"
	case step == resource.StepRollingBack:
		return "RollBack"
	}
	return action
}

// upgrade.kubeedge.io/v1alpha2: the status is a list, an entry a node.

type upgradeV1alpha2 struct {
	Spec   resource.UpgradeSpec   `json:"spec"`
	Status []resource.UpgradeNode `json:"status,omitempty"`
}

func upgradeV1alpha2Kinds() []Kind {
	k := Kind{
		Group: "upgrade.kubeedge.io", Version: "v1alpha2", Name: "Upgrade", Plural: "upgrades", Singular: "upgrade",
		Canonical: resource.KindUpgrade,
	}
	return []Kind{k.pair(typedConversion(
		func(f upgradeV1alpha2) (u resource.Upgrade, err error) {
			u.Spec, u.Status.Nodes = f.Spec, f.Status
			return u, nil
		},
		func(u resource.Upgrade) upgradeV1alpha2 { return upgradeV1alpha2{u.Spec, u.Status.Nodes} },
	))}
}
