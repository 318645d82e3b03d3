// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

const kubeedgeGroup = "devices.kubeedge.io"

// scalarText is a string that a manifest may also have as a number, a boolean or an object. An object is kept as its JSON.
type scalarText = resource.Value

func kubeedgeDevice(version string) Kind {
	return Kind{
		Group: kubeedgeGroup, Version: version, Name: "Device", Plural: "devices", Singular: "device",
		Canonical: resource.KindDevice,
	}
}

func kubeedgeModel(version string) Kind {
	return Kind{
		Group: kubeedgeGroup, Version: version, Name: "DeviceModel", Plural: "devicemodels", Singular: "devicemodel",
		Canonical: resource.KindDeviceModel,
	}
}

// maxMillis is the longest cycle that is read as milliseconds: an hour. Some versions of KubeEdge, and its published
// samples, have cycles in nanoseconds; larger numbers are read as these.
const maxMillis = int64(time.Hour / time.Millisecond)

// toMillis reads a cycle. KubeEdge takes a negative one; here it is none.
func toMillis(n int64) int64 {
	if n > maxMillis {
		return max(n/int64(time.Millisecond), 1)
	}
	return max(n, 0)
}

// fromMillis writes one so that toMillis reads it as it was.
func fromMillis(ms int64) int64 {
	if ms > maxMillis && ms <= math.MaxInt64/int64(time.Millisecond) {
		return ms * int64(time.Millisecond)
	}
	return ms
}

// cycleWarnings returns a warning for each cycle of a form that is so long that it is read as nanoseconds, or negative.
func cycleWarnings(at string, v any) (doubts []string) {
	switch v := v.(type) {
	case jsonObject:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if name == "collectCycle" || name == "reportCycle" {
				n, _ := v[name].(json.Number)
				switch cycle, _ := n.Int64(); {
				case cycle > maxMillis:
					doubts = append(doubts, fmt.Sprintf("%s.%s: %d is more than an hour of milliseconds, and read as nanoseconds: %s",
						at, name, cycle, time.Duration(toMillis(cycle))*time.Millisecond))
				case cycle < 0:
					doubts = append(doubts, fmt.Sprintf("%s.%s: %d is negative, and taken as none: the default", at, name, cycle))
				}
			}
			doubts = append(doubts, cycleWarnings(at+"."+name, v[name])...)
		}
	case []any:
		for i, e := range v {
			doubts = append(doubts, cycleWarnings(fmt.Sprintf("%s[%d]", at, i), e)...)
		}
	}
	return doubts
}

// protocolOf is the canonical type of a protocol. A Device of these forms may have none: KubeEdge takes it, and gives it to no mapper.
func protocolOf(name string) string { return cmp.Or(name, resource.NoProtocol) }

// protocolName is the inverse of protocolOf.
func protocolName(of string) string {
	if of == resource.NoProtocol {
		return ""
	}
	return of
}

// mapValues applies f to each value of m. The result of a nil map is nil.
func mapValues[A, B any](m map[string]A, f func(A) B) map[string]B {
	if m == nil {
		return nil
	}
	out := make(map[string]B, len(m))
	for name, v := range m {
		out[name] = f(v)
	}
	return out
}

// plainConfig converts the values of a configuration to plain strings.
func plainConfig(config map[string]scalarText) map[string]string {
	return mapValues(config, func(v scalarText) string { return string(v) })
}

func textConfig(config map[string]string) map[string]scalarText {
	return mapValues(config, func(v string) scalarText { return scalarText(v) })
}

// configToJSON converts the values of a configuration to JSON: a text that looks like a number or boolean becomes one.
func configToJSON(config map[string]resource.Value) map[string]json.RawMessage {
	return mapValues(config, valueToJSON)
}

func valueToJSON(v resource.Value) json.RawMessage {
	if raw := []byte(v); v != "null" && !strings.HasPrefix(string(v), `"`) && json.Valid(raw) {
		return raw
	}
	raw, _ := json.Marshal(string(v))
	return raw
}

func configFromJSON(config map[string]json.RawMessage) (map[string]resource.Value, error) {
	if config == nil {
		return nil, nil
	}
	out := make(map[string]resource.Value, len(config))
	for name, raw := range config {
		var v scalarText
		if err := v.UnmarshalJSON(raw); err != nil {
			return nil, wrongType(err)
		}
		out[name] = v
	}
	return out, nil
}

