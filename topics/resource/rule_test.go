// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func endpointOf(kind string) *RuleEndpoint {
	e := &RuleEndpoint{Metadata: Meta{Name: kind}, Spec: RuleEndpointSpec{RuleEndpointType: kind}}
	if kind == EndpointServiceBus {
		e.Spec.Properties = map[string]string{EndpointPort: "6666"}
	}
	return e
}

// Of the nine pairs of endpoints those are possible that KubeEdge takes.
func TestARuleGoesFromAndToWhereItCan(t *testing.T) {
	r := Rule{Metadata: Meta{Name: "r"}, Spec: RuleSpec{
		Source: "a", SourceResource: map[string]string{RulePath: "/test", RuleTopic: "test", RuleNode: "n1"},
		Target: "b", TargetResource: map[string]string{RulePath: "/target", RuleTopic: "test", RuleURL: "http://a.com"},
	}}
	require.NoError(t, r.Validate())
	possible := map[string]bool{"rest eventbus": true, "rest servicebus": true, "eventbus rest": true}
	for _, from := range endpointTypes {
		for _, to := range endpointTypes {
			require.NoError(t, endpointOf(from).Validate())
			err := r.CheckEndpoints(endpointOf(from), endpointOf(to))
			require.Equal(t, possible[from+" "+to], err == nil, "%s to %s: %v", from, to, err)
		}
	}
}

func TestAnErrorOfARuleNamesTheFieldAndWhatIsMissing(t *testing.T) {
	for _, c := range []struct {
		from, to, field string
		change          func(*Rule)
	}{
		{EndpointREST, EndpointEventBus, "spec.sourceResource.path", func(r *Rule) { r.Spec.SourceResource = map[string]string{"topic": "a"} }},
		{EndpointREST, EndpointEventBus, "spec.sourceResource.path", func(r *Rule) { r.Spec.SourceResource[RulePath] = "/a/../b" }},
		{EndpointREST, EndpointEventBus, "spec.targetResource.topic", func(r *Rule) { r.Spec.TargetResource[RuleTopic] = "a/#" }},
		{EndpointREST, EndpointEventBus, "spec.targetResource.topic", func(r *Rule) { r.Spec.TargetResource[RuleTopic] = "v1/nodes/n1/spec" }},
		{EndpointREST, EndpointServiceBus, "spec.targetResource.path", func(r *Rule) { delete(r.Spec.TargetResource, RulePath) }},
		{EndpointEventBus, EndpointREST, "spec.sourceResource.node_name", func(r *Rule) { delete(r.Spec.SourceResource, RuleNode) }},
		{EndpointEventBus, EndpointREST, "spec.sourceResource.topic", func(r *Rule) { r.Spec.SourceResource[RuleTopic] = "v1/nodes/n1/devices/lamp/desired/power" }},
		{EndpointEventBus, EndpointREST, "spec.targetResource.resource", func(r *Rule) { r.Spec.TargetResource[RuleURL] = "a.com" }},
		{EndpointEventBus, EndpointREST, "spec.targetResource.resource", func(r *Rule) { r.Spec.TargetResource[RuleURL] = "http://me:secret@a.com" }},
	} {
		r := Rule{Metadata: Meta{Name: "r"}, Spec: RuleSpec{
			Source: "a", SourceResource: map[string]string{RulePath: "/test", RuleTopic: "test", RuleNode: "n1"},
			Target: "b", TargetResource: map[string]string{RulePath: "/target", RuleTopic: "test", RuleURL: "http://a.com"},
		}}
		c.change(&r)
		err := r.CheckEndpoints(endpointOf(c.from), endpointOf(c.to))
		require.ErrorIs(t, err, Invalid)
		require.ErrorContains(t, err, c.field+": ")
		require.NotContains(t, err.Error(), "secret")
	}
	require.ErrorContains(t, Rule{Metadata: Meta{Name: "r"}}.Validate(), "spec.sourceResource: is required")
	for _, port := range []string{"", "0", "65536", "http", "-1"} {
		e := endpointOf(EndpointServiceBus)
		e.Spec.Properties[EndpointPort] = port
		require.ErrorContains(t, e.Validate(), "spec.properties.service_port", port)
	}
	require.ErrorContains(t, endpointOf("mqtt").Validate(), "spec.ruleEndpointType")
}

// A node that writes the names of headers otherwise than HTTP libraries do sets no cookie at the hub's address, and nothing that is about all of it.
func TestARuleCarriesNoHeaderThatIsAboutMoreThanItsAnswer(t *testing.T) {
	carried, fits := CarriedHeader(map[string][]string{
		"Content-Type": {"text/plain"}, "x-one": {"1"}, "X-One": {"2"}, "set-cookie": {"session=1"}, "SET-COOKIE": {"session=2"}, "transfer-encoding": {"chunked"},
		"clear-site-data": {"*"}, "Strict-Transport-Security": {"max-age=1"}, "connection": {"x-hop"}, "X-Hop": {"1"},
	})
	require.True(t, fits)
	require.ElementsMatch(t, []string{"1", "2"}, carried["X-One"])
	delete(carried, "X-One")
	require.Equal(t, map[string][]string{"Content-Type": {"text/plain"}}, carried)
	_, fits = CarriedHeader(map[string][]string{"x-one": {strings.Repeat("x", MaxRuleHeader)}})
	require.False(t, fits)
}

func TestARulesStatusHasEachReasonOnceAndTheLastTen(t *testing.T) {
	var s RuleStatus
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for i := range 12 {
		s.Count(1, 2, []string{fmt.Sprint("reason ", i), "away"}, at)
	}
	require.Equal(t, int64(12), s.SuccessMessages)
	require.Equal(t, int64(24), s.FailMessages)
	require.Len(t, s.Errors, 10)
	require.Equal(t, "2026-11-21T10:00:00.000Z away", s.Errors[9])
	require.Equal(t, "2026-11-21T10:00:00.000Z reason 11", s.Errors[8])
}
