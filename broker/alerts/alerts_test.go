// SPDX-License-Identifier: Apache-2.0

package alerts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

const rulesDir = "../../configs/deploy/prometheus/"

func rulesOfPrometheus(t *testing.T) []Rule {
	t.Helper()
	text, err := os.ReadFile(rulesDir + "edgebus.rules.yaml")
	require.NoError(t, err)
	rules, err := ParseRules(text)
	require.NoError(t, err)
	return rules
}

var seriesName = regexp.MustCompile(`^(\w+)\{(.*)\}$`)

// seriesOfTest reads a series in promtool's notation: a+bxn, axn.
func seriesOfTest(t *testing.T, text, values string) (name string, labels map[string]string, list []float64) {
	t.Helper()
	found := seriesName.FindStringSubmatch(text)
	require.NotNil(t, found, text)
	labels = make(map[string]string)
	for part := range strings.SplitSeq(found[2], ",") {
		k, v, _ := strings.Cut(part, "=")
		labels[k] = strings.Trim(v, `"`)
	}
	for part := range strings.FieldsSeq(values) {
		from, times, _ := strings.Cut(part, "x")
		step := "0"
		if at := strings.LastIndexAny(from, "+"); at > 0 && from[at-1] != 'e' {
			from, step = from[:at], from[at+1:]
		}
		n, err := strconv.Atoi(times)
		require.NoError(t, err, part)
		v, err := strconv.ParseFloat(from, 64)
		require.NoError(t, err, part)
		s, err := strconv.ParseFloat(step, 64)
		require.NoError(t, err, part)
		for i := range n + 1 {
			list = append(list, v+s*float64(i))
		}
	}
	return found[1], labels, list
}

