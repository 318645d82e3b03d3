// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const repositoryRoot = "../.."

var ruleParser = parser.NewParser(parser.Options{})

// ruleTest is a test in the form of promtool; what it doesn't know of that form is an error.
type ruleTest struct {
	Name     string         `yaml:"name"`
	Interval model.Duration `yaml:"interval"`
	Series   []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	Expressions []struct {
		Expr     string         `yaml:"expr"`
		EvalTime model.Duration `yaml:"eval_time"`
		Samples  []struct {
			Labels string  `yaml:"labels"`
			Value  float64 `yaml:"value"`
		} `yaml:"exp_samples"`
	} `yaml:"promql_expr_test"`
}

func readRules(t *testing.T) (all []rulefmt.Rule) {
	groups, errs := rulefmt.ParseFile(filepath.Join(repositoryRoot, "configs/deploy/prometheus/edgebus.rules.yaml"), false, model.UTF8Validation, ruleParser, slog.New(slog.DiscardHandler))
	require.Empty(t, errs)
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

func readRuleTests(t *testing.T) []ruleTest {
	f, err := os.Open(filepath.Join(repositoryRoot, "configs/deploy/prometheus/edgebus.rules.test.yaml"))
	require.NoError(t, err)
	defer f.Close()
	var file struct {
		RuleFiles []string       `yaml:"rule_files"`
		Interval  model.Duration `yaml:"evaluation_interval"`
		Tests     []ruleTest     `yaml:"tests"`
	}
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	require.NoError(t, d.Decode(&file))
	require.Equal(t, []string{"edgebus.rules.yaml"}, file.RuleFiles)
	require.EqualValues(t, time.Minute, file.Interval)
	return file.Tests
}

// A summary is right whether there is one or more of what it counts.
func TestSummariesCountAfterwards(t *testing.T) {
	for _, r := range readRules(t) {
		require.NotRegexp(t, `\{\{ \$value \}\} \w`, r.Annotations["summary"], r.Alert)
	}
}

// Each alert fires where it should, and not where things are nearly as bad, or not for long enough.
func TestEachAlertFiresAndKeepsQuiet(t *testing.T) {
	rules, tried := readRules(t), map[string]bool{}
	for _, x := range readRuleTests(t) {
		t.Run(x.Name, func(t *testing.T) {
			require.EqualValues(t, time.Minute, x.Interval)
			for _, e := range x.Expressions {
				var want, instances []string
				for _, s := range e.Samples {
					metric, err := ruleParser.ParseMetric(s.Labels)
					require.NoError(t, err)
					require.Equal(t, 1., s.Value)
					want = append(want, metric.String())
					tried[metric.Get("alertname")] = true
				}
				p := newRuleServer(t, x)
				for _, s := range p.series {
					instances = append(instances, s.labels.Get("instance"))
				}
				require.Contains(t, instances, "fires")
				require.Contains(t, instances, "quiet")
				for at := time.Duration(0); at <= time.Duration(e.EvalTime); at += time.Minute {
					p.evaluate(rules, at)
				}
				var got []string
				for _, s := range p.query(e.Expr, time.Duration(e.EvalTime)) {
					got = append(got, s.Metric.String())
				}
				require.Equal(t, want, got)
			}
		})
	}
	for _, r := range rules {
		require.True(t, tried[r.Alert], "edgebus.rules.test.yaml has no test in which %s fires", r.Alert)
	}
}

var labelUse = regexp.MustCompile(`\$labels\.(\w+)`)

// listedMetrics are the names that Prometheus has of the table's metrics, with their labels.
func listedMetrics(t *testing.T) map[string][]string {
	t.Helper()
	table, err := readTable(repositoryRoot)
	require.NoError(t, err)
	listed := map[string][]string{}
	for _, s := range table.Sections {
		for _, m := range s.Metrics {
			require.Contains(t, []string{"counter", "gauge", "histogram"}, m.Kind, m.Name)
			names, shown := []string{m.Name}, append(slices.Clone(m.Labels), "instance")
			if m.Kind == "histogram" {
				names, shown = []string{m.Name + "_bucket", m.Name + "_sum", m.Name + "_count"}, append(shown, "le")
			}
			for _, name := range names {
				require.NotContains(t, listed, name, "twice")
				listed[name] = shown
			}
		}
	}
	return listed
}

// requireListed fails if an expression asks for a metric or a label that the table doesn't have, and returns the labels of its metrics.
func requireListed(t *testing.T, listed map[string][]string, text, where string) (known []string) {
	t.Helper()
	expr, err := ruleParser.ParseExpr(text)
	require.NoError(t, err, where)
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			require.Contains(t, listed, n.Name, where)
			known = append(known, listed[n.Name]...)
			for _, m := range n.LabelMatchers {
				require.Contains(t, append(known, labels.MetricName), m.Name, where)
			}
		case *parser.AggregateExpr:
			for _, name := range n.Grouping {
				require.NotEmpty(t, name, where)
			}
		}
		return nil
	})
	require.NotEmpty(t, known, where)
	return known
}

