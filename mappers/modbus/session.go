// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/modbus/wire"
)

// session is one unit.
type session struct {
	driver *Driver
	device mappers.Device
	config deviceConfig
	bus    *bus

	layout     unitLayout
	lastAnswer time.Time
	answerTime time.Duration // how long answers take, usually
	pinged     int           // which property the next Ping asks for
	write      writeMode     // that was found out
	blocks     []sunspecBlock
	locateAt   time.Time // when the points of SunSpec are looked for again that weren't there
}

// Close implements mappers.Session.
func (s *session) Close() error {
	s.driver.release(s.bus)
	return nil
}

// Reconnect implements mappers.Reconnector.
func (s *session) Reconnect() { s.bus.reconnect(s) }

// Timeout implements mappers.Timeouter: the calls end by themselves, and the longest finds out where a hole is.
func (s *session) Timeout() time.Duration {
	return max(time.Minute, 8*(s.config.timeout+s.config.pause)+s.config.connectDelay)
}

// request makes a request and takes note of the answer.
func (s *session) request(ctx context.Context, q wire.Request, timeout time.Duration) ([]byte, error) {
	start := time.Now()
	data, err := s.bus.call(ctx, s, q, timeout)
	s.noteAnswer(err, time.Since(start))
	return data, err
}

func (s *session) noteAnswer(err error, took time.Duration) {
	var refused wire.Exception
	if err == nil || errors.As(err, &refused) && !refused.OfGateway() || wire.IsShort(err) {
		s.lastAnswer = time.Now()
		s.answerTime = max(took, (7*s.answerTime+took)/8)
	}
}

// answers is whether the unit has answered lately, whatever it was asked.
func (s *session) answers() bool {
	return !s.lastAnswer.IsZero() && time.Since(s.lastAnswer) < 5*time.Second+3*s.config.timeout
}

// explain makes an error of the SDK's of one of a request: the unit's exception, a gateway's, or none at all.
func (s *session) explain(what string, err error) error {
	var refused wire.Exception
	code := mappers.Rejected
	switch {
	case wire.IsShort(err):
		return mappers.Refuse(mappers.Unknown, "%s: unit %d: %v", what, s.config.unit, err)
	case !errors.As(err, &refused):
		return err
	case refused.Busy():
		return mappers.Busy(fmt.Errorf("%s: unit %d: %w", what, s.config.unit, err))
	case refused.OfGateway():
		return mappers.NotTheDevice(fmt.Errorf("unit %d: %w", s.config.unit, err))
	case refused == wire.DeviceFailure:
		code = mappers.Unavailable
	}
	return mappers.Refuse(code, "%s: unit %d answered: %v", what, s.config.unit, refused)
}

func asRefusal(err error) (r *mappers.Refusal, ok bool) {
	ok = errors.As(err, &r)
	return r, ok
}

// Ping implements mappers.Pinger: it reads a property, another one each time that there is no answer. Any answer of the unit, also an
// exception, counts.
func (s *session) Ping(ctx context.Context) error {
	if len(s.config.fields) == 0 {
		return nil // there is nothing to ask for
	}
	s.doubtSunspec()
	timeout := s.config.timeout
	if end, ok := ctx.Deadline(); ok {
		timeout = max(time.Millisecond, min(timeout, time.Until(end)))
	}
	f := &registerField{name: "SunSpec", table: tableHolding, address: sunspecBases[0], words: 1} // of which nothing is known yet
	if n := len(s.config.order); n > 0 {
		f = s.config.order[s.pinged%n]
	}
	_, err := s.request(ctx, registerGroup{table: f.table, address: f.address, size: f.words}.request(), timeout)
	if err = s.explain(f.name, err); err == nil {
		return nil
	}
	if _, refused := asRefusal(err); refused || isBusy(err) {
		return nil
	}
	s.pinged++
	return err
}

func isBusy(err error) bool {
	var refused wire.Exception
	return errors.As(err, &refused) && refused.Busy()
}

func (s *session) field(name string) (*registerField, error) {
	f := s.config.fields[name]
	if f == nil {
		return nil, mappers.Refuse(mappers.NotReachable, "the model has no modbus visitor for %s", name)
	}
	return f, nil
}

// located is the field of a property of which it is known where it is.
func (s *session) located(ctx context.Context, name string) (*registerField, error) {
	if _, err := s.field(name); err != nil {
		return nil, err
	}
	return s.locatedIn(ctx, s.config.fields, name)
}

