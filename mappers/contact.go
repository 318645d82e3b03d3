// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// The states of a device that are published; empty: none was.
const (
	stateOnline  = resource.Online
	stateOffline = resource.Offline
)

// deviceContact is what is known of whether a device answers.
type deviceContact struct {
	state     string    // as it was published
	problem   string    // as it was published; empty: none
	asking    time.Time // when the first request was made of those since the last answer; zero: the last one was answered
	failures  int       // how many requests were not answered since then
	retryAt   time.Time // when a device that is closed or silent is asked again
	lastErr   error
	reason    string    // what lastErr says
	badConfig bool      // a ConfigError: not opened again before the configuration changes
	anew      bool      // it was configured anew and not opened since
	known     bool      // it has answered since
	denied    bool      // it answers, and its values say that it isn't online
	unsure    time.Time // since when it answers, and its values don't say whether it is online; zero: they do

	answeredAt time.Time // when it last answered; zero: never

	reconnected time.Time // when it last got a fresh connection
	late, kept  time.Time // since when it isn't read as often as it is to be, or is again
	lateBy      time.Duration
}

// silentAfter is after how many unanswered requests in a row a device is left alone but for one from time to time: the first, the same on a
// fresh connection, and another one.
const silentAfter = 3

func (c *deviceContact) isSilent() bool { return c.failures >= silentAfter }

// offlineAfter is how long nothing of a device has answered until it is offline.
func (d Device) offlineAfter(o Options) time.Duration {
	if d.OfflineAfter > 0 {
		return d.OfflineAfter
	}
	if o.OfflineAfter > 0 {
		return o.OfflineAfter
	}
	var cycle time.Duration
	for _, p := range d.Properties {
		if cycle == 0 || p.Collect < cycle {
			cycle = p.Collect
		}
	}
	return max(3*cycle, 5*time.Second)
}

// answered notes that a device has answered something.
func (w *worker) answered(d *device) {
	c := &d.contact
	if c.isSilent() {
		w.reset(d)
	}
	c.known, c.answeredAt = true, w.m.o.Now()
	c.asking, c.failures, c.retryAt, c.lastErr, c.reason = time.Time{}, 0, time.Time{}, nil, ""
	if c.state != stateOnline && w.whyNotOnline(d) == "" {
		w.m.log.Info().Str("device", d.key).Msg("device online")
		w.publishState(d, stateOnline)
	}
}

// whyNotOnline is what the values of a device that answers say against its being online, by the model's online; empty: nothing.
func (w *worker) whyNotOnline(d *device) string {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if d.online == nil {
		return ""
	}
	var said []string
	if d.online.Online(d.model, func(property string) (string, bool) {
		p := d.props[property]
		if p == nil || !p.reportIsCurrent {
			said = append(said, property+" is not known")
			return "", false
		}
		said = append(said, property+" is "+clipText(p.reported))
		return p.reported, true
	}) {
		return ""
	}
	return strings.Join(said, ", ")
}

// judgeValues follows what the values of a device that answers say of whether it is online. One whose values are not known yet gets some
// time.
func (w *worker) judgeValues(d *device, now time.Time) {
	c := &d.contact
	w.m.mu.Lock()
	ruled := d.online != nil
	w.m.mu.Unlock()
	if d.session == nil || c.failures > 0 || !c.known || !ruled && !c.denied {
		return
	}
	why := w.whyNotOnline(d)
	switch {
	case why == "":
		c.denied, c.unsure = false, time.Time{}
		if c.state != stateOnline {
			w.publishState(d, stateOnline)
		}
	case c.denied:
	case c.state == "" && c.unsure.IsZero():
		c.unsure = now
	case c.state == "" && now.Sub(c.unsure) < d.offlineAfter:
	default:
		c.denied, c.unsure = true, time.Time{}
		w.publishProblem(d, resource.Problem{Code: resource.SaysOffline, Message: "it answers, and is not online by its values: " + why})
		if c.state != stateOffline {
			w.publishState(d, stateOffline)
		}
	}
}

