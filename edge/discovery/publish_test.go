// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/edgebus/edgebus/topics/resource"
)

func TestPlan(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	has := func(names ...string) map[string][]byte {
		m := map[string][]byte{}
		for _, n := range names {
			m[n] = []byte(n)
		}
		return m
	}
	on := func(ours bool, names ...string) brokerState {
		p := brokerState{instances: map[string]brokerInstance{}}
		for _, n := range names {
			p.instances[n] = brokerInstance{sum: sumOf([]byte(n)), ours: ours}
		}
		return p
	}
	reported := func(p brokerState) brokerState {
		p.report = []byte(`{"state":"Accepted","endpoints":[{"endpoint":"h","state":"Accepted"}]}`)
		return p
	}
	says := func(unsure time.Time, names ...string) handlerAnswer {
		return handlerAnswer{endpoint: "h", state: resource.HandlerAccepted, devices: has(names...), unsure: unsure}
	}
	sure, lately, longAgo := time.Time{}, now.Add(-time.Second), now.Add(-time.Hour)
	for name, c := range map[string]struct {
		asks        []handlerAnswer
		broker      brokerState
		put, remove []string
		again       time.Time
		absent      time.Time
	}{
		"found":                                 {[]handlerAnswer{says(sure, "a", "b")}, on(true), []string{"a", "b"}, nil, sure, sure},
		"as it is":                              {[]handlerAnswer{says(sure, "a")}, on(true, "a"), nil, nil, sure, sure},
		"gone":                                  {[]handlerAnswer{says(sure, "a")}, on(true, "a", "b"), nil, []string{"b"}, sure, sure},
		"two handlers":                          {[]handlerAnswer{says(sure, "a"), says(sure, "a", "b")}, on(true), []string{"a", "b"}, nil, sure, sure},
		"away, lately":                          {[]handlerAnswer{says(lately, "a")}, on(true, "a"), nil, nil, lately.Add(time.Minute), sure},
		"away for long":                         {[]handlerAnswer{says(longAgo, "a")}, on(true, "a"), nil, []string{"a"}, sure, sure},
		"no answer yet after a restart":         {[]handlerAnswer{says(lately)}, on(false, "a"), nil, nil, lately.Add(time.Minute), sure},
		"one of two has answered after it":      {[]handlerAnswer{says(sure, "b"), says(lately)}, on(false, "a"), []string{"b"}, nil, lately.Add(time.Minute), sure},
		"both have":                             {[]handlerAnswer{says(sure, "b"), says(sure)}, on(false, "a"), []string{"b"}, []string{"a"}, sure, sure},
		"no handler of the name":                {nil, on(false, "a"), nil, nil, sure, longAgo},
		"the last handler of the name has gone": {nil, on(true, "a"), nil, []string{"a"}, sure, lately},
		"it has gone while nothing ran":         {nil, reported(on(false, "a")), nil, nil, lately.Add(time.Minute), lately},
		"and for long":                          {nil, reported(on(false, "a")), nil, []string{"a"}, sure, longAgo},
		"it waits for values of Secrets":        {nil, reported(on(false, "a")), nil, nil, sure, sure},
	} {
		t.Run(name, func(t *testing.T) {
			p := configurationView{answers: c.asks, absent: c.absent, broker: c.broker, now: now, grace: time.Minute}.plan()
			var put []string
			for _, i := range p.put {
				put = append(put, i.name)
			}
			require.Equal(t, c.put, put)
			require.Equal(t, c.remove, p.remove)
			require.Equal(t, c.again, p.again)
		})
	}
}

