// SPDX-License-Identifier: Apache-2.0

package sparkplug

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/topics/sparkplug"
)

// hostState is whether the primary host is there.
type hostState struct {
	online bool
	heard  bool
	at     int64 // the time that its last state had which counted
}

// stateMessage is what a host says of itself. Both members must be there.
type stateMessage struct {
	Online    *bool  `json:"online"`
	Timestamp *int64 `json:"timestamp"`
}

// hear takes a message of a host.
func (v *View) hear(at time.Time, m views.Message) []views.Action {
	if host, ok := strings.CutPrefix(m.Topic, namespace+"STATE/"); ok {
		if host != v.o.PrimaryHost || host == "" {
			return nil
		}
		return v.hearState(at, m.Payload)
	}
	if m.Retain { // a command that a broker has kept was for another time
		return nil
	}
	p, err := sparkplug.Parse(m.Payload)
	if err != nil {
		return nil
	}
	if m.Topic == v.topic("NCMD", "") {
		for _, metric := range p.Metrics {
			text, err := metric.Text(sparkplug.TypeBoolean)
			if metric.Name == rebirthMetric && err == nil && text == "true" && v.born && v.rebirths.allow(at) {
				return v.bear(at)
			}
		}
		return nil
	}
	if name, ok := strings.CutPrefix(m.Topic, v.topic("DCMD", "")+"/"); ok {
		return v.command(name, p.Metrics)
	}
	return nil
}

// hostClock is by how much a host's clock may differ from this one's, for a time of it to be believed after one that was ahead.
const hostClock = time.Minute

// isOutdated reports whether a state is older than the one that the host said before. After one that is ahead of the clock, which anybody may have said who
// may publish there, one of now counts in any case: else the host would be heard no more until that time.
func (h hostState) isOutdated(timestamp int64, now time.Time) bool {
	ahead := h.at > now.Add(hostClock).UnixMilli()
	return h.heard && timestamp < h.at && (!ahead || now.Sub(time.UnixMilli(timestamp)).Abs() > hostClock)
}

// hearState takes what the primary host says of itself. What is older than what it said before doesn't count.
func (v *View) hearState(at time.Time, payload []byte) []views.Action {
	var m stateMessage
	if json.Unmarshal(payload, &m) != nil || m.Online == nil || m.Timestamp == nil || v.host.isOutdated(*m.Timestamp, at) {
		return nil
	}
	was := v.host.online
	v.host = hostState{online: *m.Online, heard: true, at: *m.Timestamp}
	switch {
	case !was && v.host.online:
		return v.bear(at)
	case was && !v.host.online && v.born:
		return append(v.end(), &views.Reconnect{})
	}
	return nil
}

// command takes values for a device's metrics. What isn't a value, or for none that can be set, is left out.
func (v *View) command(name string, metrics []sparkplug.Metric) []views.Action {
	d := v.devices[name]
	if d == nil || !d.born || !v.born {
		return nil
	}
	values := map[string]string{}
	for _, m := range metrics {
		to := d.find(m)
		if to == nil || !to.writable || m.Null {
			continue
		}
		text, err := m.Text(to.typ)
		if err != nil || text == "" {
			continue
		}
		if to.typ == sparkplug.TypeInt64 {
			text = integerText(text)
		}
		values[to.name] = text
	}
	if len(values) == 0 {
		return nil
	}
	return []views.Action{&views.Set{Node: v.o.EdgeNode, Device: name, Values: values}}
}

// find returns the metric that a command is for, by its name or its alias; nil: there is none.
func (d *device) find(m sparkplug.Metric) *metric {
	if i, ok := d.index[m.Name]; ok {
		return &d.metrics[i]
	}
	for i := range d.metrics {
		if m.HasAlias && m.Name == "" && d.metrics[i].alias == m.Alias && m.Alias > 0 {
			return &d.metrics[i]
		}
	}
	return nil
}

// integerText writes a whole number without a point or an exponent, as hosts that know floating point alone send it.
func integerText(text string) string {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || x != math.Trunc(x) || math.Abs(x) > 1<<53 {
		return text
	}
	if _, err := strconv.ParseInt(text, 10, 64); err == nil {
		return text
	}
	return strconv.FormatFloat(x, 'f', 0, 64)
}