// Rules ask for metrics, and show labels, that the table lists: it is held against what the programs expose.
func TestRulesNameMetricsThatExist(t *testing.T) {
	listed := listedMetrics(t)
	for _, r := range readRules(t) {
		known := requireListed(t, listed, r.Expr, r.Alert)
		require.Contains(t, []string{"warning", "critical"}, r.Labels["severity"], r.Alert)
		for _, name := range []string{"summary", "description"} {
			require.NotEmpty(t, r.Annotations[name], r.Alert)
			for _, m := range labelUse.FindAllStringSubmatch(r.Annotations[name], -1) {
				require.Contains(t, known, m[1], r.Alert)
			}
		}
	}
}

// ruleServer evaluates rules once a minute, as Prometheus does.
type ruleServer struct {
	t      *testing.T
	engine *promql.Engine
	series []*sampleSeries
	since  map[string]time.Duration // by the labels of an alert and its state
}

// sampleSeries has a sample a minute, or none where an alert is not active.
type sampleSeries struct {
	labels labels.Labels
	chunk  *chunkenc.XORChunk
	last   time.Duration
}

func newRuleServer(t *testing.T, x ruleTest) *ruleServer {
	p := &ruleServer{t: t, engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, Parser: ruleParser}), since: map[string]time.Duration{}}
	for _, in := range x.Series {
		metric, values, err := ruleParser.ParseSeriesDesc(in.Series + " " + in.Values)
		require.NoError(t, err)
		s := &sampleSeries{labels: metric, chunk: chunkenc.NewXORChunk()}
		for i, v := range values {
			if !v.Omitted {
				s.append(t, time.Duration(i)*time.Minute, v.Value)
			}
		}
		p.series = append(p.series, s)
	}
	return p
}

func (s *sampleSeries) append(t *testing.T, at time.Duration, v float64) {
	appender, err := s.chunk.Appender()
	require.NoError(t, err)
	appender.Append(0, at.Milliseconds(), v)
	s.last = at
}

// evaluate writes the series ALERTS.
func (p *ruleServer) evaluate(rules []rulefmt.Rule, at time.Duration) {
	active := map[string]time.Duration{}
	for _, r := range rules {
		for _, sample := range p.query(r.Expr, at) {
			b := labels.NewBuilder(sample.Metric).Del(labels.MetricName).Set("alertname", r.Alert)
			for name, text := range r.Labels {
				b.Set(name, text)
			}
			id := b.Labels().String()
			since, known := p.since[id]
			if !known {
				since = at
			}
			active[id] = since
			state := "pending"
			if at-since >= time.Duration(r.For) {
				state = "firing"
			}
			p.seriesOf(b.Set(labels.MetricName, "ALERTS").Set("alertstate", state).Labels()).append(p.t, at, 1)
		}
	}
	for _, s := range p.series {
		if s.labels.Get(labels.MetricName) == "ALERTS" && s.last < at {
			s.append(p.t, at, math.Float64frombits(value.StaleNaN))
		}
	}
	p.since = active
}

func (p *ruleServer) seriesOf(l labels.Labels) *sampleSeries {
	i := slices.IndexFunc(p.series, func(s *sampleSeries) bool { return labels.Equal(s.labels, l) })
	if i < 0 {
		p.series = append(p.series, &sampleSeries{labels: l, chunk: chunkenc.NewXORChunk()})
		i = len(p.series) - 1
	}
	return p.series[i]
}

func (p *ruleServer) query(expr string, at time.Duration) promql.Vector {
	source := &storage.MockQueryable{MockQuerier: &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, which ...*labels.Matcher) storage.SeriesSet {
		return &foundSeries{all: slices.DeleteFunc(slices.Clone(p.series), func(s *sampleSeries) bool {
			return slices.ContainsFunc(which, func(m *labels.Matcher) bool { return !m.Matches(s.labels.Get(m.Name)) })
		})}
	}}}
	q, err := p.engine.NewInstantQuery(context.Background(), source, nil, expr, time.UnixMilli(at.Milliseconds()))
	require.NoError(p.t, err)
	defer q.Close()
	result := q.Exec(context.Background())
	require.NoError(p.t, result.Err)
	vector, err := result.Vector()
	require.NoError(p.t, err)
	return slices.Clone(vector)
}

// foundSeries iterates over series.
type foundSeries struct {
	all []*sampleSeries
	at  *sampleSeries
}

func (f *foundSeries) Next() bool {
	if len(f.all) == 0 {
		return false
	}
	f.at, f.all = f.all[0], f.all[1:]
	return true
}

func (f *foundSeries) At() storage.Series {
	return &storage.SeriesEntry{Lset: f.at.labels, SampleIteratorFn: f.at.chunk.Iterator}
}

func (*foundSeries) Err() error                        { return nil }
func (*foundSeries) Warnings() annotations.Annotations { return nil }
