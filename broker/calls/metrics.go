package calls

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgebus/edgebus/topics"
)

var (
	taken    = prometheus.NewDesc("edgebus_commands_total", "Commands that were asked for.", nil, nil)
	underWay = prometheus.NewDesc("edgebus_commands_underway", "Commands that wait for their answer now.", nil, nil)
	ended    = prometheus.NewDesc("edgebus_commands_ended_total", "Commands that were answered, by the answer's code.", []string{"code"}, nil)
	late     = prometheus.NewDesc("edgebus_commands_late_total", "Answers that nobody waited for any more: second ones, and those after the time was over.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *Calls) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *Calls) Collect(ch chan<- prometheus.Metric) {
	s := c.Stats()
	ch <- prometheus.MustNewConstMetric(taken, prometheus.CounterValue, float64(s.Taken))
	ch <- prometheus.MustNewConstMetric(underWay, prometheus.GaugeValue, float64(s.UnderWay))
	ch <- prometheus.MustNewConstMetric(late, prometheus.CounterValue, float64(s.Late))
	for _, code := range append(topics.Codes(), Other) {
		ch <- prometheus.MustNewConstMetric(ended, prometheus.CounterValue, float64(s.Ended[string(code)]), string(code))
	}
}
