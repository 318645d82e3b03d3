package mappers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/link"
)

// worker is the one goroutine that uses the devices of a bus.
type worker struct {
	m    *mapper
	bus  string
	wake chan struct{} // capacity 1

	devices []*device // mapper.mu guards it

	answers time.Duration // how long a device of the bus usually takes to answer a Ping; the worker's goroutine only
}

func (w *worker) wakeUp() {
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
				w.m.failCommands(d, errStopping)
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

// pass serves every device once and returns when it is to be called again. Open devices are served first, those that answer quickly
// before slow ones, and again between two slow ones if they are due: one waits for one slow answer, not for all. After a device has
// failed, no other is contacted in this pass, so that devices that answer wait for one timeout a pass, however many
// devices don't answer. Open devices that were not served because of that are pinged in the next pass. Closed devices are
// tried in the order in which they become due.
func (w *worker) pass(ctx context.Context) time.Time {
	next := w.m.o.Now().Add(time.Hour)
	plan := func(at time.Time, due bool) {
		if due && at.Before(next) {
			next = at
		}
	}
	var untried, served []*device
	failed := false
	for _, d := range w.quickFirst() {
		switch {
		case ctx.Err() != nil:
			return next
		case !w.prepare(d):
		case d.session == nil, d.needsPing, failed:
			d.needsPing = d.session != nil
			untried = append(untried, d)
		default:
			plan(w.serve(ctx, d))
			failed = d.session == nil
			for _, quick := range served {
				if !failed && ctx.Err() == nil && quick.answers < d.answers/2 && w.isDue(quick) {
					plan(w.serve(ctx, quick))
					failed = quick.session == nil
				}
			}
			served = append(served, d)
		}
	}
	slices.SortStableFunc(untried, func(a, b *device) int { return a.retry.Due().Compare(b.retry.Due()) })
	for _, d := range untried {
		now := w.m.o.Now()
		switch {
		case ctx.Err() != nil:
			return next
		case d.badConfig, now.Before(d.retry.Due()):
			w.m.failCommands(d, d.lastErr)
			plan(d.retry.Due(), !d.badConfig)
		case failed:
			plan(now, true) // in the next pass, after those that are open
		default:
			plan(w.attempt(ctx, d))
			failed = d.session == nil && !d.badConfig
		}
	}
	return next
}

// quickFirst lists the devices in order of how long they take to answer.
func (w *worker) quickFirst() []*device {
	list := w.list()
	slices.SortStableFunc(list, func(a, b *device) int { return cmp.Compare(a.answers, b.answers) })
	return list
}

// isDue reports whether something is to be done for an open device now.
func (w *worker) isDue(d *device) bool {
	return d.session != nil && w.prepare(d) && d.session != nil && !w.nextDue(d).After(w.m.o.Now())
}

// prepare closes a device that is gone or was configured anew. It is false when there is nothing to do for the device.
func (w *worker) prepare(d *device) bool {
	w.m.mu.Lock()
	gone, ready, gen := d.gone, d.isSetUp, d.gen
	w.m.mu.Unlock()
	if gone {
		w.close(d)
		w.forget(d)
		return false
	}
	if gen != d.openGen { // new, or configured anew
		w.close(d)
		d.openGen, d.retry, d.badConfig = gen, backoff.Retry{}, false
	}
	return ready
}

// attempt opens a closed device, or pings an open one, and serves it.
func (w *worker) attempt(ctx context.Context, d *device) (at time.Time, due bool) {
	w.m.mu.Lock()
	info, gen, err := d.info, d.gen, d.noBus
	w.m.mu.Unlock()
	if gen != d.openGen { // configured anew since prepare
		return w.m.o.Now(), true
	}
	d.needsPing = false
	if err != nil {
		return w.fail(ctx, d, err)
	}
	if d.session == nil {
		err = w.open(ctx, d, info)
	} else {
		err = w.ping(ctx, d)
	}
	if err != nil {
		return w.fail(ctx, d, err)
	}
	return w.serve(ctx, d)
}

// serve does what is due for an open device: writes, reads, pushed values, commands. due is false if the device needs
// nothing more until a message arrives.
func (w *worker) serve(ctx context.Context, d *device) (at time.Time, due bool) {
	for _, do := range []func(context.Context, *device) error{w.driveAll, w.collect, w.collectPushed, w.runCommands} {
		if err := do(ctx, d); err != nil {
			return w.fail(ctx, d, err)
		}
	}
	w.m.setOnline(d, true)
	d.retry.Succeeded()
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

// current reports whether the device's session is by its newest configuration.
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
func (w *worker) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, w.m.o.CallTimeout)
	defer cancel()
	return recoverPanic(func() error { return f(ctx) })
}

