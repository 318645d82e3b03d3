// SPDX-License-Identifier: Apache-2.0

package dmi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/mappers"
)

// driver drives the devices of a peer.
type driver struct{ p *peer }

// Protocols implements mappers.Driver.
func (d driver) Protocols() []string { return []string{d.p.protocol} }

// goneAfter is how long after its session a device is removed from its mapper: a new configuration opens it again at once.
const goneAfter = 5 * time.Second

// Open implements mappers.Driver. The mapper is told of the device when it is first asked about it.
func (d driver) Open(ctx context.Context, info mappers.Device) (mappers.Session, error) {
	if _, err := deviceMessage(d.p.contract, info.Form, nil); err != nil {
		return nil, mappers.BadConfig("spec", "the mapper can't be told of the Device: %v", err)
	}
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	dev := d.p.devices[info.Name]
	if dev == nil {
		dev = &device{p: d.p, name: info.Name, telling: make(chan struct{}, 1), wrote: map[string]string{}, values: map[string]value{}, since: time.Now()}
		d.p.devices[info.Name] = dev
	}
	dev.configure(info)
	return &session{dev}, nil
}

// device is what a peer was told of a device, and what it has reported.
type device struct {
	p    *peer
	name string

	telling chan struct{} // has something in it while the mapper is told something of the device

	mu     sync.Mutex
	info   mappers.Device
	life   int    // of the peer, in which it was told of the device
	asked  int    // of the peer, in which it may have been told of it: it has not answered
	told   string // the form that it was told
	wrote  map[string]string
	values map[string]value
	heard  time.Time
	since  time.Time // when it was first opened
	state  string
	emit   func(property, value string)
	opened int // counts the sessions
	open   bool
}

// value is a reported one.
type value struct {
	text string
	at   time.Time
}

func (d *device) configure(info mappers.Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.info, d.open = info, true
	d.opened++
	gone := func(name string) bool {
		_, still := info.Property(name)
		return !still
	}
	maps.DeleteFunc(d.values, func(name string, _ value) bool { return gone(name) })
	maps.DeleteFunc(d.wrote, func(name, _ string) bool { return gone(name) })
}

func (d *device) isOpen() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open
}

// message is the device with its desired values: those in force, and those that were written since; and its form.
func (d *device) message(written map[string]string) (out []byte, form string, err error) {
	d.mu.Lock()
	info, wrote := d.info, maps.Clone(d.wrote)
	d.mu.Unlock()
	desired := map[string]string{}
	maps.Copy(desired, info.InForce())
	maps.Copy(desired, wrote)
	maps.Copy(desired, written)
	out, err = deviceMessage(d.p.contract, info.Form, desired)
	return out, info.Form, err
}

// knownSince notes that the mapper was told a form of the device in a life.
func (d *device) knownSince(life int, form string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if life >= d.life {
		d.life, d.told = life, form
	}
}

// tell tells the mapper of the device, if it doesn't know it as it is, and of values that are to be written.
func (d *device) tell(ctx context.Context, written map[string]string) error {
	select {
	case d.telling <- struct{}{}:
		defer func() { <-d.telling }()
	case <-ctx.Done():
		return ctx.Err()
	}
	life, doubtful := d.p.lifeNow()
	d.mu.Lock()
	knows := d.life == life
	asItIs := knows && d.told == d.info.Form
	doubtful = doubtful || d.asked == life
	d.mu.Unlock()
	if asItIs && len(written) == 0 {
		return nil
	}
	message, form, err := d.message(written)
	if err != nil {
		return err
	}
	if err := d.p.tellModel(ctx, form); err != nil {
		if !knows {
			return notTold(err)
		}
		return err
	}
	request := appendBytes(nil, 1, message)
	var failed error
	if !knows {
		err := d.p.call(ctx, "RegisterDevice", request)
		if !isRefusal(err) && !mappers.IsNotSent(err) {
			d.mu.Lock()
			d.asked = life
			d.mu.Unlock()
		}
		// A mapper that knows the device says so, or keeps it as it was: it is told by the update that follows.
		if err != nil && (!doubtful || !isRefusal(err)) {
			return notTold(err)
		}
		failed = err
	}
	if knows || doubtful {
		switch err := d.p.call(ctx, "UpdateDevice", request); {
		case failed != nil && isRefusal(err):
			return notTold(failed)
		case err != nil:
			return err
		}
	}
	d.mu.Lock()
	maps.Copy(d.wrote, written)
	d.mu.Unlock()
	d.knownSince(life, form)
	return nil
}

// notTold is the error of a device that the mapper doesn't know because it has failed a call: nobody drives it.
func notTold(err error) error {
	if r := (*mappers.Refusal)(nil); errors.As(err, &r) {
		return mappers.NotSent(errors.New(r.Message))
	}
	return err
}

func isRefusal(err error) bool {
	var r *mappers.Refusal
	return errors.As(err, &r)
}

