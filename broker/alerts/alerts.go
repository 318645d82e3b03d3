// SPDX-License-Identifier: Apache-2.0

// Package alerts is what hub and core know to need somebody: the rules that Prometheus may have as well, evaluated on the program's own
// metrics, and the alarms of devices. It shows what fires, and sends it on: to a webhook, to Alertmanager, to a topic.
//
// It never keeps anything on disk: what fires is found again after a restart, and what has ended meanwhile isn't told.
package alerts

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	interval = 15 * time.Second // between two evaluations of the rules
	window   = 10 * time.Minute // that a rule can look back
)

// Alert is something that needs somebody, in the words of Alertmanager.
type Alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
	EndsAt      time.Time         `json:"endsAt,omitzero"` // zero: it has not ended

	id string // of the labels, once it is known
}

// key tells alerts apart.
func (a *Alert) key() string {
	if a.id == "" {
		a.id = keyOf(a.Labels)
	}
	return a.id
}

// Options are what alerts are made from.
type Options struct {
	// Instance is the name of the hub or node, as the label instance has it.
	Instance string
	Rules    []Rule
	Metrics  prometheus.Gatherer
	// Alarms are the retained messages with the alarms that were raised before; nil: none.
	Alarms    func() func(max int) []broker.Message
	Receivers Receivers
	// Publish publishes to a topic of the broker's own.
	Publish func(broker.Message)
	Log     zerolog.Logger
}

// Alerts are a program's alerts.
type Alerts struct {
	o         Options
	needed    map[string]bool // metrics that the rules use
	receivers []*outbox

	mu        sync.Mutex
	snapshots []snapshot
	pending   map[string]*pendingAlert    // by rule and labels
	fires     map[string]Alert            // those of rules that receivers know of, by key
	alarms    map[string]map[string]Alert // by topic, then by key
	heard     map[string]bool             // topics with news since New; nil once the alarms before that have been read
}

// pendingAlert is what a rule says, from when its expression was first true.
type pendingAlert struct {
	Alert
	since time.Time
	fires bool
	rule  bool
}

// New makes alerts. Topics of alarms are followed from now on.
func New(o Options) (*Alerts, error) {
	a := &Alerts{
		o: o, needed: make(map[string]bool), pending: make(map[string]*pendingAlert), alarms: make(map[string]map[string]Alert), heard: make(map[string]bool),
	}
	for i := range o.Rules {
		o.Rules[i].expression.metrics(a.needed)
	}
	var err error
	a.receivers, err = o.Receivers.open(o.Publish, o.Log)
	return a, err
}

// Wants reports whether messages of a topic are needed.
func (a *Alerts) Wants(topic string) bool {
	return strings.Contains(topic, "/alarms/") && len(a.receivers) > 0
}

// Follow takes the alarms out of messages that the tree publishes, on their way.
func (a *Alerts) Follow(m broker.Message) {
	if a.Wants(m.Topic) {
		a.follow(m, true)
	}
}

// follow takes a message as it is published, or as it was retained at the start, unless there was a later one.
func (a *Alerts) follow(m broker.Message, now bool) {
	at, err := topics.Parse(m.Topic)
	if err != nil || at.Kind != topics.KindAlarms {
		return
	}
	raised, err := resource.ParseAlarms(m.Payload)
	if err != nil {
		return // of a newer node
	}
	list := make(map[string]Alert, len(raised))
	for _, r := range raised[:min(len(raised), maxAlarms)] {
		since, err := resource.ParseTime(r.Since)
		if err != nil {
			since = time.Now()
		}
		one := Alert{StartsAt: since, Labels: map[string]string{
			"alertname": "EdgebusDeviceAlarm", "instance": a.o.Instance, "node": at.Node, "device": at.Device, "property": at.Name, "alarm": clipText(r.Name), "severity": clipText(r.Severity),
		}, Annotations: map[string]string{"summary": at.Device + ": " + clipText(r.Message)}}
		if r.Value != "" {
			one.Annotations["value"] = clipText(r.Value)
		}
		list[one.key()] = one
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case now && a.heard != nil:
		a.heard[m.Topic] = true
	case !now && a.heard[m.Topic]:
		return
	}
	was := a.alarms[m.Topic]
	if a.alarms[m.Topic] = list; len(list) == 0 {
		delete(a.alarms, m.Topic)
	}
	a.tell(was, list, time.Now())
}

// What a node says of a property's alarms is bounded, for a model has fewer and shorter ones.
const (
	maxAlarms = 100
	maxText   = 1 << 10
)

func clipText(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}

