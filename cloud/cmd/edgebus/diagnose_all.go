package main

import (
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

func summarise(r resource.LinkReport) summary {
	d := &diagnosis{}
	hub := r
	hub.Links = nil // what is said of one node is said below
	d.ends(facts{hub: &hub})
	s := summary{Hub: slices.DeleteFunc(d.Findings, func(f finding) bool { return f.Mark == fine }), More: r.More}
	now, _ := resource.ParseTime(r.Now)
	for _, l := range r.Links {
		d := &diagnosis{}
		d.state(l, nil, now)
		d.shape(facts{hub: &r}, l)
		worst := d.Findings[0]
		for _, x := range d.Findings {
			if x.Mark == wrong && worst.Mark != wrong || x.Mark == look && worst.Mark == fine {
				worst = x
			}
		}
		s.Links = append(s.Links, linkSummary{l.Node, worst.Mark, worst.What, l})
	}
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
