// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// TestDecide goes through what can be between a desired value and an override.
func TestDecide(t *testing.T) {
	const now = 1000
	desired := func(value string, ver uint64, ts int64) *link.Entry {
		return &link.Entry{Value: []byte(value), Ver: ver, TS: ts}
	}
	override := func(value string, basedOn uint64, ts, until int64) *link.Entry {
		return &link.Entry{Value: []byte(value), Ver: 7, TS: ts, Meta: link.Meta{BasedOn: basedOn, Until: until}}
	}
	tests := []struct {
		name      string
		policy    string
		desired   *link.Entry
		override  *link.Entry
		inForce   string // empty: nothing
		ends      bool
		winner    string // of a conflict; empty: none
		overrides bool
	}{
		{name: "nothing is wanted"},
		{name: "only the cloud wants", desired: desired("20", 3, 100), inForce: "20"},
		{name: "only the node wants", override: override("40", 0, 100, 0), inForce: "40", overrides: true},
		{name: "an override of the present desired value", desired: desired("20", 3, 100), override: override("40", 3, 200, 0), inForce: "40", overrides: true},
		{name: "it has expired", desired: desired("20", 3, 100), override: override("40", 3, 200, now), inForce: "20", ends: true},
		{name: "it expires later", desired: desired("20", 3, 100), override: override("40", 3, 200, now+1), inForce: "40", overrides: true},
		{name: "the cloud moved on", desired: desired("60", 4, 300), override: override("40", 3, 200, 0), inForce: "60", ends: true, winner: "desired"},
		{name: "the cloud moved on to the same", desired: desired("40.0", 4, 300), override: override("40", 3, 200, 0), inForce: "40.0", ends: true},
		{name: "the cloud cleared", override: override("40", 3, 200, 0), ends: true, winner: "desired"},
		{name: "edge: stays", policy: "edge", desired: desired("60", 4, 300), override: override("40", 3, 200, 0), inForce: "40", overrides: true, winner: "override"},
		{name: "edge: expired all the same", policy: "edge", desired: desired("60", 4, 300), override: override("40", 3, 200, 500), inForce: "60", ends: true},
		{name: "edge: the cloud wants the same", policy: "edge", desired: desired("40.0", 4, 300), override: override("40", 3, 200, 0), inForce: "40", overrides: true},
		{name: "latest: the cloud cleared", policy: "latest", override: override("40", 3, 200, 0), ends: true, winner: "desired"},
		{name: "latest: the cloud is later", policy: "latest", desired: desired("60", 4, 300), override: override("40", 3, 200, 0), inForce: "60", ends: true, winner: "desired"},
		{name: "latest: the node is later", policy: "latest", desired: desired("60", 4, 300), override: override("40", 3, 301, 0), inForce: "40", overrides: true, winner: "override"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var d, o link.Entry
			if tt.desired != nil {
				d = *tt.desired
			}
			if tt.override != nil {
				o = *tt.override
			}
			p := resource.Property{Name: "setpoint", Type: resource.TypeFloat, Conflict: tt.policy}
			v := decideInForce(p, d, tt.desired != nil, o, tt.override != nil, now)
			require.Equal(t, tt.inForce != "", v.present, "anything in force")
			if v.present {
				require.Equal(t, tt.inForce, string(v.inForce.Value))
			}
			require.Equal(t, tt.overrides, v.override, "the override is in force")
			require.Equal(t, tt.ends, v.endOverride, "the override ends")
			if tt.winner == "" {
				require.Nil(t, v.conflict)
				return
			}
			require.NotNil(t, v.conflict)
			require.Equal(t, tt.winner, v.conflict.Winner)
			require.Equal(t, "40", v.conflict.Override)
		})
	}
}

