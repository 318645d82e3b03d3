// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// readState is what is known of the readings of a property.
type readState struct {
	collectAt time.Time     // when it is due
	pending   bool          // it is in a group that waits for its turn
	startedAt time.Time     // when it was last asked for
	period    time.Duration // between the last two times
	readAt    time.Time     // when the device last said its value; zero: not known
	freshAt   time.Time     // since when its value grows old: as readAt, but by this mapper's clock since it started

	failures    int   // how often it was not read in a row
	err         error // why, the last time
	tooLarge    int   // the size of a value that the broker did not take; 0: there was none
	tooLargeErr error
	unreachable bool // the configuration doesn't say how to read it

	problem, problemCode string // the published reason why it has no value, or can't be read; empty: it can
}

// readGroup is what one request reads.
type readGroup struct {
	names []string
	due   time.Time
	tries int  // how often it was asked for and the device was busy; -1: it is to be asked for on a fresh connection
	again bool // it is tried for the second time, on a fresh connection
}

// propertyReader is the part of a worker that reads its devices.
type propertyReader struct{ *worker }

// The waits before a group is read again: of a device that is busy, and of a property that can't be read while others can.
var (
	busyRetry   = backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	unreadRetry = backoff.Backoff{Min: 500 * time.Millisecond, Max: 4 * time.Second}
)

// leastUnread is how long a property that is read more often was not read before that is said.
const leastUnread = 500 * time.Millisecond

// mostTries is how often a busy device is asked in one cycle.
const mostTries = 3

// read makes the next request that reads a device, or finds out whether it answers.
func (w propertyReader) read(ctx context.Context, d *device) {
	if d.session == nil || d.contact.isSilent() {
		w.contactDevice(ctx, d)
		return
	}
	w.queue(d)
	now := w.m.o.Now()
	next := -1
	for i, g := range d.pending {
		if !g.due.After(now) && (next < 0 || g.due.Before(d.pending[next].due)) {
			next = i
		}
	}
	if next < 0 {
		return
	}
	g := d.pending[next]
	d.pending = slices.Delete(d.pending, next, next+1)
	w.readGroup(ctx, d, g)
}

// queue adds what is due to the groups that are to be read, and plans the next reading of it. What is due soon is included, because
// one request for all costs less than several. What can't be read is apart, so that it takes nothing with it.
func (w propertyReader) queue(d *device) {
	now := w.m.o.Now()
	var sound, failing []string
	w.m.mu.Lock()
	for _, name := range d.order {
		p := d.props[name]
		r := &p.reading
		if r.pending || r.collectAt.After(now.Add(p.info.Collect/10)) {
			continue
		}
		if r.failures > 0 {
			failing = append(failing, name)
		} else {
			sound = append(sound, name)
		}
		r.pending = true
		switch first := r.collectAt.IsZero(); {
		case first: // devices that are opened together are not read together ever after
			r.collectAt = now.Add(time.Duration((0.5 + d.phase/2) * float64(p.info.Collect)))
		default:
			r.collectAt = r.collectAt.Add(p.info.Collect)
		}
		if !r.collectAt.After(now) { // late: missed readings are not made up for
			r.collectAt = now.Add(p.info.Collect)
		}
	}
	w.m.mu.Unlock()
	for _, names := range [][]string{sound, failing} {
		for _, group := range d.session.Groups(names) {
			d.pending = append(d.pending, readGroup{names: group, due: now})
		}
	}
}

// newPhase is at which part of its cycle a device is read.
func newPhase() float64 { return rand.Float64() } //nolint:gosec // G404: spreads requests

// readGroup makes the request of a group, and reports what has changed.
func (w propertyReader) readGroup(ctx context.Context, d *device, g readGroup) {
	failing := w.start(d, g)
	var got map[string]Reading
	err := w.request(ctx, d, failing, func(ctx context.Context) (err error) {
		got, err = d.session.Read(ctx, g.names)
		return err
	})
	switch {
	case ctx.Err() != nil: // the mapper is stopping: the error says nothing about the device
		return
	case err != nil:
		w.readFailed(d, g, failing, err)
		return
	}
	if w.isAnswer(d, got) {
		w.answered(d)
	}
	if !w.current(d) {
		return // read under the old configuration: not valid under the new one
	}
	for _, name := range g.names {
		if r, ok := got[name]; ok {
			r.polled = true
			w.take(d, name, r)
		}
	}
}

// start notes that a group is asked for. failing says that it was not read the last time.
func (w propertyReader) start(d *device, g readGroup) (failing bool) {
	now := w.m.o.Now()
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	for _, name := range g.names {
		p := d.props[name]
		if p == nil {
			continue
		}
		r := &p.reading
		r.pending = false
		failing = failing || r.failures > 0
		if !g.again && g.tries == 0 {
			if r.period = 0; !r.startedAt.IsZero() {
				r.period = now.Sub(r.startedAt)
			}
			r.startedAt = now
		}
	}
	return failing
}

