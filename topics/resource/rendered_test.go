// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAgentReportsAreChecked(t *testing.T) {
	for _, good := range []string{`{}`, `{"version":"v1","newer":1}`, `{"conditions":[{"type":"ClockSynchronized","status":"Unknown"}],"failed":{"renderedVersion":"1","reason":"HookFailed"}}`} {
		_, err := ParseAgentReport([]byte(good))
		require.NoError(t, err, good)
	}
	for payload, rule := range map[string]string{
		"":                                    "must be JSON",
		"online":                              "must be JSON",
		`{"drifted":"/etc/motd"}`:             "drifted",
		`{"failed":{"reason":"HookFailed"}}`:  "agent.failed.renderedVersion: is required",
		`{"containers":[{"name":"web"}]}`:     "agent.containers[0].id: is required",
		`{"applications":[{"name":"web"}]}`:   "agent.applications[0].status: is required",
		`{"systemdUnits":[{}]}`:               "agent.systemdUnits[0].name: is required",
		`{"conditions":[{"status":"True"}]}`:  "agent.conditions[0].type: is required",
		`{"conditions":[{"type":"Drifted"}]}`: "agent.conditions[0].status: is required",
		`{"conditions":[{"type":"Ready","status":"True"}]}`:                                         `agent.conditions[0].type: "Ready" is set by the hub only`,
		`{"conditions":[{"type":"not well","status":"True"}]}`:                                      "must be letters and digits",
		`{"conditions":[{"type":"Drifted","status":"yes"}]}`:                                        "agent.conditions[0].status",
		`{"conditions":[{"type":"Drifted","status":"True"},{"type":"Drifted","status":"True"}]}`:    "agent.conditions[1].type",
		`{"conditions":[` + strings.Repeat(`{"type":"A","status":"True"},`, maxConditions) + `{}]}`: "at most 100",
		`{"version":"` + strings.Repeat("v", MaxAgentReport) + `"}`:                                 "a report is at most 61440",
	} {
		_, err := ParseAgentReport([]byte(payload))
		require.ErrorContains(t, err, rule, "%.100s", payload)
	}
}

func TestFollowAgentKeepsWhatComesOverHTTP(t *testing.T) {
	core := &SystemInfo{Architecture: "arm64"}
	s := NodeStatus{RenderedVersion: "3", Containers: []ContainerStatus{{ID: "a"}}, AgentConditions: []string{"Healthy"}, Conditions: []Condition{{Type: "Healthy", Status: "True"}}}
	was := s
	s.FollowAgent(nil, "", "", core, time.Now())
	was.SystemInfo = core
	require.Equal(t, was, s)
}

func TestAnAgentsSystemInformationGoesBeforeTheCores(t *testing.T) {
	core := &SystemInfo{Architecture: "arm64", Kernel: "6.12", Hostname: "gate", CPUs: 4}
	var s NodeStatus
	s.FollowAgent(&AgentReport{SystemInfo: &SystemInfo{Kernel: "6.13"}}, "", "", core, time.Now())
	require.Equal(t, &SystemInfo{Architecture: "arm64", Kernel: "6.13", Hostname: "gate", CPUs: 4}, s.SystemInfo)
}

func TestAVersionThatWasNeverSentIsNotBelieved(t *testing.T) {
	for _, said := range []string{"-1", "0", "1e99", "999999", "5", "04", " 4", "four", "18446744073709551617", "\x00"} {
		t.Run(said, func(t *testing.T) {
			var s NodeStatus
			s.FollowAgent(&AgentReport{RenderedVersion: "4", Failed: &FailedVersion{RenderedVersion: "3"}}, "t1", "4", nil, time.Now())
			require.Equal(t, "4", s.RenderedVersion)
			require.NotNil(t, s.Failed)
			require.Nil(t, findCondition(s.Conditions, ReportUntrue))

			s.FollowAgent(&AgentReport{RenderedVersion: said, Failed: &FailedVersion{RenderedVersion: said}}, "t2", "4", nil, time.Now())
			require.Empty(t, s.RenderedVersion)
			require.Nil(t, s.Failed)
			require.Equal(t, "True", findCondition(s.Conditions, ReportUntrue).Status)
			require.Contains(t, findCondition(s.Conditions, ReportUntrue).Message, "the newest that this hub has sent it is 4")

			s.FollowAgent(&AgentReport{RenderedVersion: said}, "t2", "5", nil, time.Now())
			require.Empty(t, s.RenderedVersion, "the same report, when the version is sent")
			s.FollowAgent(&AgentReport{RenderedVersion: "5"}, "t3", "5", nil, time.Now())
			require.Equal(t, "5", s.RenderedVersion)
			require.Equal(t, "False", findCondition(s.Conditions, ReportUntrue).Status)
		})
	}
	var s NodeStatus
	s.FollowAgent(&AgentReport{RenderedVersion: "4"}, "t1", "", nil, time.Now())
	require.Empty(t, s.RenderedVersion)
	require.Contains(t, findCondition(s.Conditions, ReportUntrue).Message, "this hub has sent it none")
}

func TestAConditionKeepsItsTimeWhileItsStatusStays(t *testing.T) {
	first := time.Date(2026, 11, 22, 20, 0, 0, 0, time.UTC)
	var s NodeStatus
	r := AgentReport{Conditions: []Condition{{Type: "Drifted", Status: "False"}}}
	s.FollowAgent(&r, "", "9", nil, first)
	r.Conditions[0].Message = "again"
	s.FollowAgent(&r, "", "9", nil, first.Add(time.Hour))
	require.Equal(t, []Condition{{Type: "Drifted", Status: "False", Message: "again", LastTransitionTime: first}}, s.Conditions)
	r.Conditions[0].Status = "True"
	s.FollowAgent(&r, "", "9", nil, first.Add(time.Hour))
	require.Equal(t, first.Add(time.Hour), s.Conditions[0].LastTransitionTime)
}