var errPanicked = errors.New("the driver panicked")

// recoverPanic makes an error of a panic of the driver: one for one device must not end the mapper.
func recoverPanic(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errPanicked, p)
		}
	}()
	return f()
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
	w.startEvents(ctx, d)
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	for _, p := range d.props { // the values may have changed while it was offline
		p.known = false
		p.collectAt, p.retry = time.Time{}, backoff.Retry{}
		p.nearest, p.round, p.rounded = nil, nil, nil
		if r, ok := d.session.Session.(Rounder); ok && len(p.info.Words) == 0 {
			p.nearest, p.round = p.roundedValue, w.m.nearest(d, r, p)
		}
		if p.reportedKnown && p.appliedVer > 0 {
			p.recheckDue, p.before = true, p.reported
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
		emit := func(property, value string) {
			w.m.mu.Lock()
			if d.pushed == nil {
				d.pushed = map[string]string{}
			}
			if d.props[property] != nil {
				d.pushed[property] = value
			}
			w.m.mu.Unlock()
			w.wakeUp()
		}
		err := recoverPanic(func() error { return p.Push(ctx, emit) })
		if err == nil && ctx.Err() == nil {
			err = errors.New("the device stopped sending its changes")
		}
		lost <- err
		w.wakeUp()
	}()
}

func (w *worker) close(d *device) {
	if d.stopPush != nil {
		d.stopPush()
		d.stopPush, d.lost = nil, nil
	}
	if d.stopEvents != nil {
		d.stopEvents()
		d.stopEvents = nil
	}
	w.m.mu.Lock()
	d.pushed = nil // a later session has newer values
	w.m.mu.Unlock()
	if d.session == nil {
		return
	}
	if err := recoverPanic(d.session.Close); err != nil {
		w.m.log.Debug().Err(err).Str("device", d.key).Msg("close")
	}
	d.session = nil
}

// collect reads what is due and reports what has changed.
func (w *worker) collect(ctx context.Context, d *device) error {
	names := w.due(d)
	if len(names) == 0 || !d.session.CanRead() {
		return nil
	}
	start := time.Now()
	got := map[string]Reading{}
	var failed error
	answered := false
	for _, group := range d.session.Groups(names) {
		read, err := w.readGroup(ctx, d, group)
		if err != nil {
			failed = cmp.Or(failed, err)
			for _, name := range group {
				got[name] = Reading{Err: err}
			}
			continue
		}
		answered = true
		maps.Copy(got, read)
	}
	d.answers = (d.answers + time.Since(start)) / 2
	if failed != nil && !answered {
		return failed
	}
	if !w.current(d) {
		return nil // read under the old configuration: not valid under the new one
	}
	for _, name := range names {
		r, ok := got[name]
		if !ok {
			continue
		}
		if r.Err == nil {
			r.Err = w.check(d, name, r.Value)
		}
		if r.Err != nil {
			w.m.publishReadProblem(d, name, r.Err)
		} else {
			w.m.report(d, name, r.Value)
		}
	}
	return nil
}

// readGroup makes one request for the properties of a group.
func (w *worker) readGroup(ctx context.Context, d *device, names []string) (got map[string]Reading, err error) {
	err = w.call(ctx, func(ctx context.Context) (err error) {
		got, err = d.session.Read(ctx, names)
		return err
	})
	return got, err
}

