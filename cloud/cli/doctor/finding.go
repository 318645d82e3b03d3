package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics/resource"
)

// mark says how bad a finding is.
type mark string

const (
	markOK    mark = "ok"
	markLook  mark = "look" // no fault, but worth knowing
	markWrong mark = "wrong"
)

func (m mark) severity() int { return slices.Index([]mark{markOK, markLook, markWrong}, m) }

func (m mark) sign() string {
	return map[mark]string{markOK: "✓", markLook: "!", markWrong: "✗"}[m]
}

// finding is the result of one check.
type finding struct {
	Mark    mark   `json:"mark"`
	Message string `json:"message"`
	Advice  string `json:"advice,omitempty"`
}

// nodeDiagnosis is the list of findings about a node.
type nodeDiagnosis struct {
	Node     string               `json:"node"`
	Verdict  string               `json:"verdict"`
	Findings []finding            `json:"findings"`
	Hub      *resource.LinkReport `json:"hub,omitempty"`
	Core     *resource.LinkReport `json:"core,omitempty"`

	hubUnasked bool // the hub did not answer, or refused to
}

func (d *nodeDiagnosis) add(m mark, advice, format string, args ...any) {
	d.Findings = append(d.Findings, finding{m, fmt.Sprintf(format, args...), advice})
}

// addIf adds a finding if it is one.
func (d *nodeDiagnosis) addIf(is bool, m mark, advice, format string, args ...any) {
	if is {
		d.add(m, advice, format, args...)
	}
}

func (d nodeDiagnosis) hasMark(m mark) bool {
	return slices.ContainsFunc(d.Findings, func(f finding) bool { return f.Mark == m })
}

func (d nodeDiagnosis) exitError() error {
	switch {
	case d.Hub == nil && d.Core == nil:
		return exitcode.Code(2)
	case d.hasMark(markWrong):
		return exitcode.Code(1)
	case d.hubUnasked:
		return exitcode.Code(2)
	}
	return nil
}

// nodesSummary has one finding for each node, the worst first.
type nodesSummary struct {
	Hub   []finding     `json:"hub"`
	Links []nodeSummary `json:"links"`
	More  int           `json:"more,omitempty"`
}

type nodeSummary struct {
	Node    string        `json:"node"`
	Mark    mark          `json:"mark"`
	Message string        `json:"message"`
	Link    resource.Link `json:"link"`
}

func (s nodesSummary) exitError() error {
	if slices.ContainsFunc(s.Hub, func(f finding) bool { return f.Mark == markWrong }) ||
		slices.ContainsFunc(s.Links, func(l nodeSummary) bool { return l.Mark == markWrong }) {
		return exitcode.Code(1)
	}
	return nil
}

func (d *nodeDiagnosis) list(m mark, names []string, advice, format string) {
	d.addIf(len(names) > 0, m, advice, format, printer.FirstNames(names))
}

// text is a diagnosis for people.
func (d nodeDiagnosis) text(on terminal.Colours) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Node %s: %s\n", d.Node, on.Paint(terminal.Bold, d.Verdict))
	for _, x := range d.Findings {
		fmt.Fprintf(&b, "%s %s\n", paintMark(on, x.Mark), terminal.Printable(x.Message, 300))
		if x.Advice != "" {
			fmt.Fprintf(&b, "  → %s\n", x.Advice)
		}
	}
	return b.String()
}

// text is a summary for people.
func (s nodesSummary) text(on terminal.Colours) string {
	var b strings.Builder
	for _, x := range s.Hub {
		fmt.Fprintf(&b, "%s %s\n", paintMark(on, x.Mark), terminal.Printable(x.Message, 300))
	}
	for _, l := range s.Links {
		fmt.Fprintf(&b, "%s %s  %s\n", paintMark(on, l.Mark), l.Node, terminal.Printable(l.Message, 200))
	}
	if s.More > 0 {
		fmt.Fprintf(&b, "… and %d more, of which no link is worse\n", s.More)
	}
	if len(s.Links) == 0 {
		b.WriteString("the hub knows no nodes yet\n")
	}
	return b.String()
}

func paintMark(on terminal.Colours, m mark) string {
	return on.Paint(map[mark]string{markOK: terminal.Green, markLook: terminal.Yellow, markWrong: terminal.Red}[m], m.sign())
}
