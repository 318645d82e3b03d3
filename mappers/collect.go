package mappers

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// collect reads what is due and reports what has changed.
func (w *worker) collect(ctx context.Context, d *device) error {
	names := w.due(d)
	if len(names) == 0 || !d.session.CanRead() {
		return nil
	}
	got, err := w.read(ctx, d, names)
	if err != nil {
		return err
	}
	if !w.current(d) {
		return nil // read by the old configuration: that is no news under the new one
	}
	for _, name := range names {
		r, ok := got[name]
		if !ok {
			continue
		}
		if r.Err != nil {
			w.unread(d, name, r.Err)
			continue
		}
		if err := w.check(d, name, r.Value); err != nil {
			w.unread(d, name, err)
			continue
		}
		w.report(d, name, r.Value)
	}
	return nil
}

// check says what is wrong with a value that was read: the core would not take one that is not of the property's type.
func (w *worker) check(d *device, name, value string) error {
	w.m.mu.Lock()
	p := d.props[name]
	w.m.mu.Unlock()
	if p == nil || value == "" {
		return nil
	}
	if err := p.bare().Check([]byte(value)); err != nil {
		return Refuse(Invalid, "the device has %s", strings.TrimPrefix(err.Error(), name+": "))
	}
	return nil
}

// due takes the properties that are to be read now, and plans their next reading. Those that are due soon come along:
// together they cost one request where apart they would cost several.
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
		if !p.collectAt.After(now) { // the first time, or behind: what was missed is not made up for
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
		if p.wish.ver > p.handled && !p.retryAt.IsZero() && p.retryAt.Before(next) {
			next = p.retryAt
		}
	}
	return next
}

// read reads properties at once where the driver can. The error is the device's.
func (w *worker) read(ctx context.Context, d *device, names []string) (map[string]Reading, error) {
	return d.session.Read(ctx, names, w.call)
}

// readOne reads one property. ok is false when it has no value to read.
func (w *worker) readOne(ctx context.Context, d *device, name string) (value string, ok bool, err error) {
	if !d.session.CanRead() {
		return "", false, nil
	}
	got, err := w.read(ctx, d, []string{name})
	if err != nil {
		return "", false, err
	}
	r, read := got[name]
	return r.Value, read && r.Err == nil, nil
}

// listen reports what the device has told by itself.
func (w *worker) listen(_ context.Context, d *device) error {
	if !w.current(d) {
		return nil
	}
	w.m.mu.Lock()
	pushed := d.pushed
	d.pushed = nil
	w.m.mu.Unlock()
	for name, value := range pushed {
		w.report(d, name, value)
	}
	select {
	case err := <-d.lost:
		return err
	default:
		return nil
	}
}

// report takes a value for what the device has, and says so if it is news.
func (w *worker) report(d *device, name, value string) {
	now := w.m.o.Now()
	w.m.mu.Lock()
	p := d.props[name]
	if p == nil {
		w.m.mu.Unlock()
		return
	}
	p.current, p.known, p.readAt = value, true, now
	if p.problem != "" { // a report ends it, also of a value that was reported before
		p.problem, p.said = "", false
		w.m.out.remove(w.topic(d, topics.KindReadProblem, name))
	}
	meets := p.wish.ver > 0 && !p.wish.none && p.meets(value, p.wish.value)
	if meets { // then a refusal that was said before is over, and is not said again
		w.m.out.remove(w.topic(d, topics.KindRefused, name))
	}
	heartbeat := p.info.Report > 0 && !now.Before(p.reportAt)
	if !heartbeat && !p.changed(value) {
		w.m.mu.Unlock()
		return
	}
	p.reported, p.told, p.said, p.saidFor = value, true, true, p.applied
	p.reportAt = now.Add(p.info.Report)
	user := []client.UserProperty{{Key: "ts", Value: resource.Time(now)}}
	if p.applied > 0 {
		user = append(user, client.UserProperty{Key: "for", Value: strconv.FormatUint(p.applied, 10)})
		if meets && p.applied == p.wish.ver && !p.same(value, p.wish.value) {
			user = append(user, client.UserProperty{Key: "nearest", Value: "true"})
		}
	}
	w.m.mu.Unlock()
	w.say(d, topics.KindReported, name, value, user)
}

// unread says in public why a property can't be read, and when it last was. One that the driver has no way to read is
// somebody else's to report.
func (w *worker) unread(d *device, name string, err error) {
	w.m.log.Debug().Err(err).Str("device", d.key).Str("property", name).Msg("not read")
	why := resource.Problem{Code: resource.ReadFailed, Message: plain(err)}
	r, refused := refusal(err)
	if refused {
		why.Code, why.Message = r.Code, r.Message
	}
	w.m.mu.Lock()
	p := d.props[name]
	if p == nil {
		w.m.mu.Unlock()
		return
	}
	if !p.readAt.IsZero() {
		why.Since = resource.Time(p.readAt)
	}
	text := ""
	if payload, err := json.Marshal(why); err == nil && (!refused || r.Code != NotReachable) {
		text = string(payload)
	}
	news := text != p.problem
	p.problem = text
	w.m.mu.Unlock()
	if news {
		w.say(d, topics.KindReadProblem, name, text, nil)
	}
}

// refuse says in public why a wanted value is not applied.
func (w *worker) refuse(d *device, name string, ver uint64, r *Refusal) {
	payload, err := json.Marshal(resource.Refusal{For: ver, Code: r.Code, Message: r.Message})
	if err != nil {
		return
	}
	w.m.log.Warn().Str("device", d.key).Str("property", name).Uint64("ver", ver).Str("code", r.Code).Msg("a value is refused")
	w.m.log.Debug().Str("device", d.key).Str("property", name).Uint64("ver", ver).Str("reason", r.Message).Msg("a value is refused: why")
	w.say(d, topics.KindRefused, name, string(payload), nil)
}
