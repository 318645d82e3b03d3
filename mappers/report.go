// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"strconv"
	"strings"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
	"github.com/edgebus/edgebus/topics/trace"
)

// publish makes value the latest of a topic of the device.
func (m *mapper) publish(d *device, kind topics.Kind, name, value string, user []client.UserProperty) {
	m.mu.Lock()
	gone := d.gone
	m.mu.Unlock()
	if !gone {
		m.out.set(client.Message{Topic: m.topic(d, kind, name), Payload: []byte(value), QoS: 1, Retain: true, User: user})
	}
}

func (m *mapper) topic(d *device, kind topics.Kind, name string) string {
	return topics.Address{Node: m.node, Kind: kind, Device: d.key, Name: name}.String()
}

// topics returns the topics to which publish may have published for the device.
func (d *device) topics() (list []string) {
	add := func(kind topics.Kind, name string) {
		list = append(list, topics.Address{Node: d.info.Node, Kind: kind, Device: d.key, Name: name}.String())
	}
	add(topics.KindDeviceState, "")
	add(topics.KindProblem, "")
	for name := range d.props {
		add(topics.KindReported, name)
		add(topics.KindRefused, name)
		add(topics.KindReadProblem, name)
	}
	return list
}

// report records a property's current value, and publishes it if it has changed or its report cycle is over. A value that was written and
// that the device has now is applied.
func (w propertyReader) report(d *device, name string, r Reading) {
	m, now, value := w.m, w.m.o.Now(), r.Value
	m.mu.Lock()
	if p := d.props[name]; p != nil { // a driver may be able to tell now what it could not before a value was read
		maps.DeleteFunc(p.rounded, func(_ string, r roundedValue) bool { return r.err != nil })
	}
	m.learnNearest(d.props[name])
	p := d.props[name]
	if p == nil {
		m.mu.Unlock()
		return
	}
	value = p.spec.Rounded(value)
	at := now
	if !r.At.IsZero() && r.At.Before(now) {
		at = r.At
	}
	if p.info.ExpireAfter > 0 && now.Sub(at) >= p.info.ExpireAfter {
		m.mu.Unlock()
		return // it was too old before
	}
	p.current, p.known, p.reading.readAt, p.reading.freshAt = value, true, at, at
	var said *Refusal
	if x := p.awaiting; x != nil && p.desired.ver == x.ver && p.satisfies(value, x.do.value) {
		p.markDone(x.ver, true, d.openGen)
		said = x.do.refusal
	}
	if p.reading.problem != "" { // a report ends it, also of a value that was reported before
		p.reading.problem, p.reading.problemCode, p.reportIsCurrent = "", "", false
		m.out.remove(m.topic(d, topics.KindReadProblem, name))
	}
	meets := p.desired.ver > 0 && !p.desired.cleared && p.satisfies(value, p.desired.value)
	if meets { // a refusal that was published before is cleared, and not published again
		m.out.remove(m.topic(d, topics.KindRefused, name))
	}
	if said != nil {
		defer func(ver uint64) { m.publishRefusal(d, name, ver, said) }(p.appliedVer)
	}
	heartbeat := p.info.Report > 0 && !now.Before(p.reportAt)
	if !heartbeat && !p.changed(value) {
		m.mu.Unlock()
		return
	}
	p.reported, p.reportedKnown, p.reportIsCurrent, p.reportedFor = value, true, true, p.appliedVer
	p.reportAt = now.Add(p.info.Report)
	user := []client.UserProperty{{Key: "ts", Value: resource.FormatTime(at)}}
	if r.polled && r.At.IsZero() {
		user = append(user, client.UserProperty{Key: "repeated", Value: "true"})
	}
	if p.appliedVer > 0 {
		user = append(user, client.UserProperty{Key: "for", Value: strconv.FormatUint(p.appliedVer, 10)})
		if meets && p.appliedVer == p.desired.ver && !p.same(value, p.desired.value) {
			user = append(user, client.UserProperty{Key: "nearest", Value: "true"})
		}
		if p.appliedVer == p.desired.ver && p.desired.trace != "" { // later reports are of other causes
			user = append(user, client.UserProperty{Key: trace.Property, Value: p.desired.trace})
			p.desired.trace = ""
		}
	}
	m.mu.Unlock()
	m.publish(d, topics.KindReported, name, value, user)
}

