package doctor

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
type check func(d *nodeDiagnosis, f facts)

var (
	hubChecks     = []check{checkHub}
	programChecks = []check{checkPrograms, checkClocks}
	// nodeChecks are the same in the diagnosis of one node and in the list of all.
	nodeChecks = []check{checkLink, checkSync, checkStreams, checkCertificates, checkAgent, checkQuota, checkVersions, checkDevices}
)

func (d *nodeDiagnosis) run(f facts, lists ...[]check) {
	for _, c := range slices.Concat(lists...) {
		c(d, f)
	}
}

// diagnose draws the conclusions from the answers. It is a pure function but for the current time.
func diagnose(f facts) nodeDiagnosis {
	d := nodeDiagnosis{Node: f.node, Hub: f.hub, Core: f.core}
	if f.worksAlone() {
		d.diagnoseAlone(f)
		return d
	}
	d.run(f, hubChecks, programChecks, nodeChecks)
	switch {
	case d.Hub == nil && d.Core == nil && f.hubRefused():
		d.Verdict = "can't tell: the hub did not let us in"
	case d.Hub == nil && d.Core == nil:
		d.Verdict = "can't tell: neither hub nor core answers"
	case d.hasMark(markWrong):
		d.Verdict = "something is wrong"
	case d.hubUnasked && f.hubRefused():
		d.Verdict = "can't tell: the hub did not let us in; the core says that it is connected"
	case d.hubUnasked:
		d.Verdict = "can't tell: the hub does not answer; the core says that it is connected"
	case d.hasMark(markLook):
		d.Verdict = "the link is well; look at what is marked !"
	default:
		d.Verdict = "all is well"
	}
	return d
}

// diagnoseAlone: only the core is looked at. What a hub has of the node's mappers is of the time when they were linked.
func (d *nodeDiagnosis) diagnoseAlone(f facts) {
	d.Hub, f.hub, f.mappers = nil, nil, nil
	d.run(f, programChecks, []check{checkDevices})
	d.add(markOK, "", "the node works alone, as its settings say (link.server is empty)")
	d.Verdict = "all is well: the node works alone"
	if d.hasMark(markWrong) || d.hasMark(markLook) {
		d.Verdict = "the node works alone; look at what is marked"
	}
}

// summariseNodes draws the same conclusions about each node as diagnose, and keeps the worst finding of each.
func summariseNodes(r resource.LinkReport, nodes []facts) nodesSummary {
	d := &nodeDiagnosis{}
	hub := r
	hub.Links = nil // findings about a node are its own
	d.run(facts{hub: &hub}, programChecks)
	s := nodesSummary{Hub: slices.DeleteFunc(d.Findings, func(f finding) bool { return f.Mark == markOK }), More: r.More}
	for _, f := range nodes {
		d := &nodeDiagnosis{}
		d.run(f, nodeChecks)
		worst := slices.MaxFunc(d.Findings, func(a, b finding) int { return cmp.Compare(a.Mark.severity(), b.Mark.severity()) })
		s.Links = append(s.Links, nodeSummary{f.node, worst.Mark, worst.Message, f.hub.Links[0]})
	}
	slices.SortStableFunc(s.Links, func(a, b nodeSummary) int { return cmp.Compare(b.Mark.severity(), a.Mark.severity()) })
	return s
}

// ageInSentence is an age as it stands in a sentence.
func ageInSentence(d time.Duration) string {
	return strings.Replace(printer.Age(d), "now", "less than a second", 1)
}

func durationOfSeconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
