package dialect

import (
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

// text is text in a manifest that may have come as a number or boolean, or as a
// whole object: then it is JSON.
type text = resource.Value

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

// longest is the longest cycle that is taken for milliseconds: an hour. Some versions of KubeEdge read cycles as
// nanoseconds, and its published samples are written so.
const longest = int64(time.Hour / time.Millisecond)

// millis reads a cycle.
func millis(n int64) int64 {
	if n > longest {
		return max(n/int64(time.Millisecond), 1)
	}
	return n
}

// cycle writes one so that millis reads it as it was.
func cycle(ms int64) int64 {
	if ms > longest && ms <= math.MaxInt64/int64(time.Millisecond) {
		return ms * int64(time.Millisecond)
	}
	return ms
}

// cycles doubt that a number of nanoseconds was meant for milliseconds, wherever in a form it stands.
func cycles(at string, v any) (doubts []string) {
	switch v := v.(type) {
	case tree:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			n, ok := v[name].(json.Number)
			if ns, err := n.Int64(); ok && err == nil && ns > longest && (name == "collectCycle" || name == "reportCycle") {
				doubts = append(doubts, fmt.Sprintf("%s.%s: %d is more than an hour of milliseconds, and read as nanoseconds: %s",
					at, name, ns, time.Duration(millis(ns))*time.Millisecond))
			}
			doubts = append(doubts, cycles(at+"."+name, v[name])...)
		}
	case []any:
		for i, e := range v {
			doubts = append(doubts, cycles(fmt.Sprintf("%s[%d]", at, i), e)...)
		}
	}
	return doubts
}

// plain is a configuration's values as texts.
func plain(config map[string]text) map[string]string {
	if config == nil {
		return nil
	}
	out := make(map[string]string, len(config))
	for name, v := range config {
		out[name] = string(v)
	}
	return out
}

func texts(config map[string]string) map[string]text {
	if config == nil {
		return nil
	}
	out := make(map[string]text, len(config))
	for name, v := range config {
		out[name] = text(v)
	}
	return out
}

// loose is a configuration's values as JSON: what looks like a number or boolean is one.
func loose(config map[string]string) map[string]json.RawMessage {
	if config == nil {
		return nil
	}
	out := make(map[string]json.RawMessage, len(config))
	for name, v := range config {
		out[name] = looseValue(v)
	}
	return out
}

func looseValue(v string) json.RawMessage {
	if raw := []byte(v); v != "null" && !strings.HasPrefix(v, `"`) && json.Valid(raw) {
		return raw
	}
	raw, _ := json.Marshal(v) // a string
	return raw
}

func tight(config map[string]json.RawMessage) (map[string]string, error) {
	if config == nil {
		return nil, nil
	}
	out := make(map[string]string, len(config))
	for name, raw := range config {
		var v text
		if err := v.UnmarshalJSON(raw); err != nil {
			return nil, wrongType(err)
		}
		out[name] = string(v)
	}
	return out, nil
}

// value is one side of a twin.
type value struct {
	Value    text            `json:"value"`
	Optional kept            `json:"optional,omitempty"` // the first documents have it
	Metadata map[string]text `json:"metadata,omitempty"`
}

// stamp is the name of a value's time among its metadata: milliseconds since 1970, as text.
const stamp = "timestamp"

// side is what is known of one side of a twin, nil if that is nothing.
func side(v *resource.TwinValue) *value {
	if v == nil {
		return nil
	}
	out := &value{Value: text(v.Value)}
	if at, err := resource.ParseTime(v.TS); err == nil {
		out.Metadata = map[string]text{stamp: text(strconv.FormatInt(at.UnixMilli(), 10))}
	}
	return out
}

func (v *value) twin() *resource.TwinValue {
	if v == nil || v.Value == "" {
		return nil
	}
	out := &resource.TwinValue{Value: string(v.Value)}
	if ms, err := strconv.ParseInt(string(v.Metadata[stamp]), 10, 64); err == nil {
		out.TS = resource.Time(time.UnixMilli(ms))
	}
	return out
}

// wish is the wanted value of a property: spec says what, status since when.
func wish(d resource.Device, name string) *value {
	v, wanted := d.Spec.Desired[name]
	if !wanted {
		return nil
	}
	out := &value{Value: v}
	if known := side(d.Status.Twin[name].Desired); known != nil && known.Value == v {
		out.Metadata = known.Metadata
	}
	return out
}

// twins puts the two sides of each property together, as the canonical form has them.
type twins struct{ d *resource.Device }

func (t twins) add(name string, desired, reported *value) {
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

func (t twins) want(name string, v *value) {
	if t.d.Spec.Desired == nil {
		t.d.Spec.Desired = map[string]resource.Value{}
	}
	t.d.Spec.Desired[name] = v.Value
}

// twinNames are the properties that have a twin, in order.
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
	return sorted(all)
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

// limit reads one end of a range; ok is false when the text is no number.
func limit(v text) (n *float64, ok bool) {
	if v == "" {
		return nil, true
	}
	f, err := strconv.ParseFloat(string(v), 64)
	return &f, err == nil
}

func limitText(n *float64) text {
	if n == nil {
		return ""
	}
	return text(strconv.FormatFloat(*n, 'f', -1, 64))
}
