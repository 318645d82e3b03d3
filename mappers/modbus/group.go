// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/edgebus/edgebus/mappers/modbus/wire"
)

// registerGroup is what one request reads: registers next to each other, and the fields in them.
type registerGroup struct {
	table   registerTable
	address uint16
	size    uint16
	fields  []*registerField
}

func (g registerGroup) String() string {
	if g.size == 1 {
		return fmt.Sprintf("%s %d", g.table, g.address)
	}
	return fmt.Sprintf("%s %d-%d", g.table, g.address, g.address+g.size-1)
}

var readFunctions = [...]byte{
	tableCoil: wire.ReadCoils, tableDiscrete: wire.ReadDiscreteInputs, tableInput: wire.ReadInputRegisters, tableHolding: wire.ReadHoldingRegisters,
}

func (g registerGroup) request() wire.Request {
	return wire.Read(readFunctions[g.table], g.address, g.size)
}

// words are the registers in an answer, bits as 0 and 1.
func (g registerGroup) words(data []byte) []uint16 {
	if g.table.bits() {
		return wire.Bits(data, g.size)
	}
	return wire.Words(data)
}

// of are the registers of a field in the group's.
func (g registerGroup) of(f *registerField, words []uint16) []uint16 {
	return words[f.address-g.address : f.address-g.address+f.words]
}

// singleGroup is a group of one field.
func singleGroup(f *registerField) registerGroup {
	address, size := f.span()
	return registerGroup{f.table, address, size, []*registerField{f}}
}

// joinGroup is a group of fields that are in order and read together, whatever is between them.
func joinGroup(fields []*registerField) registerGroup {
	g := singleGroup(fields[0])
	g.fields = fields
	for _, f := range fields[1:] {
		address, size := f.span()
		g.size = max(g.size, address+size-g.address)
	}
	return g
}

// groupRules are what a group may be.
type groupRules struct {
	gap   uint16                      // registers that nobody wants between two fields
	most  uint16                      // registers
	apart func(*registerField) bool   // it is read by itself
	cut   func(f *registerField) bool // it begins a group
}

// planGroups groups fields into as few requests as the rules allow.
func planGroups(fields []*registerField, rules groupRules) (list []registerGroup) {
	fields = slices.Clone(fields)
	slices.SortStableFunc(fields, func(a, b *registerField) int {
		from, _ := a.span()
		to, _ := b.span()
		return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(from, to))
	})
	closed := true // the last group takes no more
	for _, f := range fields {
		apart := rules.apart(f)
		if n := len(list); n > 0 && !closed && !apart && !rules.cut(f) && list[n-1].takes(f, rules) {
			list[n-1] = joinGroup(append(list[n-1].fields, f))
			continue
		}
		list = append(list, singleGroup(f))
		closed = apart
	}
	return list
}

func (g registerGroup) takes(f *registerField, rules groupRules) bool {
	most := int(rules.most)
	if g.table.bits() {
		most = wire.MaxReadBits
	}
	address, size := f.span()
	end := int(address) + int(size) - int(g.address)
	return f.table == g.table && int(address) <= int(g.address)+int(g.size)+int(rules.gap) && end <= most
}

// unitLayout is what a session has found out about the registers that its unit answers in one request.
type unitLayout struct {
	since  time.Time                     // when it was found out; zero: nothing was
	most   uint16                        // registers that are asked for at once; 0: as many as are configured
	best   uint16                        // the most that were answered
	cuts   map[string]bool               // properties that begin a group: there is a hole before them
	apart  map[string]bool               // properties that the unit has refused, which spoil those that are read with them
	silent map[string]unansweredProperty // properties that the unit doesn't answer, though it does others
}

type unansweredProperty struct {
	losses int
	since  time.Time // the first of them
	next   time.Time // when it is asked again
}

// silentLosses is how often in a row a property was not answered of which that is told.
const silentLosses = 3

// certain is whether the property isn't answered though the unit has answered others since.
func (u unansweredProperty) certain(lastAnswer time.Time) bool {
	return u.losses >= silentLosses && lastAnswer.After(u.since)
}

func newLayout() unitLayout {
	return unitLayout{cuts: map[string]bool{}, apart: map[string]bool{}, silent: map[string]unansweredProperty{}}
}

// plan plans the requests for fields.
func (l *unitLayout) plan(fields []*registerField, c deviceConfig) []registerGroup {
	most := c.maxRegisters
	if l.most > 0 {
		most = min(most, l.most)
	}
	return planGroups(fields, groupRules{
		gap: c.gap, most: most,
		apart: func(f *registerField) bool { return l.apart[f.name] || l.silent[f.name].losses > 0 },
		cut:   func(f *registerField) bool { return l.cuts[f.name] },
	})
}

func (l *unitLayout) learned() {
	if l.since.IsZero() {
		l.since = time.Now()
	}
}

// answered takes note of a group that was.
func (l *unitLayout) answered(g registerGroup) {
	if !g.table.bits() {
		l.best = max(l.best, g.size)
	}
	if len(g.fields) == 1 {
		delete(l.apart, g.fields[0].name)
		delete(l.silent, g.fields[0].name)
	}
}

// refused takes note of a register that doesn't exist.
func (l *unitLayout) refused(f *registerField) {
	l.learned()
	l.apart[f.name] = true
}

// askSilentEvery is how often a property is asked for that the unit doesn't answer.
const askSilentEvery = 2 * time.Second

// unanswered takes note of a group that was not, by a unit that answers others: it is too large, or has a register that spoils it.
func (l *unitLayout) unanswered(g registerGroup) {
	l.learned()
	switch n := len(g.fields); {
	case n == 1:
		name := g.fields[0].name
		x := l.silent[name]
		if x.losses++; x.losses == 1 {
			x.since = time.Now()
		}
		x.next = time.Now().Add(askSilentEvery)
		l.silent[name] = x
		if x.losses == silentLosses { // what looked too large, or as if it had a hole, had this property
			l.most = 0
			clear(l.cuts)
		}
	case !g.table.bits() && g.size > l.best:
		l.most = max(l.best, g.size/2, 1)
	default:
		l.cuts[g.fields[n/2].name] = true
	}
}
