package mappers

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// step is what to do next about one property's wish.
type step uint8

const (
	nothing step = iota
	forget       // nothing is wanted any more
	refuse       // say why it is not applied
	accept       // the device has it already: say so
	compare      // read the device, then apply unless it has it already
	apply        // write it
	recheck      // read the device: has it lost what was applied before we started?
)

// plan is a step with the value to apply, or the refusal to publish.
type plan struct {
	step    step
	value   string
	refusal *Refusal // with compare and apply: said as well, because value is not what was wanted
}

// plan decides what to do about a property: a pure function of what is known. The rules are in the package's comment.
func (p *property) plan(now time.Time, canRead, canWrite bool) plan {
	w := p.wish
	switch {
	case w.ver == 0:
		return plan{step: nothing}
	case w.ver <= p.handled:
		return p.planRecheck(canRead, canWrite)
	case w.none:
		return plan{step: forget}
	case !w.until.IsZero() && !now.Before(w.until):
		return plan{step: refuse, refusal: Refuse(Expired, "was to be applied until %s only", resource.Time(w.until))}
	case now.Before(p.retryAt):
		return plan{step: nothing}
	case !p.spec.Writable() || !canWrite:
		return plan{step: refuse, refusal: Refuse(ReadOnly, "%s can't be written", p.info.Name)}
	case w.old && p.spec.AtBoot == resource.BootHold:
		return plan{step: refuse, refusal: Refuse(Held, "%s: waits for a newer value (atBoot: hold)", early)}
	case w.old && p.spec.AtBoot == resource.BootSafe:
		return p.planWrite(string(p.spec.SafeValue), canRead, p.instead(early))
	}
	if r := p.objection(w.value); r != nil {
		return plan{step: refuse, refusal: r}
	}
	return p.planWrite(w.value, canRead, nil)
}

// Why a wish waits for a newer one. They are short: they stand in notes of a line.
const (
	early  = "was wanted before this mapper first drove the device"
	missed = "the device has lost it"
)

// instead is what is said of a wish when the safe value is applied for it; nothing, if that is what was wanted.
func (p *property) instead(why string) *Refusal {
	if p.same(p.wish.value, string(p.spec.SafeValue)) {
		return nil
	}
	return Refuse(SafeValue, "%s: %s was applied instead (atBoot: safe)", why, p.spec.SafeValue)
}

func (p *property) planWrite(value string, canRead bool, said *Refusal) plan {
	has := p.known && p.meets(p.current, value)
	switch {
	case canRead && (p.wish.old || p.unsure || has):
		return plan{compare, value, said}
	case has && !p.unsure:
		return plan{accept, value, said}
	}
	return plan{apply, value, said}
}

// planRecheck: after a start, what was applied before is not applied again, unless the device has lost it meanwhile.
func (p *property) planRecheck(canRead, canWrite bool) plan {
	if p.check && p.wish.ver == p.handled && p.wish.ver == p.applied && canRead && canWrite &&
		p.spec.Writable() && !p.wish.none {
		return plan{step: recheck}
	}
	return plan{step: nothing}
}

// planLost is the answer to recheck: what to do when the device has neither what was reported nor what is wanted. With
// anew it was configured since: what was reported then excuses nothing, but no reason to hold anything either.
func (p *property) planLost(actual string, anew bool) plan {
	has := func(value string) bool { return p.meets(actual, value) }
	hold := p.spec.AtBoot == resource.BootHold
	if has(p.wish.value) || (!anew || hold) && has(p.before) {
		return plan{step: nothing}
	}
	do := plan{step: apply, value: p.wish.value}
	switch {
	case hold:
		do = plan{refuse, p.wish.value, Refuse(Held, "%s: waits for a newer value (atBoot: hold)", missed)}
	case p.spec.AtBoot == resource.BootSafe:
		do = plan{apply, string(p.spec.SafeValue), p.instead(missed)}
	}
	if p.objection(do.value) != nil {
		return plan{step: nothing}
	}
	if do.step == apply && has(do.value) {
		do.step = accept
	}
	return do
}

// objection is the model's opinion of a wanted value. The core has asked it too, but models change.
func (p *property) objection(value string) *Refusal { return objection(p.spec, value) }

// bare is the model's property without what bounds the values that may be wanted: what is, may be beyond it.
func (p *property) bare() resource.Property {
	bare := p.spec
	bare.Minimum, bare.Maximum, bare.Enum = nil, nil, nil
	return bare
}

// within says whether two numbers differ by less than the deadband. What is no number differs when the text does.
func within(a, b string, deadband float64) bool {
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	if errX != nil || errY != nil {
		return a == b
	}
	return math.Abs(x-y) < deadband
}

