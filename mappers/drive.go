// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/tracing"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/trace"
)

// propertyWriter is the part of a worker that writes desired values.
type propertyWriter struct{ propertyReader }

// write makes one step for a desired value, or executes one command. A command comes first: somebody waits for its answer.
func (w propertyWriter) write(ctx context.Context, d *device) {
	if c, ok := w.m.nextCommand(d); ok {
		w.execute(ctx, d, c)
		return
	}
	w.m.mu.Lock()
	names := slices.Concat(d.order[d.turn%max(1, len(d.order)):], d.order[:d.turn%max(1, len(d.order))])
	w.m.mu.Unlock()
	for _, name := range names {
		d.turn++
		if w.drive(ctx, d, name) {
			return
		}
	}
}

// drive does one step for a property's desired value. done is false if there was nothing to do.
func (w propertyWriter) drive(ctx context.Context, d *device, name string) (done bool) {
	w.m.mu.Lock()
	w.m.learnNearest(d.props[name])
	p := d.props[name]
	if p == nil || d.session == nil || d.gen != d.openGen { // the configuration has changed: the session is to be closed
		w.m.mu.Unlock()
		return false
	}
	now := w.m.o.Now()
	do, ver := p.plan(now, d.session.CanRead(), d.session.CanWrite()), p.desired.ver
	if do.step == stepConfirm && now.Before(p.awaiting.next) {
		do.step = stepNone
	}
	w.m.mu.Unlock()
	switch do.step {
	case stepForget:
		w.markDone(d, p, ver, false)
	case stepRefuse:
		w.markDone(d, p, ver, false)
		w.m.publishRefusal(d, name, ver, do.refusal)
	case stepAccept:
		w.accept(d, p, ver, do, Reading{Value: p.current})
	case stepCompare:
		w.compare(ctx, d, p, ver, do)
	case stepApply:
		w.apply(ctx, d, p, ver, do)
	case stepRecheck:
		w.recheck(ctx, d, p, ver)
	case stepConfirm:
		w.confirm(ctx, d, p)
	case stepRelinquish:
		w.relinquish(ctx, d, p, ver)
	}
	return do.step != stepNone
}

// markDone notes that a version needs nothing more.
func (w propertyWriter) markDone(d *device, p *property, ver uint64, applied bool) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if p.desired.ver < ver || !sameEpoch(p.desired.ver, ver) { // the core's store has begun anew: this version is obsolete
		return
	}
	p.markDone(ver, applied, d.openGen)
}

func (p *property) markDone(ver uint64, applied bool, gen int) {
	p.doneVer = ver
	p.maybeWritten, p.recheckDue, p.compared = false, false, gen
	if p.awaiting != nil && p.awaiting.ver <= ver {
		p.awaiting = nil
	}
	if applied {
		p.appliedVer = ver
	}
}

// accept notes that the device has the desired value, and reports it.
func (w propertyWriter) accept(d *device, p *property, ver uint64, do stepPlan, actual Reading) {
	w.markDone(d, p, ver, true)
	if do.refusal != nil {
		w.m.publishRefusal(d, p.info.Name, ver, do.refusal)
	}
	w.report(d, p.info.Name, actual)
}

// compare reads before it writes.
func (w propertyWriter) compare(ctx context.Context, d *device, p *property, ver uint64, do stepPlan) {
	actual, ok, err := w.readOne(ctx, d, p.info.Name)
	if err != nil {
		w.soon(p, ver)
		return
	}
	w.m.mu.Lock()
	has := ok && p.satisfies(actual.Value, do.value)
	w.m.mu.Unlock()
	if has {
		w.accept(d, p, ver, do, actual)
		return
	}
	w.apply(ctx, d, p, ver, do)
}

// apply writes a value. It is reported once the device shows it: see confirm.
func (w propertyWriter) apply(ctx context.Context, d *device, p *property, ver uint64, do stepPlan) {
	name := p.info.Name
	w.m.mu.Lock()
	stale := p.desired.ver != ver || d.gen != d.openGen
	expired := p.desired.expired(w.m.o.Now()) // during the read
	unsure := p.maybeWritten
	p.maybeWritten = unsure || !stale && !expired // from here on the device may have been written
	w.m.mu.Unlock()
	switch {
	case stale: // a newer value or configuration has arrived during the read
		return
	case expired && ver != p.appliedVer: // the next plan refuses it
		return
	case expired: // it was applied in time, and lost since
		w.markDone(d, p, ver, false)
		return
	}
	if err := w.m.drives.add(driveLine{Device: d.key, Property: name, Value: do.value, Ver: ver}, w.m.o.Now()); err != nil {
		w.m.log.Error().Err(err).Msg("nothing is written to devices: the drive log can't be written")
		w.later(p, ver)
		return
	}
	span := w.traceWrite(d, p, ver)
	err := w.request(ctx, d, false, func(ctx context.Context) error { return d.session.Write(ctx, name, do.value) })
	span.End(err)
	r, refused := asRefusal(err)
	kind := kindOf(err)
	switch {
	case ctx.Err() != nil: // the mapper is stopping: the next start compares
		return
	case refused && r.Code != Unavailable:
		w.markDone(d, p, ver, false)
		w.m.publishRefusal(d, name, ver, r)
	case refused:
		w.later(p, ver)
		w.m.publishRefusal(d, name, ver, r)
	case err == nil, errors.Is(err, ErrUnconfirmed):
		w.await(d, p, ver, do, err == nil)
	case kind == kindBusy:
		w.busy(d, p, ver, err)
	case kind == kindNotSent, kind == kindOffline: // it is written when the device is back
		w.m.mu.Lock()
		p.maybeWritten = unsure
		w.m.mu.Unlock()
		w.soon(p, ver)
		w.unanswered(d, err)
		return
	case !d.session.CanRead():
		w.lose(d, p, ver, err)
		w.unanswered(d, err)
		return
	default:
		w.await(d, p, ver, do, false)
		w.unanswered(d, err)
		return
	}
	w.answered(d)
}

