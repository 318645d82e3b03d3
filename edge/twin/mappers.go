// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// mappers are the node's mappers, as they say of themselves.
type mappers struct {
	opts    *Options
	up      *upMap
	devices *devices
	users   map[string]string // of those that have reported since the start, by the key of their state
}

// state stores a mapper's presence. When a mapper goes offline, the state of the devices that it reported becomes unknown.
func (ms *mappers) state(b *batch, a topics.Address, m broker.Message) error {
	if err := checkPresence(m.Payload); err != nil {
		return err
	}
	prev, known := ms.up.Get(a.Key())
	if err := ms.checkOwner(a.Device, m); err != nil {
		return err
	}
	if err := ms.roomFor(a.Device, m); err != nil {
		return err
	}
	if err := ms.up.writeWithin(b, newEntry(b, a.Key(), m.Payload, m.ClientID())); err != nil {
		return err
	}
	ms.users[a.Key()] = m.User()
	ms.devices.markAll(b)
	if len(m.Payload) == 0 {
		delete(ms.users, a.Key())
		ms.up.clear(b, topics.Address{Kind: topics.KindMapperProtocols, Device: a.Device}.Key())
		ms.up.clear(b, topics.Address{Kind: topics.KindMapperSettings, Device: a.Device}.Key())
	}
	if known && string(m.Payload) != resource.Online {
		ms.devices.setOrphans(b, prev.Origin)
	}
	return nil
}

// checkOwner refuses a message about a mapper that is online as another user.
func (ms *mappers) checkOwner(mapper string, m broker.Message) error {
	key := mapperKey(mapper)
	state, _ := ms.up.Get(key)
	owner, seen := ms.users[key]
	if seen && owner != m.User() && string(state.Value) == resource.Online {
		return resource.Errorf(resource.Forbidden, "", "mapper %s is online as another user", mapper)
	}
	return nil
}

// mayClear refuses to clear a key that a mapper of another user has set, while that mapper is online.
func (ms *mappers) mayClear(key string, m broker.Message, clear bool) error {
	if !clear {
		return nil
	}
	e, ok := ms.up.Get(key)
	if !ok {
		return nil
	}
	for mapper, user := range ms.users {
		state, _ := ms.up.Get(mapper)
		if user != m.User() && string(state.Value) == resource.Online && (e.Origin == state.Origin || user != "" && e.Origin == user) {
			a, _ := topics.ParseKey(ms.opts.Node, mapper)
			return resource.Errorf(resource.Forbidden, "", "%s was set by mapper %s, which is online as another user, and is cleared by that user only", key, a.Device)
		}
	}
	return nil
}

// protocols stores the protocols of a mapper, which conditions of devices without a mapper show.
func (ms *mappers) protocols(b *batch, a topics.Address, m broker.Message) error {
	if err := ms.checkOwner(a.Device, m); err != nil {
		return err
	}
	if len(m.Payload) > 0 {
		if _, err := resource.ParseProtocols(m.Payload); err != nil {
			return err
		}
	}
	if err := ms.roomFor(a.Device, m); err != nil {
		return err
	}
	ms.devices.markAll(b)
	return ms.up.writeWithin(b, newEntry(b, a.Key(), m.Payload, m.ClientID()))
}

// settings stores which settings a mapper takes.
func (ms *mappers) settings(b *batch, a topics.Address, m broker.Message) error {
	if err := ms.checkOwner(a.Device, m); err != nil {
		return err
	}
	if len(m.Payload) > 0 {
		if _, err := resource.ParseProtocolSettings(m.Payload); err != nil {
			return err
		}
	}
	if err := ms.roomFor(a.Device, m); err != nil {
		return err
	}
	return ms.up.writeWithin(b, newEntry(b, a.Key(), m.Payload, m.ClientID()))
}

// setMissingOffline is a part of Twin.setMissingOffline.
func (ms *mappers) setMissingOffline(b *batch) {
	for _, key := range ms.up.Keys("mappers/") {
		e, ok := ms.up.Get(key)
		if _, seen := ms.users[key]; seen || !ok || string(e.Value) != resource.Online {
			continue
		}
		_ = ms.up.write(b, newEntry(b, key, []byte(resource.Offline), e.Origin))
		ms.devices.setOrphans(b, e.Origin)
	}
}

// roomFor returns an error if one more mapper of the user would exceed limits.mappers.
func (ms *mappers) roomFor(name string, m broker.Message) error {
	state, protocols := mapperKey(name), topics.Address{Kind: topics.KindMapperProtocols, Device: name}.Key()
	if _, known := ms.up.Get(state); known || len(m.Payload) == 0 {
		return nil
	}
	if _, known := ms.up.Get(protocols); known {
		return nil
	}
	q := quota.NewShared("mappers", "user", quota.Limit{Most: int64(ms.opts.Mappers), Setting: "limits.mappers"})
	for _, known := range tree.Mappers(ms.opts.Node, ms.up.Range) {
		user, seen := ms.users[mapperKey(known.Name)]
		if !seen {
			user = unknownUser
		}
		q.Add(user, 1)
	}
	return q.Take(m.User(), 1)
}

func mapperKey(mapper string) string {
	return topics.Address{Kind: topics.KindMapperState, Device: mapper}.Key()
}

// unknownUser stands for the unknown users of mappers that have not reported since the start.
const unknownUser = "(before the restart)"
