// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/json"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// programs are the node's programs beside mappers, and the core itself: what they say of themselves, of the host and of what was found.
type programs struct {
	opts *Options
	up   *upMap
	down *downMap
	seen map[topics.Kind]bool // states that were published since the start
}

// showStatus publishes the node's status.
func (ps *programs) showStatus(b *batch) {
	payload, err := json.Marshal(ps.opts.Report)
	if err == nil {
		err = ps.up.write(b, newEntry(b, topics.Address{Kind: topics.KindStatus}.Key(), payload, "core"))
	}
	if err != nil {
		ps.opts.Log.Error().Err(err).Msg("the node's status")
	}
}

// state stores the presence of the node's agent, or of edgediscovery.
func (ps *programs) state(b *batch, a topics.Address, m broker.Message) error {
	if err := checkPresence(m.Payload); err != nil {
		return err
	}
	ps.seen[a.Kind] = true
	return ps.up.writeWithin(b, newEntry(b, a.Key(), m.Payload, m.ClientID()))
}

// report stores what the node's agent reports, of the host or of an upgrade; an empty payload takes it back.
func (ps *programs) report(b *batch, a topics.Address, m broker.Message) error {
	switch {
	case len(m.Payload) == 0:
	case a.Kind == topics.KindAgent:
		if _, err := resource.ParseAgentReport(m.Payload); err != nil {
			return err
		}
	case !json.Valid(m.Payload):
		return resource.Errorf(resource.Invalid, a.Key(), "the payload must be JSON")
	}
	return ps.up.writeWithin(b, newEntry(b, a.Key(), m.Payload, tree.OriginOf(m)))
}

// discovered stores what a discoverer says of a Configuration's handler, or a device that it has found; an empty payload takes it
// back. A Configuration that the node is not given, any more or yet, can't have any.
func (ps *programs) discovered(b *batch, a topics.Address, m broker.Message) error {
	if _, ok := ps.down.Get(topics.Address{Kind: topics.KindDiscovery, Device: a.Device}.Key()); !ok && len(m.Payload) > 0 {
		return resource.Errorf(resource.NotFound, "", "the node %s has no Configuration %s to discover for", ps.opts.Node, a.Device)
	}
	payload := m.Payload
	if len(payload) > 0 {
		var err error
		if payload, err = resource.NormalizeDiscovered(a, payload); err != nil {
			return err
		}
	}
	return ps.up.writeWithin(b, newEntry(b, a.Key(), payload, tree.OriginOf(m)))
}

// forgetDiscovered removes what was found for a Configuration that the node is given no more.
func (ps *programs) forgetDiscovered(b *batch, configuration string) {
	ps.up.clear(b, topics.Address{Kind: topics.KindDiscoveryHandler, Device: configuration}.Key())
	for _, key := range ps.up.Keys("discovery/" + configuration + "/instances/") {
		ps.up.clear(b, key)
	}
}

// setMissingOffline is a part of Twin.setMissingOffline.
func (ps *programs) setMissingOffline(b *batch) {
	for _, kind := range []topics.Kind{topics.KindAgentState, topics.KindDiscovererState} {
		key := topics.Address{Kind: kind}.Key()
		if e, ok := ps.up.Get(key); ok && !ps.seen[kind] && string(e.Value) == resource.Online {
			_ = ps.up.write(b, newEntry(b, key, []byte(resource.Offline), e.Origin))
		}
	}
}

// SetRenewalError publishes in the node's status why its certificate could not be renewed; empty: it was.
func (t *Twin) SetRenewalError(why string) {
	t.changeReport(func(r *resource.NodeReport) { r.RenewalError = why })
}

// SetLowSpace publishes in the node's status how little of its disk is free; empty: enough.
func (t *Twin) SetLowSpace(low string) {
	t.changeReport(func(r *resource.NodeReport) { r.LowSpace = low })
}

// changeReport changes the node's status, and publishes it.
func (t *Twin) changeReport(change func(*resource.NodeReport)) {
	t.host.Put(tree.OwnSender, 0, func(b *batch) {
		change(&t.opts.Report)
		t.repeated(t.programs.showStatus)(b)
	})
}

func checkPresence(payload []byte) error {
	switch s := string(payload); s {
	case "", resource.Online, resource.Offline:
		return nil
	default:
		return resource.Errorf(resource.Invalid, "state", "%.40q is not one of online, offline", s)
	}
}
