// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// table is configs/deploy/monitoring.yaml: the metrics of hub and core, and what to be alerted of.
type table struct {
	Sections []section    `yaml:"sections"`
	Alerts   []alertGroup `yaml:"alerts"`
}

// section is a heading of the page, and a row of a board.
type section struct {
	Title   string   `yaml:"title"`
	Text    string   `yaml:"text"`
	Metrics []metric `yaml:"metrics"`
}

// metric is a metric with its labels, its kind and who has it: hub, core or both, perhaps with a condition.
type metric struct {
	Name   string   `yaml:"name"`
	Labels []string `yaml:"labels"`
	Kind   string   `yaml:"kind"`
	Where  string   `yaml:"where"`
	What   string   `yaml:"what"`
}

// on reports whether a program has the metric.
func (m metric) on(program string) bool {
	who, _, _ := strings.Cut(m.Where, ",")
	return who == program || who == "both"
}

// alertGroup is a group of rules.
type alertGroup struct {
	Group string  `yaml:"group"`
	Rules []alert `yaml:"rules"`
}

// alert is a rule, what it means, and what Prometheus tells of it.
type alert struct {
	Alert       string `yaml:"alert"`
	Expr        string `yaml:"expr"`
	For         string `yaml:"for"`
	Severity    string `yaml:"severity"`
	Meaning     string `yaml:"meaning"`
	Summary     string `yaml:"summary"`
	Description string `yaml:"description"`
}

func readTable(root string) (t table, err error) {
	file, err := os.Open(filepath.Join(root, "configs/deploy/monitoring.yaml"))
	if err != nil {
		return t, err
	}
	defer file.Close()
	d := yaml.NewDecoder(file)
	d.KnownFields(true)
	if err := d.Decode(&t); err != nil {
		return t, err
	}
	for _, s := range t.Sections {
		for _, m := range s.Metrics {
			if m.Name == "" || m.What == "" || !m.on("hub") && !m.on("core") {
				err = errors.Join(err, fmt.Errorf("%s: %q needs a name, where it is (hub, core, both), and what it is", s.Title, m.Name))
			}
		}
	}
	return t, err
}

// page is docs/metrics.md.
func (t table) page() string {
	var b strings.Builder
	b.WriteString(pageHead)
	b.WriteString("| alert | expression | severity | what it means |\n|---|---|---|---|\n")
	for _, g := range t.Alerts {
		for _, a := range g.Rules {
			expr := "`" + a.Expr + "`"
			if a.For != "" {
				expr += " for " + a.For
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", a.Alert, expr, a.Severity, a.Meaning)
		}
	}
	for _, s := range t.Sections {
		fmt.Fprintf(&b, "\n## %s\n\n", s.Title)
		if s.Text != "" {
			fmt.Fprintf(&b, "%s\n\n", strings.TrimSpace(s.Text))
		}
		b.WriteString("| name | kind | where | what |\n|---|---|---|---|\n")
		for _, m := range s.Metrics {
			labels := ""
			if len(m.Labels) > 0 {
				labels = "{" + strings.Join(m.Labels, ",") + "}"
			}
			fmt.Fprintf(&b, "| `%s%s` | %s | %s | %s |\n", m.Name, labels, m.Kind, m.Where, m.What)
		}
	}
	return b.String()
}

const pageHead = `# Metrics

<!-- Made of configs/deploy/monitoring.yaml by scripts/monitoring: make golden. -->

Hub and core serve ` + "`/metrics`" + ` in the Prometheus format, or OpenMetrics to who asks for it, on their HTTP addresses (127.0.0.1:8080 and 127.0.0.1:10550), with the usual
` + "`go_…` and `process_…`" + ` metrics. Labels have lower-case words with underscores. No metric has a series per node or device: ` + "`edgebus doctor NODE` and `/links/NODE`" + ` show one node. A Prometheus server on another machine uses ` + "`http.tls`" + ` and signs in as a viewer ([users](running.md#users)) with
` + "`basic_auth`" + ` or a certificate.

Everything here comes from one table, [monitoring.yaml](../configs/deploy/monitoring.yaml): this page, the rules and the boards. Tests hold it against what the programs expose,
parse each expression of rules and boards with Prometheus' own parser, and have each alert fire and keep quiet. A copy of a hub has no HTTP address: it writes ` + "`edgebus_follow_…`" + ` into a file ([another-host.md](another-host.md#a-copy-that-follows)).

## Boards

[configs/deploy/grafana](../configs/deploy/grafana) has three boards for Grafana (11 or newer): the hub, a node, and devices. Import them (Dashboards, New, Import), or put
them where a provider of ` + "`provisioning/dashboards`" + ` looks. Each begins with what to look at first; below that a closed row for each section of this page has every metric of it. They
are made with Grafana's own Go types and read back strictly with them; no Grafana server has shown them in a test.

## Alerts

The rules for Prometheus are [edgebus.rules.yaml](../configs/deploy/prometheus/edgebus.rules.yaml): load it with ` + "`rule_files`" + `, and change thresholds to what is
usual with you. Hub and core evaluate the same rules by themselves, show what fires on their page and send it on ([alerts](running.md#alerts)).

` + "```yaml" + `
rule_files: [edgebus.rules.yaml]
scrape_configs:
  - job_name: edgebus-hub
    scheme: https
    tls_config: {ca_file: ca.pem}                                            # for the hub's own authority: authority/1.pem of its data.dir
    basic_auth: {username: prometheus, password_file: prometheus.password}   # a user of the role viewer
    static_configs: [{targets: ["hub.example.org:8443"]}]
  - job_name: edgebus-node
    static_configs: [{targets: ["127.0.0.1:10550"]}]
` + "```" + `

A program that has ended has no metrics, and no rule here is about it: alert on ` + "`up == 0`" + ` of these jobs as well. Tried with Prometheus 3.16.0: it loads all of the rules, and
` + "`EdgebusNodesOffline`" + ` and ` + "`EdgebusConnectionsRejected`" + ` fired when a core was killed and when a client had a wrong password.

`

// rules is the file of rules.
func (t table) rules() string {
	var b strings.Builder
	b.WriteString("# Alert rules for Prometheus: what a hub and its nodes need somebody for. Load this file with rule_files in prometheus.yml.\n" +
		"# Severity critical: data is refused or at risk. Thresholds are beginnings: change what is usual with you.\n" +
		"# Made of configs/deploy/monitoring.yaml by scripts/monitoring: make golden.\ngroups:\n")
	for _, g := range t.Alerts {
		fmt.Fprintf(&b, "  - name: %s\n    rules:\n", g.Group)
		for _, a := range g.Rules {
			fmt.Fprintf(&b, "      - alert: %s\n        expr: %s\n", a.Alert, a.Expr)
			if a.For != "" {
				fmt.Fprintf(&b, "        for: %s\n", a.For)
			}
			fmt.Fprintf(&b, "        labels: {severity: %s}\n        annotations:\n          summary: %q\n          description: %q\n", a.Severity, a.Summary, a.Description)
		}
	}
	return b.String()
}
