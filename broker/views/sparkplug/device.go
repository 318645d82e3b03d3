// SPDX-License-Identifier: Apache-2.0

package sparkplug

import (
	"cmp"
	"slices"
	"time"

	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/topics/resource"
	"github.com/edgebus/edgebus/topics/sparkplug"
)

// device is a device of the edge node, as it was last told.
type device struct {
	name    string
	state   string
	metrics []metric       // in the model's order
	index   map[string]int // by name
	born    bool           // a host has been told of it
}

// metric is a property of a device.
type metric struct {
	metricKind
	alias   uint64 // 0: none
	text    string
	known   bool
	at      uint64 // when the device had the value; 0: unknown
	quality int32
	told    int32 // the quality that a host was last told
}

// metricKind is what the model says of a property, as far as a birth tells of it.
type metricKind struct {
	name                  string
	typ                   sparkplug.DataType
	writable              bool
	unit, description     string
	low, high             float64
	limitedLow, limitedUp bool
}

// dataTypes are the types of metrics, by those of properties. Objects and arrays are texts in JSON: the elements of an array of Sparkplug
// have one type, which a model doesn't say.
var dataTypes = map[resource.DataType]sparkplug.DataType{
	resource.TypeInt: sparkplug.TypeInt64, resource.TypeFloat: sparkplug.TypeFloat, resource.TypeDouble: sparkplug.TypeDouble,
	resource.TypeBoolean: sparkplug.TypeBoolean, resource.TypeBytes: sparkplug.TypeBytes,
}

func kindOf(p resource.Property) metricKind {
	k := metricKind{name: p.Name, typ: sparkplug.TypeString, writable: p.Writable(), unit: p.Unit, description: cmp.Or(p.Description, p.Title)}
	if t, ok := dataTypes[p.Type]; ok {
		k.typ = t
	}
	if k.limitedLow = p.Minimum != nil; k.limitedLow {
		k.low = *p.Minimum
	}
	if k.limitedUp = p.Maximum != nil; k.limitedUp {
		k.high = *p.Maximum
	}
	return k
}

// isThere reports whether hosts are to hear of the device. One whose state nobody has said is there.
func (d *device) isThere() bool { return d.state != resource.Offline }

// describe takes the properties of the device's model, and reports whether a birth would tell of others than before. A metric keeps its alias and
// its value.
func (d *device) describe(v *View, of *views.Device) (other bool) {
	before, index := d.metrics, d.index
	d.metrics, d.index = make([]metric, 0, len(of.Model.Spec.Properties)), map[string]int{}
	for _, p := range of.Model.Spec.Properties {
		m := metric{metricKind: kindOf(p), quality: sparkplug.QualityBad}
		if i, ok := index[p.Name]; ok {
			m = before[i]
			m.metricKind = kindOf(p)
		} else if v.o.Aliases {
			v.nextAlias++
			m.alias = v.nextAlias
		}
		d.index[p.Name] = len(d.metrics)
		d.metrics = append(d.metrics, m)
	}
	return !slices.EqualFunc(before, d.metrics, func(a, b metric) bool { return a.metricKind == b.metricKind })
}

// take takes the device's state and values, and returns those metrics whose value or quality is another one now.
func (d *device) take(e *views.DeviceChanged, described bool) (changed []int) {
	d.state = e.Device.State
	if e.Whole || e.State || described {
		for i := range d.metrics {
			if d.metrics[i].take(e.Device) {
				changed = append(changed, i)
			}
		}
		return changed
	}
	for _, name := range e.Properties {
		if i, ok := d.index[name]; ok && d.metrics[i].take(e.Device) {
			changed = append(changed, i)
		}
	}
	return changed
}

// take takes a metric's value, and reports whether it is another one, or of another quality.
func (m *metric) take(from *views.Device) bool {
	is := from.Values[m.name]
	quality := int32(sparkplug.QualityGood)
	switch {
	case is.Problem != nil && is.Problem.Code != resource.ValueUnknown, is.Known && from.State == resource.Unknown:
		quality = sparkplug.QualityStale // it was so once
	case !is.Known:
		quality = sparkplug.QualityBad
	}
	if m.known == is.Known && m.text == is.Text && m.quality == quality {
		return false
	}
	m.known, m.text, m.quality = is.Known, is.Text, quality
	if m.at = 0; !is.At.IsZero() {
		m.at = unixMillis(is.At)
	}
	return true
}

// metric is the metric as a message has it.
func (m metric) metric(at time.Time) sparkplug.Metric {
	out := sparkplug.Metric{Type: m.typ, Null: true}
	quality := m.quality
	if m.known {
		if value, err := sparkplug.Value(m.typ, m.text); err == nil {
			out = value
		} else {
			quality = sparkplug.QualityBad // it isn't of the type that the model says
		}
	}
	if out.Name = m.name; m.alias > 0 {
		out.Name, out.Alias, out.HasAlias = "", m.alias, true
	}
	out.Timestamp = cmp.Or(m.at, unixMillis(at))
	if quality != sparkplug.QualityGood || m.told != sparkplug.QualityGood { // a metric that says nothing of it is good, or as it was before
		out.SetProperties([]sparkplug.Property{sparkplug.QualityProperty(quality)})
	}
	return out
}

// birth are all metrics, in the order of time.
func (d *device) birth(at time.Time) []sparkplug.Metric {
	list := make([]sparkplug.Metric, len(d.metrics))
	for i := range d.metrics {
		m := &d.metrics[i]
		list[i] = m.metric(at)
		list[i].Name = m.name
		m.told = list[i].Quality()
		list[i].SetProperties(m.properties(m.told))
	}
	return inOrder(list)
}

// properties are what a birth says of a metric besides its value.
func (k metricKind) properties(quality int32) []sparkplug.Property {
	list := []sparkplug.Property{sparkplug.QualityProperty(quality)}
	if k.unit != "" {
		list = append(list, sparkplug.TextProperty(sparkplug.KeyUnit, k.unit))
	}
	if k.limitedLow {
		list = append(list, sparkplug.NumberProperty(sparkplug.KeyLow, k.low))
	}
	if k.limitedUp {
		list = append(list, sparkplug.NumberProperty(sparkplug.KeyHigh, k.high))
	}
	if k.description != "" {
		list = append(list, sparkplug.TextProperty(sparkplug.KeyDescription, k.description))
	}
	return list
}

// data are the metrics that have changed, in the order of time. Their types are those of the birth.
func (d *device) data(at time.Time, changed []int) []sparkplug.Metric {
	list := make([]sparkplug.Metric, len(changed))
	for i, number := range changed {
		m := &d.metrics[number]
		list[i] = m.metric(at)
		list[i].Type, m.told = sparkplug.TypeUnspecified, list[i].Quality()
	}
	return inOrder(list)
}

func inOrder(list []sparkplug.Metric) []sparkplug.Metric {
	slices.SortStableFunc(list, func(a, b sparkplug.Metric) int { return cmp.Compare(a.Timestamp, b.Timestamp) })
	return list
}

// valueOf is a metric of the edge node itself.
func valueOf(name string, typ sparkplug.DataType, text string) sparkplug.Metric {
	m, _ := sparkplug.Value(typ, text) // the texts are of their types
	m.Name = name
	return m
}