// TestAStoreThatBeginsAnewGivesOtherVersions: what a mapper applied of the store before answers nothing of this one.
func TestAStoreThatBeginsAnewGivesOtherVersions(t *testing.T) {
	begin := func(epoch uint32) *rig {
		r := newRigOf(t, epoch)
		r.add("hall", "u1", thermostat)
		r.want("devices/hall/desired/setpoint", "21", 41)
		r.connect()
		return r
	}
	r := begin(7)
	first := userProperty(r.value("devices/hall/desired/setpoint", "21"), "ver")
	require.Equal(t, strconv.Itoa(7<<32+1), first)
	require.NoError(t, r.send("devices/hall/reported/setpoint", "21", forVersion(first)))
	require.Equal(t, first, userProperty(r.value("devices/hall/reported/setpoint", "21"), "for"))
	r.restart()
	require.Equal(t, first, userProperty(r.value("devices/hall/desired/setpoint", "21"), "ver"), "the same store")

	other := begin(3)
	second := userProperty(other.value("devices/hall/desired/setpoint", "21"), "ver")
	require.Equal(t, strconv.Itoa(3<<32+1), second)
	require.NoError(t, other.send("devices/hall/reported/setpoint", "20", forVersion(first), broker.UserProperty{Key: "nearest", Value: "true"}))
	m := other.value("devices/hall/reported/setpoint", "20")
	require.Empty(t, userProperty(m, "for")+userProperty(m, "basedOn"), "an answer to the store before")
	require.NoError(t, other.send("devices/hall/refused/setpoint", `{"for":`+first+`,"code":"Stuck"}`))
	require.NotContains(t, other.retained(), "devices/hall/refused/setpoint")
	require.NoError(t, other.send("devices/hall/reported/setpoint", "21", forVersion(second)))
	require.Equal(t, second, userProperty(other.value("devices/hall/reported/setpoint", "21"), "for"))
}

func TestAnEpochIsANumberThatEveryReaderOfJSONHasExactly(t *testing.T) {
	for range 1000 {
		epoch := newEpoch()
		require.NotZero(t, epoch)
		require.Less(t, uint64(epoch)<<32, uint64(1)<<53)
	}
}

// An override ends when the clock says so, however it came to say it, and with
// nothing else happening on the node.
func TestOverrideEndsWhenTheClockHasJumped(t *testing.T) {
	r := newJoinedRig(t)
	r.wantShown("devices/hall/desired/setpoint", "20", 1)
	r.nap = 10 * time.Millisecond
	r.restart()
	override := func(lasts int64) {
		require.NoError(t, r.send("devices/hall/desired/setpoint", "25", r.until(lasts)))
		r.value("devices/hall/desired/setpoint", "25")
	}
	const hour = 3600_000
	override(hour)
	r.clock.Add(hour + 1) // forward
	r.value("devices/hall/desired/setpoint", "20")

	override(60_000)
	r.clock.Add(-hour) // back: it lasts longer
	looked := r.twin.Stats().Steps
	require.Eventually(t, func() bool { return r.twin.Stats().Steps > looked+3 }, testTimeout, time.Millisecond)
	last := r.value("devices/hall/desired/setpoint", "25")
	r.clock.Add(hour + 60_001)
	ended := r.value("devices/hall/desired/setpoint", "20")
	require.Greater(t, versionOf(t, ended), versionOf(t, last), "versions rise whatever the clock does")
}

// Timestamps follow the clock, and nothing but the policy latest asks for them.
func TestReportsWhileTheClockJumps(t *testing.T) {
	r := newJoinedRig(t)
	var last uint64
	for i, jump := range []int64{0, 1e9, -5e9, 1} {
		r.clock.Add(jump)
		value := []string{"1", "2", "3", "4"}[i]
		require.NoError(t, r.send("devices/hall/reported/temperature", value))
		m := r.value("devices/hall/reported/temperature", value)
		require.Greater(t, versionOf(t, m), last)
		last = versionOf(t, m)
		r.inStep()
		require.Equal(t, value, r.atHub("devices/hall/reported/temperature"))
	}
}