// isAnswer reports whether readings are a sign of life: what the configuration says nothing about is none, unless that is so of
// all that the device has.
func (w propertyReader) isAnswer(d *device, got map[string]Reading) bool {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	answer := len(got) == 0
	for name, r := range got {
		refusal, refused := asRefusal(r.Err)
		unreachable := refused && refusal.Code == NotReachable
		if p := d.props[name]; p != nil {
			p.reading.unreachable = unreachable
		}
		answer = answer || !unreachable
	}
	for _, p := range d.props {
		if !answer && !p.reading.unreachable {
			return false
		}
	}
	return true
}

// readFailed decides what becomes of a group that was not read.
func (w propertyReader) readFailed(d *device, g readGroup, failing bool, err error) {
	kind := kindOf(err)
	first := !g.again && d.contact.failures < silentAfter-1 && !w.isTold(d, g)
	if (kind == kindBusy || kind == kindStranger) && g.tries < mostTries && !failing {
		if kind == kindBusy {
			w.answered(d)
		}
		w.requeue(d, g, w.m.o.Now().Add(busyRetry.Wait(g.tries)))
		return
	}
	switch _, refused := asRefusal(err); {
	case kind == kindBusy, refused:
		w.answered(d)
	case failing && d.contact.failures == 0 && w.hasSound(d): // it says nothing new about the device
		w.reconnect(d, err)
	default:
		w.unanswered(d, err)
	}
	if first && (kind == kindNoAnswer || kind == kindNotSent) && !d.contact.badConfig {
		g.again, g.tries = true, -1
		w.requeue(d, g, time.Time{}) // before the device's others
		return
	}
	for _, name := range g.names {
		w.unread(d, name, err)
	}
	// A driver that has learnt from it reads smaller groups from now on.
	if d.session == nil || d.contact.isSilent() || len(g.names) == 1 {
		return
	}
	if smaller := d.session.Groups(g.names); len(smaller) > 1 {
		for _, names := range smaller {
			w.requeue(d, readGroup{names: names, again: true, tries: -1}, w.m.o.Now())
		}
	}
}

// isTold reports whether it was said of a property of a group that it can't be read.
func (w propertyReader) isTold(d *device, g readGroup) bool {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	return slices.ContainsFunc(g.names, func(name string) bool {
		p := d.props[name]
		return p != nil && p.reading.problemCode == resource.ValueUnread
	})
}

// hasSound reports whether any property of a device was read the last time.
func (w propertyReader) hasSound(d *device) bool {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	for _, p := range d.props {
		if p.reading.failures == 0 && !p.reading.unreachable && !p.reading.readAt.IsZero() {
			return true
		}
	}
	return false
}

// requeue has a group read again. mu is not held.
func (w propertyReader) requeue(d *device, g readGroup, due time.Time) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	g.due = due
	g.tries++
	for _, name := range g.names {
		if p := d.props[name]; p != nil {
			p.reading.pending = true
		}
	}
	d.pending = append(d.pending, g)
}

// unread notes that a property was not read.
func (w propertyReader) unread(d *device, name string, err error) {
	now := w.m.o.Now()
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	p := d.props[name]
	if p == nil {
		return
	}
	r := &p.reading
	if r.collectAt = now.Add(p.info.Collect); r.failures > 0 {
		r.collectAt = now.Add(max(p.info.Collect, unreadRetry.Wait(r.failures-1)))
	}
	r.failures++
	r.err = err
}

// take takes what was read of a property, or was pushed.
func (w propertyReader) take(d *device, name string, r Reading) {
	if r.Err == nil {
		r.Err = w.check(d, name, r.Value)
	}
	if refusal, refused := asRefusal(r.Err); r.Err != nil && !isUnknown(r.Err) && (!refused || refusal.Code != NotReachable) {
		w.unread(d, name, r.Err)
		return
	}
	w.m.mu.Lock()
	if p := d.props[name]; p != nil {
		p.reading.failures, p.reading.err = 0, nil
	}
	w.m.mu.Unlock()
	if r.Err != nil {
		w.m.publishReadProblem(d, name, resource.ValueUnknown, r.Err)
		return
	}
	w.report(d, name, r)
}

