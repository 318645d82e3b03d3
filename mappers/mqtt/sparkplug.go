// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/topics/sparkplug"
)

// sparkplugTopic is the first part of all topics of Sparkplug B.
const sparkplugTopic = "spBv1.0/"

// rebirthPause is the shortest time between two requests for births to an edge node.
const rebirthPause = 2 * time.Second

// sparkplugSource says which edge node, or which device of one, a Device is.
type sparkplugSource struct{ group, node, device string }

func (s configSettings) sparkplug() (from sparkplugSource, err error) {
	text, err := s.take("sparkplug")
	if err != nil || text == "" {
		return from, err
	}
	parts := strings.Split(text, "/")
	if len(parts) < 2 || len(parts) > 3 || strings.ContainsAny(text, "+#\x00") || parts[0] == "" || parts[1] == "" || parts[len(parts)-1] == "" {
		return from, mappers.BadConfig(s.at+"sparkplug", "%q is neither group/edge node nor group/edge node/device", text)
	}
	from = sparkplugSource{group: parts[0], node: parts[1]}
	if len(parts) == 3 {
		from.device = parts[2]
	}
	return from, nil
}

// topic is where messages of a kind are, such as BIRTH: N is added for an edge node, D for a device.
func (f sparkplugSource) topic(kind string) string {
	if f.device == "" {
		return sparkplugTopic + f.group + "/N" + kind + "/" + f.node
	}
	return sparkplugTopic + f.group + "/D" + kind + "/" + f.node + "/" + f.device
}

// edgeNode is the source of an edge node.
func (f sparkplugSource) edgeNode() sparkplugSource {
	return sparkplugSource{group: f.group, node: f.node}
}

// filters are what a host reads of an edge node: the messages of all its devices, since they are numbered together.
func (f sparkplugSource) filters() []string {
	base := sparkplugTopic + f.group + "/+/" + f.node
	return []string{base, base + "/+"}
}

// edgeNode is what is known of an edge node of Sparkplug in which Devices are: its session, which ends with its death. Driver.mu guards it.
type edgeNode struct {
	source  sparkplugSource        // of the edge node itself
	session string                 // the number that its birth has, and its death
	seq     int                    // of the last message; -1: unknown
	births  map[string]deviceBirth // by device, of those that a session is for; "": the edge node
	deaths  map[string]bool        // likewise
	asked   time.Time              // when it was asked to be born again
	owed    string                 // why it is to be born again; empty: it needn't
	born    time.Time              // when its last birth was
}

// deviceBirth is what a birth says of its metrics.
type deviceBirth struct {
	metrics map[string]bornMetric
	aliases map[uint64]string
}

// bornMetric is what a birth says of a metric.
type bornMetric struct {
	typ      sparkplug.DataType
	alias    uint64
	hasAlias bool
}

func newEdgeNode(source sparkplugSource) *edgeNode {
	n := &edgeNode{source: source}
	n.reset()
	return n
}

// reset forgets what is known: messages may have been missed.
func (n *edgeNode) reset() {
	n.seq, n.session, n.owed = -1, "", ""
	n.births, n.deaths = map[string]deviceBirth{}, map[string]bool{}
}

// sparkplugMessage is a message of an edge node: kind is NBIRTH, DDATA and so on.
type sparkplugMessage struct {
	kind, device string
	payload      sparkplug.Payload
}

// parseSparkplug reads a message below spBv1.0. The source is that of its edge node; ok is false for what hosts send.
func parseSparkplug(m client.Message) (from sparkplugSource, out sparkplugMessage, ok bool, err error) {
	parts := strings.Split(strings.TrimPrefix(m.Topic, sparkplugTopic), "/")
	if len(parts) < 3 || len(parts) > 4 {
		return from, out, false, nil
	}
	from, out.kind = sparkplugSource{group: parts[0], node: parts[2]}, parts[1]
	if len(parts) == 4 {
		out.device = parts[3]
	}
	switch out.kind {
	case "NBIRTH", "NDATA", "NDEATH":
		ok = out.device == ""
	case "DBIRTH", "DDATA", "DDEATH":
		ok = out.device != ""
	}
	if ok {
		out.payload, err = sparkplug.Parse(m.Payload)
	}
	return from, out, ok && err == nil, err
}

// isBorn reports whether the birth of a device is known.
func (n *edgeNode) isBorn(device string) bool { return n.births[device].metrics != nil }