func (s step) String() string {
	names := [...]string{"nothing", "forget", "refuse", "accept", "compare", "apply", "recheck"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprint(uint8(s))
}

// driveAll brings every property of a device to what is wanted of it.
func (w *worker) driveAll(ctx context.Context, d *device) error {
	for _, name := range w.names(d) {
		// More than one round when a newer value arrives meanwhile; bounded, so that a flood can't starve the others.
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
	p := d.props[name]
	if p == nil || d.gen != d.openGen { // configured anew: this session's time is over
		w.m.mu.Unlock()
		return false, nil
	}
	do, ver := p.plan(w.m.o.Now(), d.session.CanRead(), d.session.CanWrite()), p.wish.ver
	w.m.mu.Unlock()
	switch do.step {
	case forget:
		w.handled(d, p, ver, false)
	case refuse:
		w.handled(d, p, ver, false)
		w.refuse(d, name, ver, do.refusal)
	case accept:
		return true, w.accept(d, p, ver, do, p.current)
	case compare:
		return true, w.compare(ctx, d, p, ver, do)
	case apply:
		return true, w.apply(ctx, d, p, ver, do)
	case recheck:
		return true, w.recheck(ctx, d, p, ver)
	}
	return do.step != nothing, nil
}

// handled notes that a version needs nothing more.
func (w *worker) handled(d *device, p *property, ver uint64, applied bool) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if p.wish.ver < ver { // the core has begun to count anew: this is history
		return
	}
	p.handled = max(p.handled, ver)
	p.unsure, p.check, p.compared = false, false, d.openGen
	if applied {
		p.applied = max(p.applied, ver)
	}
}

// accept notes that the device has what is wanted, and reports it.
func (w *worker) accept(d *device, p *property, ver uint64, do plan, actual string) error {
	w.handled(d, p, ver, true)
	if do.refusal != nil {
		w.refuse(d, p.info.Name, ver, do.refusal)
	}
	w.report(d, p.info.Name, actual)
	return nil
}

// compare reads before it writes.
func (w *worker) compare(ctx context.Context, d *device, p *property, ver uint64, do plan) error {
	actual, ok, err := w.readOne(ctx, d, p.info.Name)
	if err != nil {
		return err
	}
	if ok && p.meets(actual, do.value) {
		return w.accept(d, p, ver, do, actual)
	}
	return w.apply(ctx, d, p, ver, do)
}

// apply writes a value, reads it back and reports what the device has then.
func (w *worker) apply(ctx context.Context, d *device, p *property, ver uint64, do plan) error {
	name := p.info.Name
	w.m.mu.Lock()
	stale := p.wish.ver != ver || d.gen != d.openGen
	p.unsure = p.unsure || !stale // from here on the device may have it
	w.m.mu.Unlock()
	if stale { // a newer one, or a new configuration, has come while we were reading
		return nil
	}
	if err := w.m.drives.add(driveLine{Device: d.key, Property: name, Value: do.value, Ver: ver}, w.m.o.Now()); err != nil {
		return fmt.Errorf("drive log: %w", err)
	}
	err := w.call(ctx, func(ctx context.Context) error { return d.session.Write(ctx, name, do.value) })
	if r, refused := refusal(err); refused {
		if r.Code == Unavailable {
			w.later(p, ver)
		} else {
			w.handled(d, p, ver, false)
		}
		w.refuse(d, name, ver, r)
		return nil
	}
	if err != nil {
		return err
	}
	w.handled(d, p, ver, true)
	if do.refusal != nil {
		w.refuse(d, name, ver, do.refusal)
	}
	actual, ok, err := w.readOne(ctx, d, name)
	if err != nil {
		return err // reported, with this version, when the device is back
	}
	if !ok {
		actual = do.value
	}
	w.report(d, name, actual)
	return nil
}

// later plans the next attempt to write a value that the device can't take at the moment.
func (w *worker) later(p *property, ver uint64) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if p.wish.ver == ver {
		p.retryAt = w.m.o.Now().Add(min(w.m.o.Retry.Max, w.m.o.Retry.Min<<min(p.retries, 16)))
		p.retries++
	}
}

// recheck looks once after the device was opened whether it still has what was applied before.
func (w *worker) recheck(ctx context.Context, d *device, p *property, ver uint64) error {
	actual, ok, err := w.readOne(ctx, d, p.info.Name)
	if err != nil {
		return err
	}
	w.m.mu.Lock()
	if d.gen != d.openGen {
		w.m.mu.Unlock()
		return nil // configured anew meanwhile: the next session is asked again
	}
	do := plan{step: nothing}
	if ok {
		do = p.planLost(actual, p.compared != d.openGen)
	}
	p.check = false
	if do.step != apply { // else once it is written
		p.compared = d.openGen
	}
	w.m.mu.Unlock()
	switch do.step {
	case refuse:
		w.refuse(d, p.info.Name, ver, do.refusal)
	case accept:
		return w.accept(d, p, ver, do, actual)
	case apply:
		return w.apply(ctx, d, p, ver, do)
	}
	return nil
}