// Run evaluates the rules and sends what changes, until the context ends.
func (a *Alerts) Run(ctx context.Context) error {
	if a.o.Alarms != nil && len(a.receivers) > 0 {
		read := a.o.Alarms()
		for list := read(256); len(list) > 0 && ctx.Err() == nil; list = read(256) {
			for _, m := range list {
				a.follow(m, false)
			}
		}
	}
	a.mu.Lock()
	a.heard = nil
	a.mu.Unlock()
	var running sync.WaitGroup
	defer running.Wait()
	for _, r := range a.receivers {
		running.Go(func() { r.run(ctx) })
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		a.measure()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// measure reads the metrics, and evaluates the rules by them.
func (a *Alerts) measure() {
	families, err := a.o.Metrics.Gather()
	if err != nil {
		a.o.Log.Warn().Err(err).Msg("metrics can't be read: conditions that are worth a look may be missing")
	}
	a.evaluate(snapshot{time.Now(), a.seriesOf(families)})
}

// seriesOf are the series that the rules need.
func (a *Alerts) seriesOf(families []*dto.MetricFamily) map[string][]sample {
	all := make(map[string][]sample)
	for _, f := range families {
		name := f.GetName()
		if !a.needed[name] && !a.needed[name+"_bucket"] {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := make(map[string]string, len(m.GetLabel()))
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			switch {
			case m.Counter != nil:
				all[name] = append(all[name], sample{labels, m.Counter.GetValue()})
			case m.Gauge != nil:
				all[name] = append(all[name], sample{labels, m.Gauge.GetValue()})
			case m.Histogram != nil:
				bucket := func(le string, count uint64) {
					with := maps.Clone(labels)
					with["le"] = le
					all[name+"_bucket"] = append(all[name+"_bucket"], sample{with, float64(count)})
				}
				for _, b := range m.Histogram.GetBucket() {
					bucket(strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64), b.GetCumulativeCount())
				}
				bucket("+Inf", m.Histogram.GetSampleCount())
			}
		}
	}
	return all
}

// evaluate finds out what the rules say now.
func (a *Alerts) evaluate(now snapshot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.snapshots = slices.DeleteFunc(append(a.snapshots, now), func(s snapshot) bool { return now.at.Sub(s.at) > window })
	is := make(map[string]bool)
	for i := range a.o.Rules {
		r := &a.o.Rules[i]
		for _, s := range r.expression.eval(a.snapshots) {
			key := r.Name + "\x00" + keyOf(s.labels)
			is[key] = true
			p := a.pending[key]
			if p == nil {
				p = &pendingAlert{since: now.at, rule: true}
				a.pending[key] = p
			}
			p.Alert = r.alert(a.o.Instance, s)
			p.StartsAt = p.since.Add(r.after)
			p.fires = now.at.Sub(p.since) >= r.after
		}
	}
	maps.DeleteFunc(a.pending, func(key string, _ *pendingAlert) bool { return !is[key] })
	fires := make(map[string]Alert)
	for _, p := range a.pending {
		if p.fires {
			fires[p.key()] = p.Alert
		}
	}
	a.tell(a.fires, fires, now.at)
	a.fires = fires
	for _, r := range a.receivers {
		r.giveAgain(a.firing, now.at)
	}
}

// firing is all that fires. The caller holds the lock.
func (a *Alerts) firing() []Alert {
	list := slices.Collect(maps.Values(a.fires))
	for _, of := range a.alarms {
		list = slices.AppendSeq(list, maps.Values(of))
	}
	return list
}

// tell gives receivers what has begun and what has ended, of what fired and what fires. The caller holds the lock.
func (a *Alerts) tell(was, is map[string]Alert, now time.Time) {
	var changes []Alert
	for _, key := range slices.Sorted(maps.Keys(is)) {
		if before, there := was[key]; !there || !before.StartsAt.Equal(is[key].StartsAt) {
			changes = append(changes, is[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(was)) {
		if _, there := is[key]; !there {
			ended := was[key]
			ended.EndsAt = now
			changes = append(changes, ended)
		}
	}
	for _, r := range a.receivers {
		r.give(changes)
	}
}

// Firing is what the rules say now, the most severe first.
func (a *Alerts) Firing() (list []Alert) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list = []Alert{}
	for _, p := range a.pending {
		if p.fires {
			list = append(list, p.Alert)
		}
	}
	slices.SortFunc(list, func(x, y Alert) int {
		return cmp.Or(strings.Compare(x.Labels["severity"], y.Labels["severity"]), strings.Compare(x.key(), y.key())) // critical, warning
	})
	return list
}

// ServeHTTP answers what the rules say, and how it stands with the receivers.
func (a *Alerts) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	report := struct {
		Firing    []Alert          `json:"firing"`
		Receivers []ReceiverReport `json:"receivers"`
	}{a.Firing(), []ReceiverReport{}}
	for _, r := range a.receivers {
		report.Receivers = append(report.Receivers, r.report())
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(report) // an error means that the client is gone
}
