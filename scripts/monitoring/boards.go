// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// board is a dashboard: what to look at first, and sections of the table with each metric that a program has.
type board struct {
	uid, title, what string
	instances        string // a metric that has each instance to choose from
	program          string // whose metrics the rows have
	sections         []string
	first            []panel
}

// panel is a panel among what to look at first. Its number, if it has only one, is red from bad on.
type panel struct {
	title, unit string
	exprs       []expression
	number      bool
	bad         float64
	width       uint32 // of a number
}

// expression is what a panel shows, and what it is called in the legend. %s stands for the choice of instances.
type expression struct{ expr, legend string }

const chosenInstances = `instance=~"$instance"`

var boards = []board{
	{
		uid: "edgebus-hub", title: "Edgebus hub", instances: "edgebus_hub_nodes", program: "hub",
		what:     "A hub: its nodes, how far they are behind, its broker, disk and API.",
		sections: []string{"The hub's nodes", "Broker", "Commits", "Controllers", "Commands", "History", "Views", "Several hubs", "Blobs", "Both"},
		first: []panel{
			{title: "Nodes", number: true, exprs: []expression{{"sum(edgebus_hub_nodes{%s})", ""}}},
			{title: "Nodes that are away", number: true, bad: 1, exprs: []expression{{"sum(edgebus_hub_nodes{%s} - edgebus_hub_nodes_online{%s})", ""}}},
			{title: "Nodes that are late", number: true, bad: 1, exprs: []expression{{"sum(edgebus_hub_nodes_late{%s})", ""}}},
			{title: "Devices", number: true, exprs: []expression{{"sum(edgebus_hub_devices{%s})", ""}}},
			{title: "Nodes beyond their quota, or of another hub", number: true, bad: 1, exprs: []expression{{"sum(edgebus_hub_nodes_oversize{%s} + edgebus_hub_nodes_of_another_hub{%s})", ""}}},
			{title: "Fullest queue of a client", unit: "percentunit", number: true, bad: 0.8, exprs: []expression{{"max(edgebus_broker_fullest_queue_ratio{%s})", ""}}},
			{title: "Nodes", exprs: []expression{{"edgebus_hub_nodes{%s}", "all {{instance}}"}, {"edgebus_hub_nodes_online{%s}", "connected {{instance}}"}, {"edgebus_hub_nodes_in_step{%s}", "in step {{instance}}"}}},
			{title: "Oldest change that a node has not confirmed", unit: "s", exprs: []expression{{"edgebus_hub_behind_seconds{%s}", "{{instance}}"}}},
			{title: "Messages a second", unit: "reqps", exprs: []expression{{"rate(edgebus_broker_received_messages_total{%s}[$__rate_interval])", "received {{instance}}"}, {"rate(edgebus_broker_sent_messages_total{%s}[$__rate_interval])", "sent {{instance}}"}}},
			{title: "Commits: the slowest of a hundred", unit: "s", exprs: []expression{{"histogram_quantile(0.99, sum by (le, instance, store) (rate(edgebus_commit_seconds_bucket{%s}[$__rate_interval])))", "{{store}} {{instance}}"}}},
			{title: "Lost and refused messages a second", unit: "reqps", exprs: []expression{{"rate(edgebus_broker_dropped_messages_total{%s}[$__rate_interval])", "lost: {{reason}} {{instance}}"}, {"rate(edgebus_broker_refused_messages_total{%s}[$__rate_interval])", "refused: {{kind}} {{instance}}"}}},
			{title: "Requests to the API a second", unit: "reqps", exprs: []expression{{"sum by (instance, code) (rate(edgebus_http_requests_total{%s}[$__rate_interval]))", "{{code}} {{instance}}"}}},
			{title: "Memory", unit: "bytes", exprs: []expression{{"process_resident_memory_bytes{%s}", "{{instance}}"}}},
			{title: "Processors in use", exprs: []expression{{"rate(process_cpu_seconds_total{%s}[$__rate_interval])", "{{instance}}"}}},
		},
	},
	{
		uid: "edgebus-node", title: "Edgebus node", instances: "edgebus_core_link_up", program: "core",
		what:     "Nodes: the link to the hub, streams, broker and disk of their cores.",
		sections: []string{"The core's link", "Streams and bridge", "Broker", "Commits", "Commands", "History", "Views", "Blobs", "Both"},
		first: []panel{
			{title: "Nodes without a link", number: true, bad: 1, exprs: []expression{{"sum(1 - edgebus_core_link_up{%s})", ""}}},
			{title: "Nodes that are not in step", number: true, bad: 1, exprs: []expression{{"sum(1 - edgebus_core_link_in_step{%s})", ""}}},
			{title: "Oldest report that the hub has not confirmed", unit: "s", number: true, bad: 60, exprs: []expression{{"max(edgebus_core_link_behind_seconds{%s})", ""}}},
			{title: "Telemetry that waits", unit: "bytes", number: true, exprs: []expression{{"sum(edgebus_streams_waiting_bytes{%s})", ""}}},
			{title: "Telemetry lost in an hour", number: true, bad: 1, exprs: []expression{{"sum(increase(edgebus_streams_dropped_messages_total{%s}[1h]))", ""}}},
			{title: "Devices", number: true, exprs: []expression{{"sum(edgebus_core_devices{%s})", ""}}},
			{title: "Link", exprs: []expression{{"edgebus_core_link_up{%s}", "up {{instance}}"}, {"edgebus_core_link_in_step{%s}", "in step {{instance}}"}}},
			{title: "Reports that the hub has not confirmed", exprs: []expression{{"edgebus_core_link_behind_keys{%s}", "{{instance}}"}}},
			{title: "Bytes to the hub a second", unit: "Bps", exprs: []expression{{"rate(edgebus_streams_bytes_total{%s}[$__rate_interval])", "streams {{instance}}"}, {"rate(edgebus_streams_state_bytes_total{%s}[$__rate_interval])", "state {{instance}}"}}},
			{title: "Age of the oldest message that waits", unit: "s", exprs: []expression{{"edgebus_streams_waiting_seconds{%s}", "{{instance}}"}}},
			{title: "Memory", unit: "bytes", exprs: []expression{{"process_resident_memory_bytes{%s}", "{{instance}}"}}},
			{title: "Processors in use", exprs: []expression{{"rate(process_cpu_seconds_total{%s}[$__rate_interval])", "{{instance}}"}}},
		},
	},
	{
		uid: "edgebus-devices", title: "Edgebus devices", instances: "edgebus_build_info", program: "",
		what: "Devices, as hub and nodes count them: values, commands, history. What one device does is on the page of the hub or the node.",
		first: []panel{
			{title: "Devices", number: true, exprs: []expression{{"sum(edgebus_hub_devices{%s})", ""}}},
			{title: "Desired values that wait for their commit", number: true, exprs: []expression{{"sum(edgebus_hub_desired_waiting{%s})", ""}}},
			{title: "Commands that wait for their answer", number: true, exprs: []expression{{"sum(edgebus_commands_underway{%s})", ""}}},
			{title: "Refused values and messages in an hour", number: true, exprs: []expression{{"sum(increase(edgebus_broker_refused_messages_total{%s}[1h]))", ""}}},
			{title: "Devices of each node", exprs: []expression{{"edgebus_core_devices{%s}", "{{instance}}"}}},
			{title: "Statuses of devices and nodes written a second", unit: "wps", exprs: []expression{{"rate(edgebus_hub_statuses_total{%s}[$__rate_interval])", "{{instance}}"}}},
			{title: "Statuses that wait", exprs: []expression{{"edgebus_hub_status_waiting{%s}", "{{instance}}"}}},
			{title: "Commands a second, by their outcome", unit: "reqps", exprs: []expression{{"sum by (instance, code) (rate(edgebus_commands_ended_total{%s}[$__rate_interval]))", "{{code}} {{instance}}"}}},
			{title: "Refused values and messages a second", unit: "reqps", exprs: []expression{{"rate(edgebus_broker_refused_messages_total{%s}[$__rate_interval])", "{{kind}} {{instance}}"}, {"rate(edgebus_core_refused_total{%s}[$__rate_interval])", "in the tree {{instance}}"}}},
			{title: "Values recorded a second", unit: "wps", exprs: []expression{{"rate(edgebus_history_samples_total{%s}[$__rate_interval])", "{{instance}}"}}},
			{title: "History on disk", unit: "bytes", exprs: []expression{{"edgebus_history_bytes{%s}", "{{instance}}"}, {"edgebus_history_limit_bytes{%s}", "limit {{instance}}"}}},
			{title: "Telemetry and events a second", unit: "reqps", exprs: []expression{{"rate(edgebus_streams_forwarded_messages_total{%s}[$__rate_interval])", "{{instance}}"}}},
		},
	},
}