func (s *session) locatedIn(ctx context.Context, fields map[string]*registerField, name string) (*registerField, error) {
	if f := fields[name]; f.sunspec == nil {
		return f, nil
	}
	if err := s.locate(ctx); err != nil {
		return nil, err
	}
	if f := fields[name]; f.sunspec != nil {
		return nil, s.unlocated(f)
	}
	return fields[name], nil
}

// Group implements mappers.Grouper. What was learned is doubted once a day.
func (s *session) Group(properties []string) (groups [][]string) {
	if since := s.layout.since; !since.IsZero() && time.Since(since) > doubtAfter {
		s.layout = newLayout()
		s.device.Tell(toldLimit, "")
	}
	var fields []*registerField
	var unlocated []string
	for _, name := range properties {
		switch f := s.config.fields[name]; {
		case f == nil:
		case f.sunspec != nil:
			unlocated = append(unlocated, name)
		default:
			fields = append(fields, f)
		}
	}
	if len(unlocated) > 0 {
		groups = append(groups, unlocated)
	}
	for _, g := range s.layout.plan(fields, s.config) {
		var names []string
		for _, f := range g.fields {
			names = append(names, f.name)
		}
		groups = append(groups, names)
	}
	return groups
}

// ReadBatch implements mappers.BatchReader. It is one request, unless something is found out by it.
func (s *session) ReadBatch(ctx context.Context, properties []string) (map[string]mappers.Reading, error) {
	s.doubtSunspec()
	got := make(map[string]mappers.Reading, len(properties))
	var fields []*registerField
	for _, name := range properties {
		f, err := s.located(ctx, name)
		if _, refused := asRefusal(err); err != nil && !refused {
			return nil, err
		}
		if err != nil {
			got[name] = mappers.Reading{Err: err}
			continue
		}
		fields = append(fields, f)
	}
	var failed error
	answered := len(fields) == 0
	for _, g := range s.layout.plan(fields, s.config) {
		err := s.readGroup(ctx, g, got)
		if answered = answered || err == nil; err == nil {
			continue
		}
		if failed == nil {
			failed = err
		}
		for _, f := range g.fields {
			if _, ok := got[f.name]; !ok {
				got[f.name] = mappers.Reading{Err: err}
			}
		}
	}
	if !answered {
		return nil, failed
	}
	return got, nil
}

// readGroup adds a group's values to got. The error is the unit's; a register's goes into its Reading.
func (s *session) readGroup(ctx context.Context, g registerGroup, got map[string]mappers.Reading) error {
	timeout := s.config.timeout
	if quiet := s.layout.silent[g.fields[0].name]; quiet.certain(s.lastAnswer) {
		if time.Now().Before(quiet.next) {
			got[g.fields[0].name] = mappers.Reading{Err: s.silentRefusal(g)}
			return nil
		}
		timeout = min(timeout, max(250*time.Millisecond, 10*s.answerTime))
	}
	err := s.tryGroup(ctx, g, timeout, got)
	var refused wire.Exception
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused) && (refused.Busy() || refused.OfGateway()):
		return s.explain(g.String(), err)
	case refused != 0 || wire.IsShort(err):
		return s.divide(ctx, g, err, got)
	case ctx.Err() != nil || errors.Is(err, wire.ErrLate) || !wire.IsTimeout(err) && !wire.IsClosed(err) || !s.answers() || errors.As(err, new(*hastyError)):
		return err
	}
	s.layout.unanswered(g)
	if len(g.fields) == 1 && s.layout.silent[g.fields[0].name].certain(s.lastAnswer) {
		got[g.fields[0].name] = mappers.Reading{Err: s.silentRefusal(g)}
		return nil
	}
	return err
}

func (s *session) silentRefusal(g registerGroup) error {
	return mappers.Refuse(mappers.Unavailable, "unit %d does not answer %s, though it answers others", s.config.unit, g)
}

// tryGroup makes the request of a group.
func (s *session) tryGroup(ctx context.Context, g registerGroup, timeout time.Duration, got map[string]mappers.Reading) error {
	for _, f := range g.fields {
		if f.apart {
			if err := s.readFactor(ctx, f); err != nil {
				return err
			}
		}
	}
	data, err := s.request(ctx, g.request(), timeout)
	if err != nil {
		return err
	}
	words := g.words(data)
	best := s.layout.best
	s.layout.answered(g)
	if s.layout.most > 0 && s.layout.best > best {
		s.tellLimit()
	}
	for _, f := range g.fields {
		if f.scaled && !f.apart {
			if err := f.setFactor(words[f.factorAddress-g.address]); err != nil && !f.isAbsent(g.of(f, words)) {
				got[f.name] = mappers.Reading{Err: err, Raw: f.raw(g.of(f, words))}
				continue
			}
		}
		got[f.name] = f.reading(g.of(f, words))
	}
	return nil
}