func TestReport(t *testing.T) {
	report := func(v configurationView) string { return string(v.report(true)) }
	accepted := handlerAnswer{endpoint: "a", state: resource.HandlerAccepted}
	require.Equal(t, `{"version":"7","state":"Accepted","endpoints":[{"endpoint":"a","state":"Accepted"}]}`, report(configurationView{version: "7", answers: []handlerAnswer{accepted}}))
	require.Equal(t, `{"state":"Accepted","endpoints":[{"endpoint":"a","state":"Accepted"},{"endpoint":"b","state":"Refused","message":"bad"}]}`,
		report(configurationView{answers: []handlerAnswer{accepted, {endpoint: "b", state: resource.HandlerRefused, message: "bad"}}}))
	require.Nil(t, configurationView{answers: []handlerAnswer{{endpoint: "a"}}}.report(true), "nothing is said of a handler that has not answered")
	ours := []byte(`{"state":"Accepted","endpoints":[{"endpoint":"a","state":"Accepted"}]}`)
	require.Nil(t, configurationView{answers: []handlerAnswer{accepted}, broker: brokerState{report: ours}}.report(true), "it is there")
	gone := configurationView{version: "8", absent: time.Now(), broker: brokerState{report: ours}}
	require.Equal(t, []byte{}, gone.report(true), "the handler has gone")
	missing := `{"version":"8","state":"NoHandler","message":"the handler is not there any more","endpoints":[{"endpoint":"a","state":"Failing","message":"the handler is not there any more"}]}`
	require.Equal(t, missing, string(gone.report(false)), "and what it found is still there")
	gone.broker.report = []byte(missing)
	require.Nil(t, gone.report(false))
	require.Nil(t, configurationView{broker: brokerState{report: ours}}.report(true), "it waits for values of Secrets")
	require.Nil(t, configurationView{absent: time.Now(), broker: brokerState{report: []byte(`{"state":"Accepted"}`)}}.report(true), "another client's")
	var many []handlerAnswer
	for range 64 {
		many = append(many, handlerAnswer{endpoint: "a", state: resource.HandlerFailing, message: string(make([]byte, 4096))})
	}
	_, err := resource.ParseHandlerReport(configurationView{answers: many}.report(true))
	require.NoError(t, err)
}

// Whatever handlers say and the broker has, a plan that is carried out leaves nothing to do, and is one that the core takes.
func TestAPlanIsCarriedOutOnce(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfDistinct(rapid.StringMatching(`[a-e]`), func(s string) string { return s })
		v := configurationView{now: now, grace: time.Minute, broker: brokerState{instances: map[string]brokerInstance{}}}
		for _, n := range names.Draw(t, "broker") {
			v.broker.instances[n] = brokerInstance{sum: sumOf([]byte(rapid.SampledFrom([]string{"x", "y"}).Draw(t, "value"))), ours: rapid.Bool().Draw(t, "ours")}
		}
		for range rapid.IntRange(0, 3).Draw(t, "handlers") {
			a := handlerAnswer{endpoint: "h", state: rapid.SampledFrom([]string{"", resource.HandlerAccepted, resource.HandlerFailing}).Draw(t, "state"), devices: map[string][]byte{}}
			for _, n := range names.Draw(t, "found") {
				a.devices[n] = []byte(rapid.SampledFrom([]string{"x", "y"}).Draw(t, "value"))
			}
			if rapid.Bool().Draw(t, "unsure") {
				a.unsure = now.Add(-time.Duration(rapid.IntRange(0, 120).Draw(t, "since")) * time.Second)
			}
			v.answers = append(v.answers, a)
		}
		if len(v.answers) == 0 && rapid.Bool().Draw(t, "absent") {
			v.absent = now.Add(-time.Duration(rapid.IntRange(0, 120).Draw(t, "since")) * time.Second)
		}
		v.broker.report = []byte(rapid.SampledFrom([]string{"", `{"state":"Accepted"}`, `{"state":"Refused","endpoints":[{"endpoint":"a","state":"Refused"}]}`}).Draw(t, "report"))
		p := v.plan()
		for _, i := range p.put {
			v.broker.instances[i.name] = brokerInstance{sum: sumOf(i.payload), ours: true}
		}
		for _, n := range p.remove {
			delete(v.broker.instances, n)
		}
		if p.report != nil {
			v.broker.report = p.report
		}
		if len(v.broker.report) > 0 {
			var r resource.HandlerReport
			require.NoError(t, json.Unmarshal(v.broker.report, &r))
		}
		again := v.plan()
		require.Empty(t, again.put)
		require.Empty(t, again.remove)
		require.Nil(t, again.report)
	})
}
