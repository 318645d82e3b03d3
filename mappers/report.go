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

// report records a property's current value, and publishes it if it has changed or its report cycle is over.
func (m *mapper) report(d *device, name, value string) {
	now := m.o.Now()
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
	p.current, p.known, p.readAt = value, true, now
	if p.problem != "" { // a report ends it, also of a value that was reported before
		p.problem, p.reportIsCurrent = "", false
		m.out.remove(m.topic(d, topics.KindReadProblem, name))
	}
	meets := p.desired.ver > 0 && !p.desired.cleared && p.satisfies(value, p.desired.value)
	if meets { // a refusal that was published before is cleared, and not published again
		m.out.remove(m.topic(d, topics.KindRefused, name))
	}
	heartbeat := p.info.Report > 0 && !now.Before(p.reportAt)
	if !heartbeat && !p.changed(value) {
		m.mu.Unlock()
		return
	}
	p.reported, p.reportedKnown, p.reportIsCurrent, p.reportedFor = value, true, true, p.appliedVer
	p.reportAt = now.Add(p.info.Report)
	user := []client.UserProperty{{Key: "ts", Value: resource.FormatTime(now)}}
	if p.appliedVer > 0 {
		user = append(user, client.UserProperty{Key: "for", Value: strconv.FormatUint(p.appliedVer, 10)})
		if meets && p.appliedVer == p.desired.ver && !p.same(value, p.desired.value) {
			user = append(user, client.UserProperty{Key: "nearest", Value: "true"})
		}
	}
	m.mu.Unlock()
	m.publish(d, topics.KindReported, name, value, user)
}

// publishReadProblem publishes why a property can't be read, and when it last was. Of a property that the driver can't read at all
// it publishes nothing, because another client may report it. A value that can't be understood is Unknown: the core clears the one that
// was reported before, so that nobody takes it for the device's.
func (m *mapper) publishReadProblem(d *device, name string, err error) {
	m.log.Debug().Err(err).Str("device", d.key).Str("property", name).Msg("not read")
	why := resource.Problem{Code: resource.ReadFailed, Message: stableText(err)}
	r, refused := asRefusal(err)
	if refused {
		why.Code, why.Message = r.Code, r.Message
	}
	unknown := isUnknown(err)
	if unknown {
		why.Code = resource.ValueUnknown
	}
	m.mu.Lock()
	p := d.props[name]
	if p == nil {
		m.mu.Unlock()
		return
	}
	if !p.readAt.IsZero() {
		why.Since = resource.FormatTime(p.readAt)
	}
	text := ""
	if payload, err := json.Marshal(why); err == nil && (!refused || r.Code != NotReachable) {
		text = string(payload)
	}
	news := text != p.problem
	p.problem = text
	if unknown {
		p.known, p.reportIsCurrent = false, false
		m.out.remove(m.topic(d, topics.KindReported, name))
	}
	m.mu.Unlock()
	if news {
		m.publish(d, topics.KindReadProblem, name, text, nil)
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
	m.publish(d, topics.KindRefused, name, string(payload), nil)
}

func (m *mapper) setOnline(d *device, online bool) {
	if d.online == online && d.retry.Failures() != 1 {
		return
	}
	if online && !d.online {
		m.log.Info().Str("device", d.key).Msg("device online")
	}
	d.online = online
	if online {
		m.out.remove(m.topic(d, topics.KindProblem, "")) // the core ends it with the state
		d.problem = ""
	}
	state := resource.Offline
	if online {
		state = resource.Online
	}
	m.publish(d, topics.KindDeviceState, "", state, nil)
}

// publishProblem publishes why a device is not online. It is called before the state is published.
func (m *mapper) publishProblem(d *device, err error) {
	p := resource.Problem{Code: resource.Unreachable, Message: stableText(err)}
	if d.badConfig {
		p.Code = resource.BadConfig
	}
	payload, failed := json.Marshal(p)
	if failed != nil || d.problem == string(payload) {
		return
	}
	d.problem = string(payload)
	m.publish(d, topics.KindProblem, "", d.problem, nil)
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