// relinquish takes back what was written, since nothing is desired any more. It is repeated until the device has answered.
func (w propertyWriter) relinquish(ctx context.Context, d *device, p *property, ver uint64) {
	name := p.info.Name
	if err := w.m.drives.add(driveLine{Device: d.key, Property: name, Ver: ver}, w.m.o.Now()); err != nil {
		w.m.log.Error().Err(err).Msg("nothing is written to devices: the drive log can't be written")
		w.later(p, ver)
		return
	}
	err := w.request(ctx, d, false, func(ctx context.Context) error { return d.session.Relinquish(ctx, name) })
	r, refused := asRefusal(err)
	switch {
	case ctx.Err() != nil:
		return
	case err == nil, refused && r.Code != Unavailable:
		if err != nil {
			w.m.log.Warn().Err(err).Str("device", d.key).Str("property", name).Msg("the device doesn't take back what was written to it")
		}
		w.m.mu.Lock()
		if p.desired.ver == ver { // else a newer value came meanwhile, and is written
			p.markDone(ver, false, d.openGen)
			p.appliedVer, p.overtaken, p.known = 0, false, false
			p.reading.collectAt = w.m.o.Now() // what it has now is told
		}
		w.m.mu.Unlock()
	case refused, kindOf(err) == kindBusy:
		w.later(p, ver)
	default:
		w.soon(p, ver)
		w.unanswered(d, err)
		return
	}
	w.answered(d)
}

// traceWrite begins the span of a write to a device. What is reported because of it is below that.
func (w propertyWriter) traceWrite(d *device, p *property, ver uint64) tracing.Span {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if p.desired.ver != ver || p.desired.trace == "" {
		return tracing.Span{}
	}
	span := w.m.o.Traces.Start(p.desired.trace, "write to device", tracing.Client, "edgebus.node", w.m.node, "edgebus.device", d.key, "edgebus.property", p.info.Name)
	p.desired.trace = span.Traceparent()
	w.m.log.Debug().Str("device", d.key).Str("property", p.info.Name).Uint64("ver", ver).Str("trace_id", trace.IDOf(p.desired.trace)).Msg("written")
	return span
}

// await notes that a value was written, and plans when it is read back.
func (w propertyWriter) await(d *device, p *property, ver uint64, do stepPlan, acked bool) {
	now := w.m.o.Now()
	if acked && !d.session.CanRead() {
		w.m.mu.Lock()
		p.overtaken = false
		w.m.mu.Unlock()
		w.accept(d, p, ver, do, Reading{Value: do.value})
		return
	}
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	p.overtaken = false
	if p.desired.ver != ver { // a newer one came while it was written
		p.overtaken = true
		return
	}
	p.awaiting = &writtenValue{ver: ver, do: do, until: now.Add(p.confirmWithin(w.m.o)), next: now, acked: acked}
}

func (p *property) confirmWithin(o Options) time.Duration {
	if p.info.ConfirmWithin > 0 {
		return p.info.ConfirmWithin
	}
	return o.ConfirmWithin
}

