package mappers

import (
	"context"
	"errors"
	"fmt"
)

// driveAll writes the desired values of all properties of a device that need it.
func (w *worker) driveAll(ctx context.Context, d *device) error {
	for _, name := range w.names(d) {
		// Another round is needed if a newer value has arrived. Bounded, so that a flood of values can't starve the others.
		for range 4 {
			more, err := w.drive(ctx, d, name)
			if err != nil {
				return err
			}
			if !more {
				break
			}
		}
	}
	return nil
}

func (w *worker) names(d *device) []string {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	return d.order
}

// drive does one step for a property. more says that something was done, so that there may be more to do.
func (w *worker) drive(ctx context.Context, d *device, name string) (more bool, err error) {
	w.m.mu.Lock()
	w.m.learnNearest(d.props[name])
	p := d.props[name]
	if p == nil || d.gen != d.openGen { // the configuration has changed: the session is to be closed
		w.m.mu.Unlock()
		return false, nil
	}
	do, ver := p.plan(w.m.o.Now(), d.session.CanRead(), d.session.CanWrite()), p.desired.ver
	w.m.mu.Unlock()
	switch do.step {
	case stepForget:
		w.markDone(d, p, ver, false)
	case stepRefuse:
		w.markDone(d, p, ver, false)
		w.m.publishRefusal(d, name, ver, do.refusal)
	case stepAccept:
		return true, w.accept(d, p, ver, do, p.current)
	case stepCompare:
		return true, w.compare(ctx, d, p, ver, do)
	case stepApply:
		return true, w.apply(ctx, d, p, ver, do)
	case stepRecheck:
		return true, w.recheck(ctx, d, p, ver)
	}
	return do.step != stepNone, nil
}

// markDone notes that a version needs nothing more.
func (w *worker) markDone(d *device, p *property, ver uint64, applied bool) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if p.desired.ver < ver || !sameEpoch(p.desired.ver, ver) { // the core's store has begun anew: this version is obsolete
		return
	}
	p.doneVer = ver
	p.maybeWritten, p.recheckDue, p.compared = false, false, d.openGen
	if applied {
		p.appliedVer = ver
	}
}

// accept notes that the device has the desired value, and reports it.
func (w *worker) accept(d *device, p *property, ver uint64, do stepPlan, actual string) error {
	w.markDone(d, p, ver, true)
	if do.refusal != nil {
		w.m.publishRefusal(d, p.info.Name, ver, do.refusal)
	}
	w.m.report(d, p.info.Name, actual)
	return nil
}

// compare reads before it writes.
func (w *worker) compare(ctx context.Context, d *device, p *property, ver uint64, do stepPlan) error {
	actual, ok, _, err := w.readOne(ctx, d, p.info.Name)
	if err != nil {
		return err
	}
	w.m.mu.Lock()
	has := ok && p.satisfies(actual, do.value)
	w.m.mu.Unlock()
	if has {
		return w.accept(d, p, ver, do, actual)
	}
	return w.apply(ctx, d, p, ver, do)
}

// apply writes a value, reads it back and reports what the device has then.
func (w *worker) apply(ctx context.Context, d *device, p *property, ver uint64, do stepPlan) error {
	name := p.info.Name
	w.m.mu.Lock()
	stale := p.desired.ver != ver || d.gen != d.openGen
	expired := p.desired.expired(w.m.o.Now())             // during the read
	p.maybeWritten = p.maybeWritten || !stale && !expired // from here on the device may have been written
	w.m.mu.Unlock()
	switch {
	case stale: // a newer value or configuration has arrived during the read
		return nil
	case expired && ver != p.appliedVer: // the next plan refuses it
		return nil
	case expired: // it was applied in time, and lost since
		w.markDone(d, p, ver, false)
		return nil
	}
	if err := w.m.drives.add(driveLine{Device: d.key, Property: name, Value: do.value, Ver: ver}, w.m.o.Now()); err != nil {
		return fmt.Errorf("drive log: %w", err)
	}
	err := w.call(ctx, func(ctx context.Context) error { return d.session.Write(ctx, name, do.value) })
	if r, refused := asRefusal(err); refused {
		if r.Code == Unavailable {
			w.later(p, ver)
		} else {
			w.markDone(d, p, ver, false)
		}
		w.m.publishRefusal(d, name, ver, r)
		return nil
	}
	if err != nil {
		return err
	}
	w.markDone(d, p, ver, true)
	if do.refusal != nil {
		w.m.publishRefusal(d, name, ver, do.refusal)
	}
	actual, ok, unknown, err := w.readOne(ctx, d, name)
	if err != nil {
		return err // reported, with this version, when the device is back
	}
	if unknown != nil { // nobody knows what the device has now
		w.m.publishReadProblem(d, name, unknown)
		return nil
	}
	if !ok {
		actual = do.value
	}
	w.m.report(d, name, actual)
	return nil
}

// later plans the next attempt to write a value that the device can't take at the moment.
func (w *worker) later(p *property, ver uint64) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if p.desired.ver == ver {
		p.retry.Failed(w.m.o.Retry, w.m.o.Now())
	}
}

// recheck looks once after the device was opened whether it still has what was applied before.
func (w *worker) recheck(ctx context.Context, d *device, p *property, ver uint64) error {
	actual, ok, _, err := w.readOne(ctx, d, p.info.Name)
	if err != nil {
		return err
	}
	w.m.mu.Lock()
	w.m.learnNearest(p)
	if d.gen != d.openGen {
		w.m.mu.Unlock()
		return nil // configured anew meanwhile: the next session is asked again
	}
	do := stepPlan{step: stepNone}
	if ok {
		do = p.planLost(actual, p.compared != d.openGen)
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
		return w.accept(d, p, ver, do, actual)
	case stepApply:
		return w.apply(ctx, d, p, ver, do)
	}
	return nil
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
