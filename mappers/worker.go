// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/edgebus/edgebus/topics/backoff"
)

// worker is the one goroutine that uses the devices of a bus: it makes one request after the other, of whichever device it is due.
type worker struct {
	m    *mapper
	bus  string
	wake chan struct{} // capacity 1

	devices []*device // mapper.mu guards it

	// The worker's goroutine only.
	wrote  bool // the last request was a write or a command
	missed bool // the last request was not answered
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
		next := w.serve(ctx)
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

// serve makes requests until none is due, and returns when the next one is.
func (w *worker) serve(ctx context.Context) time.Time {
	for ctx.Err() == nil {
		d, write, at := w.next()
		switch {
		case d == nil:
			return at
		case write:
			propertyWriter{propertyReader{w}}.write(ctx, d)
		default:
			propertyReader{w}.read(ctx, d)
		}
		w.wrote, w.missed = write, d.contact.failures > 0
		d.served = w.m.o.Now()
		w.m.mu.Lock()
		d.changed = true
		w.m.mu.Unlock()
	}
	return w.m.o.Now()
}

// deviceAgenda is when something is to be done for a device.
type deviceAgenda struct {
	read  time.Time // a request to read it, or to find out whether it answers
	write time.Time // a write or a command
	event time.Time // something to say that needs no request: a value has expired
}

// noTime is after every time of an agenda.
var noTime = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func earlierOf(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// next finds the device whose request is to be made now, or the time when one is due. Writes and reads take turns, so that neither
// holds up the other. Among the devices that wait it is the one that has waited longest in relation to how long its requests
// take: a quick one waits for one request of a slow one, and never for several, and a slow one gets its turn.
func (w *worker) next() (due *device, write bool, at time.Time) {
	now := w.m.o.Now()
	at = now.Add(time.Hour)
	var reads, writes *device
	var readRank, writeRank float64
	for _, d := range w.list() {
		if !w.prepare(d) {
			continue
		}
		w.look(d, now)
		a := d.agenda
		at = earlierOf(earlierOf(at, a.event), earlierOf(a.read, a.write))
		if !a.read.After(now) {
			if rank := w.rank(d, now, a.read); reads == nil || rank > readRank {
				reads, readRank = d, rank
			}
		}
		if !a.write.After(now) {
			if rank := w.rank(d, now, a.write); writes == nil || rank > writeRank {
				writes, writeRank = d, rank
			}
		}
	}
	if writes != nil && (reads == nil || !w.wrote) {
		return writes, true, at
	}
	return reads, false, at
}

// rank is how long a device has waited since its request was due, or since it was served, in relation to how long its requests take. One that
// may well not answer takes long. After a request that was not answered it is how lately a device has answered: when many die at once, those
// that don't have their turn in between.
func (w *worker) rank(d *device, now, due time.Time) float64 {
	took := max(d.took, time.Millisecond)
	if d.contact.failures > 0 || !d.contact.known {
		took = max(took, w.m.o.ProbeTimeout)
	}
	waited := now.Sub(due)
	if due.IsZero() || d.served.After(due) {
		waited = now.Sub(d.served)
	}
	rank := float64(waited) / float64(took)
	if w.missed && d.contact.known && d.contact.failures == 0 {
		rank += math.MaxInt32 / (1 + now.Sub(d.contact.answeredAt).Seconds())
	}
	return rank
}

// prepare closes a device that is gone or was configured anew. It is false when there is nothing to do for the device.
func (w *worker) prepare(d *device) bool {
	w.m.mu.Lock()
	gone, ready, gen := d.gone, d.isSetUp, d.gen
	offlineAfter := d.info.offlineAfter(w.m.o)
	w.m.mu.Unlock()
	if gone {
		w.close(d)
		w.forget(d)
		return false
	}
	if gen != d.openGen { // new, or configured anew
		w.close(d)
		d.openGen, d.offlineAfter = gen, offlineAfter
		d.contact = deviceContact{state: d.contact.state, problem: d.contact.problem, anew: true}
		w.m.mu.Lock()
		d.notices, d.changed = nil, true
		w.m.mu.Unlock()
	}
	return ready
}

// look does for a device what needs no request, and plans what does.
func (w *worker) look(d *device, now time.Time) {
	w.m.mu.Lock()
	changed := d.changed || !now.Before(d.agenda.event)
	d.changed = false
	w.m.mu.Unlock()
	if !changed {
		return
	}
	propertyReader{w}.collectPushed(d)
	w.judge(d, now)
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	d.agenda = w.plan(d, now)
}

// plan says when something is to be done for a device. mu is held.
func (w *worker) plan(d *device, now time.Time) deviceAgenda {
	a := deviceAgenda{noTime, noTime, noTime}
	c := &d.contact
	if !c.asking.IsZero() && c.state != stateOffline {
		a.event = c.asking.Add(d.offlineAfter)
	}
	for _, p := range d.props {
		a.event = earlierOf(a.event, p.nextEvent(now))
	}
	switch {
	case c.badConfig: // until it is configured anew
		return a
	case d.session == nil, c.isSilent():
		a.read = c.retryAt
		return a
	}
	for _, g := range d.pending {
		a.read = earlierOf(a.read, g.due)
	}
	reads, writes := d.session.CanRead(), d.session.CanWrite()
	for _, p := range d.props {
		if reads && !p.reading.pending {
			a.read = earlierOf(a.read, p.reading.collectAt)
		}
		a.write = earlierOf(a.write, p.nextDrive(now, reads, writes))
	}
	if len(d.commands) > 0 {
		a.write = time.Time{}
	}
	return a
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

// request makes one request to an open device.
func (w *worker) request(ctx context.Context, d *device, brief bool, f func(context.Context) error) error {
	limit := w.limit(d, brief || d.contact.failures > 0 || !d.contact.known || w.missed)
	start := time.Now()
	err := w.call(ctx, limit, func(ctx context.Context) error { return w.sent(ctx, d, f) })
	if took := time.Since(start); err == nil && d.took == 0 {
		d.took = took
	} else if err == nil {
		d.took = (3*d.took + took) / 4
	}
	if err != nil && ctx.Err() == nil && kindOf(err) == kindNoAnswer && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %s: %w", limit.Round(time.Millisecond), err)
	}
	return err
}

// sent makes a request, at once on a fresh connection if the one there was had ended: of a device that ends each after an answer, a request that
// waited for its next turn could find the connection used up by others time and again.
func (w *worker) sent(ctx context.Context, d *device, f func(context.Context) error) error {
	err := f(ctx)
	if _, ok := d.session.Session.(Reconnector); !ok || kindOf(err) != kindNotSent || d.contact.failures > 0 || ctx.Err() != nil {
		return err
	}
	w.reconnect(d, err)
	return f(ctx)
}

// limit is how long a request may take. One that may well not be answered, since the last one of the bus was not or there was none, is brief while other
// devices of the bus answer or were not asked yet: it has Options.ProbeTimeout, or several times what the device usually takes. Every
// fifth may take as long as any, since the device may be slow.
func (w *worker) limit(d *device, brief bool) time.Duration {
	limit := w.m.o.CallTimeout
	if t, ok := d.session.Session.(Timeouter); ok {
		if own := t.Timeout(); own > 0 {
			limit = own + time.Second // the driver notices it first
		}
	}
	if !brief || !slices.ContainsFunc(w.list(), func(x *device) bool { return x != d && !x.contact.badConfig && !x.contact.isSilent() }) {
		return limit
	}
	if d.probes++; d.probes%5 == 0 {
		return limit
	}
	return min(limit, max(w.m.o.ProbeTimeout, 4*d.took))
}

// call bounds one call of the driver.
func (w *worker) call(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
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

// open opens a device.
func (w *worker) open(ctx context.Context, d *device, info Device) error {
	info.tell = func(code, message string) { w.m.tell(d, code, message) }
	info.inForce = func() map[string]string {
		w.m.mu.Lock()
		defer w.m.mu.Unlock()
		return d.inForce()
	}
	err := w.call(ctx, w.m.o.CallTimeout, func(ctx context.Context) (err error) {
		d.session, err = Open(ctx, w.m.driver, info)
		return err
	})
	if err != nil {
		d.session = nil
		return err
	}
	w.startPush(ctx, d)
	w.startEvents(ctx, d)
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	for _, p := range d.props {
		p.nearest, p.round, p.rounded = nil, nil, nil
		_, p.relinquishes = d.session.Session.(Relinquisher)
		if r, ok := d.session.Session.(Rounder); ok && len(p.info.Words) == 0 {
			p.nearest, p.round = p.roundedValue, w.m.nearest(d, r, p)
		}
	}
	return nil
}

// reset has everything of a device looked at again, since it may have changed, or been forgotten, while the device was away.
func (w *worker) reset(d *device) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	for _, p := range d.props {
		p.known = false
		p.reading.collectAt, p.reading.failures, p.reading.startedAt, p.reading.period = time.Time{}, 0, time.Time{}, 0
		p.retry, p.pause = backoff.Retry{}, backoff.Retry{}
		if p.reportedKnown && p.appliedVer > 0 && p.awaiting == nil {
			p.recheckDue, p.before = true, p.reported
		}
	}
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
	wake := func() {
		w.m.mu.Lock()
		d.changed = true
		w.m.mu.Unlock()
		w.wakeUp()
	}
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
			wake()
		}
		err := recoverPanic(func() error { return p.Push(ctx, emit) })
		if err == nil && ctx.Err() == nil {
			err = errors.New("the device stopped sending its changes")
		}
		lost <- err
		wake()
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
