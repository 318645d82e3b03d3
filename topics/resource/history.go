// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"math"
	"slices"
	"time"
)

// PropertyHistory says how the values that a property had are kept.
type PropertyHistory struct {
	// Disabled says that no history of the property is kept. What there is of it is deleted.
	Disabled bool `json:"disabled,omitempty"`
	// Keep is how long a value is kept at most, such as 720h; while there is room for it when empty.
	Keep string `json:"keep,omitempty"`
	// Deadband is the least change of a number that is recorded, in the property's unit; 0: every change.
	// +kubebuilder:validation:Minimum=0
	Deadband float64 `json:"deadband,omitempty"`
}

// DeviceHistory says how the values that a device's properties had are kept.
type DeviceHistory struct {
	// Disabled says that no history of the device is kept. What there is of it is deleted, on the node and on the hub.
	Disabled bool `json:"disabled,omitempty"`
	// Keep is how long a value is kept at most, such as 720h; while there is room for it when empty. The shorter of this and of the
	// property's is in force.
	Keep string `json:"keep,omitempty"`
	// NotBefore is a time, in RFC 3339: what was recorded before it is deleted, on the node and on the hub.
	NotBefore string `json:"notBefore,omitempty"`
}

// leastKeep is the shortest time that may be set: history is deleted by the hour.
const leastKeep = time.Hour

func checkKeep(found *causeList, at, keep string) {
	if d, err := time.ParseDuration(keep); keep != "" && (err != nil || d < leastKeep) {
		found.add(at+".keep", "%s: must be a duration of at least 1h, such as 720h", clipText(keep))
	}
}

func (p Property) checkHistory(found *causeList, at string) {
	h := p.History
	if h == nil {
		return
	}
	checkKeep(found, at, h.Keep)
	switch {
	case h.Deadband == 0:
	case !slices.Contains([]DataType{TypeInt, TypeFloat, TypeDouble}, p.dataType()):
		found.add(at+".deadband", "is for int, float and double, not for %s", p.dataType())
	case h.Deadband < 0 || math.IsNaN(h.Deadband) || math.IsInf(h.Deadband, 0):
		found.add(at+".deadband", "%v: must be above 0, such as 0.5", h.Deadband)
	}
}

func (h *DeviceHistory) check(found *causeList, at string) {
	if h == nil {
		return
	}
	checkKeep(found, at, h.Keep)
	if _, err := ParseTime(h.NotBefore); h.NotBefore != "" && err != nil {
		found.addErr(at+".notBefore", err)
	}
}

// HistoryRule is what holds for the history of one property of one device.
type HistoryRule struct {
	Disabled  bool
	Keep      time.Duration // 0: as long as there is room
	NotBefore int64         // ms since 1970
	Deadband  float64
}

// HistoryRule returns what the model and the device say of the history of a property. Of one that the model no longer has, what there is
// stays.
func (b Bundle) HistoryRule(property string) HistoryRule {
	p, _ := b.Model.Property(property)
	var r HistoryRule
	if h := p.History; h != nil {
		r.Disabled, r.Deadband = h.Disabled, h.Deadband
		r.Keep, _ = time.ParseDuration(h.Keep) // checked when the model was written
	}
	if h := b.Device.Spec.History; h != nil {
		r.Disabled = r.Disabled || h.Disabled
		if keep, _ := time.ParseDuration(h.Keep); keep > 0 && (r.Keep == 0 || keep < r.Keep) {
			r.Keep = keep
		}
		if at, err := ParseTime(h.NotBefore); err == nil && h.NotBefore != "" {
			r.NotBefore = at.UnixMilli()
		}
	}
	return r
}

// Floor is the time before which nothing is kept, in ms since 1970.
func (r HistoryRule) Floor(now time.Time) int64 {
	switch {
	case r.Disabled:
		return math.MaxInt64
	case r.Keep > 0:
		return max(r.NotBefore, now.Add(-r.Keep).UnixMilli())
	}
	return r.NotBefore
}

// MaxHistoryPoints is the most that may be asked for, but for the export of all samples.
const MaxHistoryPoints = 10_000

// HistoryRequest is the payload of devices/{device}/history.
type HistoryRequest struct {
	// Property is the property.
	Property string `json:"property"`
	// From and To are the time asked for, in RFC 3339: To is now when missing, and From a day before To.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Points is how many points the answer has at most, up to 10,000; 500 when missing. Where more was recorded, each point is the mean of a
	// part of the time, with the least and the greatest value in it.
	Points int `json:"points,omitempty"`
}

// HistoryAnswer is what a property was. Times are in milliseconds since 1970, so that it can be plotted as it is.
type HistoryAnswer struct {
	Device   string `json:"device"`
	Property string `json:"property"`
	// From and To are the time that it is for; To is not in it.
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// Since is when the past of the property begins; 0: there is none.
	Since int64 `json:"since,omitempty"`
	// Step is for how long each point stands; 0: the points are the changes themselves, and a value is so until the next one.
	Step int64 `json:"step,omitempty"`
	// Times and Values are the points, in order. A value is a number, a boolean as 0 or 1, or a text; null: nothing is known from there on.
	Times  []int64 `json:"times"`
	Values []any   `json:"values"`
	// Min and Max are the least and the greatest number at each point, where points stand for more than one value.
	Min []*float64 `json:"min,omitempty"`
	Max []*float64 `json:"max,omitempty"`
}