// The file that Prometheus' promtool takes says of each rule when it fires and when it doesn't: here it does the same.
func TestRulesSayWhatTheySayInPrometheus(t *testing.T) {
	text, err := os.ReadFile(rulesDir + "edgebus.rules.test.yaml")
	require.NoError(t, err)
	var file struct {
		Tests []struct {
			Name        string
			InputSeries []struct{ Series, Values string } `yaml:"input_series"`
			Checks      []struct {
				At      string                    `yaml:"eval_time"`
				Samples []struct{ Labels string } `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	require.NotEmpty(t, file.Tests)
	for _, c := range file.Tests {
		t.Run(c.Name, func(t *testing.T) {
			fires := map[string]bool{} // by instance
			for _, instance := range []string{"fires", "quiet"} {
				a, err := New(Options{Instance: instance, Rules: rulesOfPrometheus(t), Log: zerolog.Nop()})
				require.NoError(t, err)
				end, err := time.ParseDuration(c.Checks[0].At)
				require.NoError(t, err)
				for at := time.Duration(0); at <= end; at += time.Minute {
					shot := snapshot{time.Unix(0, 0).Add(at), make(map[string][]sample)}
					for _, in := range c.InputSeries {
						name, labels, values := seriesOfTest(t, in.Series, in.Values)
						if labels["instance"] == instance && int(at/time.Minute) < len(values) {
							delete(labels, "instance")
							shot.series[name] = append(shot.series[name], sample{labels, values[at/time.Minute]})
						}
					}
					a.evaluate(shot)
				}
				rule, _, _ := strings.Cut(c.Name, " ")
				for _, one := range a.Firing() {
					if one.Labels["alertname"] == rule {
						fires[instance] = true
						require.NotEmpty(t, one.Annotations["summary"])
						require.NotContains(t, fmt.Sprint(one.Annotations), "{{")
						require.Contains(t, []string{"warning", "critical"}, one.Labels["severity"])
					}
				}
			}
			require.Equal(t, map[string]bool{"fires": true}, fires)
		})
	}
}

func TestExpressionsThatAreNotKnownAreRefused(t *testing.T) {
	for _, text := range []string{"", "a >", "(a", "sum(a)", "rate(a) > 1", "rate(a[5y]) > 1", `a{b=c}`, "a b", "histogram_quantile(a, b)", "a[5m", "1 ? 2", "rate(5[5m])"} {
		_, err := parseExpression(text)
		require.Error(t, err, text)
	}
}

func FuzzParseExpression(f *testing.F) {
	f.Add(`histogram_quantile(0.99, rate(a_bucket{b="c"}[5m])) > 0.5 or a - b > 1e6 * c`)
	f.Fuzz(func(t *testing.T, text string) {
		if e, err := parseExpression(text); err == nil {
			e.eval([]snapshot{{at: time.Unix(0, 0), series: map[string][]sample{"a": {{map[string]string{}, 1}}}}})
		}
	})
}

func TestACounterThatBeginsAnewGrowsOn(t *testing.T) {
	e, err := parseExpression("rate(a[5m])")
	require.NoError(t, err)
	var shots []snapshot
	for i, v := range []float64{100, 110, 5, 15} {
		shots = append(shots, snapshot{time.Unix(int64(60*i), 0), map[string][]sample{"a": {{map[string]string{"x": "1"}, v}}}})
	}
	got := e.eval(shots)
	require.Len(t, got, 1)
	require.InDelta(t, (10+5+10)/180.0, got[0].value, 1e-9)
	require.Empty(t, e.eval(shots[:1]), "one value has no rate")
}

// trialReceiver is a web server that gets alerts.
type trialReceiver struct {
	*httptest.Server
	status atomic.Int32
	mu     sync.Mutex
	bodies []string
	header http.Header
}

func newTrialReceiver(t *testing.T) *trialReceiver {
	r := &trialReceiver{}
	r.status.Store(200)
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		text, _ := io.ReadAll(q.Body)
		if s := int(r.status.Load()); s != 200 {
			http.Error(w, "not now", s)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.bodies, r.header = append(r.bodies, q.URL.Path+" "+string(text)), q.Header
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *trialReceiver) got(text string) func() bool {
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return strings.Contains(strings.Join(r.bodies, "\n"), text)
	}
}

const alarmTopic = "v1/nodes/n1/devices/boiler/alarms/temperature"

func alarmMessage(payload string) broker.Message {
	return broker.Message{Topic: alarmTopic, Payload: []byte(payload)}
}

const hotAlarm = `[{"name":"hot","severity":"high","since":"2026-01-02T03:04:05.000Z","value":"81","message":"temperature is 81 °C, above 80 °C"}]`

func startTrial(t *testing.T, o Options) *Alerts {
	t.Helper()
	o.Instance, o.Metrics, o.Log = "hub", prometheus.NewRegistry(), zerolog.Nop()
	a, err := New(o)
	require.NoError(t, err)
	done := make(chan error, 1)
	ctx, stop := t.Context(), func() {}
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(stop)
	return a
}

func TestAnAlarmIsSentOnToEachReceiverWhenItBeginsAndWhenItEnds(t *testing.T) {
	hook, manager := newTrialReceiver(t), newTrialReceiver(t)
	token := t.TempDir() + "/token"
	require.NoError(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	published := make(chan broker.Message, 10)
	a := startTrial(t, Options{Receivers: Receivers{Webhook: Endpoint{URL: hook.URL + "/hook", TokenFile: token}, Alertmanager: Endpoint{URL: manager.URL + "/"}, Topic: "site/alerts"}, Publish: func(m broker.Message) { published <- m }})
	a.Follow(alarmMessage(hotAlarm))
	for _, r := range []*trialReceiver{hook, manager} {
		require.Eventually(t, r.got(`"device":"boiler"`), 10*time.Second, time.Millisecond)
	}
	require.Eventually(t, hook.got(`/hook {"version":"4"`), 10*time.Second, time.Millisecond)
	require.Equal(t, "Bearer secret", hook.header.Get("Authorization"))
	require.Eventually(t, manager.got(`/api/v2/alerts [{"labels"`), 10*time.Second, time.Millisecond)
	require.Eventually(t, manager.got(`"startsAt":"2026-01-02T03:04:05Z"`), 10*time.Second, time.Millisecond)
	m := <-published
	require.Equal(t, "site/alerts", m.Topic)
	var said struct {
		Status string
		Alert
	}
	require.NoError(t, json.Unmarshal(m.Payload, &said))
	require.Equal(t, "firing", said.Status)
	require.Equal(t, "boiler: temperature is 81 °C, above 80 °C", said.Annotations["summary"])
	a.Follow(alarmMessage(hotAlarm)) // nothing has changed
	a.Follow(alarmMessage(""))
	require.Eventually(t, hook.got(`"status":"resolved"`), 10*time.Second, time.Millisecond)
	require.Eventually(t, manager.got(`"endsAt"`), 10*time.Second, time.Millisecond)
	require.NoError(t, json.Unmarshal((<-published).Payload, &said))
	require.Equal(t, "resolved", said.Status)
}

func TestWhatAReceiverDoesNotTakeWaitsAndWhatItRefusesIsLostAndTold(t *testing.T) {
	hook := newTrialReceiver(t)
	hook.status.Store(503)
	a := startTrial(t, Options{Receivers: Receivers{Webhook: Endpoint{URL: hook.URL}}})
	a.Follow(alarmMessage(hotAlarm))
	report := func() ReceiverReport { return a.receivers[0].report() }
	require.Eventually(t, func() bool { r := report(); return r.Waiting == 1 && strings.Contains(r.LastError, "503") }, 10*time.Second, time.Millisecond)
	hook.status.Store(200)
	require.Eventually(t, hook.got("boiler"), 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return report() == ReceiverReport{Name: "webhook", Sent: 1} }, 10*time.Second, time.Millisecond)
	hook.status.Store(400)
	a.Follow(alarmMessage(""))
	require.Eventually(t, func() bool {
		r := report()
		return r.Lost == 1 && r.Waiting == 0 && strings.Contains(r.LastError, "not now")
	}, 10*time.Second, time.Millisecond)
}

func TestAReceiverThatIsAwayForLongLosesTheOldestAndIsTold(t *testing.T) {
	b := &outbox{wake: make(chan struct{}, 1), log: zerolog.Nop()}
	for i := range maxUnsent + 5 {
		b.give([]Alert{{Labels: map[string]string{"n": strconv.Itoa(i)}}})
	}
	require.Equal(t, ReceiverReport{Waiting: maxUnsent, Lost: 5}, b.report())
	require.Equal(t, "5", b.unsent[0].Labels["n"])
}

// Alertmanager takes what isn't said again for ended.
func TestAlertmanagerIsToldAgainOfWhatStillIsSo(t *testing.T) {
	b := &outbox{wake: make(chan struct{}, 1), log: zerolog.Nop(), repeat: true}
	one := Alert{Labels: map[string]string{"n": "1"}, StartsAt: time.Unix(5, 0)}
	at := time.Unix(100_000, 0)
	again := func(after time.Duration) { b.giveAgain(func() []Alert { return []Alert{one} }, at.Add(after)) }
	b.give([]Alert{one})
	again(0)
	require.Len(t, b.unsent, 1)
	b.unsent = nil
	again(30 * time.Second)
	require.Empty(t, b.unsent)
	again(time.Minute)
	again(2 * time.Minute)
	require.Len(t, b.unsent, 1, "once, however often")
	ended := one
	ended.EndsAt = at.Add(3 * time.Minute)
	b.give([]Alert{ended})
	require.Len(t, b.unsent, 1)
	require.Equal(t, ended.EndsAt, b.unsent[0].EndsAt)
}

// However many fire, Alertmanager is told of each time and again, and none is lost by that.
func TestAlertmanagerIsToldOfManyAgain(t *testing.T) {
	b := &outbox{wake: make(chan struct{}, 1), log: zerolog.Nop(), repeat: true}
	var all []Alert
	for i := range 3 * maxUnsent {
		all = append(all, Alert{Labels: map[string]string{"n": strconv.Itoa(i)}, StartsAt: time.Unix(5, 0)})
	}
	for minute := range 3 {
		b.giveAgain(func() []Alert { return slices.Clone(all) }, time.Unix(100_000, 0).Add(time.Duration(minute)*time.Minute))
		require.Equal(t, ReceiverReport{Waiting: len(all)}, b.report())
	}
	var others []Alert
	for i := range maxUnsent + 5 {
		others = append(others, Alert{Labels: map[string]string{"another": strconv.Itoa(i)}, StartsAt: time.Unix(7, 0)})
	}
	b.give(others)
	require.Equal(t, len(all)+maxUnsent, b.report().Waiting)
}

// The address of a webhook is its secret, for many services.
func TestAnAddressIsInNoErrorOfAReceiver(t *testing.T) {
	hook := newTrialReceiver(t)
	hook.Close()
	var log bytes.Buffer
	receivers := Receivers{Webhook: Endpoint{URL: hook.URL + "/services/T0/hush?token=hush"}}
	list, err := receivers.open(nil, zerolog.New(&log))
	require.NoError(t, err)
	list[0].give([]Alert{{Labels: map[string]string{"n": "1"}}})
	require.Error(t, list[0].sendSome(t.Context()))
	said := list[0].report().LastError + log.String()
	require.Contains(t, said, "connection refused")
	require.NotContains(t, said, "hush")
	receivers.Webhook.URL = "https://hush\x00/"
	_, err = receivers.open(nil, zerolog.Nop())
	require.Error(t, err)
	require.NotContains(t, err.Error(), "hush")
}

// A node that says any number of alarms of any length takes little memory.
func TestWhatANodeSaysOfAlarmsIsBounded(t *testing.T) {
	a, err := New(Options{Receivers: Receivers{Topic: "site/alerts"}, Log: zerolog.Nop()})
	require.NoError(t, err)
	var raised []resource.RaisedAlarm
	for i := range 2 * maxAlarms {
		raised = append(raised, resource.RaisedAlarm{Name: strconv.Itoa(i), Message: strings.Repeat("ä", maxText)})
	}
	payload, err := json.Marshal(raised)
	require.NoError(t, err)
	a.Follow(alarmMessage(string(payload)))
	list := a.receivers[0].unsent
	require.Len(t, list, maxAlarms)
	require.Less(t, len(list[0].Annotations["summary"]), maxText+100)
}

func TestWhatWasRaisedBeforeTheStartIsTold(t *testing.T) {
	hook := newTrialReceiver(t)
	list := []broker.Message{alarmMessage(hotAlarm)}
	startTrial(t, Options{Receivers: Receivers{Webhook: Endpoint{URL: hook.URL}}, Alarms: func() func(int) []broker.Message {
		return func(int) []broker.Message { one := list; list = nil; return one }
	}})
	require.Eventually(t, hook.got("boiler"), 10*time.Second, time.Millisecond)
}

// What was retained may have been read before news that came first.
func TestNewsOfAnAlarmAreNotUndoneByWhatWasRaisedBeforeTheStart(t *testing.T) {
	hook := newTrialReceiver(t)
	var a *Alerts
	list, ready := []broker.Message{alarmMessage(hotAlarm)}, make(chan struct{})
	a = startTrial(t, Options{Receivers: Receivers{Webhook: Endpoint{URL: hook.URL}}, Alarms: func() func(int) []broker.Message {
		return func(int) []broker.Message { <-ready; one := list; list = nil; return one }
	}})
	a.Follow(alarmMessage(""))
	close(ready)
	require.Eventually(t, func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.heard == nil }, 10*time.Second, time.Millisecond)
	a.mu.Lock()
	defer a.mu.Unlock()
	require.Empty(t, a.alarms)
}

func TestMetricsAreReadAsPrometheusReadsThem(t *testing.T) {
	r := prometheus.NewRegistry()
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "edgebus_commit_seconds", Buckets: []float64{0.1, 1}}, []string{"store"})
	r.MustRegister(h)
	h.WithLabelValues("tree").Observe(0.5)
	a, err := New(Options{Instance: "hub", Rules: rulesOfPrometheus(t), Metrics: r, Log: zerolog.Nop()})
	require.NoError(t, err)
	families, err := r.Gather()
	require.NoError(t, err)
	require.Equal(t, map[string][]sample{"edgebus_commit_seconds_bucket": {
		{map[string]string{"store": "tree", "le": "0.1"}, 0}, {map[string]string{"store": "tree", "le": "1"}, 1}, {map[string]string{"store": "tree", "le": "+Inf"}, 1},
	}}, a.seriesOf(families))
	a.measure()
	for range 10 {
		h.WithLabelValues("tree").Observe(0.9)
	}
	a.measure()
	require.Len(t, a.Firing(), 1)
	require.Equal(t, "EdgebusCommitsSlow", a.Firing()[0].Labels["alertname"])
	require.Contains(t, a.Firing()[0].Annotations["summary"], "Commits of tree take 991ms on hub")
}
