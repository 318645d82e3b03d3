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

	answers time.Duration // how long a device of the bus usually takes to answer a Ping; the worker's goroutine only
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

// pass gives every device its turn and returns when the next one is due. It ends with the first device that fails, so that
// those that answer wait for one time-out a pass, however many don't. Devices that are open come first. The others are
// tried in the order in which they have become due; so are, with a Ping, those that were open and had not had their turn
// when another failed.
func (w *worker) pass(ctx context.Context) time.Time {
	next := w.m.o.Now().Add(time.Hour)
	plan := func(at time.Time, due bool) {
		if due && at.Before(next) {
			next = at
		}
	}
	var untried []*device
	failed := false
	for _, d := range w.list() {
		switch {
		case ctx.Err() != nil:
			return next
		case !w.prepare(d):
		case d.session == nil, d.doubt, failed:
			d.doubt = d.session != nil
			untried = append(untried, d)
		default:
			plan(w.turn(ctx, d))
			failed = d.session == nil
		}
	}
	slices.SortStableFunc(untried, func(a, b *device) int { return a.retryAt.Compare(b.retryAt) })
	for _, d := range untried {
		now := w.m.o.Now()
		switch {
		case ctx.Err() != nil:
			return next
		case d.hopeless, now.Before(d.retryAt):
			w.failCommands(d, d.why)
			plan(d.retryAt, !d.hopeless)
		case failed:
			plan(now, true) // in the next pass, after those that are open
		default:
			plan(w.attempt(ctx, d))
			failed = d.session == nil && !d.hopeless
		}
	}
	return next
}

// prepare closes a device that is gone or was configured anew. It is false when there is nothing to do for the device.
func (w *worker) prepare(d *device) bool {
	w.m.mu.Lock()
	gone, ready, gen := d.gone, d.ready, d.gen
	w.m.mu.Unlock()
	if gone {
		w.close(d)
		w.forget(d)
		return false
	}
	if gen != d.openGen { // new, or configured anew
		w.close(d)
		d.openGen, d.failures, d.retryAt, d.hopeless = gen, 0, time.Time{}, false
		w.m.mu.Lock()
		d.pushed = nil // by the old configuration
		w.m.mu.Unlock()
	}
	return ready
}

// attempt opens a device that is closed, or pings it, and gives it its turn.
func (w *worker) attempt(ctx context.Context, d *device) (at time.Time, due bool) {
	w.m.mu.Lock()
	info, gen := d.info, d.gen
	w.m.mu.Unlock()
	if gen != d.openGen { // configured anew since prepare
		return w.m.o.Now(), true
	}
	d.doubt = false
	var err error
	if d.session == nil {
		err = w.open(ctx, d, info)
	} else {
		err = w.ping(ctx, d)
	}
	if err != nil {
		return w.fail(ctx, d, err)
	}
	return w.turn(ctx, d)
}

// turn does what there is to do for an open device. due is false when only news can change that there is nothing.
func (w *worker) turn(ctx context.Context, d *device) (at time.Time, due bool) {
	for _, do := range []func(context.Context, *device) error{w.driveAll, w.collect, w.listen, w.runCommands} {
		if err := do(ctx, d); err != nil {
			return w.fail(ctx, d, err)
		}
	}
	w.setOnline(d, true)
	d.failures = 0
	return w.nextDue(d), true
}

// ping asks a device that can be pinged whether it is there. While other devices of the bus are online it has less
// time to answer than for any other call.
func (w *worker) ping(ctx context.Context, d *device) error {
	p, ok := d.session.Session.(Pinger)
	if !ok {
		return nil
	}
	limit := w.pingTime(d)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	start := time.Now()
	err := w.call(ctx, p.Ping)
	switch {
	case err == nil && w.answers == 0:
		w.answers = time.Since(start)
	case err == nil:
		w.answers = (w.answers + time.Since(start)) / 2
	case ctx.Err() != nil && limit < w.m.o.CallTimeout:
		return fmt.Errorf("no answer to a short request (probeTimeout): %w", err)
	}
	return err
}

// pingTime is how long a Ping of d may take: ProbeTimeout, and no longer than the shortest collect cycle of the devices of
// the bus that are online, but at least several times what a device of the bus usually takes. With none online it may
// take as long as any call.
func (w *worker) pingTime(d *device) time.Duration {
	limit, others := w.m.o.ProbeTimeout, false
	for _, x := range w.list() {
		if x == d || !x.online || x.session == nil {
			continue
		}
		others = true
		w.m.mu.Lock()
		for _, p := range x.props {
			limit = min(limit, p.info.Collect)
		}
		w.m.mu.Unlock()
	}
	if !others {
		return w.m.o.CallTimeout
	}
	return min(w.m.o.CallTimeout, max(limit, 4*w.answers))
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
		d.session, err = Open(ctx, w.m.driver, info)
		return err
	})
	if err != nil {
		d.session = nil
		return err
	}
	if err := w.ping(ctx, d); err != nil {
		return err
	}
	w.startPush(ctx, d)
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	for _, p := range d.props { // what we knew may have changed while it was away
		p.known = false
		p.collectAt, p.retryAt = time.Time{}, time.Time{}
		p.nearest = nil
		if r, ok := d.session.Session.(Rounder); ok {
			p.nearest = func(value string) (string, error) { return r.Nearest(p.info.Name, value) }
		}
		if p.told && p.applied > 0 {
			p.check, p.before = true, p.reported
		}
	}
	return nil
}

// startPush runs the session's Push, when it has one, until the session is closed.
func (w *worker) startPush(ctx context.Context, d *device) {
	p, ok := d.session.Session.(Pusher)
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
		add(topics.KindReadProblem, name)
	}
	return list
}
