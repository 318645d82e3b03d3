// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics/resource"
)

// Mark says how bad a finding is.
type Mark string

// The marks.
const (
	MarkOK    Mark = "ok"   // right, and worth saying
	MarkLook  Mark = "look" // no fault, but worth knowing
	MarkWrong Mark = "wrong"
)

func (m Mark) severity() int { return slices.Index([]Mark{MarkOK, MarkLook, MarkWrong}, m) }

// Finding is the result of one check.
type Finding struct {
	Mark    Mark   `json:"mark"`
	Message string `json:"message"`
	Advice  string `json:"advice,omitempty"`
}

// NodeDiagnosis is the list of findings about a node.
type NodeDiagnosis struct {
	Node     string               `json:"node"`
	Verdict  string               `json:"verdict"`
	Findings []Finding            `json:"findings"`
	Hub      *resource.LinkReport `json:"hub,omitempty"`
	Core     *resource.LinkReport `json:"core,omitempty"`

	HubUnasked bool `json:"-"` // the hub did not answer, or refused to
}

func (d *NodeDiagnosis) add(m Mark, advice, format string, args ...any) {
	d.Findings = append(d.Findings, Finding{m, fmt.Sprintf(format, args...), advice})
}

// addIf adds a finding if it is one.
func (d *NodeDiagnosis) addIf(is bool, m Mark, advice, format string, args ...any) {
	if is {
		d.add(m, advice, format, args...)
	}
}

// HasMark reports whether one of the findings has the mark.
func (d NodeDiagnosis) HasMark(m Mark) bool {
	return slices.ContainsFunc(d.Findings, func(f Finding) bool { return f.Mark == m })
}

// NodesSummary has one finding for each node, the worst first.
type NodesSummary struct {
	Hub   []Finding     `json:"hub"`
	Links []NodeSummary `json:"links"`
	More  int           `json:"more,omitempty"`
}

// NodeSummary is the worst finding of a node.
type NodeSummary struct {
	Node    string        `json:"node"`
	Mark    Mark          `json:"mark"`
	Message string        `json:"message"`
	Link    resource.Link `json:"link"`
}

func (d *NodeDiagnosis) list(m Mark, names []string, advice, format string) {
	d.addIf(len(names) > 0, m, advice, format, printer.FirstNames(names))
}

func (m Mark) sign() string {
	return map[Mark]string{MarkOK: "✓", MarkLook: "!", MarkWrong: "✗"}[m]
}

// ExitError is the exit code that says what a diagnosis came to; nil: nothing is wrong.
func (d NodeDiagnosis) ExitError() error {
	switch {
	case d.Hub == nil && d.Core == nil:
		return exitcode.Code(2)
	case d.HasMark(MarkWrong):
		return exitcode.Code(1)
	case d.HubUnasked:
		return exitcode.Code(2)
	}
	return nil
}

// ExitError is the exit code that says whether something is wrong.
func (s NodesSummary) ExitError() error {
	if slices.ContainsFunc(s.Hub, func(f Finding) bool { return f.Mark == MarkWrong }) ||
		slices.ContainsFunc(s.Links, func(l NodeSummary) bool { return l.Mark == MarkWrong }) {
		return exitcode.Code(1)
	}
	return nil
}

// mostText bounds what others say of themselves, in characters. What to do stands at the end of it.
const mostText = 2000

func writeFindings(w io.Writer, on terminal.Colours, all []Finding) {
	for _, x := range all {
		fmt.Fprintf(w, "%s %s\n", paintMark(on, x.Mark), terminal.Printable(x.Message, mostText))
		if x.Advice != "" {
			fmt.Fprintf(w, "  → %s\n", x.Advice)
		}
	}
}

// Text is a diagnosis for people.
func (d NodeDiagnosis) Text(on terminal.Colours) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Node %s: %s\n", d.Node, on.Paint(terminal.Bold, d.Verdict))
	writeFindings(&b, on, d.Findings)
	return b.String()
}

// Text is a summary for people.
func (s NodesSummary) Text(on terminal.Colours) string {
	var b strings.Builder
	for _, x := range s.Hub {
		fmt.Fprintf(&b, "%s %s\n", paintMark(on, x.Mark), terminal.Printable(x.Message, mostText))
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

func paintMark(on terminal.Colours, m Mark) string {
	return on.Paint(map[Mark]string{MarkOK: terminal.Green, MarkLook: terminal.Yellow, MarkWrong: terminal.Red}[m], m.sign())
}