// twinValueForm is one side of a twin.
type twinValueForm struct {
	Value    scalarText            `json:"value"`
	Optional keptField[bool]       `json:"optional,omitempty"` // the first documents have it
	Metadata map[string]scalarText `json:"metadata,omitempty"`
}

// timestampKey is the name of a value's time among its metadata: milliseconds since 1970, as text.
const timestampKey = "timestamp"

// shownValue is what is known of one side of a twin, nil if that is nothing.
func shownValue(v *resource.TwinValue) *twinValueForm {
	if v == nil {
		return nil
	}
	out := &twinValueForm{Value: scalarText(v.Value)}
	if at, err := resource.ParseTime(v.TS); err == nil {
		out.Metadata = map[string]scalarText{timestampKey: scalarText(strconv.FormatInt(at.UnixMilli(), 10))}
	}
	return out
}

func (v *twinValueForm) twin() *resource.TwinValue {
	if v == nil || v.Value == "" {
		return nil
	}
	out := &resource.TwinValue{Value: string(v.Value)}
	if ms, err := strconv.ParseInt(string(v.Metadata[timestampKey]), 10, 64); err == nil {
		out.TS = resource.FormatTime(time.UnixMilli(ms))
	}
	return out
}

// desiredOf returns the desired value of a property: the value from the spec, its time from the status.
func desiredOf(d resource.Device, name string) *twinValueForm {
	v, wanted := d.Spec.Desired[name]
	if !wanted {
		return nil
	}
	out := &twinValueForm{Value: v}
	if known := shownValue(d.Status.Twin[name].Desired); known != nil && known.Value == v {
		out.Metadata = known.Metadata
	}
	return out
}

// twinBuilder puts the two sides of each property together, as the canonical form has them.
type twinBuilder struct{ d *resource.Device }

func (t twinBuilder) add(name string, desired, reported *twinValueForm) {
	if name == "" {
		return
	}
	want, is := desired.twin(), reported.twin()
	if want != nil {
		t.want(name, desired)
	}
	if want == nil && is == nil {
		return
	}
	if t.d.Status.Twin == nil {
		t.d.Status.Twin = map[string]resource.TwinProperty{}
	}
	t.d.Status.Twin[name] = resource.TwinProperty{
		Desired: want, Reported: is, InSync: want == nil || is != nil && want.Value == is.Value,
	}
}

func (t twinBuilder) want(name string, v *twinValueForm) {
	if t.d.Spec.Desired == nil {
		t.d.Spec.Desired = map[string]resource.Value{}
	}
	t.d.Spec.Desired[name] = v.Value
}

// twinNames are the properties that have a desired or a reported value, sorted.
func twinNames(d resource.Device) []string {
	all := make(map[string]bool)
	for name := range d.Spec.Desired {
		all[name] = true
	}
	for name, t := range d.Status.Twin {
		if t.Reported != nil {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

var accessModes = map[string]resource.AccessMode{"r": resource.ReadOnly, "rw": resource.ReadWrite, "w": resource.ReadWrite}

var typeNames = map[string]resource.DataType{
	"integer": resource.TypeInt, "int64": resource.TypeInt, "int32": resource.TypeInt, "bool": resource.TypeBoolean,
}

// dataType reads the name of a type, whatever its case.
func dataType(name string) resource.DataType {
	name = strings.ToLower(name)
	if t, ok := typeNames[name]; ok {
		return t
	}
	return resource.DataType(name)
}

// setLimits reads a range; false if one of its ends is not a number.
func setLimits(p *resource.Property, low, high scalarText) bool {
	var okLow, okHigh bool
	p.Minimum, okLow = parseLimit(low)
	p.Maximum, okHigh = parseLimit(high)
	return okLow && okHigh
}

// parseLimit reads one end of a range; ok is false when the text is no number.
func parseLimit(v scalarText) (n *float64, ok bool) {
	if v == "" {
		return nil, true
	}
	f, err := strconv.ParseFloat(string(v), 64)
	return &f, err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
}

func limitText(n *float64) scalarText {
	if n == nil {
		return ""
	}
	return scalarText(strconv.FormatFloat(*n, 'f', -1, 64))
}