// check says what is wrong with a value that was read: the core would not take one that is not of the property's type.
func (w *worker) check(d *device, name, value string) error {
	w.m.mu.Lock()
	p := d.props[name]
	w.m.mu.Unlock()
	if p == nil || value == "" {
		return nil
	}
	if len(value) > link.MaxValue {
		return Refuse(Invalid, "the device has %d bytes: a value is at most %d", len(value), link.MaxValue)
	}
	if err := withoutLimits(p.spec).Check([]byte(value)); err != nil {
		return Refuse(Invalid, "the device has %s", strings.TrimPrefix(err.Error(), name+": "))
	}
	return nil
}

// due takes the properties that are to be read now, and plans their next reading. Those that are due soon are included, because one
// request for all costs less than several.
func (w *worker) due(d *device) []string {
	now := w.m.o.Now()
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	var names []string
	due := false
	for _, name := range d.order {
		p := d.props[name]
		if p.collectAt.After(now.Add(p.info.Collect / 10)) {
			continue
		}
		due = due || !p.collectAt.After(now)
		names = append(names, name)
	}
	if !due {
		return nil
	}
	for _, name := range names {
		p := d.props[name]
		p.collectAt = p.collectAt.Add(p.info.Collect)
		if !p.collectAt.After(now) { // the first time, or late: missed readings are not made up for
			p.collectAt = now.Add(p.info.Collect)
		}
	}
	return names
}

func (w *worker) nextDue(d *device) time.Time {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	next := w.m.o.Now().Add(time.Hour)
	reads := d.session.CanRead()
	for _, p := range d.props {
		if reads && p.collectAt.Before(next) {
			next = p.collectAt
		}
		if p.desired.ver != p.doneVer && p.retry.Failures() > 0 && p.retry.Due().Before(next) {
			next = p.retry.Due()
		}
	}
	return next
}

// readOne reads one property. ok is false when it has no value to read; unknown is then why its value can't be understood, if that is
// the reason.
func (w *worker) readOne(ctx context.Context, d *device, name string) (value string, ok bool, unknown, err error) {
	if !d.session.CanRead() {
		return "", false, nil, nil
	}
	got, err := w.readGroup(ctx, d, []string{name})
	if err != nil {
		return "", false, nil, err
	}
	r, read := got[name]
	if isUnknown(r.Err) {
		return "", false, r.Err, nil
	}
	return r.Value, read && r.Err == nil, nil, nil
}

// collectPushed reports the values that the device has sent by itself.
func (w *worker) collectPushed(_ context.Context, d *device) error {
	if !w.current(d) {
		return nil
	}
	w.reportPushed(d)
	select {
	case err := <-d.lost:
		return err
	default:
		return nil
	}
}

func (w *worker) reportPushed(d *device) {
	w.m.mu.Lock()
	pushed := d.pushed
	d.pushed = nil
	w.m.mu.Unlock()
	for name, value := range pushed {
		r := Reading{Value: value}
		if p, err := d.session.property(name); err == nil {
			r = p.translate(r)
		}
		if r.Err == nil {
			r.Err = w.check(d, name, r.Value)
		}
		if r.Err != nil {
			w.m.publishReadProblem(d, name, r.Err)
			continue
		}
		w.m.report(d, name, r.Value)
	}
}

// fail closes a device and plans the next attempt to open it.
func (w *worker) fail(ctx context.Context, d *device, err error) (time.Time, bool) {
	if ctx.Err() != nil { // the mapper is stopping: the error says nothing about the device
		return time.Time{}, false
	}
	if w.current(d) {
		w.reportPushed(d) // what the device sent before it failed
	}
	w.close(d)
	wait := d.retry.Failed(w.m.o.Backoff, w.m.o.Now())
	d.lastErr = err
	var bad *ConfigError
	d.badConfig = errors.As(err, &bad)
	if d.online || d.retry.Failures() == 1 {
		w.m.log.Warn().Err(err).Str("device", d.key).Stringer("retry_in", wait.Round(time.Millisecond)).Bool("until_reconfigured", d.badConfig).Msg("device offline")
	}
	w.m.publishProblem(d, err)
	w.m.setOnline(d, false)
	w.m.failCommands(d, err)
	return d.retry.Due(), !d.badConfig
}
