// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/edgebus/edgebus/topics/resource"
)

func TestPlan(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	low, high := 0.0, 100.0
	spec := resource.Property{Name: "p", Type: resource.TypeInt, AccessMode: resource.ReadWrite, Minimum: &low, Maximum: &high}
	with := func(change func(*property)) *property {
		p := &property{spec: spec, info: Property{Name: "p", Type: Int, Writable: true}}
		p.desired = desiredValue{value: "5", ver: 7}
		p.doneVer, p.appliedVer = 6, 6
		change(p)
		return p
	}
	for name, c := range map[string]struct {
		p       *property
		noRead  bool
		noWrite bool
		step    planStep
		code    string
	}{
		"nothing wanted":            {p: with(func(p *property) { p.desired = desiredValue{} }), step: stepNone},
		"new value":                 {p: with(func(*property) {}), step: stepApply},
		"known to be there":         {p: with(func(p *property) { p.current, p.known = "5", true }), step: stepCompare},
		"there, unreadable":         {p: with(func(p *property) { p.current, p.known = "05", true }), noRead: true, step: stepAccept},
		"there, but unsure":         {p: with(func(p *property) { p.current, p.known, p.maybeWritten = "5", true, true }), noRead: true, step: stepApply},
		"unsure":                    {p: with(func(p *property) { p.maybeWritten = true }), step: stepCompare},
		"old":                       {p: with(func(p *property) { p.desired.preexisting = true }), step: stepCompare},
		"old, hold":                 {p: with(func(p *property) { p.desired.preexisting, p.spec.AtBoot = true, "hold" }), step: stepRefuse, code: Held},
		"new, hold":                 {p: with(func(p *property) { p.spec.AtBoot = "hold" }), step: stepApply},
		"cleared":                   {p: with(func(p *property) { p.desired.cleared = true }), step: stepForget},
		"applied":                   {p: with(func(p *property) { p.doneVer, p.appliedVer = 7, 7 }), step: stepNone},
		"applied, look once":        {p: with(func(p *property) { p.doneVer, p.appliedVer, p.recheckDue = 7, 7, true }), step: stepRecheck},
		"refused, don't look":       {p: with(func(p *property) { p.doneVer, p.recheckDue = 7, true }), step: stepNone},
		"applied, unreadable":       {p: with(func(p *property) { p.doneVer, p.appliedVer, p.recheckDue = 7, 7, true }), noRead: true, step: stepNone},
		"expired":                   {p: with(func(p *property) { p.desired.until = now }), step: stepRefuse, code: Expired},
		"not expired":               {p: with(func(p *property) { p.desired.until = now.Add(1) }), step: stepApply},
		"expired, but applied long": {p: with(func(p *property) { p.desired.until, p.doneVer = now, 7 }), step: stepNone},
		"too high":                  {p: with(func(p *property) { p.desired.value = "101" }), step: stepRefuse, code: OutOfRange},
		"no number":                 {p: with(func(p *property) { p.desired.value = "hot" }), step: stepRefuse, code: Invalid},
		"driver can't":              {p: with(func(*property) {}), noWrite: true, step: stepRefuse, code: ReadOnly},
		"model says no":             {p: with(func(p *property) { p.spec.AccessMode = resource.ReadOnly }), step: stepRefuse, code: ReadOnly},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.p.plan(now, !c.noRead, !c.noWrite)
			require.Equal(t, c.step, got.step, got.step.String())
			if c.code != "" {
				require.Equal(t, c.code, got.refusal.Code)
			}
		})
	}
	safe := with(func(p *property) { p.desired.preexisting, p.spec.AtBoot, p.spec.SafeValue = true, "safe", "10" })
	got := safe.plan(now, true, true)
	require.Equal(t, stepPlan{stepCompare, "10", got.refusal}, got)
	require.Equal(t, SafeValue, got.refusal.Code)
}

func TestPlanOfWhatADeviceHasLost(t *testing.T) {
	for name, c := range map[string]struct {
		atBoot, wish, actual string
		anew                 bool
		want                 stepPlan
		code                 string
	}{
		"as wanted":               {"safe", "50", "050", false, stepPlan{step: stepNone}, ""},
		"as reported":             {"safe", "50", "40", false, stepPlan{step: stepNone}, ""},
		"last":                    {"last", "50", "0", false, stepPlan{step: stepApply, value: "50"}, ""},
		"safe":                    {"safe", "50", "0", false, stepPlan{step: stepApply, value: "10"}, SafeValue},
		"safe, and is already":    {"safe", "50", "10", false, stepPlan{step: stepAccept, value: "10"}, SafeValue},
		"safe is what is wanted":  {"safe", "10", "0", false, stepPlan{step: stepApply, value: "10"}, ""},
		"hold":                    {"hold", "50", "0", false, stepPlan{step: stepRefuse, value: "50"}, Held},
		"last, configured anew":   {"last", "50", "40", true, stepPlan{step: stepApply, value: "50"}, ""},
		"safe, configured anew":   {"safe", "50", "40", true, stepPlan{step: stepApply, value: "10"}, SafeValue},
		"hold, configured anew":   {"hold", "50", "40", true, stepPlan{step: stepNone}, ""},
		"the model changed since": {"last", "500", "0", false, stepPlan{step: stepNone}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			high := 100.0
			p := &property{before: "40", desired: desiredValue{value: c.wish, ver: 7}, spec: resource.Property{
				Name: "p", Type: resource.TypeInt, AccessMode: resource.ReadWrite, Maximum: &high, AtBoot: c.atBoot, SafeValue: "10",
			}}
			got := p.planLost(c.actual, c.anew)
			if c.code != "" {
				require.NotNil(t, got.refusal)
				require.Equal(t, c.code, got.refusal.Code)
				got.refusal = nil
			}
			require.Equal(t, c.want, got)
		})
	}
}

// TestDesiredVersionsNeverGoBack: late copies change nothing, but a new subscription's word holds.
func TestDesiredVersionsNeverGoBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &property{}
		newest := uint64(0)
		for _, ver := range rapid.SliceOf(rapid.Uint64Range(1, 20)).Draw(t, "versions") {
			retained := rapid.Bool().Draw(t, "retained")
			news := p.setDesired(desiredValue{ver: ver}, retained)
			if news != (ver > newest || retained && ver < newest) {
				t.Fatalf("version %d (retained %v) after %d: news=%v", ver, retained, newest, news)
			}
			if news {
				newest = ver
			}
			if p.desired.ver != newest {
				t.Fatalf("version %d, want %d", p.desired.ver, newest)
			}
		}
	})
}

func TestDeadband(t *testing.T) {
	p := &property{info: Property{Type: Float, Deadband: 0.5}, spec: resource.Property{Type: resource.TypeFloat}}
	require.True(t, p.changed("20"))
	p.reportIsCurrent, p.reported = true, "20"
	require.False(t, p.changed("20.49"))
	require.True(t, p.changed("20.5"))
	require.True(t, p.changed("19.5"))
	p.appliedVer = 3 // a version was applied: that is news in itself
	require.True(t, p.changed("20"))
}

// String names a step in the output of the tests.
func (s planStep) String() string {
	names := [...]string{"nothing", "forget", "refuse", "accept", "compare", "apply", "recheck", "confirm", "relinquish"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprint(uint8(s))
}
