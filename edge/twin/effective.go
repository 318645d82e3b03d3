package twin

import (
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// verdict is what decide finds for one property.
type verdict struct {
	inForce     link.Entry // the value to apply; its key says whose it is
	any         bool       // false: nothing is wanted
	override    bool       // inForce is the override
	endOverride bool       // the override is over and goes
	dispute     *resource.OverrideConflict
}

// decide says which of the two wanted values of a property is in force, and
// whether they are in conflict. It is a pure function: conflicts are seen by
// cause (the desired version that the override was set against), never by clock,
// but for the policy latest, which asks for it.
func decide(p resource.Property, desired link.Entry, wanted bool, override link.Entry, overridden bool, now int64) verdict {
	v := verdict{inForce: desired, any: wanted}
	if !overridden {
		return v
	}
	stays := p.Conflict == resource.ConflictEdge && !p.Adopt
	same := wanted && p.Canonical(desired.Value) == p.Canonical(override.Value)
	switch based := override.Meta.BasedOn; {
	case override.Meta.Until != 0 && now >= override.Meta.Until:
		v.endOverride = true
		return v
	case desired.Ver == based, same && stays:
		return verdict{inForce: override, any: true, override: true}
	case same: // the cloud has come to want it too
		v.endOverride = true
		return v
	}
	// A desired value that was cleared left no time: clearing is the cloud's latest word.
	wins := p.Conflict == resource.ConflictEdge || p.Conflict == resource.ConflictLatest && wanted && override.TS > desired.TS
	v.dispute = &resource.OverrideConflict{
		Desired: string(desired.Value), DesiredVer: desired.Ver,
		Override: string(override.Value), BasedOn: override.Meta.BasedOn,
		Policy: policy(p), Winner: "desired",
	}
	v.endOverride = !wins
	if wins {
		v.inForce, v.any, v.override, v.dispute.Winner = override, true, true, "override"
	}
	return v
}

func policy(p resource.Property) string {
	if p.Conflict == "" {
		return resource.ConflictCloud
	}
	return p.Conflict
}

// effective turns the value in force into what is kept and published. ver is
// the version it has if it is a change.
func (v verdict) effective(ver uint64) *store.Effective {
	if !v.any {
		return &store.Effective{Ver: ver, None: true}
	}
	return &store.Effective{
		Value: v.inForce.Value, Ver: ver, Override: v.override, SourceVer: v.inForce.Ver,
		TS: v.inForce.TS, Origin: v.inForce.Origin, Until: v.inForce.Meta.Until,
	}
}

// changed says whether the value in force is another than e: another value, or
// the same asked for anew.
func (v verdict) changed(e *store.Effective) bool {
	if e == nil || e.None {
		return v.any
	}
	return !v.any || e.Override != v.override || e.SourceVer != v.inForce.Ver ||
		e.Until != v.inForce.Meta.Until || string(e.Value) != string(v.inForce.Value)
}