// confirm reads a value back that was written. A device may tell the old value for a while.
func (w propertyWriter) confirm(ctx context.Context, d *device, p *property) {
	w.m.mu.Lock()
	x := p.awaiting
	w.m.mu.Unlock()
	if x == nil {
		return
	}
	actual, ok, err := w.readOne(ctx, d, p.info.Name)
	now := w.m.o.Now()
	w.m.mu.Lock()
	if p.awaiting != x || d.gen != d.openGen {
		w.m.mu.Unlock()
		return
	}
	has := ok && p.satisfies(actual.Value, x.do.value)
	x.next = now.Add(max(minCycle, p.confirmWithin(w.m.o)/10))
	if x.next.After(x.until) && now.Before(x.until) {
		x.next = x.until
	}
	over := !now.Before(x.until)
	w.m.mu.Unlock()
	unknown := isUnknown(actual.Err)
	switch {
	case err != nil: // it is asked again when the device answers
	case has:
		w.accept(d, p, x.ver, x.do, actual)
	case x.acked && unknown: // nobody knows what the device has now
		w.markDone(d, p, x.ver, true)
		w.take(d, p.info.Name, actual)
	case x.acked && !ok: // there is nothing to read back
		w.accept(d, p, x.ver, x.do, Reading{Value: x.do.value})
	case !over:
	case x.acked: // the device has taken something else
		w.accept(d, p, x.ver, x.do, actual)
	case !ok:
		w.lose(d, p, x.ver, errNotReadBack)
	default:
		w.m.mu.Lock()
		again := p.again
		p.awaiting, p.again = nil, true
		w.m.mu.Unlock()
		if !again { // a request got lost: it is made once more before anything is said
			return
		}
		w.later(p, x.ver)
		w.m.publishRefusal(d, p.info.Name, x.ver, Refuse(Unavailable, "the device doesn't have the value %s after it was written (confirmWithin): it is written again", p.confirmWithin(w.m.o)))
	}
}

var errNotReadBack = errors.New("it can't be read back")

// lose refuses a value of which nobody knows whether the device got it, and which can't be read back.
func (w propertyWriter) lose(d *device, p *property, ver uint64, err error) {
	w.markDone(d, p, ver, false)
	w.m.publishRefusal(d, p.info.Name, ver, Refuse(Lost, "nobody knows whether the device got the value, and it is not written again: %s", stableText(err)))
}

// later plans the next attempt to write a value that the device can't take at the moment.
func (w propertyWriter) later(p *property, ver uint64) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if p.desired.ver == ver {
		p.recheckDue = p.doneVer == ver // it was applied before, and the device has lost it
		p.retry.Failed(w.m.o.Retry, w.m.o.Now())
	}
}

// soon plans the next attempt to write a value that did not reach the device.
func (w propertyWriter) soon(p *property, ver uint64) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if p.desired.ver == ver {
		p.pause.Failed(backoff.Backoff{Min: w.m.o.Backoff.Min / 10, Max: w.m.o.Backoff.Max}, w.m.o.Now())
	}
}

// busy plans the next attempt to write to a busy device. That it is busy is told when it lasts.
func (w propertyWriter) busy(d *device, p *property, ver uint64, err error) {
	w.m.mu.Lock()
	p.maybeWritten = false
	failures := p.pause.Failures()
	if p.desired.ver == ver && failures < mostTries {
		p.pause.Failed(busyRetry, w.m.o.Now())
	}
	w.m.mu.Unlock()
	if failures >= mostTries {
		w.later(p, ver)
		w.m.publishRefusal(d, p.info.Name, ver, Refuse(Unavailable, "%s", stableText(err)))
	}
}

// recheck looks once after the device was opened whether it still has what was applied before.
func (w propertyWriter) recheck(ctx context.Context, d *device, p *property, ver uint64) {
	actual, ok, err := w.readOne(ctx, d, p.info.Name)
	if err != nil {
		return
	}
	w.m.mu.Lock()
	w.m.learnNearest(p)
	if d.gen != d.openGen {
		w.m.mu.Unlock()
		return // configured anew meanwhile: the next session is asked again
	}
	do := stepPlan{step: stepNone}
	if ok {
		do = p.planLost(actual.Value, p.compared != d.openGen)
	}
	p.recheckDue = false
	if do.step != stepApply { // else once it is written
		p.compared = d.openGen
	}
	w.m.mu.Unlock()
	switch do.step {
	case stepRefuse:
		w.m.publishRefusal(d, p.info.Name, ver, do.refusal)
	case stepAccept:
		w.accept(d, p, ver, do, actual)
	case stepApply:
		w.apply(ctx, d, p, ver, do)
	}
}

// nearest asks the driver for the value that a property has after another was written. One whose calculation panics is not asked again until
// the device is opened anew: the property has the values that are equal to those written.
func (m *mapper) nearest(d *device, r Rounder, p *property) func(value string) (string, error) {
	return func(value string) (near string, err error) {
		err = recoverPanic(func() error {
			near, err = r.Nearest(p.info.Name, value)
			return err
		})
		if errors.Is(err, errPanicked) {
			m.mu.Lock()
			p.nearest, p.round = nil, nil
			m.mu.Unlock()
			m.log.Error().Err(err).Str("device", d.key).Str("property", p.info.Name).Str("value", value).Msg("can't tell the nearest value that the device can have")
		}
		return near, err
	}
}

// learnNearest asks the driver for the nearest values that decisions about p need. mu is held, but not while the driver calculates: it must
// not hold up the messages of the other devices.
func (m *mapper) learnNearest(p *property) {
	for {
		value, missing := p.notRounded()
		if !missing {
			return
		}
		round := p.round
		m.mu.Unlock()
		near, err := round(value)
		m.mu.Lock()
		if p.rounded == nil || len(p.rounded) > 8 { // values that were desired before
			p.rounded = map[string]roundedValue{}
		}
		p.rounded[value] = roundedValue{near, err}
	}
}