func (s *session) tellLimit() {
	s.device.Tell(toldLimit, fmt.Sprintf("reads %d registers at once, and not many more: set maxRegisters: %d, or what its manual says", s.layout.best, s.layout.best))
}

// divide reads a group that the unit has refused as a whole: as much of it as the unit answers at once, found by halving, and then the
// rest. It takes note of where the group is to be cut.
func (s *session) divide(ctx context.Context, g registerGroup, cause error, got map[string]mappers.Reading) error {
	first := g.fields[0]
	refused := s.explain(g.String(), cause)
	if len(g.fields) == 1 {
		if first.scaled && !first.apart { // a register between the value and its factor doesn't exist
			first.apart = true
			return s.readGroup(ctx, singleGroup(first), got)
		}
		s.layout.refused(first)
		got[first.name] = mappers.Reading{Err: refused}
		return nil
	}
	if errors.Is(cause, wire.IllegalFunction) || s.failsAltogether(ctx, first, cause) {
		for _, f := range g.fields {
			got[f.name] = mappers.Reading{Err: refused}
		}
		return nil
	}
	good, bad := 0, len(g.fields)
	for bad-good > 1 {
		middle := (good + bad) / 2
		err := s.tryGroup(ctx, joinGroup(g.fields[:middle]), s.config.timeout, got)
		switch _, isRefusal := asRefusal(s.explain("", err)); {
		case err == nil:
			good = middle
		case isRefusal:
			bad = middle
		default:
			return s.explain(g.String(), err)
		}
	}
	if good == 0 {
		if err := s.readGroup(ctx, singleGroup(first), got); err != nil {
			return err
		}
		good = 1
	} else if tooMany := joinGroup(g.fields[:good+1]); (errors.Is(cause, wire.IllegalValue) || wire.IsShort(cause)) && !g.table.bits() {
		s.layout.learned()
		s.layout.most = max(joinGroup(g.fields[:good]).size, 1)
		if tooMany.size > s.layout.most {
			s.tellLimit()
		}
	} else {
		s.layout.learned()
		s.layout.cuts[g.fields[good].name] = true
	}
	for _, rest := range s.layout.plan(g.fields[good:], s.config) {
		if err := s.readGroup(ctx, rest, got); err != nil {
			return err
		}
	}
	return nil
}

// failsAltogether is whether it is the device that fails, and not one of the registers.
func (s *session) failsAltogether(ctx context.Context, first *registerField, cause error) bool {
	if errors.Is(cause, wire.IllegalAddress) || errors.Is(cause, wire.IllegalValue) || wire.IsShort(cause) {
		return false
	}
	_, err := s.request(ctx, singleGroup(first).request(), s.config.timeout)
	return err != nil
}

// readFactor reads the register of a field's factor by itself. What the unit refuses, and what is no factor, leaves it unknown.
func (s *session) readFactor(ctx context.Context, f *registerField) error {
	f.exponentKnown = false
	g := registerGroup{table: f.table, address: f.factorAddress, size: 1}
	data, err := s.request(ctx, g.request(), s.config.timeout)
	if err != nil {
		if _, refused := asRefusal(s.explain(f.name, err)); refused {
			return nil
		}
		return err
	}
	_ = f.setFactor(wire.Words(data)[0]) // said when the value is decoded
	return nil
}

// Nearest implements mappers.Rounder: a value that is finer than the register's scale becomes the nearest that it can hold.
func (s *session) Nearest(property, value string) (string, error) {
	f, err := s.field(property)
	if err != nil {
		return "", err
	}
	if f.sunspec != nil {
		return "", mappers.Refuse(mappers.Unknown, "it isn't known yet where %s is", f.sunspec.text)
	}
	words, err := f.encode(value)
	if err != nil || f.kind == kindBit {
		return value, err
	}
	return f.decode(words)
}

// Write implements mappers.Writer. A value for a point of SunSpec that isn't found yet is written when it is.
func (s *session) Write(ctx context.Context, property, value string) error {
	s.doubtSunspec()
	f, err := s.located(ctx, property)
	if r, refused := asRefusal(err); refused {
		if s.config.fields[property] != nil { // the device may not have told all its models yet, and is asked again
			return mappers.Refuse(mappers.Unavailable, "%s", r.Message)
		}
		return err
	}
	if err != nil {
		return mappers.NotSent(err)
	}
	return s.writeField(ctx, f, value)
}

