package mappers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
)

// worker is the one goroutine that uses the devices of a bus.
type worker struct {
	m    *mapper
	bus  string
	wake chan struct{} // capacity 1

	devices []*device // mapper.mu guards it
}

func (w *worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *worker) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			for _, d := range w.list() {
				w.failCommands(d, errStopping)
				w.close(d)
			}
			return
		case <-timer.C:
		case <-w.wake:
		}
		next := w.pass(ctx)
		if w.idle() {
			return
		}
		timer.Reset(max(0, next.Sub(w.m.o.Now())))
	}
}

func (w *worker) list() []*device {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	return slices.Clone(w.devices)
}

// pass gives every device its turn and returns when the next one is due.
func (w *worker) pass(ctx context.Context) time.Time {
	next := w.m.o.Now().Add(time.Hour)
	for _, d := range w.list() {
		if ctx.Err() != nil {
			return next
		}
		if at, due := w.turn(ctx, d); due && at.Before(next) {
			next = at
		}
	}
	return next
}

// turn does what there is to do for a device. due is false when only news can change that.
func (w *worker) turn(ctx context.Context, d *device) (at time.Time, due bool) {
	w.m.mu.Lock()
	gone, ready, gen, info := d.gone, d.ready, d.gen, d.info
	w.m.mu.Unlock()
	if gone {
		w.close(d)
		w.forget(d)
		return at, false
	}
	if gen != d.openGen { // new, or configured anew
		w.close(d)
		d.openGen, d.failures, d.retryAt, d.hopeless = gen, 0, time.Time{}, false
		w.m.mu.Lock()
		d.pushed = nil // by the old configuration
		w.m.mu.Unlock()
	}
	if !ready {
		return at, false
	}
	if d.session == nil {
		if d.hopeless || w.m.o.Now().Before(d.retryAt) {
			w.failCommands(d, d.why)
			return d.retryAt, !d.hopeless
		}
		if err := w.open(ctx, d, info); err != nil {
			return w.fail(ctx, d, err)
		}
	}
	for _, do := range []func(context.Context, *device) error{w.driveAll, w.collect, w.listen, w.runCommands} {
		if err := do(ctx, d); err != nil {
			return w.fail(ctx, d, err)
		}
	}
	w.setOnline(d, true)
	d.failures = 0
	return w.nextDue(d), true
}

// current says whether the device's session is by its newest configuration.
func (w *worker) current(d *device) bool {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	return d.gen == d.openGen
}

func (w *worker) forget(d *device) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	w.devices = slices.DeleteFunc(w.devices, func(x *device) bool { return x == d })
}

// idle ends a worker that has no device any more.
func (w *worker) idle() bool {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if len(w.devices) > 0 {
		return false
	}
	delete(w.m.workers, w.bus)
	return true
}

// call bounds one call of the driver.
func (w *worker) call(ctx context.Context, f func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, w.m.o.CallTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil { // one device's oddity must not end the others' mapper
			err = fmt.Errorf("the driver panicked: %v", p)
		}
	}()
	return f(ctx)
}

func (w *worker) open(ctx context.Context, d *device, info Device) error {
	err := w.call(ctx, func(ctx context.Context) (err error) {
		d.session, err = w.m.driver.Open(ctx, info)
		return err
	})
	if err != nil {
		d.session = nil
		return err
	}
	if p, ok := d.session.(Pinger); ok {
		if err := w.call(ctx, p.Ping); err != nil {
			return err
		}
	}
	w.startPush(ctx, d)
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	for _, p := range d.props { // what we knew may have changed while it was away
		p.known = false
		p.collectAt = time.Time{}
		if p.told && p.applied > 0 {
			p.check, p.before = true, p.reported
		}
	}
	return nil
}

// startPush runs the session's Push, when it has one, until the session is closed.
func (w *worker) startPush(ctx context.Context, d *device) {
	p, ok := d.session.(Pusher)
	if !ok {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	lost, done := make(chan error, 1), make(chan struct{})
	d.lost = lost
	d.stopPush = func() { cancel(); <-done }
	go func() {
		defer close(done)
		err := p.Push(ctx, func(property, value string) {
			w.m.mu.Lock()
			if d.pushed == nil {
				d.pushed = map[string]string{}
			}
			if d.props[property] != nil {
				d.pushed[property] = value
			}
			w.m.mu.Unlock()
			w.poke()
		})
		if err == nil && ctx.Err() == nil {
			err = errors.New("the device stopped telling of its changes")
		}
		lost <- err
		w.poke()
	}()
}

func (w *worker) close(d *device) {
	if d.stopPush != nil {
		d.stopPush()
		d.stopPush, d.lost = nil, nil
	}
	if d.session == nil {
		return
	}
	if err := d.session.Close(); err != nil {
		w.m.log.Debug().Err(err).Str("device", d.key).Msg("close")
	}
	d.session = nil
}

// say makes value the latest of a topic of the device.
func (w *worker) say(d *device, kind topics.Kind, name, value string, user []client.UserProperty) {
	w.m.mu.Lock()
	gone := d.gone
	w.m.mu.Unlock()
	if !gone {
		w.m.out.set(client.Message{Topic: w.topic(d, kind, name), Payload: []byte(value), QoS: 1, Retain: true, User: user})
	}
}

func (w *worker) topic(d *device, kind topics.Kind, name string) string {
	return topics.Address{Node: w.m.node, Kind: kind, Device: d.key, Name: name}.String()
}

// topics are those that say may have used.
func (d *device) topics() []string {
	base := topics.Address{Node: d.info.Node, Device: d.key}
	list := []string{}
	add := func(kind topics.Kind, name string) {
		a := base
		a.Kind, a.Name = kind, name
		list = append(list, a.String())
	}
	add(topics.KindDeviceState, "")
	add(topics.KindProblem, "")
	for name := range d.props {
		add(topics.KindReported, name)
		add(topics.KindRefused, name)
	}
	return list
}
