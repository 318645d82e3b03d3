// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"errors"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// Publish takes a local publish into the tree: a mapper's report, or an
// override. done is called with nil once it is stored, or with the rule that it breaks.
func (t *Twin) Publish(m broker.Message, done func(error)) {
	a, err := topics.Parse(m.Topic)
	if err == nil {
		err = t.devices.checkNode(a.Node)
	}
	if err != nil {
		t.stats.refused.Add(1)
		done(badTopicError(err))
		return
	}
	if isStream(a.Kind) {
		t.stream(a, m, done)
		return
	}
	if refused := t.outage.Err(); refused != nil && a.Kind != topics.KindGet {
		t.stats.refused.Add(1)
		done(refused)
		return
	}
	from, bytes := tree.SenderOf(m)
	taken := t.host.Put(from, bytes, func(b *batch) {
		err := t.applyPublish(b, a, m)
		if err == nil {
			t.tracePublish(b, a, m)
		}
		b.answers = append(b.answers, publishAnswer{done, err})
	})
	if !taken {
		done(errStopped)
	}
}

func isStream(kind topics.Kind) bool {
	return kind == topics.KindTelemetry || kind == topics.KindEvents
}

// stream passes telemetry or an event on. It is not a step, so that streams don't wait for commits of state.
func (t *Twin) stream(a topics.Address, m broker.Message, done func(error)) {
	if _, ok := t.devices.protocols.Load(a.Device); !ok {
		t.stats.refused.Add(1)
		err := t.devices.notFound(a.Device, m.Publisher)
		if outage := t.outage.Cause(); outage != nil { // the hub may have sent the device, and it could not be stored
			err = outage
		}
		done(err)
		return
	}
	if event, ok := t.devices.model(a.Device).Event(a.Name); ok && a.Kind == topics.KindEvents {
		if err := event.Check(m.Payload); err != nil {
			t.stats.refused.Add(1)
			done(err)
			return
		}
	}
	if err := tree.CheckTimestamp(m, t.opts.Now().UnixMilli()); err != nil {
		t.stats.refused.Add(1)
		done(err)
		return
	}
	m.Retain = false
	t.opts.Pass(m, done)
}

func badTopicError(err error) error {
	if e := (*topics.Error)(nil); errors.As(err, &e) {
		return resource.Errorf(resource.BadTopic, "", "%s", e.Error())
	}
	return err
}

func (t *Twin) applyPublish(b *batch, a topics.Address, m broker.Message) error {
	if b.refused != nil && a.Kind != topics.KindGet {
		return b.refused
	}
	b.from = m.Publisher
	defer func() { b.from = nil }()
	switch a.Kind {
	case topics.KindReported, topics.KindReportedAll:
		return t.writes.report(b, a, m)
	case topics.KindDesired, topics.KindDesiredAll:
		return t.writes.override(b, a, m)
	case topics.KindRefused:
		return t.writes.refuse(b, a.Device, a.Name, m)
	case topics.KindDeviceState:
		return t.writes.deviceState(b, a, m)
	case topics.KindProblem, topics.KindReadProblem:
		return t.writes.problem(b, a, m)
	case topics.KindMapperState:
		return t.mappers.state(b, a, m)
	case topics.KindMapperProtocols:
		return t.mappers.protocols(b, a, m)
	case topics.KindMapperSettings:
		return t.mappers.settings(b, a, m)
	case topics.KindAgent, topics.KindUpgradeStatus:
		return t.programs.report(b, a, m)
	case topics.KindAgentState, topics.KindDiscovererState:
		return t.programs.state(b, a, m)
	case topics.KindDiscoveryHandler, topics.KindInstance:
		return t.programs.discovered(b, a, m)
	case topics.KindGet:
		return t.writes.get(b, a, m)
	}
	return resource.Errorf(resource.Forbidden, "", "%s is written by %s, not by clients of the node's broker", a.Key(), a.Kind.Owner())
}
