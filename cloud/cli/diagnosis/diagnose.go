// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/topics/resource"
)

// From when on something is a finding.
const (
	lateSeconds   = 30
	clockLook     = 5 * time.Second
	clockWrong    = time.Minute
	certificateOK = 14 * 24 * time.Hour
	recentTime    = 10 * time.Minute
	fullQueue     = 0.8
	fullQuota     = 0.9
	manyTakeovers = 3
)

// check looks at one thing in the answers, and adds what it finds: what is right, too, if that is worth saying. A new check is a file,
// check_….go, and its place in one of the lists.
type check func(d *NodeDiagnosis, f Facts)

var (
	hubChecks     = []check{checkHub}
	programChecks = []check{checkPrograms, checkClocks}
	// nodeChecks are the same in the diagnosis of one node and in the list of all.
	nodeChecks = []check{checkLink, checkSync, checkStreams, checkCertificates, checkAgent, checkQuota, checkVersions, checkDevices}
)

func (d *NodeDiagnosis) run(f Facts, lists ...[]check) {
	for _, c := range slices.Concat(lists...) {
		c(d, f)
	}
}

// Diagnose draws the conclusions from the answers. It is a pure function but for the current time.
func Diagnose(f Facts) NodeDiagnosis {
	d := NodeDiagnosis{Node: f.Node, Hub: f.Hub, Core: f.Core}
	if f.WorksAlone() {
		d.diagnoseAlone(f)
		return d
	}
	d.run(f, hubChecks, programChecks, nodeChecks)
	switch {
	case d.Hub == nil && d.Core == nil && f.HubRefused():
		d.Verdict = "can't tell: the hub did not let us in"
	case d.Hub == nil && d.Core == nil:
		d.Verdict = "can't tell: neither hub nor core answers"
	case d.HasMark(MarkWrong):
		d.Verdict = "something is wrong"
	case d.HubUnasked && f.HubRefused():
		d.Verdict = "can't tell: the hub did not let us in; the core says that it is connected"
	case d.HubUnasked:
		d.Verdict = "can't tell: the hub does not answer; the core says that it is connected"
	case d.HasMark(MarkLook):
		d.Verdict = "the link is well; look at what is marked !"
	default:
		d.Verdict = "all is well"
	}
	return d
}

// diagnoseAlone: only the core is looked at. What a hub has of the node's mappers is of the time when they were linked.
func (d *NodeDiagnosis) diagnoseAlone(f Facts) {
	d.Hub, f.Hub, f.Mappers = nil, nil, nil
	d.run(f, programChecks, []check{checkDevices})
	d.add(MarkOK, "", "the node works alone, as its settings say (link.server is empty)")
	d.Verdict = "all is well: the node works alone"
	if d.HasMark(MarkWrong) || d.HasMark(MarkLook) {
		d.Verdict = "the node works alone; look at what is marked"
	}
}

// SummariseNodes draws the same conclusions about each node as Diagnose, and keeps the worst finding of each.
func SummariseNodes(r resource.LinkReport, nodes []Facts) NodesSummary {
	d := &NodeDiagnosis{}
	hub := r
	hub.Links = nil // findings about a node are its own
	d.run(Facts{Hub: &hub}, programChecks)
	s := NodesSummary{Hub: slices.DeleteFunc(d.Findings, func(f Finding) bool { return f.Mark == MarkOK }), More: r.More}
	for _, f := range nodes {
		d := &NodeDiagnosis{}
		d.run(f, nodeChecks)
		worst := slices.MaxFunc(d.Findings, func(a, b Finding) int { return cmp.Compare(a.Mark.severity(), b.Mark.severity()) })
		s.Links = append(s.Links, NodeSummary{f.Node, worst.Mark, worst.Message, f.hubLink()})
	}
	slices.SortStableFunc(s.Links, func(a, b NodeSummary) int { return cmp.Compare(b.Mark.severity(), a.Mark.severity()) })
	return s
}

// ageInSentence is an age as it stands in a sentence.
func ageInSentence(d time.Duration) string {
	return strings.Replace(printer.Age(d), "now", "less than a second", 1)
}

func durationOfSeconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