// Command implements mappers.Commander: it writes once. What was not sent has done nothing.
func (s *session) Command(ctx context.Context, name string, payload []byte) ([]byte, error) {
	if s.config.commands[name] == nil {
		return nil, mappers.Refuse(mappers.NotReachable, "the model has no modbus visitor for the command %s", name)
	}
	value, fixed := s.config.values[name]
	if !fixed {
		value = string(payload)
	}
	s.doubtSunspec()
	f, err := s.locatedIn(ctx, s.config.commands, name)
	if err != nil {
		if _, refused := asRefusal(err); refused {
			return nil, err
		}
		return nil, mappers.Refuse(mappers.Unavailable, "%v", err)
	}
	err = s.writeField(ctx, f, value)
	switch {
	case errors.Is(err, mappers.ErrUnconfirmed): // the device has taken it, and is not done yet
		err = nil
	case isBusy(err), mappers.IsNotSent(err):
		err = mappers.Refuse(mappers.Unavailable, "%v", err)
	}
	if err != nil {
		return nil, err
	}
	return []byte("ok"), nil
}

func (s *session) writeField(ctx context.Context, f *registerField, value string) error {
	if f.scaled {
		if err := s.readFactor(ctx, f); err != nil {
			return mappers.NotSent(err)
		}
	}
	words, err := f.encode(value)
	if r, refused := asRefusal(err); refused && r.Code == mappers.Unknown { // the factor, which an inverter doesn't say at night
		return mappers.Refuse(mappers.Unavailable, "%s", r.Message)
	}
	if err != nil {
		return err
	}
	if err := s.bus.take(ctx); err != nil {
		return mappers.NotSent(err)
	}
	defer func() { s.bus.give(s.bus.mode(s)) }()
	if f.width > 0 || f.kind == kindBit && !f.table.bits() {
		words, err = s.merge(ctx, f, words)
		if err != nil {
			return mappers.NotSent(s.explain(f.name, err))
		}
	}
	err = s.writeWords(ctx, f, words)
	if errors.Is(err, wire.Acknowledged) {
		return mappers.ErrUnconfirmed
	}
	return s.explain(f.name+" = "+value, err)
}

// merge puts some bits into the registers that they are part of. Nobody else writes in between: the caller has taken the bus.
func (s *session) merge(ctx context.Context, f *registerField, words []uint16) ([]uint16, error) {
	g := registerGroup{table: f.table, address: f.address, size: f.words}
	data, err := s.bus.request(ctx, s, g.request(), s.config.timeout)
	s.noteAnswer(err, s.answerTime)
	if err != nil {
		return nil, err
	}
	was := wire.Words(data)
	if f.kind == kindBit {
		return []uint16{was[0]&^(1<<f.bit) | words[0]<<f.bit}, nil
	}
	return f.splitWords(f.joinWords(was)&^(f.mask()<<f.bit) | f.joinWords(words)), nil
}

// writeWords writes with the function for one register or coil, or with that for several. Where a device doesn't know one of them it has
// done nothing, and the other is tried; several registers are written one after the other only if the Device says so, because
// others may read them in between.
func (s *session) writeWords(ctx context.Context, f *registerField, words []uint16) error {
	mode := s.config.write
	if mode == writeEither {
		mode = s.write
	}
	if mode == writeMultiple || mode == writeEither && len(words) > 1 {
		err := s.send(ctx, manyRequest(f, words))
		if errors.Is(err, wire.IllegalFunction) && len(words) > 1 {
			return mappers.Refuse(mappers.Rejected, "%s: unit %d does not write several registers at once: set write: single, which writes one after the other", f.name, s.config.unit)
		}
		return err
	}
	for i, w := range words {
		one := wire.WriteRegister(f.address+uint16(i), w)
		if f.table == tableCoil {
			one = wire.WriteCoil(f.address, w != 0)
		}
		err := s.send(ctx, one)
		if errors.Is(err, wire.IllegalFunction) && mode == writeEither {
			if err = s.send(ctx, manyRequest(f, words)); err == nil {
				s.write = writeMultiple
				s.device.Tell(toldWrite, "does not know the function that writes one register: set write: multiple")
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func manyRequest(f *registerField, words []uint16) wire.Request {
	if f.table == tableCoil {
		return wire.WriteCoils(f.address, []bool{words[0] != 0})
	}
	return wire.WriteRegisters(f.address, words)
}

func (s *session) send(ctx context.Context, q wire.Request) error {
	_, err := s.bus.request(ctx, s, q, s.config.timeout)
	s.noteAnswer(err, s.answerTime)
	return err
}
