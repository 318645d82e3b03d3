// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheHistoryOfAPropertyFollowsModelAndDevice(t *testing.T) {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	model := DeviceModel{Spec: DeviceModelSpec{Properties: []Property{
		{Name: "plain", Type: TypeFloat},
		{Name: "coarse", Type: TypeFloat, History: &PropertyHistory{Keep: "48h", Deadband: 0.5}},
		{Name: "secret", History: &PropertyHistory{Disabled: true}},
	}}}
	for name, c := range map[string]struct {
		device   *DeviceHistory
		property string
		floor    int64
	}{
		"nothing is said":            {nil, "plain", 0},
		"the model's":                {nil, "coarse", now.Add(-48 * time.Hour).UnixMilli()},
		"off in the model":           {&DeviceHistory{Keep: "1h"}, "secret", math.MaxInt64},
		"no longer in the model":     {nil, "other", 0},
		"off in the device":          {&DeviceHistory{Disabled: true}, "plain", math.MaxInt64},
		"the shorter one":            {&DeviceHistory{Keep: "24h"}, "coarse", now.Add(-24 * time.Hour).UnixMilli()},
		"the model's is the shorter": {&DeviceHistory{Keep: "240h"}, "coarse", now.Add(-48 * time.Hour).UnixMilli()},
		"deleted up to now":          {&DeviceHistory{Keep: "24h", NotBefore: "2026-11-27T12:00:00Z"}, "coarse", now.UnixMilli()},
		"deleted long ago":           {&DeviceHistory{NotBefore: "2026-11-01T12:00:00Z"}, "coarse", now.Add(-48 * time.Hour).UnixMilli()},
	} {
		b := Bundle{Device: Device{Spec: DeviceSpec{History: c.device}}, Model: model}
		require.Equal(t, c.floor, b.HistoryRule(c.property).Floor(now), name)
	}
	require.InDelta(t, 0.5, (Bundle{Model: model}).HistoryRule("coarse").Deadband, 0)
}

func TestAHistoryThatCanNotBeIsRefused(t *testing.T) {
	for why, p := range map[string]Property{
		"history.keep: \"soon\": must be a duration of at least 1h": {Name: "x", History: &PropertyHistory{Keep: "soon"}},
		"history.keep: \"30m\": must be a duration of at least 1h":  {Name: "x", History: &PropertyHistory{Keep: "30m"}},
		"history.deadband: is for int, float and double":            {Name: "x", Type: TypeString, History: &PropertyHistory{Deadband: 1}},
		"history.deadband: -1: must be above 0":                     {Name: "x", Type: TypeInt, History: &PropertyHistory{Deadband: -1}},
	} {
		m := DeviceModel{Metadata: Meta{Name: "m"}, Spec: DeviceModelSpec{Properties: []Property{p}}}
		require.ErrorContains(t, m.Validate(), why)
	}
	d := Device{Metadata: Meta{Name: "d"}, Spec: DeviceSpec{DeviceModelRef: ObjectRef{"m"}, Protocol: Protocol{Type: "none"}, History: &DeviceHistory{NotBefore: "yesterday"}}}
	require.ErrorContains(t, d.Validate(), "spec.history.notBefore")
	d.Spec.History = &DeviceHistory{NotBefore: "2026-11-27T12:00:00Z", Keep: "720h"}
	require.NoError(t, d.Validate())
}