// json is the board as Grafana imports it.
func (b board) json(t table) ([]byte, error) {
	source := common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("$source")}
	d := dashboard.NewDashboardBuilder(b.title).Uid(b.uid).Description(b.what).Tags([]string{"edgebus"}).
		Refresh("30s").Time("now-6h", "now").Timezone(common.TimeZoneBrowser).Tooltip(dashboard.DashboardCursorSyncCrosshair).
		WithVariable(dashboard.NewDatasourceVariableBuilder("source").Label("Data source").Type("prometheus")).
		WithVariable(dashboard.NewQueryVariableBuilder("instance").Label("Instance").Datasource(source).
			Query(dashboard.StringOrMap{String: cog.ToPtr("label_values(" + b.instances + ", instance)")}).
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalAsc).Multi(true).IncludeAll(true).
			Current(dashboard.VariableOption{Text: dashboard.StringOrArrayOfString{String: cog.ToPtr("All")}, Value: dashboard.StringOrArrayOfString{String: cog.ToPtr("$__all")}}))
	for _, p := range b.first {
		p.width = b.numberWidth()
		d = d.WithPanel(p.build(source))
	}
	for _, title := range b.sections {
		i := slices.IndexFunc(t.Sections, func(s section) bool { return s.Title == title })
		if i < 0 {
			return nil, fmt.Errorf("board %s: the table has no section %q", b.title, title)
		}
		row := dashboard.NewRowBuilder(title).Collapsed(true)
		for _, m := range t.Sections[i].Metrics {
			if m.on(b.program) {
				row = row.WithPanel(m.panel().withDescription(m.What).build(source))
			}
		}
		d = d.WithRow(row)
	}
	built, err := d.Build()
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(built, "", "  ")
	return append(text, '\n'), err
}

