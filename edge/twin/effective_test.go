package twin

import (
	"testing"

	"github.com/stretchr/testify/require"

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