// unanswered notes that a device has not answered, and gives it a fresh connection.
func (w *worker) unanswered(d *device, err error) {
	propertyReader{w}.collectPushedOf(d) // what it has sent came before: it is no sign of life after this
	c, now := &d.contact, w.m.o.Now()
	c.failures++
	if c.asking.IsZero() {
		c.asking = now
	}
	c.retryAt = now
	if c.isSilent() {
		c.retryAt = now.Add(w.m.o.Backoff.Spread(c.failures - silentAfter))
		w.drop(d)
	}
	c.lastErr = err
	w.m.log.Debug().Err(err).Str("device", d.key).Int("failures", c.failures).Msg("no answer")
	var bad *ConfigError
	c.badConfig = errors.As(err, &bad)
	said := kindOf(err) == kindOffline
	if said {
		c.failures = max(c.failures, silentAfter)
	}
	// While it stays offline another reason is published once it was the same twice.
	news := stableText(err)
	if c.badConfig || said || c.state == stateOffline && news == c.reason && c.problem != "" {
		w.goOffline(d, err)
	}
	c.reason = news
	w.reconnect(d, err)
}

// reconnect gives a device a fresh connection after a request that was not answered. What somebody else has answered says nothing about
// the connection.
func (w *worker) reconnect(d *device, err error) {
	c, now, kind := &d.contact, w.m.o.Now(), kindOf(err)
	if d.session == nil || kind == kindStranger {
		return
	}
	switch r, ok := d.session.Session.(Reconnector); {
	case ok && kind == kindOffline: // nor does that it is offline
	case ok:
		_ = recoverPanic(func() error { r.Reconnect(); return nil })
	default:
		propertyReader{w}.takePushed(d)
		w.close(d)
	}
	if now.Sub(c.reconnected) > time.Minute { // and not of a device that ends each connection soon
		w.reset(d)
	}
	c.reconnected = now
}

// drop forgets the readings that were planned.
func (w *worker) drop(d *device) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	d.pending = nil
	for _, p := range d.props {
		p.reading.pending = false
	}
}

// contactDevice opens a device, and asks one that doesn't answer for something else each time: a property may never be answered.
func (w *worker) contactDevice(ctx context.Context, d *device) {
	w.m.mu.Lock()
	info, gen, err := d.info, d.gen, d.unusable
	w.m.mu.Unlock()
	c := &d.contact
	if gen != d.openGen { // configured anew since prepare
		return
	}
	fresh := d.session == nil
	if err == nil && fresh {
		err = w.open(ctx, d, info)
	}
	switch {
	case ctx.Err() != nil: // the mapper is stopping: the error says nothing about the device
		return
	case err != nil:
		w.unanswered(d, err)
		return
	case fresh && (c.state != stateOnline || c.anew):
		c.anew = false
		w.reset(d)
	}
	p, pings := d.session.Session.(Pinger)
	groups := w.readable(d)
	switch {
	case pings && (c.failures == 0 || c.isSilent() && (c.failures%2 == 1 || len(groups) == 0)):
		err := w.request(ctx, d, false, p.Ping)
		switch {
		case ctx.Err() != nil:
		case err == nil, kindOf(err) == kindBusy:
			w.answered(d)
		default:
			w.unanswered(d, err)
		}
	case len(groups) == 0: // there is nothing to ask for
		w.answered(d)
	case c.isSilent():
		propertyReader{w}.readGroup(ctx, d, readGroup{names: groups[(c.failures/2)%len(groups)], again: true})
	default: // what is due shows whether it answers
		c.retryAt = time.Time{}
	}
}

// readable are the groups of properties that the device can be asked for.
func (w *worker) readable(d *device) [][]string {
	if !d.session.CanRead() {
		return nil
	}
	w.m.mu.Lock()
	names := slices.DeleteFunc(slices.Clone(d.order), func(name string) bool { return d.props[name].reading.unreachable })
	w.m.mu.Unlock()
	return d.session.Groups(names)
}