// take takes a report. Values of properties that the device doesn't have are left out.
func (d *device) take(r report, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heard = now
	if r.state != "" {
		d.state = strings.ToLower(r.state)
	}
	for name, text := range r.values {
		if _, has := d.info.Property(name); !has {
			continue
		}
		d.values[name] = value{text, now}
		if d.emit != nil {
			d.emit(name, text)
		}
	}
}

// answers reports why the device is not there.
func (d *device) answers(now time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch d.state {
	case "offline", "disconnected":
		return mappers.SaysOffline(fmt.Errorf("its mapper says that it is %s", d.state))
	case "", "ok", "online":
		d.info.Tell("State", "")
	default:
		d.info.Tell("State", "its mapper says: "+d.state)
	}
	patience := d.info.OfflineAfter
	if patience == 0 {
		patience = 2 * time.Second
		for _, p := range d.info.Properties {
			if p.Visited {
				patience = max(patience, 2*p.Collect+time.Second)
			}
		}
	}
	last := d.heard
	if last.Before(d.since) {
		last = d.since
	}
	switch {
	case now.Sub(last) > patience && d.heard.IsZero():
		return errors.New("its mapper has reported nothing of it")
	case now.Sub(last) > patience:
		return fmt.Errorf("its mapper has reported nothing of it for %s", now.Sub(last).Round(time.Second))
	case d.heard.IsZero():
		return errors.New("its mapper has reported nothing of it yet")
	}
	return nil
}

// session is an open device.
type session struct{ d *device }

// Close implements mappers.Session.
func (s *session) Close() error {
	d := s.d
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open, d.emit = false, nil
	opened := d.opened
	time.AfterFunc(goneAfter, func() { d.leave(opened) })
	return nil
}

// leave removes a device that was not opened again from its mapper, and tries it until the mapper has answered or has registered anew. Until then the
// device stays: one that is made again under the name is the same to the mapper.
func (d *device) leave(opened int) {
	d.telling <- struct{}{}
	defer func() { <-d.telling }()
	life, stopped := d.p.lifeAndEnd()
	d.mu.Lock()
	again, mayKnow, form := d.open || d.opened != opened, d.life == life || d.asked == life, d.info.Form
	d.mu.Unlock()
	if again || stopped {
		return
	}
	if mayKnow {
		namespace := "default"
		if f, err := readForm(form); err == nil {
			namespace = scalarText(f.Device["namespace"])
		}
		if err := d.p.remove(context.Background(), d.name, namespace); err != nil && !isRefusal(err) {
			if !mappers.IsNotSent(err) { // nobody knows whether it still has it
				d.mu.Lock()
				d.life, d.asked = 0, life
				d.mu.Unlock()
			}
			time.AfterFunc(goneAfter, func() { d.leave(opened) })
			return
		}
	}
	d.p.forget(d, opened)
}

// forget forgets a device that its mapper doesn't have any more. One that was opened meanwhile is told anew.
func (p *peer) forget(d *device, opened int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.life, d.asked = 0, 0
	if !d.open && d.opened == opened {
		delete(p.devices, d.name)
	}
}

// Reconnect implements mappers.Reconnector: each call makes its connection itself.
func (s *session) Reconnect() {}

// Ping implements mappers.Pinger.
func (s *session) Ping(ctx context.Context) error {
	if err := s.d.p.listens(); err != nil {
		return err
	}
	if err := s.d.tell(ctx, nil); err != nil {
		return err
	}
	return s.d.answers(time.Now())
}

// ReadBatch implements mappers.BatchReader: the last values that the mapper has reported. One that it has not is missing.
func (s *session) ReadBatch(ctx context.Context, properties []string) (map[string]mappers.Reading, error) {
	if err := s.Ping(ctx); err != nil {
		return nil, err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	out := make(map[string]mappers.Reading, len(properties))
	for _, name := range properties {
		if v, known := s.d.values[name]; known {
			out[name] = mappers.Reading{Value: v.text, At: v.at}
		}
	}
	return out, nil
}

// Write implements mappers.Writer. The interface has no answer to a write: the value is confirmed when it is reported.
func (s *session) Write(ctx context.Context, property, value string) error {
	if err := s.d.p.listens(); err != nil {
		return err
	}
	if err := s.d.tell(ctx, map[string]string{property: value}); err != nil {
		return err
	}
	return mappers.ErrUnconfirmed
}

// Relinquish implements mappers.Relinquisher. The interface can't take a value back: it is not among the desired ones any more that the mapper is told, and
// that it writes again whenever it starts the device.
func (s *session) Relinquish(_ context.Context, property string) error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	delete(s.d.wrote, property)
	return nil
}

// Push implements mappers.Pusher.
func (s *session) Push(ctx context.Context, emit func(property, value string)) error {
	s.d.mu.Lock()
	s.d.emit = emit
	s.d.mu.Unlock()
	<-ctx.Done()
	return nil
}
