package metrics

import (
	"github.com/edgebus/edgebus/broker/calls"
	"github.com/edgebus/edgebus/topics"
)

// Calls adds the figures of commands.
func (r Registry) Calls(c *calls.Calls) {
	g := NewGroup("commands", c.Stats)
	type stats = calls.Stats
	g.Counter("total", "Commands that were asked for.", func(s stats) float64 { return float64(s.Taken) })
	g.Gauge("underway", "Commands that wait for their answer now.", func(s stats) float64 { return float64(s.UnderWay) })
	g.CounterBy("code", "ended_total", "Commands that were answered, by the answer's code.", func(s stats) map[string]int64 {
		for _, code := range append(topics.Codes(), calls.Other) {
			s.Ended[string(code)] += 0 // there from the start
		}
		return s.Ended
	})
	g.Counter("late_total", "Answers that nobody waited for any more: second ones, and those after the time was over.", func(s stats) float64 { return float64(s.Late) })
	r.MustRegister(g)
}