func versionOf(t *testing.T, m broker.Message) uint64 {
	t.Helper()
	ver, err := strconv.ParseUint(userProperty(m, "ver"), 10, 64)
	require.NoError(t, err)
	return ver
}

func TestTrafficDoesNotDelayTheEndOfOverrides(t *testing.T) {
	r := newJoinedRig(t)
	r.wantShown("devices/hall/desired/setpoint", "20", 1)
	require.NoError(t, r.send("devices/hall/desired/setpoint", "25", r.until(100)))
	r.clock.Add(101)
	r.busy(func() bool { return string(r.retained()["devices/hall/desired/setpoint"].Payload) == "20" })
}

func TestAConflictEndsWithItsOverride(t *testing.T) {
	r := newJoinedRig(t)
	r.wantShown("devices/hall/desired/mode", "heat", 1)
	require.NoError(t, r.send("devices/hall/desired/mode", "off", r.until(1000)))
	r.want("devices/hall/desired/mode", "cool", 2)
	r.shows("devices/hall/conflict/mode", func(m broker.Message) bool { return len(m.Payload) > 0 })
	r.clock.Add(1001)
	r.value("devices/hall/desired/mode", "cool")
	require.NotContains(t, r.retained(), "devices/hall/conflict/mode")
}

func TestOverrideHoldsUntilTheCloudWantsSomethingElse(t *testing.T) {
	r := newJoinedRig(t)
	r.wantShown("devices/hall/desired/setpoint", "20", 1)
	require.NoError(t, r.send("devices/hall/desired/setpoint", "25"))
	require.Equal(t, "2", userProperty(r.value("devices/hall/desired/setpoint", "25"), "ver"))
	require.Equal(t, "1", userProperty(r.value("devices/hall/override/setpoint", "25"), "basedOn"))

	require.Equal(t, "3", userProperty(r.wantShown("devices/hall/desired/setpoint", "18", 2), "ver"))
	require.NotContains(t, r.retained(), "devices/hall/override/setpoint")
	var c resource.OverrideConflict
	require.NoError(t, json.Unmarshal(r.retained()["devices/hall/conflict/setpoint"].Payload, &c))
	require.Equal(t, resource.OverrideConflict{Desired: "18", DesiredVer: 2, Override: "25", BasedOn: 1, Policy: "cloud", Winner: "desired"}, c)

	r.want("devices/hall/desired/setpoint", "19", 3) // nobody disputes this one
	r.value("devices/hall/desired/setpoint", "19")
	require.NotContains(t, r.retained(), "devices/hall/conflict/setpoint")
}

func TestOverrideOfAnEdgePropertyStaysUntilCleared(t *testing.T) {
	r := newJoinedRig(t)
	r.wantShown("devices/hall/desired/mode", "heat", 1)
	require.NoError(t, r.send("devices/hall/desired/mode", "off"))
	r.want("devices/hall/desired/mode", "cool", 2)
	r.shows("devices/hall/conflict/mode", func(m broker.Message) bool { return strings.Contains(string(m.Payload), `"winner":"override"`) })
	r.value("devices/hall/desired/mode", "off")

	require.NoError(t, r.send("devices/hall/desired/mode", ""))
	r.value("devices/hall/desired/mode", "cool")
	require.NotContains(t, r.retained(), "devices/hall/override/mode")
	require.NotContains(t, r.retained(), "devices/hall/conflict/mode")
}

func TestOverrideEndsAtItsTime(t *testing.T) {
	r := newJoinedRig(t)
	r.wantShown("devices/hall/desired/setpoint", "20", 1)
	require.NoError(t, r.send("devices/hall/desired/setpoint", "25", r.until(1000)))
	r.value("devices/hall/desired/setpoint", "25")
	r.restart()
	r.value("devices/hall/desired/setpoint", "25")
	r.clock.Add(1001)
	r.value("devices/hall/desired/setpoint", "20")
}