// take takes a message. why says why the edge node is to be born again; empty: it needn't. used: a session is for the device.
func (n *edgeNode) take(m sparkplugMessage, used bool) (why string) {
	switch m.kind {
	case "NBIRTH":
		asked := n.asked
		n.reset()
		n.session, n.asked, n.seq, n.born = sparkplugSession(m.payload), asked, m.payload.Seq, time.Now()
		n.bear("", m.payload)
		return ""
	case "NDEATH":
		if session := sparkplugSession(m.payload); session != "" && n.session != "" && session != n.session {
			return "" // the will of an earlier connection
		}
		n.reset()
		n.deaths[""] = true
		return ""
	}
	if n.seq >= 0 && m.payload.Seq >= 0 && m.payload.Seq != (n.seq+1)&0xff {
		why = fmt.Sprintf("message %d came after message %d", m.payload.Seq, n.seq)
	}
	n.seq = m.payload.Seq
	switch {
	case !used: // nothing is kept of it, however many there are
	case m.kind == "DDEATH":
		delete(n.births, m.device)
		n.deaths[m.device] = true
	case m.kind == "DBIRTH":
		n.bear(m.device, m.payload)
	case !n.isBorn(m.device):
		why = "its birth is not known"
	}
	if !n.isBorn("") && m.kind != "DDEATH" {
		why = "the birth of the edge node is not known"
	}
	return why
}

func (n *edgeNode) bear(device string, p sparkplug.Payload) {
	delete(n.deaths, device)
	b := deviceBirth{map[string]bornMetric{}, map[uint64]string{}}
	for _, m := range p.Metrics {
		b.metrics[m.Name] = bornMetric{m.Type, m.Alias, m.HasAlias}
		if m.HasAlias {
			b.aliases[m.Alias] = m.Name
		}
	}
	n.births[device] = b
}

// sparkplugSession is the number of an edge node's session.
func sparkplugSession(p sparkplug.Payload) (number string) {
	for _, m := range p.Metrics {
		if m.Name == "bdSeq" {
			number, _ = m.Text(sparkplug.TypeUnspecified)
		}
	}
	return number
}

// onSparkplug takes a message of an edge node for the sessions that are in it. mu is held.
func (d *Driver) onSparkplug(message client.Message) {
	from, m, ok, err := parseSparkplug(message)
	n := d.edgeNodes[from]
	if n == nil || message.Retained { // what a broker has kept says nothing about now
		return
	}
	if err != nil {
		d.o.Broker.Log.Warn().Err(err).Str("topic", message.Topic).Msg("no payload of Sparkplug B")
	}
	if !ok {
		return
	}
	used := m.device == ""
	for s := range d.sessions {
		used = used || s.config.sparkplug.edgeNode() == from && s.config.sparkplug.device == m.device
	}
	why := n.take(m, used)
	for s := range d.sessions {
		if s.config.sparkplug.edgeNode() == from && s.config.sparkplug.device == m.device {
			if unknown := s.takeMetrics(n, m); unknown != "" {
				why = unknown
			}
		}
		if s.config.sparkplug.edgeNode() == from {
			s.wake()
		}
	}
	if why != "" {
		n.owed = why
	}
	if n.owed != "" {
		d.askForBirth(n, n.owed)
	}
}

// askForBirth asks an edge node to be born again, with all its devices. mu is held.
func (d *Driver) askForBirth(n *edgeNode, why string) {
	now := time.Now()
	if now.Sub(n.asked) < rebirthPause {
		return
	}
	n.asked = now
	d.o.Broker.Log.Info().Str("group", n.source.group).Str("edge_node", n.source.node).Str("why", why).Msg("asked to be born again")
	d.mqtt.PublishAsync(rebirthCommand(n.source), nil)
}

// sparkplugCommand is a message to an edge node or a device. Its quality of service is 0, as Sparkplug has it.
func sparkplugCommand(to sparkplugSource, m sparkplug.Metric) client.Message {
	now := uint64(time.Now().UnixMilli())
	m.Timestamp = now
	return client.Message{Topic: to.topic("CMD"), Payload: sparkplug.Payload{Timestamp: now, Seq: -1, Metrics: []sparkplug.Metric{m}}.Append(nil)}
}