const gridWidth = 24 // columns of a board

// numberWidth is the width of numbers, which stand in one line.
func (b board) numberWidth() uint32 {
	count := uint32(0)
	for _, p := range b.first {
		if p.number {
			count++
		}
	}
	return gridWidth / count
}

// describedPanel is a panel with a description.
type describedPanel struct {
	panel
	what string
}

func (p panel) withDescription(what string) describedPanel { return describedPanel{p, what} }

// panel shows a metric as its kind wants it: a counter as a rate, of a histogram the slowest of a hundred.
func (m metric) panel() panel {
	name := strings.TrimPrefix(m.Name, "edgebus_")
	legend := "{{instance}}"
	for _, label := range m.Labels {
		legend += " {{" + label + "}}"
	}
	unit := ""
	for suffix, of := range map[string]string{"_bytes": "bytes", "_seconds": "s", "_ratio": "percentunit", "_timestamp_seconds": "dateTimeAsIso"} {
		if strings.HasSuffix(m.Name, suffix) && (unit == "" || suffix == "_timestamp_seconds") {
			unit = of
		}
	}
	p := panel{title: name, unit: unit}
	switch m.Kind {
	case "counter":
		p.unit = map[bool]string{true: "Bps", false: "ops"}[strings.HasSuffix(m.Name, "_bytes_total")]
		p.exprs = []expression{{"rate(" + m.Name + "{%s}[$__rate_interval])", legend}}
	case "histogram":
		by := strings.Join(append([]string{"le", "instance"}, m.Labels...), ", ")
		p.title += ", the highest of a hundred"
		p.exprs = []expression{{"histogram_quantile(0.99, sum by (" + by + ") (rate(" + m.Name + "_bucket{%s}[$__rate_interval])))", legend}}
	default:
		p.exprs = []expression{{m.Name + "{%s}", legend}}
		if unit == "dateTimeAsIso" {
			p.exprs[0].expr += " * 1000" // Grafana's times are in milliseconds
		}
	}
	return p
}

func (p panel) build(source common.DataSourceRef) cog.Builder[dashboard.Panel] {
	return describedPanel{panel: p}.build(source)
}

func (d describedPanel) build(source common.DataSourceRef) cog.Builder[dashboard.Panel] {
	if d.number {
		steps := []dashboard.Threshold{{Color: "green"}}
		if d.bad > 0 {
			steps = append(steps, dashboard.Threshold{Value: cog.ToPtr(d.bad), Color: "red"})
		}
		return stat.NewPanelBuilder().Title(d.title).Unit(d.unit).Datasource(source).Height(4).Span(d.width).
			ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).
			Thresholds(dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps(steps)).
			WithTarget(d.exprs[0].query("A", source))
	}
	graph := timeseries.NewPanelBuilder().Title(d.title).Unit(d.unit).Datasource(source).Height(8).Span(12).FillOpacity(8)
	if d.what != "" {
		graph = graph.Description(d.what)
	}
	for i, e := range d.exprs {
		graph = graph.WithTarget(e.query(string(rune('A'+i)), source))
	}
	return graph
}

func (e expression) query(id string, source common.DataSourceRef) *prometheus.DataqueryBuilder {
	return prometheus.NewDataqueryBuilder().RefId(id).Datasource(source).Expr(strings.ReplaceAll(e.expr, "%s", chosenInstances)).LegendFormat(e.legend)
}