// publishReadProblem publishes why a property has no value or can't be read, and when it last was. Of a property that the driver can't read at all
// it publishes nothing, because another client may report it. A value that can't be understood is Unknown, and one that is too old is
// Stale: the core clears what was reported before, so that nobody takes it for the device's.
func (m *mapper) publishReadProblem(d *device, name, code string, err error) {
	m.log.Debug().Err(err).Str("device", d.key).Str("property", name).Msg("not read")
	why := resource.Problem{Code: code, Message: stableText(err)}
	r, refused := asRefusal(err)
	if refused && code == resource.ValueUnknown {
		why.Message = r.Message
	}
	m.mu.Lock()
	p := d.props[name]
	if p == nil {
		m.mu.Unlock()
		return
	}
	if !p.reading.readAt.IsZero() {
		why.Since = resource.FormatTime(p.reading.readAt)
	}
	text, code := "", ""
	if payload, err := json.Marshal(why); err == nil && (!refused || r.Code != NotReachable) {
		text, code = string(payload), why.Code
	}
	news := text != p.reading.problem
	p.reading.problem, p.reading.problemCode = text, code
	if code == resource.ValueUnknown || code == resource.ValueStale {
		p.known, p.reportIsCurrent = false, false
		m.out.remove(m.topic(d, topics.KindReported, name))
	}
	m.mu.Unlock()
	if news {
		m.publish(d, topics.KindReadProblem, name, text, nil)
	}
}

// tooLargeText is what the broker says about the size.
func tooLargeText(err error) string {
	if refused := (*client.Refused)(nil); errors.As(err, &refused) && refused.Reason != "" {
		return refused.Reason
	}
	return stableText(err)
}

// valueTooLarge says that a property's value is more than the broker takes.
func (m *mapper) valueTooLarge(msg client.Message, err error) {
	a, invalid := topics.Parse(msg.Topic)
	if invalid != nil || a.Kind != topics.KindReported {
		return
	}
	why := Refuse(Invalid, "the value is too large: %s", tooLargeText(err))
	m.mu.Lock()
	d := m.devices[a.Device]
	if d != nil && d.props[a.Name] != nil {
		d.props[a.Name].reading.tooLarge, d.props[a.Name].reading.tooLargeErr = len(msg.Payload), why
	}
	m.mu.Unlock()
	if d != nil {
		m.publishReadProblem(d, a.Name, resource.ValueUnknown, why)
	}
}

// publishRefusal publishes why a desired value is not applied.
func (m *mapper) publishRefusal(d *device, name string, ver uint64, r *Refusal) {
	payload, err := json.Marshal(resource.Refusal{For: ver, Code: r.Code, Message: r.Message})
	if err != nil {
		return
	}
	m.log.Warn().Str("device", d.key).Str("property", name).Uint64("ver", ver).Str("code", r.Code).Msg("a value is refused")
	m.log.Debug().Str("device", d.key).Str("property", name).Uint64("ver", ver).Str("reason", r.Message).Msg("reason of the refusal")
	var user []client.UserProperty
	m.mu.Lock()
	if p := d.props[name]; p != nil && p.desired.ver == ver && p.desired.trace != "" {
		user = append(user, client.UserProperty{Key: trace.Property, Value: p.desired.trace})
	}
	m.mu.Unlock()
	m.publish(d, topics.KindRefused, name, string(payload), user)
}

// publishState publishes whether a device is online. What was its problem ends with that: the core clears it with the state.
func (w *worker) publishState(d *device, state string) {
	c := &d.contact
	if c.state = state; state == stateOnline {
		w.m.out.remove(w.m.topic(d, topics.KindProblem, ""))
		c.problem = ""
	}
	w.m.publish(d, topics.KindDeviceState, "", state, nil)
}

// publishOfflineReason publishes why a device is offline. It is called before the state is published.
func (w *worker) publishOfflineReason(d *device, err error) {
	p := resource.Problem{Code: resource.Unreachable, Message: stableText(err)}
	if d.contact.badConfig {
		p.Code = resource.BadConfig
	}
	w.publishProblem(d, p)
}

// publishProblem publishes what is wrong with a device, unless it was the last time; nothing, if the problem has no code.
func (w *worker) publishProblem(d *device, p resource.Problem) {
	text := ""
	if payload, err := json.Marshal(p); err == nil && p.Code != "" {
		text = string(payload)
	}
	if d.contact.problem != text {
		d.contact.problem = text
		w.m.publish(d, topics.KindProblem, "", text, nil)
	}
}

// stableText returns an error's text without the parts that differ with every attempt, so that the same problem is not published
// again.
func stableText(err error) string {
	const most = 500
	text := err.Error()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		text = strings.TrimSuffix(strings.TrimSuffix(text, "EOF"), "unexpected ") + "the device closed the connection"
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Source != nil {
		text = strings.ReplaceAll(text, op.Source.String()+"->", "")
	}
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