// takeMetrics takes the values of a message of the session's device. unknown says what of it can't be told; empty: nothing. mu is held.
func (s *session) takeMetrics(n *edgeNode, m sparkplugMessage) (unknown string) {
	for _, metric := range m.payload.Metrics {
		name := metric.Name
		if name == "" && metric.HasAlias {
			if name = n.births[m.device].aliases[metric.Alias]; name == "" {
				unknown = fmt.Sprintf("the alias %d is not known", metric.Alias)
			}
		}
		if metric.Historical || name == "" {
			continue
		}
		for _, f := range s.config.order {
			if f.metric != name {
				continue
			}
			s.states++
			s.note(f, f.metricReading(metric, n.births[m.device].metrics[name].typ, s.config.sparkplug))
		}
	}
	return unknown
}

// metricReading makes a reading of a metric.
func (f *mappedProperty) metricReading(m sparkplug.Metric, typ sparkplug.DataType, from sparkplugSource) (r lastReading) {
	at := "the metric " + f.metric + " of " + from.topic("DATA")
	if m.Null {
		return lastReading{err: mappers.Refuse(mappers.Unknown, "%s has no value", at)}
	}
	text, err := m.Text(typ)
	if err != nil {
		return lastReading{err: mappers.Refuse(mappers.Unknown, "%s: %v", at, err)}
	}
	r.value, r.err = f.value(text, true, at)
	return r
}

// sparkplugAbsence says why a device of Sparkplug isn't there; nil: it is, or nothing is known of it yet. mu is held.
func (s *session) sparkplugAbsence() error {
	n := s.driver.edgeNodes[s.config.sparkplug.edgeNode()]
	switch {
	case n == nil:
		return nil
	case n.deaths[""]:
		return mappers.SaysOffline(fmt.Errorf("mqtt: the edge node is offline: the last message was %s", n.source.topic("DEATH")))
	case n.deaths[s.config.sparkplug.device]:
		return mappers.SaysOffline(fmt.Errorf("mqtt: the device is offline: the last message was %s", s.config.sparkplug.topic("DEATH")))
	case n.isBorn("") && !n.isBorn(s.config.sparkplug.device) && time.Since(n.born) > s.driver.o.Timeout:
		return mappers.SaysOffline(fmt.Errorf("mqtt: the edge node has been born, and the device has not: there was no %s", s.config.sparkplug.topic("BIRTH")))
	}
	return nil
}

// awaitBirth asks the edge node to be born again unless the device's birth is known, and waits for that.
func (s *session) awaitBirth(ctx context.Context) error {
	born := func() bool {
		s.driver.mu.Lock()
		defer s.driver.mu.Unlock()
		n := s.driver.edgeNodes[s.config.sparkplug.edgeNode()]
		return n != nil && n.isBorn(s.config.sparkplug.device)
	}
	if born() {
		return nil
	}
	s.driver.mu.Lock()
	if n := s.driver.edgeNodes[s.config.sparkplug.edgeNode()]; n != nil && s.driver.mqtt != nil {
		s.driver.askForBirth(n, "its birth is not known")
	}
	s.driver.mu.Unlock()
	err := s.await(ctx, s.driver.o.Timeout, func() bool { return born() || s.unavailableReason() != nil })
	if errors.Is(err, errNoMessage) {
		return fmt.Errorf("mqtt: no %s within %s after a request to be born again", s.config.sparkplug.topic("BIRTH"), s.driver.o.Timeout)
	}
	return errors.Join(err, s.unavailableReason())
}

// metricCommand makes the command that sets a metric, of the type that its birth says.
func (s *session) metricCommand(f *mappedProperty, value string) (client.Message, error) {
	s.driver.mu.Lock()
	defer s.driver.mu.Unlock()
	to := s.config.sparkplug
	n := s.driver.edgeNodes[to.edgeNode()]
	if n == nil || !n.isBorn(to.device) {
		return client.Message{}, mappers.NotSent(fmt.Errorf("mqtt: %s is not known yet", to.topic("BIRTH")))
	}
	born, ok := n.births[to.device].metrics[f.metric]
	if !ok {
		return client.Message{}, mappers.Refuse(mappers.NotReachable, "%s has no metric %s", to.topic("BIRTH"), f.metric)
	}
	m, err := sparkplug.Value(born.typ, value)
	if err != nil {
		return client.Message{}, mappers.Refuse(mappers.Invalid, "the metric %s: %v", f.metric, err)
	}
	if m.Name = f.metric; born.hasAlias { // who has given an alias is addressed by it
		m.Name, m.Alias, m.HasAlias = "", born.alias, true
	}
	return sparkplugCommand(to, m), nil
}
