package twin

import (
	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

func (t *Twin) deviceState(b *batch, a topics.Address, m broker.Message) error {
	if _, err := t.device(a.Device); err != nil {
		return err
	}
	switch s := string(m.Payload); s {
	case "", resource.Online, resource.Offline, resource.Unknown:
	default:
		return resource.Errorf(resource.Invalid, "state", "%.40q is not one of online, offline, unknown", s)
	}
	if err := t.mayClear(a.Key(), m, len(m.Payload) == 0); err != nil {
		return err
	}
	if err := t.putWithin(b, entry(b, a.Key(), m.Payload, m.Publisher.ClientID)); err != nil {
		return err
	}
	if string(m.Payload) != resource.Offline {
		t.clearUp(b, problemKey(a.Device))
	}
	return nil
}

func problemKey(device string) string {
	return topics.Address{Kind: topics.KindProblem, Device: device}.Key()
}

// problem stores why a device is not online, or why a property can't be read. The first is said before the state, and ends
// with the next state that is not offline; the second ends with the next report of the property.
func (t *Twin) problem(b *batch, a topics.Address, m broker.Message) error {
	d, err := t.device(a.Device)
	if err != nil {
		return err
	}
	if a.Kind == topics.KindReadProblem {
		if err := d.bundle.Model.CheckKnown(a.Name); err != nil {
			return err
		}
	}
	if err := t.mayClear(a.Key(), m, len(m.Payload) == 0); err != nil {
		return err
	}
	if len(m.Payload) > 0 {
		if _, err := resource.ParseProblem(m.Payload); err != nil {
			return err
		}
	}
	return t.putWithin(b, entry(b, a.Key(), m.Payload, m.Publisher.ClientID))
}

// mapperState stores a mapper's presence. When it goes, nobody knows the state
// of the devices that it spoke for.
func (t *Twin) mapperState(b *batch, a topics.Address, m broker.Message) error {
	switch s := string(m.Payload); s {
	case "", resource.Online, resource.Offline:
	default:
		return resource.Errorf(resource.Invalid, "state", "%.40q is not one of online, offline", s)
	}
	prev, known := t.up.Get(a.Key())
	if err := t.anothers(a.Device, m); err != nil {
		return err
	}
	if err := t.roomForMapper(a.Device, m); err != nil {
		return err
	}
	if err := t.putWithin(b, entry(b, a.Key(), m.Payload, m.Publisher.ClientID)); err != nil {
		return err
	}
	t.seen[a.Key()] = m.Publisher.User
	t.markAll(b)
	if len(m.Payload) == 0 {
		delete(t.seen, a.Key())
		t.clearUp(b, topics.Address{Kind: topics.KindMapperProtocols, Device: a.Device}.Key())
	}
	if known && string(m.Payload) != resource.Online {
		t.orphan(b, prev.Origin)
	}
	return nil
}

// anothers refuses to take the word of one user for another's mapper while that is there.
func (t *Twin) anothers(mapper string, m broker.Message) error {
	key := mapperKey(mapper)
	state, _ := t.up.Get(key)
	owner, spoke := t.seen[key]
	if spoke && owner != m.Publisher.User && string(state.Value) == resource.Online {
		return resource.Errorf(resource.Forbidden, "", "mapper %s is online as another user", mapper)
	}
	return nil
}

// mayClear refuses to have one user clear what a mapper of another has said, while that is online.
func (t *Twin) mayClear(key string, m broker.Message, clear bool) error {
	e, ok := t.up.Get(key)
	if !ok || !clear {
		return nil
	}
	for mapper, user := range t.seen {
		state, _ := t.up.Get(mapper)
		if user != m.Publisher.User && string(state.Value) == resource.Online && (e.Origin == state.Origin || user != "" && e.Origin == user) {
			a, _ := topics.ParseKey(t.o.Node, mapper)
			return resource.Errorf(resource.Forbidden, "", "%s was said by mapper %s, which is online as another user, and is cleared by that user only", key, a.Device)
		}
	}
	return nil
}

func mapperKey(mapper string) string {
	return topics.Address{Kind: topics.KindMapperState, Device: mapper}.Key()
}

// mapperProtocols stores what a mapper speaks, for people who look for one that speaks another.
func (t *Twin) mapperProtocols(b *batch, a topics.Address, m broker.Message) error {
	if err := t.anothers(a.Device, m); err != nil {
		return err
	}
	if len(m.Payload) > 0 {
		if _, err := resource.ParseProtocols(m.Payload); err != nil {
			return err
		}
	}
	if err := t.roomForMapper(a.Device, m); err != nil {
		return err
	}
	t.markAll(b)
	return t.putWithin(b, entry(b, a.Key(), m.Payload, m.Publisher.ClientID))
}

// markAll has readers look at all devices again: which mappers there are concerns each.
func (t *Twin) markAll(b *batch) {
	for name := range t.devices {
		b.changed[name] = true
	}
}

// orphan sets the devices whose state came from a client to unknown.
func (t *Twin) orphan(b *batch, origin string) {
	for name := range t.devices {
		key := topics.Address{Kind: topics.KindDeviceState, Device: name}.Key()
		if e, ok := t.up.Get(key); ok && e.Origin == origin && string(e.Value) != resource.Unknown {
			t.unknown(b, name, origin)
		}
	}
}

// unknown says that nobody speaks for a device.
func (t *Twin) unknown(b *batch, name, origin string) {
	key := topics.Address{Kind: topics.KindDeviceState, Device: name}.Key()
	_ = t.putUp(b, entry(b, key, []byte(resource.Unknown), origin)) // a fixed short value
	t.clearUp(b, problemKey(name))
}

// disown is for a device whose mapper so far speaks for it no more.
func (t *Twin) disown(b *batch, name string) {
	if e, ok := t.up.Get(topics.Address{Kind: topics.KindDeviceState, Device: name}.Key()); ok {
		t.unknown(b, name, e.Origin)
	}
}

// missMappers runs once, some time after the start: a mapper that said it was
// online before the restart and has not said so since is gone. It may have died with us,
// in which case no will was sent.
func (t *Twin) missMappers(b *batch) {
	b.again = append(b.again, t.missMappers)
	for _, key := range t.up.Keys("mappers/") {
		e, ok := t.up.Get(key)
		if _, spoke := t.seen[key]; spoke || !ok || string(e.Value) != resource.Online {
			continue
		}
		_ = t.putUp(b, entry(b, key, []byte(resource.Offline), e.Origin))
		t.orphan(b, e.Origin)
	}
}
