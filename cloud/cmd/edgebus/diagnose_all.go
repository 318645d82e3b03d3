package main

import (
	"cmp"
	"slices"

	"github.com/edgebus/edgebus/topics/resource"
)

// summary is all nodes, the worst first.
type summary struct {
	Hub   []finding     `json:"hub"`
	Links []linkSummary `json:"links"`
	More  int           `json:"more,omitempty"`
}

type linkSummary struct {
	Node string        `json:"node"`
	Mark mark          `json:"mark"`
	What string        `json:"what"`
	Link resource.Link `json:"link"`
}

// summarise draws the conclusions about each node as diagnose does, and keeps the worst of each.
func summarise(r resource.LinkReport, nodes []facts) summary {
	d := &diagnosis{}
	hub := r
	hub.Links = nil // what is said of one node is said below
	d.ends(facts{hub: &hub})
	s := summary{Hub: slices.DeleteFunc(d.Findings, func(f finding) bool { return f.Mark == fine }), More: r.More}
	for _, f := range nodes {
		d := &diagnosis{}
		d.node(f)
		worst := slices.MaxFunc(d.Findings, func(a, b finding) int { return cmp.Compare(a.Mark.badness(), b.Mark.badness()) })
		s.Links = append(s.Links, linkSummary{f.node, worst.Mark, worst.What, f.hub.Links[0]})
	}
	slices.SortStableFunc(s.Links, func(a, b linkSummary) int { return cmp.Compare(b.Mark.badness(), a.Mark.badness()) })
	return s
}

func (s summary) exit() error {
	bad := func(m mark) bool { return m == wrong }
	if slices.ContainsFunc(s.Hub, func(f finding) bool { return bad(f.Mark) }) ||
		slices.ContainsFunc(s.Links, func(l linkSummary) bool { return bad(l.Mark) }) {
		return exitCode(1)
	}
	return nil
}