// goOffline publishes that a device is offline, and why.
func (w *worker) goOffline(d *device, err error) {
	if d.contact.state != stateOffline {
		w.m.log.Warn().Err(err).Str("device", d.key).Bool("until_reconfigured", d.contact.badConfig).Msg("device offline")
	}
	d.contact.denied = false
	w.drop(d)
	w.m.mu.Lock()
	d.notices = nil
	w.m.mu.Unlock()
	w.publishOfflineReason(d, err)
	if d.contact.state != stateOffline {
		w.publishState(d, stateOffline)
	}
}

// judge says what lasts: that a device is offline, that a value is too old, that one can't be read, that readings come too late.
func (w *worker) judge(d *device, now time.Time) {
	c := &d.contact
	if c.state != stateOffline && !c.asking.IsZero() && c.failures > 1 && now.Sub(c.asking) >= d.offlineAfter {
		w.goOffline(d, c.lastErr)
	}
	if c.badConfig || c.isSilent() {
		w.m.failCommands(d, c.lastErr)
	}
	propertyReader{w}.judgeProperties(d, now)
	w.judgeValues(d, now)
	w.judgeCycle(d, now)
	if c.state == stateOnline {
		w.publishNotices(d)
	}
}

// reasonCycle is the notice of a device that isn't read as often as it is to be.
const reasonCycle = "CycleNotKept"

// judgeCycle tells whether the properties are read as often as they are to be, once that has been so for a while.
func (w *worker) judgeCycle(d *device, now time.Time) {
	c := &d.contact
	var worst Property
	var period time.Duration
	w.m.mu.Lock()
	for _, p := range d.props {
		r := &p.reading
		took := r.period
		if r.pending && !r.startedAt.IsZero() {
			took = max(took, now.Sub(r.startedAt))
		}
		if r.failures == 0 && took*2 > p.info.Collect*3 && (period == 0 || float64(took)/float64(p.info.Collect) > float64(period)/float64(worst.Collect)) {
			worst, period = p.info, took
		}
	}
	w.m.mu.Unlock()
	while := max(d.offlineAfter, 3*worst.Collect)
	switch {
	case c.state != stateOnline:
		c.late, c.kept, c.lateBy = time.Time{}, time.Time{}, 0
	case period == 0 && c.lateBy == 0:
		c.late = time.Time{}
	case period == 0 && c.kept.IsZero():
		c.kept = now
	case period == 0 && now.Sub(c.kept) >= while:
		c.late, c.kept, c.lateBy = time.Time{}, time.Time{}, 0
		w.m.tell(d, reasonCycle, "")
	case period == 0:
	case c.late.IsZero():
		c.late = now
	default:
		c.kept = time.Time{}
		if now.Sub(c.late) >= while && (period*2 > c.lateBy*3 || period*3 < c.lateBy*2) {
			c.lateBy = period
			w.m.tell(d, reasonCycle, fmt.Sprintf(
				"%s is read every %s, and is to be read every %s: its bus takes no more requests; raise collectCycle, or read fewer properties",
				worst.Name, roundDuration(period), worst.Collect))
		}
	}
}

// roundDuration leaves a duration two digits.
func roundDuration(d time.Duration) time.Duration {
	unit := time.Millisecond
	for unit*100 <= d {
		unit *= 10
	}
	return d.Round(unit)
}

// tell takes what users should know of a device that works: see Device.Tell.
func (m *mapper) tell(d *device, code, message string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d.notices[code] == message {
		return
	}
	if d.notices == nil {
		d.notices = map[string]string{}
	}
	if d.notices[code] = message; message == "" {
		delete(d.notices, code)
	}
	d.changed = true
	if w := m.workers[d.bus]; w != nil {
		w.wakeUp()
	}
}

// publishNotices publishes what users should know of a device that is online, as its problem.
func (w *worker) publishNotices(d *device) {
	w.m.mu.Lock()
	notices := maps.Clone(d.notices)
	w.m.mu.Unlock()
	if len(notices) == 0 {
		w.publishProblem(d, resource.Problem{})
		return
	}
	codes := slices.Sorted(maps.Keys(notices))
	texts := make([]string, len(codes))
	for i, code := range codes {
		texts[i] = notices[code]
	}
	w.publishProblem(d, resource.Problem{Code: codes[0], Message: strings.Join(texts, "; "), Online: true})
}