// check says what is wrong with a value that was read: the core would not take one that is not of the property's type.
func (w propertyReader) check(d *device, name, value string) error {
	w.m.mu.Lock()
	p := d.props[name]
	if p == nil || value == "" {
		w.m.mu.Unlock()
		return nil
	}
	tooLarge, why := p.reading.tooLarge, p.reading.tooLargeErr
	w.m.mu.Unlock()
	if tooLarge > 0 && len(value) >= tooLarge {
		return why
	}
	if len(value) > link.MaxValue {
		return Refuse(Invalid, "the device has a value of more than %d bytes, which is the most that a value may have", link.MaxValue)
	}
	if err := withoutLimits(p.spec).Check([]byte(value)); err != nil {
		return Refuse(Invalid, "the device's value %s", strings.TrimPrefix(err.Error(), name+": "))
	}
	return nil
}

// readOne reads one property now, for a decision about its desired value. The reading's error is the device's answer; err says that there was none.
func (w propertyReader) readOne(ctx context.Context, d *device, name string) (r Reading, ok bool, err error) {
	if !d.session.CanRead() {
		return r, false, nil
	}
	var got map[string]Reading
	read := func() error {
		return w.request(ctx, d, false, func(ctx context.Context) (err error) {
			got, err = d.session.Read(ctx, []string{name})
			return err
		})
	}
	err = read()
	if kind := kindOf(err); err != nil && ctx.Err() == nil && d.contact.failures == 0 && (kind == kindNoAnswer || kind == kindNotSent) {
		if w.unanswered(d, err); d.session != nil { // once more, on a fresh connection
			err = read()
		}
	}
	if ctx.Err() != nil {
		return r, false, ctx.Err()
	}
	if err != nil {
		if kindOf(err) == kindBusy {
			w.answered(d)
		} else {
			w.unanswered(d, err)
		}
		return r, false, err
	}
	if w.isAnswer(d, got) {
		w.answered(d)
	}
	r, ok = got[name]
	return r, ok && r.Err == nil, nil
}

// collectPushed reports the values that the device has sent by itself.
func (w propertyReader) collectPushed(d *device) {
	if d.session == nil {
		return
	}
	w.collectPushedOf(d)
	select {
	case err := <-d.lost:
		if err != nil {
			w.close(d)
			w.unanswered(d, err)
		}
	default:
	}
}

// collectPushedOf takes what the device has sent as a sign of life.
func (w propertyReader) collectPushedOf(d *device) {
	w.m.mu.Lock()
	sent := len(d.pushed) > 0 && d.gen == d.openGen
	w.m.mu.Unlock()
	if sent {
		w.answered(d)
		w.takePushed(d)
	}
}

func (w propertyReader) takePushed(d *device) {
	w.m.mu.Lock()
	pushed := d.pushed
	d.pushed = nil
	current := d.gen == d.openGen
	w.m.mu.Unlock()
	if !current {
		return
	}
	for name, value := range pushed {
		r := Reading{Value: value}
		if p, err := d.session.property(name); err == nil {
			r = p.translate(r)
		}
		w.take(d, name, r)
	}
}

// nextEvent is when something about a property's value is to be said that needs no request.
func (p *property) nextEvent(now time.Time) time.Time {
	at := noTime
	r := &p.reading
	if p.info.ExpireAfter > 0 && !r.freshAt.IsZero() && r.problemCode != resource.ValueStale {
		at = r.freshAt.Add(p.info.ExpireAfter)
	}
	if due := r.readAt.Add(max(2*p.info.Collect, leastUnread)); r.failures > 0 && due.After(now) {
		at = earlierOf(at, due)
	}
	return at
}

// isUnread reports whether a property was not read for two cycles, and twice, while the device has answered something else.
func (p *property) isUnread(now time.Time, d *device) bool {
	r := &p.reading
	if r.failures == 0 || d.contact.state != stateOnline || !d.contact.asking.IsZero() {
		return false
	}
	return r.readAt.IsZero() || r.failures > 1 && now.Sub(r.readAt) >= max(2*p.info.Collect, leastUnread)
}

// judgeProperties says which values are too old, and which properties can't be read.
func (w propertyReader) judgeProperties(d *device, now time.Time) {
	type finding struct {
		name string
		code string
		err  error
	}
	var found []finding
	w.m.mu.Lock()
	for _, name := range d.order {
		p := d.props[name]
		r := &p.reading
		switch {
		case r.problemCode == resource.ValueStale:
		case p.info.ExpireAfter > 0 && !r.freshAt.IsZero() && now.Sub(r.freshAt) >= p.info.ExpireAfter:
			err := r.err
			if err == nil {
				err = errors.New("the device has not said it again")
			}
			found = append(found, finding{name, resource.ValueStale, err})
		case p.isUnread(now, d) && r.problemCode != resource.ValueUnknown:
			found = append(found, finding{name, resource.ValueUnread, r.err})
		}
	}
	w.m.mu.Unlock()
	for _, f := range found {
		w.m.publishReadProblem(d, f.name, f.code, f.err)
	}
}
