// SPDX-License-Identifier: Apache-2.0

package resource

// Summary is one aspect of a Node's state, as one of flightctl's words, with an explanation for people.
type Summary struct {
	Status string `json:"status"`
	Info   string `json:"info,omitempty"`
}

// The states in summaries.
const (
	SummaryUnknown        = "Unknown"
	SummaryOnline         = "Online"
	SummaryDegraded       = "Degraded"
	SummaryError          = "Error"
	SummaryRebooting      = "Rebooting"
	SummaryUpToDate       = "UpToDate"
	SummaryOutOfDate      = "OutOfDate"
	SummaryUpdating       = "Updating"
	SummaryHealthy        = "Healthy"
	SummaryNoApplications = "NoApplications"
)

// Summary summarizes the state of the host: the worst state of its resources. It is Unknown while the node is offline.
func (s NodeStatus) Summary() Summary {
	if s.State != Online {
		return Summary{Status: SummaryUnknown}
	}
	if s.updatingReason() == SummaryRebooting {
		return Summary{Status: SummaryRebooting}
	}
	out := Summary{Status: SummaryOnline}
	if r := s.Resources; r != nil {
		for _, of := range [][2]string{{"CPU", r.CPU}, {"memory", r.Memory}, {"disk", r.Disk}} {
			text := of[0] + " is " + of[1]
			switch {
			case of[1] == SummaryError || of[1] == SeverityCritical:
				if out.Status != SummaryError {
					out.Info = ""
				}
				out = Summary{SummaryError, joinText(out.Info, text)}
			case of[1] == SeverityWarning && out.Status != SummaryError:
				out = Summary{SummaryDegraded, joinText(out.Info, text)}
			}
		}
	}
	return out
}

func joinText(before, text string) string {
	if before == "" {
		return text
	}
	return before + ", " + text
}

// Updated summarizes whether the node has applied its rendered spec.
func (s NodeStatus) Updated() Summary {
	switch updating := s.updatingReason(); {
	case s.AgentStopped():
		return Summary{SummaryUnknown, "edgeagent does not run on the node"}
	case updating != "":
		return Summary{SummaryUpdating, updating}
	case s.RenderedVersion == "":
	case s.RenderedVersion == s.SpecVersion:
		return Summary{Status: SummaryUpToDate}
	case s.Failed != nil && s.Failed.RenderedVersion == s.SpecVersion:
		return Summary{SummaryOutOfDate, s.Failed.Reason + ": " + s.Failed.Message}
	case s.SpecVersion != "":
		return Summary{Status: SummaryOutOfDate}
	}
	return Summary{Status: SummaryUnknown}
}

// ApplicationsSummary summarizes the state of the node's applications: the worst one.
func (s NodeStatus) ApplicationsSummary() Summary {
	out := Summary{Status: SummaryNoApplications}
	for _, a := range s.Applications {
		switch {
		case a.Failed():
			return Summary{SummaryError, a.Name + ": " + a.Message}
		case !a.Runs():
			out = Summary{SummaryDegraded, a.Name + " is " + a.Status}
		case out.Status == SummaryNoApplications:
			out.Status = SummaryHealthy
		}
	}
	return out
}

// updatingReason is the step of the agent's update; empty if no update is under way.
func (s NodeStatus) updatingReason() string { return reasonOf(s.Conditions, ConditionUpdating) }

// FleetSummary counts the nodes of a fleet by their states.
type FleetSummary struct {
	// Nodes is the number of nodes of the fleet.
	Nodes int `json:"nodes,omitempty"`
	// SummaryStatus counts the nodes by the state of their hosts: Online, Degraded, Error, Rebooting or Unknown.
	SummaryStatus map[string]int `json:"summaryStatus,omitempty"`
	// UpdateStatus counts the nodes by whether they have applied their specs: UpToDate, OutOfDate, Updating or Unknown.
	UpdateStatus map[string]int `json:"updateStatus,omitempty"`
	// ApplicationStatus counts the nodes by the state of their applications: Healthy, Degraded, Error or NoApplications.
	ApplicationStatus map[string]int `json:"applicationStatus,omitempty"`
}

// Summaries are the states of a node that a FleetSummary counts.
type Summaries struct{ Host, Update, Applications string }

// Summaries returns the states of the node that a FleetSummary counts.
func (s NodeStatus) Summaries() Summaries {
	return Summaries{s.Summary().Status, s.Updated().Status, s.ApplicationsSummary().Status}
}

// Add counts a node.
func (f *FleetSummary) Add(s Summaries) {
	if f.SummaryStatus == nil {
		f.SummaryStatus, f.UpdateStatus, f.ApplicationStatus = map[string]int{}, map[string]int{}, map[string]int{}
	}
	f.Nodes++
	f.SummaryStatus[s.Host]++
	f.UpdateStatus[s.Update]++
	f.ApplicationStatus[s.Applications]++
}

// Lifecycle summarizes whether the node belongs to the hub, as flightctl does. It is Unknown if the node's certificates were
// revoked, or nothing is known of the node.
func (s NodeStatus) Lifecycle() Summary {
	switch reason := s.RevokedReason(); {
	case reason == ReasonDecommissioning, reason == ReasonDecommissioned:
		return Summary{Status: reason}
	case reason != "":
		return Summary{Status: SummaryUnknown, Info: "its certificates were revoked"}
	case s.State == "" && s.RenderedVersion == "":
		return Summary{Status: SummaryUnknown}
	}
	return Summary{Status: "Enrolled"}
}
